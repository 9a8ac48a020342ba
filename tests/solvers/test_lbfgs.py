"""L-BFGS: any memory, and rows of another array library in the metric of a sampled Hessian."""

import itertools

import numpy as np
import pytest

from riskmin import L2, Lbfgs, Logistic, Newton, Objective, Threads, linear_risk, minimize

N, P = 3000, 12


def objective(store=np.asarray, **options):
    """Columns of a spectrum of 1 to 1e-3, rotated, so that no scaling of columns helps."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((P, P)))[0]
    X = rng.standard_normal((N, P)) * np.logspace(0, -3, P) @ Q
    y = np.where(X @ (Q.T @ np.logspace(0, 3, P)) + rng.standard_normal(N) > 0, 1.0, -1.0)
    return Objective(linear_risk(store(X), y, Logistic(), **options), L2(), 1e-7)


def test_long_pairs_have_the_same_bits_on_threads():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((6, 40_000)), np.array([1.0, -1.0] * 3)
    runs = []
    for executor in (None, Threads(n_workers=2)):
        J = Objective(linear_risk(X, y, Logistic(), executor=executor, n_shards=2), L2(), 10.0)
        runs.append(list(itertools.islice(Lbfgs().iterates(J, np.zeros(40_000)), 5)))
    for one, other in zip(*runs, strict=True):
        assert one.w.tobytes() == other.w.tobytes()


@pytest.mark.parametrize("intercept", [False, True])
def test_rows_of_another_library_take_few_steps(intercept):
    torch = pytest.importorskip("torch")
    exact = minimize(objective(fit_intercept=intercept), Newton(), tol=1e-10)
    found = minimize(objective(torch.asarray, fit_intercept=intercept), Lbfgs(), tol=1e-8)
    assert found.status == "converged"
    assert found.lower <= exact.value * (1 + 1e-12)
    assert exact.lower <= found.value * (1 + 1e-12)
    plain = minimize(objective(fit_intercept=intercept), Lbfgs(), tol=1e-8, max_iter=3 * found.n_iter)
    assert plain.status != "converged"


def test_a_run_on_rows_of_another_library_continues_from_its_state():
    obj, solver = objective(pytest.importorskip("torch").asarray), Lbfgs()
    states = list(itertools.islice(solver.iterates(obj, np.zeros(P)), 5))
    again = list(itertools.islice(solver.resume(obj, states[-1].state()), 3))
    assert again[-1].value < states[-1].value
