"""Dual coordinate ascent with exact steps: against brute force, cvxpy, LIBLINEAR and its contract."""

from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers import ALL_LOSSES, problem
from reference import optimum
from riskmin import (
    L1,
    L2,
    Absolute,
    AugmentedLagrangian,
    DualCoordinateAscent,
    DualGaussSeidel,
    EpsilonInsensitive,
    Hinge,
    Logistic,
    Novelty,
    Objective,
    Poisson,
    Quantile,
    SmoothedHinge,
    Squared,
    SquaredHinge,
    check_solver,
    linear_risk,
    minimize,
)
from riskmin._numba.dual import conjugate_loops
from riskmin._numba.dual import sweep as kernels
from riskmin.solvers.dual.row_state import _indices_and_values

EXACT = [
    loss
    for loss in ALL_LOSSES
    if isinstance(loss, Logistic) or loss.interval_conjugate(np.ones(1)) is not None
]
exact_losses = pytest.mark.parametrize("loss", EXACT, ids=repr)
SMALL = [Hinge(), SquaredHinge(), Logistic(), EpsilonInsensitive(0.2), Absolute(), Novelty(), Squared()]


def objective(loss, lam=0.05, reg=None, seed=0, **settings):
    X, y, weights = problem(loss, seed=seed)
    return Objective(linear_risk(X, y, loss, sample_weight=weights, **settings), reg or L2(), lam)


def dual_value(obj, it):
    """The lower bound of the cut, without scaling it."""
    return it.cut.b - obj.lam * obj.reg.conjugate(-it.cut.a / obj.lam)


# ---------------------------------------------------------------- one step
def one_dimensional(loss, y, u, z, curvature):
    """The function that the step minimizes, by the conjugate of the loss."""

    def f(v):
        v = np.atleast_1d(v)
        return loss.conjugate(np.full(len(v), y)).value(v) - v * z + 0.5 * curvature * (v - u) ** 2

    return f


def exact_step(loss, y, u, z, curvature):
    """The step as computed by the kernels."""
    if isinstance(loss, Logistic):
        a = -y * u
        s = kernels.logistic_step(y * z, float(np.log(a / (1 - a))), curvature)
        return -y / (1 + np.exp(-s))
    dual = loss.interval_conjugate(np.array([y]))
    slope = float(dual.shift[0]) - z + dual.square * u
    ends = float(dual.lower[0]), float(dual.upper[0])
    return kernels.quadratic_step(slope, u, dual.epsilon, 1 / (dual.square + curvature), *ends)


@exact_losses
@settings(max_examples=30, deadline=None)
@given(
    fraction=st.floats(0.001, 0.999),
    label=st.floats(-3, 3),
    z=st.floats(-20, 20),
    curvature=st.floats(1e-3, 1e3),
)
def test_the_step_is_optimal(loss, fraction, label, z, curvature):
    y = float(np.sign(label) or 1.0) if loss.task == "classification" else label
    conjugate = loss.conjugate(np.array([y]))
    lower, upper = (float(np.clip(end[0], -30, 30)) for end in (conjugate.lower, conjugate.upper))
    u = lower + fraction * (upper - lower)
    f = one_dimensional(loss, y, u, z, curvature)
    v = exact_step(loss, y, u, z, curvature)
    minimum = f(v)[0]
    assert np.isfinite(minimum)
    others = np.concatenate(
        [np.linspace(lower, upper, 2001), [0.0, u], v + np.array([-1e-3, 1e-3, -1e-6, 1e-6])]
    )
    assert minimum <= f(others).min() + 1e-11 * (1 + abs(minimum))


@settings(max_examples=300, deadline=None)
@given(z=st.floats(-800, 800), s=st.floats(-700, 700), curvature=st.floats(1e-12, 1e12))
def test_the_logistic_step_solves_its_equation_for_extreme_values(z, s, curvature):
    """s + z + curvature (a(s) - a(s0)) changes its sign within rounding of the root."""
    root = kernels.logistic_step(z, s, curvature)
    slack = 1e-9 * (1 + abs(root))

    def f(t):
        rise = 0.5 * (np.tanh(t / 2) - np.tanh(s / 2))
        return t + z + curvature * rise

    size = 1e-15 * curvature + 1e-13 * (abs(root) + abs(z))  # rounding error of f
    assert f(root - slack) <= size
    assert f(root + slack) >= -size


