"""Checks that every rank of an MPI job runs: `mpiexec -n 2 python tests/mpi_checks.py FOLDER [name ...]`.

Each check runs on all ranks. Rank 0 prints the outcome of each check on every rank.
"""

import copy
import pickle
import sys
import time
import traceback
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import scipy.sparse as sp
from mpi4py import MPI as MPI  # early: if a rank exits before MPI is initialized, the others wait forever

import everywhere
import riskmin as rm
from helpers import Problem, shards
from riskmin.executors.base import SerialExecutor
from riskmin.testing import check_executor

CHECKS = {}
ranks = rm.Spmd()


def check(f):
    CHECKS[f.__name__] = f
    return f


def raises(error, words, f, *args, **settings):
    """Assert that f raises `error` with `words` in its message on this rank."""
    caught = None
    try:
        f(*args, **settings)
    except error as raised:
        caught = raised
    assert caught is not None, f"rank {ranks.rank} raises no {error.__name__} with {words!r}"
    assert words in str(caught), caught


def table(n=240):
    rows = Problem(n=n, p=7)
    return rows.X, rows.y


def problem(executor, loss=None, reg=None):
    """An objective on 5 shards of the given executor."""
    rows = Problem(loss or rm.Hinge(), reg or rm.L2(), n=240, p=7)
    return rows.objective(executor=executor, n_shards=5)


# ---------------------------------------------------------------- bit-equal results
@check
def contract():
    check_executor(rm.Spmd())
    check_executor(ranks)


@check
def fits_have_the_bits_of_one_process():
    for name in everywhere.PROBLEMS:
        distributed = everywhere.solve(name, ranks)
        local = everywhere.solve(name, everywhere.RemoteExecutor(rm.Serial))
        assert distributed.tobytes() == local.tobytes(), name
        for rank, bits in enumerate(ranks.communicator.exchange("compare", 0, lambda d=distributed: d)):
            assert np.array_equal(bits, distributed), f"{name}: rank {rank} has another result"


@check
def long_gradients_are_kept():
    everywhere.check_long_sums(ranks)


class RemoteSerial(SerialExecutor):
    """A single process whose rows solvers cannot read, as with rows stored by other ranks."""

    is_local = False


def same_bits(distributed, local, name):
    assert np.array_equal(distributed.w, local.w), name
    for field in ("value", "lower", "n_iter"):
        assert getattr(distributed, field) == getattr(local, field), name


@check
def a_path_has_the_bits_of_one_process():
    lams = [0.1, 0.01, 0.001]
    risks = [problem(executor, rm.Logistic(), rm.L1()).risk for executor in (ranks, RemoteSerial)]
    distributed, local = (rm.path(risk, rm.L1(), lams, tol=1e-6) for risk in risks)
    for k, lam in enumerate(lams):
        same_bits(distributed[k], local[k], f"lam={lam}")


def long_reply(shard, w):
    """A reply too long for one message, with two dtypes and integers."""
    x = shard.c[0] * w
    return float(x[0]), x, 3, np.outer(x[:40], x[:40]), np.float32(x[:7])


@check
def long_sums_have_them():
    rng = np.random.default_rng(1)
    for n, p in [(1, 50), (1, 5000), (2, 1500), (7, 5000), (9, 2001)]:
        rows = [rm.Shard(rm.as_matrix(np.ones((2, 2))), np.ones(2), rng.random(2), {}) for _ in range(n)]
        w = rng.standard_normal(p)
        expected = SerialExecutor(rows).sum(long_reply, w)
        ordered, fast = (rm.Spmd(ordered=o).place(rows).sum(long_reply, w) for o in (True, False))
        # buffers are reused, but not those in use
        again = rm.Spmd(ordered=True).place(rows).sum(long_reply, w)
        for x, y, z, u in zip(expected, ordered, fast, again, strict=True):
            assert np.array_equal(x, y), (n, p)
            assert np.array_equal(x, u), (n, p)
            np.testing.assert_allclose(z, x, rtol=1e-6 if np.asarray(x).dtype == np.float32 else 1e-12)
        for other_sum in ranks.communicator.exchange("compare", 0, lambda f=fast: f[1]):
            assert np.array_equal(other_sum, fast[1])  # all ranks have the same bits, in order or not


@check
def unordered_sums_agree_up_to_rounding():
    for name, make in everywhere.PROBLEMS.items():
        fast, local = (make(e).risk for e in (rm.Spmd(ordered=False), rm.Serial))
        w = np.random.default_rng(2).standard_normal(local.dim)
        (v, g), (value, grad) = fast(w), local(w)
        assert abs(v - value) <= 1e-12 * abs(value), name
        np.testing.assert_allclose(g, grad, rtol=0, atol=1e-12 * np.abs(grad).max())
    assert rm.minimize(everywhere.PROBLEMS["hinge"](rm.Spmd(ordered=False)), tol=1e-6).status == "converged"


