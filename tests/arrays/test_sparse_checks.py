"""Inconsistent sparse arrays, points of the wrong length, masked arrays and dates are refused."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin
from riskmin import L2, KernelRegressor, LinearClassifier, LinearRegressor, Objective, linear_risk
from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.sparse_checks import validated_sparse
from riskmin.data import save, save_svmlight
from riskmin.problem.kernel.rkhs import kernel_risk

rng = np.random.default_rng(0)
DENSE = np.where(rng.random((6, 4)) < 0.6, rng.standard_normal((6, 4)), 0.0)
Y = np.array([1.0, -1.0] * 3)


def put(array, place, value):
    return lambda X: getattr(X, array).__setitem__(place, value)


def cast(X, dtype):
    X.indices, X.indptr = X.indices.astype(dtype), X.indptr.astype(np.int64)


FAULTS = {
    "large": put("indices", -1, 10**6),
    "negative": put("indices", 0, -1),
    "decreasing": lambda X: put("indptr", 1, X.indptr[-1])(X),
    "beyond": put("indptr", -1, 10**6),
    "data": lambda X: setattr(X, "data", X.data[:1].copy()),
    # int64 indices that are within range in the lower 32 bits
    "wide": lambda X: (cast(X, np.int64), put("indices", 0, X.indices[0] + 2**32)(X)),
    "first": put("indptr", 0, -3),
    "short": lambda X: setattr(X, "indptr", X.indptr[:-1].copy()),
    "floats": lambda X: cast(X, float),
}
OF_OTHERS = {
    "coo row": lambda X: X.coords[0].__setitem__(-1, 10**6),
    "coo column": lambda X: X.coords[1].__setitem__(-1, -7),
    "dia offset": put("offsets", 0, 2**30),
}
KINDS = [f"{base} {how}" for base in ("csr", "csc") for how in FAULTS]
KINDS += [*(f"bsr {how}" for how in list(FAULTS)[:5]), *OF_OTHERS]


def broken(kind):
    """A matrix of each format with one inconsistency, which bypasses SciPy's checks."""
    base, _, how = kind.partition(" ")
    X = getattr(sp, f"{base}_array")(DENSE if base != "bsr" else sp.csr_array(DENSE))
    (OF_OTHERS.get(kind) or FAULTS[how])(X)
    return X


@pytest.fixture(scope="module")
def fitted():
    return LinearClassifier().fit(DENSE, Y)


@pytest.mark.parametrize("kind", KINDS)
def test_inconsistent_arrays_are_refused_everywhere(kind, fitted, tmp_path):
    X = broken(kind)
    for use in (
        lambda: as_matrix(X),
        lambda: linear_risk(X, Y, "hinge"),
        lambda: LinearClassifier().fit(X, Y),
        lambda: fitted.decision_function(X),
        lambda: KernelRegressor().fit(X, Y),
        lambda: kernel_risk(X, Y, "hinge"),
        lambda: save(tmp_path / "x.rsk", [(X, Y)]),
        lambda: save_svmlight(tmp_path / "x.svm", X, Y),
    ):
        with pytest.raises(ValueError, match=r"not a valid sparse matrix: [^\n]+$"):
            use()


@pytest.mark.parametrize("dtype", ["int16", ">i4", ">i8", "uint32"])
def test_indices_of_unusual_dtypes_are_read_correctly(dtype):
    X = sp.csr_array(DENSE)
    X.indices = X.indices.astype(dtype)
    w = rng.standard_normal(4)
    np.testing.assert_allclose(as_matrix(X).scores(w, 0, 6), DENSE @ w)


def test_duplicates_are_summed_in_their_dtype_as_by_scipy():
    twice = sp.csr_array((np.full(3, 100, np.int8), [1, 0, 1], [0, 3, 3]), shape=(2, 2))
    twice.has_canonical_format = True  # a flag that is out of date
    assert validated_sparse(twice).indices.tolist() == [0, 1]
    assert validated_sparse(twice).data.tolist() == [100, -56]
    assert twice.indices.tolist() == [1, 0, 1]


def test_entries_behind_the_last_row_are_not_read():
    X = sp.csr_array(DENSE)
    X.indices = np.append(X.indices, 99).astype(np.int32)
    X.data = np.append(X.data, np.nan)
    risk = linear_risk(X, Y, "hinge")
    assert risk(np.ones(4))[0] == linear_risk(sp.csr_array(DENSE), Y, "hinge")(np.ones(4))[0]


