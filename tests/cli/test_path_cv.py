"""The commands path and cv, and the lists of losses, regularizers and solvers."""

import io
import json
import sys

import numpy as np
import pytest
from command_files import GRADES, RAW, rows, run_json
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import GroupKFold, StratifiedKFold

import riskmin as rm
from helpers import ClosedElements, customers
from riskmin.data import save_svmlight
from riskmin.losses import LOSSES
from riskmin.metrics import mean_ndcg_score
from riskmin.regularizers import REGULARIZERS
from riskmin.solvers import SOLVERS

X, Y, GRADE, QID = rows()


def read_page(path):
    """The text of a page whose elements are closed, and in which no number is NaN."""
    page = path.read_text(encoding="utf-8")
    ClosedElements().check(page)
    assert "nan" not in page
    return page


# ---------------------------------------------------------------- lists
def test_lists(run):
    code, out, _ = run("losses")
    assert code == 0
    words = " ".join(out.split())
    assert all(name in words and " ".join(loss.formula.split()) in words for name, loss in LOSSES.items())
    losses = {row["name"]: row for row in json.loads(run("losses", "--json")[1])}
    assert set(losses) == set(LOSSES)
    huber = {"name": "huber", "task": "regression", "parameters": {"delta": 1.0}, "smooth": True}
    assert {key: losses["huber"][key] for key in huber} == huber
    code, out, _ = run("regularizers")
    assert (code, all(name in out for name in REGULARIZERS)) == (0, True)
    zeros = {row["name"]: row["zeros"] for row in json.loads(run("regularizers", "--json")[1])}
    assert zeros == {name: name in ("l1", "elastic") for name in REGULARIZERS}
    code, out, _ = run("solvers")
    assert (code, ":math:" in out, all(name in out for name in SOLVERS)) == (0, False, True)
    assert [row["name"] for row in json.loads(run("solvers", "--json")[1])] == list(SOLVERS)


def test_the_list_of_losses_is_at_most_100_characters_wide(run):
    assert max(map(len, run("losses")[1].splitlines())) <= 100


# ---------------------------------------------------------------- path
def test_path_prints_one_line_per_lam(files, tmp_path, run):
    page = tmp_path / "path.html"
    code, out, err = run("path", files / "two.svm", "--lams", "0.01,1,0.1", "-o", page)
    assert (code, err) == (0, "")
    head, titles, *lines, total, last = out.splitlines()
    assert head == "hinge on two.svm, 60 rows x 4 columns, l2"
    assert titles.split() == ["lam", "objective", "certified", "gap", "nonzeros", "calls", "time", "status"]
    assert [line.split()[0] for line in lines] == ["0.01", "1", "0.1"]
    assert all(line.endswith("converged") for line in lines)
    assert total.split()[0] == "all"
    assert last == f"  page  {page}"
    text = read_page(page)
    assert text.count("<svg class") == 3
    assert ">column 0</text>" in text


PRICE = 2 * X[:, 0] + np.sin(X[:, 1])
TWINS = [
    ("two.svm", "hinge --no-intercept", rm.LinearClassifier(fit_intercept=False), Y),
    ("two.svm", "hinge --class-weight balanced --jobs 2", rm.LinearClassifier(class_weight="balanced"), Y),
    ("two.svm", "novelty", rm.NoveltyDetector(), None),
    ("houses.csv", "quantile:level=0.9 --jobs -1", rm.LinearRegressor("quantile:level=0.9"), PRICE),
    ("graded.csv", "hinge --reg l1", rm.LinearClassifier(regularizer="l1"), GRADES[GRADE]),
    ("graded.svm", "ordinal", rm.OrdinalClassifier(), GRADE),
    ("ranked.svm", "pairwise_hinge", rm.LinearRanker(), GRADE),
]


@pytest.mark.parametrize(("name", "options", "model", "y"), TWINS)
@pytest.mark.filterwarnings("ignore::riskmin.TrivialModelWarning")
def test_paths_have_the_minima_of_single_fits(name, options, model, y, files, run):
    args = ["path", files / name, "--loss", *options.split(), "--quiet"]
    path = run_json(run, *args, "--lams", "1,0.01")[1]["path"]
    for row in path:
        twin = model.set_params(alpha=row["lam"]).fit(X, y, **{"qid": QID} if name == "ranked.svm" else {})
        assert row["status"] == "converged"
        assert row["objective"] == pytest.approx(twin.objective_, rel=2e-3)
        assert row["lower_bound"] <= twin.objective_ * (1 + 1e-9)
        assert twin.lower_bound_ <= row["objective"] * (1 + 1e-9)
    same = run_json(run, *args, "--alphas", "1,0.01")[1]["path"]
    assert [row["objective"] for row in same] == [row["objective"] for row in path]


