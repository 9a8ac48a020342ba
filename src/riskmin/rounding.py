r"""How much rounding may have added to a bound: so many units in the last place of what cancels in it.

J is the sum of terms :math:`c_i\, l(z_i, y_i)`, whose scores :math:`z_i = \sum_j x_{ij} w_j` may be small
beside the products that they are sums of; a bound is :math:`b - \lambda\,\Omega^*(-a / \lambda)`, of which
:math:`a = \sum_i c_i u_i x_i` may be small beside its terms. A relative error of :math:`\epsilon` in each
product moves either by no more than :math:`\epsilon \sum_i c_i |u_i| \sum_j |x_{ij}| |w_j|` and the like.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from riskmin.adaptive import Adaptive
from riskmin.arrays import namespace
from riskmin.intercept import Profiled
from riskmin.matrices import Columns, Csc, Csr, Dense, Plain, Wide
from riskmin.objective import Objective
from riskmin.regularizers import penalized
from riskmin.risk import Risk
from riskmin.rkhs import Rkhs, RkhsNorm
from riskmin.sequences import Sequences
from riskmin.shards import blocks, scores, tangent
from riskmin.types import Array, Cut, Loss, Scorer, Shard

EPSILON = 2.0**-52
FEW = 4.0
"""Units in the last place that each term of a sum may be off by."""
SHARE = 0.25
"""Of the root of their number: by how many more sums may be off, since most errors cancel."""
MULTIPLE = 4.0
"""The slopes of a cut add up to no more than this multiple of its offset, where margins are about one."""
ENOUGH = 2**16
"""Sizes are means over rows: so many numbers of a shard tell them."""
ROUGHLY = 1e-12
"""What is allowed of a cut and of J where there is no time to look at more."""


def allowance(obj: Objective, w: Array, cut: Cut) -> float:
    """By how much rounding may have lifted a cut, and J at w.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Objective, linear_risk
    >>> X, y = np.array([[1.0, 1.0], [-1.0, 1.0]]), np.array([1.0, -1.0])
    >>> J, near, far = Objective(linear_risk(X, y, "hinge"), L2(), 0.1), np.ones(2), np.array([1.0, 1e9])
    >>> allowance(J, near, J.cut(near)) < 1e-13 < allowance(J, far, J.cut(far))
    True
    """
    sums = _of_risk(obj, w, MULTIPLE * abs(cut.b))
    size = abs(cut.b) + obj.lam * obj.reg.value(w) + sums.others
    if isinstance(obj.reg, RkhsNorm):
        n = len(w) // 2
        size += obj.lam * obj.reg.terms_of(w[n:]) + obj.reg.terms_of(cut.a[:n]) / obj.lam
    if obj.balances:  # slopes in intercepts that should vanish are mixed away with these
        size += float(np.max(obj.risk.constants.offsets, initial=0.0))  # type: ignore[attr-defined]
    size += float(sums.columns @ abs(w)) + _at_minimizer(obj, cut, sums.columns)
    found = EPSILON * (FEW + SHARE * math.sqrt(sums.length)) * size
    return found if math.isfinite(found) else 0.0


class Sums(NamedTuple):
    """The sizes of what a cut is made of."""

    columns: Array
    """sum_i c_i |u_i| |x_ij|, by column."""
    others: float
    """sum_i c_i |u_i| (|b| + |y_i|), and what losses add of their own."""
    length: int
    """Of the longest sums: over rows, or over the numbers of a row."""


def _at_minimizer(obj: Objective, cut: Cut, columns: Array) -> float:
    """What errors in the slope of a cut make of its bound: the slope of the bound is the cut's minimizer."""
    reg, xp = obj.reg, namespace(cut.a)
    s = reg.scale(cut, obj.lam)
    if not getattr(reg, "polyhedral", False):
        return float(columns @ abs(reg.conjugate_grad(-s / obj.lam * cut.a)))
    # the bound is in proportion to how much the largest slopes have to be shrunk
    far = max(s * cut.b, 0.0) / obj.lam
    each = columns / _absolute(penalized(reg), columns, obj.n_intercepts)
    largest = abs(cut.a) >= 0.5 * float(xp.max(abs(cut.a)))
    return far * float(xp.max(xp.where(largest, each, 0.0 * each)))


