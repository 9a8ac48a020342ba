"""Newton's method for smooth losses on few dense entries, and systems of fewer rows than columns."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import (
    L2,
    Cut,
    Exponential,
    Huber,
    Logistic,
    Newton,
    Objective,
    Poisson,
    Squared,
    SquaredHinge,
    linear_risk,
    minimize,
    path,
)
from riskmin.arrays.matrix import as_matrix
from riskmin.losses.hessian import separable_hessian
from riskmin.problem.design_operator import DesignOperator
from riskmin.solvers.newton.linear_system import RowGram
from riskmin.solvers.newton.newton import choose_score_problem
from riskmin.solvers.newton.small.smooth import SmallSmoothProblem

LOSSES = [Logistic(), Poisson(), Squared(), SquaredHinge(), Huber(0.5)]


def problem(loss, intercept, n=2700, p=50):
    """Columns of different sizes far from zero, and labels of which few are positive."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p)) * np.geomspace(0.1, 10, p) + 3
    score = (X - 3) @ rng.standard_normal(p) * 0.02
    y = {"classification": np.where(score + rng.standard_normal(n) > 1.5, 1.0, -1.0)}.get(
        loss.task, rng.poisson(np.exp(np.clip(score, -3, 3))).astype(float)
    )
    weight = rng.integers(0, 4, n).astype(float)
    return Objective(linear_risk(X, y, loss, sample_weight=weight, fit_intercept=intercept), L2(), 1e-3)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_optimum_is_that_of_the_general_steps(loss, intercept, monkeypatch):
    obj = problem(loss, intercept)
    assert SmallSmoothProblem.accepts(obj, 2500, choose_score_problem(obj))
    result = minimize(obj, Newton(), tol=1e-9)
    assert result.status == "converged"
    if not isinstance(loss, Huber):  # whose first steps are on a smoother loss
        assert result.n_iter <= 6
    monkeypatch.setattr(SmallSmoothProblem, "MAX_ENTRIES", 0)
    general = minimize(obj, Newton(), tol=1e-9)
    assert general.lower <= result.value <= general.value * (1 + 1e-9)
    assert result.lower <= general.value


def test_every_iterate_has_a_valid_cut():
    """Also with an intercept that is not yet the best: a cut with a slope in it would bound nothing."""
    obj = problem(Logistic(), True)
    points = [np.zeros(50), *np.random.default_rng(1).standard_normal((3, 50)) * 0.01]
    risks = [obj.risk(w)[0] for w in points]
    for it in islice(Newton().iterates(obj, np.zeros(50)), 4):
        assert all(risk >= it.cut.b + it.cut.a @ w - 1e-12 for w, risk in zip(points, risks, strict=True))
        assert it.value >= obj(it.w)[0] * (1 - 1e-12)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", [Logistic(), Poisson(), Exponential(), SquaredHinge(), Huber(0.5)], ids=repr)
def test_cuts_of_other_multipliers_are_valid_and_nearly_tight(loss, intercept):
    """Their offset is at most that of the conjugates, and close to it for small changes."""
    scores, rng = choose_score_problem(problem(loss, intercept, p=5)), np.random.default_rng(2)
    z = rng.standard_normal(len(scores.y))
    evaluation = scores.evaluate(z, 0.0, None, 0.0)
    found = 0
    for size in (1e-3, 0.3, 3.0):  # the last ones are cut off
        r = size * evaluation.hessian_diagonal * rng.standard_normal(len(z))
        other = scores.with_multipliers(z, evaluation, r)
        if other is None:
            assert intercept
            continue
        weighted = scores.c > 0
        u = other.dz[weighted] / scores.c[weighted]
        exact = -float(scores.c[weighted] @ loss.conjugate(scores.y[weighted]).value(u))
        assert other.offset <= exact + 1e-15
        assert other.offset >= exact - 0.6 * size * float(np.abs(other.dz - evaluation.dz).sum()) - 1e-12
        assert not intercept or abs(other.dz.sum()) < 1e-14
        found += 1
    assert found >= 1


def test_few_matrices_prove_the_gap():
    """For a small lam, the tangents of the same points would prove nothing."""
    obj = replace(problem(Poisson(), True), lam=1e-7)
    scores = choose_score_problem(obj)
    small = SmallSmoothProblem(obj, scores)
    start = small.start(np.zeros(50))
    proved = next(islice(small.iterates(start, start.cut), 1, None))
    assert proved.value - obj.lower(proved.cut) <= 5e-4 * proved.value
    tangent = scores.evaluate(small.forward(proved.w), 0.0, None, proved.intercept[0])
    assert obj.lower(Cut(small.adjoint(tangent.dz), tangent.offset)) < 0.5 * proved.value
    # the intercept is so good that J needs no search for it
    assert obj.value_near(proved.w, proved.intercept) == pytest.approx(obj.value(proved.w), rel=1e-12)


def test_a_path_keeps_the_matrix_of_the_run_before(monkeypatch):
    obj, matrices = problem(Logistic(), True), []
    form = SmallSmoothProblem._matrix
    monkeypatch.setattr(SmallSmoothProblem, "_matrix", lambda self, h: matrices.append(h) or form(self, h))
    lams = np.geomspace(1e-1, 1e-4, 12)
    results = path(obj.risk, L2(), lams, tol=1e-4)
    assert len(matrices) < len(lams)
    monkeypatch.setattr(SmallSmoothProblem, "MAX_ENTRIES", 0)
    for lam, result in zip(lams, results, strict=True):
        alone = minimize(replace(obj, lam=lam), Newton(), tol=1e-6)
        assert result.status == "converged"
        assert result.lower <= alone.value <= result.value * (1 + 1e-6)


def test_a_saved_state_continues_with_the_same_bits():
    obj = problem(Poisson(), True)
    steps = Newton().iterates(obj, np.zeros(50))
    next(steps)
    state = next(steps).state()
    after, resumed = next(steps), next(Newton().resume(obj, state))
    assert np.array_equal(after.w, resumed.w)
    assert after.value == resumed.value


@pytest.mark.parametrize("intercept", [False, True])
def test_systems_of_the_rows_equal_those_of_the_columns(intercept):
    rng = np.random.default_rng(0)
    X, h, g, lam = rng.standard_normal((6, 20)), rng.random(6), rng.standard_normal(20), 0.01
    weights = rng.random(20) + 0.5
    design = DesignOperator(linear_risk(X, np.ones(6), Squared()))
    H = np.diag(h) - np.outer(h, h) / h.sum() * intercept
    d = RowGram(design, L2(weights)).factorized(lam, separable_hessian(h, intercept))(g)
    assert d == pytest.approx(np.linalg.solve(lam * np.diag(weights) + X.T @ H @ X, g), rel=1e-9)


def test_products_of_rows_read_once_have_the_bits_of_two_products():
    rng = np.random.default_rng(0)
    matrix = as_matrix(sp.random_array((300, 70), density=0.15, rng=rng, format="csr"))
    d, h, twice = rng.standard_normal(70), rng.random(300) * (rng.random(300) > 0.3), np.zeros(70)
    matrix.pullback(h * matrix.scores(d, 0, 300), 0, 300, twice)
    assert np.array_equal(matrix.hessian_product(d, h), twice)


def test_fewer_rows_than_columns_take_at_most_two_steps():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3000)), rng.standard_normal(40)
    for intercept in (False, True):
        obj = Objective(linear_risk(X, y, Squared(), fit_intercept=intercept), L2(), 1e-6)
        result = minimize(obj, Newton(), tol=1e-6)
        # the second one removes the rounding of the first: lam is small
        assert result.status == "converged"
        assert result.n_iter <= 3
