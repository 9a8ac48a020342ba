r"""Code shared by the estimators: from parameters and arrays to a certified fit, and from a fit to scores.

All of them minimize :math:`J(w, b) = \alpha\,\Omega(w) + \sum_i c_i\, l(x_i^\top w + b, y_i)`, with weights
:math:`c_i \ge 0` that sum to one, and store the certificate. Multi-output models have one weight
vector per score.
"""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from riskmin.arrays.devices.streamed import StreamedRows
from riskmin.arrays.namespace import as_array_like
from riskmin.arrays.partitioned import is_partitioned
from riskmin.core import Iterate, NDArray, Result
from riskmin.core.messages import is_number
from riskmin.driver.loop import minimize
from riskmin.driver.run import Callback
from riskmin.estimators import ESTIMATOR_OF_TASK
from riskmin.estimators._common.advice import (
    PYTHON_PHRASES,
    ConvergenceHints,
    describe_nonconvergence,
    diagnose_run,
)
from riskmin.estimators._common.input import (
    EncodedLabels,
    PlacedRows,
    WeightedRows,
    affine_scores,
    can_merge_rows,
    compute_if_dask,
    executor_for,
    merge_equal_rows,
    validate_rows,
)
from riskmin.estimators._common.offset import at_offset
from riskmin.estimators._common.standardize import ColumnScaling, column_scaling, rescale_to_standardized
from riskmin.estimators._common.trivial import TrivialModelWarning, describe_trivial_fit
from riskmin.estimators.gpu_rows import dense_weights, float64_like, is_on_gpu_array, moved, on_host
from riskmin.estimators.scikit_learn import check_is_fitted, convergence_warning
from riskmin.executors import Serial
from riskmin.executors.base import coordination_of
from riskmin.losses import get_loss
from riskmin.problem.linear_risk import check_weights, linear_risk
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.regularizers import Box, LinearConstraints, get_regularizer, repeat_per_output
from riskmin.regularizers.unpenalized import NoPenalty
from riskmin.solvers import get_solver
from riskmin.solvers.transformed.unpenalized import UnpenalizedNewton
from riskmin.solvers.transformed.unpenalized_program import UnpenalizedProgram


# ---------------------------------------------------------------- parameters
def resolve_loss(model: Any) -> Any:
    """Return the loss that the parameter `loss` denotes; raise if it belongs to another estimator."""
    loss = loss_by_name(model, model.loss)
    kind = loss.task or model.task  # a user-defined loss need not declare a task
    if kind not in (model.task, *model.extra_loss_tasks):
        use = ESTIMATOR_OF_TASK.get(kind)
        raise ValueError(
            f"{type(loss).__name__} is a loss for {kind}, not for {model.task}: "
            + (f"use {use}" if use else "choose another loss")
        )
    # only estimators with several targets can fit a multi-output regression loss
    if loss.multi_output and kind == "regression" and not model.multi_output_targets:
        raise ValueError(
            f"{type(loss).__name__} is a multi-output loss: use LinearRegressor, or loss='squared'"
        )
    return loss


def loss_by_name(model: Any, given: Any) -> Any:
    """Return the loss of a name, which may be an alias defined by this class of models."""
    return get_loss(model.loss_aliases.get(given, given) if isinstance(given, str) else given)


def supports_multiclass(loss: Any) -> bool:
    """Whether a classification loss has a form for more than two classes."""
    return loss.multi_output or loss.for_classes(3) is not None


def loss_for_classes(loss: Any, k: int) -> Any:
    """Return the loss for k classes: the loss itself, or the multiclass form of a binary loss.

    Examples
    --------
    >>> from riskmin import Logistic
    >>> loss_for_classes(Logistic(), 2), loss_for_classes(Logistic(), 3)
    (Logistic(), Softmax())
    """
    result = loss.for_classes(k)
    if result is None:
        raise ValueError(
            f"Only binary classification is supported. The type of the target is multiclass: {loss!r} takes "
            f"two classes, not {k}; use 'hinge', 'squared_hinge', 'logistic' or MulticlassHinge(cost), which "
            "take more, or wrap the model in sklearn.multiclass.OneVsRestClassifier"
        )
    return result


def resolve_regularizer(model: Any, risk: Any = None) -> Any:
    """Return the regularizer that the model's parameters denote, with the bound w >= 0 if `positive`.

    For a multi-output risk, settings with one number per feature apply to every output.
    """
    reg = get_regularizer(model.regularizer)
    # expand settings from one number per feature to one per feature and output
    if risk is not None and risk.multi_output and risk.row_metadata is not None:
        reg = repeat_per_output(reg, risk.row_metadata.shape[1], risk.dim - risk.n_intercepts)
    if not model.positive:
        return reg
    if reg.can_be_bounded:
        return Box(reg, 0.0)
    raise ValueError(
        f"positive=True bounds L1, L2 and Elastic, not {reg!r}: set positive=False, and choose a regularizer "
        f"of positive weights such as {reg.positive_alternative}"
    )


