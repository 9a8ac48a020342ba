"""Cross-validated estimators: the scores and choices of a grid search."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from estimator_cases import BOTH, FAR, GRADE, HIGH, KINDS, QID, WEIGHT, N, X, Z
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    LeaveOneOut,
    ShuffleSplit,
    StratifiedKFold,
    TimeSeriesSplit,
    cross_val_predict,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

import riskmin as rm

pytestmark = pytest.mark.filterwarnings("ignore:the best alpha of")
ALPHAS = [1e-3, 1e-1, 1e-2]
SEARCHES = [
    (rm.LinearClassifierCV, rm.LinearClassifier("logistic"), HIGH, None),
    (rm.LinearClassifierCV, rm.LinearClassifier("logistic"), KINDS, "neg_log_loss"),
    (rm.LinearRegressorCV, rm.LinearRegressor(), BOTH, None),
    (rm.LinearRegressorCV, rm.LinearRegressor("huber", regularizer="l1"), BOTH, "neg_mean_squared_error"),
]


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize(("search", "single", "y", "scoring"), SEARCHES)
def test_scores_and_the_choice_are_those_of_a_grid_search(search, single, y, scoring, standardize):
    """Each fold has its own standard deviations."""
    rows, steps = X, [("model", clone(single).set_params(tol=1e-7))]
    if standardize:
        rows, steps = np.c_[FAR, np.ones(N)], [("scale", StandardScaler()), *steps]
        rows[0, -1] = 50.0  # constant except in one fold
    settings = {"cv": 3, "scoring": scoring}
    params = {"loss": single.loss, "regularizer": single.regularizer, "standardize": standardize}
    ours = search(alphas=ALPHAS, tol=1e-7, **params, **settings).fit(rows, y)
    theirs = GridSearchCV(Pipeline(steps), {"model__alpha": ALPHAS}, **settings).fit(rows, y)
    splits = [theirs.cv_results_[f"split{k}_test_score"] for k in range(3)]
    np.testing.assert_allclose(ours.scores_, splits, atol=2e-3)
    assert ours.alpha_ == theirs.best_params_["model__alpha"]
    assert ours.alphas_.tolist() == ALPHAS
    assert ours.best_score_ == pytest.approx(theirs.best_score_, abs=2e-3)
    best = theirs.best_estimator_
    assert ours.objective_ == pytest.approx(best[-1].objective_, rel=1e-6)
    assert np.mean(ours.predict(rows) == best.predict(rows)) > 0.99 or ours.task == "regression"
    if standardize:
        np.testing.assert_array_equal(ours.scale_, ours.best_estimator_.scale_)
        grid = search(n_alphas=2, cv=2, **params).fit(rows, y).alphas_
        scaled = search(n_alphas=2, cv=2, **params | {"standardize": False})
        np.testing.assert_allclose(grid, scaled.fit(best[0].transform(rows), y).alphas_, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::riskmin.TrivialModelWarning")
def test_the_default_grid_starts_where_weights_are_zero():
    model = rm.LinearRegressorCV(regularizer=rm.L1(), n_alphas=4, cv=3).fit(X, Z)
    top = np.abs((X - X.mean(axis=0)).T @ (Z - Z.mean())).max() / N
    np.testing.assert_allclose(model.alphas_, np.geomspace(top, top / 1000, 4))
    np.testing.assert_allclose(rm.LinearRegressorCV(n_alphas=3, cv=3).fit(X, Z).alphas_, [1, 1e-3, 1e-6])
    top = rm.LinearRegressorCV("huber", n_alphas=2, cv=2, regularizer="l1").fit(X, BOTH).alphas_[0]
    for share in (1.001, 0.9):
        model = rm.LinearRegressor("huber", alpha=share * top, regularizer="l1", tol=1e-6).fit(X, BOTH)
        assert model.coef_.any() == (share < 1)


# ---------------------------------------------------------------- squared errors by second moments
SPLITTERS = {
    "contiguous": KFold(4),
    "shuffled": KFold(3, shuffle=True, random_state=0),
    "overlapping": ShuffleSplit(3, random_state=0),
    "growing": TimeSeriesSplit(3),
    "drawn with repetition": [(np.arange(N // 2).repeat(2), np.arange(N // 2, N))],
}


@pytest.mark.parametrize("splitter", SPLITTERS)
@pytest.mark.parametrize(
    "params",
    [
        {"regularizer": "l1"},
        {"regularizer": rm.Elastic(eps=0.3), "positive": True},
        {"regularizer": rm.L1(weights=np.arange(1.0, X.shape[1] + 1)), "fit_intercept": False},
        {"regularizer": "l2", "standardize": True},
    ],
    ids=str,
)
def test_scores_of_squared_errors_are_those_of_single_fits(splitter, params):
    """Whatever the rows that folds share: each score is that of a model fitted to the training rows alone."""
    cv, alphas = SPLITTERS[splitter], [1e-3, 1e-1, 1e-2]
    rows, scoring = X * np.geomspace(1e-3, 1e3, X.shape[1]) + 5.0, "neg_mean_squared_error"
    search = rm.LinearRegressorCV(alphas=alphas, cv=cv, scoring=scoring, tol=1e-5, **params).fit(rows, Z)
    single = GridSearchCV(rm.LinearRegressor(tol=1e-9, **params), {"alpha": alphas}, cv=cv, scoring=scoring)
    single.fit(rows, Z)
    splits = [single.cv_results_[f"split{k}_test_score"] for k in range(len(search.scores_))]
    np.testing.assert_allclose(search.scores_, splits, rtol=1e-4, atol=1e-9)
    assert search.alpha_ == single.best_params_["alpha"]


def test_training_rows_of_a_nearly_exact_fit_are_read():
    """Second moments lose the digits of such residuals, so that they prove no gap."""
    y = X @ np.arange(1.0, X.shape[1] + 1) + 1e-7 * Z
    params = {"alphas": [1e-2, 1e-13], "cv": 3, "scoring": "neg_mean_squared_error"}
    search = rm.LinearRegressorCV(regularizer="l1", **params).fit(X, y)
    single = [
        [-np.mean((y[test] - model.fit(X[train], y[train]).predict(X[test])) ** 2) for model in models]
        for train, test in KFold(3).split(X)
        for models in [[rm.LinearRegressor(alpha=a, regularizer="l1", tol=1e-6) for a in (1e-2, 1e-13)]]
    ]
    np.testing.assert_allclose(search.scores_, single, rtol=1e-2)
    assert search.n_not_converged_ == 0


def test_weighted_scores_of_squared_errors():
    for scoring in (None, "neg_mean_squared_error", "r2"):
        search = rm.LinearRegressorCV(regularizer="l1", alphas=[1e-1, 1e-3], cv=KFold(3), scoring=scoring)
        scores = search.fit(X, Z, sample_weight=WEIGHT).scores_
        for k, (train, test) in enumerate(KFold(3).split(X)):
            for j, alpha in enumerate([1e-1, 1e-3]):
                model = rm.LinearRegressor(alpha=alpha, regularizer="l1", tol=1e-9)
                z = model.fit(X[train], Z[train], WEIGHT[train]).predict(X[test])
                if scoring == "neg_mean_squared_error":
                    expected = -np.average((Z[test] - z) ** 2, weights=WEIGHT[test])
                else:
                    expected = r2_score(Z[test], z, sample_weight=WEIGHT[test])
                assert scores[k, j] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_ties_choose_the_largest_alpha():
    search = rm.LinearRegressorCV(alphas=[1e-2, 1.0, 1e-1], cv=2, scoring=lambda model, X, y: 1.0)
    assert search.fit(X, Z).alpha_ == 1.0


def test_threads_and_sparse_rows_change_nothing():
    one, two = (rm.LinearClassifierCV(alphas=ALPHAS, cv=3, n_jobs=n).fit(X, HIGH) for n in (1, 2))
    np.testing.assert_array_equal(one.scores_, two.scores_)
    np.testing.assert_array_equal(one.coef_, two.coef_)
    sparse = rm.LinearClassifierCV(alphas=ALPHAS, cv=3).fit(sp.csr_array(X), HIGH)
    np.testing.assert_allclose(sparse.scores_, one.scores_, atol=0.06)


def test_weights_are_repetitions_in_fits_and_scores():
    folds, again = np.arange(N) % 2, np.repeat(np.arange(N), WEIGHT.astype(int))
    model = rm.LinearRegressorCV(alphas=ALPHAS, tol=1e-9, cv=GroupKFold(2))
    weighted = model.fit(X, Z, sample_weight=WEIGHT, groups=folds).scores_
    repeated = model.fit(X[again], Z[again], groups=folds[again]).scores_
    np.testing.assert_allclose(np.sort(weighted, axis=0), np.sort(repeated, axis=0), rtol=1e-4)


def test_groups_stay_together():
    groups, seen = np.arange(N) // 12, []

    def score(model, X, y):
        seen.append(set(y))
        return 0.0

    rm.LinearRegressorCV(alphas=[1e-2], cv=GroupKFold(5), scoring=score).fit(X, groups + 0.0, groups=groups)
    assert sorted(map(sorted, seen)) == [[group] for group in range(5)]


def test_folds_that_do_not_converge_are_counted():
    model = rm.LinearRegressorCV("absolute", alphas=[1e-6, 1e-5], cv=2, max_iter=1, tol=1e-9)
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(X, Z)
    folds, last = (str(warning.message) for warning in caught)
    assert "4 of 4 fits of the folds of LinearRegressorCV did not reach tol=1e-09" in folds
    assert "LinearRegressor stopped with status 'max_iter'" in last


def test_an_interrupted_search_leaves_no_model():
    def interrupt(model, X, y):
        raise KeyboardInterrupt

    model = rm.LinearRegressorCV(alphas=ALPHAS, cv=2, scoring=interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Z)
    assert not hasattr(model, "alpha_")


@pytest.mark.parametrize("groups", [None, np.arange(70) // 7])
@pytest.mark.parametrize("kind", [rm.LinearClassifierCV, rm.LinearRegressorCV])
def test_leave_one_out_searches_score_pooled_predictions(kind, groups):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((70, 6))
    z = X @ [1.0, -1.0, 0.5, 0.0, 0.0, 0.0] + rng.standard_normal(70)
    loss, y = ("logistic", z > 0) if kind is rm.LinearClassifierCV else ("squared", z)
    search = kind(loss, alphas=[3.0, 0.1, 1e-3], cv="loo", tol=1e-8).fit(X, y, groups=groups)
    cv = LeaveOneOut() if groups is None else LeaveOneGroupOut()
    for alpha, score in zip(search.alphas_, search.scores_[0], strict=True):
        model = kind._estimator_class(loss, alpha=alpha, tol=1e-9)
        predicted = cross_val_predict(model, X, y, cv=cv, groups=groups)
        expected = accuracy_score(y, predicted) if loss == "logistic" else r2_score(y, predicted)
        assert score == pytest.approx(expected, rel=1e-6)
    assert search.scores_.shape == (1, 3)
    assert search.best_score_ == search.scores_.max()
    assert search.best_estimator_.alpha == search.alpha_


# ---------------------------------------------------------------- the end of a grid, rules, tables
ROWS = np.random.default_rng(5).standard_normal((80, 30))
NOISE = np.random.default_rng(6).standard_normal(80)
SIGNAL = ROWS @ np.linspace(-1, 1, 30)
EDGES = [
    ("smallest", SIGNAL + 1e-3 * NOISE, [10.0, 1.0, 0.1]),
    ("largest", NOISE, [1e-3, 1e-2, 1e-1]),
    ("", SIGNAL + 3 * NOISE, [1e3, 0.1, 1e-6]),
    ("", SIGNAL + 1e-3 * NOISE, [1.0, 0.1]),  # nothing lies between
]


@pytest.mark.parametrize(("side", "y", "alphas"), EDGES)
def test_the_best_alpha_is_named_where_the_grid_ends(side, y, alphas):
    search = rm.LinearRegressorCV(alphas=alphas, cv=4, scoring="neg_mean_squared_error")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search.fit(ROWS, y)
    assert search.edge() == side
    more = {"smallest": "smaller", "largest": "larger", "": ""}[side]
    words = f"is the {side} one tried: give {more} ones, too"
    assert [str(warning.message).endswith(words) for warning in caught] == [True] * bool(side)


def test_one_standard_error_chooses_the_largest_alpha_near_the_best():
    alphas = [0.1, 10.0, 1e-3, 1.0, 3.0, 1.3, 1.6]
    settings = {"alphas": alphas, "cv": 5, "scoring": "neg_mean_squared_error"}
    y = SIGNAL + 3 * NOISE
    best = rm.LinearRegressorCV(**settings).fit(ROWS, y)
    simple = rm.LinearRegressorCV(**settings, rule="one standard error").fit(ROWS, y)
    np.testing.assert_array_equal(best.scores_, simple.scores_)
    scores = dict(zip(alphas, best.scores_.T, strict=True))
    top = scores[best.alpha_]
    near = [a for a in alphas if scores[a].mean() >= top.mean() - np.sqrt(np.var(top, ddof=1) / 5)]
    assert simple.alpha_ == max(near) > best.alpha_
    assert simple.best_score_ == pytest.approx(scores[simple.alpha_].mean())
    assert simple.best_estimator_.alpha == simple.alpha_


def test_unknown_rules_and_single_folds_are_refused():
    with pytest.raises(ValueError, match="rule='median': give 'best' or 'one standard error'"):
        rm.LinearRegressorCV(alphas=[1.0, 0.1], rule="median", cv=2).fit(X, Z)
    one = ShuffleSplit(1, random_state=0)
    with pytest.raises(ValueError, match="needs scores of several folds"):
        rm.LinearRegressorCV(alphas=[1.0, 0.1], rule="one standard error", cv=one).fit(X, Z)
    with pytest.raises(ValueError, match="give 'loo' with rule='best'"):
        rm.LinearRegressorCV(alphas=[1.0, 0.1], rule="one standard error", cv="loo").fit(X, Z)


def test_the_table_of_scores_is_that_of_a_grid_search():
    ours = rm.LinearRegressorCV(alphas=ALPHAS, cv=3, tol=1e-8).fit(X, Z)
    theirs = GridSearchCV(rm.LinearRegressor(tol=1e-8), {"alpha": ALPHAS}, cv=3).fit(X, Z)
    for key, column in ours.cv_results_.items():
        if key == "params" or key.startswith(("param_", "rank_")):
            assert list(column) == list(theirs.cv_results_[key])
        else:
            np.testing.assert_allclose(column, theirs.cv_results_[key], atol=1e-5)


# ---------------------------------------------------------------- grades and rankings
def test_searches_of_ordinal_models_are_those_of_single_fits():
    names = ["low", "mid", "high"]
    grade = pd.Series(pd.Categorical(np.array(names)[GRADE], names, ordered=True))
    ours = rm.OrdinalClassifierCV(alphas=ALPHAS, cv=3, tol=1e-6).fit(X, grade)
    assert ours.classes_.tolist() == names
    expected = np.zeros((3, 3))
    for k, (train, test) in enumerate(StratifiedKFold(3).split(X, GRADE)):
        for j, alpha in enumerate(ALPHAS):
            single = rm.OrdinalClassifier(alpha=alpha, tol=1e-6).fit(X[train], GRADE[train])
            expected[k, j] = -np.abs(single.predict(X[test]) - GRADE[test]).mean()
    np.testing.assert_allclose(ours.scores_, expected, atol=0.05)
    assert ours.alpha_ in ALPHAS
    whole = rm.OrdinalClassifier(alpha=ours.alpha_, tol=1e-6).fit(X, grade)
    np.testing.assert_array_equal(ours.predict(X), whole.predict(X))
    assert rm.certify(ours.best_estimator_, X, grade)


@pytest.mark.parametrize("loss", ["ndcg", "squared"])
def test_searches_of_rankings_keep_queries_together(loss):
    alphas = [1.0, 0.1]
    ours = rm.LinearRankerCV(loss, alphas=alphas, cv=3, tol=1e-6).fit(X, GRADE, qid=QID)
    for k, (train, test) in enumerate(GroupKFold(3).split(X, GRADE, QID)):
        for j, alpha in enumerate(alphas):
            single = rm.LinearRanker(loss, alpha=alpha, tol=1e-6).fit(X[train], GRADE[train], qid=QID[train])
            assert ours.scores_[k, j] == pytest.approx(
                single.score(X[test], GRADE[test], qid=QID[test]), abs=0.02
            )
    assert ours.n_queries_ == len(np.unique(QID))
    with pytest.raises(ValueError, match="cv=50 needs as many queries, but the data hold"):
        rm.LinearRankerCV(loss, alphas=alphas, cv=50).fit(X, GRADE, qid=QID)


def test_ratios_of_elastic_nets_are_those_of_scikit_learn():
    from sklearn.linear_model import ElasticNetCV

    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 6))
    y = X[:, 0] - X[:, 1] + rng.standard_normal(80)
    ratios, alphas, folds = [0.1, 0.5, 1.0], [1.0, 0.1, 0.01], KFold(4)
    settings = {"alphas": alphas, "cv": folds, "scoring": "neg_mean_squared_error", "tol": 1e-9}
    model = rm.LinearRegressorCV("squared", l1_ratio=ratios, **settings).fit(X, y)
    theirs = ElasticNetCV(l1_ratio=ratios, alphas=alphas, cv=folds, tol=1e-10).fit(X, y)
    assert (model.l1_ratio_, model.alpha_) == (theirs.l1_ratio_, theirs.alpha_)
    np.testing.assert_allclose(model.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(-model.ratio_scores_, theirs.mse_path_.mean(axis=2).min(axis=1), rtol=1e-6)
    ridge = rm.LinearRegressorCV("squared", l1_ratio=0, **settings).fit(X, y)
    np.testing.assert_allclose(ridge.coef_, rm.LinearRegressorCV("squared", **settings).fit(X, y).coef_)
    for wrong in ({"l1_ratio": 1.5}, {"l1_ratio": 0.5, "regularizer": "l1"}):
        with pytest.raises(ValueError, match="l1_ratio"):
            rm.LinearRegressorCV(**wrong).fit(X, y)


def test_searches_of_taggers_are_those_of_single_fits():
    """A letter and the one before it make the label; letters alone do not."""
    rng = np.random.default_rng(0)
    words = [list(rng.choice(list("abc"), 6)) for _ in range(24)]
    tags = [["X", *("Y" if both == ("a", "b") else "Z" for both in itertools.pairwise(w))] for w in words]
    rows = [[{"letter": x, "last": last} for x, last in zip(w, ["", *w[:-1]], strict=True)] for w in words]
    alphas, weight = [1.0, 1e-3], np.linspace(1, 2, 24)
    ours = rm.ChainTaggerCV(alphas=alphas, cv=3, tol=1e-6).fit(rows, tags, weight)
    for k, (train, test) in enumerate(KFold(3).split(rows)):
        for j, alpha in enumerate(alphas):
            single = rm.ChainTagger(alpha=alpha, tol=1e-6)
            single.fit([rows[i] for i in train], [tags[i] for i in train], weight[train])
            score = single.score([rows[i] for i in test], [tags[i] for i in test], weight[test])
            assert ours.scores_[k, j] == pytest.approx(score, abs=0.02)
    assert ours.alpha_ == 1e-3
    whole = rm.ChainTagger(alpha=1e-3, tol=1e-6).fit(rows, tags, weight)
    assert ours.predict(rows) == whole.predict(rows)
    with pytest.raises(ValueError, match="one item per sequence"):
        rm.ChainTaggerCV().fit(rows, tags[1:])
