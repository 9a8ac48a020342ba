"""Readers: bitwise equal to scikit-learn's reader, and errors that name the exact location."""

import bz2
import gzip
import io
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from riskmin.data import DataError, load, load_svmlight, save_svmlight
from riskmin.data.formats.arrow_csv import ArrowCsvReader
from riskmin.data.formats.svmlight import SvmlightReader

AWKWARD = (
    b"# a comment first\r\n"
    b"\n"
    b"1 1:0.5 3:-2 10:+.25\r\n"
    b"  -1.5e0\t2:1e-3   4:5.\t\n"
    b"+3\n"
    b"   \t \n"
    b"0 1:0 2:-0.0 3:00012.5 # explicit zeros\n"
    b"2#no space\n"
    b"1e2 7:1E+5#glued\n"
    b"1 1:123456789012345678901234567890 2:0.1000000000000000055511151231257827 3:9007199254740993\n"
    b"1 1:4.9e-324 2:2.2250738585072011e-308 3:1.7976931348623157e308 4:1_000\n"
    b"1 1:0.000000000000000000000000123 2:1e-400 3:9007199254740992e22 4:1e23 5:8.5e-23\n"
    b"-0 99:1e0"
)


def bits(a):
    return np.asarray(a, np.float64).view(np.int64).tolist()


def assert_same(data, text, **options):
    X, y, qid = load_svmlight_file(io.BytesIO(text), query_id=True, **options)
    assert data.X.shape == X.shape
    assert data.X.dtype == X.dtype
    np.testing.assert_array_equal(data.X.indptr, X.indptr)
    np.testing.assert_array_equal(data.X.indices, X.indices)
    assert bits(data.X.data) == bits(X.data)
    assert data.X.has_canonical_format
    data.X.check_format(full_check=True)
    if options.get("multilabel"):
        assert data.y == y
    else:
        assert bits(data.y) == bits(y)
    assert (data.qid is None) == (len(qid) == 0)
    if data.qid is not None:
        np.testing.assert_array_equal(data.qid, qid)


def read(text, **options):
    return load_svmlight(io.BytesIO(text), **options)


def error(text, **options):
    with pytest.raises(DataError) as caught:
        read(text, **options)
    assert ";" in str(caught.value)  # the part after the semicolon is the remedy
    return str(caught.value)


# ---------------------------------------------------------------- svmlight, as scikit-learn reads it
@pytest.mark.parametrize(
    ("text", "options"),
    [
        (AWKWARD, {}),
        (AWKWARD, {"dtype": np.float64, "n_features": 200}),
        (AWKWARD, {"zero_based": True}),
        (AWKWARD, {"zero_based": False}),
        (b"1 0:1 5:2\n2 3:4\n", {}),
        (b"1 0:1 5:2\n2 3:4\n", {"n_features": 6}),
        (b"1 1:1 5:2\n2 3:4\n", {"n_features": 5}),
        (b"1\n2\n", {}),
        (b"1 qid:3 1:2\n0 qid:-12 4:1\n", {}),
        (b"0,5,7 1:2\n2:3\n7,1.5 1:1\n3\n", {"multilabel": True}),
        (b"1 3000000000:1\n", {"zero_based": True}),
        (b"1 1:0.1 2:16777217 3:1e-40\n", {"dtype": np.float32}),
        (b"1\x0b1:2\x0c2:3\r3:4\n", {}),
    ],
)
def test_same_as_sklearn(text, options):
    if b"3000000000" in text:  # beyond the C int of scikit-learn
        X = read(text, **options).X
        assert X.indices.tolist() == [3000000000]
        assert X.shape == (1, 3000000001)
    else:
        assert_same(read(text, **options), text, **options)


