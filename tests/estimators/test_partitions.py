"""Rows in partitions: models of processes and of Dask, and tables in several files for the command.

The contract of estimators says that models of partitions are those of all rows.
"""

import os
import pickle
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import estimator_cases as cases
import numpy as np
import pandas as pd
import pytest
from estimator_cases import CASES, ENDS, HIGH, WEIGHT, N, P, X, Z
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import riskmin as rm
from helpers import check_sentence


class Table:
    """A table of which any range of rows is a partition."""

    def part(self, start, stop):
        return rm.InMemoryPartition(X[start:stop])

    def whole(self):
        return X


@pytest.mark.parametrize("name", ["counted", "grades", "tree"])
def test_ranges_of_a_table_are_partitions(name):
    rows = [
        rm.PartitionedMatrix([rm.InMemoryPartition(X)], executor, Table())
        for executor in (rm.Serial(), cases.RemoteExecutor())
    ]
    cases.assert_same_attributes(cases.fitted(name), CASES[name].fit(rows[0]))
    cases.close_minima(cases.fitted(name), CASES[name].fit(rows[1]))


def test_a_model_keeps_no_reference_to_the_rows():
    wide = np.tile(X, (20, 1))
    model = clone(CASES["area"].model).fit(
        cases.partitioned(wide, cases.RemoteExecutor(), [0, 600, 1200]), np.tile(HIGH, 20)
    )
    assert len(pickle.dumps(model)) < wide.nbytes / 2


# ---------------------------------------------------------------- Dask
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
        return da.from_array(np.asarray(thing), chunks=(20, *np.shape(thing)[1:]))

    rows = da.from_array(X, chunks=(tuple(np.diff(ENDS)), (2, 2)))
    for name in ("classes", "counted", "novelty", "grades", "ranking", "tagging"):
        wrap = np.asarray if name == "tagging" else as_dask
        # a hundred times smaller tol takes twice the rounds
        model = CASES[name].fit(rows, wrap, tol=0.1)
        cases.assert_same_attributes(
            model, CASES[name].fit(cases.partitioned(X, cases.RemoteExecutor()), tol=0.1)
        )
        if name in ("classes", "ranking", "tagging"):
            cases.assert_same(
                cases.outputs(name, model), cases.outputs(name, model, rows), rtol=1e-12, atol=1e-12
            )


@pytest.mark.exhaustive
def test_dask_frames_and_pipelines(client):
    import dask.array as da
    import dask.dataframe as dd

    frame = pd.DataFrame(X, columns=list("abcd")).assign(y=np.where(HIGH, "high", "low"), weight=WEIGHT)
    table = dd.from_pandas(frame, npartitions=3)
    rows, y, weight = table[list("abcd")], table["y"], table["weight"]
    remote = cases.partitioned(
        X, cases.RemoteExecutor(), [0, *np.cumsum(table.map_partitions(len).compute())]
    )
    model = rm.LinearClassifier("roc_area", alpha=1e-1).fit(rows, y, weight)
    same = rm.LinearClassifier("roc_area", alpha=1e-1).fit(remote, frame["y"], WEIGHT)
    np.testing.assert_array_equal(model.coef_, same.coef_)
    assert model.feature_names_in_.tolist() == list("abcd")
    assert model.classes_.tolist() == ["high", "low"]
    np.testing.assert_array_equal(model.predict(rows), model.predict(frame[list("abcd")]))
    assert model.score(rows, y, weight) == model.score(frame[list("abcd")], frame["y"], WEIGHT)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(rows[list("bacd")])
    with pytest.raises(ValueError, match="column 'y' holds"):
        model.fit(table, y)
    rows = da.from_array(X, chunks=(20, P))
    half = FunctionTransformer(lambda X: X / 2)  # any function that Dask applies per partition
    model = make_pipeline(half, rm.LinearRegressor(alpha=1e-2)).fit(rows, da.from_array(Z, chunks=20))
    local = rm.LinearRegressor(alpha=1e-2).fit(X / 2, Z)
    np.testing.assert_allclose(model[-1].coef_, local.coef_, rtol=1e-9)
    assert model.score(rows, Z) == pytest.approx(local.score(X / 2, Z))


