r"""The risk: the weighted mean of a loss over shards of data, :math:`R(w) = \sum_i c_i\, l(x_i^\top w, y_i)`.

What runs on a shard is a top-level function here, so that any executor can send it anywhere. An oracle
call is one pass over X: a block of rows is scored, its loss is taken, and its gradient is scattered while
the rows are still in cache. A cursor keeps the scores of a point at the shards instead, so that a line
search costs O(n) a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import numpy as np

from riskmin.arrays import namespace, to_numpy
from riskmin.scalar import Tangent, bracket, crossing, shrink
from riskmin.types import Array, Cursor, Executor, KeepsScores, Loss, Oracle, Scorer, Shard

REFRESH = 32
"""Scores are updated in place along a line; after this many moves they are computed anew from w."""


# ---------------------------------------------------------------- on a shard
def _blocks(shard: Shard) -> Iterator[tuple[int, int]]:
    n, step = shard.X.shape[0], shard.X.block_rows
    return ((i, min(i + step, n)) for i in range(0, n, step))


def _value_grad(shard: Shard, loss: Loss, scorer: Scorer, w: Array) -> tuple[float, Array]:
    value, grad = 0.0, namespace(w).zeros_like(w)
    for i, j in _blocks(shard):
        v, dz = loss.value_grad(scorer.scores(shard.X, w, i, j), shard.y[i:j], shard.c[i:j])
        value += float(v)
        scorer.pullback(shard.X, dz, i, j, grad)
    return value, grad


def _scores(shard: Shard, scorer: Scorer, w: Array) -> Array:
    parts = [scorer.scores(shard.X, w, i, j) for i, j in _blocks(shard)]
    return parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts)


def _gather(shard: Shard, scorer: Scorer, w: Array) -> tuple[Array, Array, Array]:
    return _scores(shard, scorer, w), shard.y, shard.c


def _scatter(shard: Shard, scorer: Scorer, w: Array, dz: Array) -> tuple[Array]:
    grad = namespace(w).zeros_like(w)
    for i, j in _blocks(shard):
        scorer.pullback(shard.X, dz[i:j], i, j, grad)
    return (grad,)


def _place(shard: Shard, key: int, scorer: Scorer, w: Array) -> None:
    """Keep the scores of w. Two cursors at most are remembered: older ones are not in use any more."""
    cursors = shard.memo.setdefault("cursors", {})
    cursors[key] = {"z": _scores(shard, scorer, w)}
    for old in sorted(cursors)[:-2]:
        del cursors[old]


def _aim(shard: Shard, key: int, scorer: Scorer, d: Array) -> None:
    shard.memo["cursors"][key]["dz"] = _scores(shard, scorer, d)


def _along(shard: Shard, key: int, loss: Loss, t: float, b: float) -> tuple[float, float, float]:
    """The loss at scores z + t dz + b, with its slopes in t and in b."""
    kept = shard.memo["cursors"][key]
    z, dz = kept["z"], kept.get("dz")
    value = slope_t = slope_b = 0.0
    for i in range(0, len(z), 4096):
        at = slice(i, i + 4096)
        here = z[at] + b if b else z[at]
        if t:
            here = here + t * dz[at]
        v, g = loss.value_grad(here, shard.y[at], shard.c[at])
        value += float(v)
        slope_b += float(g.sum())
        if dz is not None:
            slope_t += float(g @ dz[at])
    return value, slope_t, slope_b


def _move(shard: Shard, key: int, t: float) -> None:
    kept = shard.memo["cursors"][key]
    kept["z"] = kept["z"] + t * kept["dz"]


def _pull(
    shard: Shard, key: int, loss: Loss, scorer: Scorer, w: Array, t: float, mix: list[tuple[float, float]]
) -> tuple[float, Array]:
    """sum_k m_k of (loss, gradient in w) at scores z + t dz + b_k, for the (b_k, m_k) of mix."""
    kept = shard.memo["cursors"][key]
    z = kept["z"] + t * kept["dz"] if t else kept["z"]
    value, grad = 0.0, namespace(w).zeros_like(w)
    for i, j in _blocks(shard):
        dz: Any = 0.0
        for b, m in mix:
            v, g = loss.value_grad(z[i:j] + b if b else z[i:j], shard.y[i:j], shard.c[i:j])
            value += m * float(v)
            dz = g if m == 1 else dz + m * g
        scorer.pullback(shard.X, dz, i, j, grad)
    return value, grad


# ---------------------------------------------------------------- the risk
_keys = count()


@dataclass(frozen=True)
class Risk:
    """A loss of scores over an executor's shards; `risk(w)` is its value and a subgradient.

    Parameters
    ----------
    loss : Loss
    scorer : Scorer
    executor : Executor
        Holds the shards.
    dim : int
        The length of w.
    """

    loss: Loss
    scorer: Scorer
    executor: Executor
    dim: int

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R(w) and a subgradient."""
        if self.loss.separable:
            value, grad = self.executor.sum(_value_grad, self.loss, self.scorer, w)
            return value, grad
        zs, ys, cs = zip(*self.executor.map(_gather, self.scorer, w), strict=True)
        xp = namespace(zs[0])
        total, dz = self.loss.value_grad(xp.concat(zs), xp.concat(ys), xp.concat(cs))
        ends = np.cumsum([0, *map(len, zs)])
        (grad,) = self.executor.sum(_scatter, self.scorer, w, each=[dz[i:j] for i, j in pairwise(ends)])
        return float(total), grad

    def cursor(self, w: Array) -> Cursor:
        """A point that keeps its scores at the shards."""
        return ScoreCursor(self, w) if self.loss.separable else CallCursor(self, w)

    def scores(self, w: Array) -> np.ndarray[Any, Any]:
        """All scores, in row order."""
        return np.concatenate([to_numpy(z) for z in self.executor.map(_scores, self.scorer, w)])


