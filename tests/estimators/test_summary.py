"""`summary()`: standard errors against statsmodels, repeated rows, and the coverage of intervals."""

import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sklearn
import statsmodels.api as sm
from scipy.stats import norm
from sklearn.exceptions import ConvergenceWarning

from helpers import refusals
from riskmin import GroupLasso, LinearClassifier, LinearClassifierCV, LinearRegressor, Quadratic

TIGHT = {"alpha": 1e-9, "tol": 1e-9, "standardize": True}


def rows(kind, n=120, units=(1e-6, 1.0, 1e6), mean=1e3):
    """Columns in units from 1e-6 to 1e6, one with a mean of a thousand standard deviations."""
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(n, 3))
    z = Z @ [0.8, -0.5, 0.0] + 0.3
    y = {
        "logistic": rng.random(n) < 1 / (1 + np.exp(-z)),
        "poisson": rng.poisson(np.exp(z)),
        "squared": z + rng.normal(size=n),
    }[kind]
    return Z * units + [0.0, mean, 0.0], np.asarray(y, dtype=float)


PLAIN = {"units": 1.0, "mean": 0.0}


def fitted(kind, X, y, weight=None, **settings):
    make = LinearClassifier if kind in ("logistic", "softmax") else LinearRegressor
    return make(kind, **(TIGHT | settings)).fit(X, y, weight)


def glm(kind, X, y, weight=None):
    family = {
        "logistic": sm.families.Binomial,
        "poisson": sm.families.Poisson,
        "squared": sm.families.Gaussian,
    }
    # centered columns in units of their deviations, which statsmodels' pseudoinverse needs; undone below
    Z = sm.add_constant((X - X.mean(0)) / X.std(0))
    return sm.GLM(y, Z, family=family[kind](), freq_weights=weight)


def in_units_of(X, covariance):
    T = np.eye(X.shape[1] + 1)
    T[1:, 1:] /= X.std(0)[:, None]
    T[0, 1:] = -X.mean(0) / X.std(0)
    return np.sqrt(np.diag(T @ covariance @ T.T))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["logistic", "poisson", "squared"])
def test_standard_errors_are_those_of_statsmodels(kind, weighted):
    X, y = rows(kind)
    s = np.random.default_rng(1).integers(0, 4, len(y)).astype(float) if weighted else None
    model = fitted(kind, X, y, s)
    ours = model.summary(X, y, s)
    for covariance, name in (("nonrobust", "hessian"), ("HC0", "sandwich")):
        if weighted and name == "sandwich":  # statsmodels squares these weights; see the repeated rows below
            continue
        theirs = glm(kind, X, y, s).fit(cov_type=covariance, tol=1e-14, maxiter=200)
        found = model.summary(X, y, s, covariance=name)
        np.testing.assert_allclose(found.std_err, in_units_of(X, theirs.cov_params()), rtol=1e-4)
        assert found.method == name
        assert found.precision < 0.05
    assert ours.method == "hessian"  # the default of a likelihood


