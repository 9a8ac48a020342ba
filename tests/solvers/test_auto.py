"""The default solver: for every kind of problem it supports the data, states its reason and converges."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from everywhere import RemoteExecutor
from helpers import Ridge
from riskmin.executors.dask.client import dask_client
from solver_cases import REMOTE, Classes


def table(n=24, p=3, density=1.0, seed=0):
    """Sparse rows if the density is below one."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, p)) if density == 1 else sp.random(n, p, density, "csr", random_state=rng)


def problem(loss, X=None, reg=None, lam=0.1, **settings):
    X = table(seed=1) if X is None else X
    classes = (np.arange(X.shape[0]) % 3).astype(float)
    y = classes if loss.task in ("multiclass", "tagging") else np.sign(classes - 0.5)
    return rm.Objective(rm.linear_risk(X, y, loss, **settings), rm.L2() if reg is None else reg, lam)


def kernel(loss):
    return rm.Objective(*rm.kernel_risk(table(), np.sign(np.arange(24) % 3 - 0.5), loss, "rbf"), 0.1)


class Parabola:
    """An oracle: |w - 1|^2."""

    dim = 2

    def __call__(self, w):
        return float((w - 1) @ (w - 1)), 2 * (w - 1)


WIDE = table(40, 2600, 0.01)
STRUCTURED = rm.Structured(Classes(2, 2)).risk(list(table(8, 2)), [0, 1] * 4)
PROBLEMS = {
    "unpenalized directions": [problem(rm.Hinge(), reg=rm.Equality(rm.L2(), np.eye(1, 3)))],
    "kernels": [kernel(rm.Hinge()), kernel(rm.FBeta())],
    "smooth": [
        problem(rm.Softmax()),
        problem(rm.Logistic(), table(300, 500), fit_intercept=True),
        problem(rm.SquaredHinge(), WIDE, fit_intercept=True),
        problem(rm.Logistic(), fit_intercept=True),
        problem(rm.Logistic(), **REMOTE),
        problem(rm.Logistic(), reg=rm.QNorm(1.5)),
        problem(rm.Softmax(), reg=rm.L1(), fit_intercept=True),
        problem(rm.Logistic(), reg=rm.L1()),
        problem(rm.Logistic(), reg=rm.L1(), **REMOTE),
        problem(rm.Logistic(), reg=rm.Box(rm.L2()), **REMOTE),
        problem(rm.Logistic(), reg=rm.Entropy()),
    ],
    "chains": [problem(rm.ChainMaxMargin(), lengths=[8, 8, 8])],
    "several outputs": [
        problem(rm.MulticlassHinge(), fit_intercept=True),
        problem(rm.MulticlassHinge(), table(density=0.9)),
        problem(rm.MulticlassHinge(), 1e4 * table(density=0.9), fit_intercept=True),
        problem(rm.MulticlassHinge(), reg=rm.QNorm(1.5)),
        problem(rm.MulticlassHinge(), reg=rm.L1(), fit_intercept=True),
        problem(rm.MulticlassHinge(), reg=rm.L1(), **REMOTE),
        problem(rm.MulticlassHinge(), reg=rm.Box(rm.L2()), fit_intercept=True, **REMOTE),
        problem(rm.MulticlassHinge(), reg=rm.Entropy()),
        problem(rm.MulticlassHinge(), lam=1e-6),
    ],
    "structured": [rm.Objective(STRUCTURED, rm.L2(), 0.1)],
    "sums over rows with corners": [
        problem(rm.Hinge(), **REMOTE),
        problem(rm.Hinge(), fit_intercept=True, **REMOTE),
        problem(rm.Hinge(), WIDE, **REMOTE),
        problem(rm.Hinge(), table(900, 1)),
        problem(rm.Hinge(), table(3, 24), fit_intercept=True),
        problem(rm.Hinge(), table(300, 130), lam=1.0, fit_intercept=True),
        problem(rm.Hinge()),
        problem(rm.Hinge(), table(density=0.9), fit_intercept=True),
        problem(rm.Hinge(), table(10_000, 20, 0.9), lam=1e-6),
        problem(rm.Hinge(), WIDE, reg=rm.Quadratic(sp.diags_array(np.linspace(1, 2, 2600), format="csr"))),
        problem(rm.Hinge(), table(density=0.9), reg=rm.Quadratic(np.diag([1.0, 2.0, 3.0]))),
        problem(rm.Absolute(), table(40, 200), lam=1e-3),
        problem(rm.Absolute(), table(150, 200), lam=1e-3),
        problem(rm.Quantile(0.9), table(40, 200), lam=1e-3),
    ],
    "pairs": [
        problem(rm.RocArea(), **REMOTE),
        problem(rm.RocArea(), table(1000, 3), lam=10.0),
        problem(rm.RocArea(), lam=10.0),
        problem(rm.RocArea(), WIDE, lam=1e-8),
        problem(rm.RocArea(), table(400, 2600, 0.01), lam=1e-4),
        problem(rm.RocArea(), lam=1e-6),
    ],
    "any other": [
        problem(rm.Hinge(), reg=Ridge()),
        problem(rm.Hinge(), reg=rm.L1(), fit_intercept=True),
        problem(rm.FBeta()),
        rm.Objective(Parabola(), rm.L2(), 0.1),
        problem(rm.FBeta(), reg=rm.L1()),
    ],
}


