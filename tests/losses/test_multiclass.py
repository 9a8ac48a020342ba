"""Multi-output losses: brute force, cvxpy, other libraries, and cuts with zero slope in the intercepts."""

import gc
import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import riskmin
from helpers import COST, MANY_LOSSES, K, problem, risk_of
from reference import optimum
from riskmin import (
    L1,
    L2,
    AcceleratedGradient,
    Auto,
    Bmrm,
    Box,
    Bundle,
    CoordinateDescent,
    Elastic,
    Hinge,
    Lbfgs,
    Logistic,
    MulticlassHinge,
    MulticlassSquaredHinge,
    MultivariateSquared,
    Nu,
    Objective,
    OwlQn,
    Processes,
    ProfiledIntercept,
    ProximalGradient,
    QNorm,
    Smoothed,
    Smoothing,
    Softmax,
    Squared,
    SquaredHinge,
    Threads,
    lam_max,
    linear_risk,
    minimize,
)
from riskmin.core.limits import LIMITS
from riskmin.numerics.simplex import project_onto_simplex
from riskmin.problem import shard_ops
from riskmin.problem.objective import Cut
from riskmin.regularizers import unpenalized_tail

BETWEEN = [MulticlassHinge(COST, rescaled=0.5), MulticlassHinge(COST, rescaled=0.7, scaled_margin=True)]
"""Between margin and slack rescaling."""
CLASSES = [*(loss for loss in MANY_LOSSES if loss.task == "multiclass"), *BETWEEN]
LOSSES = [*(loss for loss in MANY_LOSSES if loss.task != "tagging"), *BETWEEN]
each_class_loss = pytest.mark.parametrize("loss", CLASSES, ids=repr)
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)


# ---------------------------------------------------------------- the losses, by brute force
def by_hand(loss, z, y):
    """The loss of one row, by its formula over the classes."""
    if isinstance(loss, MultivariateSquared):
        M = np.eye(len(z)) if loss.M is None else loss.M
        return sum(M[a, b] * (z[a] - y[a]) * (z[b] - y[b]) for a in range(len(z)) for b in range(len(z))) / 2
    y = int(y)
    if isinstance(loss, Softmax):
        return float(np.logaddexp.reduce(z)) - z[y]
    if isinstance(loss, MulticlassSquaredHinge):
        return sum(max(0.0, 1 + z[j] - z[y]) ** 2 for j in range(len(z)) if j != y) / 2
    cost = 1 - np.eye(len(z)) if loss.cost is None else loss.cost
    beta, scales = float(loss.rescaled), loss.scaled_margin
    factor = [cost[y, j] ** beta for j in range(K)]
    return max(f * (z[j] - z[y]) + (f if scales else 1) * cost[y, j] for j, f in enumerate(factor))


@each_loss
def test_values_by_hand(loss):
    rng = np.random.default_rng(0)
    for z in (3 * rng.standard_normal((20, K)), rng.integers(-1, 2, (20, K)).astype(float)):
        y = rng.standard_normal((20, K)) if loss.task == "regression" else np.arange(20.0) % K
        c = rng.random(20)
        expected = sum(w * by_hand(loss, s, t) for w, s, t in zip(c, z, y, strict=True))
        value, dz = loss.value_grad(z, y, c)
        assert float(value) == pytest.approx(expected, rel=1e-12)
        if loss.task == "multiclass":  # the loss is invariant to a constant added to all scores of a row
            np.testing.assert_allclose(dz.sum(1), 0, atol=1e-14)


def test_two_classes_equal_the_binary_losses_of_the_difference():
    rng = np.random.default_rng(1)
    Z, y, c = rng.standard_normal((30, 2)), np.arange(30.0) % 2, np.full(30, 1 / 30)
    pairs = (Softmax(), Logistic()), (MulticlassHinge(), Hinge()), (MulticlassSquaredHinge(), SquaredHinge())
    for multiclass, binary in pairs:
        value, dz = multiclass.value_grad(Z, y, c)
        expected, slope = binary.value_grad(Z[:, 1] - Z[:, 0], 2 * y - 1, c)
        assert float(value) == pytest.approx(float(expected), rel=1e-14)
        np.testing.assert_allclose(dz, np.column_stack([-slope, slope]), rtol=1e-13, atol=1e-17)


