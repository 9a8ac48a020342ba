"""Linear constraints on the weights: the contract, cvxpy's optimum, several outputs, files, errors."""

import math

import numpy as np
import pytest

from reference import optimum
from riskmin import (
    L1,
    L2,
    Box,
    Bundle,
    Elastic,
    Hinge,
    LinearClassifier,
    LinearConstraints,
    LinearRegressor,
    Logistic,
    Objective,
    ProximalGradient,
    Quantile,
    Softmax,
    Squared,
    certify,
    linear_risk,
    load_model,
    minimize,
    save_model,
)
from riskmin.testing import check_regularizer

P = 5
INCREASING = np.diff(np.eye(P), axis=0)
TOTAL = np.ones((1, P))
BOTH = np.vstack([INCREASING, TOTAL])
RANDOM = np.random.default_rng(5).normal(size=(6, P))
INSTANCES = {
    "equality": LinearConstraints(L2(), TOTAL, 1.0, 1.0),
    "monotone": LinearConstraints(
        L2([1e-3, 1.0, 5.0, 2.0, 100.0]), BOTH, [0.0] * 4 + [-1.0], [math.inf] * 4 + [2.0]
    ),
    "redundant rows": LinearConstraints(L2(), np.vstack([INCREASING, 2 * INCREASING, INCREASING]), lower=0.0),
    "elastic": LinearConstraints(Elastic(0.3), BOTH, [0.0] * 4 + [0.0], [math.inf] * 4 + [0.0]),
    "box": LinearConstraints(Box(Elastic(0.2), -1.0, 1.0), RANDOM, upper=0.5),
    "units": LinearConstraints(L2(), RANDOM * np.logspace(-6, 6, 6)[:, None], -1.0, 1.0),
}


def data(seed=0, n=80):
    """Columns in units from 1e-3 to 1e3."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, P))
    return Z * [1e-3, 1.0, 1e3, 1.0, 10.0] + [0, 0, 5, 1, 0], Z @ [2.0, -1, 0.5, 1, -1] + rng.normal(size=n)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", INSTANCES)
def test_contract(name):
    check_regularizer(INSTANCES[name], P)


@pytest.mark.parametrize("name", INSTANCES)
def test_the_prox_is_the_minimizer_and_every_multiplier_bounds_the_conjugate(name):
    reg, rng = INSTANCES[name], np.random.default_rng(1)
    for _ in range(5):
        v, far = 3 * rng.normal(size=(2, P))
        p, w = reg.prox(v, 0.7), reg.prox(far, 0.0)
        assert math.isfinite(reg.value(p))
        g = (v - p) / 0.7  # a subgradient at p
        assert reg.value(w) >= reg.value(p) + g @ (w - p) - 1e-9
        assert reg.conjugate(g) == pytest.approx(g @ p - reg.value(p), rel=1e-8, abs=1e-9)
        assert reg.conjugate(v) >= v @ w - reg.value(w) - 1e-9


CASES = [
    (Logistic(), "monotone", Bundle()),
    (Logistic(), "elastic", ProximalGradient()),
    (Hinge(), "equality", None),
    (Hinge(), "box", None),
    (Quantile(0.3), "redundant rows", None),
    (Squared(), "units", None),
    (Squared(), "monotone", None),
]


@pytest.mark.parametrize(("loss", "name", "solver"), CASES)
def test_the_bounds_enclose_the_optimum_of_cvxpy(loss, name, solver):
    X, y = data()
    y = y if loss.task == "regression" else np.sign(y)
    if isinstance(solver, ProximalGradient):  # a method of first order
        X = X / X.std(0)
    exact = optimum(loss, INSTANCES[name], X, y, None, 1e-2, True)
    objective = Objective(linear_risk(X, y, loss, fit_intercept=True), INSTANCES[name], 1e-2)
    result = minimize(objective, solver, tol=1e-6)
    assert result.status == "converged"
    assert result.lower <= exact * (1 + 1e-7)
    assert exact <= result.value * (1 + 1e-7)


def test_constraints_hold_for_each_of_several_outputs():
    X, y = data()
    X, labels = X / X.std(0), np.digitize(y, [-0.5, 0.5])
    reg = LinearConstraints(L2(), INCREASING, lower=0.0)
    model = LinearClassifier("logistic", regularizer=reg, alpha=1e-2, tol=1e-5).fit(X, labels)
    repeated = LinearConstraints(L2(), np.kron(INCREASING, np.eye(3)), lower=0.0)
    exact = optimum(Softmax(), repeated, X, labels.astype(float), None, 1e-2, True)
    assert model.lower_bound_ - 1e-7 <= exact <= model.objective_ + 1e-7
    assert (np.diff(model.coef_, axis=1) >= -1e-9).all()


def test_estimators_standardize_save_and_certify(tmp_path):
    X, y = data()
    reg = LinearConstraints(L2(), BOTH, [-math.inf] * 4 + [1.0], [0.0] * 4 + [1.0])  # decreasing, sum one
    model = LinearRegressor("squared", regularizer=reg, alpha=1e-2, standardize=True).fit(X, y)
    exact = optimum(Squared(), reg, (X - X.mean(0)) / X.std(0), y, None, 1e-2, True)
    assert model.lower_bound_ <= exact * (1 + 1e-7)
    assert exact <= model.objective_ * (1 + 1e-7)
    assert (model.coef_ * X.std(0)).sum() == pytest.approx(1.0, abs=1e-9)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.regularizer == reg
    assert certify(loaded, X, y).status == "certified"


def test_errors_name_cause_and_remedy():
    rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    with pytest.raises(ValueError, match="rows 0, 2 of A contradict each other; drop or relax one of them"):
        LinearConstraints(L2(), rows, lower=[1.0, 0.0, -math.inf], upper=[math.inf, 1.0, 0.5])
    with pytest.raises(ValueError, match="row 0 of A and the bounds of the weights contradict"):
        LinearConstraints(Box(L2()), [[1.0, 1.0]], upper=-1.0)
    with pytest.raises(ValueError, match="needs lower <= upper in every row"):
        LinearConstraints(L2(), rows, lower=[0.0, 2.0, 0.0], upper=1.0)
    with pytest.raises(TypeError, match=r"takes L2\(\), Elastic\(\) or a Box of one of them, not L1"):
        LinearConstraints(L1(), rows, upper=1.0)
    with pytest.raises(ValueError, match=r"upper has shape \(2,\), but A has 3 rows"):
        LinearConstraints(L2(), rows, upper=[1.0, 2.0])
    with pytest.raises(ValueError, match="A has 2 columns, but w has 3 entries"):
        LinearRegressor(regularizer=LinearConstraints(L2(), rows, upper=1.0)).fit(np.eye(3), [0.0, 1.0, 2.0])
