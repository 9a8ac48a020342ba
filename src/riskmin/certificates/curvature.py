r"""The Hessian of J in the intercept and the weights, with centered columns.

.. math:: H = \sum_i c_i\, l''(z_i, y_i)\, \tilde x_i \tilde x_i^\top + \alpha\, \nabla^2 \Omega,
          \qquad \tilde x_i = (1, x_i - \mu).

For centered columns the intercept is :math:`b + \mu^\top w`: columns whose mean is large beside their
standard deviation keep their digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.arrays.namespace import is_sparse
from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_linalg
from riskmin.core.limits import LIMITS


class SingularHessian(ValueError):
    """The Hessian is not positive definite; the message states the reason and the remedy."""


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


def inverse_factor(H: NDArray) -> NDArray:
    """Return T with T'HT = I, so that TT' is the inverse of a positive definite H; raise if H is singular.

    H is factored for the unit diagonal, so that the units of the columns do not matter.
    """
    d = np.sqrt(np.maximum(np.diag(H), 0.0))
    linalg = scipy_linalg()
    if not (d > 0).all():
        raise SingularHessian(_SINGULAR)
    try:
        L = linalg.cholesky(H / np.outer(d, d), lower=True)
    except np.linalg.LinAlgError:
        raise SingularHessian(_SINGULAR) from None
    T: NDArray = linalg.solve_triangular(L, np.eye(len(H)), lower=True).T / d[:, None]
    return T


def inverse_of(H: NDArray) -> NDArray:
    """Return the inverse of a positive definite matrix."""
    T = inverse_factor(H)
    inverse: NDArray = T @ T.T
    return inverse


_SINGULAR = (
    "the Hessian of the objective is singular at the solution, since columns depend on each other or no row "
    "has curvature there: leave out such columns, or raise alpha"
)
