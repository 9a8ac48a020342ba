"""The risk: its derivative, its cursors, its intercept, and its input errors."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp

from helpers import ALL_LOSSES, MANY_LOSSES, problem, risk_of
from riskmin import (
    L2,
    Absolute,
    Auto,
    Bmrm,
    Bundle,
    ChainCrf,
    Hinge,
    Huber,
    Lbfgs,
    LineSearchBmrm,
    Logistic,
    MulticlassHinge,
    MultivariateSquared,
    Newton,
    NoIntercept,
    Novelty,
    Objective,
    Poisson,
    ProfiledIntercept,
    Quantile,
    RocArea,
    SmoothedHinge,
    Softmax,
    Squared,
    SquaredHinge,
    linear_risk,
    minimize,
)
from riskmin.problem import shard_ops
from riskmin.problem.oracle import OracleCursor, as_oracle
from riskmin.problem.risk import GatheredCursor, ScoreCursor

each_loss = pytest.mark.parametrize("loss", ALL_LOSSES, ids=repr)
multi_output_losses = pytest.mark.parametrize("loss", MANY_LOSSES, ids=repr)


def make(loss, *, intercept=False, weighted=False, seed=0, n=30, p=4, **settings):
    X, y, weights = problem(loss, n=n, p=p, seed=seed)
    return risk_of(loss, X, y, weights if weighted else None, fit_intercept=intercept, **settings)


# ---------------------------------------------------------------- the derivative
@pytest.mark.parametrize("loss", [*ALL_LOSSES, *MANY_LOSSES], ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_finite_differences_and_tangents(loss, intercept):
    risk = make(loss, intercept=intercept and loss.task != "tagging", weighted=True, n_shards=3)
    rng, h = np.random.default_rng(1), 1e-6
    for _ in range(5):
        w, d = 0.5 * rng.standard_normal(risk.dim), rng.standard_normal(risk.dim)
        value, grad = risk(w)
        before, after = risk(w - h * d)[0], risk(w + h * d)[0]
        noise = 1e-8 * (1 + value)
        assert (value - before) / h - noise <= grad @ d <= (after - value) / h + noise
        for v in w + rng.standard_normal((5, risk.dim)) * 3:
            assert risk(v)[0] >= value + grad @ (v - w) - 1e-10 * (1 + value)


@each_loss
def test_the_risk_is_the_weighted_mean(loss):
    X, y, weights = problem(loss)
    w = np.random.default_rng(2).standard_normal(4)
    z, c = X @ w, weights / weights.sum()
    value, dz = loss.value_grad(z, y, c)
    for settings in ({}, {"n_shards": 7}):
        result, grad = linear_risk(X, y, loss, sample_weight=1e3 * weights, **settings)(w)
        assert result == pytest.approx(float(value), rel=1e-12)
        np.testing.assert_allclose(grad, X.T @ dz, rtol=1e-10, atol=1e-13)
    positive = weights > 0
    subset_value, grad = linear_risk(X[positive], y[positive], loss, sample_weight=weights[positive])(w)
    assert subset_value == pytest.approx(float(value), rel=1e-12)


@multi_output_losses
def test_the_multi_output_risk_is_the_weighted_mean(loss):
    X, y, weights = problem(loss)
    risk = risk_of(loss, X, y, 1e3 * weights)
    rows = risk.rows
    w = np.random.default_rng(2).standard_normal(risk.dim)
    k = risk.linear_map.columns
    W, shared = w[: 4 * k].reshape(4, k), w[4 * k :].reshape(-1, k)
    value, dz = loss.value_grad(np.concatenate([X @ W, shared]), rows.y, rows.c)
    expected = np.concatenate([(X.T @ dz[:30]).ravel(), dz[30:].ravel()])
    for n_shards in (None, 7):
        result, grad = risk_of(loss, X, y, 1e3 * weights, n_shards=n_shards)(w)
        assert result == pytest.approx(float(value), rel=1e-12)
        np.testing.assert_allclose(grad, expected, rtol=1e-10, atol=1e-13)


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


def test_a_nondecomposable_loss_sees_all_rows():
    X, y, _ = problem(Hinge())
    w = np.random.default_rng(3).standard_normal(4)
    m = 1 - y * (X @ w)
    for n_shards in (1, 4):
        risk = linear_risk(X, y, Worst(), n_shards=n_shards)
        value, grad = risk(w)
        assert value == pytest.approx(m.max(), rel=1e-14)
        np.testing.assert_allclose(grad, -y[m.argmax()] * X[m.argmax()], rtol=1e-14)
        assert isinstance(risk.cursor(w), GatheredCursor)
    result = minimize(Objective(risk, L2(), 0.1), tol=1e-6)
    assert result.status == "converged"


class WorstClass(MulticlassHinge):
    """A multi-output loss that is not separable."""

    separable = False


KINDS = {
    "scores": (lambda: make(Logistic(), n_shards=3), ScoreCursor),
    "scores of a nonsmooth loss": (lambda: make(Absolute(), weighted=True), ScoreCursor),
    "gathered scores": (lambda: linear_risk(*problem(Hinge())[:2], Worst(), n_shards=2), GatheredCursor),
    "intercept": (lambda: make(Logistic(), intercept=True, n_shards=3), ScoreCursor),
    "intercept of a nonsmooth loss": (lambda: make(Hinge(), intercept=True), ScoreCursor),
    "any oracle": (lambda: make(Squared()).__call__, OracleCursor),
    "multi-output scores": (lambda: make(Softmax(), n_shards=3, p=1), ScoreCursor),
    "nonsmooth multi-output scores": (lambda: make(MulticlassHinge(), p=2), ScoreCursor),
    "intercepts in w": (lambda: make(Softmax(), intercept=True, n_shards=2, p=1), ScoreCursor),
    "centered targets": (lambda: make(MultivariateSquared(), intercept=True, n_shards=2), ScoreCursor),
    "chains": (lambda: make(ChainCrf(), n_shards=3, p=1), ScoreCursor),
    "gathered multi-output scores": (
        lambda: linear_risk(*problem(MulticlassHinge())[:2], WorstClass(), n_shards=2),
        GatheredCursor,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cursor_agrees_with_the_oracle_along_lines(kind):
    make_risk, cursor_type = KINDS[kind]
    risk = make_risk()
    rng = np.random.default_rng(4)
    dim = getattr(risk, "dim", 4)
    w = rng.standard_normal(dim)
    cursor = as_oracle(risk).cursor(w)
    assert isinstance(cursor, cursor_type)
    for _ in range(40):  # more moves than scores are updated before they are recomputed
        value, grad = risk(w)
        result, slope, _ = cursor.evaluate()
        assert result == pytest.approx(value, rel=1e-10)
        np.testing.assert_allclose(slope, grad, rtol=1e-6, atol=1e-8)
        d = rng.standard_normal(dim)
        cursor.set_direction(d)
        for t in rng.standard_normal(3):
            expected, g = risk(w + t * d)
            height, slope = cursor.value_slope(t)
            assert height == pytest.approx(expected, rel=1e-10)
            assert slope == pytest.approx(g @ d, rel=1e-6, abs=1e-8)
            height, full, _ = cursor.evaluate(t)
            assert height == pytest.approx(expected, rel=1e-10)
            np.testing.assert_allclose(full, g, rtol=1e-6, atol=1e-8)
        t = float(rng.uniform(-0.5, 0.5))
        cursor.advance(t)
        w = w + t * d
        np.testing.assert_allclose(cursor.w, w, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("intercept", [False, True])
def test_several_cursors_at_once(intercept):
    risk = make(Logistic(), intercept=intercept, n_shards=2)
    rng = np.random.default_rng(5)
    points, lines = rng.standard_normal((6, 4)), rng.standard_normal((6, 4))
    cursors = [risk.cursor(w) for w in points]
    for cursor, d in zip(cursors, lines, strict=True):
        cursor.set_direction(d)
    for cursor, w, d in zip(cursors, points, lines, strict=True):
        assert cursor.value_slope(0.7)[0] == pytest.approx(risk(w + 0.7 * d)[0], rel=1e-11)


def test_scores_of_deleted_cursors_are_freed():
    risk = make(Logistic(), intercept=True)
    cache = risk.executor.shards[0].cache
    for _ in range(20):
        risk(np.ones(4))
    gc.collect()
    cursor = risk.cursor(np.ones(4))
    risk(np.zeros(4))
    risk(np.zeros(4))
    assert len(cache["cursors"]) <= 3
    assert cursor.evaluate().value == risk(np.ones(4))[0]


@pytest.mark.parametrize("slack", [1e-3, 0.1, 10.0, 1e7])
@pytest.mark.parametrize("loss", [Hinge(), SquaredHinge(), Logistic(), Absolute()], ids=repr)
def test_slack_bounds_overestimates_and_keeps_cuts_below(loss, slack):
    risk = make(loss, intercept=True)
    rng = np.random.default_rng(6)
    for scale in (1, 1, 1, 30, 1000, 1000):
        w, d = scale * rng.standard_normal((2, 4))
        cursor = risk.cursor(w)
        cursor.set_direction(d, slack)
        for t in (0.0, 0.5, 3.0, -2.0):
            exact = risk(w + t * d)[0]
            assert exact * (1 - 1e-10) <= cursor.value_slope(t)[0] <= exact * (1 + 1e-10) + slack
            _, grad, cut = cursor.evaluate(t)
            height = cut.a @ (w + t * d) + cut.b
            assert height <= exact * (1 + 1e-10)
            for v in w + 3 * rng.standard_normal((5, 4)):
                assert height + grad @ (v - w - t * d) <= risk(v)[0] * (1 + 1e-9) + 1e-12


# ---------------------------------------------------------------- the intercept
@pytest.mark.parametrize("offset", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("loss", [Squared(), Absolute(), Huber(0.1)], ids=repr)
def test_features_far_from_zero_give_valid_bounds(loss, offset):
    """An unpenalized intercept absorbs any offset, so the optimum is that of centered features."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.uniform(0, 10, (200, 1))
        y = 0.3 * X[:, 0] - 1 + 0.01 * rng.standard_normal(200)
        for lam in (1e-4, 1e-6):
            centered = Objective(linear_risk(X - X.mean(), y, loss, fit_intercept=True), L2(), lam)
            best = minimize(centered, tol=1e-9)
            shifted = Objective(linear_risk(X + offset, y, loss, fit_intercept=True), L2(), lam)
            for solver in (Auto(), Bundle()):
                result = minimize(shifted, solver, max_iter=300)
                rounding = 1e-15 * offset
                assert result.lower <= best.value * (1 + 1e-7) + rounding
                assert result.value >= best.lower * (1 - 1e-7) - rounding


