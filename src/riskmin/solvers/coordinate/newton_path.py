r"""All strengths of a regularizer by proximal Newton steps: certified minimizers for smooth losses.

About a point (w, b) with the slopes s and the curvatures h of the risk in the scores, the model of J is

.. math:: s^\top u + \tfrac12 u^\top \mathrm{diag}(h)\, u + \lambda\,\Omega(v), \qquad u = X (v - w) + d,

minimized over the intercept's step d by a Schur complement, and over v by the loops of `gram_path`. The
curvatures are kept, from lam to lam, while each step takes most of the gap. The cut is that of the slopes,
balanced to sum zero; it allows for the rounding of sums by the norms of the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import Cut, NDArray, Shard
from riskmin.core.deadline import check
from riskmin.losses.conjugate import Conjugate
from riskmin.numerics.precision import EPSILON
from riskmin.problem.certificate import balanced
from riskmin.problem.second_moments import QuadraticRisk, SecondMoments, center_of
from riskmin.solvers.coordinate.gram_path import Minimum, gram_path, kernels
from riskmin.solvers.coordinate.subproblem import CoordinateProblem

MAX_STEPS, MAX_HALVINGS = 50, 30
"""Steps and halvings of one until a lam is left to other solvers."""
KEPT_WHILE_GAP_FALLS_BY = 0.3
"""Curvatures are computed again after a step that leaves more than this share of the gap."""
MODEL_GAP_SHARE = 0.1
"""A model is minimized to this share of the gap, and to half as much after each step."""
INTERCEPT_SHARE = 2e-3
"""The intercept moves on at the last point if that lowers J by half of this share of the tolerance."""


class Point(NamedTuple):
    """Weights of the centered columns and their intercept, with what one pass over the rows yields there."""

    w: NDArray
    b: float
    z: NDArray
    risk: float
    slopes: NDArray
    grad: NDArray
    """X' s for the slopes s, and for those that are balanced."""
    u: NDArray
    """The balanced slopes per unit weight: multipliers of a cut."""


class Model(NamedTuple):
    """The Hessian of the risk: G, without the intercept, and what minimizes over it."""

    G: NDArray
    means: NDArray
    total: float


@dataclass
class SmoothRows:
    """Centered rows in this process, with a smooth loss that has second derivatives and a conjugate."""

    X: NDArray
    y: NDArray
    c: NDArray
    loss: Any
    center: NDArray | None
    """The numbers that were subtracted from the columns; None without an intercept."""

    @classmethod
    def of(cls, rows: Shard, loss: Any, has_intercept: bool) -> SmoothRows:
        """The rows of positive weight, with their columns centered if there is an intercept."""
        X: Any = rows.X
        used = slice(None) if rows.c.all() else rows.c > 0
        X, y, c = X.array[used], rows.y[used], rows.c[used]
        center = center_of(X, y, has_intercept)[:-1]
        return cls(X - center, y, c, loss, center if has_intercept else None)

    @cached_property
    def dual(self) -> Conjugate:
        result: Conjugate = self.loss.conjugate(self.y)
        return result

    @cached_property
    def sizes(self) -> NDArray:
        """Norms of the columns: entry j of X' (c u) errs by at most rounding |u| sizes_j."""
        return np.asarray(np.sqrt(np.einsum("ij,ij,i->j", self.X, self.X, self.c)))

    @property
    def rounding(self) -> float:
        return sum(self.X.shape, start=20) * EPSILON

    def at(self, w: NDArray, b: float) -> Point:
        """The point w with the intercept b of the centered columns."""
        z = self.X @ w + b
        risk, slopes = self.loss.value_grad(z, self.y, self.c)
        u = slopes / self.c
        u = np.clip(u, self.dual.lower, self.dual.upper)
        if self.center is not None:
            u = balanced(u, self.c, self.dual)
        grad = np.column_stack([slopes, self.c * u]).T @ self.X
        return Point(w, b, z, float(risk), slopes, grad, u)

    def excess(self, point: Point) -> float:
        """The derivative of the risk in the intercept; 0 if there is none."""
        return 0.0 if self.center is None else float(point.slopes.sum())

    def model(self, point: Point) -> Model:
        """The Hessian at a point."""
        h = np.asarray(self.loss.hessian(point.z, self.y, self.c).diagonal)
        h = np.maximum(h, CoordinateProblem.CURVATURE_FLOOR_SHARE * (float(h.sum()) or 1.0) * self.c)
        zeros = np.zeros(self.X.shape[1] + 1)
        M = SecondMoments.of_rows(self.X, zeros[:1].repeat(len(h)), h, zeros).M
        means = zeros[:-1] if self.center is None else M[0, 1:-1] / M[0, 0]
        return Model(M[1:-1, 1:-1] - np.outer(means, M[0, 1:-1]), means, float(M[0, 0]))

    def value(self, point: Point, terms: NDArray) -> tuple[float, float]:
        """J, and a bound of its rounding error."""
        w, size = point.w, np.sqrt(self.c @ (point.slopes / self.c) ** 2)
        value = point.risk + float(terms[0] @ abs(w) + 0.5 * terms[1] @ (w * w))
        return value, self.rounding * (value + 2 * float(size) * (float(self.sizes @ abs(w)) + abs(point.b)))

    def lower(self, point: Point, terms: NDArray) -> tuple[float, Cut]:
        """A lower bound of min J, and the cut that proves it."""
        a, error = point.grad[1], self.rounding * float(np.sqrt(self.c @ point.u**2))
        t = kernels().largest_scale(a, error, self.sizes, terms)
        least, loss = kernels().least_over(t, a, error, self.sizes, terms)
        u = t * point.u
        conjugates = self.dual.value(u)
        size = abs(conjugates) + 2 * self.dual.cancelling(u)
        offset = -float(self.c @ conjugates) - self.rounding * float(self.c @ size)
        if not offset + least > 0:
            return 0.0, Cut(np.zeros(len(a)), 0.0)
        return offset + least, Cut(t * a, offset - loss)

    def minimum(self, point: Point, value: float, lower: float, cut: Cut) -> Minimum:
        """The point in the columns as they are, with a bound of J there."""
        if self.center is None:
            return Minimum(point.w, 0.0, value, lower, cut)
        # the rounding of the intercept changes all scores
        error = self.rounding * (abs(point.b) + float(abs(self.center) @ abs(point.w)))
        raised = 2 * error * float(abs(point.slopes).sum())
        return Minimum(point.w, point.b - float(self.center @ point.w), value + raised, lower, cut)


