"""Smoothing: a loss with kinks, made smooth for a smooth solver, and ever less so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from riskmin.intercept import without_intercept
from riskmin.losses.queries import named
from riskmin.losses.smoothing import can_be_smoothed
from riskmin.objective import Objective
from riskmin.regularizers import penalized
from riskmin.risk import Risk
from riskmin.softened import Softened
from riskmin.solvers.cuts import has_program
from riskmin.solvers.lbfgs import Lbfgs
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Iterate, Resumable, Unsuited, Warm

FALL = 0.3
"""By how much mu falls from one stage to the next."""
GOAL = 0.05
"""The share of J(w0) that the first stage is to come within."""
LEAST = 1e-25
"""Below this share of the first mu, what is smoothed is rounding."""


@dataclass(frozen=True)
class Smoothing:
    r"""Smoothing (SMS): a smooth solver on a smoothed J, and a certificate for J itself.

    A loss that is a maximum over multipliers becomes smooth by :math:`\tfrac\mu2 |\beta|^2` taken off inside
    of the maximum. The multipliers of any point are feasible for the true loss, so each step gives a cut of
    the true risk, and its gap falls apart into two:

    .. math:: J(w) - \text{lower} = \underbrace{R(w) - a^\top w - b}_{\text{complementarity}} +
        \underbrace{\lambda\,\Omega(w) + a^\top w + \lambda\,\Omega^*(-a / \lambda)}_{\text{stationarity}}.

    Only a smaller :math:`\mu` lowers the first, and only more steps the second. So :math:`\mu` falls as soon
    as the second is below half of the first, until whatever tol asks for is proved.

    Parameters
    ----------
    inner : solver
        One for smooth losses: `Lbfgs`, `AcceleratedGradient`; `ProximalGradient` or `OwlQn` where the
        regularizer has kinks of its own.
    c_mu : float
        The first mu is ``c_mu * eps / D``, as in the paper, for eps = 5 % of J(w0) and :math:`D = 1/2`, the
        largest square that can be taken off.

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

    inner: Any = field(default_factory=Lbfgs)
    c_mu: float = 10.0

    def __post_init__(self) -> None:
        if not self.c_mu > 0:
            raise ValueError(f"Smoothing needs c_mu > 0, not {self.c_mu!r}")
        if not callable(getattr(self.inner, "iterates", None)):
            raise TypeError(f"Smoothing needs an inner solver such as Lbfgs(), not {self.inner!r}")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the points of the inner solver, with the true objective and cuts of the true risk."""
        soft = softened(self, obj, w0)
        soft.mu = self.c_mu * GOAL * (obj.lam * obj.reg.value(w0) + soft.truth(w0)) / 0.5 or 1.0
        smooth = Objective(soft, obj.reg, obj.lam, obj.count)
        return self._run(soft, smooth, LEAST * soft.mu, self.inner.iterates(smooth, w0))

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        checked(state, {"w": "d", "mu": "2"}, d=obj.risk.dim)
        saved = dict(state)
        w = saved["w"]
        soft = softened(self, obj, w)
        soft.mu, least = (float(mu) for mu in saved.pop("mu"))
        smooth = Objective(soft, obj.reg, obj.lam, obj.count)
        if isinstance(self.inner, Resumable):
            return self._run(soft, smooth, least, self.inner.resume(smooth, saved), w, lambda: saved)
        return self._run(soft, smooth, least, self.inner.iterates(smooth, w))

    def _run(
        self,
        soft: Softened,
        smooth: Objective,
        least: float,
        steps: Iterator[Iterate],
        w: Array = None,
        state: Callable[[], dict[str, Array]] | None = None,
    ) -> Iterator[Iterate]:
        """From w and the state of the inner solver there, in case its steps have come to their end."""
        while True:
            for it in steps:
                w, state = it.w, it.state
                risk = soft.truth(w)
                value = risk + smooth.lam * smooth.reg.value(w)
                saved = _saved((soft.mu, least), w, state)
                yield Iterate(w, value, it.cut, {"mu": soft.mu, **it.info}, saved)
                if settled(smooth, w, risk, soft.cut(w)):
                    break
            if w is None or soft.mu <= least:
                return  # what is left of the gap is rounding
            soft.mu *= FALL
            if isinstance(self.inner, Warm) and state is not None:
                steps = self.inner.warm(smooth, state(), smooth)
            else:
                steps = self.inner.iterates(smooth, w)


def settled(obj: Objective, w: Array, risk: float, cut: Cut) -> bool:
    """Whether stationarity is below half of complementarity: only a smaller mu lowers the gap by much.

    It is what the gap has beside complementarity, by the bound itself: where the conjugate of the regularizer
    is infinite beyond some slopes, as with L1, a cut that is too steep proves as much as it does once shrunk.
    """
    complementarity = risk - float(cut.a @ w) - cut.b
    # what it costs that it does not slope in intercepts falls with more steps, too
    gap = risk + obj.lam * obj.reg.value(w) - obj.lower(obj.balanced(cut))
    return gap <= 1.5 * complementarity


def softened(solver: object, obj: Objective, w: Array) -> Softened:
    """The risk of the objective, ready to be smoothed."""
    risk: Any = obj.risk
    name, inner = type(solver).__name__, without_intercept(risk)
    if not isinstance(inner, Risk):
        raise Unsuited(f"{name} needs a risk that linear_risk makes, not {risk!r}: use Bundle")
    if getattr(inner.loss, "smooth", False):
        raise Unsuited(f"{name} is for losses with kinks, and {inner.loss!r} has none: use Lbfgs")
    more = "" if has_program(penalized(obj.reg)) else ", with a regularizer that has conjugate_bend"
    if not can_be_smoothed(inner.loss, w[:1]):  # any number does for a label, and those of y may be elsewhere
        raise Unsuited(f"{type(named(inner.loss)).__name__} cannot be smoothed: use Bundle{more}")
    return Softened(risk, 1.0)


def _saved(
    mus: tuple[float, float], w: Array, state: Callable[[], dict[str, Array]] | None
) -> Callable[[], dict[str, Array]]:
    return lambda: {"w": w, "mu": np.array(mus), **(state() if state is not None else {})}
