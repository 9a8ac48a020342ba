r"""The risk: the weighted mean of a loss over shards of data, :math:`R(w) = \sum_i c_i\, l(x_i^\top w, y_i)`.

Scores may be many a row, :math:`z_i = W^\top x_i`. What is computed where the rows are is in `shards`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, pairwise
from typing import Any, Self
from weakref import WeakValueDictionary

import numpy as np

from riskmin import shards
from riskmin.arrays import like, namespace, to_numpy
from riskmin.deadline import check
from riskmin.scalar import ROUNDING
from riskmin.spread import Table
from riskmin.types import Array, Cursor, Executor, KeepsScores, Loss, Lost, Oracle, Scorer, Shard, Unsuited

MOST_LOSSES = 20
"""So many times in a row kept scores are made anew for one answer, should workers die that often."""
REFRESH = 32
"""Scores are updated in place along a line; after this many moves they are computed anew from w."""
SUMS = 2.0**-50
"""How well the slopes of losses of lists are known, beside the largest that there may be."""
SHRUNK = 8.0
"""They are, too, when the largest has shrunk to less than one in so many of what it was."""


def check_point(dim: int, w: Array) -> None:
    """Raise unless w is an array of as many numbers as a risk takes: kernels would read beyond a shorter one.

    Examples
    --------
    >>> check_point(3, np.zeros(2))
    Traceback (most recent call last):
    ...
    ValueError: w has the shape (2,), but this risk takes an array of (3,): give one number a weight
    """
    shape = getattr(w, "shape", None)
    if shape != (dim,):
        held = f"is a {type(w).__name__}" if shape is None else f"has the shape {tuple(shape)}"
        raise ValueError(f"w {held}, but this risk takes an array of ({dim},): give one number a weight")


# ---------------------------------------------------------------- the risk
_keys = count()
_used: WeakValueDictionary[int, InUse] = WeakValueDictionary()
"""The keys of cursors in use: all others' scores are forgotten when the next one is placed."""


