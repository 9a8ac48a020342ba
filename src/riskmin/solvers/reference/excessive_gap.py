r"""Nesterov's excessive gap method with Bregman projections: a gap in :math:`O(1/\sqrt\epsilon)` steps.

A point of the dual is a distribution over outputs. It is never stored: its expectations are a cut,
and the cut of a mixture of distributions is the mixture of their cuts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from riskmin.core import Array, Cut, Iterate, Solver
from riskmin.problem.objective import Objective
from riskmin.problem.smoothed_risk import SmoothedRisk
from riskmin.solvers.base import intercepts_reason, mixture
from riskmin.solvers.state_checks import CUT, SavedAttributes


@dataclass(frozen=True)
class ExcessiveGap(Solver):
    r"""Nesterov's excessive gap method, for losses that are a maximum over outputs, such as chains.

    The risk is :math:`R(w) = \max_\alpha a_\alpha^\top w + b_\alpha`, over distributions :math:`\alpha` of
    outputs (label sequences, labelings of all rows, classes). With the prox function d of the smoothed loss,
    the entropy for chains and contingency tables,

    .. math:: R_\mu(w) = \max_\alpha\; a_\alpha^\top w + b_\alpha - \mu\, d(\alpha),

    whose maximizer is a Bregman projection: a Gibbs distribution, and its expectations are sums of marginals,
    which a dynamic program computes. Each step takes one of them, and maintains the excessive gap condition

    .. math:: \lambda\,\Omega(w_k) + R_{1/A_k}(w_k) \le D(\alpha_k), \qquad\text{hence}\qquad
              J(w_k) - D(\alpha_k) \le \frac{\max d}{A_k} \le \frac{6\, L \max d}{(k + 1)^2},

    where :math:`L = \max_i |\phi_i(y) - \phi_i(y')|^2 / (4 \lambda)` for features :math:`\phi` and the
    entropy. L need not be known: a step is repeated with a larger one where the condition fails. Losses
    that are smoothed by squares (`Hinge`, `RocArea`) have Euclidean projections; `DualAccelerated` is the
    faster method for those of single rows.

    References
    ----------
    Y. Nesterov, Excessive gap technique in nonsmooth convex minimization, SIAM J. Optimization 16, 2005.
    X. Zhang, A. Saha, S. V. N. Vishwanathan, Lower bounds on rate of convergence of cutting plane methods,
    NIPS 2010, section 5.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, ChainMaxMargin, ExcessiveGap, Objective, linear_risk, minimize
    >>> X, y = np.eye(3)[[0, 1, 2, 0, 2]], [0, 1, 1, 0, 1]
    >>> J = Objective(linear_risk(X, y, ChainMaxMargin(), lengths=[3, 2]), L2(), lam=0.1)
    >>> result = minimize(J, ExcessiveGap(), tol=1e-3)
    >>> result.status, round(result.value, 3)
    ('converged', 0.034)
    """

    def supports(self, obj: Objective) -> str | None:
        """None for nonsmooth losses that can be smoothed, and a quadratic regularizer without intercepts."""
        risk = obj.risk
        if risk.linear_map is None or not risk.loss.can_be_smoothed:
            return "ExcessiveGap needs a loss of linear_risk that can be smoothed: use Bundle"
        # the dual variables of a smooth loss may be unbounded, and so is the prox function on them
        if risk.loss.smooth:
            return f"ExcessiveGap is for nonsmooth losses, and {risk.loss!r} is smooth: use Lbfgs"
        if not obj.has_inverse_metric:
            return f"ExcessiveGap needs L2() or Quadratic, not {obj.reg!r}: use Bundle"
        if risk.intercept.profiled:
            return "ExcessiveGap has no intercept: use DualAccelerated, Smoothing or Bundle"
        return intercepts_reason(self.name, obj)

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the averaged weights, with the cut of the averaged distribution."""
        self.check_supports(obj)
        return ExcessiveGapRun.start(obj, w0).iterates()

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        self.check_supports(obj)
        run = ExcessiveGapRun(obj, SmoothedRisk.from_risk(obj.risk, 1.0))
        run.restore(state, d=obj.risk.dim)
        return run.iterates()


class Projection(NamedTuple):
    """The Bregman projection at w: R_mu(w), the cut of the distribution, and its prox function d."""

    value: float
    cut: Cut
    prox: float


