"""Stored data are written in one pass: arrays grow on disk, in a folder that is there whole or not at all.

What a piece of rows brings is appended to plain .npy files in a hidden folder beside the target. Their
headers, which say how long they are, come last, and `meta.json` after them; then the folder is renamed, or
exchanged for the one to be replaced.
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

from riskmin import files
from riskmin.data.base import whole
from riskmin.data.streams import Piece, Stream
from riskmin.maps import passing

FORMAT, VERSION = "riskmin data", 1
META = "meta.json"
_ARRAYS = ("X", "data", "indices", "indptr", "y", "qid")
FILES = {META, *(f"{name}.npy" for name in _ARRAYS)}
"""All that a folder of stored data may have."""
_BEGUN = FILES | {f"{name}-new.npy" for name in _ARRAYS}
"""All that it may have while it is written."""
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


def foreign(folder: Path) -> str | None:
    """The name of something in a folder that no writer of stored data left there; None if there is none."""
    names = sorted(path.name for path in folder.iterdir())
    others = [name for name in names if name not in FILES or (folder / name).is_dir()]
    if others or not names:
        return others[0] if others else None
    try:
        meta = json.loads((folder / META).read_bytes())
    except (OSError, ValueError):  # what is left of stored data that were damaged
        return None if len(names) > 1 else names[0]
    return None if isinstance(meta, dict) and meta.get("format") == FORMAT else META


class Growing:
    """An array on disk that grows at its end."""

    def __init__(self, folder: Path, name: str, dtype: Any, like: os.stat_result | None) -> None:
        self.path, self.dtype, self.like = folder / f"{name}.npy", np.dtype(dtype), like
        self.file: IO[bytes] = files.create(self.path, like)
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
        new = Growing(self.path.parent, f"{self.path.stem}-new", dtype or self.dtype, self.like)
        try:
            sums = self._mapped(new, ends, f)
            self.file.close()
            files.rename(new.path, self.path)
        except BaseException:
            new.abandon()
            raise
        self.file, self.dtype, self.crc = new.file, new.dtype, sums.pop()
        return sums

    def _mapped(self, new: Growing, ends: list[int], f: Callable[[NDArray[Any]], NDArray[Any]]) -> list[int]:
        self.file.seek(HEAD)
        sums, start = [], 0
        for end in [*ends, self.size]:
            while start < end:
                some = np.fromfile(self.file, self.dtype, min(end - start, 2**20))
                if not len(some):  # which NumPy says of a disk that fails, and of a file that was cut
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                new.append(f(some))
                start += len(some)
            sums.append(new.cut())
        return sums

    def abandon(self) -> None:
        """Close the file, whatever becomes of what was not written yet: it will be removed."""
        with contextlib.suppress(OSError, ValueError):
            self.file.close()

    def close(self, *columns: int) -> None:
        """Write the header: all is known by now."""
        rows = self.size // columns[0] if columns else self.size
        self.file.seek(0)
        self.file.write(_head(self.dtype, (rows, *columns)))
        files.sync(self.file)
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
        self.folder = files.beside(target)
        self.like = files.known(target / META)
        self.arrays: dict[str, Growing] = {}
        self.coders: dict[str, _Coder] = {}
        self.shards: list[dict[str, Any]] = []
        self.rows, self.first, self.row_cut, self.number_cut = 0, 1, 0, 0

    def __enter__(self) -> Writer:
        """Make the folder, and what it holds from the start; leave nothing behind if that fails."""
        try:
            with self.errors():
                files.create_folder(self.folder, files.known(self.target))
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
        """A block whose errors are those of writing here, said in one sentence."""
        try:
            yield
        except OSError as error:
            remedy = (
                "make room for it" if error.errno in files.FULL else "check the disk, or name another place"
            )
            raise ValueError(f"{self.target} cannot be written ({files.reason(error)}); {remedy}") from error

    def _array(self, name: str, dtype: Any) -> Growing:
        if name not in self.arrays:
            self.arrays[name] = Growing(self.folder, name, dtype, self.like)
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
        with files.create(self.folder / META, self.like) as file:
            file.write(json.dumps(meta, ensure_ascii=False).encode())
            files.sync(file)
        files.sync_folder(self.folder)
        self._rename(force)

    def _drop(self, name: str) -> None:
        """Leave an array out."""
        array = self.arrays.pop(name)
        array.abandon()
        files.unlink(array.path)
        for shard in self.shards:
            del shard["crc32"][name]

    def _rename(self, force: bool) -> None:
        """Put the folder in its place; what it replaces is removed after that."""
        if force:
            check_replaceable(self.target)  # it may have got other files meanwhile
            files.delete(files.aside(self.target), FILES)  # left there by a kill, when this was in place
        old = files.put(self.folder, self.target, replace=force)
        files.sync_folder(self.target.parent)
        if old is not None:
            files.delete(old, FILES)

    def discard(self) -> None:
        """Leave nothing behind, also when interrupted at that."""
        files.surely(self._remove)

    def _remove(self) -> None:
        for array in self.arrays.values():
            array.abandon()
        files.delete(self.folder, _BEGUN)


def check_replaceable(target: Path) -> None:
    """Raise where to replace a folder would be to remove what is no stored data."""
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise ValueError(f"{target} is there already and holds no stored data: name another")
    other = foreign(target)
    if other is not None:
        raise ValueError(
            f"{target} is there already and holds {other}, which is no stored data: name another"
        )


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
