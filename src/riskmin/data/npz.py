"""NumPy's .npz files, dense or in the layout of scipy.sparse.save_npz, each array checked before it is used.

`numpy.load` and `scipy.sparse.load_npz` believe what headers say: shapes that no memory holds, and indices
that conversions follow beyond arrays. So members are read here: the header, then as many bytes as it says.
"""

from __future__ import annotations

import io
import math
import sys
import warnings
import zipfile
from typing import IO, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from riskmin.data.base import DataError, Dataset, PathLike, finite, opened, whole
from riskmin.data.limits import Room
from riskmin.sparse import Unsound, sound

_DENSE = ("X", "y", "qid", "feature_names")
_PARTS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "dia": ("data", "offsets"),
    "coo": ("data", "row", "col"),
}
"""The arrays of a sparse matrix of each format."""
_STEP = 2**20  # bytes to decompress at a time


class _Archive:
    """The arrays of an open .npz file, by name."""

    def __init__(self, path: PathLike, stream: IO[bytes], room: Room) -> None:
        self.path, self.room = path, room
        try:
            self.zip = zipfile.ZipFile(stream)
            self.members = {info.filename.removesuffix(".npy"): info for info in self.zip.infolist()}
        except Exception as error:  # the formats have many parsers, and each fails in its own way
            raise self.broken(error) from error

    def broken(self, why: object) -> DataError:
        return DataError(self.path, None, f"it is broken: {why or 'it ends too soon'}; save it anew")

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def read(self, name: str) -> NDArray[Any]:
        """An array, whose header is looked at first."""
        if name not in self.members:
            raise self.broken(f"its array {name} is missing")
        try:
            with self.zip.open(self.members[name]) as member:
                shape, by_columns, dtype = _header(member)
                size = math.prod(shape) * dtype.itemsize
                if dtype.hasobject:
                    raise _Refused(f"{name} is an array of Python objects; save plain arrays")
                if member.tell() + size != self.members[name].file_size:
                    raise ValueError(f"{name} is not as long as {dtype} of shape {shape}")
                self.room.take(size)
                flat = _filled(member, size).view(dtype) if size else np.empty(0, dtype)
                if dtype.kind == "U" and size and flat.view(f"{dtype.byteorder}u4").max() > sys.maxunicode:
                    raise ValueError(f"{name} is no text: it holds what is no character")
        except DataError:
            raise
        except _Refused as error:
            raise DataError(self.path, None, str(error)) from error
        except Exception as error:  # as above
            raise self.broken(error) from error
        return flat.reshape(shape[::-1]).T if by_columns else flat.reshape(shape)


class _Refused(Exception):
    """What is whole, but not to be read."""


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape of an array, whether it is stored by columns, and its dtype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 2's headers
        version = np.lib.format.read_magic(member)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, by_columns, dtype = read(member)
    if not all(type(k) is int and k >= 0 for k in shape) or dtype.itemsize == 0:
        raise ValueError(f"{dtype} of shape {shape}")
    return shape, by_columns, dtype


def _filled(member: IO[bytes], size: int) -> NDArray[np.uint8]:
    """So many bytes, which must be all there are: at their end, the checksum is compared."""
    found: NDArray[np.uint8] = np.empty(size, np.uint8)
    at = 0
    while at < size and (some := member.read(min(_STEP, size - at))):
        found[at : at + len(some)] = np.frombuffer(some, np.uint8)
        at += len(some)
    if at < size or member.read(1):
        raise EOFError("an array ends too soon")
    return found


