"""Kernel approximation by the rows of an incomplete Cholesky factor."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from riskmin.core import NDArray
from riskmin.core.messages import is_whole_number
from riskmin.estimators._common.base import estimator
from riskmin.estimators._common.fit import check_number
from riskmin.estimators._common.input import validate_local_rows
from riskmin.estimators.kernel.names import (
    KERNEL_VALIDATION_OPTIONS,
    cross_kernel_matrix,
    kernel_row_blocks,
    resolve_kernel,
)
from riskmin.estimators.scikit_learn import CallbackSupportMixin
from riskmin.problem.kernel.incomplete_cholesky import incomplete_cholesky
from riskmin.problem.kernel.mercer import KernelMatrix, kernel_diagonal


@estimator
class IncompleteCholesky(
    CallbackSupportMixin,  # type: ignore[misc] # scikit-learn has no types
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    r"""Features :math:`L` whose inner products approximate a kernel, :math:`L L^\top \approx K`.

    Pivots are chosen greedily among the rows until the residual trace of K is small or the rank is reached.
    K is never formed: the memory is that of L, n times r numbers. A linear model on these features is a
    kernel machine, so `LinearClassifier` with any loss handles kernels of many rows.

    Parameters
    ----------
    kernel : str or callable
        A kernel name of scikit-learn ("rbf", "linear", "poly", "laplacian", "cosine", ...), "precomputed", or
        ``kernel(A, B)``, which returns a matrix with one row per row of A and one column per row of B.
    gamma : "scale", "auto" or float
        Kernel coefficient; "scale" is 1 / (p times the variance of X), "auto" is 1 / p.
    degree, coef0 : int, float
        Parameters of the polynomial kernel.
    rank : int or None
        Largest number of features; None leaves it to `tol`.
    tol : float
        Stop once the residual trace is at most this fraction of the trace of K.
    dtype : "float64" or "float32"
        Type of the features; float32 needs half the memory.
    max_seconds : float or None
        Time limit of the choice of pivots, or None; `residual_` says what they leave.

    Attributes
    ----------
    pivots_ : (r,) array
        Indices of the rows chosen as pivots, in order.
    components_ : (r, p) array or sparse matrix
        The pivot rows of X.
    triangle_ : (r, r) array
        The features of the pivots, lower triangular.
    residual_ : float
        The residual trace as a fraction of the trace of K.
    kernel_ : callable or "precomputed"
        The kernel with its parameters resolved.
    n_features_in_, feature_names_in_ : int, array
        As in every scikit-learn estimator.

    References
    ----------
    S. Fine, K. Scheinberg, Efficient SVM training using low-rank kernel representations, JMLR 2, 2001.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from riskmin import IncompleteCholesky, LinearClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), IncompleteCholesky(rank=100), LinearClassifier(alpha=1e-3))
    >>> model.fit(X, y).score(X, y) > 0.97
    True
    """

    kernel: Any = field(default="rbf", kw_only=False)
    gamma: Any = "scale"
    degree: int = 3
    coef0: float = 0.0
    rank: int | None = None
    tol: float = 1e-3
    dtype: str = "float64"
    max_seconds: float | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.kernel == "precomputed"
        # the parameter `dtype` decides, not the type of X
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: Any = None) -> IncompleteCholesky:
        """Choose the pivots.

        Parameters
        ----------
        X : (n, p) array, CSR matrix or data frame
            The (n, n) kernel matrix itself, if the kernel is "precomputed".
        y : None
            Ignored.

        Returns
        -------
        IncompleteCholesky
            The fitted estimator itself.
        """
        self.fit_transform(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> NDArray:
        """Choose the pivots and return the factor L of these rows.

        Parameters
        ----------
        X : (n, p) array, CSR matrix or data frame
        y : None
            Ignored.

        Returns
        -------
        (n, r) array
            L, in Fortran (column-major) order.
        """
        X = validate_local_rows(self, X, **KERNEL_VALIDATION_OPTIONS)
        n = X.shape[0]
        rank = self._check(n)
        self.kernel_ = kernel = resolve_kernel(self, X)
        # precomputed: X is the kernel matrix itself
        if kernel == "precomputed":
            K = KernelMatrix(kernel, X)
            rows, diagonal = K.store.__getitem__, K.diagonal
        else:
            rows, diagonal = lambda i: kernel(X[i], X), kernel_diagonal(kernel, X)
        seconds = math.inf if self.max_seconds is None else float(self.max_seconds)
        factor = incomplete_cholesky(
            rows, diagonal, rank=rank, tol=float(self.tol), dtype=self.dtype, max_seconds=seconds
        )
        self.pivots_, self.residual_ = factor.pivots, factor.residual
        self.components_ = np.empty((0, 0)) if kernel == "precomputed" else X[factor.pivots]
        # factor.T is L^T, of shape (r, n): the rows of L at the pivots are lower triangular
        self.triangle_ = np.tril(factor.T[:, factor.pivots].T)
        self._n_features_out = len(factor.pivots)
        return factor.T.T

    def _check(self, n_rows: int) -> int:
        check_number(self, "tol", "a number >= 0", lambda v: 0 <= v < math.inf)
        if self.max_seconds is not None:
            check_number(self, "max_seconds", "None or a number > 0", lambda v: v > 0)
        if self.dtype not in ("float64", "float32"):
            raise ValueError(f"dtype={self.dtype!r}, but IncompleteCholesky makes 'float64' or 'float32'")
        rank = n_rows if self.rank is None else self.rank
        if not is_whole_number(rank, at_least=1):
            raise ValueError(f"rank={self.rank!r}: give a whole number >= 1, or None to let tol decide")
        return min(int(rank), n_rows)

    def transform(self, X: Any) -> NDArray:
        r"""Return the features of new rows.

        They are :math:`K(X, P)\, T^{-\top}` for the pivots P and their triangular factor T, `triangle_`.

        Parameters
        ----------
        X : (m, p) array, CSR matrix or data frame

        Returns
        -------
        (m, r) array
        """
        check_is_fitted(self)
        X = validate_local_rows(self, X, reset=False, **KERNEL_VALIDATION_OPTIONS)
        out = np.empty((X.shape[0], len(self.pivots_)), dtype=self.dtype)
        # blocks bound the memory of K(X, P)
        for part in kernel_row_blocks(*out.shape):
            K = cross_kernel_matrix(self.kernel_, X[part], self.components_, self.pivots_)
            out[part] = scipy.linalg.solve_triangular(self.triangle_, K.T, lower=True).T
        return out
