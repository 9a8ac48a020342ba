"""Orthant-wise L-BFGS, for smooth losses with absolute values in the regularizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from riskmin.arrays.namespace import namespace, zeros_for
from riskmin.core import Array, Cut, Evaluation, Iterate, Solver
from riskmin.core.messages import check_whole
from riskmin.problem.objective import Objective
from riskmin.solvers.base import mix_two
from riskmin.solvers.proximal_gradient import risk_uncertainty, smooth_reason
from riskmin.solvers.state_checks import check_state


@dataclass(frozen=True)
class OwlQn(Solver):
    r"""Orthant-wise L-BFGS, for smooth losses with `L1` or `Elastic`.

    Within an orthant the absolute values are linear, so J is smooth there. The signs of the orthant are those
    of w and, where :math:`w_j = 0`, those of the steepest descent,

    .. math:: -\partial_j J = -\mathrm{sgn}(g_j) \max(|g_j| - \lambda l_j, 0),

    where g is the gradient of J without the absolute values. L-BFGS models the curvature of that smooth part;
    coordinates that leave the orthant along the step become zero. Only the value and gradient of the risk are
    needed, so the data may be distributed.

    Parameters
    ----------
    memory : int
        Number of past steps in the model of the inverse Hessian.

    Notes
    -----
    Two changes to Andrew and Gao (2007) reduce the number of steps: the inverse Hessian is modeled on the
    coordinates that are free to move only, and the sign of its direction is constrained to that of the
    steepest descent only where :math:`w_j = 0`.

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
        check_whole(self, "memory")

    def supports(self, obj: Objective) -> str | None:
        """None for smooth losses with `L1` or `Elastic`."""
        if reason := smooth_reason(self.name, obj):
            return reason
        if not (reg := obj.reg.penalized_part).sum_of_absolutes:
            return f"OwlQn is for L1() and Elastic(), not {type(reg).__name__}: use ProximalGradient"
        return None

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield points of decreasing objective."""
        self.check_supports(obj)
        return self._run(obj, w0, [])

    def verifies_states(self, obj: Objective) -> bool:
        """True: cuts begin with the one at the point of the state."""
        return True

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        check_state(state, {"w": "d", "S": "m d", "Y": "m d"}, d=obj.risk.dim)
        pairs = list(zip(state["S"], state["Y"], strict=True))
        steps = self._run(obj, state["w"], pairs)
        # The first iterate repeats the saved one.
        next(steps)
        return steps

    def _run(self, obj: Objective, w: Array, pairs: list[tuple[Array, Array]]) -> Iterator[Iterate]:
        """Yield iterates from w and the pairs (s, y) of past steps."""
        model: Cut | None = None
        # lam Omega = sum_j absolute_j |w_j| + square_j w_j^2 / 2
        terms = obj.reg.terms(w)
        absolute, square = obj.lam * terms.absolute, obj.lam * terms.square
        at_w, n_evaluations = obj(w), 0
        while True:
            model, _ = mix_two(model, at_w[2], obj)
            yield Iterate(w, at_w[0], model, {"evaluations": n_evaluations}, _saved(w, pairs))
            # The gradient of J without the absolute values.
            grad = at_w[1] + square * w
            orthant = Orthant.from_point(w, grad, absolute)
            new, at_new, n_evaluations = _search(obj, orthant, at_w, square, orthant.direction(pairs))
            if at_new is None:
                if not pairs:
                    # No descent is left in this precision.
                    return
                # The inverse Hessian model misleads: restart from steepest descent.
                pairs = []
                continue
            s, y = new - w, at_new[1] + square * new - grad
            # Keep only pairs of positive curvature.
            if float(s @ y) > 1e-14 * float(y @ y) > 0:
                pairs = [*pairs, (s, y)][-self.memory :]
            w, at_w = new, at_new


@dataclass(frozen=True)
class Orthant:
    """The orthant in which a step from w may move, and in which absolute values are linear."""

    w: Array
    absolute: Any
    signs: Array
    steepest: Array
    """Direction of steepest descent: minus one-sided derivatives of J, or zero if J rises on both sides."""

    @classmethod
    def from_point(cls, w: Array, grad: Array, absolute: Any) -> Orthant:
        """Return the orthant of w and, where w is 0, of the steepest descent; grad is of the smooth part."""
        xp, zero = namespace(w), 0.0 * w
        pseudo_gradient = xp.sign(grad) * xp.maximum(xp.abs(grad) - absolute, zero)
        steep = xp.where(w == 0, -pseudo_gradient, -grad - absolute * xp.sign(w))
        return cls(w, absolute + zero, xp.where(w == 0, xp.sign(steep), xp.sign(w)), steep)

    def direction(self, pairs: list[tuple[Array, Array]]) -> Array:
        """Return the L-BFGS direction on the coordinates that are free to move."""
        xp = namespace(self.w)
        free = xp.nonzero(self.signs != 0)[0]
        steep, at_zero = self.steepest[free], self.w[free] == 0
        inside = [(s[free], y[free]) for s, y in pairs]
        inside = [(s, y) for s, y in inside if float(s @ y) > 1e-10 * float(y @ y) > 0]
        step = two_loop(inside, steep)
        # At w_j = 0, a step against the steepest descent would leave the orthant.
        opposed = xp.sign(step) * xp.sign(steep) <= 0
        step = xp.where(at_zero & opposed, 0.0 * step, step)
        # If the result is no descent direction, drop all opposed coordinates: the others make it one.
        if not float(step @ steep) > 0:
            step = xp.where(opposed, 0.0 * step, step)
        # Without curvature information, the step has length at most 1.
        if not inside and len(free):
            # Scale by the largest entry first: its square could overflow.
            step = step / max(1.0, float(xp.max(xp.abs(step))))
            step = step / max(1.0, float(step @ step) ** 0.5)
        d = xp.zeros_like(self.w)
        d[free] = step
        return d

    def projected_step(self, step: float, d: Array) -> Array:
        """Return w + step d with zeros for the coordinates that left the orthant."""
        new = self.w + step * d
        return namespace(new).where((new * self.signs > 0) | (self.absolute == 0), new, 0.0 * new)

    def slope(self, grad: Array, s: Array) -> float:
        """Return the directional derivative of J along s, given the smooth part's gradient."""
        return float((grad + self.absolute * self.signs) @ s)


