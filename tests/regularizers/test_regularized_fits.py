"""Every regularizer in fits with losses of each kind: certified optima, several outputs, estimators."""

import math
import pickle

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import Problem
from reference import losses, optimum
from riskmin.regularizers import repeat_per_output
from riskmin.regularizers.from_conjugate import as_regularizer

P = 5
INCREASING = np.diff(np.eye(P), axis=0)
TOTAL = np.vstack([INCREASING, np.ones((1, P))])
UNITS = np.array([1e-3, 1.0, 1e3, 1.0, 10.0])
GROUPS = ["b", "a", "b", "c", "a"]
ORDERED = rm.LinearConstraints(rm.L2(), TOTAL, [0.0] * 4 + [-1.0], [math.inf] * 4 + [2.0])
RANDOM = np.random.default_rng(5).normal(size=(6, P))
WEIGHTS = np.array([0.04, 0.5, 1.0, 3.0, 25.0])
EACH = rm.L2(np.repeat(WEIGHTS, 3))
"""The same weights for each of three outputs."""
CASES = [
    (rm.L2([0.5, 1.0, 2.0, 3.0, 0.1]), rm.Hinge(), None, UNITS, 1e-6),
    (rm.L1(), rm.Logistic(), None, 1.0, 1e-6),
    (rm.Elastic(0.3), rm.Absolute(), None, 1.0, 1e-6),
    (rm.Box(rm.L1(), -0.2, 0.3), rm.Squared(), None, 1.0, 1e-6),
    (rm.Box(rm.Elastic(0.5), -0.1, 0.1), rm.Hinge(), None, 1.0, 1e-6),
    (rm.Entropy(0.2), rm.Logistic(), rm.Bundle(), 1.0, 1e-6),
    (rm.Entropy(balanced=True), rm.Hinge(), rm.Bundle(), 1.0, 1e-6),
    (rm.Entropy(normalized=False, balanced=True), rm.Hinge(), rm.Bundle(), 1.0, 1e-6),
    (rm.QNorm(1.5, 2.0), rm.Squared(), None, 1.0, 1e-6),
    (rm.Quadratic(np.eye(P) + 0.5), rm.Quantile(0.3), None, 1.0, 1e-6),
    (rm.GroupLasso(GROUPS), rm.Squared(), rm.ProximalGradient(), 1.0, 1e-6),
    (rm.GroupLasso(GROUPS, weights=[1e-3, 2.0, 50.0]), rm.Squared(), None, 1.0, 1e-6),
    (rm.GroupLasso(GROUPS, ridge=0.5), rm.Hinge(), rm.Bundle(), 1.0, 1e-6),
    (rm.GroupLasso(GROUPS), rm.Hinge(), rm.Smoothing(rm.ProximalGradient()), 1.0, 1e-3),
    (rm.GroupLasso(GROUPS), rm.Hinge(), None, 1.0, 1e-3),
    (ORDERED, rm.Logistic(), rm.Bundle(), UNITS, 1e-6),
    (rm.LinearConstraints(rm.L2(), np.ones((1, P)), 1.0, 1.0), rm.Hinge(), None, UNITS, 1e-6),
    (rm.LinearConstraints(rm.Elastic(0.3), INCREASING, 0.0), rm.Logistic(), rm.ProximalGradient(), 1.0, 1e-5),
    (
        rm.LinearConstraints(rm.Box(rm.Elastic(0.2), -1.0, 1.0), RANDOM, upper=0.5),
        rm.Hinge(),
        None,
        UNITS,
        1e-6,
    ),
    (
        rm.LinearConstraints(rm.L2(), np.vstack([INCREASING] * 2), lower=0.0),
        rm.Quantile(0.3),
        None,
        UNITS,
        1e-6,
    ),
    (
        rm.LinearConstraints(rm.L2(), RANDOM * UNITS[[0, 1, 2, 3, 4, 0]][:, None], -1.0, 1.0),
        rm.Squared(),
        None,
        1.0,
        1e-6,
    ),
    *((EACH, rm.Softmax(), solver, 1.0, 1e-7) for solver in (rm.Newton(), rm.Lbfgs(), rm.Bundle())),
    *((EACH, rm.MulticlassSquaredHinge(), solver, 1.0, 1e-7) for solver in (rm.Newton(), rm.Lbfgs())),
    *((EACH, rm.MulticlassHinge(), s, 1.0, 1e-7) for s in (rm.Newton(), rm.Bundle(), rm.Smoothing())),
    (EACH, rm.MulticlassHinge(), rm.DualCoordinateAscent(), 1.0, 1e-7),
    (EACH, rm.MulticlassHinge(rescaled=True), rm.Newton(), 1.0, 1e-7),
    (rm.L2(np.linspace(0.1, 10.0, 3 * P)), rm.MulticlassHinge(), rm.Newton(), 1.0, 1e-7),
]


