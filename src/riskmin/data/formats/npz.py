"""Reader of .npz files, dense or in the layout of scipy.sparse.save_npz; checks each array before its use.

`numpy.load` and `scipy.sparse.load_npz` trust the file: a header may declare a shape that exceeds memory, and
indices may point beyond arrays. So this module parses members itself: the header, then its number of bytes.
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

from riskmin.arrays.sparse_checks import InvalidSparseMatrix, validated_sparse
from riskmin.core.deadline import OutOfTime
from riskmin.core.limits import LIMITS
from riskmin.data.base import DataError, Dataset, PathLike, cast_finite, check_query_ids, open_decompressed
from riskmin.data.limits import MemoryBudget

_DENSE_ARRAYS = ("X", "y", "qid", "feature_names")
_SPARSE_ARRAYS = {
    "csr": ("data", "indices", "indptr"),
    "csc": ("data", "indices", "indptr"),
    "bsr": ("data", "indices", "indptr"),
    "dia": ("data", "offsets"),
    "coo": ("data", "row", "col"),
}
"""Names of the arrays of a sparse matrix, by format."""


class _Archive:
    """The arrays of an open .npz file, by name."""

    def __init__(self, path: PathLike, stream: IO[bytes], budget: MemoryBudget) -> None:
        self.path, self.budget = path, budget
        try:
            self.zip = zipfile.ZipFile(stream)
            self.members = {info.filename.removesuffix(".npy"): info for info in self.zip.infolist()}
        except Exception as error:  # the parsers of broken files raise errors of many types
            raise self.broken(error) from error

    def broken(self, why: object) -> DataError:
        """Return the error for a broken file."""
        return DataError(self.path, None, f"it is broken: {why or 'it ends too soon'}; save it anew")

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def read(self, name: str) -> NDArray[Any]:
        """Read an array, after checking its header."""
        if name not in self.members:
            raise self.broken(f"its array {name} is missing")
        try:
            with self.zip.open(self.members[name]) as member:
                # the header declares the size: it must match the member before memory is allocated
                shape, fortran_order, dtype = _header(member)
                size = math.prod(shape) * dtype.itemsize
                if dtype.hasobject:
                    raise _Refused(f"{name} is an array of Python objects; save plain arrays")
                if member.tell() + size != self.members[name].file_size:
                    raise ValueError(f"{name} is not as long as {dtype} of shape {shape}")
                self.budget.reserve(size)
                flat = _read_bytes(member, size).view(dtype) if size else np.empty(0, dtype)
                # NumPy stores text as 4 bytes per character and does not check the code points
                if dtype.kind == "U" and size and flat.view(f"{dtype.byteorder}u4").max() > sys.maxunicode:
                    raise ValueError(f"{name} is not text: it holds invalid code points")
        except (DataError, OutOfTime):
            raise
        except _Refused as error:
            raise DataError(self.path, None, str(error)) from error
        except Exception as error:  # errors of many types, as in __init__
            raise self.broken(error) from error
        # in Fortran order, the bytes are those of the transpose in C order
        return flat.reshape(shape[::-1]).T if fortran_order else flat.reshape(shape)


class _Refused(Exception):
    """Raised for an intact array that must not be read."""


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the shape of an array, whether it is in Fortran order, and its dtype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers written by Python 2
        # version 1.0 has a length of 2 bytes, later versions one of 4
        version = np.lib.format.read_magic(member)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran_order, dtype = read(member)
    if not all(type(k) is int and k >= 0 for k in shape) or dtype.itemsize == 0:
        raise ValueError(f"{dtype} of shape {shape}")
    return shape, fortran_order, dtype


def _read_bytes(member: IO[bytes], size: int) -> NDArray[np.uint8]:
    """Read the `size` bytes of a member, which must end there; at its end, zipfile verifies the CRC-32."""
    content: NDArray[np.uint8] = np.empty(size, np.uint8)
    offset = 0
    while offset < size and (block := member.read(min(LIMITS.decompressed_bytes, size - offset))):
        content[offset : offset + len(block)] = np.frombuffer(block, np.uint8)
        offset += len(block)
    # reading beyond the end makes zipfile verify the checksum
    if offset < size or member.read(1):
        raise EOFError("an array ends too soon")
    return content


def _sparse(path: PathLike, archive: _Archive) -> sp.csr_matrix[Any]:
    """Read a sparse matrix written by scipy.sparse.save_npz."""
    kind: Any = archive.read("format")
    kind = kind.item() if kind.size == 1 else None
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else kind
    if kind not in _SPARSE_ARRAYS:
        raise DataError(path, None, f"its sparse matrix is of format {kind!r}; save it as CSR")
    size = archive.read("shape")
    if size.shape != (2,) or size.dtype.kind not in "iu" or not (size > 0).all():
        raise archive.broken(f"its sparse matrix has the shape {size.tolist()}")
    shape = int(size[0]), int(size[1])
    # the indices of COO may also be stored as one array "coords" of shape (2, nnz)
    if kind == "coo" and "coords" in archive:
        data, *index_arrays = archive.read("data"), *np.atleast_2d(archive.read("coords"))
    else:
        data, *index_arrays = (archive.read(name) for name in _SPARSE_ARRAYS[kind])
    # entries must be numbers, indices must be integers
    if data.dtype.kind not in "biufc" or not all(a.dtype.kind in "iu" and a.ndim == 1 for a in index_arrays):
        raise archive.broken(
            f"its sparse matrix is of {data.dtype} at {[str(a.dtype) for a in index_arrays]}"
        )
    parts: Any = (data, tuple(index_arrays)) if kind == "coo" else (data, *index_arrays)
    # memory of the CSR matrix: 8 bytes per row pointer; 4 per index and 8 per value
    archive.budget.require(8 * (shape[0] + 1) + 12 * data.size)
    try:
        X = sp.csr_matrix(validated_sparse(getattr(sp, f"{kind}_matrix")(parts, shape=shape)))
    except InvalidSparseMatrix as error:
        problem = f"its sparse matrix is broken: {error.problem}; save it anew"
        raise DataError(path, None, problem) from error
    except Exception as error:  # raised by SciPy's constructors, which check lengths and dtypes
        raise archive.broken(error) from error
    X.sum_duplicates()
    return X


def _vector(path: PathLike, key: str, a: NDArray[Any], n: int) -> NDArray[Any]:
    """Return the labels or query ids; raise a DataError unless there is one number or string per row of X."""
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
    """Return the names of the columns."""
    if a.shape != (p,):
        raise DataError(path, None, f"{a.size} feature_names for {p} features; correct them")
    if a.dtype.kind not in "US":
        raise DataError(path, None, f"feature_names are {a.dtype}, not strings; save strings")
    return [str(name) for name in _vector(path, "feature_names", a, p)]


def load_npz(
    path: PathLike, *, n_features: int | None, dtype: np.dtype[Any], require_labels: bool
) -> Dataset:
    """Read a .npz file; see `load`."""
    budget = MemoryBudget(path)
    with open_decompressed(path) as stream:
        # a zip file begins with PK
        if stream.read(2) != b"PK":
            raise DataError(
                path, None, "this is not an .npz file; save it by numpy.savez or scipy.sparse.save_npz"
            )
        stream.seek(0)
        archive = _Archive(path, in_memory(stream, budget), budget)
        names = list(archive.members)
        if "X" not in archive and "format" not in archive:
            raise DataError(path, None, f"there is no array X among {names[:20]}; save X and y")
        arrays = {key: archive.read(key) for key in _DENSE_ARRAYS if key in archive}
        X = arrays["X"] if "X" in arrays else _sparse(path, archive)
    if X.ndim != 2 or X.dtype.kind not in "biuf" or 0 in X.shape:
        raise DataError(path, None, f"X is {X.dtype} of shape {X.shape}; save a matrix of numbers")
    n, p = X.shape
    if n_features not in (None, p):
        raise DataError(path, None, f"X has {p} features where {n_features} are expected; check the file")
    if require_labels and "y" not in arrays:
        raise DataError(path, None, f"there is no array y among {names[:20]}; save y beside X")
    y = _vector(path, "y", arrays["y"], n) if "y" in arrays else None
    if y is not None and y.dtype.kind != "U":
        y = _vector(path, "y", y.astype(np.float64), n)
    qid = check_query_ids(path, "qid", _vector(path, "qid", arrays["qid"], n)) if "qid" in arrays else None
    columns = _names(path, arrays["feature_names"], p) if "feature_names" in arrays else None
    return Dataset(cast_finite(path, X, dtype), y, qid, columns)


def in_memory(stream: IO[bytes], budget: MemoryBudget) -> IO[bytes]:
    """Return the file, or its whole decompressed content: .npz and Parquet are read from their end."""
    # an uncompressed file: it is read from disk, and can seek
    if isinstance(stream, io.BufferedReader):
        return stream
    parts = []
    while block := stream.read(LIMITS.decompressed_bytes):
        budget.reserve(len(block))
        parts.append(block)
    return io.BytesIO(b"".join(parts))