class InUse:
    """What all cursors have that look at the same scores."""


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
    table : Table, optional
        What is known here of rows that may be elsewhere.

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
    table: Table | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.table is None and self.rows is not None:
            object.__setattr__(self, "table", Table.of(*self.rows[:3]))

    @cached_property
    def labels(self) -> tuple[Array, Array]:
        """Labels and weights of all rows; gathered once, where they are not known here."""
        if self.table is not None:
            return self.table.y, self.table.c
        ys, cs = zip(*self.executor.map(shards.labels), strict=True)
        xp = namespace(ys[0])
        return xp.concat(ys), xp.concat(cs)

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R(w) and a subgradient."""
        if not self.loss.separable:
            return self.of_lists(w)[:2]
        check_point(self.dim, w)
        value, grad = self.executor.sum(shards.value_grad, self.loss, self.scorer, w)
        return value, grad

    def of_lists(self, w: Array) -> tuple[float, Array, float]:
        """The same of a loss that is no sum over rows, and by how much its cut lies below."""
        check_point(self.dim, w)
        zs = self.executor.map(shards.scores, self.scorer, w)  # 8 bytes a row, and as many back
        z = namespace(zs[0]).concat(zs)
        total, dz = self.loss.value_grad(z, *self.labels)
        ends = np.cumsum([0, *map(len, zs)])
        (grad,) = self.executor.sum(shards.scatter, self.scorer, w, each=[dz[i:j] for i, j in pairwise(ends)])
        return float(total), grad, self.slip_of(z, dz)

    @cached_property
    def steepest(self) -> Array:
        """The largest slopes that rows may have in a loss of pairs of labels, of weights c_i c_j."""
        y, c = self.labels
        if y.ndim > 1:
            return c
        found, at = namespace(y).unique_inverse(y)
        shares = like(np.bincount(to_numpy(at).reshape(-1), to_numpy(c), len(found)), c)
        pairs = 0.5 * (1 - float(shares @ shares))
        return c * (1 - shares[at]) / pairs if pairs > 0 else c

    def slip_of(self, z: Array, dz: Array) -> float:
        """What rounding may have added to a cut at scores z: slopes are differences of sums over rows."""
        return ROUNDING * shards.inner(abs(dz), abs(z)) + self.slip_of_sums(z)

    def slip_of_sums(self, z: Array) -> float:
        """The part of it that is there though slopes vanish."""
        sizes = abs(z) if z.ndim == 1 else namespace(z).max(abs(z), axis=1)
        return SUMS * float(self.steepest @ sizes)

    @property
    def many(self) -> bool:
        """Whether a row has many scores, or may have: a single one is in an array of two dimensions too."""
        return hasattr(self.loss, "scorer") or getattr(self.scorer, "columns", 1) > 1

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
    use: InUse = field(default_factory=InUse)
    """Has the scores kept as long as one that looks at them is there."""
    lost: bool = False
    """Whether a shard has forgotten them."""
    reach: float = 0.0
    """The largest score since they were computed from w."""
    fresh: bool = True
    """Whether they were computed anew by the last move."""

    def __post_init__(self) -> None:
        check_point(self.risk.dim, self.w)
        self.loss = self.risk.loss
        self._place()

    def under(self, loss: Loss) -> Self:
        """A look at the same scores under another loss, good until the next move."""
        other = copy(self)
        other.loss = loss
        return other

    def _place(self) -> None:
        """Keep the scores of w, at all shards; by another key, where some that were kept are lost."""
        if self.lost:  # others that look at what is left of them are told so by the shards
            self.key, self.use, self.lost = next(_keys), InUse(), False
        _used[self.key] = self.use
        found = self.risk.executor.map(shards.place, self.key, set(_used), self.risk.scorer, self.w)
        self.reach = max(found)

    def _tell(self, f: Callable[..., Any], *args: Any) -> list[Any]:
        """Change what shards keep; where it was lost, it is made anew before the next question."""
        try:
            return self.risk.executor.map(f, self.key, *args)
        except Lost:
            self.lost = True
            return []

    def _ask(self, f: Callable[..., tuple[Any, ...]], *args: Any) -> tuple[Any, ...]:
        """Sums over shards that keep scores, which are made anew should one have been read anew elsewhere."""
        for _ in range(MOST_LOSSES):
            if self.lost:
                self._place()
                if self.d is not None:
                    self._tell(shards.aim, self.risk.scorer, self.d)
            try:
                return self.risk.executor.sum(f, self.key, *args)
            except Lost:
                self.lost = True
        raise Lost(f"the scores of a point were lost {MOST_LOSSES} times in a row: look after the workers")

    def at(self, t: float, b: float) -> tuple[float, float, float]:
        """R(w + t d) with b added to all scores, and its slopes in t and b."""
        value, slope_t, slope_b = self._ask(shards.along, self.loss, self.risk.scorer, t, b)
        return value, slope_t, slope_b

    def pull(self, t: float, mix: list[tuple[float, float]]) -> tuple[float, Array]:
        """The mixture of values and gradients at w + t d and shifted scores."""
        found = self._ask(shards.pull, self.loss, self.risk.scorer, self.w, t, mix)
        value, grad, rounding, self.lift = found
        if getattr(self.loss, "invariant", False):  # sums over queries, of which what all scores have cancels
            rounding += SUMS * self.reach
        self.slip = rounding - self.lift
        return value, grad

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        return self.pull(t, [(0.0, 1.0)])

    def aim(self, d: Array, slack: float = 0.0) -> None:
        self.d = d
        self._tell(shards.aim, self.risk.scorer, d)

    def along(self, t: float) -> tuple[float, float]:
        return self.at(t, 0.0)[:2]

    def move(self, t: float) -> None:
        self.w = self.w + t * self.d
        self.moves += 1
        now = max(self._tell(shards.move, t), default=self.reach) if self.moves % REFRESH else -1.0
        self.reach = max(self.reach, now)
        self.fresh = SHRUNK * now < self.reach
        if self.fresh:  # rounding errors of updates must not add up, nor be those of larger scores
            self._place()


class GatheredCursor(ScoreCursor):
    """A cursor of a `Risk` whose loss is no sum over rows: it keeps the scores of all shards together."""

    def __post_init__(self) -> None:
        check_point(self.risk.dim, self.w)
        self.loss = self.risk.loss
        parts = self.risk.executor.map(shards.scores, self.risk.scorer, self.w)
        self.z = namespace(parts[0]).concat(parts)
        self.y, self.c = self.risk.labels
        self.ends = np.cumsum([0, *map(len, parts)])
        self.reach = shards.largest(self.z)
        self.dz: Array = None

    def _scores(self, w: Array) -> Array:
        parts = self.risk.executor.map(shards.scores, self.risk.scorer, w)
        return namespace(parts[0]).concat(parts)

    def _at(self, t: float, b: float) -> Array:
        z = self.z + t * self.dz if t else self.z
        return z + b if b else z

    def at(self, t: float, b: float) -> tuple[float, float, float]:
        """R(w + t d) with b added to all scores, and its slopes in t and b."""
        check()
        value, g = self.loss.value_grad(self._at(t, b), self.y, self.c)
        return float(value), 0.0 if self.dz is None else shards.inner(g, self.dz), float(g.sum())

    def pull(self, t: float, mix: list[tuple[float, float]]) -> tuple[float, Array]:
        """The mixture of values and gradients at w + t d and shifted scores."""
        value, dz, rounding, self.lift = shards.mixture(self.loss, self._at(t, 0.0), self.y, self.c, mix)
        rounding += self.risk.slip_of_sums(self.z)
        rounding += shards.cancelled(dz, self.z, t * self.dz) if t else 0.0
        self.slip = rounding - self.lift
        each = [dz[i:j] for i, j in pairwise(self.ends)]
        (grad,) = self.risk.executor.sum(shards.scatter, self.risk.scorer, self.w, each=each)
        return value, grad

    def aim(self, d: Array, slack: float = 0.0) -> None:
        self.d, self.dz = d, self._scores(d)

    def move(self, t: float) -> None:
        self.w = self.w + t * self.d
        self.moves += 1
        self.z = self.z + t * self.dz
        now = shards.largest(self.z) if self.moves % REFRESH else -1.0
        self.reach = max(self.reach, now)
        self.fresh = SHRUNK * now < self.reach
        if self.fresh:
            self.z = self._scores(self.w)
            self.reach = shards.largest(self.z)


@dataclass
class CallCursor:
    """A cursor of any oracle: every look along the line is an oracle call."""

    risk: Oracle
    w: Array
    d: Array = None
    slip: float = 0.0
    seen: tuple[float, float, Array] | None = None
    """The last look: t, value and gradient. A step ends where it was looked at last, so it costs no call."""

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        if self.seen is None or self.seen[0] != t:
            self.seen = (t, *self.risk(self.w + t * self.d if t else self.w))
        return self.seen[1:]

    def aim(self, d: Array, slack: float = 0.0) -> None:
        self.d = d

    def along(self, t: float) -> tuple[float, float]:
        value, grad = self.value_grad(t)
        return value, float(grad @ self.d)

    def move(self, t: float) -> None:
        self.w = self.w + t * self.d
        self.seen = (0.0, *self.seen[1:]) if self.seen is not None and self.seen[0] == t else None


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
    if not isinstance(inner, Risk) or inner.rows is None or not inner.loss.separable or inner.many:
        raise Unsuited(
            f"{type(solver).__name__} visits rows or columns of X one by one: it needs a linear_risk whose "
            "rows are all here, with one score each and a loss that is a sum over them: use Auto, Bundle or "
            "Lbfgs"
        )
    return inner.rows, inner.loss, inner is not risk