TOKENS = [
    b"1",
    b"-1.5e0",
    b"1:0.5",
    b"2:1e-3",
    b"3:-7",
    b"9:3.14159265358979",
    b"0:1",
    b"qid:3",
    b"# c",
    b"5:",
]
TOKENS += [
    b"7:nan",
    b":3",
    b"1_0",
    b"4:1_0",
    b"2:0x1p3",
    b"9:1e400",
    b"6:1:2",
    b"99999999999:1",
    b"12:1e-320",
]
TOKENS += [b"", b"\t", b"\r", b"\n", b"\n1 1:2"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(TOKENS), max_size=12),
    st.fixed_dictionaries(
        {},
        optional={
            "n_features": st.integers(1, 12),
            "zero_based": st.booleans(),
            "require_labels": st.just(False),
            "dtype": st.just(np.float32),
            "_chunk": st.integers(1, 20),
        },
    ),
)
def test_both_parsers_agree(tokens, options):
    """Small files are parsed without Numba: the same bits, and the same errors."""

    def outcome(n_bytes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SvmlightReader, "INTERPRETED_BYTES", n_bytes)
            try:
                X, y, qid, _ = read(b" ".join(tokens), **options)
            except DataError as error:
                return str(error)
        arrays = [
            None if a is None else (a.dtype, a.tobytes()) for a in (X.data, X.indices, X.indptr, y, qid)
        ]
        return X.shape, arrays

    assert outcome(1000) == outcome(0)


def test_result_does_not_depend_on_chunks():
    for chunk in range(1, len(AWKWARD) + 2):
        assert_same(read(AWKWARD, _chunk=chunk), AWKWARD)


def test_query_ids_and_lines_over_chunks():
    text = b"".join(b"%d qid:%d %d:0.5 # row\n\n" % (i, i // 3, i + 1) for i in range(50))
    for chunk in (1, 7, 64, 1000):
        assert_same(read(text, _chunk=chunk), text)
        assert ", line 101: 'x:1'" in error(text + b"1 qid:9 x:1\n", _chunk=chunk)


FORMATS = [repr, "{:.17g}".format, "{:.16g}".format, "{:.3e}".format, "{:.20e}".format, "{:+.8E}".format]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(FORMATS)),
        min_size=1,
        max_size=40,
    )
)
def test_floats_are_parsed_as_by_python(pairs):
    tokens = [f(x) for x, f in pairs]
    tokens = [t for t in tokens if np.isfinite(float(t))] or ["0"]
    text = f"{tokens[0]} " + " ".join(f"{j + 1}:{t}" for j, t in enumerate(tokens)) + "\n"
    data = read(text.encode())
    assert bits(data.X.data) == bits([float(t) for t in tokens])
    assert bits(data.y) == bits([float(tokens[0])])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.from_regex(
            r"[+-]?([0-9]{1,21}\.?[0-9]{0,21}|\.[0-9]{1,21})([eE][+-]?[0-9]{1,3})?", fullmatch=True
        ),
        min_size=1,
        max_size=40,
    )
)
def test_decimals_are_parsed_as_by_python(tokens):
    tokens = [t for t in tokens if np.isfinite(float(t))] or ["0"]
    text = "1 " + " ".join(f"{j + 1}:{t}" for j, t in enumerate(tokens)) + "\n"
    assert bits(read(text.encode()).X.data) == bits([float(t) for t in tokens])


def test_decimals_near_halfway_cases():
    rng = np.random.default_rng(0)
    floats = rng.integers(1, 2**52, 3000) * 2.0 ** rng.integers(-60, 60, 3000)
    from fractions import Fraction

    tokens = []
    for x in floats:
        half = (Fraction(x) + Fraction(np.nextafter(x, np.inf))) / 2
        scale = 18 - len(str(int(half)))
        digits = int(half * 10**scale) if scale >= 0 else int(half / 10**-scale)
        tokens += [f"{digits + step}e{-scale}" for step in (-1, 0, 1)]
    text = "1 " + " ".join(f"{j}:{t}" for j, t in enumerate(tokens)) + "\n"
    assert bits(read(text.encode()).X.data) == bits([float(t) for t in tokens])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_save_and_load_return_the_same_bits(seed, queries):
    import tempfile
    from pathlib import Path

    rng = np.random.default_rng(seed)
    X = sp.random(8, 6, 0.5, rng=rng).toarray()
    X[0, 5] = np.exp(rng.uniform(-700, 700))
    y, qid = rng.standard_normal(8), np.sort(rng.integers(0, 3, 8)) if queries else None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.svm")
        save_svmlight(path, X, y, qid)
        data = load(path, n_features=6, zero_based=False)
    assert bits(data.X.toarray()) == bits(X)
    assert bits(data.y) == bits(y)
    assert (data.qid is None) == (not queries)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, bz2.compress])
@pytest.mark.parametrize("name", ["data.svm", "data.svm.gz", "data"])
def test_compression_is_detected_by_the_first_bytes(tmp_path, compress, name):
    path = tmp_path / name
    path.write_bytes(compress(AWKWARD))
    assert_same(load(path), AWKWARD)
    assert_same(load_svmlight(str(path), _chunk=11), AWKWARD)


