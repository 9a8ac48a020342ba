r"""Whether what a model claims is true of data.

The claim is an objective :math:`J(w)`, a cut with :math:`R(v) \ge a^\top v + b` for every v, and the lower
bound of min J that follows from it. J is computed anew, the bound is computed from the cut, the cut is held
against the risk at every point that is visited, and a bound as good is proved from nothing but the data.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from riskmin.cli import tagging
from riskmin.cli.common import without_warnings
from riskmin.cli.graded import need_queries
from riskmin.cli.measures import loss_scores, raw_scores
from riskmin.cli.tasks import TASKS, queries
from riskmin.executors import Serial
from riskmin.linear import check_labels
from riskmin.matrices import as_matrix
from riskmin.moments import moments
from riskmin.progress import Progress
from riskmin.regularizers import L2, Free, free
from riskmin.rkhs import ROOT, RkhsNorm, coefficients, pair
from riskmin.run import SMALL
from riskmin.types import Array, Cut, Iterate, Memo, Result, Shard

SAME = 1e-6
"""Objectives that differ by less, relatively, are the same; no gap below it is asked to be proved again."""
ROUNDING = 1e-9


class Verdict(NamedTuple):
    """What came out: an exit code, a word, and one sentence."""

    code: int
    word: str
    why: str


def examine(
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
) -> tuple[Verdict, dict[str, Any]]:
    """Check the claim of a fitted model: its objective, its cut, its lower bound.

    Parameters
    ----------
    model : estimator of riskmin's that can be saved
        Fitted, or loaded.
    X, y, qid : arrays
        What it was fitted to; query ids for rankings.
    tol : float, optional
        The relative gap to prove; the claimed one by default.
    solver : str, optional
        The model's by default.
    max_iter, max_seconds : int, float
        Limits of the proof.
    quiet : bool
        Show no progress.

    Returns
    -------
    Verdict
    dict
        The numbers that it rests on.
    """
    if hasattr(model, "dual_coef_"):
        model = in_feature_space(model, X)
    J = objective(model, X, y, qid)
    numbers: dict[str, Any] = {
        "claimed_objective": model.objective_,
        "objective": J,
        "claimed_lower_bound": model.lower_bound_,
        "cut_lower_bound": bound_of_cut(model),
        "claimed_gap_rel": (J - model.lower_bound_) / J if J else 0.0,
        "criterion": model.result_.criterion,
        "standardized": getattr(model, "scale_", None) is not None,
    }
    n_rows = len(X) if model.task == "tagging" else X.shape[0]
    atol = _absolute(model, X, y, qid)
    why = _falsehood(model, n_rows, J, atol) or _strangers(model, X) or _misplaced(model, X, y)
    if why := why or _unscaled(model, X):
        return Verdict(1, "refuted", why), numbers
    goal = max(numbers["claimed_gap_rel"], SAME) if tol is None else tol
    slack = atol if tol is None else 0.0
    settings = {"solver": solver or model.solver, "max_iter": max_iter, "max_seconds": max_seconds}
    result, lifted = _prove(model, (X, y, qid), J, (goal, slack), quiet, settings)
    numbers |= {
        "lower_bound": result.lower,
        "best_objective": min(J, result.value),
        "gap_rel": (J - result.lower) / J if J else 0.0,
        "iterations": result.n_iter,
        "seconds": result.trace[-1]["seconds"],
        "solver": result.solver,
    }
    return _verdict(numbers, goal, slack, lifted), numbers


def objective(model: Any, X: Any, y: Any, qid: Any = None) -> float:
    """J at the model's own w and b, from scratch."""
    penalty = float(model.alpha) * float(_regularizer(model).value(model.result_.w))
    return mean_risk(model, X, y, qid) + penalty


