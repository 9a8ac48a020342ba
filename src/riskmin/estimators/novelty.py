"""Novelty detection by a linear one-class support vector machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.estimators._common.base import RiskArguments, RowEstimator, estimator
from riskmin.estimators._common.decision import Decision
from riskmin.estimators._common.fit import check_number, warn_unless_converged
from riskmin.estimators._common.input import affine_scores, validate_rows
from riskmin.estimators.scikit_learn import OutlierMixin, check_is_fitted
from riskmin.losses import Novelty


class Quantile(Decision):
    """Rows are novel if their score is below the weighted quantile of the share `contamination`.

    It is the midpoint if it may be any number between two scores. Many scores equal 1 up to rounding, which
    must not decide whether their rows are novel: the quantile is lowered by 1e-9 of the largest score, so
    that rows tied with it are not novel.
    """

    attribute = "offset_"

    def best_cuts(self, model: Any, at: Callable[[], RiskArguments]) -> NDArray:
        z, _, c = at()
        # the quantiles just below and above the level differ only if the level falls between two scores
        levels = np.array([1 - 1e-9, 1 + 1e-9]) * model.contamination
        midpoint = np.quantile(z, levels, weights=c, method="inverted_cdf").mean()
        return np.array([midpoint - 1e-9 * np.abs(z).max()])


@estimator
class NoveltyDetector(OutlierMixin, RowEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""A linear one-class support vector machine, with a certified objective.

    .. math::
        \min_w\; J(w) = \alpha\,\Omega(w) + \sum_i c_i \max(0, 1 - x_i^\top w),
        \qquad c_i = s_i / \textstyle\sum_j s_j,

    where :math:`s_i` is the weight of a row, 1 by default. The hyperplane separates the rows from the
    origin, and rows on the origin's side of it are novel. The features must therefore lie on one side of the
    origin, as counts, histograms and kernel features (``RBFSampler``, ``Nystroem``) do; centered features do
    not. The loss is fixed (`riskmin.Novelty`) and not a parameter. There are no class weights, since there
    is one class, and no intercept, since an unpenalized one would be 1 with w = 0 for any data.

    Parameters
    ----------
    contamination : float
        The fraction of the training rows, in (0, 0.5], that `predict` labels novel.
    standardize : bool
        Whether to divide columns by their standard deviations internally. They are not centered, so that
        they stay on their side of the origin; `coef_` is in the units of X.
    atol : float or None
        0 by default: J is nearly zero if some hyperplane separates all rows from the origin, but the one of
        largest margin is sought.

    Attributes
    ----------
    coef_ : (p,) array
        w.
    offset_ : float
        The quantile of the training scores at `contamination`, weighted by `sample_weight`.

    References
    ----------
    B. Schölkopf, J. Platt, J. Shawe-Taylor, A. Smola, R. Williamson, Estimating the support of a
    high-dimensional distribution, Neural Computation 13(7), 2001.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from riskmin import NoveltyDetector
    >>> X, digit = load_digits(return_X_y=True)
    >>> model = NoveltyDetector(contamination=0.05).fit(X[digit == 0])
    >>> bool((model.predict(X[digit == 1]) == -1).mean() > 0.8)
    True
    """

    task = "novelty"
    _decision = Quantile()
    loss = Novelty()

    contamination: float = 0.1
    atol: float | None = 0.0

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> NoveltyDetector:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame; `riskmin.PartitionedMatrix` or Dask array or dataframe
            Float arrays in either order, CSR and CSC are not copied. Remote rows are not moved.
        y : ignored
        sample_weight : (n,) array, optional
            Weights >= 0; rows of weight zero have no effect on the fit.

        Returns
        -------
        NoveltyDetector
            The fitted estimator itself.
        """
        self._check_parameters()
        self._fit_rows(validate_rows(self, X), None, sample_weight)
        warn_unless_converged(self)
        return self

    def _set_weights(self, w: NDArray, b: NDArray, cuts: NDArray) -> None:
        self.coef_, self.offset_ = w, float(cuts[0])

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number(self, "contamination", "a number in (0, 0.5]", lambda v: 0 < v <= 0.5)

    def score_samples(self, X: Any) -> NDArray:
        """Return the scores X @ w: the lower, the more novel."""
        check_is_fitted(self)
        return affine_scores(validate_rows(self, X, reset=False), self.coef_, 0.0)

    def decision_function(self, X: Any) -> NDArray:
        """Return the scores less `offset_`: below zero for novel rows."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> NDArray:
        """Predict -1 for novel rows and +1 for the others."""
        return np.where(self.decision_function(X) >= 0, 1, -1)
