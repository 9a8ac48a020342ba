r"""The risk: the weighted mean of a loss over shards of data, :math:`R(w) = \sum_i c_i\, l(x_i^\top w, y_i)`.

With multi-output losses the scores of a row are a vector, :math:`z_i = W^\top x_i`. The functions that run
on the shards, next to the rows, are in `shard_ops`.
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

from riskmin.arrays.namespace import as_array_like, namespace, to_numpy
from riskmin.arrays.partitioned import RowMetadata
from riskmin.core import (
    Array,
    Cursor,
    HasCursor,
    LinearMap,
    Loss,
    Oracle,
    Shard,
    ShardStateLost,
    UnsupportedProblem,
)
from riskmin.core.deadline import check
from riskmin.executors import Executor
from riskmin.numerics.univariate import CUT_ROUNDING
from riskmin.problem import shard_ops

MAX_CACHE_REBUILDS = 20
"""Rebuild lost cached scores at most this many times in a row for one reduction before giving up."""
RECOMPUTE_SCORES_EVERY = 32
"""Cached scores are updated in place along a line; recompute them from w after this many steps."""
SUM_ROUNDING = 2.0**-50
"""Relative rounding error of the slopes of non-decomposable losses, times the largest possible slope."""
RECOMPUTE_WHEN_SHRUNK_BY = 8.0
"""Recompute the scores, too, once the largest of them has shrunk by this factor since the last time."""


def check_point(dim: int, w: Array) -> None:
    """Raise unless w is an array of shape (dim,): compiled kernels would read past the end of a shorter one.

    Examples
    --------
    >>> check_point(3, np.zeros(2))
    Traceback (most recent call last):
    ...
    ValueError: w has the shape (2,), but this risk takes an array of (3,): give one number per weight
    """
    shape = getattr(w, "shape", None)
    if shape != (dim,):
        problem = f"is a {type(w).__name__}" if shape is None else f"has the shape {tuple(shape)}"
        raise ValueError(f"w {problem}, but this risk takes an array of ({dim},): give one number per weight")


# ---------------------------------------------------------------- the risk
_cursor_keys = count()
_live_leases: WeakValueDictionary[int, ScoreLease] = WeakValueDictionary()
"""Keys of the live cursors: shards drop the scores of all others when the next cursor is created."""


class ScoreLease:
    """Token shared by all cursors that use the same cached scores; the scores live as long as it does."""


@dataclass(frozen=True)
class Risk:
    """The risk of a loss over an executor's shards; `risk(w)` returns its value and a subgradient.

    Parameters
    ----------
    loss : Loss
    linear_map : LinearMap
        The map from w to scores, with its adjoint.
    executor : Executor
        Holds the shards.
    dim : int
        The length of w.
    rows : Shard, optional
        All rows together, if all are in this process: for solvers that visit rows or columns one by one.
    row_metadata : RowMetadata, optional
        Shape, labels and weights of rows that may be remote.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, SingleOutput, Risk, Serial, Shard
    >>> from riskmin.arrays.matrix import as_matrix
    >>> shard = Shard(as_matrix(np.eye(2)), np.array([1.0, -1.0]), np.array([0.5, 0.5]), {})
    >>> Risk(Hinge(), SingleOutput(), Serial().place([shard]), dim=2)(np.zeros(2))
    (1.0, array([-0.5,  0.5]))
    """

    loss: Loss
    linear_map: LinearMap
    executor: Executor
    dim: int
    rows: Shard | None = field(default=None, repr=False, compare=False)
    row_metadata: RowMetadata | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.row_metadata is None and self.rows is not None:
            object.__setattr__(self, "row_metadata", RowMetadata.from_rows(*self.rows[:3]))

    @cached_property
    def labels(self) -> tuple[Array, Array]:
        """Labels and weights of all rows; gathered once from the shards if they are not stored locally."""
        if self.row_metadata is not None:
            return self.row_metadata.y, self.row_metadata.c
        ys, cs = zip(*self.executor.map(shard_ops.labels), strict=True)
        xp = namespace(ys[0])
        return xp.concat(ys), xp.concat(cs)

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R(w) and a subgradient."""
        if not self.loss.separable:
            return self.evaluate_nonseparable(w)[:2]
        check_point(self.dim, w)
        value, grad = self.executor.sum(shard_ops.value_grad, self.loss, self.linear_map, w)
        return value, grad

    def evaluate_nonseparable(self, w: Array) -> tuple[float, Array, float]:
        """R(w), a subgradient and the inexactness of its cut, for a non-decomposable loss."""
        check_point(self.dim, w)
        # one score per row is gathered, and one derivative per row sent back: 8 bytes each
        zs = self.executor.map(shard_ops.scores, self.linear_map, w)
        z = namespace(zs[0]).concat(zs)
        total, dz = self.loss.value_grad(z, *self.labels)
        # the derivatives of shard k are dz[ends[k]:ends[k + 1]]
        ends = np.cumsum([0, *map(len, zs)])
        (grad,) = self.executor.sum(
            shard_ops.scatter, self.linear_map, w, each=[dz[i:j] for i, j in pairwise(ends)]
        )
        return float(total), grad, self.rounding_error(z, dz)

    @cached_property
    def max_slopes(self) -> Array:
        """Upper bounds of |dl/dz_i| for a loss that averages over pairs of labels, weighted c_i c_j."""
        y, c = self.labels
        if y.ndim > 1:
            return c
        # row i is in pairs of total weight c_i (1 - weight of its class); all pairs of different
        # classes have the total weight (1 - sum_k class_weight_k^2) / 2, by which the loss is divided
        classes, class_of_row = namespace(y).unique_inverse(y)
        class_weights = as_array_like(
            np.bincount(to_numpy(class_of_row).reshape(-1), to_numpy(c), len(classes)), c
        )
        pair_weight = 0.5 * (1 - float(class_weights @ class_weights))
        return c * (1 - class_weights[class_of_row]) / pair_weight if pair_weight > 0 else c

    def rounding_error(self, z: Array, dz: Array) -> float:
        """Bound on the rounding error of a cut at scores z: slopes are differences of sums over rows."""
        # the relative error of a product u_i z_i is at most CUT_ROUNDING; the absolute error of a slope
        # u_i is at most SUM_ROUNDING times max_slopes[i]
        return CUT_ROUNDING * shard_ops.inner(abs(dz), abs(z)) + self.summation_error(z)

    def summation_error(self, z: Array) -> float:
        """The part of `rounding_error` that remains where the slopes vanish."""
        # sum_i SUM_ROUNDING max_slopes_i max_j |z_ij|
        sizes = abs(z) if z.ndim == 1 else namespace(z).max(abs(z), axis=1)
        return SUM_ROUNDING * float(self.max_slopes @ sizes)

    @property
    def multi_output(self) -> bool:
        """Whether scores are two-dimensional, (n, k): also with k = 1, for losses that may have more."""
        return hasattr(self.loss, "linear_map") or getattr(self.linear_map, "columns", 1) > 1

    def cursor(self, w: Array) -> ScoreCursor:
        """A cursor at w that keeps its scores at the shards."""
        return ScoreCursor(self, w) if self.loss.separable else GatheredCursor(self, w)