def test_memory_is_little_more_than_the_result():
    import tracemalloc

    text = b"1 1:0.5 2:1 3:2.25 4:8 5:1 6:1 7:1 8:1\n" * 400_000
    file = io.BytesIO(text)
    read(b"1 1:1\n")
    tracemalloc.start()
    X = load_svmlight(file).X
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    result = X.data.nbytes + X.indices.nbytes + 2 * X.indptr.nbytes
    assert peak < 1.25 * result + 25e6


def test_labels_are_optional_for_prediction():
    data = read(b"1:2 3:4\nqid:1\n".replace(b"qid:1\n", b"2:1\n"), require_labels=False)
    assert data.y is None
    assert data.X.toarray().tolist() == [[2, 0, 4], [0, 1, 0]]
    assert read(b"qid:4 1:2\nqid:4 2:1\n", require_labels=False).qid.tolist() == [4, 4]
    assert read(b"3 1:2\n", require_labels=False).y.tolist() == [3]
    assert "line 2: the row has no label, unlike" in error(b"1 1:2\n1:2\n", require_labels=False)
    assert "line 3: the row has a label, unlike" in error(
        b"1:2\n1:1\n5 1:2\n", require_labels=False, _chunk=4
    )


# ---------------------------------------------------------------- svmlight, errors and their locations
@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        (b"abc 1:2", {}, "'abc' is not a number"),
        (b"1:2 2:3", {}, "'1:2' is where the label should be"),
        (b"0,5 1:2", {}, "multilabel=True"),
        (b"0,x 1:2", {"multilabel": True}, "'0,x' is not a number"),
        (b"1 1:abc 2:3", {}, "'abc' is not a number"),
        (b"1 1: 2:3", {}, "'' is not a number"),
        (b"1 1:2:3", {}, "'2:3' is not a number"),
        (b"1 1:0x1p3", {}, "'0x1p3' is not a number"),
        (b"1 1:1e", {}, "'1e' is not a number"),
        (b"1 1:-", {}, "'-' is not a number"),
        (b"1 1:.", {}, "'.' is not a number"),
        (b"1 word", {}, "'word' is not index:value"),
        (b"1 -1:2", {}, "'-1:2' is not index:value"),
        (b"1 1.5:2", {}, "'1.5:2' is not index:value"),
        (b"1 12345678901234567890:2", {}, "is not index:value"),
        (b"1 3:1 2:1", {}, "the index in '2:1' is not above"),
        (b"1 2:1 2:1", {}, "the index in '2:1' is not above"),
        (b"1 6:1", {"n_features": 5}, "the index 6, counted from 1, is beyond n_features=5"),
        (b"1 0:1 5:1", {"n_features": 5}, "the index 5, counted from 0, is beyond n_features=5"),
        (b"1 5:1", {"n_features": 5, "zero_based": True}, "the index 5, counted from 0"),
        (b"1 0:1", {"zero_based": False}, "the index 0 in a file that counts from 1"),
        (b"1 1:nan", {}, "'nan' is not finite"),
        (b"1 1:-Infinity", {}, "'-Infinity' is not finite"),
        (b"1 1:1e999", {}, "'1e999' is not finite"),
        (b"nan 1:1", {}, "'nan' is not finite"),
        (b"1 1:1e39", {"dtype": np.float32}, "too large for float32"),
        (b"1 qid:3 1:1", {}, "the row has 'qid:3', unlike"),
        (b"\x00\xff\xfe binary", {}, "is not a number"),
        (b"1 1:" + b"x" * 500, {}, "...' is not a number"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_errors_name_the_line(row, options, message, chunk):
    text = b"1 1:1\n# comment\n\n2 1:2 3:1\n" + row + b"\n3 1:1\n4 oops\n"
    text_of_error = error(text, **options, _chunk=chunk)
    assert text_of_error.startswith("<stream>, line 5: "), text_of_error
    assert message in text_of_error
    assert len(text_of_error) < 200
    assert "\n" not in text_of_error


def test_query_ids_on_some_rows_only():
    assert "line 3: the row has no qid" in error(b"1 qid:1 1:2\n# c\n1 1:2\n")
    for bad in (b"qid:", b"qid:x", b"qid", b"qidx:3", b"qid:1.5", b"qid:-"):
        assert f"line 1: '{bad.decode()}' is not qid:id" in error(b"1 " + bad + b" 1:2\n")
    for bad in (b"qid:9223372036854775808", b"qid:12345678901234567890"):
        assert "a whole id (of 64 bits)" in error(b"1 " + bad + b" 1:2\n")
    ids = read(b"1 qid:9223372036854775807 1:2\n0 qid:-9223372036854775807 1:1\n").qid
    assert ids.tolist() == [2**63 - 1, -(2**63) + 1]
    assert "'qid:2' is not index:value" in error(b"1 1:2 qid:2\n")


def test_first_of_several_errors_is_reported():
    assert "line 2: 'a' is not a number" in error(b"1 1:1\n1 1:a\n1 2:1 1:1\n")
    assert "line 2: the index in '1:1'" in error(b"1 1:1\n1 2:1 1:1\n1 1:a\n")
    assert "line 1: 'a' is not a number" in error(b"a 2:1 1:1\n")


def test_late_zero_index_makes_an_earlier_index_too_large():
    assert "line 1: the index 3, counted from 0" in error(b"1 3:1\n1 1:1\n1 0:1\n", n_features=3, _chunk=4)


def test_line_of_an_error_far_down():
    text = b"1 1:1\n" * 1_234_566 + b"1 1:oops\n" + b"1 1:1\n" * 10
    assert "<stream>, line 1234567: 'oops' is not a number; write index:value" in error(text)


@pytest.mark.parametrize("text", [b"", b"\n\n", b"# only a comment"])
def test_no_rows(tmp_path, text):
    assert "it has no rows" in error(text)
    for name in ("a.svm", "a.csv"):
        (tmp_path / name).write_bytes(text if name == "a.svm" else text.replace(b"# only a comment", b""))
        with pytest.raises(DataError, match=f"{name}: it has no rows"):
            load(tmp_path / name)


@pytest.mark.parametrize("name", ["a.svm", "a.csv", "a.npz", "a.parquet"])
def test_missing_files_and_folders(tmp_path, name):
    with pytest.raises(DataError, match=f"{name}: there is no such file"):
        load(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=f"{name}: this is a folder"):
        load(tmp_path / name)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
@pytest.mark.parametrize("name", ["a.svm.gz", "a.csv.xz"])
def test_damaged_archives(tmp_path, compress, name):
    row = "{} 1:{}\n" if "svm" in name else "{},{}\n"
    values = np.random.default_rng(0).random((5000, 2)).tolist()
    archive = compress("".join(row.format(*v) for v in values).encode())
    for damaged in (archive[: len(archive) // 2], archive[:9], archive[:1000] + bytes(50) + archive[1050:]):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(DataError, match=rf"{name}: (the compressed|it cannot be read).*get it anew"):
            load(tmp_path / name)


def test_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="use float32 or float64"):
        read(b"1 1:1\n", dtype=np.int32)
    with pytest.raises(ValueError, match="zero_based is 'yes'"):
        read(b"1 1:1\n", zero_based="yes")
    with pytest.raises(TypeError, match="open it as binary"):
        load_svmlight(io.StringIO("1 1:1\n"))
    with pytest.raises(ValueError, match="format is 'xls'"):
        load(tmp_path / "a.csv", format="xls")


# ---------------------------------------------------------------- tables
@pytest.fixture(params=["pyarrow", "own reader"])
def table(tmp_path, request, monkeypatch):
    """Writes a table, which is read by pyarrow, unless that does not accept it, or without it."""
    uses_arrow = request.param == "pyarrow"
    monkeypatch.setattr(ArrowCsvReader, "accepts", lambda table: uses_arrow)

    def write(text, name="a.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a,b,y\n1,2.5,0\n-3e2,.5,1\n", "a.csv"),
        ("a;b;y\r\n1;2.5;0\r\n-3e2;.5;1\r\n", "a.csv"),
        ("a\tb\ty\n1\t2.5\t0\n-3e2\t.5\t1", "a.tsv"),
        ("a\tb\ty\n1\t2.5\t0\n-3e2\t.5\t1", "a.csv"),
        ('\ufeff"a","b",y\n"1", 2.5 ,"0"\n\n-3e2,.5,1\n', "a.csv"),
        ("\n\na,y,b\n1,0,2.5\n-3e2,1,.5\n\n", "a.csv"),
        (gzip.compress(b"a,b,last\n1,2.5,0\n-3e2,.5,1\n", mtime=0), "a.csv.gz"),
        (lzma.compress(b"a,b,class\n1,2.5,0\n-3e2,.5,1\n"), "a.CSV.xz"),
    ],
)
def test_tables(table, text, name):
    X, y, qid, names = load(table(text, name))
    assert X.tolist() == [[1, 2.5], [-300, 0.5]]
    assert X.flags.c_contiguous
    assert y.tolist() == [0, 1]
    assert qid is None
    assert names == ["a", "b"]


