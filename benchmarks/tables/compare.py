"""The same problems with riskmin's other solvers, and with scikit-learn where it has them."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.tables.fits import fit, no_longer_than, objective
from benchmarks.tables.table import Table
from riskmin.solvers import SOLVERS

SLOW = ("accelerated_gradient", "bmrm", "line_search_bmrm", "owlqn", "proximal_gradient", "chain_ascent")
"""Solvers that are never the fastest for these problems or do not apply to them."""
SOLVER_NAMES = tuple(name for name in SOLVERS if name not in (*SLOW, "auto"))
MAX_ROWS = 5000
"""Rows up to which SVC and QuantileRegressor, which cannot be interrupted, are fitted."""


def by_solvers(table: Table, loss: str, max_seconds: float, regularizer: str) -> dict[str, Any]:
    """The fits of all applicable solvers of riskmin."""
    results = {name: fit(table, loss, max_seconds, name, regularizer=regularizer) for name in SOLVER_NAMES}
    return {name: one for name, one in results.items() if one is not None}


class Peer(NamedTuple):
    """An estimator of scikit-learn, and the settings of riskmin for its objective."""

    model: Any
    settings: dict[str, Any]


def peers(table: Table, loss: str, alpha: float) -> list[Peer]:
    """scikit-learn's estimators for a loss, at their other defaults.

    `LinearSVC` penalizes its intercept: the weight of a column of ones for riskmin. `HuberRegressor` is left
    out, since it estimates a scale, too.
    """
    from sklearn.linear_model import Lasso, LogisticRegression, PoissonRegressor, QuantileRegressor, Ridge
    from sklearn.svm import SVC, LinearSVC

    n = len(table.y)
    C, penalized, lasso = 1 / (alpha * n), {"fit_intercept": False}, {"regularizer": "l1"}
    if loss in ("hinge", "squared_hinge") and table.n_classes == 2:
        # the squared hinge of LinearSVC has no factor 1/2
        of_machine = [Peer(LinearSVC(C=C / (1 + (loss == "squared_hinge")), loss=loss), penalized)]
        if loss == "hinge" and n <= MAX_ROWS:
            of_machine.append(Peer(SVC(C=C, kernel="linear", max_iter=100_000), {}))
        return of_machine
    return {
        "logistic": lambda: [Peer(LogisticRegression(C=C), {})],
        "squared": lambda: [Peer(Ridge(alpha=alpha * n), {}), Peer(Lasso(alpha=alpha), lasso)],
        "quantile:level=0.9": lambda: (
            [Peer(QuantileRegressor(quantile=0.9, alpha=alpha), lasso)] if n <= MAX_ROWS else []
        ),
        "poisson": lambda: [Peer(PoissonRegressor(alpha=alpha), {})],
    }.get(loss, list)()


def by_peers(table: Table, loss: str, max_seconds: float, alpha: float) -> dict[str, Any]:
    """The records of scikit-learn's estimators by name."""
    return {
        type(p.model).__name__: compared(p, table, loss, max_seconds, alpha)
        for p in peers(table, loss, alpha)
    }


def compared(peer: Peer, table: Table, loss: str, max_seconds: float, alpha: float) -> dict[str, Any]:
    """J of scikit-learn's weights, its CPU seconds, and riskmin's fit if its objective is another one."""
    model, settings = peer
    start = time.process_time()
    try:
        with warnings.catch_warnings(record=True) as caught, no_longer_than(10 * max_seconds + 10):
            warnings.simplefilter("always")
            model.fit(table.X, table.y)
        cpu, coef, b = time.process_time() - start, model.coef_, model.intercept_
        if "fit_intercept" in settings:
            table = replace(table, X=np.column_stack([table.X, np.ones(len(table.y))]))
            coef, b = np.append(coef, b), 0.0
        value = objective(table, loss, coef, b, alpha, settings.get("regularizer", "l2"))
        record = {"value": value, "cpu": cpu, "warned": sorted({w.category.__name__ for w in caught})}
    except Exception as error:
        record = {"error": f"{type(error).__name__}: {error}"[:300], "cpu": time.process_time() - start}
    return record | ({"ours": fit(table, loss, max_seconds, **settings)} if settings else {})