def _sparse(path: PathLike, archive: _Archive) -> sp.csr_matrix[Any]:
    """What scipy.sparse.save_npz wrote."""
    kind: Any = archive.read("format")
    kind = kind.item() if kind.size == 1 else None
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else kind
    if kind not in _PARTS:
        raise DataError(path, None, f"its sparse matrix is of format {kind!r}; save it as CSR")
    size = archive.read("shape")
    if size.shape != (2,) or size.dtype.kind not in "iu" or not (size > 0).all():
        raise archive.broken(f"its sparse matrix has the shape {size.tolist()}")
    shape = int(size[0]), int(size[1])
    if kind == "coo" and "coords" in archive:
        data, *places = archive.read("data"), *np.atleast_2d(archive.read("coords"))
    else:
        data, *places = (archive.read(name) for name in _PARTS[kind])
    if data.dtype.kind not in "biufc" or not all(a.dtype.kind in "iu" and a.ndim == 1 for a in places):
        raise archive.broken(f"its sparse matrix is of {data.dtype} at {[str(a.dtype) for a in places]}")
    parts: Any = (data, tuple(places)) if kind == "coo" else (data, *places)
    archive.room.need(8 * (shape[0] + 1) + 12 * data.size)  # of CSR
    try:
        X = sp.csr_matrix(sound(getattr(sp, f"{kind}_matrix")(parts, shape=shape)))
    except Unsound as error:
        problem = f"its sparse matrix is broken: {error.problem}; save it anew"
        raise DataError(path, None, problem) from error
    except Exception as error:  # of SciPy's constructors, which look at lengths and dtypes
        raise archive.broken(error) from error
    X.sum_duplicates()
    return X


def _vector(path: PathLike, key: str, a: NDArray[Any], n: int) -> NDArray[Any]:
    """A label or query id for each row of X."""
    if a.shape != (n,):
        raise DataError(
            path, None, f"{key} has the shape {a.shape} where X has {n} rows; save an array of ({n},)"
        )
    if a.dtype.kind in "US":
        try:
            return a.astype(np.str_)
        except UnicodeError as error:
            raise DataError(path, None, f"{key} is not text in ASCII ({error}); save strings") from error
    if a.dtype.kind not in "biuf" or not np.isfinite(a).all():
        raise DataError(
            path, None, f"{key} is not of finite numbers or strings (dtype {a.dtype}); convert it"
        )
    return a


def _names(path: PathLike, a: NDArray[Any], p: int) -> list[str]:
    """The names of the columns."""
    if a.shape != (p,):
        raise DataError(path, None, f"{a.size} feature_names for {p} features; correct them")
    if a.dtype.kind not in "US":
        raise DataError(path, None, f"feature_names are {a.dtype}, not strings; save strings")
    return [str(name) for name in _vector(path, "feature_names", a, p)]


def load_npz(
    path: PathLike, *, n_features: int | None, dtype: np.dtype[Any], require_labels: bool
) -> Dataset:
    """Read .npz; `load` has the rules."""
    room = Room(path)
    with opened(path) as stream:
        if stream.read(2) != b"PK":
            raise DataError(
                path, None, "this is no .npz file; save it by numpy.savez or scipy.sparse.save_npz"
            )
        stream.seek(0)
        archive = _Archive(path, in_memory(stream, room), room)
        names = list(archive.members)
        if "X" not in archive and "format" not in archive:
            raise DataError(path, None, f"there is no array X among {names[:20]}; save X and y")
        held = {key: archive.read(key) for key in _DENSE if key in archive}
        X = held["X"] if "X" in held else _sparse(path, archive)
    if X.ndim != 2 or X.dtype.kind not in "biuf" or 0 in X.shape:
        raise DataError(path, None, f"X is {X.dtype} of shape {X.shape}; save a matrix of numbers")
    n, p = X.shape
    if n_features not in (None, p):
        raise DataError(path, None, f"X has {p} features where {n_features} are expected; check the file")
    if require_labels and "y" not in held:
        raise DataError(path, None, f"there is no array y among {names[:20]}; save y beside X")
    y = _vector(path, "y", held["y"], n) if "y" in held else None
    if y is not None and y.dtype.kind != "U":
        y = _vector(path, "y", y.astype(np.float64), n)
    qid = whole(path, "qid", _vector(path, "qid", held["qid"], n)) if "qid" in held else None
    columns = _names(path, held["feature_names"], p) if "feature_names" in held else None
    return Dataset(finite(path, X, dtype), y, qid, columns)


def in_memory(stream: IO[bytes], room: Room) -> IO[bytes]:
    """The file itself, or all that it decompresses to: such formats are read from their end."""
    if isinstance(stream, io.BufferedReader):
        return stream
    parts = []
    while some := stream.read(_STEP):
        room.take(len(some))
        parts.append(some)
    return io.BytesIO(b"".join(parts))
