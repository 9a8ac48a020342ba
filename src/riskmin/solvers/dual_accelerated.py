r"""The accelerated method on the dual: a gap of eps is proved in :math:`O(1/\sqrt\epsilon)` steps.

Nesterov's excessive gap technique with one smoothed side: the multipliers of the rows are those of the loss,
smoothed by :math:`\mu = 1 / A_k`, at the averaged weights, and :math:`A_k` grows with the square of k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from riskmin.losses.pieces import conjugate_of, dual_of
from riskmin.matrices import by_rows
from riskmin.objective import Objective
from riskmin.regularizers import L2
from riskmin.risk import REFRESH, cursor, rows_of
from riskmin.scalar import ROUNDING
from riskmin.solvers.cuts import mix_two
from riskmin.solvers.projection import project
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Dual, Iterate, NDArray, Shard, Unsuited

RAISE = 1.5
"""By how much L is raised where it is too small."""
LOWER = 1.05
"""By how much it is lowered after a step: within bounds, the dual is often flatter than L says."""
ENOUGH = 1e40
"""Where A L is larger than this, what the theorem still leaves is less than any rounding."""


@dataclass(frozen=True)
class DualAccelerated:
    r"""Nesterov's accelerated method on the dual, for support vector machines with an intercept.

    The dual of :math:`\tfrac\lambda2 |w|^2 + \min_\beta \sum_i c_i\, l(x_i^\top w + \beta, y_i)` is smooth,

    .. math:: D(u) = -\sum_i c_i\, l^*(u_i, y_i) - \tfrac1{2\lambda} \Bigl| \sum_i c_i u_i x_i \Bigr|^2,
              \qquad lower_i \le u_i \le upper_i, \quad \sum_i c_i u_i = 0,

    with a gradient of constant :math:`L = |X|_c^2 / \lambda`, the largest eigenvalue of
    :math:`\tfrac1\lambda \sum_i c_i x_i x_i^\top`. A step takes one pass over X and one projection, O(n).
    The averaged weights w and the averaged u close the gap at the rate

    .. math:: J(w_k) - D(u_k) \le \frac{d}{A_k} \le \frac{6 L d}{(k + 1)^2}, \qquad
              d = \max_u \tfrac12 \sum_i c_i (u_i - u_{0,i})^2,

    where cutting planes may need :math:`\Omega(1/\epsilon)` steps. Once the gap has fallen by `restart`, the
    averages start anew from :math:`u_0 = u_k`, near which the dual is often sharper. By the same rate, with
    d for the largest over all :math:`u_0`, a gap of :math:`\epsilon` takes at most
    :math:`\sqrt{6 L d / \epsilon}` times :math:`1 / (1 - restart^{-1/2})` steps, and one more a restart.
    Without an intercept, the constraint goes, and all else stays.

    For losses with a quadratic dual and bounded slopes (`Hinge`, `Absolute`, `Quantile`,
    `EpsilonInsensitive`, `Huber`, `SmoothedHinge`), and for `L2`; the rows must be here.

    Parameters
    ----------
    restart : float
        Above 1; infinite for the plain method.

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

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the better of the averaged weights and those of the averaged u, with the cut of that u."""
        return Ascent.of(self, obj).started(w0, None)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        return Ascent.of(self, obj).restored(state)

    def warm(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start with the dual variables of a run on the same risk."""
        return Ascent.of(self, obj).started(state["w"], state["x_u"])


class Held(NamedTuple):
    """Dual variables, their sum of rows a, and the scores of the w that belongs to it: all linear in u."""

    u: NDArray
    a: NDArray
    z: NDArray

    def mixed(self, other: Held, part: float) -> Held:
        """A part of the way to another."""
        return Held(*(one + part * (two - one) for one, two in zip(self, other, strict=True)))


