r"""Coordinate descent on working sets of features, for smooth losses with sparse regularizers.

Each step is a pass over all columns, which gives the gradient and so the cut and the features that violate
optimality; a quadratic model of the risk over few of them; its minimizer; and a search of J on the way there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from riskmin.linear import linear_risk
from riskmin.losses import Squared
from riskmin.objective import Objective
from riskmin.regularizers import Separable
from riskmin.risk import REFRESH, rows_of
from riskmin.scalar import Tangent, lowest, shrink
from riskmin.solvers.bundle import check_count
from riskmin.solvers.columns import DenseColumns, SparseColumns, columns_of, every
from riskmin.solvers.cuts import check_intercepts
from riskmin.solvers.points import Point, Points, Seen
from riskmin.solvers.quadratic import Model, Solution
from riskmin.types import Array, Curved, Iterate, NDArray, Unsuited

FLOOR = 1e-3
"""Rows without curvature get this part of the mean one: a step must not go anywhere for nothing."""
FORCING = 0.1
"""Until its slopes are this part of the largest violation, at most, is a model minimized."""
EXACT = 1e-3
"""And this part is exact enough."""
TRUSTED = 0.01
"""What models foresee is worth a look if they are minimized better than this."""
AHEAD = 16
"""Columns are fetched for so many working sets at a time: a pass over X costs more than some columns."""
SAMPLE, LEAST_COLUMNS = 64, 32
"""A sample to start from has so many rows a column, and those of as many columns at least."""
MANY = 8
"""And it is worth its time where X has this many times its rows."""
MOST_SAMPLED, SAMPLED_TOL = 20, 1e-2
"""So many steps, or down to this gap, are taken on it."""
STALE = 0.1
"""A curvature from before will do as long as no more than this part of the violation is left."""
NEAR = 0.5
"""Features belong to a working set that are this part of the largest violation away from one of their own."""
NONE = np.empty(0, dtype=np.int64)
ENOUGH = 0.1
"""The part of the decrease a model promises that a step must keep."""


@dataclass(frozen=True)
class CoordinateDescent:
    r"""Coordinate descent on working sets, the solver for smooth losses with L1-type regularizers.

    Each step takes the gradient, and with it a cut; chooses the features with :math:`w_j \ne 0` and as many
    that violate optimality most; minimizes lam Omega plus a quadratic model of the risk over them,

    .. math:: \nabla R(w)^\top d + \tfrac12 d^\top X^\top D X d, \quad D = \mathrm{diag}(c_i\, l''(z_i, y_i)),

    one coordinate at a time, on the columns of X or on their Gram matrix, whichever is cheaper; and goes
    there, or part of the way. For `Squared` the model is the risk itself. Zeros of w are exact. Of other
    losses, the slopes that a model foresees at its minimizer make a cut too, which proves as much as the
    next step's would; and where rows are plenty, w = 0 is left for what a sample of them leads to.

    For losses with second derivatives, and sums over coordinates: `L1`, `Elastic`, `L2`, and each of them in
    a `Box`. Columns that were copied out of X stay with the risk, so that a path of several lam pays once.

    Parameters
    ----------
    start : int
        How many features the first working set has, beside those with w_j != 0.

    References
    ----------
    M. Massias, A. Gramfort, J. Salmon, Celer: a fast solver for the Lasso with dual extrapolation, ICML 2018.
    G.-X. Yuan, C.-H. Ho, C.-J. Lin, An improved GLMNET for L1-regularized logistic regression, JMLR 2012.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, CoordinateDescent, Objective, Squared, linear_risk, minimize
    >>> J = Objective(linear_risk(np.eye(2), np.array([3.0, 0.5]), Squared()), L1(), lam=0.5)
    >>> result = minimize(J, CoordinateDescent(), tol=1e-9)
    >>> result.status, result.w.round(9).tolist()
    ('converged', [2.0, 0.0])
    """

    start: int = 64

    def __post_init__(self) -> None:
        check_count(self, "start")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield points of decreasing objective."""
        problem = _Problem.of(self, obj)
        if not np.any(w0):
            w0 = self._sampled(problem, w0)
        yield from self._run(problem, w0, _Pace())

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        steps = self._run(_Problem.of(self, obj), state["w"], _Pace(*map(float, state["pace"])))
        saved = next(steps)
        yield next(steps, saved)  # what came next; at the end of what rounding lets through, nothing does
        yield from steps

    def _sampled(self, problem: _Problem, w0: Array) -> Array:
        """Where few of very many rows would end: so far, all of them say little more."""
        part = problem.sample()
        if part is None:
            return w0
        w = w0
        for it in islice(self.iterates(part, w0), MOST_SAMPLED):
            w = it.w
            if it.value - part.lower(it.cut) <= SAMPLED_TOL * it.value:
                break
        return w

    def _run(self, problem: _Problem, w0: Array, pace: _Pace) -> Iterator[Iterate]:
        at, columns, guess = problem.points.place(w0), NONE, None
        info: dict[str, float] = {"working_set": 0, "epochs": 0}
        while True:
            seen = problem.points.look(at, guess)
            worst = problem.violation(at.w, seen.grad)
            pace = pace.after(float(worst.max()), float(worst[columns].max()) if len(columns) else None)
            yield Iterate(at.w, seen.value, seen.cut, info, _snapshot(at.w, pace))
            if not worst.max() > 0:
                return  # this is the minimum
            columns, maybe = problem.choose(at.w, worst, self.start)
            model, pace = problem.model(at, seen, columns, pace)
            found = problem.columns.solve(model, maybe)
            new, t = problem.search(at, seen, model, found)
            if new is None and not model.exact:
                model = model._replace(exact=True)
                found = problem.columns.solve(model, maybe)
                new, t = problem.search(at, seen, model, found)
            if new is None:
                return  # no descent is left in this precision
            at, pace = new, pace.damped(t, found.bend is not None and found.bend is not model.bend)
            sure = found.close or pace.forcing < TRUSTED
            guess = problem.foreseen(model, found) if sure and t == 1 else None
            info = {"working_set": len(columns), "epochs": found.epochs}


@dataclass(frozen=True)
class _Pace:
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

    def after(self, most: float, left: float | None) -> _Pace:
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

    def damped(self, t: float, stale: bool) -> _Pace:
        """Go less far if only a part t of a step could be taken."""
        damping = max(4 * self.damping, 0.01) if t < 1 else (self.damping / 4 if self.damping > 1e-4 else 0.0)
        return replace(self, damping=damping, stale=float(stale))


def _snapshot(w: NDArray, pace: _Pace) -> Callable[[], dict[str, Array]]:
    return lambda: {"w": w, "pace": np.array(astuple(pace))}


# ---------------------------------------------------------------- the problem
@dataclass
class _Problem:
    """An objective, with the points where it is looked at and the columns of its X."""

    points: Points
    columns: DenseColumns | SparseColumns
    terms: NDArray
    """Lam times the regularizer: four rows, one for each of its terms."""

    @classmethod
    def of(cls, solver: CoordinateDescent, obj: Objective) -> _Problem:
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

    def model(self, at: Point, seen: Seen, columns: NDArray, pace: _Pace) -> tuple[Model, _Pace]:
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
