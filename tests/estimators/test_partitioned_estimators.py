"""Estimators with remote rows: the same models from partitions in memory, in processes and on Dask."""

import os
import pickle
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from riskmin import (
    ChainTagger,
    HierarchicalClassifier,
    InMemoryPartition,
    KernelClassifier,
    LinearClassifier,
    LinearClassifierCV,
    LinearRanker,
    LinearRegressor,
    LinearRegressorCV,
    NoveltyDetector,
    OrdinalClassifier,
    PartitionedMatrix,
    Processes,
    Serial,
    Threads,
    load_model,
)
from riskmin.executors.base import Executor, call_arguments

N, P = 120, 4
ENDS = [0, 30, 90, 120]


class RemoteExecutor(Executor):
    """An executor with remote shards: arguments are pickled, and the rows are not accessible locally."""

    def __init__(self, shards=()):
        self.shards = [pickle.loads(pickle.dumps(shard)).load() for shard in shards]

    def __call__(self, shards):
        return RemoteExecutor(shards)

    def map(self, f, *args, each=()):
        todo = pickle.loads(pickle.dumps(call_arguments(len(self.shards), args, each)))
        return [f(shard, *one) for shard, one in zip(self.shards, todo, strict=True)]


def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, P))
    return X, X @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=N)


def partitioned(X, executor=None, ends=ENDS):
    parts = [InMemoryPartition(X[i:j], f"part {k}") for k, (i, j) in enumerate(pairwise(ends))]
    return PartitionedMatrix(parts, executor)


