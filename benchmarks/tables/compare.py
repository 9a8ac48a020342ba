"""The same problems with riskmin's other solvers, and with scikit-learn where it has them."""

from __future__ import annotations

import time
import warnings
from typing import Any

from benchmarks.tables.fits import fit, no_longer_than, objective
from benchmarks.tables.table import Table
from riskmin.solvers import SOLVERS

SLOW = ("accelerated_gradient", "bmrm", "line_search_bmrm", "owlqn", "proximal_gradient", "chain_ascent")
"""Solvers that are never the fastest for these problems or do not apply to them."""
SOLVER_NAMES = tuple(name for name in SOLVERS if name not in (*SLOW, "auto"))
SVC_ROWS = 5000


def by_solvers(table: Table, loss: str, max_seconds: float) -> dict[str, Any]:
    """The fits of all applicable solvers of riskmin."""
    results = {name: fit(table, loss, max_seconds, name) for name in SOLVER_NAMES}
    return {name: one for name, one in results.items() if one is not None}


def peer(table: Table, loss: str, alpha: float) -> Any:
    """scikit-learn's estimator with the same objective, at its other defaults; None if it has none."""
    from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
    from sklearn.svm import SVC

    C = 1 / (alpha * len(table.y))
    if loss == "logistic":
        return LogisticRegression(C=C)
    if loss == "squared":
        return Ridge(alpha=alpha * len(table.y))
    if loss == "poisson":
        return PoissonRegressor(alpha=alpha)
    if loss == "hinge" and table.n_classes == 2 and len(table.y) <= SVC_ROWS:
        return SVC(C=C, kernel="linear", max_iter=100_000)
    return None


def by_peers(table: Table, loss: str, max_seconds: float, alpha: float) -> dict[str, Any]:
    """J of scikit-learn's weights, and its CPU seconds."""
    model = peer(table, loss, alpha)
    if model is None:
        return {}
    start, name = time.process_time(), type(model).__name__
    try:
        with warnings.catch_warnings(record=True) as caught, no_longer_than(10 * max_seconds + 10):
            warnings.simplefilter("always")
            model.fit(table.X, table.y)
        cpu = time.process_time() - start
        value = objective(table, loss, model.coef_, model.intercept_, alpha)
        return {name: {"value": value, "cpu": cpu, "warned": sorted({w.category.__name__ for w in caught})}}
    except Exception as error:
        return {name: {"error": f"{type(error).__name__}: {error}"[:300], "cpu": time.process_time() - start}}