@pytest.mark.parametrize("covariance", ["hessian", "sandwich"])
def test_standard_errors_of_classes_are_those_of_mnlogit(covariance):
    X, _ = rows("logistic", n=300)
    Z, rng = rows("logistic", n=300, **PLAIN)[0], np.random.default_rng(2)
    y = np.argmax(Z @ rng.normal(size=(3, 3)) + [0.3, 0.0, -0.2] + rng.gumbel(size=(300, 3)), axis=1)
    labels = np.array(["a", "b", "c"])[y]
    ours = fitted("logistic", X, labels).summary(X, labels, covariance=covariance)
    scaled = (X - X.mean(0)) / X.std(0)
    kind = "nonrobust" if covariance == "hessian" else "HC0"
    theirs = sm.MNLogit(y, sm.add_constant(scaled)).fit(disp=False, tol=1e-14, cov_type=kind)
    for j in range(2):
        block, columns = slice(4 * j, 4 * j + 4), slice(1 + 4 * j, 4 + 4 * j)
        errors = in_units_of(X, theirs.cov_params()[block, block])
        np.testing.assert_allclose(ours.std_err[block], errors, rtol=1e-4)
        np.testing.assert_allclose(ours.coef[columns] * X.std(0), theirs.params[1:, j], rtol=1e-3, atol=1e-4)
    assert ours.names[0] == "b: intercept"
    assert ours.names[7] == "c: x2"
    assert ours.heading["base class"] == "a"
    assert ours.precision < 0.05
    assert fitted("logistic", X, labels).summary(X, labels).method == "hessian"
    # weights count rows, also without an intercept and with a penalty
    s = rng.integers(1, 4, 300).astype(float)
    many = np.repeat(np.arange(300), s.astype(int))
    settings = {"alpha": 0.05, "standardize": False, "fit_intercept": False}
    one = fitted("logistic", Z, labels, s, **settings).summary(Z, labels, s, covariance=covariance)
    repeated = fitted("logistic", Z[many], labels[many], **settings)
    two = repeated.summary(Z[many], labels[many], covariance=covariance)
    np.testing.assert_allclose(one.covariance, two.covariance, rtol=1e-4)
    # two classes with two columns of weights: alpha counts half as much as for a single score
    pair = labels != "c"
    soft = fitted("softmax", Z[pair], labels[pair], alpha=0.1, standardize=False)
    single = fitted("logistic", Z[pair], labels[pair], alpha=0.05, standardize=False)
    soft, single = (m.summary(Z[pair], labels[pair], covariance=covariance) for m in (soft, single))
    np.testing.assert_allclose(soft.covariance, single.covariance, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("covariance", ["hessian", "sandwich"])
@pytest.mark.parametrize("kind", ["logistic", "squared"])
def test_a_weight_counts_rows(kind, covariance):
    X, y = rows(kind, n=60)
    s = np.random.default_rng(1).integers(0, 4, len(y))
    one, many = fitted(kind, X, y, s), fitted(kind, np.repeat(X, s, axis=0), np.repeat(y, s))
    ours = one.summary(X, y, s, covariance=covariance)
    theirs = many.summary(np.repeat(X, s, axis=0), np.repeat(y, s), covariance=covariance)
    np.testing.assert_allclose(ours.covariance, theirs.covariance, rtol=1e-4)
    np.testing.assert_allclose(ours.p_value, theirs.p_value, rtol=1e-3)


def test_intervals_of_least_squares_are_exact():
    X, y = rows("squared", n=16, units=1.0)
    ours = fitted("squared", X, y).summary(X, y, level=0.9)
    theirs = sm.OLS(y, sm.add_constant(X)).fit()
    np.testing.assert_allclose(ours.conf_int, theirs.conf_int(0.1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.p_value, theirs.pvalues, rtol=1e-3)
    np.testing.assert_allclose(ours.statistic, theirs.tvalues, rtol=1e-4, atol=1e-4)


def test_the_penalty_is_part_of_the_hessian():
    X, y = rows("logistic", **PLAIN)
    ours = fitted("logistic", X, y, alpha=0.1, standardize=False).summary(X, y)
    Z = sm.add_constant(X)
    p = 1 / (1 + np.exp(-Z @ ours.coef))
    H = Z.T @ ((p * (1 - p))[:, None] * Z) + len(y) * 0.1 * np.diag([0, 1, 1, 1])
    np.testing.assert_allclose(ours.covariance, np.linalg.inv(H), rtol=1e-8)
    # a quadratic form is no sum of squares: its gradient is differentiated
    K = np.diag([1.0, 2.0, 3.0]) + 0.5
    model = fitted(
        "logistic", X, y, alpha=0.1, standardize=False, fit_intercept=False, regularizer=Quadratic(K)
    )
    ours = model.summary(X, y)
    p = 1 / (1 + np.exp(-X @ ours.coef))
    H = X.T @ ((p * (1 - p))[:, None] * X) + len(y) * 0.1 * K
    np.testing.assert_allclose(ours.covariance, np.linalg.inv(H), rtol=1e-6)


def test_class_weights_and_losses_without_likelihood_take_the_sandwich():
    X, y = rows("logistic")
    model = fitted("logistic", X, y, class_weight="balanced", fit_intercept=True)
    assert model.summary(X, y).method == "sandwich"
    X, y = rows("squared")
    huber = LinearRegressor("huber:delta=1e6", **TIGHT).fit(X, y).summary(X, y)  # equal to least squares
    assert huber.method == "sandwich"
    squared = fitted("squared", X, y).summary(X, y, covariance="sandwich")
    np.testing.assert_allclose(huber.std_err, squared.std_err, rtol=1e-4)
    refused = LinearRegressor("huber", **TIGHT).fit(X, y).summary(X, y, covariance="hessian")
    assert "no log-likelihood" in refused.note


class LogCosh:
    """A loss of a user, which is differentiated numerically."""

    separable = smooth = True

    def value_grad(self, z, y, c):
        r = z - y
        return c @ (np.logaddexp(r, -r) - np.log(2)), c * np.tanh(r)


SLOPES = [
    (LogCosh(), np.tanh, lambda r: 1 - np.tanh(r) ** 2),
    ("huber:delta=1", lambda r: np.clip(r, -1, 1), lambda r: abs(r) < 1),
]


@pytest.mark.parametrize(("loss", "slope", "curvature"), SLOPES, ids=["of a user", "huber"])
def test_the_sandwich_is_that_of_slopes_and_curvatures(loss, slope, curvature):
    X, y = rows("squared", **PLAIN)
    ours = LinearRegressor(loss, alpha=1e-8, tol=1e-9).fit(X, y).summary(X, y)
    Z = sm.add_constant(X)
    r = Z @ ours.coef - y
    inverse = np.linalg.inv(Z.T @ (curvature(r)[:, None] * Z))
    expected = inverse @ (Z.T @ ((slope(r) ** 2)[:, None] * Z)) @ inverse
    np.testing.assert_allclose(ours.covariance, expected, rtol=1e-4, atol=1e-7)
    half = norm.ppf(0.975) * ours.std_err
    np.testing.assert_allclose(ours.conf_int, np.c_[ours.coef - half, ours.coef + half], rtol=1e-9)


def test_the_note_names_the_bias_of_a_penalty_and_a_lack_of_rows():
    X, y = rows("poisson")
    for alpha in (0, 1e-6):
        note = fitted("poisson", X, y, alpha=alpha).summary(X, y).note
        assert ("the bias of the penalty" in note) == (alpha > 0)
    X, y = rows("squared", n=4, units=1.0)
    assert "more rows than columns" in fitted("squared", X, y).summary(X, y).note


def test_the_gap_bounds_the_distance_to_the_minimum():
    X, y = rows("poisson")
    rough = fitted("poisson", X, y, tol=1e-2, alpha=1e-6, solver="bundle").summary(X, y)
    exact = fitted("poisson", X, y, tol=1e-9, alpha=1e-6).summary(X, y)
    distance = np.abs(rough.coef - exact.coef) / rough.std_err
    assert distance.max() <= 1.2 * rough.precision  # 1.2: the bound is of second order
    assert "smaller tol" in rough.note
    assert "smaller tol" not in exact.note


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (LinearClassifier("hinge"), "not a smooth sum over rows"),
        (LinearClassifier("roc_area"), "not a smooth sum over rows"),
        (LinearClassifier("logistic", regularizer="l1"), "not smooth"),
        (LinearClassifier("logistic", regularizer=GroupLasso([0, 0, 1]), standardize=True), ": GroupLasso("),
        (LinearClassifier("logistic", positive=True), "not smooth"),
    ],
)
def test_what_has_no_standard_errors_states_why(model, reason):
    X, y = rows("logistic", n=40, **PLAIN)
    summary = model.fit(X, y).summary(X, y)
    assert reason in summary.note
    assert np.isnan(summary.std_err).all()
    np.testing.assert_array_equal(summary.coef[1:], model.coef_[0])
    assert "std err" not in repr(summary)


