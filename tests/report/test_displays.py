"""Plots: what is drawn are the numbers of the fit, and a missing Matplotlib is one sentence."""

import sys
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import riskmin as rm
from helpers import refusals
from riskmin.metrics import chunk_counts, mean_ndcg_score

mpl.use("Agg")
import matplotlib.pyplot as plt


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def model():
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    return rm.LinearClassifier("hinge", alpha=1e-3, standardize=True, solver="bundle").fit(X, y)


def test_a_result_draws_bounds_that_enclose_the_minimum(model):
    best = rm.LinearClassifier("hinge", alpha=1e-3, standardize=True, tol=1e-9).fit(
        *load_breast_cancer(return_X_y=True)
    )
    axes = plt.subplots(2)[1]
    bounds, gap = model.result_.plot(tol=1e-3, axes=axes)
    assert (bounds, gap) == tuple(axes)
    value, lower = (line.get_ydata() for line in bounds.lines)
    assert (np.diff(value) <= 0).all()
    assert (np.diff(lower) >= 0).all()
    assert (lower <= best.objective_).all()
    assert (value >= best.lower_bound_).all()
    assert value[-1] - lower[-1] == pytest.approx(model.gap_, rel=1e-6)
    assert gap.get_yscale() == "log"
    assert gap.lines[0].get_ydata()[-1] <= 1e-3
    assert gap.lines[1].get_ydata() == [1e-3, 1e-3]


def test_bars_have_the_weights_and_names_of_the_largest(model):
    display = rm.CoefficientDisplay.from_estimator(model, n_features=3)
    heights = model.coef_.ravel() * model.scale_
    largest = np.argsort(-np.abs(heights))[:3]
    assert [bar.get_width() for bar in display.ax_.patches] == list(heights[largest])
    names = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert names == list(model.feature_names_in_[largest]) == display.largest(3)
    zeros = rm.CoefficientDisplay([0.0, 2.0, 0.0], ["a", "b", "c"]).plot()
    assert len(zeros.ax_.patches) == 1


def test_bars_do_not_depend_on_the_units_of_the_columns():
    X, y = load_iris(return_X_y=True, as_frame=True)
    factors = np.array([1e-3, 1.0, 1e4, 30.0])
    one, other = (rm.LinearRegressor(alpha=0, tol=1e-10).fit(rows, y) for rows in (X, X * factors))
    of_one = rm.CoefficientDisplay.from_estimator(one, X, plot=False)
    of_other = rm.CoefficientDisplay.from_estimator(other, X * factors, plot=False)
    np.testing.assert_allclose(of_one.heights, of_other.heights, rtol=1e-4)
    assert of_one.largest(4) == of_other.largest(4)
    assert rm.CoefficientDisplay.from_estimator(other, plot=False).largest(1) != of_other.largest(1)


def test_bars_have_standard_errors_and_proved_intervals():
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    fitted = rm.LinearClassifier("logistic", alpha=1e-2, standardize=True, tol=1e-2).fit(X, y)
    display = rm.CoefficientDisplay.from_estimator(fitted, X=X, y=y, n_features=4)
    scale = fitted.scale_
    largest = np.argsort(-np.abs(scale * fitted.coef_.ravel()))[:4]
    summary, scale = fitted.summary(X, y), scale[largest]
    coef, error = scale * fitted.coef_.ravel()[largest], scale * summary.std_err[1:][largest]
    drawn = [line.get_segments() for line in display.ax_.collections]
    ends = [np.array([segment[:, 0] for segment in segments]) for segments in drawn]
    np.testing.assert_allclose(ends[0], np.column_stack([coef - error, coef + error]))
    np.testing.assert_allclose(ends[1], scale[:, None] * summary.proved[1:][largest])


def test_the_bound_of_a_range_is_above_all_scores():
    X, y = load_breast_cancer(return_X_y=True)
    search = rm.LinearClassifierCV("logistic", alpha_range=(1e-2, 1.0), standardize=True, cv=3).fit(X, y)
    display = rm.AlphaSearchDisplay.from_estimator(search)
    (stairs,) = display.ax_.patches
    heights, edges, _ = stairs.get_data()
    assert heights.max() == search.score_bound_
    assert (edges[0], edges[-1]) == pytest.approx((1e-2, 1.0))
    for alpha, score in zip(search.alphas_, search.scores_.mean(axis=0), strict=True):
        piece = min(np.searchsorted(edges, alpha, side="right") - 1, len(heights) - 1)
        assert score <= heights[piece] + 1e-12