X, Z = rows()
GRADE, HIGH = np.digitize(Z, [-1, 1]), Z > 0.5
SOME = np.random.default_rng(1).integers(0, 3, N).astype(float)
"""Weights, of which some are zero."""
QID, LENGTHS = np.repeat(np.arange(N // 10), 10), np.full(N // 10, 10)
KINDS = np.array(["a/b", "a/c", "d"])[GRADE]

CASES = {
    "hinge": (LinearClassifier(alpha=1e-2), HIGH, {}),
    "probabilities": (LinearClassifier("logistic", alpha=1e-2), HIGH, {"sample_weight": SOME}),
    "classes": (LinearClassifier("logistic", alpha=1e-2), KINDS, {}),
    "balanced classes": (LinearClassifier(alpha=1e-1, class_weight="balanced"), GRADE, {}),
    "cut": (LinearClassifier("f1", alpha=1e-1), HIGH, {}),
    "counted": (LinearClassifier("prbep", alpha=1e-1), HIGH, {"sample_weight": np.minimum(SOME, 1)}),
    "squares": (LinearRegressor(alpha=1e-2), Z, {"sample_weight": SOME}),
    "outputs together": (LinearRegressor(alpha=1e-2), np.c_[Z, -Z], {}),
    "outputs apart": (LinearRegressor("absolute", alpha=1e-2), np.c_[Z, -Z], {}),
    "l1": (LinearRegressor("huber", alpha=1e-2, regularizer="l1"), Z, {}),
    "novelty": (NoveltyDetector(alpha=1e-2), None, {"sample_weight": SOME}),
    "grades": (OrdinalClassifier(alpha=1e-1), GRADE, {"sample_weight": SOME}),
    "grades as numbers": (OrdinalClassifier("squared", alpha=1e-2), GRADE, {}),
    "ranking": (LinearRanker("ndcg", alpha=1e-1), GRADE, {"qid": QID}),
    "hierarchy": (HierarchicalClassifier("softmax", alpha=1e-2), KINDS, {"sample_weight": SOME}),
    "tagging": (ChainTagger(alpha=1e-1), GRADE, {"lengths": LENGTHS}),
}
FITTED = (
    "classes_",
    "coef_",
    "intercept_",
    "threshold_",
    "thresholds_",
    "offset_",
    "n_queries_",
    "objective_",
)
PREDICTION_METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "score_samples")
each_case = pytest.mark.parametrize("case", CASES)


def fit(case, X, wrap=np.asarray, **settings):
    """The fitted model of a case, with labels, weights and ids converted by `wrap`."""
    model, y, more = CASES[case]
    return (
        clone(model)
        .set_params(**settings)
        .fit(X, None if y is None else wrap(y), **{k: wrap(v) for k, v in more.items()})
    )


def same(one, other):
    """Check that all fitted attributes are bitwise equal."""
    names = [name for name in FITTED if hasattr(one, name)]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def check_same_predictions(case, model, remote_rows, wrap=np.asarray):
    """Check that predictions and scores of remote rows equal those of local rows."""
    _, y, more = CASES[case]
    lengths = {k: v for k, v in more.items() if k == "lengths"}
    for name in (name for name in PREDICTION_METHODS if hasattr(model, name)):
        local, remote = getattr(model, name)(X, **lengths), getattr(model, name)(remote_rows, **lengths)
        assert type(remote) is np.ndarray
        assert np.array_equal(local, remote) or np.allclose(local, remote, rtol=1e-12, atol=1e-12), name
    if y is not None:
        remote = model.score(remote_rows, wrap(y), **{k: wrap(v) for k, v in more.items()})
        assert np.isclose(model.score(X, y, **more), remote, rtol=1e-12)


# ---------------------------------------------------------------- local partitions
@each_case
def test_gathered_rows_give_bitwise_equal_models(case):
    whole = fit(case, X)
    for executor in (None, Serial) if case != "classes" else (Threads(n_workers=2), Threads):
        assert same(whole, fit(case, partitioned(X, executor)))


@each_case
def test_remote_rows_give_certified_models(case):
    local, remote = fit(case, X), fit(case, partitioned(X, RemoteExecutor()))
    assert remote.result_.status == "converged"
    assert abs(remote.objective_ - local.objective_) <= max(local.gap_, remote.gap_) + 1e-12
    assert remote.n_samples_fit_ == local.n_samples_fit_
    assert remote.n_features_in_ == P
    assert remote.weighted_ == local.weighted_
    check_same_predictions(case, remote, partitioned(X, RemoteExecutor()))


@pytest.mark.parametrize("case", ["counted", "grades", "hierarchy"])
def test_rows_without_weight_have_no_effect(case):
    class Table:
        """A table of which any range of rows is a partition."""

        def part(self, start, stop):
            return InMemoryPartition(X[start:stop])

        def whole(self):
            return X

    model, y, more = CASES[case]
    weight = more["sample_weight"].copy()
    weight[:30] = 0  # a partition without remaining rows
    keep = weight > 0
    ends = [0, int(keep[:90].sum()), int(keep.sum())]
    less = clone(model).fit(partitioned(X[keep], RemoteExecutor(), ends), y[keep], weight[keep])
    assert same(less, clone(model).fit(partitioned(X, RemoteExecutor()), y, weight))
    whole = clone(model).fit(X, y, weight)
    assert same(
        whole, clone(model).fit(PartitionedMatrix([InMemoryPartition(X)], Serial(), Table()), y, weight)
    )
    again = clone(model).fit(PartitionedMatrix([InMemoryPartition(X)], RemoteExecutor(), Table()), y, weight)
    assert abs(again.objective_ - whole.objective_) <= max(again.gap_, whole.gap_)


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_array, np.float32, "frame"])
def test_formats_of_partitions(form):
    pandas = pytest.importorskip("pandas")
    make = (lambda X: pandas.DataFrame(X, columns=list("abcd"))) if form == "frame" else form
    parts = PartitionedMatrix(
        [InMemoryPartition(make(X[:50])), InMemoryPartition(make(X[50:]))], RemoteExecutor()
    )
    model = LinearClassifier(alpha=1e-2).fit(parts, HIGH)
    whole = LinearClassifier(alpha=1e-2).fit(make(X), HIGH)
    assert abs(model.objective_ - whole.objective_) <= max(model.gap_, whole.gap_)
    assert list(getattr(model, "feature_names_in_", [])) == (list("abcd") if form == "frame" else [])
    assert np.allclose(model.decision_function(parts), model.decision_function(make(X)), rtol=1e-6)
    if form == "frame":
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(PartitionedMatrix([InMemoryPartition(make(X)[list("dcba")])], RemoteExecutor()))


