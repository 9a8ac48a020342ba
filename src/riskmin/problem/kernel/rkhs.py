r"""Risks in feature space: :math:`J(f) = \tfrac\lambda2 \|f\|_H^2 + \sum_i c_i\, l(f(x_i), y_i)`.

A function :math:`f = \sum_i \beta_i\, k(x_i, \cdot)` is stored as the pair
:math:`w = (K \beta, \beta) / \sqrt2`, a cut of slope :math:`\gamma` as
:math:`a = (\gamma, K \gamma) / \sqrt2`. So :math:`a^\top w = \gamma^\top K \beta` is the inner product of the
feature space, scores cost nothing, and a gradient costs one product with K. Every method that needs only
inner products of cuts works unchanged (Teo et al., KDD 2007, section 6).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from riskmin.arrays.finite import check_finite
from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.namespace import as_numpy
from riskmin.arrays.sparse_checks import validated_sparse
from riskmin.core import Array, LinearMap, Matrix, NDArray, Shard
from riskmin.executors.base import SerialExecutor
from riskmin.losses import get_loss
from riskmin.losses.base import Loss
from riskmin.problem.kernel.mercer import DotProduct, Kernel, KernelMatrix, Polynomial, Rbf, sp
from riskmin.problem.linear_risk import check_labels, check_weights
from riskmin.problem.risk import Risk, with_intercept
from riskmin.regularizers.base import Regularizer, quadratic_bound, quadratic_scale

SQRT2 = math.sqrt(2.0)


def swap_halves(w: Array) -> Array:
    """The pair with its halves exchanged: this maps functions to slopes and back."""
    n = len(w) // 2
    return np.concatenate([w[n:], w[:n]])


def as_pair(z: NDArray, beta: NDArray) -> NDArray:
    """The function with scores z = K beta and coefficients beta, as a pair."""
    return np.concatenate([z, beta]) / SQRT2


def coefficients(w: NDArray) -> NDArray:
    """The beta of a pair."""
    return SQRT2 * w[len(w) // 2 :]


@dataclass(frozen=True)
class RkhsMap(LinearMap):
    """The linear map from functions, stored as pairs, to scores; its matrix is a `KernelMatrix`."""

    columns = 1

    def dim(self, n_features: int) -> int:
        return 2 * n_features

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        # the first half of the pair is K beta / sqrt(2), where K beta are the scores
        return SQRT2 * w[start:stop]

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        n = X.shape[0]
        # the gradient is the pair (gamma, K gamma) / sqrt(2) of the slope gamma = dz
        slope = dz / SQRT2
        out[start:stop] += slope
        X.pullback(slope, start, stop, out[n:])

    def absolute_pullback(self, X: Any, slopes: Array, out: Array) -> bool:
        out[X.shape[0] :] = X.absolute_product(slopes)  # for all rows at once
        return True

    def dot(self, g: Array, w: Array) -> float:
        """The inner product of a slope and a function, from the function's scores alone.

        A cut at given scores is valid for any coefficients, even if rounding made them inconsistent with the
        scores.
        """
        # (gamma / sqrt 2)' (K beta / sqrt 2), times 2
        n = len(w) // 2
        return 2 * float(g[:n] @ w[:n])


@dataclass(frozen=True)
class RkhsNorm(Regularizer):
    r"""Half the squared norm of a function that is stored as a pair, :math:`\Omega(f) = \tfrac12 \|f\|_H^2`.

    It is its own conjugate, up to exchanging the halves. It has no gradient in the coordinates of a pair,
    since a step along it would not lead to a pair.

    Parameters
    ----------
    kernel : str
        Identifies the feature space, so that a run cannot be resumed in a different one.
    K : KernelMatrix, optional
        The kernel matrix, with which `recompute` recomputes products.
    """

    kernel: str = ""
    K: KernelMatrix | None = field(default=None, repr=False, compare=False)

    formula = "|f|_H^2 / 2"
    halves = True

    def value(self, w: Array) -> float:
        """Half of beta' K beta."""
        n = len(w) // 2
        # (K beta / sqrt 2)' (beta / sqrt 2)
        return float(w[:n] @ w[n:])

    def recompute(self, w: Array, slope: bool = False) -> Array:
        """A function, or a slope, with K times its coefficients recomputed.

        Solvers update both halves of a pair, and rounding errors make them drift apart.
        """
        if self.K is None:
            return w
        # a slope is (gamma, K gamma) / sqrt 2, a function (K beta, beta) / sqrt 2
        n = len(w) // 2
        if slope:
            return np.concatenate([w[:n], self.K.product(w[:n])])
        return np.concatenate([self.K.product(w[n:]), w[n:]])

    def term_size(self, coefficients: Array) -> float:
        """The size of the terms of which a squared norm is the sum, |beta|' |K| |beta|."""
        sizes = np.abs(coefficients)
        return 0.0 if self.K is None else float(self.K.absolute_product(sizes) @ sizes)

    def prox(self, v: Array, step: float) -> Array:
        """The proximal point in the metric of the feature space, v / (1 + step)."""
        return v / (1 + step) if step else v

    def conjugate(self, u: Array) -> float:
        """The same function as `value`."""
        return self.value(u)

    def conjugate_grad(self, u: Array) -> Array:
        """The pair u with its halves exchanged."""
        return swap_halves(u)

    def inverse_metric_product(self, A: Array, a: Array) -> Array:
        """The inner products of slopes in the feature space."""
        return A @ swap_halves(a)

    scale = quadratic_scale
    bound = quadratic_bound

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """The function t -> (|f + t d|^2 / 2, its derivative), from three inner products."""
        # |f + t d|^2 / 2 = ww + t wd + t^2 dd, with ww = |f|^2 / 2, wd = <f, d>, dd = |d|^2 / 2
        ww, wd, dd = self.value(w), float(w @ swap_halves(d)), self.value(d)
        return lambda t: (ww + t * wd + t * t * dd, wd + 2 * t * dd)


