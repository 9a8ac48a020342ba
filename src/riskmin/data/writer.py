"""Stored data are written in one pass: arrays grow on disk, in a folder that is there whole or not at all.

What a piece of rows brings is appended to plain .npy files in a hidden folder beside the target. Their
headers, which say how long they are, come last, and `meta.json` after them; then the folder is renamed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from riskmin.data.base import whole
from riskmin.data.streams import Piece, Stream
from riskmin.maps import passing

FORMAT, VERSION = "riskmin data", 1
HEAD = 128
"""Bytes before the numbers of an array, as NumPy pads them too."""


def _head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header of a .npy file."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", HEAD - 10) + text.ljust(HEAD - 11).encode("ascii") + b"\n"


def checksum(a: NDArray[Any], before: int = 0) -> int:
    """The CRC32 of the bytes of an array in C order, or of those before it and these."""
    raw: Any = a.reshape(-1).view(np.uint8)
    for i in passing(range(0, len(raw), 2**20)):
        before = zlib.crc32(raw[i : i + 2**20], before)
    return before


class Growing:
    """An array on disk that grows at its end."""

    def __init__(self, folder: Path, name: str, dtype: Any) -> None:
        self.path, self.dtype = folder / f"{name}.npy", np.dtype(dtype)
        self.file: IO[bytes] = self.path.open("w+b")
        self.file.seek(HEAD)
        self.size, self.crc = 0, 0

    def append(self, a: NDArray[Any]) -> None:
        """Add numbers, in the dtype of the array."""
        a = np.ascontiguousarray(a, self.dtype)
        self.file.write(a.data)
        self.crc = checksum(a, self.crc)
        self.size += a.size

    def cut(self) -> int:
        """The checksum since the last cut."""
        found, self.crc = self.crc, 0
        return found

    def map(self, ends: list[int], f: Callable[[NDArray[Any]], NDArray[Any]], dtype: Any = None) -> list[int]:
        """Replace all numbers, from one end to the next; the checksums of these ranges."""
        new = Growing(self.path.parent, f"{self.path.stem}-new", dtype or self.dtype)
        self.file.seek(HEAD)
        sums, start = [], 0
        for end in [*ends, self.size]:
            while start < end:
                some = np.fromfile(self.file, self.dtype, min(end - start, 2**20))
                new.append(f(some))
                start += len(some)
            sums.append(new.cut())
        self.file.close()
        new.path.replace(self.path)
        self.file, self.dtype, self.crc = new.file, new.dtype, sums.pop()
        return sums

    def close(self, *columns: int) -> None:
        """Write the header: all is known by now."""
        rows = self.size // columns[0] if columns else self.size
        self.file.seek(0)
        self.file.write(_head(self.dtype, (rows, *columns)))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


class _Coder:
    """Words as codes, in the order in which they come."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}

    def codes(self, a: NDArray[Any]) -> NDArray[np.int64]:
        some, back = np.unique(a, return_inverse=True)
        numbers = [self.words.setdefault(str(word), len(self.words)) for word in some]
        found: NDArray[np.int64] = np.array(numbers, np.int64)[back]
        return found


