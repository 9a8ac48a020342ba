"""standardize=True: what the contract of estimators does not say.

Regularizers of standardized weights, accurate scales, searches, and the command.
"""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from estimator_cases import FAR, HIGH, KINDS, WEIGHT, N, P, RemoteExecutor, X, Z, agree, partitioned
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler

import riskmin as rm

SETTINGS = [
    {"regularizer": "l1"},
    {"regularizer": "elastic"},
    {"regularizer": "qnorm"},
    {"regularizer": "entropy"},
    {"regularizer": "unnormalized_entropy"},
    {"positive": True},
    {"regularizer": "l1", "positive": True},
    {"regularizer": rm.L2([1.0, 2.0, 3.0, 4.0])},
    {"regularizer": rm.L1([1.0, 2.0, 3.0, 4.0])},
    {"regularizer": rm.Box(rm.Elastic(eps=0.1), -0.2, [0.1, 0.2, 0.3, 0.4])},
    {"regularizer": rm.Entropy(prior=0.1)},
    {"regularizer": rm.Quadratic(np.eye(P) + 0.5)},
]
OF_CLASSES = [{"regularizer": name} for name in ("l1", "entropy", "qnorm")]


@pytest.mark.parametrize(
    ("loss", "y", "settings"),
    [
        *((("hinge", "logistic")[k % 2], HIGH, settings) for k, settings in enumerate(SETTINGS)),
        *(("softmax", KINDS, settings) for settings in OF_CLASSES[:2]),
    ],
)
def test_regularizers_apply_to_standardized_weights(loss, y, settings):
    model = rm.LinearClassifier(loss, alpha=1e-2, tol=1e-6, **settings)
    ours = clone(model).set_params(standardize=True).fit(FAR, y)
    scaler = StandardScaler().fit(FAR)
    agree(ours, scaler, clone(model).fit(scaler.transform(FAR), y), FAR)
    if settings in OF_CLASSES and y is HIGH:
        remote = clone(ours).fit(partitioned(FAR, RemoteExecutor()), y)
        assert remote.objective_ == pytest.approx(ours.objective_, rel=5e-6)


def test_a_constant_column_counts_without_an_intercept():
    ones = np.c_[FAR, np.ones(N)]
    model = rm.LinearRegressor("absolute", alpha=1e-3, fit_intercept=False, tol=1e-7)
    ours = clone(model).set_params(standardize=True).fit(ones, Z + 3)
    scaler = StandardScaler(with_mean=False).fit(ones)
    agree(ours, scaler, clone(model).fit(scaler.transform(ones), Z + 3), ones)
    assert ours.coef_[-1] != 0


def scales(rows, weight=None):
    y = np.arange(rows.shape[0]) % 2
    return rm.LinearRegressor(standardize=True).fit(rows, y, weight).scale_


@pytest.mark.parametrize("form", [np.asarray, np.asfortranarray, np.float32, sp.csr_array, sp.csc_array])
def test_scales_are_weighted_standard_deviations(form):
    rows = np.where(np.abs(X) > 0.5, X + 3, 0.0)
    rows = form(np.c_[np.full(N, 7.0), np.zeros(N), rows])
    numbers = rows.toarray() if sp.issparse(rows) else np.asarray(rows, dtype=float)
    mean = np.average(numbers, axis=0, weights=WEIGHT)
    deviation = np.sqrt(np.average((numbers - mean) ** 2, axis=0, weights=WEIGHT))
    np.testing.assert_allclose(scales(rows, WEIGHT), np.r_[1.0, 1.0, deviation[2:]], rtol=1e-10)


def test_scales_of_columns_far_from_zero_are_accurate():
    rng = np.random.default_rng(0)
    centers = np.array([1e9, 1e5, 0.0])
    rows = rng.normal(size=(500, 3)) * [1.0, 1e-3, 1e6] + centers
    exact = np.std((rows - centers).astype(np.longdouble), axis=0).astype(float)
    np.testing.assert_allclose(scales(rows), exact, rtol=1e-9)
    # a column that is constant up to rounding
    wobble = np.full(50, 0.1) * (1 + np.finfo(float).eps * rng.integers(0, 2, 50))
    assert scales(np.c_[wobble, rows[:50, 2]])[0] == 1
    twice = sp.csr_array((np.ones(4), [0, 0, 1, 1], [0, 2, 3, 4]), shape=(3, 2))
    np.testing.assert_allclose(scales(twice), twice.toarray().std(axis=0))


# ---------------------------------------------------------------- the command
def test_the_command_standardizes(tmp_path, run):
    table, model, page = tmp_path / "table.csv", tmp_path / "m", tmp_path / "page.html"
    frame = pd.DataFrame(FAR, columns=["rate", "age", "income", "score"])
    frame.assign(label=np.where(HIGH, "high", "low")).to_csv(table, index=False)
    words = "divided by their standard deviations"
    code, out, err = run("fit", table, "--standardize", "--lam", 1e-2, "-o", model)
    assert (code, err, words in out) == (0, "", True)
    scaled = StandardScaler().fit_transform(FAR)
    inner = rm.LinearClassifier(alpha=1e-2).fit(scaled, HIGH)
    assert rm.load_model(model).objective_ == pytest.approx(inner.objective_, rel=2e-3)
    assert words in run("certify", model, table)[1]
    assert json.loads(run("certify", model, table, "--json")[1])["standardized"] is True
    assert "standardized" not in run("fit", table, "--lam", 1e-2, "-o", tmp_path / "plain")[1]
    assert words in run("cv", table, "--standardize", "--n-lams", 2, "--folds", 2, "-o", model)[1]
    assert rm.load_model(model).scale_.shape == (P,)
    path = ("path", table, "--standardize", "--loss", "logistic", "--reg", "l1", "--n-lams", 3)
    second = json.loads(run(*path, "--json")[1])["path"][1]
    inner = rm.LinearClassifier("logistic", alpha=second["lam"], regularizer="l1").fit(scaled, HIGH)
    assert second["objective"] == pytest.approx(inner.objective_, rel=2e-3)
    assert words in run(*path, "-o", page)[1]
    assert "standardized" in page.read_text()
