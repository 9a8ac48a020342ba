"""Files that are mapped into memory, and what is let go of where they would crowd the rest.

Pages of a map that were read count as memory of the process until the system takes them back, which it does
only when memory runs short. Where the process is limited, that is too late for those who watch its size:
batch systems, the nanny of a Dask worker. So where maps are larger than a quarter of what is allowed, they
are let go of when so much of them is resident: by whoever passes over the rows, and by a thread for all
others. They stay in the system's cache: to map them again costs no reading.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from riskmin.types import NDArray

SHARE = 4
"""Maps may take up one in so many bytes of memory."""
EVERY = 0.004
"""Seconds between two looks of the thread at how much is resident."""
BLOCKS = 8
"""Blocks of rows between two looks of those who pass over them."""
FEW_ROWS = 512
"""Rows from all over a file that are picked between two looks: each may bring 16 pages with it."""
ENV = "RISKMIN_MAPPED_MB"
"""The variable of the environment that says how many megabytes of maps may be resident instead."""

_STATUS = Path("/proc/self/status")
_T = TypeVar("_T")


def allowed() -> int:
    """How many bytes this process may have: of the machine, of its control group, by its own limits."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    with suppress(ImportError):
        import resource

        kinds = [getattr(resource, name, None) for name in ("RLIMIT_DATA", "RLIMIT_RSS", "RLIMIT_AS")]
        found = [resource.getrlimit(kind)[0] for kind in kinds if kind is not None]
        limits += [limit for limit in found if limit != resource.RLIM_INFINITY]
    return min([*limits, *_group_limits()], default=2**62)


def _group_limits() -> list[int]:
    """The limits of the control groups of this process, and of those around them."""
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, place = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            name = "memory.limit_in_bytes" if kinds else "memory.max"
            top = Path("/sys/fs/cgroup/memory" if kinds else "/sys/fs/cgroup")
            group = top / place.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # of the root there is none, and "max" is none
                    found.append(int((folder / name).read_text()))
                if folder == top:
                    break
    return found


def budget() -> int:
    """How many bytes of maps may be resident."""
    given = os.environ.get(ENV, "")
    try:
        return int(float(given) * 2**20) if given else allowed() // SHARE
    except (ValueError, OverflowError):
        raise RuntimeError(f"{ENV}={given!r} is no number of megabytes: set it to one, or unset it") from None


def _resident() -> int:
    """How many bytes of files are mapped and resident in this process."""
    # memory that processes share counts as files, too, but is not let go of with them
    found = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if line.startswith("Rss"))
    return int(found["RssFile"].split()[0]) * 1024


class _Tide:
    """The maps of this process, and how much of them may be resident."""

    def __init__(self) -> None:
        self.maps: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.most = self.base = self.blocks = 0
        self.limited = False

    def add(self, memory: mmap.mmap) -> None:
        """Take note of a map."""
        with self.lock:
            self.maps.add(memory)
            if not hasattr(mmap, "MADV_DONTNEED") or not _STATUS.exists():
                return  # Linux alone tells what is resident, and lets go of it when told
            if self.thread is not None and self.thread.is_alive():
                return
            self.most = budget()
            if sum(map(len, self.maps)) > self.most:
                self.base, self.limited = _resident(), True
                self.thread = threading.Thread(target=self._run, name="riskmin-maps", daemon=True)
                self.thread.start()

    def _run(self) -> None:
        """Look now and then, until there are no maps left."""
        while True:
            self.look()
            with self.lock:  # a map that comes now finds either this thread at work, or none
                if not self.maps:
                    self.thread, self.limited = None, False
                    return
            threading.Event().wait(EVERY)

    def look(self) -> None:
        """Let go of all maps if too much is resident."""
        with self.lock:
            maps = list(self.maps)
        if maps and _resident() - self.base > self.most:
            for memory in maps:
                with suppress(ValueError, OSError):  # closed meanwhile
                    memory.madvise(mmap.MADV_DONTNEED)

    def forked(self) -> None:
        """A child has the maps, but not the thread, which may just have had the lock."""
        self.lock, self.thread = threading.Lock(), None


_tide = _Tide()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tide.forked)


def mapped(file: Any) -> mmap.mmap:
    """An open file, mapped to be read."""
    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _tide.add(memory)
    return memory


def limited() -> bool:
    """Whether maps are so large that they are let go of."""
    return _tide.limited


def crowds(a: NDArray) -> bool:
    """Whether an array lies in a map, and maps are so large that they are let go of."""
    if not _tide.limited:
        return False
    with _tide.lock:
        views = [np.frombuffer(memory, np.uint8) for memory in _tide.maps]
    return any(0 <= a.ctypes.data - view.ctypes.data < len(view) for view in views)


def passing(blocks: Iterable[_T], every: int = BLOCKS) -> Iterable[_T]:
    """The same blocks, and between every so many of them a look at how much is resident, if that matters."""
    return _looking(blocks, every) if _tide.limited else blocks


def picking(at: NDArray) -> Iterable[NDArray]:
    """The same indices of rows, one array after the other, few at a time where maps are let go of."""
    step = FEW_ROWS if _tide.limited else max(len(at), 1)
    return passing((at[i : i + step] for i in range(0, max(len(at), 1), step)), every=1)


def _looking(blocks: Iterable[_T], every: int) -> Iterator[_T]:
    for block in blocks:
        yield block
        _tide.blocks += 1
        if _tide.blocks % every == 0:
            _tide.look()
