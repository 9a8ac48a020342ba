r"""Verification of a model's certificate against its training data.

The certificate claims an objective :math:`J(w)`, a cut :math:`R(v) \ge a^\top v + b` for every v, and the
lower bound of min J that follows from the cut. The check recomputes J, recomputes the bound from the cut,
compares the cut with the risk at every visited point, and proves a new lower bound from the data.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from riskmin.arrays.namespace import as_table
from riskmin.core import Array, Criterion, Iterate, NDArray, Result
from riskmin.driver.run import Limits
from riskmin.estimators._common.base import CertifiedEstimator, RiskArguments
from riskmin.estimators._common.fit import normalize_weights, supports_intercept
from riskmin.estimators._common.input import compute_if_dask, select_rows, validate_rows
from riskmin.estimators.gpu_rows import is_on_gpu_array, on_host
from riskmin.estimators.scikit_learn import check_is_fitted
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem.column_moments import column_scales
from riskmin.regularizers import L2
from riskmin.report.progress import Progress

OBJECTIVE_RTOL = 1e-6
"""Relative difference up to which two objectives count as equal, and the smallest gap to be proved again."""
ROUNDING_RTOL = 1e-9
"""Relative error of bounds and gaps that is attributed to rounding."""

CertificationStatus = Literal["certified", "bounded", "open", "refuted"]


@dataclass(frozen=True)
class CertificationResult:
    r"""What `riskmin.certify` found out about the certificate of a model.

    Attributes
    ----------
    status : "certified", "bounded", "open" or "refuted"
        "certified": the claim holds, by a new proof. "bounded": the looser gap `tol` was proved, and the
        claim was not checked. "open": the limits were reached before the proof. "refuted": the claim is
        false.
    reason : str
        The reason in one sentence.
    value : float
        J at the weights of the model, recomputed from the data.
    lower : float
        The lower bound on min J that was proved anew; -inf if the claim was refuted without a proof.
    claimed_value, claimed_lower : float
        J and the lower bound that the model claims.
    cut_lower : float
        The lower bound that follows from the cut of the model, if the cut is valid.
    proof : `riskmin.Result` or None
        The run that proved `lower`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin import LinearRegressor, certify
    >>> X, y = load_diabetes(return_X_y=True)
    >>> found = certify(LinearRegressor(alpha=1e-3).fit(X, y), X, y)
    >>> found.lower <= found.value, found.gap <= 1e-3 * found.value, bool(found)
    (True, True, True)
    """

    status: CertificationStatus
    reason: str
    value: float
    claimed_value: float
    claimed_lower: float
    cut_lower: float
    proof: Result | None = None

    @property
    def lower(self) -> float:
        """The lower bound on min J that was proved anew."""
        return -math.inf if self.proof is None else self.proof.lower

    @property
    def gap(self) -> float:
        """The proved gap, value - lower."""
        return self.value - self.lower

    @property
    def relative_gap(self) -> float:
        """The proved gap as a fraction of the value."""
        return self.gap / self.value if self.value else 0.0

    @property
    def claimed_relative_gap(self) -> float:
        """The gap of the recomputed objective to the claimed bound, as a fraction of the value."""
        return (self.value - self.claimed_lower) / self.value if self.value else 0.0

    def __bool__(self) -> bool:
        """Whether a gap was proved: the status is "certified" or "bounded"."""
        return self.status in ("certified", "bounded")


def certify(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    qid: Any = None,
    lengths: Any = None,
    offset: Any = None,
    tol: float | None = None,
    solver: Any = None,
    max_iter: int = 10_000,
    max_seconds: float | None = None,
    verbose: bool = False,
) -> CertificationResult:
    r"""Verify the certificate of a fitted or loaded model against its training data.

    The objective :math:`J(w) = \alpha\,\Omega(w) + R(w)` is recomputed, and a new lower bound is proved, by a
    run that starts from the weights of the model and ends when :math:`J(w) - \text{lower} \le \text{tol}
    \cdot J(w)`. The claim is refuted if J or the number of rows differs, if the claimed bound

    .. math:: \max_{0 \le s \le 1}\; s\,b - \alpha\,\Omega^*(-s\,a / \alpha) \;\le\; \min J

    does not follow from the cut :math:`R(v) \ge a^\top v + b` of the model, if the cut exceeds the risk at
    any visited point, or if thresholds or column scales do not follow from the data.

    Parameters
    ----------
    model : CertifiedEstimator
        A fitted estimator of riskmin, or one that `riskmin.load_model` read.
    X, y
        The training data, as given to `fit`, in this process.
    sample_weight, qid, lengths, offset : array, optional
        As given to `fit`: weights of the rows, query ids of a `LinearRanker`, lengths of the sequences
        of a `ChainTagger` that was fitted to a matrix, and what was added to the scores of the rows.
    tol : float, optional
        The relative gap to prove; by default the claimed gap, and no less than 1e-6.
    solver : str or solver, optional
        The solver of the proof; by default the model's.
    max_iter, max_seconds : int, float or None
        Limits of the proof.
    verbose : bool
        Whether to print the certified gap to stderr during the proof.

    Returns
    -------
    CertificationResult
        It is true if the gap was proved; `value`, `lower`, `gap`, `status` and `reason` say what was found.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from riskmin import LinearClassifier, certify
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LinearClassifier("hinge", alpha=1e-2).fit(scale(X), y)
    >>> certify(model, scale(X), y, solver="bundle").status
    'certified'
    >>> certify(model, scale(X), 1 - y).reason  # other labels
    'the objective is 4.86..., not 0.06... as claimed: a relative error of 73'
    """
    check_is_fitted(model)
    if not isinstance(model, CertifiedEstimator) or not model.can_be_saved:
        raise ValueError(f"{type(model).__name__} has no certificate of its own")
    case = _case(model, X, y, sample_weight, {"qid": qid, "lengths": lengths, "offset": offset})
    J = case.objective()
    found = CertificationResult(
        "refuted", "", J, model.objective_, model.lower_bound_, cut_lower_bound(case.model)
    )
    atol = _claimed_atol(case)
    # claims that are checked without another run
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reason = claim_error(case, J, atol) or case.rows_error or _threshold_error(case)
        reason = reason or _scale_error(case)
    if reason:
        return replace(found, reason=reason)
    # the claimed gap, but none below OBJECTIVE_RTOL, up to which objectives count as equal
    goal = max(found.claimed_relative_gap, OBJECTIVE_RTOL) if tol is None else tol
    goal_atol = max(atol, case.rounding) if tol is None else case.rounding
    settings = {"solver": solver or model.solver, "max_iter": max_iter, "max_seconds": max_seconds}
    proof, excess = _prove(case, J, (goal, goal_atol), verbose, settings)
    status, reason = conclude(replace(found, proof=proof), goal, goal_atol, excess, case.rounding)
    if status in ("certified", "bounded"):  # the run was stopped because it had proved this
        met: Criterion = "tol" if proof.gap <= goal * proof.value else "atol"
        proof = replace(proof, status="converged", criterion=met)
    return replace(found, status=status, reason=reason, proof=proof)


@dataclass(frozen=True)
class _Case:
    """A model with its training data, and the arguments of its loss at its weights."""

    model: Any
    X: Any
    y: Any
    fit_arguments: dict[str, Any]
    n_rows: int
    at: RiskArguments
    rows_error: str
    """What the training rows contradict in the model, if anything."""

    def risk(self, scores: NDArray) -> float:
        """Return R for these scores of the rows."""
        value, _ = self.model._fitted_loss().value_grad(scores, self.at.labels, self.at.weights)
        return float(value)

    @cached_property
    def rounding(self) -> float:
        """A bound of the rounding error of R at the weights: terms of large counts cancel, and R may be 0."""
        loss, (z, y, c) = self.model._fitted_loss(), (self.at.scores, self.at.labels, self.at.weights)
        value, dz = loss.value_grad(z, y, c)
        return CUT_ROUNDING * (abs(float(value)) + float(abs(dz * z).sum()) + float(loss.terms(z, y, c)))

    def objective(self) -> float:
        """Recompute J at the weights and intercept of the model."""
        penalty = float(self.model.alpha) * float(self.model._penalty().value(self.model.result_.w))
        return self.risk(self.at.scores) + penalty


def _case(model: Any, X: Any, y: Any, sample_weight: Any, more: dict[str, Any]) -> _Case:
    X, y = as_table(X), y if is_on_gpu_array(y) else compute_if_dask(y)
    more = {name: compute_if_dask(value) for name, value in more.items() if value is not None}
    if model.weighted_ and sample_weight is None:
        raise ValueError("the model was fitted with weights of rows, on which J depends: give sample_weight")
    # sequences for a tagger, rows for all other models
    n_rows = len(more["lengths"]) if "lengths" in more else len(X) if isinstance(X, list) else X.shape[0]
    weight = normalize_weights(sample_weight, n_rows, y)
    # rows of weight zero have no effect on the fit; a separable risk of a kernel machine has them in w
    if weight is not None and (model.can_standardize or not model._fitted_loss().separable):
        used = weight > 0
        X, weight, y = select_rows(X, used), weight[used], None if y is None else select_rows(y, used)
        more = {name: np.asarray(value)[used] for name, value in more.items()}
    if reason := model._labels.separate_problems(model._fitted_loss()):
        raise ValueError(reason)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, rows_error = model._at_rows(X)
        at = model._risk_arguments(X, y, weight, **more)
    fit_arguments = more if weight is None else more | {"sample_weight": weight}
    return _Case(model, X, y, fit_arguments, n_rows, at, rows_error)


def _threshold_error(case: _Case) -> str | None:
    """Describe the error if an intercept or a decision threshold, on which J does not depend, is wrong."""
    model, z = case.model, case.at.scores
    loss = model._fitted_loss()
    if loss.multi_output:  # multi-output intercepts are part of w, or follow from it
        mismatch = model.intercepts_in_w and bool(model._n_unpenalized()) != bool(model.fit_intercept)
        return "its intercepts contradict its parameter fit_intercept" if mismatch else None
    tol, b = OBJECTIVE_RTOL * (1 + float(abs(z).max())), float(model._intercepts()[0])
    # b = 0 without fit_intercept, and for losses that do not depend on it or fix the number of positives
    has_intercept = model.fit_intercept and not loss.shift_invariant
    if abs(b) > tol and not (has_intercept and supports_intercept(loss)):
        return f"it has an intercept of {b:.9g}, which no fit of {model.loss} has"
    decision = model._decision
    at = RiskArguments(*map(on_host, case.at))
    claimed, expected = decision.cuts(model), decision.best_cuts(model, lambda: at)
    if claimed.shape != expected.shape or np.any(abs(claimed - expected) > tol):
        given, best = (", ".join(f"{t:.6g}" for t in values) for values in (claimed, expected))
        return f"it cuts its scores at {given}, but the scores of these data are best cut at {best}"
    return None


def _scale_error(case: _Case) -> str | None:
    """Describe the error if the saved standard deviations of the columns are not those of the data."""
    model = case.model
    if not model.can_standardize:
        return None
    if (model.scale_ is not None) != bool(model.standardize):
        return "its column scales contradict its parameter standardize"
    if model.scale_ is None:
        return None
    rows = validate_rows(model, case.X, reset=False)
    scale, expected = model.scale_, column_scales(rows, case.fit_arguments.get("sample_weight"))
    j = int(np.argmax(np.abs(scale / expected - 1)))
    if abs(scale[j] / expected[j] - 1) > OBJECTIVE_RTOL:
        return f"column {j} has a standard deviation of {expected[j]:.9g}, not {scale[j]:.9g} as claimed"
    return None


def _claimed_atol(case: _Case) -> float:
    """An upper bound of the absolute tolerance that the model claims to have met; 0 if it claims `tol`.

    The default `atol` is proportional to the risk at w = 0 with the best intercept, which is at most the risk
    at w = 0 without one.
    """
    model = case.model
    if model.result_.criterion != "atol":
        return 0.0
    if model.atol is not None:
        return float(model.atol)
    at_zero = 0.0 * case.at.scores + case.fit_arguments.get("offset", 0.0)
    return Limits.DEFAULT_ATOL_RATIO * float(model.tol) * case.risk(at_zero)


# ---------------------------------------------------------------- checks of the claim itself
def cut_lower_bound(model: Any) -> float:
    r"""The bound by the model's cut, :math:`\max_{0 \le s \le 1} s b - \lambda\,\Omega^*(-s a / \lambda)`.

    The code is independent of the solvers', since a check should not rely on the code that it checks: in
    closed form for L2, by ternary search for other regularizers. As in a run, the bound is at most the value
    that was reached, even if rounding makes it larger.
    """
    (a, b), lam, reg = model.result_.cut[:2], float(model.alpha), model._penalty()
    if reg.n_unpenalized:
        if np.any(a[-reg.m :]):
            return 0.0  # a cut with a slope in the unpenalized intercepts is unbounded below
        a, reg = a[: -reg.m], reg.penalized
    if lam == 0:  # no penalty: only a constant cut is bounded below
        return 0.0 if np.any(a) else min(float(b), float(model.result_.value))
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


def claim_error(case: _Case, J: float, atol: float) -> str | None:
    """Describe the first claim that contradicts the others or the recomputed J; None if there is none."""
    model, n_rows = case.model, case.n_rows
    claimed, bound, result = model.objective_, model.lower_bound_, model.result_
    if model.n_samples_fit_ != n_rows:
        return f"the model was fitted to {model.n_samples_fit_:,} rows, but the data have {n_rows:,}"
    # values of owners are rounded up, by no more than their error
    above = min(max(claimed - J, 0.0), result.value_error)
    if abs(J + above - claimed) > max(OBJECTIVE_RTOL * abs(claimed), OBJECTIVE_RTOL * atol, case.rounding):
        error = abs(J / claimed - 1) if claimed else math.inf
        return f"the objective is {J:.9g}, not {claimed:.9g} as claimed: a relative error of {error:.2g}"
    if result.value != claimed:
        return f"its run ended at {result.value:.9g}, which is not the objective that it claims"
    proved = cut_lower_bound(model)
    # a claimed bound of 0 needs no cut: every loss and every regularizer is nonnegative
    if bound and abs(proved - bound) > ROUNDING_RTOL * abs(J) + case.rounding:
        return f"the cut proves a lower bound of {proved:.9g}, not {bound:.9g} as claimed"
    # one point at which the cut must lie below the risk; the proof adds others
    if (excess := cut_excess(model, model.result_.w, J, case.rounding)) > 0:
        return f"the cut is not valid: at the model's weights it exceeds the risk by {excess:.2g}"
    gap = (claimed - bound) / claimed if claimed else 0.0
    if result.criterion == "atol" and result.gap > atol * (1 + ROUNDING_RTOL) + case.rounding:
        return f"it claims to have converged to an absolute gap of {atol:.2e}, but it is {result.gap:.2e}"
    if result.status == "converged" and result.criterion == "tol" and gap > model.tol + ROUNDING_RTOL:
        return f"it claims to have converged to {model.tol:g}, but its gap is {gap:.2e}"
    return None


def cut_excess(model: Any, v: Array, J: float, rounding: float = 0.0) -> float:
    """By how much the model's cut exceeds the risk, a @ v + b - R(v) with J(v) = J; 0 within rounding.

    `rounding` is the part of the error that is not relative to these terms.
    """
    (a, b), penalty = model.result_.cut[:2], float(model.alpha) * model._penalty().value(v)
    av = float(a @ v)
    excess = av + b - (J - penalty)
    rounding += ROUNDING_RTOL * (abs(J) + penalty + abs(av) + abs(b))
    return excess if excess > rounding else 0.0


# ---------------------------------------------------------------- the proof
def _prove(
    case: _Case, J: float, goals: tuple[float, float], verbose: bool, settings: dict[str, Any]
) -> tuple[Result, float]:
    """Minimize J again from the model's w, until the goal is proved or the cut is refuted.

    The goals are a relative and an absolute gap; one of them suffices. Also returns the largest amount by
    which the model's cut exceeded the risk at the visited points.
    """
    model, (goal, goal_atol) = case.model, goals
    progress = Progress(tol=goal, file=sys.stderr, quiet=not verbose)
    excess = 0.0

    def stop(iterate: Iterate, row: dict[str, float]) -> bool:
        nonlocal excess
        progress(iterate, row)
        excess = max(excess, cut_excess(model, iterate.w, iterate.value, case.rounding))
        # J is that of the saved weights: the new bound must prove their gap, not that of the iterate
        return excess > 0 or J - row["lower"] <= max((goal + ROUNDING_RTOL) * J, goal_atol)

    # tol = atol = 0: the callback decides when the goal is reached
    refitted = copy.copy(model).set_params(warm_start=True, tol=0.0, atol=0.0, callback=stop, **settings)
    # a checkpoint of the original run must be neither resumed nor replaced
    refitted.checkpoint, refitted.verbose = None, False
    with progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refitted.fit(case.X, case.y, **case.fit_arguments)
    result: Result = refitted.result_
    return result, max(excess, cut_excess(model, result.w, result.value, case.rounding))


def conclude(
    found: CertificationResult, goal: float, goal_atol: float, excess: float, rounding: float = 0.0
) -> tuple[CertificationStatus, str]:
    """Derive the verdict from the proved bound and the largest excess of the cut over the risk."""
    best = min(found.value, found.proof.value if found.proof is not None else math.inf)
    bound = found.claimed_lower
    # no lower bound exceeds a value of J that was reached
    if bound > best * (1 + ROUNDING_RTOL) + rounding:
        return (
            "refuted",
            f"the claimed lower bound {bound:.9g} exceeds an objective of {best:.9g} by {bound - best:.2g}",
        )
    if excess > 0:
        return (
            "refuted",
            f"the cut is not valid: at weights visited by the proof it exceeds the risk by {excess:.2g}",
        )
    # the verdict depends on how the proved gap compares with the goal and with the claim
    gap, claimed_gap = found.relative_gap, found.claimed_relative_gap
    if found.gap <= goal_atol and gap > goal:
        statement = f"the objective is within {found.gap:.2e} of the optimum, in absolute terms"
        return "certified", f"{statement} (atol is {goal_atol:.2e}), as proved anew"
    if gap > goal + ROUNDING_RTOL:
        return "open", f"within the limits a gap of {gap:.2e} was proved, not the {goal:.2e} asked for"
    statement = f"the objective is within {gap:.2e} of the optimum"
    if gap <= claimed_gap + ROUNDING_RTOL:
        return "certified", f"{statement}, as proved anew"
    # claims below OBJECTIVE_RTOL are not resolved
    if gap <= OBJECTIVE_RTOL + ROUNDING_RTOL:
        return ("certified", f"{statement}, as proved anew; it claims {claimed_gap:.2e}, too close to check")
    return "bounded", f"{statement}; the model's own claim of {claimed_gap:.2e} was not checked"