def test_bars_of_a_pipeline_of_several_classes():
    X, y = load_iris(return_X_y=True, as_frame=True)
    pipeline = make_pipeline(StandardScaler(), rm.LinearClassifier("logistic", alpha=1e-2)).fit(X, y)
    display = rm.CoefficientDisplay.from_estimator(pipeline)
    assert sorted(display.largest(4)) == sorted(X.columns)
    assert len(display.ax_.patches) == 3 * 4
    assert [text.get_text() for text in display.ax_.get_legend().get_texts()] == ["0", "1", "2"]


def test_a_path_draws_each_weight_against_lam():
    X = np.random.default_rng(0).normal(size=(80, 12))
    risk = rm.linear_risk(X, np.sign(X[:, 3] - 0.5 * X[:, 5]), rm.Hinge())
    lams = rm.lam_grid(risk, rm.L1(), 6)
    results = rm.path(risk, rm.L1(), lams)
    display = rm.PathDisplay.from_results(results, lams)
    order = np.argsort(lams)
    for j, line in enumerate(display.ax_.lines):
        assert list(line.get_xdata()) == list(lams[order])
        assert list(line.get_ydata()) == [results[k].w[j] for k in order]
    assert set(display.first(2)) == {"x3", "x5"}
    assert len(display.ax_.get_legend().get_texts()) == 8


def test_a_search_draws_the_mean_of_its_folds():
    X, y = load_breast_cancer(return_X_y=True)
    search = rm.LinearClassifierCV(
        "logistic", alphas=[1.0, 1e-3, 1e-1], cv=3, standardize=True, scoring="roc_auc"
    ).fit(X, y)
    ax = rm.AlphaSearchDisplay.from_estimator(search).ax_
    order = np.argsort(search.alphas_)
    assert list(ax.lines[0].get_ydata()) == list(search.scores_.mean(axis=0)[order])
    assert ax.lines[1].get_xdata() == [search.alpha_, search.alpha_]
    assert ax.get_ylabel() == "roc_auc"


def test_thresholds_include_the_one_in_use_and_find_the_best(model):
    y = np.array([0, 0, 1, 0, 1, 1])
    scores = np.array([-3.0, -2.0, -1.5, 0.5, 1.0, 2.0])
    display = rm.ThresholdDisplay.from_predictions(y, scores, f1_score, n_thresholds=50)
    exact = max(f1_score(y, scores > t) for t in [-9.0, *scores[:-1]])
    assert display.best[1] == exact
    assert display.values[display.thresholds == 0.0] == f1_score(y, scores > 0)
    assert display.ax_.get_ylabel() == "f1_score"
    # those of an estimator use its second class
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    names = np.array(["bad", "good"])[y]
    ours, theirs = (
        rm.ThresholdDisplay.from_estimator(one, X, labels, f1_score, n_thresholds=20, plot=False)
        for one, labels in ((clone(model).fit(X, names), names), (model, y))
    )
    assert np.array_equal(ours.values, theirs.values)


def test_without_matplotlib_the_message_names_the_extra(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"plots need Matplotlib .*: pip install 'riskmin\[plot\]'"):
        model.result_.plot()


def test_the_ndcg_of_queries_is_drawn_from_the_worst_to_the_best():
    rng = np.random.default_rng(4)
    qid = rng.permutation(np.repeat(["a", "b", "c", "d"], [6, 3, 5, 4]))
    X, y = rng.normal(size=(18, 3)), np.where(qid == "c", 0, rng.integers(0, 4, size=18))
    ranker = rm.LinearRanker("ndcg", alpha=1.0).fit(X, y, qid=qid)
    display = rm.NdcgDisplay.from_estimator(ranker, X, y, qid=qid, k=3)
    assert display.n_rows.tolist() == [6, 3, 5, 4]
    assert np.isnan(display.ndcg[2])  # no row of this query is relevant
    for query in "abd":
        rows = qid == query
        alone = mean_ndcg_score(y[rows], ranker.predict(X[rows]), qid=qid[rows], k=3)
        assert display.ndcg["abcd".index(query)] == pytest.approx(alone)
    assert display.mean == pytest.approx(mean_ndcg_score(y, ranker.predict(X), qid=qid, k=3))
    order = [str(query) for _, query in sorted(zip(display.ndcg[[0, 1, 3]], "abd", strict=True))]
    assert display.worst() == order
    # a step of a third of the width for each query, the worst included
    drawn = display.ax_.lines[0]
    ends, heights = drawn.get_xdata(), drawn.get_ydata()
    assert heights[1:].tolist() == sorted(display.ndcg[[0, 1, 3]])
    np.testing.assert_allclose(np.diff(ends), 1 / 3)
    assert (ends[0], heights[0], drawn.get_label()) == (0, heights[1], "3 queries")
    assert display.ax_.get_ylabel() == "NDCG@3"


