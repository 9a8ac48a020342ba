"""The interior-point method: optima by cvxpy, zeros, tables of any scale, rows and columns, refusals."""

from itertools import islice

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import (
    L1,
    L2,
    Absolute,
    Auto,
    Box,
    Elastic,
    EpsilonInsensitive,
    Exponential,
    Hinge,
    Huber,
    InteriorPoint,
    Logistic,
    MulticlassHinge,
    Objective,
    Poisson,
    QNorm,
    Quantile,
    Smoothing,
    Softmax,
    Squared,
    SquaredHinge,
    linear_risk,
    minimize,
)
from riskmin.core import UnsupportedProblem
from riskmin.numerics.barrier import BarrierVariables

LOSSES = [Hinge(), SquaredHinge(), Absolute(), Quantile(0.2), EpsilonInsensitive(0.3), Huber(), Squared()]
SMOOTH = [Logistic(), Poisson(), Exponential()]


def raw_table(seed, n=60, p=8):
    """Columns of sizes from 1e-6 to 1e6, far from zero, two of them collinear, one constant."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) + rng.uniform(-3, 3, p)
    X[:, -1], X[:, -2] = X[:, 0] + 2 * X[:, 1], 1.0
    z = X @ rng.standard_normal(p) + rng.standard_normal(n)
    return X * 10.0 ** rng.uniform(-6, 6, p), z - z.mean()


def labels(loss, z):
    if isinstance(loss, Poisson):
        return np.round(np.abs(z))
    return np.where(z > 0, 1.0, -1.0) if loss.task == "classification" else z


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_the_optimum_is_that_of_a_quadratic_program(loss, intercept):
    rng = np.random.default_rng(1)
    X, c = rng.standard_normal((30, 5)), rng.uniform(0.0, 2.0, 30)
    c[3] = 0.0
    y = labels(loss, X[:, 0] - X[:, 1] + rng.standard_normal(30))
    reg, lam = Box(Elastic(0.5, 0.8), -0.3, np.inf), 0.05
    result = minimize(
        Objective(linear_risk(X, y, loss, sample_weight=c, fit_intercept=intercept), reg, lam),
        InteriorPoint(),
        tol=1e-8,
    )
    w, b = cp.Variable(5), cp.Variable()
    z = X @ w + (b if intercept else 0)
    share = c / c.sum()
    t = reg.terms(np.ones(5))
    penalty = lam * (t.absolute * cp.norm1(w) + 0.5 * t.square * cp.sum_squares(w))
    primal = {
        "Hinge": lambda: share @ cp.pos(1 - cp.multiply(y, z)),
        "SquaredHinge": lambda: 0.5 * (share @ cp.square(cp.pos(1 - cp.multiply(y, z)))),
        "Absolute": lambda: share @ cp.abs(z - y),
        "Quantile": lambda: share @ cp.maximum(0.2 * (y - z), -0.8 * (y - z)),
        "EpsilonInsensitive": lambda: share @ cp.pos(cp.abs(z - y) - 0.3),
        "Huber": lambda: 0.5 * (share @ cp.huber(z - y)),
        "Squared": lambda: 0.5 * (share @ cp.square(z - y)),
    }[type(loss).__name__]
    problem = cp.Problem(cp.Minimize(primal() + penalty), [w >= -0.3])
    best = problem.solve(solver=cp.CLARABEL)
    assert result.status == "converged"
    assert result.value == pytest.approx(best, rel=1e-6)
    assert result.lower <= best * (1 + 1e-7)


@pytest.mark.parametrize("loss", LOSSES + SMOOTH, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("shape", [(60, 8), (12, 20)])
def test_scales_of_columns_hardly_matter(loss, shape):
    """First-order methods take thousands of steps on such tables, or never end."""
    for seed in range(3):
        X, z = raw_table(seed, *shape)
        risk = linear_risk(X, labels(loss, z), loss, fit_intercept=True)
        result = minimize(Objective(risk, L1(), 1e-4), InteriorPoint(), tol=1e-3, max_iter=60)
        assert result.status == "converged"
        assert result.lower <= result.value <= risk(np.zeros(shape[1]))[0] * (1 + 1e-12)


@pytest.mark.parametrize("X", [np.eye(40)[:25], sp.eye_array(40, format="csr")[:25]], ids=["dense", "sparse"])
@pytest.mark.parametrize("loss", [Absolute(), Squared(), Hinge()], ids=lambda loss: type(loss).__name__)
def test_weights_that_are_zero_at_the_minimum_are_zero(loss, X):
    y = np.where(np.arange(25) % 3 == 0, 2.0, -0.5)
    y = np.sign(y) if loss.task == "classification" else y
    # without coupling of the rows, w_i moves if the slope of row i at 0 exceeds lam
    lam = 1.5 / 25
    result = minimize(Objective(linear_risk(X, y, loss), L1(), lam), InteriorPoint(), tol=1e-6)
    slopes = np.abs(loss.value_grad(np.zeros(25), y, np.full(25, 1 / 25))[1])
    assert result.status == "converged"
    np.testing.assert_array_equal(result.w[:25] != 0, slopes > lam)
    assert not result.w[25:].any()


def test_many_small_weights_are_set_to_zero_together():
    rng = np.random.default_rng(0)
    X, z = rng.standard_normal((40, 300)), rng.standard_normal(40)
    result = minimize(Objective(linear_risk(X, np.sign(z), Hinge()), L1(), 1e-3), InteriorPoint())
    # a vertex of the polyhedron: at most one weight per row, and some slack at a gap of 0.1 %
    assert result.status == "converged"
    assert np.count_nonzero(result.w) <= 60


def test_linearized_slopes_are_those_of_the_barrier_problem():
    """At a point on the central path, the linear model agrees with differences along the path."""
    x, mu = np.array([0.4, -0.2, 0.7]), 1e-3
    settings = {"shift": 0.3, "epsilon": 0.5, "square": 2.0, "lower": -1.0, "upper": 1.0}

    def slope(x):
        # v solves x = mu / (eps - v) - mu / (eps + v): a quadratic equation
        v = (-mu + np.sqrt(mu**2 + x**2 * 0.25)) / x
        return 0.3 + 2 * x + v + mu / (1 - x) - mu / (x + 1)

    variables = BarrierVariables(x, mu, **settings)
    variables.v = (-mu + np.sqrt(mu**2 + x**2 * 0.25)) / x
    variables.slacks = variables._slacks()
    variables.multipliers = [mu / s for s in variables.slacks]
    model = variables.linearized(mu)
    h = 1e-6
    np.testing.assert_allclose(model.slope, slope(x), rtol=1e-10)
    np.testing.assert_allclose(model.curvature, (slope(x + h) - slope(x - h)) / (2 * h), rtol=1e-6)


def test_what_it_cannot_solve_it_refuses_with_advice():
    X, y = np.random.default_rng(0).standard_normal((20, 3)), np.sign(np.arange(20) - 9.5)
    refused = [(L2(), "use Newton"), (QNorm(1.5), "use Bundle"), (Box(L1(), 0.0, 0.0), "lower < upper")]
    for reg, advice in refused:
        with pytest.raises(UnsupportedProblem, match=advice):
            minimize(Objective(linear_risk(X, y, Hinge()), reg, 0.1), InteriorPoint())
    with pytest.raises(UnsupportedProblem, match="raise max_size"):
        minimize(Objective(linear_risk(X, y, Hinge()), L1(), 0.1), InteriorPoint(max_size=2))


@pytest.mark.parametrize("loss", [Absolute(), Logistic()], ids=lambda loss: type(loss).__name__)
def test_every_cut_lies_below_the_risk(loss):
    """With an intercept: slopes whose sum is not zero would make a bound above the minimum."""
    X, z = raw_table(3)
    X = X / X.std(axis=0).clip(1e-9)
    J = Objective(linear_risk(X, labels(loss, z), loss, fit_intercept=True), L1(), 1e-6)
    points = [scale * np.random.default_rng(k).standard_normal(8) for k in range(10) for scale in (0.1, 10.0)]
    risks = [J.risk(v)[0] for v in points]
    for it in islice(InteriorPoint().iterates(J, np.zeros(8)), 12):
        assert it.value == pytest.approx(J.value(it.w), rel=1e-9)
        for v, risk in zip(points, risks, strict=True):
            assert it.cut.a @ v + it.cut.b <= risk * (1 + 1e-9)


# ---------------------------------------------------------------- several outputs
@pytest.mark.parametrize("loss", [Softmax(), MulticlassHinge()])
@pytest.mark.parametrize("units", [False, True])
def test_several_outputs_reach_the_optimum_of_cvxpy(loss, units):
    """The same optimum in any units, with intercepts: the penalty factors are those of scaled columns."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(60, 4))
    y = np.argmax(X @ rng.normal(size=(4, 3)) + rng.normal(size=(60, 3)), axis=1)
    sizes = np.logspace(-5, 5, 4) if units else np.ones(4)
    # |w|_1 of the columns X s with the factors s is that of the columns X
    J = Objective(linear_risk(X * sizes + sizes, y, loss, fit_intercept=True), L1(np.repeat(sizes, 3)), 0.01)
    result = minimize(J, InteriorPoint() if loss.smooth else Smoothing(InteriorPoint()), tol=1e-4)
    W, b = cp.Variable((4, 3)), cp.Variable(3)
    Z = X @ W + np.ones((60, 1)) @ b[None, :]
    true = cp.sum(cp.multiply(Z, np.eye(3)[y]), axis=1)
    each = cp.log_sum_exp(Z, axis=1) if loss.smooth else cp.max(Z + 1 - np.eye(3)[y], axis=1)
    problem = cp.Problem(cp.Minimize(cp.sum(each - true) / 60 + 0.01 * cp.sum(cp.abs(W))))
    optimum = problem.solve(solver="CLARABEL")
    assert result.status == "converged"
    assert result.lower <= optimum * (1 + 1e-7)
    assert optimum * (1 - 1e-7) <= result.value <= optimum * (1 + 2e-4)


