"""Smoothed losses against quadratic programs, and smoothing as a solver with valid certificates."""

import functools
from dataclasses import dataclass
from itertools import islice, pairwise

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

from reference import optimum
from riskmin import (
    L1,
    L2,
    Absolute,
    Bundle,
    Elastic,
    EpsilonInsensitive,
    FBeta,
    Hinge,
    Iterate,
    Lbfgs,
    Logistic,
    Newton,
    Novelty,
    Objective,
    Ordinal,
    OwlQn,
    PairwiseHinge,
    Prbep,
    PrecisionAtK,
    Processes,
    ProximalGradient,
    Quantile,
    RecallAtK,
    RocArea,
    Smoothing,
    Threads,
    linear_risk,
    minimize,
)
from riskmin.core import UnsupportedProblem
from riskmin.losses import Smoothed
from riskmin.problem.smoothed_risk import SmoothedRisk
from riskmin.solvers.proximal_gradient import risk_uncertainty
from riskmin.testing import check_loss, check_solver

ROWS = [
    Hinge(),
    Hinge(margin=2.5),
    Novelty(),
    Absolute(),
    Quantile(0.5),
    Quantile(0.9),
    EpsilonInsensitive(0.3),
]
PAIRS = [RocArea(), Ordinal(), Ordinal(((), (1.0,), (4.0, 2.0)))]
each_kind = pytest.mark.parametrize("loss", [*ROWS, *PAIRS, Prbep()], ids=repr)


def draw(loss, n, seed):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.where(np.arange(n) < rng.integers(1, n), 1.0, -1.0))
    if loss.task == "regression":
        y = rng.standard_normal(n)
    if loss.task == "ordinal":
        y = rng.permutation(np.arange(n) % 3.0)
    c = np.full(n, 1.0) if isinstance(loss, Prbep) else rng.uniform(0.2, 1.0, n)
    return 2 * rng.standard_normal(n), y, c / c.sum()


# ---------------------------------------------------------------- the maximum over multipliers
def program(loss, z, y, c, mu, center=None):
    """The smoothed loss by Clarabel, as a maximum over its multipliers."""
    n = len(z)
    if isinstance(loss, RocArea | Ordinal):
        i, j = np.nonzero(y[:, None] > y)
        p = c[i] * c[j]
        if getattr(loss, "costs", None):
            p = p * [loss.costs[int(a)][int(b)] for a, b in zip(y[i], y[j], strict=True)]
        beta = cp.Variable(len(p))
        goal = cp.sum(cp.multiply(p / p.sum(), cp.multiply(beta, 1 - z[i] + z[j]) - mu / 2 * cp.square(beta)))
        return solved(goal, [beta >= 0, beta <= 1])
    if isinstance(loss, Prbep):
        beta, positive = cp.Variable(n), (y > 0).astype(float)
        start = np.zeros(n) if center is None else -n / 2 * y * center
        goal = positive @ beta / positive.sum() - 2 / n * (y * z) @ beta
        limits = [beta >= 0, beta <= 1, positive @ beta == (1 - positive) @ beta]
        return solved(goal - mu / n * cp.sum_squares(beta - start), limits)
    u, start = cp.Variable(n), np.zeros(n) if center is None else center / c
    lower, upper, conjugate = {
        Hinge: lambda: (
            np.where(y > 0, -1.0, 0.0),
            np.where(y < 0, 1.0, 0.0),
            loss.margin * cp.multiply(y, u),
        ),
        Novelty: lambda: (-np.ones(n), np.zeros(n), u),
        Absolute: lambda: (-np.ones(n), np.ones(n), cp.multiply(y, u)),
        Quantile: lambda: (np.full(n, -loss.level), np.full(n, 1 - loss.level), cp.multiply(y, u)),
        EpsilonInsensitive: lambda: (-np.ones(n), np.ones(n), cp.multiply(y, u) + loss.epsilon * cp.abs(u)),
    }[type(loss)]()
    goal = c @ (cp.multiply(z, u) - conjugate - mu / 2 * cp.square(u - start))
    return solved(goal, [u >= lower, u <= upper])


def solved(goal, limits):
    problem = cp.Problem(cp.Maximize(goal), limits)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return float(problem.value)


