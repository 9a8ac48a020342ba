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

from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, to_numpy
from riskmin.core import Array, Cut, NDArray
from riskmin.core.deadline import check_each
from riskmin.numerics.barrier import BarrierVariables, Linearized, predictor_corrector_step, scaled_inverse
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
        saddle = _MasterSaddlePoint(np.vstack([rows, 0 * rows[:1]]), np.append(b, 0.0), point, self.terms)
        best_bound, alpha = -np.inf, np.zeros(len(b))
        best_value, minimizer = np.inf, point
        for _ in check_each(range(self.MAX_STEPS)):
            if not saddle.step() > 0:
                break
            x, point = saddle.cuts.x[:-1] / saddle.cuts.x.sum(), self.reg.prox(saddle.weights.x, 0.0)
            if (bound := self._bound(rows, b, x)) > best_bound:
                best_bound, alpha = bound, x
            if (model := self._value(rows, b, point)) < best_value:
                best_value, minimizer = model, point
            if best_value - best_bound <= self._allowed(value, best_bound):
                break
        return alpha, as_array_like(minimizer, A)


class _MasterSaddlePoint:
    r"""The variables of :math:`\min_w \max_x\; x^\top (A w + b) + f(w)` over the simplex, with barriers."""

    REFINEMENTS = 2
    """How often the linear system is solved, each time for the residual of the last."""

    def __init__(self, A: NDArray, b: NDArray, w: NDArray, terms: dict[str, NDArray]) -> None:
        m = len(b)
        height = A @ w + b
        # a mean slack as large as the differences of the cuts at w
        spread = float(np.ptp(height)) + 1e-3 * float(np.max(np.abs(b))) + 1e-300
        self.A, self.xi, self.dxi = A, float(height.max()) + spread, 0.0
        self.cuts = BarrierVariables(np.full(m, 1 / m), spread / m, shift=-b, lower=0.0)
        self.weights = BarrierVariables(w, spread / m, **terms)

    def step(self) -> float:
        """Take one step of the predictor-corrector method; return its length."""
        t = predictor_corrector_step([self.weights, self.cuts], self._factorize)
        self.xi += t * self.dxi
        return t

    def _factorize(self) -> Callable[[list[Linearized]], list[NDArray]]:
        """Return the function that solves the optimality conditions with linear slopes.

        With slopes s and curvatures K of both groups, they are s_w + K_w dw + A'(x + dx) = 0,
        s_x + K_x dx = A (w + dw) - xi - dxi, and 1'(x + dx) = 1.
        """
        A, w, x = self.A, self.weights.x, self.cuts.x
        K_w, K_x = (group.linearized(0.0).curvature for group in (self.weights, self.cuts))
        h = 1 / K_x
        total, center = float(h.sum()), (h @ A) / float(h.sum())
        centered = A - center
        inverse = scaled_inverse((centered.T * h) @ centered, K_w)

        def direction(models: list[Linearized]) -> list[NDArray]:
            dw, dx, self.dxi = np.zeros(len(w)), np.zeros(len(x)), 0.0
            # the second round removes what rounding has left of the residuals
            for _ in range(self.REFINEMENTS):
                r_w = -(models[0].slope + K_w * dw + A.T @ (x + dx))
                r_x = A @ (w + dw) - self.xi - self.dxi - models[1].slope - K_x * dx
                r_1 = 1.0 - float((x + dx).sum())
                # more_x = h (A more_w - more_xi + r_x), whose sum is r_1
                shift = (float(h @ r_x) - r_1) / total
                more = inverse(r_w - A.T @ (h * (r_x - shift)))
                more_xi = float(center @ more) + shift
                dx = dx + h * (A @ more - more_xi + r_x)
                dw, self.dxi = dw + more, self.dxi + more_xi
            return [dw, dx]

        return direction
