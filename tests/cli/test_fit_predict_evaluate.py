"""The commands fit, predict and evaluate: files, tables and exit codes, for every loss and regularizer."""

import errno
import json
import os
import sys
import types

import numpy as np
import pandas as pd
import pytest
from command_files import GRADES, N, fitted, rows, run_json, write_csv
from sklearn.metrics import average_precision_score, fbeta_score, roc_auc_score

import riskmin as rm
from helpers import ClosedElements, check_sentence
from riskmin.data import save_svmlight
from riskmin.losses import LOSSES
from riskmin.metrics import mean_ndcg_score, mrr_score, prbep_score

X, Y, GRADE, QID = rows()


# ---------------------------------------------------------------- every loss
METRICS = {
    "roc_area": ("ROC area", lambda z, top: roc_auc_score(Y, z)),
    "prbep": ("break-even point", lambda z, top: prbep_score(Y, z)),
    "f1": ("F1", lambda z, top: fbeta_score(Y > 0, z > 0, beta=1)),
    "f_beta:beta=2": ("F2", lambda z, top: fbeta_score(Y > 0, z > 0, beta=2)),
    "precision_at_k:k=15": ("precision at 15", lambda z, top: np.mean(Y[top] > 0)),
    "recall_at_k:k=15": ("recall at 15", lambda z, top: np.sum(Y[top] > 0) / np.sum(Y > 0)),
    "hinge": ("average precision", lambda z, top: average_precision_score(Y > 0, z)),
}


@pytest.mark.parametrize("loss", [*LOSSES, "chain_max_margin:rescaled=1"])
def test_every_loss_fits_predicts_evaluates_and_certifies(loss, tmp_path, run):
    n, task, model = 20, rm.get_loss(loss).task, tmp_path / "m"
    y = {"regression": np.round(np.exp(0.3 * X[:, 0]), 3), "ordinal": GRADE, "ranking": GRADE}
    y = y.get(task, Y)[:n]
    queries = {"qid": QID[:n]} if task == "ranking" else {}
    data = tmp_path / ("data.conll" if task == "tagging" else "data.npz")
    if task == "tagging":
        data.write_text("".join(f"{x > 0} {x > 1} {label}\n" for x, label in zip(X[:n, 0], y, strict=True)))
    else:
        np.savez(data, X=np.abs(X[:n]) if loss == "novelty" else X[:n], y=y, **queries)
    assert run("fit", data, "--loss", loss, "--lam", "0.1", "--tol", "0.01", "-o", model)[0] == 0
    code, out, _ = run("predict", model, data)
    assert (code, len(out.splitlines())) == (0, n)
    code, facts = run_json(run, "evaluate", model, data)
    assert code == 0
    assert facts["mean loss"] >= 0
    code, facts = run_json(run, "certify", model, data)
    assert (code, facts["verdict"]) == (0, "certified")


@pytest.mark.parametrize("loss", METRICS)
def test_evaluate_prints_the_metric_of_the_loss(loss, files, tmp_path, run):
    name, measure = METRICS[loss]
    model = fitted(run, files / "two.svm", loss, tmp_path / "m", "--alpha", 0.1)
    code, facts = run_json(run, "evaluate", tmp_path / "m", files / "two.svm")
    assert code == 0
    (key,) = [key for key in facts if key.startswith(name)]
    z = model.decision_function(X)
    assert facts[key] == pytest.approx(measure(z, np.argsort(-z)[:15]))
    assert facts["accuracy"] == pytest.approx(model.score(X, Y))
    assert facts["ROC area"] == pytest.approx(roc_auc_score(Y, z))
    assert facts["mean loss"] + 0.05 * model.coef_[0] @ model.coef_[0] == pytest.approx(model.objective_)
    assert {"balanced accuracy", "F1 of class 1", "rows"} <= set(facts)
    assert all(key in run("evaluate", tmp_path / "m", files / "two.svm")[1] for key in facts)
    (tmp_path / "one.svm").write_text("1 1:1\n1 2:1\n")
    code, facts = run_json(run, "evaluate", tmp_path / "m", tmp_path / "one.svm")
    assert code == 0
    assert np.isfinite(list(facts.values())).all()
    assert not any("15" in key for key in facts)  # precision at 15 is undefined for two rows
    assert ("mean loss" in facts) <= ("15" not in loss)