def mean_risk(model: Any, X: Any, y: Any, qid: Any = None) -> float:
    """R at the model's own w and b, from scratch."""
    from riskmin.estimators.base import fitted_loss

    if model.task == "tagging":
        return tagging.risk(model, X, y)
    with without_warnings():
        z = loss_scores(model, X)
    loss = fitted_loss(model)
    labels, c = TASKS[model.task].truth(model, y, len(z))
    if getattr(loss, "task", None) == "ranking":
        need_queries(model, qid)
        labels = check_labels(labels, len(z), loss, qid)
    value, _ = loss.value_grad(z, labels, c)
    return float(value)


def _regularizer(model: Any) -> Any:
    from riskmin.estimators.base import n_free, penalty_of

    return RkhsNorm() if hasattr(model, "dual_coef_") else free(penalty_of(model), n_free(model))


def in_feature_space(model: Any, X: Any) -> Any:
    """A kernel machine with all products with its kernel matrix computed anew, from the data alone.

    Its function and its cut are pairs that hold such products; of the file, only the coefficients are taken.
    """
    from riskmin.estimators.mercer import gram_of

    result, n = model.result_, X.shape[0]
    if 2 * n != len(result.w):
        return model  # other data, as will be said
    K, beta, gamma = gram_of(model, X), coefficients(result.w), ROOT * result.cut.a[:n]
    again = copy.copy(model)
    cut = Cut(pair(gamma, K.product(gamma)), result.cut.b)
    again.result_ = dataclasses.replace(result, w=pair(K.product(beta), beta), cut=cut)
    return again


def _strangers(model: Any, X: Any) -> str | None:
    """Whether the support vectors of a kernel machine are no rows of the data, though they should be."""
    if not hasattr(model, "dual_coef_"):
        return None
    with without_warnings():
        z = raw_scores(model, X)
    here = ROOT * model.result_.w[: len(z)] + np.ravel(model.intercept_)[0]
    off = float(abs(z - here).max())
    if off > SAME * (1 + float(abs(z).max())):
        return f"its support vectors are not rows of these data: they make scores that differ by {off:.2g}"
    return None


def _misplaced(model: Any, X: Any, y: Any) -> str | None:
    """Whether a threshold on the scores is not the one that follows from them, though J does not tell."""
    from riskmin.estimators.base import fitted_loss, n_free
    from riskmin.estimators.many import is_many
    from riskmin.estimators.ordinal import thresholds

    if model.task in ("novelty", "tagging"):
        return None
    if is_many(fitted_loss(model)):  # what it adds to its scores is in w, or follows from it
        lost = bool(n_free(model)) != bool(model.fit_intercept) and model.task != "regression"
        return "it has intercepts, or has none, against what it says of itself" if lost else None
    loss, threshold = fitted_loss(model), float(getattr(model, "threshold_", 0.0))
    with without_warnings():
        z = loss_scores(model, X)
    near, b = SAME * (1 + float(abs(z).max())), float(np.ravel(model.intercept_)[0]) + threshold
    free = model.fit_intercept and not getattr(loss, "invariant", False)
    if abs(b) > near and (not free or getattr(loss, "counted", False)):
        return f"it has an intercept of {b:.9g}, which no fit of {model.loss} has"
    labels, c = TASKS[model.task].truth(model, y, len(z))
    said, due = np.array([threshold]), np.zeros(1)
    if model.task == "ordinal":
        said, due = model.thresholds_, thresholds(z, labels.astype(np.intp), None, model.metric)
    elif model.task == "classification" and model.fit_intercept and hasattr(loss, "cutoff"):
        due = np.array([loss.cutoff(z, labels, c)])
    if said.shape != due.shape or np.any(abs(said - due) > near):
        given, right = (", ".join(f"{t:.6g}" for t in some) for some in (said, due))
        return f"it cuts its scores at {given}, but the scores of these data are best cut at {right}"
    return None