def test_tables_without_header(table):
    X, y, _, names = load(table("1,2,3\n4,5,6\n"))
    assert (X.tolist(), y.tolist(), names) == ([[1, 2], [4, 5]], [3, 6], None)
    assert load(table("1,2,3\n4,5,6\n"), target=0).y.tolist() == [1, 4]
    with pytest.raises(DataError, match=r"line 1|reads as a row of data"):
        load(table("1,2,cat\n4,5,dog\n2,2,cat\n"))


def test_targets_of_tables(table):
    path = table("y,a,b\n1,2,3\n")
    assert load(path).y.tolist() == [1]
    assert load(path, target="b").y.tolist() == [3]
    assert load(path, target=1).y.tolist() == [2]
    assert load(path, target=-1).feature_names == ["y", "a"]
    assert load(path, dtype=np.float32).X.dtype == np.float32
    with pytest.raises(DataError, match="there is no column 'z'; the columns are y, a, b"):
        load(path, target="z")
    wide = table(",".join(f"c{i}" for i in range(100)) + "\n" + ",".join(["1"] * 100) + "\n")
    with pytest.raises(DataError, match=r"c0, c1, c2, c3, c4, c5, \.\.\., c99 \(100 in all\)"):
        load(wide, target=100)
    with pytest.raises(DataError, match="several columns are called 'a'"):
        load(table("a,a,b\n1,2,3\n"), target="a")
    assert load(table("a,a,b\n1,2,3\n"), target=0).feature_names == ["a", "b"]
    for labels in (True, False):
        with pytest.raises(DataError, match="several columns are called 'a'; rename all but one"):
            load(table("a,b,a,y\n1,2,3,0\n"), require_labels=labels)