@dataclass
class Ascent:
    """A run."""

    solver: DualAccelerated
    obj: Objective
    shard: Shard
    X: Any
    loss: Any
    dual: Dual
    free: bool
    """Whether there is an intercept."""
    centre: NDArray = field(default_factory=lambda: np.empty(0))
    x: Any = None
    v: Any = None
    mean: Any = None
    """The averaged weights: dual variables whose w they are, and its scores."""
    A: float = 0.0
    L: float = 0.0
    k: int = 0
    best: float = math.inf
    """The least J so far."""
    gap: float = math.inf
    """That of the last restart."""
    model: Cut | None = None

    @classmethod
    def of(cls, solver: DualAccelerated, obj: Objective) -> Ascent:
        shard, loss, free = rows_of(obj.risk, solver)
        name, dual = type(solver).__name__, dual_of(loss, shard.y)
        if dual is None or not (np.isfinite(dual.lower).all() and np.isfinite(dual.upper).all()):
            raise Unsuited(
                f"{name} needs a dual that is quadratic between bounds, unlike {loss!r}: use Bundle"
            )
        if not isinstance(obj.reg, L2):
            raise Unsuited(f"{name} needs L2(), not {obj.reg!r}: use Bundle")
        return cls(solver, obj, shard, by_rows(shard.X), loss, dual, free)

    def started(self, w0: Array, u0: NDArray | None) -> Iterator[Iterate]:
        """From those dual variables; or the slopes of the loss at w0, shrunk to bound best."""
        value, _, cut = self.obj(w0)
        self.model, _ = mix_two(None, cut, self.obj)
        (y, c), d = self.shard[1:3], self.dual
        if u0 is None:
            z = self.X.scores(w0, 0, len(y))
            z = z + self.obj.risk.cursor(w0).b if self.free else z  # type: ignore[attr-defined]
            slopes = self.loss.value_grad(z, y, c)[1]
            u0 = self.feasible(np.divide(slopes, c, out=np.zeros(len(c)), where=c > 0), 0.0)
            u0 = self.obj.reg.scale(self.cut(self.held(u0)), self.obj.lam) * u0
        self.centre = np.clip(u0, d.lower, d.upper)
        self.x = self.v = self.mean = self.held(self.centre)
        self.L = self._constant()
        self.best, self.gap = value, value - self.obj.lower(self.model)
        yield self._iterate(w0, value)
        yield from self._go()

    def restored(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """From a saved state."""
        rows = {"centre": "n"} | {f"{s}_{f}": "n" for s in "xvm" for f in "uz"}
        shapes = rows | {f"{s}_a": "d" for s in "xvm"} | {"w": "d", "cut": "d", "numbers": "6"}
        checked(state, shapes, n=len(self.shard.y), d=self.obj.risk.dim)
        self.centre = state["centre"]
        self.x, self.v, self.mean = (Held(*(state[f"{s}_{f}"] for f in Held._fields)) for s in "xvm")
        self.A, self.L, k, b, self.best, self.gap = (float(number) for number in state["numbers"])
        self.k, self.model = int(k), Cut(state["cut"], b)
        return self._go()

    def _constant(self) -> float:
        """A number that L is at least: how the dual bends along a random direction."""
        u = np.random.default_rng(0).standard_normal(len(self.shard.y))
        a = np.zeros(self.X.shape[1])
        self.X.pullback(self.shard.c * u, 0, len(u), a)
        return self._rise(a) / float(self.shard.c @ (u * u)) or 1.0

    def _rise(self, a: NDArray) -> float:
        """|a|^2 / lam, in the norm of the conjugate."""
        return 2 * self.obj.reg.conjugate(a) / self.obj.lam

    # ------------------------------------------------------------ steps
    def _go(self) -> Iterator[Iterate]:
        while self.A * self.L < ENOUGH:
            self._restart()
            a, mean, new = self._step()
            part = a / (self.A + a)
            x = self.x.mixed(new, part)
            self.x = x._replace(u=np.clip(x.u, self.dual.lower, self.dual.upper))
            self.v, self.mean, self.A, self.k = new, mean, self.A + a, self.k + 1
            self.L /= LOWER
            if self.k % REFRESH == 0:  # rounding errors of mixtures must not add up
                self.x, self.mean = self.held(self.x.u), self.held(self.mean.u)
            cut = self.cut(self.x)
            self.model, _ = mix_two(self.model, cut, self.obj)
            found = [self.obj.argmin(Cut(held.a, 0.0)) for held in (self.mean, self.x)]
            value, w = min(((self._value(w), w) for w in found), key=lambda pair: pair[0])
            self.best = min(self.best, value)
            yield self._iterate(w, value)

    def _restart(self) -> None:
        """Begin anew from the averaged u, where the gap has fallen by enough."""
        assert self.model is not None
        gap = self.best - self.obj.lower(self.model)
        if gap * self.solver.restart <= self.gap:
            self.centre, self.v, self.mean = self.x.u, self.x, self.x
            self.A, self.gap = 0.0, gap

    def _step(self) -> tuple[float, Held, Held]:
        """The next weight, the new average, and the multipliers there: one pass over X, for the first L."""
        q, c = self.dual.square, self.shard.c
        while True:
            t = (1 + q * self.A) / self.L
            a = 0.5 * (t + math.sqrt(t * t + 4 * t * self.A))  # a^2 / (A + a) = (1 + q A) / L
            part = a / (self.A + a)
            mean = self.mean.mixed(self.x.mixed(self.v, part), part)
            new = self.held(self.multipliers(mean.z, self.A + a))
            du, rise = new.u - self.v.u, self._rise(new.a - self.v.a)
            square = float(c @ (du * du))
            if not square or rise <= self.L * square + ROUNDING**2 * self._rise(new.a):
                return a, mean, new
            self.L = max(RAISE * self.L, min(rise / square, 1e3 * self.L))

    def multipliers(self, z: NDArray, A: float) -> NDArray:
        """The u that is best for A (u z - l*(u)) less the distance to the centre, under the constraint."""
        d = self.dual
        k = 1 + A * d.square
        return self.feasible((self.centre + A * (z - d.shift)) / k, A * d.epsilon / k)

    def feasible(self, t: NDArray, epsilon: float) -> NDArray:
        """The point nearest to t, less epsilon |u|: that is a sum of one variable of either sign a row."""
        d, c = self.dual, self.shard.c
        if not epsilon:
            return project(t, c, d.lower, d.upper) if self.free else np.clip(t, d.lower, d.upper)
        both, zero = np.concatenate([t - epsilon, t + epsilon]), 0.0 * t
        lower, upper = np.concatenate([zero, d.lower]), np.concatenate([d.upper, zero])
        u = project(both, np.concatenate([c, c]), lower, upper) if self.free else np.clip(both, lower, upper)
        return u[: len(t)] + u[len(t) :]

    def held(self, u: NDArray) -> Held:
        """One pass over X, back and forth."""
        a, n = np.zeros(self.X.shape[1]), len(u)
        self.obj.count.calls += 1
        self.X.pullback(self.shard.c * u, 0, n, a)
        return Held(u, a, self.X.scores(self.obj.argmin(Cut(a, 0.0)), 0, n))

    # ------------------------------------------------------------ what is proved
    def cut(self, at: Held) -> Cut:
        """The cut of the dual variables, less what rounding adds, in mixtures and in the constraint too."""
        y, c = self.shard[1:3]
        conjugate = np.where(c > 0, conjugate_of(self.loss, at.u, y), 0.0)
        far = np.abs(at.z) + np.abs(self.dual.shift)
        size = float(c @ (np.abs(conjugate) + np.abs(at.u) * far))
        slip = ROUNDING * (1 + self.k % REFRESH) * size
        if self.free:  # as if the sum were taken off the rows that are furthest out
            slip += 4 * (abs(float((c * at.u).sum())) + ROUNDING * float(c @ np.abs(at.u))) * float(far.max())
        return Cut(at.a, -float(c @ conjugate) - slip)

    def _value(self, w: NDArray) -> float:
        return cursor(self.obj.risk, w).along(0.0)[0] + self.obj.lam * self.obj.reg.value(w)

    def _iterate(self, w: NDArray, value: float) -> Iterate:
        assert self.model is not None
        saved = {"w": w, "centre": self.centre, "cut": self.model.a}
        for name, held in zip("xvm", (self.x, self.v, self.mean), strict=True):
            saved |= {f"{name}_{part}": getattr(held, part) for part in Held._fields}
        saved["numbers"] = np.array([self.A, self.L, self.k, self.model.b, self.best, self.gap])
        return Iterate(w, value, self.model, {"A": self.A, "L": self.L}, saved.copy)
