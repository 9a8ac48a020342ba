"""Tables (CSV, TSV, Parquet) and arrays (.npz): columns and their roles, and errors that name the cell."""

import gzip
import lzma
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from riskmin.data import DataError, load


# ---------------------------------------------------------------- text
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


PREDICT = {"n_features": 2, "require_labels": False}
LARGE = [2**63 - 1, 2**63 - 2, -(2**63) + 1]
QUERY = "a,query,y\n1,7,0\n2,7,1\n3,8,1\n"
ROLES = [
    # text, options, features, y, qid, names
    ("1,2,3\n4,5,6\n", {}, [[1, 2], [4, 5]], [3, 6], None, None),
    ("1,2,3\n4,5,6\n", {"target": 0}, [[2, 3], [5, 6]], [1, 4], None, None),
    ("y,a,b\n1,2,3\n", {}, [[2, 3]], [1], None, ["a", "b"]),
    ("y,a,b\n1,2,3\n", {"target": "b"}, [[1, 2]], [3], None, ["y", "a"]),
    ("y,a,b\n1,2,3\n", {"target": 1}, [[1, 3]], [2], None, ["y", "b"]),
    ("y,a,b\n1,2,3\n", {"target": -1}, [[1, 2]], [3], None, ["y", "a"]),
    ("a,a,b\n1,2,3\n", {"target": 0}, [[2, 3]], [1], None, ["a", "b"]),
    ("a,y\n1,1\n2,x\n3,2\n", {}, [[1], [2], [3]], ["1", "x", "2"], None, ["a"]),
    ('a,class\n1,"cat, black"\n4,"say ""hi"""\n', {}, [[1], [4]], ["cat, black", 'say "hi"'], None, ["a"]),
    ("qid,a,y\n7,1,0\n7,2,1\n", {}, [[1], [2]], [0, 1], [7, 7], ["a"]),
    ("qid,a,y\n7.0,1,0\n7,2,1\n", {}, [[1], [2]], [0, 1], [7, 7], ["a"]),
    (QUERY, {"qid": "query"}, [[1], [2], [3]], [0, 1, 1], [7, 7, 8], ["a"]),
    (QUERY, {"qid": 1}, [[1], [2], [3]], [0, 1, 1], [7, 7, 8], ["a"]),
    (QUERY, {"qid": -2}, [[1], [2], [3]], [0, 1, 1], [7, 7, 8], ["a"]),
    # then the last remaining column is the target
    (QUERY, {"qid": "y"}, [[1], [2], [3]], [7, 7, 8], [0, 1, 1], ["a"]),
    (QUERY, {}, [[1, 7], [2, 7], [3, 8]], [0, 1, 1], None, ["a", "query"]),
    ("7,1,0\n7,2,1\n", {"qid": 0}, [[1], [2]], [0, 1], [7, 7], None),
    ("qid,a,y\n" + "".join(f"{q},1,0\n" for q in LARGE), {}, [[1]] * 3, [0, 0, 0], LARGE, ["a"]),
    ("a,qid,y\n1,u v,0\n2,7,1\n3, u v,2\n", {}, [[1], [2], [3]], [0, 1, 2], ["u v", "7", "u v"], ["a"]),
    ("qid,a,y\nu,1,good\nv,2,bad\n", {}, [[1], [2]], ["good", "bad"], ["u", "v"], ["a"]),
    # for a prediction, the target may be there, missing or empty
    ("a,b,grade\n1,2,3\n", PREDICT, [[1, 2]], [3], None, ["a", "b"]),
    ("a,b,y\n1,2,3\n", PREDICT, [[1, 2]], [3], None, ["a", "b"]),
    ("1,2,3\n", PREDICT, [[1, 2]], [3], None, None),
    ("a,b\n1,2\n", PREDICT, [[1, 2]], None, None, ["a", "b"]),
    ("y,b\n1,2\n", PREDICT, [[1, 2]], None, None, ["y", "b"]),
    ("1,2\n", PREDICT, [[1, 2]], None, None, None),
    ("a,b,y\n1,2,\n", PREDICT, [[1, 2]], None, None, ["a", "b"]),
    ("a,b\n1,2\n", {"require_labels": False}, [[1, 2]], None, None, ["a", "b"]),
    ("a,y\n1,2\n", {"require_labels": False}, [[1]], [2], None, ["a"]),
    ("a,g,b\n1,9,2\n", PREDICT | {"target": "g"}, [[1, 2]], [9], None, ["a", "b"]),
    ("a,b\n1,2\n", PREDICT | {"target": "g"}, [[1, 2]], None, None, ["a", "b"]),
]


