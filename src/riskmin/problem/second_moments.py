r"""Second moments of rows, which are all that squared errors of linear models depend on.

.. math:: M = \sum_i c_i z_i z_i^\top, \qquad z_i = (1,\; x_i - m,\; y_i - m_y),

for any fixed numbers m, m_y near the means. The moments of rows that are stored apart add up, and those of
training rows are the sum over the other folds: a difference of two would lose digits. With
:math:`b = \bar y - \bar x^\top w`, the best intercept,

.. math:: R(w) = \tfrac12 \sum_i c_i (y_i - x_i^\top w - b)^2 = R_0 - q^\top w + \tfrac12 w^\top G w.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import NDArray, Shard
from riskmin.core.deadline import check_each
from riskmin.core.limits import LIMITS
from riskmin.executors import Executor
from riskmin.numerics.precision import EPSILON

SAMPLED_ROWS = 1024
"""Numbers near the means of the columns: the means of so many rows."""


class QuadraticRisk(NamedTuple):
    """The risk of a linear model with the squared loss, and bounds of the rounding of its numbers."""

    G: NDArray
    q: NDArray
    R0: float
    """R(0), at the best intercept."""
    sizes: NDArray
    """Norms of the columns of Z: entry jk of G errs by at most rounding * sizes_j * sizes_k."""
    size_y: float
    rounding: float
    means: NDArray | None
    """Means of the columns and of y, if there is an intercept."""

    def intercepts(self, W: NDArray) -> tuple[NDArray, NDArray]:
        """The best intercepts of rows of weights, and by how much their rounding raises R."""
        if self.means is None:
            return np.zeros(len(W)), np.zeros(len(W))
        x, y = self.means[:-1], float(self.means[-1])
        error = self.rounding * (abs(y) + abs(W) @ abs(x))
        # R at another intercept exceeds the least one by half the squared distance
        return y - W @ x, 0.5 * error * error


@dataclass(frozen=True, eq=False)
class SecondMoments:
    """The matrix M of some rows, with the numbers m and m_y and the number of the rows."""

    M: NDArray
    center: NDArray
    n_rows: int

    @classmethod
    def of_rows(cls, X: NDArray, y: NDArray, c: NDArray | None, center: NDArray) -> SecondMoments:
        """The moments of dense rows with weights c, by blocks that stay in cache."""
        n, p = X.shape
        step = max(LIMITS.scaled_block_entries // (p + 2), 16)
        M, block = np.zeros((p + 2, p + 2)), np.empty((min(step, n), p + 2))
        for i in check_each(range(0, n, step)):
            rows, Z = slice(i, i + step), block[: min(step, n - i)]
            Z[:, 0] = 1.0
            np.subtract(X[rows], center[:-1], out=Z[:, 1:-1])
            np.subtract(y[rows], center[-1], out=Z[:, -1])
            if c is not None:
                Z *= np.sqrt(c[rows])[:, None]
            M += Z.T @ Z
        return cls(M, center, n)

    @classmethod
    def of_shards(cls, executor: Executor, center: NDArray) -> SecondMoments:
        """The moments of all rows of an executor, added up in the order of its shards."""
        M, n = executor.sum(shard_moments, center)
        return cls(M, center, int(n))

    def __add__(self, other: SecondMoments) -> SecondMoments:
        if other.center is not self.center and not np.array_equal(other.center, self.center):
            raise ValueError("second moments about different numbers do not add up: use the same center")
        return SecondMoments(self.M + other.M, self.center, self.n_rows + other.n_rows)

    def risk(self, fit_intercept: bool) -> QuadraticRisk:
        """The risk of these rows, their weights scaled to sum one."""
        M, total, p = self.M, float(self.M[0, 0]), len(self.center) - 1
        second, sizes = M[1:, 1:] / total, np.sqrt(np.diag(M)[1:] / total)
        means = None
        if fit_intercept:
            first = M[0, 1:] / total
            # b is minimized out: the Schur complement of the entry of the ones
            second, means = second - np.outer(first, first), self.center + first
        # sums over rows and over columns, and a few operations more
        rounding = (self.n_rows + p + 20) * EPSILON
        R0 = max(0.5 * float(second[-1, -1]), 0.0)
        G, q = np.ascontiguousarray(second[:-1, :-1]), second[:-1, -1].copy()
        return QuadraticRisk(G, q, R0, sizes[:-1], float(sizes[-1]), rounding, means)

    def squared_errors(self, W: NDArray, b: NDArray) -> tuple[NDArray, NDArray]:
        """sum_i c_i (y_i - x_i'w - b)^2 for rows of weights with intercepts, and bounds of its rounding."""
        V = np.column_stack([self.center[-1] - W @ self.center[:-1] - b, -W, np.ones(len(W))])
        size = abs(V) @ np.sqrt(np.diag(self.M))
        rounding = (self.n_rows + 2 * len(self.M)) * EPSILON
        return np.einsum("ij,ij->i", V @ self.M, V), rounding * size * size


def center_of(X: NDArray, y: NDArray, fit_intercept: bool) -> NDArray:
    """Numbers near the means of the columns and of y: zeros if there is no intercept, which absorbs them."""
    if not fit_intercept:
        return np.zeros(X.shape[1] + 1)
    step = -(-len(y) // SAMPLED_ROWS)
    return np.append(X[::step].mean(axis=0, dtype=np.float64), y[::step].mean())


def shard_moments(shard: Shard, center: NDArray) -> tuple[Any, ...]:
    """M and the number of rows of a shard."""
    X: Any = shard.X
    moments = SecondMoments.of_rows(X.array, shard.y, shard.c, center)
    return moments.M, moments.n_rows


def total(parts: list[SecondMoments]) -> SecondMoments:
    """The moments of the rows of all parts."""
    return reduce(SecondMoments.__add__, parts)
