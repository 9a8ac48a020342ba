r"""Gaussian noise on answers, and the exact account of what it protects.

One row changes the numbers of an answer by at most their sensitivities. Each gets noise of standard deviation
:math:`\sqrt{m}\,\sigma` times its sensitivity, for m parts of an answer, so that an answer is a Gaussian
mechanism with :math:`\mu = 1/\sigma`. Of k answers :math:`\mu^2 = k / \sigma^2`, and exactly

.. math:: \delta(\epsilon) = \Phi(-\epsilon/\mu + \mu/2) - e^\epsilon\,\Phi(-\epsilon/\mu - \mu/2).

References
----------
B. Balle, Y.-X. Wang, Improving the Gaussian mechanism for differential privacy, ICML 2018. J. Dong, A. Roth,
W. J. Su, Gaussian differential privacy, JRSS B 84, 2022.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.core import NDArray
from riskmin.losses.base import Loss
from riskmin.losses.margin import Hinge, Logistic, SmoothedHinge
from riskmin.owners.protection.policy import AnswerRefused, Policy


def delta_of(epsilon: float, mu: float) -> float:
    """Return the least delta for which a mechanism with this mu is (epsilon, delta)-differentially private.

    Examples
    --------
    >>> round(delta_of(1.0, 1.0), 5)
    0.12694
    """
    if mu <= 0:
        return 0.0
    cdf = NormalDist().cdf
    tail = cdf(-epsilon / mu - mu / 2)
    return cdf(-epsilon / mu + mu / 2) - (math.exp(epsilon) * tail if tail else 0.0)


class PrivacyAccount:
    """What a coordinator has used of its privacy budget.

    Parameters
    ----------
    policy : Policy
    mu_squared : float
        What was used before, from the log.
    """

    def __init__(self, policy: Policy, mu_squared: float = 0.0) -> None:
        self.policy, self.mu_squared = policy, mu_squared
        self.per_answer = 1 / policy.noise_multiplier**2

    def charge(self) -> None:
        """Count an answer; raise `AnswerRefused` if it would exceed the budget."""
        after = self.mu_squared + self.per_answer
        if delta_of(self.policy.epsilon, math.sqrt(after)) > self.policy.delta:
            raise AnswerRefused(
                f"the privacy budget of epsilon = {self.policy.epsilon:g} is used up "
                f"(delta = {self.policy.delta:g})"
            )
        self.mu_squared = after


class GaussianNoise:
    """Noise on the answers of one run.

    Parameters
    ----------
    policy : Policy
    loss : Loss
        One whose slopes are at most 1 in absolute value.
    largest_weight : float
        The largest c_i.
    account : PrivacyAccount
    """

    TAIL = 6.0
    """Bounds of noise in standard deviations: each holds with probability 1 - 2e-9."""

    def __init__(self, policy: Policy, loss: Loss, largest_weight: float, account: PrivacyAccount) -> None:
        if not isinstance(loss, Hinge | Logistic | SmoothedHinge):
            raise AnswerRefused(
                "noise needs a loss of slopes up to one: choose hinge, smoothed_hinge or logistic"
            )
        self.policy, self.account, self.c = policy, account, largest_weight
        self.value_at_zero = float(loss.value_grad(np.zeros(1), np.ones(1), np.ones(1))[0])
        self.rng = np.random.Generator(np.random.PCG64())

    def _noisy(self, x: Any, sensitivity: float, n_parts: int) -> tuple[Any, float]:
        """Return numbers with noise, and a bound of the noise of each."""
        deviation = self.policy.noise_multiplier * math.sqrt(n_parts) * sensitivity
        return x + deviation * self.rng.standard_normal(np.shape(x)), self.TAIL * deviation

    def _value_sensitivity(self, w: NDArray) -> float:
        # l(z) <= l(0) + |z| and |z| <= |x| |w|
        return self.c * (self.value_at_zero + self.policy.max_row_norm * float(np.linalg.norm(w)))

    def tangent(self, value: float, grad: NDArray, w: NDArray) -> tuple[float, NDArray, float, float]:
        """Return an upper bound of a noisy value, a noisy gradient, and bounds of their errors."""
        self.account.charge()
        noisy, error = self._noisy(value, self._value_sensitivity(w), 2)
        gradient, gradient_error = self._noisy(grad, self.c * self.policy.max_row_norm, 2)
        return float(noisy) + error, gradient, 2 * error, gradient_error

    def line(self, value: float, slope: float, w: NDArray, d: NDArray | None) -> tuple[float, float]:
        """Return an upper bound of a noisy value, and a noisy slope along d."""
        self.account.charge()
        noisy, error = self._noisy(value, self._value_sensitivity(w), 2)
        size = 0.0 if d is None else self.c * self.policy.max_row_norm * float(np.linalg.norm(d))
        return float(noisy) + error, float(self._noisy(slope, size, 2)[0])


def shortened_rows(X: Any, max_norm: float) -> Any:
    """Return the rows, with those longer than max_norm shortened to it.

    Examples
    --------
    >>> shortened_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 2.5).tolist()
    [[1.5, 2.0], [0.3, 0.4]]
    """
    if sp.issparse(X):
        return _shortened_sparse_rows(X, max_norm)
    norms = np.linalg.norm(X, axis=1)
    return X * (max_norm / np.maximum(norms, max_norm))[:, None]


def _shortened_sparse_rows(X: Any, max_norm: float) -> Any:
    norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    factors: Any = sp.diags_array(max_norm / np.maximum(norms, max_norm))
    return (factors @ X).tocsr()
