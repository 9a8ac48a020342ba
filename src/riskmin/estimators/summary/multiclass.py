r"""Covariances of the coefficients of several classes, as differences to those of the first class.

The loss depends on differences of scores alone. With the orthonormal basis B, of shape (k, k - 1), of the
vectors that sum to zero, the weights of minimal norm are :math:`W = B U`, and the Hessian in U and the
intercepts is :math:`\sum_i (B^\top H_i B) \otimes \tilde x_i \tilde x_i^\top`, with the Hessian
:math:`H_i` of row i in its scores, and :math:`\tilde x_i = (1, x_i - \mu)`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.certificates.curvature import (
    centered_gram,
    column_sums,
    inverse_factor,
    inverse_of,
    penalty_hessian,
)
from riskmin.certificates.region import CenteredRows, distance_to_minimum
from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_linalg
from riskmin.estimators._common.base import RiskArguments
from riskmin.estimators.summary.covariance import CoefficientCovariance, NoCovariance, Sandwich


def class_covariance(
    model: Any, X: Any, at: RiskArguments, counts: NDArray, *, sandwich: Sandwich | None
) -> CoefficientCovariance:
    """Return the covariance of coefficients less those of the first class: for each class b, then w.

    `counts` are the row weights s_i > 0, and X holds the rows of these weights.
    """
    (z, y, c), loss, p, k = at, model._fitted_loss(), X.shape[1], len(model.classes_)
    total, has_intercept = float(counts.sum()), bool(model.fit_intercept)
    basis = scipy_linalg().helmert(k).T  # (k, k - 1), orthonormal
    dz = loss.value_grad(z, y, c)[1]
    blocks = loss.block_hessian(dz.copy(), y, c)
    mean = column_sums(X, c) if has_intercept else np.zeros(p)
    curvature = [blocks.product(np.tile(b, (len(c), 1)), slice(None)) @ basis for b in basis.T]
    H = _gram_blocks(X, np.stack(curvature, axis=1), mean)
    ridge = np.pad(float(model.alpha) * _ridge(model, p, k), (1, 0))
    H[np.diag_indices(len(H))] += np.tile(ridge, k - 1)
    keep = np.tile(np.r_[has_intercept, np.ones(p, bool)], k - 1)
    inverse = inverse_of(H[np.ix_(keep, keep)])
    inner = inverse
    if sandwich is not None:
        if sandwich.kind not in ("HC0", "HC1"):
            raise NoCovariance(f"covariance={sandwich.kind!r} is for one score per row: use 'HC0' or 'HC1'")
        D = dz @ basis
        M = _gram_blocks(X, D[:, :, None] * D[:, None, :] * (total / counts)[:, None, None], mean)
        sums = [np.r_[d.sum(), column_sums(X, d) - mean * d.sum()] for d in D.T]
        gradient = np.concatenate(sums)
        inner = inverse @ (M - np.outer(gradient, gradient))[np.ix_(keep, keep)] @ inverse
        inner = sandwich.correction(total, len(inverse)) * inner
    # back from centered columns, b = (b + mean'w) - mean'w, and from U to differences of classes
    T = np.eye(p + 1)
    T[0, 1:] = -mean
    T = np.kron(basis[1:] - basis[0], T)[:, keep][keep]
    U = np.column_stack([np.zeros(k), np.asarray(model.result_.w)[: p * k].reshape(p, k).T])
    slopes = [np.append(d.sum(), column_sums(X, d) - mean * d.sum()) for d in (dz @ basis).T]
    gradient = np.concatenate(slopes) + np.tile(ridge, k - 1) * (basis.T @ U).ravel()
    radius = _radius(CenteredRows(X, mean), inverse_factor(H[np.ix_(keep, keep)]), gradient[keep], keep, k)
    distance = radius * np.sqrt(np.diag(T @ inverse @ T.T))
    return CoefficientCovariance(T @ inner @ T.T / total, 1.0, distance)


def _radius(rows: CenteredRows, T: NDArray, gradient: NDArray, keep: NDArray, k: int) -> float:
    r"""Return the distance to the minimum in the metric of the Hessian, as in `certificates.region`.

    The loss is self-concordant in differences of two scores, which for a row are at most
    :math:`\sqrt2` times the norm of :math:`(T^	op (x_i \otimes e_a))_a`.
    """
    wide = np.zeros((len(keep), T.shape[1]))
    wide[keep] = T
    squares = sum(rows.norms(block) ** 2 for block in np.split(wide, k - 1))
    N = float(np.linalg.norm(T.T @ gradient))
    return float(distance_to_minimum(N, math.sqrt(2 * float(np.max(squares)))))


def _gram_blocks(X: Any, V: NDArray, mean: NDArray) -> NDArray:
    """Return sum_i V_i (x) xx', for symmetric V_i of shape (m, m) and x = (1, x_i - mean)."""
    m, q = V.shape[1], X.shape[1] + 1
    gram = np.empty((m, q, m, q))
    for a in range(m):
        for b in range(a + 1):
            gram[a, :, b] = centered_gram(X, np.ascontiguousarray(V[:, a, b]), mean)
            gram[b, :, a] = gram[a, :, b]  # each block is symmetric
    return gram.reshape(m * q, m * q)


def _ridge(model: Any, p: int, k: int) -> NDArray:
    """Return the second derivatives of the penalty by feature; they must be the same for all classes."""
    w = np.asarray(model.result_.w)[: p * k]
    penalty = model._penalty().penalized_part
    H = penalty_hessian(penalty, w) if penalty.without_sizes.diagonal else None
    ridge = None if H is None else np.diag(H).reshape(p, k)
    if ridge is None or np.any(ridge != ridge[:, :1]):
        raise NoCovariance(
            f"{penalty!r} is no sum of squares with the same factors for all classes: use regularizer='l2'"
        )
    return np.asarray(ridge[:, 0])
