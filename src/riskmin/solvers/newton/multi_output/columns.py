r"""Products with X for k outputs: :math:`Z = X W`, with a last column of ones where there are intercepts.

Weights are the flat matrix W of one row per column of X and one column per output, with the intercepts as
its last row; scores have one row per row of X.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.matrix import as_matrix
from riskmin.core import NDArray, Shard
from riskmin.core.deadline import check_each, scatter_in_chunks
from riskmin.core.limits import LIMITS
from riskmin.problem import shard_ops
from riskmin.problem.design_operator import DesignOperator, range_blocks, row_matrix, shard_gram
from riskmin.solvers.newton.multi_output.blocks import Blocks, SimplexBlocks, simplex_kernels


class OutputColumns:
    """The columns of X and ones, of all rows or of some.

    Parameters
    ----------
    X : Matrix
        Whose rows can be gathered.
    linear_map : LinearMap
        With separate weights for each output.
    design : DesignOperator, optional
        The products of all rows, which its executor shares; without it, those of X in this process.
    ones : array, optional
        The columns and ones in one array: few calls for small data.
    """

    MAX_COPIED_ENTRIES = LIMITS.cheap_copy_entries
    """Entries of a dense X up to which the ones are stored with it."""
    updates_pay = True
    """Whether an adjoint product costs less if most rows are 0."""

    def __init__(
        self, X: Any, linear_map: Any, design: DesignOperator | None = None, ones: NDArray | None = None
    ) -> None:
        self.X, self.linear_map, self.design, self.ones = X, linear_map, design, ones
        self.k, self.intercepts = int(linear_map.columns), bool(linear_map.n_intercepts)
        (n, p), self.nnz, self.sparse = X.shape, max(int(X.nnz), 1), bool(X.sparse)
        self.n, self.columns = int(n), int(p) + self.intercepts
        """The columns, with that of ones."""
        self.size = self.columns * self.k
        """The entries of w."""
        self.p = int(p) * self.k
        """Those that are penalized."""

    @classmethod
    def of(cls, design: DesignOperator) -> OutputColumns:
        """The columns of a risk with local rows."""
        assert design.rows is not None
        X: Any = row_matrix(design.rows)
        linear_map = design.risk.linear_map
        if X.sparse or X.nnz > cls.MAX_COPIED_ENTRIES:
            return cls(X, linear_map, design)
        return cls(X, linear_map, design, cls._with_ones(X.take(slice(None)), linear_map))

    @staticmethod
    def _with_ones(rows: NDArray, linear_map: Any) -> NDArray:
        """Dense rows with the column of ones, or less the mean."""
        if linear_map.n_intercepts:
            return np.column_stack([rows, np.ones(len(rows))])
        return rows - linear_map.mean if linear_map.centered else rows

    def take(self, index: NDArray) -> OutputColumns:
        """Some of the rows, copied."""
        ones = None if self.ones is None else self.ones[index]
        return OutputColumns(as_matrix(self.X.take(index)), self.linear_map, None, ones)

    # ------------------------------------------------------------ products
    def forward(self, v: NDArray) -> NDArray:
        """The scores of v."""
        if self.ones is not None:
            return np.asarray(self.ones @ v.reshape(-1, self.k))
        if not v.any():
            return np.zeros((self.n, self.k))
        if self.design is None:
            return np.asarray(self.linear_map.scores(self.X, v, 0, self.n))
        scores = self.design.risk.executor.map(shard_ops.scores, self.linear_map, v)
        return scores[0] if len(scores) == 1 else np.concatenate(scores)

    def adjoint(self, S: NDArray) -> NDArray:
        """The gradient in v of a gradient S in the scores."""
        if self.ones is not None:
            return np.asarray(self.ones.T @ S).reshape(-1)
        out = np.zeros(self.size)
        if self.design is None:
            self.linear_map.pullback(self.X, S, 0, self.n, out)
            return out
        each = [S[part] for part in self.design.shard_slices]
        (total,) = self.design.risk.executor.sum(shard_ops.scatter, self.linear_map, out, each=each)
        return np.asarray(total)

    def rejects(self, *step: Any) -> bool:
        """Whether a matrix of low precision was too inaccurate for a step: all are exact here."""
        return False

    def hessian_product(self, H: Blocks, d: NDArray) -> NDArray:
        """(sum_i x_i x_i' (x) H_i) d."""
        if self.ones is not None:
            return np.asarray(self.ones.T @ H.product(self.ones @ d.reshape(-1, self.k))).reshape(-1)
        if self.design is None:
            return self._rows_product(self.X, 0, H, d)

        def part(shard: Shard, start: int) -> tuple[NDArray]:
            return (self._rows_product(row_matrix(shard), start, H, d),)

        starts = [each.start for each in self.design.shard_slices]
        (total,) = self.design.risk.executor.sum(part, each=starts)
        return np.asarray(total)

    def _rows_product(self, X: Any, start: int, H: Blocks, d: NDArray) -> NDArray:
        """The product of the rows of X, of which the first is row `start`: block by block, while in cache."""
        out, n = np.zeros_like(d), X.shape[0]
        if X.sparse and isinstance(H, SimplexBlocks) and not self.linear_map.centered:
            D, rows = d.reshape(-1, self.k), slice(start, start + n)
            parts = X.indptr, X.indices, X.data, D, self.intercepts, H.size[rows], np.empty(self.k)
            kernel, work = simplex_kernels().csr_hessian_product, 2.0 * self.k * X.nnz
            scatter_in_chunks(kernel, parts, H.q[rows], 0, n, out.reshape(-1, self.k), work)
            return out
        step = max(min(LIMITS.small_product // (X.shape[1] * self.k), LIMITS.block_max_scores // self.k), 16)
        for i in range(0, n, step):
            j = min(i + step, n)
            Z = self.linear_map.scores(X, d, i, j)
            self.linear_map.pullback(X, H.product(Z, slice(start + i, start + j)), i, j, out)
        return out

    # ------------------------------------------------------------ matrices
    def gram_diagonals(self, h: NDArray) -> NDArray:
        """The diagonals of X' diag(h_j) X for the columns h_j of h, as columns."""
        if self.ones is not None:
            return np.asarray((self.ones**2).T @ h)
        squares = np.zeros((self.X.shape[1], self.k))
        if self.sparse:
            self._squares.pullback(h, 0, self.n, squares)
        else:
            for rows in range_blocks(self.n, self.X.shape[1]):
                squares += (self.X.take(rows) ** 2).T @ h[rows]
        return np.vstack([squares, h.sum(axis=0)]) if self.intercepts else squares

    @cached_property
    def _squares(self) -> Any:
        """The squares of the entries of a sparse X."""
        return replace(self.X, data=self.X.data**2)

    def gram(self, h: NDArray) -> NDArray:
        """The upper triangle of X' diag(h) X, for h of either sign."""
        total, sign = np.zeros((self.columns, self.columns)), 1.0
        for part in (h, -h):
            positive = np.maximum(part, 0.0)
            if positive.any():
                total += sign * self._positive_gram(positive)
            sign = -1.0
        return total

    def _positive_gram(self, h: NDArray) -> NDArray:
        if self.ones is not None:
            index = np.flatnonzero(h)
            scaled = self.ones[index] * np.sqrt(h[index])[:, None]
            return np.asarray(scaled.T @ scaled)
        if self.design is not None:
            G = self.design.gram(h)
        else:
            G = shard_gram(Shard(self.X, h[:0], h[:0], {}), h)[0]
        if not (self.intercepts or self.linear_map.centered):
            return G
        s = np.zeros(self.X.shape[1])
        self.X.pullback(h, 0, self.n, s)
        if self.intercepts:
            return np.block([[G, s[:, None]], [s[None, :], np.array([[h.sum()]])]])
        # sum_i h_i (x_i - m)(x_i - m)' = G - s m' - m s' + (sum_i h_i) m m'
        m = self.linear_map.mean
        return np.asarray(G + h.sum() * np.outer(m, m) - np.outer(s, m) - np.outer(m, s))

    def dense(self, rows: NDArray | slice) -> NDArray:
        """Some rows as an array, with the column of ones."""
        if self.ones is not None:
            return np.asarray(self.ones[rows])
        return self._with_ones(self.X.take(rows), self.linear_map)

    def block_matrix(self, H: Blocks) -> NDArray:
        """The upper triangle of sum_i H_i (x) x_i x_i', in which the columns of an output are together."""
        # the mean number of pairs of outputs per row, against all pairs
        few_pairs = float((H.active**2).sum()) < 0.3 * self.k**2 * self.n
        return self._by_pairs(H) if self.sparse or few_pairs else self._by_rows(H)

    def _by_pairs(self, H: Blocks) -> NDArray:
        """The matrix one pair of outputs at a time: few rows have both of them active."""
        k, q = self.k, self.columns
        M = np.zeros((k, q, k, q))
        for a in check_each(range(k)):
            unit = np.zeros((self.n, k))
            unit[:, a] = 1.0
            columns = np.asfortranarray(H.product(unit)[:, a:])
            for b in np.flatnonzero(columns.any(axis=0)):
                G = self.gram(columns[:, b])
                M[a, :, a + b] = G if not b else np.triu(G) + np.triu(G, 1).T
        return M.reshape(k * q, k * q)

    def _by_rows(self, H: Blocks) -> NDArray:
        """The matrix one block of rows at a time, for all pairs of outputs."""
        k, q = self.k, self.columns
        M, size = np.zeros((k, q, k * q)), max(LIMITS.pair_block_entries // (k * q), 16)
        for i in check_each(range(0, self.n, size)):
            part = slice(i, min(i + size, self.n))
            rows = self.dense(part)
            for a in range(k):
                unit = np.zeros((len(rows), k))
                unit[:, a] = 1.0
                columns = H.product(unit, part)[:, a:]
                # all blocks (a, b) with b >= a in one product: sum_i x_i ((H_i)_ab x_i')
                M[a, :, a * q :] += rows.T @ (columns[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
        return M.reshape(k * q, k * q)
