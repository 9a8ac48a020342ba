r"""Verification of a model's certificate against its training data.

The certificate claims an objective :math:`J(w)`, a cut :math:`R(v) \ge a^\top v + b` for every v, and the
lower bound of min J that follows from the cut. The check recomputes J, recomputes the bound from the cut,
compares the cut with the risk at every visited point, and proves a new lower bound from the data.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.matrix import as_matrix
from riskmin.cli.inputs import suppress_warnings
from riskmin.cli.tasks import tagging
from riskmin.cli.tasks.base import TASK_BEHAVIORS, query_kwargs
from riskmin.cli.tasks.measures import loss_scores, raw_scores
from riskmin.cli.tasks.ordinal_ranking import require_queries
from riskmin.core import Array, Cut, Iterate, Result, Shard, ShardCache
from riskmin.driver.run import DEFAULT_ATOL_RATIO
from riskmin.executors.base import SerialExecutor
from riskmin.problem.column_moments import column_moments
from riskmin.problem.kernel.rkhs import SQRT2, RkhsNorm, as_pair, coefficients
from riskmin.problem.linear_risk import check_labels
from riskmin.regularizers import L2, UnpenalizedTail, unpenalized_tail
from riskmin.report.progress import Progress

OBJECTIVE_RTOL = 1e-6
"""Relative difference up to which two objectives count as equal, and the smallest gap to be proved again."""
ROUNDING_RTOL = 1e-9
"""Relative error of bounds and gaps that is attributed to rounding."""


class CertificationResult(NamedTuple):
    """Result of a certification: an exit code, the verdict, and the reason in one sentence."""

    exit_code: int
    outcome: str
    reason: str


def certify_model(
    model: Any,
    X: Any,
    y: Any,
    qid: Any = None,
    *,
    tol: float | None = None,
    solver: str | None = None,
    max_iter: int = 10_000,
    max_seconds: float | None = None,
    quiet: bool = False,
) -> tuple[CertificationResult, dict[str, Any]]:
    """Verify the certificate of a fitted model: its objective, its cut, its lower bound.

    Parameters
    ----------
    model : estimator
        A fitted or loaded estimator of riskmin that can be saved.
    X, y, qid : arrays
        The training data; query ids for rankings.
    tol : float, optional
        The relative gap to prove; by default the claimed gap.
    solver : str, optional
        The solver of the proof; by default the model's.
    max_iter, max_seconds : int, float
        Limits of the proof.
    quiet : bool
        Show no progress.

    Returns
    -------
    CertificationResult
    dict
        The claimed, recomputed and proved quantities behind the verdict.
    """
    # only kernel machines have `dual_coef_`
    if hasattr(model, "dual_coef_"):
        model = _with_recomputed_products(model, X)
    J = recompute_objective(model, X, y, qid)
    numbers: dict[str, Any] = {
        "claimed_objective": model.objective_,
        "objective": J,
        "claimed_lower_bound": model.lower_bound_,
        "cut_lower_bound": cut_lower_bound(model),
        "claimed_gap_rel": (J - model.lower_bound_) / J if J else 0.0,
        "criterion": model.result_.criterion,
        "standardized": getattr(model, "scale_", None) is not None,
    }
    # sequences for a tagger, rows for all other models
    n_rows = len(X) if model.task == "tagging" else X.shape[0]
    atol = _claimed_atol(model, X, y, qid)
    # claims that are checked without another run
    reason = (
        _claim_error(model, n_rows, J, atol)
        or _support_vector_error(model, X)
        or _threshold_error(model, X, y)
    )
    if reason := reason or _scale_error(model, X):
        return CertificationResult(1, "refuted", reason), numbers
    # the claimed gap, but none below OBJECTIVE_RTOL, up to which objectives count as equal
    goal = max(numbers["claimed_gap_rel"], OBJECTIVE_RTOL) if tol is None else tol
    goal_atol = atol if tol is None else 0.0
    settings = {"solver": solver or model.solver, "max_iter": max_iter, "max_seconds": max_seconds}
    result, excess = _prove(model, (X, y, qid), J, (goal, goal_atol), quiet, settings)
    numbers |= {
        "lower_bound": result.lower,
        "best_objective": min(J, result.value),
        "gap_rel": (J - result.lower) / J if J else 0.0,
        "iterations": result.n_iter,
        "seconds": result.trace[-1]["seconds"],
        "solver": result.solver,
    }
    return _conclude(numbers, goal, goal_atol, excess), numbers


def recompute_objective(model: Any, X: Any, y: Any, qid: Any = None) -> float:
    """Recompute J at the weights and intercept of the model."""
    penalty = float(model.alpha) * float(_regularizer(model).value(model.result_.w))
    return _recompute_risk(model, X, y, qid) + penalty


def _recompute_risk(model: Any, X: Any, y: Any, qid: Any = None) -> float:
    """Recompute R at the weights and intercept of the model."""
    from riskmin.estimators._common.fit import fitted_loss

    if model.task == "tagging":
        return tagging.recompute_tagging_risk(model, X, y)
    with suppress_warnings():
        z = loss_scores(model, X)
    loss = fitted_loss(model)
    labels, c = TASK_BEHAVIORS[model.task].targets(model, y, len(z))
    if getattr(loss, "task", None) == "ranking":
        require_queries(model, qid)
        labels = check_labels(labels, len(z), loss, qid)
    value, _ = loss.value_grad(z, labels, c)
    return float(value)


def _regularizer(model: Any) -> Any:
    """Omega as a function of all of w, intercepts included."""
    from riskmin.estimators._common.fit import fitted_regularizer, n_unpenalized

    return (
        RkhsNorm()
        if hasattr(model, "dual_coef_")
        else unpenalized_tail(fitted_regularizer(model), n_unpenalized(model))
    )


def _with_recomputed_products(model: Any, X: Any) -> Any:
    """Copy a kernel machine with all products with the kernel matrix K recomputed from the data.

    Its weights and its cut are pairs (K beta, beta); only the coefficients beta are taken from the file.
    """
    from riskmin.estimators.kernel_names import kernel_matrix_of_model

    result, n = model.result_, X.shape[0]
    if 2 * n != len(result.w):
        return model  # the number of rows differs, which `_claim_error` reports
    # w = (K beta, beta) / sqrt(2), and the slope of the cut is (gamma, K gamma) / sqrt(2)
    K, beta, gamma = kernel_matrix_of_model(model, X), coefficients(result.w), SQRT2 * result.cut.a[:n]
    recomputed = copy.copy(model)
    cut = Cut(as_pair(gamma, K.product(gamma)), result.cut.b)
    recomputed.result_ = dataclasses.replace(result, w=as_pair(K.product(beta), beta), cut=cut)
    return recomputed


def _support_vector_error(model: Any, X: Any) -> str | None:
    """Describe the error if the support vectors of a kernel machine are not rows of the data."""
    if not hasattr(model, "dual_coef_"):
        return None
    with suppress_warnings():
        z = raw_scores(model, X)
    # the scores by the saved w, against those by the support vectors that `predict` uses
    expected = SQRT2 * model.result_.w[: len(z)] + np.ravel(model.intercept_)[0]
    error = float(abs(z - expected).max())
    if error > OBJECTIVE_RTOL * (1 + float(abs(z).max())):
        return f"its support vectors are not rows of these data: they make scores that differ by {error:.2g}"
    return None


def _threshold_error(model: Any, X: Any, y: Any) -> str | None:
    """Describe the error if an intercept or a decision threshold, on which J does not depend, is wrong."""
    from riskmin.estimators._common.fit import fitted_loss, n_unpenalized
    from riskmin.estimators._common.multi_output import is_multi_output
    from riskmin.estimators.ordinal import thresholds

    # no intercept: the offset of a novelty detector is not part of the objective
    if model.task in ("novelty", "tagging"):
        return None
    if is_multi_output(fitted_loss(model)):  # multi-output intercepts are part of w, or follow from it
        mismatch = bool(n_unpenalized(model)) != bool(model.fit_intercept) and model.task != "regression"
        return "its intercepts contradict its parameter fit_intercept" if mismatch else None
    loss, threshold = fitted_loss(model), float(getattr(model, "threshold_", 0.0))
    with suppress_warnings():
        z = loss_scores(model, X)
    # intercept_ = b - threshold_: b is the intercept in the risk
    tol, b = OBJECTIVE_RTOL * (1 + float(abs(z).max())), float(np.ravel(model.intercept_)[0]) + threshold
    has_intercept = model.fit_intercept and not getattr(loss, "shift_invariant", False)
    # b = 0 without fit_intercept, and for losses that do not depend on it or fix the number of positives
    if abs(b) > tol and (not has_intercept or getattr(loss, "fixed_positive_count", False)):
        return f"it has an intercept of {b:.9g}, which no fit of {model.loss} has"
    labels, c = TASK_BEHAVIORS[model.task].targets(model, y, len(z))
    claimed, expected = np.array([threshold]), np.zeros(1)
    if model.task == "ordinal":
        claimed, expected = model.thresholds_, thresholds(z, labels.astype(np.intp), None, model.metric)
    elif model.task == "classification" and model.fit_intercept and hasattr(loss, "cutoff"):
        expected = np.array([loss.cutoff(z, labels, c)])
    if claimed.shape != expected.shape or np.any(abs(claimed - expected) > tol):
        given, best = (", ".join(f"{t:.6g}" for t in values) for values in (claimed, expected))
        return f"it cuts its scores at {given}, but the scores of these data are best cut at {best}"
    return None


def _scale_error(model: Any, X: Any) -> str | None:
    """Describe the error if the saved standard deviations of the columns are not those of the data."""
    scale = getattr(model, "scale_", None)
    if (scale is not None) != bool(getattr(model, "standardize", False)):
        return "its column scales contradict its parameter standardize"
    if scale is None:
        return None
    ones = np.ones(X.shape[0])
    expected = column_moments(SerialExecutor([Shard(as_matrix(X), ones, ones, ShardCache())])).scale
    j = int(np.argmax(np.abs(scale / expected - 1)))
    if abs(scale[j] / expected[j] - 1) > OBJECTIVE_RTOL:
        return f"column {j} has a standard deviation of {expected[j]:.9g}, not {scale[j]:.9g} as claimed"
    return None


def _claimed_atol(model: Any, X: Any, y: Any, qid: Any) -> float:
    """An upper bound of the absolute tolerance that the model claims to have met; 0 if it claims `tol`.

    The default `atol` is proportional to the risk at w = 0 with the best intercept, which is at most the risk
    at w = 0 without one.
    """
    if model.result_.criterion != "atol":
        return 0.0
    if model.atol is not None:
        return float(model.atol)
    # the same model with all weights zero
    zero = copy.copy(model)
    for name in ("coef_", "intercept_", "threshold_", "dual_coef_", "transitions_", "start_", "end_"):
        if hasattr(model, name):
            setattr(zero, name, 0.0 * getattr(model, name))
    zero.result_ = dataclasses.replace(model.result_, w=0.0 * model.result_.w)
    return DEFAULT_ATOL_RATIO * float(model.tol) * _recompute_risk(zero, X, y, qid)


# ---------------------------------------------------------------- checks of the claim itself
def cut_lower_bound(model: Any) -> float:
    r"""The bound by the model's cut, :math:`\max_{0 \le s \le 1} s b - \lambda\,\Omega^*(-s a / \lambda)`.

    The code is independent of the solvers', since a check should not rely on the code that it checks: in
    closed form for L2, by ternary search for other regularizers. As in a run, the bound is at most the value
    that was reached, even if rounding makes it larger.
    """
    (a, b), lam, reg = model.result_.cut, float(model.alpha), _regularizer(model)
    if isinstance(reg, UnpenalizedTail):
        if np.any(a[-reg.m :]):
            return 0.0  # a cut with a slope in the unpenalized intercepts is unbounded below
        a, reg = a[: -reg.m], reg.penalized
    if reg == L2():
        q = float(a @ a)
        # s b - s^2 |a|^2 / (2 lam) is maximal at s = lam b / |a|^2, clipped to [0, 1]
        s = min(1.0, max(0.0, lam * b / q)) if q else float(b > 0)
        proved = s * b - s * s * q / (2 * lam)
    else:
        proved = _maximize_concave(lambda s: s * b - lam * reg.conjugate(-s / lam * a))
    return min(float(proved), float(model.result_.value))


def _maximize_concave(bound: Callable[[float], float]) -> float:
    """Maximum over [0, 1] of a concave function that is 0 at 0 and may be -inf beyond some point."""
    with np.errstate(over="ignore"):
        # halve the upper end until the function no longer increases, then narrow by ternary search
        hi = 1.0
        while hi > 1e-300 and not bound(0.5 * hi) < bound(hi):
            hi *= 0.5
        # by concavity the maximum is in [hi / 2, 2 hi]; (2/3)^100 < 1e-17 of this interval remains
        lo, hi = 0.5 * hi, min(1.0, 2 * hi)
        for _ in range(100):
            left, right = lo + (hi - lo) / 3, hi - (hi - lo) / 3
            lo, hi = (left, hi) if bound(left) < bound(right) else (lo, right)
        return max(0.0, bound(lo), bound(hi))


def _claim_error(model: Any, n_rows: int, J: float, atol: float) -> str | None:
    """Describe the first claim that contradicts the others or the recomputed J; None if there is none."""
    claimed, bound, result = model.objective_, model.lower_bound_, model.result_
    if model.n_samples_fit_ != n_rows:
        return f"the model was fitted to {model.n_samples_fit_:,} rows, but the data have {n_rows:,}"
    for name, value in (("objective", claimed), ("value that the solver reached", result.value)):
        if abs(J - value) > max(OBJECTIVE_RTOL * abs(value), OBJECTIVE_RTOL * atol):
            error = abs(J / value - 1) if value else math.inf
            return f"the {name} is {J:.9g}, not {value:.9g} as claimed: a relative error of {error:.2g}"
    proved = cut_lower_bound(model)
    # a claimed bound of 0 needs no cut: every loss and every regularizer is nonnegative
    if bound and abs(proved - bound) > ROUNDING_RTOL * abs(J):
        return f"the cut proves a lower bound of {proved:.9g}, not {bound:.9g} as claimed"
    # one point at which the cut must lie below the risk; the proof adds others
    if (excess := _cut_excess(model, model.result_.w, J)) > 0:
        return f"the cut is not valid: at the model's weights it exceeds the risk by {excess:.2g}"
    # the gap that the run itself claims, with the value that its solver reached
    gap = (result.value - bound) / result.value if result.value else 0.0
    if result.criterion == "atol" and result.gap > atol * (1 + ROUNDING_RTOL):
        return f"it claims to have converged to an absolute gap of {atol:.2e}, but it is {result.gap:.2e}"
    if result.status == "converged" and result.criterion == "tol" and gap > model.tol + ROUNDING_RTOL:
        return f"it claims to have converged to {model.tol:g}, but its gap is {gap:.2e}"
    return None


def _cut_excess(model: Any, v: Array, J: float) -> float:
    """By how much the model's cut exceeds the risk, a @ v + b - R(v) with J(v) = J; 0 within rounding."""
    (a, b), penalty = model.result_.cut, float(model.alpha) * _regularizer(model).value(v)
    av = float(a @ v)
    excess = av + b - (J - penalty)
    return excess if excess > ROUNDING_RTOL * (abs(J) + penalty + abs(av) + abs(b)) else 0.0


