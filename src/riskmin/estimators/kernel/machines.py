"""Kernel machines: functions in the reproducing kernel Hilbert space of a Mercer kernel, any convex loss."""

from __future__ import annotations

import copy
import math
from dataclasses import field, replace
from typing import Any

import numpy as np

from riskmin.core import Cut, NDArray
from riskmin.estimators._common.base import CertifiedEstimator, estimator
from riskmin.estimators._common.classes import unique_classes
from riskmin.estimators._common.fit import (
    check_number,
    normalize_weights,
    resolve_loss,
    warn_unless_converged,
)
from riskmin.estimators.kernel.names import (
    fit_kernel_machine,
    kernel_matrix_of_model,
    kernel_scores,
    resolve_kernel,
    validate_kernel_rows,
)
from riskmin.estimators.kernel.one_vs_rest import OneVsRestMixin, fit_one_vs_rest
from riskmin.estimators.persistence.records import (
    classes_to_json,
    read_binary,
    read_classes,
    read_count,
    read_finite,
    rows_from_arrays,
    rows_to_arrays,
)
from riskmin.estimators.regressor import has_log_link, numeric_targets
from riskmin.estimators.scikit_learn import RegressorMixin
from riskmin.problem.kernel.rkhs import SQRT2, RkhsNorm, as_pair, coefficients


@estimator
class KernelMachine(CertifiedEstimator):
    r"""A function in the reproducing kernel Hilbert space of a Mercer kernel.

    Parameters
    ----------
    kernel : str or callable
        A Mercer kernel: a name of scikit-learn's ("rbf", "linear", "poly", "laplacian", "cosine", ...),
        "precomputed", or ``kernel(A, B)``, which returns a matrix with one row per row of A and one column
        per row of B. With a callable, X may hold arbitrary objects, such as strings.
    gamma : "scale", "auto" or float
        Kernel coefficient; "scale" is 1 / (p times the variance of X, with the row weights of the risk),
        "auto" is 1 / p.
    degree : int
        Degree of the polynomial kernel.
    coef0 : float
        Constant of the polynomial kernel.
    solver : None, str or solver
        None and "auto" choose by the loss; ``riskmin.KernelDual()``, "bundle", "bmrm", "line_search_bmrm".
    fit_intercept : bool
        Whether to fit the intercept b; if False, b = 0.
    cache_size : float
        Size of the cache of kernel matrix rows, in MB (2**20 bytes).
    warm_start : bool
        Whether `fit` starts from the function of the previous fit, which must have had as many rows.

    Attributes
    ----------
    support_ : (m,) array
        Indices of the rows whose coefficient is not zero.
    support_vectors_ : (m, p) array or sparse matrix
        The support rows of X; empty if the kernel is precomputed.
    kernel_ : callable or "precomputed"
        The kernel with its parameters resolved.
    result_ : `riskmin.Result`
        The status, the trace, and the cut that proves the bound; its w is the pair that `kernel_risk`
        describes.
    """

    kernel: Any = "rbf"
    gamma: Any = "scale"
    degree: int = 3
    coef0: float = 0.0
    fit_intercept: bool = True
    cache_size: float = 256.0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number(self, "cache_size", "a finite number > 0", lambda v: 0 < v < math.inf)

    def _scores(self, X: Any) -> NDArray:
        return kernel_scores(self, X)

    def _penalty(self) -> Any:
        return RkhsNorm()

    def _recomputed(self, X: Any) -> KernelMachine:
        # the weights and the cut are pairs (K beta, beta): only the coefficients beta are kept
        result, n = self.result_, X.shape[0]
        if 2 * n != len(result.w):
            return self  # the number of rows differs, which is reported with the claims
        # w = (K beta, beta) / sqrt(2), and the slope of the cut is (gamma, K gamma) / sqrt(2)
        K, beta, gamma = kernel_matrix_of_model(self, X), coefficients(result.w), SQRT2 * result.cut.a[:n]
        recomputed, cut = copy.copy(self), Cut(as_pair(gamma, K.product(gamma)), result.cut.b)
        recomputed.result_ = replace(result, w=as_pair(K.product(beta), beta), cut=cut)
        return recomputed

    def _rows_error(self, X: Any) -> str | None:
        # the scores by w, against those by the support vectors that `predict` uses
        z = self._scores(X)
        error = float(abs(z - SQRT2 * self.result_.w[: len(z)] - np.ravel(self.intercept_)[0]).max())
        if error <= 1e-6 * (1 + float(abs(z).max())):
            return None
        return f"its support vectors are not rows of these data: they make scores that differ by {error:.2g}"

    def _state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        arrays, _ = super()._state()
        kernel = self.kernel_
        # gamma as a number; kernels of riskmin have an attribute, `partial` of scikit-learn's a keyword
        gamma = getattr(kernel, "gamma", getattr(kernel, "keywords", {}).get("gamma"))
        fitted = {"intercept": float(np.ravel(self.intercept_)[0])}
        if kernel != "precomputed":
            arrays |= rows_to_arrays(self.support_vectors_)
        return arrays, fitted | {"gamma": None if gamma is None else float(gamma)}

    def _n_weights(self, fitted: dict[str, Any], n_rows: int) -> int:
        # the pair (K beta, beta), with one column per class if there are more than two
        return 2 * n_rows * _n_functions(fitted)

    def _restore(self, w: NDArray, fitted: dict[str, Any], arrays: dict[str, NDArray]) -> None:
        p, beta = int(fitted["n_features"]), coefficients(w).reshape(-1, _n_functions(fitted))
        resolved = copy.copy(self)  # `gamma` of the model itself may be a string such as "scale"
        if fitted["gamma"] is not None:
            resolved.gamma = read_finite(fitted, "gamma")
        self.kernel_ = resolve_kernel(resolved, np.empty((0, p)))
        self.support_ = np.flatnonzero(beta.any(axis=1))
        if self.kernel_ != "precomputed":
            self.support_vectors_ = rows_from_arrays(arrays, (len(self.support_), p))
        elif p == len(beta):
            self.support_vectors_ = np.empty((0, 0))
        else:
            raise ValueError(f"it has {len(beta)} coefficients for the {p} rows of a precomputed kernel")
        self.dual_coef_ = beta[self.support_].T[0] if beta.shape[1] == 1 else beta[self.support_].T
        self.intercept_: Any = np.float64(read_finite(fitted, "intercept"))


