"""Files and folders that change at once: written beside their place, synced, and then renamed.

All that is written goes through here, so that tests can have each call fail, or end the process at it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from io import BufferedRandom, FileIO
from pathlib import Path
from typing import IO, Any

PathLike = str | os.PathLike[str]

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""What systems say where a disk, or what a user may have of it, is full."""
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}
"""What they say where they lack a call, or a file system does."""


def reason(error: OSError) -> str:
    """Why a file cannot be written, in the system's words."""
    return error.strerror or str(error)


def beside(target: Path) -> Path:
    """A hidden name in the same folder that nobody else has; it is no longer than names may be."""
    # not tempfile's, whose files are 0o600 whatever the umask, which cannot be read without a race
    return target.with_name(f".{target.name[:48]}.{secrets.token_hex(8)}")


def known(path: Path) -> os.stat_result | None:
    """What the system knows of a path; None where there is nothing."""
    try:
        return os.stat(path)
    except OSError:
        return None


# ---------------------------------------------------------------- files
def create(path: Path, like: os.stat_result | None = None) -> BufferedRandom:
    """A new file to write to; where it is to replace another, with that one's permissions.

    It is at no moment open to more people than the one that it replaces.

    Parameters
    ----------
    path : Path
    like : stat_result, optional
        What the system knows of the file to be replaced.
    """
    mode = 0o666 if like is None else stat.S_IMODE(like.st_mode) & 0o777
    raw = FileIO(path, "x+", opener=lambda name, flags: os.open(name, flags, mode))
    try:
        if like is not None:
            _permit(raw.fileno(), like)
        return BufferedRandom(raw)
    except BaseException:
        raw.close()
        raise


def _permit(place: int | Path, like: os.stat_result) -> None:
    """Give a new file or folder the permissions, and as far as one may the owner, of another."""
    if os.name != "posix":
        return
    mode, new = stat.S_IMODE(like.st_mode) & 0o777, os.stat(place)
    if (new.st_uid, new.st_gid) != (like.st_uid, like.st_gid):
        with contextlib.suppress(OSError):
            os.chown(place, -1, like.st_gid)
            os.chown(place, like.st_uid, -1)
    if os.stat(place).st_gid != like.st_gid:  # another group: it may do what anybody may
        mode &= ~0o070 | (mode & 0o007) << 3
    with contextlib.suppress(OSError):  # a file system without permissions
        os.chmod(place, mode)


def sync(file: IO[bytes]) -> None:
    """Have what was written on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk: a new file may be lost without, and so may a renaming."""
    if os.name != "posix":
        return
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # one may write to a folder that one may not read
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(path: PathLike) -> Iterator[IO[bytes]]:
    """A file to write to that takes its place at the end of the block, or never was.

    Parameters
    ----------
    path : path
        Where it is a symbolic link, the file that it names is replaced, and the link stays. A file that was
        there keeps its permissions. A pipe or a device is written to, not replaced.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "file")
    ...     with replacing(path) as file:
    ...         _ = file.write(b"new")
    ...     path.read_bytes()
    b'new'
    """
    target = Path(os.path.realpath(path))
    old = known(target)
    if old is not None and not stat.S_ISREG(old.st_mode) and not stat.S_ISDIR(old.st_mode):
        with target.open("wb") as file:
            yield file
        return
    new = beside(target)
    try:
        with create(new, old) as file:
            yield file
            sync(file)
        rename(new, target)
        sync_folder(target.parent)
    except BaseException as error:
        surely(lambda: unlink(new))
        if isinstance(error, OSError):  # which may name the hidden file, or none
            error.filename, error.filename2 = os.fspath(path), None
        raise


def unlink(path: Path) -> None:
    """Remove a file, if there is one, as far as one may."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def surely(remove: Callable[[], object]) -> None:
    """Call a function that removes what was begun; if it is interrupted, once more."""
    try:
        remove()
    except KeyboardInterrupt:
        remove()
        raise


# ---------------------------------------------------------------- folders
def create_folder(path: Path, like: os.stat_result | None = None) -> None:
    """A new folder; where it is to replace another, with that one's permissions."""
    os.mkdir(path, 0o777 if like is None else stat.S_IMODE(like.st_mode) & 0o777)
    if like is not None:
        _permit(path, like)


def rename(one: Path, other: Path) -> None:
    """Have a file at another's name, in its place."""
    os.replace(one, other)


def put(new: Path, target: Path, *, replace: bool) -> Path | None:
    """Rename a folder, perhaps to another's name; the other's new name is returned, or None without one.

    Where the system cannot exchange them at once, a kill may strike between two renamings; `recover` has the
    other back then.
    """
    if not (replace and os.path.lexists(target)):
        os.rename(new, target)
        return None
    if exchange(new, target):
        return new
    old = aside(target)
    try:
        os.rename(target, old)
        os.rename(new, target)
    except BaseException:
        if os.path.lexists(old) and not os.path.lexists(target):
            os.rename(old, target)
        raise
    return old


def aside(target: Path) -> Path:
    """The name of a folder while another takes its place."""
    return target.with_name(f".{target.name}.old")


def recover(path: PathLike, witness: str) -> bool:
    """Have a folder back that a killed process had renamed to put another in its place; False without one.

    Parameters
    ----------
    path : path
    witness : str
        A file that a whole folder has.
    """
    target = Path(os.path.realpath(path))
    old = aside(target)
    if os.path.lexists(target) or not (old / witness).is_file():
        return False
    with contextlib.suppress(OSError):  # another process may have it back first
        os.rename(old, target)
        sync_folder(target.parent)
    return (target / witness).is_file()


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two files or folders at once; False where the system cannot."""
    call = _exchange_call()
    if call is None or call(os.fsencode(one), os.fsencode(other)) == 0:
        return call is not None
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _exchange_call() -> Callable[[bytes, bytes], int] | None:
    """The call of the C library, if there is one."""
    if sys.platform not in ("linux", "darwin"):
        return None
    library: Any = ctypes.CDLL(None, use_errno=True)
    name, here = ("renameat2", -100) if sys.platform == "linux" else ("renamex_np", None)
    call = getattr(library, name, None)
    if call is None:
        return None
    if here is None:
        return lambda one, other: int(call(one, other, 2))  # RENAME_SWAP
    return lambda one, other: int(call(here, one, here, other, 2))  # AT_FDCWD, RENAME_EXCHANGE


def delete(folder: Path, names: Iterable[str]) -> None:
    """Remove these files of a folder, and the folder if it is empty then, as far as one may."""
    for name in names:
        unlink(folder / name)
    with contextlib.suppress(OSError):
        os.rmdir(folder)
