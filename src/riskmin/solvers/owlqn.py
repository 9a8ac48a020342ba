"""Orthant-wise L-BFGS, for smooth losses with absolute values in the regularizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays import namespace, zeros_beside
from riskmin.objective import Objective
from riskmin.regularizers import L1, Elastic, penalized
from riskmin.solvers.bundle import check_count
from riskmin.solvers.cuts import mix_two
from riskmin.solvers.proximal import Point, check_smooth, noise
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Iterate, Unsuited

LOOKS = 40
"""So many shorter steps are tried before rounding is held to hide all descent."""


@dataclass(frozen=True)
class OwlQn:
    r"""Orthant-wise L-BFGS, for smooth losses with `L1` or `Elastic`.

    Within an orthant the absolute values are linear, so J is smooth there. The orthant is that of w and,
    where :math:`w_j = 0`, of the steepest descent,

    .. math:: -\partial_j J = -\mathrm{sgn}(g_j) \max(|g_j| - \lambda l_j, 0),

    g being the gradient of all but the absolute values. L-BFGS models the curvature of that smooth part;
    what leaves the orthant on the way becomes zero. All it asks of the risk is its value and gradient: the
    data may be anywhere.

    Parameters
    ----------
    memory : int
        How many past steps the model of the curvature keeps.

    Notes
    -----
    Two things differ from Andrew and Gao (2007), and take fewer steps: the model
    of the curvature is that of the coordinates that are free to move, not of all; and its direction is held
    against the steepest one only where :math:`w_j = 0`, not everywhere.

    References
    ----------
    G. Andrew, J. Gao, Scalable training of L1-regularized log-linear models, ICML 2007.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, Objective, OwlQn, Squared, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [2.0, -0.5]]), np.array([1.0, 3.0])
    >>> J = Objective(linear_risk(X, y, Squared()), L1(), lam=0.5)
    >>> minimize(J, OwlQn(), tol=1e-9).w.round(6).tolist()
    [1.2, 0.0]
    """

    memory: int = 20

    def __post_init__(self) -> None:
        check_count(self, "memory")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield points of decreasing objective."""
        check_smooth(self, obj)
        if not isinstance(reg := penalized(obj.reg), (L1, Elastic)):
            raise Unsuited(f"OwlQn is for L1() and Elastic(), not {type(reg).__name__}: use ProximalGradient")
        return self._run(obj, w0, [], None)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        checked(state, {"w": "d", "S": "m d", "Y": "m d", "a": "d", "b": "1"}, d=obj.risk.dim)
        pairs = list(zip(state["S"], state["Y"], strict=True))
        steps = self._run(obj, state["w"], pairs, Cut(state["a"], float(state["b"][0])))
        next(steps)  # the iterate that was saved
        return steps

    def _run(
        self, obj: Objective, w: Array, pairs: list[tuple[Array, Array]], model: Cut | None
    ) -> Iterator[Iterate]:
        terms = obj.reg.terms(w)  # type: ignore[attr-defined]
        absolute, square = obj.lam * terms.absolute, obj.lam * terms.square
        here, looks = obj(w), 0
        while True:
            model, _ = mix_two(model, here[2], obj)
            yield Iterate(w, here[0], model, {"looks": looks}, _saved(w, pairs, model))
            grad = here[1] + square * w
            orthant = Orthant.at(w, grad, absolute)
            new, found, looks = _search(obj, orthant, here, square, orthant.direction(pairs))
            if found is None:
                if not pairs:
                    return  # no descent is left in this precision
                pairs = []  # the model of the curvature misleads: from steepest descent anew
                continue
            s, y = new - w, found[1] + square * new - grad
            if float(s @ y) > 1e-14 * float(y @ y) > 0:
                pairs = [*pairs, (s, y)][-self.memory :]
            w, here = new, found


