r"""Estimates of the rounding errors of J and of its lower bounds, by the sizes of the terms that cancel.

J is the sum of terms :math:`c_i\, l(z_i, y_i)`, whose scores :math:`z_i = \sum_j x_{ij} w_j` may be small
compared to the products that they are sums of; a bound is :math:`b - \lambda\,\Omega^*(-a / \lambda)`, where
:math:`a = \sum_i c_i u_i x_i` may be small compared to its terms. A relative error of :math:`\epsilon` in
each product changes J by at most :math:`\epsilon \sum_i c_i |u_i| \sum_j |x_{ij}| |w_j|`, and the bound by at
most the same sum at the minimizer of the cut.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.compressed import ROW_RANGE_FORMATS
from riskmin.arrays.devices.foreign import ForeignArray
from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.namespace import namespace
from riskmin.arrays.sequences import Sequences
from riskmin.core import Array, Cut, LinearMap, Matrix, Shard
from riskmin.core.limits import LIMITS
from riskmin.executors.base import QUICK_FUNCTIONS
from riskmin.losses.base import Loss
from riskmin.numerics.precision import sum_rounding
from riskmin.problem.design_operator import gather_rows
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.problem.shard_ops import blocks, product_blocks, rows_per_block, scores

SAMPLED_ROWS = 256
"""So many rows suffice for a mean over rows, of which only the order of magnitude matters."""
SLOPE_SUM_RATIO = 4.0
"""Bound on the sum of a cut's slopes relative to its offset, for losses with margins of about one."""


def rounding_allowance(
    obj: Objective,
    w: Array,
    b: Any,
    cut: Cut,
    preconditioned: tuple[Objective, Array, Any, Cut] | None = None,
) -> tuple[float, float]:
    """Estimate how much rounding may have raised a cut, and how much it may have changed J at w and b.

    A cut that was computed in preconditioned variables is also given in these, with J and w: its slopes have
    the rounding of the centered columns. Its slopes in the scores have a sum of zero up to rounding; a change
    of them of that size makes it exactly zero, and then offsets of the columns cancel.
    """
    # size: the sum of the absolute values of all terms of J and of the cut. First the offset of the cut,
    # the penalty, labels and intercepts, ...
    sizes = _term_sizes(obj, w, b, SLOPE_SUM_RATIO * abs(cut.b))
    size = abs(cut.b) + obj.lam * obj.reg.value(w) + sizes.others
    if obj.reg.halves:
        # a function in feature space is a pair (K beta, beta): its norm is a sum over all of K
        n = len(w) // 2
        size += obj.lam * obj.reg.term_size(w[n:]) + obj.reg.term_size(cut.a[:n]) / obj.lam
    if obj.n_intercepts:  # the constant cuts that cancel its slopes in the intercepts
        size += float(np.max(obj.risk.constant_prediction_cuts.offsets, initial=0.0))  # type: ignore[attr-defined]
    # ... the products c_i u_i x_ij w_j, at w and at the minimizer of the cut
    size += float(sizes.columns @ abs(w))
    unit, columns = sum_rounding(sizes.length), sizes.columns
    if preconditioned is not None:
        obj, v, b, cut = preconditioned
        columns = _term_sizes(obj, v, b, SLOPE_SUM_RATIO * abs(cut.b)).columns
    allowed = unit * size + _bound_change(obj, cut, unit * columns)
    # rows at a kink have slopes in J that are not those of the cut
    value = unit * size / sizes.slope_share
    return (allowed if math.isfinite(allowed) else 0.0), (value if math.isfinite(value) else 0.0)


def lowered_by_scores(obj: Objective, w: Array, cut: Cut) -> Cut:
    """The tangent at a point far from the minimum, less what the rounding of the scores there may have added.

    Slopes of rows may cancel in the gradient, whose product with w then hides the sizes of the scores. The
    errors of the scores do not cancel. Data owners add their own errors.
    """
    risk: Any = obj.risk
    if risk.executor is None or not risk.executor.can_gather:
        return cut
    sizes = _term_sizes(obj, w, 0.0, 1.0)
    error = sum_rounding(sizes.length) * (float(sizes.columns @ abs(w)) + sizes.others)
    return cut._replace(b=cut.b - error)