@dataclass
class ScoreCursor:
    """A cursor of a `Risk` with a separable loss: the shards cache the scores z = X w and dz = X d."""

    risk: Risk
    w: Array
    d: Array = None
    key: int = field(default_factory=lambda: next(_cursor_keys))
    n_moves: int = 0
    inexactness: float = 0.0
    minorant_offset: float = 0.0
    """How far the cut lies above the tangent of the evaluated loss; it is subtracted from the inexactness."""
    loss: Any = None
    """The loss that is evaluated: by default the loss of the risk."""
    lease: ScoreLease = field(default_factory=ScoreLease)
    """Keeps the cached scores alive while any cursor refers to them."""
    cache_lost: bool = False
    """Whether a shard has lost the cached scores."""
    max_score: float = 0.0
    """The largest absolute score since the scores were last computed from w."""
    scores_recomputed: bool = True
    """Whether the last step recomputed the scores from w."""

    def __post_init__(self) -> None:
        check_point(self.risk.dim, self.w)
        self.loss = self.risk.loss
        self._cache_scores()

    def with_loss(self, loss: Loss) -> Self:
        """A cursor on the same cached scores that evaluates another loss; valid until the next step."""
        other = copy(self)
        other.loss = loss
        return other

    def _cache_scores(self) -> None:
        """Compute and cache the scores of w at all shards; under a new key if cached ones were lost."""
        if self.cache_lost:  # shards raise ShardStateLost for other cursors that use the old key
            self.key, self.lease, self.cache_lost = next(_cursor_keys), ScoreLease(), False
        # a weak reference: when the last cursor of the key is gone, the shards may drop its scores
        _live_leases[self.key] = self.lease
        max_scores = self.risk.executor.map(
            shard_ops.cache_scores, self.key, set(_live_leases), self.risk.linear_map, self.w
        )
        self.max_score = max(max_scores)

    def _update_shards(self, f: Callable[..., Any], *args: Any) -> list[Any]:
        """Change the cached state of all shards; if it was lost, it is rebuilt before the next reduction."""
        try:
            return self.risk.executor.map(f, self.key, *args)
        except ShardStateLost:
            self.cache_lost = True
            return []

    def _reduce_shards(self, f: Callable[..., tuple[Any, ...]], *args: Any) -> tuple[Any, ...]:
        """Sum f over the shards; rebuild the cached scores if a shard was read again and has lost them."""
        for _ in range(MAX_CACHE_REBUILDS):
            if self.cache_lost:
                self._cache_scores()
                # the direction was cached together with the scores
                if self.d is not None:
                    self._update_shards(shard_ops.set_direction, self.risk.linear_map, self.d)
            try:
                return self.risk.executor.sum(f, self.key, *args)
            except ShardStateLost:
                self.cache_lost = True
        raise ShardStateLost(
            f"the scores of a point were lost {MAX_CACHE_REBUILDS} times in a row: check the workers"
        )

    def evaluate_at(self, t: float, b: float) -> tuple[float, float, float]:
        """R(w + t d) with b added to all scores, and its derivatives in t and b."""
        value, slope_t, slope_b = self._reduce_shards(
            shard_ops.value_slopes, self.loss, self.risk.linear_map, t, b
        )
        return value, slope_t, slope_b

    def pull_back(self, t: float, mix: list[tuple[float, float]]) -> tuple[float, Array]:
        """Mixture of the values and gradients at w + t d with shifted scores.

        The pairs (b_k, m_k) of mix are the shifts of the scores and the weights of the mixture.
        """
        sums = self._reduce_shards(shard_ops.pull_back, self.loss, self.risk.linear_map, self.w, t, mix)
        value, grad, rounding, self.minorant_offset = sums
        if getattr(
            self.loss, "shift_invariant", False
        ):  # sums over queries: a shift common to all scores cancels
            rounding += SUM_ROUNDING * self.max_score
        # the cut is value + g'(v - w) + minorant_offset - rounding, so it may lie above the tangent
        self.inexactness = rounding - self.minorant_offset
        return value, grad

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        return self.pull_back(t, [(0.0, 1.0)])

    def set_direction(self, d: Array, slack: float = 0.0) -> None:
        self.d = d
        self._update_shards(shard_ops.set_direction, self.risk.linear_map, d)

    def value_slope(self, t: float) -> tuple[float, float]:
        return self.evaluate_at(t, 0.0)[:2]

    def advance(self, t: float) -> None:
        self.w = self.w + t * self.d
        self.n_moves += 1
        # -1 forces recomputation; otherwise the largest absolute score after the update
        recompute = self.n_moves % RECOMPUTE_SCORES_EVERY == 0
        largest = (
            -1.0 if recompute else max(self._update_shards(shard_ops.advance, t), default=self.max_score)
        )
        self.max_score = max(self.max_score, largest)
        self.scores_recomputed = RECOMPUTE_WHEN_SHRUNK_BY * largest < self.max_score
        # an update z + t dz has the absolute error of its largest operand: the error grows with the number
        # of updates, and does not shrink when the scores do
        if self.scores_recomputed:
            self._cache_scores()


