r"""Second derivatives of smoothed losses in the scores, as Newton's method takes them."""

from __future__ import annotations

from typing import Any

from riskmin.arrays import namespace
from riskmin.losses.pieces import dual_of
from riskmin.losses.smoothing import pulls
from riskmin.sorting import prefix_sums, ranks
from riskmin.types import Array, Bend, Bends, Curved, Unsuited, Window


def bend(loss: Any, z: Array, y: Array, c: Array, mu: float, centre: Array | None = None) -> Bend:
    r"""The second derivatives of `soft(loss, z, y, c, mu, centre)` in z; with mu = 0, those of a smooth loss.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge
    >>> bend(Hinge(), np.array([0.5, 2.0]), np.ones(2), np.full(2, 0.5), mu=1.0).diagonal.tolist()
    [0.5, 0.0]
    """
    if isinstance(loss, Bends):
        own: Any = loss.bend
        found: Bend = own(z, y, c, mu) if centre is None else own(z, y, c, mu, centre)
        return found
    if not mu and isinstance(loss, Curved):
        return Bend(loss.curvature(z, y, c))
    dual = dual_of(loss, y)
    if dual is None:
        raise Unsuited(f"{type(loss).__name__} gives no second derivatives: use Bundle")
    xp = namespace(z)
    t, _ = pulls(dual, z, c, mu, centre)
    size = dual.square + mu
    moves = xp.abs(t) > dual.epsilon if dual.epsilon else t == t
    t = t - dual.epsilon * xp.sign(t) if dual.epsilon else t
    inside = moves & (t > size * dual.lower) & (t < size * dual.upper)
    return Bend(c / size * xp.astype(inside, z.dtype))


def bent(h: Array, intercept: bool) -> Bend:
    r"""Second derivatives h of rows one by one; an intercept that follows takes a rank, h h' / sum h.

    Examples
    --------
    >>> import numpy as np
    >>> times(bent(np.array([1.0, 3.0]), True), np.ones(2)).round(6).tolist()
    [0.0, 0.0]
    """
    total = float(h.sum()) if intercept else 0.0
    return Bend(h, (h / total**0.5,)) if total > 0 else Bend(h)


def times(bend: Bend, V: Array) -> Array:
    """H V, for V of shape (n,) or (n, k).

    Examples
    --------
    >>> import numpy as np
    >>> times(Bend(np.ones(2), (np.full(2, 0.5**0.5),)), np.array([1.0, 0.0])).round(6).tolist()
    [0.5, -0.5]
    """
    column = (slice(None), *(None,) * (V.ndim - 1))
    out = bend.diagonal[column] * V
    for s in bend.minus:
        out = out - s[column] * (s @ V)
    for window in bend.windows:
        here, there = through(window, V)
        out[window.above] = out[window.above] - here
        out[window.below] = out[window.below] - there
    return out


def through(window: Window, V: Array) -> tuple[Array, Array]:
    """W V for the rows above, and W' V for those below: differences of prefix sums, in O(n) a column."""
    above, p, below, q, first, last = window
    column = (slice(None), *(None,) * (V.ndim - 1))
    sums = prefix_sums(q[column] * V[below])
    here = p[column] * (sums[last] - sums[first])
    first, last = turned(window)
    sums = prefix_sums(p[column] * V[above])
    return here, q[column] * (sums[last] - sums[first])


def turned(window: Window) -> tuple[Array, Array]:
    """The range of rows above of each row below."""
    rows = namespace(window.first).arange(len(window.below))
    return ranks(window.last, rows, side="right"), ranks(window.first, rows, side="right")
