"""The command line: show, standard input, config files, completion, dry runs, metrics and progress."""

import io
import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import StratifiedKFold

from helpers import customers
from riskmin import LinearClassifier, get_scorer
from riskmin.cli.inputs import format_suffix
from riskmin.data import save_svmlight
from riskmin.estimators import load_model
from riskmin.report.progress import StatusLine

RISKMIN = [sys.executable, "-m", "riskmin"]


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 4)).round(3)
    return X, np.where(X[:, 0] - X[:, 1] + rng.normal(size=150) > 0.4, 1.0, -1.0)


@pytest.fixture
def svm(rows, tmp_path):
    path = tmp_path / "train.svm"
    save_svmlight(path, *rows)
    return path


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "raw.csv"
    customers().to_csv(path, index=False)
    return path


RAW = ("--loss", "logistic", "--standardize", "--impute", "median", "--drop", "since", "--target", "bought")


@pytest.fixture
def stdin(monkeypatch):
    """Let the command read these bytes as standard input."""

    def give(content):
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(content)))

    return give


# ---------------------------------------------------------------- show
def test_show(raw, tmp_path, run):
    assert run("fit", raw, *RAW, "--weight", "times", "-o", tmp_path / "m", "-q") == (0, "", "")
    model = load_model(tmp_path / "m")
    code, out, _ = run("show", tmp_path / "m", "--top", 2)
    assert code == 0
    for text in (
        f"{model.objective_:.9g}",
        f"{model.lower_bound_:.9g}",
        "240 rows x 7 columns, weighted",
        "no, yes",
        "weights from times",
        "1 of numbers, 2 of categories with 6 levels",
        f"made by: riskmin fit {raw} --loss logistic",
    ):
        assert text in out
    facts = json.loads(run("show", tmp_path / "m", "--json")[1])
    # the largest by what they contribute: weights of standardized columns
    size = np.abs(model.coef_[0] * model.scale_)
    order = [model.feature_names_in_[j] for j in np.argsort(-size)]
    assert [entry["column"] for entry in facts["weights"]] == order
    assert facts["weights"][0]["weight"] == model.coef_[0][np.argmax(size)]
    # the printed command makes the same model
    arguments = facts["command"].split()[1:]
    arguments[arguments.index("-o") + 1] = tmp_path / "again"
    assert run(*arguments)[0] == 0
    assert np.array_equal(load_model(tmp_path / "again").coef_, model.coef_)


def test_show_of_other_models(rows, tmp_path, run):
    from riskmin import ChainTagger, KernelClassifier, OrdinalClassifier, save_model

    X, y = rows
    three = np.digitize(X[:, 0], [-0.5, 0.5])
    sentences = [[{"word": "cat"}, {"word": "bird"}], [{"word": "bird"}]] * 3
    tags = [["U", "V"], ["V"]] * 3
    for fitted, words in {
        LinearClassifier("logistic", alpha=1e-2).fit(X, three): ("class", "LinearClassifier(", "in Python"),
        OrdinalClassifier(alpha=1e-2).fit(X, three): ("threshold",),
        KernelClassifier(alpha=1e-1).fit(X, y): ("KernelClassifier",),
        ChainTagger(alpha=1e-2).fit(sentences, tags): ("word:bird", "U, V"),
    }.items():
        save_model(fitted, tmp_path / "m")
        code, out, err = run("show", tmp_path / "m")
        assert (code, err) == (0, "")
        assert all(word in out for word in words), out


@pytest.mark.parametrize("params", [{}, {"loss": "hinge", "alpha": np.inf, "grid": [1, "a"]}])
def test_models_are_written_as_by_scikit_learn_without_it(params):
    from sklearn.base import BaseEstimator

    from riskmin.estimators.scikit_learn import StandInBase

    def init(self, loss="logistic", alpha=0.1, grid=None):
        self.loss, self.alpha, self.grid = loss, alpha, grid

    bases = StandInBase, BaseEstimator
    ours, theirs = (type("Model", (base,), {"__init__": init})(**params) for base in bases)
    assert repr(ours) == repr(theirs)


def test_scores_are_those_of_scikit_learn_without_it():
    from riskmin.estimators.scikit_learn import StandInClassifier, StandInRegressor

    X, y = np.zeros((4, 1)), np.array([0, 1, 1, 1])
    for base, score in ((StandInClassifier, 0.75), (StandInRegressor, -1 / 3)):
        model = type("Model", (base,), {"predict": lambda self, X: np.ones(len(X))})()
        assert model.score(X, y) == pytest.approx(score)


