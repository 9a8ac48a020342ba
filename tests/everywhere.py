"""The problems of test_same_answers.py, and the program that solves them under mpiexec.

mpiexec -n 2 python everywhere.py FILE
"""

import sys
from functools import partial

import numpy as np

from riskmin import (
    L1,
    L2,
    Auto,
    ChainCrf,
    FBeta,
    Hinge,
    Logistic,
    Ndcg,
    Objective,
    RocArea,
    Serial,
    linear_risk,
    minimize,
)
from riskmin.executors import Executor, as_backend

SHARDS, TOL = 4, 1e-4


def rows(n=240, p=12):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    return X, X @ rng.standard_normal(p) / p**0.5 + 0.7 * rng.standard_normal(n)


def signs(loss, reg=None, lam=1e-2):
    def make(executor):
        X, z = rows()
        risk = linear_risk(X, np.where(z > 0, 1.0, -1.0), loss, executor=executor, n_shards=SHARDS)
        return Objective(risk, reg or L2(), lam)

    return make


def ranking(executor, together=True):
    X, z = rows()
    grades = np.digitize(z, [0.0, 1.0]).astype(float)
    qid = np.arange(len(z)) // 12 if together else np.arange(len(z)) % 20
    risk = linear_risk(X, grades, Ndcg(), qid=qid, executor=executor, n_shards=SHARDS)
    return Objective(risk, L2(), 0.3)  # a cluster runs few rounds per second


def chains(executor):
    X, z = rows()
    lengths = np.full(40, 6)
    risk = linear_risk(
        X, np.digitize(z, [-0.5, 0.5]), ChainCrf(), lengths=lengths, executor=executor, n_shards=SHARDS
    )
    return Objective(risk, L2(), 1e-2)


PROBLEMS = {
    "hinge": signs(Hinge()),
    "logistic": signs(Logistic()),
    "ROC area": signs(RocArea()),
    "NDCG": ranking,
    "chain CRF": chains,
    "L1": signs(Logistic(), L1()),
}
TWO_ROUNDS = {
    "ROC area": signs(RocArea()),
    "F-beta": signs(FBeta()),
    "NDCG of rows apart": partial(ranking, together=False),
}


class RemoteExecutor(Executor):
    """An executor that hides where its shards are, and counts the bytes sent to and received from them."""

    def __init__(self, executor=Serial, placed=None):
        self.executor, self.placed = executor, placed
        self.mapped, self.summed, self.sent, self.calls = [], [], [], 0

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
        self.__init__(self.executor, self.placed)


def size(values):
    """Total bytes of the arrays in nested lists and tuples."""
    if isinstance(values, np.ndarray):
        return values.nbytes
    return sum(map(size, values)) if isinstance(values, (list, tuple)) else 0


def default(name):
    """The solver that Auto chooses for remote rows."""
    return Auto().choose(PROBLEMS[name](RemoteExecutor()), TOL)[0]


def solve(name, executor, solver=None):
    """Everything that must be bit-equal, in one array: w, the value, the lower bound, and their traces."""
    result = minimize(PROBLEMS[name](executor), solver or default(name), tol=TOL)
    assert result.status == "converged", (name, executor, result)
    trace = [row[key] for row in result.trace for key in ("value", "lower")]
    return np.concatenate([result.w, [result.value, result.lower], trace])


def keeps(executor, p=50_000):
    """Whether a sum large enough for shared memory keeps its values when the next sum is computed."""
    X = np.ones((SHARDS, p))
    risk = linear_risk(X, [1.0, -1.0, 1.0, 1.0], Hinge(), executor=executor, n_shards=SHARDS)
    first = risk(np.zeros(p))[1]
    before = first.copy()
    risk(np.ones(p))
    return np.array_equal(first, before)


def main(file):
    """Solve all problems on the ranks of this job; rank 0 writes the results."""
    from riskmin.executors.mpi.executor import Spmd

    settings = Spmd()
    results = {name: solve(name, settings) for name in PROBLEMS}
    sum_is_kept = keeps(settings)
    if settings.rank == 0:
        np.savez(file, keeps=sum_is_kept, **results)


if __name__ == "__main__":
    main(sys.argv[1])
