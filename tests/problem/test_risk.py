"""The risk: its derivative, its cursors and its intercept."""

import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import ALL_LOSSES, MANY_LOSSES, Problem, problem


def make(loss, n_shards=None, **settings):
    return Problem(loss, **{"n": 30, **settings}).objective(n_shards=n_shards).risk


# ---------------------------------------------------------------- the derivative
@pytest.mark.parametrize("loss", [*ALL_LOSSES, *MANY_LOSSES, rm.Nu(rm.Absolute(), 0.3)], ids=repr)
def test_finite_differences_and_tangents(loss):
    risk = make(loss, n_shards=3, intercept=loss.task != "tagging", weighted=True)
    rng, h = np.random.default_rng(1), 1e-6
    w, d = 0.5 * rng.standard_normal(risk.dim), rng.standard_normal(risk.dim)
    value, grad = risk(w)
    before, after = risk(w - h * d)[0], risk(w + h * d)[0]
    noise = 1e-8 * (1 + value)
    assert (value - before) / h - noise <= grad @ d <= (after - value) / h + noise
    for v in w + rng.standard_normal((5, risk.dim)) * 3:
        assert risk(v)[0] >= value + grad @ (v - w) - 1e-10 * (1 + value)


# ---------------------------------------------------------------- cursors
@dataclass(frozen=True)
class Worst:
    """A non-decomposable loss: the largest hinge of all rows."""

    separable = False

    def value_grad(self, z, y, c):
        m = 1 - y * z
        k = int(np.argmax(m))
        dz = np.zeros_like(z)
        dz[k] = -y[k] if m[k] > 0 else 0.0
        return max(float(m[k]), 0.0), dz


class WorstClass(rm.MulticlassHinge):
    """A multi-output loss that is not separable."""

    separable = False


def test_a_nondecomposable_loss_sees_all_rows():
    X, y, _ = problem(rm.Hinge())
    w = np.random.default_rng(3).standard_normal(4)
    m = 1 - y * (X @ w)
    for n_shards in (1, 4):
        risk = rm.linear_risk(X, y, Worst(), n_shards=n_shards)
        value, grad = risk(w)
        assert value == pytest.approx(m.max(), rel=1e-14)
        np.testing.assert_allclose(grad, -y[m.argmax()] * X[m.argmax()], rtol=1e-14)
    assert rm.minimize(rm.Objective(risk, rm.L2(), 0.1), tol=1e-6).status == "converged"


@dataclass
class Plain:
    """A risk without cursors of its own."""

    inner: object
    dim: int = 4

    def __call__(self, w):
        return self.inner(w)


RISKS = {
    "scores": lambda: make(rm.Logistic(), n_shards=3),
    "scores of a nonsmooth loss": lambda: make(rm.Absolute(), weighted=True),
    "gathered scores": lambda: rm.linear_risk(*problem(rm.Hinge())[:2], Worst(), n_shards=2),
    "threshold": lambda: make(rm.Nu(rm.Absolute(), 0.3), intercept=True, weighted=True),
    "intercept": lambda: make(rm.Logistic(), intercept=True, n_shards=3),
    "intercept of a nonsmooth loss": lambda: make(rm.Hinge(), intercept=True),
    "any oracle": lambda: rm.Objective(Plain(make(rm.Squared())), rm.L2(), 1.0).risk,
    "multi-output scores": lambda: make(rm.Softmax(), n_shards=3, p=1),
    "nonsmooth multi-output scores": lambda: make(rm.MulticlassHinge(), p=2),
    "intercepts in w": lambda: make(rm.Softmax(), intercept=True, n_shards=2, p=1),
    "centered targets": lambda: make(rm.MultivariateSquared(), intercept=True, n_shards=2),
    "chains": lambda: make(rm.ChainCrf(), n_shards=3, p=1),
    "gathered multi-output scores": lambda: rm.linear_risk(
        *problem(rm.MulticlassHinge())[:2], WorstClass(), n_shards=2
    ),
}


