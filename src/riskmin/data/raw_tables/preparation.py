"""Preparation of raw tables: which columns are features, how they are encoded, and the X that results."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from riskmin.core.deadline import check_each
from riskmin.data.base import PathLike, quote
from riskmin.data.formats.text_table import ColumnRoles, column_index, missing_column
from riskmin.data.limits import MemoryBudget
from riskmin.data.loading import format_of
from riskmin.data.raw_tables.encoders import ColumnEncoder, NumberEncoder, encoder_from_dict, number_format
from riskmin.data.raw_tables.reading import RawSource, RawTable, open_raw
from riskmin.data.raw_tables.written import PLAIN, NumberFormat

ColumnRef: TypeAlias = str | int | None
"""A column of a table, given by name or by index from 0."""

NUMBER_ROLES = {"weight": "the weights", "offset": "the offset", "exposure": "the exposure"}
"""The roles of columns with one number per row, and what messages call them."""


class PreparedRows(NamedTuple):
    """A data set as the commands use it: the fields of `Dataset`, weights, the preparation, and notes."""

    X: Any
    y: Any
    qid: NDArray[Any] | None = None
    feature_names: list[str] | None = None
    weight: NDArray[np.float64] | None = None
    preparation: TablePreparation | None = None
    notes: tuple[str, ...] = ()
    target_name: str | None = None
    """The column of the labels, of a table of numbers; otherwise the preparation has it."""
    offset: NDArray[np.float64] | None = None
    """What is added to the scores of the rows."""


@dataclass(frozen=True)
class TablePreparation:
    """The preparation of a table, found on training rows and applied to any.

    Parameters
    ----------
    encoders : tuple of encoders
        One per feature of the table.
    target, qid, weight, offset, exposure : str or None
        The names of the columns of labels, query ids, weights, and of what is added to the scores, as it is
        or by its logarithm.
    has_names : bool
        Whether the training file named its columns.
    labels : NumberFormat
        How labels that are numbers are written in files of text.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from riskmin.data.raw_tables.fitting import TableOptions, prepare
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "flats.csv")
    >>> _ = path.write_text("city,size,rent\\nRome,50,900\\nOslo,,1200\\nRome,70,1000\\n")
    >>> rows = prepare([path], TableOptions(impute="median"))
    >>> rows.feature_names
    ['city=Oslo', 'city=Rome', 'size']
    >>> rows.X
    array([[ 0.,  1., 50.],
           [ 1.,  0., 60.],
           [ 0.,  1., 70.]])
    >>> _ = path.write_text("size,city\\n40,Bonn\\n")
    >>> new = rows.preparation.read([path])
    >>> new.X, new.notes
    (array([[ 0.,  0., 40.]]), ("warning: column 'city': 1 of 1 rows holds a level unseen in training, ...",))
    >>> folder.cleanup()
    """

    encoders: tuple[ColumnEncoder, ...]
    target: str | None = None
    qid: str | None = None
    weight: str | None = None
    offset: str | None = None
    exposure: str | None = None
    has_names: bool = True
    labels: NumberFormat = PLAIN

    @cached_property
    def feature_names(self) -> list[str]:
        """Names of the columns of X."""
        return [name for encoder in self.encoders for name in encoder.feature_names]

    @property
    def is_sparse(self) -> bool:
        """Whether X is sparse: a category has one nonzero entry per row, whatever its number of levels."""
        return len(self.feature_names) > 5 * len(self.encoders)  # fewer than 20 % of the entries

    # ------------------------------------------------------------ rows
    def read(
        self,
        paths: Sequence[PathLike],
        *,
        target: ColumnRef = None,
        qid: ColumnRef = None,
        labels: bool = False,
        weight: ColumnRef = None,
        offset: ColumnRef = None,
        exposure: ColumnRef = None,
    ) -> PreparedRows:
        """Read tables with the columns of training, which are found by their names, in any order.

        Parameters
        ----------
        paths : sequence of paths
        target, qid : str, int or None
            The columns of labels and query ids; by default those of training.
        labels : bool
            Whether labels are required. If not, they are read if they are there.
        weight : str, int or None
            The column of weights; by default none are read.
        offset, exposure : str, int or None
            The column of the offset or of the exposure; by default that of training.
        """
        if offset is None and exposure is None:
            offset, exposure = self.offset, self.exposure
        given = {"weight": weight, "offset": offset, "exposure": exposure}
        target = self.target if target is None else target
        qid = self.qid if qid is None else qid
        tables = [open_raw(path, format_of(path)) for path in paths]
        parts = [
            table.read(*self._roles(table, (target, qid), given, labels), require_labels=labels)
            for table in tables
        ]
        source = RawSource(tables, parts)
        check_numbers(source, given)
        y = labels_written(source, self.labels)
        source.rows = source.rows._replace(y=y)
        return self.transform(source)

    def _roles(
        self, table: RawTable, roles: tuple[ColumnRef, ColumnRef], given: dict[str, ColumnRef], labels: bool
    ) -> tuple[ColumnRoles, dict[str, int]]:
        """Find the columns of training, and those of labels and query ids, in a table."""
        names, needed = table.names, [encoder.name for encoder in self.encoders]
        # without names, a table of as many columns as features has only these, in the same order
        if not table.has_names and not labels and len(names) == len(needed):
            return ColumnRoles(list(range(len(names))), None, None), {}
        features = [
            find_column(table, name, "which the model was fitted on", taken=needed) for name in needed
        ]
        target = find_column(table, roles[0], "the labels", required=labels)
        qid = find_column(table, roles[1], "the query ids", required=False)
        return ColumnRoles([i for i in features if i is not None], target, qid), number_columns(table, given)

    def transform(self, source: RawSource) -> PreparedRows:
        """Return X of raw rows, whose features are in the order of the encoders."""
        rows = source.rows
        n, p = len(rows.features[0]), len(self.feature_names)
        MemoryBudget(source.path).require(8 * n * (4 * len(self.encoders) if self.is_sparse else p))
        encoded = [
            encoder.encode(column, source)
            for encoder, column in check_each(zip(self.encoders, rows.features, strict=True))
        ]
        starts = np.cumsum([0, *(len(encoder.feature_names) for encoder in self.encoders)]).tolist()
        indices = [
            np.full(n, start) if part.positions is None else start + part.positions
            for start, part in zip(starts, encoded, strict=False)
        ]
        X = self._assembled([part.values for part in encoded], indices, (n, p))
        notes = [
            _unseen_note(encoder, *part.unseen, n)
            for encoder, part in zip(self.encoders, encoded, strict=True)
            if part.unseen is not None
        ]
        weight, names = rows.numbers.get("weight"), self.feature_names
        return PreparedRows(X, rows.y, rows.qid, names, weight, self, tuple(notes), offset=rows.offset)

    def _assembled(self, values: list[Any], indices: list[Any], shape: tuple[int, int]) -> Any:
        """Return X with one entry per row and column of the table: values, and their columns of X."""
        n = shape[0]
        if self.is_sparse:
            entries, columns = np.column_stack(values), np.column_stack(indices)
            indptr = np.arange(0, entries.size + 1, entries.shape[1])
            X = sp.csr_matrix((entries.ravel(), columns.ravel(), indptr), shape)
            X.eliminate_zeros()
            return X
        dense = np.zeros(shape)
        for entries, index in zip(values, indices, strict=True):
            dense[np.arange(n), index] = entries
        return dense

    # ------------------------------------------------------------ model files
    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        roles = {name: getattr(self, name) for name in ("target", "qid", *NUMBER_ROLES)}
        columns = [encoder.to_dict() for encoder in self.encoders]
        return roles | {"has_names": self.has_names, "labels": asdict(self.labels), "columns": columns}

    @classmethod
    def from_dict(cls, record: dict[str, Any], n_features: int) -> TablePreparation:
        """Return what `to_dict` wrote; raise a ValueError if it is not sound or has other features."""
        encoders = tuple(encoder_from_dict(column) for column in record["columns"])
        roles = {name: record[name] for name in ("target", "qid", *NUMBER_ROLES)}
        if any(value is not None and type(value) is not str for value in roles.values()):
            raise ValueError("a column of its table has no name")
        if type(record["has_names"]) is not bool or not encoders:
            raise ValueError("the preparation of its table is not sound")
        labels = number_format(record.get("labels", {}))
        made = cls(encoders, **roles, has_names=record["has_names"], labels=labels)
        if len(made.feature_names) != n_features:
            raise ValueError(f"its table gives {len(made.feature_names)} features, but it has {n_features}")
        return made


def _unseen_note(encoder: Any, count: int, level: str, n: int) -> str:
    verb = "holds a level" if count == 1 else "hold levels"
    note = f"column {quote(encoder.name)}: {count:,} of {n:,} rows {verb} unseen in training, such as "
    if count < n:
        return note + quote(level)
    known = f"{quote(level)}, where training has {quote(encoder.levels[0])}"
    return f"warning: {note}{known}; check how its cells are written"


def labels_written(source: RawSource, written: NumberFormat) -> NDArray[Any] | None:
    """Return the labels of rows, of which numbers are written in a format."""
    column = source.rows.target
    if written == PLAIN or column is None or source.rows.y is None:
        return source.rows.y
    numbers = column.read_by(written.number)
    if column.missing.any():
        row = int(np.argmax(column.missing))
        raise source.error(column.name, "the label is missing; fill it in or leave out the row", row)
    if numbers is None:
        problem, row = NumberEncoder(column.name, written=written).problem(column)
        raise source.error(column.name, f"it {problem}, as the labels of training are; correct it", row)
    return numbers


def find_column(
    table: RawTable, column: ColumnRef, use: str, *, required: bool = True, taken: Collection[str] = ()
) -> int | None:
    """Return the index of a column; raise if it is required and missing (see `missing_column`)."""
    known = table.positions.get(column) if isinstance(column, str) else None
    index = column_index(table.path, table.names, column, use) if known is None else known
    if index is None and required:
        assert column is not None
        raise missing_column(table.path, table.names, column, use, taken)
    return index


def number_columns(table: RawTable, given: dict[str, ColumnRef]) -> dict[str, int]:
    """Return the columns of the numbers that are given, by their role."""
    found = {
        role: find_column(table, column, NUMBER_ROLES[role])
        for role, column in given.items()
        if column is not None
    }
    return {role: i for role, i in found.items() if i is not None}


def check_numbers(source: RawSource, given: dict[str, ColumnRef]) -> None:
    """Raise if a weight is negative, or all are zero, or an exposure is not positive."""
    numbers = source.rows.numbers
    weight, exposure = numbers.get("weight"), numbers.get("exposure")
    if weight is not None and (weight < 0).any():
        problem = "the weight is negative; weights are >= 0"
        raise source.error(str(given["weight"]), problem, int(np.argmax(weight < 0)))
    if weight is not None and not weight.any():
        raise source.error(str(given["weight"]), "all weights are zero; name another column", 0)
    if exposure is not None and (exposure <= 0).any():
        problem = "the exposure is not above 0, so that it has no logarithm; leave out the row"
        raise source.error(str(given["exposure"]), problem, int(np.argmax(exposure <= 0)))