X40, Y40 = rows("logistic", n=40)
BOTH = np.column_stack([Y40, Y40])
REFUSED = [
    (
        lambda: fitted("logistic", X40, Y40).summary(X40, 1 - Y40),
        "give the X, y, sample_weight and offset of the fit",
    ),
    (lambda: fitted("logistic", X40, Y40, np.ones(40)).summary(X40, Y40), "give sample_weight"),
    (lambda: fitted("logistic", X40, Y40).summary(X40, Y40, level=95), "level=95"),
    (lambda: fitted("logistic", X40, Y40).summary(X40, Y40, covariance="HC9"), "'HC3' or None"),
    (lambda: LinearRegressor().fit(X40, BOTH).summary(X40, BOTH), "fit one model per output"),
]
test_refusals = refusals((REFUSED, ValueError))


def test_tables_sparse_rows_and_searches():
    X, y = rows("logistic", n=80, mean=0.0)
    X = np.where(np.abs(X) > [1e-6, 1, 1e6], X, 0.0)
    table = pd.DataFrame(X, columns=["a<b", "b", "c"])
    search = LinearClassifierCV("logistic", alphas=[1e-6, 1e-3], cv=3, standardize=True, tol=1e-9).fit(
        table, y
    )
    summary = search.summary(table, y)
    assert summary.names == ["intercept", "a<b", "b", "c"]
    best = search.best_estimator_
    same = LinearClassifier("logistic", alpha=best.alpha, standardize=True, tol=1e-9)
    sparse = scipy.sparse.csr_array(X)
    np.testing.assert_allclose(same.fit(sparse, y).summary(sparse, y).std_err, summary.std_err, rtol=1e-4)
    page = ET.fromstring(f"<div>{summary._repr_html_()}</div>")
    assert [cell.text for cell in page.findall(".//tbody/tr/th")] == summary.names
    assert repr(summary).splitlines()[0].startswith("model         LinearClassifier, logistic, l2, alpha=")