def value_rounding(obj: Objective, w: Array, b: Any) -> float:
    """A bound on the rounding error of J at w and b, from the slopes of each row near its score.

    The score of a row has an error of at most d_i, a share of sum_j |x_ij w_j| + |b|. The loss is convex, so
    that its slopes are largest at the ends of [z_i - d_i, z_i + d_i]; a loss of several classes is largest
    where all scores but that of the label are too high. Infinite for other losses of several scores, and
    where rows have no loss of their own.
    """
    risk: Any = obj.risk
    known = risk.linear_map is not None and risk.loss.separable and risk.executor.can_gather
    if not known or (risk.multi_output and risk.loss.task != "multiclass"):
        return math.inf
    unit = sum_rounding(_sum_length(risk))
    b = 0.0 if risk.multi_output else float(b)  # several intercepts are entries of w
    parts = risk.executor.map(shard_value_error, risk.loss, risk.linear_map, w, b, unit)
    return float(sum(parts)) + unit * obj.lam * obj.reg.value(w)


def shard_value_error(
    shard: Shard, loss: Loss, linear_map: LinearMap, w: Array, b: float, unit: float
) -> float:
    """A shard's part of `value_rounding`."""
    total = 0.0
    for i, j in blocks(shard, linear_map):
        rows = shard.X.absolute(i, j)
        if rows is None:
            return math.inf
        z, size = linear_map.scores(shard.X, w, i, j) + b, linear_map.of_rows.scores(rows, abs(w), 0, j - i)
        error, y, c = unit * (size + abs(b)), shard.y[i:j], shard.c[i:j]
        xp = namespace(z)
        if z.ndim == 2:  # the worst signs of the errors of a loss of several classes, and the opposite ones
            shift = xp.where(xp.arange(z.shape[1])[None, :] == y[:, None], -error, error)
        else:
            shift = error
        below, above = (abs(loss.value_grad(end, y, c)[1]) for end in (z - shift, z + shift))
        value = abs(loss.value_grad(z, y, c)[0]) + loss.terms(z, y, c)
        total += float((error * xp.maximum(below, above)).sum()) + unit * float(value)
    return total


class TermSizes(NamedTuple):
    """The sizes of the terms of which a cut is the sum."""

    columns: Array
    """sum_i c_i |u_i| |x_ij|, per column."""
    others: float
    """sum_i c_i |u_i| (|b| + |y_i|), and further terms of the loss itself."""
    length: int
    """The length of the longest sums: over rows, or over the entries of a row."""
    slope_share: float = 1.0
    """The bound of the slopes of all rows that was assumed, as a share of their largest possible sum."""


def _bound_change(obj: Objective, cut: Cut, errors: Array) -> float:
    """The offset by which a cut must be lowered for errors of its slopes."""
    reg = obj.reg
    s = reg.scale(cut, obj.lam)
    if not reg.polyhedral:
        # d/da of -lam Omega*(-s a / lam) is s times the minimizer
        return float(errors @ abs(reg.conjugate_grad(-s / obj.lam * cut.a)))
    if s == 0:
        return 0.0
    # the slopes limit the scale s: the bound of the worst slopes within the errors
    worst = Cut(_worst_slopes(obj, cut.a, errors), cut.b)
    return (obj.lower(cut) - obj.lower(worst)) / s


def _worst_slopes(obj: Objective, a: Array, errors: Array) -> Array:
    """The slopes within the errors for which Omega* is largest: away from zero, unless w has one sign."""
    xp, head, reg = namespace(a), a[: len(a) - obj.n_intercepts], obj.reg.penalized_part
    away = xp.where(head < 0, -1.0 + 0.0 * head, 1.0 + 0.0 * head)
    terms = reg.terms(head) if reg.separable else None
    if terms is not None and not terms.unbounded:
        away = xp.where(terms.lower + 0.0 * head >= 0, -xp.abs(away), away)
        away = xp.where(terms.upper + 0.0 * head <= 0, xp.abs(away), away)
    # slopes in unpenalized intercepts are zero by construction
    return xp.concat([head + away * errors[: len(head)], a[len(head) :]])


