"""Dual ascent with gradient steps, the augmented Lagrangian, and unpenalized directions."""

import itertools
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg  # noqa: F401
from numpy.testing import assert_allclose

import riskmin as rm
from helpers import Problem, name_of, problem
from riskmin.regularizers import L2, Elastic, Entropy, Equality, QNorm, Quadratic
from riskmin.testing import check_regularizer

P = 4


def drawn(loss=None, reg=None, lam=0.3, n=30, **settings):
    return Problem(loss or rm.Hinge(), reg or L2(), lam, n, P, weighted=True, **settings)


def solver_for(obj, **settings):
    """The method of the paper: with constraints (an intercept, unpenalized directions) or without."""
    constrained = obj.risk.intercept.profiled or isinstance(obj.reg, Equality)
    return (rm.AugmentedLagrangian if constrained else rm.DualGaussSeidel)(**settings)


def first(obj, solver, k=1):
    """The first k iterates."""
    return list(islice(solver.iterates(obj, obj.reg.conjugate_grad(np.zeros(obj.risk.dim))), k))


# ---------------------------------------------------------------- the steps of the paper
@pytest.mark.parametrize("normalized", [True, False])
def test_the_gradient_step_of_winnow_equals_the_papers(normalized):
    """Equation (11), for alpha = -u and weights 1/n."""
    rng = np.random.default_rng(1)
    X, y = rng.integers(0, 2, (20, 3)).astype(float), np.where(rng.random(20) < 0.5, -1.0, 1.0)
    pair, lam, rate, n, alpha = np.hstack([X, -X]), 0.05, 0.01, 20, np.zeros(20)

    def weights():
        w = 0.1 * np.exp(pair.T @ alpha / (lam * n))
        return w * 0.6 / w.sum() if normalized else w

    for i in [*range(n)] * 3:
        alpha[i] = y[i] * np.clip((alpha[i] - lam * n * rate * (weights() @ pair[i] - y[i])) * y[i], 0, 1)
    reg = Entropy(prior=0.1, normalized=normalized, balanced=True)
    obj = rm.Objective(rm.linear_risk(X, y, rm.Hinge()), reg, lam)
    it = first(obj, rm.DualGaussSeidel(rate=rate, shuffle=False), 3)[-1]
    assert_allclose(it.w, weights()[:3] - weights()[3:], rtol=1e-10)


def sweeps(X, y, step, solver, passes, loss, lam=0.1, reg=None):
    """The duals of a solver on all rows in order, and those of step(alpha, i, c1, c2, n) of the paper.

    Equations (13) and (14): c_1 = x' K^-1 x / (lam n) and c_2 = x' K^-1 v.
    """
    n, alpha = len(y), np.zeros(len(y))
    inverse = np.linalg.inv(METRIC) if reg else np.eye(P)
    for _ in range(passes):
        for i in range(n):
            u = inverse @ X[i] / (lam * n)
            alpha[i] = step(alpha, i, X[i] @ u, (X.T @ alpha) @ u, n)
    it = first(rm.Objective(rm.linear_risk(X, y, loss), reg or L2(), lam), solver, passes)[-1]
    assert_allclose(it.state()["u"], -alpha, atol=1e-11)
    assert_allclose(it.w, inverse @ (X.T @ alpha) / (lam * n), atol=1e-11)


def test_epsilon_insensitive_steps_do_not_oscillate_around_zero():
    X, y, _ = problem(rm.Squared())
    eps, lam, rate = 0.3, 0.1, 0.05

    def step(alpha, i, _, score, n):
        r, a = score - y[i], alpha[i]
        if a == 0 and abs(r) <= eps:
            return a
        sign = np.sign(a) if a else -np.sign(r)
        move = -lam * n * rate * (sign * eps + r)
        return np.clip(a + (np.clip(move, -abs(a), abs(a)) if abs(r) < eps else move), -1.0, 1.0)

    sweeps(X, y, step, rm.DualGaussSeidel(rate=rate, shuffle=False), 5, rm.EpsilonInsensitive(epsilon=eps))


METRIC = np.array([[2.0, 0.5, 0.0, 0.1], [0.5, 1.0, 0.3, 0.0], [0.0, 0.3, 1.5, 0.2], [0.1, 0.0, 0.2, 0.7]])


def exact_step(loss, alpha, y, c1, c2):
    """The new alpha_i by the formulas of section 5.2: (25), (26), and those for regression."""
    if isinstance(loss, rm.Hinge):
        return y * max(min(alpha * y - (c2 - y) / c1 * y, 1.0), 0.0)
    if isinstance(loss, rm.SquaredHinge):
        return alpha + y * max(-(alpha + c2 - y) / (c1 + 1) * y, -alpha * y)
    eps, p = loss.epsilon, loss.power
    scale, shift = (c1, 0.0) if p == 1 else (c1 + 1, alpha)
    first, second = (-(side * eps + shift + c2 - y) / scale for side in (1, -1))
    if alpha + first >= 0:
        return alpha + first if p == 2 else min(alpha + first, 1.0)
    if alpha + second <= 0:
        return alpha + second if p == 2 else max(alpha + second, -1.0)
    return 0.0


