"""Ranking: scikit-learn's checks and tools, queries in any order, and errors."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import _num_samples

import riskmin
from riskmin import LinearRanker, get_scorer, load_model, save_model
from riskmin.metrics import mean_ndcg_score, mrr_score

RANKING = ["pairwise_hinge", "ndcg", "mrr", "expected_rank_utility"]


class OneQuery(LinearRanker):
    """A ranker with a single query, for checks that do not pass query ids."""

    def fit(self, X, y, sample_weight=None):
        return super().fit(X, y, qid=np.zeros(_num_samples(X)), sample_weight=sample_weight)

    def score(self, X, y):
        return super().score(X, y, qid=np.zeros(_num_samples(X)))


def no_weights(estimator):
    """Checks expected to fail: repeating rows changes the rankings, unlike weighting them."""
    checks = [
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
    ]
    return dict.fromkeys(checks, "queries are weighted, not rows") if estimator.loss in RANKING[1:] else {}


@pytest.mark.slow
@parametrize_with_checks([OneQuery()], expected_failed_checks=no_weights)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([LinearRanker("squared"), OneQuery("ndcg")], expected_failed_checks=no_weights)
def test_scikit_learn_checks_of_other_estimators(estimator, check):
    check(estimator)


def test_searches_without_routing_fail_with_one_sentence(queries):
    X, y, qid = queries
    search = GridSearchCV(LinearRanker(), {"alpha": [0.1, 1.0]}, cv=2)
    for run in (
        lambda: cross_val_score(LinearRanker(), X, y, params={"qid": qid}),
        lambda: cross_val_score(LinearRanker("ndcg"), X, y),
        lambda: search.fit(X, y, qid=qid),
    ):
        with pytest.raises(ValueError, match=r"routing only: call sklearn\.set_config\(") as error:
            run()
        assert "\n" not in str(error.value)
    assert np.isfinite(cross_val_score(LinearRanker("squared"), X, y)).all()  # fits without queries
    model = LinearRanker().fit(X, y, qid=qid)
    assert clone(model).set_params(loss="squared").fit(X, y).score(X, y) > 0.5
    with pytest.raises(ValueError, match="give qid"):
        model.score(X, y)
    with sklearn.config_context(enable_metadata_routing=True):
        ranker = LinearRanker().set_fit_request(qid=True).set_score_request(qid=True)
        scores = cross_val_score(ranker, X, y, params={"qid": qid, "groups": qid}, cv=GroupKFold(3))
    assert np.isfinite(scores).all()


# ---------------------------------------------------------------- data
@pytest.fixture(scope="module")
def queries():
    """Grades that depend on a score plus an offset per query."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 15, 40)
    qid = np.repeat(rng.permutation(1000)[:40], sizes)
    X = rng.standard_normal((len(qid), 6))
    X[:, 5] = np.repeat(rng.standard_normal(40), sizes)  # the same for all rows of a query
    z = X @ [1.0, -1.0, 0.5, 0.0, 0.0, 0.0] + 0.5 * rng.standard_normal(len(qid)) + 2 * X[:, 5]
    z -= 2 * X[:, 5]
    return X, np.digitize(z, [0.0, 1.0, 2.0]), qid


def shuffled(queries, seed=1):
    rows = np.random.default_rng(seed).permutation(len(queries[1]))
    return tuple(a[rows] for a in queries)


# ---------------------------------------------------------------- the fit
@pytest.mark.parametrize("loss", [*RANKING, "squared", "absolute"])
def test_every_loss_ranks_better_than_chance(queries, loss):
    X, y, qid = queries
    model = LinearRanker(loss, alpha=1e-2).fit(X, y, qid=qid)
    assert model.gap_ <= 1e-3 * model.objective_
    assert model.n_queries_ == 40
    assert model.score(X, y, qid=qid) == mean_ndcg_score(y, model.predict(X), qid=qid, k=10)
    chance = mean_ndcg_score(y, np.zeros(len(y)), qid=qid)
    assert model.score(X, y, qid=qid) > 0.5 * (1 + chance)
    np.testing.assert_array_equal(model.predict(X), model.decision_function(X))
    assert (model.intercept_ == 0) == (loss in RANKING)


