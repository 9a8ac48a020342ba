"""Stored data: memory-mapped, verified by checksums, written atomically, read in parts."""

import json
import os
import pickle
import re
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from data_sets import same

import riskmin as rm
from helpers import Problem
from riskmin.data import DataError, check, convert, load, load_partitioned, save, save_svmlight

EYE = [(np.eye(2), np.ones(2))]


def rows(n=60, sparse=True):
    """Rows of which half of the entries are zero, and two classes."""
    drawn = Problem(rm.Logistic(), n=n, p=7)
    X = drawn.X * (np.random.default_rng(1).random((n, 7)) < 0.5)
    return (sp.csr_matrix(X) if sparse else X), drawn.y


@pytest.fixture
def stored(tmp_path):
    """Sparse rows in four shards."""
    X, y = rows()
    path = tmp_path / "data.rsk"
    save(path, [(X[i : i + 15], y[i : i + 15]) for i in range(0, 60, 15)], shard_mb=1e-6)
    return path


# ---------------------------------------------------------------- conversion
def converted(path, **options):
    """Convert a file in small chunks and load the result, which is that of the file."""
    target = path.with_name("out.rsk")
    shown = {"target_column" if k == "target" else k: v for k, v in options.items()}
    convert(path, target, force=True, shard_mb=1e-6, chunk_bytes=8, **shown)
    check(target)
    load_options = {k: v for k, v in options.items() if k not in ("target", "qid", "format", "zero_based")}
    loaded = load(target, **load_options)
    same(loaded, load(path, **options))
    return loaded


def test_columns_keep_their_roles(table):
    assert converted(table("u,v,w\n1,2,3\n4,5,6\n7,8,9\n"), target=0).feature_names == ["v", "w"]
    assert converted(table("u,q,class\n1,a,ham\n0,a,spam\n"), qid="q").y.tolist() == ["ham", "spam"]
    assert converted(table("a,b,y\n1,2,\n3,4,\n"), require_labels=False).y is None
    # a late word makes all labels words
    data = converted(table("a,qid,y\n1,7,1\n2,7,2\n3,1,3\n4,10000000000000001,ham\n"))
    assert data.y.tolist() == ["1", "2", "3", "ham"]
    assert data.qid.tolist() == [7, 7, 1, 10**16 + 1]


def test_sparse_rows_without_entries_and_indices_beyond_32_bits(tmp_path):
    X = sp.csr_matrix(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]))
    arrays = {"format": b"csr", "shape": X.shape, "data": X.data, "indices": X.indices, "indptr": X.indptr}
    np.savez(tmp_path / "a.npz", y=[1.0, 2.0, 3.0], **arrays)
    converted(tmp_path / "a.npz")
    converted(file_of(tmp_path, "1\n2\n"))
    path = file_of(tmp_path, f"1 1:1 3:2\n-1 2:1\n1 5:1 {2**31 + 7}:3\n-1 1:1\n")
    assert converted(path).X.indices.dtype == np.int64


def test_late_zero_index_makes_all_indices_zero_based(tmp_path):
    path = file_of(tmp_path, "1 1:1 3:2\n" * 5 + "1 2:3\n-1 0:1 2:2\n" + "1 1:9\n" * 3)
    assert converted(path).X[0, 1] == 1
    converted(path, zero_based=True)
    with pytest.raises(DataError, match="line 7: the index 0 in a file that counts from 1"):
        convert(path, tmp_path / "b.rsk", zero_based=False)
    with pytest.raises(ValueError, match="an index 0 comes after rows"):
        convert(path, tmp_path / "b.rsk", layout="dense", n_features=5, chunk_bytes=8)


def test_layouts(tmp_path):
    table, text = tmp_path / "a.csv", tmp_path / "a.svm"
    table.write_text("a,b,y\n1,0,1\n0,0,2\n0,3,1\n")
    text.write_text("1 1:1\n2\n1 2:3\n")
    convert(table, tmp_path / "s.rsk", layout="sparse")
    convert(text, tmp_path / "d.rsk", layout="dense", n_features=2)
    np.testing.assert_array_equal(load(tmp_path / "s.rsk").X.toarray(), load(table).X)
    np.testing.assert_array_equal(load(tmp_path / "d.rsk").X, load(text).X.toarray())


