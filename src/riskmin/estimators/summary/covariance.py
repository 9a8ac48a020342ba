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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.namespace import is_sparse
from riskmin.certificates.curvature import (
    centered_gram,
    column_sums,
    inverse_of,
    penalty_hessian,
    row_curvatures,
)
from riskmin.core import NDArray
from riskmin.core.limits import LIMITS
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


@dataclass(frozen=True)
class Sandwich:
    """Which form of the sandwich to compute, in the names of MacKinnon and White (1985)."""

    kind: str = "HC0"
    """HC0; HC1, times n / (n - q) for q coefficients; HC2 and HC3, residuals by their leverage; "cluster"."""
    groups: NDArray | None = None
    """The cluster of each row: rows of one cluster depend on each other."""

    def correction(self, n: float, q: int) -> float:
        """Return the factor for the degrees of freedom, for n observations and q coefficients."""
        if self.kind not in ("HC1", "cluster"):
            return 1.0
        if n <= q:
            raise NoCovariance(f"{n:g} observations are too few for {q} coefficients: use covariance='HC0'")
        if self.groups is None:
            return n / (n - q)
        k = len(np.unique(self.groups))
        if k < 2:
            raise NoCovariance("all rows are of one group: give groups of which there are two or more")
        return k / (k - 1) * (n - 1) / (n - q)

    def inner(
        self, X: Any, slopes: NDArray, counts: NDArray, leverage: Callable[[], NDArray], mean: NDArray
    ) -> NDArray:
        """Return S sum_i s_i psi_i psi_i', or the same for the sums over clusters."""
        total = float(counts.sum())
        if self.groups is None:
            squares = slopes**2 * (total / counts)
            if power := {"HC2": 1, "HC3": 2}.get(self.kind):
                squares /= np.maximum(1 - leverage(), np.finfo(float).eps) ** power
            return centered_gram(X, squares, mean)
        codes = np.unique(self.groups, return_inverse=True)[1]
        member = sp.csr_array((slopes, (codes, np.arange(len(slopes)))))
        sums = np.asarray(member.sum(axis=1)).reshape(-1, 1)
        products = member @ X
        products = products.toarray() if is_sparse(products) else np.asarray(products)
        psi = np.hstack([sums, products - sums * mean])
        # the penalty is a part of the loss of each row, and the gradients of all rows sum to zero
        psi -= np.outer(np.bincount(codes, counts) / total, psi.sum(axis=0))
        result: NDArray = total * psi.T @ psi
        return result


def leverages(X: Any, inverse: NDArray, mean: NDArray, has_intercept: bool) -> NDArray:
    """Return x' H^-1 x of the centered rows, with a leading 1 for the intercept."""
    out = np.empty(X.shape[0])
    step = max(LIMITS.copy_max_entries // max(X.shape[1], 1), 1)
    for rows in (slice(i, i + step) for i in range(0, X.shape[0], step)):
        Z = (X[rows].toarray() if is_sparse(X) else X[rows]) - mean
        Z = np.hstack([np.ones((len(Z), 1)), Z]) if has_intercept else Z
        out[rows] = np.einsum("ij,jk,ik->i", Z, inverse, Z, optimize=True)
    return out


def coefficient_covariance(
    model: Any, X: Any, at: RiskArguments, counts: NDArray, *, sandwich: Sandwich | None
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
    if sandwich is not None:

        def leverage() -> NDArray:
            """The share of a single observation in the Hessian of their sum, in its own direction."""
            return h / counts * leverages(X, inverse, mean, has_intercept)

        M = sandwich.inner(X, slopes, counts, leverage, mean)
        gradient = np.concatenate([[slopes.sum()], column_sums(X, slopes) - mean * slopes.sum()])
        centered = M if sandwich.groups is not None else M - np.outer(gradient, gradient)
        inner = sandwich.correction(total, len(H[keep])) * (inverse @ centered[keep, keep] @ inverse)
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
