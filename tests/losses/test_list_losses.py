"""Losses of pairs and of contingency tables against their definitions: all labellings, tables and pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin as rm
from reference import labellings, pairs
from riskmin.core import UnsupportedProblem

COSTS = ((), (1.0,), (3.0, 0.0), (4.0, 0.5, 2.0))
TABLES = [rm.Prbep(), rm.FBeta(), rm.FBeta(0.3), rm.PrecisionAtK(1), rm.PrecisionAtK(3), rm.RecallAtK(2)]
NON_DECOMPOSABLE = [rm.RocArea(), *TABLES]


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


# ---------------------------------------------------------------- contingency tables
def check_table(loss, z, y):
    """The value is the maximum over all labellings, and dz the slope of one that attains it."""
    slopes, deltas = labellings(loss, y)
    slopes, deltas = np.vstack([slopes, 0 * y]), np.append(deltas, 0.0)  # the true labels have Delta 0
    value, dz = loss.value_grad(z, y, np.full(len(z), 1 / len(z)))
    expected, rounding = np.max(deltas + slopes @ z), 1e-13 * (1 + np.abs(z).max())
    assert abs(value - expected) <= rounding, (loss, z, y)
    chosen = np.flatnonzero(np.all(np.abs(slopes - dz) <= 1e-12, axis=1))
    assert np.min(abs(deltas[chosen] + z @ dz - expected)) <= rounding


@pytest.mark.parametrize("n", [2, 5, 7, pytest.param(9, marks=pytest.mark.exhaustive)])
def test_table_losses_are_the_maximum_over_all_labellings(n):
    rng = np.random.default_rng(n)
    at_k = [kind(k) for kind in (rm.PrecisionAtK, rm.RecallAtK) for k in {1, 2, n // 2, n - 1, n}]
    for _ in range(4):
        z, y = draw(rng, n)
        for loss in (rm.Prbep(), rm.FBeta(0.05), rm.FBeta(), rm.FBeta(30.0), *at_k):
            check_table(loss, z, y)


def by_tables(loss, z, y):
    """The maximum in O(n^2), since the best labelling of each contingency table is known."""
    n, low, high = len(z), np.sort(z[y > 0]), -np.sort(-z[y < 0])
    missed_sums, alarm_sums = np.append(0, np.cumsum(low)), np.append(0, np.cumsum(high))
    misses, alarms = np.ix_(np.arange(len(low) + 1), np.arange(len(high) + 1))
    b = loss.beta**2
    hits = (1 + b) * (len(low) - misses)
    sums = alarm_sums[alarms] - missed_sums[misses]
    return np.max(1 - hits / (hits + b * misses + alarms) + 2 / n * sums)


@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
def test_f_beta_is_the_maximum_over_all_tables(beta):
    """Of up to 60 rows; where rounding decides ties, the value still agrees."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        z, y = draw(rng, int(rng.integers(2, 60)))
        value, _ = rm.FBeta(beta).value_grad(z, y, np.full(len(z), 1 / len(z)))
        assert value == pytest.approx(by_tables(rm.FBeta(beta), z, y), rel=1e-12, abs=1e-12 * np.abs(z).max())


# ---------------------------------------------------------------- tables smoothed by entropy
def entropy_smoothed(loss, z, y, mu):
    """The value and the gradient at the temperature T with T log N = mu / 2, by enumeration."""
    slopes, deltas = labellings(loss, y)
    terms, T = slopes @ z + deltas, mu / 2 / np.log(len(deltas))
    p = np.exp((terms - terms.max()) / T)
    return terms.max() + T * np.log(p.mean()), p @ slopes / p.sum()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([loss for loss in TABLES if loss != rm.Prbep()]),
    st.sampled_from([3, 5, 7]),
    st.sampled_from([1e-3, 0.1, 1.0, 10.0, 300.0]),
    st.integers(0, 2**32 - 1),
)
def test_smoothed_tables_are_a_mean_over_all_labellings(loss, n, mu, seed):
    rng = np.random.default_rng(seed)
    z, c = rng.standard_normal(n) * rng.choice([0.1, 1.0, 10.0]), np.full(n, 1 / n)
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    y[:2] = 1.0, -1.0
    value, dz, _ = loss.smoothed_value_grad(z, y, c, mu)
    expected, grad = entropy_smoothed(loss, z, y, mu)
    assert value == pytest.approx(expected, abs=1e-12 * (1 + abs(z).max()))
    np.testing.assert_allclose(dz, grad, atol=1e-9)