# ---------------------------------------------------------------- standard input and output
def test_standard_input(raw, svm, tmp_path, run, stdin):
    for path, options in ((raw, RAW), (svm, ())):
        assert run("fit", path, *options, "-o", tmp_path / "m", "-q")[0] == 0
        stdin(path.read_bytes())
        assert run("fit", "-", *options, "-o", tmp_path / "n", "-q")[0] == 0
        assert np.array_equal(load_model(tmp_path / "m").coef_, load_model(tmp_path / "n").coef_)
        expected = run("predict", tmp_path / "m", path)[1]
        stdin(path.read_bytes())
        assert run("predict", tmp_path / "m", "-", "-o", "-") == (0, expected, "")
        stdin((tmp_path / "m").read_bytes())
        assert run("predict", "-", path) == (0, expected, "")
    code, _, err = run("predict", "-", "-")
    assert (code, "standard input can be read once" in err) == (2, True)


@pytest.mark.slow
def test_a_pipe_of_commands(raw, tmp_path, run):
    """The model goes from one process to the next, and no file is written."""
    fit = subprocess.run([*RISKMIN, "fit", "-", *RAW, "-o", "-"], input=raw.read_bytes(), capture_output=True)
    assert fit.returncode == 0
    show = subprocess.run([*RISKMIN, "predict", "-", raw], input=fit.stdout, capture_output=True)
    assert run("fit", raw, *RAW, "-o", tmp_path / "m", "-q")[0] == 0
    assert show.stdout.decode() == run("predict", tmp_path / "m", raw)[1]
    code, _, err = run("fit", raw, *RAW, "-o", "-", "--json")
    assert (code, "stdout" in err) == (2, True)


def test_formats_by_their_first_bytes(tmp_path):
    np.savez(tmp_path / "rows.npz", X=np.eye(2))
    for head, suffix in {
        (tmp_path / "rows.npz").read_bytes(): ".npz",
        b"1 qid:3 1:0.5 # note\n": ".svm",
        b"-1\n+1 3:1\n": ".svm",
        b"a\tb\n1\t2\n": ".csv",
        b"when,y\n2024-01-01 12:30,1\n": ".csv",
    }.items():
        assert format_suffix(head) == suffix


# ---------------------------------------------------------------- config files
def test_config_files(raw, tmp_path, run):
    config = tmp_path / "riskmin.toml"
    config.write_text(
        f"""
        loss = "logistic"
        standardize = true
        impute = "median"
        drop = ["since", "times"]
        target = "bought"
        [fit]
        lam = 1e-2
        output = {str(tmp_path / "m")!r}
        [cv]
        lams = [1, 0.01]
        metric = ["roc_auc", "f1"]
        folds = 3
        output = {str(tmp_path / "best")!r}
        """,
        encoding="utf-8",
    )
    assert run("fit", raw, "--config", config, "-q")[0] == 0
    by_file = load_model(tmp_path / "m")
    options = [*RAW, "--drop", "times", "--lam", "1e-2"]
    assert run("fit", raw, *options, "-o", tmp_path / "n", "-q")[0] == 0
    assert np.array_equal(by_file.coef_, load_model(tmp_path / "n").coef_)
    # the command line overrides the file
    assert run("fit", raw, "--config", config, "--lam", 1, "-q")[0] == 0
    assert (load_model(tmp_path / "m").alpha, load_model(tmp_path / "m").loss) == (1.0, "logistic")
    facts = json.loads(run("cv", raw, "--config", config, "--json")[1])
    assert [entry["lam"] for entry in facts["cv"]] == [1, 0.01]
    assert list(facts["cv"][0]["metrics"]) == ["F1"]
    for text, message in {
        "los = 1": "there is no option 'los'; did you mean loss?",
        "lam = ": "cannot be read",
        "lam = 'much'": "'much' is not a valid float",
    }.items():
        config.write_text(text)
        code, _, err = run("fit", raw, "--config", config, "-o", tmp_path / "m")
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


