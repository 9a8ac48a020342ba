"""Ranking: queries in any order, scikit-learn's tools, and measures of rankings."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from estimator_cases import CASES, GRADE, QID, N, X, fitted
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score

from riskmin import LinearRanker, get_scorer
from riskmin.metrics import mean_ndcg_score, mrr_score

RANKING = ["pairwise_hinge", "ndcg", "mrr", "expected_rank_utility"]


@pytest.mark.parametrize("loss", [*RANKING, "squared", "absolute"])
def test_every_loss_ranks_better_than_chance(loss):
    model = LinearRanker(loss, alpha=1e-2).fit(X, GRADE, qid=QID)
    assert model.gap_ <= 1e-3 * model.objective_
    assert model.n_queries_ == N // 5
    assert model.score(X, GRADE, qid=QID) == mean_ndcg_score(GRADE, model.predict(X), qid=QID, k=10)
    chance = mean_ndcg_score(GRADE, np.zeros(N), qid=QID)
    assert model.score(X, GRADE, qid=QID) > 0.5 * (1 + chance)
    np.testing.assert_array_equal(model.predict(X), model.decision_function(X))
    assert (model.intercept_ == 0) == (loss in RANKING)


@pytest.mark.parametrize("loss", RANKING)
def test_order_and_ids_of_queries_do_not_matter_nor_queries_without_weight(loss):
    model = LinearRanker(loss, alpha=0.3, tol=1e-5).fit(X, GRADE, qid=QID)
    order = np.random.default_rng(1).permutation(N)
    names = np.array([f"query {q}" for q in QID[order]])
    other = clone(model).fit(X[order], GRADE[order], qid=names)
    assert other.objective_ == pytest.approx(model.objective_, rel=2e-5)
    np.testing.assert_allclose(other.coef_, model.coef_, atol=2e-2)
    keep = QID > 4
    weighted = clone(model).fit(X, GRADE, qid=QID, sample_weight=keep.astype(float))
    without = clone(model).fit(X[keep], GRADE[keep], qid=QID[keep])
    assert weighted.objective_ == pytest.approx(without.objective_, rel=2e-5)


def test_columns_constant_within_queries_get_no_weight():
    wide = np.c_[X, np.random.default_rng(0).normal(size=N // 5)[QID]]
    model = LinearRanker(alpha=0.1).fit(wide, GRADE, qid=QID)
    assert abs(model.coef_[-1]) < 1e-9
    assert LinearRanker(alpha=0.1).fit(wide, GRADE, qid=np.zeros(N)).objective_ != model.objective_


def test_columns_of_frames_are_query_ids():
    model = LinearRanker(alpha=0.1).fit(X, pd.Series(GRADE), qid=pd.Series(QID))
    assert model.score(X, GRADE, qid=QID[:, None]) == fitted("ranking").score(X, GRADE, qid=QID)


# ---------------------------------------------------------------- scikit-learn's tools
@pytest.fixture
def routed():
    with sklearn.config_context(enable_metadata_routing=True):
        yield LinearRanker(alpha=0.1).set_fit_request(qid=True).set_score_request(qid=True)


def test_searches_keep_queries_together(routed):
    grid = {"alpha": [1e-1, 1.0], "loss": ["pairwise_hinge", "squared"]}
    search = GridSearchCV(routed, grid, cv=GroupKFold(3)).fit(X, GRADE, qid=QID, groups=QID)
    assert search.best_score_ > 0.8
    train, test = next(GroupKFold(3).split(X, GRADE, groups=QID))
    by_hand = clone(routed).set_params(alpha=1e-1, loss="squared").fit(X[train], GRADE[train], qid=QID[train])
    k = search.cv_results_["params"].index({"alpha": 1e-1, "loss": "squared"})
    assert search.cv_results_["split0_test_score"][k] == by_hand.score(X[test], GRADE[test], qid=QID[test])
    assert search.score(X, GRADE, qid=QID) == search.best_estimator_.score(X, GRADE, qid=QID)


def test_losses_of_single_rows_need_no_queries():
    assert np.isfinite(cross_val_score(LinearRanker("squared"), X, GRADE)).all()
    assert clone(CASES["ranking"].model).set_params(loss="squared").fit(X, GRADE).score(X, GRADE) > 0.5


@pytest.mark.parametrize("name", ["ndcg:k=10", "mrr", "ndcg:k=3", "expected_rank_utility:half_life=3"])
def test_scorers_take_queries_and_weights(routed, name):
    measure = {"ndcg:k=10": mean_ndcg_score, "mrr": mrr_score}.get(name)
    model, weight, scorer = fitted("ranking"), QID % 3.0, pickle.loads(pickle.dumps(get_scorer(name)))
    for more in ({}, {"sample_weight": weight}):
        found = clone(scorer)(model, X, GRADE, qid=QID, **more)
        assert measure is None or found == measure(GRADE, model.predict(X), qid=QID, **more)
    search = GridSearchCV(routed, {"alpha": [1e-1, 1.0]}, cv=GroupKFold(3), scoring=scorer)
    assert 0.6 < search.fit(X, GRADE, qid=QID, groups=QID).best_score_ <= 1
