"""Orders, ranks and sums of long and short lists against NumPy, and projections onto simplices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riskmin.numerics.projections import project
from riskmin.numerics.simplex import project_onto_simplex
from riskmin.numerics.sorting import prefix_sums, ranks_in_sorted, stable_argsort

LENGTHS = [0, 1, 5, 4095, 4096, 4097, 9000]
"""Long lists are sorted by their bits."""


@pytest.mark.parametrize("n", LENGTHS)
def test_order_equals_a_stable_argsort(n):
    rng = np.random.default_rng(n)
    odd = np.array([0.0, -0.0, 5e-324, -5e-324, 1e-310, np.inf, -np.inf, 1.7e308, -1.7e308, 1.0])
    for z in (
        rng.standard_normal(n),
        np.round(rng.standard_normal(n), 1),
        rng.choice(odd, n),
        np.full(n, -2.0),
        rng.standard_normal(n).astype(np.float32),
        rng.standard_normal(n) * 10.0 ** rng.integers(-300, 300, n),
        np.sort(rng.standard_normal(n))[::-1],
        rng.standard_normal(2 * n)[::2],
    ):
        unchanged = z.copy()
        np.testing.assert_array_equal(stable_argsort(z), np.argsort(z, kind="stable"))
        np.testing.assert_array_equal(z, unchanged)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("n", "m"), [(0, 3), (5, 0), (7, 4099), (4099, 5), (4096, 4096), (0, 4096)])
def test_ranks_equal_searchsorted(n, m, side):
    rng = np.random.default_rng(n + m)
    for digits in (1, 9):
        s, t = (np.sort(np.round(rng.standard_normal(k), digits)) for k in (n, m))
        np.testing.assert_array_equal(ranks_in_sorted(s, t, side=side), np.searchsorted(s, t, side=side))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-100, 100), max_size=20))
def test_prefix_sums(numbers):
    sums = prefix_sums(np.array(numbers, dtype=float))
    assert sums.tolist() == [sum(numbers[:k]) for k in range(len(numbers) + 1)]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 3, 8]), st.sampled_from([1e-3, 1.0, 1e6]))
def test_projections_onto_the_simplex_are_nearest_points(seed, k, scale):
    v = scale * np.random.default_rng(seed).standard_normal((4, k)).round(1)
    one = np.ones(k)
    boxed = np.array([project(row, one, 0 * one, one, total=1.0) for row in v])
    for x in (project_onto_simplex(v), boxed):
        assert np.all(x >= 0)
        np.testing.assert_allclose(x.sum(1), 1, rtol=1e-9)
        for vertex in np.eye(k):  # no direction from x to a vertex of the simplex comes nearer to v
            assert np.all(((v - x) * (vertex - x)).sum(1) <= 1e-9 * (1 + scale))
