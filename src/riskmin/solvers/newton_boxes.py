"""Losses with a quadratic conjugate on an interval, as Newton's method sees them: by kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.losses.pieces import dual_of
from riskmin.risk import Risk
from riskmin.scalar import ROUNDING, Tangent, lowest
from riskmin.solvers.newton_rows import Rows
from riskmin.solvers.newton_scores import Look, least
from riskmin.types import NDArray

FEW_BENT = 0.1
"""Where a smaller share of the rows has second derivatives, a smooth loss is smoothed further at first."""
LEAST_SHARE = 0.1
"""And down to this share of its own square."""


def _kernels() -> Any:
    from riskmin.kernels import newton  # Numba is imported by the first step, not with the package

    return newton


class Boxes(Rows):
    """The loss of all rows, smoothed by mu around a centre; one multiplier a row, between bounds."""

    short = 0.0  # with thousands of kinks a step, short ones are no sign of a bad direction

    def __init__(self, risk: Risk, intercept: bool) -> None:
        super().__init__(risk, intercept)
        dual = dual_of(risk.loss, self.y)
        assert dual is not None
        self.epsilon, self.square = float(dual.epsilon), float(dual.square)
        self.shift, self.lower, self.upper = (
            np.ascontiguousarray(np.broadcast_to(a, self.y.shape), dtype=np.float64)
            for a in (dual.shift, dual.lower, dual.upper)
        )
        self.pulls: tuple[float, NDArray | None, NDArray] = (0.0, None, self.shift)

    @property
    def least_mu(self) -> float:
        """A smooth loss, such as Huber's, is as smooth without a mu far below its own square."""
        return LEAST_SHARE * self.square if self.smooth else 0.0

    def first_mu(self, z: NDArray, penalty: float) -> float:
        """For a smooth loss 0, unless hardly any row has second derivatives: steps would know no length."""
        if not self.smooth:
            return super().first_mu(z, penalty)
        steepest = max(float(np.abs(self.lower).max()), float(np.abs(self.upper).max()))
        if not np.isfinite(steepest):
            return 0.0
        bends = self.look(z, 0.0, None, 0.0).bends
        assert bends is not None
        if float(bends.sum()) * self.square >= FEW_BENT * float(self.c.sum()):
            return 0.0
        return max(self.truth(z, 0.0)[0] / steepest**2, penalty, self.least_mu)

    def truth(self, z: NDArray, b: float) -> tuple[float, float]:
        """The loss itself, and its intercept."""
        k = _kernels()
        rows = self.shift, self.lower, self.upper, self.c

        def at(b: float) -> Tangent:
            def part(s: slice) -> NDArray:
                out = np.empty(2)
                k.truths(z[s], b, *(a[s] for a in rows), self.epsilon, self.square, out)
                return out

            value, slope = sum(self.passes.each(part))
            return Tangent(b, float(value), float(slope))

        if not self.intercept:
            return at(0.0).value, 0.0
        best = lowest(*least(at, b))
        return best.value, best.x

    # ------------------------------------------------------------ looks
    def _pull(self, mu: float, centre: NDArray | None) -> NDArray:
        """The shift of the conjugate, less mu times the centre; kept until either changes."""
        if centre is None:
            return self.shift
        if self.pulls[0] != mu or self.pulls[1] is not centre:
            with np.errstate(invalid="ignore"):
                start = np.where(self.c > 0, centre / self.c, 0.0)
            self.pulls = mu, centre, self.shift - mu * start
        return self.pulls[2]

    def sums(
        self, z: NDArray, dz: NDArray, mu: float, centre: NDArray | None, t: float
    ) -> Callable[[float], NDArray]:
        """Of an intercept: slopes and second derivatives at z + t dz."""
        k, size = _kernels(), 1 / (self.square + mu)
        rows = self._pull(mu, centre), self.lower, self.upper, self.c

        def sums(b: float) -> NDArray:
            def part(s: slice) -> NDArray:
                out = np.empty(6)
                k.along(z[s], dz[s], t, b, *(a[s] for a in rows), size, self.epsilon, out)
                return out

            found: NDArray = sum(self.passes.each(part))
            return found

        return sums

    def settled(self, z: NDArray, mu: float, centre: NDArray | None, b: float) -> tuple[Look, float, float]:
        """The look at one intercept, the slope of its cut in that, and the size of what this is made of."""
        k, size, slopes, bends = _kernels(), 1 / (self.square + mu), np.empty_like(z), np.empty_like(z)
        rows = self.shift, self._pull(mu, centre), self.lower, self.upper, self.c

        def part(s: slice) -> NDArray:
            out = np.empty(5)
            how = size, self.epsilon, self.square, slopes[s], bends[s], out
            k.settle(z[s], b, *(a[s] for a in rows), *how)
            return out

        truth, offset, rounding, tilt, total = (float(v) for v in sum(self.passes.each(part)))
        return Look(slopes, offset - ROUNDING * rounding, b, truth, bends), tilt, total
