r"""The terms :math:`c_i\, l^*(\gamma_i / c_i)` of a kernel dual: quadratic, or with quadratic models."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from riskmin.core import NDArray
from riskmin.losses.base import Loss
from riskmin.losses.conjugate import IntervalConjugate


class DualTerms(NamedTuple):
    """Per row, shift x + absolute |x| + curvature x^2 / 2 on the interval lower <= x <= upper."""

    lower: NDArray
    upper: NDArray
    shift: NDArray
    absolute: NDArray
    curvature: NDArray

    def take_rows(self, rows: NDArray) -> DualTerms:
        """Return the terms of some rows."""
        return DualTerms(*(a[rows] for a in self))


class ExactTerms:
    """The conjugates of the rows, where they are quadratic on an interval."""

    rounds = 1

    def __init__(self, dual: IntervalConjugate, c: NDArray) -> None:
        # Rows of weight zero are fixed at zero.
        positive, weight = c > 0, np.where(c > 0, c, 1.0)
        # c l*(g / c) = shift g + epsilon |g| + square g^2 / (2 c) for c lower <= g <= c upper.
        zero = np.zeros_like(c)
        self.terms = DualTerms(
            np.where(positive, weight * dual.lower, 0.0),
            np.where(positive, weight * dual.upper, 0.0),
            zero + dual.shift,
            zero + dual.epsilon,
            dual.square / weight,
        )

    def quadratic_model(self, gamma: NDArray) -> DualTerms:
        """Return the terms, which do not depend on gamma."""
        return self.terms

    def value(self, gamma: NDArray) -> tuple[float, float]:
        """Return sum_i c_i l*(gamma_i / c_i) and the sum of its absolute terms."""
        t = self.terms
        parts = t.shift * gamma + t.absolute * abs(gamma) + 0.5 * t.curvature * gamma * gamma
        return float(parts.sum()), float(abs(parts).sum())

    def step_length(
        self, rows: NDArray, gamma: NDArray, step: NDArray, linear: float, square: float
    ) -> float:
        """Return 1: the model is exact."""
        return 1.0


class NewtonTerms:
    """The conjugates of other losses, by local quadratic models."""

    MAX_DOMAIN_FRACTION = 0.9
    """Newton steps cover at most this fraction of the distance to an end with infinite slope."""
    DIFFERENCE_LENGTH = 0.5
    """Length of the difference quotient for the curvature, where the slope at an end of the domain is finite:
    about the length of a step."""

    rounds = 3

    def __init__(self, loss: Any, y: NDArray, c: NDArray) -> None:
        self.loss, self.y, self.c = loss, y, c
        self.size = np.where(c > 0, c, 1.0)
        self.conjugate = loss.conjugate(y)
        lower, upper = self.conjugate.lower, self.conjugate.upper
        self.domain = np.where(c > 0, lower, 0.0), np.where(c > 0, upper, 0.0)
        with np.errstate(all="ignore"):
            end_slopes = (np.isfinite(self.conjugate.grad(0.0 * y + end)) for end in (lower, upper))
            # Whether the conjugate has a finite slope at each end of its domain.
            self.finite_end_slope = tuple(
                ok & np.isfinite(e) for ok, e in zip(end_slopes, self.domain, strict=True)
            )
            jump = self.conjugate.grad(0.0 * y + 1e-12) - self.conjugate.grad(0.0 * y - 1e-12)
        # Breakpoint of the conjugate at 0. Smooth conjugates, and powers, change by less over 2e-12.
        nonsmooth = (lower < 0) & (upper > 0) & (jump > 1e-5)
        self.absolute = np.where(nonsmooth, 0.5 * jump, 0.0)

    def quadratic_model(self, gamma: NDArray) -> DualTerms:
        """Return the model at gamma: the slope there, and the curvature by a difference of slopes."""
        # c l*(gamma / c) has the derivative l*'(u) and the second derivative l*''(u) / c, for u = gamma / c.
        u = gamma / self.size
        # Powers have almost no curvature at an end of finite slope, and more inside: use a longer difference.
        distances = (
            np.where(ok, 1.0, abs(e - u)) for e, ok in zip(self.domain, self.finite_end_slope, strict=True)
        )
        distance = np.minimum(np.minimum(*distances), 1.0)
        fraction = np.where(self.finite_end_slope[0] | self.finite_end_slope[1], self.DIFFERENCE_LENGTH, 1e-4)
        h = fraction * np.where(distance > 0, distance, 1e-3)
        # A central difference, shorter on a side where the domain ends.
        center, left, right = u, np.maximum(u - h, self.domain[0]), np.minimum(u + h, self.domain[1])
        slopes = [self.conjugate.grad(v) - self.absolute * np.sign(v) for v in (center, left, right)]
        with np.errstate(invalid="ignore", divide="ignore"):
            curvature = (slopes[2] - slopes[1]) / (right - left) / self.size
        # Keep the model strictly convex, and replace an infinite curvature by a large one.
        curvature = np.where(np.isfinite(curvature), np.maximum(curvature, 1e-12), 1e12)
        # The model may reach an end of finite slope, but only approach one of infinite slope.
        lower, upper = (
            np.where(ok, self.size * end, gamma + self.MAX_DOMAIN_FRACTION * (self.size * end - gamma))
            for end, ok in zip(self.domain, self.finite_end_slope, strict=True)
        )
        # shift + curvature gamma is the derivative at gamma, without that of the absolute value.
        return DualTerms(
            lower, upper, np.where(self.c > 0, slopes[0], 0.0) - curvature * gamma, self.absolute, curvature
        )

    def value(self, gamma: NDArray) -> tuple[float, float]:
        """Return sum_i c_i l*(gamma_i / c_i) and the sum of its absolute terms."""
        parts = self._parts(slice(None), gamma)
        return float(parts.sum()), float(abs(parts).sum())

    def _parts(self, rows: Any, gamma: NDArray) -> NDArray:
        u = np.clip(gamma / self.size[rows], self.domain[0][rows], self.domain[1][rows])
        parts: NDArray = self.c[rows] * self.loss.conjugate(self.y[rows]).value(u)
        return parts

    def step_length(
        self, rows: NDArray, gamma: NDArray, step: NDArray, linear: float, square: float
    ) -> float:
        """Return the part of the step to take so that the exact dual decreases, mostly 1."""
        start, t = self._parts(rows, gamma), 1.0
        # Backtracking: the conjugates change by `change`, the quadratic form by t linear + t^2 square / 2.
        while t > 1e-6:
            change = float((self._parts(rows, gamma + t * step) - start).sum())
            if change + t * linear + 0.5 * t * t * square <= 0.0:
                return t
            t *= 0.5
        return 0.0


def has_conjugate(loss: Loss) -> bool:
    """Return whether a loss provides its conjugate, in either form."""
    return loss.conjugate(np.ones(1)) is not None