# ---------------------------------------------------------------- the command
@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """One table as a file, as three files, and as stored data."""
    from riskmin.data import convert

    folder = tmp_path_factory.mktemp("tables")
    table = pd.DataFrame(X, columns=list("abcd")).assign(label=np.where(HIGH, "high", "low"))
    for name, (i, j) in zip(("all", "part0", "part1", "part2"), [(0, N), *pairwise(ENDS)], strict=True):
        table[i:j].to_csv(folder / f"{name}.csv", index=False)
    table[:5].rename(columns={"c": "z"}).to_csv(folder / "other.csv", index=False)
    convert(folder / "all.csv", folder / "all.rsk")
    return folder


@pytest.fixture
def parts(tables):
    return [tables / f"part{k}.csv" for k in range(len(ENDS) - 1)]


def test_several_files_are_one_table(tables, parts, tmp_path, run):
    titles = {"all.csv": [tables / "all.csv"], "part0.csv and 2 more": parts, "all.rsk": [tables / "all.rsk"]}
    for title, data in titles.items():
        code, out, err = run("fit", *data, "--loss", "f1", "--lam", 1.0, "-o", tmp_path / title)
        assert (code, err) == (0, "")
        assert out.startswith(f"f1 on {title}, {N} rows x 4 columns")
    first, *others = (rm.load_model(tmp_path / title) for title in titles)
    for other in others:
        for key in ("classes_", "coef_", "intercept_", "threshold_", "objective_", "lower_bound_"):
            np.testing.assert_array_equal(getattr(first, key), getattr(other, key))
    for data in ("all.csv", "all.rsk"):
        for command in ("certify", "evaluate"):
            assert run(command, tmp_path / "all.rsk", tables / data)[0] == 0


def test_several_files_of_sentences(tmp_path, run):
    files = [tmp_path / "one.conll", tmp_path / "two.conll"]
    for file in files:
        file.write_text("the DT B-NP\ncat NN I-NP\n\nit PRP B-NP\nsleeps VBZ O\n")
    fit = ("fit", *files, "--loss", "chain_crf", "-o", tmp_path / "model")
    code, out, _ = run(*fit)
    assert (code, "4 sentences of 8 tokens" in out) == (0, True)
    files[1].write_text("the B-NP\n")
    check_sentence(run(*fit), "two.conll")


@pytest.mark.parametrize("kind", ["dask", "mpi"])
def test_missing_packages_are_named(kind, tables, tmp_path, run, monkeypatch):
    monkeypatch.setitem(sys.modules, {"dask": "distributed", "mpi": "mpi4py"}[kind], None)
    options = {"dask": ["--dask", "tcp://127.0.0.1:9"], "mpi": ["--mpi"]}[kind]
    fit = run("fit", tables / "all.csv", *options, "-o", tmp_path / "model")
    check_sentence(fit, f"pip install 'riskmin[{kind}]'")


@pytest.mark.exhaustive
def test_command_on_dask(client, tables, tmp_path, run):
    pytest.importorskip("pyarrow")
    frame = pd.read_csv(tables / "all.csv")
    files = [tmp_path / f"{k}.parquet" for k in range(3)]
    for file, (i, j) in zip(files, pairwise(ENDS), strict=True):
        frame[i:j].to_parquet(file)
    frame.rename(columns={"a": "z"}).to_parquet(tmp_path / "other.parquet")

    def fit(name, *options, data=files):
        fixed = ["--dask", client.scheduler.address, "--loss", "f1", "--lam", 1.0]
        return run("fit", *fixed, *data, "-o", tmp_path / name, *options)

    code, out, err = fit("whole", "--report", tmp_path / "page.html", "--quiet")
    assert (code, out, err) == (0, "", "")
    assert (tmp_path / "page.html").exists()
    assert run("certify", tmp_path / "whole", tables / "all.csv")[0] == 0
    save = ["--checkpoint", tmp_path / "run.ckpt", "--checkpoint-every", 0, "--quiet"]
    assert fit("again", *save, "--max-iter", 3)[0] == 3
    assert fit("again", *save)[0] == 0
    one, two = rm.load_model(tmp_path / "whole"), rm.load_model(tmp_path / "again")
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
        arguments = ["--loss", "f1", "--lam", "1.0", "-o", str(tmp_path / name), *options]
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
