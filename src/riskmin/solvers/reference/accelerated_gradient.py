"""Nesterov's accelerated gradient method with estimate sequences: the theorem's rate holds for the gap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from riskmin.core import Array, Cut, Evaluation, Iterate, Solver
from riskmin.problem.objective import Objective
from riskmin.solvers.base import intercepts_reason, mix_two, mixture
from riskmin.solvers.proximal_gradient import MAX_LIPSCHITZ_INCREASES, lipschitz_lower_bound, smooth_reason
from riskmin.solvers.state_checks import CUT, SavedAttributes


@dataclass(frozen=True)
class AcceleratedGradient(Solver):
    r"""Nesterov's accelerated gradient method, for smooth losses with any regularizer that has a prox.

    The method maintains the mixture of the cuts at all its points, with weights :math:`a_i` and
    :math:`A_k = \sum_i a_i`, and the point

    .. math:: v_k = \mathrm{argmin}_v\; A_k \bigl(\lambda\,\Omega(v) + \text{cut}_k(v)\bigr)
              + \tfrac12 \|v - w_0\|^2.

    A step takes the proximal point of a point between :math:`w_k` and :math:`v_k`. Backtracking multiplies
    the Lipschitz estimate L by gamma_u until it is large enough; every step divides it by gamma_d. Strong
    convexity of :math:`\lambda\,\Omega` makes the weights grow faster: if the gradient of the risk has the
    Lipschitz constant :math:`L_R` and :math:`\lambda\,\Omega` is :math:`\mu`-strongly convex, then

    .. math:: J(w_k) - J^* \le \frac{\|w_0 - w^*\|^2}{2 A_k} \le \|w_0 - w^*\|^2\,\gamma_u L_R
              \min\Bigl\{\frac1{k^2},\; \tfrac14 \bigl(1 + \sqrt{\mu / (2 \gamma_u L_R)}\bigr)^{-2 (k - 1)}
              \Bigr\}.

    The mixture is a cut of the risk, so the certified gap converges at the same rate where
    :math:`\Omega` is strongly convex. J need not decrease monotonically; after 30 steps without a new minimum
    the method restarts from its best point, which replaces :math:`w_0`. For nonsmooth losses, use
    ``Smoothing(inner=AcceleratedGradient())``.

    Parameters
    ----------
    gamma_u : float
        Factor above 1 by which L grows while it is too small.
    gamma_d : float
        Factor of at least 1 by which L shrinks after each step.

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

    MAX_WEIGHT_TIMES_LIPSCHITZ = 1e40
    """Stop once A L exceeds this: the theorem's bound on the gap is then below rounding."""
    RESTART_AFTER_STEPS = 30
    """Restart from the best point after this many steps without a lower J: the momentum overshoots."""

    gamma_u: float = 2.0
    gamma_d: float = 1.1

    def __post_init__(self) -> None:
        if not 1 < self.gamma_u < math.inf:
            raise ValueError(f"AcceleratedGradient needs a finite gamma_u > 1, not {self.gamma_u!r}")
        if not 1 <= self.gamma_d < math.inf:
            raise ValueError(f"AcceleratedGradient needs a finite gamma_d >= 1, not {self.gamma_d!r}")

    def supports(self, obj: Objective) -> str | None:
        """None for smooth losses without intercepts in w."""
        return smooth_reason(self.name, obj) or intercepts_reason(self.name, obj, "ProximalGradient")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the points w_k; J may increase between two of them."""
        self.check_supports(obj)
        # The projection onto the domain of Omega.
        return AcceleratedRun.from_point(self, obj, obj.reg.prox(w0, 0.0)).iterates()

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        run = AcceleratedRun.from_point(self, obj, state.get("w"))
        run.restore(state, d=obj.risk.dim)
        steps = run.iterates()
        # The first iterate repeats the saved one.
        next(steps)
        return steps

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start at the point of a run on the same risk, with its Lipschitz estimate and its cut."""
        run = AcceleratedRun.from_point(self, obj, state["w"])
        run.L, run.model = float(state["L"][0]), Cut(state["model_a"], float(state["model_b"][0]))
        return run.iterates()


