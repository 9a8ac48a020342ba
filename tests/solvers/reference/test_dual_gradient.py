"""Dual ascent with gradient steps, the augmented Lagrangian, and unpenalized directions."""

from dataclasses import dataclass
from itertools import islice, pairwise

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg  # noqa: F401
from numpy.testing import assert_allclose

from helpers import problem
from riskmin import (
    AugmentedLagrangian,
    Bundle,
    DualGaussSeidel,
    EpsilonInsensitive,
    Exponential,
    Hinge,
    Logistic,
    Objective,
    Poisson,
    PowerHinge,
    Squared,
    SquaredHinge,
    linear_risk,
    minimize,
)
from riskmin.regularizers import L1, L2, Box, Elastic, Entropy, Equality, QNorm, Quadratic
from riskmin.testing import check_regularizer, check_solver

P = 4
REGS = [
    L2(),
    L2(weights=[1.0, 2.0, 3.0, 4.0]),
    Elastic(eps=0.3),
    Box(L2()),
    Box(Elastic(eps=0.3), -0.5, 0.5),
    Entropy(),
    Entropy(prior=[0.1, 0.2, 0.3, 0.4], balanced=True),
    Entropy(normalized=False),
    Entropy(prior=0.1, normalized=False, balanced=True),
    QNorm(q=1.5),
    QNorm(q=3.0, power=1.5),
    QNorm(q=1.05),
    Quadratic(np.eye(P) + 0.2),
]
LOSSES = [
    Hinge(),
    SquaredHinge(),
    Logistic(),
    Exponential(),
    Poisson(),
    PowerHinge(p=1.5),
    PowerHinge(p=3.0),
    EpsilonInsensitive(epsilon=0.2),
    EpsilonInsensitive(epsilon=0.2, power=2.5),
]


def solver_for(obj, **settings):
    """The method of the paper: with constraints (an intercept, unpenalized directions) or without."""
    constrained = obj.risk.intercept.profiled or isinstance(obj.reg, Equality)
    return (AugmentedLagrangian if constrained else DualGaussSeidel)(**settings)


def objective(loss, reg, lam=0.3, intercept=False, **kwargs):
    X, y, c = problem(loss, p=P, **kwargs)
    return Objective(linear_risk(X, y, loss, sample_weight=c, fit_intercept=intercept), reg, lam)


def first(obj, solver, k=1):
    """The first k iterates."""
    return list(islice(solver.iterates(obj, obj.reg.conjugate_grad(np.zeros(obj.risk.dim))), k))


def dual(obj, cut):
    return cut.b - obj.lam * obj.reg.conjugate(-cut.a / obj.lam)


def check_optimum(obj, solver, tol=1e-6, max_iter=3000):
    """Assert that the gap is proved and that the value agrees with an unrelated method."""
    best = minimize(obj, Bundle(), tol=1e-9, max_iter=3000)
    result = minimize(obj, solver, tol=tol, max_iter=max_iter)
    assert result.status == "converged"
    assert result.lower <= best.value * (1 + 1e-9)
    assert result.value <= best.value * (1 + 1.1 * tol)


# ---------------------------------------------------------------- any transfer function, any loss
@pytest.mark.parametrize("reg", REGS, ids=repr)
def test_the_minimum_is_found_for_every_regularizer(reg):
    check_optimum(objective(SquaredHinge(), reg), DualGaussSeidel())


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_minimum_is_found_for_every_loss(loss):
    check_optimum(objective(loss, Elastic(eps=0.1)), DualGaussSeidel())


@pytest.mark.exhaustive
@pytest.mark.parametrize("lam", [0.05, 1.0])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("reg", REGS, ids=repr)
def test_the_minimum_is_found_for_every_pair(reg, loss, lam):
    check_optimum(objective(loss, reg, lam, seed=3), DualGaussSeidel(), 1e-5, 20_000)


@pytest.mark.parametrize("reg", REGS, ids=repr)
def test_the_dual_never_decreases(reg):
    for loss in LOSSES:
        obj = objective(loss, reg, lam=0.05)
        values = [dual(obj, it.cut) for it in first(obj, DualGaussSeidel(), 12)]
        assert all(b >= a - 1e-9 * (1 + abs(a)) for a, b in pairwise(values)), loss


def test_regularizers_without_a_transfer_function_are_refused():
    for reg in (L1(), Box(L1(), -1.0, 1.0)):
        with pytest.raises(TypeError, match=r"transfer function, which .* has not: use CoordinateDescent"):
            minimize(objective(Hinge(), reg), DualGaussSeidel(), np.zeros(P))


