"""Smoothing of a nonsmooth loss for a smooth solver, with a decreasing smoothing parameter mu."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from riskmin.core import Array, Cut, Iterate, Solver, as_solver
from riskmin.problem.objective import Objective
from riskmin.problem.smoothed_risk import SmoothedRisk
from riskmin.solvers.quasi_newton.lbfgs import Lbfgs
from riskmin.solvers.quasi_newton.owlqn import OwlQn
from riskmin.solvers.state_checks import check_state


@dataclass(frozen=True)
class Smoothing(Solver):
    r"""Smoothing (SMS): a smooth solver on a smoothed J, and a certificate for J itself.

    A loss that is a maximum over multipliers becomes smooth when :math:`\tfrac\mu2 |\beta|^2` is subtracted
    inside the maximum. The multipliers of any point are feasible for the unsmoothed loss, so each step gives
    a cut of the risk itself, and its gap is the sum of two terms:

    .. math:: J(w) - \text{lower} = \underbrace{R(w) - a^\top w - b}_{\text{complementarity}} +
        \underbrace{\lambda\,\Omega(w) + a^\top w + \lambda\,\Omega^*(-a / \lambda)}_{\text{stationarity}}.

    Only a smaller :math:`\mu` decreases the first, and only more steps the second. So :math:`\mu` decreases
    as soon as the second is below half of the first, until the certified gap is within tol.

    Parameters
    ----------
    inner : solver
        A solver for smooth losses: `Lbfgs`, `AcceleratedGradient`; `ProximalGradient` or `OwlQn` where the
        regularizer is nonsmooth.
    c_mu : float
        The initial mu is ``c_mu * eps / D``, as in the paper, for eps = 5 % of J(w0) and :math:`D = 1/2`, the
        largest value of :math:`|\beta|^2 / 2`.

    References
    ----------
    X. Zhang, A. Saha, S. V. N. Vishwanathan, Smoothing multivariate performance measures, JMLR 13, 2012.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Objective, RocArea, Smoothing, linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((200, 3)), np.where(rng.random(200) < 0.3, 1.0, -1.0)
    >>> X[y > 0] += 1
    >>> result = minimize(Objective(linear_risk(X, y, RocArea()), L2(), lam=1e-3), Smoothing(), tol=1e-4)
    >>> result.status
    'converged'
    """

    STAGE_MU_DECREASE = 0.3
    """The factor of mu from one stage to the next."""
    FIRST_STAGE_GAP = 0.05
    """The accuracy of the first stage, as a share of J(w0)."""
    SMOOTHING_MU_FLOOR = 1e-25
    """The run ends once mu is below this share of the initial mu: the rest of the gap is rounding."""

    inner: Any = field(default_factory=Lbfgs)
    c_mu: float = 10.0

    def __post_init__(self) -> None:
        if not self.c_mu > 0:
            raise ValueError(f"Smoothing needs c_mu > 0, not {self.c_mu!r}")
        object.__setattr__(self, "inner", as_solver(self.inner))

    def supports(self, obj: Objective) -> str | None:
        """None for nonsmooth losses that can be smoothed, if the inner solver supports the smoothed ones."""
        risk = obj.risk
        if risk.linear_map is None:
            return f"Smoothing needs a risk that linear_risk makes, not {risk!r}: use Bundle"
        if risk.loss.smooth:
            return f"Smoothing is for nonsmooth losses, and {risk.loss!r} is smooth: use Lbfgs"
        if risk.loss.can_be_smoothed:  # any number serves as a label, and y may be remote
            smoothed = SmoothedRisk.from_risk(risk, 1.0)
            return self.inner.supports(Objective(smoothed, obj.reg, obj.lam))  # type: ignore[no-any-return]
        master = obj.reg.penalized_part.has_master_problem
        reg = "" if master else ", with a regularizer that has conjugate_hessian_product"
        return f"{type(risk.loss.chosen).__name__} cannot be smoothed: use Bundle{reg}"

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the points of the inner solver, with the unsmoothed J and cuts of the unsmoothed risk."""
        self.check_supports(obj)
        smoothed = SmoothedRisk.from_risk(obj.risk, 1.0)
        value = obj.lam * obj.reg.value(w0) + smoothed.unsmoothed_value(w0)
        # c_mu * eps / D with D = 1/2; 1 where J(w0) = 0
        smoothed = smoothed.with_mu(self.c_mu * self.FIRST_STAGE_GAP * value / 0.5 or 1.0)
        smooth = Objective(smoothed, obj.reg, obj.lam, obj.count)
        return self._run(
            smoothed, smooth, self.SMOOTHING_MU_FLOOR * smoothed.mu, self.inner.iterates(smooth, w0)
        )

    def verifies_states(self, obj: Objective) -> bool:
        """Whether the inner solver does that; a smoothed risk is a lower bound of the risk for every mu."""
        return bool(self.inner.verifies_states(obj))

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        check_state(state, {"w": "d", "mu": "2"}, d=obj.risk.dim)
        saved = dict(state)
        w = saved["w"]
        # the remaining arrays are the state of the inner solver
        mu, min_mu = (float(mu) for mu in saved.pop("mu"))
        smoothed = SmoothedRisk.from_risk(obj.risk, mu)
        smooth = Objective(smoothed, obj.reg, obj.lam, obj.count)
        steps = self.inner.resume(smooth, saved)
        if steps is not None:
            return self._run(smoothed, smooth, min_mu, steps, w, lambda: saved)
        return self._run(smoothed, smooth, min_mu, self.inner.iterates(smooth, w))

    def _run(
        self,
        smoothed: SmoothedRisk,
        smooth: Objective,
        min_mu: float,
        steps: Iterator[Iterate],
        w: Array = None,
        state: Callable[[], dict[str, Array]] | None = None,
    ) -> Iterator[Iterate]:
        """The iterates of all stages; w and `state` are used if the inner solver's `steps` are exhausted."""
        last: tuple[Array, Cut] | None = None
        try:
            while True:
                for it in steps:
                    w, state = it.w, it.state
                    # the inner solver minimizes the smoothed J; its iterates are reported with J itself
                    risk = smoothed.unsmoothed_value(w)
                    value = risk + smooth.lam * smooth.reg.value(w)
                    saved = _saved((smoothed.mu, min_mu), w, state)
                    yield Iterate(w, value, it.cut, {"mu": smoothed.mu, **it.info}, saved)
                    cut = judged = smoothed.cut(w)
                    # quasi-Newton steps take a smaller mu well: where a stage begins, the cut of the last one
                    # decides, so that mu decreases twice
                    if last is not None and last[0] is w and isinstance(self.inner, (Lbfgs, OwlQn)):
                        judged = last[1]
                    last = w, cut
                    if smoothing_converged(smooth, w, risk, judged):
                        break
                if w is None or smoothed.mu <= min_mu:
                    return  # the rest of the gap is rounding
                smoothed = smoothed.with_mu(self.STAGE_MU_DECREASE * smoothed.mu)
                smooth = replace(smooth, risk=smoothed)
                # the next stage starts from the end of this one
                warm = None if state is None else self.inner.warm_start(smooth, state(), smooth)
                steps = warm or self.inner.iterates(smooth, w)
        finally:
            # the last cursor refers to its risk: a cycle, which would keep the threads of the shards alive
            smoothed.shared.clear()


def smoothing_converged(obj: Objective, w: Array, risk: float, cut: Cut) -> bool:
    """Whether stationarity is below half of complementarity: only a smaller mu decreases the gap by much.

    Stationarity is the certified gap less complementarity: where the conjugate of the regularizer is infinite
    beyond some slopes, as with L1, a cut that is too steep is scaled down before it gives a bound.
    """
    # R(w) less the cut at w, nonnegative since the cut is a minorant
    complementarity = risk - float(cut.a @ w) - cut.b
    # more steps also decrease what is lost when the slopes in the intercepts are projected out
    gap = risk + obj.lam * obj.reg.value(w) - obj.lower(obj.project_out_intercepts(cut))
    # stationarity = gap - complementarity <= complementarity / 2
    return gap <= 1.5 * complementarity


def _saved(
    mus: tuple[float, float], w: Array, state: Callable[[], dict[str, Array]] | None
) -> Callable[[], dict[str, Array]]:
    """A function that returns the state: the mus, w, and the state of the inner solver."""
    return lambda: {"w": w, "mu": np.array(mus), **(state() if state is not None else {})}
