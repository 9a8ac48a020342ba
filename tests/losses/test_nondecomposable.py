"""Losses of pairs and of contingency tables against their definitions: all labellings, pairs and tables."""

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from riskmin import (
    L2,
    Bundle,
    FBeta,
    Hinge,
    Objective,
    Ordinal,
    Prbep,
    PrecisionAtK,
    Processes,
    RecallAtK,
    RocArea,
    Smoothing,
    Threads,
    linear_risk,
    minimize,
)
from riskmin.numerics.sorting import RADIX_SORT_FROM, prefix_sums, ranks_in_sorted, stable_argsort

COSTS = ((), (1.0,), (3.0, 0.0), (4.0, 0.5, 2.0))


# ---------------------------------------------------------------- the definitions
def discrepancy(loss, hits, misses, alarms):
    """Delta of a contingency table; None if the loss does not admit it, except for the true labels."""
    if isinstance(loss, FBeta):
        b = loss.beta**2
        return 1 - (1 + b) * hits / ((1 + b) * hits + b * misses + alarms)
    if isinstance(loss, Prbep):
        return misses / (hits + misses) if misses == alarms else None
    if hits + alarms != loss.k:
        return None
    return 1 - hits / (hits + misses if isinstance(loss, RecallAtK) else loss.k)


def by_labellings(loss, z, y):
    """The largest Delta(y', y) + sum_i z_i (y'_i - y_i) / n over all labellings y'."""
    n, best = len(z), 0.0  # the true labels have Delta 0
    for labelling in itertools.product([-1.0, 1.0], repeat=n):
        other = np.array(labelling)
        hits, alarms = int(np.sum((other > 0) & (y > 0))), int(np.sum((other > 0) & (y < 0)))
        delta = discrepancy(loss, hits, int(np.sum(y > 0)) - hits, alarms)
        if delta is not None:
            best = max(best, delta + z @ (other - y) / n)
    return best


def by_tables(loss, z, y):
    """The same in O(n^2), since the best labelling of each table is known."""
    n, low, high = len(z), np.sort(z[y > 0]), -np.sort(-z[y < 0])
    missed_sums, alarm_sums = np.append(0, np.cumsum(low)), np.append(0, np.cumsum(high))
    misses, alarms = np.ix_(np.arange(len(low) + 1), np.arange(len(high) + 1))
    b = loss.beta**2
    hits = (1 + b) * (len(low) - misses)
    return np.max(
        1 - hits / (hits + b * misses + alarms) + 2 / n * (alarm_sums[alarms] - missed_sums[misses])
    )


def pair_weights(loss, y, c):
    """The weights p_ij of pairs, which sum to one."""
    p = (y[:, None] > y) * c[:, None] * c
    if getattr(loss, "costs", None) is not None:
        grade = np.unique(y, return_inverse=True)[1]
        table = np.array([[loss.costs[k][h] if h < k else 0.0 for h in range(4)] for k in range(4)])
        p = p * table[grade[:, None], grade]
    return p / p.sum()


def by_pairs(loss, z, y, c, mu=0.0):
    """sum_ij p_ij max_b b (1 - z_i + z_j) - mu b^2 / 2, its gradient, and the minorant offset."""
    p, t = pair_weights(loss, y, c), 1 - (z[:, None] - z)
    b = np.clip(t / mu, 0, 1) if mu else (t > 0).astype(float)
    offset = mu / 2 * np.sum(p * b * b)
    return np.sum(p * b * t) - offset, (p * b).sum(axis=0) - (p * b).sum(axis=1), offset


def draw(rng, n, positives=None):
    """Labels with the given number of positives; scores small, large, tied, all equal or far apart."""
    positives = rng.integers(1, n) if positives is None else positives
    y = rng.permutation(np.where(np.arange(n) < positives, 1.0, -1.0))
    z = rng.standard_normal(n) * rng.choice([0.01, 1.0, 10.0, 1e6])
    kind = rng.integers(5)
    if kind < 2:
        z = np.round(z)
    if kind == 2:
        z = np.full(n, 3.0)
    if kind == 3:
        z[rng.integers(n)] *= 1e4
    return z, y


