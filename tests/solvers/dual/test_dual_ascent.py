"""Dual coordinate ascent with exact steps: against brute force, cvxpy, LIBLINEAR and its contract."""

from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

import riskmin as rm
from helpers import Problem
from solver_cases import EXACT_LOSSES, REMOTE, ROWS, classes, raw_bound


# ---------------------------------------------------------------- one step
def one_row(loss, y, lam):
    """A problem of one row with weight; the other has the other label, without weight."""
    labels = [y, -y if loss.task == "classification" else y]
    return rm.Objective(rm.linear_risk(np.eye(2), labels, loss, sample_weight=[1.0, 0.0]), rm.L2(), lam)


def after_one_epoch(obj, z):
    steps = rm.DualCoordinateAscent(shrink=False).iterates(obj, np.array([z, 0.0]))
    return next(islice(steps, 1, 2))


@pytest.mark.parametrize("loss", EXACT_LOSSES, ids=repr)
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
    reached = raw_bound(obj, it)
    assert reached >= others.max() - 1e-11 * (1 + abs(reached))
    assert reached <= obj.value(it.w) + 1e-11 * (1 + abs(reached))


@settings(max_examples=100, deadline=None)
@given(z=st.floats(-700, 700), log_lam=st.floats(-12, 12))
@example(z=4.98, log_lam=-1.41)  # where undamped Newton steps oscillate
def test_the_logistic_step_solves_its_equation_for_extreme_values(z, log_lam):
    """lam w = a(w), with a the slope of the loss: its sides cross within rounding of the root."""
    lam = 10.0**log_lam
    obj = one_row(rm.Logistic(), 1.0, lam)
    w = float(after_one_epoch(obj, z).w[0])
    slack = 1e-9 * (1 + abs(w))

    def rise(t):
        return lam * t - 1 / (1 + np.exp(t))

    rounding = 1e-15 + 1e-13 * lam * abs(w)
    assert rise(w - slack) <= rounding
    assert rise(w + slack) >= -rounding
    if abs(z) <= 30 and -4 <= log_lam <= 3:  # implicit steps reach the minimum
        assert rm.minimize(obj, rm.DualGaussSeidel(), np.array([z, 0.0]), tol=1e-8).status == "converged"


# ---------------------------------------------------------------- a run


@pytest.mark.parametrize("loss", [rm.Hinge(), rm.Absolute(), rm.Logistic()], ids=repr)
@pytest.mark.parametrize("X", [np.zeros((2, 1)), sp.csr_array((2, 40))], ids=["dense", "sparse"])
@pytest.mark.parametrize("settings", [{}, REMOTE | {"n_shards": 2}], ids=["here", "remote"])
def test_rows_without_entries(X, loss, settings):
    obj = rm.Objective(rm.linear_risk(X, np.array([1.0, -1.0]), loss, **settings), rm.L2(), lam=1.0)
    result = rm.minimize(obj, rm.DualCoordinateAscent(), w0=np.ones(X.shape[1]), tol=1e-6)
    assert result.status == "converged"
    assert result.trace[0]["value"] == pytest.approx(obj.value(np.ones(X.shape[1])))
    assert result.value == pytest.approx(obj.value(np.zeros(X.shape[1])))


def unsorted(A):
    """The same CSR rows with their entries in reverse order, and indices of 64 bits."""
    A = A.copy()
    for i, j in pairwise(A.indptr):
        A.indices[i:j], A.data[i:j] = A.indices[i:j][::-1].copy(), A.data[i:j][::-1].copy()
    A.indices, A.indptr = A.indices.astype(np.int64), A.indptr.astype(np.int64)
    A.has_sorted_indices = False
    return A


@pytest.mark.parametrize("loss", [*ROWS[:2], rm.Squared(), *ROWS[-4:], rm.Novelty()], ids=repr)
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


# ---------------------------------------------------------------- several classes
@pytest.mark.parametrize("lam", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("damping", [1.0, 0.5, 1.7])
def test_a_step_moves_a_row_to_its_best_multipliers(damping, lam):
    """With one row, a full step maximizes the dual over the simplex; other steps increase it."""
    rng = np.random.default_rng(1)
    cost = 3 * rng.random((6, 6)) * (1 - np.eye(6))
    # the other rows have no weight
    risk = rm.linear_risk(np.eye(6), np.arange(6.0), rm.MulticlassHinge(cost), sample_weight=np.eye(6)[0])
    obj = rm.Objective(risk, rm.L2(), lam)
    start, it = islice(rm.DualCoordinateAscent(damping=damping).iterates(obj, rng.standard_normal(36)), 2)

    def gain(beta):
        return beta @ cost[0] - ((beta - np.eye(6)[0]) ** 2).sum(axis=-1) / (2 * lam)

    reached = raw_bound(obj, it)
    assert reached >= raw_bound(obj, start) - 1e-12
    others = rng.dirichlet(np.full(6, 0.3), 3000)
    if damping == 1:
        assert reached >= gain(others).max() - 1e-12
        assert it.value - reached <= 1e-12 * (1 + it.value)
    assert reached <= it.value + 1e-12


@pytest.mark.slow
def test_multipliers_optimal_for_one_center_continue_with_the_next():
    rng = np.random.default_rng(20)
    X, y = rng.normal(size=(48, 5)) * [0.3, 0.3, 0.5, 0.3, 2.0], rng.integers(2, size=48)
    risk = rm.linear_risk(X, y, rm.MulticlassHinge(), fit_intercept=True)
    for lam, tol, status in ((1.0, 2e-5, "converged"), (0.1, 1e-17, "stalled")):
        J = rm.Objective(risk, rm.L2(), lam)
        assert rm.minimize(J, rm.DualCoordinateAscent(), tol=tol).status == status


def test_a_run_with_intercepts_resumes_with_its_center():
    J = classes(lam=0.02, intercept=True).objective()
    w0 = np.random.default_rng(1).standard_normal(6 * 3 + 3)
    steps = list(islice(rm.DualCoordinateAscent().iterates(J, w0), 6))
    assert steps[-1].state()["center"].any()
    for it, after in pairwise(steps):
        resumed = next(rm.DualCoordinateAscent().resume(J, it.state()))
        np.testing.assert_allclose(resumed.w, after.w, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rows", [np.zeros(2, np.uint32), np.arange(41) % 40])
def test_a_state_with_a_row_twice_or_more_rows_than_there_are_is_refused(rows):
    """A compiled loop would read beyond its arrays."""
    J = Problem(rm.MulticlassHinge()).objective()
    state = next(rm.DualCoordinateAscent().iterates(J, np.zeros(12))).state()
    state["active_rows"] = rows
    with pytest.raises(ValueError, match="is no order of 40 rows"):
        rm.DualCoordinateAscent().resume(J, state)
