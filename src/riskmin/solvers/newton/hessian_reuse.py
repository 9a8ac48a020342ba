"""Newton's linear system of smooth losses, with a factorized Hessian that is reused or sampled."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_indices_like, namespace
from riskmin.core import Array, Hessian, NDArray
from riskmin.executors.base import RowParts
from riskmin.losses.hessian import separable_hessian
from riskmin.problem import shard_ops
from riskmin.problem.design_operator import DesignOperator
from riskmin.solvers.newton.linear_system import (
    LinearSystem,
    NewtonSystem,
    RowGram,
    conjugate_gradients,
    factorized,
)


class ReusedHessian(LinearSystem):
    """Directions d with (lam K + X' H X) d = -g, for a current or an earlier H, of all rows or of a sample.

    The matrix is factorized and reused while the gradient decreases fast. The matrix of a sample is replaced
    by that of all rows for good once the two differ along a direction, or after two poor steps in a row, each
    of them with a new matrix.
    """

    REUSE_DECREASE = 50.0
    """A factorized matrix is reused as long as each step divides the squared gradient norm by this."""
    SAMPLE_ONE_ROW_IN, SAMPLE_ROWS_PER_COLUMN = 16, 250
    """A sample has one row in 16, but at least 250 per column: with fewer, steps are poor."""
    SAMPLE_AT_MOST_ONE_ROW_IN, SAMPLE_MIN_ROWS_PER_COLUMN = 4, 25
    """A sample has at most one row in 4, for a first step or two; there is none below 25 rows per column."""
    SAMPLE_MAX_CURVATURE_RATIO = 2.0
    """A sample is rejected if its second derivative along a direction is off by more than this factor."""
    FACTORIZE_MAX_FEATURES = 64
    """Up to this many features the matrix is always factorized: this is fast, and steps are exact."""
    FACTORIZE_MAX_COST = 8.0
    """A matrix that costs less than this many steps of conjugate gradients is factorized at once."""
    SPARSE_PRODUCT_COST = 1.5
    """Time of one product of two entries of a sparse row, relative to one entry of a pass over X."""
    CG_RESIDUAL = 0.2
    """Conjugate gradients end once the residual is at most this share of the gradient norm."""
    CONSTANT_FACTORIZE_MAX_COST, CONSTANT_CG_RESIDUAL = 40.0, 0.05
    """The same two for the squared loss, of which the first matrix is the last one too."""

    tries_unit_step = True

    def __init__(
        self, design: DesignOperator, reg: Any, direct: int, intercept: bool, sampled: bool, constant: bool
    ) -> None:
        self.design, self.reg, self.direct, self.intercept = design, reg, direct, intercept
        self.residual = self.CONSTANT_CG_RESIDUAL if constant else self.CG_RESIDUAL
        """The share of the gradient norm that conjugate gradients may leave."""
        self.max_cost = self.CONSTANT_FACTORIZE_MAX_COST if constant else self.FACTORIZE_MAX_COST
        """The cost in steps of conjugate gradients up to which a matrix is factorized at once."""
        n, p = design.shape
        self.size = min(
            max(n // self.SAMPLE_ONE_ROW_IN, self.SAMPLE_ROWS_PER_COLUMN * p),
            n // self.SAMPLE_AT_MOST_ONE_ROW_IN,
        )
        """The number of rows of a sample."""
        self.sampled = sampled and self.size >= self.SAMPLE_MIN_ROWS_PER_COLUMN * p
        """Whether the next matrix may be formed from a sample."""
        self.hessian_diagonal: NDArray | None = None
        """The second derivatives of the rows from which the matrix was formed."""
        self.factor: Callable[[Array], Array] | None = None
        self.row_gram: RowGram | None = None
        """The products of the rows with each other, which no second derivative changes."""
        self.is_new = False
        """Whether the matrix was formed for the last step."""
        self.n_poor_steps = 0
        """The number of consecutive poor steps, each with a new matrix, up to the last step."""
        self.last_square = math.inf
        """The squared gradient norm at the last step."""
        self.steps = 0.0
        """Expected steps of conjugate gradients."""

    def residual_tolerance(self, g: Array, scaled_gap: float) -> float:
        """A share of the gradient norm."""
        return self.residual * math.sqrt(float(g @ g))

    def solve(self, hessian: Hessian, lam: float, g: Array, tol: float) -> Array:
        """The direction at a point with gradient g and this Hessian, or with that of an earlier point."""
        square, h = float(g @ g), hessian.diagonal
        # a reused or sampled matrix gives linear convergence; a poor rate calls for a new one
        poor = square > self.last_square / self.REUSE_DECREASE
        self.last_square = square
        # an old matrix does not explain a poor step with a new one: the sample may be too small
        self.n_poor_steps = self.n_poor_steps + 1 if poor and self.is_new else 0
        if self.n_poor_steps > 1:
            self.sampled = self.design.rounded_gram = False
        self.is_new = self.hessian_diagonal is None or poor
        if self.is_new:
            self.hessian_diagonal = self.factor = None
            if not (self._should_factorize(h) or self._should_factorize_rows()):
                return self._iterative(h, lam, g, tol)
            self.hessian_diagonal = self._sample(h) if self.sampled else h
        assert self.hessian_diagonal is not None
        if self.factor is None:
            used = separable_hessian(self.hessian_diagonal, self.intercept)
            if self._should_factorize_rows():
                self.row_gram = self.row_gram or RowGram(self.design, self.reg)
                self.factor = self.row_gram.factorized(lam, used)
            else:
                self.factor = factorized(self.design, self.reg, lam, used)
        return self.factor(-1.0 * g)

    def check_direction(self, hessian: Hessian, dz: NDArray, t: float) -> None:
        """Reject a new sample whose second derivative along dz = X d differs from that of all rows."""
        if self.is_new and self.sampled and self.hessian_diagonal is not None:
            # d' X' H X d = sum_i h_i (x_i'd)^2, by all rows and by the sample
            exact = self.design.weighted_square(hessian.diagonal, dz)
            estimate = self.design.weighted_square(self.hessian_diagonal, dz)
            ratio = self.SAMPLE_MAX_CURVATURE_RATIO
            self.sampled = estimate <= ratio * exact and exact <= ratio * estimate

    def discard(self) -> bool:
        """Drop the matrix, and return whether the next one will be better: of all rows, or newer."""
        better = self.hessian_diagonal is not None and (self.sampled or not self.is_new)
        self.hessian_diagonal, self.factor, self.sampled, self.last_square = None, None, False, math.inf
        return better

    def to_state(self) -> dict[str, Any]:
        """What the matrix is made of, and how well it does."""
        state: dict[str, Any] = {
            "sampled": self.sampled,
            "is_new": self.is_new,
            "kept": self.hessian_diagonal,
        }
        state |= {"n_poor_steps": self.n_poor_steps}
        # files hold finite numbers only
        state |= {"last_square": min(self.last_square, sys.float_info.max)}
        return super().to_state() | state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `to_state` returned; the matrix is formed again."""
        self.steps, self.last_square = state["cg_steps"], state["last_square"]
        self.sampled, self.is_new = bool(state["sampled"]), bool(state["is_new"])
        self.n_poor_steps, self.hessian_diagonal = int(state["n_poor_steps"]), state.get("kept")

    def _sample(self, h: NDArray) -> NDArray:
        """The second derivatives of a stratified sample, scaled to the same sum; 0 for all other rows.

        One row is drawn from each of `size` consecutive ranges, so that sorted rows are sampled evenly.
        """
        n = len(h)
        # range i is [ends[i], ends[i + 1])
        ends = np.linspace(0, n, self.size + 1).astype(np.int64)
        index = ends[:-1] + (np.random.default_rng(0).random(self.size) * np.diff(ends)).astype(np.int64)
        chosen = as_indices_like(index, h)
        sampled, total = h[chosen], self.design.total(h)
        sample_total = float(sampled.sum())
        if not sample_total > 0:
            return h
        sample: NDArray = namespace(h).zeros_like(h)
        sample[chosen] = sampled * (total / sample_total)
        return sample

    def _should_factorize(self, h: NDArray) -> bool:
        """Whether p is small enough, and a factorization cheaper than conjugate gradients."""
        p = self.design.shape[1]
        return (
            p <= self.direct
            and self.design.can_form_gram(False)
            and (p <= self.FACTORIZE_MAX_FEATURES or self._cost(h) <= max(self.max_cost, self.steps))
        )

    def _should_factorize_rows(self) -> bool:
        """Whether X is dense and has few enough rows that a matrix of them is cheaper than that of features.

        This does not depend on the second derivatives, so that a resumed run decides in the same way.
        """
        n, p = self.design.shape
        if n >= p or n > self.direct or self.design.row_metadata.sparse or not self.reg.diagonal:
            return False
        # n^2 / 2 products of rows and a Cholesky factorization, beside two passes over X
        cost = (n * n * p / 2 + n**3 / 3) / (self.design.dense_speedup * 2 * n * p)
        return cost <= self.max_cost and self.design.can_gather(n)

    def _cost(self, h: NDArray) -> float:
        """The cost of forming and factorizing the matrix, in steps of conjugate gradients."""
        # in units of one entry of a pass over X; a Cholesky factorization takes p^3 / 3 dense operations
        (n, p), nnz, sparse = self.design.shape, self.design.nnz, self.design.row_metadata.sparse
        # active rows, with (nnz / n)^2 / 2 products each
        rows = self.size if self.sampled else self.design.count_nonzero(h)
        products = 0.5 * rows * (nnz / n) ** 2
        forming = products * self.SPARSE_PRODUCT_COST / (1 if sparse else self.design.dense_speedup)
        # a step makes two passes over X
        return float(p**3 / (3 * self.design.dense_speedup) + forming) / (2 * nnz)

    # ------------------------------------------------------------ conjugate gradients
    def _iterative(self, h: NDArray, lam: float, g: Array, tol: float) -> Array:
        """Solve by conjugate gradients; if they cost more than a factorization, the next solve uses that.

        After any number of steps, the result is a descent direction.
        """
        hessian = separable_hessian(h, self.intercept)
        max_steps = self.max_steps(h)
        # NewtonSystem copies the active rows if they are few, or uses a direct method
        few_curved = self.GATHER_BELOW_ONE_ROW_IN * self.design.count_nonzero(h) < len(h)
        if self.steps > max_steps or not self.reg.diagonal or few_curved:
            system = NewtonSystem(self.design, self.reg, self.direct, self.steps)
            d = system.solve(hessian, lam, g, tol)
            self.steps = system.steps
            return d
        # a run that reached its limit is remembered as four times as long, so that it is not repeated
        product, diagonal = self.operator(hessian, lam)
        d, n_steps = conjugate_gradients(product, -1.0 * g, tol, max_steps, diagonal)
        self.steps = n_steps if n_steps < max_steps else 4.0 * max_steps
        return d

    def max_steps(self, h: NDArray) -> int:
        """Steps of conjugate gradients after which a factorization is tried, if one is possible.

        They cost as much as one by features; a fifth of the maximum is for the system of the rows.
        """
        if self.design.shape[1] <= self.direct:
            return math.ceil(self._cost(h))
        return self.MAX_CG_STEPS // 5 if self.design.shape[0] <= self.direct else self.MAX_CG_STEPS

    def operator(self, hessian: Hessian, lam: float) -> tuple[Callable[[Array], Array], Array | None]:
        """The product with lam K + X' H X, for a diagonal K, and its diagonal, if that is available."""
        risk, h = self.design.risk, hessian.diagonal
        parts = RowParts(h, self.design.shard_ends)
        low_rank = [self.design.adjoint(s) for s in hessian.low_rank]
        zeros = np.zeros(self.design.shape[1])
        penalty = lam * (self.reg.terms(zeros).square + zeros)
        # the low-rank term is left out of the preconditioner
        squares = self.design.gram_diagonal(h)
        diagonal = None if squares is None else squares + penalty

        def product(d: Array) -> Array:
            (image,) = risk.executor.sum(shard_ops.hessian_product, risk.linear_map, d, each=parts)
            # the low-rank term of an intercept: -(X' s)(X' s)' d
            for m in low_rank:
                image = image - float(m @ d) * m
            return image + penalty * d

        return product, diagonal