def test_model_keeps_no_reference_to_the_rows():
    model = LinearClassifier("f1", alpha=1e-1).fit(partitioned(X, RemoteExecutor()), HIGH)
    assert len(pickle.dumps(model)) < X.nbytes
    assert same(model, pickle.loads(pickle.dumps(model)))


def test_errors():
    model, parts = LinearClassifier(alpha=1e-2), partitioned(X, RemoteExecutor())
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[120, 119\]"):
        model.fit(parts, HIGH[:-1])
    with pytest.raises(ValueError, match="requires y to be passed"):
        model.fit(parts, None)
    with pytest.raises(ValueError, match="sample_weight has shape"):
        model.fit(parts, HIGH, np.ones(3))
    with pytest.raises(ValueError, match="only one class"):
        model.fit(parts, np.ones(N))
    bad = X.copy()
    bad[95, 2] = np.nan
    with pytest.raises(ValueError, match=r"part 2: .*NaN"):
        model.fit(partitioned(bad, RemoteExecutor()), HIGH)
    model.fit(parts, HIGH)
    with pytest.raises(ValueError, match="X has 3 features, but LinearClassifier is expecting 4"):
        model.predict(partitioned(X[:, :3], RemoteExecutor()))
    with pytest.raises(ValueError, match="too large to score"):
        model.decision_function(partitioned(1e308 * np.sign(X) * np.sign(model.coef_), RemoteExecutor()))
    with pytest.raises(ValueError, match="minimum of 2"):
        LinearRanker().fit(partitioned(X[:1], RemoteExecutor(), [0, 1]), [1.0], qid=[0])
    with pytest.raises(ValueError, match="ends within a sequence"):
        ChainTagger().fit(partitioned(X, RemoteExecutor(), [0, 35, N]), GRADE, lengths=LENGTHS)


@pytest.mark.parametrize("model", [LinearClassifierCV(), LinearRegressorCV(), KernelClassifier()])
def test_estimators_that_need_all_rows_raise(model):
    with pytest.raises(ValueError, match=r"needs all rows in this process: give X\.whole\(\)"):
        model.fit(partitioned(X, RemoteExecutor()), HIGH.astype(float))


# ---------------------------------------------------------------- other processes
@pytest.mark.exhaustive
def test_processes_give_bitwise_equal_models():
    executor = Processes(n_workers=2)  # each call starts new processes, which takes most of the time
    model = fit("counted", partitioned(X, executor))
    assert same(model, fit("counted", partitioned(X, RemoteExecutor())))
    assert np.array_equal(model.predict(X), model.predict(partitioned(X, executor)))


@pytest.fixture(scope="module")
def client():
    """A cluster of two workers, each a process."""
    distributed = pytest.importorskip("distributed")
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.slow
def test_dask_arrays_give_bitwise_equal_models(client):
    import dask.array as da

    def as_dask(thing):
        return da.from_array(np.asarray(thing), chunks=(40, *np.shape(thing)[1:]))

    rows = da.from_array(X, chunks=((30, 60, 30), (2, 2)))  # the rows are split as in ENDS
    for case in ("classes", "counted", "outputs together", "novelty", "grades", "ranking", "tagging"):
        wrap = np.asarray if case == "tagging" else as_dask
        model = fit(case, rows, wrap, tol=0.1)  # a hundred times smaller tol takes twice the rounds
        assert same(model, fit(case, partitioned(X, RemoteExecutor()), tol=0.1)), case
        if case in ("classes", "novelty", "ranking", "tagging"):
            check_same_predictions(case, model, rows, wrap)


