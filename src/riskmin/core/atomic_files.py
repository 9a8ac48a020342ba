"""Atomic replacement of files and folders: written under a temporary name, synced, and then renamed.

All output of the package goes through this module, so that tests can make each call fail, or kill the process
in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

PathLike = str | os.PathLike[str]

DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers for a full disk, an exceeded quota, or a file that is too large."""
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}
"""Error numbers for a call that the system or the file system does not support."""


def error_text(error: OSError) -> str:
    """Return the system's description of an error."""
    return error.strerror or str(error)


def temporary_name(target: Path) -> Path:
    """Return a hidden, unique name in the same folder, short enough for any file system."""
    # tempfile is no alternative: it sets 0o600 whatever the umask, which cannot be read without a race
    return target.with_name(f".{target.name[:48]}.{secrets.token_hex(8)}")


def stat_or_none(path: Path) -> os.stat_result | None:
    """Return the status of a path, or None if it does not exist."""
    try:
        return os.stat(path)
    except OSError:
        return None


# ---------------------------------------------------------------- files
def create(path: Path, like: os.stat_result | None = None) -> io.BufferedRandom:
    """Create a file for writing, with the permissions of the file that it will replace.

    At no moment may more users open it than the file that it replaces.

    Parameters
    ----------
    path : Path
    like : stat_result, optional
        Status of the file to be replaced.
    """
    # the permissions hold from the creation of the file on, not only after `_permit`
    mode = 0o666 if like is None else stat.S_IMODE(like.st_mode) & 0o777
    raw = io.FileIO(path, "x+", opener=lambda name, flags: os.open(name, flags, mode))
    try:
        if like is not None:
            _permit(raw.fileno(), like)
        return io.BufferedRandom(raw)
    except BaseException:
        raw.close()
        raise


def _permit(target: int | Path, like: os.stat_result) -> None:
    """Give a new file or folder the permissions, and if possible the owner and group, of another one."""
    if os.name != "posix":
        return
    mode, new = stat.S_IMODE(like.st_mode) & 0o777, os.stat(target)
    if (new.st_uid, new.st_gid) != (like.st_uid, like.st_gid):
        # the group first: changing the owner needs privileges, and fails for most users
        with contextlib.suppress(OSError):
            os.chown(target, -1, like.st_gid)
            os.chown(target, like.st_uid, -1)
    # a file of another group: that group gets the permissions of "others" only
    if os.stat(target).st_gid != like.st_gid:
        mode &= ~0o070 | (mode & 0o007) << 3
    with contextlib.suppress(OSError):  # a file system without permissions
        os.chmod(target, mode)


def sync(file: IO[bytes]) -> None:
    """Flush a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush the entries of a folder to the disk, without which a new file or a renaming may be lost."""
    if os.name != "posix":
        return
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder may be writable but not readable
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def atomic_write(path: PathLike) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `path` at the end of the block; on an error, it is removed.

    Parameters
    ----------
    path : path
        If it is a symbolic link, the file that it refers to is replaced, and the link stays. The permissions
        of an existing file are kept. A pipe or a device is written to, not replaced.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "file")
    ...     with atomic_write(path) as file:
    ...         _ = file.write(b"new")
    ...     path.read_bytes()
    b'new'
    """
    target = Path(os.path.realpath(path))
    old = stat_or_none(target)
    # a pipe or a device
    if old is not None and not stat.S_ISREG(old.st_mode) and not stat.S_ISDIR(old.st_mode):
        with target.open("wb") as file:
            yield file
        return
    new = temporary_name(target)
    try:
        with create(new, old) as file:
            yield file
            sync(file)
        # the content is on the disk before the name refers to it
        rename(new, target)
        sync_folder(target.parent)
    except BaseException as error:
        clean_up(lambda: unlink(new))
        if isinstance(error, OSError):  # report the given name, not the temporary one
            error.filename, error.filename2 = os.fspath(path), None
        raise


def unlink(path: Path) -> None:
    """Remove a file; ignore errors."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def clean_up(remove: Callable[[], object]) -> None:
    """Call a cleanup function; if it is interrupted, call it once more and then raise the interrupt."""
    try:
        remove()
    except KeyboardInterrupt:
        remove()
        raise


# ---------------------------------------------------------------- folders
def create_folder(path: Path, like: os.stat_result | None = None) -> None:
    """Create a folder, with the permissions of the folder that it will replace."""
    os.mkdir(path, 0o777 if like is None else stat.S_IMODE(like.st_mode) & 0o777)
    if like is not None:
        _permit(path, like)


def rename(source: Path, target: Path) -> None:
    """Rename a file atomically, replacing one of the new name."""
    os.replace(source, target)


def move_into_place(new: Path, target: Path, *, replace: bool) -> Path | None:
    """Rename a folder to `target`; return the new name of the folder that it replaced, or None.

    Where the system cannot exchange two names atomically, a process may be killed between two renamings;
    `recover` then restores the replaced folder.
    """
    if not (replace and os.path.lexists(target)):
        os.rename(new, target)
        return None
    if exchange(new, target):
        return new
    # two renamings; between them there is no folder of this name
    old = backup_name(target)
    try:
        os.rename(target, old)
        os.rename(new, target)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(target):
            os.rename(old, target)
        raise
    return old


def backup_name(target: Path) -> Path:
    """Return the temporary name of a folder while another takes its place."""
    return target.with_name(f".{target.name}.old")


def recover(path: PathLike, witness: str) -> bool:
    """Restore a folder that a killed process had renamed to replace it; return whether there is one.

    Parameters
    ----------
    path : path
    witness : str
        Name of a file that every complete folder contains.
    """
    target = Path(os.path.realpath(path))
    old = backup_name(target)
    if os.path.lexists(target) or not (old / witness).is_file():
        return False
    with contextlib.suppress(OSError):  # another process may restore it first
        os.rename(old, target)
        sync_folder(target.parent)
    return (target / witness).is_file()


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two files or folders atomically; return False if the system cannot."""
    call = _exchange_call()
    if call is None or call(os.fsencode(first), os.fsencode(second)) == 0:
        return call is not None
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(second))


def _exchange_call() -> Callable[[bytes, bytes], int] | None:
    """Return the function of the C library that exchanges two names, or None."""
    if sys.platform not in ("linux", "darwin"):
        return None
    library: Any = ctypes.CDLL(None, use_errno=True)
    name, cwd = ("renameat2", -100) if sys.platform == "linux" else ("renamex_np", None)
    call = getattr(library, name, None)
    if call is None:
        return None
    if cwd is None:
        return lambda one, other: int(call(one, other, 2))  # RENAME_SWAP
    return lambda one, other: int(call(cwd, one, cwd, other, 2))  # AT_FDCWD, RENAME_EXCHANGE


def delete(folder: Path, names: Iterable[str]) -> None:
    """Remove these files of a folder, and the folder if it is then empty; ignore errors."""
    for name in names:
        unlink(folder / name)
    with contextlib.suppress(OSError):
        os.rmdir(folder)
