"""Losses with exponentials, as Newton's method sees them: by kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.losses import Exponential, Logistic, Poisson
from riskmin.risk import Risk
from riskmin.scalar import ROUNDING
from riskmin.solvers.newton_rows import Rows
from riskmin.solvers.newton_scores import Look
from riskmin.types import NDArray

KINDS = Logistic, Exponential, Poisson
"""Those that kernels know."""


def _kernels() -> Any:
    from riskmin.kernels import smooth  # Numba is imported by the first step, not with the package

    return smooth


class Curves(Rows):
    """The loss of all rows, which is smooth: mu is 0, and there is no centre."""

    def __init__(self, risk: Risk, intercept: bool) -> None:
        super().__init__(risk, intercept)
        k, y = _kernels(), np.ascontiguousarray(self.y, dtype=np.float64)
        if isinstance(risk.loss, Logistic):
            self.along, self.settle = k.logistic_along, k.logistic_settle
            self.args: tuple[NDArray, ...] = y, self.c
            self.more: tuple[NDArray, ...] = ()
            return
        self.along, self.settle = k.exponential_along, k.exponential_settle
        if isinstance(risk.loss, Poisson):
            tiny = np.finfo(np.float64).smallest_normal  # 0 log y is 0 for y = 0
            self.args, self.more = (np.ones(len(y)), y, self.c), (np.log(np.maximum(y, tiny)),)
        else:
            none = np.zeros(len(y))
            self.args, self.more = (-y, none, self.c), (none,)

    def sums(
        self, z: NDArray, dz: NDArray, mu: float, centre: NDArray | None, t: float
    ) -> Callable[[float], NDArray]:
        """Of an intercept: slopes and second derivatives at z + t dz."""

        def sums(b: float) -> NDArray:
            def part(s: slice) -> NDArray:
                out = np.empty(6)
                self.along(z[s], dz[s], t, b, *(a[s] for a in self.args), out)
                return out

            found: NDArray = sum(self.passes.each(part))
            return found

        return sums

    def settled(self, z: NDArray, mu: float, centre: NDArray | None, b: float) -> tuple[Look, float, float]:
        """The look at one intercept, the slope of its cut in that, and the size of what this is made of."""
        slopes, bends, args = np.empty_like(z), np.empty_like(z), self.args + self.more

        def part(s: slice) -> NDArray:
            out = np.empty(5)
            self.settle(z[s], b, *(a[s] for a in args), slopes[s], bends[s], out)
            return out

        truth, offset, rounding, tilt, total = (float(v) for v in sum(self.passes.each(part)))
        return Look(slopes, offset - ROUNDING * rounding, b, truth, bends), tilt, total

    def least(
        self, sums: Callable[[float], NDArray], z: NDArray, b: float, enough: float
    ) -> tuple[float, NDArray]:
        """Where the slope in the intercept is zero, which exponentials know; and the sums there."""
        if not isinstance(self.loss, Logistic):
            # a e^b - d, or a e^b - d e^-b: Newton's steps to the root are long or many
            k, found = _kernels(), sums(b)
            both = 1 + isinstance(self.loss, Exponential)
            fall = float(found[k.CURVE] - found[k.ACROSS])
            rise = fall + 2 * float(found[k.ACROSS]) if both == 2 else float(found[k.CURVE])
            if fall > 0 and rise > 0:
                b += math.log(fall / rise) / both
        return super().least(sums, z, b, enough)
