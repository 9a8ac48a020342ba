"""An intercept per class, which is not penalized, in Newton's method and bundle methods."""

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
