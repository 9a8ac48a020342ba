"""Fit and certify scikit-learn estimators over the rows of owners."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from riskmin.core import Iterate, Result
from riskmin.driver.loop import minimize
from riskmin.estimators._common.fit import (
    build_objective,
    fit_objective,
    resolve_regularizer,
    supports_intercept,
)
from riskmin.estimators._common.input import EncodedLabels
from riskmin.estimators._common.labels import Classes, Labels, Numbers
from riskmin.estimators._common.standardize import column_scaling
from riskmin.estimators.certification import (
    OBJECTIVE_RTOL,
    CertificationResult,
    conclude,
    cut_excess,
    cut_lower_bound,
)
from riskmin.numerics.univariate import NoMinimum
from riskmin.owners.client import OwnerRefused
from riskmin.problem.objective import Objective
from riskmin.solvers import get_solver

if TYPE_CHECKING:
    from riskmin.owners.executor import OwnersExecutor


def fit_owners(model: Any, owners: OwnersExecutor) -> Any:
    r"""Fit an estimator to the rows of all owners, none of which leaves its owner.

    Parameters
    ----------
    model : LinearClassifier, LinearRegressor or LinearRanker
        With its parameters; `class_weight` needs the labels, and is refused.
    owners : OwnersExecutor

    Returns
    -------
    estimator
        The model, fitted to :math:`J(w, b) = \alpha\,\Omega(w) + \sum_k R_k(w, b)`.
    """
    model._check_parameters()
    if model.task not in ("classification", "regression", "ranking"):
        raise ValueError(f"{type(model).__name__} needs the scores of single rows, which owners do not send")
    if model.class_weight is not None:
        raise ValueError("class_weight needs the labels of all rows, which owners do not send: leave it out")
    objective, scaling, known, loss = _problem(model, owners)
    n, p = owners.shape
    model.n_features_in_ = p
    if (names := owners.descriptions[0]["feature_names"]) is not None:
        model.feature_names_in_ = np.array(names, dtype=object)
    weighted = any(d["weighted"] for d in owners.descriptions)
    solver = get_solver(model.solver)
    run: Any = objective.risk.executor
    try:
        w, b = fit_objective(model, objective, solver, None, n_rows=n, weighted=weighted, scaling=scaling)
    except NoMinimum:
        if not run.n_coarse:
            raise
        # slopes that are fixed may have no best intercept: the cause is that the rows are too few
        raise OwnerRefused(run.stall_note()) from None
    owners.widening = run.largest_widening / model.objective_ if model.objective_ else 0.0
    model.result_ = replace(model.result_, value_error=_value_error(model, objective))
    model._set_fitted(w, b, None, EncodedLabels(np.zeros(0), None, known, loss))
    if model.task == "ranking":
        model.n_queries_ = sum(d["queries"] for d in owners.descriptions)
    return model


def _value_error(model: Any, objective: Objective) -> float:
    """Return by how much the value at the final weights may be too high, by one more answer."""
    run: Any = objective.risk.executor
    try:
        above = objective.value(np.asarray(model.result_.w)) - model.objective_
    except OwnerRefused:
        above = -math.inf
    # the exact value is not below the lower bound, nor below the new value by more than its error
    return float(min(max(run.last_error - above, 0.0) + run.rounding_error(), model.gap_))


def _problem(model: Any, owners: OwnersExecutor) -> tuple[Objective, Any, Labels, Any]:
    """Return the objective over the owners' rows, the scaling of columns, the labels and the loss."""
    known: Labels = Classes(owners.classes) if model.task == "classification" else Numbers()
    loss = known.loss(model)
    intercept = bool(model.fit_intercept) and supports_intercept(loss)
    listed = None if known.values is None else known.values.tolist()
    risk = owners.risk(loss, fit_intercept=intercept, classes=listed)
    weighted = any(d["weighted"] for d in owners.descriptions)
    # the weights themselves are at the owners: any array stands for them
    given = np.ones(1) if weighted else None
    scaling = column_scaling(model, risk, given, given)
    objective = build_objective(model, risk, resolve_regularizer(model, risk), scaling)
    run: Any = risk.executor
    run.claim(objective)
    return objective, scaling, known, loss


def certify_owners(
    model: Any,
    owners: OwnersExecutor,
    *,
    tol: float | None = None,
    solver: Any = None,
    max_iter: int = 10_000,
    max_seconds: float | None = None,
) -> CertificationResult:
    """Verify the certificate of a model that was fitted to the rows of these owners.

    J is recomputed and a new lower bound is proved, as `riskmin.certify` does with rows in this process. Any
    party with a certificate that the owners accept can do so, each owner included. Values of J that owners
    return may be above the exact ones, so that objectives count as equal if they differ by less than `tol`.
    """
    objective, scaling, _, _ = _problem(model, owners)
    w = np.asarray(model.result_.w)
    J = objective.value(w)
    lower = cut_lower_bound(model)
    found = CertificationResult("refuted", "", J, model.objective_, model.lower_bound_, lower)
    if reason := _claim_error(model, owners, objective, scaling, found):
        return replace(found, reason=reason)
    goal = max(found.claimed_relative_gap, OBJECTIVE_RTOL) if tol is None else tol
    excess = 0.0

    def stop(iterate: Iterate, row: dict[str, float]) -> bool:
        nonlocal excess
        # owners round values up: the cut may exceed the true risk only where it exceeds these
        excess = max(excess, cut_excess(model, iterate.w, iterate.value))
        return excess > 0 or J - row["lower"] <= goal * J

    proof: Result = minimize(
        objective,
        get_solver(solver or model.solver),
        w,
        tol=0.0,
        atol=0.0,
        max_iter=max_iter,
        max_seconds=math.inf if max_seconds is None else max_seconds,
        callback=stop,
    )
    found = replace(found, proof=proof)
    # where errors of the owners' answers hide the claimed gap, the tolerance of the model may still be proved
    goal = max(goal, model.tol) if tol is None and found.relative_gap > goal else goal
    status, reason = conclude(found, goal, 0.0, excess)
    return replace(found, status=status, reason=reason)


def _claim_error(
    model: Any, owners: OwnersExecutor, objective: Objective, scaling: Any, found: CertificationResult
) -> str | None:
    """Describe the first claim of a model that contradicts the owners' answers; None if there is none."""
    n = owners.shape[0]
    if model.n_samples_fit_ != n:
        return f"the model was fitted to {model.n_samples_fit_:,} rows, but the owners have {n:,}"
    run: Any = objective.risk.executor
    # owners raise values that they answer coarsely
    difference = abs(min(found.value - run.last_error, found.claimed_value) - found.claimed_value)
    difference = max(difference, found.claimed_value - found.value)
    if difference > max(OBJECTIVE_RTOL, model.tol) * abs(found.claimed_value):
        return f"the objective is {found.value:.9g}, not {found.claimed_value:.9g} as claimed"
    if found.claimed_lower and abs(found.cut_lower - found.claimed_lower) > 1e-9 * abs(found.value):
        return (
            f"the cut proves a lower bound of {found.cut_lower:.9g}, not {found.claimed_lower:.9g} as claimed"
        )
    if (excess := cut_excess(model, model.result_.w, found.value)) > 0:
        return f"the cut is not valid: at the model's weights it exceeds the risk by {excess:.2g}"
    saved = model.scale_ if model.can_standardize else None
    if (saved is None) != (scaling is None):
        return "its column scales contradict its parameter standardize"
    if saved is not None and np.max(np.abs(saved / scaling.scale - 1)) > OBJECTIVE_RTOL:
        return "its column scales are not the standard deviations of the owners' columns"
    return None
