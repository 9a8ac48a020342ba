"""The command: exit codes, one-sentence errors, files and certificates."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import riskmin
from helpers import check_sentence
from riskmin import Cut, FileError, LinearClassifier, LinearRegressor, Serial
from riskmin.cli.backends import load_partitions
from riskmin.core.persist import checksum, load_arrays, save_arrays
from riskmin.data import partitions, save_svmlight
from riskmin.estimators import load_model, save_model
from riskmin.estimators.certification import cut_lower_bound
from riskmin.losses import LOSSES

RISKMIN = [sys.executable, "-c", "import sys; from riskmin.cli import main; sys.exit(main())"]


def two_classes(n=120, p=5, seed=0, names=(-1.0, 1.0)):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)).round(3)
    above = X[:, 0] - X[:, 1] + 0.8 * rng.normal(size=n) > 0.3
    return X, np.array(names)[above.astype(int)]


def write_csv(path, X, y=None, target="label"):
    names = [f"x{j}" for j in range(X.shape[1])]
    rows = [",".join([*names, *([target] if y is not None else [])])]
    rows += [",".join([*map(str, x), *([] if y is None else [str(y[i])])]) for i, x in enumerate(X)]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def svm(tmp_path):
    path = tmp_path / "train.svm"
    save_svmlight(path, *two_classes())
    return path


@pytest.fixture
def model(tmp_path, svm, run):
    path = tmp_path / "train.riskmin"
    assert run("fit", svm, "--lam", 1e-2, "-o", path, "--quiet") == (0, "", "")
    return path


# ---------------------------------------------------------------- fit
def test_fit_prints_the_certificate(svm, tmp_path, run):
    code, out, err = run("fit", svm, "--loss", "hinge", "--lam", "1e-2", "-o", tmp_path / "m")
    assert (code, err) == (0, "")
    model = load_model(tmp_path / "m")
    for text in (f"{model.objective_:.9g}", f"{model.lower_bound_:.9g}", "converged", "120 rows x 5 columns"):
        assert text in out
    assert str(tmp_path / "m") in out


def test_fit_json(svm, tmp_path, run):
    code, out, err = run("fit", svm, "--json", "-o", tmp_path / "m")
    summary = json.loads(out)
    rows = [json.loads(line) for line in err.splitlines()]
    assert code == 0
    assert summary["status"] == "converged"
    assert summary["gap_rel"] <= 1e-3
    assert len(rows) == summary["iterations"]
    assert rows[-1]["gap_rel"] == pytest.approx(summary["gap_rel"], abs=1e-9)
    code, out, err = run("fit", svm, "--json", "--quiet", "-o", tmp_path / "m")
    assert (code, err) == (0, "")
    assert json.loads(out)["objective"] == summary["objective"]


@pytest.mark.parametrize("loss", [name for name in LOSSES if LOSSES[name].task != "tagging"])
def test_every_loss_fits_predicts_evaluates_and_certifies(loss, tmp_path, run):
    X, y = two_classes(n=60, p=3)
    if LOSSES[loss].task == "regression":
        y = np.round(np.exp(0.3 * X[:, 0]), 3)
    if LOSSES[loss].task in ("ordinal", "ranking"):
        y = np.digitize(X[:, 0] + X[:, 1], [0, 1])
    data = tmp_path / "data.npz"
    queries = {"qid": np.arange(60) % 7} if LOSSES[loss].task == "ranking" else {}
    np.savez(data, X=np.abs(X) if loss == "novelty" else X, y=y, **queries)
    model = tmp_path / "m"
    assert run("fit", data, "--loss", loss, "--lam", "0.01", "-o", model)[0] == 0
    code, out, _ = run("predict", model, data)
    assert code == 0
    assert len(out.splitlines()) == 60
    code, out, _ = run("evaluate", model, data, "--json")
    assert code == 0
    assert json.loads(out)["mean loss"] >= 0
    code, out, _ = run("certify", model, data, "--json")
    assert code == 0
    assert json.loads(out)["verdict"] == "certified"


def test_model_is_saved_without_convergence(svm, tmp_path, run):
    code, out, err = run("fit", svm, "--max-iter", "1", "-o", tmp_path / "m")
    assert code == 3
    assert "max_iter" in out
    assert err.startswith("riskmin: not converged (max_iter)")
    assert "--max-iter" in err
    assert err.count("\n") == 1
    assert load_model(tmp_path / "m").result_.status == "max_iter"
    assert run("certify", tmp_path / "m", svm)[0] == 0


def test_options_reach_the_estimator(svm, tmp_path, run):
    options = [
        "--no-intercept",
        "--class-weight",
        "balanced",
        "--solver",
        "bmrm",
        "--jobs",
        "2",
        "--lam",
        "0.1",
    ]
    assert run("fit", svm, "--loss", "squared_hinge:margin=2", *options, "-o", tmp_path / "m")[0] == 0
    model = load_model(tmp_path / "m")
    X, y = two_classes()
    twin = LinearClassifier(
        "squared_hinge:margin=2", alpha=0.1, fit_intercept=False, class_weight="balanced", solver="bmrm"
    ).fit(X, y)
    assert model.intercept_ == 0
    assert model.n_jobs == 2
    np.testing.assert_allclose(model.coef_, twin.coef_, rtol=1e-9)
    assert run("certify", tmp_path / "m", svm)[0] == 0


def test_report(svm, tmp_path, run):
    code, out, _ = run("fit", svm, "--report", tmp_path / "r.html", "-o", tmp_path / "m")
    assert code == 0
    assert "r.html" in out
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "hinge: max(0, margin - y z)" in page
    assert "120 rows × 5 columns" in page


def test_unwritable_checkpoint_is_reported(svm, tmp_path, run, monkeypatch):
    def full(*_):
        raise FileError("run.ckpt cannot be written: No space left on device")

    monkeypatch.setattr("riskmin.driver.checkpoint.Checkpoint.write", full)
    code, _, err = run("fit", svm, "--checkpoint", tmp_path / "run.ckpt", "-o", tmp_path / "m", "--quiet")
    assert (code, err.count("\n")) == (0, 1)
    assert "No space left on device; the run goes on without a checkpoint" in err


def test_checkpoint_is_resumed(svm, tmp_path, run):
    args = ["fit", svm, "--checkpoint", tmp_path / "c", "-o", tmp_path / "m", "--json", "--quiet"]
    code, out, _ = run(*args, "--max-iter", "3")
    assert (code, json.loads(out)["iterations"]) == (3, 3)
    code, out, _ = run(*args)
    assert code == 0
    assert json.loads(out)["iterations"] > 3
    check_sentence(run(*args, "--lam", "0.5"), "another problem")


# ---------------------------------------------------------------- predict and evaluate
def test_predictions_have_the_class_names(tmp_path, run):
    X, y = two_classes(names=("ham", "spam"))
    train = write_csv(tmp_path / "train.csv", X, y)
    bare = write_csv(tmp_path / "bare.csv", X)
    model = tmp_path / "m"
    assert run("fit", train, "--loss", "logistic", "-o", model)[0] == 0
    _, labels, _ = run("predict", model, train)
    assert set(labels.split()) == {"ham", "spam"}
    assert np.mean(np.array(labels.split()) == y) > 0.7
    assert run("predict", model, bare) == (0, labels, "")
    _, scores, _ = run("predict", model, bare, "--scores")
    assert ((np.array(scores.split(), float) > 0) == (np.array(labels.split()) == "spam")).all()
    code, text, _ = run("predict", model, bare, "--proba", "-o", tmp_path / "p.txt")
    assert (code, text) == (0, "")
    proba = np.loadtxt(tmp_path / "p.txt")
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert ((proba[:, 1] > 0.5) == (np.array(labels.split()) == "spam")).all()


def test_numeric_labels_are_printed_as_written(model, svm, run):
    _, out, _ = run("predict", model, svm)
    assert set(out.split()) == {"-1", "1"}


def test_columns_are_matched_by_name(tmp_path, run):
    X, y = two_classes()
    train = write_csv(tmp_path / "train.csv", X, y)
    assert run("fit", train, "-o", tmp_path / "m")[0] == 0
    _, expected, _ = run("predict", tmp_path / "m", train)
    shuffled = tmp_path / "shuffled.csv"
    rows = [line.split(",") for line in train.read_text().splitlines()]
    shuffled.write_text("".join(",".join([r[5], r[3], r[0], r[1], r[4], r[2]]) + "\n" for r in rows))
    assert run("predict", tmp_path / "m", shuffled) == (0, expected, "")
    assert run("certify", tmp_path / "m", shuffled)[0] == 0
    other = tmp_path / "other.csv"
    other.write_text(train.read_text().replace("x1", "age", 1))
    check_sentence(run("predict", tmp_path / "m", other), "no column 'x1'", "x0, age, x2")


def test_target_of_a_table(tmp_path, run):
    X, y = two_classes(names=("ham", "spam"))
    train = write_csv(tmp_path / "train.csv", np.column_stack([X, X[:, 0] + 1]), y, target="kind")
    args = ["--loss", "squared", "--target", "x5", "-o", tmp_path / "m"]
    code, out, _ = run("fit", train, *args)
    assert (code, "1 of categories with 2 levels" in out) == (0, True)
    assert list(load_model(tmp_path / "m").feature_names_in_[-2:]) == ["kind=ham", "kind=spam"]
    numbers = write_csv(tmp_path / "numbers.csv", np.column_stack([X, X[:, 0] + 1]))
    for target in ("x5", "5", "-1"):
        assert run("fit", numbers, *args[:3], target, *args[4:])[0] == 0
        assert run("certify", tmp_path / "m", numbers, "--target", target)[0] == 0
        code, out, _ = run("evaluate", tmp_path / "m", numbers, "--target", target, "--json")
        assert (code, json.loads(out)["R^2"] > 0.99) == (0, True)


def test_narrow_svmlight_is_padded(model, tmp_path, run):
    narrow = tmp_path / "narrow.svm"
    narrow.write_text("0 1:2.5\n0 2:1.5\n")
    assert run("predict", model, narrow) == (0, "1\n-1\n", "")


def test_unseen_features_of_svmlight_are_ignored_and_counted(model, tmp_path, run):
    """As LIBLINEAR does: they have no weight. The training data of a certificate can have none."""
    wide, same = tmp_path / "wide.svm", tmp_path / "same.svm"
    wide.write_text("1 1:2.5 9:7 11:1\n-1 2:1.5 5:-2\n1 9:1\n")
    same.write_text("1 1:2.5\n-1 2:1.5 5:-2\n1\n")
    code, out, err = run("predict", model, wide, "--scores")
    assert (code, out) == run("predict", model, same, "--scores")[:2]
    assert "3 of 6 entries are of features beyond the 5 of training" in err
    assert run("evaluate", model, wide, "--json")[1] == run("evaluate", model, same, "--json")[1]
    check_sentence(run("certify", model, wide), "wide.svm", "beyond")


def test_evaluate(model, svm, run):
    X, y = two_classes()
    fitted = load_model(model)
    code, out, _ = run("evaluate", model, svm, "--json")
    metrics = json.loads(out)
    assert code == 0
    assert metrics["accuracy"] == pytest.approx(fitted.score(X, y))
    assert {"balanced accuracy", "F1 of class 1", "ROC area", "mean loss", "rows"} <= set(metrics)
    z = fitted.decision_function(X)
    pairs = z[y > 0][:, None] - z[y < 0][None, :]
    assert metrics["ROC area"] == pytest.approx(np.mean(pairs > 0))
    assert metrics["mean loss"] == pytest.approx(np.maximum(0, 1 - y * z).mean())
    code, out, _ = run("evaluate", model, svm)
    assert (code, "ROC area" in out) == (0, True)


def test_evaluate_novelty_with_and_without_labels(tmp_path, run):
    rng = np.random.default_rng(0)
    X = np.abs(rng.normal(size=(100, 3))) + 1
    X[:5] *= 0.1
    np.savez(tmp_path / "a.npz", X=X, y=np.arange(100) < 5)
    np.savez(tmp_path / "b.npz", X=X)
    assert run("fit", tmp_path / "b.npz", "--loss", "novelty", "-o", tmp_path / "m")[0] == 0
    metrics = json.loads(run("evaluate", tmp_path / "m", tmp_path / "a.npz", "--json")[1])
    assert metrics["ROC area"] == 1.0
    assert metrics["recall"] == 1.0
    assert "ROC area" not in run("evaluate", tmp_path / "m", tmp_path / "b.npz")[1]
    assert run("certify", tmp_path / "m", tmp_path / "b.npz")[0] == 0


# ---------------------------------------------------------------- certify
def changed_model(path, tmp_path, **changes):
    """The model with changed attributes, saved again with a valid checksum."""
    model = load_model(path)
    for name, value in changes.items():
        setattr(model, name, value)
    save_model(model, tmp_path / "tampered")
    return tmp_path / "tampered"


def test_certify_prints_all_four_numbers(model, svm, run):
    code, out, err = run("certify", model, svm)
    fitted = load_model(model)
    assert (code, err) == (0, "")
    assert out.count(f"{fitted.objective_:.9g}") == 2
    assert f"{fitted.lower_bound_:.9g}" in out
    assert "lower bound, proved" in out
    assert "certified" in out
    numbers = json.loads(run("certify", model, svm, "--json")[1])
    assert (
        numbers["objective"] - numbers["lower_bound"] <= fitted.gap_ * (1 + 1e-6) + 1e-6 * fitted.objective_
    )


def test_changed_weights_are_refuted(model, svm, tmp_path, run):
    coef = load_model(model).coef_.copy()
    coef[0, 0] *= 1.01
    code, out, err = run("certify", changed_model(model, tmp_path, coef_=coef), svm)
    assert code == 1
    assert "refuted: the objective is" in err
    assert err.count("\n") == 1
    assert "not tried" in out


def test_changed_intercept_is_refuted(model, svm, tmp_path, run):
    changed = changed_model(model, tmp_path, intercept_=load_model(model).intercept_ + 0.1)
    assert run("certify", changed, svm)[0] == 1


def refuted(code, out, err, *words):
    """Check for one sentence that names the false claim."""
    assert code == 1
    assert err.startswith("riskmin: refuted: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


@pytest.fixture
def loose(svm, tmp_path, run):
    path = tmp_path / "loose"
    assert run("fit", svm, "--tol", "0.2", "--lam", "0.01", "-o", path, "--quiet")[0] == 0
    return path


def test_bound_not_proved_by_the_cut_is_refuted(loose, svm, tmp_path, run):
    honest = load_model(loose)
    for bound in (honest.objective_ * (1 - 1e-8), honest.lower_bound_ * (1 + 1e-7), honest.lower_bound_ / 2):
        messages = (
            f"not {bound:.9g} as claimed",
            f"the cut proves a lower bound of {honest.lower_bound_:.9g}",
        )
        refuted(*run("certify", changed_model(loose, tmp_path, lower_bound_=bound), svm), *messages)


def with_cut(path, tmp_path, a, b, **changes):
    """The model with another cut, and the bound that this cut would prove."""
    model = load_model(path)
    result = dataclasses.replace(model.result_, cut=Cut(np.asarray(a, dtype=float), float(b)))
    if "lower_bound_" not in changes:
        model.result_ = result
        changes["lower_bound_"] = cut_lower_bound(model)
    return changed_model(path, tmp_path, result_=result, **changes)


def test_invalid_cuts_are_refuted(model, svm, tmp_path, run):
    bound = load_model(model).lower_bound_
    changed = with_cut(model, tmp_path, np.full(5, 5.0), 123.0, lower_bound_=bound)
    refuted(*run("certify", changed, svm), "the cut proves a lower bound of")
    flat = with_cut(model, tmp_path, np.zeros(5), bound)  # proves the bound, but is not a cut of the risk
    refuted(*run("certify", flat, svm), "the cut is not valid: at the model's weights it exceeds the risk")


def test_inflated_bound_with_matching_cut_is_refuted(loose, svm, tmp_path, run):
    honest = load_model(loose)
    w, J, lam = np.ravel(honest.coef_), honest.objective_, honest.alpha
    # touches the risk at w, and would prove the bound J(w)
    lie = with_cut(loose, tmp_path, -lam * w, J + lam / 2 * (w @ w) - 1e-8 * J)
    assert load_model(lie).lower_bound_ == pytest.approx(J, rel=1e-7)
    code, out, err = run("certify", lie, svm)
    refuted(code, out, err, "exceeds an objective")
    assert "lower bound, proved" in out


def test_every_other_claim_is_checked(model, svm, tmp_path, run):
    honest = load_model(model)
    refuted(
        *run("certify", changed_model(model, tmp_path, n_samples_fit_=3), svm),
        "fitted to 3 rows, but the data",
    )
    result = dataclasses.replace(honest.result_, value=honest.objective_ * 1.01)
    refuted(
        *run("certify", changed_model(model, tmp_path, result_=result), svm), "value that the solver reached"
    )
    tight = changed_model(model, tmp_path, tol=1e-9)
    refuted(*run("certify", tight, svm), "it claims to have converged to 1e-09, but its gap is")
    for name, value in (("alpha", 77.0), ("loss", "Nope"), ("tol", 1e-9), ("n_features", 3)):
        arrays, meta = load_arrays(model, "model")
        meta.pop("sha256")
        meta["claim"][name] = value
        save_arrays(tmp_path / "more", arrays, meta | {"sha256": checksum(arrays, meta)})
        check_sentence(run("certify", tmp_path / "more", svm), f"claims {name}")


def test_looser_tol_does_not_certify_the_claim(svm, tmp_path, run):
    tight = tmp_path / "tight"
    assert run("fit", svm, "--tol", "1e-4", "-o", tight, "--quiet")[0] == 0
    fitted = load_model(tight)
    claim_not_checked = f"the model's own claim of {fitted.gap_ / fitted.objective_:.2e} was not checked"
    code, out, err = run("certify", tight, svm, "--tol", "1.0", "--max-iter", "1")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("bounded: the objective is within ")
    assert claim_not_checked in out
    assert "certified" not in out
    verdict = json.loads(run("certify", tight, svm, "--tol", "1.0", "--max-iter", "1", "--json")[1])
    assert verdict["verdict"] == "bounded"
    assert verdict["claimed_gap_rel"] < verdict["gap_rel"] <= 1
    assert run("certify", tight, svm)[1].splitlines()[-1].startswith("certified: ")


def test_too_small_objective_is_refuted(model, svm, tmp_path, run):
    J = load_model(model).objective_
    assert run("certify", changed_model(model, tmp_path, objective_=J * 0.999), svm)[0] == 1


def test_other_data_are_refuted(model, tmp_path, run):
    other = tmp_path / "other.svm"
    save_svmlight(other, *two_classes(n=90, seed=1))
    code, _, err = run("certify", model, other)
    assert code == 1
    assert "the model was fitted to 120 rows, but the data have 90" in err


def test_changed_file_is_refuted(model, svm, tmp_path, run):
    arrays, meta = load_arrays(model, "model")
    meta["claim"]["lower_bound"] *= 1.0001
    save_arrays(tmp_path / "changed", arrays, meta)
    code, _, err = run("certify", tmp_path / "changed", svm)
    assert code == 1
    assert "was changed" in err
    check_sentence(run("predict", tmp_path / "changed", svm), "checksum")


def test_certify_without_convergence_is_undecided(svm, tmp_path, run):
    tight = tmp_path / "tight"
    assert run("fit", svm, "--tol", "1e-7", "-o", tight)[0] == 0
    code, _, err = run("certify", tight, svm, "--max-iter", "1")
    assert code == 3
    assert err.startswith("riskmin: open: ")
    assert run("certify", tight, svm, "--max-iter", "1", "--tol", "1.0")[0] == 0


def test_models_with_sample_weights_cannot_be_certified(svm, tmp_path, run):
    X, y = two_classes()
    save_model(LinearClassifier(alpha=0.1).fit(X, y, sample_weight=np.arange(120.0)), tmp_path / "m")
    check_sentence(run("certify", tmp_path / "m", svm), "weights")


def test_models_fitted_in_python_are_certified(svm, tmp_path, run):
    X, y = two_classes()
    save_model(LinearRegressor("huber:delta=0.5", alpha=0.1).fit(X, y), tmp_path / "m")
    assert run("certify", tmp_path / "m", svm)[0] == 0
    weighted = LinearClassifier(alpha=0.1, class_weight={-1.0: 1.0, 1.0: 5.0}).fit(X, y)
    save_model(weighted, tmp_path / "m")
    assert run("certify", tmp_path / "m", svm)[0] == 0


# ---------------------------------------------------------------- errors
BAD_DATA = {
    "nan.svm": ("1 1:1\n-1 1:nan\n", "line 2"),
    "word.svm": ("1 1:1\n-1 1:x\n", "line 2"),
    "empty.svm": ("", "no rows"),
    "one.svm": ("1 1:1\n1 1:2\n", "one class"),
    "head.csv": ("a,b,label\n", "no rows"),
    "ragged.csv": ("a,b,label\n1,2,3\n1,2\n", "line 3"),
    "hole.csv": ("a,b,label\n1,2,3\n1,,2\n", "line 3"),
    "fake.npz": ("PK no zip", "fake.npz"),
    "fake.parquet": ("PAR", "fake.parquet"),
    "cut.svm.gz": (b"\x1f\x8b\x08\x00\x00", "cut.svm.gz"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_invalid_data(name, tmp_path, run):
    text, word = BAD_DATA[name]
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    check_sentence(run("fit", path, "-o", tmp_path / "m"), word)
    assert [each.name for each in tmp_path.iterdir()] == [name]


BAD_USAGE = [
    (["fit", "missing.svm", "-o", "m"], "no such file"),
    (["fit", ".", "-o", "m"], "folder"),
    (["fit", "train.svm"], "--output"),
    (["fit", "train.svm", "-o", "no/m"], "there is no folder"),
    (["fit", "train.svm", "-o", "."], "folder"),
    (["fit", "train.svm", "-o", os.devnull], "regular file"),
    (["fit", "train.svm", "-o", "m", "--report", "no/r.html"], "there is no folder"),
    (["fit", "train.svm", "-o", "m", "--checkpoint", "no/c"], "there is no folder"),
    (["fit", "train.svm", "-o", "m", "--checkpoint", "train.svm"], "train.svm"),
    (["fit", "train.svm", "-o", "m", "--loss", "wrong"], "the names are"),
    (["fit", "train.svm", "-o", "m", "--loss", "huber:x=1"], "delta"),
    (["fit", "train.svm", "-o", "m", "--loss", "poisson"], "y >= 0"),
    (["fit", "train.svm", "-o", "m", "--solver", "wrong"], "the names are"),
    (["fit", "train.svm", "-o", "m", "--lam", "0"], "without a penalty (alpha=0)"),
    (["fit", "train.svm", "-o", "m", "--lam", "nan"], "'--lam' / '--alpha': nan is not a finite number"),
    (["fit", "missing.svm", "-o", "m", "--lam", "inf"], "'--lam' / '--alpha': inf is not a finite number"),
    (["fit", "missing.svm", "-o", "m", "--lam", "-1"], "'--lam' / '--alpha': -1.0"),
    (["fit", "missing.svm", "-o", "m", "--tol", "nan"], "'--tol': nan"),
    (["fit", "missing.svm", "-o", "m", "--max-seconds", "nan"], "'--max-seconds': nan"),
    (["fit", "missing.svm", "-o", "m", "--jobs", "0"], "'--jobs': 0 is neither"),
    (["fit", "missing.svm", "-o", "m", "--jobs", "-7"], "'--jobs': -7 is neither"),
    (["fit", "train.svm", "-o", "m", "--target", "foo"], "--target names a column of a table"),
    (["fit", "missing.npz", "-o", "m", "--target", "0"], "--target names a column of a table"),
    (["fit", "train.svm", "-o", "m", "--contamination", "0.2"], "--contamination is for novelty"),
    (["fit", "train.svm", "-o", "m", "--loss", "novelty", "--contamination", "nan"], "--contamination"),
    (["fit", "train.svm", "-o", "m", "--loss", "novelty", "--no-intercept"], "--no-intercept"),
    (["fit", "train.svm", "-o", "m", "--loss", "novelty", "--class-weight", "balanced"], "--class-weight"),
    (["fit", "train.svm", "-o", "train.svm"], "--output and DATA are the same file"),
    (["fit", "train.svm", "-o", "../{here}/train.svm"], "--output and DATA are the same file"),
    (["fit", "train.svm", "-o", "m", "--report", "train.svm"], "--report and DATA are the same file"),
    (["fit", "train.svm", "-o", "m", "--report", "./m"], "--report and --output are the same file"),
    (["fit", "train.svm", "-o", "m", "--checkpoint", "m"], "--checkpoint and --output are the same"),
    (["predict", "train.svm", "data", "-o", "train.svm"], "--output and MODEL are the same file"),
    (["predict", "model", "train.svm", "-o", "train.svm"], "--output and DATA are the same file"),
    (["certify", "model", "train.svm", "--tol", "nan"], "'--tol': nan"),
    (["fit", "train.svm", "-o", "m", "--tol", "-1"], "--tol"),
    (["fit", "train.svm", "-o", "m", "--max-iter", "0"], "--max-iter"),
    (["fit", "train.svm", "-o", "m", "--loss", "squared", "--class-weight", "balanced"], "--class-weight"),
    (["predict", "missing", "train.svm"], "missing"),
    (["predict", "train.svm", "train.svm"], "not a whole riskmin file"),
    (["evaluate", "train.svm", "train.svm"], "not a whole riskmin file"),
    (["certify", "train.svm", "train.svm"], "not a whole riskmin file"),
    (["demo", "-o", "no/page.html"], "there is no folder"),
    (["wrong"], "wrong"),
    (["fit", "train.svm", "--wrong"], "--wrong"),
]


@pytest.mark.parametrize(
    ("args", "word"), BAD_USAGE, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_invalid_usage(args, word, svm, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    before = svm.read_bytes()
    check_sentence(run(*(arg.format(here=tmp_path.name) for arg in args)), word)
    assert [path.name for path in tmp_path.iterdir()] == ["train.svm"]
    assert svm.read_bytes() == before


def test_links_to_the_data_are_recognized(svm, tmp_path, run):
    (tmp_path / "soft").symlink_to(svm)
    (tmp_path / "hard").hardlink_to(svm)
    for name in ("soft", "hard"):
        check_sentence(run("fit", svm, "-o", tmp_path / name), "are the same file")
        check_sentence(run("fit", tmp_path / name, "-o", svm), "are the same file")


def test_outputs_within_an_input_are_refused(svm, model, tmp_path, run):
    """By name, through links to the folder, and as links to files in it."""
    stored = tmp_path / "d.rsk"
    assert run("convert", svm, stored, "--quiet")[0] == 0
    before = {path: path.read_bytes() for path in stored.iterdir()}
    (tmp_path / "link.rsk").symlink_to(stored)
    (tmp_path / "soft").symlink_to(stored / "y.npy")
    (tmp_path / "hard").hardlink_to(stored / "y.npy")
    (tmp_path / "inner").symlink_to(stored / "new")
    free = tmp_path / "m"
    for inside in (
        stored / "data.npy", stored / "new", tmp_path / "link.rsk" / "new", tmp_path / "soft",
        tmp_path / "hard", tmp_path / "inner",
    ):  # fmt: skip
        for args in (
            ["fit", stored, "-o", inside],
            ["fit", svm, stored, "-o", inside],
            ["fit", tmp_path / "link.rsk", "-o", inside],
            ["fit", stored, "-o", free, "--checkpoint", inside],
            ["fit", stored, "-o", free, "--report", inside],
            ["path", stored, "-o", inside],
            ["cv", stored, "-o", inside],
            ["cv", stored, "-o", free, "--report", inside],
            ["predict", model, stored, "-o", inside],
        ):
            code, out, err = run(*args)
            assert (code, out) == (2, ""), args
            assert "name another" in err
    assert {path: path.read_bytes() for path in stored.iterdir()} == before
    key = tmp_path / "key.pem"
    key.write_text("secret")
    tls = ["--dask", "tls://localhost:1", "--tls-key", key, "--tls-cert", key, "--tls-ca", key]
    code, _, err = run("fit", svm, *tls, "-o", key)
    assert code == 2
    assert key.read_text() == "secret"
    assert not free.exists()


def test_contamination_of_novelty_detection(tmp_path, run):
    np.savez(tmp_path / "data.npz", X=np.abs(np.random.default_rng(0).normal(size=(50, 3))) + 1)
    for option, share in (([], 0.1), (["--contamination", "0.3"], 0.3)):
        args = ["fit", tmp_path / "data.npz", "--loss", "novelty", "-o", tmp_path / "m", *option]
        assert run(*args)[0] == 0
        assert load_model(tmp_path / "m").contamination == share


def test_invalid_requests_to_a_model(model, svm, tmp_path, run):
    (tmp_path / "short").write_bytes(model.read_bytes()[:200])
    check_sentence(run("predict", tmp_path / "short", svm), "truncated")
    check_sentence(run("certify", tmp_path / "short", svm), "truncated")
    check_sentence(run("predict", model, svm, "--proba"), "logistic")
    check_sentence(run("predict", model, svm, "--proba", "--scores"), "exclude")
    check_sentence(run("predict", model, svm, "-o", tmp_path / "no" / "out"), "no folder")
    strange = tmp_path / "strange.svm"
    strange.write_text("7 1:1\n")
    check_sentence(run("evaluate", model, strange), "label 7")
    narrow = write_csv(tmp_path / "narrow.csv", np.ones((2, 3)))
    check_sentence(run("predict", model, narrow), "2 features where 5 are expected")


def test_failed_fit_keeps_the_old_model(model, tmp_path, run):
    before = model.read_bytes()
    (tmp_path / "bad.svm").write_text("1 1:x\n")
    check_sentence(run("fit", tmp_path / "bad.svm", "-o", model))
    assert model.read_bytes() == before


def test_internal_error_is_not_a_refutation(svm, tmp_path, run, monkeypatch):
    monkeypatch.setattr("riskmin.estimators.save_model", lambda *args: 1 / 0)
    code, _, err = run("fit", svm, "-o", tmp_path / "m", "--quiet")
    assert code == 70
    assert "ZeroDivisionError" in err


def test_ctrl_c_before_the_first_result(svm, tmp_path, run, monkeypatch):
    def interrupted(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("riskmin.cli.commands.fit.load_for_fit", interrupted)
    code, out, err = run("fit", svm, "-o", tmp_path / "m")
    assert (code, out) == (130, "")
    assert "interrupted" in err
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_unreadable_line_1234567(tmp_path, run):
    path = tmp_path / "long.svm"
    path.write_text("1 1:1\n" * 1_234_566 + "-1 1:oops\n" + "-1 1:1\n" * 10)
    check_sentence(run("fit", path, "-o", tmp_path / "m"), "line 1234567", "oops")


# ---------------------------------------------------------------- losses, demo, help
def test_losses(run):
    code, out, _ = run("losses")
    assert code == 0
    for name, loss in LOSSES.items():
        assert name in out
        assert loss.formula in out
    losses = {row["name"]: row for row in json.loads(run("losses", "--json")[1])}
    assert set(losses) == set(LOSSES)
    assert losses["huber"] | {"formula": ""} == {
        "name": "huber",
        "task": "regression",
        "formula": "",
        "parameters": {"delta": 1.0},
        "smooth": True,
    }


@pytest.mark.parametrize("width", [100, 120, 140])
def test_formulas_are_not_broken_over_lines(width, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # output as on a terminal
    out = re.sub(r"\x1b\[[0-9;]*m", "", run("losses")[1])
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    for loss in LOSSES.values():
        assert loss.formula in out


def test_demo(tmp_path, run):
    page = tmp_path / "page.html"
    code, out, err = run("demo", "-o", page)
    assert (code, err) == (0, "")
    assert out.count("certified\n") == 3
    assert out.count("  second bound") == 3
    assert out.splitlines()[-1].endswith(str(page.resolve()))
    assert page.read_text(encoding="utf-8").count('<svg class="chart"') == 6


def test_help(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "Examples:" in out
    for code in (0, 1, 2, 3, 70, 130):
        assert re.search(rf"^    {code} +\w", out, re.MULTILINE)
    assert run()[1] == out
    for command in ("fit", "predict", "evaluate", "certify", "losses", "demo"):
        assert f"  {command} " in out
        assert run(command, "--help")[0] == 0
    assert run("--version") == (0, f"riskmin {riskmin.__version__}\n", "")


# ---------------------------------------------------------------- processes
def hard_problem(path):
    """Write data for which the plain bundle method takes some seconds."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 60)) * np.logspace(0, -3, 60)
    y = np.where(X @ rng.normal(size=60) + 0.3 * rng.normal(size=4000) > 0, 1, -1)
    np.savez(path, X=X, y=y)