@pytest.mark.parametrize("mu", [0.02, 0.5])
@each_kind
def test_smoothed_losses_are_the_maximum_over_their_multipliers(loss, mu):
    for n, seed in ((4, 0), (11, 1)):
        z, y, c = draw(loss, n, seed)
        value = loss.smoothed_value_grad(z, y, c, mu)[0]
        assert value == pytest.approx(program(loss, z, y, c, mu), abs=1e-8)
        if isinstance(loss, RocArea | Ordinal):
            continue
        center = loss.smoothed_value_grad(z + np.cos(np.arange(n)), y, c, mu)[1]
        value, _, _ = loss.smoothed_value_grad(z, y, c, mu, center)
        assert value == pytest.approx(program(loss, z, y, c, mu, center), abs=1e-8)


@each_kind
def test_smoothed_losses_are_close_to_the_loss(loss):
    """l - mu D <= l_mu <= l, with D the largest half square of multipliers."""
    for seed in range(20):
        z, y, c = draw(loss, 30, seed)
        D = 2 * min(np.sum(y > 0), np.sum(y < 0)) / 30 if isinstance(loss, Prbep) else 0.5
        unsmoothed, _ = loss.value_grad(z, y, c)
        for mu in (1e-8, 1e-3, 0.3, 10.0):
            value, _, offset = loss.smoothed_value_grad(z, y, c, mu)
            assert unsmoothed - mu * D - 1e-12 <= value <= unsmoothed + 1e-12
            assert -1e-15 <= offset <= mu * D + 1e-12


@each_kind
def test_the_smoothed_gradient_is_lipschitz(loss):
    """With a constant proportional to 1 / mu, which smooth solvers rely on."""
    rng = np.random.default_rng(0)
    for seed in range(10):
        z, y, c = draw(loss, 25, seed)
        for mu in (0.01, 1.0):
            u = z + 10.0 ** rng.uniform(-4, 0) * rng.standard_normal(25)
            one, two = (loss.smoothed_value_grad(scores, y, c, mu)[1] for scores in (z, u))
            assert np.abs(two - one).sum() <= 4 * np.abs(u - z).max() / mu + 1e-12


def test_a_zero_mu_is_refused():
    with pytest.raises(ValueError, match="Smoothed needs mu > 0, not 0"):
        Smoothed(Hinge(), 0.0)
    with pytest.raises(UnsupportedProblem, match=r"cannot be smoothed.*use Bundle"):
        Logistic().smoothed_value_grad(np.zeros(1), np.ones(1), np.ones(1), 0.1)
    assert not Logistic().can_be_smoothed


@pytest.mark.parametrize("loss", [RocArea(), Ordinal(), Prbep(), Hinge(), Absolute()], ids=repr)
def test_torch_agrees(loss):
    torch = pytest.importorskip("torch")
    z, y, c = draw(loss, 40, 3)
    value, dz, offset = loss.smoothed_value_grad(z, y, c, 0.2)
    for dtype, tol in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        result = loss.smoothed_value_grad(*(torch.as_tensor(a, dtype=dtype) for a in (z, y, c)), 0.2)
        assert result[1].dtype == dtype
        assert float(result[0]) == pytest.approx(float(value), rel=tol)
        assert float(result[2]) == pytest.approx(float(offset), rel=tol)
        np.testing.assert_allclose(result[1].numpy(), dz, atol=tol)


@pytest.mark.parametrize("spread", [1e-8, 1.0, 1e8])
def test_the_multiplier_of_the_break_even_point_is_found(spread):
    rng = np.random.default_rng(4)
    for n, positives in ((2, 1), (50, 1), (50, 49), (500, 30)):
        y = rng.permutation(np.where(np.arange(n) < positives, 1.0, -1.0))
        z = spread * rng.standard_cauchy(n)
        for mu in (1e-9, 1e-3, 1e3):
            value, dz, _ = Prbep().smoothed_value_grad(z, y, np.full(n, 1 / n), mu)
            beta = -0.5 * n * y * dz
            assert np.all(beta >= 0)
            assert np.all(beta <= 1)
            assert np.sum(beta[y > 0]) == pytest.approx(np.sum(beta[y < 0]), rel=1e-12)
            unsmoothed, _ = Prbep().value_grad(z, y, np.full(n, 1 / n))
            rounding = 1e-12 * (1 + np.abs(z).max())
            assert unsmoothed - mu - rounding <= value <= unsmoothed + rounding


# ---------------------------------------------------------------- the smoothed risk
def data(n=60, p=4, seed=0, loss=None):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    score = X @ rng.standard_normal(p) + rng.standard_normal(n)
    if getattr(loss, "task", "") == "regression":
        return X, score
    if getattr(loss, "task", "") == "ordinal":
        return X, np.digitize(score, [-0.7, 0.7]).astype(float)
    return X, np.where(score > 0.5, 1.0, -1.0)