@pytest.mark.parametrize(
    ("loss", "metric", "form"),
    [
        (rm.Hinge(), np.asarray, sp.csr_array),
        (rm.SquaredHinge(), sp.csr_array, np.asarray),
        (rm.EpsilonInsensitive(0.2), sp.linalg.aslinearoperator, sp.csr_array),
        (rm.EpsilonInsensitive(0.2, power=2), np.asarray, np.asarray),
    ],
    ids=name_of,
)
def test_steps_are_exact_for_a_general_metric(loss, metric, form):
    X, y, _ = problem(loss)

    def step(alpha, i, c1, c2, n):
        return exact_step(loss, alpha[i], y[i], c1, c2)

    # the rate of Newton's method by a damping that is 1 up to rounding: all settings are the paper's
    solver = rm.DualGaussSeidel(damping=1 + 1e-15, shuffle=False)
    sweeps(X, y, step, solver, 3, loss, reg=Quadratic(metric(METRIC)))


@pytest.mark.parametrize("t", [0.01, 0.1, 1.9, 10.0])
def test_scaled_steps_equal_those_of_figure_4(t):
    X, y, _ = problem(rm.Hinge())

    def step(alpha, i, c1, c2, n):
        return y[i] * max(min(alpha[i] * y[i] - t * (c2 - y[i]) / c1 * y[i], 1.0), 0.0)

    sweeps(X, y, step, rm.DualGaussSeidel(damping=t, shuffle=False), 5, rm.Hinge())


def test_steps_of_twice_the_exact_length_or_more_oscillate():
    """Below 2 the dual increases with each row; at 10 it falls, and w does not converge; bounds are valid."""
    case = Problem(rm.Hinge(), lam=0.1, n=30)
    obj, best = case.objective(), case.optimum
    duals = {
        t: [obj.lower(it.cut) for it in first(obj, rm.DualGaussSeidel(damping=t), 60)] for t in (1.9, 10.0)
    }
    assert min(np.diff(duals[1.9])) >= -1e-12
    assert duals[1.9][-1] == pytest.approx(best, rel=1e-6)
    assert min(np.diff(duals[10.0])) < -1e-3 * best
    result = rm.minimize(obj, rm.DualGaussSeidel(damping=10.0), tol=1e-6, max_iter=200)
    assert result.status != "converged"
    assert max(duals[10.0]) <= result.lower * (1 + 1e-9) <= best * (1 + 1e-7) <= result.value * (1 + 2e-7)
    # without bounds of the dual variables, steps of 3 times the exact length diverge: the run ends
    wild = rm.minimize(Problem(rm.Squared(), lam=1e-3, n=30).objective(), rm.DualGaussSeidel(damping=3.0))
    assert wild.status == "stalled"
    assert 0 <= wild.lower <= wild.value < np.inf


@pytest.mark.parametrize(
    ("loss", "rate"),
    [(rm.Logistic(), 1e-3), (rm.Logistic(), 1e4), (rm.Exponential(), 1.0), (rm.Poisson(), 1.0)],
    ids=repr,
)
def test_open_domains_are_never_left(loss, rate):
    case = drawn(loss)
    conjugate = loss.conjugate(case.y)
    for it in first(case.objective(), rm.DualGaussSeidel(rate=rate), 30):
        u, used = it.state()["u"], case.weights > 0
        assert np.all((conjugate.lower < u) & (u < conjugate.upper) | ~used)
        assert np.isfinite(it.cut.b)


@pytest.mark.parametrize("reg", [L2(), Entropy(balanced=True), QNorm(q=1.5)], ids=repr)
def test_a_small_rate_converges(reg):
    obj = drawn(rm.SquaredHinge(), reg).objective()
    assert rm.minimize(obj, rm.DualGaussSeidel(rate=0.02), tol=1e-4).status == "converged"


# ---------------------------------------------------------------- storage formats and user-defined objects


class OwnLogistic(rm.Logistic):
    """A loss that no compiled loop knows."""


@dataclass(frozen=True)
class Own:
    """A regularizer that no compiled loop knows."""

    reg: object

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "reg"), name)


@pytest.mark.parametrize(
    ("changes", "intercept"),
    [
        ({"loss": OwnLogistic()}, False),
        ({"loss": OwnLogistic()}, True),
        ({"reg": Own(Entropy(balanced=True))}, True),
    ],
)
def test_user_losses_and_regularizers(changes, intercept):
    builtin = drawn(rm.Logistic(), Entropy(balanced=True), n=10, intercept=intercept)
    obj = replace(builtin, **changes).objective()
    builtin.check(rm.minimize(obj, solver_for(obj), tol=1e-4, max_iter=300), 1e-4)
    weights = [first(o, solver_for(o, rate=0.05), 2)[-1].w for o in (builtin.objective(), obj)]
    assert_allclose(weights[1], weights[0], rtol=1e-9)