def test_string_labels(table):
    path = table('a,class\n1,"cat, black"\n2,dog\n3,dog\n4,"say ""hi"""\n')
    assert load(path).y.tolist() == ["cat, black", "dog", "dog", 'say "hi"']
    assert load(table("a,y\n1,1\n2,x\n3,2\n")).y.tolist() == ["1", "x", "2"]


def test_query_column(table):
    data = load(table("qid,a,y\n7,1,0\n7,2,1\n"))
    assert data.qid.tolist() == [7, 7]
    assert data.qid.dtype == np.int64
    assert data.feature_names == ["a"]
    with pytest.raises(DataError, match="whole numbers"):
        load(table("qid,a,y\n7.5,1,0\n"))


def test_query_column_of_another_name(table):
    text = "a,query,y\n1,7,0\n2,7,1\n3,8,1\n"
    for column in ("query", 1, -2):
        data = load(table(text), qid=column)
        assert (data.qid.tolist(), data.feature_names, data.y.tolist()) == ([7, 7, 8], ["a"], [0, 1, 1])
    assert load(table(text), qid="y").feature_names == ["a"]  # then the last remaining column is the target
    assert load(table(text)).feature_names == ["a", "query"]
    with pytest.raises(DataError, match="there is no column 'topic'; the columns are a, query, y"):
        load(table(text), qid="topic")
    with pytest.raises(DataError, match="the column 'query' is both target and qid"):
        load(table(text), target=1, qid="query")
    with pytest.raises(DataError, match="several columns are called 'q'; give the index of the query ids"):
        load(table("q,q,a,y\n1,1,2,3\n"), qid="q")
    assert load(table("7,1,0\n7,2,1\n"), qid=0).qid.tolist() == [7, 7]