@pytest.mark.parametrize("shape", [(2, 2**32 + 1), (2**32 + 1, 2)])
def test_more_columns_than_kernels_can_index_are_refused(shape):
    X = sp.coo_array((np.ones(1), ([1], [1])), shape=shape)
    for use in (lambda: as_matrix(X), lambda: LinearClassifier().fit(X, [0, 1])):
        with pytest.raises(ValueError, match="riskmin takes 4,294,967,296 at most"):
            use()


# ---------------------------------------------------------------- points
def risks():
    labels = np.arange(6.0) % 3
    yield linear_risk(DENSE, Y, "hinge")
    yield linear_risk(np.asfortranarray(DENSE), Y, "hinge")
    yield linear_risk(sp.csr_array(DENSE), Y, "hinge", fit_intercept=True)
    yield linear_risk(sp.csc_array(DENSE), Y, "logistic")
    yield linear_risk(DENSE, labels, "softmax")
    yield linear_risk(DENSE, labels, "softmax", fit_intercept=True)
    yield linear_risk(DENSE, Y, "roc_area")
    yield linear_risk(DENSE, Y, riskmin.Nu(riskmin.Hinge(), 0.5), fit_intercept=True)
    yield linear_risk(DENSE, labels, "chain_crf", lengths=[2, 4])
    yield kernel_risk(DENSE, Y, "hinge")[0]


@pytest.mark.parametrize("number", range(10))
def test_points_of_a_wrong_length_are_refused(number):
    risk = list(risks())[number]
    zeros = np.zeros(risk.dim)
    assert np.isfinite(risk(zeros)[0])
    J = Objective(risk, L2(), 0.1)
    for w in (zeros[:-1], np.append(zeros, 0.0), np.tile(zeros, 2), zeros[None, :], np.float64(0.0), [0.0]):
        for use in (lambda w=w: risk(w), lambda w=w: J.value(w), lambda w=w: risk.cursor(w)):
            with pytest.raises(ValueError, match=re.escape(f"this risk takes an array of ({risk.dim},)")):
                use()


@pytest.mark.parametrize("X", [DENSE, np.asfortranarray(DENSE), sp.csr_array(DENSE), sp.csc_array(DENSE)])
def test_a_matrix_refuses_weights_of_a_wrong_length(X):
    for w in (np.zeros(3), np.zeros(5), np.zeros((3, 2))):
        with pytest.raises(ValueError, match="give one per column"):
            as_matrix(X).scores(w, 0, 6)


# ---------------------------------------------------------------- masks and dates
DAYS = np.arange(24).astype("datetime64[D]").reshape(6, 4)


def odd_tables():
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    pa = pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"a": np.arange(6.0), "b": DAYS[:, 0].astype("datetime64[ns]")})
    return {
        "dates": DAYS,
        "times": DAYS - DAYS[0],
        "objects": np.array([[v] for v in DAYS[:, 0]], dtype=object),
        "list": [[v] for v in DAYS[:, 0]],
        "frame": frame,
        "only": frame[["b"]],
        "polars": pl.DataFrame({"a": np.arange(6.0), "b": DAYS[:, 0]}),
        "arrow": pa.table({"b": DAYS[:, 0]}),
    }


@pytest.mark.parametrize("name", ["dates", "times", "objects", "list", "frame", "only", "polars", "arrow"])
def test_dates_are_not_accepted_as_features(name):
    X = odd_tables()[name]
    for model in (LinearClassifier(), LinearRegressor(), KernelRegressor()):
        with pytest.raises(ValueError, match=r"no numbers?: encode it[^\n]+$"):
            model.fit(X, Y)


def test_dates_are_not_accepted_as_labels():
    for model in (LinearClassifier(), LinearRegressor(), KernelRegressor()):
        with pytest.raises(ValueError, match=r"y holds datetime64\[D\], which is no number"):
            model.fit(DENSE, DAYS[:, 0])


def test_masked_arrays_are_refused(fitted):
    X, y = np.ma.array(DENSE, mask=DENSE == 0), np.ma.array(Y, mask=Y > 0)
    for use in (
        lambda: LinearClassifier().fit(X, Y),
        lambda: LinearClassifier().fit(DENSE, y),
        lambda: LinearRegressor().fit(DENSE, y),
        lambda: KernelRegressor().fit(X, Y),
        lambda: fitted.predict(X),
        lambda: fitted.score(X, Y),
    ):
        with pytest.raises(ValueError, match="is a masked array: drop or fill"):
            use()
