"""DaskExecutor: results identical to Serial, every kind of Dask collection, one-sentence errors."""

import copy
import datetime as dt
import gc
import ipaddress
import os
import pickle
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin
from dask_forks import Forks
from helpers import Trap, echo, fail, interrupt, need, pids, size, stick
from riskmin import (
    L2,
    Bundle,
    DaskExecutor,
    Hinge,
    Lbfgs,
    Logistic,
    Objective,
    PartitionedMatrix,
    RocArea,
    Serial,
    Shard,
    linear_risk,
    minimize,
)
from riskmin.arrays.matrix import as_matrix
from riskmin.core.limits import LIMITS
from riskmin.executors.dask.executor import is_dask, to_local_array
from riskmin.testing import check_executor

slow = pytest.mark.slow
VERSION = riskmin.__version__


def shards(n=5):
    return [Shard(as_matrix(np.ones((k + 1, 2))), np.ones(k + 1), np.ones(k + 1), {}) for k in range(n)]


def data(n=200, p=6):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    y = np.where(X @ rng.standard_normal(p) + rng.standard_normal(n) > 0, 1.0, -1.0)
    return X, y


@pytest.fixture(scope="module")
def client():
    """A client of two workers, each a process with one thread."""
    from distributed import Client

    with Forks() as forks:
        _, address = forks.scheduler()
        for _ in range(2):
            forks.worker(address)
        with Client(address, set_as_default=False) as connected:
            connected.wait_for_workers(2)
            yield connected


@pytest.fixture(scope="module")
def placed(client):
    """Five shards on the workers, shared by all tests that leave them usable."""
    return DaskExecutor(client).place(shards())


# ---------------------------------------------------------------- settings
def test_settings_are_shown_copied_and_pickled():
    settings = DaskExecutor("tcp://there:8786", ordered=False, patience=5)
    for other in (copy.copy(settings), copy.deepcopy(settings), pickle.loads(pickle.dumps(settings))):
        assert repr(other) == "DaskExecutor('tcp://there:8786', ordered=False, patience=5)"
    assert repr(pickle.loads(pickle.dumps(DaskExecutor()))) == "DaskExecutor()"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client": 3}, "client=3 is no client of Dask: give a distributed.Client"),
        ({"patience": -1}, "patience=-1: give a number of seconds >= 0"),
        ({"patience": "long"}, "patience='long': give a number"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        DaskExecutor(**settings)


def test_is_dask_rejects_other_types():
    assert not any(map(is_dask, ([], [1.0], np.ones(3), [[1.0]], "text", None, ())))
    np.testing.assert_array_equal(to_local_array([1.0, 2.0]), [1.0, 2.0])


@slow
def test_copies_share_the_client(client):
    remote = DaskExecutor(client, ordered=False)
    for other in (copy.copy(remote), copy.deepcopy(remote)):
        assert other.client is client
        assert not other.ordered
    sent = pickle.loads(pickle.dumps(remote))
    assert client.scheduler.address in repr(sent)
    assert sent.place(shards()).map(size) == [1, 2, 3, 4, 5]
    sent.client.close()
    with client.as_current():
        assert DaskExecutor().client is client


@slow
def test_missing_client_raises():
    with pytest.raises(ValueError, match=r"there is no Dask client: start one.*or give it to DaskExecutor"):
        DaskExecutor().place(shards())


@slow
def test_shards_on_workers_cannot_be_copied(placed):
    for again in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"cannot be copied: copy the settings, DaskExecutor\('tcp"):
            again(placed)
    assert placed.map(size) == [1, 2, 3, 4, 5]


# ---------------------------------------------------------------- contract and identical results
@slow
def test_contract(client):
    check_executor(DaskExecutor(client))


@slow
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    ("solver", "loss"), [(Bundle(), Hinge()), (Lbfgs(), Logistic()), (Bundle(), RocArea())], ids=repr
)
def test_fits_are_bitwise_equal_to_serial(client, solver, loss, intercept):
    X, y = data()
    X = sp.csr_array(np.where(np.abs(X) > 0.8, X, 0.0)) if intercept else X
    one, two = (
        minimize(
            Objective(
                linear_risk(X, y, loss, fit_intercept=intercept, executor=executor, n_shards=4), L2(), 0.1
            ),
            solver,
            tol=1e-4,
        )
        for executor in (Serial, DaskExecutor(client))
    )
    assert one.status == "converged"
    assert (one.value, one.lower) == (two.value, two.lower)
    np.testing.assert_array_equal(one.w, two.w)
    assert [row["value"] for row in one.trace] == [row["value"] for row in two.trace]


