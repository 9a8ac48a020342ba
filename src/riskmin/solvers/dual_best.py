"""The best point of a dual method for many classes: what its weights are worth shows only now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from riskmin.objective import Objective
from riskmin.scalar import Tangent, lowest, shrink
from riskmin.types import Cut, NDArray

ENOUGH = 0.01
"""The line search ends within this part of the gap."""


@dataclass
class BestPoint:
    """A point and its scores: the best one on the line from the last such point to each new one.

    While the bound rises steadily, J at the weights of the multipliers goes up and down; on these lines it
    falls, and proves in fewer epochs what the bound allows. A look costs O(n k), and no pass over X.
    """

    obj: Objective
    terms: tuple[NDArray, NDArray, NDArray]
    """Classes, weights and costs."""
    w: NDArray
    z: NDArray

    def meet(self, w: NDArray, z: NDArray, risk: float, cut: Cut) -> float:
        """J at the best point between this one and w, of scores z; which is this one from now on."""
        from riskmin.kernels.multiclass_checks import along

        obj, d, dz = self.obj, w - self.w, z - self.z
        reg: Any = obj.reg.line(self.w, d)

        def look(t: float) -> Tangent:
            (r, dr), (o, do) = along(self.z, dz, t, *self.terms), reg(t)
            return Tangent(t, r + obj.lam * o, dr + obj.lam * do)

        last, here = look(0.0), Tangent(1.0, risk + obj.lam * obj.reg.value(w), look(1.0).slope)
        found = lowest(last, here)
        if last.slope < 0 < here.slope:
            slack = ENOUGH * (found.value - obj.lower(cut))
            found = lowest(found, *shrink(look, last, here, lambda best, bound: best - bound <= slack))
        if found.x == 1:
            self.w, self.z = w, z
        elif found.x > 0:
            self.w, self.z = self.w + found.x * d, self.z + found.x * dz
        return found.value
