r"""The terms :math:`c_i\, l^*(\gamma_i / c_i)` of a dual: quadratic, or nearly."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from riskmin.losses.pieces import conjugate_of, dual_of
from riskmin.types import Dual, HasConjugate, NDArray

GUARD = 0.9
"""Newton steps go at most this far to an end of the domain at which the conjugate has no slope."""


REACH = 0.5
"""The bend of a conjugate with a slope at its ends is taken over this length: about that of a step."""


class Terms(NamedTuple):
    """Quadratic on intervals, a row at a time: shift x + kink |x| + bend x^2 / 2 for lower <= x <= upper."""

    lower: NDArray
    upper: NDArray
    shift: NDArray
    kink: NDArray
    bend: NDArray

    def of(self, rows: NDArray) -> Terms:
        return Terms(*(a[rows] for a in self))


class Exact:
    """The conjugates of the rows, where they are quadratic."""

    rounds = 1

    def __init__(self, dual: Dual, c: NDArray) -> None:
        counts, size = c > 0, np.where(c > 0, c, 1.0)  # rows of weight zero are fixed at zero
        zero = np.zeros_like(c)
        self.terms = Terms(
            np.where(counts, size * dual.lower, 0.0),
            np.where(counts, size * dual.upper, 0.0),
            zero + dual.shift,
            zero + dual.epsilon,
            dual.square / size,
        )

    def at(self, gamma: NDArray) -> Terms:
        return self.terms

    def value(self, gamma: NDArray) -> tuple[float, float]:
        """sum_i c_i l*(gamma_i / c_i), and the size of its terms."""
        t = self.terms
        parts = t.shift * gamma + t.kink * abs(gamma) + 0.5 * t.bend * gamma * gamma
        return float(parts.sum()), float(abs(parts).sum())

    def along(self, rows: NDArray, gamma: NDArray, step: NDArray, linear: float, square: float) -> float:
        """The whole step: it is exact."""
        return 1.0


class Newton:
    """The conjugates of other losses, by their quadratic models."""

    rounds = 3

    def __init__(self, loss: Any, y: NDArray, c: NDArray) -> None:
        self.loss, self.y, self.c = loss, y, c
        self.size = np.where(c > 0, c, 1.0)
        lower, upper = loss.conjugate_domain(y)
        self.ends = np.where(c > 0, lower, 0.0), np.where(c > 0, upper, 0.0)
        with np.errstate(all="ignore"):
            at_ends = (np.isfinite(loss.conjugate_grad(0.0 * y + end, y)) for end in (lower, upper))
            self.reached = tuple(ok & np.isfinite(e) for ok, e in zip(at_ends, self.ends, strict=True))
            jump = loss.conjugate_grad(0.0 * y + 1e-12, y) - loss.conjugate_grad(0.0 * y - 1e-12, y)
        inside = (lower < 0) & (upper > 0) & (jump > 1e-5)  # smooth ones, and powers, change by less
        self.kink = np.where(inside, 0.5 * jump, 0.0)

    def at(self, gamma: NDArray) -> Terms:
        """The model at gamma: the slope there, and the bend by a difference of slopes."""
        u = gamma / self.size
        # powers have next to no bend at the ends that they reach, and more of it further in
        away = (np.where(ok, 1.0, abs(e - u)) for e, ok in zip(self.ends, self.reached, strict=True))
        near = np.minimum(np.minimum(*away), 1.0)
        far = np.where(self.reached[0] | self.reached[1], REACH, 1e-4)
        h = far * np.where(near > 0, near, 1e-3)
        here, left, right = u, np.maximum(u - h, self.ends[0]), np.minimum(u + h, self.ends[1])
        slopes = [self.loss.conjugate_grad(v, self.y) - self.kink * np.sign(v) for v in (here, left, right)]
        with np.errstate(invalid="ignore", divide="ignore"):
            bend = (slopes[2] - slopes[1]) / (right - left) / self.size
        bend = np.where(np.isfinite(bend), np.maximum(bend, 1e-12), 1e12)
        lower, upper = (
            np.where(ok, self.size * end, gamma + GUARD * (self.size * end - gamma))
            for end, ok in zip(self.ends, self.reached, strict=True)
        )
        return Terms(lower, upper, np.where(self.c > 0, slopes[0], 0.0) - bend * gamma, self.kink, bend)

    def value(self, gamma: NDArray) -> tuple[float, float]:
        parts = self._parts(slice(None), gamma)
        return float(parts.sum()), float(abs(parts).sum())

    def _parts(self, rows: Any, gamma: NDArray) -> NDArray:
        u = np.clip(gamma / self.size[rows], self.ends[0][rows], self.ends[1][rows])
        found: NDArray = self.c[rows] * conjugate_of(self.loss, u, self.y[rows])
        return found

    def along(self, rows: NDArray, gamma: NDArray, step: NDArray, linear: float, square: float) -> float:
        """How much of the step to take, so that the true dual falls: all of it mostly."""
        start, t = self._parts(rows, gamma), 1.0
        while t > 1e-6:
            change = float((self._parts(rows, gamma + t * step) - start).sum())
            if change + t * linear + 0.5 * t * t * square <= 0.0:
                return t
            t *= 0.5
        return 0.0


def has_conjugate(loss: object) -> bool:
    """Whether a loss gives what dual methods need: its conjugate, in either form."""
    return isinstance(loss, HasConjugate) or dual_of(loss, np.ones(1)) is not None