@slow
def test_unordered_sums_differ_by_rounding_only(client):
    X, y = data()
    w = np.random.default_rng(1).standard_normal(X.shape[1])
    value, grad = linear_risk(X, y, Logistic(), n_shards=7)(w)
    result = linear_risk(X, y, Logistic(), n_shards=7, executor=DaskExecutor(client, ordered=False))(w)
    assert result[0] == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(result[1], grad, rtol=1e-12, atol=1e-15)


# ---------------------------------------------------------------- messages
@slow
@pytest.mark.parametrize("n", [0, 1, 2**13, 10**6])
def test_messages_of_every_size(placed, n):
    thing = {"a": np.arange(n, dtype=float), "b": [np.asfortranarray(np.ones((3, n))), "text"]}
    for reply in placed.map(echo, thing):
        np.testing.assert_array_equal(reply["a"], thing["a"])
        np.testing.assert_array_equal(reply["b"][0], thing["b"][0])
        assert reply["a"].flags.writeable


@slow
def test_long_arguments_are_scattered(placed, monkeypatch):
    monkeypatch.setattr("riskmin.executors.dask.placed_shards.LIMITS", replace(LIMITS, scatter_above_bytes=0))
    for reply in placed.map(echo, np.arange(10_000.0)):
        np.testing.assert_array_equal(reply, np.arange(10_000.0))

    def failing_scatter(*_, **__):
        raise OSError("a worker died during the scatter")

    monkeypatch.setattr(placed.client, "scatter", failing_scatter)
    assert placed.map(echo, 1.0) == [1.0] * 5


@slow
def test_each_shard_gets_its_argument_on_its_worker(placed):
    assert placed.map(echo, each=list("abcde")) == list("abcde")
    processes = placed.map(pids)
    assert len(set(processes)) == 2
    assert placed.map(pids) == processes
    assert os.getpid() not in processes


# ---------------------------------------------------------------- Dask collections
def frames(X, cut=(70, 70, 150)):
    import pandas as pd

    columns = [f"c{k}" for k in range(X.shape[1])]
    return [pd.DataFrame(part, columns=columns) for part in np.split(X, cut)]


def sent(client, things):
    """Scatter with unique keys: with hashed keys, Dask confuses data sent again with data being released."""
    return client.scatter(things, hash=False)


def collections(X, client):
    """The rows of X in every kind of Dask collection; the data frames have one empty part."""
    import dask
    import dask.array
    import dask.dataframe

    pieces = [dask.delayed(lambda frame=frame: frame)() for frame in frames(X)]
    unknown = dask.dataframe.from_delayed(pieces, meta=frames(X)[0].iloc[:0], verify_meta=False)
    halves = np.split(X, [90])
    return {
        "array": dask.array.from_array(X, chunks=(70, 4)),
        "frame": unknown,
        "delayed": [dask.delayed(sp.csr_array)(half) for half in halves],
        "futures": sent(client, halves),
        "frames": sent(client, frames(X)),
        "future": sent(client, [X])[0],
    }


@slow
@pytest.mark.filterwarnings("ignore:Sending large graph")
def test_fits_of_dask_collections(client):
    X, y = data()
    expected = minimize(Objective(linear_risk(X, y, Logistic()), L2(), 0.1), Lbfgs(), tol=1e-6)
    executor = DaskExecutor(client)
    for name, thing in collections(X, client).items():
        assert is_dask(thing)
        remote = executor.partition(thing)
        assert isinstance(remote, PartitionedMatrix)
        assert remote.shape == X.shape
        assert remote.sparse == (name == "delayed")
        columns = [part.columns for part in remote.parts]
        assert set(columns) == {tuple(frames(X)[0]) if name.startswith("frame") else None}
        assert all(part.shape[0] for part in remote.parts)
        result = minimize(Objective(linear_risk(remote, y, Logistic()), L2(), 0.1), Lbfgs(), tol=1e-6)
        assert result.status == "converged"
        assert result.value == pytest.approx(expected.value, rel=2e-6)
        whole = remote.whole()  # all rows, in order, in this process
        np.testing.assert_array_equal(whole.toarray() if sp.issparse(whole) else whole, X)


def address_of(array):
    return os.getpid(), array.__array_interface__["data"][0]


