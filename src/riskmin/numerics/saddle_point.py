r"""Saddle-point problems in weights and multipliers, solved by an interior-point method.

.. math:: \min_{w, b} \max_a\; a^\top (X w + b) + f(w) - g(a),

for separable f and g: the regularizer, and the conjugate of the loss. At the solution, :math:`-X^\top a` is a
slope of f at w, :math:`X w + b` one of g at a, and, with an intercept b, :math:`1^\top a` is 0, or 1 in the
master problem of a bundle method.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.numerics.barrier import BarrierVariables, Linearized, predictor_corrector_step
from riskmin.numerics.linear_systems import SaddleSolve, rows_system, shifted_cholesky


class SaddlePoint:
    """The variables of a problem.

    Parameters
    ----------
    design : object
        The products with X, as `riskmin.problem.design_operator.DesignOperator` has them.
    rows : (m,) array of int
        The rows with a multiplier.
    variables : tuple of BarrierVariables
        The weights, and the multipliers.
    intercept : bool
        Whether b is free, and the sum of the multipliers given.
    b : float
    total : float
        The sum of the multipliers.
    by_rows : bool, optional
        Whether to factorize a matrix of the rows; by default, where they are fewer than the columns.
    """

    REFINEMENTS = 2
    """How often the linear system is solved, each time for the residual of the last."""

    def __init__(
        self,
        design: Any,
        rows: NDArray,
        variables: tuple[BarrierVariables, BarrierVariables],
        *,
        intercept: bool,
        b: float,
        total: float = 0.0,
        by_rows: bool | None = None,
    ) -> None:
        self.design, self.rows, self.intercept, self.b, self.total = design, rows, intercept, b, total
        self.weights, self.multipliers = variables
        self.db = 0.0
        self._gram: NDArray | None = None
        self.by_rows = len(rows) < design.shape[1] if by_rows is None else by_rows
        self._X: Any = design.gather(rows) if self.by_rows else None
        self.weight_curvature = np.zeros(design.shape[1])
        """The diagonal of X' diag(h) X, where h are the second derivatives of the loss with barriers."""

    @property
    def count(self) -> int:
        """The number of products of slacks and their multipliers."""
        return max(self.weights.count + self.multipliers.count, 1)

    @property
    def mu(self) -> float:
        """The mean of these products."""
        return (self.weights.complementarity + self.multipliers.complementarity) / self.count

    def without(self, dropped: NDArray) -> SaddlePoint:
        """A copy in which some weights are fixed at zero."""
        result = copy(self)
        result.weights, result.multipliers = self.weights.without(dropped), copy(self.multipliers)
        return result

    def step(self) -> float:
        """Take one step of the predictor-corrector method; return its length."""
        t = predictor_corrector_step([self.weights, self.multipliers], self._factorize)
        self.b += t * self.db
        return t

    # ------------------------------------------------------------ products with the rows of multipliers
    def forward(self, w: NDArray) -> NDArray:
        """X w."""
        return np.asarray(self.design.forward(w)[self.rows])

    def adjoint(self, a: NDArray) -> NDArray:
        """X' a."""
        return np.asarray(self.design.adjoint(self.scattered(a)))

    def scattered(self, a: NDArray) -> NDArray:
        """One number per row of X, 0 for rows without a multiplier."""
        full = np.zeros(self.design.shape[0])
        full[self.rows] = a
        return full

    # ------------------------------------------------------------ the linear system
    def _factorize(self, at: list[Linearized]) -> Callable[[list[Linearized]], list[NDArray]]:
        """The function that solves the optimality conditions with linear slopes.

        With slopes s and curvatures K of both groups, they are s_w + K_w dw + X'(a + da) = 0,
        s_a + K_a da = X (w + dw) + b + db, and 1'(a + da) = total.
        """
        K_w, K_a = (model.curvature for model in at)
        solve = self._by_rows(K_w, K_a) if self.by_rows else self._by_columns(K_w, K_a)
        a, z = self.multipliers.x, self.forward(self.weights.x) + self.b

        def direction(models: list[Linearized]) -> list[NDArray]:
            dw, da, self.db = np.zeros(len(K_w)), np.zeros(len(K_a)), 0.0
            # the second round removes what rounding has left of the residuals
            for _ in range(self.REFINEMENTS):
                r_w = -(models[0].slope + K_w * dw + self.adjoint(a + da))
                r_a = z + self.forward(dw) + self.db - models[1].slope - K_a * da
                more = solve(r_w, r_a, self.total - float((a + da).sum()))
                dw, da, self.db = dw + more[0], da + more[1], self.db + more[2]
            return [dw, da]

        return direction

    def _by_columns(self, K_w: NDArray, K_a: NDArray) -> SaddleSolve:
        """Eliminate the multipliers: a system of one equation per weight."""
        h = 1 / K_a
        # without barriers on multipliers, K_a is constant
        if self._gram is None or self.multipliers.count:
            gram = self.design.centered_gram if self.intercept else self.design.gram
            self._gram = np.asarray(gram(self.scattered(h)))
        inverse, total = shifted_cholesky(self._gram, K_w), float(h.sum())
        self.weight_curvature = np.diagonal(self._gram)

        def solve(r_w: NDArray, r_a: NDArray | float, r_b: float) -> tuple[NDArray, NDArray, float]:
            # da = h (X dw + db + r_a) with 1'da = r_b: db = shift - h'X dw / sum(h)
            shift = (r_b - float((h * r_a).sum())) / total if self.intercept else 0.0
            dw = inverse(r_w - self.adjoint(h * (r_a + shift)))
            dz = self.forward(dw)
            db = shift - float(h @ dz) / total if self.intercept else 0.0
            return dw, h * (dz + db + r_a), db

        return solve

    def _by_rows(self, K_w: NDArray, K_a: NDArray) -> SaddleSolve:
        """Eliminate the weights: a system of one equation per row, where rows are fewer than weights."""
        self.weight_curvature = np.asarray(self.design.gram_diagonal(self.scattered(1 / K_a)))
        return rows_system(self._X, K_w, K_a, intercept=self.intercept)
