r"""Saddle-point problems in weights and multipliers, solved by an interior-point method.

.. math:: \min_{w, b} \max_a\; a^\top (X w + b) + f(w) - g(a),

for separable f and g: the regularizer, and the conjugate of the loss. At the solution, :math:`-X^\top a` is a
slope of f at w, :math:`X w + b` one of g at a, and, with an intercept b, :math:`1^\top a = 0`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.numerics.barrier import BarrierVariables, Linearized, predictor_corrector_step, scaled_inverse
from riskmin.problem.design_operator import DesignOperator

Solve = Callable[[NDArray, NDArray, float], tuple[NDArray, NDArray, float]]
"""Solves the linear optimality conditions: residuals of the three equations to steps (dw, da, db)."""


class SaddlePoint:
    """The variables of a problem; `rows` are those with a multiplier."""

    REFINEMENTS = 2
    """How often the linear system is solved, each time for the residual of the last."""

    def __init__(
        self,
        design: DesignOperator,
        rows: NDArray,
        variables: tuple[BarrierVariables, BarrierVariables],
        *,
        intercept: bool,
        b: float,
    ) -> None:
        self.design, self.rows, self.intercept, self.b = design, rows, intercept, b
        self.weights, self.multipliers = variables
        self.db = 0.0
        self._gram: NDArray | None = None
        self.by_rows = len(rows) < design.shape[1]
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
        return self.design.forward(w)[self.rows]

    def adjoint(self, a: NDArray) -> NDArray:
        """X' a."""
        return self.design.adjoint(self.scattered(a))

    def scattered(self, a: NDArray) -> NDArray:
        """One number per row of X, 0 for rows without a multiplier."""
        full = np.zeros(self.design.shape[0])
        full[self.rows] = a
        return full

    # ------------------------------------------------------------ the linear system
    def _factorize(self) -> Callable[[list[Linearized]], list[NDArray]]:
        """The function that solves the optimality conditions with linear slopes.

        With slopes s and curvatures K of both groups, they are s_w + K_w dw + X'(a + da) = 0,
        s_a + K_a da = X (w + dw) + b + db, and 1'(a + da) = 0.
        """
        K_w, K_a = (g.linearized(0.0).curvature for g in (self.weights, self.multipliers))
        solve = self._by_rows(K_w, K_a) if self.by_rows else self._by_columns(K_w, K_a)
        a, z = self.multipliers.x, self.forward(self.weights.x) + self.b

        def direction(models: list[Linearized]) -> list[NDArray]:
            dw, da, self.db = np.zeros(len(K_w)), np.zeros(len(K_a)), 0.0
            # the second round removes what rounding has left of the residuals
            for _ in range(self.REFINEMENTS):
                r_w = -(models[0].slope + K_w * dw + self.adjoint(a + da))
                r_a = z + self.forward(dw) + self.db - models[1].slope - K_a * da
                more = solve(r_w, r_a, -float((a + da).sum()))
                dw, da, self.db = dw + more[0], da + more[1], self.db + more[2]
            return [dw, da]

        return direction

    def _by_columns(self, K_w: NDArray, K_a: NDArray) -> Solve:
        """Eliminate the multipliers: a system of one equation per weight."""
        h = 1 / K_a
        # without barriers on multipliers, K_a is constant
        if self._gram is None or self.multipliers.count:
            self._gram = centered_gram(self.design, self.scattered(h), self.intercept)
        inverse, total = scaled_inverse(self._gram, K_w), float(h.sum())
        self.weight_curvature = np.diagonal(self._gram)

        def solve(r_w: NDArray, r_a: NDArray, r_b: float) -> tuple[NDArray, NDArray, float]:
            # da = h (X dw + db + r_a) with 1'da = r_b: db = shift - h'X dw / sum(h)
            shift = (r_b - float(h @ r_a)) / total if self.intercept else 0.0
            dw = inverse(r_w - self.adjoint(h * (r_a + shift)))
            dz = self.forward(dw)
            db = shift - float(h @ dz) / total if self.intercept else 0.0
            return dw, h * (dz + db + r_a), db

        return solve

    def _by_rows(self, K_w: NDArray, K_a: NDArray) -> Solve:
        """Eliminate the weights: a system of one equation per row, where rows are fewer than weights."""
        X = self._X
        self.weight_curvature = np.asarray(self.design.gram_diagonal(self.scattered(1 / K_a)))
        S = X @ (X / K_w).T if isinstance(X, np.ndarray) else (X.multiply(1 / K_w) @ X.T).toarray()
        inverse = scaled_inverse(np.asarray(S), K_a)
        ones = inverse(np.ones(len(K_a))) if self.intercept else np.zeros(len(K_a))

        def solve(r_w: NDArray, r_a: NDArray, r_b: float) -> tuple[NDArray, NDArray, float]:
            # dw = (r_w - X'da) / K_w, so that (K_a + X K_w^-1 X') da = r_a + X (r_w / K_w) + db
            da = inverse(r_a + X @ (r_w / K_w))
            db = (r_b - float(da.sum())) / float(ones.sum()) if self.intercept else 0.0
            da = da + db * ones
            return (r_w - X.T @ da) / K_w, da, db

        return solve


def centered_gram(design: DesignOperator, h: NDArray, intercept: bool) -> NDArray:
    """X' diag(h) X, with the columns centered by the weights h if an intercept is free."""
    G = design.gram(h)
    if intercept and (total := float(h.sum())) > 0:
        sums = design.adjoint(h)
        G = G - np.outer(sums, sums) / total
    # only the upper triangle is meaningful
    upper = np.triu(G)
    return upper + np.triu(upper, 1).T