def address_of_rows(shard):
    return address_of(shard.X.X)


@slow
def test_rows_on_a_worker_are_not_copied(client):
    X, y = data()
    futures = sent(client, np.split(X, [50, 100, 150]))
    risk = linear_risk(DaskExecutor(client).partition(futures), y, Hinge())
    remote = client.gather([client.submit(address_of, future) for future in futures])
    assert risk.executor.map(address_of_rows) == remote


@slow
def test_labels_are_gathered(client):
    import dask.array
    import dask.dataframe

    y = np.arange(10.0)
    with client.as_current():
        for thing in (
            dask.array.from_array(y, chunks=3),
            dask.dataframe.from_pandas(frames(y[:, None], ())[0], npartitions=2),
            dask.dataframe.from_pandas(frames(y[:, None], ())[0], npartitions=2)["c0"],
            sent(client, [y])[0],
            list(sent(client, np.split(y, 2))),
        ):
            np.testing.assert_array_equal(to_local_array(thing), y)
    np.testing.assert_array_equal(to_local_array(sent(client, [y]), client), y)


@slow
def test_inconsistent_parts_raise(client):
    partition = DaskExecutor(client).partition
    X, _ = data()
    wrong = frames(X)
    wrong[2] = wrong[2].rename(columns={"c1": "d"})
    with pytest.raises(ValueError, match=r"part 2 of X has the columns c0, d, .* but part 0 has .* c0, c1"):
        partition(sent(client, wrong))
    wrong[2] = wrong[0].assign(c1="text")
    with pytest.raises(ValueError, match=r"part 2 of X: column 'c1' holds .*, not numbers"):
        partition(sent(client, wrong))
    with pytest.raises(ValueError, match="part 1 of X has 5 columns, but part 0 has 6 columns: give"):
        partition(sent(client, [X, X[:, :5]]))
    with pytest.raises(ValueError, match="part 1 of X has 1 dimensions"):
        partition(sent(client, [X, X[0]]))
    with pytest.raises(TypeError, match="X is a ndarray, no collection of Dask"):
        partition(X)
    with pytest.raises(ValueError, match=r"part 1 of X: .*NaN"):
        linear_risk(partition(sent(client, [X, X * np.nan])), np.tile([1.0, -1.0], 200), Hinge())


def read(path):
    """Read a file on a worker: rows and labels."""
    with np.load(path) as file:
        return {"X": file["X"], "y": file["y"]}


def rows(content):
    return content["X"]


def shape_and_labels(content):
    return content["X"].shape, content["y"]


@slow
def test_files_are_read_by_the_workers(client, tmp_path):
    X, y = data()
    for k, index in enumerate(np.split(np.arange(200), 4)):
        np.savez(tmp_path / f"{k}.npz", X=X[index], y=y[index])
    paths = sorted(str(path) for path in tmp_path.glob("*.npz"))
    executor = DaskExecutor(client)
    handles = executor.persist(read, paths)
    described = executor.apply(handles, shape_and_labels)
    parts = [
        executor.part(handle, path, shape, shape[0] * shape[1], False, rows)
        for handle, path, (shape, _) in zip(handles, paths, described, strict=True)
    ]
    remote = linear_risk(
        PartitionedMatrix(parts, executor), np.concatenate([labels for _, labels in described]), Hinge()
    )
    assert len(set(remote.executor.map(pids))) == 2  # both workers read files
    local = linear_risk(X, y, Hinge(), n_shards=4)
    w = np.ones(X.shape[1])
    assert remote(w)[0] == local(w)[0]
    np.testing.assert_array_equal(remote(w)[1], local(w)[1])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        executor.apply(executor.persist(read, ["nowhere.npz"]), shape_and_labels)


# ---------------------------------------------------------------- errors
@slow
@pytest.mark.parametrize("failing_size", [1, 5, -1])
def test_exceptions_keep_their_type(placed, failing_size):
    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            placed.map(fail, failing_size)
        assert placed.map(size) == [1, 2, 3, 4, 5]


@slow
@pytest.mark.parametrize(("f", "message"), [(need, "helpers.Needy: bread"), (stick, "helpers.Stuck: in")])
def test_unpicklable_exceptions_are_described(placed, f, message):
    with pytest.raises(RuntimeError, match=f"raised {message}") as caught:
        placed.map(f)
    assert f"in {f.__name__}\n" in str(caught.value)  # the function that raised
    assert placed.map(size) == [1, 2, 3, 4, 5]


