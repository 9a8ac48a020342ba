"""Objects as bytes for the ranks of an MPI job, and the memory that they are written to."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np

from riskmin.types import NDArray

INLINE = 408
"""Letters of so many bytes go with the first exchange."""
LINE = 64
"""Bytes of a cache line."""
MOST_SPACES, MOST_KEPT = 8, 2**25
"""So many pieces of memory are kept to be used again, each of so many bytes at most."""


class Letter(NamedTuple):
    """A pickled object; its larger arrays lie apart, each at the start of a cache line."""

    text: Any
    arrays: list[Any]

    @classmethod
    def of(cls, thing: Any) -> Letter:
        """That which says it."""
        buffers: list[Any] = []

        def aside(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < INLINE:
                return True  # among the text
            buffers.append(raw)
            return False

        text = pickle.dumps(thing, protocol=5, buffer_callback=aside)
        if buffers or len(text) > INLINE:
            text = pickle.dumps((text, [raw.nbytes for raw in buffers]))
        return cls(text, buffers)

    def size(self) -> int:
        """How many bytes do not fit into the first exchange."""
        if not self.arrays and len(self.text) <= INLINE:
            return 0
        return sum(_padded(len(b)) for b in (self.text, *self.arrays))

    def write(self, room: NDArray) -> None:
        """Put it there, where it does not fit into the first exchange."""
        at = 0
        for b in (self.text, *self.arrays) if len(room) else ():
            room[at : at + len(b)] = np.frombuffer(b, dtype=np.uint8)
            at += _padded(len(b))

    @classmethod
    def read(cls, room: NDArray, length: int) -> Letter:
        """What `write` put there, the text being so long."""
        return cls(room[:length], [room[_padded(length) :]])

    def open(self) -> Any:
        """What was sent."""
        if not self.arrays:
            return pickle.loads(self.text)
        text, sizes = pickle.loads(self.text)
        at, views = 0, []
        for n in sizes:
            views.append(self.arrays[0][at : at + n])
            at += _padded(n)
        return pickle.loads(text, buffers=views)


def _padded(n: int) -> int:
    return -(-n // LINE) * LINE


class Room:
    """Memory that is used again once nobody looks at it: new memory costs more than what is sent."""

    def __init__(self) -> None:
        self.held: list[bytearray] = []

    def take(self, n: int) -> NDArray:
        """Space for n bytes; arrays that look into it keep it from being used again."""
        for k, space in enumerate(self.held):
            if n + LINE <= len(space) <= max(4 * n, 2**12) and _unused(space):
                return _at_a_line(self.held[k], n)
        space = bytearray(n + LINE)
        if n <= MOST_KEPT:
            del self.held[: len(self.held) - MOST_SPACES + 1]
            self.held.append(space)
        return _at_a_line(space, n)


def _unused(space: bytearray) -> bool:
    """Whether no array looks into it: Python lets no bytes be taken from one that something looks into."""
    try:
        space.append(space.pop())
    except BufferError:
        return False
    return True


def _at_a_line(space: bytearray, n: int) -> NDArray:
    """The n bytes from where a cache line starts."""
    whole = np.frombuffer(space, dtype=np.uint8)
    start = -whole.ctypes.data % LINE
    return whole[start : start + n]