# ---------------------------------------------------------------- the steps of the paper
def reference(X, y, transfer_function, lam, rate, passes, slope, project):
    """Equation (11), for alpha = -u and weights 1/n."""
    n, alpha = len(y), np.zeros(len(y))
    for _ in range(passes):
        for i in range(n):
            w = transfer_function(X.T @ alpha / (lam * n))
            alpha[i] = project(alpha[i] - lam * n * rate * (slope(alpha[i], y[i]) + w @ X[i]), y[i])
    return transfer_function(X.T @ alpha / (lam * n)), alpha


def test_the_gradient_step_of_winnow_equals_the_papers():
    rng = np.random.default_rng(1)
    X, y = rng.integers(0, 2, (20, 3)).astype(float), np.where(rng.random(20) < 0.5, -1.0, 1.0)
    pair = np.hstack([X, -X])
    for normalized in (True, False):

        def transfer_function(v, normalized=normalized):
            w = 0.1 * np.exp(v)
            return w * 0.6 / w.sum() if normalized else w

        w, _ = reference(
            pair, y, transfer_function, 0.05, 0.01, 3, lambda a, y: -y, lambda a, y: y * np.clip(a * y, 0, 1)
        )
        reg = Entropy(prior=0.1, normalized=normalized, balanced=True)
        obj = Objective(linear_risk(X, y, Hinge()), reg, 0.05)
        it = first(obj, DualGaussSeidel(rate=0.01, shuffle=False), 3)[-1]
        assert_allclose(it.w, w[:3] - w[3:], rtol=1e-10)


def test_epsilon_insensitive_steps_do_not_oscillate_around_zero():
    X, y, _ = problem(Squared())
    eps, lam, rate = 0.3, 0.1, 0.05

    def project(new, _):
        return np.clip(new, -1.0, 1.0)

    n, alpha = len(y), np.zeros(len(y))
    for _ in range(5):
        for i in range(n):
            r = X[i] @ (X.T @ alpha / (lam * n)) - y[i]
            if alpha[i] == 0 and abs(r) <= eps:
                continue
            sign = np.sign(alpha[i]) if alpha[i] else -np.sign(r)
            step = -lam * n * rate * (sign * eps + r)
            if abs(r) < eps:
                step = np.clip(step, -abs(alpha[i]), abs(alpha[i]))
            alpha[i] = project(alpha[i] + step, y[i])
    obj = Objective(linear_risk(X, y, EpsilonInsensitive(epsilon=eps)), L2(), lam)
    it = first(obj, DualGaussSeidel(rate=rate, shuffle=False), 5)[-1]
    assert_allclose(it.state()["u"], -alpha, atol=1e-12)


@pytest.mark.parametrize(
    ("loss", "rate"),
    [(Logistic(), 1e-3), (Logistic(), 1e4), (Exponential(), 1.0), (Poisson(), 1.0)],
    ids=repr,
)
def test_open_domains_are_never_left(loss, rate):
    obj = objective(loss, L2())
    conjugate = loss.conjugate(obj.risk.rows.y)
    lower, upper = conjugate.lower, conjugate.upper
    for it in first(obj, DualGaussSeidel(rate=rate), 30):
        u, used = it.state()["u"], obj.risk.rows.c > 0
        assert np.all((lower < u) & (u < upper) | ~used)
        assert np.isfinite(it.cut.b)


def test_a_small_rate_converges():
    for reg in (L2(), Elastic(eps=0.1), Entropy(balanced=True), QNorm(q=1.5)):
        assert (
            minimize(objective(SquaredHinge(), reg), DualGaussSeidel(rate=0.02), tol=1e-5).status
            == "converged"
        )


# ---------------------------------------------------------------- storage formats and user-defined objects
def test_storage_formats_agree():
    X, y, c = problem(Hinge(), n=40, p=6)
    X[np.abs(X) < 0.7] = 0.0
    rows = sp.csr_array(X)
    duplicated = sp.csr_array(
        (np.repeat(rows.data, 2) / 2, np.repeat(rows.indices, 2), 2 * rows.indptr), X.shape
    )
    for reg in (Elastic(eps=0.1), Entropy(balanced=True), QNorm(q=1.5)):
        forms = [X, np.asfortranarray(X), rows, rows.tocsc(), duplicated]
        risks = [linear_risk(A, y, Hinge(), sample_weight=c) for A in forms]
        cuts = [first(Objective(risk, reg, 0.1), DualGaussSeidel(), 5)[-1].cut.a for risk in risks]
        for a in cuts[1:]:
            assert_allclose(a, cuts[0], rtol=1e-9, atol=1e-12)


