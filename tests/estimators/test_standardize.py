"""standardize=True: the problem of a pipeline with a StandardScaler, with weights in units of the data."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.linear_model import Lasso
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from test_partitioned_estimators import GRADE, HIGH, KINDS, QID, SOME, RemoteExecutor, Z, partitioned

import riskmin.problem.preconditioning
from riskmin import (
    L1,
    L2,
    Box,
    Elastic,
    Entropy,
    HierarchicalClassifier,
    LinearClassifier,
    LinearClassifierCV,
    LinearRanker,
    LinearRegressor,
    LinearRegressorCV,
    NoveltyDetector,
    OrdinalClassifier,
    Processes,
    QNorm,
    Quadratic,
    Squared,
    linear_risk,
    load_model,
    save_model,
)
from riskmin.core import UnsupportedProblem
from riskmin.core.limits import LIMITS
from riskmin.core.persist import checksum, load_arrays, save_arrays
from riskmin.estimators.certification import certify
from riskmin.problem.column_moments import column_moments
from riskmin.regularizers import Rescaled, rescaled

N, P = 120, 4
RNG = np.random.default_rng(5)
SIZES, MEANS = np.array([1e-3, 20.0, 3e4, 1.0]), np.array([1.0, -5.0, 1e5, 0.0])
X = np.random.default_rng(0).normal(size=(N, P)) * SIZES + MEANS
"""As those of `test_spread_estimators`, in other units."""

CASES = {
    "hinge": (LinearClassifier(alpha=1e-2), HIGH, {}),
    "weighted": (LinearClassifier("logistic", alpha=1e-2), HIGH, {"sample_weight": SOME}),
    "classes": (LinearClassifier("logistic", alpha=1e-2), KINDS, {}),
    "hinge of classes": (LinearClassifier("hinge", alpha=1e-2), KINDS, {"sample_weight": SOME}),
    "balanced": (LinearClassifier(alpha=1e-1, class_weight="balanced"), HIGH, {"sample_weight": SOME}),
    "two scores": (LinearClassifier("softmax", alpha=1e-1), HIGH, {}),
    "area": (LinearClassifier("roc_area", alpha=1e-1), HIGH, {"sample_weight": np.minimum(SOME, 1)}),
    "table": (LinearClassifier("prbep", alpha=1e-1), HIGH, {}),
    "no intercept": (LinearClassifier(alpha=1e-2, fit_intercept=False), HIGH, {}),
    "squares": (LinearRegressor(alpha=1e-2), Z, {"sample_weight": SOME}),
    "quantile": (LinearRegressor("quantile:level=0.8", alpha=1e-3), Z, {}),
    "outputs together": (LinearRegressor(alpha=1e-2), np.c_[Z, -2 * Z], {}),
    "outputs apart": (LinearRegressor("absolute", alpha=1e-2), np.c_[Z, -2 * Z], {}),
    "novelty": (NoveltyDetector(alpha=1e-2), None, {"sample_weight": SOME}),
    "grades": (OrdinalClassifier(alpha=1e-1), GRADE, {"sample_weight": SOME}),
    "ranking": (LinearRanker(alpha=1e-1), GRADE, {"qid": QID}),
    "ndcg": (LinearRanker("ndcg", alpha=1e-1), GRADE, {"qid": QID}),
    "hierarchy": (HierarchicalClassifier("softmax", alpha=1e-2), KINDS, {"sample_weight": SOME}),
    "hinge of a hierarchy": (HierarchicalClassifier(alpha=1e-1), KINDS, {}),
}
REGULARIZERS = {
    "l1": {"regularizer": "l1"},
    "elastic": {"regularizer": "elastic"},
    "qnorm": {"regularizer": "qnorm"},
    "entropy": {"regularizer": "entropy"},
    "unnormalized_entropy": {"regularizer": "unnormalized_entropy"},
    "positive": {"positive": True},
    "positive l1": {"regularizer": "l1", "positive": True},
    "weights": {"regularizer": L2([1.0, 2.0, 3.0, 4.0])},
    "weights of l1": {"regularizer": L1([1.0, 2.0, 3.0, 4.0])},
    "bounds": {"regularizer": Box(Elastic(eps=0.1), -0.2, [0.1, 0.2, 0.3, 0.4])},
    "simplex": {"regularizer": Entropy(prior=0.1)},
    "quadratic": {"regularizer": Quadratic(np.eye(P) + 0.5)},
}


def standardizing(model, **settings):
    return clone(model).set_params(**{"standardize": True, "tol": 1e-8} | settings)


def pipeline(model, X, y, more, *, with_mean=None, **settings):
    """A pipeline with scikit-learn's scaler: the scaler, and the model of scaled columns."""
    weight = more.get("sample_weight")
    if with_mean is None:
        with_mean = getattr(model, "fit_intercept", False)
    scaler = StandardScaler(with_mean=with_mean).fit(X, sample_weight=weight)
    inner = clone(model).set_params(tol=1e-8, **settings).fit(scaler.transform(X), y, **more)
    return scaler, inner


