"""Models of contingency tables: minima by cvxpy over all tables, wide rows, raw units, and `Auto`."""

import numpy as np
import pytest

from riskmin import (
    L1,
    L2,
    Auto,
    Bundle,
    ContingencyTables,
    FBeta,
    Hinge,
    Objective,
    PrecisionAtK,
    RecallAtK,
    linear_risk,
    minimize,
)
from riskmin.core import UnsupportedProblem

LOSSES = [
    (FBeta(), False),
    (FBeta(), True),
    (FBeta(2.0), True),
    (PrecisionAtK(4), False),
    (RecallAtK(7), False),
]


def drawn(seed, n, p, share=0.3):
    """Rows and signs, of which a share is positive."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    score = X @ rng.standard_normal(p) / np.sqrt(p) + 0.5 * rng.standard_normal(n)
    return X, np.where(score > np.quantile(score, 1 - share), 1.0, -1.0)


def exact_minimum(X, y, loss, lam, intercept):
    """min J over all tables, each a sum of largest scores."""
    cp = pytest.importorskip("cvxpy")
    n, positives, negatives = len(y), np.flatnonzero(y > 0), np.flatnonzero(y < 0)
    w, b = cp.Variable(X.shape[1]), cp.Variable()
    z = X @ w + (b if intercept else 0.0)
    constraints, xi = [], cp.Variable()
    for misses, alarms, delta in zip(*loss.tables(len(positives), len(negatives)), strict=True):
        terms = [float(delta)]
        if misses:
            terms.append(2 / n * cp.sum_largest(-z[positives], int(misses)))
        if alarms:
            terms.append(2 / n * cp.sum_largest(z[negatives], int(alarms)))
        constraints.append(xi >= sum(terms))
    problem = cp.Problem(cp.Minimize(lam / 2 * cp.sum_squares(w) + xi), constraints)
    return problem.solve(solver=cp.CLARABEL)


@pytest.mark.parametrize(("loss", "intercept"), LOSSES, ids=lambda value: repr(value))
@pytest.mark.parametrize("p", [2, 20])
def test_bounds_enclose_the_minimum_over_all_tables(loss, intercept, p):
    X, y = drawn(p, 14, p)
    obj = Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), 1e-2)
    result = minimize(obj, ContingencyTables(), tol=1e-6)
    assert result.status == "converged"
    minimum = exact_minimum(X, y, loss, 1e-2, intercept)
    assert result.lower <= minimum + 1e-7
    assert result.value >= minimum - 1e-7


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("lam", [1e-2, 1e-6])
def test_wide_rows_are_certified(lam, intercept, units):
    """Cutting planes alone have gaps of 0.01 to 1 after 2 seconds there."""
    X, y = drawn(1, 70, 130)
    X = X * 10.0 ** np.random.default_rng(2).uniform(-6, 6, 130) if units else X
    obj = Objective(linear_risk(X, y, FBeta(), fit_intercept=intercept), L2(), lam)
    result = minimize(obj)
    assert result.status == "converged"
    assert result.solver.startswith("ContingencyTables")
    assert result.lower <= minimize(obj, Bundle(), max_iter=40).value
    assert result.value <= obj.value(np.zeros(130))


@pytest.mark.parametrize("share", [1 / 16, 15 / 16])
def test_few_rows_and_rare_classes(share):
    X, y = drawn(3, 16, 3, share)
    for loss, intercept in LOSSES:
        obj = Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), 1e-4)
        assert minimize(obj, ContingencyTables()).status == "converged"


def test_where_it_applies():
    X, y = drawn(0, 40, 3)
    lists = Objective(linear_risk(X, y, FBeta()), L2(), 1e-3)
    assert isinstance(Auto().choose(lists)[0], ContingencyTables)
    # the number of positives: a hinge loss with an intercept, which is faster still
    break_even = Objective(linear_risk(X, y, PrecisionAtK(int((y > 0).sum()))), L2(), 1e-3)
    assert not isinstance(Auto().choose(break_even)[0], ContingencyTables)
    for obj, reason in (
        (Objective(linear_risk(X, y, FBeta()), L1(), 1e-3), "needs FBeta"),
        (Objective(linear_risk(X, y, Hinge()), L2(), 1e-3), "needs FBeta"),
    ):
        with pytest.raises(UnsupportedProblem, match=reason):
            minimize(obj, ContingencyTables())
    with pytest.raises(UnsupportedProblem, match="at most 2 rows or columns"):
        minimize(lists, ContingencyTables(max_size=2))
