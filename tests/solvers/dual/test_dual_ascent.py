"""Dual coordinate ascent with exact steps: against brute force, cvxpy, LIBLINEAR and its contract."""

from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

import riskmin as rm
from helpers import ALL_LOSSES, Problem

EXACT = [
    loss
    for loss in ALL_LOSSES
    if isinstance(loss, rm.Logistic) or loss.interval_conjugate(np.ones(1)) is not None
]
exact_losses = pytest.mark.parametrize("loss", EXACT, ids=repr)
SMALL = [
    rm.Hinge(),
    rm.SquaredHinge(),
    rm.Logistic(),
    rm.EpsilonInsensitive(0.2),
    rm.Absolute(),
    rm.Novelty(),
    rm.Squared(),
]


def dual_value(obj, it):
    """The lower bound of the cut, without scaling it."""
    return it.cut.b - obj.lam * obj.reg.conjugate(-it.cut.a / obj.lam)


# ---------------------------------------------------------------- one step
def one_row(loss, y, lam):
    """A problem of one row with weight; the other has the other label, without weight."""
    labels = [y, -y if loss.task == "classification" else y]
    return rm.Objective(rm.linear_risk(np.eye(2), labels, loss, sample_weight=[1.0, 0.0]), rm.L2(), lam)


def after_one_epoch(obj, z):
    steps = rm.DualCoordinateAscent(shrink=False).iterates(obj, np.array([z, 0.0]))
    return next(islice(steps, 1, 2))


@exact_losses
@settings(max_examples=15, deadline=None)
@given(label=st.floats(-3, 3), z=st.floats(-20, 20), lam=st.floats(1e-3, 1e3))
def test_the_step_is_optimal(loss, label, z, lam):
    """With one row, a step maximizes the dual, a function of one multiplier."""
    y = float(np.sign(label) or 1.0) if loss.task == "classification" else label
    obj = one_row(loss, y, lam)
    conjugate = loss.conjugate(np.array([y]))
    lower, upper = (float(np.clip(end[0], -30, 30)) for end in (conjugate.lower, conjugate.upper))
    it = after_one_epoch(obj, z)
    v = np.linspace(lower, upper, 2001)
    others = -loss.conjugate(np.full(len(v), y)).value(v) - v**2 / (2 * lam)
    reached = dual_value(obj, it)
    assert reached >= others.max() - 1e-11 * (1 + abs(reached))
    assert reached <= obj.value(it.w) + 1e-11 * (1 + abs(reached))


@settings(max_examples=100, deadline=None)
@given(z=st.floats(-700, 700), log_lam=st.floats(-12, 12))
def test_the_logistic_step_solves_its_equation_for_extreme_values(z, log_lam):
    """lam w = a(w), with a the slope of the loss: its sides cross within rounding of the root."""
    lam = 10.0**log_lam
    it = after_one_epoch(one_row(rm.Logistic(), 1.0, lam), z)
    w, slack = float(it.w[0]), 1e-9 * (1 + abs(float(it.w[0])))

    def rise(t):
        return lam * t - 1 / (1 + np.exp(t))

    rounding = 1e-15 + 1e-13 * lam * abs(w)
    assert rise(w - slack) <= rounding
    assert rise(w + slack) >= -rounding


@settings(max_examples=30, deadline=None)
@given(z=st.floats(-30, 30), log_lam=st.floats(-4, 3))
@example(z=4.98, log_lam=-1.41)  # where undamped Newton steps oscillate
def test_implicit_logistic_steps_reach_the_minimum(z, log_lam):
    obj = one_row(rm.Logistic(), 1.0, 10.0**log_lam)
    assert rm.minimize(obj, rm.DualGaussSeidel(), np.array([z, 0.0]), tol=1e-8).status == "converged"


# ---------------------------------------------------------------- a run


def test_empty_rows_and_rows_of_zero_weight_keep_the_cut_exact():
    X = np.array([[1.0, 2.0], [0.0, 0.0], [3.0, -1.0]])
    obj = rm.Objective(rm.linear_risk(X, [1.0, 1.0, -1.0], rm.Hinge(), sample_weight=[1, 1, 0]), rm.L2(), 0.1)
    result = rm.minimize(obj, rm.DualCoordinateAscent(), tol=1e-12)
    assert result.status == "converged"
    assert result.value == pytest.approx(0.5 + 0.05 / 5)  # w = (1, 2) / 5 reaches the margin of the first row
    zeros = rm.Objective(rm.linear_risk(np.zeros((2, 1)), [1.0, -1.0], rm.Hinge()), rm.L2(), 0.1)
    assert rm.minimize(zeros, rm.DualCoordinateAscent(), tol=1e-12).value == 1.0