def test_softmax_is_stable():
    z, y, ones = np.array([[1e4, 0.0, -1e4], [-1e4, 0.0, 1e4]]), np.array([0.0, 0.0]), np.ones(2)
    value, dz = Softmax().value_grad(z, y, ones)
    assert float(value) == pytest.approx(2e4)
    np.testing.assert_allclose(dz, [[0.0, 0, 0], [-1, 0, 1]], atol=1e-15)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 3, 8]), st.sampled_from([1e-3, 1.0, 1e6]))
def test_projections_onto_the_simplex_are_nearest_points(seed, k, scale):
    v = scale * np.random.default_rng(seed).standard_normal((4, k)).round(1)
    x = project_onto_simplex(v)
    assert np.all(x >= 0)
    np.testing.assert_allclose(x.sum(1), 1, rtol=1e-9)
    for vertex in np.eye(k):  # optimality: no direction from x to a vertex of the simplex comes nearer to v
        assert np.all(((v - x) * (vertex - x)).sum(1) <= 1e-9 * (1 + scale))


@pytest.mark.parametrize("loss", [loss for loss in CLASSES if not loss.smooth], ids=repr)
def test_smoothed_margin_losses_equal_a_quadratic_program_per_row(loss):
    import cvxpy as cp

    rng = np.random.default_rng(2)
    z, y, c = rng.standard_normal((6, K)), np.arange(6.0) % K, rng.random(6)
    cost = (1 - np.eye(K) if loss.cost is None else loss.cost)[y.astype(int)]
    lead = z - z[np.arange(6), y.astype(int)][:, None]
    factor = cost ** float(loss.rescaled)
    slack = factor * lead + (factor if loss.scaled_margin else 1) * cost
    for mu in (0.1, 2.0):
        beta = cp.Variable((6, K), nonneg=True)
        square = mu / 2 * (c @ cp.sum(cp.square(beta), axis=1))
        objective = cp.Maximize(c @ cp.sum(cp.multiply(slack, beta), axis=1) - square)
        program = cp.Problem(objective, [cp.sum(beta, axis=1) == 1])
        program.solve(solver=cp.CLARABEL)
        value, _, offset = loss.smoothed_value_grad(z, y, c, mu)
        assert float(value) == pytest.approx(program.value, abs=1e-7)
        assert float(offset) == pytest.approx(square.value, abs=1e-5)
    assert float(loss.smoothed_value_grad(z, y, c, 1e-9)[0]) == pytest.approx(
        float(loss.value_grad(z, y, c)[0]), abs=1e-8
    )


