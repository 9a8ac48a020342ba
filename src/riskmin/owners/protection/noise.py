r"""Gaussian noise on answers, and the exact account of what it protects.

One row changes the numbers of an answer by at most their sensitivities. Each gets noise of standard deviation
:math:`\sqrt{m}\,\sigma` times its sensitivity, for m parts of an answer, so that an answer is a Gaussian
mechanism with :math:`\mu = 1/\sigma`. The noise is a discrete Gaussian on a grid of :math:`2^{-20}`
deviations, drawn exactly, by integers from the system's generator: no bits of floats tell more than the
account states. The account is the one of the continuous Gaussian, from which that of so fine a grid
differs by less than :math:`\exp(-2 \pi^2 4^{20})`. Of k answers :math:`\mu^2 = k / \sigma^2`, and exactly

.. math:: \delta(\epsilon) = \Phi(-\epsilon/\mu + \mu/2) - e^\epsilon\,\Phi(-\epsilon/\mu - \mu/2).

References
----------
B. Balle, Y.-X. Wang, Improving the Gaussian mechanism for differential privacy, ICML 2018. J. Dong, A. Roth,
W. J. Su, Gaussian differential privacy, JRSS B 84, 2022. C. L. Canonne, G. Kamath, T. Steinke, The discrete
Gaussian for differential privacy, NeurIPS 2020.
"""

from __future__ import annotations

import math
import secrets
from statistics import NormalDist
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.core import NDArray
from riskmin.losses.base import Loss
from riskmin.losses.margin import Hinge, Logistic, SmoothedHinge
from riskmin.owners.protection.policy import AnswerRefused, Policy

GRID_BITS = 20
"""Noise is on a grid of 2^-20 of its deviation."""


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


# ---------------------------------------------------------------- the sampler of Canonne, Kamath and Steinke
def _is_below(numerator: int, denominator: int) -> bool:
    """Draw whether an event of probability numerator / denominator happens."""
    return secrets.randbelow(denominator) < numerator


def _is_below_exp(numerator: int, denominator: int) -> bool:
    """Draw whether an event of probability exp(-numerator / denominator) happens."""
    while numerator > denominator:
        if not _is_below_exp(1, 1):
            return False
        numerator -= denominator
    k = 1
    while _is_below(numerator, denominator * k):
        k += 1
    return k % 2 == 1


def _discrete_laplace(scale: int) -> int:
    """Draw x with probability proportional to exp(-|x| / scale)."""
    while True:
        u = secrets.randbelow(scale)
        if not _is_below_exp(u, scale):
            continue
        x = u
        while _is_below_exp(1, 1):
            x += scale
        if not secrets.randbits(1):
            return x
        if x:
            return -x


def discrete_gaussian(sigma: int) -> int:
    """Draw x with probability proportional to exp(-x^2 / (2 sigma^2)), exactly, for an integer sigma.

    Examples
    --------
    >>> abs(discrete_gaussian(10)) < 200
    True
    """
    t = sigma + 1
    while True:
        x = _discrete_laplace(t)
        if _is_below_exp((abs(x) * t - sigma * sigma) ** 2, 2 * sigma * sigma * t * t):
            return x


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

    def _noisy(self, x: Any, sensitivity: float, n_parts: int) -> tuple[Any, float]:
        """Return numbers on a grid with noise, and a bound of the noise of each."""
        x = np.asarray(x, dtype=np.float64)
        factor = self.policy.noise_multiplier * math.sqrt(n_parts)
        if not sensitivity:
            return x, 0.0
        step = math.ldexp(1.0, math.floor(math.log2(factor * sensitivity)) - GRID_BITS)
        # rounding to the grid adds to the effect of a row
        sigma = math.ceil(factor * (sensitivity + math.sqrt(x.size) * step) / step)
        draws = np.array([discrete_gaussian(sigma) for _ in range(x.size)], dtype=np.float64)
        return step * (np.round(x / step) + draws.reshape(x.shape)), self.TAIL * sigma * step + step

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