@pytest.mark.exhaustive
def test_feature_names_of_dask_frames(client):
    pandas = pytest.importorskip("pandas")
    import dask.dataframe as dd

    frame = pandas.DataFrame(X, columns=list("abcd")).assign(y=np.where(HIGH, "high", "low"), weight=SOME)
    table = dd.from_pandas(frame, npartitions=3)
    rows, y, weight = table[list("abcd")], table["y"], table["weight"]
    remote = partitioned(X, RemoteExecutor(), [0, *np.cumsum(table.map_partitions(len).compute())])
    model = LinearClassifier("roc_area", alpha=1e-1).fit(rows, y, weight)
    assert same(model, LinearClassifier("roc_area", alpha=1e-1).fit(remote, frame["y"], SOME))
    assert model.feature_names_in_.tolist() == list("abcd")
    assert model.classes_.tolist() == ["high", "low"]
    assert np.array_equal(model.predict(rows), model.predict(frame[list("abcd")]))
    assert model.score(rows, y, weight) == model.score(frame[list("abcd")], frame["y"], SOME)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(rows[list("bacd")])
    with pytest.raises(ValueError, match="column 'y' holds"):
        model.fit(table, y)


@pytest.mark.exhaustive
def test_dask_standardizes(client):
    import dask.array as da

    far = X * [1.0, 1e4, 1e-3, 1.0] + [0.0, 1e6, 0.0, 5.0]
    settings = {"alpha": 1e-2, "standardize": True, "class_weight": "balanced", "tol": 1e-6}
    model = LinearClassifier("logistic", **settings).fit(da.from_array(far, chunks=(40, P)), HIGH, SOME)
    local = LinearClassifier("logistic", **settings).fit(far, HIGH, SOME)
    assert np.allclose(model.scale_, local.scale_, rtol=1e-12)
    assert np.isclose(model.objective_, local.objective_, rtol=1e-5)


@pytest.mark.exhaustive
def test_dask_in_a_pipeline(client):
    import dask.array as da

    rows = da.from_array(X, chunks=(40, P))
    scale = FunctionTransformer(lambda X: X / 2)  # any function that Dask applies per partition
    model = make_pipeline(scale, LinearRegressor(alpha=1e-2)).fit(rows, da.from_array(Z, chunks=40))
    local = LinearRegressor(alpha=1e-2).fit(X / 2, Z)
    assert np.allclose(model[-1].coef_, local.coef_, rtol=1e-9)
    assert np.isclose(model.score(rows, Z), local.score(X / 2, Z))


# ---------------------------------------------------------------- the command
@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """One table as a file, as three files, and as stored data."""
    from riskmin.data import convert

    folder = tmp_path_factory.mktemp("tables")
    words = np.where(HIGH, "high", "low")
    lines = [",".join([*map(repr, x), word]) + "\n" for x, word in zip(X.tolist(), words, strict=True)]
    spans = {f"part{k}": span for k, span in enumerate(pairwise(ENDS))}
    for name, (i, j) in {"all": (0, N), **spans}.items():
        (folder / f"{name}.csv").write_text("a,b,c,d,label\n" + "".join(lines[i:j]))
    (folder / "other.csv").write_text("a,b,z,d,label\n" + "".join(lines[:5]))
    convert(folder / "all.csv", folder / "all.rsk")
    return folder


@pytest.fixture
def parts(tables):
    return [tables / f"part{k}.csv" for k in range(len(ENDS) - 1)]


def weights(path):
    model = load_model(path)
    return {name: getattr(model, name) for name in FITTED if hasattr(model, name)}


def alike(one, other):
    one, other = weights(one), weights(other)
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def test_several_files_as_one_table(tables, parts, tmp_path, run):
    for name, data in {"one": [tables / "all.csv"], "three": parts, "stored": [tables / "all.rsk"]}.items():
        code, out, err = run("fit", *data, "--loss", "f1", "--lam", 0.1, "-o", tmp_path / name)
        assert (code, err) == (0, "")
        title = {"one": "all.csv", "three": "part0.csv and 2 more", "stored": "all.rsk"}[name]
        assert out.startswith(f"f1 on {title}, 120 rows x 4 columns")
    assert alike(tmp_path / "one", tmp_path / "three")
    assert alike(tmp_path / "one", tmp_path / "stored")
    for data in ("all.csv", "all.rsk"):
        assert run("certify", tmp_path / "three", tables / data)[0] == 0
        assert run("evaluate", tmp_path / "three", tables / data)[0] == 0


