"""The X, y, loss and shards that `linear_risk` accepts, and its error messages for all others."""

import decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp

from helpers import refusals
from riskmin import Hinge, Novelty, Poisson, Serial, Squared, linear_risk

X = np.arange(12.0).reshape(6, 2) % 5
Y = np.array([1.0, -1, 1, -1, 1, -1])
W = np.array([0.5, -0.25])


def risk_of(X, y=Y, loss="hinge", **settings):
    return linear_risk(X, y, loss, **settings)(W)


def assert_same(result):
    expected = risk_of(X)
    assert result[0] == pytest.approx(expected[0], rel=1e-12)
    np.testing.assert_allclose(np.asarray(result[1]), expected[1], rtol=1e-12, atol=1e-15)


def read_only(a):
    a = a.copy()
    a.setflags(write=False)
    return a


def read_only_sparse(kind):
    S = kind(X)
    for a in (S.data, S.indices, S.indptr):
        a.setflags(write=False)
    return S


def torch():
    return pytest.importorskip("torch")


class Frame:
    """A data frame that has only `to_numpy`."""

    def to_numpy(self):
        return X


# ---------------------------------------------------------------- accepted
ACCEPTED = {
    "lists": X.tolist,
    "tuples": lambda: tuple(map(tuple, X)),
    "pandas": lambda: pd.DataFrame(X, columns=["a", "executor"]),  # column names are not taken for arguments
    "pandas, mixed": lambda: pd.DataFrame({"a": X[:, 0].astype(int), "b": X[:, 1]}),
    "pandas, nullable": lambda: pd.DataFrame({"a": pd.array(X[:, 0], dtype="Float64"), "b": X[:, 1]}),
    "polars": lambda: pl.DataFrame({"a": X[:, 0].astype(int), "b": X[:, 1]}),
    "Arrow": lambda: pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}).to_arrow(),
    "to_numpy only": Frame,
    "objects": lambda: X.astype(object),
    "decimals": lambda: [[decimal.Decimal(int(v)) for v in row] for row in X],
    "int": lambda: X.astype(np.int8),
    "float16": lambda: X.astype(np.float16),
    "big endian": lambda: X.astype(">f8"),
    "read only": lambda: read_only(X),
    "read only, Fortran": lambda: read_only(np.asfortranarray(X)),
    "CSR, read only": lambda: read_only_sparse(sp.csr_array),
    "CSC, read only": lambda: read_only_sparse(sp.csc_array),
    **{
        kind: lambda kind=kind: sp.csr_array(X).asformat(kind) for kind in ("bsr", "coo", "dia", "dok", "lil")
    },
    "torch": lambda: torch().as_tensor(X),
    "torch, int": lambda: torch().as_tensor(X.astype(int)),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_data_of_any_kind_are_accepted(kind):
    assert_same(risk_of(ACCEPTED[kind]()))


LABELS = [
    Y[:, None],
    np.asfortranarray(Y[:, None]),
    Y.astype(object),
    Y.astype(int).astype(object),
    Y[:, None].astype(object),
    Y.tolist(),
    [[v] for v in Y],
    read_only(Y),
    pd.Series(Y, index=range(10, 16)),
    pd.DataFrame({"y": Y}),
    pd.Series(Y.astype(int), dtype="Int64"),
    pl.Series(Y),
    pl.DataFrame({"y": Y}),
]


@pytest.mark.parametrize("y", LABELS, ids=lambda y: type(y).__name__)
def test_labels_of_any_kind_are_accepted(y):
    assert_same(risk_of(X, y))
    assert_same(risk_of(torch().as_tensor(X), y))


