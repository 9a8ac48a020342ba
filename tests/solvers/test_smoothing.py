"""Smoothed losses against quadratic programs, and smoothing as a solver with valid certificates."""

from dataclasses import dataclass
from itertools import islice, pairwise

import cvxpy as cp
import numpy as np
import pytest

import riskmin as rm
from everywhere import RemoteExecutor
from helpers import Problem

ROWS = [
    rm.Hinge(),
    rm.Hinge(margin=2.5),
    rm.Novelty(),
    rm.Absolute(),
    rm.Quantile(0.5),
    rm.Quantile(0.9),
    rm.EpsilonInsensitive(0.3),
]
PAIRS = [rm.RocArea(), rm.Ordinal(), rm.Ordinal(((), (1.0,), (4.0, 2.0)))]
each_kind = pytest.mark.parametrize("loss", [*ROWS, *PAIRS, rm.Prbep()], ids=repr)


def draw(loss, n, seed):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.where(np.arange(n) < rng.integers(1, n), 1.0, -1.0))
    if loss.task == "regression":
        y = rng.standard_normal(n)
    if loss.task == "ordinal":
        y = rng.permutation(np.arange(n) % 3.0)
    c = np.full(n, 1.0) if isinstance(loss, rm.Prbep) else rng.uniform(0.2, 1.0, n)
    return 2 * rng.standard_normal(n), y, c / c.sum()


# ---------------------------------------------------------------- the maximum over multipliers
def program(loss, z, y, c, mu, center=None):
    """The smoothed loss by Clarabel, as a maximum over its multipliers."""
    n = len(z)
    if isinstance(loss, rm.RocArea | rm.Ordinal):
        i, j = np.nonzero(y[:, None] > y)
        p = c[i] * c[j]
        if getattr(loss, "costs", None):
            p = p * [loss.costs[int(a)][int(b)] for a, b in zip(y[i], y[j], strict=True)]
        beta = cp.Variable(len(p))
        goal = cp.sum(cp.multiply(p / p.sum(), cp.multiply(beta, 1 - z[i] + z[j]) - mu / 2 * cp.square(beta)))
        return solved(goal, [beta >= 0, beta <= 1])
    if isinstance(loss, rm.Prbep):
        beta, positive = cp.Variable(n), (y > 0).astype(float)
        start = np.zeros(n) if center is None else -n / 2 * y * center
        goal = positive @ beta / positive.sum() - 2 / n * (y * z) @ beta
        limits = [beta >= 0, beta <= 1, positive @ beta == (1 - positive) @ beta]
        return solved(goal - mu / n * cp.sum_squares(beta - start), limits)
    u, start = cp.Variable(n), np.zeros(n) if center is None else center / c
    lower, upper, conjugate = {
        rm.Hinge: lambda: (
            np.where(y > 0, -1.0, 0.0),
            np.where(y < 0, 1.0, 0.0),
            loss.margin * cp.multiply(y, u),
        ),
        rm.Novelty: lambda: (-np.ones(n), np.zeros(n), u),
        rm.Absolute: lambda: (-np.ones(n), np.ones(n), cp.multiply(y, u)),
        rm.Quantile: lambda: (np.full(n, -loss.level), np.full(n, 1 - loss.level), cp.multiply(y, u)),
        rm.EpsilonInsensitive: lambda: (
            -np.ones(n),
            np.ones(n),
            cp.multiply(y, u) + loss.epsilon * cp.abs(u),
        ),
    }[type(loss)]()
    goal = c @ (cp.multiply(z, u) - conjugate - mu / 2 * cp.square(u - start))
    return solved(goal, [u >= lower, u <= upper])


def solved(goal, limits):
    problem = cp.Problem(cp.Maximize(goal), limits)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return float(problem.value)


@each_kind
def test_smoothed_losses_are_the_maximum_over_their_multipliers(loss):
    for n, mu in ((4, 0.02), (11, 0.5)):
        z, y, c = draw(loss, n, n)
        value = loss.smoothed_value_grad(z, y, c, mu)[0]
        assert value == pytest.approx(program(loss, z, y, c, mu), abs=1e-8)
        if isinstance(loss, rm.RocArea | rm.Ordinal):
            continue
        center = loss.smoothed_value_grad(z + np.cos(np.arange(n)), y, c, mu)[1]
        value, _, _ = loss.smoothed_value_grad(z, y, c, mu, center)
        assert value == pytest.approx(program(loss, z, y, c, mu, center), abs=1e-8)


@pytest.mark.parametrize("loss", [rm.RocArea(), rm.Prbep(), rm.Absolute()], ids=repr)
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
            value, dz, _ = rm.Prbep().smoothed_value_grad(z, y, np.full(n, 1 / n), mu)
            beta = -0.5 * n * y * dz
            assert np.all(beta >= 0)
            assert np.all(beta <= 1)
            assert np.sum(beta[y > 0]) == pytest.approx(np.sum(beta[y < 0]), rel=1e-12)
            unsmoothed, _ = rm.Prbep().value_grad(z, y, np.full(n, 1 / n))
            rounding = 1e-12 * (1 + np.abs(z).max())
            assert unsmoothed - mu - rounding <= value <= unsmoothed + rounding