@pytest.mark.parametrize(("reg", "loss", "solver", "units", "tol"), CASES, ids=lambda v: repr(v)[:40])
def test_the_bounds_enclose_the_optimum(reg, loss, solver, units, tol):
    intercept = not isinstance(reg, rm.Entropy)
    problem = Problem(loss, reg, lam=0.05, n=50, p=P, intercept=intercept, units=units)
    for problem.sparse in {False, loss.multi_output}:
        result = rm.minimize(problem.objective(), solver, tol=tol)
        problem.check(result, tol)
    if isinstance(reg, rm.LinearConstraints):  # they hold for the weights, up to rounding
        rows, rounding = reg.A @ result.w[:P], 1e-9 * (1 + np.abs(reg.A) @ np.abs(result.w[:P]))
        assert np.all(rows >= reg.lower - rounding)
        assert np.all(rows <= reg.upper + rounding)


@pytest.mark.parametrize("solver", [None, rm.ProximalGradient()], ids=repr)
def test_groups_enter_or_leave_as_a_whole(solver):
    """A group is zero where the slope of its columns is less than lam times the root of its size."""
    problem = Problem(rm.Squared(), rm.GroupLasso(GROUPS), lam=0.8, n=50, p=P)
    w = rm.minimize(problem.objective(), solver, tol=1e-9).w
    slope = problem.X.T @ (problem.X @ w - problem.y) / 50
    zero = [np.linalg.norm(slope[g]) < 0.8 * len(g) ** 0.5 - 1e-4 for g in ([0, 2], [1, 4], [3])]
    assert 0 < sum(zero) < 3
    assert [np.count_nonzero(w[g]) for g in ([0, 2], [1, 4], [3])] == np.where(zero, 0, [2, 2, 1]).tolist()


# ---------------------------------------------------------------- regularizers by their conjugate
class LogCosh:
    """Omega*(u) = sum_j log cosh u_j, so that Omega is finite in the cube |w_j| <= 1 only."""

    def conjugate(self, u):
        a = np.abs(u)
        return float((a + np.log1p(np.exp(-2 * a)) - np.log(2)).sum())

    def conjugate_grad(self, u):
        return np.tanh(u)


class ConjugateOnly:
    """What a bundle method needs of a regularizer."""

    def __init__(self, reg):
        self.reg = reg

    def conjugate(self, u):
        return self.reg.conjugate(u)

    def conjugate_grad(self, u):
        return self.reg.conjugate_grad(u)


class FourMethods(ConjugateOnly):
    def value(self, w):
        return self.reg.value(w)

    def prox(self, v, step):
        return self.reg.prox(v, step)


@pytest.mark.parametrize(
    ("given", "loss", "solver"),
    [
        (FourMethods(rm.L2()), rm.Hinge(), rm.Bundle()),
        (FourMethods(rm.L2()), rm.Hinge(), rm.Smoothing(rm.ProximalGradient())),
        (FourMethods(rm.L2()), rm.Logistic(), rm.ProximalGradient()),
        *((FourMethods(rm.L2()), loss, None) for loss in (rm.Hinge(), rm.Logistic(), rm.RocArea())),
        (FourMethods(rm.L2()), rm.FBeta(), None),
        (ConjugateOnly(rm.QNorm(1.5, 2.0)), rm.Logistic(), rm.Bundle()),
        (FourMethods(rm.QNorm(1.5, 2.0)), rm.Hinge(), rm.Bmrm()),
        (ConjugateOnly(rm.Elastic(0.3)), rm.Hinge(), rm.Bmrm()),
        (ConjugateOnly(rm.Entropy(0.25)), rm.Hinge(), rm.Bundle()),
        (FourMethods(rm.Entropy(1.0, normalized=False)), rm.Logistic(), rm.Bundle()),
    ],
)
def test_few_methods_give_the_optimum_of_the_regularizer(given, loss, solver):
    problem = Problem(loss, given.reg, lam=0.05, n=30)
    tol = 1e-3 if isinstance(solver, rm.Smoothing) else 1e-5
    problem.check(rm.minimize(rm.Objective(problem.objective().risk, given, 0.05), solver, tol=tol), tol)