@pytest.mark.parametrize("loss", [rm.FBeta(), rm.PrecisionAtK(k=40), rm.RecallAtK(k=60)], ids=repr)
def test_smoothed_tables_of_hundreds_of_rows(loss):
    """Differences give the gradient; labels have probabilities, and cuts are valid, however extreme."""
    rng, n, h = np.random.default_rng(1), 200, 1e-4
    z, y, c = rng.standard_normal(n), np.where(np.arange(n) < 75, 1.0, -1.0), np.full(n, 1 / n)
    d = rng.standard_normal(n)
    after, before = (loss.smoothed_value_grad(z + s * h * d, y, c, 0.2)[0] for s in (1, -1))
    slope = loss.smoothed_value_grad(z, y, c, 0.2)[1] @ d
    assert slope == pytest.approx((after - before) / (2 * h), rel=1e-5, abs=1e-7)
    points = [z, 0 * z, 10 * y, *rng.standard_normal((3, n)), 1e3 * rng.standard_normal(n)]
    values = [float(loss.value_grad(v, y, c)[0]) for v in points]
    for mu in (1e-7, 1e-4, 1e-2, 1.0, 1e6):
        for scale in (1.0, 1e4):
            value, dz, offset = loss.smoothed_value_grad(scale * z, y, c, mu)
            height = value + offset - scale * float(dz @ z)  # the mean of Delta, in [0, 1]
            assert -1e-12 * scale <= height <= 1 + 1e-12 * scale
            assert offset >= -1e-12 * scale
            assert np.all(np.abs(y + n * dz) <= 1 + 1e-12)  # the mean of the labels
            for v, r in zip(points, values, strict=True):
                assert height + dz @ v <= r + 1e-13 * (scale + abs(v).max())


def test_too_many_rows_are_not_smoothed():
    y = np.where(np.arange(8000) < 4000, 1.0, -1.0)
    message = r"PrecisionAtK takes 3.2e\+07 steps per evaluation .* on 8000 rows.*: use Bundle$"
    with pytest.raises(UnsupportedProblem, match=message):
        rm.Smoothed(rm.PrecisionAtK(4000), 0.1).value_grad(np.zeros(8000), y, np.full(8000, 1 / 8000))


# ---------------------------------------------------------------- pairs
@pytest.mark.parametrize("mu", [0.0, 1e-6, 0.1, 5.0])
@pytest.mark.parametrize(
    "loss", [rm.RocArea(), rm.Ordinal(), rm.Ordinal(COSTS)], ids=["area", "grades", "costs"]
)
def test_pair_losses_are_the_sum_over_all_pairs(loss, mu):
    rng = np.random.default_rng(3)
    for n in (4, 5, 17, 40, 40, 90):
        z, y = draw(rng, n)
        if isinstance(loss, rm.Ordinal):
            y = rng.permutation(np.arange(n) % 4) * 2.5 - 1
        if loss == rm.Ordinal() and n == 90:
            y = rng.standard_normal(n)  # every row has a grade of its own
        c = rng.integers(0, 4, n) * rng.random(n)
        c[[np.argmax(y), np.argmin(y)]] = 0.5
        value, dz, offset = loss.smoothed_value_grad(z, y, c, mu)
        expected, slopes, expected_offset = pairs(loss, z, y, c, mu)
        size = 1 + np.abs(z).max()
        assert value == pytest.approx(expected, rel=1e-11, abs=1e-13 * size)
        assert offset == pytest.approx(expected_offset, rel=1e-9, abs=1e-13 * size)
        np.testing.assert_allclose(dz, slopes, atol=1e-13 * (1 + size / mu if mu > 1e-3 else 1 + n))


def test_large_scores_do_not_cost_accuracy():
    """Prefix sums of squares would lose the digits of small scores: two rows at 1e6 among others near 0."""
    rng = np.random.default_rng(7)
    z, y, c = rng.standard_normal(200), np.where(rng.random(200) < 0.3, 1.0, -1.0), np.ones(200)
    z[[3, 4]] = -1e6, 1e6
    for mu in (1e-3, 1e-1):
        value, dz, offset = rm.RocArea().smoothed_value_grad(z, y, c, mu)
        expected, slopes, expected_offset = pairs(rm.RocArea(), z, y, c, mu)
        assert value == pytest.approx(expected, rel=1e-14)
        assert offset == pytest.approx(expected_offset, rel=1e-9, abs=1e-14)
        np.testing.assert_allclose(dz, slopes, atol=1e-13)


