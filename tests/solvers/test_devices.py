"""Solvers on arrays of another library: the optima of NumPy's arrays, without Numba."""

import sys
from itertools import islice

import numpy as np
import pytest

import riskmin as rm

torch = pytest.importorskip("torch")
P = 8
METRIC = rm.Quadratic(np.diag(np.arange(1.0, P + 1)))


def table(n=1000, p=P, shift=0.0, size=2):
    """Columns of very different sizes, rotated; classes, and their scores."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((p, p)))[0]
    X = rng.standard_normal((n, p)) * np.logspace(0, -size, p) @ Q + shift
    z = (X - shift) @ (Q.T @ np.logspace(0, size, p)) + rng.standard_normal(n)
    return X, np.where(z > 0, 1.0, -1.0), z


def problem(X, loss, y, lam=1e-4, reg=None, **options):
    return rm.Objective(rm.linear_risk(X, y, loss, **options), reg or rm.L2(), lam)


CASES = [
    # float32 entries, half of the cases with an intercept
    *(
        (loss, table(), torch.float32, 1e-7, rm.Newton(), {"fit_intercept": intercept})
        for loss, intercept in [
            (rm.Hinge(), True),
            (rm.Hinge(), False),
            (rm.Quantile(0.8), True),
            (rm.EpsilonInsensitive(0.3), False),
            (rm.Logistic(), True),
            (rm.SquaredHinge(), False),
            (rm.Huber(), True),
        ]
    ),
    # centered rows: a difference of two matrices would cancel in float32
    (rm.Hinge(), table(500, shift=300.0), torch.float32, 1e-4, rm.Newton(), {"fit_intercept": True}),
    # more columns than rows
    (rm.Hinge(), table(30, 60), torch.float64, 1e-7, rm.Newton(), {"lam": 1e-2}),
    (rm.SquaredHinge(), table(30, 60), torch.float64, 1e-7, rm.Newton(direct=10), {"lam": 1e-2}),
    # products only, no matrix
    (rm.SquaredHinge(), table(400), torch.float64, 1e-5, rm.Newton(direct=1), {"lam": 1e-3}),
    (rm.Hinge(), table(400), torch.float64, 1e-5, rm.Newton(direct=1), {"lam": 1e-3, "fit_intercept": True}),
    (rm.Hinge(), table(), torch.float64, 1e-7, rm.Newton(), {"reg": METRIC}),
    # other solvers
    (rm.Hinge(), table(), torch.float64, 1e-5, rm.Bundle(), {"lam": 1e-3}),
    (rm.Hinge(), table(40, 4), torch.float64, 1e-5, rm.Smoothing(), {"lam": 0.02}),
    (rm.RocArea(), table(40, 4), torch.float64, 1e-5, rm.Smoothing(), {"lam": 0.02}),
    *(
        (rm.Huber(), table(40, 4), torch.float64, 1e-8, solver, {"lam": 0.02, "reg": reg, "fit_intercept": b})
        for solver in (rm.ProximalGradient(), rm.OwlQn())
        for reg, b in ((rm.L1(), True), (rm.Elastic(0.3, [0.5, 1.0, 2.0, 0.7]), False))
    ),
]


@pytest.mark.parametrize(("loss", "rows", "kind", "tol", "solver", "options"), CASES)
def test_the_optimum_is_that_of_numpy(loss, rows, kind, tol, solver, options):
    X, signs, z = rows
    y = z if loss.task == "regression" else signs
    weights = np.random.default_rng(1).random(len(y)) * (np.arange(len(y)) % 7 > 0)
    T = torch.asarray(X).to(kind)
    found, exact = (
        rm.minimize(problem(A, loss, y, sample_weight=weights, **options), used, tol=accuracy)
        for A, used, accuracy in ((T, solver, tol), (T.double().numpy(), rm.Auto(), tol / 100))
    )
    assert found.status == "converged"
    assert found.n_iter < 200
    assert found.lower <= exact.value * (1 + 1e-12)
    assert exact.lower <= found.value * (1 + 1e-12)


def test_a_run_continues_from_its_state_and_another_lam():
    X, y, _ = table()
    obj, solver = problem(torch.asarray(X), rm.Hinge(), y), rm.Newton()
    steps = list(islice(solver.iterates(obj, np.zeros(P)), 8))
    saved = {k: np.asarray(v) for k, v in steps[3].state().items()}  # as in a file
    assert [it.value for it in islice(solver.resume(obj, saved), 4)] == [it.value for it in steps[4:]]
    other = problem(torch.asarray(X), rm.Hinge(), y, lam=1e-3)
    runs = solver.iterates(other, np.zeros(P)), solver.warm_start(other, saved, obj)
    cold, warm = (
        next(k for k, it in enumerate(run) if it.value - other.lower(it.cut) < 1e-4) for run in runs
    )
    assert warm < cold


@pytest.mark.parametrize("intercept", [False, True])
def test_lbfgs_takes_few_steps_in_the_metric_of_a_sampled_hessian(intercept):
    """The columns are rotated: no scaling of them helps."""
    X, y, _ = table(3000, 12, size=3)
    obj, own = (problem(A, rm.Logistic(), y, 1e-7, fit_intercept=intercept) for A in (torch.asarray(X), X))
    exact, found = rm.minimize(own, rm.Newton(), tol=1e-10), rm.minimize(obj, rm.Lbfgs(), tol=1e-8)
    assert found.status == "converged"
    assert found.lower <= exact.value * (1 + 1e-12)
    assert exact.lower <= found.value * (1 + 1e-12)
    assert rm.minimize(own, rm.Lbfgs(), tol=1e-8, max_iter=3 * found.n_iter).status != "converged"
    states = list(islice(rm.Lbfgs().iterates(obj, np.zeros(12)), 5))
    *_, last = islice(rm.Lbfgs().resume(obj, states[-1].state()), 3)
    assert last.value < states[-1].value


@pytest.mark.parametrize("solver", [rm.Newton(), rm.ProximalGradient(), rm.OwlQn()], ids=repr)
def test_points_are_in_the_library_of_the_start(solver):
    X, y, _ = table()
    obj = problem(torch.asarray(X), rm.Logistic(), y, 0.1, rm.L2() if solver == rm.Newton() else rm.L1())
    result = rm.minimize(obj, solver, w0=torch.zeros(P, dtype=torch.float64))
    assert isinstance(result.w, torch.Tensor)
    assert result.status == "converged"


def test_no_compiled_loop_is_used(monkeypatch):
    """No Numba is needed: its modules cannot be imported here."""
    monkeypatch.setitem(sys.modules, "numba", None)
    for name, module in list(sys.modules.items()):
        package, _, last = name.rpartition(".")
        if package.startswith("riskmin._numba") and last not in ("newton", "slots"):
            # modules that are already imported would not notice that Numba is missing
            monkeypatch.setitem(sys.modules, name, None)
            if module is not None and sys.modules[package] is not None:
                monkeypatch.delattr(sys.modules[package], last, raising=False)
    X, y, _ = table(500)
    for loss, intercept in ((rm.Hinge(), True), (rm.Logistic(), False)):
        obj = problem(torch.asarray(X), loss, y, fit_intercept=intercept)
        assert rm.minimize(obj, rm.Newton()).status == "converged"