def test_query_ids_are_exact_integers_or_strings(table):
    large = [2**63 - 1, 2**63 - 2, -(2**63) + 1]
    data = load(table("qid,a,y\n" + "".join(f"{q},1,{k}\n" for k, q in enumerate(large))))
    assert data.qid.tolist() == large
    words = load(table("a,qid,y\n1,blue jeans,0\n2,7,1\n3, blue jeans,2\n"))
    assert words.qid.tolist() == ["blue jeans", "7", "blue jeans"]
    both = load(table("qid,a,y\nu,1,good\nv,2,bad\n"))
    assert (both.qid.tolist(), both.y.tolist()) == (["u", "v"], ["good", "bad"])
    assert load(table("qid,a,y\n7.0,1,0\n7,2,1\n")).qid.tolist() == [7, 7]
    with pytest.raises(DataError, match="line 3: column 'qid': the cell is empty"):
        load(table("qid,a,y\n7,1,0\n,2,1\n"))
    with pytest.raises(DataError, match="line 2: column 'qid': 'nan' is not finite"):
        load(table("qid,a,y\nnan,1,0\n"))
    with pytest.raises(DataError, match="whole numbers"):
        load(table(f"qid,a,y\n{2**63},1,0\n"))


def test_tables_for_prediction(table):
    """Tables with the target, without it, or with an empty target column."""
    options = {"n_features": 2, "require_labels": False}
    for text in ("a,b,grade\n1,2,3\n", "a,b,y\n1,2,3\n", "1,2,3\n"):
        data = load(table(text), **options)
        assert (data.X.tolist(), data.y.tolist()) == ([[1, 2]], [3])
    for text in ("a,b\n1,2\n", "y,b\n1,2\n", "1,2\n", "a,b,y\n1,2,\n"):
        data = load(table(text), **options)
        assert data.X.tolist() == [[1, 2]]
        assert data.y is None
    assert load(table("a,b\n1,2\n"), require_labels=False).X.shape == (1, 2)
    assert load(table("a,y\n1,2\n"), require_labels=False).y.tolist() == [2]
    assert load(table("a,g,b\n1,9,2\n"), target="g", **options).y.tolist() == [9]
    assert load(table("a,b\n1,2\n"), target="g", **options).y is None
    with pytest.raises(
        DataError, match=r"4 features where 2 are expected; .*: say which is the target and which the qid"
    ):
        load(table("a,b,c,d,e\n1,2,3,4,5\n"), **options)


@pytest.mark.parametrize("label", ["0", "cat"])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,x,{}", "line 5: column 'b': 'x' is not a number"),
        ("1,,{}", "line 5: column 'b': the cell is empty"),
        ("1,nan,{}", "line 5: column 'b': 'nan' is not finite"),
        ("1,1_0,{}", "line 5: column 'b': '1_0' is not a number"),
        ("1,2", "line 5: 2 cells where 3 are expected"),
        ("1,2,{},4", "line 5: 4 cells where 3 are expected"),
        ("1,2,", "line 5: column 'y': the cell is empty"),
        ("1,2,nan", "line 5: column 'y': 'nan' is not finite"),
    ],
)
def test_errors_in_tables(table, row, message, label):
    text = f"a,b,y\n1,2,{label}\n  \n3,4,{label}\n" + row.format(label) + f"\n5,6,{label}\n"
    with pytest.raises(DataError, match="a.csv, " + message):
        load(table(text))
    with pytest.raises(DataError, match="a.csv, " + message.replace("line 5", "line 6")):
        load(table("\n" + text))


def test_other_errors_in_tables(table):
    with pytest.raises(DataError, match="a header and no rows"):
        load(table("a,b,y\n"))
    with pytest.raises(DataError, match="not text in UTF-8"):
        load(table(b"a,b,y\n1,2,caf\xe9\n"))
    with pytest.raises(DataError, match="no feature beside the target"):
        load(table("y\n1\n"))
    with pytest.raises(DataError, match="too large for float32"):
        load(table("a,y\n1e300,1\n"), dtype=np.float32)


