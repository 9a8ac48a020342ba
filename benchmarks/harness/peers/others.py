"""dlib's ranking SVM, and CVXPY with Clarabel."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from benchmarks.harness.peers.base import Peer, Rung
from benchmarks.harness.tasks import DELTA, EPSILON, QUANTILE


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

    w = cp.Variable(X.shape[1])
    r = X @ w - y
    losses = {
        "hinge": lambda: cp.pos(1 - cp.multiply(y, X @ w)),
        "quantile": lambda: cp.maximum(-QUANTILE * r, (1 - QUANTILE) * r),
        "absolute": lambda: cp.abs(r),
        "epsilon_insensitive": lambda: cp.pos(cp.abs(r) - EPSILON),
        "huber": lambda: cp.huber(r, DELTA) / 2,
    }
    J = cp.sum(losses[task.name]()) / len(y) + lam / 2 * cp.sum_squares(w)
    tols = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), rung.tol)
    cp.Problem(cp.Minimize(J)).solve(solver=cp.CLARABEL, **tols, max_iter=rung.steps)
    return np.zeros(X.shape[1]) if w.value is None else w.value


PEERS = (
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
    ),
)
