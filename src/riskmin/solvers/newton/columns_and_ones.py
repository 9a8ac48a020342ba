"""X with a column of ones: products in the weights and the intercept together."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.arrays.compressed import Csr
from riskmin.arrays.dense import Dense, DenseFortran
from riskmin.arrays.matrix import as_matrix
from riskmin.core import Array, Hessian, NDArray, PairBlock, Shard
from riskmin.core.deadline import chunk_ranges
from riskmin.losses.hessian import hessian_product, transposed_ranges
from riskmin.numerics.linear_systems import Solve
from riskmin.problem.design_operator import (
    DesignOperator,
    row_blocks,
    row_matrix,
    shard_gram,
    shard_gram_diagonal,
)
from riskmin.solvers.newton.penalty import Penalty

MAX_COPIED_ENTRIES, MAX_PLAIN_ENTRIES = 2**14, 2**20
"""Entries of a dense X up to which the ones are stored with it, and up to which NumPy makes the products:
calls cost as much as products of few entries."""


Curvature = NDArray | Hessian
"""The second derivatives of the rows, or a Hessian in the scores that is no diagonal."""


def diagonal_of(h: Curvature) -> Array:
    """The second derivatives of the rows alone."""
    return h.diagonal if isinstance(h, Hessian) else h


class PlainRows:
    """Rows as an array or a CSR array of this process, with the products of `DesignOperator`."""

    updates_pay = True

    def __init__(self, X: Any) -> None:
        self.X, self.shape, self.rows = X, X.shape, Shard(as_matrix(X), X[:0], X[:0], {})

    def forward(self, d: NDArray) -> NDArray:
        """X d."""
        return np.asarray(self.X @ d)

    def adjoint(self, s: NDArray) -> NDArray:
        """X' s."""
        return np.asarray(self.X.T @ s)

    def gram(self, h: NDArray) -> NDArray:
        """The upper triangle of X' diag(h) X."""
        return shard_gram(self.rows, h)[0]

    def gram_diagonal(self, h: NDArray) -> NDArray:
        """The diagonal of X' diag(h) X."""
        return shard_gram_diagonal(self.rows, h)[0]

    def hessian_product(self, hessian: Hessian, d: NDArray) -> NDArray:
        """X' H X d."""
        if hessian.low_rank or hessian.pair_blocks:
            return self.adjoint(hessian_product(hessian, self.forward(d)))
        image = self.rows.X.hessian_product(d, hessian.diagonal)
        return self.adjoint(hessian.diagonal * self.forward(d)) if image is None else np.asarray(image)

    def gather(self, index: NDArray) -> Any:
        """Some of the rows."""
        return self.X[index]

    def count_nonzero(self, a: NDArray) -> int:
        """The number of entries other than 0."""
        return int(np.count_nonzero(a))

    def can_form_gram(self, pair_blocks: bool) -> bool:
        """Whether X' H X can be formed: always."""
        return True

    def can_gather(self, n_rows: int) -> bool:
        """Whether this many rows can be copied: always."""
        return True

    can_solve_rows = can_gather