@dataclass
class ExcessiveGapRun(SavedAttributes):
    """State of a run: the averaged weights w and cut x, the cut v of the last projection, A and L."""

    FIRST_MU_RATIO = 1e10
    """The first smoothing parameter over R(w0): its distribution is the prox center, up to this ratio."""
    GAP_LIPSCHITZ_INCREASE = 1.5
    """Factor by which L grows while the excessive gap condition fails."""
    GAP_LIPSCHITZ_DECREASE = 1.05
    """Factor by which L shrinks after a step: near the solution the dual is often less curved than L."""
    PROJECTION_ROUNDING = 1e-12
    """Relative error of a projection, some of which are found by iterations."""
    MAX_LIPSCHITZ = 1e100
    """A larger L is none: steps of 1 / L would change nothing."""
    MAX_A_TIMES_L = 1e40
    """Stop once A L exceeds this: the bound on the gap is then below rounding."""

    SAVED = {"w": "d", "x": CUT, "v": CUT} | dict.fromkeys(("A", "L", "smoothed_value"), float)

    obj: Objective
    risk: SmoothedRisk
    w: Array = None
    x: Any = None
    v: Any = None
    A: float = 0.0
    L: float = 1.0
    smoothed_value: float = 0.0
    """R_mu(w) for mu = 1 / A; 0 at the start, where A is 0."""

    @classmethod
    def start(cls, obj: Objective, w0: Array) -> ExcessiveGapRun:
        """Start from the prox center; w0 serves to estimate the scale of the risk and L."""
        value, slope, _ = obj.evaluate_risk(w0)
        risk = SmoothedRisk.from_risk(obj.risk, cls.FIRST_MU_RATIO * value or 1.0)
        center = risk.evaluate(w0).cut
        self = cls(obj, risk, obj.argmin(center), center, center)
        self.L = 2 * self._bregman(Cut(slope, 0.0), center) or 1.0
        return self

    def iterates(self) -> Iterator[Iterate]:
        """Yield one iterate per step."""
        advanced = True
        try:
            while advanced and self.A * self.L < self.MAX_A_TIMES_L:
                advanced = self._step()
                info = {"A": self.A, "L": self.L}
                self.L /= self.GAP_LIPSCHITZ_DECREASE
                value = self.risk.unsmoothed_value(self.w) + self.obj.lam * self.obj.reg.value(self.w)
                saved = self.state()
                yield Iterate(self.w, value, self.x, info, saved.copy)
        finally:
            self.risk.shared.clear()  # the last cursor refers to its risk: a cycle, which would keep threads

    def _step(self) -> bool:
        """Take a step with the smallest tried L that keeps the excessive gap condition.

        Returns whether there is one: rounding of the prox center may leave none.
        """
        obj = self.obj
        while self.L < self.MAX_LIPSCHITZ:
            # a^2 / (A + a) = 1 / L
            t = 1 / self.L
            a = 0.5 * (t + math.sqrt(t * t + 4 * t * self.A))
            share, A = a / (self.A + a), self.A + a
            w = self.w + share * (obj.argmin(mixture(self.x, self.v, share)) - self.w)
            new = self._project(w, A)
            # by how much the new distribution misses the maximum of A R_{1/A}(w): at least its Bregman
            # distance from the last one
            slope = float(new.cut.a @ self.w)
            distance = self.A * (self.smoothed_value - slope - new.cut.b) + new.prox
            terms = abs(self.smoothed_value) + abs(slope) + 2 * abs(new.cut.b)
            noise = self.PROJECTION_ROUNDING * A * terms
            bregman = self._bregman(new.cut, self.v)
            if bregman <= self.L * (distance + noise):
                self.x, self.v = mixture(self.x, new.cut, share), new.cut
                self.w, self.A, self.smoothed_value = w, A, new.value
                return True
            ratio = bregman / max(distance, noise, sys.float_info.min)
            self.L = max(self.GAP_LIPSCHITZ_INCREASE * self.L, min(ratio, 1e3 * self.L))
        return False

    def _project(self, w: Array, A: float) -> Projection:
        self.obj.count.calls += 1
        self.risk = self.risk.with_mu(1 / A)
        value, _, cut = self.risk.evaluate(w)
        # R_mu(w) = a'w + b - mu d
        return Projection(value, cut, A * (float(cut.a @ w) + cut.b - value))

    def _bregman(self, new: Cut, old: Cut) -> float:
        """Return |a_new - a_old|^2 / (2 lam) in the inverse metric, the Bregman distance of the conjugate."""
        da: Any = new.a - old.a
        return float(self.obj.reg.inverse_metric_product(da[None, :], da)[0]) / (2 * self.obj.lam)