@each_loss
@pytest.mark.parametrize("weighted", [False, True])
def test_the_intercept_is_optimal(loss, weighted):
    """Against a search without derivatives."""
    X, y, weights = problem(loss, n=15)
    c = weights / weights.sum() if weighted else np.full(15, 1 / 15)
    risk = linear_risk(X, y, loss, sample_weight=weights if weighted else None, fit_intercept=True)
    for w in np.random.default_rng(7).standard_normal((4, 4)):
        z = X @ w

        def f(b, z=z):
            return float(loss.value_grad(z + b, y, c)[0])

        value, b = risk(w)[0], risk.best_intercept(w)
        lo, hi = -60.0, 60.0
        for _ in range(200):  # ternary search
            one, two = lo + (hi - lo) / 3, hi - (hi - lo) / 3
            lo, hi = (lo, two) if f(one) <= f(two) else (one, hi)
        best = f((lo + hi) / 2)
        assert value == pytest.approx(best, rel=1e-9, abs=1e-10)
        assert f(b) == pytest.approx(best, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("loss", [Hinge(margin=0.0), Novelty(), Quantile(level=0.5), Absolute()], ids=repr)
def test_flat_minima_have_valid_cuts(loss):
    """Even numbers of rows, where a whole interval of intercepts is optimal; and risks of zero."""
    rng = np.random.default_rng(8)
    for n in (2, 4, 10):
        X = rng.integers(-2, 3, (n, 2)).astype(float)
        y = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
        risk = linear_risk(X, y, loss, fit_intercept=True)
        points = rng.integers(-2, 3, (30, 2)).astype(float)
        values = [risk(v)[0] for v in points]
        for w in points[:10]:
            value, grad = risk(w)
            assert value >= -1e-15
            for v, risk_at_v in zip(points, values, strict=True):
                assert value + grad @ (v - w) <= risk_at_v + 1e-12
    assert risk(np.zeros(2))[0] <= 1


def test_the_intercept_does_not_depend_on_earlier_calls():
    X, y, _ = problem(Logistic())
    fresh = linear_risk(X, y, Logistic(), fit_intercept=True)(np.ones(4))
    risk = linear_risk(X, y, Logistic(), fit_intercept=True)
    for scale in (1e3, 1e-3, 1.0):
        risk(scale * np.arange(4))
    repeated = risk(np.ones(4))
    assert repeated[0] == fresh[0]
    np.testing.assert_array_equal(repeated[1], fresh[1])


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e6])
def test_the_intercept_of_labels_far_from_zero(shift):
    X, y, _ = problem(Squared())
    for loss in (Squared(), Absolute(), Quantile(level=0.3)):
        original, shifted = (linear_risk(X, y + s, loss, fit_intercept=True) for s in (0.0, shift))
        assert shifted(np.ones(4))[0] == pytest.approx(
            original(np.ones(4))[0], rel=1e-9 + 1e-15 * abs(shift) * 100
        )
        assert shifted.best_intercept(np.ones(4)) - shift == pytest.approx(
            original.best_intercept(np.ones(4)), abs=1e-6
        )


