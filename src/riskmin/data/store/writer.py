"""Writer of stored data, in one pass and with an atomic replacement of the folder.

Each chunk of rows is appended to .npy files in a hidden folder next to the target. Their headers, which
contain the lengths, are written last, and `meta.json` after them; then the folder is renamed, or exchanged
with the folder that it replaces.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from riskmin.arrays.memory_map import release_between
from riskmin.core import atomic_files
from riskmin.core.persist import parse_nested
from riskmin.data.base import check_query_ids
from riskmin.data.store.streams import RowChunk, RowStream

FORMAT, VERSION = "riskmin data", 1
META = "meta.json"
_ARRAYS = ("X", "data", "indices", "indptr", "y", "qid")
FILES = {META, *(f"{name}.npy" for name in _ARRAYS)}
"""All files that a folder of stored data may contain."""
_TEMPORARY_FILES = FILES | {f"{name}-new.npy" for name in _ARRAYS}
"""All files that it may contain while it is written."""


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a .npy file, format version 1.0."""
    # magic and version (8 bytes), length of the text (2 bytes), the text padded with blanks, a newline
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    return (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", AppendOnlyArray.HEADER_BYTES - 10)
        + text.ljust(AppendOnlyArray.HEADER_BYTES - 11).encode("ascii")
        + b"\n"
    )


def checksum(a: NDArray[Any], before: int = 0) -> int:
    """Return the CRC-32 of the bytes of an array in C order, continued from the CRC-32 `before`."""
    # in blocks of 1 MB, between which the pages of memory-mapped data may be released
    raw: Any = a.reshape(-1).view(np.uint8)
    for i in release_between(range(0, len(raw), 2**20)):
        before = zlib.crc32(raw[i : i + 2**20], before)
    return before


def unexpected_file(folder: Path) -> str | None:
    """Return the name of a file in a folder that does not belong to stored data; None if there is none."""
    # only known names, and a meta.json of this format, unless it is damaged
    names = sorted(path.name for path in folder.iterdir())
    others = [name for name in names if name not in FILES or (folder / name).is_dir()]
    if others or not names:
        return others[0] if others else None
    try:
        meta = parse_nested(json.loads, (folder / META).read_bytes())
    except (OSError, ValueError):  # other arrays show that these are damaged stored data
        return None if len(names) > 1 else names[0]
    return None if isinstance(meta, dict) and meta.get("format") == FORMAT else META