def _search(
    obj: Objective, orthant: Orthant, at_w: Evaluation, square: Any, d: Array
) -> tuple[Array, Evaluation | None, int]:
    """Backtrack along d, projected onto the orthant, until J decreases sufficiently.

    Returns the new point, its evaluation (None without a decrease), and the number of evaluations. Where the
    decrease is below the rounding error of J, slopes decide: they are known more accurately. After 40 step
    lengths, rounding is assumed to hide all descent.
    """
    step, n_evaluations = 1.0, 0
    for n_evaluations in range(1, 41):
        new = orthant.projected_step(step, d)
        s = new - orthant.w
        # Directional derivative of J along the projected step.
        slope = -float(orthant.steepest @ s)
        if not slope < 0:
            break
        at_new = obj(new)
        if math.isfinite(at_new[0]):
            # Armijo condition.
            if at_new[0] <= at_w[0] + 1e-4 * slope:
                return new, at_new, n_evaluations
            close = at_new[0] <= at_w[0] + risk_uncertainty(obj, new, at_new)
            if close and orthant.slope(at_new[1] + square * new, s) <= -0.8 * slope:
                return new, at_new, n_evaluations
        # Where J overflows, the step is far too long.
        step *= 0.5 if math.isfinite(at_new[0]) else 0.1
    return orthant.w, None, n_evaluations


def _saved(w: Array, pairs: list[tuple[Array, Array]]) -> Callable[[], dict[str, Array]]:
    """Return a function that builds the state: the point and the L-BFGS pairs."""

    def state() -> dict[str, Array]:
        xp = namespace(w)
        empty = zeros_for((0, len(w)), w)
        S, Y = (xp.stack([p[k] for p in pairs]) if pairs else empty for k in (0, 1))
        return {"w": w, "S": S, "Y": Y}

    return state


def two_loop(pairs: list[tuple[Array, Array]], q: Array) -> Array:
    """Return H q for the inverse Hessian model H, by the two-loop recursion."""
    stack = []
    # Newest pair first: q -= a y with a = s'q / s'y.
    for s, y in reversed(pairs):
        a = float(s @ q) / float(s @ y)
        q = q - a * y
        stack.append(a)
    # Initial scaling s'y / y'y of the newest pair.
    if pairs:
        s, y = pairs[-1]
        q = q * (float(s @ y) / float(y @ y))
    for (s, y), a in zip(pairs, reversed(stack), strict=True):
        q = q + (a - float(y @ q) / float(s @ y)) * s
    return q