class GatheredCursor(ScoreCursor):
    """A cursor of a `Risk` with a non-decomposable loss: it gathers the scores of all shards locally."""

    def __post_init__(self) -> None:
        check_point(self.risk.dim, self.w)
        self.loss = self.risk.loss
        parts = self.risk.executor.map(shard_ops.scores, self.risk.linear_map, self.w)
        self.z = namespace(parts[0]).concat(parts)
        self.y, self.c = self.risk.labels
        self.ends = np.cumsum([0, *map(len, parts)])
        self.max_score = shard_ops.max_abs(self.z)
        self.dz: Array = None

    def _scores(self, w: Array) -> Array:
        parts = self.risk.executor.map(shard_ops.scores, self.risk.linear_map, w)
        return namespace(parts[0]).concat(parts)

    def _shifted_scores(self, t: float, b: float) -> Array:
        """The scores z + t dz + b."""
        z = self.z + t * self.dz if t else self.z
        return z + b if b else z

    def evaluate_at(self, t: float, b: float) -> tuple[float, float, float]:
        """R(w + t d) with b added to all scores, and its derivatives in t and b."""
        check()
        # d/dt = g'dz and d/db = g'1, for the gradient g in the scores
        value, g = self.loss.value_grad(self._shifted_scores(t, b), self.y, self.c)
        return float(value), 0.0 if self.dz is None else shard_ops.inner(g, self.dz), float(g.sum())

    def pull_back(self, t: float, mix: list[tuple[float, float]]) -> tuple[float, Array]:
        """Mixture of the values and gradients at w + t d with shifted scores."""
        z = self._shifted_scores(t, 0.0)
        value, dz, rounding, self.minorant_offset = shard_ops.mix_tangents(self.loss, z, self.y, self.c, mix)
        rounding += self.risk.summation_error(self.z)
        rounding += shard_ops.cancellation_error(dz, self.z, t * self.dz) if t else 0.0
        self.inexactness = rounding - self.minorant_offset
        # one slice of the gradient per shard
        each = [dz[i:j] for i, j in pairwise(self.ends)]
        (grad,) = self.risk.executor.sum(shard_ops.scatter, self.risk.linear_map, self.w, each=each)
        return value, grad

    def set_direction(self, d: Array, slack: float = 0.0) -> None:
        self.d, self.dz = d, self._scores(d)

    def advance(self, t: float) -> None:
        self.w = self.w + t * self.d
        self.n_moves += 1
        # scores are linear in w: z(w + t d) = z + t dz, without a pass over X
        self.z = self.z + t * self.dz
        # -1 forces recomputation
        largest = shard_ops.max_abs(self.z) if self.n_moves % RECOMPUTE_SCORES_EVERY else -1.0
        self.max_score = max(self.max_score, largest)
        self.scores_recomputed = RECOMPUTE_WHEN_SHRUNK_BY * largest < self.max_score
        if self.scores_recomputed:
            self.z = self._scores(self.w)
            self.max_score = shard_ops.max_abs(self.z)


