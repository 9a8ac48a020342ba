r"""The risk: the weighted mean of a loss over shards of data, :math:`R(w) = \sum_i c_i\, l(x_i^\top w, y_i)`.

With multi-output losses the scores of a row are a vector, :math:`z_i = W^\top x_i`. The functions that run
on the shards, next to the rows, are in `shard_ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, pairwise
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

import numpy as np

import riskmin.problem.compiled.range_forms  # noqa: F401 (threads share ranges of rows in compiled calls)
from riskmin.arrays.namespace import count_by_index, namespace
from riskmin.arrays.partitioned import RowMetadata
from riskmin.core import Array, Cut, Evaluation, LinearMap, NDArray, Shard, ShardCache, ShardStateLost
from riskmin.core.deadline import check
from riskmin.executors import Executor
from riskmin.executors.forks import fork_safe_lock
from riskmin.linear_maps.linear import WithIntercept
from riskmin.losses.base import Loss, as_loss
from riskmin.numerics.precision import SUM_ROUNDING
from riskmin.problem import shard_ops
from riskmin.problem.certificate import tangent
from riskmin.problem.compiled import device_loops, row_loops
from riskmin.problem.compiled.tracing import TracedLoss, try_trace
from riskmin.problem.explicit_intercepts import ConstantPredictionCuts, optimize_intercepts
from riskmin.problem.intercept import (
    NO_INTERCEPT,
    ExplicitIntercepts,
    Intercept,
    InterceptProfile,
    ProfiledIntercept,
    intercept_of_scores,
)
from riskmin.problem.objective import Cursor, Oracle

MAX_CACHE_REBUILDS = 20
"""Rebuild lost cached scores at most this many times in a row for one reduction before giving up."""
RECOMPUTE_SCORES_EVERY = 32
"""Cached scores are updated in place along a line; recompute them from w after this many steps."""
RECOMPUTE_WHEN_SHRUNK_BY = 8.0
"""Recompute the scores, too, once the largest of them has shrunk by this factor since the last time."""
NO_SHIFT = [(0.0, 1.0)]
"""The mixture of one tangent, without a shift of the scores."""


def check_point(dim: int, w: Array) -> None:
    """Raise unless w is an array of shape (dim,): compiled kernels would read beyond a shorter one."""
    shape = getattr(w, "shape", None)
    if shape != (dim,):
        problem = f"is a {type(w).__name__}" if shape is None else f"has the shape {tuple(shape)}"
        raise ValueError(f"w {problem}, but this risk takes an array of ({dim},): give one number per weight")


# ---------------------------------------------------------------- the risk
_cursor_keys = count()
_live_leases: WeakValueDictionary[int, ScoreLease] = WeakValueDictionary()
"""Keys of the live cursors: shards drop the scores of all others when the next cursor is created."""
_leases_lock = fork_safe_lock()
"""Fits of other threads change `_live_leases` while it is read."""


class ScoreLease:
    """Token shared by all cursors that use the same cached scores; the scores live as long as it does."""


@dataclass(frozen=True)
class Risk(Oracle):
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
    intercept : Intercept
        `NoIntercept`, `ProfiledIntercept`, `ExplicitIntercepts` or `CenteredIntercepts`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, SingleOutput, Risk, Serial, Shard
    >>> from riskmin.arrays.matrix import as_matrix
    >>> shard = Shard(as_matrix(np.eye(2)), np.array([1.0, -1.0]), np.array([0.5, 0.5]), {})
    >>> Risk(Hinge(), SingleOutput(), Serial().place([shard]), dim=2)(np.zeros(2))
    (1.0, array([-0.5,  0.5]))
    """

    loss: Loss = field()
    linear_map: LinearMap = field()
    executor: Executor = field()
    dim: int = field()
    rows: Shard | None = field(default=None, repr=False, compare=False)
    row_metadata: RowMetadata | None = field(default=None, repr=False, compare=False)
    intercept: Intercept = NO_INTERCEPT
    compiled_losses: ShardCache = field(default_factory=ShardCache, init=False, repr=False, compare=False)
    """Which traced losses agree with their array code."""
    COMPILE_FROM_ENTRIES: ClassVar[int] = 2**22
    """Losses of risks with at least this many stored entries are compiled; a pass over fewer takes 5 ms."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", as_loss(self.loss))
        if self.row_metadata is None and self.rows is not None:
            object.__setattr__(self, "row_metadata", RowMetadata.from_rows(*self.rows[:3]))
        if self.intercept.profiled and self.multi_output:
            raise ValueError(
                f"{type(self.loss).__name__} has several scores per row, and one intercept is for one "
                "score: use linear_risk(..., fit_intercept=True), which adds one intercept per score"
            )

    @cached_property
    def labels(self) -> tuple[Array, Array]:
        """Labels and weights of all rows; gathered once from the shards if they are not stored locally."""
        if self.row_metadata is not None:
            return self.row_metadata.y, self.row_metadata.c
        ys, cs = zip(*self.executor.map(shard_ops.labels), strict=True)
        xp = namespace(ys[0])
        return xp.concat(ys), xp.concat(cs)

    @cached_property
    def _single_pass(self) -> bool:
        """Whether one pass over X evaluates the risk, with no error but rounding relative to its value."""
        return (
            self.loss.separable
            and not self.intercept.profiled
            # a shift of all scores of a query cancels, but not its rounding error
            and not self.loss.shift_invariant
            and not self.loss.has_offset
        )

    @cached_property
    def dot(self) -> Callable[[Array, Array], float] | None:
        """The inner product of gradients and points, if it is not that of their entries."""
        return self.linear_map.dot

    def evaluate(self, w: Array) -> Evaluation:
        """R(w), a subgradient and a cut."""
        if self._single_pass:
            check_point(self.dim, w)
            value, grad = self.executor.sum(
                shard_ops.value_grad, self.compiled(self.loss), self.linear_map, w
            )
            return tangent(w, value, grad, 0.0, self.dot)
        return self.cursor(w).evaluate()

    def compiled(self, loss: Loss) -> Loss | TracedLoss:
        """A loss in the form that the shards evaluate: traced and compiled for large problems, if it can be.

        This depends on the data and the loss alone, so that all executors give the same bits.
        """
        loops = self._compiled_loops
        if loops is None:
            return loss
        traced = try_trace(loss)
        if traced is None:
            return loss
        # equal losses have the same trace: it is compared with the array code once
        known: dict[TracedLoss, bool] = self.compiled_losses.setdefault("agree", {})
        if traced not in known:
            known[traced] = loops.agrees_with_array_code(traced, *self.labels)
        return traced if known[traced] else loss

    @property
    def _compiled_loops(self) -> Any:
        """The module of compiled loops, if compiling a loss pays: many rows, with one score each; else None.

        The rows may be local or remote in NumPy's arrays, or on a GPU. It is not cached: a module cannot be
        copied, and a risk can.
        """
        data = self.row_metadata
        if (
            data is None
            or data.nnz < self.COMPILE_FROM_ENTRIES
            or self.multi_output
            or not self.loss.separable
            or not self.executor.compiles_losses
            or self.linear_map.columns != 1
            or self.linear_map.shared
        ):
            return None
        y: Any = data.y
        if data.on_gpu:
            return device_loops if y.ndim == 1 else None
        usable = isinstance(y, np.ndarray) and y.ndim == 1 and y.dtype.kind in "biuf"
        return row_loops if usable else None

    @property
    def reads_once(self) -> bool:  # type: ignore[override]
        """Whether a call takes one read of X, on a GPU."""
        if not self._single_pass or self._compiled_loops is not device_loops:
            return False
        return self.row_metadata is not None and self.row_metadata.one_pass

    # ------------------------------------------------------------ intercepts
    def at_best_intercept(self, w: Array, near: float | None = None) -> tuple[float, Any, Cut | None]:
        """R(w), the intercept at which the risk has this value, and a cut if it takes no further pass.

        `near` is an intercept near the best one. Where a loss of single rows is piecewise linear, an interval
        of b may be best: then b is its midpoint. The scores of all rows are gathered, 8 bytes each.
        """
        if not self.intercept.profiled:
            # compiled losses and data owners return gradients with the value
            alone = self._single_pass and self._compiled_loops is None and self.executor.can_gather
            value, _, cut = (self._value(w), None, None) if alone else self.evaluate(w)
            return value, self.intercept.of_means(self.linear_map, w), cut
        if not self.executor.can_gather:
            cursor: Any = self.cursor(w)  # its search refers to it weakly
            cursor.profile.b = near or 0.0
            evaluation = cursor.evaluate()
            return evaluation.value, cursor.profile.best.x, evaluation.cut
        check_point(self.dim, w)
        zs = self.executor.map(shard_ops.scores, self.linear_map, w)
        z = zs[0] if len(zs) == 1 else namespace(zs[0]).concat(zs)
        b, value = intercept_of_scores(self.loss, z, *self.labels, near or 0.0)
        return value, b, None

    def _value(self, w: Array) -> float:
        check_point(self.dim, w)
        return float(self.executor.sum(shard_ops.value, self.loss, self.linear_map, w)[0])

    def best_intercept(self, w: Array) -> Any:
        """The best intercept for w, see `at_best_intercept`; 0.0 if b is part of w, or not fitted."""
        if self.intercept.profiled:
            return self.at_best_intercept(w)[1]
        return self.intercept.of_means(self.linear_map, w)

    def with_zero_intercept(self) -> Risk:
        """The risk with b = 0 in place of the best intercept; itself if b is not minimized out."""
        return replace(self, intercept=NO_INTERCEPT) if self.intercept.profiled else self

    def threshold(self, w: Array) -> float:
        """The minimizing t of a loss `Nu`: the width of the tube, or 1 minus the margin."""
        # t at the scores z + b, for the minimizing b
        cursor, b = GatheredCursor(self, w), self.best_intercept(w)
        return float(self.loss.threshold(cursor.z + b, cursor.y, cursor.c))  # type: ignore[attr-defined]

    @cached_property
    def constant_prediction_cuts(self) -> ConstantPredictionCuts:
        """The cuts that are known beforehand if there are explicit intercepts: one pass over X."""
        return ConstantPredictionCuts.from_risk(self)

    def project_out_intercepts(self, cut: Cut) -> Cut:
        return self.constant_prediction_cuts.project_out(cut) if self.n_intercepts else cut

    # ------------------------------------------------------------ non-decomposable losses
    @cached_property
    def max_slopes(self) -> Array:
        """Upper bounds of |dl/dz_i| for a loss that averages over pairs of labels, weighted c_i c_j.

        They are no less than `max_slope` times c_i, which bounds those of losses of rows.
        """
        y, c = self.labels
        c = self.loss.max_slope * c if self.loss.max_slope != 1 else c
        if y.ndim > 1:
            return c
        # row i is in pairs of total weight c_i (1 - weight of its class); all pairs of different
        # classes have the total weight (1 - sum_k class_weight_k^2) / 2, by which the loss is divided
        classes, class_of_row = namespace(y).unique_inverse(y)
        class_weights = count_by_index(class_of_row.reshape(-1), c, len(classes))
        pair_weight = 0.5 * (1 - float(class_weights @ class_weights))
        return c * (1 - class_weights[class_of_row]) / pair_weight if pair_weight > 0 else c

    def summation_error(self, z: Array) -> float:
        """Bound on the rounding error of a cut where its slopes vanish: they are sums over rows."""
        # sum_i SUM_ROUNDING max_slopes_i max_j |z_ij|
        sizes = abs(z) if z.ndim == 1 else namespace(z).max(abs(z), axis=1)
        return SUM_ROUNDING * float(self.max_slopes @ sizes)

    @property
    def multi_output(self) -> bool:
        """Whether scores are two-dimensional, (n, k): also with k = 1, for losses that may have more."""
        return self.loss.multi_output or self.linear_map.columns > 1

    def cursor(self, w: Array) -> ScoreCursor:
        """A cursor at w that keeps its scores at the shards."""
        return ScoreCursor(self, w) if self.loss.separable else GatheredCursor(self, w)


def with_intercept(risk: Risk) -> Risk:
    """The risk with an unpenalized intercept; one per output, as entries of w, if it has several outputs.

    A loss with ``shift_invariant = True`` does not depend on the intercept: the risk is returned as it is.
    """
    loss: Any = risk.loss
    if risk.multi_output:
        if not loss.has_constant_cuts:
            raise ValueError(
                f"{type(loss).__name__} has no method for intercepts: fit without, or add a column of ones"
            )
        linear_map: Any = WithIntercept(risk.linear_map)
        k = linear_map.columns
        return replace(risk, linear_map=linear_map, dim=risk.dim + k, intercept=ExplicitIntercepts(k))
    if loss.shift_invariant:
        return risk
    if loss.fixed_positive_count:
        raise ValueError(
            f"{type(loss).__name__} fixes how many rows are positive, so it has no best intercept: "
            "fit without one"
        )
    return replace(risk, intercept=ProfiledIntercept())


@dataclass
class ScoreCursor(Cursor):
    """A point of a `Risk` with a separable loss: the shards cache the scores z = X w and dz = X d."""

    risk: Risk
    w: Array
    d: Array = None
    key: int = field(default_factory=lambda: next(_cursor_keys))
    n_moves: int = 0
    loss: Any = None
    """The loss that is evaluated: by default the loss of the risk."""
    profile: InterceptProfile | None = None
    """The search for a profiled intercept."""
    intercept_inverse_hessian: NDArray | None = None
    """Estimate of the inverse of the Hessian in explicit intercepts."""
    last_evaluation: tuple[Array, Evaluation] | None = None
    """The last w that was evaluated, and its evaluation."""
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
        self.shift_invariant = self.loss.shift_invariant
        self.profile = InterceptProfile(self) if self.risk.intercept.profiled else None
        self._cache_scores()

    def with_loss(self, loss: Loss) -> Self:
        """A cursor on the same cached scores that evaluates another loss; valid until the next step."""
        other = copy(self)
        other.loss, other.last_evaluation = loss, None
        # the intercept minimizes the other loss
        other.profile = InterceptProfile(other) if self.risk.intercept.profiled else None
        return other

    def _cache_scores(self) -> None:
        """Compute and cache the scores of w at all shards; under a new key if cached ones were lost."""
        if self.cache_lost:  # shards raise ShardStateLost for other cursors that use the old key
            self.key, self.lease, self.cache_lost = next(_cursor_keys), ScoreLease(), False
        # a weak reference: when the last cursor of the key is gone, the shards may drop its scores
        with _leases_lock:
            _live_leases[self.key] = self.lease
            live = set(_live_leases)
        max_scores = self.risk.executor.map(
            shard_ops.cache_scores, self.key, live, self.risk.linear_map, self.w
        )
        self.max_score = max(max_scores)

    def update_shards(self, f: Callable[..., Any], *args: Any) -> list[Any]:
        """Change the cached state of all shards; if it was lost, it is rebuilt before the next reduction."""
        try:
            return self.risk.executor.map(f, self.key, *args)
        except ShardStateLost:
            self.cache_lost = True
            return []

    def reduce_shards(self, f: Callable[..., tuple[Any, ...]], *args: Any) -> tuple[Any, ...]:
        """Sum f over the shards; rebuild the cached scores if a shard was read again and has lost them."""
        for _ in range(MAX_CACHE_REBUILDS):
            if self.cache_lost:
                self._cache_scores()
                # the direction was cached together with the scores
                if self.d is not None:
                    self.update_shards(shard_ops.set_direction, self.risk.linear_map, self.d)
            try:
                return self.risk.executor.sum(f, self.key, *args)
            except ShardStateLost:
                self.cache_lost = True
        raise ShardStateLost(
            f"the scores of a point were lost {MAX_CACHE_REBUILDS} times in a row: check the workers"
        )

    def evaluate_at(self, t: float, b: float) -> tuple[float, float, float]:
        """R(w + t d) with b added to all scores, and its derivatives in t and b."""
        value, slope_t, slope_b = self.reduce_shards(
            shard_ops.value_slopes, self.risk.compiled(self.loss), self.risk.linear_map, t, b
        )
        return value, slope_t, slope_b

    def pull_back(self, t: float, mix: list[tuple[float, float]]) -> tuple[float, Array, float]:
        """Mixture of the values and gradients at w + t d with shifted scores, and the error of its cut.

        The pairs (b_k, m_k) of mix are the shifts of the scores and the weights of the mixture. The error is
        rounding, less the minorant offset: the cut of a smoothed loss may lie above the tangent.
        """
        value, grad, rounding, offset = self.reduce_shards(
            shard_ops.pull_back, self.risk.compiled(self.loss), self.risk.linear_map, self.w, t, mix
        )
        if self.shift_invariant:  # sums over queries: a shift common to all scores cancels
            rounding += SUM_ROUNDING * self.max_score
        return value, grad, rounding - offset

    def evaluate(self, t: float = 0.0) -> Evaluation:
        if self.profile is None:
            value, grad, error = self.pull_back(t, NO_SHIFT)
        else:
            value, gap, mix = self.profile.mixture(t)
            _, grad, error = self.pull_back(t, mix)
            error += gap
        w = self.point(t)
        evaluation = tangent(w, value, grad, error, self.risk.dot)
        self.last_evaluation = w, evaluation
        return evaluation

    def set_direction(self, d: Array, slack: float = 0.0) -> None:
        bracket = self.profile.tangents(0.0) if self.profile is not None else None
        super().set_direction(d)
        self._set_score_direction(d)
        if bracket is not None:
            self.profile.set_direction(bracket, slack)  # type: ignore[union-attr]

    def _set_score_direction(self, d: Array) -> None:
        self.update_shards(shard_ops.set_direction, self.risk.linear_map, d)

    def value_slope(self, t: float) -> tuple[float, float]:
        return self.evaluate_at(t, 0.0)[:2] if self.profile is None else self.profile.value_slope(t)

    @property
    def points_at_a_time(self) -> int:
        """16 by kernels of a GPU, unless an intercept is minimized out at each point."""
        rows = self.risk.row_metadata
        traced = self.profile is None and isinstance(self.risk.compiled(self.loss), TracedLoss)
        return 16 if traced and rows is not None and rows.on_gpu else 1

    def value_slopes(self, points: Array) -> list[tuple[float, float]]:
        if self.profile is not None:
            return super().value_slopes(points)
        loss = self.risk.compiled(self.loss)
        (found,) = self.reduce_shards(shard_ops.cached_line_values, loss, points)
        return [(value, slope) for value, slope in found.tolist()]

    def advance(self, t: float) -> None:
        bracket = self.profile.tangents(t) if self.profile is not None else None
        super().advance(t)
        self.n_moves += 1
        # -1 forces recomputation; otherwise the largest absolute score after the update
        largest = self._advance_scores(t) if self.n_moves % RECOMPUTE_SCORES_EVERY else -1.0
        self.max_score = max(self.max_score, largest)
        # an update z + t dz has the absolute error of its largest operand: the error grows with the number
        # of updates, and does not shrink when the scores do
        self.scores_recomputed = RECOMPUTE_WHEN_SHRUNK_BY * largest < self.max_score
        if self.scores_recomputed:
            self._cache_scores()
        if bracket is not None:
            self.profile.advance(bracket, self.scores_recomputed)  # type: ignore[union-attr]

    def _advance_scores(self, t: float) -> float:
        """Step to the scores z + t dz, without a pass over X; return the largest absolute score."""
        return max(self.update_shards(shard_ops.advance, self.risk.linear_map, t), default=self.max_score)

    def optimize_intercepts(self) -> None:
        if self.risk.n_intercepts:
            optimize_intercepts(self)


class GatheredCursor(ScoreCursor):
    """A cursor of a `Risk` with a non-decomposable loss: it gathers the scores of all shards locally."""

    dz: Array = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.y, self.c = self.risk.labels

    def _cache_scores(self) -> None:
        parts = self.risk.executor.map(shard_ops.scores, self.risk.linear_map, self.w)
        self.z = namespace(parts[0]).concat(parts)
        # the rows of shard k are ends[k] to ends[k + 1]
        self.ends = np.cumsum([0, *map(len, parts)])
        self.max_score = shard_ops.max_abs(self.z)

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

    def pull_back(self, t: float, mix: list[tuple[float, float]]) -> tuple[float, Array, float]:
        z = self._shifted_scores(t, 0.0)
        value, dz, rounding, offset = shard_ops.mix_tangents(self.loss, z, self.y, self.c, mix)
        rounding += self.risk.summation_error(self.z)
        rounding += shard_ops.cancellation_error(dz, self.z, t * self.dz) if t else 0.0
        # one derivative per row is sent to the shards, 8 bytes each
        each = [dz[i:j] for i, j in pairwise(self.ends)]
        (grad,) = self.risk.executor.sum(shard_ops.scatter, self.risk.linear_map, self.w, each=each)
        return value, grad, rounding - offset

    def _set_score_direction(self, d: Array) -> None:
        parts = self.risk.executor.map(shard_ops.scores, self.risk.linear_map, d)
        self.dz = namespace(parts[0]).concat(parts)

    def _advance_scores(self, t: float) -> float:
        self.z = self.z + t * self.dz
        return shard_ops.max_abs(self.z)
