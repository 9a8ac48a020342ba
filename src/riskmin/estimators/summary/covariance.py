r"""Covariances of the coefficients and the intercept of a fitted linear model.

With the Hessian :math:`H = \nabla^2 J(w, b)`, the sum S of the row weights and the gradients
:math:`\psi_i = \nabla_{w, b}\,(l_i + \alpha\,\Omega)` of the rows at the solution, where they sum to zero,

.. math:: V_{\text{hessian}} = \frac{\phi}{S} H^{-1}, \qquad
          V_{\text{sandwich}} = \frac1S H^{-1} \Bigl(\sum_i \tfrac{s_i}{S}\, \psi_i \psi_i^\top\Bigr) H^{-1}.

The first one holds where the loss is minus a log-likelihood with the dispersion :math:`\phi`, the second one
for every smooth loss. Both are computed with centered columns :math:`x - \mu`, for which the intercept
is :math:`b + \mu^\top w`: columns whose mean is large beside their standard deviation keep their digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.certificates.curvature import (
    centered_gram,
    column_sums,
    inverse_of,
    penalty_hessian,
    row_curvatures,
)
from riskmin.core import NDArray
from riskmin.estimators._common.base import RiskArguments


class NoCovariance(ValueError):
    """There are no standard errors; the message states the reason and the remedy."""


@dataclass(frozen=True)
class CoefficientCovariance:
    """The covariance of the intercept, if there is one, and the weights, in this order."""

    matrix: NDArray
    dispersion: float
    """The estimated variance of y for the squared loss, else 1."""
    distance: NDArray | None = None
    """With several classes, how far each coefficient is from that of the minimum of J, at most."""


def coefficient_covariance(
    model: Any, X: Any, at: RiskArguments, counts: NDArray, *, sandwich: bool
) -> CoefficientCovariance:
    """Return the covariance of the coefficients of a fitted model of one score per row.

    `counts` are the row weights s_i > 0, and X holds the rows of these weights.
    """
    loss, w = model._fitted_loss(), np.asarray(model.result_.w)
    z, y, c = at
    total, has_intercept = float(counts.sum()), bool(model.fit_intercept)
    h = row_curvatures(loss, z, y, c)
    mean = column_sums(X, h) / h.sum() if has_intercept and h.sum() > 0 else np.zeros(X.shape[1])
    H = centered_gram(X, h, mean)
    H[1:, 1:] += float(model.alpha) * penalty_hessian(model._penalty(), w)
    slopes = loss.value_grad(z, y, c)[1]
    keep = slice(None) if has_intercept else slice(1, None)
    inverse = inverse_of(H[keep, keep])
    dispersion, inner = 1.0, inverse
    if sandwich:
        M = centered_gram(X, slopes**2 * (total / counts), mean)
        gradient = np.concatenate([[slopes.sum()], column_sums(X, slopes) - mean * slopes.sum()])
        inner = inverse @ (M - np.outer(gradient, gradient))[keep, keep] @ inverse
    elif loss.likelihood == "normal":
        dispersion = _residual_variance(z - y, counts, len(H[keep]))
    T = np.eye(len(H))
    T[0, 1:] = -mean  # b = (b + mean'w) - mean'w
    T = T[keep, keep]
    return CoefficientCovariance(dispersion / total * (T @ inner @ T.T), dispersion)


def _residual_variance(residuals: NDArray, counts: NDArray, n_parameters: int) -> float:
    """Return the sum of squared residuals over the degrees of freedom, with weights as numbers of rows."""
    freedom = float(counts.sum()) - n_parameters
    if freedom <= 0:
        raise NoCovariance(
            f"{counts.sum():g} observations do not determine the variance of y with {n_parameters} "
            "coefficients: give more rows than columns, and weights that count rows"
        )
    return float(counts @ residuals**2) / freedom
