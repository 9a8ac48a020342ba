r"""The nu-trick as a loss: the loss of the worst rows only, up to a fraction nu of the total weight.

.. math:: \min_{t \ge 0}\; \nu t + \sum_i c_i \max(0,\, l(z_i, y_i) - t)
          = \max_a \sum_i a_i\, l(z_i, y_i), \quad 0 \le a_i \le c_i,\; \sum_i a_i \le \nu.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array
from riskmin.losses.base import Loss, as_loss, copy_traits


def tail_weights(values: Array, c: Array, nu: float) -> tuple[Array, float]:
    """Return the weights of the worst rows, with sum nu at most, and the threshold t of the losses.

    Rows with loss t share the remaining weight, so that the result does not depend on the order of the rows.
    """
    xp = namespace(values)
    order = xp.argsort(values, descending=True) if xp is not np else np.argsort(-values)
    # k rows of largest loss have a total weight below nu
    k = int(xp.sum(xp.cumulative_sum(xp.take(c, order)) < nu))
    # the total weight is less than nu
    if k >= len(values):
        return c, 0.0
    # the loss at which the cumulated weight, largest losses first, reaches nu
    t = xp.take(values, order)[k]
    above, tied = xp.astype(values > t, c.dtype), xp.astype(values == t, c.dtype)
    fraction = (nu - float(xp.sum(c * above))) / float(xp.sum(c * tied))
    return c * (above + min(max(fraction, 0.0), 1.0) * tied), max(float(t), 0.0)


@dataclass(frozen=True)
class Nu(Loss):
    r"""A loss with an adaptive threshold, :math:`\min_{t \ge 0} \nu t + \sum_i c_i \max(0, l(z_i, y_i) - t)`.

    That is :math:`\nu` times the conditional value at risk: the mean of the largest losses that make up a
    fraction :math:`\nu` of the weights :math:`c_i`, which sum to one. It is not a sum over rows and is
    evaluated on all scores at once. With ``fit_intercept=True``, the intercept is minimized out together with
    t, and ``risk.threshold(w)`` is t.

    With `Absolute` this is the nu-SVM of regression: t is the width of the tube. With `Hinge` it is that of
    classification, with margin :math:`\rho = 1 - t`. The textbook minimizes :math:`\tfrac\lambda2 |w|^2 -
    \nu \rho + \sum_i c_i \max(0, \rho - y_i z_i)` over w and :math:`\rho`. This risk is larger by the
    constant :math:`\nu`, which makes it nonnegative, and has :math:`\rho \le 1`. In the textbook a smaller
    lam only scales w and :math:`\rho` by the same factor, so nothing is lost: as long as :math:`\rho < 1`,
    the direction of w is the textbook's; at :math:`\rho = 1` it is the usual SVM, which then has at most a
    share :math:`\nu` of the rows within its margin.

    Parameters
    ----------
    loss : Loss
        A separable loss with a conjugate or a method ``values(z, y)``.
    nu : float
        In (0, 1]: the largest fraction of the weight above the threshold; 1 is the loss itself.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute
    >>> z, y, c = np.array([1.0, 2.0, 3.0, 4.0]), np.zeros(4), np.full(4, 0.25)
    >>> value, dz = Nu(Absolute(), 0.5).value_grad(z, y, c)
    >>> float(value), dz.tolist()  # half of the mean of 3 and 4
    (1.75, [0.0, 0.0, 0.25, 0.25])
    >>> Nu(Absolute(), 0.5).threshold(z, y, c)  # any t from 2 to 3
    2.5
    >>> from riskmin import L2, Objective, linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 2))
    >>> y = X @ [1.0, -1.0] + 3.0 + 0.1 * rng.standard_normal(200)
    >>> risk = linear_risk(X, y, Nu(Absolute(), 0.2), fit_intercept=True)
    >>> w = minimize(Objective(risk, L2(), lam=1e-4), tol=1e-6).w
    >>> t, residual = risk.threshold(w), np.abs(X @ w + risk.best_intercept(w) - y)
    >>> bool(np.mean(residual > t + 1e-6) <= 0.2)  # at most a share nu lies outside the tube
    True
    """

    loss: Any
    nu: float = 0.5

    separable = False

    def __post_init__(self) -> None:
        if not 0 < self.nu <= 1:
            raise ValueError(f"Nu needs 0 < nu <= 1, the share of rows beyond the threshold, not {self.nu!r}")
        object.__setattr__(self, "loss", as_loss(self.loss))
        if not self.loss.separable:
            raise TypeError(f"Nu needs a loss that is a sum over rows, not {self.loss!r}")
        if self.loss.multi_output:
            raise TypeError(f"Nu needs a loss of one score per row, not {self.loss!r}: use the loss itself")
        # raises if the loss has no values per row
        self.loss.values(np.ones(1), np.ones(1))
        copy_traits(self.loss, self, "task", "log_link")
        term = self.loss.formula or "loss"
        object.__setattr__(self, "formula", f"min over t >= 0 of nu t + sum c max(0, {term} - t)")

    @property
    def components(self) -> tuple[Any, ...]:
        """The loss, and those of the wrapped one."""
        return self, *self.loss.components

    def check_labels(self, y: Array) -> None:
        """Check the labels by the wrapped loss."""
        self.loss.check_labels(y)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the loss of the worst rows and a subgradient in z."""
        a, _ = tail_weights(self.loss.values(z, y), c, self.nu)
        value, dz = self.loss.value_grad(z, y, a)
        return value, dz

    def threshold(self, z: Array, y: Array, c: Array) -> float:
        """Return the minimizing t; the midpoint if the minimizers are an interval."""
        values = self.loss.values(z, y)
        # rows of weight zero must not determine the threshold
        used = c > 0
        values, c = values[used], c[used]
        # the ends of the interval of minimizers: the thresholds at nu slightly decreased and increased
        _, high = tail_weights(values, c, (1 - 1e-12) * self.nu)
        _, low = tail_weights(values, c, (1 + 1e-12) * self.nu)
        return 0.5 * (low + high)
