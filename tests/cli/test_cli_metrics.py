"""The command with non-decomposable losses: contingency tables, ordinal grades and rankings."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from helpers import check_sentence
from riskmin import LinearRanker, OrdinalClassifier, load_model, save_model
from riskmin.data import save_svmlight
from riskmin.losses import LOSSES
from riskmin.metrics import mean_ndcg_score, mrr_score, prbep_score

RANKINGS = [name for name, loss in LOSSES.items() if loss.task == "ranking"]
TABLES = ["roc_area", "prbep", "f1", "f_beta:beta=2", "precision_at_k:k=15", "recall_at_k:k=15"]


def rows(n=120, p=4, seed=0):
    """Features, two classes of which one is rare, grades, and query ids that are not contiguous."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)).round(3)
    z = X[:, 0] - X[:, 1] + 0.7 * rng.normal(size=n)
    return X, np.where(z > 1, 1, -1), np.digitize(z, [-0.5, 1, 2]), np.arange(n) % 12


@pytest.fixture
def two(tmp_path):
    X, y, _, _ = rows()
    save_svmlight(tmp_path / "two.svm", X, y)
    return tmp_path / "two.svm"


@pytest.fixture
def graded(tmp_path):
    X, _, grade, _ = rows()
    save_svmlight(tmp_path / "graded.svm", X, grade)
    return tmp_path / "graded.svm"


@pytest.fixture
def ranked(tmp_path):
    X, _, grade, qid = rows()
    save_svmlight(tmp_path / "ranked.svm", X, grade, qid)
    return tmp_path / "ranked.svm"


def fitted(run, data, loss, model, *options):
    code, out, err = run("fit", data, "--loss", loss, "--lam", 1e-2, "-o", model, "--quiet", *options)
    assert (code, out, err) == (0, "", "")
    return load_model(model)


def run_json(run, command, *args):
    code, out, _ = run(command, *args, "--json")
    return code, json.loads(out)


