"""Newton's method for the softmax loss in stages: predicted cuts, products, preconditioners, the row span."""

from itertools import islice

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

import riskmin as rm
from riskmin._numba.newton import softmax_rows
from riskmin.solvers.newton.multi_output.row_span import RowSpan
from riskmin.solvers.newton.multi_output.softmax import SoftmaxProblem, SoftmaxStep
from riskmin.solvers.newton.newton import choose_score_problem


def objective(n=80, p=5, k=4, lam=1e-4, intercept=False, sparse=False, seed=0, absent=False):
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((n, p)) < 0.7, rng.standard_normal((n, p)), 0.0) + (0.0 if sparse else 0.4)
    y = np.argmax(X @ rng.standard_normal((p, k)) + rng.standard_normal((n, k)), axis=1).astype(float)
    weights = np.where(rng.random(n) < 0.1, 0.0, rng.random(n))
    stored = sp.csr_array(X) if sparse else X
    settings = {"sample_weight": weights, "fit_intercept": intercept, "n_outputs": k + absent}
    return rm.Objective(rm.linear_risk(stored, y, rm.Softmax(), **settings), rm.L2(), lam)


def staged(obj):
    return SoftmaxProblem(obj, choose_score_problem(obj))


def dense_hessian(obj, p):
    """lam I + sum_i x_i x_i' (x) H_i, from its formula."""
    rows, k = obj.risk.rows, p.shape[1]
    X = rows.X.as_scipy().toarray() if rows.X.sparse else rows.X.array
    X = np.column_stack([X, np.ones(len(X))]) if obj.n_intercepts else X
    blocks = [c * (np.diag(q) - np.outer(q, q)) for q, c in zip(p, rows.c, strict=True)]
    H = sum(np.kron(np.outer(x, x), block) for x, block in zip(X, blocks, strict=True))
    penalty = np.full(len(H), obj.lam)
    penalty[len(H) - k * bool(obj.n_intercepts) :] = 0.0
    return H + np.diag(penalty)


def test_the_loss_along_a_line_has_the_value_and_derivatives_of_the_loss():
    rng = np.random.default_rng(0)
    n, k, t = 150, 7, 0.6  # more than two blocks of rows
    Z, D, c = 20 * rng.standard_normal((n, k)), rng.standard_normal((n, k)), rng.random(n)
    y, sums = rng.integers(0, k, n), np.zeros(3)
    moved, P = np.empty((n, k)), np.empty((n, k))
    softmax_rows.softmax_line(Z, D, t, y.astype(np.uintp), c, moved, P, P.reshape(-1), sums)
    value, dz = rm.Softmax().value_grad(Z + t * D, y.astype(float), c)
    hessian = rm.Softmax().block_hessian(dz, y.astype(float), c)
    expected = [value, np.sum(dz * D), np.sum(D * hessian.product(D, slice(None)))]
    np.testing.assert_allclose(sums, expected, rtol=1e-12)
    np.testing.assert_allclose(moved, Z + t * D, rtol=1e-14)
    np.testing.assert_allclose(c[:, None] * (P - np.eye(k)[y]), dz, atol=1e-15)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_products_and_steps_are_those_of_the_hessian(sparse, intercept):
    obj = objective(intercept=intercept, sparse=sparse)
    problem, rng = staged(obj), np.random.default_rng(1)
    w, d = rng.standard_normal((2, obj.risk.dim))
    now = problem.evaluated(w, problem.design.forward(w))
    H = dense_hessian(obj, now.p)
    np.testing.assert_allclose(problem._product(now.p, d), H @ d, rtol=1e-10, atol=1e-13)
    a, _ = problem._tangent(now)
    g = a + problem.penalty * w
    step, _ = problem._step(now, g, problem._value(now), 1e-13)
    np.testing.assert_allclose(step.r, -g - H @ step.d, atol=1e-9)
    assert step.slope == pytest.approx(g @ step.d)
    assert np.linalg.norm(step.r) < 0.5 * np.linalg.norm(g)