def test_several_classes_and_several_outputs(files, tmp_path, run):
    data, frame = files / "graded.csv", pd.DataFrame(X, columns=list("abcd"))
    model = fitted(run, data, "logistic", tmp_path / "m")
    assert run("predict", tmp_path / "m", data)[1].split() == model.predict(frame).tolist()
    for option, expected in {"--proba": model.predict_proba, "--scores": model.decision_function}.items():
        out = run("predict", tmp_path / "m", data, option)[1]
        np.testing.assert_allclose(np.loadtxt(out.splitlines()), expected(frame))
    out = run("evaluate", tmp_path / "m", data)[1]
    assert all(word in out for word in ("macro F1", "poor"))
    facts = run_json(run, "evaluate", tmp_path / "m", data)[1]
    assert facts["accuracy"] == pytest.approx(model.score(frame, GRADES[GRADE]))
    assert facts["classes"]["fair"]["rows"] == (GRADE == 1).sum()
    both = rm.LinearRegressor(alpha=0.1).fit(X, X[:, :2])
    rm.save_model(both, tmp_path / "m")
    out = run("predict", tmp_path / "m", files / "two.svm")[1]
    np.testing.assert_allclose(np.loadtxt(out.splitlines()), both.predict(X))
    for command in ("evaluate", "certify"):
        check_sentence(run(command, tmp_path / "m", files / "two.svm"), "predicts 2 numbers per row")


def test_novelty_with_and_without_labels(tmp_path, run):
    inner = np.abs(np.random.default_rng(0).normal(size=(100, 3))) + 1
    inner[:5] *= 0.1
    np.savez(tmp_path / "a.npz", X=inner, y=np.arange(100) < 5)
    np.savez(tmp_path / "b.npz", X=inner)
    for option, share in (([], 0.1), (["--contamination", "0.3"], 0.3)):
        model = fitted(run, tmp_path / "b.npz", "novelty", tmp_path / "m", *option)
        assert model.contamination == share
    facts = run_json(run, "evaluate", tmp_path / "m", tmp_path / "a.npz")[1]
    assert (facts["ROC area"], facts["recall"]) == (1.0, 1.0)
    assert "ROC area" not in run("evaluate", tmp_path / "m", tmp_path / "b.npz")[1]
    assert run("certify", tmp_path / "m", tmp_path / "b.npz")[0] == 0


# ---------------------------------------------------------------- every regularizer
REGULARIZERS = ["l2", "l1", "elastic:eps=2", "entropy:prior=0.3", "unnormalized_entropy", "qnorm:q=1.2"]
REGULARIZERS += ["l1 --positive", "elastic --positive", "l2 --positive"]


@pytest.mark.parametrize("k", range(len(REGULARIZERS)), ids=REGULARIZERS)
def test_models_are_certified_with_their_regularizer(k, files, tmp_path, run):
    reg, model, data = REGULARIZERS[k], tmp_path / "m", files / "two.svm"
    options = ["--loss", ["hinge", "logistic"][k % 2], "--lam", 1e-2, "--reg", *reg.split()]
    code, facts = run_json(run, "fit", data, *options, "--quiet", "-o", model)
    assert code == 0
    assert facts["reg"] == reg.replace(" --", ", ")
    assert (facts["nonzeros"] is not None) == ("l1" in reg or "elastic" in reg or "positive" in reg)
    code, facts = run_json(run, "certify", model, data, "--quiet")
    assert (code, facts["verdict"]) == (0, "certified")
    assert facts["cut_lower_bound"] == pytest.approx(rm.load_model(model).lower_bound_, rel=1e-10)
    assert run("evaluate", model, data)[0] == 0
    if "positive" in reg:
        assert (rm.load_model(model).coef_ >= 0).all()