def fitted_regularizer(model: Any) -> Any:
    """Return the regularizer of a fitted model as a function of its weights, in the units of X."""
    reg, scale = resolve_regularizer(model), vars(model).get("scale_")
    n_penalized = len(model.result_.w) - model._n_unpenalized()
    if model.repeats_settings:
        reg = repeat_per_output(reg, model.n_features_in_, n_penalized)
    return reg if scale is None else rescale_to_standardized(reg, scale, n_penalized)


def check_number(model: Any, name: str, needs: str, fits: Callable[[Any], bool]) -> None:
    """Raise unless the parameter is a real number for which `fits` holds; `needs` describes the condition."""
    value = vars(model)[name]
    if not is_number(value) or not fits(value):
        raise ValueError(f"{name}={value!r}, but {type(model).__name__} needs {name} to be {needs}")


def normalize_weights(sample_weight: Any, n_rows: int, y: Any = None) -> Any:
    """Return the weights, one per row, normalized to sum to one; None stands for equal weights.

    They are where the labels are, if those are on a GPU.
    """
    if sample_weight is None:
        return None
    like = None if y is None else float64_like(y)
    if like is None or not is_on_gpu_array(sample_weight):
        sample_weight = compute_if_dask(sample_weight)
    weights = check_weights(sample_weight, n_rows, like)
    return weights if like is None else as_array_like(weights, like)


# ---------------------------------------------------------------- fit
def fit_linear(
    model: Any, X: Any, rows: EncodedLabels, row_weight: NDArray | None, qid: Any = None
) -> tuple[NDArray, Any, Any]:
    """Minimize J with the model's parameters and store the certificate; return w, b and the rows.

    The rows are returned in the form that `affine_scores` takes, so that remote rows are not read twice.
    `row_weight` holds the weights without class weights and is used for standard deviations.
    """
    model._check_parameters()
    reg = resolve_regularizer(model)  # report an invalid regularizer before the first pass over X
    executor = executor_for(model, X)
    # partitions of few rows in this process are one array, so that their fits have the same bits
    X = X.whole() if is_partitioned(X) and executor.is_local and can_merge_rows(X) else X
    data = WeightedRows(X, rows, row_weight)
    if qid is None and rows.loss.separable:
        data = merge_equal_rows(*data)
    risk = build_risk(model, data.X, data.rows, executor=executor, qid=qid)
    scaling = column_scaling(model, risk, data.rows.weight, data.row_weight)
    reg = resolve_regularizer(model, risk) if risk.multi_output else reg
    objective = build_objective(model, risk, reg, scaling)
    start = _warm_start_point(model, objective)
    placed = PlacedRows(risk.executor) if is_partitioned(X) else X

    def fitted(w: NDArray) -> dict[str, Any]:
        candidate: Any = copy.copy(model)
        candidate._set_fitted(np.asarray(w), risk.best_intercept(w), placed, rows)
        return {name: value for name, value in vars(candidate).items() if vars(model).get(name) is not value}

    w, b = fit_objective(
        model,
        objective,
        resolve_solver(model, objective),
        start,
        n_rows=X.shape[0],
        weighted=row_weight is not None,  # class weights are a function of y and do not count
        scaling=scaling,
        fitted=fitted,
        single=_is_single(X),
    )
    return in_precision_of(X, w), b, placed


def _is_single(X: Any) -> bool:
    """Return whether rows in this process are given in single precision."""
    return bool(getattr(X, "dtype", None) == np.float32)


def in_precision_of(X: Any, w: NDArray) -> NDArray:
    """Return fitted weights in single precision if X is, and their rounding was accepted; else unchanged."""
    rounded: NDArray = w.astype(np.float32)
    return rounded if _is_single(X) and np.array_equal(rounded, w) else w


def resolve_solver(model: Any, objective: Objective) -> Any:
    """Return the solver that the parameters denote: with alpha = 0 there is one, for some losses."""
    if model.alpha:
        return get_solver(model.solver)
    if model.solver not in (None, "auto"):
        raise ValueError(
            f"alpha=0 has solvers of its own, not {model.solver!r}: leave solver out, or give alpha > 0"
        )
    solvers = UnpenalizedNewton(), UnpenalizedProgram()
    solver = solvers[bool(solvers[0].supports(objective)) and not solvers[1].supports(objective)]
    if reason := solver.supports(objective):
        raise ValueError(reason)
    return solver