def test_a_new_regularizer_by_its_conjugate_has_the_optimum_of_cvxpy():
    """Omega(w) = sum_j ((1 + w_j) log(1 + w_j) + (1 - w_j) log(1 - w_j)) / 2 is never written down."""
    import cvxpy as cp

    data = Problem(rm.Absolute(), n=30)
    result = rm.minimize(rm.Objective(data.objective().risk, LogCosh(), 0.02), rm.Bundle(), tol=1e-7)
    w = cp.Variable(4)
    omega = -cp.sum(cp.entr(1 + w) + cp.entr(1 - w)) / 2
    problem = cp.Problem(cp.Minimize(0.02 * omega + cp.sum(cp.abs(data.X @ w - data.y)) / 30))
    best = problem.solve(solver=cp.CLARABEL)
    assert result.status == "converged"
    assert result.value == pytest.approx(best, rel=1e-6)
    np.testing.assert_allclose(result.w, w.value, atol=1e-3)


def test_value_subgradient_and_prox_are_those_of_the_conjugate():
    reg, rng = as_regularizer(LogCosh()), np.random.default_rng(2)
    for _ in range(10):
        v, step = 2 * rng.standard_normal(4), float(10 ** rng.uniform(-0.3, 1))
        w = np.tanh(v)
        value = float(((1 + w) * np.log1p(w) + (1 - w) * np.log1p(-w)).sum()) / 2
        assert reg.value(w) == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(reg.grad(w), v, rtol=1e-6)
        p = reg.prox(v, step)  # (v - p) / step is the gradient of Omega at p
        np.testing.assert_allclose(step * np.arctanh(p), v - p, rtol=1e-6, atol=1e-8)
    assert reg.value(np.array([0.5, 1.01, 0.0, 0.0])) == np.inf
    np.testing.assert_allclose(reg.prox(np.array([0.5, 3.0, -4.0, 0.0]), 0.0), [0.5, 1, -1, 0], atol=1e-3)
    assert pickle.loads(pickle.dumps(reg)).value(w) == reg.value(w)


@pytest.mark.parametrize("reg", [rm.QNorm(1.5, 2.0), rm.Entropy(0.25), rm.L2([1.0, 2.0, 3.0, 4.0])], ids=repr)
def test_differences_are_the_hessian_of_the_conjugate(reg):
    u, *A = np.random.default_rng(3).standard_normal((4, 4))
    A = np.array(A)
    exact = A / reg.weights @ A.T if reg.quadratic else reg.conjugate_hessian_product(u, A)
    default = as_regularizer(ConjugateOnly(reg)).conjugate_hessian_product(u, A)
    np.testing.assert_allclose(default, exact, rtol=1e-6, atol=1e-8)


# ---------------------------------------------------------------- several outputs and other variables
@pytest.mark.parametrize(
    ("reg", "repeated"),
    [
        (rm.GroupLasso(GROUPS), rm.GroupLasso(np.repeat(GROUPS, 3))),
        (
            rm.LinearConstraints(rm.L2(), INCREASING, 0.0),
            rm.LinearConstraints(rm.L2(), np.kron(INCREASING, np.eye(3)), 0.0),
        ),
        (rm.L2(WEIGHTS), EACH),
    ],
    ids=["groups", "constraints", "weights"],
)
def test_settings_of_features_hold_for_all_outputs(reg, repeated):
    problem = Problem(rm.Softmax(), n=50, p=P)
    model = rm.LinearClassifier("logistic", regularizer=reg, alpha=0.08, tol=1e-5).fit(problem.X, problem.y)
    exact = optimum(rm.Softmax(), repeated, problem.X, problem.y, None, 0.08, True)
    assert model.lower_bound_ - 1e-7 <= exact <= model.objective_ + 1e-7


