"""Rows, labels and weights in the forms that scikit-learn takes, and unpenalized columns."""

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import riskmin as rm
from helpers import ALL_LOSSES, Problem

rng = np.random.default_rng(0)
X = rng.standard_normal((80, 3))
Z = X @ [1.0, -0.5, 0.2] + 0.3 * rng.standard_normal(80)
Y = np.where(Z > 0, 1, 0)


# ---------------------------------------------------------------- single precision
@pytest.mark.filterwarnings("ignore")
def test_weights_whose_rounding_would_break_the_certificate_stay_in_double_precision():
    """A column far from zero: scores are differences of large numbers."""
    far = np.column_stack([1e6 + rng.integers(0, 9, 300), np.ones(300)]).astype(np.float32)
    y = (far[:, 0] - 1e6).astype(float) + 0.01 * rng.standard_normal(300)
    model = rm.LinearRegressor("squared", alpha=1e-12, tol=1e-8).fit(far, y)
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


def test_arrays_without_a_graph_are_no_dask_collections():
    pytest.importorskip("dask")
    model = rm.LinearClassifier().fit(InMemory(X), InMemory(Y), sample_weight=InMemory(np.ones(80)))
    np.testing.assert_array_equal(model.coef_, rm.LinearClassifier().fit(X, Y, np.ones(80)).coef_)


TABLES = {
    "polars": lambda frame, pa, nw: frame,
    "polars, lazy": lambda frame, pa, nw: frame.lazy(),
    "pyarrow": lambda frame, pa, nw: pa.table(frame),
    "a stream": lambda frame, pa, nw: Stream(pa.table(frame)),
    "narwhals": lambda frame, pa, nw: nw.from_native(frame),
    "narwhals, pandas": lambda frame, pa, nw: nw.from_native(frame.to_pandas()),
    "narwhals, lazy": lambda frame, pa, nw: nw.from_native(frame.lazy()),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_every_library_are_read_with_their_names(kind):
    pl, pa, nw = (pytest.importorskip(name) for name in ("polars", "pyarrow", "narwhals"))
    table = TABLES[kind](pl.DataFrame(dict(zip("abc", X.T, strict=True))), pa, nw)
    model, expected = rm.LinearClassifier().fit(table, Y), rm.LinearClassifier().fit(X, Y)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    np.testing.assert_array_equal(model.predict(table), expected.predict(X))
    assert rm.certify(model, table, Y).status == "certified"
    one, other = (rm.linear_risk(rows, 2.0 * Y - 1, "hinge")(np.ones(3))[0] for rows in (table, X))
    assert one == other


# ---------------------------------------------------------------- unpenalized columns
@pytest.mark.parametrize(("k", "loss"), list(enumerate(ALL_LOSSES)))
def test_a_factor_of_zero_leaves_a_column_unpenalized(k, loss):
    """With a large lam, all weights but that of the column are nearly zero."""
    reg = (rm.L1, rm.L2, rm.Elastic)[k % 3](weights=[0, 1, 1, 1])
    problem = Problem(loss, reg, lam=1e4, units=[1e3, 1, 1, 1])
    problem.check(rm.minimize(problem.objective(), tol=1e-6))


# ---------------------------------------------------------------- text
def test_numbers_as_text_are_numbers_and_encoded_text_is_fitted():
    model = rm.LinearClassifier().fit(np.array([["1", "2"], ["3.5", "0"]], dtype=object), [0, 1])
    assert model.n_features_in_ == 2
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "city": ["Rome", "Oslo", "Rome", "Oslo"]})
    encoder = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    model = make_pipeline(encoder, rm.LinearClassifier(alpha=1e-3)).fit(table, [0, 1, 0, 1])
    assert model.predict(table).tolist() == [0, 1, 0, 1]