def refuted(completed, *words):
    code, _, err = completed
    assert code == 1
    assert err.startswith("riskmin: refuted: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def altered(path, **changes):
    """The model with changed attributes and a valid checksum."""
    model = load_model(path)
    for name, value in changes.items():
        setattr(model, name, value)
    save_model(model, path.with_name("tampered"))
    return path.with_name("tampered")


# ---------------------------------------------------------------- tables of two classes
def test_evaluate_prints_the_metric_of_the_loss(two, tmp_path, run):
    X, y, _, _ = rows()
    for loss, name in zip(
        TABLES, ["ROC area", "break-even point", "F1", "F2", "precision at 15", "recall at 15"], strict=True
    ):
        model = fitted(run, two, loss, tmp_path / "m")
        code, metrics = run_json(run, "evaluate", tmp_path / "m", two)
        assert code == 0
        (key,) = [key for key in metrics if key.startswith(name)]
        z = model.decision_function(X)
        top = np.argsort(-z)[:15]
        pairs = z[y > 0][:, None] - z[y < 0][None, :]
        hits, misses, alarms = (np.sum(a) for a in ((z > 0) & (y > 0), (z <= 0) & (y > 0), (z > 0) & (y < 0)))
        expected = {
            "ROC area": np.mean(pairs > 0),
            "break-even point": prbep_score(y, z),
            "F1": 2 * hits / (2 * hits + misses + alarms),
            "F2": 5 * hits / (5 * hits + 4 * misses + alarms),
            "precision at 15": np.mean(y[top] > 0),
            "recall at 15": np.sum(y[top] > 0) / np.sum(y > 0),
        }
        assert metrics[key] == pytest.approx(expected[name])
        assert metrics["mean loss"] + 5e-3 * model.coef_[0] @ model.coef_[0] == pytest.approx(
            model.objective_
        )


def test_predictions_use_the_best_threshold(two, tmp_path, run):
    y = rows()[1]
    fitted(run, two, "prbep", tmp_path / "m")
    predicted = run("predict", tmp_path / "m", two)[1].split()
    assert predicted.count("1") == np.sum(y > 0)
    scores = np.array(run("predict", tmp_path / "m", two, "--scores")[1].split(), float)
    assert ((scores > 0) == (np.array(predicted) == "1")).all()
    fitted(run, two, "precision_at_k:k=7", tmp_path / "m")
    assert run("predict", tmp_path / "m", two)[1].split().count("1") == 7


@pytest.mark.parametrize("loss", TABLES)
def test_changed_thresholds_of_scores_are_refuted(loss, two, tmp_path, run):
    """J does not detect the change: most of these losses do not depend on an intercept."""
    model = fitted(run, two, loss, tmp_path / "m")
    assert run_json(run, "certify", tmp_path / "m", two)[1]["verdict"] == "certified"
    moved = altered(tmp_path / "m", intercept_=model.intercept_ + 0.1)
    refuted(run("certify", moved, two))
    moved = altered(
        tmp_path / "m", intercept_=model.intercept_ + 0.1, threshold_=model.threshold_ - 0.1
    )  # J is unchanged
    refuted(run("certify", moved, two), "cuts its scores at", "best cut at")
    refuted(run("certify", altered(tmp_path / "m", coef_=model.coef_ * 1.01), two))
    bare = fitted(run, two, loss, tmp_path / "m", "--no-intercept")
    assert bare.intercept_ == 0
    assert run("certify", tmp_path / "m", two)[0] == 0
    refuted(run("certify", altered(tmp_path / "m", intercept_=bare.intercept_ + 0.1), two))


def test_evaluation_on_few_rows_or_one_class(two, tmp_path, run):
    fitted(run, two, "precision_at_k:k=15", tmp_path / "m")
    (tmp_path / "few.svm").write_text("1 1:1\n-1 2:1\n1 1:2\n")
    code, metrics = run_json(run, "evaluate", tmp_path / "m", tmp_path / "few.svm")
    assert code == 0
    assert "mean loss" not in metrics
    (tmp_path / "one.svm").write_text("1 1:1\n1 2:1\n")
    for loss in TABLES:
        fitted(run, two, loss, tmp_path / "m")
        code, metrics = run_json(run, "evaluate", tmp_path / "m", tmp_path / "one.svm")
        assert code == 0
        assert np.isfinite(list(metrics.values())).all()


# ---------------------------------------------------------------- labels that a loss does not take
def test_labels_of_another_task_are_refused_with_a_remedy(tmp_path, run):
    data, to = tmp_path / "t.csv", ("-o", tmp_path / "m")
    data.write_text("x,y\n1,0.5\n2,1.5\n3,2\n")
    check_sentence(run("fit", data, *to), "numbers such as 0.5, but hinge takes classes", "--loss squared")
    data.write_text("x,y\n1,7\n2,15\n3,2\n4,15\n")
    code, _, err = run("fit", data, *to)
    assert code == 0
    assert "3 different numbers in 4 rows" in err
    data.write_text("x,y\n1,very good\n2,< bad\n")
    check_sentence(run("fit", data, "--loss", "ordinal", *to), "by --order '< bad,very good'")


# ---------------------------------------------------------------- ordinal
def test_grades_are_printed_as_written(tmp_path, run):
    X, _, grade, _ = rows()
    words = np.array(["poor", "fair", "good", "best"])[grade]
    lines = [f"{a},{b},{c},{d},{w}" for (a, b, c, d), w in zip(X, words, strict=True)]
    data = tmp_path / "wine.csv"
    data.write_text("\n".join(["a,b,c,d,grade", *lines]) + "\n")
    check_sentence(
        run("fit", data, "--loss", "ordinal", "-o", tmp_path / "m"), "order is not known", "--order"
    )
    model = fitted(run, data, "ordinal", tmp_path / "m", "--order", "poor,fair,good,best")
    assert model.classes_.tolist() == ["poor", "fair", "good", "best"]
    predicted = run("predict", tmp_path / "m", data)[1].split()
    assert np.mean(np.array(predicted) == words) > 0.6
    code, table = run_json(run, "evaluate", tmp_path / "m", data)
    place = {"poor": 0, "fair": 1, "good": 2, "best": 3}
    off = np.abs([place[a] - place[b] for a, b in zip(predicted, words.tolist(), strict=True)])
    assert code == 0
    assert table["mean absolute error, in grades"] == pytest.approx(off.mean())
    assert table["accuracy"] == pytest.approx((off == 0).mean())
    assert table["at most one grade off"] == pytest.approx((off <= 1).mean())
    assert 0.4 < table["Kendall's tau"] <= 1
    assert run_json(run, "certify", tmp_path / "m", data)[1]["verdict"] == "certified"
    wrong = ["fit", data, "--loss", "ordinal", "-o", tmp_path / "m", "--order"]
    check_sentence(run(*wrong, "poor,fair,good"), "best")
    check_sentence(run(*wrong, "poor,poor"), "--order")
    check_sentence(
        run("fit", data, "--loss", "hinge", "--order", "a,b", "-o", tmp_path / "m"), "--order is for"
    )


def test_numeric_grades_with_an_order(graded, tmp_path, run):
    plain = fitted(run, graded, "ordinal", tmp_path / "m")
    same = fitted(run, graded, "ordinal", tmp_path / "m", "--order", "0,1,2,3")
    assert np.array_equal(plain.coef_, same.coef_)
    back = fitted(run, graded, "ordinal", tmp_path / "m", "--order", "3,2,1,0")
    assert back.classes_.tolist() == [3, 2, 1, 0]
    assert set(run("predict", tmp_path / "m", graded)[1].split()) <= set("0123")
    assert run("certify", tmp_path / "m", graded)[0] == 0


def test_noninteger_grades(tmp_path, run):
    X, _, grade, _ = rows()
    save_svmlight(tmp_path / "stars.svm", X, grade / 2 + 0.5)
    model = fitted(run, tmp_path / "stars.svm", "ordinal", tmp_path / "m")
    assert set(run("predict", tmp_path / "m", tmp_path / "stars.svm")[1].split()) <= {"0.5", "1", "1.5", "2"}
    assert run_json(run, "certify", tmp_path / "m", tmp_path / "stars.svm")[1]["verdict"] == "certified"
    metrics = run_json(run, "evaluate", tmp_path / "m", tmp_path / "stars.svm")[1]
    assert metrics["accuracy"] == pytest.approx(model.score(X, grade / 2 + 0.5))


def test_models_of_ordered_categorical_columns(tmp_path, run):
    X, _, grade, _ = rows()
    words = ["poor", "fair", "good", "best"]
    column = pd.Categorical.from_codes(grade, words, ordered=True)
    model = OrdinalClassifier(alpha=1e-2).fit(X, pd.Series(column))
    save_model(model, tmp_path / "m")
    lines = [",".join(map(str, [*x, words[g]])) for x, g in zip(X.tolist(), grade, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,c,d,grade", *lines]) + "\n")
    metrics = run_json(run, "evaluate", tmp_path / "m", tmp_path / "a.csv")[1]
    off = np.abs([words.index(word) - g for word, g in zip(model.predict(X), grade, strict=True)])
    assert metrics["mean absolute error, in grades"] == pytest.approx(off.mean())
    assert run_json(run, "certify", tmp_path / "m", tmp_path / "a.csv")[1]["verdict"] == "certified"


def test_changed_thresholds_are_refuted(graded, tmp_path, run):
    model = fitted(run, graded, "ordinal", tmp_path / "m")
    moved = altered(tmp_path / "m", thresholds_=model.thresholds_ + 0.01)
    refuted(run("certify", moved, graded), "cuts its scores at", "best cut at")
    refuted(run("certify", altered(tmp_path / "m", intercept_=0.5), graded))
    refuted(run("certify", altered(tmp_path / "m", coef_=model.coef_ * 1.01), graded))


# ---------------------------------------------------------------- rankings
@pytest.mark.parametrize("loss", [*RANKINGS, "ndcg:k=3"])
def test_rankings_from_end_to_end(loss, ranked, tmp_path, run):
    X, _, grade, qid = rows()
    page = tmp_path / "r.html"
    model = fitted(run, ranked, loss, tmp_path / "m", "--report", page)
    twin = LinearRanker(loss, alpha=1e-2).fit(X, grade, qid=qid)
    np.testing.assert_allclose(model.coef_, twin.coef_, rtol=1e-5)  # sparse and dense sums differ by rounding
    text = page.read_text(encoding="utf-8")
    assert f"<dd>{loss}: " in text
    assert "<dt>queries</dt><dd>12</dd>" in text
    scores = np.array(run("predict", tmp_path / "m", ranked)[1].split(), float)
    np.testing.assert_allclose(scores, X @ model.coef_, rtol=1e-9, atol=1e-12)
    code, metrics = run_json(run, "evaluate", tmp_path / "m", ranked)
    assert (code, metrics["queries"]) == (0, 12)
    assert metrics["NDCG@10"] == pytest.approx(mean_ndcg_score(grade, scores, qid=qid, k=10))
    assert metrics["MRR"] == pytest.approx(mrr_score(grade, scores, qid=qid))
    assert metrics["mean loss"] + 5e-3 * model.coef_ @ model.coef_ == pytest.approx(model.objective_)
    if loss == "ndcg:k=3":
        assert metrics["NDCG@3"] == pytest.approx(mean_ndcg_score(grade, scores, qid=qid, k=3))
    assert run_json(run, "certify", tmp_path / "m", ranked)[1]["verdict"] == "certified"
    refuted(run("certify", altered(tmp_path / "m", coef_=model.coef_ * 1.01), ranked))
    refuted(run("certify", altered(tmp_path / "m", intercept_=0.5), ranked), "intercept")


def test_grades_fitted_as_numbers_are_certified(graded, ranked, tmp_path, run):
    X, _, grade, _ = rows()
    save_model(LinearRanker("squared", alpha=1e-2).fit(X, grade), tmp_path / "m")
    assert run_json(run, "certify", tmp_path / "m", graded)[1]["verdict"] == "certified"
    assert {"NDCG@10", "MRR", "mean loss"} <= set(run_json(run, "evaluate", tmp_path / "m", ranked)[1])
    model = OrdinalClassifier("absolute", alpha=1e-2).fit(X, grade)
    save_model(model, tmp_path / "m")
    assert run_json(run, "certify", tmp_path / "m", graded)[1]["verdict"] == "certified"
    assert "mean loss" in run_json(run, "evaluate", tmp_path / "m", graded)[1]
    refuted(run("certify", altered(tmp_path / "m", thresholds_=model.thresholds_ - 0.1), graded), "cuts")


def test_other_queries_are_refuted(ranked, tmp_path, run):
    X, _, grade, qid = rows()
    fitted(run, ranked, "ndcg", tmp_path / "m")
    save_svmlight(tmp_path / "other.svm", X, grade, qid // 2)
    refuted(run("certify", tmp_path / "m", tmp_path / "other.svm"), "objective")
    order = np.random.default_rng(0).permutation(len(X))
    save_svmlight(tmp_path / "mixed.svm", X[order], grade[order], qid[order] + 10**15)
    assert run("certify", tmp_path / "m", tmp_path / "mixed.svm")[0] == 0  # only the grouping of rows matters


def test_query_column(tmp_path, run):
    X, _, grade, qid = rows()
    names = np.array([f"query {q}" for q in qid])
    lines = [f"{a},{q},{b},{c},{d},{y}" for (a, b, c, d), q, y in zip(X, names, grade, strict=True)]
    data = tmp_path / "clicks.csv"
    data.write_text("\n".join(["a,topic,b,c,d,relevance", *lines]) + "\n")
    ask = ["--loss", "pairwise_hinge", "--lam", "0.01", "-o", tmp_path / "m"]
    check_sentence(run("fit", data, *ask), "no query ids", "--qid")
    check_sentence(run("fit", data, *ask, "--qid", "subject"), "there is no column 'subject'")
    model = fitted(run, data, "pairwise_hinge", tmp_path / "m", "--qid", "topic")
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    twin = LinearRanker("pairwise_hinge", alpha=1e-2).fit(X, grade, qid=qid)
    np.testing.assert_allclose(model.coef_, twin.coef_, rtol=1e-9, atol=1e-12)
    for column in ("topic", "1"):
        assert run("certify", tmp_path / "m", data, "--qid", column)[0] == 0
        assert run("evaluate", tmp_path / "m", data, "--qid", column)[0] == 0
        assert len(run("predict", tmp_path / "m", data, "--qid", column)[1].split()) == 120
    bare = tmp_path / "bare.csv"
    bare.write_text("a,b,c,d\n" + "\n".join(",".join(map(str, x)) for x in X.tolist()) + "\n")
    assert len(run("predict", tmp_path / "m", bare)[1].split()) == 120


def test_unused_query_ids_are_ignored(ranked, tmp_path, run):
    code, _, err = run("fit", ranked, "--loss", "ordinal", "-o", tmp_path / "m")
    assert code == 0
    assert err == "riskmin: ranked.svm has query ids, which ordinal does not use\n"
    assert run("certify", tmp_path / "m", ranked)[0] == 0
    code, _, err = run("cv", ranked, "--loss", "squared", "--n-lams", 2, "-o", tmp_path / "m")
    assert (code, err.count("\n")) == (0, 1)
    assert run("fit", ranked, "--loss", "absolute", "-o", tmp_path / "m", "--quiet") == (0, "", "")


def test_rankings_need_queries(graded, ranked, tmp_path, run):
    for command in ("fit", "cv", "path"):
        check_sentence(run(command, graded, "--loss", "ndcg", "-o", tmp_path / "m"), "no query ids", "--qid")
    fitted(run, ranked, "ndcg", tmp_path / "m")
    for command in ("evaluate", "certify"):
        check_sentence(run(command, tmp_path / "m", graded), "no query ids")
    assert run("predict", tmp_path / "m", graded) == run("predict", tmp_path / "m", ranked)


# ---------------------------------------------------------------- paths, cross-validation, checkpoints
@pytest.mark.parametrize(("loss", "name"), [("ordinal", "graded"), ("pairwise_hinge", "ranked")])
def test_path_and_cv(loss, name, tmp_path, run, request):
    data = request.getfixturevalue(name)
    X, _, grade, qid = rows()
    code, table = run_json(run, "path", data, "--loss", loss, "--lams", "1,0.01", "-o", tmp_path / "p.html")
    assert code == 0
    make = OrdinalClassifier if loss == "ordinal" else LinearRanker
    extra = {} if loss == "ordinal" else {"qid": qid}
    twin = make(loss, alpha=0.01).fit(X, grade, **extra)
    assert table["path"][1]["objective"] == pytest.approx(twin.objective_, rel=2e-3)
    assert table["path"][1]["lower_bound"] <= twin.objective_
    args = ["--loss", loss, "--lams", "1,0.01", "--folds", "3", "-o", tmp_path / "m"]
    code, table = run_json(run, "cv", data, *args, "--report", tmp_path / "cv.html")
    assert code == 0
    assert np.shape([row["scores"] for row in table["cv"]]) == (2, 3)
    assert table["best_score"] == max(row["mean"] for row in table["cv"])
    assert load_model(tmp_path / "m").alpha == table["best_lam"]
    assert run("certify", tmp_path / "m", data)[0] == 0
    assert "nan" not in (tmp_path / "cv.html").read_text(encoding="utf-8")


def test_cv_with_grades_missing_in_some_folds(tmp_path, run):
    X, _, grade, _ = rows()
    grade[3] = 9  # a grade with a single row
    save_svmlight(tmp_path / "a.svm", X, grade)
    args = [
        "cv",
        tmp_path / "a.svm",
        "--loss",
        "ordinal",
        "--lams",
        "0.1",
        "--folds",
        "3",
        "-o",
        tmp_path / "m",
    ]
    scores = run_json(run, *args)[1]["cv"][0]["scores"]
    back = run_json(run, *args, "--order", "9,3,2,1,0")[1]["cv"][0]["scores"]
    np.testing.assert_allclose(scores, back, atol=0.2)  # reversed, except for ties
    assert all(-1 < score < 0 for score in scores + back)
    assert run_json(run, *args, "--scoring", "accuracy")[1]["best_score"] > 0.4


def test_folds_keep_queries_together(ranked, tmp_path, run):
    from sklearn.model_selection import GroupKFold

    X, _, grade, qid = rows()
    expected = []
    for train, test in GroupKFold(3).split(X, grade, qid):
        model = LinearRanker("ndcg", alpha=0.1).fit(X[train], grade[train], qid=qid[train])
        expected.append(mean_ndcg_score(grade[test], model.predict(X[test]), qid=qid[test], k=5))
    args = ["--loss", "ndcg", "--lams", "0.1", "--folds", "3", "--scoring", "ndcg:k=5", "-o", tmp_path / "m"]
    _, table = run_json(run, "cv", ranked, *args)
    np.testing.assert_allclose(table["cv"][0]["scores"], expected, atol=0.02)
    out = run("cv", ranked, *args)[1]
    assert "NDCG@5" in out
    check_sentence(run("cv", ranked, *args, "--folds", "13"), "queries", "12")
    check_sentence(run("cv", ranked, *args, "--scoring", "roc_area"), "no measure for ranking", "mrr")
    check_sentence(run("cv", ranked, *args, "--scoring", "accuracy"), "no measure for ranking")
    args[1] = "ordinal"
    check_sentence(run("cv", ranked, *args), "no measure for ordinal")


def test_cv_names_the_fold_and_the_metric(two, tmp_path, run):
    args = ["cv", two, "--lams", "1", "--folds", "3", "-o", tmp_path / "m"]
    for words in (["--loss", "precision_at_k:k=50"], ["--loss", "hinge", "--scoring", "recall_at_k:k=50"]):
        check_sentence(run(*args, *words), "k=50, but there are 40 rows", "in fold 1 of 3")
    check_sentence(run(*args, "--scoring", "ordinal"), "no scorer named 'ordinal'", "roc_area, prbep")
    data = tmp_path / "words.csv"
    X, _, grade, _ = rows()
    lines = [",".join(map(str, [*x, "abcd"[g]])) for x, g in zip(X.tolist(), grade, strict=True)]
    data.write_text("\n".join(["a,b,c,d,grade", *lines]) + "\n")
    args = ["cv", data, "--loss", "ordinal", "--order", "a,b,c,d", "--lams", "1", "-o", tmp_path / "m"]
    check_sentence(run(*args, "--scoring", "r2"), "--metric r2 takes numbers, but the labels are words")
    args = ["cv", data, "--loss", "logistic", "--lams", "1", "--folds", "2", "-o", tmp_path / "m"]
    check_sentence(
        run(*args, "--metric", "roc_auc"), "--metric roc_auc is for two classes", "choose roc_auc_ovr"
    )
    assert run(*args, "--metric", "roc_auc_ovr")[0] == 0


def test_fewer_rows_than_k(two, tmp_path, run):
    X, y, _, _ = rows()
    fitted(run, two, "precision_at_k:k=15", tmp_path / "m")
    few = np.concatenate([np.flatnonzero(y > 0)[:3], np.flatnonzero(y < 0)[:3]])
    save_svmlight(tmp_path / "few.svm", X[few], y[few])
    code, metrics = run_json(run, "evaluate", tmp_path / "m", tmp_path / "few.svm")
    assert code == 0
    assert not any("15" in name for name in metrics)  # precision at 15 is undefined for six rows


def test_cv_compares_the_metric_of_the_loss(two, tmp_path, run):
    args = ["--lams", "1,0.01", "--folds", "3", "-o", tmp_path / "m"]
    for loss, name in (("prbep", "break-even point"), ("f1", "F1"), ("roc_area", "ROC area")):
        code, out, _ = run("cv", two, "--loss", loss, *args)
        assert (code, name in out) == (0, True)
        assert run("certify", tmp_path / "m", two)[0] == 0
    assert "break-even point" in run("cv", two, "--loss", "hinge", "--scoring", "prbep", *args)[1]
    assert " accuracy" in run("cv", two, "--loss", "prbep", "--scoring", "accuracy", *args)[1]


@pytest.mark.parametrize(
    ("loss", "name"), [("prbep", "two"), ("f1", "two"), ("ordinal", "graded"), ("mrr", "ranked")]
)
def test_checkpoints_are_resumed(loss, name, tmp_path, run, request):
    data = request.getfixturevalue(name)
    args = ["--loss", loss, "--checkpoint", tmp_path / "c", "-o", tmp_path / "m", "--quiet", "--tol", "1e-6"]
    code, facts = run_json(run, "fit", data, *args, "--max-iter", "2")
    assert (code, facts["status"]) == (3, "max_iter")
    code, facts = run_json(run, "fit", data, *args)
    assert (code, facts["status"]) == (0, "converged")
    assert facts["iterations"] > 2
    assert run("certify", tmp_path / "m", data)[0] == 0


# ---------------------------------------------------------------- errors
BAD = {
    "some.svm": ("2 qid:1 1:1\n0 1:2\n", "ndcg", "line 2: the row has no qid"),
    "late.svm": ("2 1:1\n0 qid:1 1:2\n", "ndcg", "line 2: the row has 'qid:1'"),
    "word.svm": ("2 qid:one 1:1\n", "ndcg", "line 1: 'qid:one' is not qid:id"),
    "cut.svm": ("2 qid:1 1:1\n0 qid:", "ndcg", "line 2"),
    "half.svm": ("2 qid:1 1:1\n0 qid:1 1:", "ndcg", "line 2"),
    "alone.svm": ("2 qid:1 1:1\n0 qid:2 1:2\n", "pairwise_hinge", "no query has rows of two"),
    "same.svm": ("2 qid:1 1:1\n2 qid:1 1:2\n", "ndcg", "no query has rows of two"),
    "minus.svm": ("-1 qid:1 1:1\n2 qid:1 1:2\n", "ndcg", "grades >= 0"),
    "text.csv": ("a,qid,y\n1,1,good\n2,1,bad\n", "mrr", "words"),
    "hole.csv": ("a,qid,y\n1,1,2\n2,,1\n", "mrr", "line 3: column 'qid': the cell is empty"),
    "one.svm": ("3 1:1\n3 1:2\n", "ordinal", "one grade (3)"),
    "short.svm": ("1 1:1\n-1 1:2\n1 1:3\n-1 1:4\n", "precision_at_k:k=9", "k=9"),
    "three.svm": ("1 1:1\n2 1:2\n3 1:3\n", "prbep", "3 classes"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_data(name, tmp_path, run):
    text, loss, words = BAD[name]
    (tmp_path / name).write_text(text)
    for command in ("fit", "path", "cv"):
        output = ["-o", tmp_path / "m", *(["--folds", "2"] if command == "cv" else [])]
        check_sentence(run(command, tmp_path / name, "--loss", loss, *output), words)
    assert [each.name for each in tmp_path.iterdir()] == [name]


BAD_USAGE = [
    (["--loss", "precision_at_k:k=-1"], "k to be a whole number >= 1"),
    (["--loss", "recall_at_k:k=2.5"], "k to be a whole number >= 1"),
    (["--loss", "ndcg:k=0"], "k to be a whole number >= 1"),
    (["--loss", "f_beta:beta=0"], "beta"),
    (["--loss", "expected_rank_utility:half_life=1"], "half_life"),
    (["--loss", "ordinal:costs=2"], "costs"),
    (["--loss", "prbep", "--class-weight", "balanced"], "counts rows"),
    (["--loss", "f1", "--class-weight", "balanced"], "counts rows"),
    (["--loss", "ordinal", "--class-weight", "balanced"], "--class-weight is for classification"),
    (["--loss", "ordinal", "--no-intercept"], "--no-intercept has no effect"),
    (["--loss", "mrr", "--no-intercept"], "--no-intercept has no effect"),
    (["--loss", "mrr", "--qid", "query"], "--qid names a column of a table"),
]


@pytest.mark.parametrize(("options", "words"), BAD_USAGE, ids=lambda v: " ".join(v) if v[0][0] == "-" else "")
def test_invalid_usage(options, words, two, tmp_path, run):
    check_sentence(run("fit", two, *options, "-o", tmp_path / "m"), words)
    assert not (tmp_path / "m").exists()


def test_truncated_file_with_queries(ranked, tmp_path, run):
    compressed = gzip.compress(ranked.read_bytes())
    (tmp_path / "cut.svm.gz").write_bytes(compressed[: len(compressed) // 2])
    check_sentence(run("fit", tmp_path / "cut.svm.gz", "--loss", "ndcg", "-o", tmp_path / "m"), "truncated")


def test_invalid_requests_to_models(two, graded, ranked, tmp_path, run):
    fitted(run, graded, "ordinal", tmp_path / "m")
    (tmp_path / "strange.svm").write_text("9 1:1\n0 1:2\n")
    check_sentence(
        run("certify", tmp_path / "m", tmp_path / "strange.svm"), "the grade 9 is none of the model's"
    )
    _, metrics = run_json(run, "evaluate", tmp_path / "m", tmp_path / "strange.svm")
    assert 0 < metrics["mean absolute error, in grades"] <= 4  # the new grade is one above the known grades
    assert "mean loss" not in metrics
    (tmp_path / "words.csv").write_text("a,b,c,d,y\n1,2,3,4,good\n")
    check_sentence(run("evaluate", tmp_path / "m", tmp_path / "words.csv"), "words")
    fitted(run, graded, "ordinal", tmp_path / "m", "--order", "3,2,1,0")
    check_sentence(run("evaluate", tmp_path / "m", tmp_path / "strange.svm"), "the grade 9 is none")
    check_sentence(run("predict", tmp_path / "m", graded, "--proba"), "logistic")
    fitted(run, ranked, "ndcg", tmp_path / "m")
    (tmp_path / "words.csv").write_text("a,b,c,d,qid,y\n1,2,3,4,5,good\n")
    check_sentence(run("evaluate", tmp_path / "m", tmp_path / "words.csv"), "not numbers")
    check_sentence(run("predict", tmp_path / "m", ranked, "--qid", "a"), "--qid names a column of a table")