@settings(max_examples=300, deadline=None)
@given(z=st.floats(-30, 30), a=st.floats(1e-6, 1 - 1e-6), kappa=st.floats(1e-3, 1e4))
@example(z=4.98, a=0.308, kappa=25.9)  # where undamped Newton steps oscillate
def test_the_implicit_logistic_step_solves_its_equation(z, a, kappa):
    """Of gradient steps: the minimum of l*(t) - z t + kappa (t - u)^2 / 2, by the sign of its slope."""
    row, shape = np.array([-1.0, 0.0, 0.0, -1.0]), np.array([0.0, 0.0, 2.0])
    new = -conjugate_loops.proximal_step(-a, z, kappa, 2, row, shape)
    slack = 1e-9 * new * (1 - new) + 1e-15

    def slope(t):
        return np.log(t / (1 - t)) + z + kappa * (t - a)

    assert slope(max(new - slack, 1e-300)) <= 1e-9 * (1 + kappa)
    assert slope(min(new + slack, 1 - 1e-16)) >= -1e-9 * (1 + kappa)


# ---------------------------------------------------------------- a run
@exact_losses
def test_the_dual_never_decreases(loss):
    obj = objective(loss, lam=0.01)
    for settings_ in ({}, {"shrink": False, "shuffle": False}):
        steps = islice(DualCoordinateAscent(**settings_).iterates(obj, np.zeros(4)), 12)
        values = [dual_value(obj, it) for it in steps][1:]  # the first bound precedes the scaling
        assert all(b >= a - 1e-13 * (1 + abs(a)) for a, b in pairwise(values))


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("intercept", [False, True])
@exact_losses
def test_the_optimum_equals_cvxpys(loss, intercept):
    X, y, weights = problem(loss)
    obj = Objective(linear_risk(X, y, loss, sample_weight=weights, fit_intercept=intercept), L2(), 0.05)
    result = minimize(obj, DualCoordinateAscent(), tol=1e-8, max_iter=300)
    best = optimum(loss, L2(), X, y, weights, 0.05, intercept)
    assert result.status == "converged" or result.gap <= 1e-9  # a minimum of 0 has no relative gap
    assert result.value == pytest.approx(best, rel=1e-6, abs=1e-7)
    assert result.lower <= best + 1e-7 * (1 + abs(best))


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("loss", SMALL, ids=repr)
def test_each_feature_may_have_its_own_weight(loss):
    m = np.array([0.5, 1.0, 2.0, 8.0])
    X, y, weights = problem(loss)
    for data in (X, sp.csr_array(X)):
        obj = Objective(linear_risk(data, y, loss, sample_weight=weights), L2(weights=m), 0.05)
        result = minimize(obj, DualCoordinateAscent(), tol=1e-9)
        best = optimum(loss, L2(), X / np.sqrt(m), y, weights, 0.05, False)  # the same problem in other units
        assert result.status == "converged"
        assert result.value == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("loss", [Hinge(), Logistic(), EpsilonInsensitive(0.2, power=2)], ids=repr)
def test_all_storage_formats_agree(loss):
    X, y, weights = problem(loss, n=50, p=6)
    X[np.abs(X) < 0.7] = 0.0
    X[3] = 0.0  # an empty row
    wide = sp.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    forms = [X, np.asfortranarray(X), sp.csr_array(X), sp.csc_array(X), wide]
    forms += [X.astype(np.float32), sp.csr_array(X.astype(np.float32))]
    values = []
    for data in forms:
        obj = Objective(linear_risk(data, y, loss, sample_weight=weights), L2(), 0.01)
        result = minimize(obj, DualCoordinateAscent(), tol=1e-8)
        assert result.status == "converged"
        values.append(result.value)
    assert np.ptp(values[:-2]) <= 1e-8 * values[0]
    assert values[-2:] == pytest.approx(values[:1] * 2, rel=1e-6)


