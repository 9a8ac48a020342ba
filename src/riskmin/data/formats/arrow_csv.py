"""Text tables read by pyarrow, where it is installed: several times as fast as the reader of `tables`.

It reads plain tables only. Whatever it does not accept (bad cells, blank lines that hold spaces, very long
rows) is left to the other reader, which then reads the file again and reports errors by line and column;
numbers are rounded correctly by both, so that the result is the same.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from riskmin.data.base import DataError, open_decompressed
from riskmin.data.formats.text_table import ColumnRoles, RowBlock, TextTable
from riskmin.data.limits import MemoryBudget


class ArrowCsvReader:
    """Reader of the blocks of a table; a ValueError leaves the table to the other reader.

    Parameters
    ----------
    table : TextTable
    roles : ColumnRoles
    dtype : dtype of X
    codes : dict
        For each column of strings, the code of each distinct string, which is filled.
    """

    MIN_FILE_BYTES: ClassVar[int] = 2_000_000
    """For a smaller file, importing pyarrow takes longer than the other reader, unless it is imported."""
    BLOCK_BYTES: ClassVar[int] = 2**20
    """Bytes of text per block, at least."""
    CELL_BYTES: ClassVar[int] = 64
    """Bytes of text per cell that a row may have on average: a row must fit into a block."""

    def __init__(
        self, table: TextTable, roles: ColumnRoles, dtype: Any, codes: dict[int, dict[str, int]]
    ) -> None:
        self.table, self.roles, self.dtype, self.codes = table, roles, dtype, codes

    @classmethod
    def accepts(cls, table: TextTable) -> bool:
        """Whether pyarrow is installed, and the file so large that importing it pays."""
        if sys.modules.get("pyarrow") is not None:
            return True
        path = Path(table.path)
        large = path.is_file() and path.stat().st_size >= cls.MIN_FILE_BYTES
        return large and importlib.util.find_spec("pyarrow") is not None

    def __iter__(self) -> Iterator[RowBlock]:
        # blocks of as many rows as those of the other reader
        pending: list[RowBlock] = []
        missing = self.table.block_rows
        for batch in self._batches():
            rows = self._block(batch)
            while len(rows[0]):
                pending.append(_slice(rows, 0, missing))
                rows, missing = _slice(rows, missing, None), missing - len(pending[-1][0])
                if not missing:
                    yield _joined(pending)
                    pending, missing = [], self.table.block_rows
        if pending:
            yield _joined(pending)

    def coded_batches(self, columns: list[int]) -> Iterator[list[NDArray[np.intp]]]:
        """Yield the codes of these columns, all of which are in `codes`, for each batch of rows."""
        for batch in self._batches():
            yield [self._coded(batch, i) for i in columns]

    def _batches(self) -> Iterator[Any]:
        """Yield batches of rows of the file."""
        import pyarrow as pa

        with open_decompressed(self.table.path, self.table.meter) as stream:
            try:
                yield from self._opened(_starting_with_text(stream))
            except pa.ArrowInvalid as error:
                raise ValueError(str(error)) from error

    def _opened(self, stream: Any) -> Any:
        """Open the stream as batches of rows, with float64 and string columns."""
        import pyarrow as pa
        from pyarrow import csv

        names = [str(i) for i in range(len(self.table.names))]  # the given ones may repeat
        kinds = {name: pa.string() if i in self.codes else pa.float64() for i, name in enumerate(names)}
        block_bytes = max(self.table.chunk_bytes or self.BLOCK_BYTES, self.CELL_BYTES * len(names))
        # the text, its index of cells, and the columns
        if 4 * block_bytes > MemoryBudget(self.table.path).limit:
            raise ValueError("a block takes more memory than the limit")
        return csv.open_csv(
            stream,
            read_options=csv.ReadOptions(
                column_names=names,
                skip_rows_after_names=int(self.table.header),
                block_size=block_bytes,
                use_threads=False,
            ),
            parse_options=csv.ParseOptions(delimiter=self.table.delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types=kinds, null_values=[], strings_can_be_null=False),
        )

    def _block(self, batch: Any) -> RowBlock:
        """Return the rows of a batch; raise a ValueError if a number is not finite."""
        roles = self.roles
        X = np.empty((batch.num_rows, len(roles.features)), self.dtype)
        for k, i in enumerate(roles.features):
            self._fill(X[:, k], batch.column(i))
        y = qid = None
        if roles.target is not None and roles.target in self.codes:
            y = self._coded(batch, roles.target).astype(np.float64)
        elif roles.target is not None:
            y = np.empty(batch.num_rows)
            self._fill(y, batch.column(roles.target))
        if roles.qid is not None:
            qid = self._coded(batch, roles.qid)
        return X, y, qid

    def _fill(self, out: NDArray[Any], column: Any) -> None:
        """Copy a column of numbers, which must be finite."""
        cells = column.to_numpy(zero_copy_only=False)
        if not np.isfinite(cells).all():
            raise ValueError("not finite")
        with np.errstate(over="ignore"):
            out[:] = cells
        if out.dtype != np.float64 and not np.isfinite(out).all():
            problem = f"a value is too large for {out.dtype}; use dtype float64"
            raise DataError(self.table.path, None, problem)

    def _coded(self, batch: Any, column: int) -> NDArray[np.intp]:
        """Return the codes of the strings of a column; new strings get the next codes."""
        distinct, words = batch.column(column).dictionary_encode(), self.codes[column]
        code = [words.setdefault(word.strip(), len(words)) for word in distinct.dictionary.to_pylist()]
        coded: NDArray[np.intp] = np.array(code, np.intp)[distinct.indices.to_numpy(zero_copy_only=False)]
        return coded


def _slice(block: RowBlock, i: int, j: int | None) -> RowBlock:
    X, y, qid = block
    return X[i:j], None if y is None else y[i:j], None if qid is None else qid[i:j]


def _joined(blocks: list[RowBlock]) -> RowBlock:
    X, y, qid = (None if parts[0] is None else np.concatenate(parts) for parts in zip(*blocks, strict=True))
    assert X is not None
    return X, y, qid


def _starting_with_text(stream: IO[bytes]) -> Any:
    """Return the stream; raise a ValueError if its first line is blank: it would be taken for the header."""
    import io

    buffered: Any = stream if hasattr(stream, "peek") else io.BufferedReader(stream)
    first = buffered.peek(64)[:64].removeprefix("\ufeff".encode()).lstrip(b" ")
    if not first or first[:1] in b"\r\n":
        raise ValueError("the first line is blank")
    return buffered
