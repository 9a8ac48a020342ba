"""Rows, labels and weights in the forms that scikit-learn takes, and unpenalized columns."""

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import (
    L1,
    L2,
    LOSSES,
    Elastic,
    KernelRegressor,
    LinearClassifier,
    LinearRegressor,
    Objective,
    OrdinalClassifier,
    certify,
    linear_risk,
    minimize,
)

rng = np.random.default_rng(0)
X = rng.standard_normal((80, 3))
Z = X @ [1.0, -0.5, 0.2] + 0.3 * rng.standard_normal(80)
Y = np.where(Z > 0, 1, 0)


# ---------------------------------------------------------------- weights
@pytest.mark.parametrize(
    "model", [LinearClassifier(), LinearRegressor(), OrdinalClassifier(), KernelRegressor()]
)
def test_a_number_as_sample_weight_counts_for_every_row(model):
    with_number = model.fit(X, Y, sample_weight=2.5).predict(X)
    np.testing.assert_array_equal(with_number, model.fit(X, Y, sample_weight=np.full(80, 2.5)).predict(X))
    with pytest.raises(ValueError, match="at least one weight must be > 0"):
        model.fit(X, Y, sample_weight=0)


# ---------------------------------------------------------------- single precision
@pytest.mark.parametrize("stored", [np.asarray, np.asfortranarray, sp.csr_array, sp.csc_array])
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (LinearClassifier("hinge"), Y),
        (LinearClassifier("logistic", standardize=True), np.digitize(Z, [-0.5, 0.5])),
        (LinearRegressor("squared", regularizer="l1"), Z),
        (LinearRegressor("absolute"), np.column_stack([Z, -Z])),
        (OrdinalClassifier(), np.digitize(Z, [-0.5, 0.5])),
    ],
)
def test_weights_of_rows_in_single_precision_are_in_single_precision(model, y, stored):
    """The certificate is about these weights."""
    model.fit(stored(X.astype(np.float32)), y)
    assert model.coef_.dtype == np.float32
    assert model.gap_ <= model.tol * model.objective_
    assert np.isin(model.coef_, model.result_.w).all()
    if y.ndim == 1:
        assert certify(model, stored(X.astype(np.float32)), y).status == "certified"
    assert model.fit(stored(X), y).coef_.dtype == np.float64


@pytest.mark.filterwarnings("ignore")
def test_weights_whose_rounding_would_break_the_certificate_stay_in_double_precision():
    """A column far from zero: scores are differences of large numbers."""
    far = np.column_stack([1e6 + rng.integers(0, 9, 300), np.ones(300)]).astype(np.float32)
    y = (far[:, 0] - 1e6).astype(float) + 0.01 * rng.standard_normal(300)
    model = LinearRegressor("squared", alpha=1e-12, tol=1e-8).fit(far, y)
    assert model.gap_ <= 1e-6 * model.objective_
    np.testing.assert_array_equal(model.coef_.astype(float), model.result_.w)


# ---------------------------------------------------------------- containers
class InMemory:
    """An array with the methods of a Dask collection and no graph, as those of xarray."""

    def __init__(self, a):
        self.a, self.shape, self.ndim, self.dtype = a, a.shape, a.ndim, a.dtype

    def __len__(self):
        return len(self.a)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.a, dtype=dtype)

    def __dask_graph__(self):
        return None