# ---------------------------------------------------------------- intercepts
@st.composite
def classes(draw):
    """A risk with intercepts: random costs, zero or tiny weights, missing classes."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    k, n, p = draw(st.integers(2, 5)), draw(st.integers(2, 12)), draw(st.integers(1, 3))
    y = rng.integers(0, k, n).astype(float)
    y[:2] = rng.permutation(k)[:2]
    weights = rng.random(n) * 10.0 ** draw(st.sampled_from([0, -8, -150])) ** (y == y[0])
    if draw(st.booleans()):
        weights[y == y[1]] = 0.0
    assume(weights.sum() > 0)
    cost = rng.random((k, k)) * (rng.random((k, k)) < draw(st.sampled_from([0.5, 1.0]))) * (1 - np.eye(k))
    kind = draw(st.sampled_from([Softmax(), MulticlassSquaredHinge(), None]))
    loss = kind or MulticlassHinge(draw(st.sampled_from([None, cost])), draw(st.booleans()))
    X = rng.standard_normal((n, p))
    settings = {"sample_weight": weights, "fit_intercept": True, "n_outputs": k}
    return linear_risk(X, y, loss, **settings), rng


@settings(max_examples=80, deadline=None)
@given(classes(), st.sampled_from([0.1, 1.0, 30.0, 1e4]))
def test_projected_cuts_are_cuts_with_zero_slope_in_the_intercepts(risk_rng, scale):
    risk, rng = risk_rng
    k = risk.n_intercepts
    w = scale * rng.standard_normal(risk.dim)
    value, grad = risk(w)
    tangent = Cut(grad, value - grad @ w)
    cut = risk.project_out_intercepts(tangent)
    assert np.all(cut.a[-k:] == 0)
    for scale_ in (0.0, 1.0, 1e3):
        for v in scale_ * rng.standard_normal((8, risk.dim)):
            risk_at_v = risk(v)[0]
            slack = 1e-11 * (1 + risk_at_v + abs(tangent.b) + np.abs(cut.a) @ np.abs(v))
            assert cut.a @ v + cut.b <= risk_at_v + slack
    twice = risk.project_out_intercepts(cut)  # a second projection changes nothing
    np.testing.assert_allclose(twice.a, cut.a, rtol=1e-12, atol=1e-300)


def test_at_the_best_intercepts_the_projected_cut_is_the_tangent():
    X, y, weights = problem(Softmax())
    risk = linear_risk(X, y, Softmax(), sample_weight=weights, fit_intercept=True)
    best = minimize(Objective(risk, L2(), 0.1), tol=1e-12)
    value, grad = risk(best.w)
    assert np.abs(grad[-K:]).max() < 1e-5
    cut = risk.project_out_intercepts(Cut(grad, value - grad @ best.w))
    np.testing.assert_allclose(cut.a[:-K], grad[:-K], atol=1e-4)
    assert cut.b == pytest.approx(value - grad @ best.w, abs=1e-4)


@pytest.mark.parametrize("loss", [Softmax(), MulticlassHinge(COST), MulticlassSquaredHinge()], ids=repr)
@pytest.mark.parametrize("lam", [1e-6, 1e4])
def test_intercepts_of_separable_data(loss, lam):
    """Intercepts may become large; the lower bounds stay below the value found."""
    rng = np.random.default_rng(3)
    y = np.arange(12.0) % K
    X = 5 * np.eye(K)[y.astype(int)] + 0.1 * rng.standard_normal((12, K))
    X = np.column_stack([X, np.zeros(12)])  # a column of zeros, and each row twice
    X, y = np.repeat(X, 2, axis=0), np.repeat(y, 2)
    J = Objective(linear_risk(X, y, loss, fit_intercept=True), L2(), lam)
    result = minimize(J, tol=1e-4, max_iter=500)
    assert 0 <= result.lower <= result.value <= J.value(np.zeros(J.risk.dim)) * (1 + 1e-12)
    assert result.status == "converged" or lam < 1
    for max_iter in (1, 2):
        short_run = minimize(J, w0=rng.standard_normal(J.risk.dim), max_iter=max_iter)
        assert short_run.lower <= result.value * (1 + 1e-12)


def test_without_features_the_intercepts_give_the_class_frequencies():
    y, weights = np.array([0.0, 1.0, 2.0, 2.0]), np.array([1.0, 2.0, 3.0, 0.0])
    X = np.zeros((4, 1))
    risk = linear_risk(X, y, Softmax(), sample_weight=weights, fit_intercept=True, n_outputs=3)
    result = minimize(Objective(risk, L2(), 0.1), tol=1e-10)
    p = np.exp(result.w[-3:])
    np.testing.assert_allclose(p / p.sum(), [1 / 6, 1 / 3, 1 / 2], rtol=1e-4)
    assert result.value == pytest.approx(-np.sum([w * np.log(w) for w in (1 / 6, 1 / 3, 1 / 2)]), rel=1e-9)


REGULARIZERS = [L2(), L1(), Elastic(0.3), Box(L2()), QNorm(1.5, 2.0), L2(np.array([0.5, 1.0, 2.0]))]


@pytest.mark.parametrize("reg", REGULARIZERS, ids=repr)
def test_free_entries_are_not_penalized(reg):
    """Fenchel-Young, the proximal point and the scale, with unpenalized entries of w."""
    rng = np.random.default_rng(4)
    Omega = unpenalized_tail(reg, 2)
    assert unpenalized_tail(Omega, 2) is Omega
    for _ in range(20):
        u = np.append(rng.uniform(-1, 1, 3), [0.0, 0.0])  # within the domain of the conjugate of L1
        w = np.append(reg.conjugate_grad(u[:3]), rng.standard_normal(2))
        other = np.append(np.abs(rng.standard_normal(3)), rng.standard_normal(2))
        assert Omega.value(other) == reg.value(other[:3])
        assert Omega.value(other) + Omega.conjugate(u) >= u @ other - 1e-12
        assert Omega.value(w) + Omega.conjugate(u) == pytest.approx(u @ w, abs=1e-9)
        assert Omega.conjugate_grad(u)[-2:].tolist() == [0.0, 0.0]
        v = rng.standard_normal(5)
        prox = Omega.prox(v, 0.7)
        np.testing.assert_array_equal(prox, np.append(reg.prox(v[:3], 0.7), v[3:]))
        d = rng.standard_normal(5)
        assert Omega.line(other, d)(0.0)[0] == pytest.approx(Omega.value(other))
        cut = Cut(u, 0.3)
        assert Omega.scale(cut, 0.5) == reg.scale(Cut(u[:3], 0.3), 0.5)
    assert Omega.conjugate(np.ones(5)) == np.inf
    assert Omega.scale(Cut(np.ones(5), 1.0), 0.5) == 0.0


# ---------------------------------------------------------------- the optimum
SOLVERS = [Auto(), Bundle(), Lbfgs(), OwlQn(), ProximalGradient(), AcceleratedGradient(), Smoothing()]


def check_optimum(loss, reg, solvers, intercept, weighted, lam=0.05, seed=0, tol=1e-6):
    X, y, weights = problem(loss, seed=seed)
    best = optimum(loss, reg, X, y, weights if weighted else None, lam, intercept)
    n_supported = 0
    for solver in solvers:
        J = Objective(risk_of(loss, X, y, weights if weighted else None, fit_intercept=intercept), reg, lam)
        try:
            result = minimize(J, solver, np.ones(J.risk.dim), tol=tol, max_iter=3000)
        except TypeError:
            continue
        assert all(row["lower"] <= best + 2e-8 for row in result.trace)
        assert result.value >= best - 2e-8
        if isinstance(solver, Lbfgs) and not loss.smooth:
            continue
        assert (result.status, result.value) == ("converged", pytest.approx(best, rel=2 * tol))
        n_supported += 1
    assert n_supported


@each_loss
@pytest.mark.parametrize("intercept", [False, True])
def test_the_optimum_equals_cvxpys(loss, intercept):
    check_optimum(loss, L2(), [Auto()], intercept, weighted=intercept)


@pytest.mark.exhaustive
@each_loss
@pytest.mark.parametrize("reg", [L2(), L1(), Elastic(0.3)], ids=repr)
def test_all_solvers_find_the_optimum(loss, reg):
    for intercept in (False, True):
        check_optimum(loss, reg, SOLVERS, intercept, weighted=not intercept, seed=1, tol=1e-5)


def test_targets_without_a_matrix_are_independent_regressions():
    X, Y, weights = problem(MultivariateSquared())
    for intercept in (False, True):
        settings = {"sample_weight": weights, "fit_intercept": intercept}
        joint = minimize(
            Objective(linear_risk(X, Y, MultivariateSquared(), **settings), L2(), 0.1), tol=1e-11
        )
        for j, y in enumerate(Y.T):
            single = minimize(Objective(linear_risk(X, y, Squared(), **settings), L2(), 0.1), tol=1e-11)
            np.testing.assert_allclose(joint.w.reshape(4, K)[:, j], single.w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("intercept", [False, True])
def test_lam_max_is_where_all_weights_become_zero(intercept):
    X, y, weights = problem(Softmax())
    risk = linear_risk(X, y, Softmax(), sample_weight=weights, fit_intercept=intercept)
    largest = lam_max(risk, L1())
    for lam, all_zero in ((1.001 * largest, True), (0.98 * largest, False)):
        result = minimize(Objective(risk, L1(), lam), tol=1e-7)
        assert (result.status, bool(np.all(result.w[: 4 * K] == 0))) == ("converged", all_zero)


# ---------------------------------------------------------------- data of any kind
def data(n=40, p=5, k=4, seed=0):
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((n, p)) < 0.6, rng.standard_normal((n, p)), 0.0)
    y = np.argmax(X @ rng.standard_normal((p, k)) + rng.standard_normal((n, k)), axis=1).astype(float)
    y[:k] = np.arange(k)
    return X, y


@pytest.mark.parametrize("intercept", [False, True])
def test_the_layout_of_the_data_does_not_matter(intercept):
    X, y = data()
    for loss in (Softmax(), MulticlassHinge()):
        risk = linear_risk(X, y, loss, fit_intercept=intercept)
        w = np.random.default_rng(5).standard_normal(risk.dim)
        value, grad = risk(w)
        narrow = X.astype(np.float32)
        for other in (np.asfortranarray(X), sp.csr_array(X), sp.csc_array(X), sp.csr_array(narrow), narrow):
            other_value, slope = linear_risk(other, y, loss, fit_intercept=intercept, n_shards=3)(w)
            tol = 1e-12 if other.dtype == np.float64 else 1e-5
            assert other_value == pytest.approx(value, rel=tol)
            np.testing.assert_allclose(slope, grad, rtol=tol, atol=tol)


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", ["data in torch", "all in torch"])
@pytest.mark.parametrize("loss", [Softmax(), MulticlassHinge(COST), MultivariateSquared()], ids=repr)
def test_torch_data_give_the_same_fit(loss, where):
    torch = pytest.importorskip("torch")
    X, y, _ = problem(loss)
    expected = minimize(Objective(linear_risk(X, y, loss, fit_intercept=True), L2(), 0.1), tol=1e-6)
    risk = linear_risk(torch.as_tensor(X), torch.as_tensor(y), loss, fit_intercept=True)
    w0 = torch.zeros(risk.dim, dtype=torch.float64) if where == "all in torch" else None
    result = minimize(Objective(risk, L2(), 0.1), None, w0, tol=1e-6)
    assert isinstance(result.w, torch.Tensor if w0 is not None else np.ndarray)
    assert (result.status, result.value) == ("converged", pytest.approx(expected.value, rel=2e-6))


@pytest.mark.parametrize("intercept", [False, True])
def test_uncached_scores_give_the_same_fits(intercept, monkeypatch):
    X, y = data(n=120)
    fits = {}
    for max_cached, max_block in (
        (2**22, 2**17),
        (10, 2**17),
        (10, 64),
    ):  # cached; uncached; uncached in small blocks
        limits = replace(LIMITS, cache_max_scores=max_cached, block_max_scores=max_block)
        monkeypatch.setattr(shard_ops, "LIMITS", limits)
        for loss in (Softmax(), MulticlassHinge()):
            J = Objective(linear_risk(sp.csr_array(X), y, loss, fit_intercept=intercept), L2(), 0.01)
            result = minimize(J, tol=1e-4)
            assert result.status == "converged"
            fits.setdefault(loss, []).append(result.value)
    for values in fits.values():
        assert values == pytest.approx([values[0]] * 3, rel=2e-4)


def test_the_scores_of_all_rows_are_not_allocated(monkeypatch):
    """With a thousand classes, all scores take 8 megabytes, and those of a block a quarter of one."""
    n, p, k = 1000, 20, 1000
    rng = np.random.default_rng(6)
    X, y = sp.random_array((n, p), density=0.05, format="csr", rng=rng), np.arange(float(n)) % k
    limits = replace(LIMITS, cache_max_scores=10**5, block_max_scores=2**15)
    monkeypatch.setattr(shard_ops, "LIMITS", limits)
    for loss in (Softmax(), MulticlassHinge()):
        risk = linear_risk(X, y, loss, fit_intercept=True, n_shards=1)
        w, d = rng.standard_normal((2, risk.dim))
        risk(w)
        cursor = risk.cursor(w)
        cursor.set_direction(d)
        gc.collect()
        tracemalloc.start()
        risk(w)
        cursor.value_slope(0.5)
        cursor.evaluate()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 0.5 * 8 * n * k


@pytest.mark.parametrize("k", [2, 100])
def test_few_and_many_classes(k):
    """Also with more classes than rows; the weights of classes without rows are all alike."""
    rng = np.random.default_rng(7)
    X, y = rng.standard_normal((40, 6)), np.arange(40.0) % min(k, 30)
    J = Objective(linear_risk(X, y, Softmax(), n_outputs=k), L2(), 0.01)
    result = minimize(J, tol=1e-5)
    assert (result.status, result.w.shape) == ("converged", (6 * k,))
    if k > 30:
        W = result.w.reshape(6, k)
        np.testing.assert_allclose(W[:, 30:], W[:, 30:31] + 0 * W[:, 30:], atol=1e-3)  # all alike


def test_weights_equal_repeated_rows():
    X, y = data()
    weights = np.random.default_rng(8).integers(0, 3, len(y))
    weights[:4] = 1
    rows = np.repeat(np.arange(len(y)), weights)
    for loss in (Softmax(), MulticlassHinge()):
        one = linear_risk(X, y, loss, sample_weight=weights, fit_intercept=True)
        two = linear_risk(X[rows], y[rows], loss, fit_intercept=True)
        w = np.ones(one.dim) / 3
        assert one(w)[0] == pytest.approx(two(w)[0], rel=1e-13)
        np.testing.assert_allclose(one(w)[1], two(w)[1], atol=1e-14)


def bits(J, solver):
    result = minimize(J, solver, tol=1e-3)
    return result.value, result.lower, result.w.tobytes()


def check_bits(executor):
    X, y = data(n=90)
    for loss, intercept in ((Softmax(), True), (MulticlassHinge(), False)):
        risks = [
            linear_risk(X, y, loss, fit_intercept=intercept, n_shards=4, executor=e) for e in (None, executor)
        ]
        solver = Lbfgs() if loss.smooth else Smoothing()  # Auto may choose another for remote rows
        one, two = (bits(Objective(risk, L2(), 0.01), solver) for risk in risks)
        assert one == two


def test_threads_give_the_same_bits():
    check_bits(Threads(n_workers=3))


@pytest.mark.exhaustive
def test_processes_give_the_same_bits():
    check_bits(Processes(n_workers=2))


@pytest.mark.parametrize(("loss", "intercept"), [(Softmax(), True), (MulticlassHinge(), True)], ids=repr)
def test_a_run_continues_from_its_checkpoint(loss, intercept, tmp_path):
    X, y = data()
    J = Objective(linear_risk(X, y, loss, fit_intercept=intercept), L2(), 0.01)
    uninterrupted, path = minimize(J, tol=1e-4), tmp_path / "run.npz"
    first = minimize(J, tol=1e-4, max_iter=5, checkpoint=path)
    resumed = minimize(J, tol=1e-4, checkpoint=path)
    assert (resumed.status, resumed.value) == ("converged", pytest.approx(uninterrupted.value, rel=2e-4))
    assert resumed.trace[: first.n_iter] == first.trace
    other = Objective(linear_risk(X, y, loss, fit_intercept=not intercept), L2(), 0.01)
    with pytest.raises(ValueError, match="another"):
        minimize(other, checkpoint=path)


# ---------------------------------------------------------------- odd problems
@st.composite
def odd_problems(draw):
    """Any multiclass loss, on data that are hard in several ways."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n, p = draw(st.sampled_from([3, 7, 30])), draw(st.sampled_from([1, 2, 5]))
    X, y = rng.standard_normal((n, p)), rng.integers(0, K, n).astype(float)
    y[:K] = np.arange(K)
    weights = None
    match draw(st.sampled_from(["plain", "constant", "zero", "scale", "scales", "apart", "one"])):
        case "constant":
            X[:, 0] = draw(st.sampled_from([1.0, 1e6]))
        case "zero":
            X[:] = 0.0
        case "scale":
            X *= 10.0 ** draw(st.integers(-8, 8))
        case "scales":
            X *= 10.0 ** rng.uniform(-8, 8, p)
        case "apart":
            X[:, 0] = y * (1 + 0.1 * rng.random(n))
        case "one":
            weights = np.where(np.arange(n) == 0, draw(st.sampled_from([1.0, 1e-300])), 0.0)
    loss = draw(st.sampled_from(CLASSES))
    risk = linear_risk(X, y, loss, sample_weight=weights, fit_intercept=draw(st.booleans()))
    w0 = draw(st.sampled_from([0.0, 1.0, 1e3])) * rng.standard_normal(risk.dim)
    return Objective(risk, L2(), 10.0 ** draw(st.integers(-10, 6))), w0