def _n_functions(fitted: dict[str, Any]) -> int:
    """Return how many functions a model file holds: one, or one per class."""
    return read_count(fitted, "outputs") if "outputs" in fitted else 1


@estimator
class KernelClassifier(OneVsRestMixin, KernelMachine):
    r"""A kernel machine for two or more classes and any convex loss, with a certified objective.

    .. math::
        \min_{f, b}\; J(f, b) = \tfrac\alpha2 \|f\|_H^2 + \sum_i c_i\, l(f(x_i) + b, y_i),
        \qquad f = \sum_i \beta_i\, k(x_i, \cdot),

    where :math:`y_i` is -1 for ``classes_[0]`` and +1 for ``classes_[1]``, and :math:`c_i` are the row
    weights, which sum to one. The intercept b is not penalized. The fit stops when
    :math:`J - \min J \le \text{tol} \cdot J` is proved.

    With more than two classes, each class has a function :math:`f_j` and an intercept, fitted against all
    other classes as a problem with its own certificate, and the class of the largest score is predicted. J
    and its bound are the sums over the classes.

    Parameters
    ----------
    loss : str or Loss
        A name of `riskmin.LOSSES` for classification, optionally with parameters, or a loss object; more
        than two classes need a sum over rows. Losses with a conjugate, which all decomposable losses of
        riskmin have, are solved by `KernelDual`, others by `Bundle`.
    alpha : float
        Regularization strength. The ``C`` of scikit-learn's SVC is ``1 / (alpha * n)`` for n rows.
    class_weight : dict, "balanced" or None
        Factors for the row weights of each class; "balanced" gives all classes the same total weight.

    Attributes
    ----------
    classes_ : (k,) array
        The labels, sorted.
    dual_coef_ : (1, m) or (k, m) array
        The coefficients of the support vectors, one row per class if there are more than two.
    intercept_, threshold_ : (1,) or (k,) array, float
        As in `LinearClassifier`.
    estimators_ : list of KernelClassifier
        With more than two classes, the machine of each class against the rest, with its certificate. Models
        read from files do not have it.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from riskmin import KernelClassifier
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = KernelClassifier("logistic", alpha=1e-4).fit(X, y)
    >>> model.score(X, y) > 0.98, model.gap_ <= model.tol * model.objective_
    (True, True)
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelClassifier("hinge", alpha=1e-3).fit(X, y)
    >>> model.decision_function(X).shape, model.score(X, y) > 0.95
    ((150, 3), True)
    >>> [machine.result_.status for machine in model.estimators_]
    ['converged', 'converged', 'converged']
    """

    task = "classification"

    loss: Any = field(default="hinge", kw_only=False)
    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelClassifier:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, CSR matrix or data frame
            The (n, n) kernel matrix itself, if the kernel is "precomputed".
        y : (n,) array
            Labels of two or more classes: numbers or strings.
        sample_weight : (n,) array, optional
            Weights >= 0; rows of weight zero have no effect on the fit.

        Returns
        -------
        KernelClassifier
            The fitted estimator itself.
        """
        loss = resolve_loss(self)  # report an invalid loss before reading y
        X, y = validate_kernel_rows(self, X, y)
        weight, rows = normalize_weights(sample_weight, len(y)), np.arange(len(y))
        if weight is not None and not loss.separable:  # some non-decomposable losses count rows
            rows = np.flatnonzero(weight)
            # a precomputed kernel has one row and one column per training row
            X = X[np.ix_(rows, rows)] if self.kernel == "precomputed" else X[rows]
            y, weight = y[rows], weight[rows]
        kernel = resolve_kernel(self, X, weight)
        if loss.separable and len(unique_classes(y, weight)) > 2:
            fit_one_vs_rest(self, kernel, X, y, weight, loss)
            warn_unless_converged(self)
            return self
        labeled = self._encode_labels(y, weight, loss)
        if "estimators_" in vars(self):  # an earlier fit had more classes
            del self.estimators_, self.result_
        beta, b = fit_kernel_machine(self, kernel, X, labeled)
        # indices into X as given, before rows of weight zero were dropped
        self.support_: NDArray = rows[self.support_]
        self.classes_, self.dual_coef_ = labeled.classes, beta[None, :]
        # w = (K beta, beta) / sqrt(2): sqrt(2) times its first half are the scores of the training rows
        self.intercept_ = self._decision_intercept(lambda: SQRT2 * self.result_.w[: len(y)], b, labeled)
        self.weighted_ = sample_weight is not None  # class weights are a function of y and do not count
        warn_unless_converged(self)
        return self

    def _loss_scores(self, X: Any) -> NDArray:
        return self._scores(X) + self.threshold_  # intercept_ = b - threshold_

    def _state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        arrays, fitted = super()._state()
        fitted |= {"classes": classes_to_json(self.classes_), "threshold": self.threshold_}
        if len(self.classes_) > 2:
            fitted |= {"outputs": len(self.classes_), "intercepts": self.intercept_.tolist()}
        return arrays, fitted

    def _restore(self, w: NDArray, fitted: dict[str, Any], arrays: dict[str, NDArray]) -> None:
        super()._restore(w, fitted, arrays)
        if (k := _n_functions(fitted)) > 1:
            self.classes_, self.threshold_ = read_classes(fitted["classes"]), 0.0
            self.intercept_ = np.array(fitted["intercepts"], dtype=np.float64)
            sizes_agree = self.classes_.shape == self.intercept_.shape == (k,)
            if not (sizes_agree and np.isfinite(self.intercept_).all()):
                raise ValueError(f"its classes and intercepts are not {k} labels and {k} finite numbers")
            return
        self.classes_, self.threshold_ = read_binary(fitted)
        self.dual_coef_, self.intercept_ = self.dual_coef_[None, :], np.array([self.intercept_])

    def decision_function(self, X: Any) -> NDArray:
        """Return the scores f(x) + b: above zero for ``classes_[1]``, or one column per class if k > 2."""
        return kernel_scores(self, X)


@estimator
class KernelRegressor(RegressorMixin, KernelMachine):  # type: ignore[misc] # scikit-learn has no types
    r"""Kernel regression for any convex loss, with a certified objective.

    .. math::
        \min_{f, b}\; J(f, b) = \tfrac\alpha2 \|f\|_H^2 + \sum_i c_i\, l(f(x_i) + b, y_i),
        \qquad f = \sum_i \beta_i\, k(x_i, \cdot).

    The prediction is f(x) + b, except for "poisson", say, whose scores are logarithms of the mean: it
    predicts :math:`e^{f(x) + b}`.

    Parameters
    ----------
    loss : str or Loss
        A name of `riskmin.LOSSES` for regression, optionally with parameters, or a loss object.
    alpha : float
        Regularization strength. For n rows, scikit-learn's SVR calls ``1 / (alpha * n)`` its C, and
        KernelRidge ``alpha * n`` its alpha.

    Attributes
    ----------
    dual_coef_ : (m,) array
        The coefficients of the rows `support_`.
    intercept_ : scalar
        b.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import KernelRegressor
    >>> X = np.linspace(0, 6, 100)[:, None]
    >>> model = KernelRegressor("epsilon_insensitive", alpha=1e-4).fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict(X) - np.sin(X[:, 0])).mean() < 0.2)
    True
    """

    task = "regression"

    loss: Any = field(default="squared", kw_only=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = has_log_link(self.loss)
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRegressor:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, CSR matrix or data frame
            The (n, n) kernel matrix itself, if the kernel is "precomputed".
        y : (n,) array
            Real numbers, >= 0 for losses of logarithms of the mean.
        sample_weight : (n,) array, optional
            Weights >= 0; rows of weight zero have no effect on the fit.

        Returns
        -------
        KernelRegressor
            The fitted estimator itself.
        """
        loss = resolve_loss(self)  # report an invalid loss before reading y
        X, y = validate_kernel_rows(self, X, y, y_numeric=True)
        weight = normalize_weights(sample_weight, len(y))
        rows = self._encode_labels(y, weight, loss)
        kernel = resolve_kernel(self, X, weight)
        self.dual_coef_, self.intercept_ = fit_kernel_machine(self, kernel, X, rows)
        warn_unless_converged(self)
        return self

    def _targets(self, y: Any, n_rows: int, weight: NDArray | None) -> tuple[NDArray, NDArray | None]:
        return numeric_targets(self, y), weight

    def predict(self, X: Any) -> NDArray:
        """Predict f(x) + b; its exponential for losses of logarithms of the mean."""
        z = kernel_scores(self, X)
        return np.exp(z) if has_log_link(self.loss) else z