def test_path_starts_where_all_weights_are_zero(files, tmp_path, run):
    options = ["--loss", "squared", "--reg", "l1", "--n-lams", 4, "--json", "-o", tmp_path / "p.html"]
    code, out, err = run("path", files / "houses.csv", *options)
    path = json.loads(out)["path"]
    assert code == 0
    assert path[0]["nonzeros"] == 0
    assert path[-1]["lam"] == pytest.approx(path[0]["lam"] / 1000)
    assert {"lam", "gap_rel"} <= json.loads(err.splitlines()[0]).keys()
    text = read_page(tmp_path / "p.html")
    assert text.count("<svg class") == 4
    assert ">a</text>" in text


def test_fits_that_did_not_converge_are_reported(files, tmp_path, run):
    hard = ["--max-iter", 2, "--tol", 1e-9]
    code, _, err = run("path", files / "two.svm", "--lams", "1,0.0001", *hard)
    assert code == 3
    assert "did not reach the certified gap of 1e-09: raise --max-iter" in err
    code, _, err = run("cv", files / "two.svm", "--lams", "0.0001", "--folds", 2, *hard, "-o", tmp_path / "m")
    assert code == 3
    assert "2 of 2 fits of the folds did not reach the certified gap of 1e-09" in err
    assert "the last fit is not converged (max_iter): the certified gap is" in err


class InterruptedScreen(io.StringIO):
    """A screen at which someone presses Ctrl-C when the second fit is reported."""

    def write(self, text):
        if "iteration 1," in text and "iteration 1," in self.getvalue():
            raise KeyboardInterrupt
        return super().write(text)


def test_an_interrupted_path_is_printed(files, run, monkeypatch):
    screen = InterruptedScreen()
    monkeypatch.setattr(sys, "stderr", screen)
    code, out, _ = run("path", files / "two.svm", "--lams", "1,0.01,0.001", "-v")
    assert (code, out.count("converged"), out.count("interrupted")) == (3, 1, 2)
    assert screen.getvalue().endswith("riskmin: interrupted, with 2 of 3 fits not done\n")


# ---------------------------------------------------------------- cv
def test_cv_prints_one_line_per_lam_and_marks_the_best(files, tmp_path, run):
    args = ["--lams", "100,0.1,0.01", "--folds", 3, "-o", tmp_path / "best", "--loss", "logistic"]
    code, out, err = run("cv", files / "two.svm", *args)
    assert code == 0
    assert err == "riskmin: the best lam is the smallest one tried: give others beyond it by --lams\n"
    lines = out.splitlines()
    assert lines[0] == "logistic on two.svm, 60 rows x 4 columns, l2, 3 folds"
    assert [line.split()[0] for line in lines[2:5]] == ["100", "0.1", "0.01"]
    (best,) = [line for line in lines[2:5] if line.endswith("best")]
    assert f"{rm.load_model(tmp_path / 'best').alpha:g}" == best.split()[0] != "100"


def test_cv_finds_the_best_lam_of_a_range(files, tmp_path, run):
    args = [files / "two.svm", "--alpha-range", "1e-3", "1", "--eps", "0", "--loss", "logistic"]
    code, facts = run_json(run, "cv", *args, "--folds", 3, "-o", tmp_path / "best")
    assert code == 0
    assert facts["score_bound"] == facts["best_score"] == max(entry["mean"] for entry in facts["cv"])
    assert 1e-3 <= facts["best_lam"] <= 1
    assert facts["best_lam"] == facts["lam"] == rm.load_model(tmp_path / "best").alpha
    code, out, err = run("cv", *args, "--folds", 3, "-o", tmp_path / "best", "-v")
    assert code == 0
    assert "no lam between 0.001 and 1 scores above" in out
    assert "values of lam, best score" in err
    code, _, err = run("cv", *args, "--lams", "1", "-o", tmp_path / "m")
    assert code == 2
    assert "--lam-range takes the place of --lams" in err
    code, _, err = run("cv", files / "graded.svm", "--loss", "ordinal", *args[1:4], "-o", tmp_path / "m")
    assert code == 2
    assert "sums of losses of one score per row" in err


BY_FOLDS = [
    ("huber", "houses.csv", "--reg l1 --jobs 2 --scoring neg_mean_absolute_error"),
    ("ordinal", "graded.svm", ""),
    ("pairwise_hinge", "ranked.svm", ""),
]