def table_losses(n):
    return [
        Prbep(),
        *(FBeta(beta) for beta in (0.05, 0.5, 1.0, 2.0, 30.0)),
        *(kind(k) for kind in (PrecisionAtK, RecallAtK) for k in range(1, n + 1)),
    ]


def check_table(loss, z, y):
    n = len(z)
    value, dz = loss.value_grad(z, y, np.full(n, 1 / n))
    expected = by_labellings(loss, z, y)
    size = 1 + np.abs(z).max()
    assert abs(value - expected) <= 1e-13 * size, (loss, z, y)
    # dz is the gradient of a labelling that attains the maximum
    chosen = y + n * dz
    np.testing.assert_allclose(np.abs(chosen), 1.0, rtol=1e-12)
    hits, alarms = int(np.sum((chosen > 0) & (y > 0))), int(np.sum((chosen > 0) & (y < 0)))
    delta = discrepancy(loss, hits, int(np.sum(y > 0)) - hits, alarms) if np.any(dz) else 0.0
    assert delta is not None
    assert abs(delta + z @ dz - expected) <= 1e-13 * size


# ---------------------------------------------------------------- contingency tables
@pytest.mark.parametrize("n", [2, 3, 5, 7])
def test_table_losses_are_the_maximum_over_all_labellings(n):
    rng = np.random.default_rng(n)
    for _ in range(3 if n == 7 else 6):
        z, y = draw(rng, n)
        for loss in table_losses(n):
            check_table(loss, z, y)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("n", "times"), [(4, 30), (8, 3), (9, 2)])