def certify(J, w0, max_iter):
    """No lower bound of a solver may exceed the value of another."""
    results = []
    for solver in (Auto(), Lbfgs(), Bundle(), ProximalGradient()):
        try:
            results.append(minimize(J, solver, w0, tol=1e-5, max_iter=max_iter))
        except TypeError:
            continue
    scale = max(J.value(np.zeros(J.risk.dim)), J.value(w0), 1.0)
    for one, two in itertools.product(results, results):
        assert -1e-14 * scale <= one.lower <= one.value < np.inf
        assert one.lower <= two.value * (1 + 1e-9) + 1e-11 * scale
        assert J.value(one.w) == pytest.approx(one.value, rel=1e-9, abs=1e-12 * scale)


def test_denormal_slopes_in_an_intercept_are_projected_out():
    risk = linear_risk(np.array([[0.5], [0.6], [-0.6]]), np.arange(3.0), Softmax(), fit_intercept=True)
    cut = risk.project_out_intercepts(Cut(np.array([-0.2, 0.2, 6e-320, -1 / 3, 1 / 3, 1e-319]), 0.0))
    assert np.all(np.isfinite(cut.a))
    assert np.all(cut.a[-3:] == 0)


@settings(max_examples=12, deadline=None)
@given(odd_problems())
def test_odd_problems_have_valid_certificates(problem):
    certify(*problem, max_iter=15)


