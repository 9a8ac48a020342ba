"""Projection onto a box intersected with a hyperplane, in linear time."""

from __future__ import annotations

import numpy as np

from riskmin._numba import lazy_module
from riskmin.core import NDArray

_kernels = lazy_module("projection_loops")


def project(t: NDArray, c: NDArray, lower: NDArray, upper: NDArray, total: float = 0.0) -> NDArray:
    r"""Return the weighted projection onto a box and a hyperplane, with weights :math:`c_i \ge 0`,

    .. math:: \mathrm{argmin}_u\; \tfrac12 \sum_i c_i (u_i - t_i)^2 \quad\text{with}\quad
              lower_i \le u_i \le upper_i,\; \sum_i c_i u_i = total,

    which is t minus a scalar shift, clipped to the bounds. The shift is found by search over the breakpoints
    with random pivots, in O(n) on average (Pardalos and Kovoor). The sum constraint holds up to rounding.

    Parameters
    ----------
    t, c, lower, upper : (n,) arrays
        Bounds must be finite. Rows of weight 0 are clipped to their bounds and do not enter the sum.
    total : float
        Value of the weighted sum.

    Returns
    -------
    (n,) array
        The projection u.

    Raises
    ------
    ValueError
        If no point within the bounds has that sum.

    References
    ----------
    P. M. Pardalos, N. Kovoor, An algorithm for a singly constrained class of quadratic programs subject to
    upper and lower bounds, Mathematical Programming 46, 1990.
    """
    # rows of weight zero do not enter the sum: they are clipped, and the others projected
    weighted = c > 0
    if not weighted.all():
        u = np.clip(t, lower, upper)
        u[weighted] = project(t[weighted], c[weighted], lower[weighted], upper[weighted], total)
        return u
    min_sum, max_sum = float(c @ lower), float(c @ upper)
    # rounding allowance for sums at the ends of the attainable range
    slack = 1e-12 * (float(c @ np.maximum(-lower, 0.0)) + float(c @ np.maximum(upper, 0.0)) + abs(total))
    if not min_sum - slack <= total <= max_sum + slack:
        raise ValueError(f"the bounds allow sums from {min_sum:g} to {max_sum:g}, not {total:g}: widen them")
    # u_i = clip(t_i - shift, lower_i, upper_i), with the shift that gives the sum
    shift = _kernels().shift_to_sum(t, c, lower, upper, float(total))
    return _to_sum(np.clip(t - shift, lower, upper), c, lower, upper, total)


def _to_sum(u: NDArray, c: NDArray, lower: NDArray, upper: NDArray, total: float) -> NDArray:
    """Distribute the remaining rounding error of the sum over the rows inside their bounds, or over all."""
    # a few rounds: a correction may itself reach a bound
    for _ in range(3):
        excess = float((c * u).sum()) - total
        inside = (u > lower) & (u < upper)
        if not excess or not inside.any():
            break
        u = np.where(inside, np.clip(u - excess / float(c[inside].sum()), lower, upper), u)
    if inside.any():
        return u
    # no row is inside its bounds: move all in proportion to their distance to the bound
    room = u - lower if excess > 0 else upper - u
    total_room = float(c @ room)
    return np.clip(u - room * (excess / total_room), lower, upper) if total_room else u