def agree(ours, scaler, inner, X):
    """Check that J, bounds, weights (after unscaling) and predictions agree."""
    assert ours.objective_ == pytest.approx(inner.objective_, rel=1e-7)
    assert ours.lower_bound_ <= inner.objective_ * (1 + 1e-12)
    assert inner.lower_bound_ <= ours.objective_ * (1 + 1e-12)
    assert np.allclose(ours.scale_, scaler.scale_, rtol=1e-12)
    assert np.allclose(ours.coef_ * ours.scale_, inner.coef_, atol=2e-3 * (1 + abs(inner.coef_).max()))
    name = "decision_function" if hasattr(ours, "decision_function") else "predict"
    z, z_inner = getattr(ours, name)(X), getattr(inner, name)(scaler.transform(X))
    if name == "decision_function" and (
        z.ndim == 2 or ours.task == "ranking"
    ):  # these scores are only compared
        z, z_inner = z - z.mean(axis=-1, keepdims=True), z_inner - z_inner.mean(axis=-1, keepdims=True)
    assert np.allclose(z, z_inner, atol=2e-3 * (1 + abs(z_inner).max()))


# ---------------------------------------------------------------- the problem of a pipeline
@pytest.mark.parametrize("case", CASES)
def test_standardize_agrees_with_a_pipeline(case):
    model, y, more = CASES[case]
    ours = standardizing(model).fit(X, y, **more)
    agree(ours, *pipeline(model, X, y, more), X)
    assert ours.gap_ <= 1e-8 * ours.objective_ or ours.result_.criterion == "atol"
    assert ours.n_features_in_ == P


@pytest.mark.parametrize("reg", REGULARIZERS)
@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_regularizers_apply_to_standardized_weights(loss, reg):
    model = LinearClassifier(loss, alpha=1e-2, **REGULARIZERS[reg])
    ours = standardizing(model).fit(X, HIGH)
    agree(ours, *pipeline(model, X, HIGH, {}), X)


@pytest.mark.parametrize("reg", ["l1", "entropy", "qnorm"])
def test_regularizers_of_multiclass_models(reg):
    model = LinearClassifier("softmax", alpha=1e-2, **REGULARIZERS[reg])
    agree(standardizing(model, max_seconds=60).fit(X, KINDS), *pipeline(model, X, KINDS, {}), X)


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_array, np.asfortranarray])
@pytest.mark.parametrize("case", ["hinge", "classes", "no intercept", "squares", "novelty", "hierarchy"])
def test_sparse_columns_are_scaled_but_not_centered(case, form):
    model, y, more = CASES[case]
    S = sp.random(N, P, 0.6, random_state=1, format="csr") @ sp.diags_array(SIZES)
    ours = standardizing(model).fit(form(S.toarray()), y, **more)
    agree(ours, *pipeline(model, sp.csr_matrix(S), y, more, with_mean=False), S.toarray())


@pytest.mark.parametrize("case", ["hinge", "classes", "squares", "hierarchy", "ranking"])
@pytest.mark.parametrize("reg", ["l2", "l1", "qnorm"])
def test_large_rows_are_not_copied(case, reg, monkeypatch):
    limits = replace(LIMITS, copy_max_entries=0)
    monkeypatch.setattr(riskmin.problem.preconditioning, "LIMITS", limits)
    model, y, more = CASES[case]
    ours = standardizing(model, regularizer=reg, max_seconds=60).fit(X, y, **more)
    monkeypatch.undo()
    agree(ours, *pipeline(model, X, y, more, regularizer=reg), X)