def test_the_shared_matrix_is_the_hessian_at_zero_and_the_diagonal_its_diagonal():
    obj = objective()
    problem = staged(obj)
    now = problem.start(np.zeros(obj.risk.dim))
    H = dense_hessian(obj, now.p)
    rng = np.random.default_rng(2)
    D = rng.standard_normal((obj.risk.dim // problem.k, problem.k))
    d = (D - D.mean(axis=1, keepdims=True)).reshape(-1)  # scores of a constant vector change nothing
    np.testing.assert_allclose(problem.preconditioner._shared(now.p)(H @ d), d, rtol=1e-8)
    for sparse in (False, True):
        other = staged(objective(sparse=sparse, intercept=True))
        p = rng.dirichlet(np.ones(problem.k), len(now.p))
        diagonal = np.diag(dense_hessian(other.obj, p))
        np.testing.assert_allclose(other.preconditioner._diagonal(p)(diagonal), 1.0, rtol=1e-10)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("length", [0.0, 0.1, 1.0, 30.0])
def test_predicted_cuts_lie_below_the_risk_for_any_direction(length, intercept):
    obj = objective(intercept=intercept)
    problem, rng = staged(obj), np.random.default_rng(3)
    w, d = rng.standard_normal((2, obj.risk.dim))
    now = problem.evaluated(w, problem.design.forward(w))
    problem._tangent(now)
    problem.scores[:] = problem.design.forward(length * d)
    step = SoftmaxStep(length * d, np.zeros_like(d), 0.0)
    cut = problem._predicted_cut(now, step, problem._value(now), now, np.inf)
    best = rm.minimize(obj, rm.Lbfgs(), tol=1e-9)
    points = [
        w,
        w + length * d,
        best.w,
        *(s * rng.standard_normal((3, obj.risk.dim)) for s in (0.1, 1.0, 9.0)),
    ]
    for v in np.vstack(points):
        assert cut.a @ v + cut.b <= obj.risk(v)[0] * (1 + 1e-12)
    assert obj.lower(cut) <= best.value
    if not length and not intercept:  # Fenchel-Young holds with equality for the probabilities of the point
        assert cut.a @ w + cut.b == pytest.approx(obj.risk(w)[0], rel=1e-11)


@pytest.mark.parametrize("intercept", [False, True])
def test_a_newton_step_predicts_a_bound_far_above_that_of_the_tangent(intercept):
    obj = objective(lam=1e-6, intercept=intercept)
    best = rm.minimize(obj, rm.Newton(), tol=1e-10)
    rng = np.random.default_rng(4)
    w = best.w + 0.02 * rng.standard_normal(obj.risk.dim)
    problem = staged(obj)
    now = problem.evaluated(w, problem.design.forward(w))
    a, tangent = problem._tangent(now)
    value, g = problem._value(now), a + problem.penalty * w
    step, _ = problem._step(now, g, value, 1e-8 * value)
    d = -np.linalg.pinv(dense_hessian(obj, now.p)) @ g
    step = SoftmaxStep(d, np.zeros_like(g), float(g @ d))
    moved = problem._moved(now, step)
    cut = problem._predicted_cut(now, step, value, moved, np.inf)
    gaps = [best.value - obj.lower(c) for c in (tangent, cut)]
    assert 0 <= gaps[1] < 0.01 * gaps[0]


@pytest.mark.parametrize("lam", [1e-2, 1e-5])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("n", "p", "sparse"), [(80, 5, False), (80, 30, True), (30, 60, False)])
def test_the_optimum_is_that_of_another_solver_and_the_gap_is_proved(n, p, sparse, intercept, lam):
    obj = objective(n, p, lam=lam, intercept=intercept, sparse=sparse, absent=intercept and lam < 1e-3)
    result = rm.minimize(obj, rm.Newton(), tol=1e-7)
    assert result.status == "converged"

    def value_grad(w):
        value, g, _ = obj(w)
        return value, g + obj.lam * obj.reg.grad(w)

    options = {"maxiter": 5000, "maxfun": 8000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 30}
    other = scipy.optimize.minimize(
        value_grad, np.zeros(obj.risk.dim), jac=True, method="L-BFGS-B", options=options
    )
    assert result.lower <= other.fun
    assert result.value <= other.fun * (1 + 1e-6)
    # the first stage proves 5e-4, the second a thousandth of it: a run has the start and two more iterates
    assert result.n_iter <= 4


def test_the_span_of_the_rows_gives_the_same_fit(monkeypatch):
    monkeypatch.setattr(RowSpan, "MIN_PRODUCTS", 1)
    for intercept in (False, True):
        obj = objective(30, 60, intercept=intercept)
        problem = choose_score_problem(obj)
        span = RowSpan.of(obj, problem)
        assert span.inner.design.shape == (30, 30)
        spanned = rm.minimize(obj, rm.Newton(), tol=1e-9)
        plain = SoftmaxProblem(obj, problem)
        *_, last = islice(plain.iterates(plain.start(np.zeros(obj.risk.dim))), 5)
        assert spanned.status == "converged"
        assert spanned.value == pytest.approx(last.value, rel=1e-8)
        np.testing.assert_allclose(spanned.w[:-4], last.w[:-4], atol=1e-4)
        first = next(rm.Newton().iterates(obj, np.zeros(obj.risk.dim)))
        *_, end = islice(rm.Newton().resume(obj, first.state()), 4)  # a saved run continues in the span
        assert end.value == pytest.approx(last.value, rel=1e-8)
    assert RowSpan.of(objective(30, 60, sparse=True), None) is None
    assert RowSpan.of(objective(60, 30), None) is None


def test_long_data_have_iterates_between_stages(monkeypatch):
    obj = objective()
    few = len([*zip(range(9), rm.Newton().iterates(obj, np.zeros(obj.risk.dim)), strict=False)])
    monkeypatch.setattr(SoftmaxProblem, "ITERATE_OPERATIONS", 0.0)
    its = [it for it, _ in zip(rm.Newton().iterates(obj, np.zeros(obj.risk.dim)), range(9), strict=False)]
    assert its[1].info["evaluations"] == 1.0
    assert all(obj.lower(it.cut) <= its[-1].value for it in its)
    assert few <= len(its)


@pytest.mark.parametrize("intercept", [False, True])
def test_columns_of_other_units_are_left_to_the_general_steps(intercept):
    """Residuals in nearly unpenalized columns, those of large units, would leave gaps of nearly 1."""
    rng = np.random.default_rng(0)
    X = np.maximum(rng.standard_normal((400, 60)), 0)
    scores = X @ rng.standard_normal((60, 10)) + 0.1 * rng.standard_normal((400, 10))
    y = np.argmax(scores, axis=1).astype(float)
    X = (X + 1000 * rng.uniform(-1, 1, 60)) * 10 ** rng.uniform(-6, 6, 60)
    risk = rm.linear_risk(X, y, rm.Softmax(), fit_intercept=intercept)
    assert rm.minimize(rm.Objective(risk, rm.L2(), 1e-4), max_iter=100).status == "converged"
    for smallest, accepted in ((1.0, True), (0.1, True), (1e-6, False)):
        weights = np.append(np.full(10, smallest), np.ones(risk.dim - risk.n_intercepts - 10))
        assert SoftmaxProblem.accepts(rm.Objective(risk, rm.L2(weights), 1e-4)) is accepted