def test_objective_is_the_mean_hinge_over_pairs(queries):
    X, y, qid = queries
    model = LinearRanker(alpha=0.1, tol=1e-6).fit(X, y, qid=qid)
    z, means = model.predict(X), []
    for q in np.unique(qid):
        zq, yq = z[qid == q], y[qid == q]
        if len(np.unique(yq)) > 1:
            means.append(np.maximum(0, 1 - (zq[:, None] - zq))[yq[:, None] > yq].mean())
    assert model.objective_ == pytest.approx(np.mean(means) + 0.05 * model.coef_ @ model.coef_, rel=1e-9)


@pytest.mark.parametrize("loss", RANKING)
def test_order_and_ids_of_queries_do_not_matter(queries, loss):
    X, y, qid = queries
    model = LinearRanker(loss, alpha=0.1, tol=1e-6).fit(X, y, qid=qid)
    Xs, ys, qs = shuffled(queries)
    other = clone(model).fit(Xs, ys, qid=np.array([f"query {q}" for q in qs]))
    assert other.objective_ == pytest.approx(model.objective_, rel=1e-6)
    np.testing.assert_allclose(other.coef_, model.coef_, atol=1e-2)
    assert other.score(X, y, qid=qid) == pytest.approx(model.score(X, y, qid=qid), abs=0.02)


def test_features_constant_within_queries_get_no_weight(queries):
    X, y, qid = queries
    model = LinearRanker(alpha=0.1).fit(X, y, qid=qid)
    assert abs(model.coef_[5]) < 1e-9
    assert LinearRanker(alpha=0.1).fit(X, y, qid=np.zeros(len(y))).objective_ != model.objective_


def test_queries_without_weight_have_no_effect(queries):
    X, y, qid = queries
    positive_weight = qid > 300
    for loss in RANKING:
        model = LinearRanker(loss, alpha=0.1, tol=1e-6)
        weighted = clone(model).fit(X, y, qid=qid, sample_weight=positive_weight.astype(float))
        without = clone(model).fit(X[positive_weight], y[positive_weight], qid=qid[positive_weight])
        assert weighted.objective_ == pytest.approx(without.objective_, rel=1e-5)


@pytest.mark.parametrize("form", [sp.csr_array, pd.DataFrame, np.asfortranarray])
def test_all_forms_of_X(queries, form):
    X, y, qid = queries
    first, model = (LinearRanker(alpha=0.1, tol=1e-7).fit(f(X), y, qid=qid) for f in (np.asarray, form))
    np.testing.assert_allclose(model.predict(form(X)), first.predict(X), atol=1e-2)
    frame = pd.Series(qid)
    assert model.score(form(X), pd.Series(y), qid=frame) == pytest.approx(
        first.score(X, y, qid=qid), abs=0.01
    )


# ---------------------------------------------------------------- scikit-learn's tools
@pytest.fixture
def routed():
    with sklearn.config_context(enable_metadata_routing=True):
        yield LinearRanker(alpha=0.1).set_fit_request(qid=True).set_score_request(qid=True)


def test_searches_keep_queries_together(queries, routed):
    X, y, qid = shuffled(queries)
    grid = {"alpha": [1e-2, 1.0], "loss": ["pairwise_hinge", "ndcg:k=5", "squared"]}
    search = GridSearchCV(routed, grid, cv=GroupKFold(3)).fit(X, y, qid=qid, groups=qid)
    assert search.best_score_ > 0.85
    train, test = next(GroupKFold(3).split(X, y, groups=qid))
    assert not set(qid[train]) & set(qid[test])
    by_hand = clone(routed).set_params(alpha=1e-2, loss="squared").fit(X[train], y[train], qid=qid[train])
    k = search.cv_results_["params"].index({"alpha": 1e-2, "loss": "squared"})
    assert search.cv_results_["split0_test_score"][k] == by_hand.score(X[test], y[test], qid=qid[test])
    assert search.score(X, y, qid=qid) == search.best_estimator_.score(X, y, qid=qid)


