"""L-BFGS in the metric of a sampled Hessian: rows of another array library."""

import itertools

import numpy as np
import pytest

import riskmin as rm
from riskmin.problem.objective import Objective
from riskmin.solvers.quasi_newton.whitening import Whitening

N, P = 3000, 12


def problem(kind, loss=None, **options):
    """Columns of a spectrum of 1 to 1e-3, rotated, so that no scaling of columns helps."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((P, P)))[0]
    X = rng.standard_normal((N, P)) * np.logspace(0, -3, P) @ Q
    y = np.where(X @ (Q.T @ np.logspace(0, 3, P)) + rng.standard_normal(N) > 0, 1.0, -1.0)
    data = X if kind == "numpy" else torch.asarray(X)
    return Objective(rm.linear_risk(data, y, loss or rm.Logistic(), **options), rm.L2(), 1e-7)


def test_the_metric_is_the_hessian():
    obj = problem("torch")
    Whitening.SAMPLE_ROWS, rows = 10 * N, Whitening.SAMPLE_ROWS
    try:
        metric = Whitening.from_objective(obj, np.zeros(P))
    finally:
        Whitening.SAMPLE_ROWS = rows
    g, h = (obj(v)[1] + obj.lam * v for v in (np.zeros(P), 1e-6 * np.ones(P)))
    # M step is the change of the gradient; the gradient of u = L'w is L^-1 of it
    change = metric.step(1e-6 * np.ones(P))
    np.testing.assert_allclose(metric.gradient(h - g), change, atol=1e-5 * abs(change).max())
    s, y = np.random.default_rng(1).standard_normal((2, P))
    assert metric.step(s) @ metric.gradient(y) == pytest.approx(s @ y, rel=1e-9)
    np.testing.assert_allclose(metric.step(metric.direction(s)), s, rtol=1e-9)
    state = metric.stored_pairs({"S": metric.step(s)[None, :], "Y": metric.gradient(y)[None, :]})
    np.testing.assert_allclose(state["S"][0], s, rtol=1e-8)
    np.testing.assert_allclose(state["Y"][0], y, rtol=1e-8)


@pytest.mark.parametrize("options", [{}, {"fit_intercept": True}])
def test_few_steps_suffice_and_the_optimum_is_that_of_arrays(options):
    exact = rm.minimize(problem("numpy", **options), rm.Newton(), tol=1e-10)
    found = rm.minimize(problem("torch", **options), rm.Lbfgs(), tol=1e-8)
    assert found.status == "converged"
    assert found.lower <= exact.value * (1 + 1e-12)
    assert exact.lower <= found.value * (1 + 1e-12)
    plain = rm.minimize(problem("numpy", **options), rm.Lbfgs(), tol=1e-8, max_iter=3 * found.n_iter)
    assert plain.status != "converged"


def test_a_run_continues_from_its_state():
    obj, solver = problem("torch"), rm.Lbfgs()
    states = list(itertools.islice(solver.iterates(obj, np.zeros(P)), 5))
    again = list(itertools.islice(solver.resume(obj, states[-1].state()), 3))
    assert again[-1].value < states[-1].value


def test_where_a_sample_says_nothing_the_metric_is_the_identity():
    for obj in (problem("numpy"), problem("torch", rm.Hinge())):
        assert not Whitening.from_objective(obj, np.zeros(P)).is_whitened
    assert Whitening.from_objective(problem("torch", rm.Huber()), np.zeros(P)).is_whitened