def test_standardize_agrees_with_other_packages():
    y = 3 * Z + 100
    ours = LinearRegressor(alpha=0.1, regularizer="l1", standardize=True, tol=1e-10).fit(X, y)
    theirs = Lasso(alpha=0.1, tol=1e-12).fit(StandardScaler().fit_transform(X), y)
    assert np.allclose(ours.coef_ * ours.scale_, theirs.coef_, atol=1e-5)
    assert ours.objective_ < LinearRegressor(alpha=0.1, regularizer="l1").fit(X, y).objective_ * 10


def test_X_is_not_modified_and_units_do_not_matter():
    original = X.copy()
    model = LinearClassifier(alpha=1e-2, standardize=True, tol=1e-9).fit(X, HIGH)
    assert np.array_equal(X, original)
    units = np.array([1e3, 1e-6, 7.0, 0.1])
    other = LinearClassifier(alpha=1e-2, standardize=True, tol=1e-9).fit(X * units, HIGH)
    assert other.objective_ == pytest.approx(model.objective_, rel=1e-8)
    assert np.allclose(other.coef_ * units, model.coef_, rtol=1e-3, atol=1e-9)
    plain = LinearClassifier(alpha=1e-2).fit(X, HIGH)
    assert plain.scale_ is None
    assert clone(model).get_params()["standardize"] is True


@pytest.mark.parametrize("level", [0.0, 1.0, -3.7, 1e9])
@pytest.mark.parametrize(
    "case", ["hinge", "weighted", "classes", "hinge of classes", "squares", "hierarchy", "area"]
)
def test_constant_columns_get_no_weight(case, level):
    model, y, more = CASES[case]
    wide = np.insert(X, 2, level, axis=1)
    ours = standardizing(model).fit(wide, y, **more)
    without = standardizing(model).fit(X, y, **more)
    assert not np.any(ours.coef_[..., 2])
    assert ours.scale_[2] == 1
    assert ours.objective_ == pytest.approx(without.objective_, rel=1e-7)
    assert np.array_equal(ours.predict(wide), without.predict(X)) or case == "squares"


def test_constant_column_without_an_intercept():
    ones, model = np.c_[X, np.ones(N)], LinearRegressor("absolute", alpha=1e-3, fit_intercept=False)
    ours = standardizing(model).fit(ones, Z + 3)
    agree(ours, *pipeline(model, ones, Z + 3, {}), ones)
    assert ours.coef_[-1] != 0


def test_columns_that_cannot_be_scaled_are_named():
    bad = pd.DataFrame(X, columns=list("abcd")).assign(b=1e-150 * X[:, 1])
    with pytest.raises(
        ValueError, match=r"'b' has a standard deviation of .*e-149, too extreme to divide by"
    ):
        LinearClassifier(standardize=True).fit(bad, HIGH)
    with pytest.raises(ValueError, match=r"weights has shape \(3,\), but w has 4 entries"):
        LinearClassifier(regularizer=L2([1.0, 2.0, 3.0]), standardize=True).fit(X, HIGH)


