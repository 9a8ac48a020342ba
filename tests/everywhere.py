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
    return Objective(risk, L2(), 0.3)  # a cluster has few rounds a second


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


class Elsewhere(Executor):
    """An executor that hides where its shards are, and counts what comes back from them and goes there."""

    def __init__(self, executor=Serial, held=None):
        self.executor, self.held = executor, held
        self.mapped, self.summed, self.sent, self.calls = [], [], [], 0

    def __call__(self, shards):
        return Elsewhere(self.executor, as_backend(self.executor).place(shards))

    def map(self, f, *args, each=()):
        found = self.held.map(f, *args, each=each)
        self._count(self.mapped, found, each)
        return found

    def sum(self, f, *args, each=()):
        found = self.held.sum(f, *args, each=each)
        self._count(self.summed, [found], each)
        return found

    def _count(self, where, found, each):
        self.calls += 1
        where.append(size(found))
        self.sent.append(size(each))

    def clear(self):
        self.__init__(self.executor, self.held)


def size(things):
    """The bytes of the arrays in there."""
    if isinstance(things, np.ndarray):
        return things.nbytes
    return sum(map(size, things)) if isinstance(things, (list, tuple)) else 0


def default(name):
    """The solver of rows that are elsewhere."""
    return Auto().choose(PROBLEMS[name](Elsewhere()), TOL)[0]


def solve(name, executor, solver=None):
    """All that must be the same, in one array: w, the value, its bound, and the trace of both."""
    result = minimize(PROBLEMS[name](executor), solver or default(name), tol=TOL)
    assert result.status == "converged", (name, executor, result)
    trace = [row[key] for row in result.trace for key in ("value", "lower")]
    return np.concatenate([result.w, [result.value, result.lower], trace])


def keeps(executor, p=50_000):
    """Whether a sum that was long enough for shared memory stays what it is when the next is taken."""
    X = np.ones((SHARDS, p))
    risk = linear_risk(X, [1.0, -1.0, 1.0, 1.0], Hinge(), executor=executor, n_shards=SHARDS)
    first = risk(np.zeros(p))[1]
    before = first.copy()
    risk(np.ones(p))
    return np.array_equal(first, before)


def main(file):
    """All problems on the ranks of this job; rank 0 writes what it found."""
    from riskmin.executors.mpi.executor import Spmd

    settings = Spmd()
    found = {name: solve(name, settings) for name in PROBLEMS}
    kept = keeps(settings)
    if settings.rank == 0:
        np.savez(file, keeps=kept, **found)


if __name__ == "__main__":
    main(sys.argv[1])
