r"""Newton's method with a certificate, in the weights and the intercept v together, for one score per row.

.. math:: J(v) = \tfrac12 v^\top P v + \sum_i c_i\, l(z_i, y_i), \qquad z = X v,

where P is lam K, and 0 for the intercept. The loop of `StagedNewton.iterates`:

1. a *step* d solves (P + X' H X) d = -g for the smoothed J_mu; mu = 0 if the loss is smooth;
2. its *predicted multipliers* s + H X d have X' (s + H X d) = -P (v + d), so that the gap of their cut at
   v + d is their complementarity alone. The cut is made only where the error of the quadratic model, which is
   about what is left to gain, says that its gap will be small enough;
3. a step that decreases J_mu too little or much is shortened or lengthened by a search along the line;
   Losses without a conjugate have tangents as cuts instead: their gap is the stationarity;
4. once the error of the model is below the complementarity, the center moves to the multipliers, and mu
   decreases: the proximal point method for the dual problem.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace, to_numpy
from riskmin.core import Array, Cut, Iterate, NDArray
from riskmin.problem.design_operator import DesignOperator
from riskmin.problem.intercept import INTERCEPT_RELATIVE_GAP, intercept_of_scores
from riskmin.problem.objective import Objective
from riskmin.solvers.base import beside_another_library
from riskmin.solvers.newton.columns_and_ones import ColumnsAndOnes, Curvature
from riskmin.solvers.newton.devices.design import DeviceColumns, DeviceDesign
from riskmin.solvers.newton.devices.row_model import DeviceRowModel
from riskmin.solvers.newton.penalty import Penalty
from riskmin.solvers.newton.row_model import RowModel, RowSums
from riskmin.solvers.newton.subsampling import BESIDE_MIN_ENTRIES, sampled_objective
from riskmin.solvers.newton.systems import NewtonSystem, Step
from riskmin.solvers.state_checks import NO_INTEGER_ARRAYS, check_state, state_sizes


class Point(NamedTuple):
    """Weights and intercept v, the scores z = X v, and the smoothed loss there."""

    v: NDArray
    z: Array
    mu: float
    center: Array
    s: Array
    """The slopes of the rows."""
    h: Curvature | None
    """Their second derivatives; None if they are computed when a step needs them."""
    sums: RowSums
    penalty: float
    """v' P v / 2."""
    value: float
    """J(v), unsmoothed."""
    smoothed: float
    """J_mu(v)."""


@dataclass
class Run:
    """What a run continues from."""

    x: Point
    mu: float
    center: NDArray
    """The multipliers around which the loss is smoothed."""
    best: Cut
    target: float
    """The relative gap of the next proof."""
    first_mu: float
    share: float
    """The expected error of the next quadratic model, as a share of the decrease."""
    steps: int = 0
    """Since the last iterate."""
    stage_steps: int = 0
    """With this mu."""
    stationarity: float = math.inf
    """That of the slopes at the last point, |P v + X' s|^2 / 2 in the norm of P^-1."""
    rounding: bool = False
    """Whether the last step has decreased J by rounding errors only."""
    lost: bool = False
    """Whether it has not decreased the stationarity either."""
    ended: bool = False
    """Whether nothing but rounding is left."""
    pulled: tuple[NDArray, NDArray, int] | None = None
    """Slopes s, X' s, and the updates since it was computed for all rows."""


NUMBERS = ("mu", "target", "first_mu", "share", "steps", "stage_steps")
"""The fields of a run that are numbers."""


