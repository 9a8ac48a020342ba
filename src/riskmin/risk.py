r"""The risk: the weighted mean of a loss over shards of data, :math:`R(w) = \sum_i c_i\, l(x_i^\top w, y_i)`.

What runs on a shard is a top-level function here, so that any executor can send it anywhere. An oracle
call is one pass over X: a block of rows is scored, its loss is taken, and its gradient is scattered while
the rows are still in cache. A cursor keeps the scores of a point at the shards instead, so that a line
search costs O(n) a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np

from riskmin.arrays import namespace
from riskmin.scalar import ROUNDING
from riskmin.types import Array, Cursor, Executor, KeepsScores, Lifted, Loss, Oracle, Scorer, Shard, Unsuited

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


def _place(shard: Shard, key: int, live: set[int], scorer: Scorer, w: Array) -> None:
    """Keep the scores of w, and forget those of the cursors that are gone."""
    cursors = shard.memo.setdefault("cursors", {})
    for gone in cursors.keys() - live:
        del cursors[gone]
    cursors[key] = {"z": _scores(shard, scorer, w)}


def _aim(shard: Shard, key: int, scorer: Scorer, d: Array) -> None:
    shard.memo["cursors"][key]["dz"] = _scores(shard, scorer, d)


def _along(shard: Shard, key: int, loss: Loss, t: float, b: float) -> tuple[float, float, float]:
    """The loss at scores z + t dz + b, with its slopes in t and in b."""
    kept = shard.memo["cursors"][key]
    z, dz = kept["z"], kept.get("dz")
    value = slope_t = slope_b = 0.0
    # what is in cache is fast on a processor; a GPU wants all of it at once
    step = 4096 if isinstance(z, np.ndarray) else max(len(z), 1)
    for i in range(0, len(z), step):
        at = slice(i, i + step)
        here = z[at] + t * dz[at] if t else z[at]  # added up as in `_pull` and `_move`: at a kink, the last
        here = here + b if b else here  # bit decides on the slope, and theirs must be the same
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
) -> tuple[float, Array, float, float]:
    """sum_k m_k of (loss, gradient in w) at scores z + t dz + b_k, for the (b_k, m_k) of mix.

    And what rounding may have added, by the size of what cancels, sum_i |dz_i| (|z_i| + |b|); and the lift.
    """
    kept = shard.memo["cursors"][key]
    z = kept["z"] + t * kept["dz"] if t else kept["z"]
    value, rounding, lift, grad = 0.0, 0.0, 0.0, namespace(w).zeros_like(w)
    for i, j in _blocks(shard):
        v, dz, more, up = _mixture(loss, z[i:j], shard.y[i:j], shard.c[i:j], mix)
        value, rounding, lift = value + v, rounding + more, lift + up
        scorer.pullback(shard.X, dz, i, j, grad)
    return value, grad, rounding, lift


def _mixture(
    loss: Loss, z: Array, y: Array, c: Array, mix: list[tuple[float, float]]
) -> tuple[float, Array, float, float]:
    """sum_k m_k of loss and gradient at scores z + b_k, for the (b_k, m_k) of mix, rounding and lift."""
    value, lift = 0.0, 0.0
    dz: Array = 0.0
    for b, m in mix:
        here = z + b if b else z
        v, g, *up = (loss.tangent if isinstance(loss, Lifted) else loss.value_grad)(here, y, c)
        value, lift = value + m * float(v), lift + m * float(sum(up))
        dz = g if m == 1 else dz + m * g
    size = float(abs(dz) @ (abs(z) + max(abs(b) for b, _ in mix)))
    return value, dz, ROUNDING * size, lift


# ---------------------------------------------------------------- the risk
_keys = count()
_cursors: WeakValueDictionary[int, ScoreCursor] = WeakValueDictionary()
"""The cursors in use: all others' scores are forgotten when the next one is placed."""


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
    rows : Shard, optional
        All rows together, where they are all here: for solvers that visit rows or columns one by one.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, Linear, Risk, Serial, Shard
    >>> from riskmin.matrices import as_matrix
    >>> shard = Shard(as_matrix(np.eye(2)), np.array([1.0, -1.0]), np.array([0.5, 0.5]), {})
    >>> Risk(Hinge(), Linear(), Serial([shard]), dim=2)(np.zeros(2))
    (1.0, array([-0.5,  0.5]))
    """

    loss: Loss
    scorer: Scorer
    executor: Executor
    dim: int
    rows: Shard | None = field(default=None, repr=False, compare=False)

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

    def cursor(self, w: Array) -> ScoreCursor:
        """A point that keeps its scores at the shards."""
        return ScoreCursor(self, w) if self.loss.separable else GatheredCursor(self, w)


@dataclass
class ScoreCursor:
    """A cursor of a `Risk` with a separable loss."""

    risk: Risk
    w: Array
    d: Array = None
    key: int = field(default_factory=lambda: next(_keys))
    moves: int = 0
    slip: float = 0.0
    lift: float = 0.0
    """By how much the cut lies above the tangent of what is looked at: the slip is that much less."""
    loss: Any = None
    """What is looked at: by default the loss of the risk."""
    owner: ScoreCursor | None = None
    """Whose scores these are, where they are another's."""

    def __post_init__(self) -> None:
        self.loss = self.risk.loss
        _cursors[self.key] = self
        self._place()

    def under(self, loss: Loss) -> Self:
        """A look at the same scores under another loss, good until the next move."""
        other = copy(self)
        other.loss, other.owner = loss, self.owner or self
        return other

    def _place(self) -> None:
        self.risk.executor.map(_place, self.key, set(_cursors), self.risk.scorer, self.w)

    def at(self, t: float, b: float) -> tuple[float, float, float]:
        """R(w + t d) with b added to all scores, and its slopes in t and b."""
        value, slope_t, slope_b = self.risk.executor.sum(_along, self.key, self.loss, t, b)
        return value, slope_t, slope_b

    def pull(self, t: float, mix: list[tuple[float, float]]) -> tuple[float, Array]:
        """The mixture of values and gradients at w + t d and shifted scores."""
        found = self.risk.executor.sum(_pull, self.key, self.loss, self.risk.scorer, self.w, t, mix)
        value, grad, rounding, self.lift = found
        self.slip = rounding - self.lift
        return value, grad

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        return self.pull(t, [(0.0, 1.0)])

    def aim(self, d: Array, slack: float = 0.0) -> None:
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
            self._place()