def check_choice(obj):
    """Check the chosen solver alone, without those that would continue for it."""
    solver, reason = rm.Auto().choose(obj, tol=1e-2)
    assert solver.supports(obj) is None
    assert reason
    assert "{" not in reason
    result = rm.minimize(obj, solver, tol=1e-2, max_iter=500)
    assert result.lower <= result.value
    assert result.status == "converged", (solver, reason)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_chosen_solver_supports_the_problem_and_converges(kind):
    for obj in PROBLEMS[kind]:
        check_choice(obj)


@pytest.mark.parametrize(("loss", "n"), [(rm.Logistic(), 70), (rm.Hinge(), 24)], ids=repr)
def test_methods_that_visit_single_rows_are_not_chosen_beside_another_library(loss, n):
    torch = pytest.importorskip("torch")
    for reg in (rm.L2(), rm.L1()):
        check_choice(problem(loss, torch.asarray(table(n)), reg=reg, fit_intercept=True))


def test_pairs_are_formed_up_to_a_number():
    y = np.where(np.arange(12) < 4, 1.0, -1.0)
    assert rm.RocArea().pairs(y, np.ones(12), 31) is None  # of 4 x 8 pairs
    assert rm.RocArea().pairs(y, np.ones(12), 32) is not None


# ---------------------------------------------------------------- remote rows
@pytest.mark.parametrize("loss", [rm.Hinge(), rm.Logistic()], ids=repr)
@pytest.mark.parametrize("reg", [rm.L2(), rm.L1(), rm.Elastic(0.5), rm.Entropy(), rm.QNorm(1.5)], ids=repr)
def test_remote_rows_have_the_same_minimum(loss, reg):
    local, remote = (rm.minimize(problem(loss, reg=reg, **settings)) for settings in ({}, REMOTE))
    assert local.status == remote.status == "converged"
    assert max(local.lower, remote.lower) <= min(local.value, remote.value) * (1 + 1e-12)


def test_partitions_without_rows_are_left_out():
    X, y = table(20), np.where(np.arange(20) % 3, 1.0, -1.0)
    parts = [
        rm.InMemoryPartition(X[i:j], f"rows from {i}") for i, j in ((0, 0), (0, 7), (7, 7), (7, 20), (20, 20))
    ]
    partitioned = rm.PartitionedMatrix(parts, executor=RemoteExecutor())
    assert [part.name for part in partitioned.parts] == ["rows from 0", "rows from 7"]
    model = rm.LinearClassifier().fit(partitioned, y)
    np.testing.assert_array_equal(model.predict(partitioned), model.predict(X))
    with pytest.raises(ValueError, match="0 rows"):
        rm.linear_risk(rm.PartitionedMatrix([parts[0], parts[2]]), y[:0], rm.Hinge())


@pytest.mark.slow
def test_the_client_does_not_log_that_the_scheduler_died(monkeypatch):
    distributed = pytest.importorskip("distributed")
    # the border to another package: a real client would wait for its scheduler
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: SimpleNamespace(close=lambda timeout: None))
    log = logging.getLogger("distributed.client")
    before = log.level
    with dask_client("tcp://127.0.0.1:1"):
        assert not log.isEnabledFor(logging.ERROR)  # it would log a traceback before our error message
    assert log.level == before