# ---------------------------------------------------------------- the proof
def _prove(
    model: Any,
    data: tuple[Any, Any, Any],
    J: float,
    goals: tuple[float, float],
    quiet: bool,
    settings: dict[str, Any],
) -> tuple[Result, float]:
    """Minimize J again from the model's w, until the goal is proved or the cut is refuted.

    The goals are a relative and an absolute gap; one of them suffices. Also returns the largest amount by
    which the model's cut exceeded the risk at the visited points.
    """
    goal, goal_atol = goals
    progress = Progress(tol=goal, file=sys.stderr, quiet=quiet)
    excess = 0.0

    def stop(iterate: Iterate, row: dict[str, float]) -> bool:
        nonlocal excess
        progress(iterate, row)
        excess = max(excess, _cut_excess(model, iterate.w, iterate.value))
        # J is that of the saved weights: the new bound must prove their gap, not that of the iterate
        return excess > 0 or J - row["lower"] <= max((goal + ROUNDING_RTOL) * J, goal_atol)

    # a checkpoint of the original run must be neither resumed nor replaced
    if "checkpoint" in model.get_params():
        settings = settings | {"checkpoint": None}
    # tol = atol = 0: the callback decides when the goal is reached
    refitted = copy.copy(model).set_params(warm_start=True, tol=0.0, atol=0.0, callback=stop, **settings)
    with progress, suppress_warnings():
        X, y, qid = data
        refitted.fit(X, y, **query_kwargs(model, qid))
    result: Result = refitted.result_
    return result, max(excess, _cut_excess(model, result.w, result.value))


