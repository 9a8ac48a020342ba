"""Shards that threads share in compiled calls: the bits of one call per shard, for any number of threads."""

import copy
import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from riskmin.core.limits import LIMITS
from riskmin.executors.base import COMPILED_FUNCTIONS
from riskmin.executors.local import ThreadExecutor
from riskmin.problem import design_operator, shard_ops
from riskmin.problem.compiled import shard_tables
from riskmin.problem.design_operator import DesignOperator, shard_gram, shard_gram_diagonal
from riskmin.problem.risk import Risk
from riskmin.solvers.newton import subsampling
from riskmin.solvers.newton.small.smooth import SmallSmoothProblem
from riskmin.solvers.newton.small.stages import SmallProblem

N, P, N_SHARDS = 3000, 20, 11
THREADS = (1, 2, 3, 5)
FORMATS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "CSR": sp.csr_array,
    "C, float32": lambda X: X.astype(np.float32),
    "CSR, float32 and int64": lambda X: wide_indices(sp.csr_array(X.astype(np.float32))),
}


def wide_indices(X):
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


@pytest.fixture(autouse=True)
def compiled_for_all_sizes(monkeypatch):
    monkeypatch.setattr(Risk, "COMPILE_FROM_ENTRIES", 0)
    monkeypatch.setattr(shard_tables, "MIN_ENTRIES", 0)
    monkeypatch.setattr(ThreadExecutor, "MIN_WORK_PER_THREAD", 1)
    monkeypatch.setattr(DesignOperator, "MIN_ROWS_PER_RANGE", 100)


def rows():
    rng = np.random.default_rng(3)
    X = np.where(rng.uniform(size=(N, P)) < 0.4, rng.standard_normal((N, P)), 0.0)
    return X, np.sign(X[:, 0] + 0.3 * rng.standard_normal(N)), rng.uniform(0.5, 2.0, N)


def make_risk(stored, executor, loss="logistic", **settings):
    X, y, weight = rows()
    return rm.linear_risk(
        FORMATS[stored](X), y, loss, sample_weight=weight, executor=executor, n_shards=N_SHARDS, **settings
    )


def everything(risk):
    """Results of all compiled functions, as bytes."""
    w, d = np.linspace(-1, 1, P), np.linspace(1, 0.5, P)
    traced, linear_map = risk.compiled(risk.loss), risk.linear_map
    found = [*risk(w), *DesignOperator(risk).forward(d)]
    cursor = risk.cursor(w)
    found += [*cursor.evaluate_at(0.0, 0.0), *cursor.pull_back(0.0, [(0.0, 1.0)]), cursor.max_score]
    for direction, t in ((d, 0.5), (-w, 0.25)):
        cursor.set_direction(direction)
        found += cursor.evaluate_at(t, -0.25)
        found += cursor.reduce_shards(shard_ops.second_derivatives, traced, t, -0.25)
        found += cursor.pull_back(t, [(0.25, 0.5), (-1.0, 0.5)])
        cursor.advance(t)
        found += [cursor.max_score, *cursor.evaluate_at(0.0, 0.0)]
    z = np.linspace(-1, 1, N)
    each = [z[part] for part in DesignOperator(risk).shard_slices]
    found += [DesignOperator(risk).adjoint(z)]
    found += risk.executor.sum(shard_ops.hessian_product, linear_map, d, each=each)
    h = np.where(z < 0.5, z * z, 0.0)
    G, X = DesignOperator(risk).gram(h), rows()[0]
    assert np.allclose(np.triu(G), np.triu(X.T @ (h[:, None] * X)), rtol=1e-6, atol=1e-6)
    diagonal = DesignOperator(risk).gram_diagonal(h)
    assert np.allclose(diagonal, np.diag(G), rtol=1e-6, atol=1e-6)
    found += [np.triu(G), diagonal, risk.executor.map(shard_ops.is_finite)]
    return [np.asarray(a).tobytes() for a in found]


@pytest.fixture
def begun(monkeypatch):
    """The functions whose compiled calls have begun."""
    functions = set()
    for f, compiled in COMPILED_FUNCTIONS.items():

        def begin(*args, f=f, begin=compiled.begin, **each):
            functions.add(f)
            return begin(*args, **each)

        monkeypatch.setitem(COMPILED_FUNCTIONS, f, dataclasses.replace(compiled, begin=begin))
    return functions


@pytest.mark.parametrize("stored", FORMATS)
def test_all_functions_have_the_bits_of_one_call_per_shard(stored, begun):
    serial = everything(make_risk(stored, rm.Serial()))
    for k in THREADS:
        risk = make_risk(stored, rm.Threads(n_workers=k))
        assert everything(risk) == serial
    assert begun == set(COMPILED_FUNCTIONS) - {shard_gram if "CSR" in stored else shard_gram_diagonal}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("stored", ["C", "Fortran", "CSR"])