def test_several_files_of_sentences(tmp_path, run):
    for name in ("one", "two"):
        (tmp_path / f"{name}.conll").write_text("the DT B-NP\ncat NN I-NP\n\nit PRP B-NP\nsleeps VBZ O\n")
    files = [tmp_path / "one.conll", tmp_path / "two.conll"]
    code, out, _ = run("fit", *files, "--loss", "chain_crf", "-o", tmp_path / "model")
    assert code == 0
    assert "4 sentences of 8 tokens" in out
    (tmp_path / "two.conll").write_text("the B-NP\n")
    code, _, err = run("fit", *files, "--loss", "chain_crf", "-o", tmp_path / "model")
    assert code == 2
    assert "two.conll" in err


NONE = "tcp://127.0.0.1:9"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dask", NONE, "--mpi"], "--dask and --mpi exclude each other"),
        (["--processes", 2, "--dask", NONE], "--processes and --dask exclude each other"),
        (["--processes", 2, "--jobs", 2], "--jobs is for threads of this process"),
        (["--dask", "scheduler"], "write tcp://HOST:PORT"),
        (["--tls-ca", "ca.pem"], "--tls-ca is for --dask tls://"),
        (["--dask", "tls://127.0.0.1:9", "--tls-key", "no.pem"], "there is no file no.pem"),
        (["--dask", "tls://127.0.0.1:9"], "needs certificates"),
        (["--processes", 2, "--loss", "chain_crf"], "a tagger extracts its features from all sentences"),
    ],
)
def test_invalid_options(options, words, tables, tmp_path, run):
    if "tls://127.0.0.1:9" in options:
        pytest.importorskip("distributed")
    code, out, err = run("fit", tables / "all.csv", *options, "-o", tmp_path / "model")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


@pytest.mark.parametrize("kind", ["dask", "mpi"])
def test_missing_packages_are_named(kind, tables, tmp_path, run, monkeypatch):
    monkeypatch.setitem(sys.modules, {"dask": "distributed", "mpi": "mpi4py"}[kind], None)
    options = {"dask": ["--dask", NONE], "mpi": ["--mpi"]}[kind]
    code, _, err = run("fit", tables / "all.csv", *options, "-o", tmp_path / "model")
    assert (code, err.count("\n")) == (2, 1)
    assert f"pip install 'riskmin[{kind}]'" in err


def test_worker_out_of_memory_is_named(tables, tmp_path, run, monkeypatch):
    from riskmin.cli import backends
    from riskmin.executors.dask.cluster import DaskCluster, WorkerStatus

    class Client:
        scheduler = None

    def full(given, stack):
        return DaskCluster(Client(), -1.0).check_not_paused("tcp://north:1", WorkerStatus(False, True, True))

    monkeypatch.setattr(backends, "_executor", full)
    code, _, err = run("fit", "--processes", 2, tables / "all.csv", "-o", tmp_path / "model")
    assert (code, err.count("\n")) == (2, 1)
    assert "the Dask worker tcp://north:1 is paused" in err


def test_files_with_other_columns_are_named(tables, parts, tmp_path, run):
    code, _, err = run("fit", *parts, tables / "other.csv", "-o", tmp_path / "model")
    assert (code, err.count("\n")) == (2, 1)
    assert "other.csv: its column 'z' is where" in err
    assert not (tmp_path / "model").exists()