# ---------------------------------------------------------------- pairs and tables
@pytest.mark.parametrize("loss", NON_DECOMPOSABLE, ids=repr)
def test_long_lists(loss):
    """The same bits twice, the definition, and float32 scores as float64 ones."""
    rng, n = np.random.default_rng(8), 5000
    z = np.round(rng.standard_normal(n), 2).astype(np.float32)
    y, c = np.where(rng.random(n) < 0.2, 1.0, -1.0), np.full(n, 1 / n)
    value, dz = loss.value_grad(z.astype(float), y, c)
    again, du = loss.value_grad(z.astype(float), y, c)
    assert (again, du.tobytes()) == (value, dz.tobytes())
    if isinstance(loss, rm.FBeta):
        assert value == pytest.approx(by_tables(loss, z.astype(float), y), rel=1e-11)
    if loss == rm.RocArea():
        lead = z[y > 0].astype(float)[:, None] - z[y < 0]
        assert value == pytest.approx(np.maximum(0, 1 - lead).mean(), rel=1e-11)
    narrow, slopes = loss.value_grad(z, y, c)
    assert slopes.dtype == np.float32
    assert narrow == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(slopes, dz, rtol=1e-6)
    narrow, _ = loss.value_grad(z, y.astype(np.float32), c.astype(np.float32))
    assert narrow == pytest.approx(value, rel=1e-6)


# ---------------------------------------------------------------- tensors
ON_TENSORS = [
    rm.RocArea(),
    rm.Ordinal(),
    rm.Ordinal(costs=[[0], [1, 0], [2, 1, 0], [3, 2, 1, 0]]),
    rm.Prbep(),
    rm.FBeta(2.0),
    rm.PrecisionAtK(50),
    rm.RecallAtK(50),
    rm.Ndcg(),
    rm.Ndcg(weights="discount"),
    rm.Ndcg(k=3, weights=rm.PositionWeights(power=1, k=4)),
]


def labels_of(loss, rng, n):
    if loss.task == "classification":
        return np.where(rng.random(n) < 0.2, 1.0, -1.0)
    if loss.task == "ordinal":
        return rng.integers(0, 4, n).astype(float)
    # queries of 1 to about 60 rows, in any order; a few have fewer rows than k, or one grade only
    return np.column_stack([rng.integers(0, 4, n), (n // 20 * rng.random(n) ** 2).astype(int)]).astype(float)


@pytest.mark.parametrize("loss", ON_TENSORS, ids=repr)
def test_scores_stay_on_the_device(loss, monkeypatch):
    """No tensor as long as the scores becomes an array of NumPy."""
    torch, n, rng = pytest.importorskip("torch"), 1500, np.random.default_rng(3)
    y, z = labels_of(loss, rng, n), np.round(rng.standard_normal(n), 2)
    weighted = loss.task != "classification" or loss == rm.RocArea()
    c = rng.dirichlet(np.ones(n)) if weighted else np.full(n, 1 / n)
    value, dz = loss.value_grad(z, y, c)
    tensors = [torch.tensor(a) for a in (z, y, c)]

    def checked(name):
        given = getattr(torch.Tensor, name)

        def refuse(tensor, *args, **kwargs):
            assert tensor.numel() < n, f"{name} copies {tuple(tensor.shape)} numbers to the host"
            return given(tensor, *args, **kwargs)

        return refuse

    with monkeypatch.context() as patch:
        for name in ("__array__", "numpy", "tolist", "cpu"):
            patch.setattr(torch.Tensor, name, checked(name))
        found, slopes = loss.value_grad(*tensors)
        if loss in (rm.RocArea(), rm.Ordinal(), rm.Prbep()):
            loss.smoothed_value_grad(*tensors, 0.3)
    assert float(found) == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(slopes.numpy(), dz, rtol=1e-9, atol=1e-16)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_pairs_of_tensors_with_any_share_of_positives(share):
    torch, rng = pytest.importorskip("torch"), np.random.default_rng(0)
    z, y = 1e6 + np.round(3 * rng.standard_normal(300)), np.where(rng.random(300) < share, 1.0, -1.0)
    value, dz = rm.RocArea().value_grad(*map(torch.tensor, (z, y, np.full(300, 1 / 300))))
    expected, slopes, _ = pairs(rm.RocArea(), z, y, np.full(300, 1 / 300))
    assert float(value) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(dz.numpy(), slopes, rtol=1e-12)
    with pytest.raises(ValueError, match="compares two classes"):
        rm.RocArea().value_grad(torch.zeros(3), torch.ones(3), torch.ones(3) / 3)
