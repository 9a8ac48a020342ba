"""A shim between riskmin and the system, which counts calls that touch files and injects a fault at one."""

import errno
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import numpy as np

from riskmin.core import atomic_files

COUNTED = ("open", "fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "chmod", "chown")
"""The functions of `os` that `riskmin.core.atomic_files` calls to change something."""
REMOVING = {"unlink", "rmdir"}
"""What fails here leaves something behind, and nothing else can be done about it."""
ALLOCATING = ("array", "ascontiguousarray", "frombuffer", "fromfile", "zeros", "empty", "cumsum", "unique")
PERSISTENCE = (
    "riskmin.core.persist",
    "riskmin.driver.checkpoint",
    "riskmin.data.store.writer",
    "riskmin.data.formats.svmlight_writer",
    "riskmin.data.store.npy_map",
    "riskmin.estimators.persistence.model_file",
    "safetensors.numpy",
)
"""Whose allocations are counted."""


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
        """Context in which system calls go through this object."""
        before = atomic_files.os, atomic_files.FileIO, atomic_files.exchange
        arrays = {name: getattr(np, name) for name in ALLOCATING}
        atomic_files.os, atomic_files.FileIO = _Os(self), _raw(self)
        atomic_files.exchange = lambda *names: self.call("exchange", before[2], *names)
        if self.allocations:
            for name, f in arrays.items():
                setattr(np, name, _counted(self, name, f))
        try:
            yield self
        finally:
            atomic_files.os, atomic_files.FileIO, atomic_files.exchange = before
            for name, f in arrays.items():
                setattr(np, name, f)


class _Os:
    """The module `os` with counted calls."""

    def __init__(self, faults):
        self.faults = faults

    def __getattr__(self, name):
        attribute = getattr(os, name)
        if name not in COUNTED:
            return attribute
        return lambda *args, **settings: self.faults.call(name, attribute, *args, **settings)


def _raw(faults):
    class Raw(FileIO):
        """A raw (unbuffered) file whose writes are counted."""

        def write(self, data):
            return faults.call("write", super().write, data)

    return Raw


def _counted(faults, name, f):
    def allocate(*args, **settings):
        if sys._getframe(1).f_globals.get("__name__") not in PERSISTENCE:
            return f(*args, **settings)
        return faults.call(name, f, *args, **settings)

    return allocate


class Disk(Faults):
    """Tracks what was synced to the disk, and can discard everything else, as a power loss does.

    Unsynced content of files is lost. Names that were added, removed or exchanged in a folder since its last
    sync are either as before or as now: both cases must be handled.
    """

    def __init__(self, at=0, strike=lambda name: None, **settings):
        super().__init__(at, strike, **settings)
        self.opened, self.unsynced, self.undo = {}, set(), []
        self.attic, self.exchange = Path(tempfile.mkdtemp()), atomic_files.exchange

    def call(self, name, f, *args, **settings):
        if name == "write":
            self.unsynced.add(self.opened[f.__self__.fileno()])
        undo = self._undo(name, *args[:2])
        result = super().call(name, f, *args, **settings)
        if name == "open":
            self.opened[result] = Path(args[0])
        if name == "fsync":
            path = self.opened[args[0]]
            self.unsynced.discard(path)
            self.undo = [(folder, back) for folder, back in self.undo if folder != path]
        if undo is not None:
            self.undo.append((Path(args[0]).parent, undo))
            self._renamed(name, *args[:2])
        return result

    def _undo(self, name, one, other=None):
        """A function that undoes a change of names; None if nothing changed."""
        if name == "exchange":
            return lambda: self.exchange(one, other)
        if name in ("rename", "replace"):
            one, other = Path(one), Path(other)
            backup = self._keep(other) if other.is_file() else None
            return lambda: (other.rename(one), backup and shutil.move(backup, other))
        if name == "open" and not Path(one).exists():
            return lambda: Path(one).unlink(missing_ok=True)
        if name == "unlink" and Path(one).is_file():
            backup = self._keep(Path(one))
            return lambda: shutil.move(backup, one)
        if name == "mkdir":
            return lambda: shutil.rmtree(one)
        return Path(one).mkdir if name == "rmdir" and Path(one).is_dir() else None

    def _keep(self, path):
        return shutil.copy2(path, self.attic / str(len(self.calls)))

    def _renamed(self, name, one, other=None):
        """Update the names of unsynced files."""
        if name in ("rename", "replace", "exchange"):
            one, other = Path(one), Path(other)
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