@pytest.mark.parametrize("intercept", [False, True])
@each_kind
def test_cuts_of_the_smoothed_risk_are_cuts_of_the_risk(loss, intercept):
    X, y = data(loss=loss)
    risk = linear_risk(X, y, loss, fit_intercept=intercept)
    rng = np.random.default_rng(1)
    for mu in (1e-3, 0.5):
        smoothed = SmoothedRisk.from_risk(risk, mu)
        for scale in (0.1, 3.0):
            w = scale * rng.standard_normal(4)
            value, grad, cut = smoothed.evaluate(w)
            unsmoothed = risk(w)[0]
            assert smoothed.unsmoothed_value(w) == pytest.approx(unsmoothed, rel=1e-11, abs=1e-12)
            assert value <= unsmoothed + 1e-11
            assert cut.a @ w + cut.b >= value - 1e-12 - 1e-11 * abs(unsmoothed)
            assert cut.a @ w + cut.b <= unsmoothed + 1e-11
            for _ in range(20):
                v = w + rng.standard_normal(4) * rng.choice([1e-3, 1.0, 30.0])
                risk_at_v = risk(v)[0]
                assert cut.a @ v + cut.b <= risk_at_v + 1e-10 * (1 + risk_at_v)
            h, d = 1e-6, rng.standard_normal(4)
            slope = (smoothed(w + h * d)[0] - smoothed(w - h * d)[0]) / (2 * h)
            assert slope == pytest.approx(grad @ d, abs=1e-6 + h / mu)


@dataclass(frozen=True)
class WrongHessian(RocArea):
    def hessian(self, z, y, c, mu):
        correct = super().hessian(z, y, c, mu)
        return correct._replace(diagonal=1.01 * correct.diagonal)


def test_the_contract_checks_second_derivatives():
    with pytest.raises(AssertionError, match="hessian is not what differences of gradients give"):
        check_loss(WrongHessian())