@check
def replies_of_any_length_and_kind_arrive():
    executor = ranks.place(shards())
    for n in (0, 1, 50, 60, 500, 100_000):
        replies = executor.map(lambda s, n: (np.full(n, s.X.shape[0]), "x" * n, None), n)
        for k, (a, text, none) in enumerate(replies):
            assert np.array_equal(a, np.full(n, k + 1))
            assert (text, none) == ("x" * n, None)
    rounds = [executor.map(lambda s, t: np.full(5000, s.X.shape[0] + t), t) for t in range(30)]
    for t, row in enumerate(rounds):
        assert [a[0] for a in row] == [k + 1 + t for k in range(5)]
        assert all((a == a[0]).all() for a in row)


# ---------------------------------------------------------------- rows stored by ranks
@check
def rows_of_each_rank():
    X, y = table()
    ends = np.linspace(0, len(y), ranks.size + 1).astype(int) + 0
    ends[1:-1] += 3
    own_rows = slice(ends[ranks.rank], ends[ranks.rank + 1])
    for kind in (np.asarray, sp.csr_array, np.ndarray.tolist):
        partitioned = ranks.partition(kind(X[own_rows]))
        assert partitioned.shape == X.shape
        labels = ranks.gather_labels(y[own_rows])
        assert np.array_equal(labels, y)
        assert ranks.gather_labels(None) is None
        distributed = rm.linear_risk(partitioned, labels, rm.Hinge())
        stored = sp.csr_array if kind is sp.csr_array else np.asarray
        parts = [rm.InMemoryPartition(stored(X[i:j])) for i, j in pairwise(ends)]
        single = rm.linear_risk(rm.PartitionedMatrix(parts), labels, rm.Hinge(), executor=RemoteSerial)
        objectives = (rm.Objective(risk, rm.L2(), 0.01) for risk in (distributed, single))
        same_bits(*(rm.minimize(objective, rm.Bundle(), tol=1e-6) for objective in objectives), str(kind))
    names = ranks.gather_labels(np.array(["a", "bb"])[: 1 + ranks.rank % 2])
    assert names.tolist()[:2] == ["a", "a"]


@check
def a_rank_may_have_no_rows():
    X, y = table(50)
    own_rows = X if ranks.rank == 1 else X[:0]
    partitioned = ranks.partition(own_rows)
    labels = ranks.gather_labels(y if ranks.rank == 1 else y[:0])
    distributed = rm.linear_risk(partitioned, labels, rm.Logistic())(np.ones(7))
    local = rm.linear_risk(X, y, rm.Logistic())(np.ones(7))
    assert distributed[0] == local[0]
    assert np.array_equal(distributed[1], local[1])


@check
def rows_with_errors_are_refused():
    X, y = table(20)
    words = f"X of rank 1 has 6 columns, but X of rank 0 has {7}"
    raises(ValueError, words, ranks.partition, X if ranks.rank != 1 else X[:, :6])
    raises(ValueError, "rank 1 gives None", ranks.gather_labels, None if ranks.rank == 1 else y)
    rows, labels = ranks.partition(np.where(ranks.rank == 1, np.nan, X)), ranks.gather_labels(y)
    raises(ValueError, "X of rank 1: ", rm.linear_risk, rows, labels, rm.Hinge())
    raises(ValueError, "is in the memory of that rank only", ranks.partition(y[:, None]).whole)


@check
def parts_are_read_by_their_ranks_only():
    read = []

    class Part(rm.InMemoryPartition):
        def read(self):
            read.append(self.name)
            return self.X

    X, y = table(60)
    parts = [Part(X[k : k + 10], str(k)) for k in range(0, 60, 10)]
    risk = rm.linear_risk(rm.PartitionedMatrix(parts), y, rm.Hinge(), executor=ranks)
    risk(np.zeros(7))
    names_by_rank = ranks.communicator.exchange("compare", 0, lambda: read)
    assert [name for names in names_by_rank for name in names] == [str(k) for k in range(0, 60, 10)]
    assert risk.rows is None


