r"""The master problem by an interior-point method, where the penalty of some weights is nearly zero.

.. math:: \min_{w, \xi}\; \xi + \lambda\,\Omega(w) \quad\text{with}\quad \xi \ge a_t^\top w + b_t,\;
          \xi \ge 0.

In raw units, a column of size 1e6 has a penalty of :math:`10^{-12} \lambda` in preconditioned variables. The
inner products :math:`a_s^\top K^{-1} a_t / \lambda` of the cuts are then up to 1e18, so that their rounding
errors exceed J, and the slope :math:`A^\top \alpha` must vanish to ten digits. Here the system that is
factorized is :math:`\lambda K + A^\top H A` in the weights, in which a small penalty does no harm. The floor
:math:`\xi \ge 0` keeps the minimizer near the cuts, where that of few cuts alone is some 1e9 away.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, to_numpy
from riskmin.core import Array, Cut, NDArray
from riskmin.core.deadline import check_each
from riskmin.numerics.barrier import BarrierVariables
from riskmin.numerics.saddle_point import SaddlePoint
from riskmin.problem.objective import Objective


class BarrierProgram:
    """The problem of a set of cuts for a separable regularizer."""

    MAX_DIM = 500
    """Longest w: each step factorizes a matrix of that size."""
    MAX_STEPS = 60
    """Steps of the interior-point method; some 10 to 20 suffice."""
    GAP_SHARE = 0.01
    """Share of the gap of the run that the gap of its master problem may be."""
    ROUNDING = 1e-13
    """The gap of the master problem is not reduced below this share of J."""
    INACTIVE_SHARE = 1e-5
    """Cuts of multipliers below this share of the largest one are not active."""

    def __init__(self, reg: Any, lam: float, dim: int) -> None:
        terms = reg.terms(np.zeros(dim))
        self.reg, self.lam = reg, lam
        self.terms = {
            "epsilon": lam * np.asarray(terms.absolute, dtype=float),
            "square": lam * np.asarray(terms.square, dtype=float),
            "lower": np.asarray(terms.lower, dtype=float),
            "upper": np.asarray(terms.upper, dtype=float),
        }

    @classmethod
    def from_objective(cls, obj: Objective) -> BarrierProgram | None:
        """Return the program for few weights with a separable regularizer, none of them unpenalized."""
        if not obj.reg.separable or obj.reg.n_unpenalized or obj.risk.dim > cls.MAX_DIM:
            return None
        return cls(obj.reg, obj.lam, obj.risk.dim)

    def is_inaccurate(self, A: Array, b: NDArray, alpha: NDArray, w: Array, value: float) -> bool:
        """Whether the gap of multipliers and a minimizer exceeds the allowed one; J is `value`."""
        rows, point = np.asarray(to_numpy(A), dtype=float), np.asarray(to_numpy(w), dtype=float)
        bound = self._bound(rows, b, alpha)
        # without multipliers of the floor R >= 0, the minimum of the model may be negative
        floor = 0.0 if alpha.sum() < 1 - 1e-9 else -np.inf
        gap = self._value(rows, b, point, floor) - bound
        return not gap <= self._allowed(value, bound)

    def _allowed(self, value: float, bound: float) -> float:
        """Return the gap of the master problem that is small relative to that of the run."""
        return self.GAP_SHARE * (value - max(bound, 0.0)) + self.ROUNDING * abs(value)

    def _value(self, A: NDArray, b: NDArray, w: NDArray, floor: float = 0.0) -> float:
        """Return the value of the model at w."""
        return max(float(np.max(A @ w + b)), floor) + self.lam * float(self.reg.value(w))

    def _bound(self, A: NDArray, b: NDArray, alpha: NDArray) -> float:
        """Return the lower bound of the mixture, scaled as in `Objective.lower` where it must be."""
        a, s = alpha @ A, 1.0
        if self.reg.polyhedral:
            s = self.reg.scale(Cut(a, float(alpha @ b)), self.lam)
        return s * float(alpha @ b) - self.lam * float(self.reg.conjugate(-s / self.lam * a))

    def solve(self, A: Array, b: NDArray, w: Array, value: float) -> tuple[NDArray, Array]:
        """Return the multipliers of the cuts, of sum at most one, and the minimizer of the model.

        The method starts at w, where J is `value`.
        """
        rows, point = np.asarray(to_numpy(A), dtype=float), np.asarray(to_numpy(w), dtype=float)
        saddle = self._saddle_point(np.vstack([rows, 0 * rows[:1]]), np.append(b, 0.0), point)
        best_bound, alpha = -np.inf, np.zeros(len(b))
        best_value, minimizer = np.inf, point
        for _ in check_each(range(self.MAX_STEPS)):
            if not saddle.step() > 0:
                break
            x, point = saddle.multipliers.x, self.reg.prox(saddle.weights.x, 0.0)
            x = x[:-1] / x.sum()
            if (bound := self._bound(rows, b, x)) > best_bound:
                best_bound, alpha = bound, x
            if (model := self._value(rows, b, point)) < best_value:
                best_value, minimizer = model, point
            if best_value - best_bound <= self._allowed(value, best_bound):
                break
        return alpha, as_array_like(minimizer, A)

    def _saddle_point(self, A: NDArray, offsets: NDArray, w: NDArray) -> SaddlePoint:
        r"""Return :math:`\min_w \max_x\; x^\top (A w + b) + \lambda\,\Omega(w)` over the simplex, at w."""
        m, height = len(offsets), A @ w + offsets
        # a mean slack as large as the differences of the cuts at w
        spread = float(np.ptp(height)) + 1e-3 * float(np.max(np.abs(offsets))) + 1e-300
        weights = BarrierVariables(w, spread / m, **self.terms)
        cuts = BarrierVariables(np.full(m, 1 / m), spread / m, shift=-offsets, lower=0.0)
        b = -float(height.max()) - spread  # -xi, above all cuts
        return SaddlePoint(
            _CutRows(A), np.arange(m), (weights, cuts), intercept=True, b=b, total=1.0, by_rows=False
        )


class _CutRows:
    """The products with the slopes of the cuts, as the rows of X."""

    def __init__(self, A: NDArray) -> None:
        self.A, self.shape = A, A.shape

    def forward(self, w: NDArray) -> NDArray:
        return self.A @ w

    def adjoint(self, x: NDArray) -> NDArray:
        return x @ self.A

    def centered_gram(self, h: NDArray) -> NDArray:
        """Return the matrix of the slopes less their mean, which may be 1e9 times as large."""
        centered = self.A - (h @ self.A) / float(h.sum())
        return (centered.T * h) @ centered
