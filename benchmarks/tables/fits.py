r"""One fit and its record.

J(w, b) = alpha Omega(w) + R(w, b), with Omega(w) = |w|^2 / 2 by default; `at_zero` is min_b J(0, b). A lower
bound above any value of J is false.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.optimize import linprog

import riskmin as rm
from benchmarks.tables.table import Table
from riskmin.core import UnsupportedProblem
from riskmin.losses import get_loss
from riskmin.regularizers import get_regularizer

BINARY = ("hinge", "logistic", "squared_hinge", "roc_area")
NON_DECOMPOSABLE = ("f1", "prbep")
MULTICLASS = ("hinge", "logistic")
REGRESSION = ("squared", "huber", "absolute", "quantile:level=0.9", "epsilon_insensitive")
COUNTS = ("poisson",)
LOSSES = (*BINARY, *NON_DECOMPOSABLE, *REGRESSION, *COUNTS)
SMALL_GAP = 1e-9
"""Gaps smaller than this share of J at w = 0 count as zero."""
ROUNDING = 1e-9
"""Violations smaller than this share of J at w = 0 count as rounding."""


def losses(table: Table, lists: bool = False) -> tuple[str, ...]:
    """The losses that apply to the table."""
    if table.task == "numbers":
        return REGRESSION + (COUNTS if table.counts else ())
    return MULTICLASS if table.n_classes > 2 else BINARY + (NON_DECOMPOSABLE if lists else ())


def kind(table: Table, loss: str) -> str:
    """Name of the loss in the summary."""
    return f"{loss}, multiclass" if table.n_classes > 2 else loss


def estimator(table: Table, loss: str, **settings: Any) -> Any:
    estimator_class = rm.LinearRegressor if table.task == "numbers" else rm.LinearClassifier
    return estimator_class(loss, **settings)


# ---------------------------------------------------------------- independent computation of J
def loss_and_labels(table: Table, loss: str) -> tuple[Any, np.ndarray]:
    """The loss object, and the labels in its encoding."""
    if table.task == "numbers":
        return get_loss(loss), table.y
    number = np.unique(table.y, return_inverse=True)[1]
    if table.n_classes > 2:
        return get_loss({"hinge": "multiclass_hinge", "logistic": "softmax"}[loss]), number
    return get_loss(loss), 2.0 * number - 1


def objective(table: Table, loss: str, coef: np.ndarray, b: Any, alpha: float, reg: str = "l2") -> float:
    """J of given weights, of any solver."""
    loss_object, y = loss_and_labels(table, loss)
    c = np.full(len(y), 1 / len(y))
    z = table.X @ coef.T + b if table.n_classes > 2 else table.X @ np.ravel(coef) + b
    penalty = get_regularizer(reg).value(np.ravel(coef))
    return float(loss_object.value_grad(z, y, c)[0] + alpha * penalty)


def at_zero(table: Table, loss: str) -> float:
    """J at w = 0 and the best intercepts."""
    loss_object, y = loss_and_labels(table, loss)
    if table.n_classes > 2:
        p = np.bincount(y) / len(y)
        return _constant_hinge(p) if loss == "hinge" else float(-p @ np.log(p))
    c, ones = np.full(len(y), 1 / len(y)), np.ones(len(y))
    if not loss_object.separable:
        return float(loss_object.value_grad(0.0 * ones, y, c)[0])

    def value_slope(b: float) -> tuple[float, float]:
        value, slopes = loss_object.value_grad(b * ones, y, c)
        return float(value), float(np.sum(slopes))

    return _minimum(value_slope)


def _minimum(value_slope: Any) -> float:
    """The minimum of a convex function of one variable, by bisection on its slope."""
    lo, hi = -1.0, 1.0
    while value_slope(lo)[1] > 0 and lo > -1e15:
        lo *= 4
    while value_slope(hi)[1] < 0 and hi < 1e15:
        hi *= 4
    best = np.inf
    for _ in range(200):
        b = (lo + hi) / 2
        value, slope = value_slope(b)
        best = min(best, value)
        lo, hi = (b, hi) if slope < 0 else (lo, b)
        if not lo < (lo + hi) / 2 < hi:
            break
    return best


def _constant_hinge(p: np.ndarray) -> float:
    """min_b sum_y p_y max(0, max_j 1 + b_j - b_y), a linear program."""
    k = len(p)
    rows = [(y, j) for y in range(k) for j in range(k) if j != y]
    A = np.zeros((len(rows), 2 * k))
    for row, (y, j) in enumerate(rows):
        A[row, [j, y, k + y]] = 1, -1, -1
    bounds = [(None, None)] * k + [(0, None)] * k
    return float(linprog(np.r_[np.zeros(k), p], A, -np.ones(len(rows)), bounds=bounds).fun)


# ---------------------------------------------------------------- a fit
class TooLong(Exception):
    """A fit that exceeds its time limit."""


@contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    """Raise if a fit runs long after its limit; takes effect when control returns to Python."""

    def ring(*_: Any) -> None:
        raise TooLong(f"went on for {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fit(
    table: Table, loss: str, max_seconds: float, solver: str | None = None, **settings: Any
) -> dict[str, Any] | None:
    """The record of one fit; None if the solver does not apply to this problem.

    The limit is in CPU seconds; wall time may be up to ten times longer on a busy machine.
    """
    start = time.process_time()
    model = estimator(
        table,
        loss,
        solver=solver,
        callback=lambda *_: time.process_time() - start > max_seconds,
        **settings,
    )
    try:
        with warnings.catch_warnings(), no_longer_than(10 * max_seconds + 10):
            warnings.simplefilter("ignore")
            model.fit(table.X, table.y)
    except UnsupportedProblem:
        return None
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        return {"status": "error", "error": message[:300], "cpu": time.process_time() - start}
    cpu, result = time.process_time() - start, model.result_
    allowed = max(model.tol * model.objective_, SMALL_GAP * at_zero(table, loss))
    b = model.intercept_ + getattr(model, "threshold_", 0.0)
    return {
        "status": "max_seconds" if result.status == "interrupted" else result.status,
        "solver": result.solver,
        "value": float(model.objective_),
        "recomputed": objective(table, loss, model.coef_, b, model.alpha, model.regularizer),
        "lower": float(model.lower_bound_),
        "gap": float(model.gap_),
        "certified": bool(result.status == "converged" and 0 <= model.gap_ <= allowed),
        "n_iter": int(model.n_iter_),
        "cpu": cpu,
    }


def warm_up(lists: bool = False, regularizer: str = "l2") -> None:
    """Fit small tables of each kind, so that no later fit compiles anything."""
    rng = np.random.default_rng(0)
    X, number = rng.normal(size=(90, 3)), rng.integers(0, 3, size=90)
    for y, task in ((number % 2, "classes"), (number, "classes"), (1.0 * number, "numbers")):
        table = Table("warm", X, y, task)
        for loss in losses(table, lists):
            fit(table, loss, 20.0, regularizer=regularizer)
