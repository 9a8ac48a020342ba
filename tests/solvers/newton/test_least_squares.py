"""Conjugate gradients for the squared loss on many columns: the points, their certificates, and their end."""

from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import cg

from riskmin import L2, Hinge, Newton, Objective, Squared, linear_risk, minimize
from riskmin.solvers.newton.least_squares import LeastSquares
from riskmin.solvers.newton.newton import choose_score_problem


def problem(intercept=False, n=600, p=900, lam=1e-4, seed=0, loss=None):
    """Sparse rows of columns of different sizes, some of no weight, and a penalty of its own per column."""
    rng = np.random.default_rng(seed)
    X = sp.random_array((n, p), density=0.02, rng=rng, format="csr", data_sampler=rng.standard_normal)
    X = sp.csr_array(X @ sp.diags_array(np.geomspace(0.3, 3, p)))
    y = X @ rng.standard_normal(p) + 5 + rng.standard_normal(n)
    weight = rng.integers(0, 3, n).astype(float)
    loss = loss or Squared()
    y = y if loss.task == "regression" else np.sign(y - np.median(y) + 1e-9)
    risk = linear_risk(X, y, loss, sample_weight=weight, fit_intercept=intercept)
    return Objective(risk, L2(np.linspace(0.5, 2, p)), lam)


def solver_of(obj, direct=1):
    """The solver, where no matrix of more than `direct` columns is factorized."""
    scores = choose_score_problem(obj)
    system = Newton(direct=direct)._linear_system(obj, scores, True)
    assert LeastSquares.accepts(scores, system)
    return LeastSquares(obj, scores, system)


def dense_minimum(obj, intercept):
    """The minimizer by a dense system, and J there."""
    X, y, c = obj.risk.rows.X.as_scipy().toarray(), obj.risk.rows.y, obj.risk.rows.c
    if intercept:
        X, y = X - c @ X, y - c @ y
    square = obj.reg.terms(np.ones(X.shape[1])).square
    w = np.linalg.solve(X.T @ (c[:, None] * X) + np.diag(obj.lam * square), X.T @ (c * y))
    return w, 0.5 * float(c @ (X @ w - y) ** 2) + obj.lam * obj.reg.value(w)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("lam", [1e-2, 1e-6])
def test_it_finds_the_minimum_of_a_dense_system(intercept, lam):
    obj = problem(intercept, lam=lam)
    w, value = dense_minimum(obj, intercept)
    result = minimize(obj, Newton(direct=1), tol=1e-9)
    assert result.status == "converged"
    assert result.lower <= value * (1 + 1e-12)
    assert value <= result.value <= value * (1 + 1e-9)
    assert np.linalg.norm(result.w - w) <= 1e-3 * np.linalg.norm(w)


def test_the_points_are_those_of_preconditioned_conjugate_gradients():
    obj = problem()
    solver = solver_of(obj)
    X, y, c = obj.risk.rows.X.as_scipy(), obj.risk.rows.y, obj.risk.rows.c
    A = (X.T @ sp.diags_array(c) @ X).toarray() + np.diag(obj.lam * obj.reg.terms(np.ones(900)).square)
    at = solver.started(np.zeros(900))
    for k in range(1, 8):
        solver._advance(at, obj.value(at.w), np.inf)  # one step proves a gap of infinity
        expected, _ = cg(A, X.T @ (c * y), rtol=0.0, maxiter=k, M=np.diag(1 / np.diag(A)))
        assert at.steps == k
        np.testing.assert_allclose(at.w, expected, rtol=1e-9, atol=1e-12)
        for w, residual in ((at.w, at.residual), (at.smoothed, at.smoothed_residual)):
            np.testing.assert_allclose(residual, X.T @ (c * y) - A @ w, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("intercept", [False, True])
def test_smoothed_residuals_decrease_and_prove_more(intercept):
    """They have the least norm on each segment, and their tangents bounds above those of the points."""
    obj = problem(intercept, lam=1e-6)
    solver = solver_of(obj)
    at, squares, better = solver.started(np.zeros(900)), [], 0
    for _ in range(40):
        solver._advance(at, obj.value(at.w), np.inf)
        squares.append(solver._square(at.smoothed_residual))
        lower, plain = (obj.lower(obj.cut(w)) for w in (at.smoothed, at.w))
        proved = obj.value(at.smoothed) - squares[-1] / 2  # by a cut that is not scaled
        assert lower >= proved - 1e-6 * abs(proved)
        assert lower == pytest.approx(proved, rel=1e-6) or proved < 0.9 * lower
        better += lower > plain
    assert all(a >= b * (1 - 1e-9) for a, b in pairwise(squares))
    assert better >= 30


@pytest.mark.parametrize("intercept", [False, True])
def test_every_iterate_has_a_valid_cut(intercept):
    obj = problem(intercept)
    rng = np.random.default_rng(1)
    for it in islice(Newton(direct=1).iterates(obj, np.zeros(900)), 4):
        for w in (it.w, 0 * it.w, it.w + rng.standard_normal(900)):
            assert obj.risk(w)[0] >= it.cut.b + it.cut.a @ w - 1e-10
        assert it.value == pytest.approx(obj.value(it.w), rel=1e-10)


def test_a_saved_state_continues_with_the_same_bits():
    obj, newton = problem(True, lam=1e-7), Newton(direct=1)
    first, *rest = islice(newton.iterates(obj, np.zeros(900)), 5)
    state = {name: a.copy() for name, a in first.state().items()}
    again = list(islice(newton.resume(obj, state), len(rest)))
    assert len(rest) == len(again) == 4
    for a, b in zip(rest, again, strict=True):
        np.testing.assert_array_equal(a.w, b.w)
        assert a.value == b.value


def test_a_factorization_takes_over_where_it_costs_less(monkeypatch):
    """After as many steps as it costs, if the gap is not yet proved."""
    obj = problem(lam=1e-9, n=3000, p=200)
    monkeypatch.setattr(LeastSquares, "accepts", classmethod(lambda cls, problem, system: True))
    solver = Newton()
    costs = solver._linear_system(obj, choose_score_problem(obj), True).max_steps(np.ones(3000))
    iterates = list(islice(solver.iterates(obj, np.zeros(200)), 6))
    assert iterates[-1].info.get("passes", 0.0) == 0.0  # not by conjugate gradients
    assert max(it.info.get("passes", 0.0) for it in iterates) < costs + LeastSquares.MAX_STEPS + 1
    _, value = dense_minimum(obj, False)
    assert iterates[-1].value == pytest.approx(value, rel=1e-9)


def test_other_losses_are_left_to_other_steps():
    obj = problem(loss=Hinge())
    scores = choose_score_problem(obj)
    assert not LeastSquares.accepts(scores, Newton()._linear_system(obj, scores, True))
