"""The quadratic program on the simplex: optimal, and feasible despite rounding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    for seed, tilt in enumerate((0.0, 1.0, scale**2)):
        G, b = case(seed, m, p, scale, tilt)
        x = simplex_qp(G, b, start(m, seed))
        assert feasible(x)
        assert violation(G, b, x) <= noise(G, b)


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


@settings(deadline=None, max_examples=60)
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