@dataclass
class OracleCursor:
    """A cursor of any oracle: every evaluation along the line is an oracle call."""

    risk: Oracle
    w: Array
    d: Array = None
    inexactness: float = 0.0
    last_evaluation: tuple[float, float, Array] | None = None
    """The last t, value and gradient: a step usually ends at the last evaluation and then costs no call."""

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        if self.last_evaluation is None or self.last_evaluation[0] != t:
            self.last_evaluation = (t, *self.risk(self.w + t * self.d if t else self.w))
        return self.last_evaluation[1:]

    def set_direction(self, d: Array, slack: float = 0.0) -> None:
        self.d = d

    def value_slope(self, t: float) -> tuple[float, float]:
        value, grad = self.value_grad(t)
        return value, float(grad @ self.d)

    def advance(self, t: float) -> None:
        self.w = self.w + t * self.d
        # the evaluation at t is the evaluation at 0 of the new point
        last = self.last_evaluation
        self.last_evaluation = (0.0, *last[1:]) if last is not None and last[0] == t else None


def cursor_of(risk: Oracle, w: Array) -> Cursor:
    """A cursor of any risk: with cached scores if the risk offers one, else by oracle calls."""
    return risk.cursor(w) if isinstance(risk, HasCursor) else OracleCursor(risk, w)


def local_rows_of(risk: Any, solver: object) -> tuple[Shard, Any, bool]:
    """The rows of a linear risk whose rows are all local, its loss, and whether it has an intercept.

    Raises
    ------
    UnsupportedProblem
        If the risk is of another kind or has remote rows; the message names solvers to use instead.
    """
    inner = getattr(risk, "risk", risk)  # the risk without its profiled intercept
    if not isinstance(inner, Risk) or inner.rows is None or not inner.loss.separable or inner.multi_output:
        raise UnsupportedProblem(
            f"{type(solver).__name__} visits rows or columns of X one by one: it needs a linear_risk whose "
            "rows are all in this process, with one score per row and a loss that is a sum over rows: use "
            "Auto, Bundle or Lbfgs"
        )
    return inner.rows, inner.loss, inner is not risk