class OwnLogistic(Logistic):
    """A loss unknown to the kernel."""


@dataclass(frozen=True)
class Own:
    """A regularizer unknown to the kernel."""

    reg: object

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "reg"), name)


@pytest.mark.parametrize("intercept", [False, True])
def test_user_losses_and_regularizers(intercept):
    builtin = objective(Logistic(), Entropy(balanced=True), intercept=intercept, n=15)
    for obj in (
        objective(OwnLogistic(), Entropy(balanced=True), intercept=intercept, n=15),
        objective(Logistic(), Own(Entropy(balanced=True)), intercept=intercept, n=15),
    ):
        best = minimize(builtin, Bundle(), tol=1e-9)
        result = minimize(obj, solver_for(obj), tol=1e-5, max_iter=300)
        assert result.status == "converged"
        assert result.value <= best.value * (1 + 1e-5)
        weights = [first(o, solver_for(o, rate=0.05), 2)[-1].w for o in (builtin, obj)]
        assert_allclose(weights[1], weights[0], rtol=1e-9)


@pytest.mark.slow
def test_the_contract_of_solvers():
    check_solver(DualGaussSeidel(), tol=1e-4, max_iter=3000)


def test_each_method_supports_its_problems():
    X, y, _ = problem(Hinge())
    for reg, intercept in ((Elastic(eps=0.1), False), (L2(), True), (Equality(L2(), np.ones(P)), True)):
        obj = Objective(linear_risk(X, y, Hinge(), fit_intercept=intercept), reg, 0.1)
        result = minimize(obj, solver_for(obj), tol=1e-5)
        assert result.status == "converged"
        assert ("feasibility" in result.trace[-1]) == intercept
        other = DualGaussSeidel() if intercept else AugmentedLagrangian()
        assert other.supports(obj).endswith(
            "use AugmentedLagrangian or Bundle" if intercept else "use DualGaussSeidel"
        )


# ---------------------------------------------------------------- the intercept
def check_bias(loss, reg, algorithm, passes):
    obj = objective(loss, reg, intercept=True)
    best = minimize(obj, Bundle(), tol=1e-10, max_iter=3000)
    assert best.status == "converged"
    its = first(obj, AugmentedLagrangian(algorithm=algorithm), passes)
    lower = max(obj.lower(it.cut) for it in its)
    assert lower <= best.value * (1 + 1e-9)
    assert min(it.value for it in its) - lower <= 1e-6 * best.value
    # an optimal intercept is within 1e-4 of the bias: there the slope in b changes its sign, up to rounding
    rows = obj.risk.rows
    z = rows.X.scores(best.w, 0, len(rows.y)) + its[-1].info["bias"]
    below, above = (float(loss.value_grad(z + d, rows.y, rows.c)[1].sum()) for d in (-1e-4, 1e-4))
    assert below <= 1e-12
    assert above >= -1e-12
    assert its[-1].info["feasibility"] < 1e-4
    assert -1e-12 <= its[-1].info["modified_gap"] < 1e-4


@pytest.mark.parametrize(("loss", "algorithm"), [(Hinge(), 3), (SquaredHinge(), 2)], ids=repr)
def test_the_bias_is_the_best_intercept(loss, algorithm):
    check_bias(loss, L2(), algorithm, 150)


@pytest.mark.exhaustive
@pytest.mark.parametrize("algorithm", [2, 3])
@pytest.mark.parametrize("reg", [L2(), Elastic(eps=0.1), Entropy(balanced=True)], ids=repr)
@pytest.mark.parametrize("loss", [Hinge(), SquaredHinge(), EpsilonInsensitive(epsilon=0.2)], ids=repr)
def test_the_bias_is_the_best_intercept_for_others(loss, reg, algorithm):
    check_bias(loss, reg, algorithm, 400)


K = np.array([[2.0, 0.5, 0.0, 0.1], [0.5, 1.0, 0.3, 0.0], [0.0, 0.3, 1.5, 0.2], [0.1, 0.0, 0.2, 0.7]])