@slow
def test_workers_survive_unpicklable_messages(placed):
    with pytest.raises(TypeError, match="pickle"):
        placed.map(locked)
    with pytest.raises(ImportError, match="no such module here"):
        placed.map(echo, Trap(os.getpid()))
    with pytest.raises(ImportError, match="no such module here"):
        placed.map(trapped, os.getpid())
    assert placed.map(size) == [1, 2, 3, 4, 5]


def locked(shard):
    return threading.Lock()


def trapped(shard, pid):
    return Trap(os.getpid())


@slow
def test_ctrl_c_during_a_call_leaves_workers_usable(placed):
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            placed.map(interrupt, os.getpid())
        assert placed.map(size) == [1, 2, 3, 4, 5]


@slow
def test_closed_shards_raise(client):
    remote = DaskExecutor(client).place(shards())
    remote.close()
    with pytest.raises(RuntimeError, match="were closed: make the risk anew"):
        remote.map(size)


def set_version(version):
    riskmin.__version__ = version


def hide(hidden):
    """Make the library importable on a worker, or not."""
    name = "riskmin.executors.dask.worker_tasks"
    if hidden:
        sys.modules["hidden"], sys.modules[name] = sys.modules[name], None
    else:
        sys.modules[name] = sys.modules.pop("hidden")


@slow
def test_worker_of_another_version_raises(client):
    victim = list(client.nthreads())[-1]
    client.run(set_version, "0.0.9", workers=[victim])
    try:
        with pytest.raises(RuntimeError, match=f"{victim} has riskmin 0.0.9, but the client has {VERSION}"):
            DaskExecutor(client).place(shards())
    finally:
        client.run(set_version, VERSION, workers=[victim])
    client.run(hide, True, workers=[victim])
    try:
        with pytest.raises(RuntimeError, match=f"{victim} cannot run riskmin .*: install it there"):
            DaskExecutor(client).place(shards())
    finally:
        client.run(hide, False, workers=[victim])
    assert DaskExecutor(client).place(shards()).map(size) == [1, 2, 3, 4, 5]


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


@pytest.mark.exhaustive
def test_rounds_and_fits_leak_nothing(client, placed):
    X, y = data()
    placed.map(echo, 1.0)
    before = stable_counts(client)
    for _ in range(150):
        placed.map(echo, 1.0)
    for _ in range(5):
        minimize(
            Objective(linear_risk(X, y, Hinge(), executor=DaskExecutor(client)), L2(), 0.1),
            Bundle(),
            tol=1e-2,
        )
    assert stable_counts(client) == before


# ---------------------------------------------------------------- TLS
def certificates(folder):
    """Write a self-signed CA certificate, and a key and a certificate signed by it; paths by setting."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))

    def issue(name, issuer=None):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        by, signer = issuer or (subject, key)
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        )
        certificate = builder.sign(signer, hashes.SHA256())
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        raw = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{name}-key.pem").write_bytes(raw)
        return subject, key

    issue("node", issue("ca"))
    return {f"tls_{role}_{what}": str(folder / f"node{end}.pem")
            for role in ("client", "scheduler", "worker")
            for what, end in (("cert", ""), ("key", "-key"))}  # fmt: skip


@slow
@pytest.mark.parametrize("temporary", [True, False])
def test_tls_cluster_refuses_clients_without_certificate(tmp_path, temporary):
    from distributed import Client, LocalCluster
    from distributed.security import Security

    if temporary:
        security = Security.temporary()
    else:
        security = Security(
            tls_ca_file=str(tmp_path / "ca.pem"), require_encryption=True, **certificates(tmp_path)
        )
    cluster = LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0", security=security,
        silence_logs=50,
    )  # fmt: skip
    with cluster, Client(cluster.scheduler_address, security=security, set_as_default=False) as client:
        for address in (cluster.scheduler_address, cluster.scheduler_address.replace("tls", "tcp")):
            with pytest.raises(ConnectionError, match=r"no Dask scheduler answers at .* the certificates"):
                DaskExecutor(address).place(shards())
        X, y = data()
        remote = linear_risk(X, y, Hinge(), executor=DaskExecutor(client), n_shards=3)
        local = linear_risk(X, y, Hinge(), n_shards=3)
        np.testing.assert_array_equal(remote(np.ones(6))[1], local(np.ones(6))[1])
