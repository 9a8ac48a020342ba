"""Arrow batches of a Spark task: rows in an order of their own, and hashes that do not depend on storage."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin.data import DataError
from riskmin.spark.arrow import RowReader
from riskmin.spark.row_order import hash_rows

pa = pytest.importorskip("pyarrow")
F64 = np.dtype(np.float64)
STRUCT = pa.struct(
    [("type", pa.int8()), ("size", pa.int32()), ("indices", pa.list_(pa.int32())),
     ("values", pa.list_(pa.float64()))]
)  # fmt: skip


def vector(row):
    """A vector of Spark: dense, or sparse for a dictionary."""
    if isinstance(row, dict):
        return {"type": 0, "size": 5, "indices": list(row), "values": list(row.values())}
    return {"type": 1, "size": None, "indices": None, "values": row}


def batches(X, y, cut):
    """The rows as batches of numeric columns."""
    table = pa.table({f"c{j}": X[:, j] for j in range(X.shape[1])} | {"y": y})
    return [table.slice(i, j - i).combine_chunks().to_batches()[0] for i, j in pairwise(cut)]


def test_any_order_and_any_batches_give_the_same_rows():
    rng = np.random.default_rng(0)
    X, y = rng.integers(-2, 3, (60, 3)).astype(float), rng.choice(["no", "yes"], 60)  # many equal rows
    reader = RowReader(("c0", "c1", "c2"), False, "y", None, None, F64)
    rows, summary = reader(0, batches(X, y, [0, 60]))
    for cut in ([0, 7, 60], [0, 30, 31, 60]):
        order = rng.permutation(60)
        again, same = reader(3, batches(X[order], y[order], cut))
        np.testing.assert_array_equal(again, rows)
        np.testing.assert_array_equal(same.y, summary.y)
        assert same.fingerprint == summary.fingerprint
    # the same pairs of rows and labels as before
    assert sorted(map(str, zip(rows.tolist(), summary.y, strict=True))) == sorted(
        map(str, zip(X.tolist(), y, strict=True))
    )
    changed = y.copy()
    changed[[0, 1]] = "no", "maybe"
    assert reader(0, batches(X, changed, [0, 60]))[1].fingerprint != summary.fingerprint


def test_rows_of_a_query_stay_together():
    rng = np.random.default_rng(1)
    table = pa.table({"a": rng.standard_normal(40), "y": rng.standard_normal(40), "q": np.arange(40) % 7})
    X, summary = RowReader(("a",), False, "y", None, "q", F64)(0, table.to_batches())
    assert (np.diff(summary.qid) >= 0).all()
    pairs = dict(zip(table["a"].to_pylist(), table["q"].to_pylist(), strict=True))
    assert [pairs[a] for a in X[:, 0]] == summary.qid.tolist()


def test_dense_and_sparse_rows_have_the_same_hashes():
    X = sp.random_array((50, 9), density=0.3, rng=np.random.default_rng(0), format="csr")
    X.data[:] = np.round(4 * X.data)  # few different values
    dense = X.toarray()
    np.testing.assert_array_equal(hash_rows(X, 0), hash_rows(dense, 0))
    assert len(np.unique(hash_rows(dense, 0))) == len(np.unique(dense, axis=0))
    assert len(np.unique(hash_rows(dense * 1e-6, 0))) == len(np.unique(dense, axis=0))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[1.0, 2.0, 0, 0, 3.0], [0, 0, 0, 0, 1.0]], [[1, 2, 0, 0, 3], [0, 0, 0, 0, 1]]),
        ([{0: 2.0, 4: 1.0}, {}], [[2, 0, 0, 0, 1], [0, 0, 0, 0, 0]]),
        ([{3: 2.0}, [1.0, 0, 0, 0, 1.0], {}], [[0, 0, 0, 2, 0], [1, 0, 0, 0, 1], [0, 0, 0, 0, 0]]),
    ],
    ids=["dense", "sparse", "mixed"],
)
def test_vectors(rows, expected):
    column = pa.array([vector(row) for row in rows], STRUCT)
    whole = pa.RecordBatch.from_arrays([column, pa.array(np.arange(len(rows)) * 1.0)], ["v", "y"])
    # offsets of a slice do not begin at zero
    for batch, first in ((whole, 0), (whole.slice(1), 1)):
        X, summary = RowReader(("v",), True, "y", None, None, F64)(0, [batch])
        found = X.toarray() if sp.issparse(X) else X
        np.testing.assert_array_equal(found[np.argsort(summary.y)], expected[first:])
        assert summary.sparse == (sp.issparse(X)) == any(isinstance(row, dict) for row in rows[first:])


def test_arrays_of_floats_stay_in_single_precision():
    column = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32()))
    batch = pa.RecordBatch.from_arrays([column], ["v"])
    X, summary = RowReader(("v",), True, None, None, None, np.dtype(np.float32))(0, [batch])
    assert X.dtype == np.float32
    assert summary.y is None


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([[1.0], [1.0, 2.0]]), "part 2 of the DataFrame: the column 'v' has vectors of 1 and of 2"),
        (pa.array([[1.0], None]), "the column 'v' has empty cells; leave out those rows"),
        (pa.array([vector({0: 1.0}), vector([1.0])], STRUCT), "has vectors of 1 and of 5"),
    ],
    ids=["lengths", "empty", "sizes"],
)
def test_vectors_that_cannot_be_used(column, words):
    batch = pa.RecordBatch.from_arrays([column], ["v"])
    with pytest.raises(DataError, match=words):
        RowReader(("v",), True, None, None, None, F64)(2, [batch])