@dataclass
class ScoreCursor:
    """A cursor of a `Risk` with a separable loss."""

    risk: Risk
    w: Array
    d: Array | None = None
    key: int = field(default_factory=lambda: next(_keys))
    moves: int = 0

    def __post_init__(self) -> None:
        self.risk.executor.map(_place, self.key, self.risk.scorer, self.w)

    def at(self, t: float, b: float) -> tuple[float, float, float]:
        """R(w + t d) with b added to all scores, and its slopes in t and b."""
        value, slope_t, slope_b = self.risk.executor.sum(_along, self.key, self.risk.loss, t, b)
        return value, slope_t, slope_b

    def pull(self, t: float, mix: list[tuple[float, float]]) -> tuple[float, Array]:
        """The mixture of values and gradients at w + t d and shifted scores."""
        value, grad = self.risk.executor.sum(
            _pull, self.key, self.risk.loss, self.risk.scorer, self.w, t, mix
        )
        return value, grad

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        return self.pull(t, [(0.0, 1.0)])

    def aim(self, d: Array) -> None:
        self.d = d
        self.risk.executor.map(_aim, self.key, self.risk.scorer, d)

    def along(self, t: float) -> tuple[float, float]:
        return self.at(t, 0.0)[:2]

    def move(self, t: float) -> None:
        self.w = self.w + t * self.d
        self.moves += 1
        if self.moves % REFRESH:
            self.risk.executor.map(_move, self.key, t)
        else:  # rounding errors of the updates must not add up
            self.risk.executor.map(_place, self.key, self.risk.scorer, self.w)


@dataclass
class CallCursor:
    """A cursor of any oracle: every look along the line is an oracle call."""

    risk: Oracle
    w: Array
    d: Array | None = None

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        return self.risk(self.w + t * self.d if t else self.w)

    def aim(self, d: Array) -> None:
        self.d = d

    def along(self, t: float) -> tuple[float, float]:
        value, grad = self.risk(self.w + t * self.d)
        return value, float(grad @ self.d)

    def move(self, t: float) -> None:
        self.w = self.w + t * self.d


def cursor(risk: Oracle, w: Array) -> Cursor:
    """A cursor of any risk, with kept scores where the risk offers them."""
    return risk.cursor(w) if isinstance(risk, KeepsScores) else CallCursor(risk, w)