def test_labels_of_other_libraries_are_accepted():
    assert_same(risk_of(X, torch().as_tensor(Y)))
    assert_same(risk_of(X, torch().as_tensor(Y[:, None]), sample_weight=torch().ones(6)))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1e308, 1e308, 0.5e308, 0, 0, 0], [0.4, 0.4, 0.2, 0, 0, 0]),  # their sum overflows
        (np.full(6, 1e-300), np.full(6, 1 / 6)),
        (np.full(6, 1e300), np.full(6, 1 / 6)),
        (None, np.full(6, 1 / 6)),
        (pd.Series([3, 1, 0, 0, 0, 0]), [0.75, 0.25, 0, 0, 0, 0]),
        (np.array([3, 1, 0, 0, 0, 0], dtype=object), [0.75, 0.25, 0, 0, 0, 0]),
        ((3, 1, 0, 0, 0, 0), [0.75, 0.25, 0, 0, 0, 0]),
        (read_only(np.array([3.0, 1.0, 0, 0, 0, 0])), [0.75, 0.25, 0, 0, 0, 0]),
    ],
)
def test_weights_of_any_kind_and_size_are_normalized(weights, expected):
    """Rows of an identity show the weights as slopes."""
    risk = linear_risk(np.eye(6), Y, "hinge", sample_weight=weights)
    np.testing.assert_allclose(risk(np.zeros(6))[1], -Y * expected, rtol=1e-15)


@pytest.mark.parametrize("size", [1e38, 1e308])
def test_finite_numbers_whose_sum_overflows_are_accepted(size):
    for kind in (np.array, np.asfortranarray, sp.csr_array, sp.csc_array):
        linear_risk(kind(np.full((6, 2), size)), Y, Hinge())