@pytest.mark.parametrize("name", ["mrr", "ndcg:k=3", "expected_rank_utility:half_life=3"])
def test_searches_by_other_measures(queries, routed, name):
    X, y, qid = queries
    scorer = get_scorer(name)  # requests qid by default
    if name == "mrr":
        scorer = scorer.set_score_request(qid=True)
    search = GridSearchCV(routed, {"alpha": [1e-2, 1.0]}, cv=GroupKFold(3), scoring=scorer)
    search.fit(X, y, qid=qid, groups=qid)
    assert 0.7 < search.best_score_ <= 1
    if name == "mrr":
        assert scorer(search, X, y, qid=qid) == mrr_score(y, search.predict(X), qid=qid)


def test_cross_validation_of_a_pipeline(queries, routed):
    X, y, qid = queries
    pipe = make_pipeline(StandardScaler(), routed)
    params = {"qid": qid, "groups": qid}
    scores = cross_validate(pipe, X, y, cv=GroupKFold(3), params=params, return_train_score=True)
    assert scores["test_score"].min() > 0.8
    assert scores["train_score"].shape == (3,)


def test_a_file_keeps_the_model(queries, tmp_path):
    X, y, qid = queries
    for loss in [*RANKING, "ndcg:k=3", riskmin.LOSSES["mrr"], "squared"]:
        model = LinearRanker(loss, alpha=0.1).fit(X, y, qid=qid)
        save_model(model, tmp_path / "model")
        loaded = load_model(tmp_path / "model")
        assert loaded.get_params() == model.get_params()
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
        assert (loaded.objective_, loaded.lower_bound_) == (model.objective_, model.lower_bound_)
        assert loaded.n_queries_ == 40


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("model", "y", "qid", "message"),
    [
        (LinearRanker(), [0, 1, 2], None, "PairwiseHinge ranks the rows of each query: give qid"),
        (LinearRanker(), [0, 1, 2], [1, 1], r"qid has shape \(2,\), but there are 3 rows"),
        (LinearRanker(), [0, 1, 2], [1.0, 1.0, np.nan], "qid holds NaN"),
        (LinearRanker(), [0, 1, 2], [1, 1, None], "qid holds ids that cannot be compared"),
        (LinearRanker(), [0, 1, 2], np.array([1, 1, "a"], object), "or every row a string"),
        (LinearRanker(), [0, 1, 2], [1, 2, 3], "no query has rows of two different grades"),
        (LinearRanker(), [1, 1, 2], [1, 1, 3], "no query has rows of two different grades"),
        (LinearRanker("ndcg"), [-1, 1, 2], [1, 1, 1], "grades >= 0"),
        (LinearRanker("hinge"), [0, 1, 2], [1, 1, 1], "not for ranking: use LinearClassifier"),
        (LinearRanker("squared"), [0, 1, 2], [1, 1], r"qid has shape \(2,\), but there are 3 rows"),
    ],
)
def test_errors(model, y, qid, message):
    with pytest.raises(ValueError, match=message) as caught:
        model.fit(np.eye(3), y, qid=qid)
    assert "\n" not in str(caught.value)


def test_scorers_take_queries(queries):
    X, y, qid = queries
    model = LinearRanker(alpha=1e-2).fit(X, y, qid=qid)
    scorer = pickle.loads(pickle.dumps(get_scorer("ndcg:k=10")))
    assert scorer(model, X, y, qid=qid) == model.score(X, y, qid=qid)
    weight = qid % 3.0
    assert clone(scorer)(model, X, y, qid=qid, sample_weight=weight) == model.score(X, y, qid, weight)
    with pytest.raises(ValueError, match="rankings are evaluated per query: give qid"):
        scorer(model, X, y)


def test_scores_need_queries():
    model = LinearRanker().fit(np.eye(3), [0, 1, 2], qid=[1, 1, 1])
    assert model.score(np.eye(3), [0, 1, 2], qid=[[1], [1], [1]]) == 1  # a column, as from a data frame
    assert model.n_queries_ == 1
    with pytest.raises(ValueError, match="rankings are evaluated per query: give qid"):
        model.score(np.eye(3), [0, 1, 2])
    with pytest.raises(ValueError, match="a loss for ranking, not for regression: use LinearRanker"):
        riskmin.LinearRegressor("ndcg").fit(np.eye(3), [0, 1, 2])