def test_the_confusion_of_chunks_has_the_counts_as_its_sums():
    rng, labels = np.random.default_rng(8), ["O", "B-A", "I-A", "B-B", "I-B", "S-C"]
    y_true, y_pred = ([list(rng.choice(labels, size=9)) for _ in range(40)] for _ in range(2))
    y_pred = [p if k % 2 else t for k, (t, p) in enumerate(zip(y_true, y_pred, strict=True))]
    display = rm.ChunkConfusionDisplay.from_predictions(y_true, y_pred)
    table = display.confusion_matrix
    for k, count in enumerate(chunk_counts(y_true, y_pred).values()):
        assert (table[k].sum(), table[:, k].sum(), table[k, k]) == count
    # brute force: all pairs of chunks of the same sentence with the same ends
    spans = [[set(rm.metrics.chunks.chunks(s)) for s in y] for y in (y_true, y_pred)]
    pairs = [(a, b) for t, p in zip(*spans, strict=True) for a in t for b in p if a[:2] == b[:2]]
    for t, true in enumerate("ABC"):
        for p, predicted in enumerate("ABC"):
            assert table[t, p] == sum(a[2] == true and b[2] == predicted for a, b in pairs)
    assert table[3, 3] == 0
    true, predicted, number = display.most_confused(1)[0]
    names = [*"ABC", "none"]
    assert number == table[names.index(true), names.index(predicted)]
    assert number == (table - np.diag(np.diag(table))).max()
    drawn = {(text.get_position()[::-1], text.get_text()) for text in display.ax_.texts}
    assert drawn == {((t, p), f"{n:,}") for (t, p), n in np.ndenumerate(table) if n}
    alike = rm.ChunkConfusionDisplay.from_estimator(SimpleNamespace(predict=lambda X: y_pred), None, y_true)
    np.testing.assert_array_equal(alike.confusion_matrix, table)
    shares = display.plot(normalize="true").im_.get_array()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)


# ---------------------------------------------------------------- errors
def of_three_classes():
    X, y = load_iris(return_X_y=True)
    rm.ThresholdDisplay.from_estimator(rm.LinearClassifier("hinge", tol=0.1).fit(X, y), X, y, f1_score)


BARE, NAMES = rm.LinearClassifier(), ["NP", "VP"]
REFUSED = [
    (lambda: rm.CoefficientDisplay([0.0, 2.0, 0.0], NAMES), "3 weights, but 2 feature names: give one"),
    (lambda: rm.CoefficientDisplay([0.0, 2.0], NAMES, scale=[1.0]), "one number per feature name"),
    (lambda: rm.CoefficientDisplay.from_estimator(BARE), "has no coef_: fit a linear estimat"),
    (lambda: rm.PathDisplay([1, 2, 3], np.ones((2, 5))), "3 values of lam, but weights of shape"),
    (lambda: rm.PathDisplay([1, 2], np.ones((2, 12)), ["a"]), "12 weights, but 1 feature names"),
    (lambda: rm.AlphaSearchDisplay.from_estimator(BARE), "LinearClassifier has no scores_"),
    (of_three_classes, "two classes, but the estimator has 3"),
    (lambda: rm.NdcgDisplay([1, 2], [0.5], [3]), "give one of each per query"),
    (lambda: rm.NdcgDisplay.from_predictions([0, 0], [1.0, 2.0], qid=[1, 1]), "query has a grade above 0"),
    (lambda: rm.ChunkConfusionDisplay(np.eye(2), NAMES), "one row and one"),
    (lambda: rm.ChunkConfusionDisplay(np.eye(2), ["NP"]).plot(normalize="all"), "normalize='all'"),
]
test_refusals = refusals((REFUSED, ValueError))
