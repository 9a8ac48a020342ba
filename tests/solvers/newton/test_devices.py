"""Newton's method on arrays of another library: the optima of NumPy's arrays, without Numba."""

import itertools
import sys

import numpy as np
import pytest

import riskmin as rm
from riskmin.core import Hessian, UnsupportedProblem
from riskmin.losses.hessian import separable_hessian
from riskmin.problem import shard_ops
from riskmin.problem.risk import ScoreCursor
from riskmin.solvers.newton.devices.design import DeviceDesign
from riskmin.solvers.newton.devices.score_problem import DeviceScoreProblem
from riskmin.solvers.newton.linear_system import NewtonSystem

torch = pytest.importorskip("torch")
N, P = 2000, 8


def table(n=N, p=P, shift=0.0):
    """Columns of very different sizes, rotated."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((p, p)))[0]
    X = rng.standard_normal((n, p)) * np.logspace(0, -2, p) @ Q + shift
    z = (X - shift) @ (Q.T @ np.logspace(0, 2, p)) + rng.standard_normal(n)
    return X, np.where(z > 0, 1.0, -1.0), z


def problem(X, loss, y, lam=1e-4, reg=None, **options):
    return rm.Objective(rm.linear_risk(X, y, loss, **options), reg or rm.L2(), lam)


def both(loss, X, y, tol=1e-7, kind=torch.float64, solver=None, **options):
    """A run on a tensor, whose bounds bracket the optimum of the same numbers in NumPy."""
    T = torch.asarray(X).to(kind)
    found = rm.minimize(problem(T, loss, y, **options), solver or rm.Newton(), tol=tol)
    exact = rm.minimize(problem(T.double().numpy(), loss, y, **options), rm.Newton(), tol=1e-10)
    assert found.status == "converged"
    assert found.lower <= exact.value * (1 + 1e-12)
    assert exact.lower <= found.value * (1 + 1e-12)
    return found


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    "loss",
    [rm.Hinge(), rm.Quantile(0.8), rm.EpsilonInsensitive(0.3), rm.Logistic(), rm.SquaredHinge(), rm.Huber()],
    ids=lambda loss: type(loss).__name__,
)
def test_the_optimum_is_that_of_numpy(loss, intercept):
    X, signs, z = table()
    y = z if loss.task == "regression" else signs
    weights = np.random.default_rng(1).random(N) * (np.arange(N) % 7 > 0)
    both(loss, X, y, kind=torch.float32, fit_intercept=intercept, sample_weight=weights)


def test_large_offsets_of_columns_do_not_spoil_directions():
    """The matrix is formed of centered rows: a difference of two matrices would cancel in float32."""
    X, y, _ = table(500, shift=300.0)
    found = both(rm.Hinge(), X, y, kind=torch.float32, fit_intercept=True, tol=1e-4)
    assert found.n_iter < 40


def test_wide_rows_and_other_regularizers():
    X, y, _ = table(30, 60)
    both(rm.Hinge(), X, y, lam=1e-2)
    both(rm.SquaredHinge(), X, y, lam=1e-2, solver=rm.Newton(direct=10))  # conjugate gradients alone
    both(rm.Hinge(), *table()[:2], reg=rm.Quadratic(np.diag(np.arange(1.0, P + 1))))


def test_the_three_methods_solve_the_same_system():
    X, y, _ = table(40, 12)
    risk = rm.linear_risk(torch.asarray(X), y, rm.Hinge())
    h = torch.asarray(np.random.default_rng(0).random(40) * (np.arange(40) % 3 > 0)) / 40
    g, lam = np.random.default_rng(1).standard_normal(12), 1e-3
    for intercept in (False, True):
        hessian, design = separable_hessian(h, intercept), DeviceDesign(risk)
        H = np.diag(h.numpy()) - sum(np.outer(s, s) for s in hessian.low_rank)
        expected = np.linalg.solve(lam * np.eye(12) + X.T @ H @ X, -g)
        np.testing.assert_allclose(-design.factorized(rm.L2(), lam, hessian)(g), expected, rtol=1e-9)
        np.testing.assert_allclose(design.solve_by_rows(rm.L2(), lam, hessian, g), expected, rtol=1e-7)
        image = lam * expected + design.hessian_product(hessian, expected)
        np.testing.assert_allclose(image, -g, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(design.gram_diagonal(h), np.diag(X.T @ np.diag(h.numpy()) @ X))


def test_a_matrix_of_low_precision_is_noticed():
    X, y, _ = table()
    risk = rm.linear_risk(torch.asarray(X), y, rm.Hinge())
    system = NewtonSystem(DeviceDesign(risk), rm.L2(), direct=100)
    hessian, g = Hessian(torch.full((N,), 1 / N, dtype=torch.float64)), np.ones(P)
    d = system.solve(hessian, 1e-3, g, 0.0)
    dz = system.design.forward(d)
    system.check_direction(hessian, dz, 0.1)
    assert system.design.rounded_gram
    system.expected = d, 1e-3, -3 * float(g @ d)
    system.check_direction(hessian, dz, 1.0)  # a step of about 1 is no sign of it
    assert system.design.rounded_gram
    system.check_direction(hessian, dz, 0.1)
    assert not system.design.rounded_gram
    assert not system.discard()


def test_a_run_continues_from_its_state_and_another_lam():
    X, y, _ = table()
    obj, solver = problem(torch.asarray(X), rm.Hinge(), y), rm.Newton()
    states = list(itertools.islice(solver.iterates(obj, np.zeros(P)), 8))
    saved = {k: np.asarray(v) for k, v in states[3].state().items()}  # as in a file
    again = list(itertools.islice(solver.resume(obj, saved), 4))
    assert [it.value for it in again] == [it.value for it in states[4:]]
    other = problem(torch.asarray(X), rm.Hinge(), y, lam=1e-3)
    warm = next(solver.warm_start(other, saved, obj))
    assert warm.value == pytest.approx(other.value(saved["w"]))
    # known multipliers need less smoothing
    assert warm.info["mu"] < next(solver.iterates(other, saved["w"])).info["mu"]


def test_points_are_in_the_library_of_the_start():
    X, y, _ = table()
    obj = problem(torch.asarray(X), rm.Hinge(), y)
    result = rm.minimize(obj, rm.Newton(), w0=torch.zeros(P, dtype=torch.float64))
    assert isinstance(result.w, torch.Tensor)
    assert result.status == "converged"


@pytest.mark.parametrize("solver", [rm.Newton(), rm.Bundle()], ids=repr)
def test_searches_of_many_points_find_the_same_optimum(solver, monkeypatch):
    """On a GPU, 16 points of a line are one launch; here each of them is array code."""
    monkeypatch.setattr(DeviceScoreProblem, "many_points", staticmethod(lambda loss: True))
    monkeypatch.setattr(ScoreCursor, "points_at_a_time", 16)
    calls, line_values = [], shard_ops.line_values
    monkeypatch.setattr(shard_ops, "line_values", lambda *a: calls.append(len(a[2])) or line_values(*a))
    X, y, _ = table()
    found = both(rm.Hinge(), X, y, tol=1e-5, solver=solver)
    # a launch or two per line, of up to 16 points
    assert 0.5 * found.n_iter < len(calls) < 3 * found.n_iter
    assert max(calls) == 16


def test_no_compiled_loop_is_used(monkeypatch):
    """No Numba is needed: its modules cannot be imported here."""
    monkeypatch.setitem(sys.modules, "numba", None)
    for name, module in list(sys.modules.items()):
        package, _, last = name.rpartition(".")
        if package.startswith("riskmin._numba") and last not in ("newton", "slots"):
            monkeypatch.setitem(sys.modules, name, None)
            if module is not None and sys.modules[package] is not None:
                monkeypatch.delattr(sys.modules[package], last, raising=False)
    X, y, _ = table()
    for loss in (rm.Hinge(), rm.Logistic()):
        for intercept in (False, True):
            obj = problem(torch.asarray(X), loss, y, fit_intercept=intercept)
            assert rm.minimize(obj, rm.Newton()).status == "converged"


def test_methods_of_single_rows_name_those_of_all_rows():
    X, y, _ = table()
    obj = problem(torch.asarray(X), rm.Hinge(), y)
    for solver in (rm.DualCoordinateAscent(), rm.CoordinateDescent()):
        with pytest.raises(UnsupportedProblem, match="X is one of torch or CuPy: use Auto, Newton"):
            rm.minimize(obj, solver)
    with pytest.raises(UnsupportedProblem, match="loss of single rows, not RocArea"):
        rm.minimize(problem(torch.asarray(X), rm.RocArea(), y), rm.Newton())


@pytest.mark.parametrize("loss", [rm.SquaredHinge(), rm.Hinge()], ids=repr)
def test_rows_without_a_matrix_are_solved_by_conjugate_gradients(loss, monkeypatch):
    """As sparse rows on a GPU, of which there are products only."""
    monkeypatch.setattr(DeviceDesign, "_has_dense_rows", False)
    monkeypatch.setattr(DeviceDesign, "factorized", None)
    both(loss, *table(400)[:2], lam=1e-3, tol=1e-5)
