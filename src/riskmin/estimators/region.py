r"""Regions that hold the exact optimum :math:`(w^*, b^*)` of the problem of a fitted linear model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.certificates.ball import Ball, ball_of_multipliers
from riskmin.certificates.curvature import SingularHessian
from riskmin.certificates.multipliers import best_multipliers
from riskmin.certificates.region import Ellipsoid, RowProblem, ellipsoid
from riskmin.core import NDArray
from riskmin.estimators._common.base import RiskArguments
from riskmin.estimators._common.fit import fitted_regularizer
from riskmin.estimators._common.input import validate_rows
from riskmin.estimators._common.training_rows import offset_of_used, training_rows
from riskmin.estimators.gpu_rows import dense_weights
from riskmin.estimators.scikit_learn import check_is_fitted
from riskmin.estimators.summary.covariance import coefficient_covariance
from riskmin.losses.offset import with_offset
from riskmin.problem.linear_risk import linear_risk
from riskmin.problem.objective import Objective


@dataclass(frozen=True)
class OptimumRegion:
    r"""What is proved about the exact optimum :math:`(w^*, b^*)` of the problem of a fitted linear model.

    `optimum_region` makes it. All intervals hold together, and allow for rounding.

    Attributes
    ----------
    signs : (p,) array of int
        1 and -1 where the weight of the optimum certainly has this sign, 0 where it may be zero.
    zero, nonzero : (p,) arrays of bool
        The weights that are certainly zero ("l1" and "elastic"), and certainly not.
    support, non_support : (n,) arrays of bool
        The rows of positive weight whose multipliers are certainly not zero, and certainly zero.
    distances : (p + 1,) array
        How far the intercept and the weights of the model are from those of the optimum, at most.
    standard_errors : float
        The largest of these distances in standard errors; see `LinearClassifier.summary`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from riskmin import LinearClassifier, optimum_region
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LinearClassifier("logistic", regularizer="l1", alpha=1e-2).fit(scale(X), y)
    >>> region = optimum_region(model, scale(X), y)
    >>> int(region.zero.sum()), int(region.nonzero.sum())
    (21, 9)
    >>> labels, certain = region.predict_certain(scale(X))
    >>> bool(certain.mean() > 0.99)
    True
    """

    model: Any
    region: Ellipsoid | Ball
    rows: Any
    at: RiskArguments
    counts: NDArray
    offset: NDArray | float = 0.0

    def coef_interval(self) -> NDArray:
        """Return the ends of the interval of each weight, of shape (p, 2)."""
        return np.stack(self.region.weights(), axis=1)

    def intercept_interval(self) -> NDArray:
        """Return the ends of the interval of the intercept."""
        if not self.model.fit_intercept:
            return np.zeros(2)
        return np.array([float(end) for end in self.region.intercepts()])

    def decision_interval(self, X: Any) -> NDArray:
        """Return the ends of the scores that the optimum gives to the rows of X, of shape (n, 2)."""
        return np.stack(self.region.scores(validate_rows(self.model, X, reset=False)), axis=1)

    def predict_certain(self, X: Any) -> tuple[NDArray, NDArray]:
        """Return the labels that the model predicts, and whether the optimum certainly predicts the same."""
        if self.model.task != "classification":
            raise ValueError("predict_certain is for classes: use decision_interval, the ends of the scores")
        lower, upper = self.decision_interval(X).T
        labels = np.asarray(self.model.predict(X))
        positive = labels == self.model.classes_[1]
        return labels, np.asarray(np.where(positive, lower > 0, upper <= 0))

    @cached_property
    def signs(self) -> NDArray:
        lower, upper = self.region.weights()
        signs: NDArray = (lower > 0).astype(np.intp) - (upper < 0)
        return signs

    @property
    def nonzero(self) -> NDArray:
        return np.asarray(self.signs != 0)

    @property
    def zero(self) -> NDArray:
        return np.asarray(self.region.zero)

    @cached_property
    def _multipliers(self) -> tuple[NDArray, NDArray]:
        """The ends of the multipliers of the rows: slopes of the loss, which increase with the scores."""
        loss, (_, y, c) = self.model._fitted_loss(), self.at
        ends = [z + self.offset for z in self.region.scores(self.rows)]
        with np.errstate(over="ignore"):
            lower, upper = (np.asarray(loss.value_grad(z, y, np.ones(len(c)))[1]) for z in ends)
        return lower, upper

    @property
    def support(self) -> NDArray:
        lower, upper = self._multipliers
        return np.asarray((lower > 0) | (upper < 0))

    @property
    def non_support(self) -> NDArray:
        lower, upper = self._multipliers
        return np.asarray((lower == 0) & (upper == 0))

    @property
    def intervals(self) -> NDArray:
        """The ends of the intercept, if there is one, and of the weights, of shape (p + 1, 2)."""
        intercept = [self.intercept_interval()] if self.model.fit_intercept else []
        return np.vstack([*intercept, self.coef_interval()])

    @property
    def distances(self) -> NDArray:
        intercept = [float(self.model._intercepts()[0])] if self.model.fit_intercept else []
        coef = np.concatenate([intercept, np.ravel(dense_weights(self.model))])
        lower, upper = self.intervals.T
        return np.asarray(np.maximum(coef - lower, upper - coef))

    @property
    def standard_errors(self) -> float:
        found = coefficient_covariance(self.model, self.rows, self.at, self.counts, sandwich=None)
        return float(np.max(self.distances / np.sqrt(np.diag(found.matrix))))


def optimum_region(
    model: Any, X: Any, y: Any, *, sample_weight: Any = None, offset: Any = None
) -> OptimumRegion:
    r"""A region that certainly holds the exact optimum of the problem that a linear model was fitted to.

    A fit ends near the optimum, within `tol`. The region says what is proved about the optimum itself:
    intervals of its weights, its scores and predictions, and which of its weights are zero.

    With "squared", "logistic" and "poisson" it is an ellipsoid in the metric of the Hessian H of J. Newton
    steps from the weights of the model end at a point whose decrement
    :math:`N = |\nabla J|_{H^{-1}}` is nearly zero, so that the region is about as small as rounding allows:

    .. math:: |\theta^* - \theta|_H \le -\frac{\log(1 - L N)}{L}, \qquad L = \max_i |x_i|_{H^{-1}}
              \qquad (N \text{ for squares}).

    With other losses it is the ball that the gap of the model proves. Its radius decreases with the square
    root of the gap, so that a smaller `tol` gives more.

    Parameters
    ----------
    model : LinearClassifier or LinearRegressor
        A fitted model of one score per row; or a search, whose best model is taken.
    X, y
        The training data, as given to `fit`, in this process.
    sample_weight, offset : (n,) array, optional
        As given to `fit`. Intervals of scores are those without the offset.

    Returns
    -------
    OptimumRegion

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin import LinearRegressor, optimum_region
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> model = LinearRegressor("huber", alpha=1e-4, tol=1e-6).fit(X, y)
    >>> region = optimum_region(model, X, y)
    >>> region.coef_interval().shape, list(X.columns[region.signs < 0])
    ((10, 2), ['sex', 's3'])
    """
    check_is_fitted(model)
    model = getattr(model, "best_estimator_", model)
    if not hasattr(model, "summary") or model._fitted_loss().multi_output:
        raise ValueError(
            "optimum_region takes a linear model of one score per row: LinearClassifier of two classes, or "
            "LinearRegressor of one column"
        )
    rows, at, counts = training_rows(model, X, y, sample_weight, offset)
    return region_of_rows(model, rows, at, counts, offset_of_used(offset, sample_weight, X))


def region_of_rows(
    model: Any, rows: Any, at: RiskArguments, counts: NDArray, offset: NDArray | None = None
) -> OptimumRegion:
    """The region of a model with the rows, labels and weights that it was fitted to, and their offset."""
    shift = 0.0 if offset is None else offset
    loss, w = model._fitted_loss(), np.ravel(dense_weights(model)).astype(np.float64)
    b = float(model._intercepts()[0]) if model.fit_intercept else 0.0
    if not loss.separable:
        raise ValueError(f"{model.loss} is no sum over rows: regions need such a loss")
    reg, lam, intercept = fitted_regularizer(model), float(model.alpha), bool(model.fit_intercept)
    if np.isfinite(loss.self_concordance):
        try:
            of_rows, y = (loss, at.labels) if offset is None else with_offset(loss, at.labels, offset)
            problem = RowProblem.of(rows, y, at.weights, of_rows, reg, lam, intercept)
            return OptimumRegion(model, ellipsoid(problem, w, b), rows, at, counts, shift)
        except SingularHessian:
            if not lam:
                raise
    ball = ball_of_multipliers(*gap_point(model, rows, at, offset))
    return OptimumRegion(model, ball, rows, at, counts, shift)


def gap_point(
    model: Any, rows: Any, at: RiskArguments, offset: NDArray | None = None
) -> tuple[Objective, Any, NDArray, float, NDArray]:
    """The objective of a model, its rows, its weights and intercept, and multipliers that prove its gap."""
    loss, w = model._fitted_loss(), np.ravel(dense_weights(model)).astype(np.float64)
    intercept, reg = bool(model.fit_intercept), fitted_regularizer(model)
    risk = linear_risk(
        rows, at.labels, loss, sample_weight=at.weights, fit_intercept=intercept, offset=offset
    )
    obj = Objective(risk, reg, float(model.alpha))
    value = float(loss.value_grad(*at)[0]) + obj.lam * float(reg.value(w))
    u, _ = best_multipliers(
        obj, w, at.scores - (0.0 if offset is None else offset), value - float(model.gap_)
    )
    return obj, rows, w, float(model._intercepts()[0]) if intercept else 0.0, u