class ColumnsAndOnes:
    """Products with X and, if there is an intercept, a last column of ones; v has an entry for each column.

    Parameters
    ----------
    operator : DesignOperator or PlainRows
        X without the ones.
    intercept : bool
    sparse : bool
    nnz : int
        The stored entries of X.
    """

    MATRIX_COST = 1.0
    """The cost of a multiplication in products of matrices."""
    rounded = False
    """Whether matrices are in a lower precision, until a step shows that they are too inaccurate."""

    def __init__(self, operator: Any, intercept: bool, sparse: bool, nnz: int) -> None:
        self.operator, self.intercept, self.sparse, self.nnz = operator, intercept, sparse, max(nnz, 1)
        self.n, self.p = operator.shape
        self.size = self.p + intercept
        """The entries of v."""

    @classmethod
    def of(cls, design: DesignOperator, intercept: bool) -> ColumnsAndOnes:
        """The products of a risk; on one dense array where calls take as long as products."""
        sparse, here = design.row_metadata.sparse, design.rows is not None or design.risk.executor.can_gather
        if sparse or not here or design.nnz > MAX_PLAIN_ENTRIES:
            return cls(design, intercept, sparse, design.nnz)
        X = design.dense_rows()
        if design.nnz > MAX_COPIED_ENTRIES:
            return cls(PlainRows(X), intercept, False, design.nnz)
        return DenseColumnsAndOnes(X, intercept)

    @property
    def updates_pay(self) -> bool:
        """Whether an adjoint product costs less if most rows are 0."""
        return bool(self.operator.updates_pay)

    def forward(self, v: NDArray) -> Array:
        """X v."""
        if not self.intercept:
            return self.operator.forward(v)
        z = self.operator.forward(v[:-1])
        z += v[-1]
        return z

    def adjoint(self, s: NDArray) -> NDArray:
        """X' s."""
        a = np.asarray(self.operator.adjoint(s))
        return np.append(a, float(s.sum())) if self.intercept else a

    def can_form_gram(self, h: Curvature) -> bool:
        """Whether there is memory for X' H X."""
        return bool(self.operator.can_form_gram(isinstance(h, Hessian) and bool(h.pair_blocks)))

    def factorized(self, h: Curvature, P: Penalty) -> Solve:
        """A function that solves (P + X' H X) v = g, by a Cholesky factorization."""
        return P.factorized(self.gram(h))

    def rejects(self, h: Curvature, v: NDArray, dz: Array, P: Penalty, decrease: float) -> bool:
        """Whether a matrix of low precision was too inaccurate for the step v: all are exact here."""
        return False

    def solve_rows(self, h: Curvature, P: Penalty, g: NDArray) -> NDArray | None:
        """The solution of (P + X' H X) v = -g by a system of the rows beside X; None for rows of NumPy."""
        return None

    def gram(self, h: Curvature) -> NDArray:
        """X' H X; only the upper triangle is meaningful."""
        G = self._diagonal_gram(diagonal_of(h))
        if not isinstance(h, Hessian):
            return G
        # H = diag(h) - sum_s s s' - pair blocks and their transposes
        for s in h.low_rank:
            m = self.adjoint(s)
            G -= np.outer(m, m)
        for block in h.pair_blocks:  # of losses without an intercept
            triangle = _pair_block_gram(row_matrix(self.operator.rows), _shorter_list_first(block))
            G -= triangle + triangle.T
        return G

    def _diagonal_gram(self, h: Array) -> NDArray:
        G = np.asarray(self.operator.gram(h))
        if not self.intercept:
            return G
        bordered = np.empty((self.size, self.size))
        bordered[: self.p, : self.p], bordered[:, self.p] = G, self.adjoint(h)
        return bordered

    def gathered(self, index: NDArray) -> ColumnsAndOnes:
        """Some of the rows, copied."""
        X = self.operator.gather(index)
        return ColumnsAndOnes(
            PlainRows(X), self.intercept, self.sparse, int(X.nnz if self.sparse else X.size)
        )


class DenseColumnsAndOnes(ColumnsAndOnes):
    """The same with the ones in one array with X: few calls for small data."""

    def __init__(self, X: NDArray, intercept: bool) -> None:
        self.A = np.column_stack([X, np.ones(len(X))]) if intercept else X
        super().__init__(PlainRows(self.A[:, : X.shape[1]]), intercept, False, X.size)

    def forward(self, v: NDArray) -> NDArray:
        """X v."""
        return np.asarray(self.A @ v)

    def adjoint(self, s: NDArray) -> NDArray:
        """X' s."""
        return np.asarray(self.A.T @ s)

    def _diagonal_gram(self, h: NDArray) -> NDArray:
        scaled = self.A * np.sqrt(h)[:, None]
        return np.asarray(scaled.T @ scaled)


def _shorter_list_first(block: PairBlock) -> PairBlock:
    """The same pair block with the shorter list first: each of its rows takes a vector of p entries."""
    if len(block.above) <= len(block.below):
        return block
    first, last = transposed_ranges(block)
    return PairBlock(block.below, block.q, block.above, block.p, first, last)


def _pair_block_gram(X: Csr | Dense | DenseFortran, block: PairBlock) -> NDArray:
    """X' W X, for W one of the two triangles of a symmetric pair block."""
    from riskmin._numba.gram import csr_pair_block_gram, dense_window_sums

    p = X.shape[1]
    out, sums, ends = np.zeros((p, p)), np.zeros(p), np.zeros(2, np.int64)
    if X.sparse:
        # in chunks of rows above, between which the deadline is checked
        above, weights, below, q, first, last = block
        for i, j in chunk_ranges(0, len(above), len(above) * (len(X.data) / X.shape[0]) * p):
            rows = above[i:j], weights[i:j], below, q, first[i:j], last[i:j]
            csr_pair_block_gram(X.indptr, X.indices, X.data, *rows, ends, sums, out)
        return out
    dense = X.array
    for index in row_blocks(np.flatnonzero(block.last > block.first), p):
        # one row of sums of q_j x_j over the range [first, last) of each row above
        range_sums = np.empty((len(index), p))
        dense_window_sums(
            dense, block.below, block.q, block.first[index], block.last[index], ends, sums, range_sums
        )
        out += (X.take(block.above[index]) * block.p[index, None]).T @ range_sums
    return out
