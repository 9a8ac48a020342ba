"""Reader of svmlight (LIBSVM) text, in chunks, with a compiled parser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from riskmin._numba import svmlight_codes as codes
from riskmin.data.base import DataError, Dataset, PathLike, check_dtype, open_decompressed, quote
from riskmin.data.limits import MemoryBudget

SvmlightSource: TypeAlias = PathLike | IO[bytes]
CHUNK_BYTES = 1 << 19  # bytes of text per chunk; the parsed numbers then fit in the cache
_INT32_MAX = np.iinfo(np.int32).max
_INT64_MAX = np.iinfo(np.int64).max


def load_svmlight(
    source: SvmlightSource,
    *,
    n_features: int | None = None,
    dtype: Any = np.float64,
    zero_based: bool | Literal["auto"] = "auto",
    multilabel: bool = False,
    require_labels: bool = True,
    chunk_bytes: int = CHUNK_BYTES,
) -> Dataset:
    """Read svmlight text.

    Each row is ``label [qid:id] index:value ... [# comment]``. The text is read in chunks: apart from the
    result, reading takes a few megabytes. Every number is the float64 nearest to its decimal, as for `float`.
    Explicit zeros are kept.

    Parameters
    ----------
    source : path or binary file
        A file given by its path may be compressed by gzip, xz or bzip2; an open file must be plain text.
    n_features : int, optional
        The number of columns; by default, it follows from the largest index.
    dtype : float64 or float32
        The dtype of X. The labels are always float64.
    zero_based : bool or "auto"
        Whether indices start from 0 or from 1. "auto" means 0 if any index is 0, else 1; give True if
        indices start from 0 but none may be 0.
    multilabel : bool
        Whether a label is a list such as ``0,5,7``; y is then a list of sorted tuples, and a row that
        starts with ``index:value`` has no labels.
    require_labels : bool
        If false, all rows may start with ``index:value``; y is then None.
    chunk_bytes : int
        How much text is parsed at a time; the result does not depend on it.

    Returns
    -------
    Dataset
        X is a csr_matrix; qid is None if the file has no query ids.

    Raises
    ------
    DataError
        With the file, the line, the cause and the remedy.

    Examples
    --------
    >>> import io
    >>> X, y, qid, _ = load_svmlight(io.BytesIO(b"1 qid:7 1:0.5 3:2  # a comment\\n-1 qid:7 2:2.5e-1\\n"))
    >>> X.toarray()
    array([[0.5 , 0.  , 2.  ],
           [0.  , 0.25, 0.  ]])
    >>> y, qid
    (array([ 1., -1.]), array([7, 7]))
    """
    settings = n_features, check_dtype(dtype), zero_based, multilabel, require_labels
    return read_svmlight(source, *settings, chunk_bytes=chunk_bytes).dataset()


def read_svmlight(source: SvmlightSource, *settings: Any, chunk_bytes: int = CHUNK_BYTES) -> SvmlightReader:
    """Read a whole file and return the reader; `settings` are the parameters of the reader after the name."""
    # a path is opened and decompressed here; an open file is read as it is
    path = source if isinstance(source, (str, Path)) or not hasattr(source, "read") else None
    reader = SvmlightReader(
        str(path) if path is not None else str(getattr(source, "name", "<stream>")), *settings
    )
    with open_decompressed(path) if path is not None else nullcontext(cast(IO[bytes], source)) as file:
        for text in text_chunks(file, chunk_bytes, reader.budget):
            reader.parse(text)
    return reader


class ParsedRows(NamedTuple):
    """Rows of a chunk, as views of the scratch space of the parser: valid until the next chunk."""

    values: NDArray[Any]
    indices: NDArray[np.int64]
    """Column indices as in the file, which may start from 0 or from 1."""
    ends: NDArray[np.int64]
    labels: NDArray[np.float64]
    qids: NDArray[np.int64] | None


def text_chunks(file: IO[bytes], size: int, budget: MemoryBudget) -> Iterator[bytes]:
    """Yield the text in chunks that end with a newline; the size of reads doubles while a line has no end."""
    tail, step = b"", size
    while data := file.read(step):
        if not isinstance(data, bytes):
            raise TypeError("the file is open as text; open it as binary: open(path, 'rb')")
        # the memory for parsing a line of this length, 32 bytes per byte of text
        if step > size:
            budget.require(32 * (len(tail) + len(data)))
        # the text up to the last newline is complete; the tail is continued by the next read
        cut = data.rfind(b"\n") + 1
        if cut == 0:
            tail, step = tail + data, 2 * step
        else:
            yield tail + data[:cut]
            tail, step = data[cut:], size
    if tail:
        yield tail + b"\n"


class _GrowingArray:
    """Array to which numbers are appended; realloc remaps pages, so that no second copy is held."""

    def __init__(self, dtype: Any, budget: MemoryBudget) -> None:
        self.array: NDArray[Any] = np.empty(0, dtype)
        self.size, self.budget = 0, budget

    def append(self, values: NDArray[Any]) -> None:
        """Append numbers, converted to the dtype of the array."""
        size = self.size + len(values)
        if size > len(self.array):
            # growing by a factor of 9/8 makes the number of reallocations logarithmic
            capacity = size + size // 8
            self.budget.reserve((capacity - len(self.array)) * self.array.itemsize)
            self.array.resize(capacity, refcheck=False)
        self.array[self.size : size] = values
        self.size = size

    def trimmed(self) -> NDArray[Any]:
        """Return the array, without its spare capacity."""
        self.array.resize(self.size, refcheck=False)
        return self.array


class SvmlightReader:
    """Parser state: the rows read so far, and the scratch space of the compiled parser."""

    _LABEL_SET_BYTES = 96  # memory of a short tuple of floats
    INTERPRETED_BYTES = 1 << 18
    """Files up to this size are parsed in Python, in 20 ms; compiling the other parser takes seconds."""

    def __init__(
        self,
        name: str,
        n_features: int | None,
        dtype: np.dtype[Any],
        zero_based: bool | Literal["auto"],
        multilabel: bool,
        require_labels: bool,
    ) -> None:
        if zero_based not in (True, False, "auto"):
            raise ValueError(f"zero_based is {zero_based!r}; use True, False or 'auto'")
        self.name, self.n_features, self.dtype = name, n_features, dtype
        self.zero_based, self.multilabel = zero_based, multilabel
        self.mode = (
            codes.LABEL_TEXT if multilabel else codes.LABEL_NUMBER if require_labels else codes.LABEL_OPTIONAL
        )
        # counters of the compiled parser; -1 and the largest integer mean that none was seen yet
        self.state = np.zeros(codes.N_STATE, np.int64)
        self.state[codes.LINE_NUMBER] = 1
        self.state[[codes.HAS_QID, codes.LARGEST_INDEX]] = -1
        self.state[codes.SMALLEST_INDEX] = _INT64_MAX
        self._tables: tuple[Any, Any] | None = None  # powers of ten of the compiled parser
        self.size = -1
        self.budget = MemoryBudget(name)
        kinds = dtype, np.int32, np.int64, np.float64, np.int64
        columns = (_GrowingArray(kind, self.budget) for kind in kinds)
        self.values, self.indices, self.indptr, self.labels, self.qids = columns
        self.label_sets: list[tuple[float, ...]] = []
        self.indptr.append(np.zeros(1, np.int64))
        self.count = 0
        self.unlabeled = False  # whether rows have no labels

    def _reserve(self, size: int) -> None:
        """Allocate scratch space for a chunk of `size` bytes: a value takes at least 3 bytes, a row 2."""
        if size > self.size:
            n, rows, self.size = size // 3 + 1, size // 2 + 1, size
            self._values, self._indices = np.empty(n), np.empty(n, np.int64)
            self._ends, self._qids, self._lines = (np.empty(rows, np.int64) for _ in range(3))
            self._labels, self._slow = np.empty(rows), np.empty((rows, 3), np.int64)

    def _max_index(self) -> int:
        """Return the largest index that n_features allows, by what is known of the index base so far."""
        if self.n_features is None:
            return _INT64_MAX
        # in mode "auto", indices are taken to start from 1 until a 0 occurs
        from_zero = self.state[codes.SMALLEST_INDEX] == 0 if self.zero_based == "auto" else self.zero_based
        return self.n_features - 1 if from_zero else self.n_features

    def read(self, text: bytes) -> ParsedRows:
        """Parse the next chunk and return its rows."""
        k, state = codes, self.state
        self._reserve(len(text))
        small = state[k.LINE_NUMBER] == 1 and len(text) <= self.INTERPRETED_BYTES and not self.multilabel
        code = k.OK if small and self._parse_interpreted(text) else self._parse_compiled(text)
        rows, n = int(state[k.N_ROWS]), int(state[k.N_VALUES])
        # errors of earlier rows first: the rows before the one at which the parser stopped
        self._patch(text, self._slow[: state[k.N_SLOW]].tolist(), rows)
        self._check(rows)
        values = self._cast(n, rows)
        if code != k.OK:
            raise self._error(code, text[state[k.ERROR_START] : state[k.ERROR_STOP]])
        self.count += rows
        qids = self._qids[:rows] if state[k.HAS_QID] == 1 else None
        return ParsedRows(values, self._indices[:n], self._ends[:rows], self._labels[:rows], qids)

    def _parse_compiled(self, text: bytes) -> int:
        """Parse a chunk into the scratch space; return the code."""
        from riskmin._numba import svmlight_parser  # imports Numba

        self._tables = self._tables or svmlight_parser.powers_of_ten()
        tens, table = self._tables
        code: int = svmlight_parser.parse(
            np.frombuffer(text, np.uint8),
            len(text),
            self.mode,
            int(self.zero_based is False),
            self._max_index(),
            tens,
            table,
            self._values,
            self._indices,
            self._ends,
            self._labels,
            self._qids,
            self._lines,
            self._slow,
            self.state,
        )
        return code

    def _parse_interpreted(self, text: bytes) -> bool:
        """Parse a whole small file of plain labels and pairs; False leaves it to the compiled parser.

        Nothing is stored then: that parser reports errors, and reads query ids and rows without labels.
        """
        found = _plain_rows(text, 1 if self.zero_based is False else 0, self._max_index())
        if found is None:
            return False
        labels, lines, ends, indices, values = found
        n, rows = len(values), len(labels)
        self._values[:n], self._indices[:n], self._labels[:rows] = values, indices, labels
        if not (np.isfinite(self._values[:n]).all() and np.isfinite(self._labels[:rows]).all()):
            return False
        self._ends[:rows], self._lines[:rows] = ends, lines
        largest = max(indices, default=-1)
        at = int(np.searchsorted(ends, indices.index(largest), side="right")) if indices else 0
        slots = {
            codes.LINE_NUMBER: text.count(b"\n") + 1,
            codes.HAS_QID: 0 if rows else -1,
            codes.SMALLEST_INDEX: min(indices, default=_INT64_MAX),
            codes.LARGEST_INDEX: largest,
            codes.LARGEST_INDEX_LINE: lines[at] if indices else 0,
            codes.N_ROWS: rows,
            codes.N_VALUES: n,
            codes.N_SLOW: 0,
        }
        self.state[list(slots)] = list(slots.values())
        return True

    def parse(self, text: bytes) -> None:
        """Parse the next chunk and append its rows."""
        rows = self.read(text)
        # indices are int32 until one does not fit
        if self.state[codes.LARGEST_INDEX] > _INT32_MAX and self.indices.array.dtype == np.int32:
            self.budget.reserve(4 * len(self.indices.array))
            self.indices.array = self.indices.array.astype(np.int64)
        # the ends of a chunk are relative to its first value
        self.indptr.append(rows.ends + self.values.size)
        self.indices.append(rows.indices)
        self.values.append(rows.values)
        self.labels.append(rows.labels)
        if rows.qids is not None:
            self.qids.append(rows.qids)

    def _patch(self, text: bytes, slow: list[list[int]], rows: int) -> None:
        """Convert the tokens that the compiled parser left out, by `float`.

        Each entry of `slow` is (position, start, stop): the position of a value, or -1 - row for a label.
        """
        # one tuple of labels per row; rows without labels keep the empty one
        label_sets: list[tuple[float, ...]] = [()] * rows
        for position, start, stop in slow:
            token = text[start:stop]
            try:
                numbers = (
                    [float(t) for t in token.split(b",")]
                    if position < 0 and self.multilabel
                    else [float(token)]
                )
            except ValueError:
                raise self._not_a_number(token, position, rows) from None
            if not all(map(math.isfinite, numbers)):
                problem = f"{quote(token)} is not finite; replace the value or leave out the row"
                raise DataError(self.name, self._line(position, rows), problem)
            if position >= 0:
                self._values[position] = numbers[0]
            elif not self.multilabel:
                self._labels[-1 - position] = numbers[0]
            elif -1 - position < rows:  # or else the parser stopped in this row, with an error
                label_sets[-1 - position] = tuple(sorted(numbers))
        if self.multilabel:
            self.budget.reserve(self._LABEL_SET_BYTES * len(label_sets))
            self.label_sets += label_sets

    def _line(self, position: int, rows: int) -> int:
        """Return the line of the value at a position, or of the label of row -1 - position."""
        row = (
            -1 - position if position < 0 else int(np.searchsorted(self._ends[:rows], position, side="right"))
        )
        return int(self._lines[row] if row < rows else self.state[codes.LINE_NUMBER])

    def _not_a_number(self, token: bytes, position: int, rows: int) -> DataError:
        """Return the error for a token that is not a number."""
        remedy = "write index:value" if position >= 0 else "a row is: label index:value index:value ..."
        if position < 0 and b"," in token and not self.multilabel:
            remedy = "read a file with several labels per row by multilabel=True"
        return DataError(self.name, self._line(position, rows), f"{quote(token)} is not a number; {remedy}")

    def _cast(self, n: int, rows: int) -> NDArray[Any]:
        """Return the values in the dtype of the result; raise a DataError if one overflows."""
        if self.dtype == np.float64:
            return self._values[:n]
        with np.errstate(over="ignore"):
            values: NDArray[Any] = self._values[:n].astype(self.dtype)
        overflown = np.flatnonzero(~np.isfinite(values))
        if len(overflown):
            problem = f"{self._values[overflown[0]]} is too large for {self.dtype}; use dtype float64"
            raise DataError(self.name, self._line(int(overflown[0]), rows), problem)
        return values

    def _check(self, rows: int) -> None:
        """Raise a DataError for an index beyond n_features, or for rows with and without labels."""
        k, state = codes, self.state
        if state[k.LARGEST_INDEX] > self._max_index():
            raise self._too_large(int(state[k.LARGEST_INDEX]), int(state[k.LARGEST_INDEX_LINE]))
        if self.mode == k.LABEL_OPTIONAL and rows:
            self._check_labels(np.isnan(self._labels[:rows]))

    def _check_labels(self, missing: NDArray[np.bool_]) -> None:
        """Raise a DataError unless all rows have labels, or none has."""
        # the first row of the file decides; the parser marks a missing label by NaN
        self.unlabeled = self.unlabeled if self.count else bool(missing[0])
        mixed = missing != self.unlabeled
        if mixed.any():
            has = "a" if self.unlabeled else "no"
            problem = f"the row has {has} label, unlike the first; label all rows or none"
            raise DataError(self.name, int(self._lines[int(np.argmax(mixed))]), problem)

    def _too_large(self, index: int, line: int) -> DataError:
        """Return the error for an index beyond n_features."""
        count = "0" if self._max_index() == (self.n_features or 0) - 1 else "1"
        beyond = f"beyond n_features={self.n_features}; raise n_features"
        return DataError(self.name, line, f"the index {index}, counted from {count}, is {beyond}")

    def _error(self, code: int, token: bytes) -> DataError:
        """Return the error for the row at which the parser stopped."""
        k = codes
        line = int(self.state[k.LINE_NUMBER])
        if code == k.TOO_LARGE:
            return self._too_large(int(token), line)
        shown = quote(token)
        # with indices from 1, the parser reports an index 0 as not above the last one
        if code == k.UNSORTED and self.zero_based is False and int(token.partition(b":")[0]) == 0:
            return DataError(self.name, line, "the index 0 in a file that counts from 1; use zero_based=True")
        return DataError(
            self.name,
            line,
            {
                k.NO_LABEL: f"{shown} is where the label should be; a row is: label index:value ...",
                k.BAD_PAIR: f"{shown} is not index:value with a whole index >= 0; correct the row",
                k.UNSORTED: f"the index in {shown} is not above the last; sort the row, merge duplicates",
                k.BAD_QID: f"{shown} is not qid:id with a whole id (of 64 bits); number the queries",
                k.QID_MISSING: "the row has no qid, unlike the rows before; give every row one or none",
                k.QID_EXTRA: f"the row has {shown}, unlike the rows before; give every row a qid or none",
            }[code],
        )

    @property
    def one_based(self) -> bool:
        """Whether indices start from one, as far as known."""
        smallest = int(self.state[codes.SMALLEST_INDEX])
        return self.zero_based is False or (self.zero_based == "auto" and 0 < smallest < _INT64_MAX)

    @property
    def width(self) -> int:
        """Number of columns of the rows read so far."""
        if self.count == 0:
            raise DataError(self.name, None, "it has no rows; check that it is the right file")
        largest = int(self.state[codes.LARGEST_INDEX])
        return self.n_features if self.n_features is not None else max(largest - self.one_based, 0) + 1

    def dataset(self) -> Dataset:
        """Return all rows as a data set."""
        # only now is the index base certain: a 0 in the last row would have made it 0
        width, indices = self.width, self.indices.trimmed()
        if self.one_based:
            indices -= 1
        X = csr_matrix((self.values.trimmed(), indices, self.indptr.trimmed()), shape=(self.count, width))
        # the parser accepts only rows with increasing indices: SciPy need not check
        X.has_sorted_indices = X.has_canonical_format = True
        y: NDArray[Any] | list[tuple[float, ...]] | None = self.labels.trimmed()
        if self.multilabel:
            y = self.label_sets
        elif self.unlabeled:
            y = None
        return Dataset(X, y, self.qids.trimmed() if self.qids.size else None)


class _PlainRows(NamedTuple):
    """Rows of labels and pairs; `ends` are the numbers of pairs up to the end of each row."""

    labels: list[float]
    lines: list[int]
    ends: list[int]
    indices: list[int]
    values: list[float]


def _plain_rows(text: bytes, first: int, limit: int) -> _PlainRows | None:
    """Return the rows of a text whose indices increase from `first` to `limit`; None if it has others."""
    rows = _PlainRows([], [], [], [], [])
    for number, line in enumerate(text.split(b"\n"), 1):
        tokens = line.partition(b"#")[0].split()
        if not tokens:
            continue
        least = first
        try:
            rows.labels.append(float(tokens[0]))
            for token in tokens[1:]:
                index, _, value = token.partition(b":")
                # at most 18 digits, as in the compiled parser
                if not index.isdigit() or len(index) > 18 or not least <= int(index) <= limit:
                    return None
                rows.indices.append(int(index))
                rows.values.append(float(value))
                least = int(index) + 1
        except ValueError:
            return None
        rows.lines.append(number)
        rows.ends.append(len(rows.values))
    return rows