class AppendOnlyArray:
    """Array in a .npy file to which numbers are appended."""

    HEADER_BYTES = 128
    """Length of the header of a .npy file, padded to a multiple of 64 as NumPy does."""

    def __init__(self, folder: Path, name: str, dtype: Any, like: os.stat_result | None) -> None:
        self.path, self.dtype, self.like = folder / f"{name}.npy", np.dtype(dtype), like
        self.file: IO[bytes] = atomic_files.create(self.path, like)
        # space for the header, which is written last, when the length is known
        self.file.seek(self.HEADER_BYTES)
        self.size, self.crc = 0, 0

    def append(self, a: NDArray[Any]) -> None:
        """Append numbers, converted to the dtype of the array."""
        a = np.ascontiguousarray(a, self.dtype)
        self.file.write(a.data)
        self.crc = checksum(a, self.crc)
        self.size += a.size

    def take_crc(self) -> int:
        """Return the checksum of the numbers since the last call, and start a new one."""
        crc, self.crc = self.crc, 0
        return crc

    def map(self, ends: list[int], f: Callable[[NDArray[Any]], NDArray[Any]], dtype: Any = None) -> list[int]:
        """Replace all numbers a by f(a); return the checksums of the ranges that end at `ends`."""
        new = AppendOnlyArray(self.path.parent, f"{self.path.stem}-new", dtype or self.dtype, self.like)
        try:
            sums = self._mapped(new, ends, f)
            self.file.close()
            atomic_files.rename(new.path, self.path)
        except BaseException:
            new.abandon()
            raise
        self.file, self.dtype, self.crc = new.file, new.dtype, sums.pop()
        return sums

    def _mapped(
        self, new: AppendOnlyArray, ends: list[int], f: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> list[int]:
        """Append f of all numbers to `new`; return the checksums of the ranges."""
        self.file.seek(self.HEADER_BYTES)
        sums, start = [], 0
        for end in [*ends, self.size]:
            while start < end:
                block = np.fromfile(self.file, self.dtype, min(end - start, 2**20))
                if not len(block):  # NumPy's result for a failing disk and for a truncated file
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                new.append(f(block))
                start += len(block)
            sums.append(new.take_crc())
        return sums

    def abandon(self) -> None:
        """Close the file and ignore errors, since it will be removed."""
        with contextlib.suppress(OSError, ValueError):
            self.file.close()

    def close(self, *columns: int) -> None:
        """Write the header and close the file; `columns` is empty for a vector."""
        rows = self.size // columns[0] if columns else self.size
        self.file.seek(0)
        self.file.write(_npy_header(self.dtype, (rows, *columns)))
        atomic_files.sync(self.file)
        self.file.close()


class _StringEncoder:
    """Encoder of strings as consecutive integers."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}

    def codes(self, a: NDArray[Any]) -> NDArray[np.int64]:
        """Return the code of each string; new strings get the next codes."""
        # one dictionary lookup per distinct string, not per row
        unique, inverse = np.unique(a, return_inverse=True)
        numbers = [self.words.setdefault(str(word), len(self.words)) for word in unique]
        codes: NDArray[np.int64] = np.array(numbers, np.int64)[inverse]
        return codes


class StoreWriter:
    """Writer of a folder of stored data: `add` chunks of rows, then `close`, or `discard`."""

    def __init__(self, target: Path, dtype: np.dtype[Any], *, sparse: bool, shard_bytes: int) -> None:
        self.target, self.dtype, self.sparse, self.shard_bytes = target, dtype, sparse, shard_bytes
        self.folder = atomic_files.temporary_name(target)
        self.like = atomic_files.stat_or_none(target / META)
        self.arrays: dict[str, AppendOnlyArray] = {}
        self.encoders: dict[str, _StringEncoder] = {}
        self.shards: list[dict[str, Any]] = []
        self.rows, self.index_base = 0, 1
        self.shard_first_row, self.shard_first_number = 0, 0

    def __enter__(self) -> StoreWriter:
        """Create the folder and its first arrays; remove them if that fails."""
        try:
            with self.errors():
                atomic_files.create_folder(self.folder, atomic_files.stat_or_none(self.target))
                if self.sparse:
                    self._array("data", self.dtype), self._array("indices", np.int32)
                    self._array("indptr", np.int64).append(np.zeros(1, np.int64))
                else:
                    self._array("X", self.dtype)
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.discard()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Block whose OSErrors are raised as a ValueError with the cause and the remedy."""
        try:
            yield
        except OSError as error:
            remedy = (
                "make room for it"
                if error.errno in atomic_files.DISK_FULL_ERRORS
                else "check the disk, or name another place"
            )
            raise ValueError(
                f"{self.target} cannot be written ({atomic_files.error_text(error)}); {remedy}"
            ) from error

    def _array(self, name: str, dtype: Any) -> AppendOnlyArray:
        """Return an array by name, created on first use."""
        if name not in self.arrays:
            self.arrays[name] = AppendOnlyArray(self.folder, name, dtype, self.like)
        return self.arrays[name]

    @property
    def nnz(self) -> int:
        """Number of entries of X that are stored so far."""
        return self.arrays["data" if self.sparse else "X"].size

    @property
    def bytes(self) -> int:
        """Number of bytes of all arrays so far."""
        return sum(a.size * a.dtype.itemsize for a in self.arrays.values())

    def add(self, chunk: RowChunk, columns: int) -> None:
        """Append rows; `columns` is the number of columns for sparse rows that are stored as dense."""
        X: Any = chunk.X
        sparse = isinstance(X, tuple)
        n = len(X[2]) if sparse else len(X)
        if self.sparse:
            self._add_sparse(X if sparse else _to_sparse(X), chunk.index_base if sparse else 0)
        else:
            if sparse and self.rows and chunk.index_base < self.index_base:
                raise ValueError(
                    "an index 0 comes after rows with indices assumed to start from 1: use zero_based=True"
                )
            self.index_base = chunk.index_base
            self.arrays["X"].append(_to_dense(X, chunk.index_base, columns, self.dtype) if sparse else X)
        for name, labels in (("y", chunk.y), ("qid", chunk.qid)):
            if labels is not None:
                self._add_labels(name, labels)
        self.rows += n
        # bytes of the values, and 4 per column index
        size = (self.nnz - self.shard_first_number) * (self.dtype.itemsize + 4 * self.sparse)
        if size >= self.shard_bytes:
            self._end_shard()

    def _add_sparse(self, X: tuple[NDArray[Any], NDArray[Any], NDArray[Any]], index_base: int) -> None:
        """Append sparse rows whose column indices start from `index_base`."""
        values, indices, ends = X
        array = self.arrays["indices"]
        # the first index 0 shows that indices start from 0: shift those that were written as if from 1
        if array.size and index_base < self.index_base:
            self._map("indices", lambda a: a + 1)
        self.index_base = index_base
        if (
            array.dtype == np.int32
            and len(indices)
            and int(indices.max()) - index_base > np.iinfo(np.int32).max
        ):
            self._map("indices", lambda a: a, np.int64)
        self.arrays["indptr"].append(ends + self.nnz)
        array.append(indices - index_base if index_base else indices)
        self.arrays["data"].append(values)

    def _add_labels(self, name: str, labels: NDArray[Any]) -> None:
        """Append labels or query ids, strings as codes."""
        are_strings = labels.dtype.kind in "US"
        if labels.ndim != 1 or (not are_strings and not np.isfinite(labels).all()):
            raise ValueError(f"{name} is not of one finite number or word per row: correct it")
        if self.rows and (name not in self.arrays or are_strings != (name in self.encoders)):
            raise ValueError(
                f"later rows have another kind of {name} than the first {self.rows}: give one kind"
            )
        if are_strings:
            labels = self.encoders.setdefault(name, _StringEncoder()).codes(labels)
            dtype: Any = np.int64
        else:
            dtype = np.float64 if name == "y" else np.int64
            labels = labels if name == "y" else check_query_ids(self.target, "qid", labels)
        self._array(name, dtype).append(labels)
        if self.arrays[name].size - self.rows != len(labels):
            raise ValueError(
                f"there are {len(labels)} entries of {name} for fewer or more rows: give one per row"
            )

    def _map(self, name: str, f: Callable[[NDArray[Any]], NDArray[Any]], dtype: Any = None) -> None:
        """Apply f to an array as far as it is written, and update its checksums."""
        # the end of each finished shard, in stored entries or in rows
        ends = [shard["numbers" if name == "indices" else "rows"][1] for shard in self.shards]
        for shard, crc in zip(self.shards, self.arrays[name].map(ends, f, dtype), strict=True):
            shard["crc32"][name] = crc

    def _end_shard(self) -> None:
        """End a shard: record its rows, entries and checksums."""
        crc = {name: array.take_crc() for name, array in self.arrays.items()}
        rows, numbers = [self.shard_first_row, self.rows], [self.shard_first_number, self.nnz]
        self.shards.append({"rows": rows, "numbers": numbers, "crc32": crc})
        self.shard_first_row, self.shard_first_number = self.rows, self.nnz
        if self.sparse:  # the row pointers of the next shard include the end of this one
            self.arrays["indptr"].crc = checksum(np.array([self.nnz], np.int64))

    def close(self, stream: RowStream, *, force: bool) -> None:
        """Write the headers and meta.json, and move the folder to its target."""
        import riskmin

        if self.rows > self.shard_first_row:
            self._end_shard()
        queries, classes = stream.queries, stream.classes
        if classes == [""]:  # a column of empty cells: there are no labels
            self._drop("y")
            classes = None
        # codes of class names were written as float64, like numeric labels
        if classes is not None:
            self._map("y", lambda codes: codes, np.int64)
        # query ids that are integers replace their codes; strings are stored in meta.json
        if queries is not None and queries.dtype.kind != "U":
            self._map("qid", lambda codes: queries[codes])
        for name, array in self.arrays.items():
            # labels and query ids have one entry per row
            if array.size != (self.rows if name in ("y", "qid") else array.size):
                raise ValueError(
                    f"some rows have no {name}, but others have: give it for all rows or for none"
                )
            array.close(*((stream.columns,) if name == "X" else ()))
        string_values = {name: list(coder.words) for name, coder in self.encoders.items()}
        query_words = (
            [str(word) for word in queries] if queries is not None and queries.dtype.kind == "U" else None
        )
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "riskmin": riskmin.__version__,
            "rows": self.rows,
            "columns": stream.columns,
            "numbers": self.nnz,
            "sparse": self.sparse,
            "arrays": {name: array.dtype.name for name, array in self.arrays.items()},
            "classes": classes or string_values.get("y"),
            "queries": query_words or string_values.get("qid"),
            "feature_names": stream.names,
            "shards": self.shards,
        }
        # meta.json last: without it, a folder does not count as stored data
        with atomic_files.create(self.folder / META, self.like) as file:
            file.write(json.dumps(meta, ensure_ascii=False).encode())
            atomic_files.sync(file)
        atomic_files.sync_folder(self.folder)
        self._rename(force)

    def _drop(self, name: str) -> None:
        """Remove an array."""
        array = self.arrays.pop(name)
        array.abandon()
        atomic_files.unlink(array.path)
        for shard in self.shards:
            del shard["crc32"][name]

    def _rename(self, force: bool) -> None:
        """Move the folder to its target; remove the folder that it replaced."""
        if force:
            # checked again: other files may have been added while the data were written
            check_replaceable(self.target)
            # a backup is left by a process that was killed after the exchange
            atomic_files.delete(atomic_files.backup_name(self.target), FILES)
        old = atomic_files.move_into_place(self.folder, self.target, replace=force)
        atomic_files.sync_folder(self.target.parent)
        if old is not None:
            atomic_files.delete(old, FILES)

    def discard(self) -> None:
        """Remove all files, also if interrupted."""
        atomic_files.clean_up(self._remove)

    def _remove(self) -> None:
        for array in self.arrays.values():
            array.abandon()
        atomic_files.delete(self.folder, _TEMPORARY_FILES)


def check_replaceable(target: Path) -> None:
    """Raise a ValueError if replacing a folder would remove files that are not stored data."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise ValueError(f"{target} is there already and holds no stored data: name another")
    unexpected = unexpected_file(target)
    if unexpected is not None:
        raise ValueError(
            f"{target} is there already and holds {unexpected}, which is no stored data: name another"
        )


def _to_sparse(X: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return dense rows as sparse ones."""
    nonzero = X != 0
    return X[nonzero], np.nonzero(nonzero)[1], np.cumsum(nonzero.sum(axis=1))


def _to_dense(
    X: tuple[NDArray[Any], ...], index_base: int, columns: int, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return sparse rows, with column indices from `index_base`, as dense ones."""
    # the row of each value: row k has ends[k] - ends[k - 1] of them
    values, indices, ends = X
    dense = np.zeros((len(ends), columns), dtype)
    dense[np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)), indices - index_base] = values
    return dense
