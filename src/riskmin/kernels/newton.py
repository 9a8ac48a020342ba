r"""Multipliers of smoothed losses, a row at a time, for conjugates that are quadratic on an interval.

The multiplier of a row is :math:`u = \mathrm{clip}(\mathrm{soft}(z - pull, \epsilon) \cdot inverse)`, where
`pull` is the shift of the conjugate less mu times the centre, and `inverse` is one over its square plus mu.
"""

from __future__ import annotations

from typing import Any

from riskmin.kernels.compiled import njit

SLOPE, ACROSS, BEND, TURN, CURVE, TOTAL = range(6)
"""Of a point on a line: slopes along it and in the intercept; second derivatives: along, mixed, in that; and
the sum of all slopes' sizes."""
TRUTH, OFFSET, SIZE, TILT, WHOLE = range(5)
"""Of a point: the loss itself, the offset of its cut, the size of what cancels in that, the cut's slope in
the intercept, and the sum of all slopes' sizes."""


@njit(inline="always")
def _multiplier(r: float, lower: float, upper: float, inverse: float, epsilon: float) -> tuple[float, float]:
    """Of what a score is above the pull: u, and its slope in the score."""
    cut = -epsilon if r > 0.0 else epsilon
    v = (r + cut) * inverse
    bent = inverse
    if v >= upper:
        v = upper
        bent = 0.0
    if v <= lower:
        v = lower
        bent = 0.0
    if r <= epsilon and r >= -epsilon and epsilon > 0.0:
        v = 0.0
        bent = 0.0
    return v, bent


@njit(fastmath={"contract", "reassoc", "nsz"})
def along(
    z: Any, dz: Any, t: float, b: float, pull: Any, lower: Any, upper: Any, c: Any,
    inverse: float, epsilon: float, out: Any,
) -> None:  # fmt: skip
    """Slopes and second derivatives of the smoothed loss at z + t dz + b."""
    slope = across = bend = turn = curve = total = 0.0
    for i in range(len(z)):
        d = dz[i]
        v, bent = _multiplier((z[i] + t * d + b) - pull[i], lower[i], upper[i], inverse, epsilon)
        bent *= c[i]
        g = c[i] * v
        slope += g * d
        across += g
        total += abs(g)
        bend += bent * d * d
        turn += bent * d
        curve += bent
    out[SLOPE], out[ACROSS], out[TOTAL] = slope, across, total
    out[BEND], out[TURN], out[CURVE] = bend, turn, curve


@njit(fastmath={"contract", "reassoc", "nsz"})
def settle(
    z: Any, b: float, shift: Any, pull: Any, lower: Any, upper: Any, c: Any,
    inverse: float, epsilon: float, square: float, slopes: Any, bends: Any, out: Any,
) -> None:  # fmt: skip
    """The slopes c u and second derivatives of all rows at z + b, and the sums of `out`."""
    truth = offset = size = tilt = whole = 0.0
    for i in range(len(z)):
        s = z[i] + b
        v, bent = _multiplier(s - pull[i], lower[i], upper[i], inverse, epsilon)
        bent *= c[i]
        slopes[i], bends[i] = c[i] * v, bent
        conjugate = shift[i] * v + epsilon * abs(v) + 0.5 * square * v * v
        offset -= c[i] * conjugate
        tilt += c[i] * v
        whole += c[i] * abs(v)
        size += c[i] * (abs(v) * (abs(s) + abs(shift[i])) + abs(conjugate))
        e = s - shift[i]
        e = e - epsilon if e > epsilon else (e + epsilon if e < -epsilon else 0.0)
        if square > 0.0:
            u = e / square
            u = upper[i] if u > upper[i] else (lower[i] if u < lower[i] else u)
            truth += c[i] * (u * e - 0.5 * square * u * u)
        elif e != 0.0:
            truth += c[i] * e * (upper[i] if e > 0.0 else lower[i])
    out[TRUTH], out[OFFSET], out[SIZE], out[TILT], out[WHOLE] = truth, offset, size, tilt, whole


@njit(fastmath={"contract", "reassoc", "nsz"})
def truths(
    z: Any, b: float, shift: Any, lower: Any, upper: Any, c: Any, epsilon: float, square: float, out: Any
) -> None:
    """The loss itself at z + b, and its slope in b: a row that is at its kink counts as flat."""
    truth = tilt = 0.0
    for i in range(len(z)):
        e = z[i] + b - shift[i]
        e = e - epsilon if e > epsilon else (e + epsilon if e < -epsilon else 0.0)
        if square > 0.0:
            u = e / square
            u = upper[i] if u > upper[i] else (lower[i] if u < lower[i] else u)
        else:
            u = 0.0 if e == 0.0 else (upper[i] if e > 0.0 else lower[i])
        truth += c[i] * (u * e - 0.5 * square * u * u)
        tilt += c[i] * u
    out[0], out[1] = truth, tilt