def exact_step(loss, alpha, y, c1, c2):
    """The new alpha_i by the formulas of section 5.2: (25), (26), and those for regression."""
    if isinstance(loss, Hinge):
        return y * max(min(alpha * y - (c2 - y) / c1 * y, 1.0), 0.0)
    if isinstance(loss, SquaredHinge):
        return alpha + y * max(-(alpha + c2 - y) / (c1 + 1) * y, -alpha * y)
    eps, p = loss.epsilon, loss.power
    scale, shift = (c1, 0.0) if p == 1 else (c1 + 1, alpha)
    first, second = (-(side * eps + shift + c2 - y) / scale for side in (1, -1))
    if alpha + first >= 0:
        return alpha + first if p == 2 else min(alpha + first, 1.0)
    if alpha + second <= 0:
        return alpha + second if p == 2 else max(alpha + second, -1.0)
    return 0.0


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("metric", [np.asarray, sp.csr_array, sp.linalg.aslinearoperator])
@pytest.mark.parametrize(
    "loss", [Hinge(), SquaredHinge(), EpsilonInsensitive(0.2), EpsilonInsensitive(0.2, power=2)], ids=repr
)
def test_steps_are_exact_for_a_general_metric(loss, metric, form):
    """Equations (13) and (14): c_1 = x' K^-1 x / (lam n) and c_2 = x' K^-1 v."""
    X, y, _ = problem(loss)
    n, lam, alpha = len(y), 0.1, np.zeros(len(y))
    for _ in range(3):
        for i in range(n):
            u = np.linalg.solve(K, X[i]) / (lam * n)
            alpha[i] = exact_step(loss, alpha[i], y[i], X[i] @ u, (X.T @ alpha) @ u)
    obj = Objective(linear_risk(form(X), y, loss), Quadratic(metric(K)), lam)
    # the rate of Newton's method by a damping that is 1 up to rounding: all settings are the paper's
    it = first(obj, DualGaussSeidel(damping=1 + 1e-15, shuffle=False), 3)[-1]
    assert_allclose(it.state()["u"], -alpha, atol=1e-11)
    assert_allclose(it.w, np.linalg.solve(K, X.T @ alpha) / (lam * n), atol=1e-11)


@pytest.mark.parametrize("t", [0.01, 0.1, 1.9, 10.0])
def test_scaled_steps_equal_those_of_figure_4(t):
    X, y, _ = problem(Hinge())
    n, lam, alpha = len(y), 0.1, np.zeros(len(y))
    for _ in range(5):
        for i in range(n):
            c1, c2 = X[i] @ X[i] / (lam * n), X[i] @ (X.T @ alpha) / (lam * n)
            alpha[i] = y[i] * max(min(alpha[i] * y[i] - t * (c2 - y[i]) / c1 * y[i], 1.0), 0.0)
    obj = Objective(linear_risk(X, y, Hinge()), L2(), lam)
    assert_allclose(
        first(obj, DualGaussSeidel(damping=t, shuffle=False), 5)[-1].state()["u"], -alpha, atol=1e-12
    )


def test_steps_of_twice_the_exact_length_or_more_oscillate():
    """Below 2 the dual increases with each row; at 10 it falls, and w does not converge; bounds are valid."""
    X, y, _ = problem(Hinge())
    obj = Objective(linear_risk(X, y, Hinge()), L2(), 0.1)
    best = minimize(obj, tol=1e-9).value
    duals = {t: [obj.lower(it.cut) for it in first(obj, DualGaussSeidel(damping=t), 60)] for t in (1.9, 10.0)}
    assert min(np.diff(duals[1.9])) >= -1e-12
    assert duals[1.9][-1] == pytest.approx(best, rel=1e-6)
    assert min(np.diff(duals[10.0])) < -1e-3 * best
    result = minimize(obj, DualGaussSeidel(damping=10.0), tol=1e-6, max_iter=200)
    assert result.status != "converged"
    assert max(duals[10.0]) <= result.lower * (1 + 1e-9) <= best * (1 + 2e-9) <= result.value * (1 + 3e-9)
    # without bounds of the dual variables, steps of 3 times the exact length diverge: the run ends
    wild = minimize(Objective(linear_risk(X, y, Squared()), L2(), 1e-3), DualGaussSeidel(damping=3.0))
    assert wild.status == "stalled"
    assert 0 <= wild.lower <= wild.value < np.inf


