"""Nesterov's accelerated gradient method with estimate sequences: the rate of the theorem, certified."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.arrays import namespace
from riskmin.intercept import CLOSE
from riskmin.objective import Objective
from riskmin.regularizers import Free, Quadratic, Separable
from riskmin.scalar import ROUNDING
from riskmin.solvers.cuts import mix_two, mixture
from riskmin.solvers.proximal import TRIES, Point, check_smooth, least_constant
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Iterate, Slips, Unsuited

REST = 30
"""After so many steps without a lower J, it has too much speed, and starts anew from its best point."""
SMALL = 1000
"""Up to so many columns, the least eigenvalue of a quadratic form is computed."""
ENOUGH = 1e40
"""Where A L is larger than this, what the theorem still leaves is less than any rounding."""


@dataclass(frozen=True)
class AcceleratedGradient:
    r"""Nesterov's accelerated gradient method, for smooth losses with any regularizer that has a prox.

    It keeps a mixture of the cuts of all its points, weighted by :math:`a_i`, :math:`A_k = \sum_i a_i`, and
    with it the point

    .. math:: v_k = \mathrm{argmin}_v\; A_k \bigl(\lambda\,\Omega(v) + \text{cut}_k(v)\bigr)
              + \tfrac12 \|v - w_0\|^2.

    A step goes from a point between :math:`w_k` and :math:`v_k` to its proximal point. The constant L is
    raised by gamma_u until it fits, and lowered by gamma_d after every step. What :math:`\lambda\,\Omega`
    has of strong convexity makes the weights grow faster, so that for a risk whose gradient has the
    constant :math:`L_R` and :math:`\lambda\,\Omega` that of convexity :math:`\mu`

    .. math:: J(w_k) - J^* \le \frac{\|w_0 - w^*\|^2}{2 A_k} \le \|w_0 - w^*\|^2\,\gamma_u L_R
              \min\Bigl\{\frac1{k^2},\; \tfrac14 \bigl(1 + \sqrt{\mu / (2 \gamma_u L_R)}\bigr)^{-2 (k - 1)}
              \Bigr\}.

    The mixture is a cut of the risk, so this rate is one of the certified gap too where
    :math:`\Omega` is strongly convex. J may rise on the way; where it has not fallen for 30 steps, the method
    starts anew from its best point, which then takes the place of :math:`w_0`. Losses with kinks:
    ``Smoothing(inner=AcceleratedGradient())``.

    Parameters
    ----------
    gamma_u : float
        By how much L is raised where it is too small, above 1.
    gamma_d : float
        By how much L is lowered after a step, at least 1.

    References
    ----------
    Y. Nesterov, Gradient methods for minimizing composite objective function, CORE discussion paper 76,
    2007, method (4.9) and theorem 6.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import AcceleratedGradient, L2, Objective, Squared, linear_risk, minimize
    >>> X, y = np.array([[1.0], [2.0]]), np.array([1.0, 3.0])
    >>> J = Objective(linear_risk(X, y, Squared()), L2(), lam=0.5)
    >>> minimize(J, AcceleratedGradient(), tol=1e-9).w.round(4).tolist()
    [1.1667]
    """

    gamma_u: float = 2.0
    gamma_d: float = 1.1

    def __post_init__(self) -> None:
        if not 1 < self.gamma_u < math.inf:
            raise ValueError(f"AcceleratedGradient needs a finite gamma_u > 1, not {self.gamma_u!r}")
        if not 1 <= self.gamma_d < math.inf:
            raise ValueError(f"AcceleratedGradient needs a finite gamma_d >= 1, not {self.gamma_d!r}")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the points w_k; J may rise from one to the next."""
        check_smooth(self, obj)
        if isinstance(obj.reg, Free):  # its mixtures of cuts have no slopes in them
            raise Unsuited(
                f"{type(self).__name__} cannot move intercepts of many outputs: use ProximalGradient"
            )
        w0 = obj.reg.prox(w0, 0.0)
        return self._run(obj, Estimate(w0, w0), 0.0, None)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        vectors = dict.fromkeys(("w", "start", "best", "mean", "a"), "d")
        checked(state, vectors | {"numbers": "6"}, d=obj.risk.dim)
        A, mean_b, L, b, least, idle = (float(v) for v in state["numbers"])
        known = Estimate(state["w"], state["start"], A, Cut(state["mean"], mean_b))
        known = replace(known, best=state["best"], least=least, idle=int(idle))
        steps = self._run(obj, known, L, Cut(state["a"], b))
        next(steps)  # the iterate that was saved
        return steps

    def warm(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start at the point of a run on the same risk, with its constant and its cut."""
        _, _, L, b, *_ = (float(v) for v in state["numbers"])
        return self._run(obj, Estimate(state["w"], state["w"]), L, Cut(state["a"], b))

    def _run(self, obj: Objective, known: Estimate, L: float, model: Cut | None) -> Iterator[Iterate]:
        convex = obj.lam * _convexity(obj.reg, known.w)
        here = obj(known.w)
        known = known if known.best is not None else replace(known, best=known.w, least=here[0])
        model, _ = mix_two(model, here[2], obj)
        L = L or least_constant(obj, known.w, here)
        while True:
            info = {"L": L, "A": known.A}
            yield Iterate(known.w, here[0], model, info, _snapshot(known, L, model))
            if known.idle >= REST:
                known = Estimate(known.best, known.best, best=known.best, least=known.least)
            v = known.minimizer(obj)
            for _ in range(TRIES):
                a = known.weight(L, convex)
                y = known.w + a / (known.A + a) * (v - known.w)
                there = obj(y)
                new = obj.reg.prox(y - there[1] / L, obj.lam / L)
                found = obj(new)
                model, _ = mix_two(model, there[2], obj)
                if _fits(obj, (y, there), (new, found), L):
                    break
                L *= self.gamma_u
            else:
                return  # rounding hides how the risk bends
            if not known.A + a < ENOUGH / L:
                return
            known, here, L = known.after(new, a, found), found, L / self.gamma_d
            model, _ = mix_two(mix_two(model, found[2], obj)[0], known.mean or found[2], obj)


@dataclass(frozen=True)
class Estimate:
    """What all points so far say together: their cuts, mixed by their weights, and where the run started."""

    w: Array
    start: Array
    A: float = 0.0
    """The sum of the weights."""
    mean: Cut | None = None
    best: Array = None
    """The point of the least J so far, and how many steps ago that was."""
    least: float = math.inf
    idle: int = 0

    def minimizer(self, obj: Objective) -> Array:
        """The v_k: least for the mixture, not too far from the start."""
        if self.mean is None:
            return self.start
        return obj.reg.prox(self.start - self.A * self.mean.a, self.A * obj.lam)

    def weight(self, L: float, convex: float) -> float:
        """The a with a^2 / (A + a) = 2 (1 + mu A) / L."""
        t = (1 + convex * self.A) / L
        return t + math.sqrt(t * t + 2 * t * self.A)

    def after(self, w: Array, a: float, found: Point) -> Estimate:
        """With another point of weight a."""
        J, _, cut = found
        old, part = self.mean or cut, a / (self.A + a)
        mean = mixture(old, cut, part)
        best, least, idle = (w, J, 0) if self.least > J else (self.best, self.least, self.idle + 1)
        return Estimate(w, self.start, self.A + a, mean, best, least, idle)


def _fits(obj: Objective, before: tuple[Array, Point], after: tuple[Array, Point], L: float) -> bool:
    """Whether L is large enough on the way from y to its proximal point: |g|^2 <= L g @ d.

    That is condition (4.7) of the paper, g and d being the changes of gradient and place. Where the risk is
    straight, both sides are zero but for rounding, by as much as the risk is known to.
    """
    (y, (_, gy, _)), (new, (J, g, _)) = before, after
    if not math.isfinite(J):
        return False
    bend = gy - g
    risk = J - obj.lam * obj.reg.value(new)
    known = CLOSE if isinstance(obj.risk, Slips) else ROUNDING
    slack = 4 * known * (abs(risk) + abs(float(g @ new)) + abs(float(gy @ y)))
    return float(bend @ bend) <= L * (float(bend @ (y - new)) + slack)


def _convexity(reg: Any, w: Array) -> float:
    """The strong convexity of a sum over coordinates or a small quadratic form; 0 is true of all others."""
    if isinstance(reg, Quadratic) and isinstance(reg.K, np.ndarray) and len(reg.K) <= SMALL:
        return max(0.0, (1 - 1e-6) * float(np.linalg.eigvalsh(reg.K)[0]))
    if not isinstance(reg, Separable):
        return 0.0
    xp = namespace(w)
    return float(xp.min(reg.terms(w).square + xp.zeros_like(w)))


def _snapshot(known: Estimate, L: float, model: Cut) -> Callable[[], dict[str, Array]]:
    def state() -> dict[str, Array]:
        mean = known.mean or Cut(0.0 * known.w, 0.0)
        numbers = np.array([known.A, mean.b, L, model.b, known.least, known.idle])
        vectors = {"w": known.w, "start": known.start, "best": known.best, "mean": mean.a, "a": model.a}
        return {**vectors, "numbers": numbers}

    return state