@pytest.mark.parametrize("loss", [rm.RocArea(), rm.Ordinal(), rm.PairwiseHinge()], ids=repr)
@pytest.mark.parametrize("mu", [1e-4, 1e-8, 1e-12])
def test_multipliers_are_exact_for_any_mu(loss, mu):
    """Scores in groups with gaps of order mu: many pairs are within mu, and all scores are far from zero."""
    rng = np.random.default_rng(3)
    for _ in range(8):
        y = rng.permutation(np.arange(30) % 2) * 2.0 - 1
        z = 1 + rng.integers(0, 3, 30) + 0.5 * y + 2 * mu * rng.standard_normal(30)
        c = np.full(30, 1 / 30)
        labels = np.column_stack([y, np.zeros(30)]) if isinstance(loss, rm.PairwiseHinge) else y
        _, dz, offset = loss.smoothed_value_grad(z, labels, c, mu)
        lead = z[y < 0] - (z[y > 0, None] - 1)
        beta = np.clip(lead / mu, 0.0, 1.0) / lead.size
        np.testing.assert_allclose(dz[y > 0], -beta.sum(axis=1), atol=1e-14)
        np.testing.assert_allclose(dz[y < 0], beta.sum(axis=0), atol=1e-14)
        assert offset == pytest.approx(0.5 * mu * lead.size * (beta**2).sum(), rel=1e-9)


# ---------------------------------------------------------------- the solver


@dataclass(frozen=True)
class Once:
    """A solver that stays at its start."""

    def iterates(self, obj, w0):
        value, _, cut = obj(w0)
        yield rm.Iterate(w0, value, cut)


@pytest.mark.parametrize("loss", [rm.RocArea(), rm.Prbep(), rm.Hinge()], ids=repr)
def test_smoothing_ends_before_mu_underflows(loss):
    J = Problem(loss, lam=0.02).objective()
    mus = [it.info["mu"] for it in islice(rm.Smoothing(Once()).iterates(J, np.full(4, 0.3)), 200)]
    assert len(mus) < 60
    assert 1e-27 < mus[-1] / mus[0] < 1e-25


def large(loss, n=40, size=1.0, lam=0.02, **settings):
    """Rows of a loss on pairs or tables, many more than can be enumerated."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4))
    score = X @ rng.standard_normal(4) + rng.standard_normal(n)
    y = np.digitize(score, [-0.7, 0.7]) if loss.task == "ordinal" else np.where(score > 0.5, 1.0, -1.0)
    data = settings.pop("store", np.asarray)(size * X)
    return rm.Objective(rm.linear_risk(data, y.astype(float), loss, **settings), rm.L2(), lam)


@pytest.mark.parametrize(
    ("loss", "solver"), [(rm.RocArea(), rm.Newton()), (rm.Ordinal(), rm.Smoothing())], ids=repr
)
def test_bounds_are_valid_for_tiny_mu(loss, solver):
    """Sums of multipliers are differences of scores divided by mu: their digits must not be lost."""
    J = large(loss, 60, size=100.0, lam=1e-3)
    best = rm.minimize(J, rm.Bundle(), tol=1e-12).value
    for it in islice(solver.iterates(J, np.zeros(4)), 80):
        assert J.lower(it.cut) <= best * (1 + 1e-13)


def test_a_resumed_run_goes_on_with_smaller_mu():
    J = large(rm.RocArea())
    steps = list(islice(rm.Smoothing().iterates(J, np.zeros(4)), 20))
    best = rm.minimize(J, rm.Bundle(), tol=1e-7).value
    for it, expected in list(pairwise(steps))[2::8]:
        after = list(islice(rm.Smoothing().resume(J, it.state()), 60))
        if expected.info["mu"] == it.info["mu"]:
            np.testing.assert_allclose(after[0].w, expected.w, atol=1e-7)
        mus = [it.info["mu"], *(step.info["mu"] for step in after)]
        assert mus[0] > mus[-1]
        assert mus == sorted(mus, reverse=True)
        assert min(step.value for step in after) <= best * (1 + 1e-4)
        assert all(J.lower(step.cut) <= best * (1 + 1e-12) for step in after)


@pytest.mark.parametrize("loss", [rm.RocArea(), rm.Hinge()], ids=repr)
def test_all_executors_and_libraries_give_the_same_fit(loss):
    torch = pytest.importorskip("torch")
    whole, *others = (
        rm.minimize(large(loss, **settings), rm.Smoothing(), tol=1e-5)
        for settings in (
            {},
            {"n_shards": 4},
            {"executor": rm.Threads(n_workers=2)},
            {"n_shards": 3, "executor": RemoteExecutor()},
            {"store": torch.as_tensor},
        )
    )
    for result in others:
        assert result.status == whole.status == "converged"
        assert result.value == pytest.approx(whole.value, rel=1e-5)
        assert result.lower <= whole.value