def test_the_number_of_nonzero_weights_is_printed(files, tmp_path, run):
    outputs = ["-o", tmp_path / "m", "--report", tmp_path / "r"]
    code, out, _ = run("fit", files / "two.svm", "--reg", "l1", "--lam", 0.1, *outputs)
    assert code == 0
    few = np.count_nonzero(rm.load_model(tmp_path / "m").coef_)
    assert few < 4
    assert f"nonzero weights  {few} of 4\n" in out
    assert "lam 0.1 l1\n" in out
    page = (tmp_path / "r").read_text(encoding="utf-8")
    ClosedElements().check(page)
    assert "nan" not in page
    for text in (f"<dt>nonzero weights</dt><dd>{few} of 4</dd>", "<dd>l1: |w|_1</dd>", "60 rows × 4 columns"):
        assert text in page
    assert "hinge: max(0, margin - y z)" in page
    assert "nonzero weights" not in run("fit", files / "two.svm", "--lam", 0.1, "-o", tmp_path / "m")[1]


# ---------------------------------------------------------------- fit
def test_fit_prints_the_certificate(files, tmp_path, run):
    code, out, err = run("fit", files / "two.svm", "--loss", "hinge", "--lam", "1e-2", "-o", tmp_path / "m")
    assert (code, err) == (0, "")
    model = rm.load_model(tmp_path / "m")
    for text in (f"{model.objective_:.9g}", f"{model.lower_bound_:.9g}", "converged", "60 rows x 4 columns"):
        assert text in out
    assert str(tmp_path / "m") in out

    code, out, err = run("fit", files / "two.svm", "--json", "-o", tmp_path / "m")
    summary = json.loads(out)
    steps = [json.loads(line) for line in err.splitlines()]
    assert (code, summary["status"]) == (0, "converged")
    assert summary["gap_rel"] <= 1e-3
    assert len(steps) == summary["iterations"]
    assert steps[-1]["gap_rel"] == pytest.approx(summary["gap_rel"], abs=1e-9)
    code, out, err = run("fit", files / "two.svm", "--json", "--quiet", "-o", tmp_path / "m")
    assert (code, err) == (0, "")
    assert json.loads(out)["objective"] == summary["objective"]


def test_a_model_is_saved_without_convergence(files, tmp_path, run):
    code, out, err = run("fit", files / "two.svm", "--max-iter", "1", "-o", tmp_path / "m")
    assert (code, "max_iter" in out, err.count("\n")) == (3, True, 1)
    assert err.startswith("riskmin: not converged (max_iter)")
    assert "--max-iter" in err
    assert rm.load_model(tmp_path / "m").result_.status == "max_iter"
    assert run("certify", tmp_path / "m", files / "two.svm")[0] == 0


def test_options_reach_the_estimator(files, tmp_path, run):
    options = ["--no-intercept", "--class-weight", "balanced", "--solver", "bmrm", "--jobs", "2"]
    loss = "squared_hinge:margin=2"
    model = fitted(run, files / "two.svm", loss, tmp_path / "m", *options, "--alpha", "0.1")
    settings = {"fit_intercept": False, "class_weight": "balanced", "solver": "bmrm"}
    twin = rm.LinearClassifier(loss, alpha=0.1, **settings).fit(X, Y)
    assert (model.intercept_, model.n_jobs, model.alpha) == (0, 2, 0.1)
    np.testing.assert_allclose(model.coef_, twin.coef_, rtol=1e-9)
    assert run("certify", tmp_path / "m", files / "two.svm")[0] == 0


RESUMED = [("hinge", "two"), ("prbep", "two"), ("f1", "two"), ("mrr", "ranked"), ("ordinal", "graded")]


