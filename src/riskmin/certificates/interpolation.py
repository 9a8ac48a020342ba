r"""Optima between two values of alpha, for any convex loss: by mixtures of their weights and of their cuts.

At the optima for :math:`\alpha_0` and :math:`\alpha_1` are weights :math:`w_k` and cuts
:math:`R(v) \ge a_k^\top v + \beta_k`. For :math:`\alpha = (1 - t)\, \alpha_0 + t\, \alpha_1` take

.. math:: \alpha\, w = (1 - t)\, \alpha_0 w_0 + t\, \alpha_1 w_1,
          \qquad (a, \beta) = (1 - t) (a_0, \beta_0) + t (a_1, \beta_1).

A mixture of cuts is a cut, and the objective at w is :math:`R(w) + \tfrac\alpha2 |w|_m^2`, so that the gap is

.. math:: G(\alpha) = R(w) + \frac{\alpha^2 |w|_m^2 + |a|_{1/m}^2}{2 \alpha} - \beta,

The optimum is in the ball of `certificates.ball`, whose center is the mean of w and
:math:`-a / (m \alpha)`, and whose radius is at most :math:`\sqrt{G / \alpha}`. With :math:`s = 1 / \alpha`,
w is linear in s and R convex: between two values of alpha, G is at most a chord in s plus
:math:`r (1/s - \text{its chord})`, where r is the coefficient of alpha in the other terms. Where no row
crosses a kink, the optima of a piecewise linear loss are these mixtures themselves, and G = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from riskmin.certificates.curvature import column_sums
from riskmin.certificates.region import CenteredRows, RowProblem
from riskmin.core import Cut, NDArray
from riskmin.numerics.precision import CUT_ROUNDING, EPSILON, INTERCEPT_SLOPE_ROUNDING, sum_rounding

MAX_GROWTHS = 80
"""Steps that increase the error of the intercept."""
GROWTH = 1.5
"""By how much each."""


class Tube(NamedTuple):
    """Scores of rows for all alpha of a range: on a line between neighboring ends, up to an error."""

    ends: NDArray
    """The scores at the ends, one row per end."""
    error: NDArray
    """The largest error between two ends, one row for each pair of neighbors."""


class Optimum(NamedTuple):
    """A point near the optimum for one alpha."""

    w: NDArray
    b: float
    cut: Cut
    rounding: float
    """How much J at the point may be larger than computed."""


@dataclass(frozen=True)
class FoldRows:
    """The rows of a problem with the penalty m_j w_j^2 / 2, and rows that are not in it."""

    problem: RowProblem
    held: Any
    """The rows that are not in the problem."""

    @cached_property
    def sizes(self) -> tuple[NDArray, NDArray]:
        """The lengths of both kinds of rows, centered, in the metric of 1 / m."""
        one = self.problem
        mean = column_sums(one.X, one.c) if one.intercept else np.zeros(one.X.shape[1])
        inverse = 1 / np.sqrt(one.square)
        inside, held = (CenteredRows(X, mean).scaled_norms(inverse) for X in (one.X, self.held))
        return inside, held

    def risks(self, z: NDArray) -> NDArray:
        """The risk for each row of scores."""
        one = self.problem
        values = one.loss.values(z.ravel(), np.tile(one.y, len(z)))
        return np.asarray(values).reshape(z.shape) @ one.c

    def total_slopes(self, z: NDArray) -> NDArray:
        """The slope of the risk in the intercept for each row of scores; 0 where rounding hides its sign."""
        one = self.problem
        u = one.loss.value_grad(z.ravel(), np.tile(one.y, len(z)), np.ones(z.size))[1].reshape(z.shape)
        total = u @ one.c
        return np.where(np.abs(total) > INTERCEPT_SLOPE_ROUNDING * (np.abs(u) @ one.c), total, 0.0)


@dataclass(frozen=True)
class CutPoint:
    """The optimum of a fold for one alpha, with a cut."""

    rows: FoldRows
    alpha: float
    optimum: Optimum
    z: NDArray
    """Scores of the rows of the problem."""
    centers: NDArray
    """Their scores at the center of the ball."""
    held_centers: NDArray
    """Those of the other rows."""
    held_rounding: NDArray

    @classmethod
    def at(cls, rows: FoldRows, alpha: float, optimum: Optimum) -> CutPoint:
        """The point of an optimum."""
        one, (w, b, cut, _) = rows.problem, optimum
        center = 0.5 * (w - np.asarray(cut.a) / (alpha * one.square))
        z, centers = (np.asarray(one.X @ v) + b for v in (w, center))
        rounding = sum_rounding(len(w)) * (np.asarray(abs(rows.held) @ np.abs(center)) + abs(b))
        return cls(rows, alpha, optimum, z, centers, np.asarray(rows.held @ center) + b, rounding)

    def start(self, alpha: float) -> tuple[NDArray, float]:
        """Weights and intercept near the optimum of another alpha."""
        return self.optimum.w, self.optimum.b

    def scores(self) -> Tube:
        """The scores of the rows that are not in the problem."""
        return self.tubes(self, np.array([self.alpha, self.alpha]))[0]

    def tubes(self, other: CutPoint, ends: NDArray) -> list[Tube]:
        """The scores of these rows for all alpha between the ends, which are between both points."""
        gaps = self._gaps(other, ends)
        # the rounding of the gap is that of the radius squared
        radius = np.sqrt(np.maximum(gaps, 0.0) / ends[:-1])[:, None]
        sizes, held = self.rows.sizes
        centers, errors = self._mixed("centers", other, ends), radius * sizes
        shift = self._intercept_errors(centers, errors) if self.rows.problem.intercept else 0.0 * radius
        rounding = np.maximum(self.held_rounding, other.held_rounding)
        return [Tube(self._mixed("held_centers", other, ends), radius * held + shift + rounding)]

    def _shares(self, other: CutPoint, ends: NDArray) -> NDArray:
        """The t of the ends."""
        width = other.alpha - self.alpha
        return (ends - self.alpha) / width if width else 0.0 * ends

    def _mixed(self, name: str, other: CutPoint, ends: NDArray) -> NDArray:
        """Scores by the mixtures of alpha times the weights."""
        t, (low, high) = self._shares(other, ends), (getattr(point, name) for point in (self, other))
        return np.outer((1 - t) * self.alpha / ends, low) + np.outer(t * other.alpha / ends, high)

    def _gaps(self, other: CutPoint, ends: NDArray) -> NDArray:
        """The largest G between neighboring ends."""
        t, points, m = self._shares(other, ends), (self, other), self.rows.problem.square
        roots = np.sqrt(m)
        low, high = (
            np.append(p.alpha * roots * p.optimum.w, np.asarray(p.optimum.cut.a) / roots) for p in points
        )
        products = low @ low, low @ high, high @ high
        squares = (1 - t) ** 2 * products[0] + 2 * t * (1 - t) * products[1] + t**2 * products[2]
        offsets = [float(p.optimum.cut.b) for p in points]
        mixed = (1 - t) * offsets[0] + t * offsets[1]
        risks, penalties = self.rows.risks(self._mixed("z", other, ends)), squares / (2 * ends)
        rounding = CUT_ROUNDING * (risks + penalties + np.abs(mixed))
        gaps = risks + penalties - mixed + rounding + sum(p.optimum.rounding for p in points)
        width = other.alpha - self.alpha
        slope = (offsets[1] - offsets[0]) / width if width else 0.0
        bend = float((high - low) @ (high - low)) / (2 * width**2) - slope if width else 0.0
        # 1 / s is at most (sqrt alpha' - sqrt alpha)^2 below its chord
        below = max(-bend, 0.0) * np.diff(np.sqrt(ends)) ** 2
        return np.asarray(np.maximum(gaps[:-1], gaps[1:]) + below)

    def _intercept_errors(self, centers: NDArray, errors: NDArray) -> NDArray:
        """How far the intercept may be from that of the center, for each pair of neighboring ends.

        Slopes increase with the scores: the sum of those at the least scores is positive beyond the best
        intercept, and the sum of those at the largest scores is negative below it.
        """
        least, largest = np.minimum(centers[:-1], centers[1:]), np.maximum(centers[:-1], centers[1:])
        up = self._first_shift(lambda d, k: self.rows.total_slopes((least - errors)[k] + d) > 0, errors)
        down = self._first_shift(lambda d, k: self.rows.total_slopes((largest + errors)[k] - d) < 0, errors)
        return np.maximum(up, down)[:, None]

    def _first_shift(self, beyond: Callable[[NDArray, NDArray], NDArray], errors: NDArray) -> NDArray:
        """A shift of the scores beyond which the best intercept is not, from a small one upwards."""
        shift = errors @ self.rows.problem.c + EPSILON * (1 + abs(self.optimum.b))
        left = np.arange(len(shift))
        for _ in range(MAX_GROWTHS):
            left = left[~beyond(shift[left, None], left)]
            if not len(left):
                return shift
            shift[left] *= GROWTH
        shift[left] = np.inf
        return shift
