"""DaskExecutor: every kind of Dask collection, rows that stay on the workers, errors, no leaks."""

import copy
import gc
import os
import pickle
import sys
import time

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import Problem, echo, pids, shards, size
from riskmin.data import DataError, load_partitioned
from riskmin.executors.dask.worker_tasks import pack, unpack
from riskmin.owners.wire.certificates import make_authority

VERSION = rm.__version__
SIZES = [1, 2, 3, 4, 5]


def data(n=200, p=6):
    problem = Problem(rm.Hinge(), n=n, p=p)
    return problem.X, problem.y


# ---------------------------------------------------------------- clients
def test_copies_share_the_client(client):
    remote = rm.DaskExecutor(client, ordered=False)
    for other in (copy.copy(remote), copy.deepcopy(remote)):
        assert other.client is client
        assert not other.ordered
    sent = pickle.loads(pickle.dumps(remote))
    assert client.scheduler.address in repr(sent)
    assert sent.place(shards()).map(size) == SIZES
    sent.client.close()
    with client.as_current():
        assert rm.DaskExecutor().client is client


def test_closed_shards_raise(client):
    remote = rm.DaskExecutor(client).place(shards())
    remote.close()
    with pytest.raises(RuntimeError, match="were closed: make the risk anew"):
        remote.map(size)


# ---------------------------------------------------------------- sums and arguments
def test_unordered_sums_differ_by_rounding_only(client):
    settings = {"loss": rm.Logistic(), "n_shards": 7}
    remote = rm.linear_risk(*data(), executor=rm.DaskExecutor(client, ordered=False), **settings)
    value, grad = rm.linear_risk(*data(), **settings)(np.linspace(-1, 1, 6))
    found = remote(np.linspace(-1, 1, 6))
    assert found[0] == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(found[1], grad, rtol=1e-12, atol=1e-15)


def total(shard, array):
    return float(array.sum())


@pytest.mark.filterwarnings("ignore:Sending large graph")  # where they are not
def test_long_arguments_are_scattered(client, monkeypatch):
    """Those of more than 32 MB, over all workers; a worker may die during it."""
    executor, long = rm.DaskExecutor(client).place(shards()), np.ones(2_200_000)
    assert executor.map(total, long) == [2_200_000.0] * 5

    def failing_scatter(*_, **__):
        raise OSError("a worker died during the scatter")

    monkeypatch.setattr(client, "scatter", failing_scatter)  # of Dask
    assert executor.map(total, 2 * long) == [4_400_000.0] * 5


def library_of(shard):
    return type(shard.X.X).__module__, type(shard.y).__module__


@pytest.mark.parametrize(
    ("loss", "solver"),
    [(rm.Logistic(), rm.Lbfgs()), (rm.RocArea(), rm.Bundle()), (rm.Softmax(), rm.Lbfgs())],
    ids=repr,
)
def test_each_worker_holds_its_shards_on_its_device(client, loss, solver):
    """Tensors of torch on the CPU stand in for GPUs."""
    torch = pytest.importorskip("torch")
    problem = Problem(loss, n=120, p=5)
    there = problem.objective(executor=rm.DaskExecutor(client, device=torch.asarray), n_shards=4)
    assert set(there.risk.executor.map(library_of)) == {("torch", "torch")}
    found, expected = (rm.minimize(obj, solver, tol=1e-2) for obj in (there, problem.objective(n_shards=4)))
    assert type(found.w) is np.ndarray
    assert found.status == "converged"
    assert found.lower <= expected.value
    assert expected.lower <= found.value


def test_a_missing_gpu_is_told(client):
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount():
            pytest.skip("there is a GPU")
    except Exception:
        pass
    with pytest.raises(Exception, match=r"device='cuda': CuPy .* or use the CPU"):
        rm.linear_risk(*data(), rm.Logistic(), executor=rm.DaskExecutor(client, device="cuda"))


# ---------------------------------------------------------------- Dask collections
def frames(X, cut=(70, 70, 150)):
    import pandas as pd

    columns = [f"c{k}" for k in range(X.shape[1])]
    return [pd.DataFrame(part, columns=columns) for part in np.split(X, cut)]


def sent(client, things):
    """Scatter with unique keys: with hashed keys, Dask confuses data sent again with data being released."""
    return client.scatter(things, hash=False)


def collection(name, X, client):
    """The rows of X in a kind of Dask collection; the data frames have one empty part."""
    import dask
    import dask.array
    import dask.dataframe

    halves = np.split(X, [90])
    if name == "frame":
        pieces = [dask.delayed(lambda frame=frame: frame)() for frame in frames(X)]
        return dask.dataframe.from_delayed(pieces, meta=frames(X)[0].iloc[:0], verify_meta=False)
    return {
        "array": lambda: dask.array.from_array(X, chunks=(70, 4)),
        "delayed": lambda: [dask.delayed(sp.csr_array)(half) for half in halves],
        "futures": lambda: sent(client, halves),
        "frames": lambda: sent(client, frames(X)),
        "future": lambda: sent(client, [X])[0],
    }[name]()


