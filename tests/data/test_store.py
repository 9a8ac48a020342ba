"""Stored data: `load` returns what was written, from any source; writing is atomic."""

import gzip
import json
import os
import pickle
import re
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings

import riskmin as rm
from riskmin.arrays import memory_map
from riskmin.arrays.partitioned import RereadPartition
from riskmin.core import atomic_files
from riskmin.data import DataError, check, convert, load, load_partitioned, save, save_svmlight
from riskmin.data.formats import svmlight, text_table
from riskmin.data.formats.arrow_csv import ArrowCsvReader
from riskmin.data.store.reader import StoreReader, open_store

RISKMIN = [sys.executable, "-c", "import sys; from riskmin.cli import main; sys.exit(main())"]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def same(a, b):
    """Check that two data sets are bitwise equal."""
    assert sp.issparse(a.X) == sp.issparse(b.X)
    assert a.X.shape == b.X.shape
    assert a.X.dtype == b.X.dtype
    parts = ("data", "indices", "indptr") if sp.issparse(a.X) else ()
    pairs = [(getattr(a.X, k), getattr(b.X, k)) for k in parts] or [(a.X, b.X)]
    for x, z in [*pairs, (a.y, b.y), (a.qid, b.qid)]:
        if x is None or z is None:
            assert x is z
        else:
            assert x.dtype == z.dtype
            np.testing.assert_array_equal(x, z)
    assert a.feature_names == b.feature_names


def problem(n=60, p=7, seed=0, sparse=True):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * (rng.random((n, p)) < 0.5)
    y = np.where(X[:, 0] - X[:, 1] + 0.5 * rng.standard_normal(n) > 0, 1.0, -1.0)
    return (sp.csr_matrix(X) if sparse else X), y


@pytest.fixture
def stored(tmp_path):
    """Sparse rows in four shards."""
    X, y = problem()
    path = tmp_path / "data.rsk"
    save(path, [(X[i : i + 15], y[i : i + 15]) for i in range(0, 60, 15)], shard_mb=1e-6)
    assert len(StoreReader(path).shards) == 4
    return path


# ---------------------------------------------------------------- round trips
NUMBERS = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))
TABLES = st.integers(1, 4).flatmap(
    lambda p: st.lists(st.lists(NUMBERS | st.just(0.0), min_size=p, max_size=p), min_size=1, max_size=9)
)


def converted(path, **options):
    """Convert a file and load the result."""
    target = path.with_name("out.rsk")
    shown = {"target_column" if k == "target" else k: v for k, v in options.items()}
    convert(path, target, force=True, shard_mb=1e-6, **shown)
    check(target)
    load_options = {k: v for k, v in options.items() if k not in ("target", "qid", "format", "zero_based")}
    loaded = load(target, **load_options)
    same(loaded, load(path, **options))
    return loaded


@pytest.mark.parametrize("uses_arrow", [True, False])
def test_tables_and_svmlight(tmp_path, monkeypatch, uses_arrow):
    monkeypatch.setattr(ArrowCsvReader, "accepts", lambda table: uses_arrow)
    monkeypatch.setattr(text_table, "_BLOCK_MAX_ROWS", 2)
    monkeypatch.setattr(svmlight, "CHUNK_BYTES", 16)
    path = tmp_path / "a.csv"
    path.write_text("u,qid,class\n" + "1,a,ham\n0,a,spam\n0.5,b,ham\n" * 3)
    assert len(StoreReader(tmp_path / "out.rsk").shards if converted(path) else []) == 5
    path.write_text("u,v,w\n1,2,3\n4,5,6\n7,8,9\n")
    converted(path, target=0)
    path = tmp_path / "a.svm"
    path.write_text("1 qid:1 1:1 3:2\n-1 qid:1 2:0.1\n\n# none\n3 qid:2\n2 qid:9 1:4\n")
    converted(path, dtype=np.float32)
    converted(path, n_features=8)