# ---------------------------------------------------------------- what is refused
def file_of(folder, text, name="a.svm"):
    (folder / name).write_text(text)
    return folder / name


def converting(text, name="a.svm", **options):
    return lambda folder: convert(file_of(folder, text, name), folder / "out.rsk", **options)


def saving(*parts, name="out.rsk", **options):
    return lambda folder: save(folder / name, list(parts), **options)


def joining(text):
    """Read two tables, of which the second does not fit."""
    tables = {"a.csv": "u,v,y\n1,1,1\n", "b.csv": text}
    return lambda folder: load_partitioned([file_of(folder, table, name) for name, table in tables.items()])


REFUSED = [
    (converting("1 1:1\n" * 9 + "1 2:nan\n", chunk_bytes=8), "line 10: 'nan' is not finite"),
    (converting("a,b,y\n" + "1,2,1\n" * 5 + "1,inf,2\n", "a.csv"), "line 7: column 'b': 'inf' is not finite"),
    (converting("1 1:1\n", layout="dense"), "give n_features"),
    (converting("1 1:1\n", layout="wide"), "layout is 'wide'"),
    (saving(([[1e300]], [1.0]), dtype=np.float32), "not all finite as float32"),
    (saving(([[1.0]], [1.0]), ([[1.0]], ["a"])), "another kind of y"),
    (saving(([[1.0]], [1.0]), ([[1.0]], None)), "some rows have no y"),
    (saving(([[1.0]], [1.0]), ([[1.0, 2.0]], [1.0])), "some rows have 2 columns"),
    (saving(*EYE, feature_names=["a", 1]), "not a string"),
    (saving(*EYE, feature_names=["a"]), "1 feature_names for 2"),
    (saving(*EYE, name="no/a.rsk"), "there is no folder"),
    (saving(*EYE, name="data.rsk"), "data.rsk is there already: name another, or replace it by force"),
    (joining("u,w,y\n1,1,1\n"), r"b.csv: its column 'w' is where .*a.csv has 'v'"),
    (joining("u,y\n1,1\n"), r"b.csv: it has 1 columns, but .*a.csv has 2"),
    (joining("u,v,y\n1,2,ham\n"), r"b.csv: its y is of words, but that of .*a.csv of numbers"),
    (lambda folder: load_partitioned([]), "there are no files"),
    (lambda folder: load(folder / "data.rsk", n_features=5), "it has 7 features where 5 are expected"),
    (lambda folder: load(folder / "data.rsk", dtype=np.float32), "it holds float64, not float32"),
    (lambda folder: load(folder / "data.rsk", target="y"), "leave target and qid out"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message[:30] for _, message in REFUSED])
def test_what_is_refused_leaves_no_files(call, message, stored):
    before = load(stored)
    with pytest.raises(ValueError, match=message):
        call(stored.parent)
    assert {path.name for path in stored.parent.iterdir()} <= {"a.csv", "b.csv", "a.svm", "data.rsk"}
    same(load(stored), before)


# ---------------------------------------------------------------- memory mapping
def test_rows_are_memory_mapped(stored):
    """No copy is made by loading or by a part."""
    one, other = load(stored).X, load(stored).X
    for name in ("data", "indices"):
        assert np.shares_memory(getattr(one, name), getattr(other, name))
        assert not getattr(one, name).flags.writeable
    part = load_partitioned(stored).X.source.part(20, 50)
    assert np.shares_memory(part.read().data, one.data)
    assert (part.read() != one[20:50]).nnz == 0
    assert part.nnz == one[20:50].nnz
    assert load(stored, n_features=9).X.shape == (60, 9)
    assert load_partitioned(stored, n_features=9).X.whole().shape == (60, 9)


def test_64_bit_pointers_with_32_bit_indices(stored):
    """A combination that SciPy's constructor does not keep."""
    X, y = load(stored).X, load(stored).y
    X.indptr = X.indptr.astype(np.int64)
    one, two = (rm.linear_risk(Z, y, "hinge")(np.ones(7)) for Z in (X, load(stored).X))
    assert one[0] == two[0]
    np.testing.assert_array_equal(one[1], two[1])