def test_empty_rows_and_rows_of_zero_weight_keep_the_cut_exact():
    X = np.array([[1.0, 2.0], [0.0, 0.0], [3.0, -1.0]])
    obj = Objective(linear_risk(X, [1.0, 1.0, -1.0], Hinge(), sample_weight=[1, 1, 0]), L2(), 0.1)
    result = minimize(obj, DualCoordinateAscent(), tol=1e-12)
    assert result.status == "converged"
    assert result.value == pytest.approx(0.5 + 0.05 / 5)  # w = (1, 2) / 5 reaches the margin of the first row
    zeros = Objective(linear_risk(np.zeros((2, 1)), [1.0, -1.0], Hinge()), L2(), 0.1)
    assert minimize(zeros, DualCoordinateAscent(), tol=1e-12).value == 1.0


@pytest.mark.parametrize("loss", SMALL, ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_cuts_lie_below_the_risk(loss, intercept):
    """With an intercept, b is minimized out to a share of the gap."""
    obj = objective(loss, lam=1e-3, fit_intercept=intercept)
    rng = np.random.default_rng(1)
    points = [scale * rng.standard_normal(4) for scale in (0.0, 0.1, 1.0, 10.0, 100.0) for _ in range(4)]
    for it in islice(DualCoordinateAscent().iterates(obj, rng.standard_normal(4)), 10):
        slack = 0.06 * (it.value - obj.lower(it.cut)) if intercept else 0.0
        assert -1e-12 <= it.value - obj.value(it.w) <= slack + 1e-12 * (1 + it.value)
        for v in points:
            assert it.cut.a @ v + it.cut.b <= obj.risk(v)[0] * (1 + 1e-12) + 1e-12


@pytest.mark.parametrize("loss", SMALL, ids=repr)
def test_a_check_of_sparse_rows_equals_an_oracle_call(loss):
    """With unsorted columns, an empty row, weights, and enough sweeps for means, J and the cut are exact."""
    X, y, weights = problem(loss, n=60, p=6)
    X[np.abs(X) < 0.7] = 0.0
    X[3] = 0.0
    A = sp.csr_array(X)
    for i in range(60):
        row = slice(A.indptr[i], A.indptr[i + 1])
        A.indices[row], A.data[row] = A.indices[row][::-1].copy(), A.data[row][::-1].copy()
    A.has_sorted_indices = False
    obj = Objective(linear_risk(A, y, loss, sample_weight=weights), L2(), 1e-4)
    for k, it in enumerate(islice(DualCoordinateAscent().iterates(obj, np.zeros(6)), 12)):
        assert it.value == pytest.approx(obj.value(it.w), rel=1e-12)
        if k == 0:
            continue  # the state holds the scaled slopes at the start
        u = it.state()["u"]
        c = obj.risk.rows.c
        np.testing.assert_allclose(it.cut.a, X.T @ (c * u), rtol=1e-9, atol=1e-12)
        b = -float(c @ loss.conjugate(obj.risk.rows.y).value(u))
        assert it.cut.b == pytest.approx(b, rel=1e-9, abs=1e-10)
        assert it.cut.b <= b + 1e-15


@pytest.mark.parametrize("damping", [0.3, 1.5])
@pytest.mark.parametrize("loss", [Hinge(), SquaredHinge(), Logistic()], ids=repr)
def test_damped_steps_reach_the_same_minimum(loss, damping):
    obj = objective(loss)
    one, other = (minimize(obj, DualCoordinateAscent(damping=t), tol=1e-9) for t in (1.0, damping))
    assert one.status == other.status == "converged"
    assert one.value == pytest.approx(other.value, rel=1e-8)


def test_a_good_start_is_used():
    """At the minimum of a smooth loss, its slopes there are the optimal dual variables."""
    for loss in (Logistic(), SquaredHinge(), SmoothedHinge()):
        obj = objective(loss)
        best = minimize(obj, DualCoordinateAscent(), tol=1e-11)
        warm = minimize(obj, DualCoordinateAscent(), best.w, tol=1e-8)
        assert warm.n_iter == 1


@pytest.mark.parametrize("loss", [Hinge(), Logistic()], ids=repr)
@pytest.mark.parametrize(("shrink", "intercept"), [(True, False), (False, False), (True, True)])
def test_a_resumed_run_is_bit_equal(loss, shrink, intercept):
    rng = np.random.default_rng(0)
    X = sp.random_array((300, 40), density=0.1, rng=rng, format="csr")
    y = np.where(X @ rng.standard_normal(40) > 0.1 * rng.standard_normal(300), 1.0, -1.0)
    obj = Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), 1e-4)
    solver = DualCoordinateAscent(shrink=shrink, seed=7)
    steps = list(islice(solver.iterates(obj, np.zeros(40)), 8))
    for k in (0, 1, 4):
        state = {name: np.array(a) for name, a in steps[k].state().items()}
        for one, other in zip(steps[k + 1 :], solver.resume(obj, state), strict=False):
            assert np.array_equal(one.w, other.w)
            assert one.value == other.value
            assert np.array_equal(one.cut.a, other.cut.a)
            assert one.cut.b == other.cut.b


