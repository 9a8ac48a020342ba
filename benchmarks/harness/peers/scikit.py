"""scikit-learn."""

from __future__ import annotations

from benchmarks.harness.peers.base import Peer, Rung, columns, ladder, weights
from benchmarks.harness.tasks import EPSILON, QUANTILE

DUAL = ladder((1e-1, 1e-2, 1e-3, 1e-4, 1e-6), (100, 1_000, 10_000, 100_000))
TIGHTER = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8)
STEPS = ladder(TIGHTER, (10, 30, 100, 1_000, 10_000))
NEWTON = ladder(TIGHTER, (3, 6, 12, 100, 1_000))
HALVES = ("squared_hinge",)
"""LIBLINEAR has the square, riskmin half of it."""


def cost(task, lam, n):
    """C, which multiplies the sum of the losses."""
    return (0.5 if task.name in HALVES else 1.0) / (lam * n)


def linear_svc(dual):
    def fit(X, y, task, lam, rung):
        from sklearn.svm import LinearSVC

        loss = "hinge" if task.name == "hinge" else "squared_hinge"
        many = "crammer_singer" if task.labels == "classes" else "ovr"
        model = LinearSVC(
            C=cost(task, lam, len(y)),
            loss=loss,
            dual=dual,
            multi_class=many,
            fit_intercept=False,
            tol=rung.tol,
            max_iter=rung.steps,
        )
        return weights(model.fit(X, y), task)

    return fit


def linear_svr(X, y, task, lam, rung):
    from sklearn.svm import LinearSVR

    epsilon = EPSILON if task.name == "epsilon_insensitive" else 0.0
    settings = {"fit_intercept": False, "tol": rung.tol, "max_iter": rung.steps}
    return weights(LinearSVR(epsilon=epsilon, C=cost(task, lam, len(y)), **settings).fit(X, y))


def logistic(solver, l1_ratio=0.0):
    def fit(X, y, task, lam, rung):
        from sklearn.linear_model import LogisticRegression

        settings = {"fit_intercept": False, "tol": rung.tol, "max_iter": rung.steps}
        model = LogisticRegression(C=cost(task, lam, len(y)), solver=solver, l1_ratio=l1_ratio, **settings)
        return weights(model.fit(X, y), task)

    return fit


def ridge(solver):
    def fit(X, y, task, lam, rung):
        from sklearn.linear_model import Ridge

        model = Ridge(alpha=lam * len(y), solver=solver, fit_intercept=False, tol=rung.tol)
        model.max_iter = rung.steps or None
        return weights(model.fit(X, y))

    return fit


def poisson(solver):
    def fit(X, y, task, lam, rung):
        from sklearn.linear_model import PoissonRegressor

        settings = {"fit_intercept": False, "tol": rung.tol, "max_iter": rung.steps}
        return weights(PoissonRegressor(alpha=lam, solver=solver, **settings).fit(X, y))

    return fit


def quantile(X, y, task, lam, rung):
    """A linear program, without a penalty."""
    from sklearn.linear_model import QuantileRegressor

    level = QUANTILE if task.name == "quantile" else 0.5
    model = QuantileRegressor(quantile=level, alpha=0.0, fit_intercept=False, solver="highs")
    return weights(model.fit(X, y))


def lasso(X, y, task, lam, rung):
    from sklearn.linear_model import Lasso

    settings = {"fit_intercept": False, "tol": rung.tol, "max_iter": rung.steps}
    return weights(Lasso(alpha=lam, **settings).fit(X, y))


SQUARE = 5_000
"""Largest number of columns p for solvers with p x p matrices."""

PEERS = (
    Peer(
        "LinearSVC",
        "sklearn",
        ("hinge", "squared_hinge", "multiclass_hinge"),
        linear_svc(True),
        DUAL,
        shrinks=True,
    ),
    Peer("LinearSVC primal", "sklearn", ("squared_hinge",), linear_svc(False), DUAL),
    Peer("LinearSVR", "sklearn", ("epsilon_insensitive", "absolute"), linear_svr, DUAL, shrinks=True),
    Peer("LogisticRegression lbfgs", "sklearn", ("logistic", "softmax"), logistic("lbfgs"), STEPS),
    Peer(
        "LogisticRegression newton-cholesky",
        "sklearn",
        ("logistic", "softmax"),
        logistic("newton-cholesky"),
        NEWTON,
        most_columns=2_500,
    ),
    Peer("LogisticRegression newton-cg", "sklearn", ("logistic", "softmax"), logistic("newton-cg"), NEWTON),
    Peer("LogisticRegression liblinear", "sklearn", ("l1_logistic",), logistic("liblinear", 1.0), STEPS),
    Peer("Ridge cholesky", "sklearn", ("squared",), ridge("cholesky"), (Rung(0.0),), most_columns=SQUARE),
    Peer("Ridge sparse_cg", "sklearn", ("squared",), ridge("sparse_cg"), STEPS),
    Peer("Ridge lsqr", "sklearn", ("squared",), ridge("lsqr"), STEPS),
    Peer("PoissonRegressor lbfgs", "sklearn", ("poisson",), poisson("lbfgs"), STEPS),
    Peer(
        "PoissonRegressor newton-cholesky",
        "sklearn",
        ("poisson",),
        poisson("newton-cholesky"),
        NEWTON,
        most_columns=2_500,
    ),
    Peer(
        "QuantileRegressor",
        "sklearn",
        ("quantile", "absolute"),
        quantile,
        (Rung(0.0),),
        most_numbers=4e5,
        most_lam=1e-8,
    ),
    Peer("Lasso", "sklearn", ("lasso",), lasso, STEPS, columns),
)