@pytest.mark.exhaustive
@settings(max_examples=50, deadline=None)
@given(odd_problems())
def test_many_odd_problems_have_valid_certificates(problem):
    certify(*problem, max_iter=60)


# ---------------------------------------------------------------- errors
X6, Y6 = np.arange(12.0).reshape(6, 2), np.array([0.0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    ("y", "settings", "message"),
    [
        (np.array(list("abcabc")), {}, "needs classes numbered 0, 1, 2, ..., but y holds 'a', 'b', 'c'"),
        (Y6 - 1, {}, "but y holds -1, 0, 1; use LinearClassifier"),
        (Y6 / 2, {}, "but y holds 0, 0.5, 1"),
        (np.where(Y6 == 1, np.nan, Y6), {}, "2 of 6 are NaN; drop those rows"),
        (np.where(Y6 == 1, np.inf, Y6), {}, "but y holds 0, 2, inf"),
        (np.full(6, 2.0), {}, "y holds a single class, 2, but two are needed: add rows of another, or give"),
        (np.zeros(6), {"n_outputs": 1}, "y holds class 0, but n_outputs is 1: give 2 or more"),
        (None, {}, "Softmax needs a label for every row, but y is None"),
        (np.eye(6)[:, :3], {}, r"give one label per row, an array of shape \(6,\)"),
        (Y6, {"n_outputs": 2}, "y holds class 2, but n_outputs is 2: give 3 or more"),
        (Y6, {"n_outputs": 3.5}, "n_outputs=3.5 is no whole number"),
        (Y6, {"lengths": [6]}, "does not use sequences: leave lengths out"),
        (Y6, {"qid": Y6}, "does not use queries: leave qid out"),
    ],
)
def test_invalid_labels_are_refused(y, settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        linear_risk(X6, y, Softmax(), **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MulticlassHinge([[0, 1, 2]]), r"cost has shape \(1, 3\): give a row and a column for each"),
        (lambda: MulticlassHinge("abc"), "cost='abc' is not a matrix of numbers: give a row"),
        (lambda: MulticlassHinge([[1, 1], [1, 0]]), "0 on its diagonal"),
        (lambda: MulticlassHinge([[0, -1], [1, 0]]), "finite numbers >= 0"),
        (lambda: MulticlassHinge([[0, np.nan], [1, 0]]), "finite numbers >= 0"),
        (lambda: linear_risk(X6, Y6, MulticlassHinge(1 - np.eye(2))), "cost is for 2 classes, but there are"),
        (lambda: MultivariateSquared([[1, 2], [0, 1]]), r"M, of shape \(2, 2\), is not symmetric"),
        (lambda: MultivariateSquared([[1, 2], [2, 1]]), "M is not positive semidefinite"),
        (lambda: linear_risk(X6, X6, MultivariateSquared(np.eye(3))), "M is for 3 outputs, but y has 2"),
        (lambda: linear_risk(X6, X6, MultivariateSquared(), n_outputs=3), "y has 2 columns, but"),
        (
            lambda: linear_risk(X6, np.full((6, 2), np.inf), MultivariateSquared()),
            "needs finite numbers in y",
        ),
        (lambda: linear_risk(X6, X6[:5], MultivariateSquared()), "y has 5 labels, but X has 6 rows"),
    ],
)
def test_invalid_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_wrappers_and_solvers_of_multi_output_losses():
    with pytest.raises(TypeError, match="Nu needs a loss of one score per row"):
        Nu(Softmax(), 0.5)
    X, y = data()
    smoothed = linear_risk(X, y, Smoothed(MulticlassHinge(), 0.1))
    assert minimize(Objective(smoothed, L2(), 0.1), tol=1e-6).status == "converged"
    with pytest.raises(
        ValueError, match="has no method for intercepts: fit without, or add a column of ones"
    ):
        linear_risk(X, y, Smoothed(MulticlassHinge(), 0.1), fit_intercept=True)
    risk = linear_risk(X, y, MulticlassHinge(), fit_intercept=True)
    for solver in (Bmrm(), CoordinateDescent()):
        with pytest.raises(
            TypeError, match="cannot move the intercepts of a multi-output model: use Bundle or Auto"
        ):
            minimize(Objective(risk, L2(), 0.1), solver)
    with pytest.raises(TypeError, match=r"is not: use Smoothing\(ProximalGradient\(\)\)"):
        minimize(Objective(risk, L1(), 0.1), OwlQn())
    with pytest.raises(TypeError, match=r"OwlQn is for L1\(\) and Elastic\(\), not L2: use"):
        minimize(Objective(linear_risk(X, y, Softmax(), fit_intercept=True), L2(), 0.1), OwlQn())
    with pytest.raises(
        ValueError, match="Softmax has several scores per row, and one intercept is for one score"
    ):
        replace(linear_risk(X, y, Softmax()), intercept=ProfiledIntercept())


