"""Common parts of all readers: the record they return, the error they raise, and opening of files."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from riskmin.core.messages import one_line, printable

PathLike: TypeAlias = str | os.PathLike[str]


class DataError(ValueError):
    """Raised for a file that cannot be used: one sentence with file, line, cause and remedy."""

    def __init__(self, name: object, line: int | None, problem: str) -> None:
        where = printable(name) if line is None else f"{printable(name)}, line {line}"
        super().__init__(f"{where}: {one_line(problem)}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message, so that the error can be raised across processes."""
        return _data_error, (type(self), str(self))


class UnpreparedColumn(DataError):
    """Raised for a feature that is not all numbers: text, missing cells or dates, which can be prepared."""


def _data_error(kind: type[DataError], message: str) -> DataError:
    error = kind.__new__(kind, message)
    error.args = (message,)
    return error


class Dataset(NamedTuple):
    """A data set, as returned by `load`.

    Attributes
    ----------
    X : scipy.sparse.csr_matrix or ndarray of shape (n, p)
        The features, without NaN or infinity.
    y : ndarray of shape (n,), list of tuples, or None
        The labels: floats; strings for the class names of a table; tuples of floats for multilabel
        svmlight; None if the file has none.
    qid : ndarray of int64 or strings, or None
        The query id of each row, for ranking losses; None if the file has none. The rows of a query need
        not be contiguous.
    feature_names : list of str, or None
        The names of the columns of X, if the file has them.
    """

    X: csr_matrix[Any] | NDArray[Any]
    y: NDArray[Any] | list[tuple[float, ...]] | None
    qid: NDArray[Any] | None = None
    feature_names: list[str] | None = None


def check_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype; raise a ValueError unless it is float32 or float64."""
    checked: np.dtype[Any] = np.dtype(dtype)
    if checked not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype is {checked}; use float32 or float64")
    return checked


def check_query_ids(path: PathLike, name: str, ids: NDArray[Any]) -> NDArray[Any]:
    """Return query ids as int64 or strings; raise a DataError if they are not integers of 64 bits."""
    if ids.dtype.kind in "US":
        return ids.astype(np.str_)
    valid = np.rint(ids) == ids if ids.dtype.kind == "f" else ids <= np.iinfo(np.int64).max
    # beyond 2^53, float64 does not represent all integers: different ids may have become equal
    if ids.dtype.kind == "f":
        valid &= np.abs(ids) <= 2**53
    if not np.all(valid):
        problem = f'the column "{name}" is not of whole numbers (of 64 bits); rename it if it is a feature'
        raise DataError(path, None, problem)
    return ids.astype(np.int64)


def concatenated(files: list[str], field: str, arrays: list[NDArray[Any] | None]) -> NDArray[Any] | None:
    """Return the labels, or the query ids, of all files; `field` is their name."""
    # all files must have numbers, or all strings, or none
    kinds = ["none" if a is None else "words" if a.dtype.kind == "U" else "numbers" for a in arrays]
    for file, kind in zip(files, kinds, strict=True):
        if kind != kinds[0]:
            problem = f"its {field} is of {kind}, but that of {files[0]} of {kinds[0]}; make them alike"
            raise DataError(file, None, problem)
    return None if kinds[0] == "none" else np.concatenate([a for a in arrays if a is not None])


def cast_finite(path: PathLike, X: Any, dtype: np.dtype[Any], start: int = 0) -> Any:
    """Return X in the dtype; raise a DataError if it is not finite. Row 0 of X is row `start` of the file."""
    with np.errstate(over="ignore"):
        X = X.astype(dtype, copy=False)
    sparse = isinstance(X, csr_matrix)
    is_finite = np.isfinite(X.data if sparse else X).ravel()
    if not is_finite.all():
        # the first entry that is not finite, and its row, counted from 1
        k = int(np.argmin(is_finite))
        row = int(np.sum(X.indptr <= k)) if sparse else k // X.shape[1] + 1
        problem = f"row {start + row} of X is not finite as {dtype}; replace the value or leave out the row"
        raise DataError(path, None, problem)
    return X


def quote(token: object) -> str:
    """Return a token for an error message: quoted, on one line, and at most 60 characters long."""
    # ascii() escapes control characters, which could change the display of a terminal
    text = ascii(token.decode("latin-1") if isinstance(token, bytes) else token)
    return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"


def _decompressed(file: IO[bytes], head: bytes) -> IO[bytes]:
    """Return the file, or a stream of its decompressed content; the first bytes decide, not the name."""
    # magic numbers of gzip, xz and bzip2
    if head.startswith(b"\x1f\x8b"):
        import gzip

        return cast(IO[bytes], gzip.open(file))
    if head.startswith(b"\xfd7zXZ\x00"):
        import lzma

        return lzma.open(file)
    if head.startswith(b"BZh"):
        import bz2

        return cast(IO[bytes], bz2.open(file))
    return file


class ReadProgress:
    """Progress of reading a file, by its bytes on disk."""

    file: IO[bytes] | None = None

    @property
    def fraction_read(self) -> float:
        """Fraction that was read, from 0 to 1; always 0 for a pipe."""
        if self.file is None or self.file.closed or not self.file.seekable():
            return 0.0
        # in bytes on disk, since the decompressed length is unknown
        return self.file.tell() / max(os.fstat(self.file.fileno()).st_size, 1)


@contextmanager
def open_decompressed(path: PathLike, meter: ReadProgress | None = None) -> Iterator[IO[bytes]]:
    """Open a file, decompressing gzip, xz and bzip2; errors within the block are raised as `DataError`."""
    from lzma import LZMAError

    path = Path(path)
    if path.is_dir():
        raise DataError(path, None, "this is a folder; name one file in it")
    try:
        with path.open("rb") as file, _decompressed(file, file.peek(6)[:6]) as stream:
            if meter is not None:
                meter.file = file
            yield stream
    except FileNotFoundError as error:
        raise DataError(path, None, "there is no such file; check the path") from error
    except (EOFError, LZMAError, zlib.error) as error:
        raise DataError(
            path, None, f"the compressed file is truncated or corrupt ({error}); get it anew"
        ) from error
    except OSError as error:  # includes gzip.BadGzipFile and bz2's "Invalid data stream"
        raise DataError(path, None, f"it cannot be read ({error}); check it and get it anew") from error
