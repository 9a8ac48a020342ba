"""Arrays that stay on disk: mapped into memory, read-only, and let go of where they would crowd the rest.

Pages of a map that were read count as memory of the process until the system takes them back, which it does
only when memory runs short. Where a limit is set on the process, that is too late for those who watch its
size: batch systems, the nanny of a Dask worker. So maps beyond a quarter of the limit are let go of by a
thread, some hundred times a second if need be. They stay in the system's cache: to map them again costs no
reading.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from riskmin.data.base import DataError

SHARE = 4
"""Maps may take up one in so many bytes of memory."""
EVERY = 0.004
"""Seconds between two looks at how much is mapped."""
ENV = "RISKMIN_MAPPED_MB"
"""The variable of the environment that says how many megabytes of maps may be resident instead."""

_STATM = Path("/proc/self/statm")

_maps: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The array in a .npy file, which is not read before its numbers are; a DataError if it is another."""
    try:
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("it is of another version of the format")
            found = np.lib.format.read_array_header_1_0(file)
            head, size, count = file.tell(), os.fstat(file.fileno()).st_size, int(np.prod(shape))
            wanted = head + count * dtype.itemsize
            if found != (shape, False, dtype):
                raise ValueError(f"{found[2]} of shape {found[0]}, not {dtype} of shape {shape}")
            if size != wanted:
                short = "truncated" if size < wanted else "too long"
                problem = f"the file is {short}, {size} bytes instead of {wanted}; convert the data anew"
                raise DataError(path, None, problem)
            if count == 0:
                return np.empty(shape, dtype)
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except DataError:
        raise
    except OSError as error:
        problem = f"it cannot be read ({error.strerror or error}); convert the data anew"
        raise DataError(path, None, problem) from error
    except ValueError as error:
        problem = f"it is not the array that was written ({error}); convert the data anew"
        raise DataError(path, None, problem) from error
    _watch(memory)
    return np.frombuffer(memory, dtype, count, head).reshape(shape)


# ---------------------------------------------------------------- what is let go of
def allowed() -> int:
    """How many bytes this process may have: of the machine, of its control group, of its own limits."""
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
            name = "memory.max" if not kinds else "memory.limit_in_bytes"
            top = Path("/sys/fs/cgroup") if not kinds else Path("/sys/fs/cgroup/memory")
            group = top / place.lstrip("/")
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):
                    found.append(int((folder / name).read_text()))
                if folder == top:
                    break
    return found


def budget() -> int:
    """How many bytes of maps may be resident."""
    given = os.environ.get(ENV, "")
    return int(float(given) * 2**20) if given else allowed() // SHARE


def _resident() -> int:
    """How many bytes of files are mapped and resident in this process."""
    return int(_STATM.read_text().split()[2]) * mmap.PAGESIZE


def _watch(memory: mmap.mmap) -> None:
    """Have a map let go of where there are too many of them."""
    global _thread
    with _lock:
        _maps.add(memory)
        if not hasattr(mmap, "MADV_DONTNEED") or not _STATM.exists():
            return  # Linux alone tells what is resident, and lets go of it when told
        most = budget()
        if sum(map(len, _maps)) > most and (_thread is None or not _thread.is_alive()):
            _thread = threading.Thread(target=_ebb, args=(most,), name="riskmin-maps", daemon=True)
            _thread.start()


def _ebb(most: int) -> None:
    """Let go of all maps when too much is resident, until there are none."""
    base = _resident()  # libraries, say
    while True:
        with _lock:
            maps = list(_maps)
        if not maps:
            return
        if _resident() - base > most:
            for memory in maps:
                with suppress(ValueError, OSError):  # closed meanwhile
                    memory.madvise(mmap.MADV_DONTNEED)
        del maps
        memory = None  # else the last map would be kept
        _pause.wait(EVERY)


_pause = threading.Event()