@dataclass(frozen=True)
class Orthant:
    """The orthant that a step from w may move in: absolute values are linear there."""

    w: Array
    absolute: Any
    signs: Array
    steep: Array
    """The direction of steepest descent: minus the one-sided slopes of J, zero where both sides rise."""

    @classmethod
    def at(cls, w: Array, grad: Array, absolute: Any) -> Orthant:
        """The orthant of w, and of the steepest descent where w is zero; grad is that of the smooth part."""
        xp, zero = namespace(w), 0.0 * w
        ahead = xp.sign(grad) * xp.maximum(xp.abs(grad) - absolute, zero)
        steep = xp.where(w == 0, -ahead, -grad - absolute * xp.sign(w))
        return cls(w, absolute + zero, xp.where(w == 0, xp.sign(steep), xp.sign(w)), steep)

    def direction(self, pairs: list[tuple[Array, Array]]) -> Array:
        """That of L-BFGS among the coordinates that are free to move."""
        xp = namespace(self.w)
        free = xp.nonzero(self.signs != 0)[0]
        steep, at_zero = self.steep[free], self.w[free] == 0
        inside = [(s[free], y[free]) for s, y in pairs]
        inside = [(s, y) for s, y in inside if float(s @ y) > 1e-10 * float(y @ y) > 0]
        found = two_loop(inside, steep)
        against = xp.sign(found) * xp.sign(steep) <= 0
        found = xp.where(at_zero & against, 0.0 * found, found)
        if not float(found @ steep) > 0:
            found = xp.where(against, 0.0 * found, found)
        if not inside and len(free):  # nothing is known of the curvature: no longer than 1
            found = found / max(1.0, float(xp.max(xp.abs(found))))  # squares of what is far out overflow
            found = found / max(1.0, float(found @ found) ** 0.5)
        d = xp.zeros_like(self.w)
        d[free] = found
        return d

    def along(self, step: float, d: Array) -> Array:
        """W + step d, with zeros for all that has left the orthant."""
        new = self.w + step * d
        return namespace(new).where((new * self.signs > 0) | (self.absolute == 0), new, 0.0 * new)

    def slope(self, grad: Array, s: Array) -> float:
        """The slope of J along s at a point of the orthant, given the smooth part's gradient there."""
        return float((grad + self.absolute * self.signs) @ s)


def _search(
    obj: Objective, orthant: Orthant, here: Point, square: Any, d: Array
) -> tuple[Array, Point | None, int]:
    """A step along d, bent into the orthant, that lowers J enough; and how many looks it took.

    Where the gain is less than the rounding of J, slopes decide: they are known better.
    """
    step, looks = 1.0, 0
    for looks in range(1, LOOKS + 1):
        new = orthant.along(step, d)
        s = new - orthant.w
        slope = -float(orthant.steep @ s)
        if not slope < 0:
            break
        found = obj(new)
        if math.isfinite(found[0]):
            if found[0] <= here[0] + 1e-4 * slope:
                return new, found, looks
            close = found[0] <= here[0] + noise(obj, new, found)
            if close and orthant.slope(found[1] + square * new, s) <= -0.8 * slope:
                return new, found, looks
        step *= 0.5 if math.isfinite(found[0]) else 0.1
    return orthant.w, None, looks


def _saved(w: Array, pairs: list[tuple[Array, Array]], model: Cut) -> Callable[[], dict[str, Array]]:
    """The state to save: the point, the last steps with their changes of gradient, the cut."""

    def state() -> dict[str, Array]:
        xp = namespace(w)
        none = zeros_beside((0, len(w)), w)
        S, Y = (xp.stack([p[k] for p in pairs]) if pairs else none for k in (0, 1))
        return {"w": w, "S": S, "Y": Y, "a": model.a, "b": np.array([model.b])}

    return state


def two_loop(pairs: list[tuple[Array, Array]], q: Array) -> Array:
    """The inverse Hessian's model, times q."""
    stack = []
    for s, y in reversed(pairs):
        a = float(s @ q) / float(s @ y)
        q = q - a * y
        stack.append(a)
    if pairs:
        s, y = pairs[-1]
        q = q * (float(s @ y) / float(y @ y))
    for (s, y), a in zip(pairs, reversed(stack), strict=True):
        q = q + (a - float(y @ q) / float(s @ y)) * s
    return q