def test_counts_of_zero_have_no_best_intercept():
    risk = linear_risk(np.ones((5, 2)), np.zeros(5), Poisson(), fit_intercept=True)
    with pytest.raises(
        ValueError, match=r"falls for ever .*are all counts zero\? .*\) or fit without an intercept"
    ):
        risk(np.zeros(2))
    assert linear_risk(np.ones((5, 2)), np.zeros(5), Poisson())(np.zeros(2))[0] == pytest.approx(1.0)


def test_kinds_of_risks():
    assert make(Hinge()).intercept == NoIntercept()
    assert make(Hinge(), intercept=True).intercept == ProfiledIntercept()
    assert make(Hinge()).dim == make(Hinge(), intercept=True).dim == 4


# ---------------------------------------------------------------- bad inputs
GOOD_X, GOOD_Y = np.arange(12.0).reshape(6, 2), np.array([1.0, -1, 1, -1, 1, -1])


def with_bad_cell(value, kind):
    X = GOOD_X.copy()
    X[3, 1] = value
    return kind(X)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (np.ascontiguousarray, "row 3, column 1"),
        (lambda X: X.astype(np.float32), "row 3, column 1"),
        (np.asfortranarray, ""),
        (sp.csr_array, "row 3"),
        (sp.csc_array, ""),
    ],
)
def test_bad_cells_are_reported(value, kind, where):
    with pytest.raises(ValueError, match=rf"X holds NaN or infinity .*{where}.*: drop or impute"):
        linear_risk(with_bad_cell(value, kind), GOOD_Y, Hinge())