def _term_sizes(obj: Objective, w: Array, b: Any, slope_sum: float) -> TermSizes:
    """The sums over the rows of a risk; for user-defined risks, the absolute values of the gradient.

    The offset of a cut is the sum of its slopes times margins of about one, so that all slopes together
    are at most a small multiple of it, `slope_sum`.
    """
    risk: Any = obj.risk
    # the intercept is a term of all scores, too
    b = b if risk.intercept.profiled else 0.0
    if risk.linear_map is None:
        return TermSizes(abs(risk(w)[1]), 0.0, len(w))
    slope_sum = min(slope_sum, 1.0) if _has_margins(risk.loss) else 1.0
    if not risk.loss.separable:
        return _gathered_sizes(risk, w, b, slope_sum)
    columns, others = risk.executor.sum(shard_sizes, risk.loss, risk.linear_map, w, b, slope_sum)
    share = 1.0 if risk.loss.smooth else max(slope_sum, sys.float_info.min)
    return TermSizes(columns, float(others), _sum_length(risk), share)


def _sum_length(risk: Risk) -> int:
    """The length of the longest sum: over rows, or over the stored entries of a row."""
    if risk.row_metadata is None:
        return risk.dim
    n = risk.row_metadata.shape[0]
    return max(n, risk.row_metadata.nnz // max(n, 1))


def _has_margins(loss: Loss) -> bool:
    """Whether scores are compared to margins of about one, and not to target values."""
    return loss.task not in (None, "regression") and loss.margin > 0


def _gathered_sizes(risk: Risk, w: Array, b: float, slope_sum: float) -> TermSizes:
    """The sizes for a non-decomposable loss."""
    zs = risk.executor.map(scores, risk.linear_map, w)
    z = namespace(zs[0]).concat(zs)
    y, c = risk.labels
    slopes, others = _slope_sizes(risk.loss, z + b if b else z, b, y, c, slope_sum * risk.max_slopes)
    ends = np.cumsum([0, *map(len, zs)])
    each = [slopes[i:j] for i, j in pairwise(ends)]
    (columns,) = risk.executor.sum(_column_sizes, risk.linear_map, w, each=each)
    return TermSizes(columns, others, _sum_length(risk))


def shard_sizes(
    shard: Shard, loss: Loss, linear_map: LinearMap, w: Array, b: float, slope_sum: float
) -> tuple[Array, float]:
    """The sums over a sample of the rows of a shard, extrapolated by weight to all rows."""
    columns, others, sampled_weight, whole = abs(0.0 * w), 0.0, 0.0, float(shard.c.sum())
    shard = _strided(shard)
    ranges = list(_sampled_blocks(shard, linear_map))
    if len(ranges) > 1 and shard.X.array is not None:
        shard, ranges = _gathered(shard, ranges)
    for i, j in ranges:
        z, c = linear_map.scores(shard.X, w, i, j), shard.c[i:j]
        slopes, extra = _slope_sizes(loss, z + b if b else z, b, shard.y[i:j], c, slope_sum * c)
        others += extra
        columns = columns + _absolute_pullback(shard.X, linear_map, slopes, w, i, j)
        sampled_weight += float(c.sum())
    # scale the sample by weight to all rows of the shard
    factor = whole / sampled_weight if sampled_weight > 0 else 0.0
    return factor * columns, factor * others


QUICK_FUNCTIONS.add(shard_sizes)


def _column_sizes(shard: Shard, linear_map: LinearMap, w: Array, slopes: Array) -> tuple[Array]:
    """sum_i |u_i| |x_ij| over all rows of a shard, per entry of w."""
    parts = [
        _absolute_pullback(shard.X, linear_map, slopes[i:j], w, i, j) for i, j in blocks(shard, linear_map)
    ]
    return (sum(parts[1:], start=parts[0]),)


def _strided(shard: Shard) -> Shard:
    """A shard with every m-th row of an array of another library, of which one block is all rows."""
    if not isinstance(shard.X, ForeignArray):
        return shard
    step = math.prod(shard.X.shape) // LIMITS.sampled_entries
    if step < 2:
        return shard
    step |= 1  # rows may alternate
    # views, without a copy
    X, y, c = (a[::step] for a in (shard.X.X, shard.y, shard.c))
    return Shard(as_matrix(X), y, c, {})


def _gathered(shard: Shard, ranges: list[tuple[int, int]]) -> tuple[Shard, list[tuple[int, int]]]:
    """The rows in some ranges as one block, since each range costs several calls; where they are stored."""
    index = np.concatenate([np.arange(i, j) for i, j in ranges])
    if len(index) * shard.X.shape[1] > 2 * LIMITS.sampled_entries:
        return shard, ranges
    return Shard(as_matrix(gather_rows(shard, index)), shard.y[index], shard.c[index], {}), [(0, len(index))]


def _sampled_entries(entries_per_row: int) -> int:
    """The entries of a sample: of narrow rows, a quarter of the limit, or `SAMPLED_ROWS` of them, suffice."""
    return min(LIMITS.sampled_entries, max(LIMITS.sampled_entries // 4, SAMPLED_ROWS * entries_per_row))


def _sampled_blocks(shard: Shard, linear_map: LinearMap) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about `_sampled_entries` entries in all."""
    # evenly spaced over the shard, since neighboring rows may be alike
    X, n = shard.X, shard.X.shape[0]
    entries, can_be_cut = X.nnz, isinstance(X, (ForeignArray, *ROW_RANGE_FORMATS))
    one_range = not can_be_cut and rows_per_block(X, linear_map.columns) >= n
    sampled = _sampled_entries(entries // max(n, 1))
    if entries <= sampled:
        yield from product_blocks(shard, linear_map)
    elif isinstance(X, Sequences) or one_range:
        # ranges that cannot be cut, such as all rows of a kernel matrix: every m-th of them
        ranges = list(blocks(shard, linear_map))
        yield from ranges[:: max(min(entries // sampled, len(ranges)), 1)]
    else:
        # a large shard is one of many, whose ranges are spread over all rows: each one costs several calls
        large = entries >= LIMITS.shard_entries
        n_ranges = min(1 + entries // (2 * LIMITS.shard_entries) if large else 4, 4, n)
        size = max(sampled * n // (n_ranges * entries), 1)
        yield from ((k * n // n_ranges, min(k * n // n_ranges + size, n)) for k in range(n_ranges))


def _slope_sizes(
    loss: Loss, z: Array, b: float, y: Array, c: Array, max_slopes: Array
) -> tuple[Array, float]:
    """The absolute slopes in the scores, and the sum of the loss's other terms.

    At nonsmooth points, the slopes on either side count: `max_slopes` bounds them.
    """
    xp = namespace(z)
    _, g, _ = loss.offset_tangent(z, y, c)
    g, extra = xp.abs(g), float(loss.terms(z, y, c))
    if z.ndim == 1:
        margins = _has_margins(loss)
        # near nonsmooth points, a cut may have other slopes than the tangent at the point
        if not loss.smooth:
            factor = min(1.0, float(max_slopes.sum()) / (float(g.sum()) or 1.0)) if margins else 1.0
            g = xp.maximum(factor * g, max_slopes)
        if loss.task == "ranking":  # its measures have rounding errors that do not depend on the slopes
            extra += SLOPE_SUM_RATIO * float(max_slopes.sum())
        not_numeric = getattr(y.dtype, "kind", "f") not in "biuf"  # for example of a user-defined loss
        labels = 1.0 if margins or not_numeric else xp.abs(y if y.ndim == 1 else y[:, 0])
        return g, extra + float(xp.sum(g * (labels + abs(b))))
    if y.shape == z.shape:  # squares: where their slopes vanish, so does the effect of rounding
        return g, extra + float(xp.sum(g * xp.abs(y)))
    n, smooth = len(c), loss.smooth
    floor = 0.0 * c if smooth else max_slopes
    # the scores of rows, and the scores that all tokens of chains share
    tokens, shared = xp.maximum(g[:n], floor[:, None] + 0.0 * g[:n]), g[n:] + float(floor.sum())
    # a log-sum-exp loss is a difference of numbers that are as large as the scores
    extra += float((c if smooth else max_slopes) @ (1 + xp.max(xp.abs(z[:n]), axis=1))) + float(
        xp.sum(tokens)
    )
    return xp.concat([tokens, shared]), extra


def _absolute_pullback(X: Matrix, linear_map: LinearMap, slopes: Array, w: Array, i: int, j: int) -> Array:
    """sum_i |u_i| |x_ij|, per entry of w."""
    out = abs(0.0 * w)
    if linear_map.absolute_pullback(X, slopes, out):
        return out
    rows = X.absolute(i, j)
    if rows is None:
        linear_map.pullback(X, slopes, i, j, out)
        return abs(out)
    # the absolute values of centered rows are not known: take those of the rows
    linear_map.of_rows.pullback(rows, slopes, 0, j - i, out)
    return out