def build_objective(model: Any, risk: Any, reg: Any, scaling: ColumnScaling | None) -> Objective:
    """Return J as a function of the weights in the units of X; with alpha = 0, the risk alone."""
    if model.alpha == 0:
        if not reg.is_finite(risk.dim - risk.n_intercepts):
            inner = reg.reg if isinstance(reg, LinearConstraints) else reg
            if risk.multi_output or not inner.separable:
                raise ValueError(
                    f"alpha=0 leaves out the penalty, but {reg!r} bounds the weights, too: give alpha > 0"
                )
            return Objective(risk, NoPenalty(reg), 1.0)
        return Objective(risk, NoPenalty(), 1.0)
    # the penalized entries of w; explicit intercepts are its last entries
    dim = risk.dim - risk.n_intercepts
    reg = reg if scaling is None else rescale_to_standardized(reg, scaling.scale, dim)
    return Objective(risk, reg, float(model.alpha))


def fit_objective(
    model: Any,
    objective: Objective,
    solver: Any,
    start: NDArray | None,
    *,
    n_rows: int,
    weighted: bool,
    scaling: ColumnScaling | None = None,
    fitted: Callable[[NDArray], dict[str, Any]] | None = None,
    single: bool = False,
) -> tuple[NDArray, Any]:
    """Minimize J within the model's limits, store the certificate, and return w and b.

    ``fitted(w)`` are the fitted attributes at an iterate, for scikit-learn's callbacks. With `single`, w
    holds numbers of single precision, if J is within the tolerance there.
    """
    with _callback_with_progress(model, objective.risk) as callback:
        result = minimize(
            objective,
            solver,
            start,
            tol=model.tol,
            atol=model.atol,
            max_iter=int(model.max_iter),
            max_seconds=math.inf if model.max_seconds is None else model.max_seconds,
            callback=model._fit_tasks.callback(callback, fitted),
            checkpoint=model.checkpoint,
        )
    model._fit_tasks.advance(1.0)
    risk: Any = objective.risk
    if scaling is not None:
        result = scaling.with_zeroed_constants(objective, result)
    if single:
        result = _in_single_precision(model, objective, result)
    if result.intercept is None:  # time was over
        result = replace(result, intercept=risk.best_intercept(result.w))
    b = result.intercept
    executor = risk.executor
    explained = result.note or (executor is not None and not executor.can_gather)
    if result.status == "converged" and not explained and not _has_learned(objective, result, start):
        # a run may converge to w = 0: the note explains why, and how to avoid it
        result = replace(result, note=describe_trivial_fit(model, objective, result, b))
    if result.status == "stalled" and not result.note and executor is not None:
        result = replace(result, note=executor.stall_note())
    store_certificate(model, result, n_rows=n_rows, weighted=weighted)
    if model.can_standardize:
        model.scale_ = None if scaling is None else scaling.scale
    done = result.status in ("converged", "interrupted")
    # owners have said why, and may answer no more
    done = done or (bool(result.note) and executor is not None and not executor.can_gather)
    model._hints = ConvergenceHints() if done else diagnose_run(objective, result, model.solver)
    return np.asarray(result.w), b if np.ndim(b) else np.float64(b)


def _in_single_precision(model: Any, objective: Objective, result: Result) -> Result:
    """Return the result at w rounded to single precision, with J there; unchanged if its gap is too large."""
    w = np.asarray(result.w).astype(np.float32).astype(np.float64)
    value, b, _ = objective.at_best_intercept(w, result.intercept)
    # the default of atol is a share of the first value
    atol = 1e-6 * model.tol * result.trace[0]["value"] if model.atol is None else model.atol
    accepted = value - result.lower <= max(result.gap, model.tol * abs(value), atol)
    return replace(result, w=w, value=value, intercept=b) if accepted else result


def _has_learned(objective: Objective, result: Result, start: NDArray | None) -> bool:
    """Whether a run that started at w = 0, without explicit intercepts, has lowered J by more than half.

    A run that ended by atol may have lowered what was only rounding.
    """
    first, cold = result.trace[0]["value"], start is None and not objective.n_intercepts
    return bool(
        cold and result.criterion == "tol" and first - result.value > 0.5 * first and np.any(result.w)
    )


def store_certificate(model: Any, result: Result, *, n_rows: int, weighted: bool) -> None:
    """Set the attributes that hold the certificate and describe the data it is about."""
    # without the multipliers, which have the length of the data, and equal rows as one
    model.result_ = replace(result, multipliers=None)
    model.n_iter_ = result.n_iter
    model.objective_ = result.value
    model.lower_bound_ = result.lower
    model.gap_ = result.gap
    model.n_samples_fit_ = n_rows
    model.weighted_ = weighted
    for name in ("preparation_", "command_", "target_name_"):  # of a previous fit
        vars(model).pop(name, None)


