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


def limits(task, rung):
    """The settings that nearly all estimators share."""
    return {"fit_intercept": task.intercept, "tol": rung.tol, "max_iter": rung.steps}


def linear_svc(dual, scaling=1.0):
    """LIBLINEAR penalizes the weight of a column of constants: the larger these are, the less it matters."""

    def fit(X, y, task, lam, rung):
        from sklearn.svm import LinearSVC

        loss = "hinge" if task.name == "hinge" else "squared_hinge"
        multi_class = "crammer_singer" if task.labels == "classes" else "ovr"
        shape = {"loss": loss, "dual": dual, "multi_class": multi_class, "intercept_scaling": scaling}
        model = LinearSVC(C=cost(task, lam, len(y)), random_state=0, **shape, **limits(task, rung))
        return weights(model.fit(X, y), task)

    return fit


def linear_svr(scaling=1.0):
    def fit(X, y, task, lam, rung):
        from sklearn.svm import LinearSVR

        shape = {
            "epsilon": EPSILON if task.name == "epsilon_insensitive" else 0.0,
            "intercept_scaling": scaling,
            "random_state": 0,
        }
        return weights(LinearSVR(C=cost(task, lam, len(y)), **shape, **limits(task, rung)).fit(X, y), task)

    return fit


def libsvm(X, y, task, lam, rung):
    """The kernel machine with the linear kernel, whose intercept is unpenalized."""
    from sklearn.svm import SVC, SVR

    settings = {"C": cost(task, lam, len(y)), "kernel": "linear", "tol": rung.tol, "max_iter": rung.steps}
    if task.labels == "signs":
        return weights(SVC(**settings).fit(X, y), task)
    return weights(
        SVR(epsilon=EPSILON if task.name == "epsilon_insensitive" else 0.0, **settings).fit(X, y), task
    )


def logistic(solver, l1_ratio=0.0, scaling=1.0):
    def fit(X, y, task, lam, rung):
        from sklearn.linear_model import LogisticRegression

        shape = {"solver": solver, "l1_ratio": l1_ratio, "intercept_scaling": scaling}
        model = LogisticRegression(C=cost(task, lam, len(y)), **shape, **limits(task, rung))
        return weights(model.fit(X, y), task)

    return fit


def ridge(solver):
    def fit(X, y, task, lam, rung):
        from sklearn.linear_model import Ridge

        model = Ridge(alpha=lam * len(y), solver=solver, fit_intercept=task.intercept, tol=rung.tol)
        model.max_iter = rung.steps or None
        return weights(model.fit(X, y), task)

    return fit


def poisson(solver):
    def fit(X, y, task, lam, rung):
        from sklearn.linear_model import PoissonRegressor

        return weights(PoissonRegressor(alpha=lam, solver=solver, **limits(task, rung)).fit(X, y), task)

    return fit


def quantile(X, y, task, lam, rung):
    """A linear program, without a penalty."""
    from sklearn.linear_model import QuantileRegressor

    level = QUANTILE if task.name == "quantile" else 0.5
    model = QuantileRegressor(quantile=level, alpha=0.0, fit_intercept=task.intercept, solver="highs")
    return weights(model.fit(X, y), task)


def lasso(X, y, task, lam, rung):
    from sklearn.linear_model import Lasso

    return weights(Lasso(alpha=lam, **limits(task, rung)).fit(X, y), task)


SQUARE = 5_000
"""Largest number of columns p for solvers with p x p matrices."""
GRAM_ROWS = 5_000
"""Largest number of rows for kernel machines."""
SVC = ("hinge", "squared_hinge", "multiclass_hinge")
SVR = ("epsilon_insensitive", "absolute")
BOTH = {"intercept": True}
ONLY = {"intercept": True, "without": False}

PEERS = (
    Peer("LinearSVC", "sklearn", SVC, linear_svc(True), DUAL, shrinks=True),
    Peer("LinearSVC, ones x 10", "sklearn", SVC, linear_svc(True, 10.0), DUAL, shrinks=True, **ONLY),
    Peer("LinearSVC, ones x 100", "sklearn", SVC, linear_svc(True, 100.0), DUAL, shrinks=True, **ONLY),
    Peer("LinearSVC primal", "sklearn", ("squared_hinge",), linear_svc(False), DUAL),
    Peer(
        "LinearSVC primal, ones x 100", "sklearn", ("squared_hinge",), linear_svc(False, 100.0), DUAL, **ONLY
    ),
    Peer("LinearSVR", "sklearn", SVR, linear_svr(), DUAL, shrinks=True),
    Peer("LinearSVR, ones x 10", "sklearn", SVR, linear_svr(10.0), DUAL, shrinks=True, **ONLY),
    Peer("LinearSVR, ones x 100", "sklearn", SVR, linear_svr(100.0), DUAL, shrinks=True, **ONLY),
    Peer("SVC, SVR", "sklearn", ("hinge", *SVR), libsvm, DUAL, most_rows=GRAM_ROWS, **ONLY),
    Peer("LogisticRegression lbfgs", "sklearn", ("logistic", "softmax"), logistic("lbfgs"), STEPS, **BOTH),
    Peer(
        "LogisticRegression newton-cholesky",
        "sklearn",
        ("logistic", "softmax"),
        logistic("newton-cholesky"),
        NEWTON,
        most_columns=2_500,
        **BOTH,
    ),
    Peer(
        "LogisticRegression newton-cg",
        "sklearn",
        ("logistic", "softmax"),
        logistic("newton-cg"),
        NEWTON,
        **BOTH,
    ),
    Peer("LogisticRegression liblinear", "sklearn", ("l1_logistic",), logistic("liblinear", 1.0), STEPS),
    Peer(
        "LogisticRegression liblinear, ones x 100",
        "sklearn",
        ("l1_logistic",),
        logistic("liblinear", 1.0, 100.0),
        STEPS,
        **ONLY,
    ),
    Peer("LogisticRegression saga", "sklearn", ("l1_logistic",), logistic("saga", 1.0), STEPS, **ONLY),
    Peer(
        "Ridge cholesky",
        "sklearn",
        ("squared",),
        ridge("cholesky"),
        (Rung(0.0),),
        most_columns=SQUARE,
        **BOTH,
    ),
    Peer("Ridge sparse_cg", "sklearn", ("squared",), ridge("sparse_cg"), STEPS, **BOTH),
    Peer("Ridge lsqr", "sklearn", ("squared",), ridge("lsqr"), STEPS, **BOTH),
    Peer("PoissonRegressor lbfgs", "sklearn", ("poisson",), poisson("lbfgs"), STEPS, **BOTH),
    Peer(
        "PoissonRegressor newton-cholesky",
        "sklearn",
        ("poisson",),
        poisson("newton-cholesky"),
        NEWTON,
        most_columns=2_500,
        **BOTH,
    ),
    Peer(
        "QuantileRegressor",
        "sklearn",
        ("quantile", "absolute"),
        quantile,
        (Rung(0.0),),
        most_numbers=4e5,
        most_lam=1e-8,
        **BOTH,
    ),
    Peer("Lasso", "sklearn", ("lasso",), lasso, STEPS, columns, **BOTH),
)
