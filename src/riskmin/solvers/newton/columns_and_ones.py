"""X with a column of ones: products in the weights and the intercept together."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.arrays.matrix import as_matrix
from riskmin.core import Hessian, NDArray, Shard
from riskmin.problem.design_operator import DesignOperator, shard_gram, shard_gram_diagonal

MAX_COPIED_ENTRIES, MAX_PLAIN_ENTRIES = 2**14, 2**20
"""Entries of a dense X up to which the ones are stored with it, and up to which NumPy makes the products:
calls cost as much as products of few entries."""


class PlainRows:
    """Rows as an array or a CSR array of this process, with the products of `DesignOperator`."""

    def __init__(self, X: Any) -> None:
        self.X, self.shape, self._shard = X, X.shape, Shard(as_matrix(X), X[:0], X[:0], {})

    def forward(self, d: NDArray) -> NDArray:
        """X d."""
        return np.asarray(self.X @ d)

    def adjoint(self, s: NDArray) -> NDArray:
        """X' s."""
        return np.asarray(self.X.T @ s)

    def gram(self, h: NDArray) -> NDArray:
        """The upper triangle of X' diag(h) X."""
        return shard_gram(self._shard, h)[0]

    def gram_diagonal(self, h: NDArray) -> NDArray:
        """The diagonal of X' diag(h) X."""
        return shard_gram_diagonal(self._shard, h)[0]

    def hessian_product(self, hessian: Hessian, d: NDArray) -> NDArray:
        """X' H X d."""
        image = self._shard.X.hessian_product(d, hessian.diagonal)
        return self.adjoint(hessian.diagonal * self.forward(d)) if image is None else np.asarray(image)

    def gather(self, index: NDArray) -> Any:
        """Some of the rows."""
        return self.X[index]

    def can_gather(self, n_rows: int) -> bool:
        """Whether this many rows can be copied: always."""
        return True


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

    def forward(self, v: NDArray) -> NDArray:
        """X v."""
        if not self.intercept:
            return np.asarray(self.operator.forward(v))
        z = np.asarray(self.operator.forward(v[:-1]))
        z += v[-1]
        return z

    def adjoint(self, s: NDArray) -> NDArray:
        """X' s."""
        a = np.asarray(self.operator.adjoint(s))
        return np.concatenate([a, [s.sum()]]) if self.intercept else a

    def gram(self, h: NDArray) -> NDArray:
        """X' diag(h) X; only the upper triangle is meaningful."""
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

    def gram(self, h: NDArray) -> NDArray:
        """X' diag(h) X."""
        scaled = self.A * np.sqrt(h)[:, None]
        return np.asarray(scaled.T @ scaled)