@pytest.mark.parametrize(("loss", "name"), RESUMED)
def test_checkpoints_are_resumed(loss, name, files, tmp_path, run):
    outputs = ["--checkpoint", tmp_path / "c", "-o", tmp_path / "m"]
    args = ["fit", files / f"{name}.svm", "--loss", loss, "--tol", "1e-5", *outputs]
    code, facts = run_json(run, *args, "--max-iter", "2", "--quiet")
    assert (code, facts["status"], facts["iterations"]) == (3, "max_iter", 2)
    code, facts = run_json(run, *args, "--quiet")
    assert (code, facts["status"]) == (0, "converged")
    assert facts["iterations"] > 2
    check_sentence(run(*args, "--lam", "0.5"), "another problem")
    assert run("certify", tmp_path / "m", files / f"{name}.svm")[0] == 0


def test_unwritable_checkpoint_is_reported(files, tmp_path, run, monkeypatch):
    replace = os.replace

    def full(source, target):
        if str(target).endswith("run.ckpt"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    outputs = ["--checkpoint", tmp_path / "run.ckpt", "-o", tmp_path / "m", "--quiet"]
    code, _, err = run("fit", files / "two.svm", *outputs)
    assert (code, err.count("\n")) == (0, 1)
    assert "No space left on device; the run goes on without a checkpoint" in err


def test_an_internal_error_is_not_a_refutation(files, tmp_path, run, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *args: 1 / 0)
    code, _, err = run("fit", files / "two.svm", "-o", tmp_path / "m", "--quiet")
    assert (code, "ZeroDivisionError" in err) == (70, True)


def test_ctrl_c_before_the_first_result(tmp_path, run, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    keyboard = types.SimpleNamespace(buffer=types.SimpleNamespace(read=interrupted, read1=interrupted))
    monkeypatch.setattr(sys, "stdin", keyboard)
    code, out, err = run("fit", "-", "-o", tmp_path / "m")
    assert (code, out, "interrupted" in err) == (130, "", True)
    assert not (tmp_path / "m").exists()


def test_numbers_taken_for_classes_are_mentioned(tmp_path, run):
    (tmp_path / "t.csv").write_text("x,y\n1,7\n2,15\n3,2\n4,15\n")
    code, _, err = run("fit", tmp_path / "t.csv", "-o", tmp_path / "m")
    assert (code, "3 different numbers in 4 rows" in err) == (0, True)


# ---------------------------------------------------------------- tables and sparse rows
def test_predictions_have_the_class_names(files, tmp_path, run):
    model, bare = tmp_path / "m", files / "bare.csv"
    fitted(run, files / "words.csv", "logistic", model)
    labels = run("predict", model, files / "words.csv")[1]
    words = np.array(labels.split())
    assert set(words) == {"ham", "spam"}
    assert np.mean((words == "spam") == (Y > 0)) > 0.7
    assert run("predict", model, bare) == (0, labels, "")
    scores = np.array(run("predict", model, bare, "--scores")[1].split(), float)
    assert ((scores > 0) == (words == "spam")).all()
    assert run("predict", model, bare, "--proba", "-o", tmp_path / "p.txt") == (0, "", "")
    proba = np.loadtxt(tmp_path / "p.txt")
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert ((proba[:, 1] > 0.5) == (words == "spam")).all()
    out = run("predict", files / "hinge.model", files / "two.svm")[1]
    assert set(out.split()) == {"-1", "1"}  # numbers are printed as they were written


def test_target_of_a_table(files, tmp_path, run):
    model = tmp_path / "m"
    args = ["--loss", "squared", "--target"]
    write_csv(tmp_path / "kinds.csv", X, np.where(Y > 0, "spam", "ham"), X[:, 0] + 1, names="a,b,c,d,kind,x")
    code, out, _ = run("fit", tmp_path / "kinds.csv", *args, "x", "-o", model)
    assert (code, "1 of categories with 2 levels" in out) == (0, True)
    assert list(rm.load_model(model).feature_names_in_[-2:]) == ["kind=ham", "kind=spam"]
    numbers = write_csv(tmp_path / "numbers.csv", X, X[:, 0] + 1, names="a,b,c,d,x")
    for target in ("x", "4", "-1"):
        assert run("fit", numbers, *args, target, "-o", model)[0] == 0
        assert run("certify", model, numbers, "--target", target)[0] == 0
        code, facts = run_json(run, "evaluate", model, numbers, "--target", target)
        assert (code, facts["R^2"] > 0.99) == (0, True)


def test_sparse_rows_of_other_widths(files, tmp_path, run):
    """As in LIBLINEAR, unseen features have no weight; the training data of a certificate have none."""
    wide, same, model = tmp_path / "wide.svm", tmp_path / "same.svm", files / "hinge.model"
    wide.write_text("1 1:2.5 9:7 11:1\n-1 2:1.5 4:-2\n1 9:1\n")
    same.write_text("1 1:2.5\n-1 2:1.5 4:-2\n1\n")
    code, out, err = run("predict", model, wide, "--scores")
    assert (code, out) == run("predict", model, same, "--scores")[:2]
    assert "3 of 6 entries are of features beyond the 4 of training" in err
    assert run("evaluate", model, wide, "--json")[1] == run("evaluate", model, same, "--json")[1]
    check_sentence(run("certify", model, wide), "wide.svm", "beyond")
    (tmp_path / "narrow.svm").write_text("0 1:2.5\n0 2:1.5\n")
    assert run("predict", model, tmp_path / "narrow.svm") == (0, "1\n-1\n", "")


def test_predictions_of_many_rows_are_those_of_each(files, tmp_path, run):
    (tmp_path / "many.svm").write_text("1 1:2.5\n-1 2:1.5\n1\n" * 23_000)
    few = tmp_path / "few.svm"
    few.write_text("1 1:2.5\n-1 2:1.5\n1\n")
    code, out, _ = run("predict", files / "hinge.model", tmp_path / "many.svm")
    assert (code, out) == (0, 23_000 * run("predict", files / "hinge.model", few)[1])


# ---------------------------------------------------------------- grades
def check_grades(facts, off):
    assert facts["mean absolute error, in grades"] == pytest.approx(off.mean())
    assert facts["accuracy"] == pytest.approx((off == 0).mean())
    assert facts["at most one grade off"] == pytest.approx((off <= 1).mean())
    assert 0.4 < facts["Kendall's tau"] <= 1


def test_grades_are_printed_as_written(files, tmp_path, run):
    data, model = files / "graded.csv", tmp_path / "m"
    by_words = fitted(run, data, "ordinal", model, "--order", ",".join(GRADES))
    assert by_words.classes_.tolist() == GRADES.tolist()
    predicted = run("predict", model, data)[1].split()
    off = np.abs([GRADES.tolist().index(word) - g for word, g in zip(predicted, GRADE, strict=True)])
    check_grades(run_json(run, "evaluate", model, data)[1], off)
    assert run_json(run, "certify", model, data)[1]["verdict"] == "certified"
    # a model of an ordered column of pandas
    column = pd.Categorical.from_codes(GRADE, GRADES.tolist(), ordered=True)
    rm.save_model(rm.OrdinalClassifier(alpha=1e-2).fit(X, pd.Series(column)), model)
    check_grades(run_json(run, "evaluate", model, data)[1], off)
    assert run_json(run, "certify", model, data)[1]["verdict"] == "certified"


def test_numeric_grades(files, tmp_path, run):
    graded, model = files / "graded.svm", tmp_path / "m"
    back = fitted(run, graded, "ordinal", model, "--order", "3,2,1,0")
    assert back.classes_.tolist() == [3, 2, 1, 0]
    assert set(run("predict", model, graded)[1].split()) <= set("0123")
    assert run("certify", model, graded)[0] == 0
    stars = tmp_path / "stars.svm"
    save_svmlight(stars, X, GRADE / 2 + 0.5)
    halves = fitted(run, stars, "ordinal", model)
    assert set(run("predict", model, stars)[1].split()) <= {"0.5", "1", "1.5", "2"}
    assert run_json(run, "certify", model, stars)[1]["verdict"] == "certified"
    assert run_json(run, "evaluate", model, stars)[1]["accuracy"] == halves.score(X, GRADE / 2 + 0.5)
    # a grade that training has not seen is one above the known grades
    (tmp_path / "strange.svm").write_text("9 1:1\n0 1:2\n")
    facts = run_json(run, "evaluate", files / "ordinal.model", tmp_path / "strange.svm")[1]
    assert 0 < facts["mean absolute error, in grades"] <= 4
    assert "mean loss" not in facts


# ---------------------------------------------------------------- rankings
@pytest.mark.parametrize("loss", ["pairwise_hinge", "mrr", "ndcg:k=3"])
def test_rankings_from_end_to_end(loss, files, tmp_path, run):
    ranked, page, model = files / "ranked.svm", tmp_path / "r.html", tmp_path / "m"
    made = fitted(run, ranked, loss, model, "--report", page)
    twin = rm.LinearRanker(loss, alpha=1e-2).fit(X, GRADE, qid=QID)
    np.testing.assert_allclose(made.coef_, twin.coef_, rtol=1e-5)  # sparse and dense sums differ by rounding
    text = page.read_text(encoding="utf-8")
    assert f"<dd>{loss}: " in text
    assert "<dt>queries</dt><dd>12</dd>" in text
    scores = np.array(run("predict", model, ranked)[1].split(), float)
    np.testing.assert_allclose(scores, X @ made.coef_, rtol=1e-9, atol=1e-12)
    code, facts = run_json(run, "evaluate", model, ranked)
    assert (code, facts["queries"]) == (0, 12)
    assert facts["NDCG@10"] == pytest.approx(mean_ndcg_score(GRADE, scores, qid=QID, k=10))
    assert facts["MRR"] == pytest.approx(mrr_score(GRADE, scores, qid=QID))
    assert facts["mean loss"] + 5e-3 * made.coef_ @ made.coef_ == pytest.approx(made.objective_)
    if loss == "ndcg:k=3":
        assert facts["NDCG@3"] == pytest.approx(mean_ndcg_score(GRADE, scores, qid=QID, k=3))
    assert run("predict", model, files / "graded.svm") == run("predict", model, ranked)


def test_query_column(files, tmp_path, run):
    clicks, model = files / "clicks.csv", tmp_path / "m"
    made = fitted(run, clicks, "pairwise_hinge", model, "--qid", "topic")
    assert made.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    for column in ("topic", "1"):
        assert run("certify", model, clicks, "--qid", column)[0] == 0
        assert run("evaluate", model, clicks, "--qid", column)[0] == 0
        assert len(run("predict", model, clicks, "--qid", column)[1].split()) == N
    assert len(run("predict", model, files / "bare.csv")[1].split()) == N


def test_unused_query_ids_are_ignored(files, tmp_path, run):
    ranked, to = files / "ranked.svm", ("-o", tmp_path / "m")
    code, _, err = run("fit", ranked, "--loss", "ordinal", *to)
    assert (code, err) == (0, "riskmin: ranked.svm has query ids, which ordinal does not use\n")
    assert run("certify", tmp_path / "m", ranked)[0] == 0
    code, _, err = run("cv", ranked, "--loss", "squared", "--n-lams", 2, *to)
    assert (code, err.count("\n")) == (0, 1)
    assert run("fit", ranked, "--loss", "absolute", *to, "--quiet") == (0, "", "")


def test_grades_fitted_as_numbers_are_evaluated_as_grades(files, tmp_path, run):
    rm.save_model(rm.LinearRanker("squared", alpha=1e-2).fit(X, GRADE), tmp_path / "m")
    assert {"NDCG@10", "MRR", "mean loss"} <= set(
        run_json(run, "evaluate", tmp_path / "m", files / "ranked.svm")[1]
    )
    rm.save_model(rm.OrdinalClassifier("absolute", alpha=1e-2).fit(X, GRADE), tmp_path / "m")
    assert "mean loss" in run_json(run, "evaluate", tmp_path / "m", files / "graded.svm")[1]
