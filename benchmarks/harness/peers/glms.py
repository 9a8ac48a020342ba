"""glum, snapml and statsmodels."""

from __future__ import annotations

import numpy as np

from benchmarks.harness.peers.base import Peer, Rung, all_numbers, ladder, threads, weights, zeros_and_ones
from benchmarks.harness.tasks import QUANTILE

STEPS = ladder((1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8), (3, 6, 20, 100, 1000))
SILENT = (
    *ladder((1e-8,), (3, 6, 12, 25, 50)),
    *ladder((1e-1, 1e-2, 1e-3, 1e-4, 1e-6), (1_000,)),
    Rung(1e-8, 10_000),
)
"""For snapml, which does not report that the limit ended a fit: few steps first, then tolerances."""
FAMILIES = {"poisson": "poisson", "logistic": "binomial", "l1_logistic": "binomial"}


def glum(X, y, task, lam, rung):
    from glum import GeneralizedLinearRegressor

    model = GeneralizedLinearRegressor(
        alpha=lam,
        l1_ratio=0 if task.slope is None else 1,
        family=FAMILIES.get(task.name, "normal"),
        fit_intercept=task.intercept,
        gradient_tol=rung.tol,
        max_iter=rung.steps,
    )
    return weights(model.fit(X, y), task)


def snapml_svm(X, y, task, lam, rung):
    from snapml import SupportVectorMachine

    settings = {"tol": rung.tol, "max_iter": rung.steps, "n_jobs": threads()}
    return weights(SupportVectorMachine(loss="hinge", regularizer=lam * len(y), **settings).fit(X, y))


def snapml(dual):
    def fit(X, y, task, lam, rung):
        from snapml import LinearRegression, LogisticRegression

        model = LogisticRegression if task.labels == "signs" else LinearRegression
        settings = {"tol": rung.tol, "max_iter": rung.steps, "n_jobs": threads(), "fit_intercept": False}
        penalty = "l2" if task.slope is None else "l1"
        return weights(model(regularizer=lam * len(y), penalty=penalty, dual=dual, **settings).fit(X, y))

    return fit


def quantreg(X, y, task, lam, rung):
    """Iteratively reweighted least squares, without a penalty."""
    from statsmodels.regression.quantile_regression import QuantReg

    level = QUANTILE if task.name == "quantile" else 0.5
    X = np.column_stack([X, np.ones(len(y))]) if task.intercept else X
    params = np.asarray(QuantReg(y, X).fit(q=level, p_tol=rung.tol, max_iter=rung.steps).params)
    return (params[:-1], params[-1]) if task.intercept else params


PEERS = (
    Peer(
        "glum",
        "glum",
        ("logistic", "poisson", "squared", "lasso", "l1_logistic"),
        glum,
        STEPS,
        zeros_and_ones,
        most_columns=5_000,
        intercept=True,
    ),
    Peer("snapml SVM", "snapml", ("hinge",), snapml_svm, SILENT),
    Peer("snapml dual", "snapml", ("logistic", "squared"), snapml(True), SILENT),
    Peer("snapml", "snapml", ("logistic", "squared", "lasso", "l1_logistic"), snapml(False), SILENT),
    Peer(
        "statsmodels QuantReg",
        "statsmodels",
        ("quantile", "absolute"),
        quantreg,
        tuple(Rung(tol, 1000) for tol in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)),
        all_numbers,
        most_numbers=1e7,
        most_lam=1e-8,
        intercept=True,
    ),
)