# ---------------------------------------------------------------- the intercept
@dataclass(frozen=True)
class Profiled:
    r"""A risk with its unpenalized intercept minimized out, :math:`\tilde R(w) = \min_b R(w, b)`.

    No solver knows of the intercept. It is found on the kept scores, at O(n) a look and no further pass
    over X; the two tangents that bracket it, mixed so that the slope in b is zero, give a cut of R~.
    The value is that of the mixed cut at w, so that the cut is valid; it is within 1e-12 of R~(w).

    Parameters
    ----------
    risk : Risk
        With a separable loss.
    """

    risk: Risk
    rtol: float = 1e-12
    last: list[float] = field(default_factory=lambda: [0.0, 1.0], repr=False, compare=False)
    """The intercept found last, and how far it moved: where to look first."""

    @property
    def dim(self) -> int:
        """The length of w, the intercept not counted."""
        return self.risk.dim

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R~(w) and a subgradient."""
        return self.cursor(w).value_grad()

    def cursor(self, w: Array) -> ProfiledCursor:
        """A point that keeps its scores at the shards, and its intercept."""
        return ProfiledCursor(self, ScoreCursor(self.risk, w))

    def intercept(self, w: Array) -> float:
        """The minimizing b."""
        return self.cursor(w).b

    def profile(self, at: Callable[[float], tuple[float, float]], b: float) -> tuple[Tangent, Tangent]:
        """Two tangents in b around the minimum of the function at(b) -> (value, slope)."""

        def f(x: float) -> Tangent:
            return Tangent(x, *at(x))

        def enough(best: float, bound: float) -> bool:
            return best - bound <= self.rtol * abs(best)

        try:
            lo, hi = bracket(f, f(b), max(self.last[1], 1e-6))
        except ValueError:
            raise ValueError(
                "the risk falls for ever as the intercept grows, so no best intercept exists: "
                "look at the labels (are all counts zero?) or fit without an intercept"
            ) from None
        lo, hi = shrink(f, lo, hi, enough)
        best = min(lo, hi, key=lambda tangent: tangent.value)
        self.last[:] = best.x, abs(best.x - b)
        return lo, hi


class ProfiledCursor:
    """A cursor of a `Profiled` risk: (w, b(w)), and lines between such points."""

    def __init__(self, profiled: Profiled, scores: ScoreCursor) -> None:
        self.profiled, self.scores = profiled, scores
        self.db = 0.0
        self.b = self._best(self._profile(0.0, profiled.last[0]))

    @property
    def w(self) -> Array:
        return self.scores.w

    def _profile(self, t: float, guess: float) -> tuple[Tangent, Tangent]:
        """The tangents in b around the minimum at w + t d."""

        def at(b: float) -> tuple[float, float]:
            value, _, slope = self.scores.at(t, b)
            return value, slope

        return self.profiled.profile(at, guess)

    @staticmethod
    def _best(around: tuple[Tangent, Tangent]) -> float:
        return min(around, key=lambda tangent: tangent.value).x

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        lo, hi = self._profile(t, self.b + t * self.db)
        if lo.slope == 0 or hi.slope == 0:
            return self.scores.pull(t, [((lo if lo.slope == 0 else hi).x, 1.0)])
        share = hi.slope / (hi.slope - lo.slope)
        _, grad = self.scores.pull(t, [(lo.x, share), (hi.x, 1 - share)])
        return crossing(lo, hi)[1], grad

    def aim(self, d: Array) -> None:
        self.scores.aim(d)
        self.db = self._best(self._profile(1.0, self.b)) - self.b

    def along(self, t: float) -> tuple[float, float]:
        """R on the segment from (w, b(w)) to (w + d, b(w + d)): above R~, and equal to it at both ends."""
        value, slope_t, slope_b = self.scores.at(t, self.b + t * self.db)
        return value, slope_t + self.db * slope_b

    def move(self, t: float) -> None:
        guess = self.b + t * self.db
        self.scores.move(t)
        self.b = self._best(self._profile(0.0, guess))
