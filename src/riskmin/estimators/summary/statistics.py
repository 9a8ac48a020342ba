r"""Measures of the fit of a model whose loss is half the deviance, or minus a log-likelihood."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.estimators._common.base import RiskArguments
from riskmin.problem.intercept import intercept_of_scores


class JointTest(NamedTuple):
    """A test of several coefficients together.

    Examples
    --------
    >>> JointTest(3.84, 1, 0.05)
    JointTest(statistic=3.84, freedom=1, p_value=0.05)
    """

    statistic: float
    """Chi-squared, or F with `freedom` and the degrees of freedom of the residuals."""
    freedom: int
    """The number of restrictions."""
    p_value: float


@dataclass(frozen=True)
class FitStatistics:
    """How well a model fits; NaN where its loss is no likelihood.

    Attributes
    ----------
    n : float
        The number of observations: the sum of the weights.
    n_coefficients : int
        Intercepts included.
    deviance, null_deviance : float
        Twice the sum of the losses of the observations, of the model and with the intercept alone: the
        residual sum of squares for "squared".
    log_likelihood : float
        At the coefficients; for "squared" with the variance that maximizes it.

    Examples
    --------
    >>> found = FitStatistics(100.0, 3, deviance=80.0, null_deviance=120.0, log_likelihood=-40.0)
    >>> round(found.r2, 4), found.aic, round(found.bic, 4)
    (0.3333, 86.0, 93.8155)
    """

    n: float
    n_coefficients: int
    deviance: float
    null_deviance: float
    log_likelihood: float

    @property
    def r2(self) -> float:
        """1 - deviance / null deviance: R^2 for "squared", McFadden's for "logistic"."""
        return 1 - self.deviance / self.null_deviance if self.null_deviance else math.nan

    @property
    def aic(self) -> float:
        """Akaike's criterion, -2 log-likelihood + 2 q for q coefficients."""
        return -2 * self.log_likelihood + 2 * self.n_coefficients

    @property
    def bic(self) -> float:
        """The Bayesian criterion, -2 log-likelihood + q log n."""
        return -2 * self.log_likelihood + self.n_coefficients * math.log(self.n)

    def __str__(self) -> str:
        parts = [f"R2 {self.r2:.4g}, deviance {self.deviance:.6g}"]
        if not math.isnan(self.log_likelihood):
            parts.append(f"AIC {self.aic:.6g}, BIC {self.bic:.6g}")
        return ", ".join(parts)


def fit_statistics(
    loss: Any, at: RiskArguments, counts: NDArray, offset: NDArray | None, shape: tuple[int, int]
) -> FitStatistics | None:
    """Return the statistics of a model with ``shape = (coefficients, intercepts)``; None for other losses."""
    if not loss.likelihood and not loss.log_link:
        return None
    (z, y, c), n, (q, n_intercepts) = at, float(counts.sum()), shape
    deviance = 2 * n * float(loss.value_grad(z, y, c)[0])
    null = _null_deviance(loss, at, n, offset, n_intercepts)
    return FitStatistics(n, q, deviance, null, _log_likelihood(loss, at, counts, deviance))


def _null_deviance(
    loss: Any, at: RiskArguments, n: float, offset: NDArray | None, n_intercepts: int
) -> float:
    """Return the deviance of the model without columns, of which only the intercepts are fitted."""
    z, y, c = at
    if z.ndim == 2:  # the shares of the classes, or equal ones
        shares = np.bincount(y.astype(np.intp), c, z.shape[1]) if n_intercepts else np.full(z.shape[1], 1.0)
        present = shares > 0
        weights = np.bincount(y.astype(np.intp), c, z.shape[1])[present]
        return float(-2 * n * (weights @ np.log(shares[present] / shares.sum())))
    base = 0.0 * z if offset is None else 0.0 * z + offset
    if not n_intercepts:
        return 2 * n * float(loss.value_grad(base, y, c)[0])
    return 2 * n * intercept_of_scores(loss, base, y, c, 0.0)[1]


def _log_likelihood(loss: Any, at: RiskArguments, counts: NDArray, deviance: float) -> float:
    """Return the log-likelihood; NaN for distributions with a dispersion that is not known."""
    n, y = float(counts.sum()), at.labels
    if loss.likelihood == "normal":
        return -0.5 * n * (math.log(2 * math.pi * deviance / n) + 1) if deviance > 0 else math.inf
    if loss.likelihood == "poisson":
        # that of the means y, log(y^y e^-y / y!), less half the deviance
        special = scipy_module("special")
        best = special.xlogy(y, y) - y - special.gammaln(y + 1)
        return float(counts @ best) - deviance / 2
    return -deviance / 2 if loss.likelihood else math.nan