@pytest.mark.parametrize("kind", RISKS)
def test_a_cursor_agrees_with_the_oracle_along_lines(kind):
    risk, rng = RISKS[kind](), np.random.default_rng(4)
    w = rng.standard_normal(risk.dim)
    cursor = risk.cursor(w)
    for k in range(36):  # more moves than scores are updated before they are recomputed
        d, t = rng.standard_normal(risk.dim), float(rng.uniform(-0.5, 0.5))
        cursor.set_direction(d)
        if k < 4 or k > 30:
            for s in (0.0, t, 1.5):
                expected, gradient = risk(w + s * d)
                height, slope = cursor.value_slope(s)
                assert height == pytest.approx(expected, rel=1e-10)
                assert slope == pytest.approx(gradient @ d, rel=1e-6, abs=1e-8)
                height, found, _ = cursor.evaluate(s)
                assert height == pytest.approx(expected, rel=1e-10)
                np.testing.assert_allclose(found, gradient, rtol=1e-6, atol=1e-8)
        cursor.advance(t)
        w = w + t * d
        np.testing.assert_allclose(cursor.w, w, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("intercept", [False, True])
def test_several_cursors_at_once(intercept):
    risk = make(rm.Logistic(), intercept=intercept, n_shards=2)
    rng = np.random.default_rng(5)
    points, lines = rng.standard_normal((6, 4)), rng.standard_normal((6, 4))
    cursors = [risk.cursor(w) for w in points]
    for cursor, d in zip(cursors, lines, strict=True):
        cursor.set_direction(d)
    for cursor, w, d in zip(cursors, points, lines, strict=True):
        assert cursor.value_slope(0.7)[0] == pytest.approx(risk(w + 0.7 * d)[0], rel=1e-11)


def test_scores_of_deleted_cursors_are_freed():
    n = 5_000
    risk = make(rm.Logistic(), intercept=True, n=n)
    cursor = risk.cursor(np.ones(4))
    tracemalloc.start()
    for _ in range(20):
        risk(np.zeros(4))
        risk.cursor(np.ones(4)).evaluate()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 8 * (8 * n)  # eight vectors of scores, not twenty
    assert cursor.evaluate().value == risk(np.ones(4))[0]


def test_cursors_are_created_in_several_threads_at_once():
    """Fits in threads, such as those of a search, share the table of live cursors."""
    X, y, _ = problem(rm.Hinge(), 20, 2)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(seed):
        risk, kept = rm.linear_risk(X, y, rm.Hinge(), fit_intercept=True), []
        for k in range(60):
            kept = [*kept[-20:], risk.cursor(np.full(2, float(seed + k)))]
        return True

    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(before)


def test_calls_of_the_risk_do_not_disturb_a_cursor():
    obj = Problem(rm.Hinge(), intercept=True).objective()
    undisturbed = rm.minimize(obj, rm.Bundle(), tol=1e-6)

    def evaluate(it, row):
        for _ in range(5):
            obj.value(it.w + 1)

    result = rm.minimize(obj, rm.Bundle(), tol=1e-6, callback=evaluate)
    assert result.value == undisturbed.value
    np.testing.assert_array_equal(result.w, undisturbed.w)


@pytest.mark.parametrize("slack", [1e-3, 10.0, 1e7])
@pytest.mark.parametrize("loss", [rm.Hinge(), rm.SquaredHinge(), rm.Logistic(), rm.Absolute()], ids=repr)
def test_slack_bounds_overestimates_and_keeps_cuts_below(loss, slack):
    risk, rng = make(loss, intercept=True), np.random.default_rng(6)
    for scale in (1, 30, 1000):
        w, d = scale * rng.standard_normal((2, 4))
        cursor = risk.cursor(w)
        cursor.set_direction(d, slack)
        for t in (0.0, 0.5, -2.0):
            exact = risk(w + t * d)[0]
            assert exact * (1 - 1e-10) <= cursor.value_slope(t)[0] <= exact * (1 + 1e-10) + slack
            _, grad, cut = cursor.evaluate(t)
            height = cut.a @ (w + t * d) + cut.b
            assert height <= exact * (1 + 1e-10)
            for v in w + 3 * rng.standard_normal((3, 4)):
                assert height + grad @ (v - w - t * d) <= risk(v)[0] * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array, sp.csc_array, np.asfortranarray])
def test_a_value_without_a_cut_has_the_same_bits(store):
    """The driver reports it in place of that of an evaluation with a cut, for one and for several shards."""
    X, y, _ = problem(rm.Hinge(), 300, 7)
    w = np.linspace(-1, 1, 7)
    for loss in (rm.Hinge(), rm.Logistic()):
        for n_shards in (None, 3):
            risk = rm.linear_risk(store(X), y, loss, n_shards=n_shards)
            assert risk.at_best_intercept(w)[0] == risk.evaluate(w).value
    with_intercept = rm.linear_risk(X, y, rm.Logistic(), fit_intercept=True)
    assert with_intercept.at_best_intercept(w)[0] == pytest.approx(
        with_intercept.evaluate(w).value, rel=1e-12
    )