@pytest.mark.parametrize("loss", [Softmax(), MulticlassHinge(), MulticlassSquaredHinge()], ids=repr)
def test_a_single_class_is_accepted_if_the_number_of_classes_is_given(loss):
    """As when a model is certified on some of its rows."""
    X, w = np.array([[1.0, 2.0], [3.0, -1.0]]), np.random.default_rng(0).standard_normal(6)
    risk = linear_risk(X, np.ones(2), loss, n_outputs=3)
    assert risk(w)[0] == pytest.approx(loss.value_grad(X @ w.reshape(2, 3), np.ones(2), np.full(2, 0.5))[0])
    assert minimize(Objective(risk, L2(), 0.1), tol=1e-4).status == "converged"


# ---------------------------------------------------------------- other libraries
def digits():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return X[:600] / 16, y[:600].astype(float)


@pytest.mark.slow
@pytest.mark.parametrize("C", [0.01, 1.0])
def test_the_objective_of_liblinear(C):
    """Crammer and Singer's multiclass SVM, LIBLINEAR's -s 4."""
    from sklearn.svm import LinearSVC

    X, y = digits()
    lam = 1 / (C * len(y))
    J = Objective(linear_risk(sp.csr_array(X), y, MulticlassHinge()), L2(), lam)
    liblinear = LinearSVC(C=C, multi_class="crammer_singer", fit_intercept=False, tol=1e-6, max_iter=10**6)
    W = liblinear.fit(X, y.astype(int)).coef_.T
    result = minimize(J, tol=1e-5)
    assert result.status == "converged"
    assert result.lower <= J.value(W.ravel())
    assert result.value == pytest.approx(J.value(W.ravel()), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("intercept", [False, True])
def test_the_objective_of_multinomial_logistic_regression(intercept):
    from sklearn.linear_model import LogisticRegression

    X, y = digits()
    lam = 1e-3
    J = Objective(linear_risk(X, y, Softmax(), fit_intercept=intercept), L2(), lam)
    sklearn_model = LogisticRegression(C=1 / (lam * len(y)), fit_intercept=intercept, tol=1e-8, max_iter=5000)
    sklearn_model.fit(X, y)
    w = np.append(sklearn_model.coef_.T.ravel(), sklearn_model.intercept_ if intercept else [])
    result = minimize(J, tol=1e-6)
    assert result.status == "converged"
    assert result.lower <= J.value(w)
    assert result.value == pytest.approx(J.value(w), rel=1e-4)


# ---------------------------------------------------------------- optimized intercepts
def test_intercepts_are_optimized_without_a_pass_over_X():
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((60, 3)), rng.integers(0, 4, 60).astype(float)
    risk = linear_risk(X, y, Softmax(), fit_intercept=True, n_shards=3)
    cursor = risk.cursor(rng.standard_normal(risk.dim))
    value, grad, _ = cursor.evaluate()
    w = cursor.w
    for _ in range(3):
        cursor.optimize_intercepts()
    optimized, slope, _ = cursor.evaluate()
    assert np.array_equal(cursor.w[:-4], w[:-4])  # the weights are unchanged
    assert optimized < value
    assert abs(slope[-4:]).max() <= 1e-4 * abs(grad[-4:]).max()
    fresh_value, fresh_grad = risk(
        cursor.w
    )  # the cached scores and the cached evaluation belong to the new w
    assert fresh_value == pytest.approx(optimized, rel=1e-12)
    np.testing.assert_allclose(slope, fresh_grad, atol=1e-12)


def test_rescaling_is_a_number_between_its_two_forms():
    rng = np.random.default_rng(0)
    z, y, c = rng.standard_normal((20, K)), np.arange(20.0) % K, rng.random(20)
    for one, other in ((False, 0.0), (True, 1.0)):
        first, second = MulticlassHinge(COST, rescaled=one), MulticlassHinge(COST, rescaled=other)
        assert first.value_grad(z, y, c)[0] == second.value_grad(z, y, c)[0]
        assert first.formula == second.formula
    for bad in (-0.1, 1.5, float("nan"), "half", None):
        with pytest.raises(ValueError, match="rescaled must be False, True or a number from 0 to 1"):
            MulticlassHinge(COST, rescaled=bad)
    assert riskmin.losses.get_loss("multiclass_hinge:rescaled=0.5").rescaled == 0.5
    assert riskmin.LOSSES.from_dict(riskmin.LOSSES.to_dict(BETWEEN[1]), ()) == BETWEEN[1]
