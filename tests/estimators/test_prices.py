"""What constraints cost: the difference of two optima of cvxpy is between the proved ends."""

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

from helpers import refusals
from riskmin import (
    L2,
    LinearClassifier,
    LinearConstraints,
    LinearRegressor,
    constraint_prices,
    fairness_constraints,
)

RNG = np.random.default_rng(0)
N, P = 120, 4
GROUP = RNG.random(N) < 0.4
X = RNG.standard_normal((N, P)) + np.outer(GROUP, [1.0, 0.5, 0.0, 0.0])
Y = np.where(X @ [1.0, 0.5, 0.5, 0.0] + RNG.standard_normal(N) > 0.5, 1.0, -1.0)
A = np.array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
UPPER = np.array([-0.1, 0.05, 5.0])
WEIGHTS = RNG.uniform(0.1, 2.0, N)


def minimum(rows, weight):
    w, b = cp.Variable(P), cp.Variable()
    c = np.full(N, 1 / N) if weight is None else weight / weight.sum()
    objective = c @ cp.logistic(-cp.multiply(Y, X @ w + b)) + 1e-2 * cp.sum_squares(w) / 2
    constraints = [A[k] @ w <= UPPER[k] for k in rows]
    return cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["equal", "weighted"])
def test_prices_are_differences_of_optima(weight):
    reg = LinearConstraints(L2(), A, upper=UPPER)
    model = LinearClassifier("logistic", regularizer=reg, alpha=1e-2, tol=1e-5).fit(X, Y, weight)
    found = constraint_prices(model, X, Y, sample_weight=weight)
    best, all_rows = minimum(range(3), weight), np.arange(3)
    exact = [best - minimum(np.delete(all_rows, k), weight) for k in range(3)]
    ends = np.vstack([found.each, found.total])
    costs = np.append(exact, best - minimum([], weight))
    assert np.all((ends[:, 0] <= costs + 1e-7) & (costs <= ends[:, 1] + 1e-7))
    assert np.all(np.ptp(ends, axis=1) <= 3e-5)
    assert ends[0, 0] > 0  # binding
    assert ends[2, 0] == 0  # never binding
    assert "constraint 0 costs between" in str(found)
    assert model.regularizer is reg


def test_the_covariance_is_limited():
    labels = np.where(GROUP, "a", "b")
    three = np.digitize(X[:, 0], [-0.5, 0.8]).astype(str)
    for sensitive, columns in (
        (GROUP, 1),
        (labels, 1),
        (X[:, 0] + 1, 1),
        (three, 3),
        (np.c_[GROUP, X[:, 0]], 2),
    ):
        reg = fairness_constraints(X, sensitive, 0.01)
        assert len(reg.A) == columns
        model = LinearClassifier("logistic", regularizer=reg, alpha=1e-3).fit(X, Y)
        z = model.decision_function(X)
        numbers = (
            [three == level for level in np.unique(three)]
            if columns == 3
            else [GROUP if columns == 1 else X[:, 0]]
        )
        if columns == 1 and np.asarray(sensitive).dtype.kind == "f":
            numbers = [sensitive]
        for s in numbers:
            assert abs(np.cov(z, s, bias=True)[0, 1]) <= 0.01 + 1e-8
    sparse = fairness_constraints(sp.csr_array(X), GROUP, 0.01, sample_weight=WEIGHTS)
    c = WEIGHTS / WEIGHTS.sum()
    np.testing.assert_allclose(sparse.A[0], X.T @ (c * (GROUP - c @ GROUP)))
    # a fair model is worth its price: without the constraint, the covariance is larger
    free = LinearClassifier("logistic", alpha=1e-3).fit(X, Y)
    assert abs(np.cov(free.decision_function(X), GROUP, bias=True)[0, 1]) > 0.05


FAIR = fairness_constraints(X, GROUP, 0.1)
REFUSED = [
    (lambda: fairness_constraints(X, GROUP[1:], 0.1), "give one value per row"),
    (lambda: fairness_constraints(X, GROUP, -1.0), "a number >= 0"),
    (lambda: fairness_constraints(X, np.full(N, "a"), 0.1), "a single group"),
    (lambda: fairness_constraints(X, np.full(N, np.nan), 0.1), "NaN or infinity"),
    (lambda: constraint_prices(LinearRegressor().fit(X, Y), X, Y), "no LinearConstraints"),
    (
        lambda: constraint_prices(LinearRegressor(regularizer=FAIR).fit(X, Y, WEIGHTS), X, Y),
        "give sample_weight",
    ),
]
test_refusals = refusals((REFUSED, ValueError))
