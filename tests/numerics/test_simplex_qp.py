"""The quadratic program on the simplex: optimal, feasible despite rounding, and fast."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin.numerics.simplex_qp
from riskmin.numerics.simplex_qp import simplex_qp


def case(seed, m, p, scale=1.0, tilt=1.0):
    """Gram matrix of m points in p dimensions, and linear terms; G is singular if m > p."""
    rng = np.random.default_rng(seed)
    A = scale * rng.standard_normal((m, p))
    return A @ A.T, tilt * rng.standard_normal(m)


def start(m, seed=0):
    x = np.random.default_rng(seed).random(m)
    x[1::2] = 0.0
    return x / x.sum()


def value(G, b, x):
    return b @ x - x @ G @ x / 2


def violation(G, b, x):
    """The violation of the optimality conditions: no entry of b - G x may exceed their mean under x."""
    gain = b - G @ x
    return float((gain - gain @ x).max())


def noise(G, b):
    return 1e-12 * (np.abs(b).max() + G.diagonal().max())


def feasible(x):
    return (x >= 0).all() and abs(x.sum() - 1) <= 1e-14 * len(x)


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e3, 1e8])
@pytest.mark.parametrize(("m", "p"), [(1, 1), (2, 1), (2, 5), (10, 3), (40, 60), (60, 5), (80, 1)])
def test_conditions_of_optimality(m, p, scale):
    for seed in range(3):
        for tilt in (0.0, 1.0, scale**2):
            G, b = case(seed, m, p, scale, tilt)
            x = simplex_qp(G, b, start(m, seed))
            assert feasible(x)
            assert violation(G, b, x) <= noise(G, b)


@pytest.mark.parametrize(("m", "p"), [(2, 2), (8, 3), (15, 30), (30, 4)])
def test_the_value_equals_clarabels(m, p):
    import cvxpy as cp

    rng = np.random.default_rng(m)
    A, b = rng.standard_normal((m, p)), rng.standard_normal(m)
    x = cp.Variable(m, nonneg=True)
    program = cp.Problem(cp.Maximize(b @ x - cp.sum_squares(A.T @ x) / 2), [cp.sum(x) == 1])
    program.solve(solver=cp.CLARABEL)
    assert value(A @ A.T, b, simplex_qp(A @ A.T, b, start(m))) == pytest.approx(program.value, abs=1e-8)


@pytest.mark.parametrize("copies", [2, 5])
def test_duplicated_points(copies):
    G, b = case(0, 6, 4)
    rows = np.repeat(np.arange(6), copies)
    x, unique = simplex_qp(G[np.ix_(rows, rows)], b[rows], start(len(rows))), simplex_qp(G, b, start(6))
    assert feasible(x)
    assert value(G[np.ix_(rows, rows)], b[rows], x) == pytest.approx(value(G, b, unique), abs=1e-12)


def test_points_of_very_different_lengths():
    """As in bundle methods: the first cuts are steep, the last ones nearly flat."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((25, 8)) * 10.0 ** np.linspace(4, -4, 25)[:, None]
        b = rng.standard_normal(25) * 10.0 ** np.linspace(2, -4, 25)
        x = simplex_qp(A @ A.T, b, start(25))
        gain = b - A @ (A.T @ x)
        norms = np.linalg.norm(A, axis=1)
        size = 1e-11 * (np.abs(b) + (norms + norms[x > 0].max()) * (norms @ x))
        assert feasible(x)
        assert (gain - gain @ x <= size).all()


def test_a_warm_start_at_the_solution_stays_there(monkeypatch):
    G, b = case(3, 30, 10)
    x = simplex_qp(G, b, start(30))
    steps = count_steps(monkeypatch)
    again = simplex_qp(G, b, x)
    assert len(steps) <= 2
    np.testing.assert_allclose(again, x, atol=1e-12)


def count_steps(monkeypatch):
    steps, real = [], riskmin.numerics.simplex_qp._maximize_on_support
    monkeypatch.setattr(
        riskmin.numerics.simplex_qp, "_maximize_on_support", lambda *a: steps.append(1) or real(*a)
    )
    return steps


def test_the_number_of_steps_is_bounded(monkeypatch):
    steps = count_steps(monkeypatch)
    for seed in range(20):
        for m, p, scale in [(50, 100, 1.0), (60, 5, 1e4), (60, 5, 1e-4), (60, 1, 1.0)]:
            del steps[:]
            simplex_qp(*case(seed, m, p, scale), start(m, seed))
            assert len(steps) <= 3 * m


def test_growing_bundles_take_few_steps_each(monkeypatch):
    """As in a bundle method: one more point each time, started from the last solution."""
    steps = count_steps(monkeypatch)
    G, b = case(5, 60, 20)
    x = np.array([1.0])
    for m in range(1, 61):
        x = simplex_qp(G[:m, :m], b[:m], np.append(x, 0.0)[:m] if m > 1 else x)
        assert violation(G[:m, :m], b[:m], x) <= noise(G, b)
    assert len(steps) <= 6 * 60


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_any_small_program(data):
    m, p = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 4))
    number = st.sampled_from([0.0, 1.0, -1.0, 2.0, 1e-6, 1e6, 0.3])
    A = np.array(data.draw(st.lists(number, min_size=m * p, max_size=m * p))).reshape(m, p)
    b = np.array(data.draw(st.lists(number, min_size=m, max_size=m)))
    x = simplex_qp(A @ A.T, b, start(m) if m > 1 else np.ones(1))
    assert feasible(x)
    norms = np.linalg.norm(A, axis=1)
    gain = b - A @ (A.T @ x)
    size = np.abs(b).max() + norms.max() * (norms @ x + 1e-2 * norms.max())
    assert (gain - gain @ x <= 1e-10 * size + 1e-300).all()


def test_without_curvature_the_solution_is_the_best_vertex():
    x = simplex_qp(np.zeros((3, 3)), np.array([1.0, 1e12, -1e30]), np.array([0.0, 0.0, 1.0]))
    np.testing.assert_array_equal(x, [0.0, 1.0, 0.0])
