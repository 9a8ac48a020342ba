"""The accelerated proximal gradient method: any smooth loss, any regularizer that has a proximal point."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.losses.queries import named
from riskmin.losses.smoothing import can_be_smoothed
from riskmin.objective import Objective
from riskmin.regularizers import Free
from riskmin.scalar import ROUNDING
from riskmin.solvers.cuts import has_program, mix_two
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Iterate, Raises, Unsuited

SHRINK = 0.9
"""The constant falls by this with every step, since the risk may be flatter further on."""
TRIES = 60
"""So many larger constants are tried before rounding is held to hide all descent."""


def loss_of(risk: Any) -> Any:
    """The loss of a risk, with or without an intercept; None for an oracle that names none."""
    return named(getattr(getattr(risk, "risk", risk), "loss", None))


def check_smooth(solver: object, obj: Objective) -> None:
    """Raise where the loss says that it is not smooth; one that says nothing is given the chance."""
    loss = loss_of(obj.risk)
    if not getattr(loss, "smooth", True):
        cuts = has_program(obj.reg) and not isinstance(obj.reg, Free)  # else Bundle refuses it
        use = "use Bundle" if cuts else "add conjugate_bend to the regularizer, and use Bundle"
        if not cuts and can_be_smoothed(loss, np.zeros(1)):
            use = "use Smoothing(ProximalGradient())"
        raise Unsuited(f"{type(solver).__name__} needs a smooth loss, and {loss!r} is not: {use}")


@dataclass(frozen=True)
class ProximalGradient:
    r"""The accelerated proximal gradient method, for smooth losses with any regularizer.

    A step goes from an extrapolated point v to

    .. math:: w_{k+1} = \mathrm{argmin}_w\; \lambda\,\Omega(w) + g^\top w + \tfrac L2 \|w - v\|^2,
              \qquad g = \nabla R(v),

    the proximal point of :math:`v - g / L`. L is raised until the risk lies below that parabola, and
    lowered a little after every step. Where J would rise, or the way turns round, the extrapolation starts
    anew, so J never rises. All it asks of the risk is its value and gradient: the data may be anywhere.

    It works in the array library of w0 with `L1`, `L2`, `Elastic` and `Box`; the proximal points of
    `Quadratic`, `QNorm` and `Entropy` are for NumPy.

    References
    ----------
    A. Beck, M. Teboulle, A fast iterative shrinkage-thresholding algorithm for linear inverse problems,
    SIAM J. Imaging Sciences 2, 2009. B. O'Donoghue, E. Candès, Adaptive restart for accelerated gradient
    schemes, Foundations of Computational Mathematics 15, 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, Objective, ProximalGradient, Squared, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [2.0, -0.5]]), np.array([1.0, 3.0])
    >>> J = Objective(linear_risk(X, y, Squared()), L1(), lam=0.5)
    >>> minimize(J, ProximalGradient(), tol=1e-9).w.round(6).tolist()
    [1.2, 0.0]
    """

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield points of decreasing objective."""
        check_smooth(self, obj)
        return self._run(obj, w0, w0, (1.0, 0.0), None)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        checked(state, {"w": "d", "before": "d", "a": "d", "numbers": "3"}, d=obj.risk.dim)
        age, L, b = (float(v) for v in state["numbers"])
        steps = self._run(obj, state["w"], state["before"], (age, L), Cut(state["a"], b))
        next(steps)  # the iterate that was saved
        return steps

    def _run(
        self, obj: Objective, w: Array, before: Array, pace: tuple[float, float], model: Cut | None
    ) -> Iterator[Iterate]:
        age, L = pace
        here, base = see(obj, w)
        model, _ = mix_two(model, here[2], obj)
        if L == 0:
            L = least_constant(obj, w, here)
        while True:
            yield Iterate(w, here[0], model, {"L": L}, _snapshot(w, before, age, L, model))
            grown = 0.5 * (1 + math.sqrt(1 + 4 * age * age))
            v = w if age == 1 else w + (age - 1) / grown * (w - before)
            there, height = (here, base) if age == 1 else see(obj, v)
            if age > 1:
                model, _ = mix_two(model, there[2], obj)
            new, found, used, under = _step(obj, v, (there[1], height), L, here[0] if age == 1 else math.inf)
            if found is None:
                if age == 1:
                    return  # no descent is left in this precision
                age, before = 1.0, w
                continue
            model, _ = mix_two(model, found[2], obj)
            L = SHRINK * used
            if found[0] > here[0] + noise(obj, new, found):  # too far: once more, without extrapolation
                age, before = 1.0, w
                continue
            turned = float((v - new) @ (new - w)) > 0
            w, before, here, base = new, w, found, under
            age = 1.0 if turned else grown
            if turned:
                before = w


Point = tuple[float, Array, Cut]
"""J, the gradient of R and the cut, at a point."""


def least_constant(obj: Objective, w: Array, at: Point) -> float:
    """What L is at least: |grad R|^2 <= 2 L R, since R >= 0."""
    risk = at[0] - obj.lam * obj.reg.value(w)
    if not 0 < risk < math.inf:
        return 1.0
    part = at[1] / math.sqrt(2 * risk)  # the square of a gradient overflows long before this does
    return float(part @ part) or 1.0


def see(obj: Objective, w: Array) -> tuple[Point, float]:
    """The point w, and the height at zero of the tangent there: J itself may be infinite at w."""
    r, g, slip = obj.look(w)
    at = obj.at(w, r, g, slip)
    if isinstance(obj.reg, Free):  # the cut is no tangent: it has no slopes in the intercepts
        return at, r - float(g @ w)
    return at, at[2].b - lift(obj, w)


def _step(
    obj: Objective, v: Array, tangent: tuple[Array, float], L: float, most: float
) -> tuple[Array, Point | None, float, float]:
    """The proximal step from v, its J of at most `most`, with the first L that is large enough.

    Near the minimum the gain in J is less than its rounding, but the gradients still tell the bend.
    """
    g, base = tangent
    for _ in range(TRIES):
        new = obj.reg.prox(v - g / L, obj.lam / L)
        d = new - v
        square = float(d @ d)
        if square == 0:
            break
        found, under = see(obj, new)
        bend = float((found[1] - g) @ d) if math.isfinite(found[0]) else math.inf
        risk = found[0] - obj.lam * obj.reg.value(new)
        above, slack = risk - float(g @ new) - base, noise(obj, new, found)
        fits = bend <= L * square and above <= 0.5 * L * square + slack
        if fits and found[0] <= most + slack:
            return new, found, L, under
        L = max(2 * L, min(bend / square, 100 * L))
    return v, None, L, base


def noise(obj: Objective, w: Array, at: Point) -> float:
    """How well R is known: what a cut allows for at its own point, for rounding and for an intercept."""
    J, g, cut = at
    risk = J - obj.lam * obj.reg.value(w)
    if isinstance(obj.reg, Free):  # that cut lies further below, since it has no slopes in the intercepts
        return 4 * ROUNDING * (abs(risk) + abs(float(g @ w)))
    return 2 * abs(risk - float(cut.a @ w) - cut.b + lift(obj, w))


def lift(obj: Objective, w: Array) -> float:
    """By how much the cut at w lies above the tangent there: zero, unless the risk stands for another."""
    return obj.risk.lift(w) if isinstance(obj.risk, Raises) else 0.0


def _snapshot(w: Array, before: Array, age: float, L: float, model: Cut) -> Callable[[], dict[str, Array]]:
    saved = {"w": w, "before": before, "a": model.a, "numbers": np.array([age, L, model.b])}
    return saved.copy
