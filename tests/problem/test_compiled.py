"""Risks whose losses are compiled: the values, gradients and cuts of array code, the same bits everywhere."""

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from riskmin.problem.compiled.tracing import TracedLoss
from riskmin.problem.risk import Risk


@pytest.fixture(autouse=True)
def compile_everything(monkeypatch):
    monkeypatch.setattr(Risk, "COMPILE_FROM_ENTRIES", 0)


def rows(n=3000, p=20):
    rng = np.random.default_rng(3)
    X = np.where(rng.uniform(size=(n, p)) < 0.4, rng.standard_normal((n, p)), 0.0)
    return X, np.sign(X[:, 0] + 0.3 * rng.standard_normal(n)), rng.uniform(0.5, 2.0, n)


FORMATS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "CSR": sp.csr_array,
    "CSC": sp.csc_array,
    "C, float32": lambda X: X.astype(np.float32),
    "CSR, float32": lambda X: sp.csr_array(X.astype(np.float32)),
}


@pytest.mark.parametrize("stored", FORMATS)
@pytest.mark.parametrize("loss", [rm.Hinge(), rm.Logistic()], ids=repr)
def test_oracle_and_line_have_the_values_of_array_code(stored, loss, monkeypatch):
    X, y, weight = rows()
    X, w, d = FORMATS[stored](X), np.linspace(-1, 1, 20), np.linspace(1, 0.5, 20)
    risk = rm.linear_risk(X, y, loss, sample_weight=weight, n_shards=3)
    assert isinstance(risk.compiled(loss), TracedLoss)

    def results():
        cursor = rm.linear_risk(X, y, loss, sample_weight=weight, n_shards=3).cursor(w)
        cursor.set_direction(d)
        mixture = [(0.25, 0.5), (-1.0, 0.5)]
        value, grad, error = cursor.pull_back(0.5, mixture)
        oracle = rm.linear_risk(X, y, loss, sample_weight=weight, n_shards=3)(w)
        return [*cursor.evaluate_at(0.5, -0.25), value, *grad, oracle[0], *oracle[1]], error

    compiled, error = results()
    monkeypatch.setattr(Risk, "COMPILE_FROM_ENTRIES", 10**18)
    array_code, allowed = results()
    np.testing.assert_allclose(compiled, array_code, rtol=1e-12, atol=1e-15)
    assert error == pytest.approx(allowed, rel=1e-9)


@pytest.mark.parametrize("stored", ["C", "Fortran", "CSR"])
def test_same_bits_for_any_number_of_threads(stored):
    X, y, weight = rows()
    X = FORMATS[stored](X)

    def run(executor):
        risk = rm.linear_risk(X, y, "hinge", sample_weight=weight, executor=executor, n_shards=5)
        result = rm.minimize(rm.Objective(risk, rm.L2(), 1e-3), rm.Bundle(), tol=1e-6)
        return result.w.tobytes(), result.value, result.lower, result.status

    serial = run(rm.Serial())
    assert serial[3] == "converged"
    assert all(run(rm.Threads(n_workers=k)) == serial for k in (1, 2, 3))


def test_second_derivatives_in_the_step_and_the_intercept(monkeypatch):
    from riskmin.problem import shard_ops

    X, y, _ = rows()

    def sums():
        risk = rm.linear_risk(X, y, rm.Logistic(), n_shards=2)
        cursor = risk.cursor(np.linspace(-1, 1, 20))
        cursor.set_direction(np.ones(20))
        return cursor.reduce_shards(shard_ops.second_derivatives, risk.compiled(risk.loss), 0.5, -0.25)

    compiled = sums()
    monkeypatch.setattr(Risk, "COMPILE_FROM_ENTRIES", 10**18)
    np.testing.assert_allclose(compiled, sums(), rtol=1e-13)


def test_a_loss_that_cannot_be_traced_keeps_its_array_code(monkeypatch):
    X, y, _ = rows()

    class Tabulated(rm.Squared):
        def value_grad(self, z, y, c):
            return super().value_grad(np.interp(z, [-9.0, 9.0], [-9.0, 9.0]), y, c)

    risk, w = rm.linear_risk(X, y, Tabulated()), np.linspace(-0.1, 0.1, 20)
    assert risk.compiled(risk.loss) is risk.loss
    value, grad = risk(w)
    monkeypatch.setattr(Risk, "COMPILE_FROM_ENTRIES", 10**18)
    expected = rm.linear_risk(X, y, Tabulated())(w)
    assert value == expected[0]
    assert grad.tobytes() == expected[1].tobytes()


def test_a_loss_whose_trace_is_wrong_keeps_its_array_code():
    X, y, _ = rows()
    state = {"calls": 0}

    class Random(rm.Squared):
        def value_grad(self, z, y, c):  # not a function of its arguments
            state["calls"] += 1
            return super().value_grad(z * (1 + 1e-6 * state["calls"]), y, c)

    risk = rm.linear_risk(X, y, Random())
    assert risk.compiled(risk.loss) is risk.loss


def test_standardized_columns_are_compiled_too():
    X, y, _ = rows()
    model = rm.LinearClassifier("logistic", alpha=1e-3, standardize=True, solver="lbfgs", tol=1e-8)
    fitted = model.fit(sp.csr_array(X), y)
    other = rm.LinearClassifier("logistic", alpha=1e-3, standardize=True, solver="newton", tol=1e-8)
    np.testing.assert_allclose(fitted.coef_, other.fit(X, y).coef_, atol=1e-4)