@check
def stored_rows_are_read_by_all():
    """Rows are split as in one process, so that the bits do not depend on the number of ranks."""
    from riskmin.data import load_partitioned, save

    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((70_000, 40)), np.where(rng.random(70_000) < 0.3, 1.0, -1.0)
    file = Path(FOLDER) / "rows.rsk"
    ranks.on_root(lambda: save(file, [(X, y)]))
    data = load_partitioned(file, executor=ranks)
    distributed = rm.linear_risk(data.X, data.y, rm.Logistic())
    assert len(distributed.executor.owner) == 2
    assert len(distributed.executor.shards) < 2
    local = rm.linear_risk(X, y, rm.Logistic())
    (v, g), (value, grad) = (risk(np.linspace(-1, 1, 40)) for risk in (distributed, local))
    assert v == value
    assert np.array_equal(g, grad)


# ---------------------------------------------------------------- errors
class Awkward(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


@check
def errors_at_one_rank_reach_all():
    executor = ranks.place(shards())

    def fail(shard, n):
        if shard.X.shape[0] == n:
            raise ZeroDivisionError(f"at {n}")
        return (1.0,)

    for n in range(1, 6):
        raises(ZeroDivisionError, f"at {n}", executor.map, fail, n)
        raises(ZeroDivisionError, f"at {n}", executor.sum, fail, n)
    raises(ZeroDivisionError, "at 1", executor.map, lambda s: fail(s, s.X.shape[0]))  # the first error

    def awkward(shard):
        raise Awkward("one", "two")

    raises(RuntimeError if ranks.rank else (Awkward, RuntimeError), "one and two", executor.map, awkward)
    raises(Exception, "", executor.map, lambda s: lambda: None)  # the result cannot be pickled
    assert executor.sum(fail, 9) == (5.0,)


@check
def errors_between_calls_reach_all():
    def callback(it, row):
        if ranks.rank == ranks.size - 1 and row["iteration"] == 3:
            raise OSError("the disk of one rank is full")

    raises(OSError, "disk of one rank", rm.minimize, problem(ranks), rm.Bundle(), callback=callback)

    class Odd(rm.Bundle):
        def iterates(self, obj, w0):
            for k, it in enumerate(super().iterates(obj, w0)):
                if k == 3 and ranks.rank == 1:
                    raise MemoryError("at one rank")
                yield it

    raises(MemoryError, "at one rank", rm.minimize, problem(ranks), Odd(), tol=1e-9)

    def block():
        with ranks.synchronized():
            if ranks.rank == 0:
                raise FileNotFoundError("rank 0 has no such file")
            problem(ranks)

    raises(FileNotFoundError, "rank 0 has no such file", block)
    raises(ValueError, "tol must be", rm.minimize, problem(ranks), tol=-1)


@check
def ranks_that_differ_are_told():
    obj = problem(ranks)
    w = np.ones(7)
    w[3] += (ranks.rank == 1) * 2**-52
    raises(RuntimeError, "rank 1 came to 'value_grad' with other numbers than rank 0", obj.risk, w)
    two = rm.Spmd().place([rm.Shard(rm.as_matrix(np.ones((2, 2))), np.ones(2), np.ones(2), {})] * 3)
    one, other = (lambda s: 1), (lambda s: 2)
    other.__name__ = "other"
    raises(RuntimeError, "rank 1 came to 'other'", two.map, other if ranks.rank == 1 else one)
    X, y = table()
    y, words = -y if ranks.rank == 1 else y, "rank 1 came to 'shards in order' with other"
    raises(RuntimeError, words, rm.linear_risk, X, y, rm.Hinge(), executor=ranks)
    for odd_rank in range(2):  # one rank is in a fit, the others are not: none is left waiting
        fit, second = problem(rm.Spmd()), rm.Spmd()
        if ranks.rank == odd_rank:
            raises(RuntimeError, "came to", rm.minimize, fit)
        else:
            raises(RuntimeError, "came to", second.gather_labels, np.ones(2))


@check
def other_versions():
    words = f"rank 1 runs riskmin 0.0.1, but rank 0 runs {rm.__version__}"
    with mock.patch.object(rm, "__version__", "0.0.1" if ranks.rank == 1 else rm.__version__):
        raises(RuntimeError, words, problem, rm.Spmd())


# ---------------------------------------------------------------- decisions
@check
def time_limits_agree():
    """One rank is slow, and one has a later time limit."""

    def slow(it, row):
        time.sleep(0.002 * ranks.rank)

    obj = problem(ranks)
    for limit in (0.0, 0.02, 0.05 + 0.03 * ranks.rank):
        result = rm.minimize(obj, rm.Bundle(), tol=0.0, max_seconds=limit, callback=slow)
        assert result.status in ("max_seconds", "stalled")
        traces = ranks.communicator.exchange("compare", 0, lambda r=result: r.trace)
        assert all(trace == traces[0] for trace in traces)


@check
def callbacks_agree():
    obj = problem(ranks)
    for rank in range(ranks.size):
        settings = {"tol": 1e-12, "callback": lambda it, row, rank=rank: ranks.rank == rank}
        result = rm.minimize(obj, rm.Bundle(), **settings)
        assert result.status == ("converged" if rank else "interrupted")


@check
def ctrl_c_at_one_rank_stops_all():
    import signal

    def interrupt(it, row):
        if row["iteration"] == 4 and ranks.rank == ranks.size - 1:
            signal.raise_signal(signal.SIGINT)

    result = rm.minimize(problem(ranks), rm.Bundle(), tol=1e-12, callback=interrupt)
    assert (result.status, result.n_iter) == ("interrupted", 4)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@check
def checkpoints_are_written_once_and_read_by_all():
    folder = Path(FOLDER) / "runs"
    ranks.on_root(folder.mkdir)
    obj, file = problem(ranks), folder / "run"
    uninterrupted = rm.minimize(obj, rm.Bundle(), tol=1e-6)
    first = rm.minimize(obj, rm.Bundle(), tol=1e-6, max_iter=4, checkpoint=rm.Checkpoint(file, every=0.0))
    assert first.status == "max_iter"
    assert ranks.broadcast_from_root(lambda: len(list(folder.iterdir()))) == 1
    # resume with another number of ranks: one
    single = problem(rm.Serial)
    copies = folder / f"copy-{ranks.rank}"
    copies.write_bytes(file.read_bytes())
    resumed = rm.minimize(single, rm.Bundle(), tol=1e-6, checkpoint=copies)
    distributed = rm.minimize(obj, rm.Bundle(), tol=1e-6, checkpoint=file)
    assert distributed.status == "converged"
    assert distributed.trace[:4] == first.trace
    same_bits(distributed, resumed, "resumed")
    assert abs(distributed.value - uninterrupted.value) <= 1e-6 * uninterrupted.value
    missing = folder / "no" / "run"
    raises(rm.FileError, "is not a writable folder", rm.minimize, obj, checkpoint=missing)
    raises(rm.FileError, "belongs to another", rm.minimize, problem(ranks, rm.Logistic()), checkpoint=file)


# ---------------------------------------------------------------- settings
@check
def placed_shards_are_not_copied():
    executor = problem(ranks).risk.executor
    raises(TypeError, "cannot be pickled", pickle.dumps, executor)
    raises(TypeError, "cannot be pickled", copy.deepcopy, executor)


@check
def other_communicators():
    half = ranks.ranks.Split(ranks.rank % 2)
    result = rm.minimize(problem(rm.Spmd(half)), rm.Bundle(), tol=1e-6)
    same_bits(result, rm.minimize(problem(rm.Serial), rm.Bundle(), tol=1e-6), "half")
    half.Free()


@check
def estimators_accept_the_executor():
    from sklearn.base import clone

    X, y = table()
    own_rows = slice(0, 100) if ranks.rank == 0 else slice(100, 240) if ranks.rank == 1 else slice(0)
    model = clone(rm.LinearClassifier(loss="logistic", solver=rm.Lbfgs(), tol=1e-6))
    model.fit(ranks.partition(X[own_rows]), ranks.gather_labels(y[own_rows]))
    single = rm.LinearClassifier(loss="logistic", solver=rm.Lbfgs(), tol=1e-6).fit(X, y)
    np.testing.assert_allclose(model.coef_, single.coef_, rtol=1e-3)
    for coef in ranks.communicator.exchange("compare", 0, lambda: model.coef_):
        assert np.array_equal(coef, model.coef_)


@check
def output_of_other_ranks_is_suppressed():
    with ranks.root_output_only():
        print("once is enough")
        print("once is enough", file=sys.stderr)


def main(names):
    """Run the checks with these names, or all; rank 0 prints the outcomes."""
    bad = 0
    for name in names or CHECKS:
        error = ""
        start = time.perf_counter()
        try:
            CHECKS[name]()
        except Exception:
            error = traceback.format_exc()
        errors = ranks.ranks.allgather(error)
        bad += any(errors)
        if ranks.rank == 0:
            print(
                "failed" if any(errors) else "passed", name, f"{time.perf_counter() - start:.2f}", flush=True
            )
            for k, text in enumerate(errors):
                print("".join(f"    rank {k}: {line}\n" for line in text.splitlines()), end="", flush=True)
    return min(bad, 1)


if __name__ == "__main__":
    FOLDER = sys.argv[1]
    sys.exit(main(sys.argv[2:]))
