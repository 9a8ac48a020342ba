r"""Preconditioners of the softmax loss: the diagonal, one matrix for all classes, and the exact one.

The Hessian of a row is :math:`c_i (\mathrm{diag}(p_i) - p_i p_i^\top)`. In the matrix shared by the classes,
:math:`\lambda I + X^\top \mathrm{diag}(s) X`, it is a multiple of the identity with the same trace on
scores of sum zero, :math:`s_i = c_i (1 - |p_i|^2) / (k - 1)`. It is exact at w = 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.blas_threads import cholesky, scipy_linalg
from riskmin.core.deadline import scatter_in_chunks
from riskmin.losses.block_hessian import simplex_hessian
from riskmin.problem.design_operator import DesignOperator, range_blocks, row_matrix, shard_gram
from riskmin.solvers.costs import PRODUCT_COSTS
from riskmin.solvers.newton.multi_output.preconditioners import (
    MultiOutputActiveRows,
    Solve,
    exact_feature_solver,
    feature_solver_cost,
)

INTERCEPT_PENALTY = 1e-9
"""Penalty of intercepts relative to that of weights, which makes the matrix of all weights definite."""
FLOOR = 1e-100
"""Added to diagonals, where entries without penalty and second derivative are 0."""


class SoftmaxPreconditioner:
    """The preconditioner of a sequence of points; a better or newer one once steps have cost as much."""

    FIRST_MAX_STEPS = 4.0
    """The matrix of the features is used at once if it costs no more than this many steps."""
    RENEWAL_FACTOR = 2.0
    """It is formed anew once the steps since have cost this many times as much."""
    MAX_FEATURES, MAX_EXACT_WEIGHTS = 2500, 512
    """The most columns, or weights, of a factorized matrix."""

    def __init__(self, design: DesignOperator, penalty: NDArray, k: int, intercepts: bool) -> None:
        self.design, self.penalty, self.k, self.intercepts = design, penalty.reshape(-1, k), k, intercepts
        assert design.rows is not None
        self.X: Any = row_matrix(design.rows)
        self.c = design.rows.c
        self.matrix_steps = self._matrix_cost() / self._step_cost()
        """The cost of the matrix of the features, in steps of conjugate gradients."""
        self.exact = penalty.size <= self.MAX_EXACT_WEIGHTS and self._exact_cost() <= self._first_limit()
        """Whether the matrix of all weights is cheap; few weights need no conjugate gradients."""
        self.n_steps = 0.0
        """The steps since the last matrix was formed."""
        self.shared: Solve | None = None
        self.renew()

    def renew(self) -> None:
        """Form a cheap matrix anew at the next point, so that a resumed run repeats the steps."""
        if self.matrix_steps <= self.FIRST_MAX_STEPS:
            self.n_steps = self.RENEWAL_FACTOR * self.matrix_steps

    def count(self, n_steps: int) -> None:
        """Count steps with the preconditioner of the last point."""
        self.n_steps += n_steps

    def at(self, p: NDArray) -> Solve:
        """The preconditioner at the probabilities p, or that of an earlier point."""
        if self.exact:
            return self._exact(p)
        limit = self.matrix_steps * (1.0 if self.shared is None else self.RENEWAL_FACTOR)
        if self.n_steps >= limit:
            self.shared, self.n_steps = self._shared(p), 0.0
        return self._diagonal(p) if self.shared is None else self.shared

    def _step_cost(self) -> float:
        """The cost of a step, in operations of a large matrix product."""
        n, costs = len(self.c), PRODUCT_COSTS
        entries = (costs.sparse_entry if self.X.sparse else costs.thin_product) * self.X.nnz
        return float(self.k * (entries + costs.elementwise * n) + 5 * costs.numpy_call)

    def _first_limit(self) -> float:
        """The cost of a matrix that is formed at once."""
        return self.FIRST_MAX_STEPS * self._step_cost()

    def _exact_cost(self) -> float:
        """The cost of the matrix of all weights."""
        # uniform probabilities have as many positive entries as any others
        uniform = np.full((len(self.c), self.k), 1 / self.k)
        return feature_solver_cost(self._rows(uniform), self.MAX_FEATURES)

    def _matrix_cost(self) -> float:
        """The cost of forming and factorizing the matrix of the features; infinite for sparse or wide X."""
        n, p = self.X.shape
        if self.X.sparse or p > self.MAX_FEATURES or n < p:
            return np.inf
        return float(n * p * (p + 0.5 * PRODUCT_COSTS.elementwise) + p**3)

    def _diagonal(self, p: NDArray) -> Solve:
        """The inverse of the diagonal."""
        X, c, squares = self.X, self.c, np.zeros_like(self.penalty)
        features = squares[: X.shape[1]]
        if X.sparse:
            from riskmin._numba.newton.softmax_rows import csr_softmax_diagonal

            parts = X.indptr, X.indices, X.data, c, np.empty(self.k)
            scatter_in_chunks(csr_softmax_diagonal, parts, p, 0, len(p), features, self.k * X.nnz)
        else:
            for rows in range_blocks(*X.shape):
                features += (X.take(rows) ** 2).T @ (p[rows] * (1 - p[rows]) * c[rows, None])
        if self.intercepts:
            squares[-1] = c @ (p * (1 - p))
        scale = (1 / (self.penalty + squares + FLOOR)).reshape(-1)
        return lambda r: scale * r

    def _rows(self, p: NDArray) -> MultiOutputActiveRows:
        """The rows with their Hessians at the probabilities p."""
        linear_map = self.design.risk.linear_map
        return MultiOutputActiveRows(self.X, simplex_hessian(p, self.c), linear_map, None)

    def _exact(self, p: NDArray) -> Solve:
        """The inverse of the matrix of all weights, without the sum of all intercepts."""
        m = self.X.shape[1]
        penalty = self.penalty.copy()
        penalty[m:] = INTERCEPT_PENALTY * self.penalty.mean()
        solve = exact_feature_solver(self._rows(p), penalty)

        def centered(r: NDArray) -> NDArray:
            R = r.reshape(-1, self.k).copy()
            R[m:] -= R[m:].mean()
            return R.reshape(-1)

        return (lambda r: centered(solve(centered(r)))) if self.intercepts else solve

    def _shared(self, p: NDArray) -> Solve | None:
        """The inverse of the matrix of the features, for all classes."""
        s = self.c * (1 - np.einsum("ij,ij->i", p, p)) / max(self.k - 1, 1)
        assert self.design.rows is not None
        m = len(self.penalty)
        G = np.zeros((m, m))
        q = self.X.shape[1]
        G[:q, :q] = shard_gram(self.design.rows, s)[0]
        if self.intercepts:
            G[:q, q], G[q, q] = self.X.array.T @ s, s.sum()
        diagonal = G.reshape(-1)[:: m + 1]
        shift = 1e-13 * float(diagonal.max())
        diagonal += self.penalty.mean(axis=1) + shift + FLOOR
        factor = cholesky(G.T, diagonal, shift)
        if factor is None:
            return None
        lapack, k = scipy_linalg().lapack, self.k
        return lambda r: np.ascontiguousarray(
            lapack.dpotrs(factor[0], r.reshape(-1, k), lower=True)[0]
        ).reshape(-1)
