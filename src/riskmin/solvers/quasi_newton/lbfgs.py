"""Limited-memory BFGS with a Wolfe line search on cached scores, for smooth losses and regularizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.core import Array, Cut, Iterate, Solver
from riskmin.core.deadline import check_each
from riskmin.core.messages import check_whole
from riskmin.executors import Executor
from riskmin.problem.objective import Objective, ObjectiveCursor
from riskmin.regularizers.base import Regularizer
from riskmin.solvers.base import mix_two
from riskmin.solvers.quasi_newton.memory import LbfgsMemory
from riskmin.solvers.quasi_newton.whitening import Metric, Whitening
from riskmin.solvers.state_checks import check_state


@dataclass(frozen=True)
class Lbfgs(Solver):
    r"""L-BFGS, the default for smooth losses.

    The gradient at each point gives a cut, hence a certified gap of at most
    :math:`\|\nabla J(w)\|^2 / (2 \lambda)` with L2; the best mixture of this cut with the earlier ones gives
    a smaller gap. On a nonsmooth loss the method may stall, which the status reports.

    If X is a dense array of torch or CuPy, with `L2` and at most 2500 columns, the initial inverse Hessian is
    that of a sample of the rows, and a step is first tried by a whole evaluation: one read of X.

    Parameters
    ----------
    memory : int
        Number of past steps in the model of the inverse Hessian.

    References
    ----------
    J. Nocedal, S. J. Wright, Numerical Optimization, 2nd edition, algorithms 7.4 and 3.5.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Lbfgs, Objective, Squared, linear_risk, minimize
    >>> X, y = np.array([[1.0], [2.0]]), np.array([1.0, 3.0])
    >>> result = minimize(Objective(linear_risk(X, y, Squared()), L2(), lam=0.5), Lbfgs(), tol=1e-12)
    >>> bool(abs(result.w[0] - 7 / 6) < 1e-6)
    True
    """

    memory: int = 20

    def __post_init__(self) -> None:
        check_whole(self, "memory")

    def supports(self, obj: Objective) -> str | None:
        """None for smooth regularizers; at a nonsmooth point of a loss, a run may stall."""
        if obj.reg.smooth:
            return None
        kind = type(obj.reg.penalized_part).__name__
        return f"Lbfgs needs a smooth regularizer such as L2(), not {kind}: use ProximalGradient or Bundle"

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield points of decreasing objective."""
        return self._run(obj, w0, {}, None)

    def verifies_states(self, obj: Objective) -> bool:
        """True: cuts begin with the one at the point of the state."""
        return True

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        # the cut (a, b) is for `warm_start` only
        shapes = {"w": "d", "S": "m d", "Y": "m d", "a?": "d", "b?": "1", "inner?": "k k"}
        check_state(state, shapes, d=obj.risk.dim, k=2 * len(state.get("S", ())))
        steps = self._run(obj, state["w"], state, None)
        # The first iterate repeats the saved one.
        next(steps)
        return steps

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start with the inverse Hessian model and the cut of a run on the same risk."""
        w, new_reg, old_reg = state["w"], obj.reg, before.reg
        Y, inner = state["Y"], state.get("inner")
        # Replace the part of the regularizer in the gradient changes; exact for quadratic regularizers.
        if obj.lam != before.lam or new_reg is not old_reg:
            changes = [
                obj.lam * _gradient_change(new_reg, w, step) - before.lam * _gradient_change(old_reg, w, step)
                for step in state["S"]
            ]
            Y, inner = [y + change for y, change in zip(Y, changes, strict=True)], None
        return self._run(
            obj, w, {"S": state["S"], "Y": Y, "inner": inner}, Cut(state["a"], float(state["b"][0]))
        )

    def _pairs(self, obj: Objective, w0: Array, saved: dict[str, Any], metric: Metric) -> LbfgsMemory:
        """Return the memory with the saved pairs of steps and gradient changes in w, if there are any."""
        executor = obj.risk.executor if isinstance(obj.risk.executor, Executor) else None
        if not len(saved.get("S", ())):
            return LbfgsMemory(self.memory, w0, executor)
        inner = None if metric.is_whitened else saved.get("inner")
        pairs = metric.pairs(saved["S"], saved["Y"])
        return LbfgsMemory.from_arrays(self.memory, w0, *pairs, inner, executor)

    def _run(self, obj: Objective, w0: Array, saved: dict[str, Any], model: Cut | None) -> Iterator[Iterate]:
        self.check_supports(obj)
        reg: Any = obj.reg
        metric = Whitening.from_objective(obj, w0)
        pairs = self._pairs(obj, w0, saved, metric)
        # a whitened step of length 1 is usually accepted: where a call reads X once, it is tried by a call
        cursor = obj.cursor(w0, try_steps=metric.is_whitened)
        value, g, cut = cursor()
        grad = g + obj.lam * reg.grad(cursor.w)
        n_evaluations = 0
        while True:
            model, _ = mix_two(model, cut, obj)
            yield Iterate(
                cursor.w, value, model, {"evaluations": n_evaluations}, _saved(cursor.w, pairs, model, metric)
            )
            d = -1.0 * metric.direction(pairs.direction(metric.gradient(grad)))
            slope = float(grad @ d)
            if not -math.inf < slope < 0:
                # No descent is left in this precision.
                return
            cursor.set_direction(d)
            # Without curvature information, the first step has length at most 1.
            step = 1.0 if pairs or metric.is_whitened else min(1.0, 1.0 / float(grad @ grad) ** 0.5)
            t, n_evaluations = wolfe_search(cursor, value, slope, step)
            if t == 0:
                return
            before = cursor.w
            cursor.advance(t)
            # The pair below is that of the whole move, including the change of the intercepts.
            cursor.optimize_intercepts()
            value, g, cut = cursor()
            new = g + obj.lam * reg.grad(cursor.w)
            pairs.add(metric.step(cursor.w - before), metric.gradient(new - grad))
            grad = new


def _gradient_change(reg: Regularizer, w: Array, s: Array) -> Array:
    """Return the change of the regularizer's gradient over a step s that ends at w."""
    return reg.grad(w) - reg.grad(w - s) if reg.smooth else 0.0 * s


