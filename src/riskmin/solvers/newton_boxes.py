"""Losses with a quadratic conjugate on an interval, as Newton's method sees them: by kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.losses.pieces import dual_of
from riskmin.risk import Risk
from riskmin.scalar import ROUNDING, Tangent, lowest
from riskmin.solvers.newton_scores import Look, Scores, least
from riskmin.types import Bend, NDArray

EXACT = 2.0**-49
"""A slope in the intercept of this share of what it is made of is zero but for rounding."""
LOOSE = 1e-6
"""On the way along a line, this share will do."""
FLAT = 0.05
"""Searches end where the slope has fallen to this share: closer ones save no steps."""


def _kernels() -> Any:
    from riskmin.kernels import newton  # Numba is imported by the first step, not with the package

    return newton


class Boxes(Scores):
    """The loss of all rows, smoothed by mu around a centre; one multiplier a row, between bounds."""

    damped = False

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

    def look(self, z: NDArray, mu: float, centre: NDArray | None, b: float) -> Look:
        """The multipliers at the scores z, the loss there, and its second derivatives."""
        if not self.intercept:
            return self._settled(z, mu, centre, 0.0)[0]
        b, _ = self._intercept(self._sums(z, z, mu, centre, 0.0), b, EXACT)
        found, tilt, total = self._settled(z, mu, centre, b)
        if abs(tilt) > EXACT * total:
            found = self._mixed(z, mu, centre, found, tilt)
        risk, _ = self.truth(z, b)
        return found._replace(risk=risk)

    def search(
        self, z: NDArray, dz: NDArray, mu: float, centre: NDArray | None, b: float,
        line: Callable[[float], tuple[float, float]], start: float,
    ) -> tuple[float, int]:  # fmt: skip
        """How far to go along dz, where `line` gives slope and second derivative of the rest; and the looks.

        By Newton's method, in a bracket; the intercept follows.
        """
        lo, hi, t, looks = 0.0, np.inf, 1.0, 0
        for _ in range(40):
            sums = self._sums(z, dz, mu, centre, t)
            if self.intercept:
                b, found = self._intercept(sums, b, LOOSE)
            else:
                found = sums(0.0)
            k = _kernels()
            looks += 1
            more, bend = line(t)
            slope, bend = found[k.SLOPE] + more, found[k.BEND] + bend
            if self.intercept and found[k.CURVE] > 0:
                bend -= found[k.TURN] ** 2 / found[k.CURVE]
            if abs(slope) <= FLAT * abs(start):
                break
            lo, hi = (t, hi) if slope < 0 else (lo, t)
            new = t - slope / bend if bend > 0 else np.inf
            inside = lo < new < hi
            new = new if inside else (2 * t if hi == np.inf else 0.5 * (lo + hi))
            if not lo < new < hi:
                break
            t = new
        return t, looks

    def bend(self, look: Look, z: NDArray, mu: float, centre: NDArray | None) -> Bend:
        """The second derivatives; the intercept that follows takes a rank of them."""
        h = look.bends
        assert h is not None
        total = float(h.sum()) if self.intercept else 0.0
        return Bend(h, (h / total**0.5,)) if total > 0 else Bend(h)

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

    def _sums(
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

    def _settled(self, z: NDArray, mu: float, centre: NDArray | None, b: float) -> tuple[Look, float, float]:
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

    def _mixed(self, z: NDArray, mu: float, centre: NDArray | None, one: Look, tilt: float) -> Look:
        """Mixed with one on the other side of the best intercept, so that the slope in it is zero."""
        step = 1e-12 * (1 + abs(one.b))
        other, slope = one, tilt
        while (slope > 0) == (tilt > 0) and slope:
            if step > 1e300:
                return one
            other, slope, _ = self._settled(z, mu, centre, one.b - np.copysign(step, tilt))
            step *= 8
        part = slope / (slope - tilt)
        slopes = part * one.dz + (1 - part) * other.dz
        return one._replace(dz=slopes, offset=part * one.offset + (1 - part) * other.offset)

    def _intercept(self, sums: Callable[[float], NDArray], b: float, enough: float) -> tuple[float, NDArray]:
        """Where the slope in the intercept is zero, by Newton's method in a bracket; and the sums there."""
        k, lo, hi, step = _kernels(), -np.inf, np.inf, 1.0
        for _ in range(100):
            found = sums(b)
            slope, curve = float(found[k.ACROSS]), float(found[k.CURVE])
            if abs(slope) <= enough * found[k.TOTAL]:
                break
            lo, hi = (b, hi) if slope < 0 else (lo, b)
            new = b - slope / curve if curve > 0 else np.inf
            if not lo < new < hi:
                new = 0.5 * (lo + hi) if np.isfinite(hi - lo) else b - np.copysign(step, slope)
                step *= 4
            if not lo < new < hi:
                break
            b = new
        return b, found
