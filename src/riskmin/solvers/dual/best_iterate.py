"""The best iterate of a dual method for multiclass problems, which evaluates J only at checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from riskmin.core import Cut, NDArray
from riskmin.numerics.univariate import Tangent, best_tangent, refine_bracket
from riskmin.problem.objective import Objective


@dataclass
class BestIterate:
    """The best point, with its scores, on the segment from the last such point to each new one.

    While the lower bound rises monotonically, J at the weights of the multipliers oscillates. On these
    segments J decreases, and reaches what the bound allows in fewer epochs. A line evaluation costs O(n k),
    and no pass over X.
    """

    LINE_SEARCH_GAP_SHARE = 0.01
    """The line search ends within this fraction of the gap."""

    obj: Objective
    terms: tuple[NDArray, NDArray, NDArray]
    """Class indices, weights and costs of the rows."""
    w: NDArray
    z: NDArray

    def update(self, w: NDArray, z: NDArray, risk: float, cut: Cut) -> float:
        """Move to the best point between this one and w, whose scores are z; return J there."""
        from riskmin._numba.dual.multiclass_check import max_margin_along_line

        obj, d, dz = self.obj, w - self.w, z - self.z
        reg: Any = obj.reg.line(self.w, d)

        # J along w + t d: the loss at the scores z + t dz, the regularizer by its restriction to the line.
        def evaluate(t: float) -> Tangent:
            (r, dr), (o, do) = max_margin_along_line(self.z, dz, t, *self.terms), reg(t)
            return Tangent(t, r + obj.lam * o, dr + obj.lam * do)

        # R(w) was computed by the check: only the slope at t = 1 is needed.
        start, end = evaluate(0.0), Tangent(1.0, risk + obj.lam * obj.reg.value(w), evaluate(1.0).slope)
        minimum = best_tangent(start, end)
        # The minimum is inside the segment only if J decreases at its start and increases at its end.
        if start.slope < 0 < end.slope:
            slack = self.LINE_SEARCH_GAP_SHARE * (minimum.value - obj.lower(cut))
            minimum = best_tangent(
                minimum, *refine_bracket(evaluate, start, end, lambda best, bound: best - bound <= slack)
            )
        # The scores are linear in w, so those of the new point need no pass over X.
        if minimum.x == 1:
            self.w, self.z = w, z
        elif minimum.x > 0:
            self.w, self.z = self.w + minimum.x * d, self.z + minimum.x * dz
        return minimum.value