# ---------------------------------------------------------------- as an estimator
@parametrize_with_checks(
    [
        LinearClassifier("logistic", standardize=True),
        LinearRegressor(standardize=True, alpha=1e-1, tol=1e-10),
        LinearRegressor("huber", regularizer="qnorm:q=1.8", standardize=True, alpha=1e-1, tol=1e-10),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_frames_keep_their_names():
    frame = pd.DataFrame(X, columns=["rate", "age", "income", "score"])
    model = LinearClassifier("logistic", alpha=1e-2, standardize=True).fit(frame, HIGH)
    assert model.feature_names_in_.tolist() == list(frame)
    same = LinearClassifier("logistic", alpha=1e-2, standardize=True).fit(X, HIGH)
    assert np.allclose(model.coef_, same.coef_, rtol=1e-6)
    assert np.array_equal(model.predict(frame), same.predict(X))


@pytest.mark.parametrize("case", ["hinge", "classes", "outputs apart", "hierarchy", "ranking"])
def test_a_warm_start_is_in_the_units_of_the_data(case):
    model, y, more = CASES[case]
    ours = standardizing(model, warm_start=True).fit(X, y, **more)
    before = ours.result_.trace[0]["value"]
    ours.fit(X, y, **more)
    assert ours.result_.trace[0]["value"] <= min(before, ours.objective_ * (1 + 1e-3))


def test_a_checkpoint_is_resumed(tmp_path):
    settings = {"alpha": 1e-3, "standardize": True, "tol": 1e-9, "checkpoint": tmp_path / "run"}
    with pytest.warns(match="max_iter"):
        LinearClassifier(max_iter=3, **settings).fit(X, HIGH)
    resumed = LinearClassifier(**settings).fit(X, HIGH)
    assert resumed.result_.trace[2]["iteration"] == 3
    assert resumed.gap_ <= 1e-9 * resumed.objective_


@pytest.mark.parametrize(
    ("search", "single", "y"),
    [
        (LinearClassifierCV, LinearClassifier("logistic"), HIGH),
        (LinearClassifierCV, LinearClassifier("logistic"), KINDS),
        (LinearRegressorCV, LinearRegressor("huber", regularizer="l1"), Z),
        (LinearRegressorCV, LinearRegressor("absolute"), np.c_[Z, -Z]),
    ],
)
def test_searches_standardize_each_fold(search, single, y):
    wide, folds = np.c_[X, np.ones(N)], KFold(3, shuffle=True, random_state=0)
    wide[0, -1] = 50.0  # constant except in one fold
    params = {k: v for k, v in single.get_params().items() if k in ("loss", "regularizer")}
    fitted = search(alphas=[1e-1, 1e-2], cv=folds, standardize=True, tol=1e-8, **params).fit(wide, y)
    for k, alpha in enumerate(fitted.alphas_):
        chained = make_pipeline(StandardScaler(), clone(single).set_params(alpha=alpha, tol=1e-8))
        assert np.allclose(fitted.scores_[:, k], cross_val_score(chained, wide, y, cv=folds), atol=1e-4)
    assert np.array_equal(fitted.scale_, fitted.best_estimator_.scale_)
    grid = search(n_alphas=3, cv=folds, standardize=True, **params).fit(wide, y).alphas_
    scaled = search(n_alphas=3, cv=folds, **params).fit(StandardScaler().fit_transform(wide), y).alphas_
    assert np.allclose(grid, scaled, rtol=1e-6)


# ---------------------------------------------------------------- remote rows
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_remote_rows(case):
    model, y, more = CASES[case]
    local = standardizing(model).fit(X, y, **more)
    remote = standardizing(model, max_seconds=60).fit(partitioned(X, RemoteExecutor()), y, **more)
    assert np.allclose(remote.scale_, local.scale_, rtol=1e-13)
    assert remote.objective_ == pytest.approx(local.objective_, rel=1e-6)
    assert remote.lower_bound_ <= local.objective_ * (1 + 1e-12)


@pytest.mark.parametrize("reg", ["qnorm", "entropy", "l1"])
def test_remote_rows_with_other_regularizers(reg):
    model = LinearClassifier("logistic", alpha=1e-2, regularizer=reg)
    local, remote = (standardizing(model).fit(rows, HIGH) for rows in (X, partitioned(X, RemoteExecutor())))
    assert remote.objective_ == pytest.approx(local.objective_, rel=1e-6)


def test_processes():
    model = LinearClassifier(alpha=1e-2, standardize=True, class_weight="balanced")
    remote = clone(model).fit(partitioned(X, Processes(n_workers=2)), HIGH, SOME)
    assert np.allclose(remote.scale_, clone(model).fit(X, HIGH, SOME).scale_, rtol=1e-13)


# ---------------------------------------------------------------- files and proofs
@pytest.mark.parametrize(
    "case", [name for name, (_, _, more) in CASES.items() if "sample_weight" not in more]
)
@pytest.mark.parametrize("reg", ["l2", "qnorm"])
def test_files_keep_scales_and_certificates(case, reg, tmp_path):
    model, y, more = CASES[case]
    ours = standardizing(model, regularizer=reg, tol=1e-6).fit(X, y, **more)
    save_model(ours, tmp_path / "m")
    again = load_model(tmp_path / "m")
    assert np.array_equal(again.scale_, ours.scale_)
    assert np.array_equal(again.coef_, ours.coef_)
    assert (again.standardize, again.atol, again.result_.criterion) == (True, None, "tol")
    if np.ndim(y) == 2:  # files have one label per row
        return
    certification = certify(again, X, y, **more)
    assert certification.status == "certified", certification.reason
    assert again.scale_ is not None
    assert certification.value == pytest.approx(ours.objective_, rel=1e-9)


def test_false_scales_are_refuted():
    model = LinearClassifier(alpha=1e-2, standardize=True, tol=1e-6).fit(X, HIGH)
    model.scale_ = model.scale_ * np.array([1, 1, 1 + 1e-5, 1])
    assert certify(model, X, HIGH).status == "refuted"
    model = LinearClassifier(alpha=1e-2, standardize=True).fit(X, HIGH)
    model.standardize = False
    assert "contradict its parameter standardize" in certify(model, X, HIGH).reason
    model = LinearClassifier(alpha=1e-2, standardize=True).fit(X, HIGH)
    other = X.copy()
    other[:, 2] *= 1 + 1e-3
    assert certify(model, other, HIGH).status == "refuted"


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (np.ones(3), r"scale is float64\(3,\), not float64\(4,\)"),
        (np.array([1.0, 0.0, 1.0, 1.0]), "scale holds numbers that are not > 0"),
        (np.array([1.0, np.nan, 1.0, 1.0]), "scale holds NaN"),
    ],
)
def test_damaged_scales_are_refused(scale, words, tmp_path):
    save_model(LinearClassifier(standardize=True).fit(X, HIGH), tmp_path / "m")
    arrays, meta = load_arrays(tmp_path / "m", "model")
    del meta["sha256"]
    arrays["scale"] = scale
    save_arrays(tmp_path / "m", arrays, meta | {"sha256": checksum(arrays, meta)})
    with pytest.raises(riskmin.FileError, match=words):
        load_model(tmp_path / "m")


