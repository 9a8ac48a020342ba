"""J and its gap at the numbers that a model returns, in exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from benchmarks.campaign import exact

import riskmin as rm

LOSSES = [rm.Hinge(), rm.Absolute(), rm.Quantile(0.3), rm.SquaredHinge()]
MODELS = {"regression": rm.LinearRegressor}


def drawn(loss, seed):
    """Rows that a line fits or separates nearly, in units of any size: min J is tiny for a small alpha."""
    rng = np.random.default_rng([seed, 5])
    n, p = int(rng.integers(4, 30)), int(rng.integers(1, 6))
    X = rng.standard_normal((n, p)) * 10.0 ** rng.uniform(-3, 3, size=p)
    if rng.random() < 0.5:
        X = X + 10.0 ** rng.uniform(0, 5, size=p)
    if rng.random() < 0.3:
        X = np.round(X)
    z = X @ (rng.standard_normal(p) / np.abs(X).max(0).clip(1e-9))
    y = np.where(z > np.median(z), 1.0, -1.0)
    if loss.task == "regression":
        y = z * 10.0 ** rng.uniform(-3, 3) + rng.choice([0.0, 1e-5]) * rng.standard_normal(n)
    return X, y, float(10 ** rng.uniform(-14, -4)), float(rng.choice([1e-3, 1e-6, 1e-9]))


def exact_objective(loss, X, y, lam, w, b):
    w, b = [Fraction(float(v)) for v in w], Fraction(float(b))
    scores = [sum((Fraction(float(x)) * v for x, v in zip(row, w, strict=True)), b) for row in X]
    labels, shares = [Fraction(float(v)) for v in y], [Fraction(1, len(y))] * len(y)
    return Fraction(lam) * sum(v * v for v in w) / 2 + exact.risk(loss, scores, labels, shares, None)


def sizes(X, y, w, b):
    """Sum_i c_i (sum_j |x_ij w_j| + |b| + |y_i|): the terms of which rounding is a share."""
    return float(np.mean(np.abs(X) @ np.abs(w) + abs(b) + np.abs(y)))


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_gap_holds_at_the_weights_and_the_intercept_that_are_returned(loss):
    """Rows on the margin move off it when scores are rounded, which is much of a J of 1e-8."""
    proved, draws = 0, 150 if loss.task == "classification" else 40
    for seed in range(draws):
        X, y, lam, tol = drawn(loss, seed)
        if loss.task != "regression" and len(set(y)) < 2:
            continue
        kind = MODELS.get(loss.task, rm.LinearClassifier)
        model = kind(loss, alpha=lam, tol=tol, max_iter=200).fit(X, y)
        w, b = np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])
        J = exact_objective(loss, X, y, lam, w, b)
        # a slope of at most one for each row, or the residual of a squared loss
        slope = max(1.0, float(np.max(np.abs(X @ w + b - y))))
        assert abs(J - Fraction(model.objective_)) <= 2.0**-50 * slope * sizes(X, y, w, b) + 2.0**-50 * J
        if model.result_.criterion == "tol" and model.objective_ > 0:
            proved += 1
            assert J - Fraction(model.lower_bound_) <= Fraction(tol) * J
    assert proved >= draws // 3


def test_the_result_has_the_intercept_of_its_value():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3)) + 5
    y = np.where(X[:, 0] + rng.standard_normal(60) > 5, 1.0, -1.0)
    for loss in (rm.Hinge(), rm.Logistic(), rm.SquaredHinge(), rm.FBeta()):
        risk = rm.linear_risk(X, y, loss, fit_intercept=True)
        J = rm.Objective(risk, rm.L2(), 0.01)
        results = [rm.minimize(J, solver) for solver in ("auto", "bundle")]
        for result in [*results, rm.path(risk, rm.L2(), [0.1, 0.01])[1]]:
            at = loss.value_grad(X @ result.w + result.intercept, y, np.full(60, 1 / 60))[0]
            assert result.value == pytest.approx(at + 0.005 * result.w @ result.w, rel=1e-12)
    without = rm.minimize(rm.Objective(rm.linear_risk(X, y, rm.Hinge()), rm.L2(), 0.01))
    assert without.intercept == 0.0
