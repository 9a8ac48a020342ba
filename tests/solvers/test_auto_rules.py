"""The rules of `Auto`: each of them selects the solver of a problem, and the docs show them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from helpers import Ridge
from riskmin import (
    L1,
    L2,
    Absolute,
    Auto,
    Box,
    ChainMaxMargin,
    Entropy,
    Equality,
    FBeta,
    Hinge,
    Logistic,
    MulticlassHinge,
    Objective,
    QNorm,
    Quadratic,
    Quantile,
    RocArea,
    Softmax,
    SquaredHinge,
    Structured,
    Switching,
    kernel_risk,
    linear_risk,
    minimize,
)
from riskmin.solvers.auto import GROUPS, matching_rule
from riskmin.solvers.facts import Facts

RNG = np.random.default_rng(3)


def table(n=24, p=3, density=1.0):
    """Sparse rows if the density is below one."""
    return RNG.standard_normal((n, p)) if density == 1 else sp.random(n, p, density, "csr", random_state=RNG)


def problem(loss, X=None, reg=None, lam=0.1, **settings):
    X = table() if X is None else X
    classes = (np.arange(X.shape[0]) % 3).astype(float)
    y = classes if loss.task in ("multiclass", "tagging") else np.sign(classes - 0.5)
    return Objective(linear_risk(X, y, loss, **settings), L2() if reg is None else reg, lam)


def tensor(X):
    return pytest.importorskip("torch").asarray(X)


def remote(obj):
    return replace(obj, risk=replace(obj.risk, rows=None))


def kernel(loss):
    return Objective(*kernel_risk(table(), np.sign(np.arange(24) % 3 - 0.5), loss, "rbf"), 0.1)


class TwoOutputs:
    """A structured model with the outputs -1 and 1."""

    dim = 2

    def joint_feature(self, x, y):
        return y * x

    def cost(self, y, other):
        return float(y != other)

    def loss_augmented_argmax(self, x, y, w):
        return max((-1, 1), key=lambda other: self.cost(y, other) + w @ self.joint_feature(x, other))


class Parabola:
    """An oracle: |w - 1|^2."""

    dim = 2

    def __call__(self, w):
        return float((w - 1) @ (w - 1)), 2 * (w - 1)


WIDE = table(40, 2600, 0.01)
STRUCTURED = Structured(TwoOutputs()).risk(list(table(8, 2)), [-1, 1] * 4)
PROBLEMS = {
    "Unpenalized directions (`Equality`)": [problem(Hinge(), reg=Equality(L2(), np.eye(1, 3)))],
    "A kernel": [kernel(Hinge()), kernel(FBeta())],
    next(group.problem for group in GROUPS if group.problem.startswith("Dense X of torch")): [
        problem(Logistic(), tensor(table(70, 3))),
        problem(Hinge(), tensor(table()), fit_intercept=True),
    ],
    "A smooth loss": [
        problem(Softmax()),
        problem(Logistic(), table(300, 500), fit_intercept=True),
        problem(SquaredHinge(), WIDE, fit_intercept=True),
        problem(Logistic(), fit_intercept=True),
        remote(problem(Logistic())),
        problem(Logistic(), reg=QNorm(1.5)),
        problem(Softmax(), reg=L1(), fit_intercept=True),
        problem(Logistic(), reg=L1()),
        remote(problem(Logistic(), reg=L1())),
        remote(problem(Logistic(), reg=Box(L2()))),
        problem(Logistic(), reg=Entropy()),
    ],
    "`ChainMaxMargin`, `L2`, local rows": [problem(ChainMaxMargin(), lengths=[8, 8, 8])],
    "Several outputs, a loss that can be smoothed": [
        problem(MulticlassHinge(), fit_intercept=True),
        problem(MulticlassHinge(), table(density=0.9)),
        problem(MulticlassHinge(), reg=QNorm(1.5)),
        problem(MulticlassHinge(), reg=L1(), fit_intercept=True),
        remote(problem(MulticlassHinge(), reg=L1())),
        remote(problem(MulticlassHinge(), reg=Box(L2()), fit_intercept=True)),
        problem(MulticlassHinge(), reg=Entropy()),
    ],
    "A `Structured` model": [Objective(STRUCTURED, L2(), 0.1)],
    "A quadratic conjugate (`Hinge`, `Quantile`, ...), `L2` or `Quadratic`": [
        remote(problem(Hinge())),
        remote(problem(Hinge(), WIDE)),
        problem(Hinge(), table(900, 1)),
        problem(Hinge(), table(3, 24), fit_intercept=True),
        problem(Hinge(), table(300, 130), lam=1.0, fit_intercept=True),
        problem(Hinge()),
        problem(Hinge(), table(density=0.9), fit_intercept=True),
        problem(Hinge(), table(10_000, 20, 0.9), lam=1e-6),
        problem(Hinge(), table(10_000, 20, 0.9), fit_intercept=True),
        problem(Hinge(), WIDE, reg=Quadratic(sp.diags_array(np.linspace(1, 2, 2600), format="csr"))),
        problem(Hinge(), table(density=0.9), reg=Quadratic(np.diag([1.0, 2.0, 3.0]))),
    ],
    "A non-decomposable loss that can be smoothed, `L2`, no intercept": [
        remote(problem(RocArea())),
        problem(RocArea(), table(1000, 3), lam=10.0),
        problem(RocArea(), lam=10.0),
        problem(RocArea(), WIDE, lam=1e-8),
        problem(RocArea(), table(400, 2600, 0.01), lam=1e-4),
        problem(RocArea(), lam=1e-6),
    ],
    "Any other": [
        problem(Hinge(), reg=Ridge()),
        problem(Hinge(), reg=L1(), fit_intercept=True),
        problem(FBeta()),
        Objective(Parabola(), L2(), 0.1),
        problem(FBeta(), reg=L1()),
    ],
}
"""A problem for each rule, in the order of the table."""


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.problem)
def test_each_rule_selects_a_solver_that_supports_its_problem(group):
    for rule, obj in zip(group.rules, PROBLEMS[group.problem], strict=True):
        assert matching_rule(Facts(obj)) is rule
        solver, reason = Auto().choose(obj, tol=1e-2)
        assert type(solver) is type(rule.solver)
        assert solver.supports(obj) is None
        assert "{" not in reason
        result = minimize(obj, solver, tol=1e-2, max_iter=500)
        assert result.lower <= result.value
        assert result.status == "converged", rule.problem


@pytest.mark.parametrize(
    ("loss", "reg", "solver"),
    [(Logistic(), L1(), "OwlQn"), (Hinge(), L1(), "Bundle"), (Logistic(), QNorm(1.5), "Lbfgs")],
    ids=str,
)
def test_other_problems_beside_another_library(loss, reg, solver):
    """Methods that visit single rows or columns are never selected there."""
    obj = problem(loss, tensor(table()), reg=reg)
    assert type(Auto().choose(obj)[0]).__name__ == solver


@pytest.mark.parametrize(
    ("loss", "n", "solver"),
    [(Absolute(), 40, "Newton"), (Absolute(), 150, "Switching"), (Quantile(0.9), 40, "Switching")],
    ids=str,
)
def test_few_rows_and_equal_slopes_on_both_sides_go_to_newton(loss, n, solver):
    """A quantile has unequal slopes, so that many of its multipliers are at a bound."""
    obj = problem(loss, table(n, 200), lam=1e-3)
    assert type(Auto().choose(obj)[0]).__name__ == solver
    assert minimize(obj, tol=1e-4).status == "converged"


@pytest.mark.parametrize(("entries", "solver"), [(5, "Newton"), (20, "Switching")])
def test_visits_of_short_sparse_rows_cost_more_than_passes(entries, solver):
    n, p = 3000, 2600
    columns = np.concatenate([RNG.choice(p, entries, replace=False) for _ in range(n)])
    X = sp.csr_array((np.ones(n * entries), columns, np.arange(n + 1) * entries), shape=(n, p))
    assert type(Auto().choose(problem(SquaredHinge(), X))[0]).__name__ == solver


def test_the_tolerance_decides_when_to_switch():
    solver, _ = Auto().choose(problem(Hinge(), WIDE), tol=1e-7)
    assert isinstance(solver, Switching)
    assert solver.tol == 1e-7


def test_the_docs_show_the_rules(monkeypatch):
    """`python -m docs.support` writes them."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from docs import support

    assert support.SOLVERS_PAGE.read_text(encoding="utf-8") == support.solvers_page()