# ---------------------------------------------------------------- the command
@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    frame = pd.DataFrame(X, columns=["rate", "age", "income", "score"])
    frame.assign(label=np.where(HIGH, "high", "low")).to_csv(path, index=False)
    return path


def test_command_standardizes(table, tmp_path, run):
    model = tmp_path / "m"
    code, out, err = run("fit", table, "--standardize", "--lam", 1e-2, "-o", model)
    assert (code, err) == (0, "")
    assert "standardized" in out
    assert "divided by their standard deviations" in out
    ours, labels = load_model(model), np.where(HIGH, "high", "low")
    _, inner = pipeline(LinearClassifier(alpha=1e-2), X, labels, {})
    assert ours.objective_ == pytest.approx(inner.objective_, rel=1e-3)
    code, out, _ = run("certify", model, table)
    assert code == 0
    assert "divided by their standard deviations" in out
    assert json.loads(run("certify", model, table, "--json")[1])["standardized"] is True
    plain = tmp_path / "plain"
    assert "standardized" not in run("fit", table, "--lam", 1e-2, "-o", plain)[1]


def test_paths_and_searches_standardize(table, tmp_path, run):
    code, out, _ = run(
        "path", table, "--standardize", "--reg", "l1", "--loss", "logistic", "--n-lams", 3, "--json"
    )
    output = json.loads(out)
    assert (code, output["standardized"]) == (0, True)
    _, inner = pipeline(
        LinearClassifier("logistic", alpha=output["path"][1]["lam"], regularizer="l1"), X, HIGH, {}
    )
    assert output["path"][1]["objective"] == pytest.approx(inner.objective_, rel=2e-3)
    code, out, _ = run("path", table, "--standardize", "--n-lams", 2, "-o", tmp_path / "page.html")
    assert (code, "divided by their standard deviations" in out) == (0, True)
    assert "standardized" in (tmp_path / "page.html").read_text()
    code, out, _ = run("cv", table, "--standardize", "--n-lams", 2, "--folds", 2, "-o", tmp_path / "best")
    assert (code, "divided by their standard deviations" in out) == (0, True)
    assert load_model(tmp_path / "best").scale_.shape == (P,)


def test_taggers_have_no_columns_to_standardize(tmp_path, run):
    path = tmp_path / "some.conll"
    path.write_text("the B\ncat I\n\na B\ndog I\n")
    code, _, err = run("fit", path, "--loss", "chain_crf", "--standardize", "-o", tmp_path / "m")
    assert code == 2
    assert "--standardize is for models of rows" in err