def start_hard_fit(folder, *options):
    """Start a long fit; returns the process and the command once a checkpoint exists."""
    hard_problem(folder / "hard.npz")
    command = [
        *RISKMIN,
        "fit",
        str(folder / "hard.npz"),
        "--lam",
        "1e-6",
        "--tol",
        "1e-9",
        "--solver",
        "bmrm",
    ]
    command += ["--checkpoint", str(folder / "c"), "--checkpoint-every", "0.05", *options]
    process = subprocess.Popen(
        [*command, "-o", str(folder / "m")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (folder / "c").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    return process, command


@pytest.mark.slow
def test_exit_codes_of_the_process(svm, tmp_path):
    def code(*args):
        completed = subprocess.run([*RISKMIN, *map(str, args)], capture_output=True, text=True, check=False)
        assert "Traceback" not in completed.stderr
        return completed.returncode

    assert code("fit", svm, "-o", tmp_path / "m") == 0
    assert code("fit", svm, "-o", tmp_path / "m", "--max-iter", 1) == 3
    assert code("fit", tmp_path / "missing", "-o", tmp_path / "m") == 2


@pytest.mark.slow
def test_ctrl_c_saves_the_best_so_far(tmp_path, run):
    process, _ = start_hard_fit(tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "interrupted" in out
    # a slow machine prints a line of progress first
    *progress, message = err.splitlines()
    assert all(line.startswith("riskmin: iteration") for line in progress)
    assert message.startswith("riskmin: not converged (interrupted)")
    model = load_model(tmp_path / "m")
    assert model.result_.status == "interrupted"
    assert 0 <= model.lower_bound_ < model.objective_
    code, out, _ = run("predict", tmp_path / "m", tmp_path / "hard.npz")
    assert (code, len(out.splitlines())) == (0, 4000)


@pytest.mark.slow
def test_same_command_resumes_after_sigkill(tmp_path):
    process, command = start_hard_fit(tmp_path)
    process.kill()
    process.communicate()
    assert not (tmp_path / "m").exists()
    left = load_arrays(tmp_path / "c", "checkpoint")[0]["trace"].shape[0]

    def fit(*changes):
        completed = subprocess.run(
            [*command, "--json", "--checkpoint-every", "30", *changes],
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode == 0, completed.stderr
        return json.loads(completed.stdout), len(completed.stderr.splitlines())

    resumed, steps = fit("-o", str(tmp_path / "m"))
    assert steps == resumed["iterations"] - left  # the run was resumed, not restarted
    uninterrupted, _ = fit("-o", str(tmp_path / "w"), "--checkpoint", str(tmp_path / "other"))
    assert resumed["objective"] == pytest.approx(uninterrupted["objective"], rel=1e-9)
    assert resumed["lower_bound"] == pytest.approx(uninterrupted["lower_bound"], rel=1e-9)
    np.testing.assert_allclose(
        load_model(tmp_path / "m").coef_, load_model(tmp_path / "w").coef_, rtol=1e-3, atol=1e-3
    )


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="pipes of this system do not signal")
def test_closed_pipe_is_not_an_error(model, tmp_path):
    data = tmp_path / "long.svm"
    data.write_text("1 1:1\n" * 100_000)
    process = subprocess.Popen(
        [*RISKMIN, "predict", str(model), str(data)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(timeout=60)


def test_each_of_several_files_is_read_once(tmp_path, monkeypatch):
    X, y = two_classes()
    paths = [write_csv(tmp_path / f"{k}.csv", X[k::2], y[k::2]) for k in range(2)]
    files_read, read = [], partitions._read
    monkeypatch.setattr(partitions, "_read", lambda file, **kw: files_read.append(file) or read(file, **kw))
    data = load_partitions(paths, Serial(), target="label")
    assert data.X.shape == X.shape
    assert sorted(map(str, files_read)) == sorted(map(str, paths))


def test_help_imports_little():
    """The help does not import scikit-learn, Numba or rich."""
    code = "import sys, riskmin.cli; print([m for m in ('sklearn', 'numba', 'rich') if m in sys.modules])"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout == "[]\n"


def test_entry_point_is_installed():
    script = Path(sys.executable).with_name("riskmin")
    if script.exists():
        completed = subprocess.run([str(script), "--version"], capture_output=True, text=True, check=True)
        assert completed.stdout.startswith("riskmin ")


def test_alpha_is_lam(svm, tmp_path, run):
    """The estimators' names of the regularization strengths are options, too."""
    models = [tmp_path / name for name in ("lam", "alpha")]
    for path, option in zip(models, ("--lam", "--alpha"), strict=True):
        assert run("fit", svm, option, "0.5", "-o", path, "--quiet")[0] == 0
    lam, alpha = map(load_model, models)
    assert lam.alpha == alpha.alpha == 0.5
    assert np.array_equal(lam.coef_, alpha.coef_)
    lams = [run("path", svm, option, "1,0.1", "--json")[1] for option in ("--lams", "--alphas")]
    strip = [re.sub(r'"seconds": [^,}]*', "", out) for out in lams]
    assert strip[0] == strip[1]
    assert '"lam": 0.1' in strip[0]