@pytest.mark.filterwarnings("ignore:Sending large graph")
@pytest.mark.parametrize("name", ["array", "frame", "delayed", "futures", "frames", "future"])
def test_fits_of_dask_collections(name, client):
    X, y = data()
    remote = rm.DaskExecutor(client).partition(collection(name, X, client))
    assert isinstance(remote, rm.PartitionedMatrix)
    assert remote.shape == X.shape
    assert remote.sparse == (name == "delayed")
    columns = {part.columns for part in remote.parts}
    assert columns == {tuple(frames(X)[0]) if name.startswith("frame") else None}
    assert all(part.shape[0] for part in remote.parts)
    objectives = [rm.Objective(rm.linear_risk(rows, y, rm.Logistic()), rm.L2(), 0.1) for rows in (X, remote)]
    expected, result = (rm.minimize(objective, rm.Lbfgs(), tol=1e-4) for objective in objectives)
    assert result.status == "converged"
    assert result.value == pytest.approx(expected.value, rel=2e-4)
    whole = remote.whole()  # all rows, in order, in this process
    np.testing.assert_array_equal(whole.toarray() if sp.issparse(whole) else whole, X)


def address_of(array):
    return os.getpid(), array.__array_interface__["data"][0]


def address_of_rows(shard):
    return address_of(shard.X.X)


def test_rows_on_a_worker_are_not_copied(client):
    X, y = data()
    futures = sent(client, np.split(X, [50, 100, 150]))
    risk = rm.linear_risk(rm.DaskExecutor(client).partition(futures), y, rm.Hinge())
    remote = client.gather([client.submit(address_of, future) for future in futures])
    assert risk.executor.map(address_of_rows) == remote


def test_labels_may_be_a_future(client):
    X, y = data()
    expected = rm.LinearClassifier("logistic", alpha=0.1).fit(X, y).objective_
    remote = rm.DaskExecutor(client).partition(sent(client, np.split(X, 2)))
    with client.as_current():
        model = rm.LinearClassifier("logistic", alpha=0.1).fit(remote, sent(client, [y])[0])
    assert model.objective_ == pytest.approx(expected, rel=2e-3)


X5 = np.ones((4, 5))
RENAMED = [frame.rename(columns={"c1": "d"}) if k else frame for k, frame in enumerate(frames(X5, (2,)))]
TEXT = [frame.assign(c1="text") if k else frame for k, frame in enumerate(frames(X5, (2,)))]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (RENAMED, r"part 1 of X has the columns c0, d, .* but part 0 has .* c0, c1"),
        (TEXT, r"part 1 of X: column 'c1' holds .*, not numbers"),
        ([X5, X5[:, :4]], "part 1 of X has 4 columns, but part 0 has 5 columns: give"),
        ([X5, X5[0]], "part 1 of X has 1 dimensions"),
        ([X5, X5 * np.nan], r"part 1 of X: .*NaN"),
        (X5, "X is a ndarray, no collection of Dask"),
    ],
    ids=["names", "text", "columns", "dimensions", "NaN", "array"],
)
def test_inconsistent_parts_raise(parts, words, client):
    executor, given = rm.DaskExecutor(client), parts if parts is X5 else sent(client, parts)
    with pytest.raises((ValueError, TypeError), match=words):
        rm.linear_risk(executor.partition(given), np.tile([1.0, -1.0], 4), rm.Hinge())


def test_files_are_read_by_the_workers(client, tmp_path):
    X, y = data()
    paths = [tmp_path / f"{k}.npz" for k in range(4)]
    for path, index in zip(paths, np.split(np.arange(200), 4), strict=True):
        np.savez(path, X=X[index], y=y[index])
    loaded = load_partitioned(paths, executor=rm.DaskExecutor(client))
    remote = rm.linear_risk(loaded.X, loaded.y, rm.Hinge())
    assert len(set(remote.executor.map(pids))) == 2  # both workers read files
    found, expected = (risk(np.ones(6)) for risk in (remote, rm.linear_risk(X, y, rm.Hinge(), n_shards=4)))
    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1], expected[1])
    # one file is zero-based, so all are; it has the most columns
    for name, text in (("0.svm", "1 1:1 2:1\n"), ("1.svm", "1 0:1 5:1\n")):
        (tmp_path / name).write_text(text)
    loaded = load_partitioned([tmp_path / "0.svm", tmp_path / "1.svm"], executor=rm.DaskExecutor(client))
    assert [(part.shape, part.nnz, part.sparse) for part in loaded.X.parts] == [((1, 6), 2, True)] * 2
    assert loaded.X.whole().toarray().tolist() == [[0, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 1]]
    with pytest.raises(DataError, match="nowhere"):
        load_partitioned([tmp_path / "nowhere.npz"], executor=rm.DaskExecutor(client))