# ---------------------------------------------------------------- moments
def of_columns(X, weights=True, c=None, n_shards=1):
    risk = linear_risk(X, np.zeros(X.shape[0]), Squared(), sample_weight=c, n_shards=n_shards)
    return column_moments(risk.executor, weights)


@pytest.mark.parametrize("weights", ["own", "equal", "others"])
@pytest.mark.parametrize("form", [np.asarray, np.asfortranarray, np.float32, sp.csr_array, sp.csc_array])
def test_moments(form, weights):
    rows = np.where(RNG.random((200, 6)) < 0.5, RNG.normal(size=(200, 6)) + 3, 0.0)
    rows[:, 0], rows[:, 1] = 7.0, 0.0
    c = RNG.integers(0, 3, 200).astype(float)
    matrix = form(rows)
    numbers = matrix.toarray() if sp.issparse(matrix) else np.asarray(matrix, dtype=float)
    others = RNG.random(200)
    used = {"own": c, "equal": (c > 0).astype(float), "others": others}[weights]
    argument = {"own": True, "equal": False, "others": others}[weights]
    n_shards = 1 if form is sp.csc_array else 3
    moments = of_columns(matrix, argument, c, n_shards)
    mean = np.average(numbers, axis=0, weights=used)
    variance = np.average((numbers - mean) ** 2, axis=0, weights=used)
    live = numbers[used > 0]
    assert np.allclose(moments.mean, mean, rtol=1e-12)
    assert np.allclose(moments.variance, variance, rtol=1e-11, atol=1e-26)
    assert np.array_equal(moments.minimum, live.min(0))
    assert np.array_equal(moments.maximum, live.max(0))
    assert moments.constant.tolist() == [True, True, False, False, False, False]
    assert moments.scale[:2].tolist() == [1.0, 1.0]


def test_moments_are_accurate():
    noise = RNG.normal(size=(5000, 3))
    rows = noise * [1.0, 1e-3, 1e6] + [1e9, 1e5, 0.0]
    moments = of_columns(rows, n_shards=4)
    exact = np.std((rows - [1e9, 1e5, 0.0]).astype(np.longdouble), axis=0).astype(float)
    assert np.allclose(moments.deviation, exact, rtol=1e-9)
    wobble = np.full((50, 1), 0.1) * (1 + np.finfo(float).eps * RNG.integers(0, 2, (50, 1)))
    assert moments.constant.tolist() == [False] * 3
    assert of_columns(wobble).constant.tolist() == [True]


def test_duplicate_entries_are_summed():
    twice = sp.csr_array((np.ones(4), [0, 0, 1, 1], [0, 2, 3, 4]), shape=(3, 2))
    moments = of_columns(twice)
    assert np.allclose(moments.mean, twice.toarray().mean(0))
    assert np.allclose(moments.deviation, twice.toarray().std(0))


# ---------------------------------------------------------------- rescaled regularizers
@pytest.mark.parametrize(
    "reg", [QNorm(), Entropy(), Entropy(balanced=True, normalized=False), L1(), L2(), Elastic()]
)
def test_rescaled_weights(reg):
    sizes, w = np.array([0.5, 2.0, 10.0]), np.array([0.3, 0.4, 0.3])
    outer = rescaled(reg, sizes)
    v = reg.prox(w, 0.0) / sizes
    u = RNG.normal(size=3) * (0.3 if isinstance(reg, L1) else 1.0) * sizes
    assert outer.value(v) == pytest.approx(reg.value(sizes * v))
    assert outer.conjugate(u) == pytest.approx(reg.conjugate(u / sizes))
    assert outer.value(v) + outer.conjugate(u) >= u @ v - 1e-12
    minimizer = outer.conjugate_grad(u) if not isinstance(reg, L1) else np.zeros(3)
    assert outer.value(minimizer) + outer.conjugate(u) == pytest.approx(u @ minimizer)
    assert outer.prox(v, 0.0) == pytest.approx(v)
    assert outer.scaled(1 / sizes) is reg
    with pytest.raises(UnsupportedProblem, match="the proximal points of Rescaled"):
        outer.prox(v, 1.0)
    known = outer.without_sizes
    assert isinstance(known, Rescaled) == (reg.scaled(sizes) is None)
    assert known.value(v) == pytest.approx(outer.value(v))