def _saved(w: Array, pairs: LbfgsMemory, model: Cut, metric: Metric) -> Callable[[], dict[str, Array]]:
    """Return a function that builds the state: the point, the L-BFGS pairs, and the cut."""
    slots = tuple(pairs.slots)
    return lambda: {"w": w, **metric.stored_pairs(pairs.state(slots)), "a": model.a, "b": np.array([model.b])}


def wolfe_search(
    cursor: ObjectiveCursor, value: float, slope: float, step: float, *, c1: float = 1e-4, c2: float = 0.9
) -> tuple[float, int]:
    """Return a step that satisfies the weak Wolfe conditions, and the number of evaluations.

    The step is 0 if rounding hides all descent. The function is convex, so the secant of two slopes
    predicts the next trial step, inside the bracket or beyond it.
    """
    # Each end of the bracket is (step, slope); differences of J below `noise` are rounding.
    lo, hi = (0.0, slope), (math.inf, math.inf)
    noise = 1e-15 * abs(value)
    for n_evaluations in check_each(range(1, 41)):
        new, new_slope = cursor.value_slope(step)
        # Armijo condition violated: the minimum lies to the left.
        if new > value + c1 * step * slope + noise:
            hi = step, new_slope
        # Curvature condition violated: the minimum lies to the right.
        elif new_slope < c2 * slope:
            lo = step, new_slope
        else:
            return step, n_evaluations
        # Zero of the secant through the slopes at 0 and at this step, but 2 to 10 times this step.
        if hi[0] == math.inf:
            predicted = step * slope / (slope - new_slope) if new_slope > slope else math.inf
            step = min(max(predicted, 2 * step), 10 * step)
        else:
            # Zero of the secant through both ends, at least 10 % of the width away from them.
            width = hi[0] - lo[0]
            root = lo[0] - lo[1] * width / (hi[1] - lo[1]) if hi[1] > lo[1] else lo[0] + 0.5 * width
            step = min(max(root, lo[0] + 0.1 * width), lo[0] + 0.9 * width)
            # Bisect every other time: at a sharp change of slope all secants fall on one side.
            if n_evaluations % 2 == 0:
                step = lo[0] + 0.5 * width
    # The lower end satisfies the Armijo condition, or is 0.
    return lo[0], n_evaluations