# ---------------------------------------------------------------- HTML of estimators
def certificate(page):
    """The rows of the certificate in the HTML of an estimator; empty if there is none."""
    _, found, table = page.partition('<table class="riskmin-certificate">')
    rows = ET.fromstring(found + table).findall(".//tr") if found else []
    return {row[0].text: row[1].text for row in rows}


def test_notebooks_show_the_certificate_below_the_diagram():
    X, y = rows("logistic", n=40)
    model = LinearClassifier("logistic", standardize=True, solver="lbfgs")
    assert certificate(model._repr_html_()) == {}
    model.fit(X, y)
    page = model._repr_html_()
    assert certificate(page) == certificate(model._repr_mimebundle_()["text/html"])
    assert "sk-top-container" in page.partition("riskmin-certificate")[0]  # scikit-learn's diagram first
    shown = certificate(page)
    assert shown["status"] == model.result_.status
    assert shown["solver"] == model.result_.solver
    assert float(shown["objective"]) == pytest.approx(model.objective_, rel=1e-8)
    assert float(shown["proved gap"].partition(",")[0]) == pytest.approx(model.gap_, rel=1e-2)
    with pytest.warns(ConvergenceWarning):
        stopped = LinearClassifier("logistic", max_iter=1, tol=1e-9, solver="lbfgs").fit(X, y)
    assert certificate(stopped._repr_html_())["status"] == "max_iter"
    with sklearn.config_context(display="text"):
        assert "text/html" not in model._repr_mimebundle_()
        assert not hasattr(model, "_repr_html_")


# ---------------------------------------------------------------- corrections, clusters, measures of the fit
GROUPS = np.random.default_rng(5).integers(0, 15, 120)
CLUSTERS = {"cov_type": "cluster", "cov_kwds": {"groups": GROUPS}}
EXACT = {"alpha": 0, "standardize": False, "tol": 1e-12}


@pytest.mark.parametrize("kind", ["HC0", "HC1", "HC2", "HC3"])
def test_corrected_sandwiches_are_those_of_statsmodels(kind):
    X, y = rows("squared", **PLAIN)
    model = fitted("squared", X, y, **EXACT)
    ours = model.summary(X, y, covariance=kind)
    theirs = sm.OLS(y, sm.add_constant(X)).fit(cov_type=kind)
    np.testing.assert_allclose(ours.std_err, theirs.bse, rtol=1e-9)
    assert ours.method == kind
    sparse = scipy.sparse.csr_array(X)
    np.testing.assert_allclose(model.summary(sparse, y, covariance=kind).std_err, ours.std_err, rtol=1e-9)
    # a weight counts rows
    s = np.random.default_rng(1).integers(0, 4, len(y))
    many = np.repeat(np.arange(len(y)), s)
    one = fitted("squared", X, y, s, **EXACT).summary(X, y, s, covariance=kind)
    two = fitted("squared", X[many], y[many], **EXACT).summary(X[many], y[many], covariance=kind)
    np.testing.assert_allclose(one.std_err, two.std_err, rtol=1e-6)


@pytest.mark.parametrize("kind", ["logistic", "poisson", "squared"])
def test_standard_errors_of_clusters_are_those_of_statsmodels(kind):
    X, y = rows(kind)
    model = fitted(kind, X, y)
    ours = model.summary(X, y, groups=GROUPS)
    theirs = glm(kind, X, y).fit(tol=1e-14, maxiter=200, **CLUSTERS)
    np.testing.assert_allclose(ours.std_err, in_units_of(X, theirs.cov_params()), rtol=1e-4)
    assert "cluster" in repr(ours)
    named = model.summary(scipy.sparse.csr_array(X), y, groups=[f"g{k}" for k in GROUPS])
    np.testing.assert_allclose(named.std_err, ours.std_err, rtol=1e-6)


