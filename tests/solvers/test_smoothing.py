"""Smoothed losses against quadratic programs, and smoothing as a solver with valid certificates."""

from itertools import islice

import cvxpy as cp
import numpy as np
import pytest

import reference
import riskmin as rm
from helpers import Problem
from solver_cases import CORNERS, list_rows

ROWS = [*CORNERS, rm.Quantile(0.5)]


def draw(loss, n, seed):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.where(np.arange(n) < rng.integers(1, n), 1.0, -1.0))
    if loss.task == "regression":
        y = rng.standard_normal(n)
    c = np.full(n, 1.0) if isinstance(loss, rm.Prbep) else rng.uniform(0.2, 1.0, n)
    return 2 * rng.standard_normal(n), y, c / c.sum()


@pytest.mark.parametrize("loss", [*ROWS, rm.Prbep()], ids=repr)
def test_smoothed_losses_are_the_maximum_over_their_multipliers(loss):
    """max_g g'z - R*(g) - |g - center|^2 / 2 in the metric of mu, by its dual: an envelope of the risk."""
    for n, mu in ((4, 0.02), (11, 0.5)):
        z, y, c = draw(loss, n, n)
        metric = mu / c / (2 if loss == rm.Prbep() else 1)
        for center in (np.zeros(n), loss.smoothed_value_grad(z + np.cos(np.arange(n)), y, c, mu)[1]):
            v = cp.Variable(n)
            distance = cp.multiply(1 / metric, cp.square(z + metric * center - v))
            program = cp.Problem(cp.Minimize(reference.risk(loss, v, y, c) + cp.sum(distance) / 2))
            program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
            expected = float(program.value) - metric @ center**2 / 2
            assert loss.smoothed_value_grad(z, y, c, mu, center)[0] == pytest.approx(expected, abs=1e-8)


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


@pytest.mark.parametrize("loss", [rm.RocArea(), rm.Prbep(), rm.Hinge()], ids=repr)
def test_smoothing_ends_before_mu_underflows(loss):
    class Once:
        """A solver that stays at its start."""

        def iterates(self, obj, w0):
            value, _, cut = obj(w0)
            yield rm.Iterate(w0, value, cut)

    J = Problem(loss, lam=0.02).objective()
    mus = [it.info["mu"] for it in islice(rm.Smoothing(Once()).iterates(J, np.full(4, 0.3)), 200)]
    assert len(mus) < 60
    assert 1e-27 < mus[-1] / mus[0] < 1e-25


@pytest.mark.parametrize(
    ("loss", "solver"), [(rm.RocArea(), rm.Newton()), (rm.Ordinal(), rm.Smoothing())], ids=repr
)
def test_bounds_are_valid_for_tiny_mu(loss, solver):
    """Sums of multipliers are differences of scores divided by mu: their digits must not be lost."""
    J = Problem(loss, lam=1e-3, data=list_rows(loss, 60), units=100.0).objective()
    best = rm.minimize(J, rm.Bundle(), tol=1e-12).value
    for it in islice(solver.iterates(J, np.zeros(4)), 80):
        assert J.lower(it.cut) <= best * (1 + 1e-13)


def test_a_resumed_run_goes_on_with_smaller_mu():
    J = Problem(rm.RocArea(), lam=0.02, data=list_rows(rm.RocArea(), 40)).objective()
    steps = list(islice(rm.Smoothing().iterates(J, np.zeros(4)), 20))
    best = rm.minimize(J, rm.Bundle(), tol=1e-7).value
    for it in steps[2::8]:
        after = list(islice(rm.Smoothing().resume(J, it.state()), 60))
        mus = [it.info["mu"], *(step.info["mu"] for step in after)]
        assert mus[0] > mus[-1]
        assert mus == sorted(mus, reverse=True)
        assert min(step.value for step in after) <= best * (1 + 1e-4)