# ---------------------------------------------------------------- the intercept
@pytest.mark.parametrize(
    ("loss", "offset", "lam"),
    [
        (rm.Squared(), 1e3, 1e-4),
        (rm.Squared(), 1e9, 1e-6),
        (rm.Absolute(), 1e6, 1e-4),
        (rm.Absolute(), 1e9, 1e-6),
        (rm.Huber(0.1), 1e3, 1e-6),
        (rm.Huber(0.1), 1e6, 1e-4),
    ],
)
def test_features_far_from_zero_give_valid_bounds(loss, offset, lam):
    """An unpenalized intercept absorbs any offset, so the optimum is that of centered features."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (100, 1))
    y = 0.3 * X[:, 0] - 1 + 0.01 * rng.standard_normal(100)
    centered = rm.Objective(rm.linear_risk(X - X.mean(), y, loss, fit_intercept=True), rm.L2(), lam)
    best = rm.minimize(centered, tol=1e-9)
    shifted = rm.Objective(rm.linear_risk(X + offset, y, loss, fit_intercept=True), rm.L2(), lam)
    for solver in (rm.Auto(), rm.Bundle()):
        result = rm.minimize(shifted, solver, max_iter=300)
        rounding = 1e-15 * offset
        assert result.lower <= best.value * (1 + 1e-7) + rounding
        assert result.value >= best.lower * (1 - 1e-7) - rounding
        assert result.status == "converged" or offset > 1e6


@pytest.mark.parametrize("loss", [*ALL_LOSSES, rm.FBeta()], ids=repr)
def test_the_intercept_is_optimal(loss):
    """Against a search without derivatives."""
    X, y, weights = problem(loss, n=15)
    c = np.full(len(y), 1 / len(y)) if weights is None else weights / weights.sum()
    risk = rm.linear_risk(X, y, loss, sample_weight=weights, fit_intercept=True)
    for w in np.random.default_rng(7).standard_normal((2, 4)):

        def f(b, z=X @ w):
            return float(loss.value_grad(z + b, y, c)[0])

        lo, hi = -60.0, 60.0
        for _ in range(100):  # ternary search
            one, two = lo + (hi - lo) / 3, hi - (hi - lo) / 3
            lo, hi = (lo, two) if f(one) <= f(two) else (one, hi)
        best = f((lo + hi) / 2)
        assert risk(w)[0] == pytest.approx(best, rel=1e-9, abs=1e-10)
        assert f(risk.best_intercept(w)) == pytest.approx(best, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize(
    "loss", [rm.Hinge(margin=0.0), rm.Novelty(), rm.Quantile(level=0.5), rm.Absolute()], ids=repr
)
def test_flat_minima_have_valid_cuts(loss):
    """Even numbers of rows, where a whole interval of intercepts is optimal; and risks of zero."""
    rng = np.random.default_rng(8)
    for n in (2, 4, 10):
        X = rng.integers(-2, 3, (n, 2)).astype(float)
        risk = rm.linear_risk(X, np.resize([1.0, -1.0], n), loss, fit_intercept=True)
        points = rng.integers(-2, 3, (20, 2)).astype(float)
        values = np.array([risk(v)[0] for v in points])
        for w in points[:7]:
            value, grad = risk(w)
            assert value >= -1e-15
            assert (value + (points - w) @ grad <= values + 1e-12).all()
    assert risk(np.zeros(2))[0] <= 1


@pytest.mark.parametrize(
    "loss", [rm.Hinge(), rm.Absolute(), rm.Quantile(level=0.25), rm.EpsilonInsensitive(epsilon=0.5)], ids=repr
)
def test_the_best_intercept_is_the_midpoint_of_the_best_ones(loss):
    """Against all kinks, which are multiples of 1/2 for whole numbers; rows of weight zero have none."""
    rng, grid = np.random.default_rng(9), np.arange(-20.0, 20.5, 0.5)
    for n, n_shards in ((4, 1), (8, 2), (12, 3), (40_000, 1)):
        X, y = rng.integers(-2, 3, (n, 2)).astype(float), np.resize([1.0, -1.0], n)
        weights = np.append(np.ones(n - 1), 0.0)
        risk = rm.linear_risk(X, y, loss, sample_weight=weights, fit_intercept=True, n_shards=n_shards)
        for w in rng.integers(-2, 3, (6, 2)).astype(float):
            c = weights / weights.sum()
            values = np.array([float(loss.value_grad(X @ w + b, y, c)[0]) for b in grid])
            best = grid[values <= values.min() + 1e-12]
            assert risk.best_intercept(w) == pytest.approx(0.5 * (best[0] + best[-1]), abs=1e-12)


def test_the_intercept_does_not_depend_on_earlier_calls():
    fresh, risk = (make(rm.Logistic(), intercept=True) for _ in range(2))
    for scale in (1e3, 1e-3, 1.0):
        risk(scale * np.arange(4))
    for repeated, first in zip(risk(np.ones(4)), fresh(np.ones(4)), strict=True):
        np.testing.assert_array_equal(repeated, first)


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e6])
def test_the_intercept_of_labels_far_from_zero(shift):
    X, y, _ = problem(rm.Squared())
    w = np.ones(4)
    for loss in (rm.Squared(), rm.Absolute(), rm.Quantile(level=0.3)):
        original, shifted = (rm.linear_risk(X, y + s, loss, fit_intercept=True) for s in (0.0, shift))
        assert shifted(w)[0] == pytest.approx(original(w)[0], rel=1e-9 + 1e-13 * abs(shift))
        assert shifted.best_intercept(w) - shift == pytest.approx(original.best_intercept(w), abs=1e-6)


def test_counts_of_zero_have_no_best_intercept():
    risk = rm.linear_risk(np.ones((5, 2)), np.zeros(5), rm.Poisson(), fit_intercept=True)
    message = r"falls for ever .*are all counts zero\? .*\) or fit without an intercept"
    with pytest.raises(ValueError, match=message):
        risk(np.zeros(2))
    assert rm.linear_risk(np.ones((5, 2)), np.zeros(5), rm.Poisson())(np.zeros(2))[0] == pytest.approx(1.0)


def test_kinds_of_intercepts():
    assert make(rm.Hinge()).dim == make(rm.Hinge(), intercept=True).dim == 4
    assert make(rm.Softmax(), intercept=True).dim == 12 + 3
    X, Y = np.array([[1.0], [2.0]]), np.array([[3.0, 5.0], [4.0, 7.0]])
    centered, w = rm.linear_risk(X, Y, rm.MultivariateSquared(), fit_intercept=True), np.array([1.0, 2.0])
    assert centered(w)[0] == 0.0
    assert centered.best_intercept(w).tolist() == [2.0, 3.0]


# ---------------------------------------------------------------- regressions
@pytest.mark.parametrize("solver", [rm.Bundle(), rm.Lbfgs()], ids=repr)
def test_the_intercept_of_steep_losses_is_bracketed_without_overflow(solver):
    """From far out, a Newton step in b reaches 1e119, where tangents intersect at meaningless heights."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 10))
    z = X @ rng.standard_normal(10)
    obj = rm.Objective(
        rm.linear_risk(X, np.floor(np.exp(z)), rm.Poisson(), fit_intercept=True), rm.L2(), 0.01
    )
    result = rm.minimize(obj, solver, 3 * rng.standard_normal(10), tol=1e-4)
    assert result.status == "converged"
    assert result.value < obj.value(np.zeros(10))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    ("scale", "n", "p", "lam"), [(1.0, 20, 3, 1e-6), (1e6, 20, 3, 1e-6), (1.0, 3, 30, 1e3), (1e8, 3, 1, 1e4)]
)
def test_cuts_from_far_points_are_valid(scale, n, p, lam, intercept):
    """There R and g @ w are large and cancel, and the intercept is known only up to a slack."""
    rng = np.random.default_rng(0)
    X, y = scale * rng.standard_normal((n, p)), np.resize([1.0, -1.0], n)
    for loss in (rm.Hinge(margin=2.5), rm.SquaredHinge(), rm.SmoothedHinge(mu=2.0)):
        obj = rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=intercept), rm.L2(), lam)
        risk_at_zero = obj.risk(np.zeros(p))[0]
        for solver in (rm.Bundle(), rm.Bmrm(), rm.LineSearchBmrm()):
            for it in islice(solver.iterates(obj, 200 * rng.standard_normal(p)), 5):
                assert it.cut.b <= risk_at_zero * (1 + 1e-9)


def test_rounding_errors_of_large_scores_do_not_remain_in_small_ones():
    X = np.column_stack([np.full(7, 1e6), np.random.default_rng(0).standard_normal((7, 2))[:, 1]])
    y = np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 1.0])
    obj = rm.Objective(rm.linear_risk(X, y, rm.Hinge(), fit_intercept=True), rm.L2(), 1e-4)
    result = rm.minimize(obj, rm.Bundle(), np.array([351.5, 903.5]), tol=1e-5, max_iter=60)
    assert result.lower <= rm.minimize(obj, rm.Bmrm(), tol=1e-9).value * (1 + 1e-13)
    for risk in (obj.risk.with_zero_intercept(), rm.linear_risk(X, y, rm.RocArea())):
        cursor = risk.cursor(np.array([351.5, 903.5]))
        cursor.set_direction(np.array([-351.5, -901.5]))
        cursor.advance(1.0)
        assert cursor.evaluate().value == risk(cursor.w)[0]