# ---------------------------------------------------------------- the solver
def test_contract():
    check_solver(Smoothing(), nonsmooth=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("solver", [Smoothing(ProximalGradient()), Smoothing(c_mu=0.1), Smoothing(c_mu=1e3)])
def test_contract_of_other_settings(solver):
    check_solver(solver, nonsmooth=True)


@functools.cache
def reference_optimum(loss, reg, lam, intercept):
    X, y = data(24, loss=loss)
    return optimum(loss, reg, X, y, None, lam, intercept)


def check_fit(loss, reg, solver, intercept=False, lam=0.05, tol=1e-6):
    X, y = data(24, loss=loss)
    best = reference_optimum(loss, reg, lam, intercept)
    J = Objective(linear_risk(X, y, loss, fit_intercept=intercept), reg, lam)
    result = minimize(J, solver, tol=tol)
    assert result.status == "converged"
    for row in result.trace:
        assert row["lower"] <= best * (1 + 1e-8)
        assert row["value"] >= best * (1 - 1e-8)
    assert result.gap <= tol * result.value
    assert result.value == pytest.approx(J.value(result.w), rel=1e-12)
    return result


@each_kind
def test_the_certified_gap_contains_the_optimum(loss):
    check_fit(loss, L2(), Smoothing())


@pytest.mark.parametrize("loss", [Hinge(), Absolute(), Quantile(0.9), EpsilonInsensitive(0.3)], ids=repr)
def test_with_an_intercept(loss):
    check_fit(loss, L2(), Smoothing(), intercept=True)


@pytest.mark.parametrize("loss", [Hinge(), RocArea()], ids=repr)
@pytest.mark.parametrize(
    ("reg", "inner"),
    [(L1(), ProximalGradient()), (L1(), OwlQn()), (Elastic(0.3), OwlQn()), (L2(), ProximalGradient())],
    ids=repr,
)
def test_with_nonsmooth_regularizers(loss, reg, inner):
    # proximal steps are slow where the loss is linear between breakpoints, and the driver may stop them
    check_fit(loss, reg, Smoothing(inner), tol=1e-3 if (reg, inner) == (L1(), ProximalGradient()) else 1e-4)


@pytest.mark.parametrize("intercept", [False, True])
def test_the_minorant_offset_is_not_taken_for_rounding(intercept):
    X, y = data(24, loss=Hinge())
    smoothed = SmoothedRisk.from_risk(linear_risk(X, y, Hinge(), fit_intercept=intercept), 0.5)
    J, w = Objective(smoothed, L1(), 0.05), np.full(4, 0.1)
    evaluation = J(w)
    assert risk_uncertainty(J, w, evaluation) <= 1e-11
    assert evaluation.cut.a @ w + evaluation.cut.b - smoothed(w)[0] > 0.01


def test_proximal_steps_reach_the_smoothed_minimum():
    """They do not stop where the decrease is as small as the minorant offset, as if it were rounding."""
    X, y = data(24, loss=Hinge())
    values = []
    for inner in (ProximalGradient(), OwlQn()):
        J = Objective(SmoothedRisk.from_risk(linear_risk(X, y, Hinge()), 1e-3), L1(), 0.05)
        values.append(min(it.value for it in islice(inner.iterates(J, np.zeros(4)), 600)))
    assert values[0] == pytest.approx(values[1], rel=1e-12)


@dataclass(frozen=True)
class Once:
    """A solver that stays at its start."""

    def iterates(self, obj, w0):
        value, _, cut = obj(w0)
        yield Iterate(w0, value, cut)


@pytest.mark.parametrize("loss", [RocArea(), Prbep(), Hinge()], ids=repr)
def test_smoothing_ends_before_mu_underflows(loss):
    X, y = data(24, loss=loss)
    J = Objective(linear_risk(X, y, loss), L2(), 0.02)
    mus = [it.info["mu"] for it in islice(Smoothing(Once()).iterates(J, np.full(4, 0.3)), 200)]
    assert len(mus) < 60
    assert 1e-27 < mus[-1] / mus[0] < 1e-25


@pytest.mark.parametrize("loss", [RocArea(), Ordinal()], ids=repr)
@pytest.mark.parametrize("solver", [Smoothing(), Newton()], ids=repr)
def test_bounds_are_valid_for_tiny_mu(loss, solver):
    """Sums of multipliers are differences of scores divided by mu: their digits must not be lost."""
    X, y = data(60, loss=loss)
    J = Objective(linear_risk(100 * X, y, loss), L2(), 1e-3)
    best = minimize(J, Bundle(), tol=1e-12).value
    for it in islice(solver.iterates(J, np.zeros(4)), 150):
        assert J.lower(it.cut) <= best * (1 + 1e-13)


@pytest.mark.parametrize("loss", [RocArea(), Ordinal(), PairwiseHinge()], ids=repr)
@pytest.mark.parametrize("mu", [1e-4, 1e-8, 1e-12])
def test_multipliers_are_exact_for_any_mu(loss, mu):
    """Scores in groups with gaps of order mu: many pairs are within mu, and all scores are far from zero."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        y = rng.permutation(np.arange(30) % 2) * 2.0 - 1
        z = 1 + rng.integers(0, 3, 30) + 0.5 * y + 2 * mu * rng.standard_normal(30)
        c = np.full(30, 1 / 30)
        labels = np.column_stack([y, np.zeros(30)]) if isinstance(loss, PairwiseHinge) else y
        _, dz, offset = loss.smoothed_value_grad(z, labels, c, mu)
        lead = z[y < 0] - (z[y > 0, None] - 1)
        beta = np.clip(lead / mu, 0.0, 1.0) / lead.size
        np.testing.assert_allclose(dz[y > 0], -beta.sum(axis=1), atol=1e-14)
        np.testing.assert_allclose(dz[y < 0], beta.sum(axis=0), atol=1e-14)
        assert offset == pytest.approx(0.5 * mu * lead.size * (beta**2).sum(), rel=1e-9)


@pytest.mark.parametrize("loss", [RocArea(), Prbep(), Absolute()], ids=repr)
def test_a_run_resumes(loss):
    X, y = data(40, loss=loss)
    J = Objective(linear_risk(X, y, loss), L2(), 0.02)
    steps = list(islice(Smoothing().iterates(J, np.zeros(4)), 25))
    uninterrupted = minimize(J, Smoothing(), tol=1e-7)
    for it, expected in list(pairwise(steps))[::4]:
        state = {name: np.array(a, copy=True) for name, a in it.state().items()}
        after = list(islice(Smoothing().resume(J, state), 60))
        if expected.info["mu"] == it.info["mu"]:
            np.testing.assert_allclose(after[0].w, expected.w, atol=1e-7)
        assert min(step.info["mu"] for step in after) < it.info["mu"]
        assert min(step.value for step in after) <= uninterrupted.value * (1 + 1e-4)
        assert all(J.lower(step.cut) <= uninterrupted.value * (1 + 1e-12) for step in after)


@pytest.mark.parametrize("loss", [RocArea(), Hinge()], ids=repr)
def test_all_storage_formats_and_executors_give_the_same_fit(loss):
    torch = pytest.importorskip("torch")
    X, y = data()
    fits = {
        "whole": linear_risk(X, y, loss),
        "shards": linear_risk(X, y, loss, n_shards=4),
        "sparse": linear_risk(sp.csr_array(X), y, loss),
        "threads": linear_risk(X, y, loss, executor=Threads(n_workers=2)),
        "torch": linear_risk(torch.as_tensor(X), y, loss),
    }
    results = {
        name: minimize(Objective(risk, L2(), 0.02), Smoothing(), tol=1e-6) for name, risk in fits.items()
    }
    assert {result.status for result in results.values()} == {"converged"}
    for result in results.values():
        assert result.value == pytest.approx(results["whole"].value, rel=1e-6)
        assert result.lower <= results["whole"].value


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", [RocArea(), Prbep(), Hinge()], ids=repr)
def test_processes_give_the_same_fit(loss):
    X, y = data()
    serial, parallel = (
        minimize(
            Objective(linear_risk(X, y, loss, n_shards=3, executor=executor), L2(), 0.05),
            Smoothing(),
            tol=1e-6,
        )
        for executor in (None, Processes(n_workers=2))
    )
    assert parallel.value == pytest.approx(serial.value, rel=1e-12)
    assert parallel.lower == pytest.approx(serial.lower, rel=1e-12)


def test_mu_never_increases():
    X, y = data()
    result = minimize(Objective(linear_risk(X, y, RocArea()), L2(), 1e-3), Smoothing(), tol=1e-7)
    mus = [row["mu"] for row in result.trace]
    assert result.status == "converged"
    assert len(set(mus)) > 3
    assert mus == sorted(mus, reverse=True)


@pytest.mark.parametrize("loss", [FBeta(), FBeta(2.0), PrecisionAtK(3), RecallAtK(5)], ids=repr)
def test_table_losses_are_smoothed_too(loss):
    X, y = data(10)
    y[:3] = 1.0, -1.0, 1.0
    best = optimum(loss, L2(), X, y, None, 0.1, False)
    result = minimize(Objective(linear_risk(X, y, loss), L2(), 0.1), Smoothing(), tol=1e-5)
    assert result.status == "converged"
    assert result.lower <= best * (1 + 1e-8)
    assert result.value >= best * (1 - 1e-8)


class Worst:
    """The largest residual: a nonsmooth loss with the required methods only."""

    separable = False

    def value_grad(self, z, y, c):
        k = np.argmax(np.abs(z - y))
        dz = np.zeros_like(z)
        dz[k] = np.sign(z[k] - y[k])
        return np.abs(z[k] - y[k]), dz


@dataclass(frozen=True)
class Own:
    """A risk that was not made by linear_risk."""

    dim: int = 2

    def __call__(self, w):
        return float(abs(w).sum()), np.sign(w)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: minimize(Objective(Own(), L2(), 0.1), Smoothing()), "needs a risk that linear_risk makes"),
        (
            lambda: minimize(Objective(linear_risk(np.eye(2), [1, -1], Logistic()), L2(), 0.1), Smoothing()),
            r"Smoothing is for nonsmooth losses, and Logistic\(\) is smooth: use Lbfgs",
        ),
        (
            lambda: minimize(Objective(linear_risk(np.eye(2), [1, 2], Worst()), L2(), 0.1), Smoothing()),
            "Worst cannot be smoothed: use Bundle",
        ),
        (lambda: Smoothing(c_mu=0.0), "Smoothing needs c_mu > 0, not 0"),
        (lambda: Smoothing(c_mu=float("nan")), "Smoothing needs c_mu > 0, not nan"),
        (
            lambda: Smoothing(inner=Hinge()),
            "is no solver: give an object with the method iterates, such as Lbfgs",
        ),
    ],
)
def test_errors_name_cause_and_remedy(make, message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_unsupported_inner_solvers_are_refused():
    J = Objective(linear_risk(*data(), RocArea()), L1(), 0.1)
    with pytest.raises(UnsupportedProblem, match=r"Lbfgs needs a smooth regularizer.*use ProximalGradient"):
        minimize(J, Smoothing(Lbfgs()))