def _absolute(reg: Any, w: Array, tail: int) -> Array:
    """The weights of absolute values in a regularizer, one per entry of w; 1 where there is none."""
    head, ones, terms = w[: len(w) - tail], 1.0 + 0.0 * w, getattr(reg, "terms", None)
    found = ones if terms is None else namespace(w).concat([terms(head).absolute + 0.0 * head, ones[:tail]])
    return namespace(w).where(found > 0, found, ones)


def _of_risk(obj: Objective, w: Array, mass: float) -> Sums:
    """The sums over the rows of a risk; of one of the user's own, what its gradient tells.

    The offset of a cut is the sum of its slopes by margins of about one: all together, they are no more than
    a small multiple of that, the `mass`.
    """
    risk: Any = obj.risk
    b = 0.0
    if isinstance(risk, Profiled):
        known = risk.remembered(w)
        b, risk = risk.cursor(w).b if known is None else known[0], risk.risk
    elif isinstance(risk, Adaptive):
        b, risk = risk.intercept(w), risk.risk
    if not isinstance(risk, Risk):
        return Sums(abs(risk(w)[1]), 0.0, len(w))
    mass = min(mass, 1.0) if _of_margins(risk.loss) else 1.0
    if not risk.loss.separable:
        return _gathered(risk, w, b, mass)
    columns, others = risk.executor.sum(_sums, risk.loss, risk.scorer, w, b, mass)
    return Sums(columns, float(others), _length(risk))


