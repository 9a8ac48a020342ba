"""Broken files, wrong sizes, terminal control sequences: each gives a one-sentence error and nothing else."""

import bz2
import gzip
import io
import itertools
import json
import lzma
import struct
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from fuzz import mutate, seeds

import riskmin
from helpers import check_sentence
from riskmin.core.persist import FileError
from riskmin.data import DataError, load, load_conll, load_partitioned
from riskmin.data.limits import memory_limited

X = seeds.X
Y = seeds.Y


# ---------------------------------------------------------------- .npz
def npz(path, arrays):
    """Write arrays, of which some are the bytes of one."""
    blobs = {k: a if isinstance(a, bytes) else mutate.npy(np.asarray(a)) for k, a in arrays.items()}
    path.write_bytes(mutate.archive({f"{name}.npy": blob for name, blob in blobs.items()}))
    return path


def parts_of(kind, rows=X):
    X = sp.csr_matrix(rows).asformat(kind)
    out = io.BytesIO()
    sp.save_npz(out, X)
    out.seek(0)
    with np.load(out) as file:
        return {name: file[name] for name in file.files} | {"y": Y}


def with_entry(kind, name, value):
    """The parts of a sparse matrix, with another number in the middle of one of them."""
    arrays = parts_of(kind)
    arrays[name] = arrays[name].copy()
    arrays[name][len(arrays[name]) // 2] = value
    return arrays


def test_sparse_matrices_of_many_columns_are_read(tmp_path):
    path = npz(tmp_path / "a.npz", parts_of("csr") | {"shape": np.array([8, 10**12])})
    assert load(path).X.shape == (8, 10**12)


def header(shape, descr="<f8", extra=b""):
    head = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) + 1) + head + b"\n" + extra


ENTRIES = [
    ("csc", "indices", 10**9), ("csc", "indices", -5), ("csr", "indices", 10**6),
    ("bsr", "indices", 10**6), ("csc", "indptr", 10**9), ("csr", "indptr", -1), ("coo", "row", 10**9),
    ("coo", "col", -(2**31)), ("dia", "offsets", 2**30), ("bsr", "indptr", 10**9),
]  # fmt: skip
PARTS = [
    {"shape": np.array([10**12, 4])}, {"shape": np.array([8.0, 4.0])}, {"shape": np.array([-8, 4])},
    {"indices": np.zeros(3)}, {"indptr": np.zeros((3, 3), int)}, {"data": np.array(["a"])},
    {"format": np.array("xyz")}, {"format": np.zeros(2)}, {"indices": np.zeros(1, int)},
]  # fmt: skip
HEADERS = [
    *(header("(-1, 2)"), header("(1e3, 2)"), header("(2, 2", ""), header("(" * 300), header("(2,)", "<U0")),
    *(b"\x93NUMPY\x01\x00\xff\xff" + b"{" * 300, b""),
]
ONES, TWO = np.ones((2, 2)), np.arange(2)
ARCHIVES = [
    *((with_entry(*entry), "broken: ") for entry in ENTRIES),
    *((parts_of("csr") | changes, "a.npz") for changes in PARTS),
    *(({"X": blob, "y": Y}, "broken") for blob in HEADERS),
    ({"X": header("(10000000000, 100000)"), "y": Y}, "not as long as"),
    ({"X": header("(2, 2)", "|O"), "y": Y}, "Python objects"),
    ({"a": np.ones(3)}, r"there is no array X among \['a'\]"),
    ({"X": np.ones((3, 2)), "y": np.ones(2)}, r"y has the shape \(2,\) where X has 3 rows"),
    ({"X": np.ones(3), "y": np.ones(3)}, r"X is float64 of shape \(3,\)"),
    ({"X": np.array([[1, 2], [3, np.nan]]), "y": TWO}, "row 2 of X is not finite"),
    (parts_of("csr", np.diag([1.0, np.inf])) | {"y": TWO}, "row 2 of X is not finite"),
    ({"X": ONES, "y": np.array([1, np.inf])}, "y is not of finite numbers"),
    ({"X": ONES, "y": TWO, "feature_names": np.array(["a"])}, "1 feature_names"),
    ({"X": ONES, "y": TWO, "feature_names": TWO}, "not strings"),
    ({"X": ONES, "y": TWO, "feature_names": np.array("ab")}, "1 feature_names for 2"),
    ({"X": ONES, "y": TWO, "qid": np.array([0.5, 1])}, "whole numbers"),
    ({"X": ONES, "y": TWO, "qid": np.array([2**63, 1], np.uint64)}, "whole numbers"),
    ({"X": ONES, "y": TWO, "qid": np.arange(3)}, r"qid has the shape \(3,\) where X has 2 rows"),
]


@pytest.mark.parametrize(("arrays", "message"), ARCHIVES, ids=itertools.count())
def test_broken_arrays_of_archives_are_refused(arrays, message, tmp_path):
    with pytest.raises(DataError, match=message):
        load(npz(tmp_path / "a.npz", arrays))


def test_changed_array_fails_its_checksum(tmp_path):
    path = tmp_path / "a.npz"
    blob = bytearray(mutate.archive({"X.npy": mutate.npy(X), "y.npy": mutate.npy(Y)}, zipfile.ZIP_STORED))
    blob[300] ^= 1
    path.write_bytes(blob)
    with pytest.raises(DataError, match="broken: Bad CRC"):
        load(path)


