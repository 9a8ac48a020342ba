"""An intercept per class, which is not penalized, in Newton's method and bundle methods."""

from itertools import islice, pairwise

import numpy as np
import pytest

import riskmin as rm
from helpers import COST, K, Problem

HINGES = [rm.MulticlassHinge(), rm.MulticlassHinge(COST), rm.MulticlassHinge(COST, rescaled=True)]
TREE = rm.Tree.from_paths(["A/a", "A/b", "B"])
OTHERS = [rm.Softmax(), rm.MulticlassSquaredHinge(), rm.HierarchicalHinge(TREE), rm.HierarchicalSoftmax(TREE)]
REGS = [
    *(rm.L2(), rm.L1(), rm.Elastic(), rm.QNorm(), rm.Entropy(normalized=False, balanced=True)),
    *(rm.Box(rm.L2(), -1.0, 1.0), rm.Box(rm.L1())),
]
NEWTON, BUNDLE = rm.Newton(), rm.Bundle()
each_solver = pytest.mark.parametrize("solver", [NEWTON, BUNDLE], ids=repr)


def problem(loss=HINGES[0], **settings):
    """Rows whose mean is far from zero, so that the intercepts matter."""
    made = Problem(loss, intercept=True, weighted=True, **settings)
    made.X = made.X + 3.0
    return made


@pytest.mark.parametrize(("loss", "lam"), list(zip(HINGES, (1e-3, 1e-1, 1e-2), strict=True)), ids=repr)
def test_bundles_find_the_minimum_of_another_program(loss, lam):
    case = problem(loss, lam=lam)
    case.check(rm.minimize(case.objective(), BUNDLE, tol=1e-7), tol=1e-7)


@pytest.mark.parametrize("loss", HINGES, ids=repr)
def test_cuts_of_bundles_lie_below_the_risk_with_zero_slope_in_the_intercepts(loss):
    obj, rng = problem(loss, lam=1e-3).objective(), np.random.default_rng(3)
    points = [s * rng.standard_normal(obj.risk.dim) for s in (0.0, 0.1, 1.0, 10.0) for _ in range(3)]
    risks = [obj.risk(v)[0] for v in points]
    for it in islice(BUNDLE.iterates(obj, np.zeros(obj.risk.dim)), 10):
        assert it.value == pytest.approx(obj.value(it.w), rel=1e-12)
        assert not it.cut.a[-K:].any()
        for v, r in zip(points, risks, strict=True):
            assert it.cut.a @ v + it.cut.b <= r + 1e-11 * (1 + r)


@each_solver
def test_classes_without_rows_do_not_increase_the_optimum(solver):
    """Zero weights for the empty classes are feasible."""
    case = problem(lam=1e-2)
    result = rm.minimize(case.objective(n_outputs=K + 2), solver, tol=1e-6)
    assert result.status == "converged"
    assert result.value <= case.optimum * (1 + 1e-6)


@pytest.mark.parametrize("loss", [rm.MulticlassHinge(), rm.Softmax()], ids=repr)
def test_intercepts_make_shifts_of_the_columns_free(loss):
    case, moved = (Problem(loss, intercept=True, lam=1e-2) for _ in range(2))
    moved.X = case.X + 100.0 * np.arange(1, 5)
    values = [rm.minimize(moved.objective(), solver, tol=1e-6).value for solver in (NEWTON, BUNDLE)]
    assert values == pytest.approx([case.optimum] * 2, rel=2e-6)


# ---------------------------------------------------------------- bundle methods
@pytest.mark.exhaustive
@pytest.mark.parametrize("reg", REGS, ids=repr)
@pytest.mark.parametrize("loss", [HINGES[1], *OTHERS], ids=lambda loss: type(loss).__name__)
def test_bundles_support_any_loss_and_regularizer(loss, reg):
    obj = problem(loss, reg=reg, p=3).objective()
    result = rm.minimize(obj, BUNDLE, tol=1e-6, max_iter=1000)
    assert result.status == "converged"
    other = rm.ProximalGradient() if loss.smooth else rm.Smoothing(rm.ProximalGradient())
    check = rm.minimize(obj, other, tol=1e-4, max_iter=300)
    assert result.lower <= check.value * (1 + 1e-9)
    assert check.lower <= result.value * (1 + 1e-9)


@pytest.mark.parametrize("reg", [rm.L2(), rm.L1(), rm.Elastic()], ids=repr)
def test_a_saved_bundle_run_continues(reg):
    obj = problem(reg=reg).objective()
    for it, after in pairwise(islice(BUNDLE.iterates(obj, np.zeros(obj.risk.dim)), 6)):
        saved = {name: np.array(a, copy=True) for name, a in it.state().items()}
        resumed = next(BUNDLE.resume(obj, saved))
        np.testing.assert_allclose(resumed.w, after.w, rtol=1e-6, atol=1e-9)
        assert resumed.value == pytest.approx(after.value, rel=1e-9)


def test_paths_of_bundles_keep_their_cuts():
    risk, lams = problem().objective().risk, [1e-1, 3e-2, 1e-2]
    warm = rm.path(risk, rm.L2(), lams, solver=BUNDLE, tol=1e-5)
    cold = [rm.minimize(rm.Objective(risk, rm.L2(), lam), BUNDLE, tol=1e-5) for lam in lams]
    for run, alone in zip(warm, cold, strict=True):
        assert run.status == "converged"
        assert run.value == pytest.approx(alone.value, rel=2e-5)
    assert sum(run.n_iter for run in warm) < sum(run.n_iter for run in cold)


@each_solver
def test_shards_have_the_same_minimum(solver):
    case = problem(lam=1e-2)
    obj = case.objective(executor=rm.Threads(n_workers=2), n_shards=3)
    case.check(rm.minimize(obj, solver, tol=1e-6))
