"""What the ranks of an MPI job tell each other, so that all of them stay at the same place of one program."""

from __future__ import annotations

import contextlib
import signal
import struct
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from riskmin import signals
from riskmin.executors.errors import portable
from riskmin.executors.letters import INLINE, Letter, Room

HEAD = struct.Struct("<16sqqQqq48s")
"""How a letter begins: see `_Head`."""
LETTER = HEAD.size + INLINE
"""Bytes that are exchanged at once: the head, and the letter if it fits. The same in every version."""
FINE, FAILED, STOPPED = range(3)
SAME_STROKE = 1.0
"""Ctrl-C reaches ranks one after the other, within so many seconds."""


class _Head(NamedTuple):
    """What every letter says first: ranks must agree on all of it but the state and the lengths."""

    version: bytes
    number: int
    state: int
    mark: int
    length: int
    more: int
    name: bytes


class _Patience:
    """Ctrl-C waits within, and SIGTERM where it is treated so: the next letter tells the other ranks, and all
    of them stop.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.asked = False
        self.deaf_until = 0.0
        self.before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if self.depth == 0 and threading.current_thread() is threading.main_thread():
            numbers = {signal.SIGINT, *signals.interrupting()}
            self.before = {number: signal.signal(number, self._hear) for number in numbers}
        self.depth += 1

    def __exit__(self, *exc: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            for number, handler in self.before.items():
                signal.signal(number, handler)
            self.before = {}

    def _hear(self, number: int, frame: Any) -> None:
        signals.note(number)
        self.asked = self.asked or time.monotonic() >= self.deaf_until

    def answer(self) -> None:
        """All ranks have been told; what comes within a moment is the same stroke of the keys."""
        self.asked, self.deaf_until = False, time.monotonic() + SAME_STROKE


class Line:
    """What ranks tell each other.

    Each exchange begins with letters of the same size, whatever it is about. So ranks that fail, or have come
    to different places, find out from the letters, and none waits for what the others never send.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.number = 0
        self.patience, self.room = _Patience(), Room()
        self.told: BaseException | None = None  # the last error that all ranks know of

    def exchange(self, name: str, mark: int, make: Callable[[], Any]) -> list[Any]:
        """What `make` gives at each rank, at all; what it raises at one is raised at all.

        Parameters
        ----------
        name : str
            What is done.
        mark : int
            What it is done with: a number that is the same at all ranks, or else they are not at one.
        make : callable
        """
        with self.patience:
            error: BaseException | None = None
            state = FINE
            try:
                letter = Letter.of(make())
            except BaseException as found:
                error, state = found, FAILED
                letter = Letter.of(portable(found, f"rank {self.rank}"))
            if self.patience.asked or isinstance(error, KeyboardInterrupt):
                state = STOPPED
            self.number += 1
            sizes = len(letter.text), letter.size()
            heads, letters = self._post(
                _Head(_version(), self.number, state, mark, *sizes, _short(name)), letter
            )
        self._raise(heads, letters, error)
        self.told = _difference(heads)
        if self.told is not None:
            raise self.told
        return [found.open() for found in letters]

    def _post(self, head: _Head, letter: Letter) -> tuple[list[_Head], list[Letter]]:
        """The letters of all ranks; what does not fit into one comes after it."""
        ours, theirs = bytearray(LETTER), bytearray(LETTER * self.size)
        HEAD.pack_into(ours, 0, *head)
        if not head.more:
            ours[HEAD.size : HEAD.size + head.length] = letter.text
        self.comm.Allgather(ours, theirs)
        heads = [_Head(*HEAD.unpack_from(theirs, k * LETTER)) for k in range(self.size)]
        self.told = _other_version(heads)
        if self.told is not None:
            raise self.told
        starts = [k * LETTER + HEAD.size for k in range(self.size)]
        found = [Letter(theirs[i : i + h.length], []) for i, h in zip(starts, heads, strict=True)]
        sizes = [h.more for h in heads]
        if any(sizes):
            with self.no_way_back():
                mine, rest = self.room.take(head.more), self.room.take(sum(sizes))
                letter.write(mine)
                self.comm.Allgatherv(mine, [rest, sizes])
            ends = np.cumsum([0, *sizes])
            for k, h in enumerate(heads):
                if h.more:
                    found[k] = Letter.read(rest[ends[k] : ends[k + 1]], h.length)
        return heads, found

    def _raise(self, heads: list[_Head], letters: list[Letter], own: BaseException | None) -> None:
        """The first error, or Ctrl-C, if any rank has one."""
        if any(h.state == STOPPED for h in heads):
            self.patience.answer()
            self.told = KeyboardInterrupt()
            raise self.told from own
        for k, head in enumerate(heads):
            if head.state == FAILED:
                self.told = letters[k].open()
                if k == self.rank and own is not None and type(own) is type(self.told):
                    self.told = own  # with its traceback
                raise self.told from (None if self.told is own else own)

    @contextlib.contextmanager
    def no_way_back(self) -> Iterator[None]:
        """Numbers under way: a rank that cannot go on here would let the others wait for ever."""
        try:
            yield
        except BaseException:
            traceback.print_exc()
            self.comm.Abort(1)
            raise

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A block that all ranks leave alike."""
        with self.patience:
            error: BaseException | None = None
            try:
                yield
            except BaseException as found:
                if found is self.told:
                    raise
                error = found
            self.exchange("the end", 0, partial(_end, error))


def _end(error: BaseException | None) -> None:
    if error is not None:
        raise error


def _version() -> bytes:
    from riskmin import __version__

    return _short(__version__, 16)


def _short(text: str, most: int = 48) -> bytes:
    return text.encode()[:most].ljust(most, b"\0")


def _text(short: bytes) -> str:
    return short.rstrip(b"\0").decode(errors="replace")


def _other_version(heads: list[_Head]) -> RuntimeError | None:
    """What to say where ranks have different versions of this library."""
    for k, head in enumerate(heads):
        if head.version != heads[0].version:
            ours, theirs = _text(head.version), _text(heads[0].version)
            return RuntimeError(
                f"rank {k} runs riskmin {ours}, but rank 0 runs {theirs}: install the same version everywhere"
            )
    return None


def _difference(heads: list[_Head]) -> RuntimeError | None:
    """What to say where ranks do not all do the same thing with the same numbers."""
    first = heads[0]
    for k, head in enumerate(heads):
        if (head.number, head.name, head.mark) == (first.number, first.name, first.mark):
            continue
        ours, theirs = _text(head.name), _text(first.name)
        if (head.number, head.name) != (first.number, first.name):
            return RuntimeError(
                f"rank {k} came to {ours!r} as step {head.number}, but rank 0 to {theirs!r} as step "
                f"{first.number}: have all ranks run the same program on the same data"
            )
        return RuntimeError(
            f"rank {k} came to {ours!r} with other numbers than rank 0: have all ranks run the same program "
            "on the same data, on processors that round alike, with as many threads each"
        )
    return None


def mark(things: Sequence[Any]) -> int:
    """A number that tells apart what differs, by the bits of arrays and of floats.

    Integers are keys, of which a rank may have used some for itself.
    """
    found = 0
    for x in things:
        if isinstance(x, float):
            found = zlib.crc32(struct.pack("<d", x), found)
        elif isinstance(x, np.ndarray) and x.dtype.kind in "fiub":
            found = zlib.crc32(np.ascontiguousarray(x).data, found)
    return found