@pytest.mark.slow
@given(TABLES, st.sampled_from(["float64", "float32"]), st.booleans(), st.integers(0, 2))
@settings(max_examples=12, deadline=None)
def test_save_and_load_round_trip(rows, dtype, queries, labels):
    import tempfile

    X = np.array(rows)
    y = [np.arange(len(X)) % 3.0, np.array(["no", "Ja", "né"])[np.arange(len(X)) % 3], np.ones(len(X))][
        labels
    ]
    qid = np.arange(len(X)) // 2 if queries else None
    with tempfile.TemporaryDirectory() as folder:
        save_svmlight(Path(folder, "a.svm"), X, np.ones(len(X)), qid)
        converted(Path(folder, "a.svm"), dtype=dtype)
        names = [f"x{j}" for j in range(X.shape[1])] + (["qid"] if queries else []) + ["y"]
        cells = [
            [*map(repr, row), *([f"q{k // 2}"] if queries else []), str(y[k])] for k, row in enumerate(rows)
        ]
        Path(folder, "a.csv").write_text("\n".join(",".join(line) for line in [names, *cells]))
        converted(Path(folder, "a.csv"), dtype=dtype)
        more = {"qid": qid} if queries else {}
        np.savez(Path(folder, "a.npz"), X=X, y=y, **more)
        converted(Path(folder, "a.npz"), dtype=dtype)


@pytest.mark.slow
def test_parquet_and_compressed_files(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    columns = {"a": [1.0, 2.0, 0.5], "q": ["x", "x", "z"], "class": ["ja", "no", "ja"], "b": [1, 2, 3]}
    pq.write_table(pa.table(columns), path, row_group_size=1)
    assert converted(path, qid="q").y.tolist() == ["ja", "no", "ja"]
    text = tmp_path / "a.svm.gz"
    text.write_bytes(gzip.compress(b"1 qid:3 1:2\n-1 qid:4 7:1e-3\n"))
    assert converted(text).X.shape == (2, 7)


def test_sparse_npz_and_rows_without_entries(tmp_path):
    path = tmp_path / "a.npz"
    X = sp.csr_matrix(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]))
    arrays = {"format": b"csr", "shape": X.shape, "data": X.data, "indices": X.indices, "indptr": X.indptr}
    np.savez(path, y=[1.0, 2.0, 3.0], **arrays)
    converted(path)
    path = tmp_path / "a.svm"
    path.write_text("1\n2\n")
    converted(path)


def test_late_zero_index_makes_all_indices_zero_based(tmp_path, monkeypatch):
    monkeypatch.setattr(svmlight, "CHUNK_BYTES", 8)
    path = tmp_path / "a.svm"
    path.write_text("1 1:1 3:2\n" * 5 + "1 2:3\n-1 0:1 2:2\n" + "1 1:9\n" * 3)
    assert converted(path).X[0, 1] == 1
    converted(path, zero_based=True)
    with pytest.raises(DataError, match="line 7: the index 0 in a file that counts from 1"):
        convert(path, tmp_path / "b.rsk", zero_based=False)
    with pytest.raises(ValueError, match="an index 0 comes after rows"):
        convert(path, tmp_path / "b.rsk", layout="dense", n_features=5)


def test_indices_beyond_32_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(svmlight, "CHUNK_BYTES", 8)
    path = tmp_path / "a.svm"
    path.write_text(f"1 1:1 3:2\n-1 2:1\n1 5:1 {2**31 + 7}:3\n-1 1:1\n")
    data = converted(path)
    assert data.X.indices.dtype == np.int64


@pytest.mark.parametrize("uses_arrow", [True, False])
def test_late_string_label_rereads_all_labels(tmp_path, monkeypatch, uses_arrow):
    monkeypatch.setattr(ArrowCsvReader, "accepts", lambda table: uses_arrow)
    monkeypatch.setattr(text_table, "_BLOCK_MAX_ROWS", 2)
    path = tmp_path / "a.csv"
    path.write_text("a,qid,y\n1,7,1\n2,7,2\n3,1,3\n4,10000000000000001,ham\n")
    data = converted(path)
    assert data.y.tolist() == ["1", "2", "3", "ham"]
    assert data.qid.tolist() == [7, 7, 1, 10**16 + 1]
    path.write_text("a,b,y\n1,2,\n3,4,\n")
    assert converted(path, require_labels=False).y is None


def test_layouts(tmp_path):
    table, text = tmp_path / "a.csv", tmp_path / "a.svm"
    table.write_text("a,b,y\n1,0,1\n0,0,2\n0,3,1\n")
    text.write_text("1 1:1\n2\n1 2:3\n")
    convert(table, tmp_path / "s.rsk", layout="sparse")
    convert(text, tmp_path / "d.rsk", layout="dense", n_features=2)
    np.testing.assert_array_equal(load(tmp_path / "s.rsk").X.toarray(), load(table).X)
    np.testing.assert_array_equal(load(tmp_path / "d.rsk").X, load(text).X.toarray())
    with pytest.raises(DataError, match="give n_features"):
        convert(text, tmp_path / "e.rsk", layout="dense")
    with pytest.raises(ValueError, match="layout is 'wide'"):
        convert(text, tmp_path / "e.rsk", layout="wide")