@dataclass
class AcceleratedRun(SavedAttributes):
    """State of a run: the estimate sequence from a start, the best point, and the Lipschitz estimate."""

    SAVED = (
        dict.fromkeys(("w", "start", "best"), "d")
        | {"mean": CUT, "model": CUT}
        | (dict.fromkeys(("A", "L", "best_value"), float) | {"steps_since_best": int})
    )

    solver: AcceleratedGradient
    obj: Objective
    w: Array
    start: Array
    mean: Cut
    """The weighted mixture of all cuts."""
    best: Array
    """Point of the lowest J so far."""
    best_value: float = math.inf
    steps_since_best: int = 0
    """Steps since `best` was found."""
    A: float = 0.0
    """Sum of the weights a_i."""
    L: float = 0.0
    model: Any = None
    """The cut of the best bound."""

    @classmethod
    def from_point(cls, solver: AcceleratedGradient, obj: Objective, w: Array) -> AcceleratedRun:
        """Return a run that starts at w."""
        return cls(solver, obj, w, w, Cut(0.0 * w, 0.0), w)

    def iterates(self) -> Iterator[Iterate]:
        """Yield an iterate per step, with two evaluations of J per trial of L: at y and its prox."""
        obj, solver = self.obj, self.solver
        at_w, mu = obj(self.w), obj.lam * obj.reg.strong_convexity(self.w)
        if not self.best_value < math.inf:
            self.best_value = at_w[0]
        self.model, _ = mix_two(self.model, at_w[2], obj)
        self.L = self.L or lipschitz_lower_bound(obj, self.w, at_w)
        while True:
            state = self.state()
            yield Iterate(self.w, at_w[0], self.model, {"L": self.L, "A": self.A}, state.copy)
            if self.steps_since_best >= solver.RESTART_AFTER_STEPS:
                self.w = self.start = self.best
                self.A, self.steps_since_best = 0.0, 0
            v = obj.reg.prox(self.start - self.A * self.mean.a, self.A * obj.lam)
            for _ in range(MAX_LIPSCHITZ_INCREASES):
                a = self._weight(mu)
                # y_k = (A_k w_k + a v_k) / (A_k + a)
                y = self.w + a / (self.A + a) * (v - self.w)
                at_y = obj(y)
                new = obj.reg.prox(y - at_y[1] / self.L, obj.lam / self.L)
                at_new = obj(new)
                self.model, _ = mix_two(self.model, at_y[2], obj)
                if _fits(obj, (y, at_y), (new, at_new), self.L):
                    break
                self.L *= solver.gamma_u
            else:
                # No L in range satisfies the condition: rounding hides the curvature of the risk.
                return
            if not self.A + a < solver.MAX_WEIGHT_TIMES_LIPSCHITZ / self.L:
                return
            # The mixture of all cuts has the proved rate; the model may bound better.
            self.mean = mixture(self.mean, at_new[2], a / (self.A + a))
            self.model, _ = mix_two(mix_two(self.model, at_new[2], obj)[0], self.mean, obj)
            self.w, at_w, self.A, self.L = new, at_new, self.A + a, self.L / solver.gamma_d
            self.steps_since_best += 1
            if at_w[0] < self.best_value:
                self.best, self.best_value, self.steps_since_best = new, at_w[0], 0

    def _weight(self, mu: float) -> float:
        """Return the a that solves a^2 / (A + a) = 2 (1 + mu A) / L."""
        # The positive root of a^2 - 2 t a - 2 t A = 0.
        t = (1 + mu * self.A) / self.L
        return t + math.sqrt(t * t + 2 * t * self.A)


def _fits(
    obj: Objective, before: tuple[Array, Evaluation], after: tuple[Array, Evaluation], L: float
) -> bool:
    """Return whether L is large enough between y and its proximal point: |dg|^2 <= L dg @ dw.

    This is condition (4.7) of the paper, where dg and dw are the differences of the gradients and of the
    points. Where the risk is affine, both sides vanish up to rounding; the slack covers that error.
    """
    (y, (_, gy, _)), (new, (J, g, _)) = before, after
    if not math.isfinite(J):
        return False
    dg = gy - g
    risk = J - obj.lam * obj.reg.value(new)
    slack = 4 * obj.risk.relative_error * (abs(risk) + abs(float(g @ new)) + abs(float(gy @ y)))
    return float(dg @ dg) <= L * (float(dg @ (y - new)) + slack)