@dataclass
class StagedNewton:
    """Newton's method for an objective with a quadratic penalty."""

    FIRST_GAP, GAP_SHARE = 5e-4, 1e-3
    """Iterates end with a proof of the first relative gap, then of the second share of that before."""
    STAGE_GAP = 6.5e-4
    """Stages end with an iterate below this relative complementarity; stationarity adds half of it."""
    LEAST_DECREASE, MOST_DECREASE, LINE_SLOPE = 0.4, 0.6, 0.05
    """A unit step needs a decrease between these shares of that of the linear model, half of it if J is
    quadratic; else a search along the line ends at this slope."""
    RESIDUAL = 0.3
    """Conjugate gradients may add this share of the target to the gap."""
    FIRST_SHARE, FIRST_SMOOTHED_SHARE = 0.1, 0.01
    """The expected error of the first model."""
    SLOW_MU_DECREASE, SLOW_STEPS = 0.5, 3
    """The factor of mu after a stage of more steps than this."""
    MU_FLOOR = 1e-13
    LOST_STATIONARITY = 0.25
    """Steps whose decrease of J is rounding go on while they decrease the stationarity to this share."""
    ROUNDING = 1e-14
    """Decreases below this share of J are rounding."""
    MIN_CURVED_WEIGHT = 0.1
    """A smooth loss is smoothed further at first if curved rows have less than this share of the weight."""
    INFINITE_STEP = 2.0**40
    """A Newton step that is lengthened so much leads to a minimum at infinity."""
    MAX_VALUE_EXCESS = 0.02
    """By how much the value of an iterate may exceed J(w), as a share of the complementarity."""
    MAX_INTERCEPT_STEPS = 5
    """Newton steps to the best intercept of an iterate."""
    MAX_UPDATES, MIN_UPDATED_ENTRIES = 20, 2**16
    """Updates of X' s after which it is computed for all rows, and the entries of X from which they pay."""
    MAX_STEPS, ITERATE_ENTRIES = 60, 2**26
    """Steps without a proof after which an iterate is shown; fewer if X has many entries."""

    obj: Objective
    direct: int
    mu_decrease: float
    model: RowModel
    X: ColumnsAndOnes = field(init=False)
    P: Penalty = field(init=False)

    def __post_init__(self) -> None:
        obj, design = self.obj, self.model.design
        self.intercept = bool(obj.risk.intercept.profiled)
        if isinstance(design, DeviceDesign):
            self.X: ColumnsAndOnes = DeviceColumns(design, self.intercept)
        else:
            self.X = ColumnsAndOnes.of(design, self.intercept)
        self.P = Penalty(obj, self.X.p, self.X.size)
        self.system = NewtonSystem(self.X, self.P, self.model.smooth, self.direct)
        self.max_steps = min(max(self.ITERATE_ENTRIES // self.X.nnz, 1), self.MAX_STEPS)

    @classmethod
    def of(cls, obj: Objective, direct: int, mu_decrease: float) -> StagedNewton:
        """The method for an objective."""
        risk: Any = obj.risk
        if beside_another_library(risk):
            return cls(obj, direct, mu_decrease, DeviceRowModel(risk.loss, DeviceDesign(risk)))
        return cls(obj, direct, mu_decrease, RowModel.of(risk.loss, DesignOperator(risk)))

    def augmented(self, w: NDArray) -> NDArray:
        """Weights w and an intercept of 0."""
        return np.append(w, np.zeros(self.X.size - len(w)))

    # ------------------------------------------------------------ points
    def at(self, v: NDArray, z: NDArray, mu: float, center: NDArray) -> Point:
        """The point v, whose scores are z."""
        s, h, sums = self.model.at(z, mu, center)
        penalty = 0.5 * float(self.P.product(v) @ v)
        return Point(v, z, mu, center, s, h, sums, penalty, sums.value + penalty, sums.smoothed + penalty)

    def start(
        self, v: NDArray, mu: float = 0.0, center: NDArray | None = None, target: float = FIRST_GAP
    ) -> Run:
        """The first point of a run; mu = 0 stands for a smoothing term as large as the loss."""
        model, X = self.model, self.X
        z = X.forward(v)
        u0 = 0.0 * z if center is None else center
        exact = None
        if not mu and (not model.smooth or self._lacks_curvature(z, u0)):
            exact, mu = self._first_mu(v, z)
            mu *= 1.0 if center is None else 0.1  # known multipliers need less smoothing
        if self.intercept and not v[-1]:
            v = np.append(v[:-1], self._best_shift(z, mu, u0))
            z = z + v[-1]
        x, self.system.keeps = self.at(v, z, mu, u0), not mu
        share = (
            self.FIRST_SMOOTHED_SHARE if mu else 0.0 if model.loss.constant_curvature else self.FIRST_SHARE
        )
        run = Run(x, mu, u0, Cut(np.zeros(X.p), 0.0), target, mu, share)
        self._prove_start(run, exact or x)
        return run

    def _prove_start(self, run: Run, exact: Point) -> None:
        """Keep a cut at the start if it may end the run: v = 0 may be a minimum, or v that of another run.

        `exact` is the start, nearly without smoothing.
        """
        left = self.FIRST_GAP * abs(exact.value)
        if self.intercept and run.mu and exact.sums.slope**2 > left * exact.sums.curvature:
            return
        a = self.X.adjoint(exact.s)
        g, run.pulled = self.P.product(exact.v) + a, (exact.s, a, 0)
        if run.x.v[: self.X.p].any() or self._stationarity(exact, g) + exact.sums.complementarity <= left:
            self._prove_stage(run, exact, g)

    def _lacks_curvature(self, z: NDArray, center: NDArray) -> bool:
        """Whether too few rows of a smooth loss have second derivatives to give steps a scale."""
        model = self.model
        if not model.min_mu or model.loss.constant_curvature:
            return False
        # h is c / square in curved rows and 0 in others
        curved = 10 * model.min_mu * self.model.at(z, 0.0, center)[2].curvature
        return curved < self.MIN_CURVED_WEIGHT * float(model.c.sum())

    def _first_mu(self, v: NDArray, z: NDArray) -> tuple[Point, float]:
        """The point nearly without smoothing, and the mu whose smoothing term is as large as the loss."""
        model = self.model
        y = model.y if model.y.ndim == 1 else model.y[:, 0]  # beside queries, or offsets
        probe = 1e-3 * (float(model.c @ abs(z - y)) or 1.0)
        x = self.at(v, z, probe, 0.0 * z)
        # what smoothing has subtracted, for mu = 1
        square = (x.sums.value - x.sums.complementarity - x.sums.smoothed) / probe
        return x, x.sums.value / square if x.sums.value > 0 and square > 0 else x.penalty or 1.0

    def _best_shift(self, z: NDArray, mu: float, center: NDArray) -> float:
        """The change of the intercept that minimizes the smoothed loss, nearly."""
        _, _, sums = self.model.at(z, mu, center)
        if not math.isfinite(sums.value):
            self.obj.risk(np.zeros(self.X.p))  # raises an error that names the cause
        if not sums.slope:
            return 0.0
        curved = self.INFINITE_STEP * sums.curvature > abs(sums.slope)
        step = -sums.slope / sums.curvature if curved else -math.copysign(1.0, sums.slope)
        # of a smooth loss, the best intercept up to rounding
        enough = 0.1 * abs(sums.slope)
        if not mu:
            enough = min(enough, math.sqrt(INTERCEPT_RELATIVE_GAP * sums.curvature * abs(sums.value)))
        line, enough = step + 0.0 * z, enough * abs(step)
        t = self.model.minimize_along(z, line, mu, center, 0.0, 0.0, enough)
        if t > self.INFINITE_STEP:
            self.obj.risk(np.zeros(self.X.p))  # raises an error if there is no best intercept
        return step * t

    def _value(self, x: Point) -> tuple[float, float | None]:
        """J(w) at the best intercept, and this intercept if it is known up to rounding.

        That of a nonsmooth loss is another one than that of the smoothed loss: J(w) exceeds the minimum over
        b by at most a share of the complementarity.
        """
        model, complementarity, none = self.model, x.sums.complementarity, 0.0 * x.z
        if not self.intercept or not math.isfinite(x.value):
            return x.value, None
        if not model.smooth:
            if not complementarity > 0:
                return x.value, None
            if model.conjugate is None:
                value = intercept_of_scores(model.loss, x.z, model.y, model.c, 0.0)[1]
                return min(x.value, value + x.penalty), None
            # smoothing subtracts at most mu sum_i c_i u_i^2 / 2
            lower, upper = model.conjugate.lower, model.conjugate.upper
            square = float(model.c @ namespace(lower).maximum(lower**2, upper**2))
            mu = self.MAX_VALUE_EXCESS * complementarity / square
            _, _, sums = model.at(x.z + self._best_shift(x.z, mu, none), mu, none)
            return min(x.value, sums.value + x.penalty), None
        sums, shift = model.at(x.z, 0.0, none)[2] if complementarity else x.sums, 0.0
        for _ in range(self.MAX_INTERCEPT_STEPS):
            if sums.slope**2 <= 0.1 * INTERCEPT_RELATIVE_GAP * sums.curvature * sums.value:
                return sums.value + x.penalty, float(x.v[-1] + shift)
            if not sums.curvature > 0:
                break
            shift -= sums.slope / sums.curvature
            sums = model.at(x.z + shift, 0.0, none)[2]
        return x.value, None

    # ------------------------------------------------------------ the loop
    def iterates(self, run: Run, resumed: bool = False) -> Iterator[Iterate]:
        """The start, then points with proved gaps that decrease, until rounding allows no further."""
        if not resumed:
            yield self._iterate(run, run.x)
        while not run.ended:
            g = self.P.product(run.x.v) + self._pull_back(run)
            before, run.stationarity = run.stationarity, self._stationarity(run.x, g)
            run.lost = run.rounding and not run.stationarity < self.LOST_STATIONARITY * before
            if run.mu and (run.lost or self._stage_ends(run)):
                worth = run.x.sums.complementarity <= self.STAGE_GAP * abs(run.x.value) or run.lost
                shown = run.x if worth and self._prove_stage(run, run.x, g) else None
                self._next_stage(run)
            else:
                run.ended, shown = run.lost, None
                if self._proves_by_tangents(run):
                    shown = run.x if self._prove_stage(run, run.x, g) else None
                shown = self._step(run, g) or shown
            if shown is not None or run.steps >= self.max_steps or run.ended:
                yield self._iterate(run, shown or run.x)

    def _stage_ends(self, run: Run) -> bool:
        """Whether only a smaller mu or another center would decrease the gap further."""
        # a center must be the multipliers at the end of a stage; without one, it may end earlier
        return run.stationarity <= (0.5 if self.model.has_center else 2.0) * run.x.sums.complementarity

    def _proves_by_tangents(self, run: Run) -> bool:
        """Whether the tangent at a point, without smoothing and multipliers, proves the target."""
        enough = run.stationarity <= run.target * abs(run.x.value) or run.lost
        return not run.mu and not self.model.predicts and enough

    def _step(self, run: Run, g: NDArray) -> Point | None:
        """Take a Newton step; return its end if a gap is proved there that is worth an iterate."""
        x, allowed, shown = run.x, run.target * abs(run.x.value), None
        if self.intercept and abs(x.sums.slope) > self.INFINITE_STEP * x.sums.curvature:
            # far from all curvature, the intercept has no scale
            shift = self._best_shift(x.z, run.mu, run.center)
            run.x, run.steps = (
                self.at(np.append(x.v[:-1], x.v[-1] + shift), x.z + shift, run.mu, run.center),
                run.steps + 1,
            )
            return None
        likely = 1 / (self.RESIDUAL * max(run.share, 1e-9))
        h = self.model.second_derivatives(x.z, x.mu, x.center) if x.h is None else x.h
        step = self.system.solve(h, g, self.RESIDUAL * allowed, likely)
        run.steps, run.stage_steps = run.steps + 1, run.stage_steps + 1
        new, dz = self._moved(x, step, run.mu, run.center)
        slope = float(g @ step.v)
        if self.X.rejects(h, step.v, dz, self.P, -slope):
            self.system.kept = None
            return self._step(run, g)
        run.rounding = not slope < -self.ROUNDING * abs(x.smoothed)
        if not run.mu:
            # what the quadratic model has not foreseen is about what is left to gain
            error = abs(new.smoothed - x.smoothed - 0.5 * slope)
            run.share = min(error / abs(0.5 * slope), 1.0) if slope else 0.0
            known = 2 * (error + step.left) + step.residual <= allowed or run.rounding
            if known and self.model.predicts:
                target = math.inf if run.rounding else run.target
                shown = new if self._prove_step(run, dz, new, step.residual, target) else None
        decrease = x.smoothed - new.smoothed
        bounds = -self.LEAST_DECREASE * slope, -self.MOST_DECREASE * slope
        if not run.rounding and not bounds[0] <= decrease <= bounds[1]:
            new = self._searched(run, step.v, dz, slope)
        # where decreases are rounding, a step may still decrease the stationarity
        run.x = (
            new
            if not new.smoothed > x.smoothed + self.ROUNDING * abs(x.smoothed) * 100 or not run.rounding
            else x
        )
        return shown

    def _pull_back(self, run: Run) -> NDArray:
        """X' s of the point; updated by the rows whose slopes have changed, if they are few."""
        s = run.x.s
        if run.pulled is not None and run.pulled[0] is s:
            return run.pulled[1]
        if self.X.nnz < self.MIN_UPDATED_ENTRIES or not self.X.updates_pay:
            return self.X.adjoint(s)
        if run.pulled is not None and run.mu:
            before, a, updates = run.pulled
            change = s - before
            if updates < self.MAX_UPDATES and 2 * np.count_nonzero(change) < len(s):
                run.pulled = s, a + self.X.adjoint(change), updates + 1
                return run.pulled[1]
        run.pulled = s, self.X.adjoint(s), 0
        return run.pulled[1]

    def _moved(self, x: Point, step: Step, mu: float, center: NDArray) -> tuple[Point, NDArray]:
        """The point after a unit step, and the change of the scores, in one pass over X."""
        v = x.v + step.v
        if mu:  # a difference of scores has an error that 1 / mu may magnify
            dz = self.X.forward(step.v)
            z = x.z + dz
        else:
            z = self.X.forward(v)
            dz = z - x.z
        return self.at(v, z, mu, center), dz

    def _prove_step(self, run: Run, dz: NDArray, new: Point, residual: float, target: float) -> bool:
        """Whether the multipliers that a step predicts prove the target at its end."""
        x, allowed = run.x, target * abs(new.value)
        s, cut = self.model.predicted_cut(x.s + x.h * dz, new.z, self.intercept)
        # known without a pass over X, since the multipliers are stationary at the new point
        if not new.sums.value - cut.b - float(s @ new.z) + residual <= allowed:
            return False
        return self._raise_bound(run, cut._replace(a=np.asarray(self.X.operator.adjoint(s))), new, allowed)

    def _raise_bound(self, run: Run, cut: Cut, at: Point, allowed: float) -> bool:
        """Keep the better cut; whether it proves the allowed gap, of which the next one is a share."""
        run.best = max(run.best, cut, key=self.obj.lower)
        gap = at.value - self.obj.lower(run.best)
        if gap <= self.FIRST_GAP * abs(at.value):
            run.target = self.GAP_SHARE * max(gap, 0.0) / (abs(at.value) or 1.0)
        return gap <= allowed

    # ------------------------------------------------------------ stages
    def _stationarity(self, x: Point, g: NDArray) -> float:
        """What the gap of the slopes at a point is beside their complementarity.

        Only a smaller mu or another center decreases the complementarity, and only steps the stationarity.
        """
        curvature = x.sums.curvature
        return self.P.conjugate(g) + (
            0.5 * float(g[-1]) ** 2 / curvature if self.intercept and curvature > 0 else 0.0
        )

    def _prove_stage(self, run: Run, x: Point, g: NDArray) -> bool:
        """Keep the cut of the slopes at a point with the gradient g; whether it proves anything."""
        s, cut = self.model.cut(x.z, x.s, x.mu, x.center, self.intercept)
        # balancing has changed few slopes
        a = (g - self.P.product(x.v))[: self.X.p] + self.X.operator.adjoint(s - x.s)
        return self._raise_bound(run, cut._replace(a=a), x, math.inf)

    def _next_stage(self, run: Run) -> None:
        """Move the center to the multipliers, and decrease mu."""
        x, slow = run.x, run.stage_steps > self.SLOW_STEPS
        run.mu *= max(self.SLOW_MU_DECREASE, self.mu_decrease) if slow else self.mu_decrease
        run.center, run.stage_steps = self.model.multipliers(x.s) if self.model.has_center else run.center, 0
        run.rounding, run.stationarity = False, math.inf
        if run.mu < self.model.min_mu:
            run.mu = 0.0  # the smooth loss itself
        self.system.keeps = not run.mu
        run.x = self.at(x.v, x.z, run.mu, run.center)
        run.ended = 0 < run.mu < self.MU_FLOOR * run.first_mu

    def _searched(self, run: Run, d: NDArray, dz: NDArray, slope: float) -> Point:
        """The point at the minimum along a step, nearly."""
        x, P = run.x, self.P
        line = float(P.product(x.v) @ d), float(P.product(d) @ d), -self.LINE_SLOPE * slope
        t = self.model.minimize_along(x.z, dz, run.mu, run.center, *line)
        return self.at(x.v + t * d, x.z + t * dz, run.mu, run.center)

    def _iterate(self, run: Run, at: Point) -> Iterate:
        """A point as an iterate, with the state to continue from."""
        self.obj.count.calls += run.steps
        info = {"mu": run.mu, "evaluations": float(run.steps)}
        run.steps = 0
        if run.mu:  # scores of stages are updated: a resumed run, which computes them, has the same bits
            run.pulled = None
            run.x = self.at(run.x.v, self.X.forward(run.x.v), run.mu, run.center)
        saved = replace(run)
        (value, b), system = self._value(at), self.system.to_arrays()
        w = at.v[: self.obj.risk.dim]
        return Iterate(w, value, run.best, info, lambda: self._to_arrays(saved, system), b)

    # ------------------------------------------------------------ states
    SHAPES: ClassVar[dict[str, str]] = {"v": "m", "w": "d", "u": "n", "system": "4", "kept?": "n"}
    """The dimensions of the arrays of a saved state."""

    def _to_arrays(self, run: Run, system: dict[str, Any]) -> dict[str, Array]:
        numbers = {f"number.{name}": np.array([float(getattr(run, name))]) for name in NUMBERS}
        return {"v": run.x.v, "w": run.x.v[: self.obj.risk.dim], "u": to_numpy(run.center)} | numbers | system

    def restored(self, state: dict[str, Array]) -> Run:
        """The run of a saved state, after checks: its scores and cuts are computed again."""
        shapes = self.SHAPES | {f"number.{name}": "1" for name in NUMBERS}
        check_state(state, shapes, NO_INTEGER_ARRAYS, **state_sizes(self.obj), m=self.X.size)
        state = {k: as_array_like(a, self.model.c) if k in ("u", "kept") else a for k, a in state.items()}
        self.system.restore(state)
        n = {name: float(state[f"number.{name}"][0]) for name in NUMBERS}
        if not (n["mu"] > 0 if not self.model.smooth else n["mu"] == 0 or n["mu"] >= self.model.min_mu > 0):
            raise ValueError("its mu does not fit the loss")
        self.system.keeps = not n["mu"]
        u = self.model.in_domain(state["u"])
        x = self.at(state["v"], self.X.forward(state["v"]), n["mu"], u)
        cut, counts = Cut(np.zeros(self.obj.risk.dim), 0.0), (int(n["steps"]), int(n["stage_steps"]))
        return Run(x, n["mu"], u, cut, n["target"], n["first_mu"], n["share"], *counts)

    # ------------------------------------------------------------ starts
    SAMPLES = 64, 16
    """Cold starts with many rows per column begin with runs on one row in 64, then in 16."""
    MIN_SAMPLED_ENTRIES = 2**20
    """Stored entries of X from which samples save more than they cost."""
    SAMPLE_STEPS = 30
    """The largest number of steps on a sample."""
    SMOOTH_ROWS_PER_COLUMN, NONSMOOTH_ROWS_PER_COLUMN = 10, 50
    """Rows per column that a sample needs: with fewer, its optimum is too different to save any work."""

    def sampled_start(self) -> Run:
        """The start from v = 0, at the end of runs on samples of the rows."""
        v, mu, model = np.zeros(self.X.size), 0.0, self.model
        rows_per_column = self.SMOOTH_ROWS_PER_COLUMN if model.smooth else self.NONSMOOTH_ROWS_PER_COLUMN
        # one step solves the squared loss, so that a sample saves nothing
        beside = isinstance(self.X, DeviceColumns)
        small = self.X.nnz < (BESIDE_MIN_ENTRIES if beside else self.MIN_SAMPLED_ENTRIES)
        # on a GPU, steps on any sample take about the same time: that of their launches
        samples = self.SAMPLES[:1] if beside else self.SAMPLES
        for one_in in () if small or model.loss.constant_curvature else samples:
            sample = sampled_objective(self.obj, one_in, rows_per_column)
            if sample is None:
                continue
            # the statistical error of a sample of m rows is about p / m of the objective
            error = self.X.size * one_in / self.X.n
            with contextlib.suppress(ValueError):  # a sample of one class has no best intercept
                inner = self.of(sample, self.direct, self.mu_decrease)
                run, inner.max_steps = inner.start(v, mu, target=min(error, 0.1)), self.SAMPLE_STEPS
                for it in inner.iterates(run):
                    if (
                        it.info["evaluations"] == inner.max_steps
                        or sample.lower(it.cut) >= (1 - error) * it.value
                    ):
                        break
                v, mu = run.x.v, run.mu
        run = self.start(v, mu)
        if not v.any():
            return run
        zero = np.zeros(self.X.size)
        at_zero = self.at(zero, self.X.forward(zero), 0.0, run.center)
        return run if run.x.value < at_zero.value else self.start(zero)

    def warm_started(self, state: dict[str, Array]) -> Iterator[Iterate] | None:
        """The iterates from the point and the multipliers of another run, also of dual ascent."""
        if self.model.smooth and "v" not in state:
            return None
        # in states of dual ascent, "next" is the primal point of the multipliers u
        w = state["next"] if "next" in state and "v" not in state else state["w"]
        v = to_numpy(state["v"] if "v" in state else self.augmented(w))
        u = None if self.model.smooth else self.model.in_domain(as_array_like(state["u"], self.model.c))
        return self.iterates(self.start(v, 0.0, u))
