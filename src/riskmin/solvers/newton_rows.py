"""Losses that Newton's method looks at by kernels: along a line, at a point, and with an intercept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.intercept import VANISHED
from riskmin.losses.bends import bent
from riskmin.solvers.newton_scores import Look, Scores, bracketed
from riskmin.types import Bend, NDArray

EXACT = 2.0**-49
"""A slope in the intercept of this share of what it is made of is zero but for rounding."""
NEAR = 1e-13
"""Steps of the intercept that are shorter go after rounding: what slope is left is mixed away."""
LOOSE = 1e-6
"""On the way along a line, this share will do."""


def _names() -> Any:
    from riskmin.kernels import newton  # Numba is imported by the first step, not with the package

    return newton


class Rows(Scores, ABC):
    """The loss of all rows, smoothed by mu around a centre, a row at a time; losses say what kernels find."""

    @abstractmethod
    def sums(
        self, z: NDArray, dz: NDArray, mu: float, centre: NDArray | None, t: float
    ) -> Callable[[float], NDArray]:
        """Of an intercept: slopes and second derivatives at z + t dz."""

    @abstractmethod
    def settled(self, z: NDArray, mu: float, centre: NDArray | None, b: float) -> tuple[Look, float, float]:
        """The look at one intercept, the slope of its cut in that, and the size of what this is made of."""

    def look(self, z: NDArray, mu: float, centre: NDArray | None, b: float) -> Look:
        """The multipliers at the scores z, the loss there, and its second derivatives."""
        if not self.intercept:
            return self.settled(z, mu, centre, 0.0)[0]
        b, _ = self.least(self.sums(z, z, mu, centre, 0.0), z, b, EXACT)
        found, tilt, total = self.settled(z, mu, centre, b)
        if abs(tilt) > EXACT * total:
            found = self._mixed(z, mu, centre, found, tilt)
        if not mu:
            return found  # the loss itself is what was looked at
        risk, _ = self.truth(z, b)
        return found._replace(risk=risk)

    def search(
        self, z: NDArray, dz: NDArray, mu: float, centre: NDArray | None, b: float,
        line: Callable[[float], tuple[float, float]], start: float,
    ) -> tuple[float, int]:  # fmt: skip
        """How far to go along dz, where `line` gives slope and second derivative of the rest; and the looks.

        By Newton's method, in a bracket; the intercept follows.
        """
        k, last = _names(), 0.0
        found = self.sums(z, dz, mu, centre, 0.0)(b) if self.intercept else None

        def at(t: float) -> tuple[float, float]:
            nonlocal b, last, found
            sums = self.sums(z, dz, mu, centre, t)
            if found is None:
                there = sums(0.0)
            else:
                b, there = self.least(sums, z, b + _follows(found, t - last), LOOSE)
                last, found = t, there
            slope, bend = line(t)
            slope, bend = there[k.SLOPE] + slope, there[k.BEND] + bend
            if self.intercept and there[k.CURVE] > 0:
                bend -= there[k.TURN] ** 2 / there[k.CURVE]
            return float(slope), float(bend)

        return bracketed(at, start)

    def bend(self, look: Look, z: NDArray, mu: float, centre: NDArray | None) -> Bend:
        """The second derivatives; the intercept that follows takes a rank of them."""
        assert look.bends is not None
        return bent(look.bends, self.intercept)

    def least(
        self, sums: Callable[[float], NDArray], z: NDArray, b: float, enough: float
    ) -> tuple[float, NDArray]:
        """Where the slope in the intercept is zero, by Newton's method in a bracket; and the sums there."""
        k, lo, hi, step, start = _names(), -np.inf, np.inf, 1.0, b
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
            if not lo < new < hi or abs(new - b) <= NEAR * (1 + abs(b)):
                break
            b = new
        else:
            self.truth(z, start)  # refuses risks that fall for ever
        if found[k.TOTAL] <= VANISHED:
            self.truth(z, start)
        return b, found

    def _mixed(self, z: NDArray, mu: float, centre: NDArray | None, one: Look, tilt: float) -> Look:
        """Mixed with one on the other side of the best intercept, so that the slope in it is zero."""
        step = 1e-12 * (1 + abs(one.b))
        other, slope = one, tilt
        while (slope > 0) == (tilt > 0) and slope:
            if step > 1e300:
                return one
            other, slope, _ = self.settled(z, mu, centre, one.b - np.copysign(step, tilt))
            step *= 8
        part = slope / (slope - tilt)
        slopes = part * one.dz + (1 - part) * other.dz
        return one._replace(dz=slopes, offset=part * one.offset + (1 - part) * other.offset)


def _follows(found: NDArray, step: float) -> float:
    """By how much the best intercept changes along a step, as far as second derivatives tell."""
    k = _names()
    return -step * float(found[k.TURN] / found[k.CURVE]) if found[k.CURVE] > 0 else 0.0