def test_exact_steps_with_a_bias_equal_the_papers():
    X, y, _ = problem(Hinge())
    n, lam, mu, eta = len(y), 0.1, 2.0, 0.3
    alpha, s = np.zeros(n), 0.0
    for _ in range(4):
        for i in range(n):
            c1, c2 = X[i] @ X[i] / (lam * n), X[i] @ (X.T @ alpha) / (lam * n)
            best = (alpha[i] - (c2 + s + alpha.sum() / mu - y[i]) / (c1 + 1 / mu)) * y[i]  # equation (30)
            alpha[i] += 0.1 * (y[i] * min(max(best, 0.0), 1.0) - alpha[i])
        s += eta / mu * alpha.sum()  # equation (31)
    obj = Objective(linear_risk(X, y, Hinge(), fit_intercept=True), L2(), lam)
    solver = AugmentedLagrangian(damping=0.1, shuffle=False, mu=mu, bias_rate=eta)
    it = first(obj, solver, 4)[-1]
    assert_allclose(it.state()["u"], -alpha, atol=1e-12)
    assert_allclose(it.info["bias"], s)
    assert_allclose(it.info["feasibility"], abs(alpha.sum()) / n)


def test_gradient_steps_with_a_bias_equal_the_papers():
    X, y, _ = problem(Hinge())
    n, lam, rate = len(y), 0.1, 0.01
    alpha, s = np.zeros(n), 0.0
    for _ in range(4):
        for i in range(n):
            z = X[i] @ (X.T @ alpha) / (lam * n) + s + alpha.sum()
            alpha[i] = y[i] * np.clip((alpha[i] - lam * n * rate * (z - y[i])) * y[i], 0, 1)  # (29)
        s += 0.1 * alpha.sum()
    obj = Objective(linear_risk(X, y, Hinge(), fit_intercept=True), L2(), lam)
    it = first(obj, AugmentedLagrangian(rate=rate, shuffle=False), 4)[-1]
    assert_allclose(it.state()["u"], -alpha, atol=1e-12)
    assert_allclose(it.info["bias"], s)


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


def test_unpenalized_directions_need_a_quadratic_and_independent_rows():
    with pytest.raises(TypeError, match="L2"):
        Equality(L1(), np.ones(3))
    with pytest.raises(ValueError, match="independent"):
        Equality(L2(), np.ones((2, 3)))


def test_an_unpenalized_column_of_ones_is_an_intercept():
    X, y, c = problem(Hinge())
    with_intercept = Objective(linear_risk(X, y, Hinge(), sample_weight=c, fit_intercept=True), L2(), 0.1)
    wide = np.column_stack([X, np.ones(len(y))])
    with_column = Objective(
        linear_risk(wide, y, Hinge(), sample_weight=c), Equality(L2(), np.eye(P + 1)[-1]), 0.1
    )
    best = minimize(with_intercept, Bundle(), tol=1e-9)
    result = minimize(with_column, AugmentedLagrangian(), tol=1e-6, max_iter=2000)
    assert result.status == "converged"
    assert_allclose(result.value, best.value, rtol=2e-6)
    assert_allclose(result.w[:-1], best.w, atol=1e-2)


@pytest.mark.parametrize("intercept", [False, True])
def test_unpenalized_directions_equal_a_convex_program(intercept):
    X, y, _ = problem(SquaredHinge(), n=40)
    C = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, -1.0, 2.0]])
    obj = Objective(linear_risk(X, y, SquaredHinge(), fit_intercept=intercept), Equality(L2(), C), 0.2)
    w, s, b = cp.Variable(P), cp.Variable(2), cp.Variable()
    losses = cp.sum_squares(cp.pos(1 - cp.multiply(y, X @ w + b * intercept))) / (2 * len(y))
    program = cp.Problem(cp.Minimize(losses + 0.1 * cp.sum_squares(w - C.T @ s)))
    program.solve(solver=cp.CLARABEL)
    result = minimize(obj, solver_for(obj), tol=1e-6, max_iter=2000)
    assert result.status == "converged"
    assert_allclose(result.value, program.value, rtol=2e-6)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("reg", [Entropy(), Entropy(normalized=False, balanced=True)], ids=repr)
def test_features_of_any_size_do_not_raise(reg, intercept):
    """Sums of exponentials that underflowed to zero were once divided by."""
    rng = np.random.default_rng(0)
    for scale in (1e4, 1e6, 1e6, 1e6):
        X = scale * rng.standard_normal((30, 4))
        y = np.where(X[:, 0] > 0, 1.0, -1.0)
        risk = linear_risk(X, y, Logistic(), fit_intercept=intercept)
        obj = Objective(risk, reg, 0.1)
        result = minimize(obj, solver_for(obj), max_iter=10)
        assert 0 <= result.lower <= result.value