CELLS = [
    "1",
    "2.5",
    "-3e2",
    ".5",
    "7",
    "0",
    " 2 ",
    "+1",
    "5.",
    "1_0",
    "nan",
    "inf",
    "",
    "cat",
    "dog ",
    '"1"',
    "\t3",
]
CELLS += [
    '"a,b"',
    '"q""q"',
    '"l\nl"',
    'a"b',
    '"x"y',
    ' "z"',
    "\u00a01",
    "\uff11",
    "1e400",
    "0x1",
    "1d3",
    "NA",
    "1e",
]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(CELLS[:6]) | st.sampled_from(CELLS), min_size=2, max_size=4), max_size=4
    ),
    st.sampled_from(["", "a,b,y\n", "qid,y,c,1\n", "\n1,y\n", "\ufeffa,a,target\n"]),
    st.sampled_from(["\n", "\r\n", "\r", "\n \n"]),
    st.fixed_dictionaries({}, optional={"require_labels": st.just(False), "target": st.integers(0, 2)}),
)
def test_pyarrow_reads_tables_as_the_own_reader_does(rows, header, newline, options):
    """Equal bits, labels, names and errors."""
    text = header + "".join(",".join(row) + newline for row in rows)

    def outcome(uses_arrow):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArrowCsvReader, "accepts", lambda table: uses_arrow)
            path = Path(folder, "a.csv")
            path.write_bytes(text.encode())
            try:
                X, y, qid, names = load(path, **options)
            except DataError as error:
                return str(error).replace(folder, "")
        return X.shape, X.tobytes(), *(None if a is None else (a.dtype, a.tolist()) for a in (y, qid)), names

    assert outcome(True) == outcome(False)


def test_tables_of_many_blocks(table, monkeypatch):
    from riskmin.data.formats import text_table

    rows = np.random.default_rng(0).standard_normal((101, 4))
    text = "a,b,c,y\n" + "\n".join(",".join(map(repr, r)) for r in rows.tolist())
    for block in (1, 10, 100, 101, 1000):
        monkeypatch.setattr(text_table, "_BLOCK_MAX_ROWS", block)
        monkeypatch.setattr(ArrowCsvReader, "BLOCK_BYTES", 100 * block)
        monkeypatch.setattr(ArrowCsvReader, "CELL_BYTES", 1)
        data = load(table(text))
        np.testing.assert_array_equal(np.c_[data.X, data.y], rows)


# ---------------------------------------------------------------- npz, Parquet
def test_npz(tmp_path):
    path = tmp_path / "a.npz"
    X, y = np.arange(6).reshape(3, 2), np.array([1, 2, 3])
    np.savez(path, X=X, y=y, qid=y, feature_names=np.array(["a", "b"]))
    data = load(path, dtype=np.float32)
    assert data.X.dtype == np.float32
    assert (data.X.tolist(), data.y.tolist(), data.qid.tolist()) == (X.tolist(), [1, 2, 3], [1, 2, 3])
    assert data.feature_names == ["a", "b"]
    np.savez(path, X=X, y=np.array(["u", "v", "u"]))
    assert load(path).y.tolist() == ["u", "v", "u"]
    np.savez(path, X=X)
    assert load(path, require_labels=False).y is None


def test_query_ids_in_npz(tmp_path):
    path = tmp_path / "a.npz"
    for ids in ([2**62 + 1, 2**62], ["u", "v"]):
        np.savez(path, X=np.eye(2), y=np.arange(2), qid=np.array(ids))
        assert load(path).qid.tolist() == ids
    np.savez(path, X=np.eye(2), y=np.arange(2), qid=np.array([2**63, 1], np.uint64))
    with pytest.raises(DataError, match="whole numbers"):
        load(path)
    np.savez(path, X=np.eye(2), y=np.arange(2), qid=np.arange(3))
    with pytest.raises(DataError, match=r"qid has the shape \(3,\) where X has 2 rows"):
        load(path)


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csc_matrix, sp.coo_matrix, sp.csr_array])
def test_sparse_npz(tmp_path, kind):
    path = tmp_path / "a.npz"
    X = kind(sp.random(5, 4, 0.5, rng=np.random.default_rng(0)))
    sp.save_npz(path, X)
    data = load(path, require_labels=False)
    np.testing.assert_array_equal(data.X.toarray(), X.toarray())
    with pytest.raises(DataError, match="there is no array y among"):
        load(path)
    with np.load(path) as file:
        np.savez(path, **dict(file), y=np.arange(5))
    data = load(path)
    assert isinstance(data.X, sp.csr_matrix)
    assert data.y.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones(3)}, r"there is no array X among \['a'\]"),
        ({"X": np.ones((3, 2)), "y": np.array([1, "a", None], object)}, "Python objects"),
        ({"X": np.ones((3, 2)), "y": np.ones(2)}, r"y has the shape \(2,\) where X has 3 rows"),
        ({"X": np.ones(3), "y": np.ones(3)}, r"X is float64 of shape \(3,\)"),
        ({"X": np.array([[1, 2], [3, np.nan]]), "y": np.ones(2)}, "row 2 of X is not finite"),
        ({"X": np.ones((2, 2)), "y": np.array([1, np.inf])}, "y is not of finite numbers"),
        ({"X": np.ones((2, 2)), "y": np.ones(2), "feature_names": np.array(["a"])}, "1 feature_names"),
        ({"X": np.ones((2, 2)), "y": np.ones(2), "qid": np.array([0.5, 1])}, "whole numbers"),
    ],
)
def test_errors_in_npz(tmp_path, arrays, message):
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message):
        load(path)