def test_several_outputs_need_few_steps_on_raw_tables():
    """Columns of units from 1e-6 to 1e6, far from zero, at the defaults."""
    X = raw_table(1)[0]
    rng = np.random.default_rng(1)
    y = np.argmax((X - X.mean(0)) / (X.std(0) + 1e-300) @ rng.normal(size=(X.shape[1], 3)), axis=1)
    for loss in (Softmax(), MulticlassHinge()):
        J = Objective(linear_risk(X, y, loss, fit_intercept=True), L1(), 1e-4)
        result = minimize(J)
        assert result.status == "converged"
        assert "InteriorPoint" in result.solver
        assert result.trace[-1]["iteration"] < 150


def test_several_outputs_that_are_not_supported():
    X, y = np.random.default_rng(0).normal(size=(30, 300)), np.arange(30) % 4
    J = Objective(linear_risk(X, y, Softmax(), fit_intercept=True), L1(), 0.1)
    with pytest.raises(UnsupportedProblem, match="matrix of 1204 weights"):
        InteriorPoint().check_supports(J)
    assert "OwlQn" in Auto().choose(J)[0].name
    J = Objective(linear_risk(X[:, :3], y, MulticlassHinge()), L1(), 0.1)
    with pytest.raises(UnsupportedProblem, match="Smoothing"):
        InteriorPoint().check_supports(J)