@pytest.mark.parametrize("loss", [Hinge(), Quantile(0.9), SquaredHinge()], ids=repr)
def test_an_intercept_far_from_zero_costs_hardly_more_epochs(loss):
    """Fewer rows than columns: the multipliers of the proximal term follow the intercept."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 200))
    y = np.where(X[:, 0] > 1, 1.0, -1.0) if loss.task == "classification" else X[:, 0]
    epochs = []
    for intercept in (False, True):
        shifted = y + 50.0 if intercept and loss.task == "regression" else y
        obj = Objective(linear_risk(X, shifted, loss, fit_intercept=intercept), L2(), 1e-4)
        result = minimize(obj, DualCoordinateAscent(), tol=1e-6)
        assert result.status == "converged"
        epochs.append(result.trace[-1]["epochs"])
    assert epochs[1] <= 2 * epochs[0]


def test_seeds_and_orders():
    obj = objective(Hinge(), lam=1e-3)

    def first(**settings):
        return next(islice(DualCoordinateAscent(**settings).iterates(obj, np.zeros(4)), 1, 2)).w

    assert np.array_equal(first(seed=1), first(seed=1))
    assert not np.array_equal(first(seed=1), first(seed=2))
    assert np.array_equal(first(shuffle=False, seed=1), first(shuffle=False, seed=2))


@pytest.mark.parametrize(
    ("loss", "kind"), [(Hinge(), 3), (SquaredHinge(), 1), (Logistic(), 7), (EpsilonInsensitive(0.1), 13)]
)
def test_the_optimum_equals_liblinears(loss, kind):
    """Sparse rows of zeros and ones, as in a9a; scikit-learn includes LIBLINEAR."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC, LinearSVR

    rng = np.random.default_rng(kind)
    X = sp.random_array(
        (400, 60), density=0.15, rng=rng, format="csr", data_sampler=lambda size: np.ones(size)
    )
    z = X @ rng.standard_normal(60) + 0.5 * rng.standard_normal(400)
    y = z if kind == 13 else np.where(z > 0, 1.0, -1.0)
    lam = 1e-2
    C = 1 / (lam * 400)
    options = {"fit_intercept": False, "tol": 1e-9, "max_iter": 1_000_000}
    peer = {
        3: LinearSVC(loss="hinge", C=C, **options),
        1: LinearSVC(C=C / 2, **options),
        7: LogisticRegression(C=C, solver="newton-cg", fit_intercept=False, tol=1e-9),
        13: LinearSVR(epsilon=0.1, C=C, **options),
    }[kind].fit(X, y)
    obj = Objective(linear_risk(X, y, loss), L2(), lam)
    result = minimize(obj, DualCoordinateAscent(), tol=1e-9)
    assert result.status == "converged"
    assert result.value == pytest.approx(obj.value(peer.coef_.ravel()), rel=1e-7)
    assert result.value <= obj.value(peer.coef_.ravel()) * (1 + 1e-9)


