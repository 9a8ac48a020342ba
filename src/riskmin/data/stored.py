"""Stored data: a folder of plain .npy arrays that are mapped into memory, with checksums, shard by shard.

All rows are in one array each, so that any range of rows, and all of them together, are views of the files.
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

from riskmin.data.base import DataError, Dataset, PathLike, quote
from riskmin.data.limits import Room
from riskmin.data.mapped import mapped
from riskmin.data.writer import FORMAT, META, VERSION, checksum
from riskmin.files import recover
from riskmin.maps import passing

_INT32_MAX = np.iinfo(np.int32).max
_DTYPES = {"float32", "float64", "int32", "int64"}
_KINDS = {"X": "f", "data": "f", "indices": "i", "indptr": "i", "y": "fi", "qid": "i"}


def _read_meta(path: Path) -> tuple[dict[str, Any], int]:
    """What meta.json says, if it can be used, and its own checksum."""
    try:
        with (path / "meta.json").open("rb") as file:
            Room(path / "meta.json").need(os.fstat(file.fileno()).st_size)
            blob = file.read()
        meta = json.loads(blob)
    except FileNotFoundError as error:
        if recover(path, META):
            return _read_meta(path)
        what = (
            "it has no meta.json, so it holds no stored data" if path.is_dir() else "there is no such folder"
        )
        raise DataError(path, None, f"{what}; check the path, or make it by riskmin convert") from error
    except DataError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        problem = f"it is broken: it cannot be read ({error}); convert the data anew"
        raise DataError(path / "meta.json", None, problem) from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise DataError(path / "meta.json", None, "it describes no stored data of riskmin; check the path")
    if meta.get("version") != VERSION:
        raise DataError(
            path,
            None,
            f"it is of version {meta.get('version')} of the format, by riskmin {meta.get('riskmin')}, but "
            f"this riskmin reads version {VERSION}; convert the data anew, or use that riskmin",
        )
    return meta, zlib.crc32(blob)


class Store:
    """An open folder: what it holds, and its arrays, mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        meta, self.stamp = _read_meta(path)  # which has all checksums, so that no other data have this stamp
        try:
            self.rows, self.columns, self.numbers = (_count(meta, k) for k in ("rows", "columns", "numbers"))
            self.sparse, self.shards = meta["sparse"] is True, list(meta["shards"])
            self.classes = _words(meta["classes"], "classes", str)
            self.queries = _words(meta["queries"], "queries", str, int)
            self.names = _words(meta["feature_names"], "feature_names", str, many=self.columns)
            self.dtypes = {name: _dtype(name, kind) for name, kind in meta["arrays"].items()}
            if not {*(("data", "indices", "indptr") if self.sparse else ("X",))} <= self.dtypes.keys():
                raise ValueError("arrays that it must have are missing")
            self._check_shards()
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            problem = f"it is broken: {why}; convert the data anew"
            raise DataError(path / "meta.json", None, problem) from error
        self.checked: set[int] = set()

    def _check_shards(self) -> None:
        """Raise unless each shard begins where the last one ended, and the last one at the end."""
        row = number = 0
        for shard in self.shards:
            (start, stop), (first, last) = shard["rows"], shard["numbers"]
            whole = all(type(k) is int for k in (start, stop, first, last))
            if not whole or (start, first) != (row, number) or stop < start or last < first:
                raise ValueError("shards with gaps between them")
            if shard["crc32"].keys() != self.dtypes.keys():
                raise ValueError("shards without checksums")
            row, number = stop, last
        if (row, number) != (self.rows, self.numbers):
            raise ValueError(f"shards of {row} rows, not {self.rows}")

    def _length(self, name: str) -> tuple[int, ...]:
        if name == "X":
            return self.rows, self.columns
        return (self.numbers if name in ("data", "indices") else self.rows + (name == "indptr"),)

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, mapped."""
        return {
            name: mapped(self.path / f"{name}.npy", dtype, self._length(name))
            for name, dtype in self.dtypes.items()
        }

    # ------------------------------------------------------------ checks
    def verify(self, start: int = 0, stop: int | None = None) -> None:
        """Compare the checksums of the shards that hold these rows; each once while the folder is open."""
        stop = self.rows if stop is None else stop
        todo = [
            k
            for k, shard in enumerate(self.shards)
            if k not in self.checked and shard["rows"][0] < stop and shard["rows"][1] > start
        ]
        if len(todo) > 1:
            with ThreadPoolExecutor(min(os.cpu_count() or 1, 4)) as pool:
                list(pool.map(self._verify, todo))
        else:
            for k in todo:
                self._verify(k)
        self.checked |= set(todo)

    def _verify(self, k: int) -> None:
        (start, stop), (first, last) = self.shards[k]["rows"], self.shards[k]["numbers"]
        spans = {"data": (first, last), "indices": (first, last), "indptr": (start, stop + 1)}
        where = f"shard {k + 1} of {len(self.shards)} (rows {start + 1} to {stop})"
        for name, array in self.arrays.items():
            i, j = spans.get(name, (start, stop))
            if checksum(array[i:j]) != self.shards[k]["crc32"][name]:
                problem = f"{where}: the checksum of {name}.npy fails, it was changed; convert the data anew"
                raise DataError(self.path, None, problem)
        if self.sparse and not self._sound(start, stop, first, last):
            raise DataError(self.path, None, f"{where} has columns beyond the last; convert the data anew")

    def check_sound(self) -> None:
        """Raise where rows point beyond an array: what a checksum would tell, had nobody made it fit."""
        for k, shard in enumerate(self.shards):
            if self.sparse and not self._sound(*shard["rows"], *shard["numbers"]):
                where = f"shard {k + 1} of {len(self.shards)}"
                problem = f"it is broken: {where} has rows or columns beyond the last; convert the data anew"
                raise DataError(self.path, None, problem)

    def _sound(self, start: int, stop: int, first: int, last: int) -> bool:
        """Whether a shard can be read without reading beyond an array, whoever wrote it."""
        ends = self.arrays["indptr"][start : stop + 1]
        indices = self.arrays["indices"][first:last]
        unsigned = indices.view(np.uint32 if indices.itemsize == 4 else np.uint64)
        steps = passing(range(0, len(unsigned), 2**18))
        inside = all(int(unsigned[i : i + 2**18].max()) < self.columns for i in steps)
        fits = (int(ends[0]), int(ends[-1])) == (first, last) and bool((ends[1:] >= ends[:-1]).all())
        return inside and fits

    # ------------------------------------------------------------ rows
    def X(self, start: int = 0, stop: int | None = None, columns: int | None = None) -> Any:
        """A range of rows: views of the files, but for where sparse rows end."""
        stop = self.rows if stop is None else stop
        if not self.sparse:
            return self.arrays["X"][start:stop]
        ends = self.arrays["indptr"][start : stop + 1]
        first, last = int(ends[0]), int(ends[-1])
        # SciPy's constructor would make the indices as long as the pointers, by a copy of all of them
        found = sp.csr_matrix((stop - start, columns or self.columns), dtype=self.dtypes["data"])
        short = last - first <= _INT32_MAX and self.dtypes["indices"] == np.int32
        found.indptr = (ends - first).astype(np.int32 if short else np.int64)
        found.indices, found.data = self.arrays["indices"][first:last], self.arrays["data"][first:last]
        found.has_sorted_indices = found.has_canonical_format = True
        return found

    def count(self, start: int, stop: int) -> int:
        """How many numbers a range of rows has."""
        if not self.sparse:
            return (stop - start) * self.columns
        indptr = self.arrays["indptr"]
        return int(indptr[stop] - indptr[start])

    def labels(self) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """The labels and the query ids of all rows, in memory."""
        words = {"y": self.classes, "qid": self.queries}
        found: dict[str, NDArray[Any]] = {}
        for name in ("y", "qid"):
            if name in self.arrays:
                a, known = self.arrays[name], words[name]
                found[name] = a.copy() if known is None else self._named(name, known, a)
        return found.get("y"), found.get("qid")

    def _named(self, name: str, words: list[Any], codes: NDArray[Any]) -> NDArray[Any]:
        """The words that the codes stand for."""
        sound = np.rint(codes) == codes if codes.dtype.kind == "f" else True
        if len(codes) and not (np.all(sound) and codes.min() >= 0 and codes.max() < len(words)):
            problem = f"it is broken: {name}.npy names words that are not in meta.json; convert the data anew"
            raise DataError(self.path, None, problem)
        found: NDArray[Any] = np.array(words)[codes.astype(np.int64)]
        return found


def _count(meta: dict[str, Any], key: str) -> int:
    """A whole number >= 0 that no array is longer than."""
    found = meta[key]
    if type(found) is not int or not 0 <= found < 2**62:
        raise ValueError(f"{key} is {quote(found)}, no number of them")
    return found


def _words(found: Any, key: str, *kinds: type, many: int | None = None) -> list[Any] | None:
    """A list of words of one kind, or None."""
    if found is None:
        return None
    if not isinstance(found, list) or not any(all(type(word) is kind for word in found) for kind in kinds):
        raise ValueError(f"{key} are not all {' or all '.join(kind.__name__ for kind in kinds)}")
    if many is not None and len(found) != many:
        raise ValueError(f"{len(found)} {key} for {many} columns")
    return found


def _dtype(name: str, kind: Any) -> np.dtype[Any]:
    """The dtype of an array, if it can be of it."""
    if not isinstance(kind, str) or kind not in _DTYPES or kind[0] not in _KINDS.get(name, ""):
        raise ValueError(f"its array {quote(name)} is of {quote(kind)}, which it cannot be")
    found: np.dtype[Any] = np.dtype(kind)
    return found


@lru_cache(maxsize=16)
def _kept(path: Path, stamp: tuple[int, int]) -> Store:
    return Store(path)


def open_store(path: PathLike) -> Store:
    """The folder, opened once a process unless it was written anew."""
    path = Path(path).absolute()
    try:
        found = (path / "meta.json").stat()
    except OSError:
        return Store(path)  # which says what is wrong
    return _kept(path, (found.st_mtime_ns, found.st_ino))


def _same_store(path: str, stamp: int) -> Store:
    """The folder, if it still holds what it did: labels that were brought here are of those rows only."""
    store = open_store(path)
    if store.stamp != stamp:
        raise DataError(path, None, "it was written anew meanwhile; run again")
    return store


def check(path: PathLike) -> None:
    """Read all of stored data and compare the checksums.

    Parameters
    ----------
    path : path
        The folder.

    Raises
    ------
    DataError
        With the shard and the file that are not as they were written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from riskmin.data import check, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "tiny.rsk")
    ...     save(path, [([[1.0, 2.0]], [1.0])])
    ...     check(path)
    """
    Store(Path(path)).verify()


def load_stored(
    path: PathLike, *, n_features: int | None, dtype: Any, require_labels: bool, verify: bool
) -> Dataset:
    """Stored data, mapped; `load` has the rules."""
    store = open_store(path)
    if require_labels and "y" not in store.dtypes:
        raise DataError(path, None, "it has no labels; convert data that have them")
    kind = store.dtypes["data" if store.sparse else "X"]
    if dtype is not None and np.dtype(dtype) != kind:
        raise DataError(path, None, f"it holds {kind}, not {np.dtype(dtype)}; convert the data anew as that")
    columns = n_features or store.columns
    if columns < store.columns or (columns > store.columns and not store.sparse):
        problem = (
            f"it has {store.columns} features where {n_features} are expected; check that it is the right one"
        )
        raise DataError(path, None, problem)
    if verify:
        store.verify()
    else:
        store.check_sound()
    return Dataset(store.X(columns=columns), *store.labels(), store.names)


# ---------------------------------------------------------------- as parts
@dataclass(frozen=True)
class StoredPart:
    """A range of rows of stored data, read where it is needed: what is sent is where it is."""

    path: str
    start: int
    stop: int
    shape: tuple[int, int]
    numbers: int
    sparse: bool
    stamp: int

    @property
    def name(self) -> str:
        """The folder and the rows."""
        return f"{self.path}, rows {self.start + 1} to {self.stop}"

    def read(self) -> Any:
        """The rows, mapped; their checksums are compared first."""
        store = _same_store(self.path, self.stamp)
        store.verify(self.start, self.stop)
        return store.X(self.start, self.stop, self.shape[1])


@dataclass(frozen=True)
class Stored:
    """Stored data as a source of parts: any range of rows is one.

    Parameters
    ----------
    path : str
        The folder, by a path that is the same wherever parts are read.
    columns : int
        How many columns there are, perhaps more than the data have.
    stamp : int
        That of the data: others in the same place are refused.
    """

    path: str
    columns: int
    stamp: int

    def part(self, start: int, stop: int) -> StoredPart:
        """The rows from start to stop."""
        store = _same_store(self.path, self.stamp)
        shape = stop - start, self.columns
        numbers = store.count(start, stop)
        return StoredPart(self.path, start, stop, shape, numbers, store.sparse, self.stamp)

    def shards(self) -> Iterable[StoredPart]:
        """The parts as they were written."""
        return [self.part(*shard["rows"]) for shard in _same_store(self.path, self.stamp).shards]

    def whole(self) -> Any:
        """All rows, mapped; their checksums are compared first."""
        store = _same_store(self.path, self.stamp)
        store.verify()
        return store.X(columns=self.columns)
