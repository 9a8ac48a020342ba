"""Multi-output regression: one joint problem for all outputs, or one problem per output."""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from riskmin.core import Criterion, Cut, Iterate, NDArray, Result, Status
from riskmin.core.records import bounds_row
from riskmin.driver.checkpoint import Checkpoint
from riskmin.estimators._common.advice import ConvergenceHints
from riskmin.estimators._common.fit import (
    fit_linear,
    fitted_regularizer,
    in_precision_of,
    store_certificate,
)
from riskmin.estimators._common.input import EncodedLabels
from riskmin.estimators.gpu_rows import dense_weights
from riskmin.losses import MultivariateSquared, Squared
from riskmin.regularizers.base import Regularizer

_STATUS_BY_SEVERITY: tuple[Status, ...] = ("interrupted", "max_seconds", "max_iter", "stalled", "converged")
"""The combined status of several runs is the first of these that any of them has."""


def loss_for_outputs(loss: Any, reg: Any) -> Any:
    """Return the loss that fits all outputs jointly; None if each output is a separate problem.

    Least squares with L2 is one problem, since one pass over X serves all outputs.

    Examples
    --------
    >>> from riskmin import L2, Hinge
    >>> loss_for_outputs(Squared(), L2()), loss_for_outputs(Hinge(), L2())
    (MultivariateSquared(), None)
    """
    # with M = I the outputs do not interact, so the joint optimum is that of each output
    if isinstance(loss, Squared) and reg.diagonal:
        return MultivariateSquared()
    return loss if loss.multi_output else None


def unpack_weights(w: NDArray, k: int, *, intercepts: bool) -> tuple[NDArray, NDArray]:
    """Return the weights, one row per output, and the intercepts, which are the last k entries of w if any.

    Examples
    --------
    >>> coef, b = unpack_weights(np.array([1.0, 2.0, 3.0, 4.0, 10.0, 20.0]), 2, intercepts=True)
    >>> coef.tolist(), b.tolist()
    ([[1.0, 3.0], [2.0, 4.0]], [10.0, 20.0])
    """
    # w holds the (p, k) weight matrix in row-major order
    W, b = (w[:-k], w[-k:].copy()) if intercepts else (w, np.zeros(k))
    return W.reshape(-1, k).T, b


def fit_outputs(
    model: Any, X: Any, rows: EncodedLabels, row_weight: NDArray | None, queries: NDArray | None = None
) -> tuple[NDArray, Any, Any]:
    """Minimize J for labels of one output, or with one column per output; return what `fit_linear` does."""
    if np.shape(model.alpha) not in ((), np.shape(rows.labels)[1:]):
        raise ValueError(
            f"alpha has the shape {np.shape(model.alpha)}, but y has the shape {np.shape(rows.labels)}: "
            "give a number, or one number per column of y"
        )
    if rows.loss.multi_output and np.ndim(model.alpha):
        raise ValueError(f"{rows.loss!r} fits all targets as one problem: give one number as alpha")
    if np.ndim(rows.labels) < 2 or rows.loss.multi_output:
        return fit_linear(model, X, rows, row_weight, queries)
    return *_fit_separately(model, X, rows), X


def _fit_separately(model: Any, X: Any, rows: EncodedLabels) -> tuple[NDArray, NDArray]:
    """Solve one problem per output, one after the other."""
    Y, weight = rows.labels, rows.weight
    models, intercepts = [], []
    for j, single in in_turn(model, [_single_output(model, j, Y.shape[1]) for j in range(Y.shape[1])]):
        _, b, _ = fit_linear(single, X, rows._replace(labels=Y[:, j]), weight)
        models.append(single)
        intercepts.append(b)
    # all outputs have the same X, hence the same scale
    model.scale_ = models[0].scale_
    reg = fitted_regularizer(models[0])
    result = store_combined(model, models, reg, n_rows=X.shape[0], weighted=weight is not None)
    return in_precision_of(X, np.asarray(result.w)), np.array(intercepts)


