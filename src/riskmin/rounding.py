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
from riskmin.rkhs import Rkhs
from riskmin.sequences import Sequences
from riskmin.shards import blocks, scores, tangent
from riskmin.types import Array, Cut, Loss, Scorer, Shard

UNITS = 2.0**-47
"""What each term of a sum may be off by, relative to its size: a few units in the last place."""
ENOUGH = 2**16
"""Sizes are means over rows: so many numbers of a shard tell them."""


def allowance(obj: Objective, w: Array, cut: Cut, start: float) -> float:
    """By how much rounding may have lifted a cut, and J at w; `start` is the first J.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Objective, linear_risk
    >>> X, y = np.array([[1.0, 1.0], [-1.0, 1.0]]), np.array([1.0, -1.0])
    >>> J, near, far = Objective(linear_risk(X, y, "hinge"), L2(), 0.1), np.ones(2), np.array([1.0, 1e9])
    >>> allowance(J, near, J.cut(near), 1.0) < 1e-13 < allowance(J, far, J.cut(far), 1.0)
    True
    """
    sums = _of_risk(obj, w, abs(cut.b) + start)
    size = start + abs(cut.b) + obj.lam * obj.reg.value(w) + sums.others
    size += float(sums.columns @ abs(w)) + _at_minimizer(obj, cut, sums.columns)
    return UNITS * size if math.isfinite(size) else 0.0


class Sums(NamedTuple):
    """The sizes of what a cut is made of."""

    columns: Array
    """sum_i c_i |u_i| |x_ij|, by column."""
    others: float
    """sum_i c_i |u_i| (|b| + |y_i|), and what losses add of their own."""


def _at_minimizer(obj: Objective, cut: Cut, columns: Array) -> float:
    """What errors in the slope of a cut make of its bound: the slope of the bound is the cut's minimizer."""
    reg, xp = obj.reg, namespace(cut.a)
    s = reg.scale(cut, obj.lam)
    if not getattr(reg, "polyhedral", False):
        return float(columns @ abs(reg.conjugate_grad(-s / obj.lam * cut.a)))
    # the bound is in proportion to how much the largest slopes have to be shrunk
    far = max(s * cut.b, 0.0) / obj.lam
    each = columns / (by_feature(penalized(reg), columns) + 0.0 * columns)
    largest = abs(cut.a) >= 0.5 * float(xp.max(abs(cut.a)))
    return far * float(xp.max(xp.where(largest, each, 0.0 * each)))


def by_feature(reg: Any, w: Array) -> Any:
    """The weights of absolute values in a regularizer."""
    terms = getattr(reg, "terms", None)
    found = 1.0 if terms is None else terms(w).absolute
    return namespace(w).where(found > 0, found, 1.0 + 0.0 * w) if np.ndim(found) else found or 1.0


def _of_risk(obj: Objective, w: Array, mass: float) -> Sums:
    """The sums over the rows of a risk; of one of the user's own, what its gradient tells.

    The offset of a cut is the sum of its slopes by the margins, so no more than `mass` are those.
    """
    risk: Any = obj.risk
    b = 0.0
    if isinstance(risk, Profiled):
        known = risk.remembered(w)
        b, risk = risk.cursor(w).b if known is None else known[0], risk.risk
    elif isinstance(risk, Adaptive):
        b, risk = risk.intercept(w), risk.risk
    if not isinstance(risk, Risk):
        return Sums(abs(risk(w)[1]), 0.0)
    mass = min(mass, 1.0) if _of_margins(risk.loss) else 1.0
    if not risk.loss.separable:
        return _gathered(risk, w, b, mass)
    columns, others = risk.executor.sum(_sums, risk.loss, risk.scorer, w, b, mass)
    return Sums(columns, float(others))


def _of_margins(loss: Any) -> bool:
    """Whether scores are compared to margins of about one, and not to numbers."""
    return getattr(loss, "task", "regression") != "regression" and getattr(loss, "margin", 1.0) > 0


def _gathered(risk: Risk, w: Array, b: float, mass: float) -> Sums:
    """Those of a loss that is no sum over rows."""
    zs = risk.executor.map(scores, risk.scorer, w)
    z = namespace(zs[0]).concat(zs)
    slopes, others = _slopes(risk.loss, z + b if b else z, b, *risk.labels, mass)
    ends = np.cumsum([0, *map(len, zs)])
    each = [slopes[i:j] for i, j in pairwise(ends)]
    (columns,) = risk.executor.sum(_pulled, risk.scorer, w, each=each)
    return Sums(columns, others)


def _sums(shard: Shard, loss: Loss, scorer: Scorer, w: Array, b: float, mass: float) -> tuple[Array, float]:
    """The sums over some of the rows of a shard, as if they were all."""
    columns, others, seen = abs(0.0 * w), 0.0, 0.0
    for i, j in _some(shard, scorer):
        z, c = scorer.scores(shard.X, w, i, j), shard.c[i:j]
        slopes, more = _slopes(loss, z + b if b else z, b, shard.y[i:j], c, mass)
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


def _slopes(loss: Any, z: Array, b: float, y: Array, c: Array, mass: float) -> tuple[Array, float]:
    """The sizes of slopes in the scores; of a loss with kinks, those on either side. And the other terms."""
    xp = namespace(z)
    _, g, *_ = tangent(loss, z, y, c)
    g, own = xp.abs(g), getattr(loss, "terms", None)
    more = 0.0 if own is None else float(own(z, y, c))
    if z.ndim == 1:
        g = g if getattr(loss, "smooth", False) else xp.maximum(g, mass * c)
        labels = xp.abs(y) if y.ndim == 1 and getattr(y.dtype, "kind", "f") == "f" else 1.0
        return g, more + float(xp.sum(g * (labels + abs(b))))
    if y.shape == z.shape:  # squares: where their slopes vanish, so does what rounding makes of them
        return g, more + float(xp.sum(g * xp.abs(y)))
    n, c = len(c), mass * c
    tokens, shared = xp.maximum(g[:n], c[:, None] + 0.0 * g[:n]), g[n:] + float(c.sum())
    more += float(c @ (1 + xp.max(xp.abs(z[:n]), axis=1))) + float(xp.sum(tokens))
    return xp.concat([tokens, shared]), more


def _pull(X: Any, scorer: Any, slopes: Array, w: Array, i: int, j: int) -> Array:
    """sum_i |u_i| |x_ij|, in the places of w."""
    out = abs(0.0 * w)
    if isinstance(scorer, Rkhs):  # |K_ij| is at most the product of two of these roots
        roots, n = np.sqrt(np.maximum(X.diagonal, 0.0)), X.shape[0]
        out[n:] += roots * float(roots[i:j] @ slopes)
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