@pytest.mark.exhaustive
def test_command_on_dask(client, tables, tmp_path, run):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_csv(tables / "all.csv")
    files = [tmp_path / f"{k}.parquet" for k in range(3)]
    for file, (i, j) in zip(files, pairwise(ENDS), strict=True):
        frame[i:j].to_parquet(file)
    frame.rename(columns={"a": "z"}).to_parquet(tmp_path / "other.parquet")

    def fit(name, *options, data=files):
        fixed = ["--dask", client.scheduler.address, "--loss", "f1", "--lam", 0.1]
        return run("fit", *fixed, *data, "-o", tmp_path / name, *options)

    code, out, err = fit("whole", "--report", tmp_path / "page.html", "--quiet")
    assert (code, out, err) == (0, "", "")
    assert (tmp_path / "page.html").exists()
    assert run("certify", tmp_path / "whole", tables / "all.csv")[0] == 0
    save = ["--checkpoint", tmp_path / "run.ckpt", "--checkpoint-every", 0, "--quiet"]
    assert fit("again", *save, "--max-iter", 3)[0] == 3
    assert fit("again", *save)[0] == 0
    one, two = load_model(tmp_path / "whole"), load_model(tmp_path / "again")
    assert two.n_iter_ > 3
    assert abs(one.objective_ - two.objective_) <= max(one.gap_, two.gap_)
    assert fit("stored", data=[tables / "all.rsk"])[0] == 0
    assert run("certify", tmp_path / "stored", tables / "all.rsk")[0] == 0
    code, _, err = fit("none", data=[*files, tmp_path / "other.parquet"])
    assert (code, err.count("\n")) == (2, 1)
    assert "other.parquet: its column 'z' is where" in err
    code, _, err = fit("none", data=[files[0], tmp_path / "missing.parquet"])
    assert (code, err.count("\n")) == (2, 1)
    assert "missing.parquet" in err


@pytest.mark.exhaustive
def test_command_on_dask_with_tls(tables, parts, tmp_path, run):
    distributed = pytest.importorskip("distributed")
    pytest.importorskip("cryptography")
    safe = distributed.Security.temporary()
    settings = {"n_workers": 1, "processes": False, "dashboard_address": ":0", "protocol": "tls://"}
    files = {"ca": safe.tls_ca_file, "cert": safe.tls_client_cert, "key": safe.tls_client_key}
    for name, text in files.items():
        (tmp_path / f"{name}.pem").write_text(text)
    options = [word for name in files for word in (f"--tls-{name}", tmp_path / f"{name}.pem")]
    with distributed.LocalCluster(security=safe, **settings) as cluster:
        address = cluster.scheduler_address
        code, _, err = run("fit", "--dask", address, *options, *parts, "-o", tmp_path / "model", "--quiet")
        assert (code, err) == (0, "")
    assert run("certify", tmp_path / "model", tables / "all.csv")[0] == 0


@pytest.mark.slow
def test_command_on_mpi_ranks(tables, tmp_path, run):
    pytest.importorskip("mpi4py")
    if shutil.which("mpiexec", path=Path(sys.executable).parent) is None:
        pytest.skip("no mpiexec beside this Python")

    def fit(data, name, *options):
        arguments = ["--loss", "f1", "--lam", "0.1", "-o", str(tmp_path / name), *options]
        command = ["mpiexec", "-n", "2", "riskmin", "fit", "--mpi", str(tables / data), *arguments]
        places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return subprocess.run(
            command, env=os.environ | {"PATH": places}, capture_output=True, text=True, timeout=120
        )

    checkpoint = ["--checkpoint", str(tmp_path / "run.ckpt"), "--checkpoint-every", "0"]
    completed = fit("all.rsk", "ranks", "--standardize", *checkpoint)
    assert completed.returncode == 0, completed.stderr
    assert "divided by their standard deviations" in completed.stdout
    assert (
        completed.stdout.count("  objective ") == completed.stdout.count("f1 on all.rsk") == 1
    )  # printed by one rank only
    assert run("certify", tmp_path / "ranks", tables / "all.rsk")[0] == 0
    assert (tmp_path / "run.ckpt").exists()
    completed = fit("other.csv", "none", "--target", "nothing")
    assert (completed.returncode, completed.stderr.count("riskmin:")) == (2, 1), completed.stderr
    assert "there is no column 'nothing'" in completed.stderr