def test_measures_of_least_squares_are_those_of_statsmodels():
    X, y = rows("squared", **PLAIN)
    found, theirs = fitted("squared", X, y, **EXACT).summary(X, y), sm.OLS(y, sm.add_constant(X)).fit()
    ours, test = found.statistics, theirs.f_test(np.eye(4)[1:])
    numbers = [ours.r2, ours.aic, ours.bic, ours.log_likelihood, ours.deviance]
    names = "rsquared", "aic", "bic", "llf", "ssr"
    np.testing.assert_allclose(numbers, [getattr(theirs, name) for name in names], rtol=1e-9)
    np.testing.assert_allclose(found.wald_test()[::2], [test.fvalue, test.pvalue], rtol=1e-8)
    alone = sm.OLS(y, np.ones(len(y))).fit()
    ratio = theirs.compare_lr_test(alone)
    np.testing.assert_allclose(found.likelihood_ratio_test(), [ratio[0], ratio[2], ratio[1]], rtol=1e-9)
    assert "AIC" in repr(found)
    assert "R2" in found._repr_html_()


def test_measures_of_two_classes_are_those_of_statsmodels():
    X, y = rows("logistic", **PLAIN)
    found = fitted("logistic", X, y, **EXACT).summary(X, y)
    ours, theirs = found.statistics, sm.Logit(y, sm.add_constant(X)).fit(disp=0, tol=1e-14)
    numbers = [ours.r2, ours.aic, ours.bic, ours.log_likelihood]
    names = "prsquared", "aic", "bic", "llf"
    np.testing.assert_allclose(numbers, [getattr(theirs, name) for name in names], rtol=1e-8)
    np.testing.assert_allclose(found.likelihood_ratio_test()[::2], [theirs.llr, theirs.llr_pvalue], rtol=1e-7)
    test = theirs.wald_test(np.eye(4)[1:3], scalar=True)
    np.testing.assert_allclose(found.wald_test(["x0", "x1"])[::2], [test.statistic, test.pvalue], rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_measures_of_counts_with_an_offset_are_those_of_statsmodels(weighted):
    X, y = rows("poisson", **PLAIN)
    offset = np.random.default_rng(3).normal(size=len(y))
    s = np.random.default_rng(1).integers(0, 4, len(y)).astype(float) if weighted else None
    model = LinearRegressor("poisson", alpha=0, tol=1e-12).fit(X, y, s, offset=offset)
    ours, D = model.summary(X, y, s, offset=offset).statistics, sm.add_constant(X)
    theirs = sm.GLM(y, D, sm.families.Poisson(), offset=offset, freq_weights=s).fit(tol=1e-14)
    numbers = [ours.deviance, ours.null_deviance, ours.aic, ours.bic, ours.log_likelihood]
    names = "deviance", "null_deviance", "aic", "bic_llf", "llf"
    np.testing.assert_allclose(numbers, [getattr(theirs, name) for name in names], rtol=1e-8)


def test_measures_of_several_classes_are_those_of_mnlogit():
    X, _ = rows("logistic", n=300, **PLAIN)
    y = np.argmax(X @ np.diag([1.0, -1.0, 0.5]) + np.random.default_rng(2).gumbel(size=X.shape), axis=1)
    found = fitted("logistic", X, y, **EXACT).summary(X, y)
    theirs, ours = sm.MNLogit(y, sm.add_constant(X)).fit(disp=0, tol=1e-14), found.statistics
    numbers = [ours.r2, ours.aic, ours.bic, ours.log_likelihood]
    names = "prsquared", "aic", "bic", "llf"
    np.testing.assert_allclose(numbers, [getattr(theirs, name) for name in names], rtol=1e-8)
    np.testing.assert_allclose(found.likelihood_ratio_test()[::2], [theirs.llr, theirs.llr_pvalue], rtol=1e-6)


SQUARES = rows("squared", n=30, **PLAIN)
OF_SQUARES = fitted("squared", *SQUARES)
HUBER = fitted("huber", *SQUARES).summary(*SQUARES)
FEW = GROUPS[:30]
WRONG = [
    (lambda: OF_SQUARES.summary(*SQUARES, covariance="HC4"), "give 'hessian', 'sandwich', .*'HC3' or None"),
    (lambda: OF_SQUARES.summary(*SQUARES, groups=GROUPS), r"groups has shape \(120,\), but X has 30 rows"),
    (lambda: OF_SQUARES.summary(*SQUARES, groups=FEW, covariance="HC1"), "leave covariance out"),
    (lambda: OF_SQUARES.summary(*SQUARES).wald_test(["x9"]), "'x9' is no coefficient: .* intercept, x0"),
    (HUBER.likelihood_ratio_test, "no log-likelihood .*use wald_test"),
]
test_refusals_of_tests = refusals((WRONG, ValueError))


def test_one_group_has_no_standard_errors():
    summary = OF_SQUARES.summary(*SQUARES, groups=np.zeros(30))
    assert "give groups of which there are two or more" in summary.note
    with pytest.raises(ValueError, match="the table has no covariance"):
        summary.wald_test()
    assert HUBER.statistics is None