def test_booleans_are_numbers_and_labels_are_ignored_where_none_are_needed():
    for one, other in zip(risk_of(X > 2), risk_of((X > 2).astype(float)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert risk_of(X, None, Novelty())[0] == risk_of(X, list("ababab"), Novelty())[0]


def test_valid_shards_and_executors():
    for n_shards in (None, 1, np.int64(2), 6):
        assert_same(risk_of(X, n_shards=n_shards))
    assert_same(risk_of(X, executor=Serial()))


# ---------------------------------------------------------------- refused
def with_bad_cell(value):
    bad = X.copy()
    bad[3, 1] = value
    bad[5, 0] = value  # a later row, though earlier in column order
    return bad


KINDS = {
    "C order": np.ascontiguousarray,
    "float32": lambda a: a.astype(np.float32),
    "Fortran order": np.asfortranarray,
    "CSR": sp.csr_array,
    "COO": sp.coo_array,
    "torch": lambda a: torch().as_tensor(a),
    "pandas": pd.DataFrame,
}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_bad_cell_is_reported(kind, value):
    with pytest.raises(ValueError, match=r"X holds NaN or infinity \(row 3, column 1\): drop or impute"):
        risk_of(KINDS[kind](with_bad_cell(value)))


TOWNS = {"a": X[:, 0], "town": list("uvwxyz")}
WRONG_X = [
    (np.zeros((6, 0)), "X has 0 columns: there is nothing to fit"),
    (sp.csr_array((6, 0)), "X has 0 columns"),
    (np.zeros((0, 2)), "X has 0 rows: there is nothing to fit"),
    (sp.csr_array((0, 2)), "X has 0 rows"),
    (X + 1j, "X holds complex numbers: give their real and imaginary parts"),
    (sp.csr_array(X + 1j), "X holds complex numbers"),
    (X[:, 0], r"its shape is \(6,\); X.reshape\(-1, 1\) makes one column of it"),
    (sp.coo_array(X[:, 0]), r"its shape is \(6,\)"),
    (X.ravel().tolist(), r"two dimensions, rows and columns, but its shape is \(12,\)"),
    (3.0, r"its shape is \(\)$"),
    (None, r"its shape is \(\)$"),
    (np.zeros((6, 2, 2)), r"its shape is \(6, 2, 2\)$"),
    ([[1.0, 2.0], [3.0]], "the rows of X differ in length"),
    (np.ma.masked_array(X, X > 3), "X is a masked array: drop or fill what is masked first"),
    (X.astype(str), "column 0 of X holds '0.0', which is no number: encode or drop that column"),
    ([[1, "b"]] * 6, "column 1 of X holds 'b', which is no number"),
    (np.array([[1, "b"]] * 6, dtype=object), "column 1 of X holds 'b', which is no number"),
    (np.array([[1, [2]]] * 6, dtype=object), r"column 1 of X holds '\[2\]', which is no number"),
    (X.astype(int).astype("datetime64[s]"), "column 0 of X holds '1970-01-01T00:00:00', which is no number"),
    (pd.DataFrame(TOWNS), "column 'town' of X holds 'u'"),
    (pl.DataFrame(TOWNS), "column 'town' of X holds 'u'"),
    (pl.DataFrame(TOWNS).to_arrow(), "column 'town' of X holds 'u'"),
    (pd.DataFrame({"a": X[:, 0], 7: list("uvwxyz")}), "column 7 of X holds 'u'"),
    (pd.DataFrame({"day": pd.date_range("2020", periods=6)}), "column 'day' of X holds '2020-01-01"),
    (pd.DataFrame({"a": pd.array([1, None] * 3, dtype="Int64"), "b": Y}), "column 'a' of X holds '<NA>'"),
    (pl.DataFrame({"a": [1, None] * 3}), r"X holds NaN or infinity \(row 1, column 0\)"),
    (np.array([[1, None]] * 6, dtype=object), r"X holds NaN or infinity \(row 0, column 1\)"),
    (sp.csc_array(with_bad_cell(np.nan)), r"X holds NaN or infinity \(row 5, column 0\)"),  # as stored
]
WRONG_Y = [
    (1.0, Hinge(), r"y has shape \(\), but X has 6 rows: give one label per row"),
    (Y.reshape(3, 2), Hinge(), r"y has shape \(3, 2\), but X has 6 rows: give one label per row"),
    (Y[None], Hinge(), r"y has shape \(1, 6\), but .* an array of shape \(6,\)"),
    (Y[:4], Hinge(), "y has 4 labels, but X has 6 rows"),
    (Y[:5, None], Hinge(), "y has 5 labels, but X has 6 rows"),
    ([1, [2, 3]], Hinge(), "the rows of y differ in length"),
    (np.array(list("ababab"), dtype=object), Hinge(), r"needs labels -1 and \+1, but y holds 'a', 'b'"),
    (np.array(["1", "-1"] * 3, dtype=object), Hinge(), "needs labels -1 and .1, but y holds '-1', '1'"),
    (list("ababab"), Squared(), "but y holds 'a', 'b', not numbers; turn them into numbers first"),
    (np.array([1, None] * 3, dtype=object), Squared(), "3 of 6 are NaN; drop those rows"),
    (Y + 0j, Hinge(), "y holds complex numbers"),
    (None, Hinge(), "Hinge needs a label for every row, but y is None"),
    (None, Poisson(), "Poisson needs a label for every row, but y is None"),
    (Y, None, "None is not a loss: pass an object with a method value_grad"),
]
WRONG_SETTINGS = [
    ({"sample_weight": np.ones(5)}, "but X has 6 rows: give one weight per row"),
    ({"sample_weight": np.ones((6, 1))}, "give one weight per row"),
    ({"sample_weight": [1, 1, -1, 1, 1, 1]}, "weights must be >= 0"),
    ({"sample_weight": [1, 1, np.nan, 1, 1, 1]}, "weights must be >= 0"),
    ({"sample_weight": [1, 1, np.inf, 1, 1, 1]}, "weights must be >= 0"),
    ({"sample_weight": np.zeros(6)}, "at least one weight must be > 0"),
    ({"sample_weight": ["a"] * 6}, "sample_weight holds something that is no number"),
    ({"sample_weight": [[1, 2], [3]]}, "the rows of sample_weight differ in length"),
    ({"executor": "threads"}, "executor='threads' is no executor: give one such as Threads"),
    *(
        ({"n_shards": n}, "n_shards=.*, but X has 6 rows: give a whole number from 1 to 6")
        for n in (0, -1, 7, 2.0, True, "2")
    ),
]
WRONG = [
    *((lambda X=X: risk_of(X), words) for X, words in WRONG_X),
    *((lambda y=y, loss=loss: risk_of(X, y, loss), words) for y, loss, words in WRONG_Y),
    *((lambda settings=settings: risk_of(X, **settings), words) for settings, words in WRONG_SETTINGS),
    (lambda: risk_of(torch().as_tensor(X + 1j)), "X holds complex numbers"),
    (lambda: risk_of(torch().as_tensor(X[:, 0])), r"its shape is \(6,\)"),
    (lambda: risk_of(torch().zeros((6, 0))), "X has 0 columns"),
    (lambda: risk_of(torch().as_tensor(X), list("ababab"), Novelty()), "turn its labels into numbers first"),
]
test_refusals = refusals((WRONG, (ValueError, TypeError)))
