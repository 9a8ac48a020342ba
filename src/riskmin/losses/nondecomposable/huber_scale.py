r"""Huber's loss with a jointly estimated scale, for residuals r = z - y and weights c with sum one,

.. math:: R(z) = \min_{\sigma \ge 0} \sum_i c_i \bigl(\sigma + \sigma H(r_i / \sigma)\bigr)
               = \max_a \sum_i c_i a_i r_i, \quad |a_i| \le 2\epsilon,\; \sum_i c_i a_i^2 \le 4,

where :math:`H(t) = t^2` for :math:`|t| \le \epsilon`, and :math:`2 \epsilon |t| - \epsilon^2` beyond. The
minimizing scale is the multiplier of the last constraint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Hessian
from riskmin.losses.base import Loss
from riskmin.losses.labels import check_finite


@dataclass(frozen=True)
class HuberScale(Loss):
    r"""Huber's loss in units of a scale :math:`\sigma` that is minimized out,

    .. math:: \min_{\sigma \ge 0} \sum_i c_i \bigl(\sigma + \sigma H((z_i - y_i) / \sigma)\bigr), \qquad
              H(t) = t^2 \text{ if } |t| \le \epsilon, \text{ else } 2 \epsilon |t| - \epsilon^2.

    A change of the units of y changes the units of the fit, and nothing else. It is the loss of
    scikit-learn's HuberRegressor, whose alpha is n / 2 times the alpha here for n rows.

    Parameters
    ----------
    epsilon : float
        Above 1: the absolute residual, in units of the scale, beyond which rows are outliers.

    References
    ----------
    P. J. Huber, *Robust Statistics*, Wiley, 1981, section 7.7. A. B. Owen, *A robust hybrid of lasso and
    ridge regression*, 2007.

    Examples
    --------
    >>> import numpy as np
    >>> z, y, c = np.zeros(5), np.array([-1.0, -0.5, 0.0, 0.5, 100.0]), np.full(5, 0.2)
    >>> value, dz = HuberScale().value_grad(z, y, c)
    >>> round(float(value), 4), dz.round(3).tolist()
    (54.8692, [0.54, 0.329, 0.0, -0.329, -0.54])
    >>> round(HuberScale().scale(z, y, c), 4)
    0.6075
    """

    epsilon: float = 1.35

    separable = False
    task = "regression"
    formula = "min over s >= 0 of sum c (s + s H((z - y) / s)), H(t) = t^2 up to |t| = epsilon, then linear"
    check_labels = check_finite

    def __post_init__(self) -> None:
        if not 1 < self.epsilon < math.inf:
            raise ValueError(
                f"HuberScale needs epsilon > 1, got {self.epsilon}; Huber(delta) is the loss of a given scale"
            )
        object.__setattr__(self, "max_slope", 2 * self.epsilon)

    def scale(self, z: Array, y: Array, c: Array) -> float:
        r"""Return the minimizing scale; 0 if so many residuals vanish that :math:`\epsilon^2` times the
        weight of the others is at most the weight of all.
        """
        xp = namespace(z)
        sizes = xp.abs(z - y)
        order = xp.argsort(sizes)
        sizes, c = xp.take(sizes, order), xp.take(c, order)
        weights, squares = xp.cumulative_sum(c), xp.cumulative_sum(c * sizes * sizes)
        total = float(weights[-1])
        # the derivative in the scale is total - eps^2 (weight of outliers) - (squares of others) / scale^2:
        # it increases, here at the scales where a row ceases to be an outlier, times scale^2
        allowed = total - self.epsilon**2 * (total - weights)
        rises = allowed * (sizes / self.epsilon) ** 2 >= squares
        positive = xp.astype(rises & (sizes > 0), c.dtype)
        k = int(xp.argmax(positive)) if float(xp.sum(positive)) else len(sizes)
        if not k:
            return 0.0
        share, square = float(allowed[k - 1]), float(squares[k - 1])
        return math.sqrt(square / share) if square > 0 and share > 0 else 0.0

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return the maximum less mu / 2 sum c a^2, its gradient, and that term: a scale of 2 mu or more."""
        r, scale = z - y, max(self.scale(z, y, c), 2 * mu)
        a = self._slopes(r, scale)
        offset = 0.5 * mu * (c @ (a * a))
        return c @ (a * r) - offset, c * a, offset

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the loss and a subgradient in z."""
        value, dz, _ = self.smoothed_value_grad(z, y, c, 0.0)
        return value, dz

    def _slopes(self, r: Array, scale: float) -> Array:
        """Return a, the derivatives of scale H(r / scale) in r; at scale 0 those of 2 epsilon |r|."""
        xp, largest = namespace(r), 2 * self.epsilon
        if not scale:
            return largest * xp.sign(r)
        return xp.minimum(xp.maximum(2 * (r / scale), -largest), largest)

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the second derivatives: 2 c_i / scale of rows that are no outliers, less a rank-one term."""
        best = self.scale(z, y, c)
        scale = max(best, 2 * mu)
        if not scale:
            return None
        xp, r = namespace(z), z - y
        inside = xp.astype(xp.abs(r) <= self.epsilon * scale, z.dtype)
        h = 2 * c / scale * inside
        curvature = float(h @ (r * r))  # scale^2 times the second derivative in the scale
        if best <= 2 * mu or not curvature > 0:  # the scale does not move with z
            return Hessian(h)
        return Hessian(h, (h * r / math.sqrt(curvature),))
