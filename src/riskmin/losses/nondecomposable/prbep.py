r"""The precision/recall break-even point, exact and smoothed.

With the multiplier :math:`\beta_i`, 1 if row i is mislabeled and 0 if not, the loss is a linear program,

.. math:: R(z) = \max_\beta \tfrac2n \sum_i \beta_i t_i, \quad 0 \le \beta_i \le 1, \quad
          \sum_{y_i > 0} \beta_i = \sum_{y_i < 0} \beta_i, \quad
          t_i = -y_i z_i + \tfrac{n}{2 n_+} [y_i > 0],

whose vertices are the labelings with equally many misses (false negatives) and alarms (false positives).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Hessian, NDArray
from riskmin.losses.base import Loss
from riskmin.losses.labels import check_signs
from riskmin.losses.nondecomposable.contingency import (
    SortedScores,
    break_even_form,
    check_equal_weights,
    count_range,
)
from riskmin.losses.thresholds import threshold_for_count
from riskmin.numerics.sorting import as_float64


@dataclass(frozen=True)
class Prbep(Loss):
    r"""The precision/recall break-even point, :math:`\Delta = misses / n_+` with equally many alarms.

    The loss does not depend on an intercept. Its smoothed form subtracts
    :math:`\tfrac2n \cdot \tfrac\mu2 |\beta|^2` inside the maximum over the multipliers :math:`\beta` of the
    rows; it takes one scalar root search, O(n) without a sort (theorem 7 of Zhang, Saha and Vishwanathan,
    JMLR 13, 2012).

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
    task = "classification"
    formula = "max over y' of misses / n+ + sum z (y' - y) / n"
    shift_invariant = True
    accepts_center = True
    check_labels = check_signs

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the largest objective over labelings and a subgradient in z."""
        xp, s = namespace(z), SortedScores.from_scores(self, z, y, c)
        # for m misses and m alarms: Delta = m / n+
        count = count_range(s.positives, 0, min(len(s.positives), len(s.negatives)))
        values = s.as_float(count) / len(s.positives) + s.score_gain(count, count)
        best = int(xp.argmax(values))
        return values[best], s.subgradient(best, best)

    def intercept_form(self, y: Array, c: Array) -> tuple[Loss, float] | None:
        """Return the hinge loss of margin n / (4 n+), and 2."""
        return break_even_form(self, y, c)

    def cutoff(self, z: Array, y: Array, c: Array) -> float:
        """Return the threshold on scores that as many rows exceed as are positive."""
        return threshold_for_count(z, int((y > 0).sum()))

    def tables(self, n_positive: int, n_negative: int) -> tuple[NDArray, NDArray, NDArray]:
        """Return the misses, alarms and Delta of the contingency tables with as many misses as alarms."""
        count = np.arange(min(n_positive, n_negative) + 1)
        return count, count, count / n_positive

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return smoothed loss, gradient and minorant offset; the center is an earlier gradient."""
        t, sign, start = self._multipliers(z, y, c, center)
        n, beta = len(z), _equal_sums(start + t / mu, sign)
        offset = mu / n * float((beta - start) @ (beta - start))
        return 2 / n * float(beta @ t) - offset, namespace(z).astype(-2 / n * sign * beta, z.dtype), offset

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the Hessian: (2 / (n mu)) times the centering matrix of the rows with 0 < beta < 1."""
        if not mu:
            return None
        xp = namespace(z)
        t, sign, start = self._multipliers(z, y, c, center)
        # the multipliers before clipping; those strictly between 0 and 1 depend on the scores
        shifted = start + t / mu
        shifted = shifted - _equal_sums_shift(shifted, sign) * sign
        between = xp.astype((shifted > 0) & (shifted < 1), t.dtype)
        scale, n_between = 2 / (len(z) * mu), float(xp.sum(between))
        return Hessian(scale * between, ((scale / n_between) ** 0.5 * between,) if n_between else ())

    def _multipliers(self, z: Array, y: Array, c: Array, center: Array | None) -> tuple[Array, Array, Array]:
        """Return the t of the linear program, the signs of the rows, and the multipliers of the center."""
        check_equal_weights(self, c)
        xp, n, wide = namespace(z), len(z), as_float64(z)
        # the gradient is dz = -(2 / n) sign beta: a gradient of the center gives its multipliers
        positive = xp.astype(y > 0, wide.dtype)
        sign = 2 * positive - 1
        t = -sign * wide + (0.5 * n / float(xp.sum(positive))) * positive
        return t, sign, 0.0 * wide if center is None else -0.5 * n * sign * center


def _equal_sums(t: Array, sign: Array) -> Array:
    """Return clip(t - theta sign, 0, 1) for the theta for which both signs have the same sum."""
    beta = namespace(t).clip(t - _equal_sums_shift(t, sign) * sign, 0.0, 1.0)
    # scale the larger side down by its rounding excess: the multipliers are then feasible to the last bit
    # twice the sums of both signs
    up, down = float(beta @ (1 + sign)), float(beta @ (1 - sign))
    smaller = min(up, down)
    return beta * (0.5 * (smaller / (up or 1.0)) * (1 + sign) + 0.5 * (smaller / (down or 1.0)) * (1 - sign))


def _equal_sums_shift(t: Array, sign: Array) -> float:
    """Return the theta for which clip(t - theta sign, 0, 1) has the same sum for both signs.

    With s = t - 1 for positive rows and s = -t for negative ones, it is the theta for which
    sum clip(theta - s, 0, 1) = n+. That sum is piecewise linear and nondecreasing: Newton's method,
    safeguarded by a bracket, is exact once it is in the linear piece of the root.
    """
    xp = namespace(t)
    s, target = sign * t - 0.5 * (1 + sign), 0.5 * float(xp.sum(1 + sign))
    # at lo the sum is 0, at hi it is the number of rows
    lo, hi = float(xp.min(s)), float(xp.max(s)) + 1
    theta = 0.5 * (lo + hi)
    while True:
        shifted = theta - s
        deficit = target - float(xp.sum(xp.clip(shifted, 0.0, 1.0)))
        slope = float(xp.sum(xp.astype((shifted > 0) & (shifted < 1), t.dtype)))
        lo, hi = (theta, hi) if deficit > 0 else (lo, theta)
        # the sum has the slope "number of rows strictly between 0 and 1": Newton's step, else bisection
        new = theta + deficit / slope if slope else lo
        new = new if lo < new < hi else 0.5 * (lo + hi)
        if not deficit or not lo < new < hi or new == theta:
            return theta
        theta = new
