"""Nesterov's accelerated gradient method with estimate sequences: the theorem's rate holds for the gap."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from riskmin.core import Array, Cut, Evaluation, Iterate, Solver
from riskmin.problem.objective import Objective
from riskmin.solvers.base import intercepts_reason, mix_two, mixture
from riskmin.solvers.proximal_gradient import MAX_LIPSCHITZ_INCREASES, lipschitz_lower_bound, smooth_reason
from riskmin.solvers.state_checks import check_state


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
        w0 = obj.reg.prox(w0, 0.0)
        return self._run(obj, Estimate(w0, w0), 0.0, None)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        vectors = dict.fromkeys(("w", "start", "best", "mean", "a"), "d")
        check_state(state, vectors | {"numbers": "6"}, d=obj.risk.dim)
        # numbers: A, the offset of the mixture, L, the offset of the model, the best J, steps since then.
        A, mean_b, L, b, best_value, steps_since_best = (float(v) for v in state["numbers"])
        estimate = Estimate(state["w"], state["start"], A, Cut(state["mean"], mean_b))
        estimate = replace(
            estimate, best=state["best"], best_value=best_value, steps_since_best=int(steps_since_best)
        )
        steps = self._run(obj, estimate, L, Cut(state["a"], b))
        # The first iterate repeats the saved one.
        next(steps)
        return steps

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start at the point of a run on the same risk, with its Lipschitz estimate and its cut."""
        _, _, L, b, *_ = (float(v) for v in state["numbers"])
        return self._run(obj, Estimate(state["w"], state["w"]), L, Cut(state["a"], b))

    def _run(self, obj: Objective, estimate: Estimate, L: float, model: Cut | None) -> Iterator[Iterate]:
        strong_convexity = obj.lam * obj.reg.strong_convexity(estimate.w)
        at_w = obj(estimate.w)
        estimate = (
            estimate if estimate.best is not None else replace(estimate, best=estimate.w, best_value=at_w[0])
        )
        model, _ = mix_two(model, at_w[2], obj)
        L = L or lipschitz_lower_bound(obj, estimate.w, at_w)
        while True:
            info = {"L": L, "A": estimate.A}
            yield Iterate(estimate.w, at_w[0], model, info, _snapshot(estimate, L, model))
            if estimate.steps_since_best >= self.RESTART_AFTER_STEPS:
                estimate = Estimate(
                    estimate.best, estimate.best, best=estimate.best, best_value=estimate.best_value
                )
            # Each iteration evaluates J twice per trial of L: at y, where the gradient step starts, and at
            # its end.
            v = estimate.minimizer(obj)
            for _ in range(MAX_LIPSCHITZ_INCREASES):
                a = estimate.weight(L, strong_convexity)
                # y_k = (A_k w_k + a v_k) / (A_k + a)
                y = estimate.w + a / (estimate.A + a) * (v - estimate.w)
                at_y = obj(y)
                new = obj.reg.prox(y - at_y[1] / L, obj.lam / L)
                at_new = obj(new)
                model, _ = mix_two(model, at_y[2], obj)
                if _fits(obj, (y, at_y), (new, at_new), L):
                    break
                L *= self.gamma_u
            else:
                # No L in range satisfies the condition: rounding hides the curvature of the risk.
                return
            if not estimate.A + a < self.MAX_WEIGHT_TIMES_LIPSCHITZ / L:
                return
            # The mixture of all cuts has the proved rate; the model may bound better.
            estimate, at_w, L = estimate.with_point(new, a, at_new), at_new, L / self.gamma_d
            model, _ = mix_two(mix_two(model, at_new[2], obj)[0], estimate.mean or at_new[2], obj)


@dataclass(frozen=True)
class Estimate:
    """The estimate sequence after k steps: the weighted mixture of all cuts, and the run's starting point."""

    w: Array
    start: Array
    A: float = 0.0
    """Sum of the weights a_i."""
    mean: Cut | None = None
    best: Array = None
    """Point of the lowest J so far."""
    best_value: float = math.inf
    steps_since_best: int = 0
    """Steps since `best` was found."""

    def minimizer(self, obj: Objective) -> Array:
        """Return v_k, the minimizer of A_k (lam Omega + mixture) + |v - w_0|^2 / 2."""
        if self.mean is None:
            return self.start
        return obj.reg.prox(self.start - self.A * self.mean.a, self.A * obj.lam)

    def weight(self, L: float, strong_convexity: float) -> float:
        """Return the a that solves a^2 / (A + a) = 2 (1 + mu A) / L."""
        # The positive root of a^2 - 2 t a - 2 t A = 0.
        t = (1 + strong_convexity * self.A) / L
        return t + math.sqrt(t * t + 2 * t * self.A)

    def with_point(self, w: Array, a: float, at_w: Evaluation) -> Estimate:
        """Return the sequence extended by the point w of weight a."""
        J, _, cut = at_w
        old, share = self.mean or cut, a / (self.A + a)
        mean = mixture(old, cut, share)
        best, best_value, steps_since_best = (
            (w, J, 0) if self.best_value > J else (self.best, self.best_value, self.steps_since_best + 1)
        )
        return Estimate(w, self.start, self.A + a, mean, best, best_value, steps_since_best)


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


def _snapshot(estimate: Estimate, L: float, model: Cut) -> Callable[[], dict[str, Array]]:
    def state() -> dict[str, Array]:
        mean = estimate.mean or Cut(0.0 * estimate.w, 0.0)
        numbers = np.array([estimate.A, mean.b, L, model.b, estimate.best_value, estimate.steps_since_best])
        vectors = {
            "w": estimate.w,
            "start": estimate.start,
            "best": estimate.best,
            "mean": mean.a,
            "a": model.a,
        }
        return {**vectors, "numbers": numbers}

    return state
