r"""Intercepts of many outputs: entries of w that are not penalized, and cuts without a slope in them.

A cut bounds :math:`\min_{w, b} J` only where its slope in every intercept is zero: else b could run away from
it. A tangent has small ones, up to the last iterations, so it is mixed with k cuts that are known beforehand,
those of the bounds :math:`l(z, y) \ge F_{yj} (z_j - z_y) + O_{yj}`, "always predict j". Their slopes in the
intercepts point everywhere, so that a little of them is enough, and costs no pass over X.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from riskmin import shards
from riskmin.arrays import like, namespace, to_numpy, zeros_beside
from riskmin.losses.multiclass import one_hot
from riskmin.risk import Risk, ScoreCursor
from riskmin.scorers import Centred, Linear, Multiclass, Standardized, WithOnes
from riskmin.shards import blocks
from riskmin.types import Array, Cut, Executor, NDArray, Shard

FAR = 1e6
"""How far below the others scores begin of classes that have no rows."""
PART, LOOKS = 1e-2, 8
"""How small a part of their slopes is left when intercepts are put at their best, and the most looks."""


def _class_sums(shard: Shard, plain: Any) -> tuple[NDArray, NDArray]:
    """The weighted sums of the rows of each class, (p, k), and their weights."""
    k = plain.columns
    sums, weights = np.zeros(shard.X.shape[1] * k), np.zeros(k)
    for i, j in blocks(shard, plain):
        c = shard.c[i:j, None]
        own = c * one_hot(shard.y[i:j], c + zeros_beside((1, k), c))
        plain.pullback(shard.X, own, i, j, sums)
        weights += to_numpy(own.sum(0))
    return sums.reshape(-1, k), weights


class Constants(NamedTuple):
    """The cuts of "always predict j", for all j together."""

    sums: Array
    """The weighted sums of the rows of each class, (p, k)."""
    weights: NDArray
    F: NDArray | float
    offsets: NDArray
    """One a class, sum_i c_i O_(y_i, j)."""

    def mixed(self, s: NDArray) -> tuple[Array, float]:
        """The slopes in the weights, (p, k), and the offset, of the cuts mixed by s."""
        S, F = self.sums, self.F
        if isinstance(F, float):
            into, out = namespace(S).sum(S, axis=1)[:, None] * F, F * float(s.sum())
        else:
            into, out = S @ like(F.copy(), S), like(F @ s, S)
        return like(s, S) * into - out * S, float(self.offsets @ s)

    def leaning(self, s: NDArray) -> NDArray:
        """Their slopes in the intercepts, :math:`s_j \\sum_y \\pi_y F_{yj} - \\pi_j \\sum_i F_{ji} s_i`."""
        pi, F = self.weights, self.F
        found = F * (s * pi.sum() - pi * s.sum()) if isinstance(F, float) else s * (pi @ F) - pi * (F @ s)
        return np.asarray(found)

    def steady(self) -> tuple[NDArray, Any]:
        """A mixture without slopes in the intercepts, and the matrix that undoes any slopes, or a factor."""
        pi, F = self.weights, self.F
        if isinstance(F, float):
            return pi, 1 / F
        V = np.diag(pi @ F) - pi[:, None] * F
        # of rank k - 1, since slopes are of sum zero: one more equation makes the solution unique
        system = np.linalg.pinv(np.vstack([V, np.ones(len(V))]))
        return np.maximum(system[:, -1], 0.0), system[:, :-1]


@dataclass(frozen=True)
class WithIntercepts(Risk):
    r"""A risk of many scores a row with an intercept each, :math:`R(w, b)`, the k entries of b at w's end.

    `Objective` does not penalize them, and takes the cuts of `balanced`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Objective, Softmax, linear_risk, minimize
    >>> X, y = np.zeros((4, 1)), np.array([0.0, 1.0, 2.0, 2.0])
    >>> J = Objective(linear_risk(X, y, Softmax(), fit_intercept=True), L2(), lam=0.1)
    >>> result = minimize(J, tol=1e-9)
    >>> b = result.w[-3:]
    >>> np.round(np.exp(b) / np.exp(b).sum(), 4).tolist()  # with no features, the shares of the classes
    [0.25, 0.25, 0.5]
    """

    @property
    def n_intercepts(self) -> int:
        return self.scorer.columns

    def cursor(self, w: Array) -> BalancedCursor:
        """A point that keeps its scores at the shards, and can put its intercepts at their best."""
        return BalancedCursor(self, w)

    @cached_property
    def constants(self) -> Constants:
        """The cuts that are known beforehand: one pass over X."""
        k, loss = self.n_intercepts, self.loss
        inner: Any = self.scorer.inner  # type: ignore[attr-defined]
        plain = inner.by_output if isinstance(inner, Standardized) else Multiclass(k)
        sums, pi = self.executor.sum(_class_sums, plain)
        F, offsets = loss.constants(k)  # type: ignore[attr-defined]
        return Constants(sums, pi, F, pi @ (offsets + np.zeros((k, k))))

    def lowered(self, w: Array) -> Array:
        """W with intercepts far down where no row is of a class.

        There, no other slope makes up for theirs: each, however small, would leave nothing of a cut. So far
        down, there is none.
        """
        k, none = self.n_intercepts, self.constants.weights == 0
        if not none.any():
            return w
        return namespace(w).concat([w[:-k], w[-k:] - like(FAR * none, w)])

    def always(self, j: int) -> Cut:
        """The cut of "always predict j", with its slopes in the intercepts."""
        s = np.zeros(self.n_intercepts)
        s[j] = 1.0
        D, offset = self.constants.mixed(s)
        inner: Any = self.scorer.inner  # type: ignore[attr-defined]
        a = inner.spread(D)
        return Cut(namespace(a).concat([a, like(self.constants.leaning(s), a)]), offset)

    @cached_property
    def _steady(self) -> tuple[NDArray, Any]:
        return self.constants.steady()

    def balanced(self, cut: Cut) -> Cut:
        """The cut, mixed with as little of the constant ones as leaves no slope in the intercepts."""
        k, xp = self.n_intercepts, namespace(cut.a)
        slopes = np.asarray(to_numpy(cut.a[-k:]), dtype=float)
        steady, undo = self._steady
        # of steady + rate * way, a share of t, where (1 - t) / t = rate: as large as leaves all entries >= 0
        way = -undo @ slopes if np.ndim(undo) else -undo * slopes
        falls = way < 0
        with np.errstate(over="ignore"):  # a slope of next to nothing sets no limit
            rate = float(np.min(steady[falls] / -way[falls])) if falls.any() else np.inf
        t = 1 / (1 + rate) if np.isfinite(slopes).all() else 1.0
        none = xp.zeros_like(cut.a[-k:])
        if t == 0:
            return Cut(xp.concat([cut.a[:-k], none]), cut.b)
        s = steady if t == 1 else np.maximum(steady + rate * way, 0.0)
        if not isinstance(self.constants.sums, type(cut.a)):  # once: w's library is that of all cuts
            self.__dict__["constants"] = self.constants._replace(sums=like(self.constants.sums, cut.a))
        D, offset = self.constants.mixed(s)
        inner: Any = self.scorer.inner  # type: ignore[attr-defined]
        a, b = t * inner.spread(D), t * offset
        if t < 1:
            a, b = a + (1 - t) * cut.a[:-k], b + (1 - t) * cut.b
        return Cut(xp.concat([a, none]), b)


class BalancedCursor(ScoreCursor):
    """A cursor of a risk with intercepts."""

    bend: NDArray | None = None
    """What is known of the second derivatives in the intercepts: the inverse of their matrix."""

    def balance(self) -> None:
        """Put the intercepts near their best, on kept scores: then cuts have next to no slopes in them."""
        risk: Any = self.risk
        k, xp = risk.n_intercepts, namespace(self.w)

        def look(b: NDArray) -> tuple[float, NDArray]:
            value, slopes = self._ask(shards.shifted, self.loss, risk.scorer, b)
            return value, slopes

        b, self.bend = near_best(look, risk.constants.weights, self.bend)
        self.w = xp.concat([self.w[:-k], self.w[-k:] + like(b, self.w)])
        self._tell(shards.shift, b)


def near_best(
    look: Callable[[NDArray], tuple[float, NDArray]], weights: NDArray, H: NDArray | None = None
) -> tuple[NDArray, NDArray]:
    """Shifts b for which the slopes of the risk are a small part of those at zero, by few looks.

    By the method of Broyden, Fletcher, Goldfarb and Shanno, from what the last ones have left of H, or from a
    diagonal: classes of few rows bend the risk little.

    Examples
    --------
    >>> import numpy as np
    >>> near_best(lambda b: (float((b - 1) @ (b - 1)) / 2, b - 1), np.ones(2))[0].tolist()
    [1.0, 1.0]
    """
    heavy = weights > 0
    scale = np.where(heavy, weights, 1.0)
    b, H = np.zeros(len(weights)), np.diag(heavy / scale) if H is None else H
    value, g = look(b)
    goal = PART * float(np.max(abs(g) / scale))
    for _ in range(LOOKS):
        d = -H @ g
        slope, t = float(g @ d), 1.0
        if np.max(abs(g) / scale) <= goal or not slope < 0:
            break
        new, there = look(b + d)
        if there @ d > 0.5 * abs(slope):  # too far: back to where the secant says that the slope is zero
            t = slope / (slope - float(there @ d))
            new, there = look(b + t * d)
        if not new <= value:
            break
        s, y = t * d, there - g
        b, value, g = b + s, new, there
        if (sy := float(s @ y)) > 0:
            Hy = H @ y
            H = H + (sy + y @ Hy) / sy**2 * np.outer(s, s) - (np.outer(Hy, s) + np.outer(s, Hy)) / sy
    return b, H


def with_intercepts(risk: Risk) -> WithIntercepts:
    """The risk of many scores a row, with an intercept each.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Softmax, linear_risk
    >>> with_intercepts(linear_risk(np.eye(3), np.arange(3.0), Softmax())).dim
    12
    """
    scorer: Any = WithOnes(risk.scorer)
    dim = risk.dim + scorer.columns
    return WithIntercepts(risk.loss, scorer, risk.executor, dim, risk.rows, risk.table)


@dataclass(frozen=True)
class CentredRisk(Risk):
    r"""The risk of squares with its intercepts minimized out: those of rows and targets less their means.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import MultivariateSquared, linear_risk
    >>> X, Y = np.array([[1.0], [2.0]]), np.array([[3.0, 5.0], [4.0, 7.0]])
    >>> risk = linear_risk(X, Y, MultivariateSquared(), fit_intercept=True)
    >>> risk(np.array([1.0, 2.0]))[0], risk.intercept(np.array([1.0, 2.0])).tolist()
    (0.0, [2.0, 3.0])
    """

    target: Any = None
    """The means of the targets."""

    def intercept(self, w: Array) -> Array:
        """The best b."""
        scorer: Any = self.scorer
        return self.target - like(scorer.mean, w) @ w.reshape(-1, scorer.columns)


def centred(scorer: Any, executor: Executor, p: int) -> Centred:
    """The scorer of rows less their mean."""
    (mean,) = executor.sum(_mean, p)
    return Centred(scorer, mean)


def _mean(shard: Shard, p: int) -> tuple[NDArray]:
    """A shard's part of the weighted mean of all rows."""
    found = zeros_beside((p,), shard.c)
    for i, j in blocks(shard, Linear()):
        shard.X.pullback(shard.c[i:j], i, j, found)
    return (found,)
