"""Binary files: NumPy's .npz, dense or in the layout of scipy.sparse.save_npz, and Parquet."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from riskmin.data.base import DataError, Dataset, PathLike, opened, whole
from riskmin.data.tables import Roles, Wanted, assign


def _finite(path: PathLike, X: Any, dtype: np.dtype[Any], start: int = 0) -> Any:
    """X in the dtype, if all of it is finite; its first row is that of number `start` in the file."""
    with np.errstate(over="ignore"):
        X = X.astype(dtype, copy=False)
    sparse = isinstance(X, sp.csr_matrix)
    good = np.isfinite(X.data if sparse else X).ravel()
    if not good.all():
        k = int(np.argmin(good))
        row = int(np.sum(X.indptr <= k)) if sparse else k // X.shape[1] + 1
        problem = f"row {start + row} of X is not finite as {dtype}; replace the value or leave out the row"
        raise DataError(path, None, problem)
    return X


def _sparse(path: PathLike, stream: IO[bytes]) -> sp.csr_matrix[Any]:
    """What scipy.sparse.save_npz wrote."""
    try:
        X = sp.csr_matrix(sp.load_npz(stream))
        X.check_format(full_check=True)
    except ValueError as error:
        raise DataError(path, None, f"its sparse matrix is broken ({error}); save it by save_npz") from error
    X.sum_duplicates()
    return X


def _vector(path: PathLike, key: str, a: NDArray[Any], n: int) -> NDArray[Any]:
    """A label or query id for each row of X."""
    if a.shape != (n,):
        raise DataError(
            path, None, f"{key} has the shape {a.shape} where X has {n} rows; save an array of ({n},)"
        )
    if a.dtype.kind in "US":
        return a.astype(np.str_)
    if a.dtype.kind not in "biuf" or not np.isfinite(a).all():
        raise DataError(
            path, None, f"{key} is not of finite numbers or strings (dtype {a.dtype}); convert it"
        )
    return a


def load_npz(
    path: PathLike, *, n_features: int | None, dtype: np.dtype[Any], require_labels: bool
) -> Dataset:
    """Read .npz; `load` has the rules."""
    with opened(path) as stream:
        if stream.read(2) != b"PK":
            raise DataError(
                path, None, "this is no .npz file; save it by numpy.savez or scipy.sparse.save_npz"
            )
        stream.seek(0)
        try:
            with np.load(stream, allow_pickle=False) as file:
                names = list(file.files)
                held = {key: file[key] for key in names if key in ("X", "y", "qid", "feature_names")}
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            problem = f"it is broken, or has an array of Python objects ({error}); save plain arrays"
            raise DataError(path, None, problem) from error
        if "X" not in held and "format" not in names:
            raise DataError(path, None, f"there is no array X among {names}; save X and y")
        stream.seek(0)
        X = held["X"] if "X" in held else _sparse(path, stream)
    if X.ndim != 2 or X.dtype.kind not in "biuf" or 0 in X.shape:
        raise DataError(path, None, f"X is {X.dtype} of shape {X.shape}; save a matrix of numbers")
    if n_features not in (None, X.shape[1]):
        raise DataError(
            path, None, f"X has {X.shape[1]} features where {n_features} are expected; check the file"
        )
    if require_labels and "y" not in held:
        raise DataError(path, None, f"there is no array y among {names}; save y beside X")
    y = _vector(path, "y", held["y"], X.shape[0]) if "y" in held else None
    if y is not None and y.dtype.kind != "U":
        y = y.astype(np.float64)
    qid = whole(path, "qid", _vector(path, "qid", held["qid"], X.shape[0])) if "qid" in held else None
    columns = [str(name) for name in held["feature_names"]] if "feature_names" in held else None
    if columns is not None and len(columns) != X.shape[1]:
        raise DataError(path, None, f"{len(columns)} feature_names for {X.shape[1]} features; correct them")
    return Dataset(_finite(path, X, dtype), y, qid, columns)


@dataclass(frozen=True)
class ParquetRows:
    """A Parquet file, of which some rows are read at a time."""

    path: PathLike
    wanted: Wanted
    dtype: np.dtype[Any]

    def _opened(self, file: Any) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(file)
        except pa.ArrowException as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> DataError:
        return DataError(self.path, None, f"it cannot be read as Parquet ({error}); write it anew")

    @cached_property
    def _head(self) -> tuple[list[str], int]:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise DataError(self.path, None, "Parquet needs pyarrow; pip install riskmin[parquet]") from error
        with opened(self.path) as stream:
            file = self._opened(stream)
            names, n = list(file.schema_arrow.names), file.metadata.num_rows
        if n == 0:
            raise DataError(self.path, None, "it has no rows; check that it is the right file")
        return names, n

    @cached_property
    def roles(self) -> Roles:
        """Which column is what."""
        return assign(self.path, self._head[0], *self.wanted)

    @property
    def n(self) -> int:
        """How many rows there are."""
        return self._head[1]

    @property
    def columns(self) -> list[str]:
        """The names of the features."""
        return [self._head[0][i] for i in self.roles.features]

    def pieces(self) -> Iterator[Dataset]:
        """All rows, some at a time."""
        import pyarrow as pa

        most, start = max(min(2**16, 2**22 // len(self._head[0])), 1), 0
        with opened(self.path) as stream:
            try:
                for batch in self._opened(stream).iter_batches(batch_size=most):
                    yield self._piece(batch, start)
                    start += len(batch)
            except pa.ArrowException as error:
                raise self._broken(error) from error

    def _piece(self, batch: Any, start: int) -> Dataset:
        names, roles = self._head[0], self.roles
        X = np.empty((len(batch), len(roles.features)), self.dtype)
        for k, i in enumerate(roles.features):
            with np.errstate(over="ignore"):
                X[:, k] = _column(self.path, names[i], batch.column(i), start)
        y = qid = None
        if (t := roles.target) is not None:
            y = _column(self.path, names[t], batch.column(t), start, words=True)
        if (q := roles.qid) is not None:
            qid = whole(self.path, names[q], _ids(self.path, names[q], batch.column(q), start))
        return Dataset(_finite(self.path, X, self.dtype, start), y, qid)


def load_parquet(path: PathLike, wanted: Wanted, dtype: np.dtype[Any]) -> Dataset:
    """Read Parquet, a batch of rows at a time; `load` has the rules."""
    rows = ParquetRows(path, wanted, dtype)
    X = np.empty((rows.n, len(rows.roles.features)), dtype)
    y, qid, start = [], [], 0
    for piece in rows.pieces():
        X[start : start + len(piece.X)] = piece.X
        start += len(piece.X)
        if piece.y is not None:
            y.append(np.asarray(piece.y))
        if piece.qid is not None:
            qid.append(piece.qid)
    ids = np.concatenate(qid) if qid else None
    return Dataset(X, np.concatenate(y) if y else None, ids, rows.columns)


def _ids(path: PathLike, name: str, column: Any, start: int) -> NDArray[Any]:
    """Query ids, those that are integers as such: floats do not hold the largest."""
    import pyarrow as pa

    if pa.types.is_integer(column.type) and not column.null_count:
        integers: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return integers
    return _column(path, name, column, start, words=True)


def _column(path: PathLike, name: str, column: Any, start: int, words: bool = False) -> NDArray[Any]:
    """A column as floats, or as strings where words are allowed and it has them."""
    import pyarrow as pa

    if column.null_count:
        row = start + 1 + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(
            path, None, f"row {row}, column {name!r}: the cell is empty; fill it in or leave out the row"
        )
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if words:
            return np.array(column.to_pylist(), np.str_)
        raise DataError(path, None, f"the column {name!r} is text; encode it as numbers, or leave it out")
    try:
        cells = column.to_numpy(zero_copy_only=False)
        if cells.dtype.kind in "mM":
            raise TypeError("dates would pass for nanoseconds")
        numbers: NDArray[np.float64] = cells.astype(np.float64)
    except (TypeError, ValueError) as error:
        problem = f"the column {name!r} is {column.type}, not a number; encode it, or leave it out"
        raise DataError(path, None, problem) from error
    if words and not np.isfinite(numbers).all():
        raise DataError(path, None, f"the column {name!r} is not finite; leave out those rows")
    return numbers