# ---------------------------------------------------------------- workers with another riskmin
def set_version(version):
    rm.__version__ = version


def hide(hidden):
    """Make the library importable on a worker, or not."""
    for name in [name for name in sys.modules if name.startswith("riskmin.executors.dask")]:
        if hidden:
            sys.modules[f"hidden {name}"], sys.modules[name] = sys.modules[name], None
        else:
            sys.modules[name] = sys.modules.pop(f"hidden {name}")


@pytest.mark.parametrize(
    ("change", "restore", "words"),
    [
        ((set_version, "0.0.9"), (set_version, VERSION), f"has riskmin 0.0.9, but the client has {VERSION}"),
        ((hide, True), (hide, False), "cannot run riskmin .*: install it there"),
    ],
    ids=["version", "missing"],
)
def test_a_worker_with_another_riskmin_is_named(change, restore, words, client):
    victim = list(client.nthreads())[-1]
    client.run(*change, workers=[victim])
    try:
        with pytest.raises(RuntimeError, match=f"{victim} {words}"):
            rm.DaskExecutor(client).place(shards())
    finally:
        client.run(*restore, workers=[victim])
    assert rm.DaskExecutor(client).place(shards()).map(size) == SIZES


# ---------------------------------------------------------------- leaks
def scheduler_counts(dask_scheduler):
    return len(dask_scheduler.tasks), len(dask_scheduler.task_groups), len(dask_scheduler.task_prefixes)


def worker_counts(dask_worker):
    return len(dask_worker.data), len(dask_worker.state.tasks), len(dask_worker.state.total_resources)


def stable_counts(client):
    """Numbers of objects at the scheduler and the workers, once pending releases have arrived."""
    gc.collect()
    latest = None
    for _ in range(50):
        time.sleep(0.05)
        last, latest = latest, (client.run_on_scheduler(scheduler_counts), client.run(worker_counts))
        if last == latest:
            break
    return latest


def test_rounds_and_fits_leak_nothing(client):
    problem, executor = Problem(lam=0.1), rm.DaskExecutor(client)
    placed = executor.place(shards())
    placed.map(echo, 1.0)
    before = stable_counts(client)
    for _ in range(20):
        placed.map(echo, 1.0)
    for _ in range(2):
        rm.minimize(problem.objective(executor=executor), rm.Bundle(), tol=0.1)
    assert stable_counts(client) == before


# ---------------------------------------------------------------- TLS
def test_a_tls_cluster_refuses_clients_without_certificate(tmp_path):
    from distributed import Client, LocalCluster
    from distributed.security import Security

    make_authority(tmp_path, ["node"], ["127.0.0.1"])
    files = {"cert": str(tmp_path / "node.pem"), "key": str(tmp_path / "node.key")}
    roles = {f"tls_{r}_{what}": files[what] for r in ("client", "scheduler", "worker") for what in files}
    security = Security(tls_ca_file=str(tmp_path / "ca.pem"), require_encryption=True, **roles)
    settings = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "silence_logs": 50}
    cluster = LocalCluster(dashboard_address=":0", security=security, **settings)
    with cluster, Client(cluster.scheduler_address, security=security, set_as_default=False) as client:
        for address in (cluster.scheduler_address, cluster.scheduler_address.replace("tls", "tcp")):
            with pytest.raises(ConnectionError, match=r"no Dask scheduler answers at .* the certificates"):
                rm.DaskExecutor(address).place(shards())
        X, y = data()
        remote, local = (
            rm.linear_risk(X, y, rm.Hinge(), executor=e, n_shards=3) for e in (rm.DaskExecutor(client), None)
        )
        np.testing.assert_array_equal(remote(np.ones(6))[1], local(np.ones(6))[1])


def test_messages_that_are_cut_at_any_byte_have_aligned_arrays():
    """Dask cuts messages that were sent together out of one buffer."""
    header, frame = pack(np.arange(50_000.0))
    for start in (0, 1, 4, 8):
        buffer = np.empty(len(frame) + start, dtype=np.uint8)
        buffer[start:] = frame
        received = unpack([header, buffer[start:]])
        assert received.flags.aligned
        assert received.flags.writeable
        np.testing.assert_array_equal(received, np.arange(50_000.0))
