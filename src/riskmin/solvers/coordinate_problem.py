"""An objective as coordinate descent sees it: what violates optimality, a model of the risk, and a search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.linear import linear_risk
from riskmin.losses import Squared
from riskmin.objective import Objective
from riskmin.regularizers import Separable
from riskmin.risk import REFRESH, rows_of
from riskmin.scalar import Tangent, lowest, shrink
from riskmin.solvers.columns import DenseColumns, SparseColumns, columns_of, every
from riskmin.solvers.cuts import check_intercepts
from riskmin.solvers.points import Point, Points, Seen
from riskmin.solvers.quadratic import Model, Solution
from riskmin.types import Curved, NDArray, Unsuited

FLOOR = 1e-3
"""Rows without curvature get this part of the mean one: a step must not go anywhere for nothing."""
FORCING = 0.1
"""Until its slopes are this part of the largest violation, at most, is a model minimized."""
EXACT = 1e-3
"""And this part is exact enough."""
AHEAD = 16
"""Columns are fetched for so many working sets at a time: a pass over X costs more than some columns."""
SAMPLE, LEAST_COLUMNS = 64, 32
"""A sample to start from has so many rows a column, and those of as many columns at least."""
MANY = 8
"""And it is worth its time where X has this many times its rows."""
STALE = 0.1
"""A curvature from before will do as long as no more than this part of the violation is left."""
NEAR = 0.5
"""Features belong to a working set that are this part of the largest violation away from one of their own."""
ENOUGH = 0.1
"""The part of the decrease a model promises that a step must keep."""
NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Pace:
    """What was learned from the steps so far."""

    damping: float = 0.0
    """How much curvature to add, relative to the mean one, where full steps went too far."""
    forcing: float = FORCING
    """A model is minimized until its slopes are this part of the largest violation."""
    last: float = math.inf
    """The largest violation, when the last model was made."""
    poor: float = 0.0
    """Whether that model took little of it away."""
    stale: float = 0.0
    """Whether it was minimized with a curvature from before."""
    scale: float = 0.0
    """The largest mean curvature so far: that of few rows in a narrow bend says little."""

    def after(self, most: float, left: float | None) -> Pace:
        """Solve models better if much violation is left in the last one's working set, or so little that
        the model was nearly the risk.
        """
        if left is None:  # there was none
            return replace(self, last=most)
        rate = max(left, 0.0) / self.last
        forcing = 0.2 * self.forcing if rate > 0.5 else rate**3  # the next model will be that much better
        forcing = min(max(forcing, EXACT), FORCING)
        poor = rate > (STALE if self.stale else 0.5)
        return replace(self, forcing=forcing, last=most, poor=float(poor))

    def damped(self, t: float, stale: bool) -> Pace:
        """Go less far if only a part t of a step could be taken."""
        damping = max(4 * self.damping, 0.01) if t < 1 else (self.damping / 4 if self.damping > 1e-4 else 0.0)
        return replace(self, damping=damping, stale=float(stale))


@dataclass
class Problem:
    """An objective, with the points where it is looked at and the columns of its X."""

    points: Points
    columns: DenseColumns | SparseColumns
    terms: NDArray
    """Lam times the regularizer: four rows, one for each of its terms."""

    @classmethod
    def of(cls, solver: object, obj: Objective) -> Problem:
        check_intercepts(solver, obj)
        if not isinstance(obj.reg, Separable):
            raise Unsuited(
                "CoordinateDescent needs a regularizer that is a sum over coordinates, such as L1() or "
                f"Elastic(), not {obj.reg!r}: use ProximalGradient or Bundle"
            )
        rows, loss, free = rows_of(obj.risk, solver)
        if not bounded_curvature(loss):
            raise Unsuited(
                f"CoordinateDescent needs a loss whose second derivative is finite, not {loss!r}: use Bundle"
            )
        zero = np.zeros(rows.X.shape[1])
        t = obj.reg.terms(zero)
        terms = np.stack([zero + term for term in (obj.lam * t.absolute, obj.lam * t.square, *t[2:])])
        return cls(Points(obj, rows, loss, free), columns_of(rows), terms)

    def sample(self) -> Objective | None:
        """The objective of every so many-th row, where rows are plenty; none for a risk that is quadratic."""
        rows, loss = self.points.rows, self.points.loss
        stride = len(rows.y) // (SAMPLE * max(rows.X.shape[1], LEAST_COLUMNS))
        X = every(rows.X, stride) if stride >= MANY else None
        if X is None or not rows.c[::stride].any() or isinstance(loss, Squared):
            return None
        risk = linear_risk(
            X, rows.y[::stride], loss, sample_weight=rows.c[::stride], fit_intercept=self.points.free
        )
        return Objective(risk, self.points.obj.reg, self.points.obj.lam)

    def violation(self, w: NDArray, grad: NDArray) -> NDArray:
        """How fast J falls along each coordinate, to the side where it falls most; or less than 0."""
        absolute, square, lower, upper = self.terms
        s = grad + square * w
        ahead = s + np.where(w >= 0, absolute, -absolute)
        behind = s + np.where(w > 0, absolute, -absolute)
        return np.maximum(np.where(w < upper, -ahead, -np.inf), np.where(w > lower, behind, -np.inf))

    def choose(self, w: NDArray, worst: NDArray, start: int) -> tuple[NDArray, NDArray]:
        """The working set: the w_j that are not at an end, and as many that violate optimality most.

        And those that may follow.
        """
        inside = (w != 0) & (w > self.terms[2]) & (w < self.terms[3])
        # those that nearly violate it too: after a step they may
        near = np.minimum(NEAR * worst.max(), 0.25 * self.terms[0])
        outside, held = np.flatnonzero(~inside & (worst > -near)), np.flatnonzero(inside)
        if self.columns.few and len(outside) + len(held) > 0.75 * len(w):
            return np.arange(len(w)), NONE
        size = max(start, len(held))
        order = outside
        if len(order) > AHEAD * size:
            order = order[np.argpartition(-worst[order], AHEAD * size)[: AHEAD * size]]
        order = order[np.argsort(-worst[order], kind="stable")]
        size = max(size, self.columns.room(held, order))
        maybe = np.concatenate([order, outside[worst[outside] > 0]])
        return np.sort(np.concatenate([held, order[:size]])), maybe

    def model(self, at: Point, seen: Seen, columns: NDArray, pace: Pace) -> tuple[Model, Pace]:
        """The quadratic model of the risk over the columns."""
        y, c, z = self.points.rows.y, self.points.rows.c, at.z + at.b
        bend = self.points.loss.curvature(z, y, c)
        pace = replace(pace, scale=max(pace.scale, float(bend.sum())))
        lasts = np.array_equal(bend, self.points.loss.curvature(z + 1.0, y, c))
        bend = np.where(bend > 0, bend, FLOOR * (float(bend.sum()) or 1.0) * c)
        if pace.damping:
            bend = bend + pace.damping * (pace.scale or 1.0) * c
        terms = np.ascontiguousarray(self.terms[:, columns])
        # the risk itself is worth more than a model
        tol, exact = (0.1 if lasts else 1.0) * pace.forcing * pace.last, bool(pace.poor)
        w, grad = at.w[columns], seen.grad[columns]
        return Model(columns, w, grad, seen.slope, bend, terms, self.points.free, tol, lasts, exact), pace

    def foreseen(self, model: Model, found: Solution) -> NDArray | None:
        """The slopes in the scores that a model says are those of its minimizer; None if they will be."""
        if found.bend is None or model.lasts or model.free:
            return None
        return self.points.foresee(model.slope + found.bend * found.u)

    def search(self, at: Point, seen: Seen, model: Model, found: Solution) -> tuple[Point | None, float]:
        """The step to the model's minimizer; or, where J is far from what the model promises, a shorter one.

        The looks are relative to J at the point, so that a small decrease is not lost in a large J.
        """
        y, c = self.points.rows.y, self.points.rows.c
        absolute, square = model.terms[0], model.terms[1]
        step, u = found.w - model.w, found.u + found.b
        old = float(absolute @ np.abs(model.w) + 0.5 * square @ (model.w * model.w))

        def look(t: float) -> Tangent:
            w = model.w + t * step if t < 1 else found.w
            risk, slope = self.points.loss.value_grad(at.z + at.b + t * u, y, c)
            signs = np.where(w == 0, np.sign(step), np.sign(w))  # those just ahead
            value = float(absolute @ np.abs(w) + 0.5 * square @ (w * w)) - old + (float(risk) - seen.risk)
            return Tangent(t, value, float(slope @ u) + float((absolute * signs + square * w) @ step))

        end, noise = look(1.0), 1e-14 * seen.value
        promised = float(seen.slope @ u) + float(absolute @ np.abs(found.w) + 0.5 * square @ found.w**2) - old
        if not (np.any(step) and promised < noise):
            return None, 0.0
        t = 1.0 if end.value <= ENOUGH * promised + noise else _shorter(look, end)
        if t == 0:
            return None, 0.0
        w = at.w.copy()
        w[model.columns] = found.w if t == 1 else model.w + t * step
        new = Point(w, at.z + t * found.u, at.b + t * found.b, at.moves + 1)
        return (self.points.place(w) if new.moves % REFRESH == 0 else new), t


def _shorter(look: Callable[[float], Tangent], end: Tangent) -> float:
    """The best step between 0 and that of the end, nearly; 0 where none is better than none."""
    start = look(0.0)
    while not (math.isfinite(end.value) and math.isfinite(end.slope)) and end.x > 1e-30:
        end = look(0.25 * end.x)
    if start.slope >= 0 or end.slope <= 0:
        return 0.0 if start.slope >= 0 or end.value >= 0 else end.x
    near = shrink(look, start, end, lambda best, bound: best - bound <= -0.1 * best)
    return lowest(*near).x if lowest(*near).value < 0 else 0.0


def bounded_curvature(loss: Any) -> bool:
    """Whether the loss has second derivatives, and they are finite; those of a power below 2 are not."""
    power = float(getattr(loss, "p", getattr(loss, "power", 2.0)))
    return isinstance(loss, Curved) and bool(getattr(loss, "smooth", False)) and power >= 2
