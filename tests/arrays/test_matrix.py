"""Products of every storage format against NumPy, without a copy of the data."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin.problem.linear_risk
from riskmin import Hinge, linear_risk
from riskmin.arrays.compressed import Csc, Csr, CsrWithTranspose
from riskmin.arrays.dense import Dense, DenseFortran
from riskmin.arrays.devices.foreign import ForeignArray
from riskmin.arrays.matrix import as_matrix

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


def wide_index(X):
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


def unsorted(X):
    for i in range(X.shape[0]):
        row = slice(X.indptr[i], X.indptr[i + 1])
        X.indices[row], X.data[row] = X.indices[row][::-1].copy(), X.data[row][::-1].copy()
    X.has_sorted_indices = False
    return X


def with_duplicates(X):
    """Each entry split into two, with explicit zeros."""
    indices = np.repeat(X.indices, 3)
    data = np.stack([0.25 * X.data, 0.75 * X.data, 0 * X.data], axis=1).ravel()
    return type(X)((data, indices, 3 * X.indptr), shape=X.shape)


def window(X):
    big = np.full((2 * N, 3 * P), np.nan)
    big[::2, ::3] = X
    return big[::2, ::3]


FORMATS = {
    "C order": (lambda: entries(), Dense),
    "C order, float32": (lambda: entries(np.float32), Dense),
    "Fortran order": (lambda: np.asfortranarray(entries()), DenseFortran),
    "Fortran order, float32": (lambda: np.asfortranarray(entries(np.float32)), DenseFortran),
    "strided view": (lambda: window(entries()), Dense),
    "reversed view": (lambda: entries()[::-1, ::-1], Dense),
    "int": (lambda: entries(np.int64), Dense),
    "bool": (lambda: entries() != 0, Dense),
    "read only": (lambda: (x := entries(), x.setflags(write=False))[0], Dense),
    "CSR": (lambda: sp.csr_array(entries()), Csr),
    "CSR matrix": (lambda: sp.csr_matrix(entries()), Csr),
    "CSR, int64 indices": (lambda: wide_index(sp.csr_array(entries())), Csr),
    "CSR, float32": (lambda: sp.csr_array(entries(np.float32)), Csr),
    "CSR, int8": (lambda: sp.csr_array(entries(np.int8)), Csr),
    "CSR, unsorted": (lambda: unsorted(sp.csr_array(entries())), Csr),
    "CSR, duplicates": (lambda: with_duplicates(sp.csr_array(entries())), Csr),
    "CSR, empty": (lambda: sp.csr_array((N, P)), Csr),
    "CSC": (lambda: sp.csc_array(entries()), Csc),
    "CSC, int64 indices": (lambda: wide_index(sp.csc_array(entries())), Csc),
    "CSC, float32": (lambda: sp.csc_array(entries(np.float32)), Csc),
    "CSC, duplicates": (lambda: with_duplicates(sp.csc_array(entries())), Csc),
    "COO": (lambda: sp.coo_array(entries()), Csr),
    "LIL": (lambda: sp.lil_array(entries()), Csr),
    "torch": (lambda: torch().as_tensor(entries()), ForeignArray),
    "torch, float32": (lambda: torch().as_tensor(entries(np.float32)), ForeignArray),
}
each_format = pytest.mark.parametrize("name", FORMATS)


def to_dense(X):
    return np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)


def products(M, w, dz, start, stop):
    """Scores and pullback as NumPy arrays; the pullback must add to `out`."""
    is_torch = isinstance(M, ForeignArray)
    z = M.scores(w, start, stop)
    out = np.ones(M.shape[1])
    M.pullback(torch().as_tensor(dz) if is_torch else dz, start, stop, out)
    return np.asarray(z, dtype=np.float64), out - 1


@pytest.mark.slow
@each_format
def test_products_of_every_block(name):
    make, kind = FORMATS[name]
    X = make()
    M, D = as_matrix(X), to_dense(X)
    assert type(M) is kind
    assert M.shape == D.shape
    rng = np.random.default_rng(1)
    tol = 1e-13  # float32 data are summed in float64
    for start in range(N + 1):
        for stop in range(start, N + 1):
            w = rng.standard_normal(P)
            dz = rng.standard_normal(stop - start) * (rng.random(stop - start) < 0.7)
            z, g = products(M, w, dz, start, stop)
            np.testing.assert_allclose(z, D[start:stop] @ w, rtol=tol, atol=10 * tol)
            np.testing.assert_allclose(g, D[start:stop].T @ dz, rtol=tol, atol=100 * tol)


@each_format
def test_blocks_of_every_size_give_the_same_risk(name):
    X = FORMATS[name][0]()
    rng = np.random.default_rng(2)
    w, y = rng.standard_normal(P), np.where(np.arange(N) % 2 == 0, 1.0, -1.0)
    m = 1 - y * (to_dense(X) @ w)
    value, grad = np.mean(np.maximum(m, 0)), -to_dense(X).T @ (y * (m > 0)) / N
    tol = 1e-12
    for rows in range(1, N + 2):
        risk = linear_risk(X, y, Hinge())
        shard = risk.executor.shards[0]
        if not isinstance(shard.X, (Csc, ForeignArray)):
            shard.X.__dict__["block_rows"] = rows  # replaces the cached property
            assert shard.X.block_rows == rows
        v, g = risk(w)
        assert v == pytest.approx(value, rel=tol)
        np.testing.assert_allclose(g, grad, rtol=tol, atol=tol)


@pytest.mark.parametrize(
    "name",
    [
        *("C order", "C order, float32", "Fortran order", "Fortran order, float32", "read only", "torch"),
        *("CSR", "CSR matrix", "CSR, int64 indices", "CSR, float32"),
        *("CSC", "CSC, int64 indices", "CSC, float32"),
    ],
)
def test_the_data_are_not_copied(name):
    X = FORMATS[name][0]()
    y = np.where(np.arange(N) % 2 == 0, 1.0, -1.0)
    for shard in linear_risk(
        X, y, Hinge(), n_shards=1 if sp.issparse(X) and X.format == "csc" else 3
    ).executor.shards:
        M = shard.X
        if sp.issparse(X):
            assert np.shares_memory(M.data, X.data)
            assert np.shares_memory(M.indices, X.indices)
        else:
            assert np.shares_memory(np.asarray(M.T if isinstance(M, DenseFortran) else M.X), np.asarray(X))


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_wide_data_get_a_transpose(index):
    X = sp.csr_array(entries())
    X.indices, X.indptr = X.indices.astype(index), X.indptr.astype(index)
    W = as_matrix(X).with_transpose()
    rng = np.random.default_rng(3)
    for start, stop in [(0, N), (0, 1), (3, 11), (7, 7), (N - 1, N)]:
        w, dz = rng.standard_normal(P), rng.standard_normal(stop - start)
        z, g = products(W, w, dz, start, stop)
        np.testing.assert_allclose(z, entries()[start:stop] @ w, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(g, entries()[start:stop].T @ dz, rtol=1e-13, atol=1e-13)


def test_wide_data_give_the_same_risk(monkeypatch):
    X, y = sp.csr_array(entries()), np.where(np.arange(N) % 2 == 0, 1.0, -1.0)
    w = np.random.default_rng(4).standard_normal(P)
    value, grad = linear_risk(X, y, Hinge(), n_shards=3)(w)
    monkeypatch.setattr(riskmin.problem.linear_risk, "TRANSPOSE_FROM_COLUMNS", 1)
    risk = linear_risk(X, y, Hinge(), n_shards=3)
    assert all(isinstance(s.X, CsrWithTranspose) for s in risk.executor.shards)
    assert all(np.shares_memory(s.X.csr.data, X.data) for s in risk.executor.shards)
    other, h = risk(w)
    assert other == pytest.approx(value, rel=1e-13)
    np.testing.assert_allclose(h, grad, rtol=1e-12, atol=1e-14)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_small_matrix(data):
    n, p = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 6))
    number = st.sampled_from([0.0, 0.0, 1.0, -2.5, 1e8, 1e-8])
    X = np.array(data.draw(st.lists(number, min_size=n * p, max_size=n * p))).reshape(n, p)
    w, dz = np.arange(p) - 1.5, np.arange(n) - 2.0
    for A in (X, np.asfortranarray(X), sp.csr_array(X), sp.csc_array(X)):
        z, g = products(as_matrix(A), w, dz, 0, n)
        np.testing.assert_allclose(z, X @ w, rtol=1e-13, atol=1e-13 * (1 + np.abs(X).max()))
        np.testing.assert_allclose(g, X.T @ dz, rtol=1e-13, atol=1e-12 * (1 + np.abs(X).max()))


@pytest.mark.parametrize("longest", [9, 150])
def test_rows_of_any_length_and_ranges_of_rows(longest):
    rng = np.random.default_rng(4)
    lengths = np.r_[rng.permutation(longest), 0, longest]
    X = np.zeros((len(lengths), longest))
    for row, length in zip(X, lengths, strict=True):
        row[rng.permutation(longest)[:length]] = rng.standard_normal(length)
    w, dz = rng.standard_normal(longest), rng.standard_normal(len(X)) * (rng.random(len(X)) < 0.6)
    for A in (sp.csr_array(X), sp.csc_array(X), np.asfortranarray(X)):
        z, g = products(as_matrix(A), w, dz, 0, len(X))
        np.testing.assert_allclose(z, X @ w, atol=1e-12)
        np.testing.assert_allclose(g, X.T @ dz, atol=1e-12)
        if not isinstance(as_matrix(A), Csc):
            z, g = products(as_matrix(A).rows(3, len(X) - 1), w, dz[5:-2], 2, len(X) - 5)
            np.testing.assert_allclose(z, X[5:-2] @ w, atol=1e-12)
            np.testing.assert_allclose(g, X[5:-2].T @ dz[5:-2], atol=1e-12)


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
