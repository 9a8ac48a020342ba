"""The contract of matrices: products of every storage format against NumPy, without a copy of the data."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import Hinge, linear_risk
from riskmin.arrays.compressed import with_transpose
from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.sequences import Sequences
from riskmin.testing.inputs import storages

N, P = 23, 7


def torch():
    """PyTorch if installed; it is never a dependency."""
    return pytest.importorskip("torch")


def entries(dtype=np.float64):
    rng = np.random.default_rng(0)
    X = np.where(rng.random((N, P)) < 0.4, 4 * rng.standard_normal((N, P)), 0.0)
    X[5] = X[17:19] = 0.0  # empty rows
    X[:, 3] = 0.0  # and an empty column
    return X.astype(dtype)


FORMATS = {
    **{name: lambda name=name: storages(entries())[name] for name in storages(np.eye(2))},
    "Fortran order, float32": lambda: np.asfortranarray(entries(np.float32)),
    "reversed view": lambda: entries()[::-1, ::-1],
    "int": lambda: entries(np.int64),
    "bool": lambda: entries() != 0,
    "CSR matrix": lambda: sp.csr_matrix(entries()),
    "CSR, float32": lambda: sp.csr_array(entries(np.float32)),
    "CSR, int8": lambda: sp.csr_array(entries(np.int8)),
    "CSR, empty": lambda: sp.csr_array((N, P)),
    "CSC, float32": lambda: sp.csc_array(entries(np.float32)),
    "LIL": lambda: sp.lil_array(entries()),
    "torch": lambda: torch().as_tensor(entries()),
    "torch, float32": lambda: torch().as_tensor(entries(np.float32)),
}
each_format = pytest.mark.parametrize("name", FORMATS)


def to_dense(X):
    return np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)


def check_products(M, D, ranges, rng):
    """Scores and pullback of ranges of rows; the pullback must add to `out`, in the library of X."""
    for start, stop in ranges:
        w = rng.standard_normal(D.shape[1])
        dz = rng.standard_normal(stop - start) * (rng.random(stop - start) < 0.7)
        z, out = M.scores(w, start, stop), np.ones(D.shape[1])
        M.pullback(dz if isinstance(z, np.ndarray) else torch().as_tensor(dz), start, stop, out)
        size = 1 + np.abs(D).max(initial=0.0)
        np.testing.assert_allclose(np.asarray(z), D[start:stop] @ w, rtol=1e-13, atol=1e-12 * size)
        np.testing.assert_allclose(out - 1, D[start:stop].T @ dz, rtol=1e-13, atol=1e-11 * size)


RANGES = [(0, N), (0, 1), (3, 11), (7, 7), (5, N), (N - 1, N), (N, N)]


@each_format
def test_products_of_any_rows(name):
    X, rng = FORMATS[name](), np.random.default_rng(1)
    M, D = as_matrix(X), to_dense(X)
    assert M.shape == D.shape
    check_products(M, D, RANGES, rng)
    if name.startswith("CSR"):  # as wide data get
        check_products(with_transpose(M), D, RANGES, rng)


@pytest.mark.parametrize("form", [np.ascontiguousarray, np.asfortranarray, sp.csr_array, sp.csc_array])
def test_many_rows_are_evaluated_in_blocks_and_not_copied(form):
    rng, n = np.random.default_rng(3), 2**16 + 5
    D = np.where(rng.random((n, 12)) < 0.7, rng.standard_normal((n, 12)), 0.0)
    X, y = form(D), np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
    linear_risk(X[:10], y[:10], Hinge())  # what is imported at first use is not counted
    tracemalloc.start()
    risk = linear_risk(X, y, Hinge(), n_shards=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.7 * (X.data.nbytes if sp.issparse(X) else X.nbytes)
    w = rng.standard_normal(12)
    value, grad = risk(w)
    m = 1 - y * (D @ w)
    assert value == pytest.approx(np.mean(np.maximum(m, 0)), rel=1e-12)
    np.testing.assert_allclose(grad, -D.T @ (y * (m > 0)) / n, atol=1e-12)


@pytest.mark.parametrize("longest", [9, 150])
def test_rows_of_any_length_and_ranges_of_rows(longest):
    rng = np.random.default_rng(4)
    lengths = np.r_[rng.permutation(longest), 0, longest]
    X = np.zeros((len(lengths), longest))
    for row, length in zip(X, lengths, strict=True):
        row[rng.permutation(longest)[:length]] = rng.standard_normal(length)
    for A in (X, sp.csr_array(X), sp.csc_array(X), np.asfortranarray(X)):
        check_products(as_matrix(A), X, [(0, len(X))], rng)
        if not (sp.issparse(A) and A.format == "csc"):  # rows of a CSC matrix cannot be cut out
            check_products(as_matrix(A).rows(3, len(X) - 1), X[3:-1], [(2, len(X) - 5)], rng)


def test_float32_data_are_summed_in_float64():
    n = 4000
    X = np.full((2, n), np.float32(0.1))
    w = np.ones(n)
    for A in (X, np.asfortranarray(X), sp.csr_array(X), sp.csc_array(X)):
        exact = n * float(np.float32(0.1))
        np.testing.assert_allclose(as_matrix(A).scores(w, 0, 2), exact, rtol=1e-13)


def test_as_matrix_returns_a_matrix_as_it_is_and_refuses_one_dimension():
    M = as_matrix(np.eye(3))
    assert as_matrix(M) is M
    with pytest.raises(ValueError, match="two dimensions, rows and columns"):
        as_matrix(np.zeros(3))


def test_sequences_are_cut_at_their_ends():
    ends = np.cumsum([3, 1, 4, 1, 5, 9, 2])
    X = Sequences(as_matrix(np.eye(25)), ends)
    for n_parts in (1, 2, 3, 7, 20):
        cut = X.shard_ends(n_parts)
        assert (cut[0], cut[-1]) == (0, 25)
        assert set(cut[1:]) <= set(ends)
        assert len(cut) <= min(n_parts, 7) + 1
    part = X.rows(4, 14)
    assert (part.shape, part.ends.tolist()) == ((10, 25), [4, 5, 10])
    with pytest.raises(ValueError, match="a token each"):
        Sequences(as_matrix(np.eye(3)), np.array([0, 3]))
