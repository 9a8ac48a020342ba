"""Classes, and hyperplanes between them."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator

from riskmin.estimators.base import (
    as_weights,
    fit_linear,
    loss_of,
    scores,
    warn_unless_converged,
)
from riskmin.estimators.classes import AnyClasses
from riskmin.estimators.many import is_many
from riskmin.estimators.rows import checked, picked, products
from riskmin.types import NDArray


class LinearClassifier(AnyClasses, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""A linear classifier of two or more classes for any convex loss, with a certified objective.

    .. math::
        \min_{w, b}\; J(w, b) = \alpha\,\Omega(w) + \sum_i c_i\, l(x_i^\top w + b, y_i),
        \qquad c_i = s_i / \textstyle\sum_j s_j,

    where :math:`y_i` is -1 for ``classes_[0]`` and +1 for ``classes_[1]``, and :math:`s_i` is the weight
    of a row, 1 by default. The intercept b is not penalized. The fit ends when
    :math:`J - \min J \le \text{tol} \cdot J` is proved.

    With more than two classes, each has weights and an intercept of its own, and all of them are fitted
    together, as one problem with one certificate: the largest of the scores :math:`z_j = x^\top w_j + b_j`
    is that of the class predicted. There "hinge" is :math:`\max_{j \ne y} \max(0, 1 + z_j - z_y)`
    (`MulticlassHinge`), "squared_hinge" is `MulticlassSquaredHinge`, and "logistic" is `Softmax`; other
    losses of two classes have no such form.

    With losses of whole tables and lists, R is no sum over rows, and the area under the ROC curve or the
    break-even point know of no intercept. There, after the fit, the scores are cut where the metric itself is
    best on the training rows: "f1" and "f_beta" where F-beta is largest, "prbep" so that as many rows are
    predicted positive as there are, "precision_at_k" and "recall_at_k" so that k are, and "roc_area" where
    the balanced accuracy is largest. Without `fit_intercept` the cut stays at 0.

    Parameters
    ----------
    loss : str or Loss
        A name of `riskmin.LOSSES` for classification, with parameters where wanted
        (``"hinge:margin=2"``), or a loss object: one of riskmin's, or any object with ``separable`` and
        ``value_grad(z, y, c)``. "softmax", "multiclass_hinge" and "multiclass_squared_hinge" have scores for
        each class where there are two as well, and so has ``MulticlassHinge(cost)``, the matrix of the costs
        of mistakes in the order of `classes_`.
    alpha : float
        The strength of the regularizer. With "l2" (and "l1"), the ``C`` of scikit-learn's
        LogisticRegression, of any number of classes, and of LinearSVC but for its penalized intercept, is
        ``1 / (alpha * n)`` for n rows; LinearSVC's squared hinge has no factor 1/2, so there it is
        ``1 / (2 * alpha * n)``.
    regularizer : str or Regularizer
        :math:`\Omega`: a name of `riskmin.REGULARIZERS`, with parameters where wanted
        (``"elastic:eps=0.5"``), or an object such as ``L1(weights)``, ``Entropy(balanced=True)`` or
        ``Quadratic(K)``. The default is :math:`\|w\|^2 / 2`. With more than two classes, weights with one
        number a feature are those of all classes.
    positive : bool
        Whether the weights must be >= 0, for "l1", "l2" and "elastic".
    standardize : bool
        Whether columns are divided by their standard deviations :math:`s_j` (weighted by `sample_weight`)
        inside, as by a ``StandardScaler`` before the model. Then alpha penalizes the weights of the
        standardized columns, :math:`\Omega(s \circ w)`, and J with its bound is that of the standardized
        problem; `coef_` and `intercept_` are in the units of X. To centre columns would change the
        intercept alone, so it is not done, and sparse X stays sparse. A constant column gets weight zero.
    fit_intercept : bool
        Whether to fit b, or to have it zero, and scores cut at zero.
    class_weight : dict, "balanced" or None
        Factors for the weights of the rows of each class; "balanced" gives all classes the same sum. To
        "roc_area" they make no difference; the other losses of tables count rows, and refuse them.
    solver : None, str or solver
        None and "auto" choose by the problem; any other name of `riskmin.SOLVERS` ("bundle", "lbfgs"), or
        an object such as ``riskmin.Bundle(keep=50)``.
    tol : float
        The certified gap to reach, relative to the objective.
    atol : float or None
        The certified gap that is as good as none, in absolute terms; None for 1e-6 tol of the risk at w = 0
        with its best intercept. A fit has converged where either is reached: ``result_.criterion`` says which
        of the two, "tol" or "atol".
    max_iter, max_seconds : int, float or None
        Limits; a fit that one of them ends gives a ConvergenceWarning. Time ends a fit in the middle of an
        iteration, too.
    warm_start : bool
        Whether `fit` starts from the last weights.
    n_jobs : int or None
        The number of threads, -1 for one a core, for rows that are here. NumPy and SciPy take no more of them
        during the fit. It changes no bit of the result.
    callback : callable or None
        ``callback(iterate, row)`` after every iteration; a true return value ends the fit.
    checkpoint : path, `riskmin.Checkpoint` or None
        A file to save the run to now and then; where it exists already, the fit goes on from it.
    verbose : bool
        Whether to show the progress of the certified gap on stderr.

    Attributes
    ----------
    classes_ : (k,) array
        The labels, in order.
    coef_ : (1, p) or (k, p) array
        w for two classes, a row a class for more. With a loss of many scores a row, and two classes, it is
        the difference of their weights, of which ``result_.w`` has both.
    intercept_ : (1,) or (k,) array
        What is added to the scores; for two classes, so that those above zero are of ``classes_[1]``: b, less
        `threshold_`.
    threshold_ : float
        Where the scores of J are cut; 0 but for losses of tables and lists.
    scale_ : (p,) array or None
        The standard deviations of the columns, 1 for constant ones; None without `standardize`.
    objective_ : float
        J at `coef_` and the best b, which is ``intercept_ + threshold_``. With `standardize`, it and its
        bound are those of the problem of standardized columns.
    lower_bound_ : float
        What min J is proved not to be below.
    gap_ : float
        ``objective_ - lower_bound_``.
    n_iter_ : int
        The number of iterations.
    result_ : `riskmin.Result`
        The status, the trace, and the cut that proves the bound.
    n_samples_fit_, weighted_ : int, bool
        How many rows were fitted, and whether `sample_weight` was given.
    n_features_in_, feature_names_in_ : int, array
        As in all of scikit-learn.

    References
    ----------
    C. H. Teo, S. V. N. Vishwanathan, A. Smola, Q. V. Le, Bundle methods for regularized risk
    minimization, JMLR 11, 2010. K. Crammer, Y. Singer, On the algorithmic implementation of multiclass
    kernel-based vector machines, JMLR 2, 2001.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from riskmin import LinearClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), LinearClassifier("hinge", alpha=1e-2)).fit(X, y)
    >>> model.score(X, y) > 0.97
    True
    >>> svm = model[-1]
    >>> svm.gap_ <= svm.tol * svm.objective_
    True
    >>> same = LinearClassifier("hinge", alpha=1e-2, standardize=True).fit(X, y)  # with coef_ in units of X
    >>> abs(same.objective_ - svm.objective_) < 1e-3 * svm.objective_
    True
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LinearClassifier("logistic", alpha=1e-3).fit(X, y)  # three classes: one problem
    >>> model.coef_.shape, model.score(X, y) > 0.95, model.gap_ <= model.tol * model.objective_
    ((3, 4), True, True)
    """

    task = "classification"
    also_for = ("multiclass",)

    def __init__(
        self,
        loss: Any = "hinge",
        *,
        alpha: float = 1e-4,
        regularizer: Any = "l2",
        positive: bool = False,
        standardize: bool = False,
        fit_intercept: bool = True,
        class_weight: Any = None,
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
        self.class_weight = class_weight
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearClassifier:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame; `riskmin.Spread` or Dask array or dataframe
            Float arrays in either order, CSR and CSC are not copied. Rows that are elsewhere stay there.
        y : (n,) array
            Labels of two or more classes: numbers or strings.
        sample_weight : (n,) array, optional
            Weights >= 0; a row of weight zero might as well not be there.

        Returns
        -------
        LinearClassifier
            Itself.
        """
        loss = loss_of(self)  # what is wrong with it is said before y is looked at
        X, y = checked(self, X, y)
        weight, n_rows = as_weights(sample_weight, len(y)), len(y)
        if weight is not None and not loss.separable:  # some of these losses count rows
            X, y, weight = picked(X, weight > 0), y[weight > 0], weight[weight > 0]
        row_weight = weight
        labels, weight, classes = self._rows(y, weight)
        w, b, X = fit_linear(
            self,
            X,
            labels,
            weight,
            row_weight=row_weight,
            fit_intercept=self.fit_intercept,
            loss=loss_of(self, len(classes)),
            n_outputs=len(classes),
        )
        self._keep(w, b, classes, X, labels, weight)
        self.weighted_ = sample_weight is not None  # class weights follow from y, so they are no part of it
        self.n_samples_fit_ = n_rows
        warn_unless_converged(self)
        return self

    def _keep(
        self, w: NDArray, b: float, classes: NDArray, X: Any, y: NDArray, weight: NDArray | None
    ) -> None:
        if is_many(loss_of(self, len(classes))):
            self._unpack(w, classes, intercepts=bool(self.fit_intercept))
            return
        self.classes_, self.coef_ = classes, w[None, :]
        self.intercept_ = self._cut(lambda: products(X, w), b, y, weight)

    def decision_function(self, X: Any) -> NDArray:
        """The scores X @ w + b: above zero for ``classes_[1]``; of more than two, a column a class."""
        return scores(self, X)