def test_an_entry_that_is_not_finite_is_found(stored, bad):
    X, y, _ = rows()
    X[2500, 7] = bad
    with pytest.raises(ValueError, match=r"row 2500, column 7"):
        rm.linear_risk(FORMATS[stored](X), y, "hinge", executor=rm.Threads(n_workers=3), n_shards=N_SHARDS)


@pytest.mark.parametrize("stored", ["C", "CSR"])
def test_dual_ascent_has_the_same_bits_and_the_optimum(stored, monkeypatch):
    one_range = rm.minimize(
        rm.Objective(make_risk(stored, rm.Serial(), "hinge"), rm.L2(), 0.01), "dual", tol=1e-6
    )
    # its checks of all rows are shared in ranges
    monkeypatch.setattr(design_operator, "LIMITS", dataclasses.replace(LIMITS, shard_entries=500))
    results = []
    for executor in (rm.Serial(), *(rm.Threads(n_workers=k) for k in THREADS)):
        obj = rm.Objective(make_risk(stored, executor, "hinge"), rm.L2(), 0.01)
        results.append(rm.minimize(obj, "dual", tol=1e-6))
    assert len({(r.w.tobytes(), r.value, r.lower) for r in results}) == 1
    assert results[0].lower <= one_range.value
    assert one_range.lower <= results[0].value
    assert results[0].gap <= 1e-6 * results[0].value


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("solver", ["bundle", "lbfgs", "newton"])
def test_fits_have_the_same_bits(solver, loss, fit_intercept):
    if solver == "lbfgs" and loss == "hinge":
        pytest.skip("L-BFGS is for smooth losses")

    def run(executor):
        risk = make_risk("C", executor, loss, fit_intercept=fit_intercept)
        result = rm.minimize(rm.Objective(risk, rm.L2(), 1e-3), solver, tol=1e-6)
        return result.w.tobytes(), result.value, result.lower, result.status

    serial = run(rm.Serial())
    assert serial[3] == "converged"
    assert all(run(rm.Threads(n_workers=k)) == serial for k in THREADS)


def test_other_formats_and_losses_are_computed_one_by_one(begun):
    X, y, _ = rows()
    for stored, loss in ((sp.csc_array(X), "logistic"), (X, rm.Softmax())):
        labels = y if loss == "logistic" else (y > 0).astype(float)
        settings = {"n_shards": 4, "executor": rm.Threads(n_workers=2)}
        risk = rm.linear_risk(stored, labels, loss, **settings)
        serial = rm.linear_risk(stored, labels, loss, **settings | {"executor": rm.Serial()})
        w = np.linspace(-1, 1, risk.dim)
        found, expected = risk.cursor(w), serial.cursor(w)
        for cursor in (found, expected):
            cursor.set_direction(w)
            cursor.advance(0.5)
        assert found.evaluate().gradient.tobytes() == expected.evaluate().gradient.tobytes()
        assert begun <= {shard_ops.is_finite}


def test_a_copy_of_an_executor_has_its_own_addresses():
    risk = make_risk("C", rm.Threads(n_workers=2))
    w = np.linspace(-1, 1, P)
    cursor = risk.cursor(w)
    other = copy.deepcopy(cursor)
    expected = cursor.evaluate().gradient.tobytes()
    del cursor, risk
    other.cache_lost = True  # cached scores are not copied
    assert other.evaluate().gradient.tobytes() == expected


def test_the_largest_score_is_nan_where_one_is():
    risk = make_risk("C", rm.Threads(n_workers=2))
    w = np.linspace(-1, 1, P)
    cursor = risk.cursor(w)
    cursor.set_direction(np.full(P, np.nan))
    largest = cursor.update_shards(shard_ops.advance, risk.linear_map, 1.0)
    assert np.isnan(largest).all()


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared_hinge"])
def test_newton_from_samples_of_the_rows_has_the_same_bits(loss, monkeypatch):
    monkeypatch.setattr(subsampling, "SAMPLE_SHARD_ENTRIES", 200)
    monkeypatch.setattr(SmallProblem, "accepts", lambda obj, direct: False)
    monkeypatch.setattr(SmallSmoothProblem, "MAX_ENTRIES", 0)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 4))
    y = np.sign(X[:, 0] + rng.standard_normal(len(X)))
    samples = []
    placed = subsampling._placed

    def watched(executor, shard):
        samples.append(placed(executor, shard))
        return samples[-1]

    monkeypatch.setattr(subsampling, "_placed", watched)

    def run(executor):
        risk = rm.linear_risk(X, y, loss, executor=executor, n_shards=7)
        result = rm.minimize(rm.Objective(risk, rm.L2(), 1e-4), "newton", tol=1e-8)
        return result.w.tobytes(), result.value, result.lower, result.status

    serial = run(rm.Serial())
    assert serial[3] == "converged"
    assert all(run(rm.Threads(n_workers=k)) == serial for k in THREADS)
    # two samples per run, of several shards, which the threads share
    assert len(samples) == 2 * (1 + len(THREADS))
    assert all(len(executor.shards) > 1 for executor in samples)
    assert isinstance(samples[-1], ThreadExecutor)