def in_turn(model: Any, singles: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the models of separate problems with their numbers, each to be fitted before the next.

    `max_seconds` limits all of them together, and after Ctrl-C, those that are left take one iteration.
    """
    start, limit, stopped = time.perf_counter(), model.max_seconds, False
    for j, single in enumerate(singles):
        single._fit_tasks = model._fit_tasks.part(j, len(singles))
        if limit is not None and math.isfinite(limit):  # positive, so that each gets a first iterate
            single.max_seconds = max(limit - (time.perf_counter() - start), 1e-9)
        if stopped:
            single.callback = _stop_at_once
        yield j, single
        stopped = stopped or single.result_.status == "interrupted"


def store_combined(
    model: Any, singles: Sequence[Any], reg: Regularizer, *, n_rows: int, weighted: bool
) -> Result:
    """Set the certificate of a model to that of the sum of its separate problems, and return the result."""
    lams = [float(single.alpha) for single in singles]
    result = combine_results([m.result_ for m in singles], reg, lams, model.tol)
    model._hints = next((m._hints for m in singles if m.result_.status == result.status), ConvergenceHints())
    store_certificate(model, result, n_rows=n_rows, weighted=weighted)
    return result


def _stop_at_once(iterate: Iterate, row: dict[str, float]) -> bool:
    """Stop a run after its first iteration (a callback)."""
    return True


def _single_output(model: Any, j: int, k: int) -> Any:
    """Return the model of output j of k, with its weights of the last fit and a separate checkpoint file."""
    # a shallow copy: fitted attributes of the output do not change the model
    single = copy.copy(model)
    single._labels = model._label_kind()
    single.alpha = float(np.broadcast_to(model.alpha, k)[j])
    if model.warm_start and "coef_" in vars(model):
        if np.ndim(model.coef_) != 2 or model.coef_.shape[0] != k:
            raise ValueError(
                f"warm_start=True starts from the last fit, but that was not of {k} outputs: "
                "set warm_start=False or make a new estimator"
            )
        single.coef_ = dense_weights(model)[j]
    file = model.checkpoint
    if file is not None:
        file = Checkpoint(file) if isinstance(file, (str, os.PathLike)) else file
        single.checkpoint = replace(file, path=f"{os.fspath(file.path)}.{j}")
    return single


def combine_results(
    results: Sequence[Result], reg: Regularizer, lams: Sequence[float], tol: float = 1e-3
) -> Result:
    """Combine the runs of the outputs into one result: the sums of their values, bounds and cuts.

    Each cut is multiplied by the scale that its own bound uses, so that the bound of the sum is the sum of
    the bounds. The trace has the last row of each run and a total. If all runs converged, the criterion is
    "tol" if the sum meets it, else "atol", which at least one run has met.

    Examples
    --------
    >>> from riskmin import L2, Objective, Squared, linear_risk, minimize
    >>> X, Y = np.array([[1.0], [2.0], [4.0]]), np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 5.0]])
    >>> runs = [minimize(Objective(linear_risk(X, y, Squared()), L2(), lam=0.1)) for y in Y.T]
    >>> both = combine_results(runs, L2(), [0.1, 0.1])
    >>> both.w.shape, both.status, both.criterion, both.gap <= 1e-3 * both.value
    ((2,), 'converged', 'tol', True)
    """
    # a run proves max_s s b - lam Omega*(-s a / lam): s is the scale of its cut
    scales = [reg.scale(r.cut, lam) if lam else 1.0 for r, lam in zip(results, lams, strict=True)]
    a = np.stack([s * np.asarray(r.cut.a) for s, r in zip(scales, results, strict=True)], axis=1)
    b = sum(s * r.cut.b for s, r in zip(scales, results, strict=True))
    value, lower = (float(sum(getattr(r, name) for r in results)) for name in ("value", "lower"))
    last = [r.trace[-1] for r in results]
    totals = {
        "iteration": max(row["iteration"] for row in last),
        **{name: sum(row[name] for row in last) for name in ("seconds", "calls")},
        **bounds_row(value, lower),
    }
    status = next(name for name in _STATUS_BY_SEVERITY if any(r.status == name for r in results))
    trace = [*({**row, "output": j} for j, row in enumerate(last)), totals]
    # (p, k) matrices of weights and slopes, in row-major order as for joint problems
    w = np.stack([np.asarray(r.w) for r in results], axis=1)
    met: Criterion = "" if status != "converged" else "tol" if value - lower <= tol * value else "atol"
    # the note of a run that did not converge, or one that all outputs share
    notes = [r.note for r in results if r.status != "converged" or all(other.note for other in results)]
    note = next(filter(None, notes), "")
    return Result(w.ravel(), value, lower, Cut(a.ravel(), b), status, trace, results[0].solver, met, note)