class Writer:
    """A folder of stored data that is being written: `add` pieces, then `close`; or `discard` it."""

    def __init__(self, target: Path, dtype: np.dtype[Any], *, sparse: bool, shard_bytes: int) -> None:
        self.target, self.dtype, self.sparse, self.shard_bytes = target, dtype, sparse, shard_bytes
        self.folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        self.folder.mkdir()
        self.arrays: dict[str, Growing] = {}
        self.coders: dict[str, _Coder] = {}
        self.shards: list[dict[str, Any]] = []
        self.rows, self.first, self.row_cut, self.number_cut = 0, 1, 0, 0
        if sparse:
            self._array("data", dtype), self._array("indices", np.int32)
            self._array("indptr", np.int64).append(np.zeros(1, np.int64))
        else:
            self._array("X", dtype)

    def _array(self, name: str, dtype: Any) -> Growing:
        if name not in self.arrays:
            self.arrays[name] = Growing(self.folder, name, dtype)
        return self.arrays[name]

    @property
    def numbers(self) -> int:
        """How many are stored by now."""
        return self.arrays["data" if self.sparse else "X"].size

    @property
    def bytes(self) -> int:
        """How many bytes the arrays have by now."""
        return sum(a.size * a.dtype.itemsize for a in self.arrays.values())

    def add(self, piece: Piece, columns: int) -> None:
        """Append rows; if these are sparse and dense ones are wanted, there are so many columns."""
        X: Any = piece.X
        sparse = isinstance(X, tuple)
        n = len(X[2]) if sparse else len(X)
        if self.sparse:
            self._add_sparse(X if sparse else _nonzero(X), piece.first if sparse else 0)
        else:
            if sparse and self.rows and piece.first < self.first:
                raise ValueError(
                    "an index 0 comes after rows that were taken to count from 1: use zero_based=True"
                )
            self.first = piece.first
            self.arrays["X"].append(_filled(X, piece.first, columns, self.dtype) if sparse else X)
        for name, labels in (("y", piece.y), ("qid", piece.qid)):
            if labels is not None:
                self._add_labels(name, labels)
        self.rows += n
        size = (self.numbers - self.number_cut) * (self.dtype.itemsize + 4 * self.sparse)
        if size >= self.shard_bytes:
            self._cut()

    def _add_sparse(self, X: tuple[NDArray[Any], NDArray[Any], NDArray[Any]], first: int) -> None:
        values, indices, ends = X
        array = self.arrays["indices"]
        if array.size and first < self.first:  # until now, no index was 0
            self._map("indices", lambda a: a + 1)
        self.first = first
        if array.dtype == np.int32 and len(indices) and int(indices.max()) - first > np.iinfo(np.int32).max:
            self._map("indices", lambda a: a, np.int64)
        self.arrays["indptr"].append(ends + self.numbers)
        array.append(indices - first if first else indices)
        self.arrays["data"].append(values)

    def _add_labels(self, name: str, labels: NDArray[Any]) -> None:
        words = labels.dtype.kind in "US"
        if labels.ndim != 1 or (not words and not np.isfinite(labels).all()):
            raise ValueError(f"{name} is not of one finite number or word a row: correct it")
        if self.rows and (name not in self.arrays or words != (name in self.coders)):
            raise ValueError(
                f"later rows have another kind of {name} than the first {self.rows}: give one kind"
            )
        if words:
            labels = self.coders.setdefault(name, _Coder()).codes(labels)
            dtype: Any = np.int64
        else:
            dtype = np.float64 if name == "y" else np.int64
            labels = labels if name == "y" else whole(self.target, "qid", labels)
        self._array(name, dtype).append(labels)
        if self.arrays[name].size - self.rows != len(labels):
            raise ValueError(
                f"there are {len(labels)} entries of {name} for fewer or more rows: give one a row"
            )

    def _map(self, name: str, f: Callable[[NDArray[Any]], NDArray[Any]], dtype: Any = None) -> None:
        """Change all that was written of an array."""
        ends = [shard["numbers" if name == "indices" else "rows"][1] for shard in self.shards]
        for shard, crc in zip(self.shards, self.arrays[name].map(ends, f, dtype), strict=True):
            shard["crc32"][name] = crc

    def _cut(self) -> None:
        """End a shard."""
        crc = {name: array.cut() for name, array in self.arrays.items()}
        rows, numbers = [self.row_cut, self.rows], [self.number_cut, self.numbers]
        self.shards.append({"rows": rows, "numbers": numbers, "crc32": crc})
        self.row_cut, self.number_cut = self.rows, self.numbers
        if self.sparse:  # a shard's row pointers are those from its first row to its end
            self.arrays["indptr"].crc = checksum(np.array([self.numbers], np.int64))

    def close(self, stream: Stream, *, force: bool) -> None:
        """Write what is known at the end only, and put the folder where it shall be."""
        import riskmin

        if self.rows > self.row_cut:
            self._cut()
        queries, classes = stream.queries, stream.classes
        if classes == [""]:  # a column of empty cells: there are no labels
            self._drop("y")
            classes = None
        if classes is not None:
            self._map("y", lambda codes: codes, np.int64)
        if queries is not None and queries.dtype.kind != "U":
            self._map("qid", lambda codes: queries[codes])
        for name, array in self.arrays.items():
            if array.size != (self.rows if name in ("y", "qid") else array.size):
                raise ValueError(
                    f"some rows have no {name}, but others have: give it for all rows or for none"
                )
            array.close(*((stream.columns,) if name == "X" else ()))
        coded = {name: list(coder.words) for name, coder in self.coders.items()}
        words = [str(word) for word in queries] if queries is not None and queries.dtype.kind == "U" else None
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "riskmin": riskmin.__version__,
            "rows": self.rows,
            "columns": stream.columns,
            "numbers": self.numbers,
            "sparse": self.sparse,
            "arrays": {name: array.dtype.name for name, array in self.arrays.items()},
            "classes": classes or coded.get("y"),
            "queries": words or coded.get("qid"),
            "feature_names": stream.names,
            "shards": self.shards,
        }
        _write(self.folder / "meta.json", json.dumps(meta, ensure_ascii=False).encode())
        self._rename(force)

    def _drop(self, name: str) -> None:
        """Leave an array out."""
        array = self.arrays.pop(name)
        array.file.close()
        array.path.unlink()
        for shard in self.shards:
            del shard["crc32"][name]

    def _rename(self, force: bool) -> None:
        old = self.target.with_name(f"{self.folder.name}.old")
        try:
            if force and self.target.exists():
                self.target.rename(old)
            self.folder.rename(self.target)
        except BaseException:
            if old.exists() and not self.target.exists():
                old.rename(self.target)
            raise
        shutil.rmtree(old, ignore_errors=True)

    def discard(self) -> None:
        """Leave nothing behind, also when interrupted at that."""
        try:
            self._remove()
        except KeyboardInterrupt:
            self._remove()
            raise

    def _remove(self) -> None:
        for array in self.arrays.values():
            array.file.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _write(path: Path, blob: bytes) -> None:
    with path.open("xb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())


def _nonzero(X: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Dense rows as sparse ones."""
    there = X != 0
    return X[there], np.nonzero(there)[1], np.cumsum(there.sum(axis=1))


def _filled(X: tuple[NDArray[Any], ...], first: int, columns: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Sparse rows as dense ones."""
    values, indices, ends = X
    dense = np.zeros((len(ends), columns), dtype)
    dense[np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)), indices - first] = values
    return dense