def _unscaled(model: Any, X: Any) -> str | None:
    """Whether its columns have other standard deviations than it says; or it says none, though it should."""
    scale = getattr(model, "scale_", None)
    if (scale is not None) != bool(getattr(model, "standardize", False)):
        return "it standardizes columns, or does not, against what it says of itself"
    if scale is None:
        return None
    ones = np.ones(X.shape[0])
    due = moments(Serial([Shard(as_matrix(X), ones, ones, Memo())])).scale
    j = int(np.argmax(np.abs(scale / due - 1)))
    if abs(scale[j] / due[j] - 1) > SAME:
        return f"column {j} has a standard deviation of {due[j]:.9g}, not {scale[j]:.9g} as claimed"
    return None


def _absolute(model: Any, X: Any, y: Any, qid: Any) -> float:
    """The absolute gap that the model claims to have met, no less: 0 where it claims the relative one.

    By default it follows from the risk at w = 0 with the best intercept, which is at most that without one.
    """
    if model.result_.criterion != "atol":
        return 0.0
    if model.atol is not None:
        return float(model.atol)
    zero = copy.copy(model)
    for name in ("coef_", "intercept_", "threshold_", "dual_coef_", "transitions_", "start_", "end_"):
        if hasattr(model, name):
            setattr(zero, name, 0.0 * getattr(model, name))
    zero.result_ = dataclasses.replace(model.result_, w=0.0 * model.result_.w)
    return SMALL * float(model.tol) * mean_risk(zero, X, y, qid)


# ---------------------------------------------------------------- before a proof
def bound_of_cut(model: Any) -> float:
    r"""The bound of the model's cut, :math:`\max_{0 \le s \le 1} s b - \lambda\,\Omega^*(-s a / \lambda)`.

    It is computed otherwise than in a fit, for a check should not trust the code that it checks: written out
    for L2, by halving for others. As in a run, it is cut down to the value that was reached where
    rounding has lifted it above that.
    """
    (a, b), lam, reg = model.result_.cut, float(model.alpha), _regularizer(model)
    if isinstance(reg, Free):
        if np.any(a[-reg.m :]):
            return 0.0  # it falls without end along the intercepts
        a, reg = a[: -reg.m], reg.penalized
    if reg == L2():
        q = float(a @ a)
        s = min(1.0, max(0.0, lam * b / q)) if q else float(b > 0)
        proved = s * b - s * s * q / (2 * lam)
    else:
        proved = _most(lambda s: s * b - lam * reg.conjugate(-s / lam * a))
    return min(float(proved), float(model.result_.value))


def _most(bound: Callable[[float], float]) -> float:
    """The largest value of a concave function on [0, 1] that is 0 at 0 and may be -inf from somewhere on."""
    with np.errstate(over="ignore"):
        hi = 1.0
        while hi > 1e-300 and not bound(0.5 * hi) < bound(hi):
            hi *= 0.5
        lo, hi = 0.5 * hi, min(1.0, 2 * hi)
        for _ in range(100):
            left, right = lo + (hi - lo) / 3, hi - (hi - lo) / 3
            lo, hi = (left, hi) if bound(left) < bound(right) else (lo, right)
        return max(0.0, bound(lo), bound(hi))


def _falsehood(model: Any, n_rows: int, J: float, atol: float) -> str | None:
    """What is false in the claim by itself, or with the data's J; None if nothing is."""
    claimed, bound, result = model.objective_, model.lower_bound_, model.result_
    if model.n_samples_fit_ != n_rows:
        return f"{model.n_samples_fit_:,} rows were fitted, here are {n_rows:,}"
    for what, value in (("objective", claimed), ("value that the solver reached", result.value)):
        if abs(J - value) > max(SAME * abs(value), SAME * atol):
            off = abs(J / value - 1) if value else math.inf
            return f"the {what} is {J:.9g}, not {value:.9g} as claimed: off by {off:.2g} of it"
    proved = bound_of_cut(model)
    if bound and abs(proved - bound) > ROUNDING * abs(J):  # 0 needs no proof
        return f"the cut proves a lower bound of {proved:.9g}, not {bound:.9g} as claimed"
    if (above := _lift(model, model.result_.w, J)) > 0:
        return f"the cut is no cut: at the model's weights it is above the risk, by {above:.2g}"
    gap = (result.value - bound) / result.value if result.value else 0.0
    if result.criterion == "atol" and result.gap > atol * (1 + ROUNDING):
        return f"it claims to have converged to an absolute gap of {atol:.2e}, but it is {result.gap:.2e}"
    if result.status == "converged" and result.criterion == "tol" and gap > model.tol + ROUNDING:
        return f"it claims to have converged to {model.tol:g}, but its gap is {gap:.2e}"
    return None