def move_to_point(model: Any, objective: Objective, w: NDArray, X: Any, rows: EncodedLabels) -> None:
    """Make w the fitted point of a model that was fitted to this objective, with J at w in its certificate.

    The lower bound stays: it is one of min J, whatever the point.
    """
    value, b, _ = objective.at_best_intercept(w)
    result = replace(model.result_, w=w, value=value, intercept=b, status="interrupted", criterion="")
    store_certificate(model, result, n_rows=model.n_samples_fit_, weighted=model.weighted_)
    model._set_fitted(np.asarray(w), b, X, rows)


def build_risk(model: Any, X: Any, rows: EncodedLabels, *, executor: Any, qid: Any = None) -> Risk:
    """Return the risk that the model's parameters denote for labeled rows."""
    labels, weight, known, loss, offset = rows
    X = moved(X, model.device)
    return linear_risk(
        X,
        labels,
        loss,
        sample_weight=weight,
        qid=qid,
        fit_intercept=bool(model.fit_intercept) and supports_intercept(loss),
        # blocks that are copied to a device in turn have two buffers, for one thread
        executor=Serial() if isinstance(X, StreamedRows) else executor,
        n_outputs=len(known.values) if known.values is not None and loss.multi_output else None,
        offset=offset,
    )


def supports_intercept(loss: Any) -> bool:
    """Whether J has an intercept; losses that fix the number of positive rows set a cutoff after the fit."""
    return not loss.fixed_positive_count


def _warm_start_point(model: Any, objective: Objective) -> NDArray | None:
    if not model.warm_start or "coef_" not in vars(model):
        return None
    risk: Any = objective.risk
    # w of a multi-output model includes the intercepts, `coef_` does not
    multi_output = risk.multi_output
    last: NDArray = (
        np.asarray(model.result_.w) if multi_output else np.ravel(dense_weights(model)).astype(np.float64)
    )
    dim, reg = risk.dim, objective.reg
    if len(last) != dim:
        had, has = (f"{len(last)} weights", "this one") if multi_output else (f"{len(last)} features", "X")
        raise ValueError(
            f"warm_start=True starts from the last fit, which had {had}, but {has} has {dim}: "
            "set warm_start=False or make a new estimator"
        )
    # the last fit may have had another regularizer: project onto the domain of this one
    return last if math.isfinite(reg.value(last)) else np.asarray(reg.prox(last, 0.0))


@contextlib.contextmanager
def _callback_with_progress(model: Any, risk: Any) -> Iterator[Callback | None]:
    """Yield the user's callback, combined with a progress display if `verbose`; only rank 0 displays."""
    if not model.verbose or not coordination_of(risk).is_root:
        yield model.callback
        return
    from riskmin.report.progress import Progress

    # the display comes first, so that it also shows the iterate at which the callback stops
    with Progress(tol=model.tol) as display:

        def both(iterate: Iterate, row: dict[str, float]) -> Any:
            display(iterate, row)
            return model.callback is not None and model.callback(iterate, row)

        yield both


def warn_unless_converged(model: Any) -> None:
    """Warn at the end of `fit` if it did not converge, or converged to a trivial model."""
    result = model.result_
    if result.status != "converged":
        warnings.warn(
            f"{type(model).__name__} {describe_nonconvergence(model, PYTHON_PHRASES)}",
            convergence_warning(),
            stacklevel=5,
        )
    elif result.note:
        message = f"{type(model).__name__} learned nothing: {result.note}"
        warnings.warn(message, TrivialModelWarning, stacklevel=5)


# ---------------------------------------------------------------- predict
def decision_scores(model: Any, X: Any, offset: Any = None) -> NDArray:
    """Validate rows given by the user and return X @ w + b, plus the offset, if there is one."""
    check_is_fitted(model)
    return at_offset(decision_scores_of_validated(model, validate_rows(model, X, reset=False)), offset)


def decision_scores_of_validated(model: Any, X: Any) -> NDArray:
    """Return X @ w + b of validated rows, in float64 and without copying X; one column per output."""
    coef, intercept = dense_weights(model), on_host(model.intercept_)
    if np.size(intercept) == 1:
        return affine_scores(X, np.ravel(coef), float(np.ravel(intercept)[0]))
    # coef_ is (k, p), and products take the (p, k) matrix in row-major order
    return affine_scores(X, np.ascontiguousarray(coef.T), intercept)