@pytest.mark.parametrize(("text", "options", "X", "y", "qid", "names"), ROLES)
def test_roles_of_columns(table, text, options, X, y, qid, names):
    for dtype in (np.float64, np.float32):
        data = load(table(text), dtype=dtype, **options)
        assert data.X.dtype == dtype
        assert data.X.tolist() == X
        assert (data.y if data.y is None else data.y.tolist()) == y
        assert (data.qid if data.qid is None else data.qid.tolist()) == qid
        assert data.feature_names == names


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
def test_errors_name_the_line(table, row, message, label):
    text = f"a,b,y\n1,2,{label}\n  \n3,4,{label}\n" + row.format(label) + f"\n5,6,{label}\n"
    for chunk in (1, None):
        with pytest.raises(DataError, match="a.csv, " + message):
            load(table(text), chunk_bytes=chunk)
    with pytest.raises(DataError, match="a.csv, " + message.replace("line 5", "line 6")):
        load(table("\n" + text))


WIDE = ",".join(f"c{i}" for i in range(100)) + "\n" + ",".join(["1"] * 100) + "\n"
REFUSED = [
    ("1,2,cat\n4,5,dog\n2,2,cat\n", {}, r"line 1|reads as a row of data"),
    ("y,a,b\n1,2,3\n", {"target": "z"}, "there is no column 'z'; the columns are y, a, b"),
    (WIDE, {"target": 100}, r"c0, c1, c2, c3, c4, c5, \.\.\., c99 \(100 in all\)"),
    ("a,a,b\n1,2,3\n", {"target": "a"}, "several columns are called 'a'"),
    ("a,b,a,y\n1,2,3,0\n", {}, "several columns are called 'a'; rename all but one"),
    ("a,b,a,y\n1,2,3,0\n", {"require_labels": False}, "several columns are called 'a'; rename all but one"),
    ("qid,a,y\n7.5,1,0\n", {}, "whole numbers"),
    (f"qid,a,y\n{2**63},1,0\n", {}, "whole numbers"),
    (QUERY, {"qid": "topic"}, "there is no column 'topic'; the columns are a, query, y"),
    (QUERY, {"target": 1, "qid": "query"}, "the column 'query' is both target and qid"),
    ("q,q,a,y\n1,1,2,3\n", {"qid": "q"}, "several columns are called 'q'; give the index of the query ids"),
    ("qid,a,y\n7,1,0\n,2,1\n", {}, "line 3: column 'qid': the cell is empty"),
    ("qid,a,y\nnan,1,0\n", {}, "line 2: column 'qid': 'nan' is not finite"),
    ("a,b,c,d,e\n1,2,3,4,5\n", PREDICT, "4 features where 2 are .*: say which is the target and which the"),
    ("a,b,y\n", {}, "a header and no rows"),
    (b"a,b,y\n1,2,caf\xe9\n", {}, "not text in UTF-8"),
    ("y\n1\n", {}, "no feature beside the target"),
    ("a,y\n1e300,1\n", {"dtype": np.float32}, "too large for float32"),
]


@pytest.mark.parametrize(("text", "options", "message"), REFUSED)
def test_tables_that_are_refused(table, text, options, message):
    with pytest.raises(DataError, match=message):
        load(table(text), **options)


CELLS = [
    *("1", "2.5", "-3e2", ".5", "7", "0", " 2 ", "+1", "5.", "1_0", "nan", "inf", "", "cat", "dog ", '"1"'),
    *("\t3", '"a,b"', '"q""q"', '"l\nl"', 'a"b', '"x"y', ' "z"', "\u00a01", "\uff11", "1e400", "0x1", "1d3"),
    *("NA", "1e"),
]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(CELLS[:6]) | st.sampled_from(CELLS), min_size=2, max_size=4), max_size=4
    ),
    st.sampled_from(["", "a,b,y\n", "qid,y,c,1\n", "\n1,y\n", "\ufeffa,a,target\n"]),
    st.sampled_from(["\n", "\r\n", "\r", "\n \n"]),
    st.fixed_dictionaries({}, optional={"require_labels": st.just(False), "target": st.integers(0, 2)}),
)
def test_pyarrow_makes_no_difference(rows, header, newline, options):
    """Equal bits, labels, names and errors."""
    text = header + "".join(",".join(row) + newline for row in rows)

    def outcome(uses_pyarrow):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            if not uses_pyarrow:
                patch.setitem(sys.modules, "pyarrow", None)
            path = Path(folder, "a.csv")
            path.write_bytes(text.encode())
            try:
                X, y, qid, names = load(path, **options)
            except DataError as error:
                return str(error).replace(folder, "")
        return X.shape, X.tobytes(), *(None if a is None else (a.dtype, a.tolist()) for a in (y, qid)), names

    assert outcome(True) == outcome(False)