_NAMED: dict[str, Callable[..., Kernel]] = {"rbf": Rbf, "linear": DotProduct, "poly": Polynomial}


def as_gram(kernel: Any, X: Any, cache_bytes: int) -> KernelMatrix:
    """The kernel matrix of X, after checking X."""
    if isinstance(X, KernelMatrix):
        return X
    X = validated_sparse(X) if sp.issparse(X) and len(X.shape) == 2 else as_numpy(X, "X")
    if len(X.shape) == 1 and X.dtype.kind in "biufc":
        as_matrix(X)  # raises: its message explains how to make X two-dimensional
    if X.shape[0] == 0:
        raise ValueError("X has 0 rows: there is nothing to fit")
    # numbers are checked and converted to float64; anything else is left to a user-defined kernel
    if len(X.shape) == 2 and X.dtype.kind != "U":
        X = sp.csr_array(X) if sp.issparse(X) else X
        if X.dtype.kind in "biufc" or kernel in ("precomputed", *_NAMED):
            check_finite(as_matrix(X))
            X = X.astype(np.float64, copy=False)
    if kernel in (*_NAMED,):
        kernel = _NAMED[kernel]()
    if not (callable(kernel) or kernel == "precomputed"):
        raise ValueError(f"kernel={kernel!r}: give a callable k(A, B), {', '.join(_NAMED)} or precomputed")
    return KernelMatrix(kernel, X, cache_bytes)


def kernel_risk(
    X: Any,
    y: Any,
    loss: str | Loss,
    kernel: Any = "rbf",
    *,
    sample_weight: Any = None,
    fit_intercept: bool = False,
    cache_bytes: int = 2**28,
) -> tuple[Risk, RkhsNorm]:
    r"""The risk of functions in a kernel's feature space, and the regularizer :math:`\tfrac12 \|f\|_H^2`.

    A function is stored as the pair :math:`w = (K \beta, \beta) / \sqrt2`: `Bundle`, `Bmrm` and
    `LineSearchBmrm` minimize over it for every loss, `KernelDual` for those with a conjugate.

    Parameters
    ----------
    X : (n, p) array or sparse matrix
        Or any array that the kernel takes slices of; for "precomputed", the (n, n) kernel matrix itself.
    y : (n,) array
        Labels as the loss takes them: -1 and +1 for classification.
    loss : Loss or str
    kernel : callable, "rbf", "linear", "poly" or "precomputed"
        A Mercer kernel: ``kernel(A, B)`` is a matrix with a row for each row of A, a column for each of B.
        The names stand for ``Rbf()``, ``DotProduct()`` and ``Polynomial()``.
    sample_weight : (n,) array, optional
    fit_intercept : bool
        Add an intercept that is never penalized.
    cache_bytes : int
        Memory for cached rows of the kernel matrix, in bytes.

    Returns
    -------
    Risk
        As from `linear_risk`.
    RkhsNorm

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Objective, Rbf, kernel_risk, minimize
    >>> X, y = np.array([[-1.0], [0.0], [1.0]]), np.array([-1.0, 1.0, -1.0])  # no line separates them
    >>> J = Objective(*kernel_risk(X, y, "hinge", Rbf(gamma=1.0)), lam=0.01)
    >>> result = minimize(J, tol=1e-6)
    >>> result.status, round(result.value, 4)
    ('converged', 0.03)
    """
    resolved: Loss = get_loss(loss)
    if resolved.multi_output:
        raise TypeError(
            f"kernel_risk has one score per row, and {type(resolved).__name__} needs several: use "
            "KernelClassifier, which fits one function per class, or linear_risk"
        )
    gram = as_gram(kernel, X, cache_bytes)
    n = gram.shape[0]
    shard = Shard(gram, check_labels(y, n, resolved), check_weights(sample_weight, n), {})
    executor = SerialExecutor([shard], blas_threads=None)  # products with K are large: use all BLAS threads
    risk = Risk(resolved, RkhsMap(), executor, 2 * n)
    # the sum of the first 16 rows of K, to 9 digits, identifies the feature space
    first_rows = np.zeros(n)
    first_rows[:16] = 1.0
    fingerprint = f"{gram.kernel!r}, {float(gram.product(first_rows).sum()):.9g}"
    return with_intercept(risk) if fit_intercept else risk, RkhsNorm(fingerprint, gram)