# ---------------------------------------------------------------- memory mapping
def test_rows_are_memory_mapped(stored):
    X, y, *_ = load(stored)
    store = open_store(stored)
    for name in ("data", "indices"):
        assert np.shares_memory(getattr(X, name), store.arrays[name])
        assert not getattr(X, name).flags.writeable
    matrix = rm.linear_risk(X, y, "hinge").rows.X
    assert np.shares_memory(matrix.data, store.arrays["data"])
    assert np.shares_memory(matrix.indices, store.arrays["indices"])
    part = load_partitioned(stored).X.source.part(20, 50)
    assert np.shares_memory(part.read().data, store.arrays["data"])
    assert (part.read() != X[20:50]).nnz == 0
    assert part.nnz == X[20:50].nnz


@pytest.mark.slow
def test_64_bit_pointers_with_32_bit_indices(stored):
    """64-bit pointers with 32-bit indices, a combination that SciPy's constructor does not keep."""
    store = open_store(stored)
    X = load(stored).X
    X.indptr = store.arrays["indptr"].copy()
    y = load(stored).y
    one, two = (rm.linear_risk(Z, y, "hinge")(np.ones(7)) for Z in (X, load(stored).X))
    assert one[0] == two[0]
    np.testing.assert_array_equal(one[1], two[1])


@pytest.mark.parametrize("sparse", [True, False])
def test_fits_are_bitwise_equal_to_those_in_memory(tmp_path, sparse):
    X, y = problem(sparse=sparse)
    path = tmp_path / "data.rsk"
    save(path, [(X[:40], y[:40]), (X[40:], y[40:])], shard_mb=1e-6)
    data, parts = load(path), load_partitioned(path)

    def fit(X, **more):
        risk = rm.linear_risk(X, y, "logistic", fit_intercept=True, **more)
        return rm.minimize(rm.Objective(risk, rm.L2(), 1e-3), tol=1e-8).w

    np.testing.assert_array_equal(fit(X), fit(data.X))
    for executor in (rm.Serial(), rm.Threads(n_workers=2)):
        np.testing.assert_array_equal(
            fit(X, executor=executor, n_shards=3), fit(parts.X, executor=executor, n_shards=3)
        )


def test_n_features_larger_than_stored(stored):
    assert load(stored, n_features=9).X.shape == (60, 9)
    assert load_partitioned(stored, n_features=9).X.whole().shape == (60, 9)
    with pytest.raises(DataError, match="it has 7 features where 5 are expected"):
        load(stored, n_features=5)
    with pytest.raises(DataError, match="it holds float64, not float32"):
        load(stored, dtype=np.float32)
    with pytest.raises(DataError, match="leave target and qid out"):
        load(stored, target="y")


def test_mapped_pages_are_released(tmp_path, monkeypatch):
    path = tmp_path / "data.rsk"
    save(path, [(np.ones((2000, 1000)), np.ones(2000))])
    monkeypatch.setenv(memory_map.MAPPED_MB_VARIABLE, "4")
    limiter = memory_map.ResidentSetLimiter()
    monkeypatch.setattr(memory_map, "_limiter", limiter)
    store = StoreReader(path)
    X = store.arrays["X"]
    if not limiter.limited:
        pytest.skip("only where the system tells what is resident")
    for i in memory_map.release_between(range(0, 2000, 10)):
        assert X[i : i + 10].sum() == 10_000
        assert memory_map._resident_bytes() - limiter.baseline_bytes < 9e6
    assert 0 < memory_map.memory_limit_bytes() < 2**62
    with limiter.lock:  # the thread may hold the lock when a process is forked
        limiter.forked()
    limiter.release_if_over_budget()
    assert limiter.thread is None
    limiter.add(next(iter(limiter.maps)))
    thread = limiter.thread
    del X, store, i
    thread.join(5)
    assert (limiter.thread, limiter.limited) == (None, False)