# ---------------------------------------------------------------- the intercept
REGS = [L2(), Elastic(eps=0.1), Entropy(balanced=True)]
LOSSES = [rm.Hinge(), rm.SquaredHinge(), rm.EpsilonInsensitive(epsilon=0.2)]


@pytest.mark.parametrize(
    ("loss", "reg", "algorithm", "passes"),
    [
        *((rm.Hinge(), L2(), 3, 150), (rm.SquaredHinge(), L2(), 2, 150)),
        *(
            pytest.param(*case, 400, marks=pytest.mark.exhaustive)
            for case in itertools.product(LOSSES, REGS, (2, 3))
        ),
    ],
    ids=repr,
)
def test_the_bias_is_the_best_intercept(loss, reg, algorithm, passes):
    case = drawn(loss, reg, intercept=True)
    obj = case.objective()
    best = rm.minimize(obj, rm.Bundle(), tol=1e-10, max_iter=3000)
    assert best.status == "converged"
    its = first(obj, rm.AugmentedLagrangian(algorithm=algorithm), passes)
    lower = max(obj.lower(it.cut) for it in its)
    assert lower <= best.value * (1 + 1e-9)
    assert min(it.value for it in its) - lower <= 1e-6 * best.value
    # an optimal intercept is within 1e-4 of the bias: there the slope in b changes its sign, up to rounding
    z, c = case.X @ best.w + its[-1].info["bias"], case.weights / case.weights.sum()
    below, above = (float(loss.value_grad(z + d, case.y, c)[1].sum()) for d in (-1e-4, 1e-4))
    assert below <= 1e-12
    assert above >= -1e-12
    assert its[-1].info["feasibility"] < 1e-4
    assert -1e-12 <= its[-1].info["modified_gap"] < 1e-4


def damped(alpha, y, c1, c2, s, total):
    """A tenth of the way to the minimum: equation (30) with mu = 2."""
    best = (alpha - (c2 + s + total / 2.0 - y) / (c1 + 1 / 2.0)) * y
    return alpha + 0.1 * (y * min(max(best, 0.0), 1.0) - alpha)


def gradient(alpha, y, c1, c2, s, total):
    """Equation (29) with lam n rate = 0.03."""
    return y * np.clip((alpha - 0.03 * (c2 + s + total - y)) * y, 0, 1)


@pytest.mark.parametrize(
    ("step", "rate", "settings"),
    [
        (damped, 0.3 / 2.0, {"damping": 0.1, "mu": 2.0, "bias_rate": 0.3}),  # equation (31)
        (gradient, 0.1, {"rate": 0.01}),
    ],
)
def test_steps_with_a_bias_equal_the_papers(step, rate, settings):
    X, y, _ = problem(rm.Hinge())
    n, lam, s = len(y), 0.1, 0.0
    alpha = np.zeros(n)
    for _ in range(4):
        for i in range(n):
            u = X[i] / (lam * n)
            alpha[i] = step(alpha[i], y[i], X[i] @ u, (X.T @ alpha) @ u, s, alpha.sum())
        s += rate * alpha.sum()
    obj = rm.Objective(rm.linear_risk(X, y, rm.Hinge(), fit_intercept=True), L2(), lam)
    it = first(obj, rm.AugmentedLagrangian(shuffle=False, **settings), 4)[-1]
    assert_allclose(it.state()["u"], -alpha, atol=1e-12)
    assert_allclose(it.info["bias"], s)
    assert_allclose(it.info["feasibility"], abs(alpha.sum()) / n)


# ---------------------------------------------------------------- unpenalized directions
@pytest.mark.parametrize(
    "reg",
    [
        Equality(L2(), np.arange(9.0)),
        Equality(L2(weights=1 + np.arange(9.0)), np.eye(9)[:3] + 1),
        Equality(Quadratic(np.eye(9) + 0.3), np.ones(9)),
    ],
    ids=repr,
)
def test_unpenalized_directions_meet_the_contract_of_regularizers(reg):
    check_regularizer(reg)


@pytest.mark.parametrize(
    ("reg", "intercept"), [(Entropy(), True), (Entropy(normalized=False, balanced=True), False)], ids=repr
)
@pytest.mark.parametrize("scale", [1e4, 1e6])
def test_features_of_any_size_do_not_raise(reg, intercept, scale):
    """Sums of exponentials that underflowed to zero were once divided by."""
    obj = drawn(rm.Logistic(), reg, 0.1, intercept=intercept, units=scale).objective()
    result = rm.minimize(obj, solver_for(obj), max_iter=8)
    assert 0 <= result.lower <= result.value
