"""Linear regression with any convex loss."""

from __future__ import annotations

import copy
from dataclasses import field
from typing import Any, cast

import numpy as np
import scipy.sparse

from riskmin.arrays.namespace import namespace
from riskmin.core import NDArray
from riskmin.estimators._common.base import RowEstimator, estimator
from riskmin.estimators._common.fit import (
    decision_scores,
    resolve_loss,
    warn_unless_converged,
)
from riskmin.estimators._common.input import validate_rows
from riskmin.estimators._common.labels import Numbers
from riskmin.estimators._common.offset import OffsetScoreMixin
from riskmin.estimators._common.outputs import unpack_weights
from riskmin.estimators._common.sparse_weights import SparseWeightsMixin
from riskmin.estimators.evidence import ProofMixin
from riskmin.estimators.removal import RemovalMixin
from riskmin.estimators.scikit_learn import RegressorMixin
from riskmin.estimators.summary.table import SummaryMixin
from riskmin.losses import LOSSES


def validate_regression_data(model: Any, X: Any, y: Any, check: Any = validate_rows) -> tuple[Any, NDArray]:
    """Validate rows and numeric labels, of one or several outputs, with the function `check`."""
    if scipy.sparse.issparse(y):
        raise ValueError("y is a sparse matrix: give an array, such as y.toarray()")
    result: tuple[Any, NDArray] = check(model, X, y, y_numeric=True, multi_output=True)
    return result


def has_log_link(loss: Any) -> bool:
    """Whether scores are logarithms of the mean; accepts invalid losses, since it is called before `fit`."""
    if isinstance(loss, str):
        loss = LOSSES.get(loss.partition(":")[0].strip())
    return bool(getattr(loss, "log_link", False))


@estimator
class LinearRegressor(
    SparseWeightsMixin,
    OffsetScoreMixin,
    RegressorMixin,  # type: ignore[misc] # scikit-learn has no types
    ProofMixin,
    SummaryMixin,
    RemovalMixin,
    RowEstimator,
):
    r"""Linear regression for any convex loss, with a certified objective.

    .. math::
        \min_{w, b}\; J(w, b) = \alpha\,\Omega(w) + \sum_i c_i\, l(x_i^\top w + b, y_i),
        \qquad c_i = s_i / \textstyle\sum_j s_j,

    where :math:`s_i` is the weight of a row, 1 by default. The intercept b is not penalized. The fit stops
    when :math:`J - \min J \le \text{tol} \cdot J` is proved.

    The prediction is the score :math:`x^\top w + b`, except for "poisson", "gamma", "tweedie" and
    "negative_binomial", whose scores are logarithms of the mean: they predict :math:`e^{x^\top w + b}`.
    Labels of "cox" are times of events, and minus the times of rows without one.

    For y of shape (n, k), each of the k outputs has weights and an intercept, and J is the sum over the
    outputs. With "squared" and "l2", and with ``MultivariateSquared(M)``, this is one problem; with other
    losses and regularizers it separates into one problem per output, each with its own certificate, and the
    reported objective and bound are the sums.

    Parameters
    ----------
    loss : str or Loss
        A name of `riskmin.LOSSES` for regression, optionally with parameters (``"quantile:level=0.9"``),
        or a loss object: one of riskmin's, or any object with ``separable`` and ``value_grad(z, y, c)``.
    alpha : float or (k,) array
        Regularization strength. With "l2" and n rows, scikit-learn's Ridge calls ``alpha * n`` its
        alpha, and LinearSVR ``1 / (alpha * n)`` its C; PoissonRegressor's alpha is the same, and so is
        Lasso's with "l1". 0: no penalty, with a proof for "squared", quantiles and most other losses. An
        array has one number for each of k outputs, which are separate problems then.
    fit_intercept : bool
        Whether to fit the intercept b; if False, b = 0.
    checkpoint : path, `riskmin.Checkpoint` or None
        A file to which the run is saved periodically, and from which it resumes; separate problems write
        one file per output, with its index after the name.

    Attributes
    ----------
    coef_ : (p,) or (k, p) array
        w; one row per output if y is two-dimensional.
    intercept_ : scalar or (k,) array
        b, in float64.
    n_iter_ : int
        The number of iterations; the largest one for separate problems.
    result_ : `riskmin.Result`
        The status, the trace, and the cut that proves the bound. For separate problems it is that of their
        sum: ``w`` is ``coef_.T`` in row-major order; the trace has the last row of each, and a total.

    References
    ----------
    C. H. Teo, S. V. N. Vishwanathan, A. Smola, Q. V. Le, Bundle methods for regularized risk
    minimization, JMLR 11, 2010.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin import LinearRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = LinearRegressor("quantile:level=0.9", alpha=1e-5).fit(X, y)
    >>> bool(abs((y <= model.predict(X)).mean() - 0.9) < 0.02)
    True
    >>> model.gap_ <= model.tol * model.objective_
    True
    """

    task = "regression"
    can_be_unpenalized = True
    _label_kind = Numbers
    multi_output_targets = True

    loss: Any = field(default="squared", kw_only=False)
    alpha: Any = 1e-4
    fit_intercept: bool = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = has_log_link(self.loss)
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, offset: Any = None) -> LinearRegressor:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame; `riskmin.PartitionedMatrix` or Dask array or dataframe
            Float arrays in either order, CSR and CSC are not copied. Remote rows are not moved.
        y : (n,) or (n, k) array
            Real numbers, >= 0 for losses of logarithms of the mean; one column per output.
        sample_weight : (n,) array, optional
            Weights >= 0; rows of weight zero have no effect on the fit.
        offset : (n,) array, optional
            Numbers that are added to the scores of the rows, such as the logarithm of an exposure for the
            Poisson loss. For one output. `predict` takes those of its rows; the model does not keep them.

        Returns
        -------
        LinearRegressor
            The fitted estimator itself.
        """
        resolve_loss(self)  # report an invalid loss before reading y
        X, y = validate_regression_data(self, X, y)
        if offset is not None and y.ndim > 1:
            raise ValueError("offset is for one output: fit one model per column of y, each with its own")
        self._fit_rows(X, y, sample_weight, offset=offset)
        warn_unless_converged(self)
        return self

    def _check_parameters(self) -> None:
        for alpha in np.ravel(self.alpha).tolist() if np.ndim(self.alpha) == 1 else [self.alpha]:
            single = copy.copy(self)
            single.alpha = alpha
            super(LinearRegressor, single)._check_parameters()

    def _set_weights(self, w: NDArray, b: NDArray, cuts: NDArray) -> None:
        k = cast(Numbers, self._labels).outputs
        if k is None:
            super()._set_weights(w, b, cuts)
        else:  # w holds the outputs side by side; b is one number if there is no intercept
            self.coef_, self.intercept_ = unpack_weights(w, k, intercepts=False)[0], b + np.zeros(k)

    def _scores(self, X: Any) -> NDArray:
        z = decision_scores(self, X)
        return z.reshape(len(z), -1) if self._fitted_loss().multi_output else z

    def predict(self, X: Any, *, offset: Any = None) -> NDArray:
        """Predict X @ w + b, one column per output; its exponential for logarithms of the mean.

        An offset, one number per row, is added to X @ w + b.
        """
        z = decision_scores(self, X, offset)
        if self.coef_.ndim == 2:
            z = z.reshape(len(z), -1)  # a y of shape (n, 1) gives predictions of that shape
        return namespace(z).exp(z) if has_log_link(self.loss) else z