def _lift(model: Any, v: Array, J: float) -> float:
    """By how much the model's cut is above the risk at v, where J is known; 0 where rounding explains it."""
    (a, b), penalty = model.result_.cut, float(model.alpha) * _regularizer(model).value(v)
    av = float(a @ v)
    above = av + b - (J - penalty)
    return above if above > ROUNDING * (abs(J) + penalty + abs(av) + abs(b)) else 0.0


# ---------------------------------------------------------------- the proof
def _prove(
    model: Any,
    data: tuple[Any, Any, Any],
    J: float,
    goals: tuple[float, float],
    quiet: bool,
    settings: dict[str, Any],
) -> tuple[Result, float]:
    """Minimize J once more from the model's w on, until the goal is proved or a claim refuted.

    The goal is a relative gap, or an absolute one. Also returns by how much the model's cut was above the
    risk at one of the points on the way.
    """
    goal, slack = goals
    progress = Progress(tol=goal, file=sys.stderr, quiet=quiet)
    lifted = 0.0

    def enough(iterate: Iterate, row: dict[str, float]) -> bool:
        nonlocal lifted
        progress(iterate, row)
        lifted = max(lifted, _lift(model, iterate.w, iterate.value))
        return lifted > 0 or J - row["lower"] <= max((goal + ROUNDING) * J, slack)

    if "checkpoint" in model.get_params():
        settings = settings | {"checkpoint": None}
    again = copy.copy(model).set_params(warm_start=True, tol=0.0, atol=0.0, callback=enough, **settings)
    with progress, without_warnings():
        X, y, qid = data
        again.fit(X, y, **queries(model, qid))
    result: Result = again.result_
    return result, max(lifted, _lift(model, result.w, result.value))


def _verdict(numbers: dict[str, Any], goal: float, slack: float, lifted: float) -> Verdict:
    best, bound = numbers["best_objective"], numbers["claimed_lower_bound"]
    if bound > best * (1 + ROUNDING):
        why = (
            f"the claimed lower bound {bound:.9g} is above an objective of {best:.9g}, by {bound - best:.2g}"
        )
        return Verdict(1, "refuted", why)
    if lifted > 0:
        why = f"the cut is no cut: at weights on the way it is above the risk, by {lifted:.2g}"
        return Verdict(1, "refuted", why)
    gap, own = numbers["gap_rel"], numbers["claimed_gap_rel"]
    absolute = numbers["objective"] - numbers["lower_bound"]
    if slack > 0 and absolute <= slack:
        within = f"the objective is within {absolute:.2e} of the least possible, in absolute terms"
        return Verdict(0, "certified", f"{within} (atol is {slack:.2e}), as proved afresh")
    if gap > goal + ROUNDING:
        why = f"within the limits a gap of {gap:.2e} was proved, not the {goal:.2e} asked for"
        return Verdict(3, "open", why)
    found = f"the objective is within {gap:.2e} of the least possible"
    if gap <= own + ROUNDING:
        return Verdict(0, "certified", f"{found}, as proved afresh")
    if gap <= SAME + ROUNDING:
        return Verdict(0, "certified", f"{found}, as proved afresh; it claims {own:.2e}, too close to check")
    return Verdict(0, "bounded", f"{found}; the model's own claim of {own:.2e} was not checked")
