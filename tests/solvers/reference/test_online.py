"""Online algorithms: the Perceptron, Winnow and the p-norm algorithms."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.utils.estimator_checks import parametrize_with_checks

from helpers import name_of, problem, ticking_clock
from riskmin import L2, Elastic, Entropy, Hinge, OnlineClassifier, QNorm, Quadratic, online


@pytest.mark.slow
@parametrize_with_checks([OnlineClassifier(), OnlineClassifier("unnormalized_entropy:prior=0.1")])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture
def rows():
    X, y, _ = problem(Hinge(), n=40)
    y[::7] *= -1  # not separable, so that every pass has mistakes
    return X, y


def reference(X, y, transfer, rate, epochs):
    v = np.zeros(X.shape[1])
    for _ in range(epochs):
        for i in range(len(y)):
            if y[i] * (X[i] @ transfer(v)) <= 0:
                v += rate * y[i] * X[i]
    return transfer(v)


def test_with_an_entropy_updates_are_multiplicative():
    X, y = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]]), np.array([-1.0, -1.0])
    result = online(X, y, Entropy(prior=0.5, normalized=False), rate=0.1, epochs=1)
    assert_allclose(result.w, 0.5 * np.exp([-0.1, -0.1, -0.2]))
    assert result.mistakes == 2
    w = 0.5 * np.exp([-0.1, 0.0, -0.2])
    w *= 1.5 / w.sum()  # after the first row; the second sees the normalized weights
    w *= np.exp([0.0, -0.1, 0.0])
    assert_allclose(online(X, y, Entropy(prior=0.5), rate=0.1, epochs=1).w, w * 1.5 / w.sum())


def test_balanced_winnow_is_winnow_on_both_signs(rows):
    X, y = rows
    for normalized in (True, False):
        pair = online(np.hstack([X, -X]), y, Entropy(prior=0.1, normalized=normalized), rate=0.05, epochs=9).w
        reg = Entropy(prior=0.1, normalized=normalized, balanced=True)
        p = X.shape[1]
        assert_allclose(online(X, y, reg, rate=0.05, epochs=9).w, pair[:p] - pair[p:], rtol=1e-9)


def perceptron(v):
    return v


ENTRIES = np.eye(4) + 0.5


@pytest.mark.parametrize(
    ("reg", "transfer", "form"),
    [
        (L2(), perceptron, np.asarray),
        (L2(), perceptron, sp.csr_array),
        (QNorm(q=2.0), perceptron, np.asfortranarray),
        (QNorm(q=1.2), None, sp.csc_array),
        (QNorm(q=3.0, power=1.5), None, sp.csr_array),
        (Elastic(eps=0.02), None, np.asarray),
        (Quadratic(ENTRIES), lambda v: np.linalg.solve(ENTRIES, v), np.asfortranarray),
    ],
    ids=name_of,
)
def test_any_transfer_function_and_any_storage(reg, transfer, form, rows):
    X, y = rows
    w = reference(X, y, transfer or reg.conjugate_grad, 0.05, 7)
    assert_allclose(online(form(X), y, reg, rate=0.05, epochs=7).w, w, rtol=1e-8, atol=1e-10)


def test_it_ends_after_a_pass_without_mistakes():
    X, y = np.eye(2), np.array([1.0, -1.0])
    result = online(X, y, L2(), epochs=10**9)
    assert result.mistakes == 0
    assert np.all(np.sign(result.w) == y)


@pytest.mark.parametrize("reg", [L2(), Quadratic(np.eye(4) + 0.1)], ids=["compiled", "array code"])
def test_it_ends_at_its_time_limit(reg, rows):
    X, y = rows
    online(X, y, reg, epochs=1)  # compiles
    with ticking_clock() as clock:
        ended = online(X, y, reg, epochs=10**6, max_seconds=100 * clock.TICK)
        assert 100 <= clock.readings < 105
        model = OnlineClassifier(reg, epochs=10**6, fit_intercept=False, max_seconds=100 * clock.TICK)
        model.fit(X, y)
        assert 200 <= clock.readings < 210
    assert 0 < ended.mistakes < len(y)
    assert model.mistakes_ > 0
    assert online(X, y, reg, max_seconds=0).mistakes == len(y)  # no pass has ended


def test_it_continues_from_v0_and_shuffles(rows):
    X, y = rows
    one_epoch, two_epochs = online(X, y, L2(), epochs=1), online(X, y, L2(), epochs=2)
    assert_allclose(online(X, y, L2(), epochs=1, v0=one_epoch.v).w, two_epochs.w)
    orders = [online(X, y, L2(), epochs=3, shuffle=True, seed=seed).w for seed in (1, 1, 2)]
    assert_allclose(orders[0], orders[1])
    assert not np.allclose(orders[0], orders[2])


# ---------------------------------------------------------------- the estimator
def test_the_estimator_appends_a_column_of_ones(rows):
    X, y = rows
    wide = np.column_stack([X, np.ones(len(y))])
    for form in (np.asarray, sp.csr_array):
        model = OnlineClassifier("entropy", rate=0.1, epochs=5).fit(form(X), np.where(y > 0, "b", "a"))
        w = online(wide, y, Entropy(balanced=True), rate=0.1, epochs=5).w
        assert_allclose(np.append(model.coef_, model.intercept_), w, rtol=1e-9)
        assert set(model.predict(form(X))) <= {"a", "b"}


def test_partial_fits_equal_one_pass(rows):
    X, y = rows
    model = OnlineClassifier(fit_intercept=False)
    for i in range(len(y)):
        model.partial_fit(X[i : i + 1], y[i : i + 1], classes=[-1.0, 1.0])
    assert_allclose(model.coef_[0], online(X, y, L2(), epochs=1).w)
