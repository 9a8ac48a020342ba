r"""The ball that holds the optimal weights of any convex loss, and the ends of the intercept that follow.

With w* in a ball, the score :math:`x_i^\top w^*` is in an interval :math:`[z_i - e_i, z_i + e_i]`, and the
slopes of a convex loss increase: the sum :math:`\sum_i c_i l'(z_i \pm e_i + b)` bounds that at w* from both
sides, and its changes of sign bracket the b* at which the latter is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.certificates.curvature import column_sums
from riskmin.certificates.multipliers import RowCuts
from riskmin.certificates.region import CenteredRows
from riskmin.core import NDArray
from riskmin.numerics.precision import CUT_ROUNDING, EPSILON, INTERCEPT_SLOPE_ROUNDING, sum_rounding
from riskmin.problem.objective import Objective
from riskmin.problem.rounding import value_rounding

MAX_BISECTIONS = 200
"""Steps that halve, or first double, an interval of the intercept: enough for all numbers."""


@dataclass(frozen=True)
class Ball:
    """A region that holds the minimizer: |w* - center|_m <= radius, and b* within the ends."""

    rows: CenteredRows
    center: NDArray
    """The weights."""
    inverse_sizes: NDArray
    """1 / sqrt(m_j)."""
    radius: float
    ends: tuple[float, float]
    """The ends of the intercept of centered columns."""

    @property
    def zero(self) -> NDArray:
        """The weights that are certainly zero: none."""
        return np.zeros(len(self.center), dtype=bool)

    def weights(self) -> tuple[NDArray, NDArray]:
        """The ends of the weights."""
        half = self.radius * self.inverse_sizes + 4 * EPSILON * np.abs(self.center)
        return self.center - half, self.center + half

    def intercepts(self) -> tuple[NDArray, NDArray]:
        """The ends of the intercept, in the units of X."""
        zeros = np.zeros((1, len(self.center)))
        lower, upper = self.scores(zeros)
        return lower[0], upper[0]

    def scores(self, X: Any) -> tuple[NDArray, NDArray]:
        """The ends of the scores of rows."""
        z, half = _scores(CenteredRows(X, self.rows.mean), self.center, self.radius, self.inverse_sizes)
        return z - half + self.ends[0], z + half + self.ends[1]


def ball_of_multipliers(obj: Objective, X: Any, w: NDArray, b: float, u: NDArray) -> Ball:
    """The ball of the weights w, with an intercept near the best, and of multipliers u of the rows X."""
    cuts, reg, lam, p = RowCuts(obj), obj.reg.without_sizes, obj.lam, X.shape[1]
    y, c, loss = cuts.y, cuts.c, cuts.loss
    square = np.broadcast_to(np.asarray(reg.terms(w).square, dtype=float), (p,)) if reg.separable else None
    if square is None or not (square > 0).all():
        raise ValueError(
            f"{reg!r} with {type(loss).__name__} leaves the optimum undetermined: regions need the squares "
            "of all weights in the penalty, as in 'l2' and 'elastic'"
        )
    value = float(loss.value_grad(np.asarray(X @ w) + b, y, c)[0]) + lam * float(reg.value(w))
    u, cut = cuts.feasible(u)
    error = value_rounding(obj, w, b)
    gap = max(value - float(obj.lower(cut)), 0.0) + (error if math.isfinite(error) else CUT_ROUNDING * value)
    intercept, u = bool(obj.risk.intercept.profiled), reg.scale(cut, lam) * u
    mean = column_sums(X, c) if intercept else np.zeros(p)
    dual = reg.conjugate_grad(-column_sums(X, c * u) / lam)
    distance = square @ (w - dual) ** 2
    radius = math.sqrt(max(gap / lam - distance / 4, 0.0) + 8 * EPSILON * (square @ (w * w + dual * dual)))
    rows, center, inverse_sizes = CenteredRows(X, mean), (w + dual) / 2, 1 / np.sqrt(square)
    if not intercept:
        return Ball(rows, center, inverse_sizes, radius, (0.0, 0.0))
    z, half = _scores(rows, center, radius, inverse_sizes)

    def total_slope(scores: NDArray) -> Callable[[float], int]:
        def sign(b: float) -> int:
            slopes = loss.value_grad(scores + b, y, c)[1]
            total = float(slopes.sum())
            return int(np.sign(total)) if abs(total) > INTERCEPT_SLOPE_ROUNDING * abs(slopes).sum() else 0

        return sign

    start = float(b + mean @ center)
    with np.errstate(over="ignore", invalid="ignore"):
        ends = _change(total_slope(z + half), start, -1), _change(total_slope(z - half), start, 1)
    return Ball(rows, center, inverse_sizes, radius, ends)


def _scores(
    rows: CenteredRows, center: NDArray, radius: float, inverse_sizes: NDArray
) -> tuple[NDArray, NDArray]:
    """The scores at the center, and by how much those in the ball differ; without the intercept."""
    p = len(center)
    z = rows.times(np.append(0.0, center))
    half = radius * rows.scaled_norms(inverse_sizes)
    return z, half + sum_rounding(p) * rows.absolute().times(np.append(0.0, np.abs(center)))


def _change(sign: Callable[[float], int], start: float, side: int) -> float:
    """The first b on a side beyond which a slope has the sign of that side: the outer end of its roots."""
    inside, width = start, 1e-3 * (1 + abs(start))
    for _ in range(MAX_BISECTIONS):  # to a b with that sign, and beyond
        outside = start + side * width
        if sign(outside) == side:
            break
        inside, width = outside, 2 * width
    else:
        return side * math.inf
    if sign(inside) == side:  # the start is beyond the root already: go back to it
        back = 1e-3 * (1 + abs(start))
        for _ in range(MAX_BISECTIONS):
            outside, inside = inside, start - side * back
            if sign(inside) != side:
                break
            back *= 2
        else:
            return outside
    for _ in range(MAX_BISECTIONS):
        middle = 0.5 * (inside + outside)
        if middle in (inside, outside):
            break
        if sign(middle) == side:
            outside = middle
        else:
            inside = middle
    return outside