def test_memory_pressure_of_maps_does_not_affect_rows_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_map, "_limiter", memory_map.ResidentSetLimiter())
    monkeypatch.setenv(memory_map.MAPPED_MB_VARIABLE, "0.001")
    X, y = problem()
    save(tmp_path / "data.rsk", [(X, y)])

    def picked(X):
        J = rm.Objective(rm.linear_risk(X, y, rm.Logistic()), rm.L1(), 0.1)
        return type(rm.Auto().choose(J, 1e-3)[0])

    stored = load(tmp_path / "data.rsk").X
    if not memory_map.maps_exceed_budget():
        pytest.skip("only where the system tells what is resident")
    assert (picked(stored), picked(X)) == (rm.OwlQn, rm.CoordinateDescent)


# ---------------------------------------------------------------- parts
def test_partitions_of_a_store(stored):
    X = load_partitioned(stored).X
    assert [part.shape[0] for part in X.parts] == [15] * 4
    assert len(pickle.dumps(X.source.part(0, 60))) < 500
    assert X.cut([0, 7, 60]).parts[1].shape == (53, 7)


def test_rewritten_data_do_not_match_old_labels(stored):
    X = load_partitioned(stored).X
    save(stored, [(-problem()[0], problem()[1])], shard_mb=1e-6, force=True)
    for ask in (X.parts[0].read, X.source.whole, lambda: X.source.part(0, 60)):
        with pytest.raises(DataError, match=r"data.rsk: it was written anew meanwhile; run again"):
            ask()
    assert load_partitioned(stored).X.whole().shape == (60, 7)


def test_files_as_partitions(tmp_path):
    X, y = problem()
    ends = [0, 20, 45, 60]
    files = [tmp_path / f"{k}.svm" for k in range(3)]
    for file, i, j in zip(files, ends[:-1], ends[1:], strict=True):
        save_svmlight(file, X[i:j], y[i:j])
    data = load_partitioned(files)
    assert (data.X.whole() != X).nnz == 0
    assert all(isinstance(part, RereadPartition) for part in data.X.parts)
    held = load_partitioned(files, executor=rm.Threads(n_workers=2)).X
    assert all(isinstance(part, rm.InMemoryPartition) for part in held.parts)
    assert (held.whole() != X).nnz == 0
    np.testing.assert_array_equal(data.y, y)
    persisted = load_partitioned(files, executor=Keeps())
    assert (sp.vstack([part.read() for part in persisted.X.parts]) != X).nnz == 0
    # one file is zero-based, so all are; it has the most columns
    files[0].write_text("1 1:1 2:1\n")
    files[1].write_text("1 0:1 5:1\n")
    for loaded in (load_partitioned(files[:2]), load_partitioned(files[:2], executor=Keeps())):
        rows = [part.read().toarray().tolist() for part in loaded.X.parts]
        assert rows == [[[0, 1, 1, 0, 0, 0]], [[1, 0, 0, 0, 0, 1]]]
        assert [part.shape for part in loaded.X.parts] == [(1, 6), (1, 6)]


class Keeps(rm.Serial):
    """An executor with the interface of one that keeps results at its workers."""

    def persist(self, f, items):
        return [pickle.dumps(f(item)) for item in items]

    def apply(self, handles, g):
        return [g(pickle.loads(handle)) for handle in handles]

    def part(self, handle, name, shape, numbers, sparse, pick):
        partition = rm.InMemoryPartition(pick(pickle.loads(handle)), name)
        assert (partition.shape, partition.nnz, partition.sparse) == (shape, numbers, sparse)
        return partition


def test_several_folders(tmp_path):
    X, y = problem()
    paths = [tmp_path / "a.rsk", tmp_path / "b.rsk"]
    save(paths[0], [(X[:20, :5], y[:20])])
    save(paths[1], [(X[20:], y[20:])])
    data = load_partitioned(paths)
    assert data.X.shape == (60, 7)
    assert (data.X.whole()[20:] != X[20:]).nnz == 0
    save(tmp_path / "d.rsk", [(X.toarray(), y)])
    with pytest.raises(DataError, match=r"d.rsk: it is dense, unlike .*a.rsk"):
        load_partitioned([paths[0], tmp_path / "d.rsk"])


