"""Weights of fitted models as sparse arrays, as scikit-learn's `SparseCoefMixin` has them."""

from __future__ import annotations

from typing import Any, TypeVar

from scipy.sparse import csr_array

from riskmin.arrays.namespace import is_sparse
from riskmin.estimators.gpu_rows import dense_weights
from riskmin.estimators.scikit_learn import check_is_fitted

Model = TypeVar("Model", bound="SparseWeightsMixin")


class SparseWeightsMixin:
    """Mixin of linear models whose `coef_` may be sparse, to save memory if most weights are zero."""

    coef_: Any

    def sparsify(self: Model) -> Model:
        """Convert `coef_` to a sparse array.

        Predictions are the same; they, and a warm start, make the weights dense for a moment. `result_` still
        holds the certificate, two dense vectors.

        Returns
        -------
        estimator
            The fitted estimator itself.

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> from riskmin import LinearClassifier
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> model = LinearClassifier("logistic", regularizer="l1", alpha=0.1).fit(X, y).sparsify()
        >>> model.coef_.shape, model.coef_.nnz < 10
        ((1, 30), True)
        >>> model.densify().coef_.shape
        (1, 30)
        """
        check_is_fitted(self)
        sparse = csr_array(dense_weights(self))
        if sparse.ndim != self.coef_.ndim:
            raise ValueError("sparse vectors need SciPy 1.15 or later: upgrade it")
        self.coef_ = sparse
        return self

    def densify(self: Model) -> Model:
        """Convert `coef_` back to a dense array, if it is sparse.

        Returns
        -------
        estimator
            The fitted estimator itself.
        """
        check_is_fitted(self)
        if is_sparse(self.coef_):
            self.coef_ = dense_weights(self)
        return self