# ---------------------------------------------------------------- .npz
def test_npz_with_names_and_without_labels(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(2), feature_names=np.array(["a", "b"]))
    data = load(tmp_path / "a.npz", require_labels=False)
    assert (data.y, data.feature_names) == (None, ["a", "b"])


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
@pytest.mark.parametrize("suffix", ["matrix", "array"])
def test_sparse_matrices_of_every_format_are_read(kind, suffix, tmp_path):
    path = tmp_path / "a.npz"
    entries = sp.random(6, 4, 0.5, rng=np.random.default_rng(0))
    X = getattr(sp, f"{kind}_{suffix}")(entries)
    sp.save_npz(path, X)
    np.testing.assert_array_equal(load(path, require_labels=False).X.toarray(), X.toarray())
    with pytest.raises(DataError, match="there is no array y among"):
        load(path)
    with np.load(path) as file:
        np.savez(path, **dict(file), y=np.arange(6))
    data = load(path)
    assert isinstance(data.X, sp.csr_matrix)
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5]


# ---------------------------------------------------------------- Parquet
@pytest.fixture
def parquet(tmp_path):
    """Writes columns to a Parquet file."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")

    def write(**columns):
        names = columns.pop("names", list(columns))
        arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns.values()]
        pq.write_table(pa.Table.from_arrays(arrays, names=names), tmp_path / "a.parquet", row_group_size=2)
        return tmp_path / "a.parquet"

    return write


def test_parquet(parquet):
    pa = pytest.importorskip("pyarrow")
    flags, classes, three = [True, False, True], ["u", "v", "u"], [1, 2, 3]
    data = load(parquet(a=three, b=[0.5, 1.5, 2.5], flag=flags, qid=[1, 1, 2], label=classes))
    assert data.X.tolist() == [[1, 0.5, 1], [2, 1.5, 0], [3, 2.5, 1]]
    assert (data.y.tolist(), data.qid.tolist()) == (classes, [1, 1, 2])
    assert data.feature_names == ["a", "b", "flag"]
    assert load(parquet(a=three, topic=[7, 7, 8], label=three), qid="topic").qid.tolist() == [7, 7, 8]
    for labels in (classes, [5, 6, 5]):
        assert load(parquet(a=three, y=pa.array(labels).dictionary_encode())).y.tolist() == labels
    path = parquet(a=[1.0, 2.0, 3.0], b=three)
    assert load(path, n_features=2, require_labels=False).y is None
    assert load(path, target="a").y.tolist() == three


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1, 2, None], "y": [1, 2, 3]}, "row 3, column 'a': the cell is empty"),
        ({"a": [1, 2, 3], "qid": [1, None, 3], "y": [0, 1, 2]}, "row 2, column 'qid': the cell is empty"),
        ({"a": ["x", "y", "z"], "y": [1, 2, 3]}, "the column 'a' is text"),
        ({"a": [[1], [2], [3]], "y": [1, 2, 3]}, "the column 'a' is list"),
        ({"a": np.array([1, 2, 3], "M8[ns]"), "y": [1, 2, 3]}, "the column 'a' is timestamp"),
        ({"a": [1.0, np.nan, 3], "y": [1, 2, 3]}, "row 2, column 'a': NaN is not finite"),
        ({"a": [1.0, 2, 3], "y": [1, np.inf, 3]}, "the column 'y' is not finite"),
        ({"a": np.zeros(0), "y": np.zeros(0)}, "it has no rows"),
        ({"a": [1.0], "b": [1.0], "c": [2.0], "names": ["a", "a", "y"]}, "several columns are called 'a'"),
    ],
)
def test_errors_in_parquet(parquet, columns, message):
    path = parquet(**columns)
    with pytest.raises(DataError, match=message):
        load(path)


def test_formats_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=re.escape("pip install 'riskmin[parquet]'")):
        load(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="format is 'xls'"):
        load(tmp_path / "a.csv", format="xls")