def test_finite_numbers_whose_sum_overflows_are_accepted():
    linear_risk(np.full((6, 2), 1e308), GOOD_Y, Hinge())


@pytest.mark.parametrize(
    ("X", "y", "settings", "message"),
    [
        (np.zeros((0, 2)), np.zeros(0), {}, "X has 0 rows: there is nothing to fit"),
        (sp.csr_array((0, 2)), np.zeros(0), {}, "X has 0 rows"),
        (GOOD_X[:, 0], GOOD_Y, {}, "two dimensions, rows and columns, but its shape is"),
        (GOOD_X, GOOD_Y[:4], {}, "y has 4 labels, but X has 6 rows"),
        (GOOD_X, GOOD_Y, {"sample_weight": np.ones(5)}, "but X has 6 rows: give one weight per row"),
        (GOOD_X, GOOD_Y, {"sample_weight": np.ones((6, 1))}, "give one weight per row"),
        (GOOD_X, GOOD_Y, {"sample_weight": [1, 1, -1, 1, 1, 1]}, "weights must be >= 0"),
        (GOOD_X, GOOD_Y, {"sample_weight": [1, 1, np.nan, 1, 1, 1]}, "weights must be >= 0"),
        (GOOD_X, GOOD_Y, {"sample_weight": [1, 1, np.inf, 1, 1, 1]}, "weights must be >= 0"),
        (GOOD_X, GOOD_Y, {"sample_weight": np.zeros(6)}, "at least one weight must be > 0"),
        (GOOD_X, (GOOD_Y + 1) / 2, {}, "needs labels -1 and \\+1, but y holds 0, 1"),
        (GOOD_X, np.array(list("ababab")), {}, "needs labels -1 and"),
        (GOOD_X, np.ones(6), {}, "a single class"),
        (GOOD_X, np.where(GOOD_Y > 0, np.nan, 1), {}, "are NaN; drop those rows"),
    ],
)
def test_bad_inputs_are_refused(X, y, settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        linear_risk(X, y, Hinge(), **settings)
    assert "\n" not in str(caught.value)


def test_weights_of_any_size_are_normalized():
    for factor in (1e-300, 1.0, 1e300):
        risk = linear_risk(GOOD_X, GOOD_Y, Hinge(), sample_weight=np.full(6, factor))
        assert risk(np.zeros(2))[0] == pytest.approx(1.0)


def test_inputs_are_unchanged_and_need_not_be_floats():
    X, y, weights = GOOD_X.copy(), GOOD_Y.copy(), np.arange(6)
    value, _ = linear_risk(X, y, Hinge(), sample_weight=weights)(np.ones(2))
    np.testing.assert_array_equal(X, GOOD_X)
    np.testing.assert_array_equal(y, GOOD_Y)
    np.testing.assert_array_equal(weights, np.arange(6))
    other, _ = linear_risk(X.astype(int), y.astype(int).tolist(), Hinge(), sample_weight=list(weights))(
        np.ones(2)
    )
    assert other == value


@pytest.mark.parametrize("where", ["data in torch", "all in torch"])
@pytest.mark.parametrize(("loss", "solver"), [(Hinge(), Bundle()), (Logistic(), Lbfgs())], ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_torch_data_give_the_same_fit(where, loss, solver, intercept):
    torch = pytest.importorskip("torch")
    X, y, weights = problem(loss)
    expected = minimize(
        Objective(linear_risk(X, y, loss, sample_weight=weights, fit_intercept=intercept), L2(), 0.1),
        solver,
        tol=1e-7,
    )
    risk = linear_risk(
        torch.as_tensor(X), torch.as_tensor(y), loss, sample_weight=weights, fit_intercept=intercept
    )
    w0 = torch.zeros(4, dtype=torch.float64) if where == "all in torch" else None
    result = minimize(Objective(risk, L2(), 0.1), solver, w0, tol=1e-7)
    assert isinstance(result.w, torch.Tensor if where == "all in torch" else np.ndarray)
    assert result.status == "converged"
    assert result.value == pytest.approx(expected.value, rel=2e-7)


# ---------------------------------------------------------------- regressions
@pytest.mark.parametrize("solver", [Bundle(), Lbfgs()], ids=repr)
def test_the_intercept_of_steep_losses_is_bracketed_without_overflow(solver):
    """From far out, a Newton step in b reaches 1e119, where tangents intersect at meaningless heights."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 10))
    z = X @ rng.standard_normal(10)
    obj = Objective(linear_risk(X, np.floor(np.exp(z)), Poisson(), fit_intercept=True), L2(), 0.01)
    result = minimize(obj, solver, 3 * rng.standard_normal(10), tol=1e-6)
    assert result.status == "converged"
    assert result.value < obj.value(np.zeros(10))


def test_calls_of_the_risk_do_not_disturb_a_cursor():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), np.where(rng.random(40) < 0.5, 1.0, -1.0)
    obj = Objective(linear_risk(X, y, Hinge(), fit_intercept=True), L2(), 0.01)
    undisturbed = minimize(obj, Bundle(), tol=1e-6)

    def evaluate(it, row):
        for _ in range(5):
            obj.value(it.w + 1)

    result = minimize(obj, Bundle(), tol=1e-6, callback=evaluate)
    assert result.value == undisturbed.value
    np.testing.assert_array_equal(result.w, undisturbed.w)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    ("scale", "n", "p", "lam"), [(1.0, 20, 3, 1e-6), (1e6, 20, 3, 1e-6), (1.0, 3, 30, 1e3), (1e8, 3, 1, 1e4)]
)
def test_cuts_from_far_points_are_valid(scale, n, p, lam, intercept):
    """There R and g @ w are large and cancel, and the intercept is known only up to a slack."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X, y = scale * rng.standard_normal((n, p)), np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
        for loss in (Hinge(margin=2.5), SquaredHinge(), SmoothedHinge(mu=2.0)):
            obj = Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), lam)
            risk_at_zero = obj.risk(np.zeros(p))[0]
            for solver in (Bundle(), Bmrm(), LineSearchBmrm()):
                for it in islice(solver.iterates(obj, 200 * rng.standard_normal(p)), 6):
                    assert it.cut.b <= risk_at_zero * (1 + 1e-9)