def minimum(X, y, reg=None, **more):
    risk = rm.linear_risk(X, y, "logistic", fit_intercept=True, **more)
    return rm.minimize(rm.Objective(risk, reg or rm.L2(), 1e-3), tol=1e-6)


@pytest.mark.parametrize("sparse", [True, False])
def test_fits_are_bitwise_equal_to_those_in_memory(tmp_path, sparse):
    X, y = rows(sparse=sparse)
    path = tmp_path / "data.rsk"
    save(path, [(X[:40], y[:40]), (X[40:], y[40:])], shard_mb=1e-6)
    data, parts = load(path), load_partitioned(path)
    np.testing.assert_array_equal(minimum(X, y).w, minimum(data.X, y).w)
    for executor in (rm.Serial(), rm.Threads(n_workers=2)):
        settings = {"executor": executor, "n_shards": 3}
        np.testing.assert_array_equal(minimum(X, y, **settings).w, minimum(parts.X, y, **settings).w)


def resident_bytes():
    """The resident size of mapped files."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"RssFile:\s+(\d+)", text)[1])


def eventually(condition):
    """Wait for a condition that a thread of the package brings about within milliseconds."""
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return condition()


@pytest.mark.skipif(sys.platform != "linux", reason="only where the system tells what is resident")
def test_mapped_pages_are_released(tmp_path, monkeypatch):
    """Pages beyond the budget are given back; the rows are read again when they are needed."""
    path = tmp_path / "data.rsk"
    save(path, [(np.ones((2000, 1000)), np.ones(2000))])
    monkeypatch.setenv("RISKMIN_MAPPED_MB", "4")
    before = resident_bytes()
    X = load(path).X
    for _ in range(2):
        assert X.sum() == 2e6
        assert eventually(lambda: resident_bytes() - before < 8e6)
    assert "riskmin-maps" in [thread.name for thread in threading.enumerate()]


def test_memory_pressure_of_maps_changes_no_minimum(tmp_path, monkeypatch):
    monkeypatch.setenv("RISKMIN_MAPPED_MB", "0.001")
    X, y = rows()
    alone = minimum(X, y, rm.L1())
    save(tmp_path / "data.rsk", [(X, y)])
    mapped = load(tmp_path / "data.rsk").X
    np.testing.assert_array_equal(minimum(X, y, rm.L1()).w, alone.w)
    assert minimum(mapped, y, rm.L1()).value == pytest.approx(alone.value, rel=2e-6)


# ---------------------------------------------------------------- parts
def test_partitions_of_a_store(stored):
    X = load_partitioned(stored).X
    assert [part.shape[0] for part in X.parts] == [15] * 4
    assert len(pickle.dumps(X.source.part(0, 60))) < 500
    assert X.cut([0, 7, 60]).parts[1].shape == (53, 7)


def test_rewritten_data_do_not_match_old_labels(stored):
    X = load_partitioned(stored).X
    save(stored, [(-rows()[0], rows()[1])], shard_mb=1e-6, force=True)
    for ask in (X.parts[0].read, X.source.whole, lambda: X.source.part(0, 60)):
        with pytest.raises(DataError, match=r"data.rsk: it was written anew meanwhile; run again"):
            ask()
    assert load_partitioned(stored).X.whole().shape == (60, 7)


@pytest.mark.parametrize("executor", [None, rm.Threads(n_workers=2)], ids=["no", "threads"])
def test_files_as_partitions(tmp_path, executor):
    X, y = rows()
    ends = [0, 20, 45, 60]
    files = [tmp_path / f"{k}.svm" for k in range(3)]
    for file, i, j in zip(files, ends[:-1], ends[1:], strict=True):
        save_svmlight(file, X[i:j], y[i:j])
    settings = {} if executor is None else {"executor": executor}
    data = load_partitioned(files, **settings)
    assert (sp.vstack([part.read() for part in data.X.parts]) != X).nnz == 0
    np.testing.assert_array_equal(data.y, y)
    # one file is zero-based, so all are; it has the most columns
    files[0].write_text("1 1:1 2:1\n")
    files[1].write_text("1 0:1 5:1\n")
    loaded = load_partitioned(files[:2], **settings)
    found = [part.read().toarray().tolist() for part in loaded.X.parts]
    assert found == [[[0, 1, 1, 0, 0, 0]], [[1, 0, 0, 0, 0, 1]]]
    assert [part.shape for part in loaded.X.parts] == [(1, 6), (1, 6)]


def test_each_of_several_files_is_opened_as_often_as_a_single_one(tmp_path, monkeypatch):
    X, y = rows(sparse=False)
    names = "a,b,c,d,e,f,g,label"
    files = [tmp_path / f"{k}.csv" for k in range(3)]
    for k, file in enumerate(files):
        table = np.column_stack([X[k::3], y[k::3]])
        np.savetxt(file, table, delimiter=",", header=names, comments="")
    opened, open_path = [], Path.open

    def recording(path, *args, **settings):
        opened.append(path)
        return open_path(path, *args, **settings)

    monkeypatch.setattr(Path, "open", recording)
    load(files[0])
    once = opened.count(files[0])
    opened.clear()
    assert load_partitioned(files, executor=rm.Serial(), target="label").X.shape == X.shape
    assert [opened.count(file) for file in files] == [once] * 3


def test_several_folders(tmp_path):
    X, y = rows()
    paths = [tmp_path / "a.rsk", tmp_path / "b.rsk"]
    save(paths[0], [(X[:20, :5], y[:20])])
    save(paths[1], [(X[20:], y[20:])])
    data = load_partitioned(paths)
    assert data.X.shape == (60, 7)
    assert (data.X.whole()[20:] != X[20:]).nnz == 0
    save(tmp_path / "d.rsk", [(X.toarray(), y)])
    with pytest.raises(DataError, match=r"d.rsk: it is dense, unlike .*a.rsk"):
        load_partitioned([paths[0], tmp_path / "d.rsk"])


# ---------------------------------------------------------------- damage
def flip(blob):
    blob[128 + (len(blob) - 128) * 5 // 8] ^= 1  # in the third of four shards
    return blob


DAMAGES = {
    **{
        f"{name}.npy": (flip, rf"shard 3 of 4 \(rows 31 to 45\): the checksum of {name}.npy fails")
        for name in ("data", "indices", "indptr", "y")
    },
    "truncated data.npy": (lambda blob: blob[:-8], "data.npy: the file is truncated"),
    "missing data.npy": (lambda blob: None, r"data.npy: it cannot be read \(No such file"),
    "another y.npy": (lambda blob: b"x" + blob[1:], "it is not the array that was written"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_arrays(stored, name):
    change, message = DAMAGES[name]
    file = stored / name.split()[-1]
    changed = change(bytearray(file.read_bytes()))
    file.unlink() if changed is None else file.write_bytes(changed)
    os.utime(stored / "meta.json", ns=(0, time.time_ns()))  # forces the store to be reopened
    errors = []
    for read in (lambda: load_partitioned(stored).X.parts[2].read(), lambda: load(stored)):
        with pytest.raises(DataError, match=message) as caught:
            read()
        errors.append(str(caught.value))
        assert str(pickle.loads(pickle.dumps(caught.value))) == errors[-1]
    assert errors[0] == errors[1]
    assert str(stored) in errors[0]
    with pytest.raises(DataError):
        check(stored)


def with_value(key, value):
    return lambda text: json.dumps(json.loads(text) | {key: value})


BROKEN = r"meta.json: .*(convert the data anew|check the path)"
DATES = {"data": "datetime64[D]", "indices": "int32", "indptr": "int64"}
VALUES = {
    "rows": ["8", 1e400, True], "columns": [-4], "numbers": [2**70], "shards": [[1], {}],
    "arrays": [{"data": "O"}, [], DATES], "classes": [["u", 1], 7], "queries": [{}],
    "feature_names": [["a", 1, None, "d", "e", "f", "g"], ["a"]],
}  # fmt: skip
METADATA = {
    "version": (
        lambda text: text.replace('"version": 1', '"version": 2'),
        r"data.rsk: it is of version 2 of the format, by riskmin .* reads version 1",
    ),
    "cut": (lambda text: "{", BROKEN),
    "list": (lambda text: "[]", BROKEN),
    "few": (lambda text: '{"format": "riskmin data", "version": 1}', BROKEN),
    "deep": (lambda text: "[" * 10**4 + "]" * 10**4, BROKEN),
    "gap": (lambda text: text.replace("[15, 30]", "[15, 29]"), BROKEN),
    "decreasing": (lambda text: text.replace("[0, 15]", "[0, 99]").replace("[15, 30]", "[99, 30]"), BROKEN),
    "array": (lambda text: re.sub(r'"data": (\d+|"float64"), ', "", text), BROKEN),
    "columns": (
        lambda text: with_value("columns", 3)(with_value("feature_names", None)(text)),  # valid checksums
        r"shard 1 of 4 .* has columns beyond the last",
    ),
    **{f"{key} {value}": (with_value(key, value), BROKEN) for key in VALUES for value in VALUES[key]},
}


@pytest.mark.parametrize(("change", "message"), METADATA.values(), ids=METADATA)
def test_damaged_metadata(stored, change, message):
    X, words = rows()[0], np.resize(["u", "v"], 60)
    parts = [(X[i : i + 15], words[i : i + 15], words[i : i + 15]) for i in range(0, 60, 15)]
    save(stored, parts, shard_mb=1e-6, feature_names=list("abcdefg"), force=True)
    meta = stored / "meta.json"
    meta.write_text(change(meta.read_text()))
    for read in (load, check):
        with pytest.raises(DataError, match=message):
            read(stored)


# ---------------------------------------------------------------- atomic replacement
def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_replacement_without_atomic_exchange(stored, monkeypatch):
    """The old folder is briefly renamed: interrupted writers and later readers restore it."""
    before, rename, calls = load(stored), os.rename, []

    def second_fails(one, other):
        calls.append(one)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(one, other)

    monkeypatch.setattr(sys, "platform", "a system that cannot exchange names")
    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(KeyboardInterrupt):
        save(stored, EYE, force=True)
    assert len(calls) == 3
    same(load(stored), before)
    assert names_in(stored.parent) == ["data.rsk"]
    aside = stored.with_name(".data.rsk.old")
    for act in (lambda: load(stored), lambda: check(stored), lambda: load_partitioned(stored).X.shape):
        stored.rename(aside)  # the state after a kill between the two renames
        act()
        assert names_in(stored.parent) == ["data.rsk"]
    stored.rename(aside)
    with pytest.raises(ValueError, match="is there already"):
        save(stored, EYE)
    save(stored, EYE, force=True)
    assert load(stored).X.shape == (2, 2)
    aside.mkdir()
    (aside / "meta.json").write_text("of a kill after the second renaming")
    save(stored, [(np.eye(3), np.ones(3))], force=True)
    assert load(stored).X.shape == (3, 3)
    assert names_in(stored.parent) == ["data.rsk"]


def test_data_exist_at_every_moment_of_a_replacement(stored, monkeypatch):
    """At every change of the disk, as if the process ended there."""
    row_counts = []

    def record_rows(call):
        def recording(*args, **settings):
            row_counts.append(load(stored).X.shape[0])
            return call(*args, **settings)

        return recording

    for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
        monkeypatch.setattr(os, name, record_rows(getattr(os, name)))
    save(stored, EYE, force=True)
    assert row_counts == sorted(row_counts, reverse=True)
    assert set(row_counts) == {60, 2}


@pytest.mark.parametrize("place", ["data.rsk/notes.txt", "data.rsk/more/y.npy", "other/meta.json", "mine/y"])
def test_force_deletes_no_foreign_files(stored, place):
    path = stored.parent / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    folder, name, *_ = Path(place).parts
    with pytest.raises(ValueError, match=rf"holds {name}, which is no stored"):
        save(stored.parent / folder, EYE, force=True)
    assert path.read_text() == "{}"


def test_files_created_during_a_write_are_kept(stored, tmp_path):
    svm = file_of(tmp_path, "1 1:1\n")
    before = load(stored)
    with pytest.raises(ValueError, match=r"holds notes, which is no stored data"):
        convert(svm, stored, force=True, watch=lambda *_: (stored / "notes").write_text("dear"))
    assert (stored / "notes").read_text() == "dear"
    same(load(stored), before)
    assert names_in(tmp_path) == ["a.svm", "data.rsk"]


def test_a_conversion_whose_output_is_truncated_or_that_is_interrupted_leaves_no_files(tmp_path):
    """A late index 0 causes the written indices to be read again."""
    svm = file_of(tmp_path, "1 1:1\n" * 9000 + "1 0:1\n")

    def truncate(*_):
        for path in tmp_path.glob(".out.rsk.*/indices.npy"):
            os.truncate(path, 0)

    def stop(rows, size, share):
        raise KeyboardInterrupt

    with pytest.raises(ValueError, match=r"out.rsk cannot be written \(Input/output error\)"):
        convert(svm, tmp_path / "out.rsk", watch=truncate, chunk_bytes=2**15)
    with pytest.raises(KeyboardInterrupt):
        convert(svm, tmp_path / "out.rsk", watch=stop)
    assert names_in(tmp_path) == ["a.svm"]


@pytest.mark.parametrize("kind", ["svm", "csv"])
def test_the_memory_of_a_conversion_does_not_grow_with_the_file(kind, tmp_path):
    row = "1 " + " ".join(f"{j}:0.{j}" for j in range(1, 50)) + "\n"
    line = ",".join(f"0.{j}" for j in range(50)) + ",1\n"
    peaks = []
    for n in (20, 4000, 8000):  # the first imports and compiles
        path = file_of(tmp_path, {"svm": row, "csv": line}[kind] * n, f"{n}.{kind}")
        tracemalloc.start()
        convert(path, tmp_path / f"{n}.rsk", chunk_bytes=2**14)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    grown = 4000 * 50 * 8  # the bytes of the additional numbers
    assert peaks[2] - peaks[1] < 0.1 * grown


@pytest.mark.skipif(os.name != "posix", reason="permissions of this system are others")
def test_damaged_data_are_replaced_and_keep_their_permissions(stored):
    (stored / "meta.json").write_text('{"format": "riskmin da')
    stored.chmod(0o750)
    (stored / "meta.json").chmod(0o640)
    save(stored, EYE, force=True)
    assert load(stored).X.shape == (2, 2)
    assert stat.S_IMODE(stored.stat().st_mode) == 0o750
    assert {stat.S_IMODE(path.stat().st_mode) for path in stored.iterdir()} == {0o640}


# ---------------------------------------------------------------- the command
def test_the_command(tmp_path, run):
    path, target = tmp_path / "a.csv", tmp_path / "a.rsk"
    path.write_text("u,kind,v\n" + "1,ham,2\n2,spam,1\n" * 10)
    code, out, err = run("convert", path, target, "--target", "kind", "--dtype", "float32")
    assert (code, err) == (0, "")
    assert all(words in out for words in ("20 rows x 2 columns", "40, dense, float32", "2 classes"))
    code, out, err = run("convert", "--check", target)
    assert (code, err) == (0, "")
    assert "those of 1 shard hold" in out
    for args in ((path, target), (path, tmp_path / "a.data"), (path,)):
        assert run("convert", *args)[0] == 2
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
    X, y = rows(n=200)
    path = tmp_path / "data.rsk"
    save(path, [(X[i : i + 50], y[i : i + 50]) for i in range(0, 200, 50)], shard_mb=1e-6)
    data, processes = load_partitioned(path), rm.Processes(n_workers=2)
    alone = minimum(X, y, executor=rm.Serial(), n_shards=4)
    np.testing.assert_array_equal(alone.w, minimum(data.X, y, executor=processes, n_shards=4).w)
    (path / "data.npy").write_bytes(flip(bytearray((path / "data.npy").read_bytes())))
    with pytest.raises(DataError, match=r"data.rsk: shard 3 of 4 .* the checksum of data.npy fails"):
        minimum(data.X, y, executor=processes, n_shards=4)


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
    block = np.random.default_rng(0).standard_normal((4000, 500))
    labels = np.where(block[:, 0] > 0, 1.0, -1.0)
    path = tmp_path / "data.rsk"
    save(path, ((block, labels) for _ in range(-(-3 * limit // block.nbytes))))
    command = [sys.executable, "-c", LIMITED, path, str(limit)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    status, peak, size, fits = json.loads(completed.stdout)
    assert size >= 3 * limit
    assert not fits  # the data do not fit into the limit
    assert status == "converged"
    assert peak < limit