def test_broken_npz(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, X=np.ones((3, 2)), y=np.ones(3))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="broken"):
        load(path)
    path.write_bytes(b"no zip at all")
    with pytest.raises(DataError, match=r"this is not an \.npz file"):
        load(path)
    X = sp.csr_matrix(np.eye(3))
    X.indices[1] = 7
    sp.save_npz(path, X)
    with pytest.raises(DataError, match="sparse matrix is broken"):
        load(path, require_labels=False)
    X.indices[1], X.data[2] = 1, np.inf
    sp.save_npz(path, X)
    with pytest.raises(DataError, match="row 3 of X is not finite"):
        load(path, require_labels=False)
    X.data[2] = 1
    sp.save_npz(path, X)
    with pytest.raises(DataError, match="X has 3 features where 4"):
        load(path, require_labels=False, n_features=4)


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"

    def write(**columns):
        pq.write_table(pa.table(columns), path, row_group_size=2)

    write(a=[1, 2, 3], b=[0.5, 1.5, 2.5], flag=[True, False, True], qid=[1, 1, 2], label=["u", "v", "u"])
    data = load(path)
    assert data.X.tolist() == [[1, 0.5, 1], [2, 1.5, 0], [3, 2.5, 1]]
    assert (data.y.tolist(), data.qid.tolist()) == (["u", "v", "u"], [1, 1, 2])
    assert data.feature_names == ["a", "b", "flag"]
    write(a=[1, 2, 3], topic=[2**62 + 1, 2**62, 2**62 + 1], label=[0, 1, 2])
    assert load(path, qid="topic").qid.tolist() == [2**62 + 1, 2**62, 2**62 + 1]
    write(a=[1, 2, 3], qid=["u", "v", "u"], label=[0, 1, 2])
    assert load(path).qid.tolist() == ["u", "v", "u"]
    write(a=[1, 2, 3], qid=[1, None, 3], label=[0, 1, 2])
    with pytest.raises(DataError, match="row 2, column 'qid': the cell is empty"):
        load(path)
    write(a=[1, 2, 3], y=pa.array(["u", "v", "u"]).dictionary_encode())
    assert load(path).y.tolist() == ["u", "v", "u"]
    write(a=[1, 2, 3], y=pa.array([5, 6, 5]).dictionary_encode())
    assert load(path).y.tolist() == [5, 6, 5]
    write(a=[1.0, 2.0, 3.0], b=[1, 2, 3])
    assert load(path, n_features=2, require_labels=False).y is None
    assert load(path, target="a").y.tolist() == [1, 2, 3]
    for columns, message in [
        ({"a": [1, 2, None], "y": [1, 2, 3]}, "row 3, column 'a': the cell is empty"),
        ({"a": ["x", "y", "z"], "y": [1, 2, 3]}, "the column 'a' is text"),
        ({"a": [[1], [2], [3]], "y": [1, 2, 3]}, "the column 'a' is list"),
        ({"a": np.array([1, 2, 3], "M8[ns]"), "y": [1, 2, 3]}, "the column 'a' is timestamp"),
        ({"a": [1.0, np.nan, 3], "y": [1, 2, 3]}, "row 2, column 'a': NaN is not finite"),
        ({"a": [1.0, 2, 3], "y": [1, np.inf, 3]}, "the column 'y' is not finite"),
        ({"a": pa.array([], pa.float64()), "y": pa.array([], pa.float64())}, "it has no rows"),
    ]:
        write(**columns)
        with pytest.raises(DataError, match=message):
            load(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="it cannot be read as Parquet"):
        load(path)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"pip install 'riskmin\[parquet\]'"):
        load(tmp_path / "a.parquet")


def test_import_is_light():
    heavy = "{'numba', 'sklearn', 'pandas', 'pyarrow'}"
    code = f"import sys, riskmin.data; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