def _conclude(numbers: dict[str, Any], goal: float, goal_atol: float, excess: float) -> CertificationResult:
    """Derive the verdict from the proved bound and the largest excess of the cut over the risk."""
    best, bound = numbers["best_objective"], numbers["claimed_lower_bound"]
    # no lower bound exceeds a value of J that was reached
    if bound > best * (1 + ROUNDING_RTOL):
        reason = (
            f"the claimed lower bound {bound:.9g} exceeds an objective of {best:.9g} by {bound - best:.2g}"
        )
        return CertificationResult(1, "refuted", reason)
    if excess > 0:
        reason = f"the cut is not valid: at weights visited by the proof it exceeds the risk by {excess:.2g}"
        return CertificationResult(1, "refuted", reason)
    # the verdict depends on how the proved gap compares with the goal and with the claim
    gap, claimed_gap = numbers["gap_rel"], numbers["claimed_gap_rel"]
    absolute = numbers["objective"] - numbers["lower_bound"]
    if goal_atol > 0 and absolute <= goal_atol:
        statement = f"the objective is within {absolute:.2e} of the optimum, in absolute terms"
        return CertificationResult(0, "certified", f"{statement} (atol is {goal_atol:.2e}), as proved anew")
    if gap > goal + ROUNDING_RTOL:
        reason = f"within the limits a gap of {gap:.2e} was proved, not the {goal:.2e} asked for"
        return CertificationResult(3, "open", reason)
    statement = f"the objective is within {gap:.2e} of the optimum"
    if gap <= claimed_gap + ROUNDING_RTOL:
        return CertificationResult(0, "certified", f"{statement}, as proved anew")
    # claims below OBJECTIVE_RTOL are not resolved
    if gap <= OBJECTIVE_RTOL + ROUNDING_RTOL:
        suffix = f"it claims {claimed_gap:.2e}, too close to check"
        return CertificationResult(0, "certified", f"{statement}, as proved anew; {suffix}")
    return CertificationResult(
        0, "bounded", f"{statement}; the model's own claim of {claimed_gap:.2e} was not checked"
    )
