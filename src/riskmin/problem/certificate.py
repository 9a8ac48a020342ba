r"""Cuts of a risk, from a point or from multipliers, each lowered by what rounding may have added to it.

By Fenchel's inequality :math:`l(z) \ge u z - l^*(u)`, any multipliers u in the domains of the conjugates give

.. math:: R(v) = \sum_i c_i\, l(x_i^\top v, y_i) \;\ge\; a^\top v + b, \qquad
          a = \sum_i c_i u_i x_i, \quad b = -\sum_i c_i\, l^*(u_i, y_i).

With :math:`\sum_i c_i u_i = 0` the cut holds for every intercept, so that it bounds the risk at the best one.
A tangent is the cut of the multipliers :math:`u_i = l'(z_i)`.

Rounding errors are relative to the absolute values of the terms of a sum. Here they are subtracted from the
offset b; those of the slopes a depend on the minimizer of the bound and are subtracted when a run ends, by
`problem.rounding`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Cut, Evaluation, NDArray
from riskmin.losses.conjugate import Conjugate
from riskmin.numerics.precision import CUT_ROUNDING, DOT_ROUNDING, INTERCEPT_SLOPE_ROUNDING

if TYPE_CHECKING:
    from riskmin.problem.objective import Objective

MAX_BALANCING_STEPS = 4
"""Steps in which multipliers inside their bounds move, before those of one sign are scaled."""
MAX_ROOM_SHARE = 0.9
"""The largest part of the distance to a bound by which a multiplier moves in a step."""


def tangent(
    w: Array,
    value: float,
    gradient: Array,
    error: float = 0.0,
    dot: Callable[[Array, Array], float] | None = None,
) -> Evaluation:
    """The evaluation whose cut is the tangent at w, less an error bound and what rounding may have added.

    The error is negative where the cut lies above the tangent: that of a smoothed loss, plus an offset, is a
    cut of the loss itself. `dot` is the inner product of gradients and points, by default ``g @ w``.
    """
    # R(v) >= r + g'(v - w) = g'v + (r - g'w)
    gw = float(gradient @ w) if dot is None else dot(gradient, w)
    # far out, R and g @ w are huge and cancel: what rounding may have added must not become a bound;
    # errors are relative to r and g'w, and to the terms |g_j w_j| of the inner product
    error += CUT_ROUNDING * (abs(value) + abs(gw)) + DOT_ROUNDING * float(abs(gradient) @ abs(w))
    return Evaluation(value, gradient, Cut(gradient, value - gw - error))


def lowered_cut(a: Array, offset: float, size: float, u: Array | None = None) -> Cut:
    """The cut of an offset less what rounding may have added; `size` bounds the sum of its absolute terms."""
    return Cut(a, offset - CUT_ROUNDING * size, u)


def multiplier_cut(a: Array, conjugate: Conjugate, u: Array, c: Array, *, z: Array = 0.0) -> Cut:
    """The cut of the multipliers u in the domain of the conjugate, with a = X'(c u); it keeps u.

    z are scores for which u is nearly optimal: the terms u z, which cancel in the bound, have their rounding.
    """
    xp = namespace(u)
    conjugates = conjugate.value(u)
    sizes = abs(conjugates) + 2 * conjugate.cancelling(u)
    # rows without weight need no multiplier in the domain
    weighted = c > 0
    offset = -float(c @ xp.where(weighted, conjugates, 0.0 * c))
    size = float(c @ xp.where(weighted, sizes + abs(u * z), 0.0 * c))
    return lowered_cut(a, offset, size, u)


def balanced(u: Array, c: Array, domain: Conjugate | None = None) -> Array:
    """Multipliers near u with sum_i c_i u_i = 0 up to rounding, so that their cut holds for every intercept.

    Those inside their bounds move, in proportion to their distance from the nearer bound: the dual is flat in
    them at its maximum. A conjugate with a kink at zero has zero as a bound, too. What is left is removed by
    scaling the multipliers of the larger sign down, since zero is in every domain; without a domain, that is
    all.
    """
    xp = namespace(u)
    for _ in range(MAX_BALANCING_STEPS):
        if domain is None:
            break
        excess, size = float(c @ u), float(c @ xp.abs(u))
        if abs(excess) <= INTERCEPT_SLOPE_ROUNDING * size:
            return u
        direction = _room(u, domain, size)
        total = float(c @ direction)
        if not total > 0:
            break
        t = min(max(excess / total, -MAX_ROOM_SHARE), MAX_ROOM_SHARE)
        u = xp.minimum(xp.maximum(u - t * direction, domain.lower), domain.upper)
    up, down = float(c @ xp.maximum(u, 0.0 * u)), float(c @ xp.maximum(-u, 0.0 * u))
    if up == down:
        return u
    factor = min(up, down) / max(up, down)
    return xp.where(u > 0 if up > down else u < 0, factor * u, u)


def _room(u: Array, domain: Conjugate, size: float) -> Array:
    """The distance of each multiplier to its nearer bound; where both are infinite, enough to balance all."""
    xp = namespace(u)
    room = xp.minimum(u - domain.lower, domain.upper - u)
    room = xp.where(room < math.inf, room, 2 * size)
    return xp.minimum(room, xp.abs(u)) if domain.kink_at_zero else room


def scale_of_slopes(obj: Objective, cut: Cut, errors: NDArray | float = 0.0) -> float:
    """The best scale s of a cut's slopes; with errors, the slopes plus these are scaled by it.

    The cut of slopes whose errors are allowed for beforehand loses a share of the penalty, (1 - s) lam |w|_1;
    if they are allowed for afterwards, a share of J.
    """
    # A cut with b <= 0 proves nothing, but that of s u may: b is no reason for s = 0.
    return obj.reg.scale(Cut(cut.a + np.copysign(errors, cut.a), max(cut.b, sys.float_info.min)), obj.lam)