def test_settings_are_repeated_per_output():
    box = repeat_per_output(rm.Box(rm.Elastic(0.5, [1.0, 2.0]), [0.0, -1.0], 5.0), 2, 4)
    assert box == rm.Box(rm.Elastic(0.5, [1.0, 1.0, 2.0, 2.0]), [0.0, 0.0, -1.0, -1.0], 5.0)
    entropy = repeat_per_output(rm.Entropy([1.0, 2.0], balanced=True), 2, 6)
    assert entropy == rm.Entropy([1.0] * 3 + [2.0] * 3, balanced=True)
    for reg, dim in ((rm.L2(), 4), (rm.L2([1.0, 2.0]), 2), (rm.L2([1.0, 2.0]), 5), (rm.QNorm(), 4)):
        assert repeat_per_output(reg, 2, dim) is reg


# ---------------------------------------------------------------- estimators
def test_other_estimators_accept_one_weight_per_feature():
    problem = Problem(rm.Softmax(), n=50, p=P)
    kinds = np.array(["a/x", "a/y", "b"])[problem.y.astype(int)]
    for reg in (rm.L2(WEIGHTS), rm.L1(WEIGHTS)):
        tree = rm.HierarchicalClassifier("softmax", regularizer=reg, alpha=1e-2).fit(problem.X, kinds)
        assert tree.result_.status == "converged"
        search = rm.LinearClassifierCV("logistic", regularizer=reg, alphas=2, cv=3).fit(problem.X, kinds)
        assert search.coef_.shape == (3, P)


@pytest.mark.parametrize(
    "reg",
    [
        rm.QNorm(1.5),
        rm.GroupLasso(GROUPS),
        rm.LinearConstraints(rm.L2(), TOTAL, [-math.inf] * 4 + [1.0], [0.0] * 4 + [1.0]),
    ],
)
def test_estimators_standardize_save_and_certify(reg, tmp_path):
    problem = Problem(rm.Squared(), n=50, p=P, units=UNITS)
    X, y = problem.X + np.array([0, 0, 5, 1, 0]), problem.y
    model = rm.LinearRegressor("squared", regularizer=reg, alpha=0.05, standardize=True).fit(X, y)
    exact = optimum(rm.Squared(), reg, (X - X.mean(0)) / X.std(0), y, None, 0.05, True)
    assert model.lower_bound_ - 1e-7 <= exact <= model.objective_ + 1e-7
    rm.save_model(model, tmp_path / "model")
    loaded = rm.load_model(tmp_path / "model")
    assert loaded.regularizer == reg
    if isinstance(reg, rm.LinearConstraints):  # decreasing, with the sum one
        w = model.coef_ * X.std(0)
        assert w.sum() == pytest.approx(1.0, abs=1e-9)
        assert np.all(np.diff(w) <= 1e-9)
    assert rm.certify(loaded, X, y).status == "certified"


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("loss", ["squared", "quantile:level=0.8", "logistic"])
def test_a_semidefinite_form_leaves_directions_unpenalized(loss, store):
    """Second differences of the coefficients of hats: lines cost nothing, whatever their size."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(size=120))
    B, D = np.maximum(0, 1 - np.abs(19 * x[:, None] - np.arange(20))), np.diff(np.eye(20), 2, axis=0)
    y = np.sin(6 * x) + 50 * x + rng.standard_normal(120)
    y = np.sign(y - 20 * rng.standard_normal(120) - 20) if loss == "logistic" else y
    reg = rm.Quadratic(store(D.T @ D))
    result = rm.minimize(rm.Objective(rm.linear_risk(B, y, loss), reg, 1e-3), tol=1e-7)
    w = cp.Variable(20)
    risk = cp.sum(losses(rm.get_loss(loss), B @ w, y)) / 120
    problem = cp.Problem(cp.Minimize(risk + 5e-4 * cp.sum_squares(D @ w)))
    best = problem.solve(solver=cp.CLARABEL, tol_gap_rel=1e-11, tol_gap_abs=1e-11)
    assert result.status == "converged"
    assert result.value == pytest.approx(best, rel=1e-6)
    # a penalty of 1e-12 of the largest eigenvalue makes the proof
    assert result.lower <= best * (1 + 1e-6)