# ---------------------------------------------------------------- completion
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fit --loss squared_h", {"squared_hinge"}),
        ("fit raw.csv --target b", {"bought"}),
        ("fit raw.csv --drop city,", {f"city,{name}" for name in customers().columns}),
    ],
)
def test_completion(words, expected, raw):
    """As bash asks for it."""
    environment = {"COMP_WORDS": f"riskmin {words}", "COMP_CWORD": str(len(words.split()))}
    done = subprocess.run(
        RISKMIN,
        cwd=raw.parent,
        env=os.environ | environment | {"_RISKMIN_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
    )
    assert {line.removeprefix("plain,") for line in done.stdout.split()} == expected


def test_names_that_are_completed():
    from riskmin.cli import completion

    assert completion.complete_regularizers(None, None, "ela") == ["elastic"]
    assert completion.complete_solvers(None, None, "lbf") == ["lbfgs"]
    assert completion.complete_metrics(None, None, "f1,average") == ["f1,average_precision"]


# ---------------------------------------------------------------- dry runs
@pytest.mark.parametrize("loss", ["hinge", "logistic", "roc_area"])
def test_a_dry_run_announces_what_the_fit_does(loss, svm, tmp_path, run):
    options = [svm, "--loss", loss, "--lam", "1e-2", "-o", tmp_path / "m", "--json"]
    code, out, err = run("fit", *options, "--dry-run")
    plan = json.loads(out)
    assert (code, err) == (0, "")
    assert not (tmp_path / "m").exists()
    done = json.loads(run("fit", *options)[1])
    assert done["solver"].startswith(plan["solver"])
    assert (plan["rows"], plan["columns"], plan["weights"]) == (150, 4, done["weights"])
    assert plan["data_bytes"] >= 150 * 4 * 8
    assert 0 < plan["evaluation_seconds"] < 5
    assert "nothing is fitted" in run("fit", *options[:-1], "--dry-run")[1]


# ---------------------------------------------------------------- early stopping
@pytest.mark.slow
@pytest.mark.parametrize("standardize", [[], ["--standardize"]])
def test_a_fit_ends_where_the_validation_loss_is_least(standardize, tmp_path, run):
    """The saved iterate has the least validation loss of the run, and a certificate that holds."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 30))
    y = np.where(X[:, 0] + 2 * rng.normal(size=80) > 0, 1.0, -1.0)
    train, other = tmp_path / "train.svm", tmp_path / "other.svm"
    save_svmlight(train, X[:40], y[:40])
    save_svmlight(other, X[40:], y[40:])
    options = [
        train,
        "--loss",
        "logistic",
        "--lam",
        "1e-6",
        "--solver",
        "lbfgs",
        "--tol",
        "1e-9",
        *standardize,
    ]

    def validation_loss(model):
        return json.loads(run("evaluate", model, other, "--json")[1])["mean loss"]

    stop = ["--validation", other, "--patience", "4"]
    code, out, _ = run("fit", *options, *stop, "-o", tmp_path / "m", "--json", "-q")
    facts = json.loads(out)
    assert code == 0
    least = validation_loss(tmp_path / "m")
    # the same iterates, from runs that are ended after each of them
    losses = []
    for k in range(1, facts["iterations"] + 1):
        run("fit", *options, "--max-iter", k, "-o", tmp_path / "k", "-q")
        losses.append(validation_loss(tmp_path / "k"))
    assert least == pytest.approx(min(losses), rel=1e-6)
    assert facts["iterations"] == int(np.argmin(losses)) + 1 + 4
    assert f"mean loss {least:.6g}" in facts["validation"]
    assert facts["objective"] >= facts["lower_bound"]
    assert run("certify", tmp_path / "m", train, "-q")[0] == 0
    # a fit that converges before stays as it is
    code, out, _ = run("fit", *options, *stop[:2], "--patience", 10_000, "-o", tmp_path / "n", "--json", "-q")
    assert run("fit", *options, "-o", tmp_path / "k", "-q")[0] == code == 0
    assert np.array_equal(load_model(tmp_path / "n").coef_, load_model(tmp_path / "k").coef_)
    assert "not stopped early" in json.loads(out)["validation"]


def test_validation_rows_are_prepared_as_the_training_rows(raw, tmp_path, run):
    other = tmp_path / "other.csv"
    customers(seed=1)[::-1].to_csv(other, index=False)
    code, out, err = run("fit", raw, *RAW, "--validation", other, "-o", tmp_path / "m")
    assert (code, "validation" in out, err.count("\n")) == (0, True, 1)
    customers(seed=1).assign(bought="perhaps").to_csv(other, index=False)
    code, _, err = run("fit", raw, *RAW, "--validation", other, "-o", tmp_path / "m", "-q")
    assert (code, "the class 'perhaps', which DATA do not" in err) == (2, True)
    code, _, err = run("fit", raw, "--validation", raw, "--processes", 2, "-o", tmp_path / "m")
    assert code == 2


# ---------------------------------------------------------------- metrics
def test_cv_by_several_metrics(raw, tmp_path, run):
    """The first chooses lam; all are those of scikit-learn on the same folds."""
    options = [*RAW, "--weight", "times", "--lams", "0.1,0.001", "--folds", "3", "-o", tmp_path / "m"]
    facts = json.loads(run("cv", raw, *options, "--metric", "average_precision,f1,accuracy", "--json")[1])
    assert facts["metric"] == "average precision"
    table, best = customers(), load_model(tmp_path / "m")
    X, y, c = best.preparation_.read([raw]).X, table.bought.to_numpy(), table.times.to_numpy(float)
    expected = {"average": [], "F1": []}
    for train, test in StratifiedKFold(3).split(X, y):
        model = LinearClassifier("logistic", alpha=1e-3, standardize=True).fit(X[train], y[train], c[train])
        of_test = {"y_true": y[test] == "yes", "sample_weight": c[test]}
        expected["average"].append(
            average_precision_score(y_score=model.decision_function(X[test]), **of_test)
        )
        expected["F1"].append(f1_score(y_pred=model.predict(X[test]) == "yes", **of_test))
    entry = facts["cv"][1]
    assert entry["scores"] == pytest.approx(expected["average"], abs=2e-3)
    assert entry["metrics"]["F1"] == pytest.approx(np.mean(expected["F1"]), abs=1e-2)
    assert list(entry["metrics"]) == ["F1", "accuracy"]
    assert facts["best_score"] == max(e["mean"] for e in facts["cv"])
    out = run("cv", raw, *options, "--metric", "average_precision,f1,accuracy")[1]
    assert "average precision" in out
    assert "accuracy" in run("cv", raw, *options)[1]
    for bad, message in {"f1,f1": "each metric once", "auroc": "no scorer named 'auroc'"}.items():
        code, _, err = run("cv", raw, *options, "--metric", bad)
        assert (code, message in err) == (2, True)


def test_average_precision_of_classes_by_name(raw, tmp_path, run):
    assert run("fit", raw, *RAW, "-o", tmp_path / "m", "-q")[0] == 0
    metrics = json.loads(run("evaluate", tmp_path / "m", raw, "--json")[1])
    scores = [float(word) for word in run("predict", tmp_path / "m", raw, "--scores")[1].split()]
    expected = average_precision_score(customers().bought == "yes", scores)
    assert metrics["average precision"] == pytest.approx(expected)
    three = LinearClassifier("logistic").fit(np.eye(6), [0, 1, 2] * 2)
    with pytest.raises(ValueError, match="two classes"):
        get_scorer("average_precision")(three, np.eye(6), [0, 1, 2] * 2)


# ---------------------------------------------------------------- progress
def test_verbose(svm, tmp_path, run):
    for command, options in {
        "fit": ["-o", tmp_path / "m"],
        "path": ["--lams", "0.1,0.01"],
        "cv": ["--lams", "0.1,0.01", "--folds", "2", "-o", tmp_path / "m"],
    }.items():
        code, _, err = run(command, svm, *options, "-v")
        assert code == 0
        lines = err.splitlines()
        assert len(lines) >= 3
        assert all(line.startswith("riskmin: ") and "iteration" in line for line in lines)
    assert {line[9:20] for line in lines} == {"fold 1 of 2", "fold 2 of 2"}


def test_status_line():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for file, expected in ((io.StringIO(), "riskmin: half\n"), (Terminal(), "\r\033[Kriskmin: half\r\033[K")):
        with StatusLine(file=file) as status:
            status(lambda: "too early")
            status.next_report_time = 0.0
            status(lambda: "half")
            status(lambda: "too early again")
        assert file.getvalue() == expected
    status = StatusLine(quiet=True, file=(file := io.StringIO()))
    status.next_report_time = 0.0
    status(lambda: "nothing")
    assert file.getvalue() == ""
    status.start -= 10
    assert status.left(0.5) == ", 10.0 s left"


def test_predictions_are_the_same_in_blocks(svm, tmp_path, run, monkeypatch):
    from riskmin.cli.commands import predict

    assert run("fit", svm, "-o", tmp_path / "m", "-q")[0] == 0
    whole = run("predict", tmp_path / "m", svm)[1]
    monkeypatch.setattr(predict, "BLOCK_ROWS", 7)
    assert run("predict", tmp_path / "m", svm)[1] == whole
