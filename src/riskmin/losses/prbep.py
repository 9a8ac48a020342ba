r"""The precision/recall break-even point, as it is and smoothed.

With :math:`\beta_i` for the share in which row i is on the wrong side, the loss is a linear program,

.. math:: R(z) = \max_\beta \tfrac2n \sum_i \beta_i t_i, \quad 0 \le \beta_i \le 1, \quad
          \sum_{y_i > 0} \beta_i = \sum_{y_i < 0} \beta_i, \quad
          t_i = -y_i z_i + \tfrac{n}{2 n_+} [y_i > 0],

whose corners are labellings with as many misses as alarms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays import namespace
from riskmin.losses.contingency import Sorted, check_equal, counts
from riskmin.losses.cutoffs import nearest
from riskmin.losses.labels import check_signs
from riskmin.sorting import wider
from riskmin.types import Array, Bend, NDArray


@dataclass(frozen=True)
class Prbep:
    r"""The precision/recall break-even point: as many false alarms as misses, :math:`\Delta = misses / n_+`.

    An intercept changes nothing. Its smoothed form takes :math:`\tfrac2n \cdot \tfrac\mu2 |\beta|^2` off the
    multipliers :math:`\beta` of the rows, and costs one scalar root, O(n) and no sort (theorem 7 of Zhang,
    Saha and Vishwanathan, JMLR 13, 2012).

    References
    ----------
    T. Joachims, A support vector method for multivariate performance measures, ICML 2005.

    Examples
    --------
    >>> import numpy as np
    >>> z, y = np.array([1.0, -1.0, 0.5]), np.array([1.0, 1.0, -1.0])
    >>> value, dz = Prbep().value_grad(z, y, np.ones(3) / 3)
    >>> round(float(value), 6), dz.round(3).tolist()  # 1 / 2 for the miss, and 2 / 3 of 0.5 - (-1)
    (1.5, [0.0, -0.667, 0.667])
    """

    separable = False
    smooth = False
    task = "classification"
    formula = "max over y' of misses / n+ + sum z (y' - y) / n"
    invariant = True
    centred = True
    check_labels = check_signs

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The loss of the worst labelling, and a subgradient in z."""
        xp, s = namespace(z), Sorted.of(self, z, y, c)
        count = counts(s.above, 0, min(len(s.above), len(s.below)))
        values = s.number(count) / len(s.above) + s.gain(count, count)
        best = int(xp.argmax(values))
        return values[best], s.slopes(best, best)

    def cutoff(self, z: Array, y: Array, c: Array) -> float:
        """The threshold on scores that as many rows are above as are positive."""
        return nearest(z, int((y > 0).sum()))

    def tables(self, n_above: int, n_below: int) -> tuple[NDArray, NDArray, NDArray]:
        """The misses, the alarms and the measure of each table with as many of the one as of the other."""
        count = np.arange(min(n_above, n_below) + 1)
        return count, count, count / n_above

    def soft(
        self, z: Array, y: Array, c: Array, mu: float, centre: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """The smoothed loss, its gradient, and its lift; the centre is a gradient of before."""
        t, sign, start = self._multipliers(z, y, c, centre)
        n, beta = len(z), _balanced(start + t / mu, sign)
        lift = mu / n * float((beta - start) @ (beta - start))
        return 2 / n * float(beta @ t) - lift, namespace(z).astype(-2 / n * sign * beta, z.dtype), lift

    def bend(self, z: Array, y: Array, c: Array, mu: float, centre: Array | None = None) -> Bend:
        """The second derivatives: of the rows with multipliers between 0 and 1, less their mean."""
        xp = namespace(z)
        t, sign, start = self._multipliers(z, y, c, centre)
        free = start + t / mu
        free = free - _threshold(free, sign) * sign
        between = xp.astype((free > 0) & (free < 1), t.dtype)
        scale, many = 2 / (len(z) * mu), float(xp.sum(between))
        return Bend(scale * between, ((scale / many) ** 0.5 * between,) if many else ())

    def _multipliers(self, z: Array, y: Array, c: Array, centre: Array | None) -> tuple[Array, Array, Array]:
        """The t of the linear program, the signs of the rows, and the multipliers of the centre."""
        check_equal(self, c)
        xp, n, wide = namespace(z), len(z), wider(z)
        positive = xp.astype(y > 0, wide.dtype)
        sign = 2 * positive - 1
        t = -sign * wide + (0.5 * n / float(xp.sum(positive))) * positive
        return t, sign, 0.0 * wide if centre is None else -0.5 * n * sign * centre


def _balanced(t: Array, sign: Array) -> Array:
    """Clip(t - theta sign, 0, 1) for the theta for which both signs have the same sum."""
    beta = namespace(t).clip(t - _threshold(t, sign) * sign, 0.0, 1.0)
    # what rounding left over is taken off, so that these are multipliers to the last bit
    up, down = float(beta @ (1 + sign)), float(beta @ (1 - sign))
    less = min(up, down)
    return beta * (0.5 * (less / (up or 1.0)) * (1 + sign) + 0.5 * (less / (down or 1.0)) * (1 - sign))


def _threshold(t: Array, sign: Array) -> float:
    """The theta for which clip(t - theta sign, 0, 1) has the same sum for both signs.

    With s = t - 1 for positive rows and -t for negative ones, it is that for which clip(theta - s, 0, 1) has
    the sum n+. That sum rises in straight pieces: Newton's method ends at the root once it is in the right
    piece, and the bracket leads it there.
    """
    xp = namespace(t)
    s, most = sign * t - 0.5 * (1 + sign), 0.5 * float(xp.sum(1 + sign))
    lo, hi = float(xp.min(s)), float(xp.max(s)) + 1
    theta = 0.5 * (lo + hi)
    while True:
        free = theta - s
        lack = most - float(xp.sum(xp.clip(free, 0.0, 1.0)))
        bend = float(xp.sum(xp.astype((free > 0) & (free < 1), t.dtype)))
        lo, hi = (theta, hi) if lack > 0 else (lo, theta)
        step = theta + lack / bend if bend else lo
        step = step if lo < step < hi else 0.5 * (lo + hi)
        if not lack or not lo < step < hi or step == theta:
            return theta
        theta = step