class Stream:
    """An object that is read as a stream of Arrow only."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("with_dask", [False, True])
def test_arrays_without_a_graph_are_no_dask_collections(with_dask):
    if with_dask:
        pytest.importorskip("dask")
    model = LinearClassifier().fit(InMemory(X), InMemory(Y), sample_weight=InMemory(np.ones(80)))
    np.testing.assert_array_equal(model.coef_, LinearClassifier().fit(X, Y, np.ones(80)).coef_)


@pytest.mark.parametrize(
    "kind",
    ["polars", "polars, lazy", "pyarrow", "a stream", "narwhals", "narwhals, pandas", "narwhals, lazy"],
)
def test_tables_of_every_library_are_read_with_their_names(kind):
    pl, pa, nw = (pytest.importorskip(name) for name in ("polars", "pyarrow", "narwhals"))
    frame = pl.DataFrame(dict(zip("abc", X.T, strict=True)))
    table = {
        "polars": lambda: frame,
        "polars, lazy": lambda: frame.lazy(),
        "pyarrow": lambda: pa.table(frame),
        "a stream": lambda: Stream(pa.table(frame)),
        "narwhals": lambda: nw.from_native(frame),
        "narwhals, pandas": lambda: nw.from_native(frame.to_pandas()),
        "narwhals, lazy": lambda: nw.from_native(frame.lazy()),
    }[kind]()
    model, expected = LinearClassifier().fit(table, Y), LinearClassifier().fit(X, Y)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    np.testing.assert_array_equal(model.predict(table), expected.predict(X))
    assert certify(model, table, Y).status == "certified"
    assert (
        linear_risk(table, 2.0 * Y - 1, "hinge")(np.ones(3))[0]
        == linear_risk(X, 2.0 * Y - 1, "hinge")(np.ones(3))[0]
    )


def test_categories_beside_nullable_integers_are_named():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=list("abc"))
    frame["a"] = pd.array(np.arange(80), dtype="Int64")
    LinearClassifier().fit(frame, Y)
    frame["c"] = pd.Categorical(np.where(Y, "x", "y"))
    with pytest.raises(ValueError, match="column 'c' of X holds text"):
        LinearClassifier().fit(frame, Y)


def complex_tables():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = pd.DataFrame(X, columns=list("abc"))
    mixed = frame.assign(b=(X[:, 1] + 1j))
    return [
        (X + 1j, "X holds"),
        ((X + 1j).astype(object), "X holds"),
        ([[1.0, 2.0], [3.0, 1j]] * 40, "X holds"),
        (sp.csr_array(X + 1j), "X holds"),
        (mixed, "column 'b' of X holds"),
        (mixed.astype({"b": object}), "column 'b' of X holds"),
        (
            pl.DataFrame({"a": X[:, 0], "b": [complex(v) for v in X[:, 1]]}, strict=False),
            "column 'b' of X holds",
        ),
    ]


@pytest.mark.parametrize("k", range(7))
def test_complex_numbers_are_refused_with_a_remedy(k):
    table, what = complex_tables()[k]
    with pytest.raises(
        ValueError, match=f"{what} complex numbers; give their real and imaginary parts"
    ) as raised:
        LinearClassifier().fit(table, Y)
    assert "\n" not in str(raised.value)
    model = LinearRegressor().fit(X[:, : np.shape(table)[1]], Y)
    with pytest.raises(ValueError, match="real and imaginary parts"):
        model.predict(table)


# ---------------------------------------------------------------- unpenalized columns
@pytest.mark.parametrize("kind", [L1, L2, Elastic])
@pytest.mark.parametrize(
    "name", [k for k, loss in LOSSES.items() if loss.separable and loss.task == "classification"]
)
def test_a_factor_of_zero_leaves_a_column_unpenalized(kind, name):
    """With a large lam, all weights but that of the column are nearly zero, and the run is certified."""
    risk = linear_risk(X * [1e3, 1.0, 1.0], 2.0 * Y - 1, name)
    alone = minimize(Objective(linear_risk(X[:, :1], 2.0 * Y - 1, name), L2(1e-12), 1.0), tol=1e-6)
    result = minimize(Objective(risk, kind(weights=[0, 1, 1]), 1e4), tol=1e-6)
    assert result.status == "converged"
    assert result.value == pytest.approx(alone.value, rel=1e-3)
    assert result.lower <= alone.value * (1 + 1e-6)


@pytest.mark.parametrize(("kind", "alpha"), [(L1, 10.0), (L2, 1e6)])
def test_an_unpenalized_column_has_the_weight_of_least_squares(kind, alpha):
    D = X * [0.1, 1.0, 10.0]
    model = LinearRegressor(
        "squared", regularizer=kind([0, 0, 1]), alpha=alpha, fit_intercept=False, tol=1e-8
    )
    expected = np.linalg.lstsq(D[:, :2], Z, rcond=None)[0]
    np.testing.assert_allclose(model.fit(D, Z).coef_[:2], expected, rtol=1e-3)
    assert model.result_.status == "converged"
