"""Messages between the ranks of an MPI job: objects as bytes, and the pool of buffers that they use."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import NDArray

INLINE_MESSAGE_BYTES = 408
"""Messages of at most this many bytes travel with the header, in the first exchange."""
CACHE_LINE_BYTES = 64
"""Length of a cache line; arrays in a message start at multiples of it."""


class Message(NamedTuple):
    """A pickled object.

    Arrays of `INLINE_MESSAGE_BYTES` or more are sent after the pickle, each at the start of a cache line.
    """

    text: Any
    """The pickle; with large arrays, that of (pickle of the object, lengths of the arrays in bytes)."""
    arrays: list[Any]
    """Buffers of the large arrays."""

    @classmethod
    def encode(cls, obj: Any) -> Message:
        """Pickle an object."""
        buffers: list[Any] = []

        def out_of_band(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < INLINE_MESSAGE_BYTES:
                return True  # pickle it in band
            buffers.append(raw)
            return False

        text = pickle.dumps(obj, protocol=5, buffer_callback=out_of_band)
        # a long message: the lengths of its arrays are sent with the pickle
        if buffers or len(text) > INLINE_MESSAGE_BYTES:
            text = pickle.dumps((text, [raw.nbytes for raw in buffers]))
        return cls(text, buffers)

    def size(self) -> int:
        """Number of bytes for the second exchange; 0 if the message fits into the first."""
        if not self.arrays and len(self.text) <= INLINE_MESSAGE_BYTES:
            return 0
        return sum(_padded(len(b)) for b in (self.text, *self.arrays))

    def write(self, buffer: NDArray) -> None:
        """Write the message into the buffer of the second exchange, which is empty if there is none."""
        # the text and the arrays one after the other, each at the start of a cache line
        offset = 0
        for b in (self.text, *self.arrays) if len(buffer) else ():
            buffer[offset : offset + len(b)] = np.frombuffer(b, dtype=np.uint8)
            offset += _padded(len(b))

    @classmethod
    def read(cls, buffer: NDArray, length: int) -> Message:
        """Read what `write` wrote; `length` is that of the text in bytes."""
        return cls(buffer[:length], [buffer[_padded(length) :]])

    def decode(self) -> Any:
        """Unpickle the object."""
        if not self.arrays:
            return pickle.loads(self.text)
        text, sizes = pickle.loads(self.text)
        # arrays[0] holds all arrays, each padded to a multiple of the cache line
        offset, views = 0, []
        for n in sizes:
            views.append(self.arrays[0][offset : offset + n])
            offset += _padded(n)
        return pickle.loads(text, buffers=views)


def _padded(n: int) -> int:
    """Round n up to a multiple of the cache line."""
    return -(-n // CACHE_LINE_BYTES) * CACHE_LINE_BYTES


class BufferPool:
    """Pool of buffers, reused once no array views them.

    The page faults of a new buffer cost more than the transfer itself.
    """

    MAX_POOLED_BUFFERS, MAX_POOLED_BYTES = 8, 2**25
    """Number of buffers that the pool keeps for reuse, and the length of the largest of them."""

    def __init__(self) -> None:
        self.buffers: list[bytearray] = []

    def acquire(self, n: int) -> NDArray:
        """Return an array of n bytes; as long as a view of it exists, its buffer is not reused."""
        for k, buffer in enumerate(self.buffers):
            # long enough, but not more than 4 times too long
            if n + CACHE_LINE_BYTES <= len(buffer) <= max(4 * n, 2**12) and _unused(buffer):
                return _aligned(self.buffers[k], n)
        # one more cache line, so that n bytes fit after the alignment
        buffer = bytearray(n + CACHE_LINE_BYTES)
        if n <= self.MAX_POOLED_BYTES:
            # drop the oldest buffers; arrays that view them keep their memory alive
            del self.buffers[: len(self.buffers) - self.MAX_POOLED_BUFFERS + 1]
            self.buffers.append(buffer)
        return _aligned(buffer, n)


def _unused(buffer: bytearray) -> bool:
    """Whether no array views the buffer: Python refuses to resize a bytearray that has views."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


def _aligned(buffer: bytearray, n: int) -> NDArray:
    """Return n bytes of the buffer that start at a cache line."""
    array = np.frombuffer(buffer, dtype=np.uint8)
    # the number of bytes from the address of the buffer up to the next multiple of a cache line
    start = -array.ctypes.data % CACHE_LINE_BYTES
    return array[start : start + n]
