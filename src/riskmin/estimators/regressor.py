"""Real labels, and a linear function through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator, RegressorMixin

from riskmin.estimators.base import as_weights, loss_of, scores, warn_unless_converged
from riskmin.estimators.many import unpacked
from riskmin.estimators.outputs import fit_outputs
from riskmin.estimators.rows import LabelsHere, checked
from riskmin.losses import LOSSES, Nu, Poisson
from riskmin.types import NDArray


def validated(model: Any, X: Any, y: Any, check: Any = checked) -> tuple[Any, NDArray]:
    """Rows and numbers, of which each row may have many."""
    if scipy.sparse.issparse(y):
        raise ValueError("y is a sparse matrix: give an array, such as y.toarray()")
    found: tuple[Any, NDArray] = check(model, X, y, y_numeric=True, multi_output=True)
    return found


def counts(loss: Any) -> bool:
    """Whether the loss is Poisson's; asked before `fit` too, when the loss may not be one at all."""
    if isinstance(loss, str):
        loss = LOSSES.get(loss.partition(":")[0].strip())
    return isinstance(loss.loss if isinstance(loss, Nu) else loss, Poisson)


class LinearRegressor(LabelsHere, RegressorMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""Linear regression for any convex loss, with a certified objective.

    .. math::
        \min_{w, b}\; J(w, b) = \alpha\,\Omega(w) + \sum_i c_i\, l(x_i^\top w + b, y_i),
        \qquad c_i = s_i / \textstyle\sum_j s_j,

    where :math:`s_i` is the weight of a row, 1 by default. The intercept b is not penalized. The fit ends
    when :math:`J - \min J \le \text{tol} \cdot J` is proved.

    The prediction is the score :math:`x^\top w + b`, except for the Poisson loss, whose scores are
    logarithms: there it is the mean :math:`e^{x^\top w + b}`.

    For y of shape (n, k), there are weights and an intercept for each of the k outputs, and J is the sum over
    them. With "squared" and "l2", and with ``MultivariateSquared(M)``, that is one problem; with other losses
    and regularizers it falls apart into one an output, each with a certificate of its own, and what is
    claimed is the sum of what is proved.

    Parameters
    ----------
    loss : str or Loss
        A name of `riskmin.LOSSES` for regression, with parameters where wanted (``"quantile:level=0.9"``),
        or a loss object: one of riskmin's, or any object with ``separable`` and ``value_grad(z, y, c)``.
    alpha : float
        The strength of the regularizer. With "l2" and n rows, scikit-learn's Ridge calls ``alpha * n`` its
        alpha, and LinearSVR ``1 / (alpha * n)`` its C; PoissonRegressor's alpha is the same as here, and
        so is Lasso's with "l1".
    fit_intercept : bool
        Whether to fit b, or to have it zero.
    regularizer, positive, standardize
        As in `LinearClassifier`.
    solver, tol, atol, max_iter, max_seconds, warm_start, n_jobs, callback, verbose
        As in `LinearClassifier`.
    checkpoint : path, `riskmin.Checkpoint` or None
        As in `LinearClassifier`; of problems one an output, each has a file, with its number after the name.

    Attributes
    ----------
    coef_ : (p,) or (k, p) array
        w; a row an output, if y has columns.
    intercept_ : float or (k,) array
        b.
    scale_ : (p,) array or None
        The standard deviations of the columns; None without `standardize`.
    objective_, lower_bound_, gap_ : float
        J at `coef_` and `intercept_`, what min J is proved not to be below, and their difference.
    n_iter_ : int
        The number of iterations; of problems one an output, the largest.
    result_ : `riskmin.Result`
        The status, the trace, and the cut that proves the bound. Of problems one an output, it is that of
        their sum: its ``w`` is ``coef_.T``, row by row; its trace has the last row of each, and one of all.
    n_samples_fit_, weighted_, n_features_in_, feature_names_in_
        As in `LinearClassifier`.

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
    many_targets = True

    def __init__(
        self,
        loss: Any = "squared",
        *,
        alpha: float = 1e-4,
        regularizer: Any = "l2",
        positive: bool = False,
        standardize: bool = False,
        fit_intercept: bool = True,
        solver: Any = None,
        tol: float = 1e-3,
        atol: float | None = None,
        max_iter: int = 10_000,
        max_seconds: float | None = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        callback: Any = None,
        checkpoint: Any = None,
        verbose: bool = False,
    ) -> None:
        self.loss = loss
        self.alpha = alpha
        self.regularizer = regularizer
        self.positive = positive
        self.standardize = standardize
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.tol = tol
        self.atol = atol
        self.max_iter = max_iter
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.callback = callback
        self.checkpoint = checkpoint
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.positive_only = counts(self.loss)
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearRegressor:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame; `riskmin.Spread` or Dask array or dataframe
            Float arrays in either order, CSR and CSC are not copied. Rows that are elsewhere stay there.
        y : (n,) or (n, k) array
            Real numbers, >= 0 for the Poisson loss; a column an output.
        sample_weight : (n,) array, optional
            Weights >= 0; a row of weight zero might as well not be there.

        Returns
        -------
        LinearRegressor
            Itself.
        """
        loss_of(self)  # what is wrong with it is said before y is looked at
        X, y = validated(self, X, y)
        weight = as_weights(sample_weight, len(y))
        w, b = fit_outputs(self, X, y, weight)
        self._keep(w, b, None, X, y, weight)
        warn_unless_converged(self)
        return self

    def _rows(self, y: NDArray, weight: NDArray | None) -> tuple[NDArray, NDArray | None, None]:
        """The labels and the weights as they are."""
        return y, weight, None

    def _keep(self, w: NDArray, b: Any, classes: None, X: Any, y: NDArray, weight: NDArray | None) -> None:
        if y.ndim == 1:
            self.coef_, self.intercept_ = w, float(np.ravel(b)[0])
        else:
            self.coef_, _ = unpacked(w, y.shape[1], intercepts=False)
            self.intercept_ = b + np.zeros(y.shape[1])

    def predict(self, X: Any) -> NDArray:
        """The scores X @ w + b, a column an output; their exponentials for the Poisson loss."""
        z = scores(self, X)
        if np.ndim(self.coef_) == 2:
            z = z.reshape(len(z), -1)  # y of one column comes back as one
        return np.exp(z) if counts(self.loss) else z
