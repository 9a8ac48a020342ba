"""Kernel machines: functions in the reproducing kernel Hilbert space of a Mercer kernel, any convex loss."""

from __future__ import annotations

import copy
import math
from dataclasses import field, replace
from typing import Any

import numpy as np

from riskmin.core import Cut, NDArray
from riskmin.estimators._common.base import CertifiedEstimator, estimator
from riskmin.estimators._common.decision import Threshold
from riskmin.estimators._common.fit import (
    check_number,
    normalize_weights,
    resolve_loss,
    warn_unless_converged,
)
from riskmin.estimators._common.labels import Numbers
from riskmin.estimators.kernel.names import (
    fit_kernel_machine,
    kernel_matrix_of_model,
    kernel_scores,
    resolve_kernel,
    validate_kernel_rows,
)
from riskmin.estimators.kernel.one_vs_rest import OneVsRestClasses, OneVsRestMixin, fit_one_vs_rest
from riskmin.estimators.persistence.records import (
    check_length,
    read_finite,
    read_numbers,
    rows_from_arrays,
    rows_to_arrays,
)
from riskmin.estimators.regressor import has_log_link
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

    def _set_weights(self, w: NDArray, b: NDArray, cuts: NDArray) -> None:
        # w is the pair (K beta, beta), with one column per function; the others of the n rows do not matter
        beta = coefficients(w).reshape(-1, len(b))
        self.support_: NDArray = np.flatnonzero(beta.any(axis=1))
        self.dual_coef_, self.intercept_ = np.ascontiguousarray(beta[self.support_].T), b

    def _scores(self, X: Any) -> NDArray:
        return kernel_scores(self, X)

    def _penalty(self) -> Any:
        return RkhsNorm()

    def _at_rows(self, X: Any) -> tuple[CertifiedEstimator, str]:
        # the weights and the cut are pairs (K beta, beta): only the coefficients beta are kept
        result, n = self.result_, X.shape[0]
        if 2 * n != len(result.w):
            return self, ""  # the number of rows differs, which is reported with the claims
        # w = (K beta, beta) / sqrt(2), and the slope of the cut is (gamma, K gamma) / sqrt(2)
        K, beta, gamma = kernel_matrix_of_model(self, X), coefficients(result.w), SQRT2 * result.cut.a[:n]
        recomputed, cut = copy.copy(self), Cut(as_pair(gamma, K.product(gamma)), result.cut.b)
        recomputed.result_ = replace(result, w=as_pair(K.product(beta), beta), cut=cut)
        # the scores by w, against those by the support vectors that `predict` uses
        z = recomputed._scores(X)
        error = float(abs(z - SQRT2 * recomputed.result_.w[:n] - self._intercepts()[0]).max())
        differs = error > 1e-6 * (1 + float(abs(z).max()))
        reason = (
            f"its support vectors are not rows of these data: they make scores that differ by {error:.2g}"
        )
        return recomputed, reason if differs else ""

    def _state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        arrays, fitted = super()._state()
        kernel = self.kernel_
        # gamma as a number; kernels of riskmin have an attribute, `partial` of scikit-learn's a keyword
        gamma = getattr(kernel, "gamma", getattr(kernel, "keywords", {}).get("gamma"))
        if kernel != "precomputed":
            arrays |= rows_to_arrays(self.support_vectors_)
        return arrays, fitted | {"gamma": None if gamma is None else float(gamma)}

    def _restore(self, w: NDArray, fitted: dict[str, Any], arrays: dict[str, NDArray]) -> None:
        p, n, self._labels = self.n_features_in_, self.n_samples_fit_, self._label_kind.read(fitted["labels"])
        k = self._labels.columns(self._fitted_loss())
        check_length(w, 2 * n * k)
        resolved = copy.copy(self)  # `gamma` of the model itself may be a string such as "scale"
        if fitted["gamma"] is not None:
            resolved.gamma = read_finite(fitted, "gamma")
        self.kernel_ = resolve_kernel(resolved, np.empty((0, p)))
        b = np.array(read_numbers(fitted, "intercept", k))
        self._set_weights(w, b, self._decision.read(self._labels, fitted))
        if self.kernel_ != "precomputed":
            self.support_vectors_ = rows_from_arrays(arrays, (len(self.support_), p))
        elif p == n:
            self.support_vectors_ = np.empty((0, 0))
        else:
            raise ValueError(f"it has {n} coefficients for the {p} rows of a precomputed kernel")


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
    _label_kind, _decision = OneVsRestClasses, Threshold()

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
        labeled = self._encode(y, weight)
        if labeled.loss.multi_output:
            fit_one_vs_rest(self, kernel, X, labeled)
        else:
            if "estimators_" in vars(self):  # an earlier fit had more classes
                del self.estimators_, self.result_
            fit_kernel_machine(self, kernel, X, labeled)
        # indices into X as given, before rows of weight zero were dropped
        self.support_ = rows[self.support_]
        self.weighted_ = sample_weight is not None  # class weights are a function of y and do not count
        warn_unless_converged(self)
        return self

    def _set_weights(self, w: NDArray, b: NDArray, cuts: NDArray) -> None:
        super()._set_weights(w, b, cuts)
        self.classes_, self.threshold_ = self._labels.values, float(cuts[0])
        self.intercept_ = b - self.threshold_

    def _scores(self, X: Any) -> NDArray:
        return super()._scores(X) + self.threshold_  # intercept_ = b - threshold_

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
    _label_kind = Numbers

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
        resolve_loss(self)  # report an invalid loss before reading y
        X, y = validate_kernel_rows(self, X, y, y_numeric=True)
        weight = normalize_weights(sample_weight, len(y))
        fit_kernel_machine(self, resolve_kernel(self, X, weight), X, self._encode(y, weight))
        warn_unless_converged(self)
        return self

    def _set_weights(self, w: NDArray, b: NDArray, cuts: NDArray) -> None:
        super()._set_weights(w, b, cuts)
        self.dual_coef_, self.intercept_ = self.dual_coef_[0], b[0]

    def predict(self, X: Any) -> NDArray:
        """Predict f(x) + b; its exponential for losses of logarithms of the mean."""
        z = kernel_scores(self, X)
        return np.exp(z) if has_log_link(self.loss) else z