def test_table_losses_are_the_maximum_over_all_labellings_of_more_rows(n, times):
    rng = np.random.default_rng(100 + n)
    for positives in {1, n - 1, n // 2, n // 2 + 1}:
        for _ in range(times):
            z, y = draw(rng, n, positives)
            for loss in table_losses(n) if n < 12 else [Prbep(), FBeta(), PrecisionAtK(3), RecallAtK(9)]:
                check_table(loss, z, y)


@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
def test_f_beta_is_the_maximum_over_all_tables(beta):
    """1000 random cases of up to 60 rows; where rounding decides ties, the value still agrees."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        z, y = draw(rng, int(rng.integers(2, 60)))
        value, _ = FBeta(beta).value_grad(z, y, np.full(len(z), 1 / len(z)))
        assert value == pytest.approx(by_tables(FBeta(beta), z, y), rel=1e-12, abs=1e-12 * np.abs(z).max())


@pytest.mark.slow
def test_f_beta_of_long_lists_is_the_maximum_over_all_tables():
    rng = np.random.default_rng(1)
    for n in (RADIX_SORT_FROM - 1, RADIX_SORT_FROM + 1, 6000):
        y = np.where(rng.random(n) < 0.2, 1.0, -1.0)
        z = np.round(rng.standard_normal(n) + 0.5 * y, 2)
        value, _ = FBeta().value_grad(z, y, np.full(n, 1 / n))
        assert value == pytest.approx(by_tables(FBeta(), z, y), rel=1e-11)


def test_table_losses_bound_the_metric_of_the_predicted_signs():
    rng = np.random.default_rng(2)
    for _ in range(50):
        z, y = draw(rng, 20)
        z = np.where(z == 0, 0.1, z)
        hits, alarms = int(np.sum((z > 0) & (y > 0))), int(np.sum((z > 0) & (y < 0)))
        table = hits, int(np.sum(y > 0)) - hits, alarms
        for loss in (FBeta(), Prbep(), PrecisionAtK(hits + alarms or 1), RecallAtK(hits + alarms or 1)):
            delta = discrepancy(loss, *table)
            if delta is not None:
                assert loss.value_grad(z, y, np.full(20, 0.05))[0] >= delta - 1e-12


@pytest.mark.parametrize("loss", [Prbep(), FBeta(), PrecisionAtK(2), RecallAtK(2)], ids=repr)
def test_table_losses_require_equal_weights(loss):
    X, y = np.eye(4), np.array([1.0, 1.0, -1.0, -1.0])
    with pytest.raises(ValueError, match="counts rows, so all must weigh the same: fit without"):
        linear_risk(X, y, loss, sample_weight=[1, 2, 1, 1])(np.zeros(4))
    value, _ = linear_risk(X, y, loss, sample_weight=[3, 3, 3, 3])(np.ones(4))
    assert value == linear_risk(X, y, loss)(np.ones(4))[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FBeta(0.0), "FBeta needs a beta > 0"),
        (lambda: FBeta(math.nan), "FBeta needs a beta > 0"),
        (lambda: FBeta(math.inf), "FBeta needs a beta > 0"),
        (lambda: FBeta(1e-200), "whose square is a number"),
        (lambda: FBeta(1e200), "whose square is a number"),
        (lambda: PrecisionAtK(0), "PrecisionAtK needs k to be a whole number >= 1, not 0"),
        (lambda: RecallAtK(2.5), "RecallAtK needs k to be a whole number >= 1"),
        (lambda: PrecisionAtK("3"), "whole number"),
        (lambda: linear_risk(np.eye(2), [1, -1], PrecisionAtK(3))(np.zeros(2)), "k=3 rows, but there are 2"),
        (lambda: Ordinal([[], [-1.0]]), "costs needs one row per grade"),
        (lambda: Ordinal([[], [0.0]]), "costs needs one row per grade"),
        (lambda: Ordinal([[], []]), "costs needs one row per grade"),
        (lambda: Ordinal([[], [math.nan]]), "costs needs one row per grade"),
        (lambda: linear_risk(np.eye(2), [1, 1], Ordinal()), "y holds a single grade, 1"),
        (lambda: linear_risk(np.eye(2), [1, 1], RocArea()), "y holds a single class"),
        (
            lambda: linear_risk(np.eye(3), [1, 2, 3], Ordinal([[], [1]]))(np.zeros(3)),
            "3 grades: give one row",
        ),
        (
            lambda: linear_risk(np.eye(2), [1, -1], RocArea(), sample_weight=[1, 0])(np.zeros(2)),
            "RocArea compares two classes, but all rows of one weigh 0",
        ),
        (
            lambda: linear_risk(np.eye(2), [1, 2], Ordinal(), sample_weight=[1, 0])(np.zeros(2)),
            "no pair of grades in y has a weight above 0",
        ),
    ],
)
def test_errors_name_cause_and_remedy(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- pairs
@pytest.mark.parametrize("mu", [0.0, 1e-6, 0.1, 5.0])
@pytest.mark.parametrize("loss", [RocArea(), Ordinal(), Ordinal(COSTS)], ids=["area", "grades", "costs"])
def test_pair_losses_are_the_sum_over_all_pairs(loss, mu):
    rng = np.random.default_rng(3)
    for n in (4, 5, 17, 40, 90):
        for _ in range(4):
            z, y = draw(rng, n)
            if isinstance(loss, Ordinal):
                y = rng.permutation(np.arange(n) % 4) * 2.5 - 1
            c = rng.integers(0, 4, n) * rng.random(n)
            c[[np.argmax(y), np.argmin(y)]] = 0.5
            value, dz, offset = loss.smoothed_value_grad(z, y, c, mu)
            expected, slopes, expected_offset = by_pairs(loss, z, y, c, mu)
            size = 1 + np.abs(z).max()
            assert value == pytest.approx(expected, rel=1e-11, abs=1e-13 * size)
            assert offset == pytest.approx(expected_offset, rel=1e-9, abs=1e-13 * size)
            np.testing.assert_allclose(dz, slopes, atol=1e-13 * (1 + size / mu if mu > 1e-3 else 1 + n))
            assert loss.value_grad(z, y, c)[0] == pytest.approx(by_pairs(loss, z, y, c)[0], rel=1e-11)


@pytest.mark.parametrize("loss", [RocArea(), Ordinal(), Ordinal(COSTS)], ids=["area", "grades", "costs"])
def test_weights_of_pairs_equal_repeated_rows(loss):
    rng = np.random.default_rng(4)
    z = rng.standard_normal(30)
    y = rng.permutation(np.arange(30) % (4.0 if isinstance(loss, Ordinal) else 2.0))
    y = y if isinstance(loss, Ordinal) else 2 * y - 1
    times = rng.integers(1, 4, 30)
    rows = np.repeat(np.arange(30), times)
    for mu in (0.0, 0.2):
        weighted = loss.smoothed_value_grad(z, y, times / 7, mu)
        repeated = loss.smoothed_value_grad(z[rows], y[rows], np.ones(len(rows)), mu)
        total = np.zeros(30)
        np.add.at(total, rows, repeated[1])
        np.testing.assert_allclose(weighted[0], repeated[0], rtol=1e-12)
        np.testing.assert_allclose(weighted[1], total, atol=1e-14)
        np.testing.assert_allclose(weighted[2], repeated[2], rtol=1e-12, atol=1e-15)


def test_two_grades_equal_two_classes():
    rng = np.random.default_rng(5)
    z, y = draw(rng, 50)
    c = rng.random(50)
    for mu in (0.0, 0.3):
        for a, b in zip(
            RocArea().smoothed_value_grad(z, y, c, mu),
            Ordinal().smoothed_value_grad(z, y, c, mu),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


def test_every_row_may_have_a_different_grade():
    rng = np.random.default_rng(11)
    z, y, c = rng.standard_normal(150), rng.standard_normal(150), rng.random(150)
    for mu in (0.0, 0.3):
        for result, expected in zip(
            Ordinal().smoothed_value_grad(z, y, c, mu), by_pairs(Ordinal(), z, y, c, mu), strict=True
        ):
            np.testing.assert_allclose(result, expected, rtol=1e-11, atol=1e-14)


def test_roc_area_bounds_the_fraction_of_wrong_pairs():
    """The fraction of pairs in the wrong order is at most the loss, and ties count as wrong."""
    rng = np.random.default_rng(6)
    for _ in range(30):
        z, y = draw(rng, 25)
        wrong = np.mean(z[y > 0][:, None] <= z[y < 0])
        assert RocArea().value_grad(z, y, np.ones(25))[0] >= wrong - 1e-12


def test_large_scores_do_not_cost_accuracy():
    """Prefix sums of squares would lose the digits of small scores: two rows at 1e6 among others near 0."""
    rng = np.random.default_rng(7)
    z, y = rng.standard_normal(200), np.where(rng.random(200) < 0.3, 1.0, -1.0)
    z[[3, 4]] = -1e6, 1e6
    c = np.ones(200)
    for mu in (1e-3, 1e-1):
        value, dz, offset = RocArea().smoothed_value_grad(z, y, c, mu)
        expected, slopes, expected_offset = by_pairs(RocArea(), z, y, c, mu)
        assert value == pytest.approx(expected, rel=1e-14)
        assert offset == pytest.approx(expected_offset, rel=1e-9, abs=1e-14)
        np.testing.assert_allclose(dz, slopes, atol=1e-13)


# ---------------------------------------------------------------- pairs and tables
NON_DECOMPOSABLE = [RocArea(), Prbep(), FBeta(), FBeta(3.0), PrecisionAtK(3), RecallAtK(2)]
finite = st.floats(-1e6, 1e6)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(NON_DECOMPOSABLE),
    st.lists(st.tuples(finite, finite, st.booleans()), min_size=3, max_size=12),
)
def test_gradients_are_subgradients(loss, rows):
    z, u = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    y = np.where([r[2] for r in rows], 1.0, -1.0)
    y[:2] = 1.0, -1.0
    c = np.full(len(z), 1 / len(z))
    value, dz = loss.value_grad(z, y, c)
    other, _ = loss.value_grad(u, y, c)
    assert value >= 0
    assert other >= value + dz @ (u - z) - 1e-12 * (1 + value + np.abs(z).max() + np.abs(u).max())


@pytest.mark.parametrize("loss", NON_DECOMPOSABLE, ids=repr)
def test_float32_scores_agree_with_float64(loss):
    rng = np.random.default_rng(8)
    for n in (20, RADIX_SORT_FROM + 500):
        z, y = rng.standard_normal(n).astype(np.float32), np.where(rng.random(n) < 0.4, 1.0, -1.0)
        c = np.full(n, 1 / n)
        value, dz = loss.value_grad(z, y, c)
        expected, slopes = loss.value_grad(z.astype(float), y, c)
        assert dz.dtype == np.float32
        assert value == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(dz, slopes, rtol=1e-6)
        narrow, _ = loss.value_grad(z, y.astype(np.float32), c.astype(np.float32))
        assert narrow == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [*NON_DECOMPOSABLE, Ordinal()], ids=repr)
def test_torch_agrees_up_to_rounding(loss):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(9)
    for _ in range(20):
        z, y = draw(rng, 15)
        c = np.full(15, 1 / 15)
        value, dz = loss.value_grad(z, y, c)
        torch_value, slopes = loss.value_grad(*map(torch.as_tensor, (z, y, c)))
        assert float(torch_value) == pytest.approx(float(value), rel=1e-13, abs=1e-13)
        np.testing.assert_allclose(slopes.numpy(), dz, atol=1e-13)


def data(n=60, p=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    y = np.where(X @ rng.standard_normal(p) + rng.standard_normal(n) > 0.7, 1.0, -1.0)
    return X, y


@pytest.mark.parametrize("loss", NON_DECOMPOSABLE, ids=repr)
def test_all_storage_formats_and_executors_give_the_same_risk(loss):
    torch = pytest.importorskip("torch")
    X, y = data()
    w, d = np.random.default_rng(1).standard_normal((2, 4))
    reference = linear_risk(X, y, loss)
    risks = {
        "shards": linear_risk(X, y, loss, n_shards=5),
        "sparse": linear_risk(sp.csr_array(X), y, loss, n_shards=3),
        "threads": linear_risk(X, y, loss, executor=Threads(n_workers=2)),
    }
    for name, risk in risks.items():
        value, grad = risk(w)
        assert value == pytest.approx(reference(w)[0], rel=1e-13), name
        np.testing.assert_allclose(grad, reference(w)[1], atol=1e-14, err_msg=name)
        cursor = risk.cursor(w)
        cursor.set_direction(d)
        value, slope = cursor.value_slope(0.3)
        other, g = reference(w + 0.3 * d)
        assert (value, slope) == pytest.approx((other, float(g @ d)), rel=1e-11), name
        cursor.advance(0.3)
        np.testing.assert_allclose(cursor.evaluate().gradient, g, atol=1e-13, err_msg=name)
    other = linear_risk(torch.as_tensor(X), y, loss)
    value, grad = other(torch.as_tensor(w))
    assert value == pytest.approx(reference(w)[0], rel=1e-13)
    np.testing.assert_allclose(grad.numpy(), reference(w)[1], atol=1e-14)


@pytest.mark.exhaustive
@pytest.mark.parametrize("loss", [RocArea(), FBeta()], ids=repr)
def test_processes_give_the_same_fit(loss):
    X, y = data()
    serial, parallel = (  # the same solver: Auto's choice depends on where the rows are
        minimize(
            Objective(linear_risk(X, y, loss, n_shards=3, executor=executor), L2(), 0.1), Bundle(), tol=1e-6
        )
        for executor in (None, Processes(n_workers=2))
    )
    assert parallel.value == pytest.approx(serial.value, rel=1e-12)
    assert parallel.lower == pytest.approx(serial.lower, rel=1e-12)


@pytest.mark.parametrize("loss", [RocArea(), Prbep(), FBeta()], ids=repr)
def test_torch_fits_agree_with_numpy(loss):
    torch = pytest.importorskip("torch")
    X, y = data(40)
    for solver in [Bundle(), Smoothing()] if loss.can_be_smoothed else [Bundle()]:
        numpy_fit, torch_fit = (
            minimize(Objective(linear_risk(A, y, loss), L2(), 0.1), solver, tol=1e-5)
            for A in (X, torch.as_tensor(X))
        )
        assert torch_fit.status == "converged"
        assert torch_fit.lower <= numpy_fit.value
        assert numpy_fit.lower <= torch_fit.value


def test_treatment_of_the_intercept():
    X, y = data()
    assert not linear_risk(X, y, RocArea(), fit_intercept=True).intercept.fitted
    assert not linear_risk(X, y, Prbep(), fit_intercept=True).intercept.fitted
    assert linear_risk(X, y, FBeta(), fit_intercept=True).intercept.profiled
    for loss in (PrecisionAtK(3), RecallAtK(3)):
        with pytest.raises(ValueError, match="intercept"):
            linear_risk(X, y, loss, fit_intercept=True)


def test_the_intercept_of_f_beta_is_optimal():
    X, y = data()
    risk = linear_risk(X, y, FBeta(), fit_intercept=True)
    w = np.random.default_rng(2).standard_normal(4)
    c = np.full(len(y), 1 / len(y))
    value, grad = risk(w)
    grid = [float(FBeta().value_grad(X @ w + b, y, c)[0]) for b in np.linspace(-10, 10, 4001)]
    assert value <= min(grid) + 1e-12
    assert value == pytest.approx(min(grid), abs=0.01)
    at_intercept = float(FBeta().value_grad(X @ w + risk.best_intercept(w), y, c)[0])
    assert at_intercept == pytest.approx(value, abs=1e-11)
    rng = np.random.default_rng(3)
    for _ in range(50):
        v = w + rng.standard_normal(4) * rng.choice([1e-3, 1.0, 30.0])
        assert risk(v)[0] >= value + grad @ (v - w) - 1e-10


def test_separable_losses_do_not_accept_queries():
    X, y = data()
    with pytest.raises(ValueError, match="Hinge does not use queries: leave qid out"):
        linear_risk(X, y, Hinge(), qid=np.zeros(len(y)))


# ---------------------------------------------------------------- sorting
@pytest.mark.parametrize(
    "n", [0, 1, 5, RADIX_SORT_FROM - 1, RADIX_SORT_FROM, RADIX_SORT_FROM + 1, 3 * RADIX_SORT_FROM]
)
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
@pytest.mark.parametrize(
    ("n", "m"),
    [
        (0, 3),
        (5, 0),
        (7, RADIX_SORT_FROM + 3),
        (RADIX_SORT_FROM + 3, 5),
        (RADIX_SORT_FROM, RADIX_SORT_FROM),
        (0, RADIX_SORT_FROM),
    ],
)
def test_ranks_equal_searchsorted(n, m, side):
    rng = np.random.default_rng(n + m)
    for digits in (1, 9):
        s, t = (np.sort(np.round(rng.standard_normal(k), digits)) for k in (n, m))
        np.testing.assert_array_equal(ranks_in_sorted(s, t, side=side), np.searchsorted(s, t, side=side))


@given(st.lists(st.integers(-100, 100), max_size=20))
def test_prefix_sums(numbers):
    sums = prefix_sums(np.array(numbers, dtype=float))
    assert sums.tolist() == [sum(numbers[:k]) for k in range(len(numbers) + 1)]


def test_long_lists_give_the_same_bits_twice():
    rng = np.random.default_rng(10)
    n = 2 * RADIX_SORT_FROM
    z, y = np.round(rng.standard_normal(n), 2), np.where(rng.random(n) < 0.3, 1.0, -1.0)
    for loss in NON_DECOMPOSABLE:
        one, two = (loss.value_grad(z.copy(), y, np.full(n, 1 / n)) for _ in range(2))
        assert one[0] == two[0]
        np.testing.assert_array_equal(one[1], two[1])