@pytest.mark.parametrize(("loss", "name", "options"), BY_FOLDS)
def test_the_best_mean_of_the_folds_chooses_lam(loss, name, options, files, tmp_path, run):
    data, model = files / name, tmp_path / "m"
    args = [data, "--loss", loss, "--n-lams", 2, *options.split(), "--folds", 3]
    code, facts = run_json(run, "cv", *args, "-o", model, "--report", tmp_path / "cv.html")
    assert code == 0
    assert np.shape([row["scores"] for row in facts["cv"]]) == (2, 3)
    best = max(facts["cv"], key=lambda row: row["mean"])
    assert facts["best_lam"] == best["lam"] == facts["lam"] == rm.load_model(model).alpha
    assert facts["best_score"] == pytest.approx(best["mean"])
    assert run("certify", model, data)[0] == 0
    assert hasattr(rm.load_model(model), "feature_names_in_") == (name == "houses.csv")
    assert read_page(tmp_path / "cv.html").count("<svg class") == 1


def test_cv_with_grades_missing_in_some_folds(tmp_path, run):
    grade = GRADE.copy()
    grade[3] = 9  # a grade with a single row
    save_svmlight(tmp_path / "a.svm", X, grade)
    folds = ["--lams", "0.1", "--folds", "3", "-o", tmp_path / "m"]
    args = ["cv", tmp_path / "a.svm", "--loss", "ordinal", *folds]
    scores = run_json(run, *args)[1]["cv"][0]["scores"]
    back = run_json(run, *args, "--order", "9,3,2,1,0")[1]["cv"][0]["scores"]
    np.testing.assert_allclose(scores, back, atol=0.2)  # reversed, except for ties
    assert all(-1 < score < 0 for score in scores + back)
    assert run_json(run, *args, "--scoring", "accuracy")[1]["best_score"] > 0.4


def test_folds_keep_queries_together(files, tmp_path, run):
    expected = []
    for train, test in GroupKFold(3).split(X, GRADE, QID):
        model = rm.LinearRanker("ndcg", alpha=0.1).fit(X[train], GRADE[train], qid=QID[train])
        expected.append(mean_ndcg_score(GRADE[test], model.predict(X[test]), qid=QID[test], k=5))
    args = ["--loss", "ndcg", "--lams", "0.1", "--folds", "3", "--scoring", "ndcg:k=5", "-o", tmp_path / "m"]
    facts = run_json(run, "cv", files / "ranked.svm", *args)[1]
    np.testing.assert_allclose(facts["cv"][0]["scores"], expected, atol=0.02)
    assert facts["metric"] == "NDCG@5"


def test_cv_compares_the_metric_of_the_loss(files, tmp_path, run):
    args = ["cv", files / "two.svm", "--lams", "1", "--folds", "2", "-o", tmp_path / "m"]
    assert "break-even point" in run(*args, "--loss", "prbep")[1]
    assert " accuracy" in run(*args, "--loss", "prbep", "--scoring", "accuracy")[1]
    several = ["--loss", "logistic", "--lams", "1", "--folds", "2", "--metric", "roc_auc_ovr"]
    assert run("cv", files / "graded.csv", *several, "-o", tmp_path / "m")[0] == 0


def test_cv_by_several_metrics(files, tmp_path, run):
    """The first chooses lam; all are those of scikit-learn on the same folds."""
    options = [*RAW, "--weight", "times", "--lams", "0.1,0.001", "--folds", "3", "-o", tmp_path / "m"]
    metrics = ["--metric", "average_precision,f1,accuracy"]
    facts = run_json(run, "cv", files / "raw.csv", *options, *metrics)[1]
    assert facts["metric"] == "average precision"
    table, best = customers(120), rm.load_model(tmp_path / "m")
    rows_of = best.preparation_.read([files / "raw.csv"]).X
    y, c = table.bought.to_numpy(), table.times.to_numpy(float)
    expected = {"average": [], "F1": []}
    for train, test in StratifiedKFold(3).split(rows_of, y):
        model = rm.LinearClassifier("logistic", alpha=1e-3, standardize=True)
        model.fit(rows_of[train], y[train], c[train])
        of_test = {"y_true": y[test] == "yes", "sample_weight": c[test]}
        scores = model.decision_function(rows_of[test])
        expected["average"].append(average_precision_score(y_score=scores, **of_test))
        expected["F1"].append(f1_score(y_pred=scores > 0, **of_test))
    entry = facts["cv"][1]
    assert entry["scores"] == pytest.approx(expected["average"], abs=2e-3)
    assert entry["metrics"]["F1"] == pytest.approx(np.mean(expected["F1"]), abs=1e-2)
    assert list(entry["metrics"]) == ["F1", "accuracy"]
    assert facts["best_score"] == max(e["mean"] for e in facts["cv"])
    assert "average precision" in run("cv", files / "raw.csv", *options, *metrics)[1]
    assert "accuracy" in run("cv", files / "raw.csv", *options)[1]
