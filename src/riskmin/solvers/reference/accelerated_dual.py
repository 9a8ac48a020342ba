r"""The accelerated method on the dual: a gap of eps is proved in :math:`O(1/\sqrt\epsilon)` steps.

Nesterov's excessive gap technique with one smoothed side: the multipliers of the rows are those of the loss
smoothed by :math:`\mu = 1 / A_k`, at the averaged weights, and :math:`A_k` grows quadratically in k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.matrix import as_row_matrix
from riskmin.core import Array, Cut, Iterate, NDArray, Shard, Solver
from riskmin.losses.conjugate import IntervalConjugate
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.numerics.projections import project
from riskmin.problem.objective import Objective
from riskmin.problem.risk import RECOMPUTE_SCORES_EVERY
from riskmin.solvers.base import local_rows_of, local_rows_reason, mix_two
from riskmin.solvers.state_checks import CUT, SavedAttributes


@dataclass(frozen=True)
class DualAccelerated(Solver):
    r"""Nesterov's accelerated method on the dual, for support vector machines with an intercept.

    The dual of :math:`\tfrac\lambda2 |w|^2 + \min_\beta \sum_i c_i\, l(x_i^\top w + \beta, y_i)` is smooth,

    .. math:: D(u) = -\sum_i c_i\, l^*(u_i, y_i) - \tfrac1{2\lambda} \Bigl| \sum_i c_i u_i x_i \Bigr|^2,
              \qquad lower_i \le u_i \le upper_i, \quad \sum_i c_i u_i = 0,

    with a gradient of Lipschitz constant :math:`L = |X|_c^2 / \lambda`, the largest eigenvalue of
    :math:`\tfrac1\lambda \sum_i c_i x_i x_i^\top`. A step takes one pass over X and one projection, O(n).
    The gap between the averaged weights w and the averaged u converges at the rate

    .. math:: J(w_k) - D(u_k) \le \frac{d}{A_k} \le \frac{6 L d}{(k + 1)^2}, \qquad
              d = \max_u \tfrac12 \sum_i c_i (u_i - u_{0,i})^2,

    where cutting planes may need :math:`\Omega(1/\epsilon)` steps. Once the gap has fallen by the factor
    `restart`, the averages restart from :math:`u_0 = u_k`, near which the dual is often sharper. By the same
    rate, with d the largest over all :math:`u_0`, a gap of :math:`\epsilon` takes at most
    :math:`\sqrt{6 L d / \epsilon}` times :math:`1 / (1 - restart^{-1/2})` steps, and one more per restart.
    Without an intercept the equality constraint is dropped.

    For losses with a quadratic dual and bounded slopes (`Hinge`, `Absolute`, `Quantile`,
    `EpsilonInsensitive`, `Huber`, `SmoothedHinge`), and for `L2`; all rows must be in this process.

    Parameters
    ----------
    restart : float
        Factor above 1; infinite for the method without restarts.

    References
    ----------
    X. Zhang, A. Saha, S. V. N. Vishwanathan, Lower bounds on rate of convergence of cutting plane methods,
    NIPS 2010, section 5. Y. Nesterov, Excessive gap technique in nonsmooth convex minimization, SIAM J.
    Optimization 16, 2005.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import DualAccelerated, Hinge, L2, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
    >>> J = Objective(linear_risk(X, y, Hinge(), fit_intercept=True), L2(), lam=0.1)
    >>> result = minimize(J, DualAccelerated(), tol=1e-6)
    >>> result.status, round(result.value, 5)
    ('converged', 0.03279)
    """

    restart: float = 100.0

    def __post_init__(self) -> None:
        if not self.restart > 1:
            raise ValueError(f"DualAccelerated needs restart > 1, not {self.restart!r}")

    def supports(self, obj: Objective) -> str | None:
        """None for `L2`, local rows, and a dual that is quadratic between finite bounds."""
        if reason := local_rows_reason(self, obj):
            return reason
        shard, loss, _ = local_rows_of(obj.risk, self)
        conjugate = loss.interval_conjugate(shard.y)
        if conjugate is None or not (
            np.isfinite(conjugate.lower).all() and np.isfinite(conjugate.upper).all()
        ):
            return (
                f"DualAccelerated needs a dual that is quadratic between bounds, unlike {loss!r}: use Bundle"
            )
        return None if obj.reg.diagonal else f"DualAccelerated needs L2(), not {obj.reg!r}: use Bundle"

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the better of the averaged weights and those of the averaged u, with the cut of that u."""
        return AcceleratedAscent.create(self, obj).start(w0, None)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        run = AcceleratedAscent.create(self, obj)
        run.restore(state, n=len(run.shard.y), d=obj.risk.dim)
        return run.iterates()

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start from the dual variables of a run on the same risk."""
        return AcceleratedAscent.create(self, obj).start(state["w"], state["x_u"])


class ScoredDual(NamedTuple):
    """Dual variables u, a = sum_i c_i u_i x_i, and the scores z of the w of that a: all linear in u."""

    u: NDArray
    a: NDArray
    z: NDArray

    def mixed(self, other: ScoredDual, part: float) -> ScoredDual:
        """Return the point at `part` of the way to another."""
        return ScoredDual(*(x + part * (y - x) for x, y in zip(self, other, strict=True)))


SCORED: Any = ScoredDual("n", "d", "n")  # type: ignore[arg-type]
"""The declaration of a `ScoredDual` in a state."""


@dataclass
class AcceleratedAscent(SavedAttributes):
    """State of a run: the points x, v and the mean, the sum of weights A, and the Lipschitz estimate L."""

    MAX_WEIGHT_TIMES_LIPSCHITZ = 1e40
    """Stop once A L exceeds this: the theorem's bound on the gap is then below rounding."""
    DUAL_LIPSCHITZ_INCREASE = 1.5
    """Factor by which L grows while it is too small."""
    DUAL_LIPSCHITZ_DECREASE = 1.05
    """Factor by which L shrinks after a step: within the bounds, the dual is often less curved than L."""

    SAVED = {"w": "d", "center": "n", "x": SCORED, "v": SCORED, "mean": SCORED, "model": CUT} | (
        dict.fromkeys(("A", "L", "best", "restart_gap"), float) | {"k": int}
    )

    solver: DualAccelerated
    obj: Objective
    shard: Shard
    X: Any
    loss: Any
    loss_conjugate: IntervalConjugate
    has_intercept: bool
    """Whether there is an unpenalized intercept, hence the constraint sum_i c_i u_i = 0."""
    center: NDArray = field(default_factory=lambda: np.empty(0))
    """Prox center u_0."""
    x: Any = None
    """Averaged dual variables u_k."""
    v: Any = None
    """Multipliers of the smoothed loss at the last averaged weights."""
    mean: Any = None
    """Averaged weights, as the dual variables whose w they are, and its scores."""
    A: float = 0.0
    """Sum of the weights since the last restart."""
    L: float = 0.0
    k: int = 0
    best: float = math.inf
    """Lowest J so far."""
    restart_gap: float = math.inf
    """Gap at the last restart."""
    model: Any = None
    """The cut of the best bound."""
    w: NDArray | None = None
    """The last point."""

    @classmethod
    def create(cls, solver: DualAccelerated, obj: Objective) -> AcceleratedAscent:
        """Return a run on the local rows of the objective."""
        solver.check_supports(obj)
        shard, loss, has_intercept = local_rows_of(obj.risk, solver)
        conjugate = loss.interval_conjugate(shard.y)
        assert conjugate is not None
        return cls(solver, obj, shard, as_row_matrix(shard.X), loss, conjugate, has_intercept)

    def start(self, w0: Array, u0: NDArray | None) -> Iterator[Iterate]:
        """Start from given dual variables, or from the slopes of the loss at w0, scaled to the best bound."""
        value, _, cut = self.obj(w0)
        self.model, _ = mix_two(None, cut, self.obj)
        (y, c), d = self.shard[1:3], self.loss_conjugate
        if u0 is None:
            z = self.X.scores(w0, 0, len(y))
            z = z + self.obj.risk.best_intercept(w0) if self.has_intercept else z
            # u holds slopes per unit weight; rows of weight zero get 0.
            slopes = self.loss.value_grad(z, y, c)[1]
            u0 = self.feasible(np.divide(slopes, c, out=np.zeros(len(c)), where=c > 0), 0.0)
            # By convexity of l*, and l*(0) <= 0, the cut of s u bounds at least as well as s times that of u.
            u0 = self.obj.reg.scale(self.cut(self.scored(u0)), self.obj.lam) * u0
        self.center = np.clip(u0, d.lower, d.upper)
        self.x = self.v = self.mean = self.scored(self.center)
        self.L = self._initial_lipschitz()
        self.best, self.restart_gap = value, value - self.obj.lower(self.model)
        yield self._iterate(w0, value)
        yield from self.iterates()

    def _initial_lipschitz(self) -> float:
        """Return a lower bound of L: the curvature of the dual along a random direction."""
        # L >= |sum_i c_i u_i x_i|^2 / (lam sum_i c_i u_i^2) for every u.
        u = np.random.default_rng(0).standard_normal(len(self.shard.y))
        a = np.zeros(self.X.shape[1])
        self.X.pullback(self.shard.c * u, 0, len(u), a)
        return self._squared_norm(a) / float(self.shard.c @ (u * u)) or 1.0

    def _squared_norm(self, a: NDArray) -> float:
        """Return |a|^2 / lam, in the norm of the conjugate."""
        return 2 * self.obj.reg.conjugate(a) / self.obj.lam

    # ------------------------------------------------------------ steps
    def iterates(self) -> Iterator[Iterate]:
        """Yield an iterate per step."""
        while self.A * self.L < self.MAX_WEIGHT_TIMES_LIPSCHITZ:
            self._restart()
            a, mean, new = self._step()
            # u_{k+1} = (A u_k + a u_new) / (A + a)
            part = a / (self.A + a)
            x = self.x.mixed(new, part)
            # Clipping removes the rounding error of the mixture: the cut needs u inside its bounds.
            self.x = x._replace(u=np.clip(x.u, self.loss_conjugate.lower, self.loss_conjugate.upper))
            self.v, self.mean, self.A, self.k = new, mean, self.A + a, self.k + 1
            self.L /= self.DUAL_LIPSCHITZ_DECREASE
            # Recompute, so that the rounding errors of mixtures do not accumulate.
            if self.k % RECOMPUTE_SCORES_EVERY == 0:
                self.x, self.mean = self.scored(self.x.u), self.scored(self.mean.u)
            cut = self.cut(self.x)
            self.model, _ = mix_two(self.model, cut, self.obj)
            # The w of dual variables with slope a: the minimizer of lam Omega(w) + a'w.
            candidates = [self.obj.argmin(Cut(point.a, 0.0)) for point in (self.mean, self.x)]
            value, w = min(((self._value(w), w) for w in candidates), key=lambda pair: pair[0])
            self.best = min(self.best, value)
            yield self._iterate(w, value)

    def _restart(self) -> None:
        """Restart from the averaged u once the gap has fallen by the factor `restart`."""
        gap = self.best - self.obj.lower(self.model)
        if gap * self.solver.restart <= self.restart_gap:
            self.center, self.v, self.mean = self.x.u, self.x, self.x
            self.A, self.restart_gap = 0.0, gap

    def _step(self) -> tuple[float, ScoredDual, ScoredDual]:
        """Return the next weight, the new average and the multipliers there.

        It takes one pass over X per trial value of L.
        """
        q, c = self.loss_conjugate.square, self.shard.c
        while True:
            t = (1 + q * self.A) / self.L
            # Solves a^2 / (A + a) = (1 + q A) / L.
            a = 0.5 * (t + math.sqrt(t * t + 4 * t * self.A))
            part = a / (self.A + a)
            # The weights enter their mean at the point between u_k and the last multipliers.
            mean = self.mean.mixed(self.x.mixed(self.v, part), part)
            new = self.scored(self.multipliers(mean.z, self.A + a))
            du, da_sq = new.u - self.v.u, self._squared_norm(new.a - self.v.a)
            du_sq = float(c @ (du * du))
            # L is large enough if |da|^2 / lam <= L |du|^2, up to rounding.
            if not du_sq or da_sq <= self.L * du_sq + CUT_ROUNDING**2 * self._squared_norm(new.a):
                return a, mean, new
            # The observed ratio, but a factor between 1.5 and 1000.
            self.L = max(self.DUAL_LIPSCHITZ_INCREASE * self.L, min(da_sq / du_sq, 1e3 * self.L))

    def multipliers(self, z: NDArray, A: float) -> NDArray:
        """Return the maximizer of A (u z - l*(u)) - |u - center|^2 / 2, under the constraints."""
        d = self.loss_conjugate
        # Completing the square: the quadratic part of the objective is -(k / 2) |u - t|^2.
        k = 1 + A * d.square
        return self.feasible((self.center + A * (z - d.shift)) / k, A * d.epsilon / k)

    def feasible(self, t: NDArray, epsilon: float) -> NDArray:
        """Return the minimizer of |u - t|^2 / 2 + epsilon |u| under the constraints.

        The absolute value is handled by splitting u into a nonnegative and a nonpositive variable per row.
        """
        d, c = self.loss_conjugate, self.shard.c
        if not epsilon:
            return project(t, c, d.lower, d.upper) if self.has_intercept else np.clip(t, d.lower, d.upper)
        # The nonnegative copy has the bounds [0, upper], the nonpositive one [lower, 0].
        both, zero = np.concatenate([t - epsilon, t + epsilon]), 0.0 * t
        lower, upper = np.concatenate([zero, d.lower]), np.concatenate([d.upper, zero])
        u = (
            project(both, np.concatenate([c, c]), lower, upper)
            if self.has_intercept
            else np.clip(both, lower, upper)
        )
        return u[: len(t)] + u[len(t) :]

    def scored(self, u: NDArray) -> ScoredDual:
        """Return the dual variables with their a and scores: one adjoint and one forward pass over X."""
        a, n = np.zeros(self.X.shape[1]), len(u)
        self.obj.count.calls += 1
        self.X.pullback(self.shard.c * u, 0, n, a)
        return ScoredDual(u, a, self.X.scores(self.obj.argmin(Cut(a, 0.0)), 0, n))

    # ------------------------------------------------------------ bounds
    def cut(self, point: ScoredDual) -> Cut:
        """Return the cut of the dual variables, minus its rounding error and that of the constraint."""
        c = self.shard.c
        conjugate = np.where(c > 0, self.loss_conjugate.value(point.u), 0.0)
        magnitude = np.abs(point.z) + np.abs(self.loss_conjugate.shift)
        size = float(c @ (np.abs(conjugate) + np.abs(point.u) * magnitude))
        # Errors of mixtures accumulate until the scores are recomputed.
        error = CUT_ROUNDING * (1 + self.k % RECOMPUTE_SCORES_EVERY) * size
        # sum_i c_i u_i is zero only up to rounding: allow for moving the remainder to the rows of the
        # largest scores.
        if self.has_intercept:
            error += (
                4
                * (abs(float((c * point.u).sum())) + CUT_ROUNDING * float(c @ np.abs(point.u)))
                * float(magnitude.max())
            )
        return Cut(point.a, -float(c @ conjugate) - error)

    def _value(self, w: NDArray) -> float:
        return self.obj.risk.cursor(w).value_slope(0.0)[0] + self.obj.lam * self.obj.reg.value(w)

    def _iterate(self, w: NDArray, value: float) -> Iterate:
        self.w = w
        saved = self.state()
        return Iterate(w, value, self.model, {"A": self.A, "L": self.L}, saved.copy)