def newton_path(rows: SmoothRows, all_terms: NDArray, b: float, tol: float, atol: float) -> Iterator[Minimum]:
    """Minimize with each penalty in turn, the strongest first, from w = 0 and the best intercept there.

    A gap that is not proved to be within the tolerances is returned as it is.
    """
    w, model = np.clip(np.zeros(rows.X.shape[1]), *all_terms[0, 2:]), None
    start = point = rows.at(w, b)
    for terms in all_terms:
        last, first = np.inf, sum(rows.value(start, terms))
        for step in range(MAX_STEPS):
            check()
            value, error = rows.value(point, terms)
            goal = max(tol * value, atol)
            lower, cut = rows.lower(point, terms)
            gap = value + error - lower
            # no result is worse than the start
            reported, at = min((value + error, 1), (first, 0))
            minimum = rows.minimum((start, point)[at], reported, lower, cut)
            if model is None or (gap > goal and gap > KEPT_WHILE_GAP_FALLS_BY * last):
                model = rows.model(point)
            last, shift = gap, rows.excess(point) / model.total
            if gap > goal:
                new = _step(rows, point, model, terms, value, MODEL_GAP_SHARE * gap * 0.5**step)
                if new is None:
                    break
                point, full = new
                model = model if full else None
                continue
            if shift * shift * model.total <= INTERCEPT_SHARE * goal:
                break
            moved = rows.at(point.w, point.b - shift)
            if not moved.risk < point.risk:
                break
            point = moved
        yield minimum


def _step(
    rows: SmoothRows, point: Point, model: Model, terms: NDArray, value: float, gap: float
) -> tuple[Point, bool] | None:
    """The point after a step to the minimizer of the model, or a part of it; None if J does not decrease."""
    w, excess = point.w, rows.excess(point)
    grad = point.grad[0] - model.means * excess
    q, sizes = model.G @ w - grad, np.sqrt(np.maximum(np.diag(model.G), 0.0))
    R0 = max(point.risk + float(q @ w) - 0.5 * float(w @ model.G @ w), 0.0)
    quadratic = QuadraticRisk(model.G, q, R0, sizes, np.sqrt(2 * R0), EPSILON, None)
    d = gram_path(quadratic, terms[None], 0.0, gap, w).W[0] - w
    # the means are zero without an intercept
    shift = -excess / model.total - float(model.means @ d)

    def penalty(v: NDArray) -> float:
        return float(terms[0] @ abs(v) + 0.5 * terms[1] @ (v * v))

    predicted = float(point.grad[0] @ d) + excess * shift + penalty(w + d) - penalty(w)
    t = 1.0
    for _ in range(MAX_HALVINGS):
        new = rows.at(w + t * d, point.b + t * shift)
        decrease = value - new.risk - penalty(new.w)
        if decrease >= -CoordinateProblem.SUFFICIENT_DECREASE * t * predicted - 4 * EPSILON * value:
            return new, t == 1.0
        t *= 0.5
    return None