# ---------------------------------------------------------------- limits
def big(kind, tmp_path):
    """A small file that expands to megabytes."""
    n, path = 60_000, tmp_path / f"a.{kind}"
    if kind == "npz":
        return npz(path, {"X": np.zeros((n, 4)), "y": np.zeros(n)})
    if kind == "npz.gz":
        plain = npz(tmp_path / "a.npz", {"X": np.zeros((8, 4)), "y": np.zeros(8)}).read_bytes()
        path.write_bytes(gzip.compress(plain + bytes(4_000_000)))
    elif kind == "parquet":
        pd.DataFrame({"a": np.zeros(200_000), "y": np.zeros(200_000)}).to_parquet(path)
    else:
        text, pack = {
            "svm.gz": (b"1 1:1 2:2\n" * n, gzip.compress),
            "svm.xz": (b"1 1:1" + b" " * 4_000_000, lzma.compress),
            "csv.bz2": (b"1,2,3\n" * n, bz2.compress),
            "cell.csv.gz": (b'a,y\n1,"' + b"x\n" * 2_000_000, gzip.compress),
            "long.csv.gz": (b"a,y\n1," + b"1" * 4_000_000, gzip.compress),
            "conll.gz": (b"a b c\n" * n, gzip.compress),
        }[kind]
        path.write_bytes(pack(text))
    return path


KINDS = ["npz", "npz.gz", "parquet", "svm.gz", "svm.xz", "csv.bz2", "cell.csv.gz", "long.csv.gz", "conll.gz"]


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_of_large_data_exceed_the_limit(kind, tmp_path, run):
    path = big(kind, tmp_path)
    message = r"more memory than the limit of 1 MB; .*--max-memory"
    if kind == "conll.gz":
        with memory_limited(1), pytest.raises(DataError, match=message):
            load_conll(path)
        return
    with pytest.raises(DataError, match=message):
        load(path, max_memory=1)
    if kind in ("npz", "svm.gz", "csv.bz2", "parquet"):
        assert load(path, max_memory=100).X.shape[0] >= 60_000
        with pytest.raises(DataError, match="limit of 1 MB"):
            load_partitioned([path, path], max_memory=1)
        check_sentence(run("fit", path, "--max-memory", "1", "-o", tmp_path / "m"), "the limit of 1 MB")


def test_streamed_rows_do_not_count(tmp_path, run):
    path = big("svm.gz", tmp_path)
    assert run("convert", path, tmp_path / "a.rsk", "--max-memory", "0.7", "--quiet")[0] == 0
    assert load(tmp_path / "a.rsk", max_memory=0.1).X.shape == (60_000, 2)


# ---------------------------------------------------------------- text
def test_unclosed_quote_in_a_large_table(tmp_path, run):
    path = tmp_path / "a.csv"
    for text, line in (('a,b,y\n1,2,3\n1,"2,3\n', 3), ('a,"b,y\n', 1)):
        path.write_text(text + "4,5,6\n" * 40_000)
        failed = run("fit", path, "--loss", "squared", "-o", tmp_path / "m")
        check_sentence(failed, f"a.csv, line {line}: it is broken: ")


def test_messages_contain_no_control_characters(tmp_path, run):
    path = tmp_path / "\x1b[31mred\u202e.csv"
    path.write_bytes(b"a,b\x1b[2J,y\n1,2\x1b]0;x\x07,3\n1,4,5\n")
    output = tmp_path / "a.rsk"
    for args in (["fit", path, "-o", output], ["predict", path, path], ["convert", path, output]):
        failed = run(*args)
        check_sentence(failed, "\\x1b[31mred")
        assert failed[2].strip().isprintable()
    with pytest.raises(DataError) as error:
        load(path)
    assert str(error.value).isprintable()
    with pytest.raises(FileError) as error:
        riskmin.load_model(path)
    assert str(error.value).isprintable()


def test_loops_of_links_are_refused(tmp_path, run):
    for name in ("a.csv", "a.npz", "a.rsk", "a.svm", "m.riskmin"):
        loop = tmp_path / name
        loop.symlink_to(loop)
        output = tmp_path / "b.rsk"
        for args in (
            ["fit", loop, "-o", output],
            ["predict", loop, loop, "-o", loop],
            ["convert", loop, output],
        ):
            check_sentence(run(*args))


# ---------------------------------------------------------------- stored data
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("which", "name", "at", "put", "message"),
    [
        (0, "indices.npy", 136, b"\xff\xff\xff\x7f", r"beyond the last|checksum"),
        (0, "indptr.npy", 136, b"\xff\xff\xff\x7f", r"beyond the last|checksum"),
        (1, "y.npy", 128, b"\x09", r"codes that are not in meta\.json"),
    ],
)
def test_stores_with_numbers_out_of_range(which, name, at, put, message, verify, tmp_path):
    files = dict(seeds.stores()[which])
    blob = files[name]
    files[name] = blob[:at] + put + blob[at + len(put) :]
    mutate.refresh(files)  # with valid checksums
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(tmp_path, verify=verify, format="rsk")


# ---------------------------------------------------------------- models
@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F8_E5M2", "F4", "x"])
def test_dtypes_unknown_to_numpy(dtype, tmp_path, run):
    blob = mutate.tensors(*seeds.models()["hinge"])
    size = struct.unpack("<Q", blob[:8])[0]
    head = json.loads(blob[8 : 8 + size])
    wide = 4 if dtype == "BF16" else 8
    head["coef"] = {"dtype": dtype, "shape": [wide * 4], "data_offsets": head["coef"]["data_offsets"]}
    text = json.dumps(head).encode()
    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob[8 + size :])
    check_sentence(run("predict", path, path))


def test_models_with_deeply_nested_json(tmp_path, run):
    arrays, meta = seeds.models()["hinge"]
    path = tmp_path / "m"
    depth = 10 * sys.getrecursionlimit()
    path.write_bytes(mutate.tensors(arrays, meta, "[" * depth + "]" * depth))
    check_sentence(run("certify", path, path))
