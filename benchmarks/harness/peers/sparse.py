"""celer and skglm: working sets of columns, and other solvers of skglm."""

from __future__ import annotations

from benchmarks.harness.peers.base import Peer, columns, ladder, rows, weights
from benchmarks.harness.tasks import DELTA

STEPS = ladder((1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8), (3, 20, 100, 1000))


def celer(X, y, task, lam, rung):
    from celer import Lasso, LogisticRegression

    settings = {"fit_intercept": task.intercept, "tol": rung.tol, "max_iter": rung.steps}
    if task.name == "lasso":
        return weights(Lasso(alpha=lam, **settings).fit(X, y), task)
    return weights(LogisticRegression(C=1 / (lam * len(y)), **settings).fit(X, y), task)


def skglm(X, y, task, lam, rung):
    from skglm import Lasso, SparseLogisticRegression

    settings = {"fit_intercept": task.intercept, "tol": rung.tol, "max_iter": rung.steps}
    model = Lasso if task.name == "lasso" else SparseLogisticRegression
    return weights(model(alpha=lam, **settings).fit(X, y), task)


def skglm_svc(X, y, task, lam, rung):
    from skglm import LinearSVC

    return weights(LinearSVC(C=1 / (lam * len(y)), tol=rung.tol, max_iter=rung.steps).fit(X, y))


def skglm_smooth(X, y, task, lam, rung):
    """L-BFGS on a datafit with the ridge penalty."""
    from skglm.datafits import Logistic
    from skglm.penalties import L2
    from skglm.solvers import LBFGS
    from skglm.utils.jit_compilation import compiled_clone

    datafit, penalty = compiled_clone(Logistic()), compiled_clone(L2(lam))
    return LBFGS(max_iter=rung.steps, tol=rung.tol).solve(X, y, datafit, penalty)[0]


def skglm_huber(X, y, task, lam, rung):
    """Coordinate descent with Anderson's extrapolation."""
    from skglm import GeneralizedLinearEstimator
    from skglm.datafits import Huber
    from skglm.penalties import L1_plus_L2
    from skglm.solvers import AndersonCD

    settings = {"fit_intercept": task.intercept, "tol": rung.tol, "max_iter": rung.steps}
    solver = AndersonCD(ws_strategy="fixpoint", **settings)
    model = GeneralizedLinearEstimator(Huber(DELTA), L1_plus_L2(lam, 0.0), solver)
    return weights(model.fit(X, y), task)


PEERS = (
    Peer("celer", "celer", ("lasso",), celer, STEPS, columns, intercept=True),
    Peer("celer logistic", "celer", ("l1_logistic",), celer, STEPS, columns),
    Peer("skglm", "skglm", ("lasso", "l1_logistic"), skglm, STEPS, columns, intercept=True),
    Peer("skglm LinearSVC", "skglm", ("hinge",), skglm_svc, STEPS, rows),
    Peer("skglm LBFGS", "skglm", ("logistic",), skglm_smooth, STEPS, columns),
    Peer("skglm Huber", "skglm", ("huber",), skglm_huber, STEPS, columns, intercept=True),
)
