"""Convex functions of one variable: brackets contain the minimum, and tangents intersect below it."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from riskmin.numerics.univariate import (
    Tangent,
    best_tangent,
    bracket_minimum,
    intersection,
    refine_bracket,
    refine_on_grids,
    refine_smooth_bracket,
    zero_slope_weights,
)

reals = st.floats(-1e3, 1e3)
positive = st.floats(1e-3, 1e3)


def count(f):
    """The function, and a list of where it is evaluated."""
    points = []

    def counted(x):
        points.append(x)
        return f(x)

    return counted, points


def polygon(lines):
    """max_k (s_k x + c_k), with the slope of one of the highest lines."""

    def f(x):
        value, slope = max((s * x + c, s) for s, c in lines)
        return Tangent(x, value, slope)

    return f


def polygon_minimum(lines):
    """The minimum of a polygon: at an intersection of two of its lines, or on a flat one."""
    xs = [(c2 - c1) / (s1 - s2) for s1, c1 in lines for s2, c2 in lines if s1 < 0 < s2]
    heights = [max(s * x + c for s, c in lines) for x in xs]
    flat = [c for s, c in lines if s == 0]
    return max(min(heights), *flat) if flat else min(heights)


lines = st.lists(st.tuples(st.integers(-5, 5).map(float), reals), min_size=2, max_size=8).filter(
    lambda ls: min(s for s, _ in ls) < 0 < max(s for s, _ in ls)
)


@st.composite
def smooth(draw):
    """A scaled and shifted log cosh plus a square, with its minimizer and minimum."""
    center, scale, curvature = draw(reals), draw(positive), draw(positive)

    def f(x):
        t = (x - center) / scale
        tanh = math.tanh(t)
        value = curvature * t * t / 2 + abs(t) + math.log1p(math.exp(-2 * abs(t)))
        return Tangent(x, value, (curvature * t + tanh) / scale)

    return f, center, math.log(2)


@settings(deadline=None)
@given(lines, reals, positive)
def test_polygons_are_solved_exactly(parts, x, step):
    f, bottom = polygon(parts), polygon_minimum(parts)
    start = f(x)
    lo, hi = bracket_minimum(f, start, step)
    assert lo.slope <= 0 <= hi.slope or lo == hi
    assert lo.x <= hi.x
    size = 1 + max(abs(c) for _, c in parts) + 5 * (abs(lo.x) + abs(hi.x))
    assert intersection(lo, hi)[1] <= bottom + 1e-12 * size
    counted, evaluations = count(f)
    lo, hi = refine_bracket(counted, lo, hi, lambda best, bound: best - bound <= 0)
    assert best_tangent(lo, hi).value == pytest.approx(bottom, abs=1e-9 * size)
    assert len(evaluations) <= 200


@settings(deadline=None)
@given(smooth(), reals, positive)
def test_smooth_functions_are_bracketed_and_refined(function, x, step):
    f, center, bottom = function
    lo, hi = bracket_minimum(f, f(x), step)
    assert lo.slope <= 0 <= hi.slope
    assert lo.x - 1e-9 <= center <= hi.x + 1e-9
    end_values = abs(lo.value) + abs(hi.value)
    assert intersection(lo, hi)[1] <= bottom + 1e-12 * end_values
    counted, evaluations = count(f)
    ways = [
        lambda: refine_bracket(counted, lo, hi, lambda best, bound: best - bound <= 1e-9 * best),
        lambda: refine_smooth_bracket(counted, lo, hi, lambda best: 1e-9 * best),
    ]
    for refine, most in zip(ways, (120, 90), strict=True):
        evaluations.clear()
        below, above = refine()
        x, bound = intersection(below, above)
        assert below.slope <= 0 <= above.slope
        assert bound <= bottom * (1 + 1e-12) <= best_tangent(below, above).value * (1 + 2e-12)
        assert best_tangent(below, above).value - bound <= 1e-9 * bottom * 1.001
        assert len(evaluations) < most


@given(lines, st.lists(reals, min_size=2, max_size=2))
def test_an_intersection_is_a_lower_bound_and_the_zero_slope_mixture(parts, xs):
    f, bottom = polygon(parts), polygon_minimum(parts)
    lo, hi = sorted((f(x) for x in xs), key=lambda t: t.x)
    assume(lo.slope <= 0 <= hi.slope)
    _, height = intersection(lo, hi)
    size = 1 + max(abs(c) for _, c in parts) + 5 * max(abs(v) for v in xs)
    assert height <= bottom + 1e-12 * size
    left, right = zero_slope_weights(lo, hi)
    assert left >= 0
    assert right >= 0
    assert left + right == pytest.approx(1, abs=1e-15)
    assert left * lo.slope + right * hi.slope == pytest.approx(0, abs=1e-12)
    mixed = left * (lo.value - lo.slope * lo.x) + right * (hi.value - hi.slope * hi.x)
    assert height == pytest.approx(mixed, abs=1e-10 * size)


def test_flat_functions_end_immediately():
    def f(x):
        return Tangent(x, max(abs(x) - 1, 0.0), float(np.sign(x)) * (abs(x) > 1))

    lo, hi = bracket_minimum(f, f(0.5), 1.0)
    assert lo == hi == f(0.5)
    lo, hi = bracket_minimum(f, f(5.0), 1.0)
    assert intersection(lo, hi)[1] <= 0
    lo, hi = refine_bracket(f, lo, hi, lambda best, bound: best <= bound)
    assert best_tangent(lo, hi).value == 0
    assert zero_slope_weights(lo, hi) in ((0.0, 1.0), (1.0, 0.0))


def test_an_intersection_far_below_a_steep_tangent_keeps_its_digits():
    lo, hi = Tangent(0.0, 3.0, -5.0), Tangent(1.0, 1e100, 1e101)  # they meet at 0.9, where lo is -1.5
    x, height = intersection(lo, hi)
    assert x == pytest.approx(0.9)
    assert -1.5 - 1e-9 <= height <= -1.5
    assert zero_slope_weights(lo, hi)[1] == pytest.approx(5e-101)
    steep = Tangent(-1e9, 4e13, -8e4), Tangent(0.0, 5e-7, 1e-3)  # the height is rounding error
    assert intersection(*steep)[1] <= 5e-7
    # rounding errors of order 1e104 must not lift the bound above a minimum of about one
    assert intersection(Tangent(-1.5e119, 1.5e120, -10.0), Tangent(300.0, 1e119, 1e119))[1] <= 0


def falls(x):
    return Tangent(x, math.exp(-x), -math.exp(-x) - 1e-300)


def test_a_function_without_a_minimum_is_refused():
    for f in (falls, lambda x: Tangent(x, falls(-x).value, -falls(-x).slope)):
        with pytest.raises(ValueError, match="falls for ever"):
            bracket_minimum(f, f(0.0), 1.0)
    with pytest.raises(ValueError, match="no minimum"):
        refine_on_grids(lambda ts: [falls(t) for t in ts], falls(0.0), np.ones(2), lambda lo, hi: True)


@pytest.mark.parametrize(("end", "most"), [(1.0, 6), (30.0, 14)])
def test_a_smooth_bracket_is_refined_by_few_evaluations(end, most):
    """exp(x) - 2 x, whose minimizer is log 2: an interpolating cubic is near on [-1, 1], not on [-1, 30]."""
    f, evaluations = count(lambda x: Tangent(x, math.exp(x) - 2 * x, math.exp(x) - 2))
    lo, hi = refine_smooth_bracket(f, f(-1.0), f(end), lambda best: 1e-12 * best)
    assert lo.x <= math.log(2) <= hi.x
    assert best_tangent(lo, hi).value - intersection(lo, hi)[1] <= 1e-12
    assert len(evaluations) - 2 <= most


def test_a_bracket_that_is_not_smooth_is_refined_all_the_same():
    f = polygon([(-1.0, 0.0), (2.0, -1.0), (-3.0, -5.0)])
    lo, hi = refine_smooth_bracket(f, f(-100.0), f(1e4), lambda best: 0.0)
    assert best_tangent(lo, hi).value == pytest.approx(-1 / 3, abs=1e-12)


def test_refinement_stops_at_adjacent_floats():
    def f(x):
        return Tangent(x, abs(x - 1 / 3), 1.0 if x > 1 / 3 else -1.0)

    lo, hi = refine_bracket(f, f(0.0), f(1.0), lambda best, bound: False)
    assert hi.x - lo.x <= 1e-15


@pytest.mark.parametrize("minimum", [0.003, 0.9, 1.0, 77.0])
@pytest.mark.parametrize("reach", [math.inf, 0.8])
def test_grids_bracket_the_minimum(minimum, reach):
    """A sum of a parabola and absolute values: the ends have the signs of their slopes, and are close."""
    launches = []

    def tangents(points):
        launches.append(points)
        assert points.max() <= reach
        return [
            Tangent(t, (t - minimum) ** 2 + abs(t - minimum), 2 * (t - minimum) + np.sign(t - minimum))
            for t in points.tolist()
        ]

    points = 2.0 ** np.arange(-6.5, 1.5, 0.5)
    (start,) = tangents(np.zeros(1))
    lo, hi = refine_on_grids(tangents, start, points, lambda lo, hi: hi.x - lo.x <= 1e-9 * hi.x, reach)
    if minimum > reach:
        assert lo.x == hi.x == reach
        assert hi.slope == 0
    else:
        assert lo.slope <= 0 <= hi.slope
        assert lo.x <= minimum <= hi.x <= lo.x + 1e-9 * hi.x
    # 17-fold narrower per launch
    assert len(launches) <= 12
