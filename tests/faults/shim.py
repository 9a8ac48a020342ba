"""A shim between riskmin and the system, which counts calls that touch files and injects a fault at one."""

import ctypes
import errno
import io
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

COUNTED = ("open", "fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "chmod", "chown")
"""Functions of `os` that change something."""
EXCHANGE = "renameat2" if sys.platform == "linux" else "renamex_np"
"""The function of the C library that exchanges two names."""
REMOVING = {"unlink", "rmdir"}
"""What fails here leaves something behind, and nothing else can be done about it."""
ALLOCATING = ("array", "ascontiguousarray", "frombuffer", "fromfile", "zeros", "empty", "cumsum", "unique")
PERSISTENCE = (
    "riskmin.core.persist",
    "riskmin.driver.checkpoint",
    "riskmin.data.store",
    "riskmin.data.formats.svmlight_writer",
    "riskmin.estimators.persistence",
    "safetensors",
)
"""Modules and packages whose allocations are counted."""


def full(name):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def over_quota(name):
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def broken(name):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def out_of_memory(name):
    raise MemoryError


class Faults:
    """Counts calls, and injects a fault at the call of a given number.

    Parameters
    ----------
    at : int
        The number of the call, from 1; 0 for no fault.
    strike : callable
        The fault, called with the name of the system call.
    after : bool
        Whether the fault comes after the call instead of before it.
    lasting : bool
        Whether all later calls fail as well, except removals, as on a full disk.
    allocations : bool
        Whether allocations of arrays in the persistence layer count as calls.
    """

    def __init__(self, at=0, strike=full, *, after=False, lasting=False, allocations=False):
        self.at, self.strike, self.after, self.lasting = at, strike, after, lasting
        self.allocations = allocations
        self.calls = []

    @property
    def struck(self):
        """The name of the call with the fault, or None."""
        return self.calls[self.at - 1] if 0 < self.at <= len(self.calls) else None

    def call(self, name, f, *args, **settings):
        """Make a call, with the fault if it is the chosen one."""
        self.calls.append(name)
        n = len(self.calls)
        now = n == self.at or (self.lasting and 0 < self.at < n and name not in REMOVING)
        if now and not self.after:
            taken = f(args[0][: len(args[0]) // 2 + 1]) if name == "write" else 0  # a partial write
            self.strike(name)
            if taken:
                return taken
        result = f(*args, **settings)
        if now and self.after:
            self.strike(name)
        return result

    @contextmanager
    def installed(self):
        """Context in which the system calls of riskmin go through this object."""
        library, raw = ctypes.CDLL, io.FileIO
        with ExitStack() as patches:
            for name in COUNTED:
                counted = self.counted(name, getattr(os, name), ("riskmin",))
                patches.enter_context(mock.patch.object(os, name, counted))
            for name in ALLOCATING if self.allocations else ():
                counted = self.counted(name, getattr(np, name), PERSISTENCE)
                patches.enter_context(mock.patch.object(np, name, counted))
            patches.enter_context(mock.patch.object(io, "FileIO", _raw(self, raw)))
            patches.enter_context(
                mock.patch.object(ctypes, "CDLL", lambda *args, **how: _Library(self, library(*args, **how)))
            )
            yield self

    def counted(self, name, f, modules):
        """A function that goes through this object if one of these modules or packages calls it."""

        def call(*args, **settings):
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if any(caller == module or caller.startswith(f"{module}.") for module in modules):
                return self.call(name, f, *args, **settings)
            return f(*args, **settings)

        return call


class _Library:
    """The C library with a counted exchange of two names."""

    def __init__(self, faults, library):
        self.faults, self.library = faults, library

    def __getattr__(self, name):
        f = getattr(self.library, name)
        return (lambda *args: self.faults.call("exchange", f, *args)) if name == EXCHANGE else f


def _raw(faults, FileIO):
    class Raw(FileIO):
        """A raw (unbuffered) file whose writes are counted."""

        def write(self, data):
            return faults.call("write", super().write, data)

    return Raw


class Disk(Faults):
    """Tracks what was synced to the disk, and can discard everything else, as a power loss does.

    Unsynced content of files is lost. Names that were added, removed or exchanged in a folder since its last
    sync are either as before or as now: both cases must be handled.
    """

    def __init__(self, at=0, strike=lambda name: None, **settings):
        super().__init__(at, strike, **settings)
        self.opened, self.unsynced, self.undo = {}, set(), []
        self.attic = Path(tempfile.mkdtemp())

    def call(self, name, f, *args, **settings):
        if name == "write":
            self.unsynced.add(self.opened[f.__self__.fileno()])
        # folders of the C library's call are numbers
        paths = [os.fsdecode(a) for a in args if isinstance(a, bytes | str | Path)] if name != "write" else []
        undo = self._undo(name, f, args, *map(Path, paths))
        result = super().call(name, f, *args, **settings)
        if name == "open":
            self.opened[result] = Path(args[0])
        if name == "fsync":
            path = self.opened[args[0]]
            self.unsynced.discard(path)
            self.undo = [(folder, back) for folder, back in self.undo if folder != path]
        if undo is not None:
            self.undo.append((Path(paths[0]).parent, undo))
            self._renamed(name, *map(Path, paths))
        return result

    def _undo(self, name, f, args, one=None, other=None):
        """A function that undoes a change of names; None if nothing changed."""
        if name == "exchange":
            return lambda: f(*args)
        if name in ("rename", "replace"):
            backup = self._keep(other) if other.is_file() else None
            return lambda: (other.rename(one), backup and shutil.move(backup, other))
        if name == "open" and not one.exists():
            return lambda: one.unlink(missing_ok=True)
        if name == "unlink" and one.is_file():
            backup = self._keep(one)
            return lambda: shutil.move(backup, one)
        if name == "mkdir":
            return lambda: shutil.rmtree(one)
        return one.mkdir if name == "rmdir" and one.is_dir() else None

    def _keep(self, path):
        return shutil.copy2(path, self.attic / str(len(self.calls)))

    def _renamed(self, name, one, other=None):
        """Update the names of unsynced files."""
        if name in ("rename", "replace", "exchange"):
            swap = {one: other, other: one}
            self.unsynced = {_moved(path, swap) for path in self.unsynced}
            self.opened = {handle: _moved(path, swap) for handle, path in self.opened.items()}

    def lose_power(self, *, names):
        """Discard unsynced content, and with `names` also unsynced changes of names."""
        for path in self.unsynced:
            if path.is_file():
                os.truncate(path, 0)
        if names:
            for folder, undo in reversed(self.undo):
                if folder.is_dir():  # otherwise its removal was synced
                    undo()
        shutil.rmtree(self.attic, ignore_errors=True)


def _moved(path, swap):
    for one, other in swap.items():
        if path == one or one in path.parents:
            return other / path.relative_to(one)
    return path
