r"""Newton's system for k outputs, :math:`(P + \sum_i x_i x_i^\top \otimes H_i)\, d = -g`.

The matrix itself is factorized where that costs no more than a few steps of conjugate gradients. Otherwise
these have one of three preconditioners: the diagonal, one matrix for all outputs, or the matrix itself. A
better one is formed once the steps with the current one have cost as much as forming it.

Losses of classes depend on differences of scores alone: rows of d, g and their preconditioned residuals have
the sum 0, and a multiple of :math:`1 1^\top` is added to the matrix, which only makes it definite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_linalg
from riskmin.core.deadline import interruptible_matmul
from riskmin.numerics.linear_systems import CgState, Solve, cg, shifted_cholesky
from riskmin.solvers.costs import PRODUCT_COSTS
from riskmin.solvers.newton.multi_output.blocks import Blocks, SimplexBlocks
from riskmin.solvers.newton.multi_output.columns import OutputColumns
from riskmin.solvers.newton.systems import Step

DIAGONAL, SHARED, EXACT = range(3)
PIVOT_ROUNDING = 1e-15
"""Pivots of a matrix with a unit diagonal that are rounding."""
INTERCEPT_RCOND = 1e-10
"""Second derivatives in intercepts below this share of the largest one count as 0."""


class Option(NamedTuple):
    """A preconditioner that could be formed."""

    level: int
    cost: float
    """In steps of conjugate gradients."""
    make: Callable[[OutputColumns, Blocks], Solve]


class OutputSystem:
    """The systems of one run: it chooses how to solve each, and keeps the last preconditioner.

    Parameters
    ----------
    X : OutputColumns
    penalty : array
        The diagonal of P, 0 for intercepts.
    inverse : array
        1 / P; for intercepts, the factor by which a squared residual lowers the bound.
    alike : bool
        Whether all outputs of a column have the same penalty.
    keeps : bool
        Whether second derivatives change little from step to step.
    direct : int
        The largest dimension of a factorized matrix of the columns; half of that of all weights.
    """

    MIN_CG_STEPS, MIN_SMOOTHED_CG_STEPS = 4.0, 12.0
    """Conjugate gradients are tried if a factorization costs as many steps of them; pieces of a smoothed loss
    need exact steps."""
    MAX_CG_STEPS = 500.0
    FORCING, SMOOTHED_FORCING = 0.1, 0.01
    """Conjugate gradients end at this share of the gradient."""
    RENEWAL = 2.0
    """A preconditioner is formed anew once the steps since have cost this many times as much."""
    MIN_RELATIVE_PENALTY = 1e-15
    """The smallest penalty that is not rounding, as a share of the sum of the second derivatives."""
    COPIED_SHARE = 0.8
    """Rows with second derivatives are copied if they are fewer than this share of all rows."""

    def __init__(
        self, X: OutputColumns, penalty: NDArray, inverse: NDArray, alike: bool, keeps: bool, direct: int
    ) -> None:
        self.X, self.P, self.inverse, self.alike, self.keeps = X, penalty, inverse, alike, keeps
        self.direct, self.k = direct, X.k
        self.level, self.steps_since = DIAGONAL, 0.0
        """Of the last preconditioner, and the steps since it was formed."""
        self.kept: Solve | None = None
        self.invariant: bool | None = None
        """Whether the loss depends on differences of scores alone; None before the first system."""

    def centered(self, r: NDArray) -> NDArray:
        """A vector of weights, less the means of the outputs if the loss does not depend on them."""
        if not self.invariant:
            return r
        R = r.reshape(-1, self.k)
        # a product is faster than a mean over the short axis
        return np.asarray(R - (R @ np.full(self.k, 1 / self.k))[:, None]).reshape(-1)

    def solve(self, H: Blocks, g: NDArray, residual: float, last: float) -> Step:
        """The step for the second derivatives H and the gradient g; see `NewtonSystem.solve`."""
        if self.invariant is None:
            rest = abs(H.product(np.ones((self.X.n, self.k)))).max(initial=0.0)
            self.invariant = self.alike and bool(rest <= 1e-12 * H.diagonal.max(initial=0.0))
        rhs = -self.centered(g)
        # the penalty alone determines the sums over the outputs; below rounding, they stay
        sums = np.divide(-(g + rhs), self.P, out=np.zeros_like(g), where=self._rounding(H) < self.P)
        X, H = self._active(H)
        options = self._options(X, H)
        best, most = options[-1], self.MIN_CG_STEPS if self.keeps else self.MIN_SMOOTHED_CG_STEPS
        if best.level == EXACT and best.cost <= most:
            return Step(sums + self.centered(best.make(X, H)(rhs)))
        step = self._descend(X, H, rhs, options, residual, last)
        return step._replace(v=sums + step.v)

    def _rounding(self, H: Blocks) -> float:
        """The penalty that vanishes in rounding beside the second derivatives."""
        return self.MIN_RELATIVE_PENALTY * float(H.diagonal.sum()) / self.k

    def _active(self, H: Blocks) -> tuple[OutputColumns, Blocks]:
        """The rows with second derivatives, copied if they are few; of smooth losses, all."""
        if self.keeps:
            return self.X, H
        index = np.flatnonzero(H.active)
        if len(index) > self.COPIED_SHARE * self.X.n:
            return self.X, H
        return self.X.take(index), H.take(index)

    def _descend(
        self, X: OutputColumns, H: Blocks, rhs: NDArray, options: list[Option], residual: float, last: float
    ) -> Step:
        """Conjugate gradients, by preconditioners of increasing level."""
        forcing, enough, state = self.FORCING if self.keeps else self.SMOOTHED_FORCING, 0.0, None

        def stop(at: CgState) -> bool:
            nonlocal enough
            if at.steps == 0:
                enough = forcing**2 * at.square if 0.5 * at.square > last * residual else 0.0
            return self._lost(at.residual) <= residual or at.square <= enough

        def product(d: NDArray) -> NDArray:
            return self.P * d + X.hessian_product(H, d)

        options = [option for option in options if option.level >= self.level] or options[-1:]
        for option, better in zip(options, [*options[1:], None], strict=True):
            if self.kept is None or not self.keeps or option.level != self.level or self._worn(option):
                solve = option.make(X, H)
                self.kept, self.level, self.steps_since = solve, option.level, 0.0
            limit = self.MAX_CG_STEPS if better is None else max(better.cost - option.cost, 2.0)
            before = 0 if state is None else state.steps
            if state is not None:  # a new metric of residuals
                state.direction, state._preconditioned = None, None
            state = cg(product, rhs, partial(self._preconditioned, self.kept), stop, state, limit)
            self.steps_since += state.steps - before
            if state.done:
                break
        assert state is not None
        return Step(state.x, self._lost(state.residual), 0.5 * state.square)

    def _preconditioned(self, solve: Solve, r: NDArray) -> NDArray:
        return self.centered(solve(r))

    def _worn(self, option: Option) -> bool:
        return self.steps_since >= self.RENEWAL * option.cost

    def _lost(self, r: NDArray) -> float:
        """By how much a residual lowers the bound of the predicted multipliers."""
        return 0.5 * float((self.inverse * r) @ r)

    # ------------------------------------------------------------ preconditioners
    def _options(self, X: OutputColumns, H: Blocks) -> list[Option]:
        """The preconditioners from cheap to exact, without any that costs more than a better one."""
        costs = PRODUCT_COSTS
        entries = (costs.sparse_entry if X.sparse else costs.thin_product) * X.nnz
        step = self.k * (entries + costs.elementwise * X.n) + 5 * costs.numpy_call
        by_columns, by_rows = self._columns_cost(X, H), self._rows_cost(X, H)
        options = [
            Option(DIAGONAL, 0.0, self._diagonal),
            Option(SHARED, self._shared_cost(X) / step, self._shared),
            Option(
                EXACT,
                min(by_columns, by_rows) / step,
                self._by_rows if by_rows < by_columns else self._by_columns,
            ),
        ]
        return [
            option
            for i, option in enumerate(options)
            if option.cost < min((better.cost for better in options[i + 1 :]), default=math.inf)
        ]

    def _gram_cost(self, X: OutputColumns) -> float:
        """The cost of one matrix X' diag(h) X; sparse rows have nnz / n entries."""
        if X.sparse:
            return 0.5 * PRODUCT_COSTS.sparse_entry * X.nnz**2 / max(X.n, 1)
        return 0.5 * X.n * X.columns * (X.columns + PRODUCT_COSTS.elementwise)

    def _shared_cost(self, X: OutputColumns) -> float:
        if X.columns > self.direct:
            return math.inf
        return self._gram_cost(X) + X.columns**3 / 3 + PRODUCT_COSTS.numpy_call

    def _columns_cost(self, X: OutputColumns, H: Blocks) -> float:
        if X.size > 2 * self.direct:
            return math.inf
        # the mean number of pairs of outputs of a row
        pairs = float((H.active * H.active).sum()) / max(X.n, 1)
        extra = self.k**2 * (X.n * PRODUCT_COSTS.elementwise + 0.5 * PRODUCT_COSTS.numpy_call)
        return pairs * self._gram_cost(X) + X.size**3 / 3 + extra

    def _rows_cost(self, X: OutputColumns, H: Blocks) -> float:
        size = int(np.maximum(H.active - 1, 0).sum())
        possible = isinstance(H, SimplexBlocks) and self.alike and not (X.sparse or X.linear_map.centered)
        # with vanishing penalties, the identity would be lost in the matrix of the rows
        if not possible or size > self.direct or self.P[: X.p].min() <= self._rounding(H):
            return math.inf
        entries = size**2 * (X.columns + PRODUCT_COSTS.elementwise)
        return entries + size**3 / 3 + 20 * PRODUCT_COSTS.numpy_call

    def _diagonal(self, X: OutputColumns, H: Blocks) -> Solve:
        diagonal = self.P + X.gram_diagonals(H.diagonal).reshape(-1)
        # a column of zeros without a penalty: any positive number does
        scale = 1 / np.where(diagonal > 0, diagonal, 1.0)
        return lambda r: scale * r

    def _shared(self, X: OutputColumns, H: Blocks) -> Solve:
        """One matrix for all outputs: that of multiples of I - 1 1' / k with the traces of the H_i."""
        h = H.diagonal.sum(axis=1) / max(self.k - 1, 1)
        solve = shifted_cholesky(X.gram(h), self.P.reshape(-1, self.k).mean(axis=1))
        return lambda r: np.ascontiguousarray(solve(r.reshape(-1, self.k))).reshape(-1)

    def _by_columns(self, X: OutputColumns, H: Blocks) -> Solve:
        """The matrix itself, of dimension columns times outputs."""
        q, k = X.columns, self.k
        M = X.block_matrix(H)
        if self.invariant:  # second derivatives in the sums of the outputs, of the size of the others
            diagonal = M.diagonal().reshape(k, q).mean(axis=0) / k
            blocks, j = M.reshape(k, q, k, q), np.arange(q)
            blocks[:, j, :, j] += diagonal[:, None, None]
        solve = basic_solution(M, self.P.reshape(q, k).T.reshape(-1))
        # w has its outputs together per column, the matrix its columns together per output
        return lambda r: solve(r.reshape(q, k).T.reshape(-1)).reshape(k, q).T.reshape(-1)

    def _by_rows(self, X: OutputColumns, H: Blocks) -> Solve:
        """The matrix itself by Woodbury's formula: each H_i is a sum of a few u u'."""
        assert isinstance(H, SimplexBlocks)
        rows, U = H.factors()
        p, k = X.X.shape[1], self.k
        A, P = X.dense(rows)[:, :p], self.P[: p * k : k]
        # V has one column x_i (x) u per factor: t = V'w + U b solves (I + V' P^-1 V) t = V' P^-1 r + U b
        G = interruptible_matmul(A / P, A.T)
        G *= U @ U.T
        inverse = shifted_cholesky(G, 1.0)
        if X.intercepts:
            schur = np.linalg.pinv(U.T @ inverse(U), rcond=INTERCEPT_RCOND, hermitian=True)

        def solve(r: NDArray) -> NDArray:
            R = r.reshape(-1, k)
            t = inverse(((A @ (R[:p] / P[:, None])) * U).sum(axis=1))
            out = np.zeros_like(R)
            if X.intercepts:
                out[p] = schur @ (R[p] - U.T @ t)
                t += inverse(U @ out[p])
            out[:p] = (R[:p] - A.T @ (U * t[:, None])) / P[:, None]
            return out.reshape(-1)

        return solve

    # ------------------------------------------------------------ states
    def to_arrays(self) -> dict[str, Any]:
        """What a run continues from; a kept preconditioner is formed anew."""
        self.kept = None
        return {"system": np.array([float(self.level)])}

    def restore(self, arrays: dict[str, Any]) -> None:
        """Continue from what `to_arrays` has returned."""
        self.level = min(max(int(arrays["system"][0]), DIAGONAL), EXACT)


def basic_solution(M: NDArray, penalty: NDArray) -> Solve:
    """A solution for the upper triangle of M, with a penalty on its diagonal; M is overwritten.

    Directions without second derivatives and penalty are left out: a Cholesky factorization of the matrix
    with a unit diagonal takes the largest pivot first, and ends at those that are rounding.
    """
    diagonal = M.reshape(-1)[:: len(M) + 1]
    diagonal += penalty
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    M *= scale
    M *= scale[:, None]
    lapack = scipy_linalg().lapack
    # the upper triangle of an array in C order is the lower one of its transpose, in LAPACK's order
    factor, order, rank, _ = lapack.dpstrf(M.T, lower=1, tol=PIVOT_ROUNDING, overwrite_a=1)
    order, factor = order[:rank] - 1, factor[:rank, :rank]

    def solve(r: NDArray) -> NDArray:
        x = np.zeros_like(r)
        if rank:
            x[order] = lapack.dpotrs(factor, (scale * r)[order], lower=1)[0]
        return scale * x

    return solve
