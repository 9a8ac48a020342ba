"""Stored data: a folder of memory-mapped .npy arrays, with one checksum per shard and array.

Each array holds all rows, so that any range of rows, also the whole, is a view of the files.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from riskmin.arrays.memory_map import release_between
from riskmin.core.atomic_files import recover
from riskmin.core.persist import parse_nested
from riskmin.data.base import DataError, Dataset, PathLike, quote
from riskmin.data.limits import MemoryBudget
from riskmin.data.store.npy_map import map_npy
from riskmin.data.store.writer import FORMAT, META, VERSION, checksum

_INT32_MAX = np.iinfo(np.int32).max
_DTYPES = {"float32", "float64", "int32", "int64"}
_DTYPE_KINDS = {"X": "f", "data": "f", "indices": "i", "indptr": "i", "y": "fi", "qid": "i"}


def _read_meta(path: Path) -> tuple[dict[str, Any], int]:
    """Return the content of meta.json, and its CRC-32; raise a DataError if it cannot be used."""
    try:
        with (path / "meta.json").open("rb") as file:
            MemoryBudget(path / "meta.json").require(os.fstat(file.fileno()).st_size)
            blob = file.read()
        meta = parse_nested(json.loads, blob)
    except FileNotFoundError as error:
        if recover(path, META):
            return _read_meta(path)
        cause = (
            "it has no meta.json, so it holds no stored data" if path.is_dir() else "there is no such folder"
        )
        raise DataError(path, None, f"{cause}; check the path, or make it by riskmin convert") from error
    except DataError:
        raise
    except (OSError, ValueError) as error:
        problem = f"it is broken: it cannot be read ({error}); convert the data anew"
        raise DataError(path / "meta.json", None, problem) from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise DataError(
            path / "meta.json", None, "it does not describe stored data of riskmin; check the path"
        )
    if meta.get("version") != VERSION:
        raise DataError(
            path,
            None,
            f"it is of version {meta.get('version')} of the format, by riskmin {meta.get('riskmin')}, but "
            f"this riskmin reads version {VERSION}; convert the data anew, or use that riskmin",
        )
    return meta, zlib.crc32(blob)


class StoreReader:
    """An open folder of stored data: its metadata, and its arrays, memory-mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # meta.json holds all checksums, so its CRC-32 identifies the data
        meta, self.meta_crc32 = _read_meta(path)
        try:
            self.rows, self.columns, self.nnz = (_count(meta, k) for k in ("rows", "columns", "numbers"))
            self.sparse, self.shards = meta["sparse"] is True, list(meta["shards"])
            self.classes = _words(meta["classes"], "classes", str)
            self.queries = _words(meta["queries"], "queries", str, int)
            self.names = _words(meta["feature_names"], "feature_names", str, length=self.columns)
            self.dtypes = {name: _dtype(name, kind) for name, kind in meta["arrays"].items()}
            if not {*(("data", "indices", "indptr") if self.sparse else ("X",))} <= self.dtypes.keys():
                raise ValueError("arrays that it must have are missing")
            self._check_shards()
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            cause = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            problem = f"it is broken: {cause}; convert the data anew"
            raise DataError(path / "meta.json", None, problem) from error
        self.verified_shards: set[int] = set()

    def _check_shards(self) -> None:
        """Raise a ValueError unless the shards are contiguous and cover all rows and numbers."""
        # the first row and the first stored entry of the next shard
        row = entry = 0
        for shard in self.shards:
            (start, stop), (first, last) = shard["rows"], shard["numbers"]
            integers = all(type(k) is int for k in (start, stop, first, last))
            if not integers or (start, first) != (row, entry) or stop < start or last < first:
                raise ValueError("shards with gaps between them")
            if shard["crc32"].keys() != self.dtypes.keys():
                raise ValueError("shards without checksums")
            row, entry = stop, last
        if (row, entry) != (self.rows, self.nnz):
            raise ValueError(f"shards of {row} rows, not {self.rows}")

    def _shape(self, name: str) -> tuple[int, ...]:
        """Shape of an array."""
        if name == "X":
            return self.rows, self.columns
        return (self.nnz if name in ("data", "indices") else self.rows + (name == "indptr"),)

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The memory-mapped arrays, by name."""
        return {
            name: map_npy(self.path / f"{name}.npy", dtype, self._shape(name))
            for name, dtype in self.dtypes.items()
        }

    # ------------------------------------------------------------ checks
    def verify(self, start: int = 0, stop: int | None = None) -> None:
        """Verify the checksums of the shards that hold these rows; each once while the store is open."""
        stop = self.rows if stop is None else stop
        # the shards that overlap the rows
        unverified = [
            k
            for k, shard in enumerate(self.shards)
            if k not in self.verified_shards and shard["rows"][0] < stop and shard["rows"][1] > start
        ]
        if len(unverified) > 1:
            with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
                list(pool.map(self._verify, unverified))
        else:
            for k in unverified:
                self._verify(k)
        self.verified_shards |= set(unverified)

    def _verify(self, k: int) -> None:
        """Verify the checksums and the indices of shard k."""
        (start, stop), (first, last) = self.shards[k]["rows"], self.shards[k]["numbers"]
        # ranges of the arrays that belong to the shard; y, qid and X have one entry or row per row
        spans = {"data": (first, last), "indices": (first, last), "indptr": (start, stop + 1)}
        where = f"shard {k + 1} of {len(self.shards)} (rows {start + 1} to {stop})"
        for name, array in self.arrays.items():
            i, j = spans.get(name, (start, stop))
            if checksum(array[i:j]) != self.shards[k]["crc32"][name]:
                problem = f"{where}: the checksum of {name}.npy fails, it was changed; convert the data anew"
                raise DataError(self.path, None, problem)
        if self.sparse and not self._indices_valid(start, stop, first, last):
            raise DataError(self.path, None, f"{where} has columns beyond the last; convert the data anew")

    def check_indices(self) -> None:
        """Raise a DataError if a row points beyond an array; a checksum does not detect a crafted file."""
        for k, shard in enumerate(self.shards):
            if self.sparse and not self._indices_valid(*shard["rows"], *shard["numbers"]):
                where = f"shard {k + 1} of {len(self.shards)}"
                problem = f"it is broken: {where} has rows or columns beyond the last; convert the data anew"
                raise DataError(self.path, None, problem)

    def _indices_valid(self, start: int, stop: int, first: int, last: int) -> bool:
        """Whether all row pointers and column indices of a shard are within bounds."""
        # row pointers: from first to last, and never decreasing
        ends = self.arrays["indptr"][start : stop + 1]
        indices = self.arrays["indices"][first:last]
        # as unsigned integers, negative indices are too large as well
        unsigned = indices.view(np.uint32 if indices.itemsize == 4 else np.uint64)
        blocks = release_between(range(0, len(unsigned), 2**18))
        columns_valid = all(int(unsigned[i : i + 2**18].max()) < self.columns for i in blocks)
        pointers_valid = (int(ends[0]), int(ends[-1])) == (first, last) and bool(
            (ends[1:] >= ends[:-1]).all()
        )
        return columns_valid and pointers_valid

    # ------------------------------------------------------------ rows
    def X(self, start: int = 0, stop: int | None = None, columns: int | None = None) -> Any:
        """Return a range of rows as views of the files; only the row pointers of sparse rows are copied."""
        stop = self.rows if stop is None else stop
        if not self.sparse:
            return self.arrays["X"][start:stop]
        ends = self.arrays["indptr"][start : stop + 1]
        first, last = int(ends[0]), int(ends[-1])
        # attributes are set directly: SciPy's constructor would copy the indices to unify their dtype
        csr = sp.csr_matrix((stop - start, columns or self.columns), dtype=self.dtypes["data"])
        # row pointers relative to the first row, in the dtype of the indices if they fit
        use_int32 = last - first <= _INT32_MAX and self.dtypes["indices"] == np.int32
        csr.indptr = (ends - first).astype(np.int32 if use_int32 else np.int64)
        csr.indices, csr.data = self.arrays["indices"][first:last], self.arrays["data"][first:last]
        csr.has_sorted_indices = csr.has_canonical_format = True
        return csr

    def count(self, start: int, stop: int) -> int:
        """Return the number of stored entries of a range of rows."""
        if not self.sparse:
            return (stop - start) * self.columns
        indptr = self.arrays["indptr"]
        return int(indptr[stop] - indptr[start])

    def labels(self) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """Return copies of the labels and the query ids of all rows; None for those that do not exist."""
        words = {"y": self.classes, "qid": self.queries}
        result: dict[str, NDArray[Any]] = {}
        for name in ("y", "qid"):
            if name in self.arrays:
                array, names = self.arrays[name], words[name]
                result[name] = array.copy() if names is None else self._decoded(name, names, array)
        return result.get("y"), result.get("qid")

    def _decoded(self, name: str, words: list[Any], codes: NDArray[Any]) -> NDArray[Any]:
        """Return the strings that integer codes stand for."""
        # codes come from a file: check them before they are used as indices
        integral = np.rint(codes) == codes if codes.dtype.kind == "f" else True
        if len(codes) and not (np.all(integral) and codes.min() >= 0 and codes.max() < len(words)):
            problem = f"it is broken: {name}.npy has codes that are not in meta.json; convert the data anew"
            raise DataError(self.path, None, problem)
        decoded: NDArray[Any] = np.array(words)[codes.astype(np.int64)]
        return decoded


def _count(meta: dict[str, Any], key: str) -> int:
    """Return an integer of the metadata; raise a ValueError unless it is a plausible length of an array."""
    value = meta[key]
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{key} is {quote(value)}, not a valid count")
    return value


def _words(values: Any, key: str, *kinds: type, length: int | None = None) -> list[Any] | None:
    """Return a list whose entries are all of one of these types, or None; else raise a ValueError."""
    if values is None:
        return None
    if not isinstance(values, list) or not any(all(type(word) is kind for word in values) for kind in kinds):
        raise ValueError(f"{key} are not all {' or all '.join(kind.__name__ for kind in kinds)}")
    if length is not None and len(values) != length:
        raise ValueError(f"{len(values)} {key} for {length} columns")
    return values


def _dtype(name: str, kind: Any) -> np.dtype[Any]:
    """Return the dtype of an array; raise a ValueError if this array cannot have it."""
    if not isinstance(kind, str) or kind not in _DTYPES or kind[0] not in _DTYPE_KINDS.get(name, ""):
        raise ValueError(f"its array {quote(name)} has the invalid dtype {quote(kind)}")
    dtype: np.dtype[Any] = np.dtype(kind)
    return dtype


@lru_cache(maxsize=16)
def _cached_store(path: Path, stamp: tuple[int, int]) -> StoreReader:
    """Open a store; `stamp`, the modification time and the inode of meta.json, is part of the cache key."""
    return StoreReader(path)


def open_store(path: PathLike) -> StoreReader:
    """Return the open store of a folder; within a process, it is opened again only if it was rewritten."""
    path = Path(path).absolute()
    # rewritten data have another meta.json, and so another key in the cache
    try:
        status = (path / "meta.json").stat()
    except OSError:
        return StoreReader(path)  # raises a DataError with the cause
    return _cached_store(path, (status.st_mtime_ns, status.st_ino))


def _same_store(path: str, stamp: int) -> StoreReader:
    """Return the open store; raise a DataError if its data, to which the labels belong, were replaced."""
    store = open_store(path)
    if store.meta_crc32 != stamp:
        raise DataError(path, None, "it was written anew meanwhile; run again")
    return store


def check(path: PathLike) -> None:
    """Read all stored data and verify their checksums.

    Parameters
    ----------
    path : path
        The folder.

    Raises
    ------
    DataError
        With the shard and the file whose checksum differs.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from riskmin.data import check, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "tiny.rsk")
    ...     save(path, [([[1.0, 2.0]], [1.0])])
    ...     check(path)
    """
    StoreReader(Path(path)).verify()


def load_stored(
    path: PathLike, *, n_features: int | None, dtype: Any, require_labels: bool, verify: bool
) -> Dataset:
    """Return stored data, memory-mapped; see `load`."""
    store = open_store(path)
    if require_labels and "y" not in store.dtypes:
        raise DataError(path, None, "it has no labels; convert data that have them")
    kind = store.dtypes["data" if store.sparse else "X"]
    if dtype is not None and np.dtype(dtype) != kind:
        raise DataError(
            path, None, f"it holds {kind}, not {np.dtype(dtype)}; convert the data anew with that dtype"
        )
    columns = n_features or store.columns
    # sparse data may get more columns, all of them zero
    if columns < store.columns or (columns > store.columns and not store.sparse):
        problem = (
            f"it has {store.columns} features where {n_features} are expected; check that it is the right one"
        )
        raise DataError(path, None, problem)
    if verify:
        store.verify()
    else:
        store.check_indices()
    return Dataset(store.X(columns=columns), *store.labels(), store.names)


# ---------------------------------------------------------------- partitions
@dataclass(frozen=True)
class StoredPartition:
    """Partition of stored data: a range of rows, of which only the location is sent to workers."""

    path: str
    start: int
    stop: int
    shape: tuple[int, int]
    nnz: int
    sparse: bool
    meta_crc32: int

    @property
    def name(self) -> str:
        """Folder and range of rows."""
        return f"{self.path}, rows {self.start + 1} to {self.stop}"

    def read(self) -> Any:
        """Return the rows, memory-mapped, after verifying their checksums."""
        store = _same_store(self.path, self.meta_crc32)
        store.verify(self.start, self.stop)
        return store.X(self.start, self.stop, self.shape[1])


@dataclass(frozen=True)
class StoredMatrix:
    """Stored data as a source of partitions, which may be any ranges of rows.

    Parameters
    ----------
    path : str
        The folder, by a path that is valid on all workers.
    columns : int
        The number of columns; it may exceed that of the data.
    meta_crc32 : int
        CRC-32 of the metadata, by which replaced data are detected.
    """

    path: str
    columns: int
    meta_crc32: int

    def part(self, start: int, stop: int) -> StoredPartition:
        """Return the partition of the rows from start to stop - 1."""
        store = _same_store(self.path, self.meta_crc32)
        shape = stop - start, self.columns
        nnz = store.count(start, stop)
        return StoredPartition(self.path, start, stop, shape, nnz, store.sparse, self.meta_crc32)

    def shards(self) -> Iterable[StoredPartition]:
        """Return the shards of the folder as partitions."""
        return [self.part(*shard["rows"]) for shard in _same_store(self.path, self.meta_crc32).shards]

    def whole(self) -> Any:
        """Return all rows, memory-mapped, after verifying their checksums."""
        store = _same_store(self.path, self.meta_crc32)
        store.verify()
        return store.X(columns=self.columns)
