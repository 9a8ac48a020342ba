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

from riskmin.data.base import DataError, Dataset, PathLike
from riskmin.data.mapped import mapped
from riskmin.data.writer import FORMAT, META, VERSION, checksum
from riskmin.files import recover
from riskmin.maps import passing

_INT32_MAX = np.iinfo(np.int32).max
_KINDS = {"X": "f", "data": "f", "indices": "i", "indptr": "i", "y": "fi", "qid": "i"}


def _read_meta(path: Path) -> tuple[dict[str, Any], int]:
    """What meta.json says, if it can be used, and its own checksum."""
    try:
        blob = (path / "meta.json").read_bytes()
        meta = json.loads(blob)
    except FileNotFoundError as error:
        if recover(path, META):
            return _read_meta(path)
        what = (
            "it has no meta.json, so it holds no stored data" if path.is_dir() else "there is no such folder"
        )
        raise DataError(path, None, f"{what}; check the path, or make it by riskmin convert") from error
    except (OSError, ValueError) as error:
        raise DataError(
            path / "meta.json", None, f"it cannot be read ({error}); convert the data anew"
        ) from error
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
            self.rows, self.columns, self.numbers = (int(meta[k]) for k in ("rows", "columns", "numbers"))
            self.sparse, self.shards = bool(meta["sparse"]), list(meta["shards"])
            self.classes, self.queries, self.names = (
                meta[k] for k in ("classes", "queries", "feature_names")
            )
            self.dtypes = {name: np.dtype(kind) for name, kind in meta["arrays"].items()}
            if any(dtype.kind not in _KINDS[name] for name, dtype in self.dtypes.items()):
                raise ValueError("arrays of kinds that it cannot have")
            if not {*(("data", "indices", "indptr") if self.sparse else ("X",))} <= self.dtypes.keys():
                raise ValueError("arrays that it must have are missing")
            spans = [(*s["rows"], *s["numbers"]) for s in self.shards]
            sums = [s["crc32"].keys() == self.dtypes.keys() for s in self.shards]
            if not all(sums) or [0, 0, *sum(spans, ())] != self._spans(spans):
                raise ValueError("shards with gaps between them")
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                path / "meta.json", None, f"it is broken ({error!r}); convert the data anew"
            ) from error
        self.checked: set[int] = set()

    def _spans(self, spans: list[tuple[int, ...]]) -> list[int]:
        """The numbers of `spans` as they must be: each shard begins where the last one ended."""
        found, row, number = [0, 0], 0, 0
        for _, stop, _, end in spans:
            found += [row, stop, number, end]
            row, number = stop, end
        return found if (row, number) == (self.rows, self.numbers) else []

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

    def _sound(self, start: int, stop: int, first: int, last: int) -> bool:
        """Whether a shard can be read without reading beyond an array, whoever wrote it."""
        ends = self.arrays["indptr"][start : stop + 1]
        indices = self.arrays["indices"][first:last]
        unsigned = indices.view(np.uint32 if indices.itemsize == 4 else np.uint64)
        steps = passing(range(0, len(unsigned), 2**18))
        inside = all(int(unsigned[i : i + 2**18].max()) < self.columns for i in steps)
        return inside and (ends[0], ends[-1]) == (first, last) and bool((ends[1:] >= ends[:-1]).all())

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
                a = self.arrays[name]
                found[name] = a.copy() if words[name] is None else np.array(words[name])[a]
        return found.get("y"), found.get("qid")


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