def _length(risk: Risk) -> int:
    if risk.table is None:
        return risk.dim
    n = risk.table.shape[0]
    return max(n, risk.table.numbers // max(n, 1))


def _of_margins(loss: Any) -> bool:
    """Whether scores are compared to margins of about one, and not to numbers."""
    return getattr(loss, "task", "regression") != "regression" and getattr(loss, "margin", 1.0) > 0


def _gathered(risk: Risk, w: Array, b: float, mass: float) -> Sums:
    """Those of a loss that is no sum over rows."""
    zs = risk.executor.map(scores, risk.scorer, w)
    z = namespace(zs[0]).concat(zs)
    y, c = risk.labels
    slopes, others = _slopes(risk.loss, z + b if b else z, b, y, c, mass * risk.steepest)
    ends = np.cumsum([0, *map(len, zs)])
    each = [slopes[i:j] for i, j in pairwise(ends)]
    (columns,) = risk.executor.sum(_pulled, risk.scorer, w, each=each)
    return Sums(columns, others, _length(risk))


def _sums(shard: Shard, loss: Loss, scorer: Scorer, w: Array, b: float, mass: float) -> tuple[Array, float]:
    """The sums over some of the rows of a shard, as if they were all."""
    columns, others, seen = abs(0.0 * w), 0.0, 0.0
    for i, j in _some(shard, scorer):
        z, c = scorer.scores(shard.X, w, i, j), shard.c[i:j]
        slopes, more = _slopes(loss, z + b if b else z, b, shard.y[i:j], c, mass * c)
        others += more
        columns = columns + _pull(shard.X, scorer, slopes, w, i, j)
        seen += float(c.sum())
    part = float(shard.c.sum()) / seen if seen > 0 else 0.0
    return part * columns, part * others


def _pulled(shard: Shard, scorer: Scorer, w: Array, slopes: Array) -> tuple[Array]:
    parts = [_pull(shard.X, scorer, slopes[i:j], w, i, j) for i, j in blocks(shard, scorer)]
    return (sum(parts[1:], start=parts[0]),)


def _some(shard: Shard, scorer: Scorer) -> Iterator[tuple[int, int]]:
    """Every so many-th of the ranges of rows."""
    ranges = list(blocks(shard, scorer))
    n, p = shard.X.shape
    numbers = getattr(getattr(shard.X, "data", None), "size", n * p)
    yield from ranges[:: max(min(int(numbers) // ENOUGH, len(ranges)), 1)]


def _slopes(loss: Any, z: Array, b: float, y: Array, c: Array, kinks: Array) -> tuple[Array, float]:
    """The sizes of slopes in the scores; of a loss with kinks, those on either side. And the other terms."""
    xp = namespace(z)
    _, g, *_ = tangent(loss, z, y, c)
    g, own = xp.abs(g), getattr(loss, "terms", None)
    more = 0.0 if own is None else float(own(z, y, c))
    if z.ndim == 1:
        margins = _of_margins(loss)
        if not getattr(loss, "smooth", False):  # at kinks, the slopes of cuts are others than those of points
            part = min(1.0, float(kinks.sum()) / (float(g.sum()) or 1.0)) if margins else 1.0
            g = xp.maximum(part * g, kinks)
        if y.ndim > 1:  # measures of rankings are rounded themselves, whatever the slopes are
            more += MULTIPLE * float(kinks.sum())
        words = getattr(y.dtype, "kind", "f") not in "biuf"  # those of a loss of the user's own, say
        labels = 1.0 if margins or words else xp.abs(y)
        return g, more + float(xp.sum(g * (labels + abs(b))))
    if y.shape == z.shape:  # squares: where their slopes vanish, so does what rounding makes of them
        return g, more + float(xp.sum(g * xp.abs(y)))
    n, smooth = len(c), getattr(loss, "smooth", False)
    least = 0.0 * c if smooth else kinks
    tokens, shared = xp.maximum(g[:n], least[:, None] + 0.0 * g[:n]), g[n:] + float(least.sum())
    # logarithms of sums of exponentials are differences of numbers as large as scores, however small
    more += float((c if smooth else kinks) @ (1 + xp.max(xp.abs(z[:n]), axis=1))) + float(xp.sum(tokens))
    return xp.concat([tokens, shared]), more


def _pull(X: Any, scorer: Any, slopes: Array, w: Array, i: int, j: int) -> Array:
    """sum_i |u_i| |x_ij|, in the places of w."""
    out = abs(0.0 * w)
    if isinstance(scorer, Rkhs):  # all of its rows at once
        n = X.shape[0]
        out[n:] = X.sizes(slopes)
        return out
    rows = absolute(X, i, j)
    if rows is None:
        scorer.pullback(X, slopes, i, j, out)
        return abs(out)
    inner = scorer.inner if hasattr(scorer, "mean") else scorer
    inner.pullback(rows, slopes, 0, j - i, out)
    return out


def absolute(X: Any, i: int, j: int) -> Any:
    """A range of rows with absolute values for numbers; None of a matrix of one's own.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import as_matrix
    >>> absolute(as_matrix(np.array([[-1.0, 2.0], [3.0, -4.0]])), 1, 2).X.tolist()
    [[3.0, 4.0]]
    """
    if isinstance(X, Wide):
        X = X.csr
    if isinstance(X, (Dense, Plain)):
        return replace(X, X=abs(X.X[i:j]))
    if isinstance(X, Columns):
        return Columns(abs(X.T[:, i:j]))
    if isinstance(X, Csr):
        rows = X.rows(i, j)
        return replace(rows, data=abs(rows.data))
    if isinstance(X, Csc):
        return replace(X, data=abs(X.data))
    if isinstance(X, Sequences):
        part = X.rows(i, j)
        tokens = absolute(part.tokens, 0, part.shape[0])
        return None if tokens is None else replace(part, tokens=tokens)
    return None
