r"""The nearest point within bounds on a hyperplane, in linear time."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.types import NDArray


def _kernels() -> Any:
    from riskmin.kernels import projection  # Numba is imported by the first projection, not with the package

    return projection


def project(t: NDArray, c: NDArray, lower: NDArray, upper: NDArray, total: float = 0.0) -> NDArray:
    r"""The nearest point with given bounds and a given sum, each row by its weight :math:`c_i \ge 0`,

    .. math:: \mathrm{argmin}_u\; \tfrac12 \sum_i c_i (u_i - t_i)^2 \quad\text{with}\quad
              lower_i \le u_i \le upper_i,\; \sum_i c_i u_i = total,

    which is t, shifted by one number, within the bounds. That number is found by halving the set of rows that
    have yet to be told apart, in O(n) on average (Pardalos and Kovoor). The sum is met up to rounding.

    Parameters
    ----------
    t, c, lower, upper : (n,) arrays
        The bounds finite. Rows of weight 0 go to their nearest bounds, and count for nothing.
    total : float

    Returns
    -------
    (n,) array

    Raises
    ------
    ValueError
        Where no point within the bounds has that sum.

    References
    ----------
    P. M. Pardalos, N. Kovoor, An algorithm for a singly constrained class of quadratic programs subject to
    upper and lower bounds, Mathematical Programming 46, 1990.

    Examples
    --------
    >>> import numpy as np
    >>> one = np.ones(3)
    >>> project(np.array([2.0, 0.5, 0.0]), one, 0 * one, one, total=1.0)
    array([1., 0., 0.])
    """
    heavy = c > 0
    if not heavy.all():
        u = np.clip(t, lower, upper)
        u[heavy] = project(t[heavy], c[heavy], lower[heavy], upper[heavy], total)
        return u
    least, most = float(c @ lower), float(c @ upper)
    slack = 1e-12 * (float(c @ np.maximum(-lower, 0.0)) + float(c @ np.maximum(upper, 0.0)) + abs(total))
    if not least - slack <= total <= most + slack:
        raise ValueError(f"the bounds allow sums from {least:g} to {most:g}, not {total:g}: widen them")
    shift = _kernels().shift_to_sum(t, c, lower, upper, float(total))
    return _to_sum(np.clip(t - shift, lower, upper), c, lower, upper, total)


def _to_sum(u: NDArray, c: NDArray, lower: NDArray, upper: NDArray, total: float) -> NDArray:
    """What the shift's last digit has left over, taken off the rows inside of their bounds, or of all."""
    for _ in range(3):
        excess = float((c * u).sum()) - total
        inside = (u > lower) & (u < upper)
        if not excess or not inside.any():
            break
        u = np.where(inside, np.clip(u - excess / float(c[inside].sum()), lower, upper), u)
    if inside.any():
        return u
    room = u - lower if excess > 0 else upper - u
    whole = float(c @ room)
    return np.clip(u - room * (excess / whole), lower, upper) if whole else u
