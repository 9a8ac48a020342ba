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
from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_linalg
from riskmin.core.limits import LIMITS
from riskmin.estimators._common.base import RiskArguments


class NoCovariance(ValueError):
    """There are no standard errors; the message states the reason and the remedy."""


@dataclass(frozen=True)
class CoefficientCovariance:
    """The covariance of the intercept, if there is one, and the weights, in this order."""

    matrix: NDArray
    inverse_hessian: NDArray
    """The diagonal of the inverse Hessian of J, in the same order."""
    dispersion: float
    """The estimated variance of y for the squared loss, else 1."""


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
    back = T @ inverse @ T.T
    return CoefficientCovariance(dispersion / total * (T @ inner @ T.T), np.diag(back), dispersion)


def row_curvatures(loss: Any, z: NDArray, y: NDArray, c: NDArray) -> NDArray:
    """Return c_i l''(z_i, y_i) of a separable, smooth loss; by central differences if it has no Hessian."""
    hessian = loss.hessian(z, y, c) if loss.has_hessian else None
    if hessian is not None:
        return np.asarray(hessian.diagonal) + np.zeros(len(z))
    step = 6e-6 * (1 + np.abs(z))  # the cube root of the rounding error
    up, down = (loss.value_grad(z + sign * step, y, c)[1] for sign in (1, -1))
    curvature: NDArray = np.maximum((up - down) / (2 * step), 0.0)
    return curvature


def penalty_hessian(reg: Any, w: NDArray) -> NDArray:
    """Return the Hessian of a smooth regularizer at w; by central differences if it is no sum of squares."""
    reg = reg.without_sizes  # in the units of X, a weighted sum of squares remains one
    if reg.diagonal:
        return np.diag(reg.terms(w).square + np.zeros(len(w)))
    H = np.empty((len(w), len(w)))
    for j, step in enumerate(6e-6 * np.where(w, np.abs(w), 1.0)):
        e = np.zeros(len(w))
        e[j] = step
        H[j] = (reg.grad(w + e) - reg.grad(w - e)) / (2 * step)
    return 0.5 * (H + H.T)


def _residual_variance(residuals: NDArray, counts: NDArray, n_parameters: int) -> float:
    """Return the sum of squared residuals over the degrees of freedom, with weights as numbers of rows."""
    freedom = float(counts.sum()) - n_parameters
    if freedom <= 0:
        raise NoCovariance(
            f"{counts.sum():g} observations do not determine the variance of y with {n_parameters} "
            "coefficients: give more rows than columns, and weights that count rows"
        )
    return float(counts @ residuals**2) / freedom


def column_sums(X: Any, v: NDArray) -> NDArray:
    """Return X' v."""
    return np.asarray(X.T @ v).ravel()


def centered_gram(X: Any, v: NDArray, mean: NDArray) -> NDArray:
    """Return Z' diag(v) Z, where row i of Z is 1 and x_i - mean."""
    gram = np.empty((X.shape[1] + 1,) * 2)
    sums = column_sums(X, v)
    gram[0, 0] = v.sum()
    if is_sparse(X):
        inner = np.asarray((X.T @ X.multiply(v[:, None]).tocsr()).todense())
        cross = np.outer(sums, mean)
        gram[1:, 1:] = inner - cross - cross.T + v.sum() * np.outer(mean, mean)
        gram[0, 1:] = gram[1:, 0] = sums - v.sum() * mean
        return gram
    gram[:, 1:] = 0.0
    step = max(LIMITS.copy_max_entries // X.shape[1], 1)
    for rows in (slice(i, i + step) for i in range(0, X.shape[0], step)):  # no copy of all of X
        Z = X[rows] - mean
        gram[0, 1:] += v[rows] @ Z
        gram[1:, 1:] += Z.T @ (v[rows, None] * Z)
    gram[1:, 0] = gram[0, 1:]
    return gram


def inverse_of(H: NDArray) -> NDArray:
    """Return the inverse of a positive definite matrix, computed for the unit diagonal."""
    d = np.sqrt(np.maximum(np.diag(H), 0.0))
    linalg = scipy_linalg()
    if not (d > 0).all():
        raise NoCovariance(_SINGULAR)
    try:
        factor = linalg.cho_factor(H / np.outer(d, d), lower=True)
    except np.linalg.LinAlgError:
        raise NoCovariance(_SINGULAR) from None
    inverse: NDArray = linalg.cho_solve(factor, np.eye(len(H)))
    return 0.5 * (inverse + inverse.T) / np.outer(d, d)


_SINGULAR = (
    "the Hessian of the objective is singular at the solution, since columns depend on each other or no row "
    "has curvature there: leave out such columns, or raise alpha"
)