def test_rounding_errors_of_large_scores_do_not_remain_in_small_ones():
    X = np.column_stack([np.full(7, 1e6), np.random.default_rng(0).standard_normal((7, 2))[:, 1]])
    y = np.array([1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 1.0])
    obj = Objective(linear_risk(X, y, Hinge(), fit_intercept=True), L2(), 1e-4)
    result = minimize(obj, Bundle(), np.array([351.5, 903.5]), tol=1e-5, max_iter=60)
    assert result.lower <= minimize(obj, Bmrm(), tol=1e-9).value * (1 + 1e-13)
    for risk in (obj.risk.with_zero_intercept(), linear_risk(X, y, RocArea())):
        cursor = risk.cursor(np.array([351.5, 903.5]))
        cursor.set_direction(np.array([-351.5, -901.5]))
        cursor.advance(1.0)
        assert cursor.scores_recomputed
        assert cursor.evaluate().value == risk(cursor.w)[0]


def test_cursors_are_created_in_several_threads_at_once():
    """Fits in threads, such as those of a search, share the table of live cursors."""
    X, y = np.random.default_rng(0).standard_normal((20, 2)), np.tile([1.0, -1.0], 10)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(seed):
        risk, kept = linear_risk(X, y, Hinge(), fit_intercept=True), []
        for k in range(150):
            kept = [*kept[-20:], risk.cursor(np.full(2, float(seed + k)))]
        return True

    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(8)))
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array, sp.csc_array, np.asfortranarray])
def test_a_value_without_a_cut_has_the_same_bits(store):
    """The driver reports it in place of that of an evaluation with a cut, for one and for several shards."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((300, 7)), np.where(rng.random(300) < 0.5, 1.0, -1.0)
    for loss in (Hinge(), Logistic()):
        for n_shards in (None, 3):
            risk, w = linear_risk(store(X), y, loss, n_shards=n_shards), rng.standard_normal(7)
            assert risk.value_is_cheaper(None)
            assert risk.value_near(w, None) == risk.evaluate(w).value
    with_intercept = linear_risk(X, y, Logistic(), fit_intercept=True)
    assert with_intercept.value_is_cheaper((0.0, 0.1))
    assert not with_intercept.value_is_cheaper(None)
    assert with_intercept.value_near(w, None) == pytest.approx(with_intercept.evaluate(w).value, rel=1e-12)


def test_the_last_point_needs_no_gradient_where_the_solver_proves_the_gap(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 7))
    obj = Objective(linear_risk(X, X[:, 0] + rng.standard_normal(300), Squared()), L2(), 1e-3)
    called = []
    for name in ("value", "value_grad"):
        run = getattr(shard_ops, name)
        monkeypatch.setattr(shard_ops, name, lambda *args, f=run, n=name: called.append(n) or f(*args))
    result = minimize(obj, Newton())
    assert result.status == "converged"
    assert called == ["value"]
    monkeypatch.undo()
    assert result.value == obj.value(result.w)
