"""Problems that every executor solves with the same bits, and an executor that hides where its rows are."""

import numpy as np

import riskmin as rm
from helpers import labels, lengths
from riskmin.executors import Executor, as_backend

SHARDS, TOL = 4, 1e-4
N, P = 120, 7
QUERIES = {"qid": np.arange(N) // 12}
APART = {"qid": np.arange(N) % 10}


def rows_of(loss, reg=None, lam=1e-2, **settings):
    """A function that makes the objective on the shards of an executor."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, P))
    y = labels(rm.Softmax() if loss.task == "ranking" else loss, X @ rng.standard_normal(P), rng)
    return lambda executor: rm.Objective(
        rm.linear_risk(X, y, loss, executor=executor, n_shards=SHARDS, **settings), reg or rm.L2(), lam
    )


PROBLEMS = {
    "hinge": rows_of(rm.Hinge(), lam=0.1),
    "hinge, intercept": rows_of(rm.Hinge(), lam=0.1, fit_intercept=True),
    "logistic, intercept": rows_of(rm.Logistic(), fit_intercept=True),
    "logistic, offset": rows_of(rm.Logistic(), fit_intercept=True, offset=np.linspace(-1.0, 1.0, N)),
    "L1": rows_of(rm.Logistic(), rm.L1()),
    "softmax, intercepts": rows_of(rm.Softmax(), fit_intercept=True),
    "ROC area": rows_of(rm.RocArea(), lam=0.1),
    "NDCG": rows_of(rm.Ndcg(), lam=0.3, **QUERIES),
    "chain CRF": rows_of(rm.ChainCrf(), lam=0.1, lengths=lengths(N)),
}
"""Functions of an executor, by the name of the problem; a cluster runs few rounds per second."""
TWO_ROUNDS = {
    "ROC area": rows_of(rm.RocArea()),
    "F-beta": rows_of(rm.FBeta()),
    "NDCG of rows apart": rows_of(rm.Ndcg(), **APART),
}
"""Problems whose scores are gathered."""


class RemoteExecutor(Executor):
    """An executor that hides where its shards are, and counts the bytes sent to and received from them."""

    def __init__(self, executor=rm.Serial, placed=None):
        self.executor, self.placed = executor, placed
        self.clear()

    def __call__(self, shards):
        return RemoteExecutor(self.executor, as_backend(self.executor).place(shards))

    def map(self, f, *args, each=()):
        results = self.placed.map(f, *args, each=each)
        self._count(self.mapped, results, each)
        return results

    def sum(self, f, *args, each=()):
        total = self.placed.sum(f, *args, each=each)
        self._count(self.summed, [total], each)
        return total

    def _count(self, counts, results, each):
        self.calls += 1
        counts.append(size(results))
        self.sent.append(size(each))

    def clear(self):
        self.mapped, self.summed, self.sent, self.calls = [], [], [], 0


def size(values):
    """Total bytes of the arrays in nested lists and tuples."""
    if isinstance(values, np.ndarray):
        return values.nbytes
    return sum(map(size, values)) if isinstance(values, (list, tuple)) else 0


def solve(name, executor):
    """Everything that must be bit-equal, in one array: w, the value, the lower bound, and their traces."""
    result = rm.minimize(PROBLEMS[name](executor), tol=TOL)
    assert result.status == "converged", (name, executor, result)
    trace = [row[key] for row in result.trace for key in ("value", "lower")]
    return np.concatenate([result.w, [result.value, result.lower], trace])


def check_long_sums(executor):
    """Check that long gradients have the bits of one process, and that later ones do not overwrite them."""
    rng, p = np.random.default_rng(0), 2**17 + 3  # long enough for shared memory, and for sums in parallel
    X, y, w = rng.standard_normal((6, p)), np.array([1.0, -1.0] * 3), np.full(p, 1e-4)
    expected, risk = (
        rm.linear_risk(X, y, rm.Hinge(), n_shards=6, executor=e) for e in (rm.Serial(), executor)
    )
    points = w, -w
    found = [risk(point) for point in points]
    for point, (value, grad) in zip(points, found, strict=True):
        assert value == expected(point)[0]
        np.testing.assert_array_equal(grad, expected(point)[1])