@pytest.mark.parametrize("loss", [rm.Absolute(), rm.Logistic()])
def test_sparse_rows_without_entries(loss):
    obj = rm.Objective(rm.linear_risk(sp.csr_array((2, 40)), np.array([1.0, -1.0]), loss), rm.L2(), lam=1.0)
    result = rm.minimize(obj, rm.DualCoordinateAscent(), w0=np.ones(40), tol=1e-6)
    assert result.status == "converged"
    assert result.trace[0]["value"] == pytest.approx(obj(np.ones(40))[0])
    assert result.value == pytest.approx(obj(np.zeros(40))[0])


def unsorted(A):
    """The same CSR rows with their entries in reverse order, and indices of 64 bits."""
    A = A.copy()
    for i, j in pairwise(A.indptr):
        A.indices[i:j], A.data[i:j] = A.indices[i:j][::-1].copy(), A.data[i:j][::-1].copy()
    A.indices, A.indptr = A.indices.astype(np.int64), A.indptr.astype(np.int64)
    A.has_sorted_indices = False
    return A


@pytest.mark.parametrize("loss", SMALL, ids=repr)
def test_a_check_of_sparse_rows_equals_an_oracle_call(loss):
    """With unsorted columns, an empty row, weights, and enough sweeps for means, J and the cut are exact."""
    data = Problem(loss, lam=1e-4, n=60, p=6, weighted=True)
    data.X[np.abs(data.X) < 0.7] = 0.0
    data.X[3] = 0.0
    X, c, y = data.X, data.weights / data.weights.sum(), data.y
    data.X = unsorted(sp.csr_array(X))
    obj = data.objective()
    for k, it in enumerate(islice(rm.DualCoordinateAscent().iterates(obj, np.zeros(6)), 12)):
        assert it.value == pytest.approx(obj.value(it.w), rel=1e-12)
        if k == 0:
            continue  # the state holds the scaled slopes at the start
        u = it.state()["u"]
        np.testing.assert_allclose(it.cut.a, X.T @ (c * u), rtol=1e-9, atol=1e-12)
        b = -float(c @ loss.conjugate(y).value(u))
        assert it.cut.b == pytest.approx(b, rel=1e-9, abs=1e-10)
        assert it.cut.b <= b + 1e-15


def test_a_good_start_is_used():
    """At the minimum of a smooth loss, its slopes there are the optimal dual variables."""
    for loss in (rm.Logistic(), rm.SquaredHinge(), rm.SmoothedHinge()):
        obj = Problem(loss, lam=0.05).objective()
        best = rm.minimize(obj, rm.DualCoordinateAscent(), tol=1e-11)
        warm = rm.minimize(obj, rm.DualCoordinateAscent(), best.w, tol=1e-8)
        assert warm.n_iter == 1


@pytest.mark.parametrize(
    ("loss", "shrink", "intercept"),
    [(rm.Hinge(), True, False), (rm.Logistic(), False, False), (rm.Hinge(), True, True)],
)
def test_a_resumed_run_is_bit_equal(loss, shrink, intercept):
    rng = np.random.default_rng(0)
    X = sp.random_array((300, 40), density=0.1, rng=rng, format="csr")
    y = np.where(X @ rng.standard_normal(40) > 0.1 * rng.standard_normal(300), 1.0, -1.0)
    obj = rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=intercept), rm.L2(), 1e-4)
    solver = rm.DualCoordinateAscent(shrink=shrink, seed=7)
    steps = list(islice(solver.iterates(obj, np.zeros(40)), 8))
    for k in (0, 1, 4):
        state = {name: np.array(a) for name, a in steps[k].state().items()}
        for one, other in zip(steps[k + 1 :], solver.resume(obj, state), strict=False):
            assert np.array_equal(one.w, other.w)
            assert np.array_equal(one.cut.a, other.cut.a)
            assert (one.value, one.cut.b) == (other.value, other.cut.b)


@pytest.mark.parametrize("loss", [rm.Hinge(), rm.Quantile(0.9), rm.SquaredHinge()], ids=repr)
def test_an_intercept_far_from_zero_costs_hardly_more_epochs(loss):
    """Fewer rows than columns: the multipliers of the proximal term follow the intercept."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 200))
    y = np.where(X[:, 0] > 1, 1.0, -1.0) if loss.task == "classification" else X[:, 0]
    epochs = []
    for intercept in (False, True):
        shifted = y + 50.0 if intercept and loss.task == "regression" else y
        obj = rm.Objective(rm.linear_risk(X, shifted, loss, fit_intercept=intercept), rm.L2(), 1e-4)
        result = rm.minimize(obj, rm.DualCoordinateAscent(), tol=1e-6)
        assert result.status == "converged"
        epochs.append(result.trace[-1]["epochs"])
    assert epochs[1] <= 2 * epochs[0]


def test_seeds_and_orders():
    obj = Problem(rm.Hinge(), lam=1e-3).objective()

    def first(**options):
        return next(islice(rm.DualCoordinateAscent(**options).iterates(obj, np.zeros(4)), 1, 2)).w

    assert np.array_equal(first(seed=1), first(seed=1))
    assert not np.array_equal(first(seed=1), first(seed=2))
    assert np.array_equal(first(shuffle=False, seed=1), first(shuffle=False, seed=2))