# ---------------------------------------------------------------- unsupported problems
def test_settings_are_checked():
    for kind, wrong in (
        (DualCoordinateAscent, {"damping": 2.0}),
        (DualCoordinateAscent, {"seed": -1}),
        (DualGaussSeidel, {"damping": 0.0}),
        (DualGaussSeidel, {"damping": np.inf}),
        (DualGaussSeidel, {"rate": -1.0}),
        (AugmentedLagrangian, {"algorithm": 1}),
        (AugmentedLagrangian, {"mu": 0.0}),
        (AugmentedLagrangian, {"bias_rate": 0.0}),
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            kind(**wrong)


def test_unsupported_problems_are_refused_with_advice():
    for obj in (objective(Poisson()), objective(Hinge(), reg=L1())):
        with pytest.raises(TypeError, match=r"exact steps.*use Auto, or DualGaussSeidel"):
            DualCoordinateAscent().iterates(obj, np.zeros(4))
        assert "exact steps" in DualCoordinateAscent().supports(obj)
    risk = linear_risk(np.eye(2), [1.0, -1.0], Hinge(), fit_intercept=True)
    with pytest.raises(TypeError, match=r"no intercept .*: use Auto or Bundle"):
        DualCoordinateAscent().iterates(Objective(replace(risk, rows=None), L2(), 0.1), np.zeros(2))

    class Own:
        separable = True

        def value_grad(self, z, y, c):
            return c @ z**2, 2 * c * z

    obj = Objective(linear_risk(np.eye(2), [1.0, 2.0], Own()), L2(), 0.1)
    with pytest.raises(TypeError, match="Own gives no conjugate, which dual methods need: use Bundle"):
        DualCoordinateAscent().iterates(obj, np.zeros(2))
    with pytest.raises(TypeError, match="DualCoordinateAscent visits rows"):
        DualCoordinateAscent().iterates(Objective(lambda w: (0.0, w), L2(), 0.1), np.zeros(2))


@pytest.mark.slow
def test_it_meets_the_contract():
    check_solver(DualCoordinateAscent())
    check_solver(DualCoordinateAscent(shrink=False, shuffle=False, damping=1.3), seed=1)


@pytest.mark.parametrize("solver", [DualCoordinateAscent(), DualGaussSeidel()], ids=repr)
@pytest.mark.parametrize("stored", [sp.csr_array, sp.csc_array])
def test_duplicate_entries_are_summed(solver, stored):
    """SciPy sums duplicate entries of a row; the squares of the parts do not sum to the square."""
    rng = np.random.default_rng(0)
    D = rng.standard_normal((40, 3))
    parts = np.repeat(D.ravel() / 6, 6)
    X = sp.csr_array((parts, np.tile(np.repeat(np.arange(3), 6), 40), np.arange(0, 721, 18)), shape=(40, 3))
    y = np.where(D[:, 0] + 0.5 * rng.standard_normal(40) > 0, 1.0, -1.0)
    objectives = [Objective(linear_risk(A, y, Squared()), L2(), 1e-2) for A in (stored(X), D)]
    duplicated, summed = (minimize(obj, solver, tol=1e-8) for obj in objectives)
    assert duplicated.status == summed.status == "converged"
    assert duplicated.n_iter == summed.n_iter
    if isinstance(solver, DualCoordinateAscent):
        np.testing.assert_allclose(duplicated.w, summed.w, rtol=1e-9)
    # the iterates of gradient steps come from searches that rounding may end sooner: compare the multipliers
    runs = [islice(solver.iterates(obj, np.zeros(3)), duplicated.n_iter) for obj in objectives]
    for one, other in zip(*runs, strict=True):
        np.testing.assert_allclose(one.state()["u"], other.state()["u"], rtol=1e-9, atol=1e-13)
    assert duplicated.value == pytest.approx(summed.value, rel=1e-12)


@pytest.mark.parametrize("loss", [Absolute(), Logistic()])
def test_sparse_rows_without_entries_are_not_treated_as_dense(loss):
    obj = Objective(linear_risk(sp.csr_array((2, 40)), np.array([1.0, -1.0]), loss), L2(), lam=1.0)
    result = minimize(obj, DualCoordinateAscent(), w0=np.ones(40), tol=1e-6)
    assert result.status == "converged"
    assert result.trace[0]["value"] == pytest.approx(obj(np.ones(40))[0])
    assert result.value == pytest.approx(obj(np.zeros(40))[0])
    assert _indices_and_values(obj.risk.rows.X)[0] is not None  # dense rows have no indices
