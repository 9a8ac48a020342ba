"""SciPy's L-BFGS-B on J itself, dlib's ranking SVM, and CVXPY with Clarabel."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from benchmarks.harness.peers.base import Peer, Rung, ladder
from benchmarks.harness.tasks import DELTA, EPSILON, QUANTILE

SLOPES = {
    "squared_hinge": lambda z, y: -y * np.maximum(0.0, 1.0 - y * z),
    "logistic": lambda z, y: -y / (1.0 + np.exp(np.minimum(y * z, 500.0))),
    "huber": lambda z, y: np.clip(z - y, -DELTA, DELTA),
    "poisson": lambda z, y: np.exp(np.minimum(z, 500.0)) - y,
}
"""Derivatives of the losses in the score, for `lbfgsb`."""


def lbfgsb(X, y, task, lam, rung):
    """What anyone can write with NumPy and SciPy: value and gradient in two products with X."""
    from scipy.optimize import minimize

    n, p = X.shape

    def J(v):
        w, b = (v[:p], v[p]) if task.intercept else (v, 0.0)
        z = X @ w + b
        u = SLOPES[task.name](z, y) / n
        gradient = X.T @ u + lam * w
        value = task.mean(z, y) + lam / 2 * (w @ w)
        return value, np.append(gradient, u.sum()) if task.intercept else gradient

    start = np.zeros(p + task.intercept)
    limits = {"maxiter": rung.steps, "gtol": rung.tol, "ftol": 0.0, "maxfun": 10 * rung.steps}
    v = minimize(J, start, jac=True, method="L-BFGS-B", options=limits).x
    return (v[:p], v[p]) if task.intercept else v


def pairs(X, y):
    """The ranking pair of dlib: lists of relevant and of nonrelevant rows."""
    import dlib

    X, ranks = sp.csr_array(X), dlib.sparse_ranking_pair()
    for part, rows in ((ranks.relevant, X[y > 0]), (ranks.nonrelevant, X[y < 0])):
        for lo, hi in zip(rows.indptr, rows.indptr[1:], strict=False):
            cells = zip(rows.indices[lo:hi], rows.data[lo:hi], strict=True)
            part.append(dlib.sparse_vector([dlib.pair(int(j), float(x)) for j, x in cells]))
    return (ranks, X.shape[1]), y


def svm_rank(data, y, task, lam, rung):
    import dlib

    ranks, p = data
    trainer = dlib.svm_rank_trainer_sparse()
    trainer.c, trainer.epsilon = 1 / lam, rung.tol
    w = np.zeros(p)
    for cell in trainer.train(ranks).weights:
        w[cell.first] = cell.second
    return w


def cvxpy(X, y, task, lam, rung):
    import cvxpy as cp

    w, b = cp.Variable(X.shape[1]), cp.Variable() if task.intercept else 0.0
    r = X @ w + b - y
    losses = {
        "hinge": lambda: cp.pos(1 - cp.multiply(y, X @ w + b)),
        "quantile": lambda: cp.maximum(-QUANTILE * r, (1 - QUANTILE) * r),
        "absolute": lambda: cp.abs(r),
        "epsilon_insensitive": lambda: cp.pos(cp.abs(r) - EPSILON),
        "huber": lambda: cp.huber(r, DELTA) / 2,
    }
    J = cp.sum(losses[task.name]()) / len(y) + lam / 2 * cp.sum_squares(w)
    tols = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), rung.tol)
    cp.Problem(cp.Minimize(J)).solve(solver=cp.CLARABEL, **tols, max_iter=rung.steps)
    if w.value is None:
        return np.zeros(X.shape[1])
    return (w.value, b.value) if task.intercept else w.value


PEERS = (
    Peer(
        "SciPy L-BFGS-B",
        "scipy",
        tuple(SLOPES),
        lbfgsb,
        ladder((1e-8,), (5, 10, 20, 40, 80, 160, 320, 1_000, 10_000)),
        intercept=True,
    ),
    Peer(
        "dlib svm_rank",
        "dlib",
        ("roc_area",),
        svm_rank,
        tuple(Rung(tol) for tol in (0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)),
        pairs,
        most_numbers=5e9,
    ),
    Peer(
        "CVXPY Clarabel",
        "cvxpy",
        ("hinge", "quantile", "absolute", "epsilon_insensitive", "huber"),
        cvxpy,
        tuple(Rung(tol, 200) for tol in (1e-3, 1e-5, 1e-8)),
        most_numbers=1e6,
        most_columns=1_000,
        intercept=True,
    ),
)