def test_inconsistent_columns(tmp_path):
    for name, head in (("a", "u,v,y"), ("b", "u,w,y"), ("c", "u,y")):
        cells = ",".join("1" for _ in head.split(","))
        (tmp_path / f"{name}.csv").write_text(f"{head}\n{cells}\n")
    with pytest.raises(DataError, match=r"b.csv: its column 'w' is where .*a.csv has 'v'"):
        load_partitioned([tmp_path / "a.csv", tmp_path / "b.csv"])
    with pytest.raises(DataError, match=r"c.csv: it has 1 columns, but .*a.csv has 2"):
        load_partitioned([tmp_path / "a.csv", tmp_path / "c.csv"])
    (tmp_path / "d.csv").write_text("u,v,y\n1,2,ham\n")
    with pytest.raises(DataError, match=r"d.csv: its y is of words, but that of .*a.csv of numbers"):
        load_partitioned([tmp_path / "a.csv", tmp_path / "d.csv"])
    with pytest.raises(ValueError, match="there are no files"):
        load_partitioned([])


# ---------------------------------------------------------------- damage
def broken(path, name, change):
    """The error message for a folder with one changed file."""
    file = path / name
    blob = bytearray(file.read_bytes())
    file.write_bytes(change(blob) or blob)
    os.utime(path / "meta.json", ns=(0, time.time_ns()))  # forces the store to be reopened
    with pytest.raises(DataError) as caught:
        load_partitioned(path).X.parts[2].read()
    with pytest.raises(DataError) as again:
        load(path)
    assert str(caught.value) == str(again.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def flip(blob):
    blob[128 + (len(blob) - 128) * 5 // 8] ^= 1  # in the third of four shards


@pytest.mark.parametrize("name", ["data", "indices", "indptr", "y"])
def test_checksums(stored, name):
    assert f"shard 3 of 4 (rows 31 to 45): the checksum of {name}.npy fails" in broken(
        stored, f"{name}.npy", flip
    )
    with pytest.raises(DataError, match="shard 3 of 4"):
        check(stored)


def test_truncated_and_missing_files(stored):
    assert "data.npy: the file is truncated" in broken(stored, "data.npy", lambda blob: blob[:-8])
    (stored / "data.npy").unlink()
    with pytest.raises(DataError, match=r"data.npy: it cannot be read \(No such file"):
        check(stored)


def test_wrong_arrays(stored):
    assert "it is not the array that was written" in broken(stored, "y.npy", lambda blob: b"x" + blob[1:])


def test_unknown_versions_and_broken_metadata(stored):
    meta = stored / "meta.json"
    text = meta.read_text()
    meta.write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(
        DataError, match=r"data.rsk: it is of version 2 of the format, by riskmin .* reads version 1"
    ):
        load(stored)
    for bad in (
        "{",
        "[]",
        '{"format": "riskmin data", "version": 1}',
        text.replace("[15, 30]", "[15, 29]"),
        re.sub(r'"data": (\d+|"float64"), ', "", text),
    ):
        meta.write_text(bad)
        with pytest.raises(DataError, match=r"meta.json: .*(convert the data anew|check the path)"):
            load(stored)
    meta.unlink()
    with pytest.raises(DataError, match=r"it has no meta.json, so it holds no stored data"):
        load(stored)
    with pytest.raises(DataError, match="there is no such folder"):
        load(stored.with_name("none.rsk"))


def test_column_indices_out_of_range_with_valid_checksums(stored):
    meta = json.loads((stored / "meta.json").read_text())
    meta["columns"] = 3
    (stored / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match=r"shard 1 of 4 .* has columns beyond the last"):
        load(stored)


# ---------------------------------------------------------------- atomic replacement
def test_failed_replacement_keeps_the_old_data(stored, monkeypatch):
    def interrupted(one, other):
        raise KeyboardInterrupt

    before = load(stored)
    monkeypatch.setattr(atomic_files, "exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(stored, [(np.eye(2), np.ones(2))], force=True)
    same(load(stored), before)
    assert [path.name for path in stored.parent.iterdir()] == ["data.rsk"]


def test_replacement_without_atomic_exchange(stored, monkeypatch):
    """The old folder is briefly renamed: interrupted writers and later readers restore it."""
    before, rename, calls = load(stored), os.rename, []

    def second_fails(one, other):
        calls.append(one)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(one, other)

    monkeypatch.setattr(atomic_files, "exchange", lambda one, other: False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", second_fails)
        with pytest.raises(KeyboardInterrupt):
            save(stored, [(np.eye(2), np.ones(2))], force=True)
    assert len(calls) == 3
    same(load(stored), before)
    assert [path.name for path in stored.parent.iterdir()] == ["data.rsk"]
    aside = stored.with_name(".data.rsk.old")
    for act in (lambda: load(stored), lambda: check(stored), lambda: load_partitioned(stored).X.shape):
        stored.rename(aside)  # the state after a kill between the two renames
        act()
        assert [path.name for path in stored.parent.iterdir()] == ["data.rsk"]
    stored.rename(aside)
    with pytest.raises(ValueError, match="is there already"):
        save(stored, [(np.eye(2), np.ones(2))])
    save(stored, [(np.eye(2), np.ones(2))], force=True)
    assert load(stored).X.shape == (2, 2)
    aside.mkdir()
    (aside / "meta.json").write_text("of a kill after the second renaming")
    save(stored, [(np.eye(3), np.ones(3))], force=True)
    assert load(stored).X.shape == (3, 3)
    assert [path.name for path in stored.parent.iterdir()] == ["data.rsk"]


def test_data_exist_at_every_moment_of_a_replacement(stored, monkeypatch):
    """At every system call of a replacement, as if the process ended there."""
    row_counts = []

    def record_rows(call):
        def recording(*args):
            row_counts.append(load(stored).X.shape[0])
            return call(*args)

        return recording

    for name in ("exchange", "sync_folder", "unlink", "delete"):
        monkeypatch.setattr(atomic_files, name, record_rows(getattr(atomic_files, name)))
    monkeypatch.setattr(os, "rename", record_rows(os.rename))
    save(stored, [(np.eye(2), np.ones(2))], force=True)
    assert row_counts == sorted(row_counts, reverse=True)
    assert set(row_counts) == {60, 2}


@pytest.mark.parametrize("place", ["data.rsk/notes.txt", "data.rsk/more/y.npy", "other/meta.json", "mine/y"])
def test_force_deletes_no_foreign_files(stored, place):
    path = stored.parent / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    with pytest.raises(
        ValueError, match=rf"holds {path.relative_to(stored.parent).parts[1]}, which is no stored"
    ):
        save(stored.parent / path.relative_to(stored.parent).parts[0], [(np.eye(2), np.ones(2))], force=True)
    assert path.read_text() == "{}"


def test_files_created_during_a_write_are_kept(stored, tmp_path):
    svm = tmp_path / "a.svm"
    svm.write_text("1 1:1\n")
    before = load(stored)
    with pytest.raises(ValueError, match=r"holds notes, which is no stored data"):
        convert(svm, stored, force=True, watch=lambda *_: (stored / "notes").write_text("dear"))
    assert (stored / "notes").read_text() == "dear"
    same(load(stored), before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svm", "data.rsk"]


def test_truncation_of_the_output_ends_the_conversion(tmp_path, monkeypatch):
    """A late index 0 causes the written indices to be read again."""
    svm = tmp_path / "a.svm"
    svm.write_text("1 1:1\n" * 9 + "1 0:1\n")
    monkeypatch.setattr(svmlight, "CHUNK_BYTES", 8)
    monkeypatch.setattr(np, "fromfile", lambda file, dtype, count: np.zeros(0, dtype))
    with pytest.raises(ValueError, match=r"out.rsk cannot be written \(Input/output error\)"):
        convert(svm, tmp_path / "out.rsk")
    assert [path.name for path in tmp_path.iterdir()] == ["a.svm"]


def test_damaged_data_are_replaced(stored):
    (stored / "meta.json").write_text('{"format": "riskmin da')
    save(stored, [(np.eye(2), np.ones(2))], force=True)
    assert load(stored).X.shape == (2, 2)


@pytest.mark.skipif(os.name != "posix", reason="permissions of this system are others")
def test_replaced_data_keep_their_permissions(stored):
    stored.chmod(0o750)
    (stored / "meta.json").chmod(0o640)
    save(stored, [(np.eye(2), np.ones(2))], force=True)
    assert stat.S_IMODE(stored.stat().st_mode) == 0o750
    assert {stat.S_IMODE(path.stat().st_mode) for path in stored.iterdir()} == {0o640}


def test_invalid_row_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(text_table, "_BLOCK_MAX_ROWS", 2)
    monkeypatch.setattr(svmlight, "CHUNK_BYTES", 8)
    svm, table = tmp_path / "a.svm", tmp_path / "a.csv"
    svm.write_text("1 1:1\n" * 9 + "1 2:nan\n")
    table.write_text("a,b,y\n" + "1,2,1\n" * 5 + "1,inf,2\n")
    for path, where in (
        (svm, "line 10: 'nan' is not finite"),
        (table, "line 7: column 'b': 'inf' is not finite"),
    ):
        with pytest.raises(DataError, match=where):
            convert(path, tmp_path / "out.rsk")
        with pytest.raises(DataError, match=where):
            load(path)

    def stop(rows, size, share):
        raise KeyboardInterrupt

    svm.write_text("1 1:1\n" * 9)
    with pytest.raises(KeyboardInterrupt):
        convert(svm, tmp_path / "out.rsk", watch=stop)
    with pytest.raises(ValueError, match="not all finite as float32"):
        save(tmp_path / "out.rsk", [([[1e300]], [1.0])], dtype=np.float32)
    with pytest.raises(ValueError, match="another kind of y"):
        save(tmp_path / "out.rsk", [([[1.0]], [1.0]), ([[1.0]], ["a"])])
    with pytest.raises(ValueError, match=r"some rows have no y"):
        save(tmp_path / "out.rsk", [([[1.0]], [1.0]), ([[1.0]], None)])
    with pytest.raises(ValueError, match="some rows have 2 columns"):
        save(tmp_path / "out.rsk", [([[1.0]], [1.0]), ([[1.0, 2.0]], [1.0])])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.svm"]


def test_the_target(tmp_path, stored):
    X, y = problem(n=8)
    with pytest.raises(ValueError, match=r"data.rsk is there already: name another, or replace it by force"):
        save(stored, [(X, y)])
    save(stored, [(X, y)], force=True)
    assert load(stored).X.shape == (8, 7)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("dear")
    with pytest.raises(ValueError, match="holds letter, which is no stored data"):
        save(tmp_path / "mine", [(X, y)], force=True)
    with pytest.raises(ValueError, match="there is no folder"):
        save(tmp_path / "no" / "a.rsk", [(X, y)])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.rsk", "mine"]


# ---------------------------------------------------------------- the command
@pytest.mark.slow
def test_the_command(tmp_path, run):
    path, target = tmp_path / "a.csv", tmp_path / "a.rsk"
    path.write_text("u,kind,v\n" + "1,ham,2\n2,spam,1\n" * 10)
    code, out, err = run("convert", path, target, "--target", "kind", "--dtype", "float32")
    assert (code, err) == (0, "")
    assert "20 rows x 2 columns" in out
    assert "40, dense, float32" in out
    assert "2 classes" in out
    code, out, err = run("convert", "--check", target)
    assert (code, err) == (0, "")
    assert "those of 1 shard hold" in out
    assert run("convert", path, target)[0] == 2
    assert run("convert", path, tmp_path / "a.data")[0] == 2
    assert run("convert", path)[0] == 2
    model = tmp_path / "m.riskmin"
    assert run("fit", target, "-o", model, "--quiet") == (0, "", "")
    assert run("predict", model, target)[1].split()[:2] == ["ham", "spam"]
    assert run("certify", model, target)[0] == 0
    assert run("evaluate", model, target)[0] == 0
    flip_last = bytearray((target / "X.npy").read_bytes())
    flip_last[-1] ^= 1
    (target / "X.npy").write_bytes(flip_last)
    code, out, err = run("convert", "--check", target)
    assert (code, out) == (2, "")
    assert "shard 1 of 1 (rows 1 to 20): the checksum of X.npy fails" in err


# ---------------------------------------------------------------- real processes
@pytest.mark.exhaustive
def test_processes_read_their_own_partitions(tmp_path):
    X, y = problem(n=200)
    path = tmp_path / "data.rsk"
    save(path, [(X[i : i + 50], y[i : i + 50]) for i in range(0, 200, 50)], shard_mb=1e-6)
    data = load_partitioned(path)

    def fit(executor, X):
        risk = rm.linear_risk(X, y, "hinge", executor=executor, n_shards=4)
        return rm.minimize(rm.Objective(risk, rm.L2(), 1e-3), rm.Bundle(), tol=1e-6).w

    processes = rm.Processes(n_workers=2)
    np.testing.assert_array_equal(fit(rm.Serial(), X), fit(processes, data.X))
    blob = bytearray((path / "data.npy").read_bytes())
    flip(blob)
    (path / "data.npy").write_bytes(blob)
    with pytest.raises(DataError, match=r"data.rsk: shard 3 of 4 .* the checksum of data.npy fails"):
        fit(processes, data.X)


def command(*args):
    return subprocess.Popen(
        [*RISKMIN, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_killed_conversion_leaves_no_readable_store(tmp_path, sign):
    path = tmp_path / "a.fifo"  # a pipe never ends, so the process is killed during the conversion
    os.mkfifo(path)
    target = tmp_path / "a.rsk"
    with command("convert", path, target) as process, path.open("wb", buffering=0) as file:
        rows = b"1 1:0.5 2:0.25 9:1\n" * 20_000
        while not any(p.stat().st_size for p in tmp_path.glob(".a.rsk.*/data.npy")):
            file.write(rows)
        process.send_signal(sign)
        with suppress(BrokenPipeError):  # a blocked read would not receive the signal
            while process.poll() is None:
                file.write(rows)
        _, err = process.communicate(timeout=20)
    assert process.returncode == (-signal.SIGKILL if sign == signal.SIGKILL else 130)
    assert not target.exists()
    left = list(tmp_path.glob(".a.rsk.*"))
    assert len(left) == (1 if sign == signal.SIGKILL else 0)
    for folder in left:
        with pytest.raises(DataError, match=r"it has no meta.json"):
            load(folder, format="rsk")
    if sign == signal.SIGINT:
        assert "interrupted" in err


PEAK = """
import sys, json
import pyarrow.csv  # or else it would be imported for the larger table only
from riskmin.data import convert
from riskmin.data.formats import text_table
from riskmin.data.formats.arrow_csv import ArrowCsvReader
text_table._BLOCK_MAX_ROWS, ArrowCsvReader.BLOCK_BYTES = 1000, 2**15
def peak():
    return 1024 * int([s for s in open("/proc/self/status") if s.startswith("VmHWM")][0].split()[1])
sizes = []
for path in sys.argv[1:]:
    convert(path, path + ".rsk")
    sizes.append(peak())
print(json.dumps(sizes))
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_memory_does_not_grow_with_the_file(tmp_path):
    row = b"1 " + b" ".join(b"%d:0.%d" % (j, j) for j in range(1, 60)) + b"\n"
    line = b",".join(b"0.%d" % j for j in range(50)) + b",1\n"
    for kind, text in (("svm", row), ("csv", line)):
        for name, times in (("few", 4_000), ("many", 40_000)):
            (tmp_path / f"{name}.{kind}").write_bytes(text * times)
        paths = [str(tmp_path / f"{name}.{kind}") for name in ("few", "many")]
        completed = subprocess.run(
            [sys.executable, "-c", PEAK, *paths], capture_output=True, text=True, check=True
        )
        small, large = json.loads(completed.stdout)
        larger = (tmp_path / f"many.{kind}.rsk").rglob("*.npy")
        assert large - small < 0.25 * sum(p.stat().st_size for p in larger), kind


LIMITED = """
import sys, json, resource
import numpy as np
import riskmin as rm
from riskmin.data import load
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
X, y, *_ = load(sys.argv[1])
J = rm.Objective(rm.linear_risk(X, y, "logistic", fit_intercept=True), rm.L2(), 1e-3)
result = rm.minimize(J, rm.Lbfgs(), tol=1e-2)
peak = 1024 * int([s for s in open("/proc/self/status") if s.startswith("VmHWM")][0].split()[1])
try:
    X.copy()
    fits = True
except MemoryError:
    fits = False
print(json.dumps([result.status, peak, X.nbytes, fits]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are the system's")
def test_data_three_times_larger_than_the_memory_limit(tmp_path):
    limit = 320 * 2**20
    rows, p = 4000, 500
    block = np.random.default_rng(0).standard_normal((rows, p))
    labels = np.where(block[:, 0] > 0, 1.0, -1.0)
    path = tmp_path / "data.rsk"
    save(path, ((block, labels) for _ in range(-(-3 * limit // block.nbytes))))
    completed = subprocess.run(
        [sys.executable, "-c", LIMITED, path, str(limit)],
        capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    status, peak, size, fits = json.loads(completed.stdout)
    assert size >= 3 * limit
    assert not fits  # the data do not fit into the limit
    assert status == "converged"
    assert peak < limit
