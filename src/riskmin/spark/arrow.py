"""From the Arrow batches of a Spark task to rows: columns of numbers, or one column of vectors or arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.partitioned import InMemoryPartition
from riskmin.core import NDArray
from riskmin.data.base import DataError, check_query_ids
from riskmin.data.formats.parquet import exact_ids, read_column
from riskmin.spark.row_order import hash_rows

SPARSE, DENSE = 0, 1
"""The types of a vector of Spark, which is a struct of its type, size, indices and values."""


class TaskSummary(NamedTuple):
    """What a task sends to the driver; X stays with it."""

    shape: tuple[int, int]
    nnz: int
    sparse: bool
    fingerprint: int
    """A hash of the set of rows, by which those of a task that replaces another one are compared."""
    y: NDArray | None
    weight: NDArray | None
    qid: NDArray | None


@dataclass(frozen=True)
class RowReader:
    """Reads the rows of a partition, in an order that depends on the set of rows alone.

    Spark delivers the rows of a shuffle in any order, another one each time.
    """

    features: tuple[str, ...]
    vector: bool
    """Whether the features are in one column of vectors or arrays."""
    label: str | None
    weight: str | None
    qid: str | None
    dtype: np.dtype[Any]

    @property
    def columns(self) -> list[str]:
        """All columns to read."""
        return [*self.features, *(name for name in (self.label, self.weight, self.qid) if name is not None)]

    def __call__(self, index: int, batches: Iterator[Any]) -> tuple[Any, TaskSummary]:
        """Return the rows of partition `index`, and their summary."""
        name, blocks, y, weight, qid = f"part {index} of the DataFrame", [], [], [], []
        for batch in batches:
            blocks.append(self.block(name, batch))
            if self.label is not None:
                y.append(read_column(name, self.label, self._column(batch, self.label), 0, words=True))
            if self.weight is not None:
                weight.append(read_column(name, self.weight, self._column(batch, self.weight), 0, words=True))
            if self.qid is not None:
                ids = exact_ids(name, self.qid, self._column(batch, self.qid), 0)
                qid.append(check_query_ids(name, self.qid, ids))
        vectors = [np.concatenate(parts) if parts else None for parts in (y, weight, qid)]
        hashes = sum(
            (hash_rows(v[:, None], seed) for seed, v in enumerate(vectors, 1) if v is not None),
            np.concatenate([hash_rows(block, 0) for block in blocks] or [np.zeros(0, np.uint64)]),
        )
        order = np.argsort(hashes, kind="stable")
        # the rows of a query stay together
        if vectors[2] is not None:
            order = order[np.argsort(vectors[2][order], kind="stable")]
        X = self._joined(name, blocks, order)
        rows = InMemoryPartition(X)
        fingerprint = int(hashes.sum(dtype=np.uint64))
        in_order = [None if v is None else v[order] for v in vectors]
        return X, TaskSummary(rows.shape, rows.nnz, rows.sparse, fingerprint, *in_order)

    # ------------------------------------------------------------ features
    def block(self, name: str, batch: Any) -> Any:
        """Return the features of a batch, as an array or a sparse matrix."""
        if self.vector:
            return self._vectors(name, self._column(batch, self.features[0]))
        block = np.empty((batch.num_rows, len(self.features)), self.dtype)
        for j, feature in enumerate(self.features):
            block[:, j] = read_column(name, feature, self._column(batch, feature), 0)
        return block

    def _column(self, batch: Any, name: str) -> Any:
        return batch.column(self.columns.index(name))

    def _vectors(self, name: str, column: Any) -> Any:
        """Return a column of vectors or arrays as rows."""
        if column.null_count:
            raise DataError(
                name, None, f"the column {self.features[0]!r} has empty cells; leave out those rows"
            )
        if not hasattr(column, "field"):  # arrays
            return self._dense(name, column)
        types = column.field("type").to_numpy(zero_copy_only=False)
        if (types == DENSE).all():
            return self._dense(name, column.field("values"))
        return self._sparse(name, column, types)

    def _dense(self, name: str, lists: Any) -> NDArray:
        """Return lists of equal length as the rows of an array."""
        lengths = np.diff(lists.offsets.to_numpy(zero_copy_only=False))
        if (lengths != lengths[0]).any():
            raise self._unequal(name, lengths)
        values = lists.flatten().to_numpy(zero_copy_only=False)  # NaN where null
        rows: NDArray = values.astype(self.dtype, copy=False).reshape(len(lengths), lengths[0])
        return rows

    def _sparse(self, name: str, column: Any, types: NDArray) -> Any:
        """Return sparse vectors, among which there may be dense ones, as a sparse matrix."""
        values, indices = column.field("values"), column.field("indices")
        lengths = np.diff(values.offsets.to_numpy(zero_copy_only=False))
        ends = np.concatenate([[0], np.cumsum(lengths)])
        sizes = column.field("size").to_numpy(zero_copy_only=False)
        sizes = np.where(types == SPARSE, sizes, lengths).astype(np.int64)
        if (sizes != sizes[0]).any():
            raise self._unequal(name, sizes)
        # dense vectors have all indices, and store none
        stored = np.repeat(types == SPARSE, lengths)
        columns = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
        columns[stored] = indices.flatten().to_numpy(zero_copy_only=False)
        data = values.flatten().to_numpy(zero_copy_only=False).astype(self.dtype, copy=False)
        return sp.csr_array((data, columns.astype(np.int32), ends), shape=(len(sizes), sizes[0]))

    def _unequal(self, name: str, sizes: NDArray) -> DataError:
        return DataError(
            name, None, f"the column {self.features[0]!r} has vectors of {sizes.min()} and of {sizes.max()} "
            "entries; make their lengths equal"
        )  # fmt: skip

    def _joined(self, name: str, blocks: list[Any], order: NDArray) -> Any:
        """Return the rows of all blocks in this order; each block is freed once it is copied."""
        if not blocks:
            return np.zeros((0, 0 if self.vector else len(self.features)), self.dtype)
        widths = np.array([block.shape[1] for block in blocks])
        if (widths != widths[0]).any():
            raise self._unequal(name, widths)
        if any(sp.issparse(block) for block in blocks):
            rows = sp.vstack([sp.csr_array(block) for block in blocks], format="csr")[order]
            rows.sort_indices()
            return rows
        X = np.empty((len(order), widths[0]), self.dtype)
        place = np.empty(len(order), np.intp)
        place[order] = np.arange(len(order))
        stop = len(order)
        while blocks:
            block = blocks.pop()
            X[place[stop - len(block) : stop]] = block
            stop -= len(block)
        return X