class GatheredCursor(ScoreCursor):
    """A cursor of a `Risk` whose loss is no sum over rows: it keeps the scores of all shards together."""

    def __post_init__(self) -> None:
        self.loss = self.risk.loss
        parts = self.risk.executor.map(_gather, self.risk.scorer, self.w)
        xp = namespace(parts[0][0])
        self.z, self.y, self.c = (xp.concat(part) for part in zip(*parts, strict=True))
        self.ends = np.cumsum([0, *(len(part[0]) for part in parts)])
        self.dz: Array = None

    def _scores(self, w: Array) -> Array:
        parts = self.risk.executor.map(_scores, self.risk.scorer, w)
        return namespace(parts[0]).concat(parts)

    def _at(self, t: float, b: float) -> Array:
        z = self.z + t * self.dz if t else self.z
        return z + b if b else z

    def at(self, t: float, b: float) -> tuple[float, float, float]:
        """R(w + t d) with b added to all scores, and its slopes in t and b."""
        value, g = self.loss.value_grad(self._at(t, b), self.y, self.c)
        return float(value), 0.0 if self.dz is None else float(g @ self.dz), float(g.sum())

    def pull(self, t: float, mix: list[tuple[float, float]]) -> tuple[float, Array]:
        """The mixture of values and gradients at w + t d and shifted scores."""
        value, dz, rounding, self.lift = _mixture(self.loss, self._at(t, 0.0), self.y, self.c, mix)
        self.slip = rounding - self.lift
        each = [dz[i:j] for i, j in pairwise(self.ends)]
        (grad,) = self.risk.executor.sum(_scatter, self.risk.scorer, self.w, each=each)
        return value, grad

    def aim(self, d: Array, slack: float = 0.0) -> None:
        self.d, self.dz = d, self._scores(d)

    def move(self, t: float) -> None:
        self.w = self.w + t * self.d
        self.moves += 1
        # rounding errors of the updates must not add up
        self.z = self.z + t * self.dz if self.moves % REFRESH else self._scores(self.w)


@dataclass
class CallCursor:
    """A cursor of any oracle: every look along the line is an oracle call."""

    risk: Oracle
    w: Array
    d: Array = None
    slip: float = 0.0

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        return self.risk(self.w + t * self.d if t else self.w)

    def aim(self, d: Array, slack: float = 0.0) -> None:
        self.d = d

    def along(self, t: float) -> tuple[float, float]:
        value, grad = self.risk(self.w + t * self.d)
        return value, float(grad @ self.d)

    def move(self, t: float) -> None:
        self.w = self.w + t * self.d


def cursor(risk: Oracle, w: Array) -> Cursor:
    """A cursor of any risk, with kept scores where the risk offers them."""
    return risk.cursor(w) if isinstance(risk, KeepsScores) else CallCursor(risk, w)


def rows_of(risk: Any, solver: object) -> tuple[Shard, Any, bool]:
    """The rows of a linear risk that are all here, its loss, and whether it has an intercept.

    Raises
    ------
    TypeError
        Names what to use instead, where the risk is another or its rows are elsewhere.
    """
    inner = getattr(risk, "risk", risk)  # that of a profiled intercept
    if not isinstance(inner, Risk) or inner.rows is None or not inner.loss.separable:
        raise Unsuited(
            f"{type(solver).__name__} visits rows or columns of X one by one: it needs a linear_risk whose "
            "rows are all here, with a loss that is a sum over them: use Bundle, Lbfgs or ProximalGradient"
        )
    return inner.rows, inner.loss, inner is not risk
