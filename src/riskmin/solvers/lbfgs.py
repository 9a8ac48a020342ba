"""Limited-memory BFGS with a Wolfe line search on kept scores, for smooth losses and regularizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from riskmin.deadline import checking
from riskmin.objective import Objective, ObjectiveCursor
from riskmin.regularizers import penalized
from riskmin.solvers.bundle import check_count
from riskmin.solvers.curvature import Pairs
from riskmin.solvers.cuts import mix_two
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Iterate, Regularizer, Smooth, Unsuited


@dataclass(frozen=True)
class Lbfgs:
    r"""L-BFGS, the default for smooth losses.

    The gradient at each point gives a cut, hence a certified gap of at most
    :math:`\|\nabla J(w)\|^2 / (2 \lambda)` with L2; the best mixture of it with the earlier ones proves
    more. On a loss that is not smooth it may stall, and says so.

    Parameters
    ----------
    memory : int
        How many past steps the model of the curvature keeps.

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
        check_count(self, "memory")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield points of decreasing objective."""
        return self._run(obj, w0, Pairs(self.memory, w0), None)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        shapes = {"w": "d", "S": "m d", "Y": "m d", "a": "d", "b": "1", "inner?": "k k"}
        checked(state, shapes, d=obj.risk.dim, k=2 * len(state.get("S", ())))
        pairs = Pairs.of(self.memory, state["w"], state["S"], state["Y"], state.get("inner"))
        steps = self._run(obj, state["w"], pairs, Cut(state["a"], float(state["b"][0])))
        next(steps)  # the iterate that was saved
        return steps

    def warm(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start with the curvature of a run on the same risk, and with its cut."""
        w, now, then = state["w"], obj.reg, before.reg
        Y, inner = state["Y"], state.get("inner")
        if obj.lam != before.lam or now is not then:  # exact for squares
            changes = [
                obj.lam * _bend(now, w, step) - before.lam * _bend(then, w, step) for step in state["S"]
            ]
            Y, inner = [y + more for y, more in zip(Y, changes, strict=True)], None
        pairs = Pairs.of(self.memory, w, state["S"], Y, inner)
        return self._run(obj, w, pairs, Cut(state["a"], float(state["b"][0])))

    def _run(self, obj: Objective, w0: Array, pairs: Pairs, model: Cut | None) -> Iterator[Iterate]:
        reg = obj.reg
        if not isinstance(reg, Smooth):
            raise Unsuited(
                f"Lbfgs needs a smooth regularizer such as L2(), not {type(penalized(reg)).__name__}: "
                "use ProximalGradient or Bundle"
            )
        at = obj.cursor(w0)
        value, g, cut = at()
        grad = g + obj.lam * reg.grad(at.w)
        looks = 0
        while True:
            model, _ = mix_two(model, cut, obj)
            yield Iterate(at.w, value, model, {"looks": looks}, _saved(at.w, pairs, model))
            d = -1.0 * pairs.direction(grad)
            slope = float(grad @ d)
            if not -math.inf < slope < 0:
                return  # no descent is left in this precision
            at.aim(d)
            step = 1.0 if pairs else min(1.0, 1.0 / float(grad @ grad) ** 0.5)
            t, looks = wolfe(at, value, slope, step)
            if t == 0:
                return
            before = at.w
            at.move(t)
            at.balance()
            value, g, cut = at()
            new = g + obj.lam * reg.grad(at.w)
            pairs.add(at.w - before, new - grad)
            grad = new


def _bend(reg: Regularizer, w: Array, s: Array) -> Array:
    """By how much the regularizer's gradient changes over a step s to w."""
    return reg.grad(w) - reg.grad(w - s) if isinstance(reg, Smooth) else 0.0 * s


def _saved(w: Array, pairs: Pairs, model: Cut) -> Callable[[], dict[str, Array]]:
    """The state to save: the point, the last steps with their changes of gradient, the cut."""
    slots = tuple(pairs.slots)
    return lambda: {"w": w, **pairs.state(slots), "a": model.a, "b": np.array([model.b])}


def wolfe(
    at: ObjectiveCursor, value: float, slope: float, step: float, *, c1: float = 1e-4, c2: float = 0.9
) -> tuple[float, int]:
    """A step that meets the weak Wolfe conditions, and how many looks it took.

    The step is 0 where rounding hides all descent. The function is convex, so the secant of two slopes
    says where to look next, inside the bracket or beyond it.
    """
    lo, hi = (0.0, slope), (math.inf, math.inf)
    noise = 1e-15 * abs(value)
    for looks in checking(range(1, 41)):
        new, new_slope = at.along(step)
        if new > value + c1 * step * slope + noise:
            hi = step, new_slope
        elif new_slope < c2 * slope:
            lo = step, new_slope
        else:
            return step, looks
        if hi[0] == math.inf:
            ahead = step * slope / (slope - new_slope) if new_slope > slope else math.inf
            step = min(max(ahead, 2 * step), 10 * step)
        else:
            width = hi[0] - lo[0]
            root = lo[0] - lo[1] * width / (hi[1] - lo[1]) if hi[1] > lo[1] else lo[0] + 0.5 * width
            step = min(max(root, lo[0] + 0.1 * width), lo[0] + 0.9 * width)
            if looks % 2 == 0:  # at a bend, which is almost a kink, secants all fall on one side of it
                step = lo[0] + 0.5 * width
    return lo[0], looks
