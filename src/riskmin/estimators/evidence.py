r"""Fitted models as problems of their rows, whose multipliers prove :math:`J(w, b) - \min J \le` gap."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_table
from riskmin.arrays.partitioned import is_partitioned
from riskmin.certificates.multipliers import Multipliers, best_multipliers
from riskmin.certificates.proof import (
    NO_NAMES,
    Proof,
    ProofProblem,
    TableNames,
    loss_record,
    penalty_record,
    prove,
)
from riskmin.core import NDArray
from riskmin.core.messages import is_number
from riskmin.estimators._common.base import RiskArguments, RowEstimator
from riskmin.estimators._common.fit import fitted_regularizer, normalize_weights
from riskmin.estimators._common.input import compute_if_dask, validate_rows
from riskmin.estimators._common.offset import row_offset
from riskmin.estimators.gpu_rows import on_host
from riskmin.estimators.scikit_learn import check_is_fitted
from riskmin.problem.linear_risk import linear_risk
from riskmin.problem.objective import Objective


@dataclass(frozen=True)
class FittedProblem:
    """The objective that a model minimized, with all of its rows, and the point that it returns."""

    model: Any
    X: Any
    at: RiskArguments
    """Scores with the intercept and the offset, labels and weights of all rows."""
    obj: Objective
    offset: NDArray | float = 0.0
    """What was added to the scores."""
    weights: NDArray | None = None
    """The weights of the rows as given, times those of the classes; None if all are equal."""

    @property
    def w(self) -> NDArray:
        """The weights, with the intercepts of several outputs at the end."""
        return np.asarray(self.model.result_.w)

    @cached_property
    def value(self) -> float:
        """J at the weights and intercepts of the model."""
        risk, _ = self.model._fitted_loss().value_grad(*self.at)
        return float(risk) + self.obj.lam * float(self.obj.reg.value(self.w))

    def multipliers(self) -> Multipliers:
        """Multipliers that prove the gap of the model, or the best that were found."""
        goal = self.value - float(self.model.gap_)
        u, lower = best_multipliers(self.obj, self.w, self.at.scores - self.offset, goal)
        return Multipliers(u, self.value, min(lower, self.value))

    def prove(self, names: TableNames = NO_NAMES, path: Path | None = None) -> Proof:
        """A proof of the gap of the model, or of what the best multipliers prove.

        It is checked with the rows of the file `path`, if given: a table with these names, or svmlight text.
        """
        model, p, k = self.model, self.X.shape[1], self.at.scores.shape[1] if self.at.scores.ndim == 2 else 1
        loss_record(model._fitted_loss()), penalty_record(self.obj, p, k)  # before the search
        coef = self.w[: p * k].reshape(p, k).T
        b = self.w[p * k :] if k > 1 else np.array([float(model._intercepts()[0])])
        classes = vars(model).get("classes_")
        problem = ProofProblem(
            self.obj,
            self.X,
            self.at.labels,
            self.weights,
            None if classes is None else [v if is_number(v) else str(v) for v in classes.tolist()],
            coef,
            b if model.fit_intercept else None,
            names,
        )
        return prove(problem, self.multipliers().u, float(model.gap_), path)


def fitted_problem(
    model: Any, X: Any, y: Any, sample_weight: Any = None, offset: Any = None
) -> FittedProblem:
    """The problem of a linear model of rows in this process; raise ValueError for other models."""
    check_is_fitted(model)
    X = as_table(X)
    reason = ""
    if not isinstance(model, RowEstimator):
        reason = f"{type(model).__name__} is no linear model of single rows"
    elif reason := model._labels.separate_problems(model._fitted_loss()):
        pass
    elif not model._fitted_loss().separable:
        reason = f"{model.loss} is no sum over rows, which then have no multipliers of their own"
    elif is_partitioned(X):
        reason = "the rows are not in this process: give them as one array or sparse matrix"
    elif np.array_equal(model.alpha, 0):
        reason = "alpha=0 has no penalty, without which multipliers prove nothing"
    elif model.weighted_ and sample_weight is None:
        reason = "the model was fitted with weights of rows, on which J depends: give sample_weight"
    if reason:
        raise ValueError(reason)
    weight = normalize_weights(sample_weight, X.shape[0])
    offset = row_offset(offset, X.shape[0])
    at = RiskArguments(*map(on_host, model._risk_arguments(X, compute_if_dask(y), weight, offset=offset)))
    if len(at.scores) != model.n_samples_fit_:
        raise ValueError(f"the model was fitted to {model.n_samples_fit_:,} rows, not to {len(at.scores):,}")
    rows, loss = validate_rows(model, X, reset=False), model._fitted_loss()
    risk = linear_risk(
        rows,
        at.labels,
        loss,
        sample_weight=at.weights,
        fit_intercept=bool(model.fit_intercept),
        n_outputs=at.scores.shape[1] if loss.multi_output else None,
        offset=offset,
    )
    obj = Objective(risk, fitted_regularizer(model), float(model.alpha))
    given = None if weight is None else np.asarray(compute_if_dask(sample_weight), np.float64)
    given = None if given is None or not given.ndim else given  # a number counts for every row
    weights = model._labels.encode(model, compute_if_dask(y), loss, given)[1]
    return FittedProblem(model, rows, at, obj, 0.0 if offset is None else offset, weights)


def multipliers(model: Any, X: Any, y: Any, *, sample_weight: Any = None, offset: Any = None) -> Multipliers:
    r"""Multipliers of the training rows that prove the gap of a fitted linear model,

    .. math:: \min J \;\ge\; -\sum_i c_i\, l^*(u_i, y_i)
              - \alpha\, \Omega^*\Bigl(-\tfrac1\alpha \sum_i c_i u_i x_i\Bigr),
              \qquad \sum_i c_i u_i = 0 \text{ with an intercept.}

    They are the slopes of the loss at the scores of the model where these prove its gap; otherwise a run that
    starts at the weights of the model improves them until they do. :math:`|u_i|` says how much row i pulls at
    the fit, and rows with :math:`u_i = 0` do not matter to it.

    Parameters
    ----------
    model : LinearClassifier or LinearRegressor
        A fitted model, or one that `riskmin.load_model` read. A loss that is no sum over rows, several
        targets, alpha = 0 and rows on a cluster or with owners are refused.
    X, y
        The training data, as given to `fit`, in this process; dense or sparse, of any precision.
    sample_weight, offset : (n,) array, optional
        As given to `fit`.

    Returns
    -------
    Multipliers
        `u`, J and the lower bound that u proves. Its gap is that of the model or less, unless the run could
        not prove as much.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from riskmin import LinearClassifier, multipliers
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LinearClassifier("hinge", alpha=1e-2).fit(scale(X), y)
    >>> found = multipliers(model, scale(X), y)
    >>> found.gap <= 1.001 * model.gap_, found.u.shape, int((found.u != 0).sum())
    (True, (569,), ...)
    """
    return fitted_problem(model, X, y, sample_weight, offset).multipliers()


class ProofMixin:
    """A linear model of single rows, whose certificate can be written to a file that anyone can check."""

    def prove(self, X: Any, y: Any, sample_weight: Any = None) -> Proof:
        r"""Prove :math:`J - \min J \le \text{gap}` of the fitted model, in exact arithmetic.

        Parameters
        ----------
        X, y, sample_weight
            The training data, as given to `fit`, in this process.

        Returns
        -------
        Proof
            Its `gap` is near that of the model or smaller. ``proof.save("model.proof")`` writes the file and
            ``proof.save_rows("rows.svm")`` the rows; ``python verify.py model.proof rows.svm`` checks them
            without riskmin. If X and y have names, it checks a CSV file with these columns, too.
        """
        features = vars(self).get("feature_names_in_")
        names = NO_NAMES if features is None else TableNames(features.tolist(), getattr(y, "name", None))
        return fitted_problem(self, X, y, sample_weight).prove(names)
