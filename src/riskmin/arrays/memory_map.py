"""Memory-mapped files, and the release of their resident pages where memory is limited.

Pages of a map that were read count as memory of the process until the system reclaims them, which happens
only when memory runs short. Under a memory limit that is too late for monitors of the process size: batch
systems, the memory monitor of a Dask worker. So if maps exceed a quarter of the limit, all of them are
released whenever that much is resident: between blocks by loops over the rows, and by a thread for all other
readers. Released pages stay in the system's page cache: mapping them again reads nothing from disk.
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

from riskmin.core import NDArray

MAPPED_MB_VARIABLE = "RISKMIN_MAPPED_MB"
"""Environment variable that sets the budget of resident mapped pages, in megabytes (2^20 bytes)."""

_STATUS = Path("/proc/self/status")
_T = TypeVar("_T")


def memory_limit_bytes() -> int:
    """Return the memory limit in bytes: the least of machine, control groups and resource limits."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else []
    with suppress(ImportError):
        import resource

        # not every system defines all of them
        kinds = [getattr(resource, name, None) for name in ("RLIMIT_DATA", "RLIMIT_RSS", "RLIMIT_AS")]
        values = [resource.getrlimit(kind)[0] for kind in kinds if kind is not None]
        limits += [limit for limit in values if limit != resource.RLIM_INFINITY]
    return min([*limits, *_group_limits()], default=2**62)


def _group_limits() -> list[int]:
    """Return the limits of this process's control group and its ancestors, in bytes."""
    limits = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, place = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            # cgroup v1 names its controllers; v2 has an empty list
            name = "memory.limit_in_bytes" if kinds else "memory.max"
            top = Path("/sys/fs/cgroup/memory" if kinds else "/sys/fs/cgroup")
            group = top / place.lstrip("/")
            # the limit of an ancestor applies to all groups below it
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # the root has no such file; "max" means no limit
                    limits.append(int((folder / name).read_text()))
                if folder == top:
                    break
    return limits


def resident_budget() -> int:
    """Return how many bytes of maps may be resident: a quarter of the memory limit, unless it is given."""
    given = os.environ.get(MAPPED_MB_VARIABLE, "")
    try:
        return int(float(given) * 2**20) if given else memory_limit_bytes() // 4
    except (ValueError, OverflowError):
        raise RuntimeError(
            f"{MAPPED_MB_VARIABLE}={given!r} is not a number of megabytes: set it to one, or unset it"
        ) from None


def _resident_bytes() -> int:
    """Return the resident size of mapped files in this process, in bytes."""
    # RssFile excludes shared memory, which releasing maps would not free
    status = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if line.startswith("Rss"))
    return int(status["RssFile"].split()[0]) * 1024


class ResidentSetLimiter:
    """The maps of this process, and the budget of their resident pages."""

    RESIDENT_CHECK_SECONDS = 0.004
    """Seconds between two checks of the resident size by the thread."""

    def __init__(self) -> None:
        # weak references: maps that are no longer used leave the set
        self.maps: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.budget = self.baseline_bytes = self.n_blocks = 0
        self.limited = False

    def add(self, memory: mmap.mmap) -> None:
        """Register a map; the thread runs while all maps together exceed the budget of the last one."""
        with self.lock:
            self.maps.add(memory)
            if not hasattr(mmap, "MADV_DONTNEED") or not _STATUS.exists():
                return  # only Linux reports the resident size and releases pages on request
            self.budget = resident_budget()
            self.limited = sum(map(len, self.maps)) > self.budget
            if self.limited and (self.thread is None or not self.thread.is_alive()):
                # pages resident by now (libraries, for example) do not count
                self.baseline_bytes = _resident_bytes()
                self.thread = threading.Thread(target=self._run, name="riskmin-maps", daemon=True)
                self.thread.start()

    def _run(self) -> None:
        """Check the resident size periodically, as long as there is a limit for the maps."""
        while True:
            self.release_if_over_budget()
            with self.lock:  # a map added meanwhile finds either this thread running, or none
                if not (self.maps and self.limited):
                    self.thread, self.limited = None, False
                    return
            threading.Event().wait(self.RESIDENT_CHECK_SECONDS)

    def release_if_over_budget(self) -> None:
        """Release all maps if their resident size exceeds the budget."""
        with self.lock:
            maps = list(self.maps)
        if maps and _resident_bytes() - self.baseline_bytes > self.budget:
            for memory in maps:
                with suppress(ValueError, OSError):  # the map was closed meanwhile
                    memory.madvise(mmap.MADV_DONTNEED)

    def forked(self) -> None:
        """Reset lock and thread in a child process: it inherits the maps, but not the thread."""
        self.lock, self.thread = threading.Lock(), None


_limiter = ResidentSetLimiter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_limiter.forked)


def map_file(file: Any) -> mmap.mmap:
    """Return a read-only memory map of an open file."""
    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _limiter.add(memory)
    return memory


def maps_exceed_budget() -> bool:
    """Whether maps exceed their budget, so that pages are released."""
    return _limiter.limited


def exceeds_memory(a: NDArray | None) -> bool:
    """Whether an array lies in a map while maps exceed their budget."""
    if a is None or not _limiter.limited:
        return False
    with _limiter.lock:
        # views, for the addresses of the maps
        views = [np.frombuffer(memory, np.uint8) for memory in _limiter.maps]
    # the address of the array's first byte lies within a map
    return any(0 <= a.ctypes.data - view.ctypes.data < len(view) for view in views)


def release_between(blocks: Iterable[_T], every: int = 8) -> Iterable[_T]:
    """Return the blocks, with a check of the resident size after every few if maps exceed their budget."""
    return _check_between(blocks, every) if _limiter.limited else blocks


def row_batches(rows: NDArray) -> Iterable[NDArray]:
    """Yield the row indices in batches, small ones if maps exceed their budget."""
    # each scattered row may make 16 pages resident
    step = 512 if _limiter.limited else max(len(rows), 1)
    return release_between((rows[i : i + step] for i in range(0, max(len(rows), 1), step)), every=1)


def _check_between(blocks: Iterable[_T], every: int) -> Iterator[_T]:
    """Yield the blocks, with a check of the resident size after every `every` blocks."""
    for block in blocks:
        yield block
        _limiter.n_blocks += 1
        if _limiter.n_blocks % every == 0:
            _limiter.release_if_over_budget()
