"""The command line: show, standard input, config files, completion, dry runs, progress, warmup, processes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import types

import numpy as np
import pytest
from command_files import RAW, rows, run_json

import riskmin
from helpers import check_sentence, customers
from riskmin import ChainTagger, KernelClassifier, LinearClassifier, OrdinalClassifier, load_model, save_model
from riskmin._numba import compile_cache
from riskmin.data import save_svmlight

RISKMIN = [sys.executable, "-m", "riskmin"]
X, Y, GRADE, _ = rows()


@pytest.fixture
def stdin(monkeypatch):
    """Let the command read these bytes as standard input."""

    def give(content):
        monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(content)))

    return give


# ---------------------------------------------------------------- help, demo, show
def test_help(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "Examples:" in out
    for code in (0, 1, 2, 3, 70, 130):
        assert re.search(rf"^    {code} +\w", out, re.MULTILINE)
    assert run()[1] == out
    assert run("--version") == (0, f"riskmin {riskmin.__version__}\n", "")


def test_demo(tmp_path, run):
    page = tmp_path / "page.html"
    code, out, err = run("demo", "-o", page)
    assert (code, err) == (0, "")
    assert out.count("certified\n") == 3
    assert out.count("  second bound") == 3
    assert out.splitlines()[-1].endswith(str(page.resolve()))
    assert page.read_text(encoding="utf-8").count('<svg class="chart"') == 6


def test_show(files, tmp_path, run):
    raw = files / "raw.csv"
    assert run("fit", raw, *RAW, "--weight", "times", "-o", tmp_path / "m", "-q") == (0, "", "")
    model = load_model(tmp_path / "m")
    code, out, _ = run("show", tmp_path / "m", "--top", 2)
    assert code == 0
    for text in (
        f"{model.objective_:.9g}",
        f"{model.lower_bound_:.9g}",
        "120 rows x 7 columns, weighted",
        "no, yes",
        "weight from times",
        "1 of numbers, 2 of categories with 6 levels",
        f"made by: riskmin fit {raw} --loss logistic",
    ):
        assert text in out
    facts = run_json(run, "show", tmp_path / "m")[1]
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


def test_show_of_other_models(tmp_path, run):
    sentences = [[{"word": "cat"}, {"word": "bird"}], [{"word": "bird"}]] * 3
    tags = [["U", "V"], ["V"]] * 3
    for fitted, words in {
        LinearClassifier("logistic", alpha=1e-2).fit(X, GRADE): ("class", "LinearClassifier(", "in Python"),
        OrdinalClassifier(alpha=1e-2).fit(X, GRADE): ("threshold",),
        KernelClassifier(alpha=1e-1).fit(X, Y): ("KernelClassifier",),
        ChainTagger(alpha=1e-2).fit(sentences, tags): ("word:bird", "U, V"),
    }.items():
        save_model(fitted, tmp_path / "m")
        code, out, err = run("show", tmp_path / "m")
        assert (code, err) == (0, "")
        assert all(word in out for word in words), out


# ---------------------------------------------------------------- standard input and output
def test_standard_input(files, tmp_path, run, stdin):
    for path, options in ((files / "raw.csv", RAW), (files / "two.svm", ())):
        assert run("fit", path, *options, "-o", tmp_path / "m", "-q")[0] == 0
        stdin(path.read_bytes())
        assert run("fit", "-", *options, "-o", tmp_path / "n", "-q")[0] == 0
        assert np.array_equal(load_model(tmp_path / "m").coef_, load_model(tmp_path / "n").coef_)
        expected = run("predict", tmp_path / "m", path)[1]
        stdin(path.read_bytes())
        assert run("predict", tmp_path / "m", "-", "-o", "-") == (0, expected, "")
        stdin((tmp_path / "m").read_bytes())
        assert run("predict", "-", path) == (0, expected, "")
    np.savez(tmp_path / "rows.npz", X=np.eye(2), y=[1, -1])
    for content in ((tmp_path / "rows.npz").read_bytes(), b"-1\n+1 3:1\n", b"a\ty\n1\t2\n2\t1\n"):
        stdin(content)
        assert run("fit", "-", "-o", tmp_path / "n", "-q")[0] == 0
    check_sentence(run("predict", "-", "-"), "standard input can be read once")


# ---------------------------------------------------------------- config files
def test_config_files(files, tmp_path, run):
    raw, config = files / "raw.csv", tmp_path / "riskmin.toml"
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
    assert by_file.get_params()["standardize"] is True
    assert run("fit", raw, *RAW, "--drop", "times", "--lam", "1e-2", "-o", tmp_path / "n", "-q")[0] == 0
    assert np.array_equal(by_file.coef_, load_model(tmp_path / "n").coef_)
    # the command line overrides the file
    assert run("fit", raw, "--config", config, "--lam", 1, "-q")[0] == 0
    assert (load_model(tmp_path / "m").alpha, load_model(tmp_path / "m").loss) == (1.0, "logistic")
    facts = run_json(run, "cv", raw, "--config", config)[1]
    assert [entry["lam"] for entry in facts["cv"]] == [1, 0.01]
    assert list(facts["cv"][0]["metrics"]) == ["F1"]


# ---------------------------------------------------------------- completion
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fit --loss squared_h", {"squared_hinge"}),
        ("fit --reg ela", {"elastic"}),
        ("fit --solver lbf", {"lbfgs"}),
        ("cv --metric f1,average", {"f1,average_precision"}),
        ("fit raw.csv --target b", {"bought"}),
        ("fit raw.csv --drop city,", {f"city,{name}" for name in customers().columns}),
    ],
)
def test_completion(words, expected, files):
    """As bash asks for it."""
    environment = {"COMP_WORDS": f"riskmin {words}", "COMP_CWORD": str(len(words.split()))}
    environment |= {"_RISKMIN_COMPLETE": "bash_complete"}
    done = subprocess.run(RISKMIN, cwd=files, env=os.environ | environment, capture_output=True, text=True)
    assert {line.removeprefix("plain,") for line in done.stdout.split()} == expected


# ---------------------------------------------------------------- dry runs
@pytest.mark.parametrize("loss", ["hinge", "logistic", "roc_area"])
def test_a_dry_run_announces_what_the_fit_does(loss, files, tmp_path, run):
    options = [files / "two.svm", "--loss", loss, "--lam", "0.1", "-o", tmp_path / "m"]
    code, out, err = run("fit", *options, "--json", "--dry-run")
    plan = json.loads(out)
    assert (code, err) == (0, "")
    assert not (tmp_path / "m").exists()
    done = run_json(run, "fit", *options)[1]
    assert done["solver"].startswith(plan["solver"])
    assert (plan["rows"], plan["columns"], plan["weights"]) == (60, 4, done["weights"])
    assert plan["data_bytes"] >= 60 * 4 * 8
    assert plan["evaluation_seconds"] > 0
    assert "nothing is fitted" in run("fit", *options, "--dry-run")[1]


# ---------------------------------------------------------------- early stopping
@pytest.mark.slow
def test_a_fit_ends_where_the_validation_loss_is_least(tmp_path, run):
    """The saved iterate has the least validation loss of the run, and a certificate that holds."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 30))
    y = np.where(X[:, 0] + 2 * rng.normal(size=80) > 0, 1.0, -1.0)
    train, other = tmp_path / "train.svm", tmp_path / "other.svm"
    save_svmlight(train, X[:40], y[:40])
    save_svmlight(other, X[40:], y[40:])
    options = [train, "--loss", "logistic", "--lam", "1e-6", "--solver", "lbfgs", "--tol", "1e-9"]
    options += ["--standardize"]

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


def test_validation_rows_are_prepared_as_the_training_rows(files, tmp_path, run):
    raw, other = files / "raw.csv", tmp_path / "other.csv"
    customers(120, seed=1)[::-1].to_csv(other, index=False)
    code, out, err = run("fit", raw, *RAW, "--validation", other, "-o", tmp_path / "m")
    assert (code, "validation" in out, err.count("\n")) == (0, True, 1)
    customers(120, seed=1).assign(bought="perhaps").to_csv(other, index=False)
    completed = run("fit", raw, *RAW, "--validation", other, "-o", tmp_path / "m", "-q")
    check_sentence(completed, "the class 'perhaps', which DATA do not")


# ---------------------------------------------------------------- progress
def test_verbose(files, tmp_path, run):
    for command, options in {
        "fit": ["-o", tmp_path / "m", "--tol", "1e-6"],
        "path": ["--lams", "0.1,0.01"],
        "cv": ["--lams", "0.1,0.01", "--folds", "2", "-o", tmp_path / "m"],
    }.items():
        code, _, err = run(command, files / "two.svm", *options, "-v")
        assert code == 0
        lines = err.splitlines()
        assert len(lines) >= 3
        assert all(line.startswith("riskmin: ") and "iteration" in line for line in lines)
    assert {line[9:20] for line in lines} == {"fold 1 of 2", "fold 2 of 2"}


# ---------------------------------------------------------------- warmup
def test_warmup_prints_the_kernels_and_the_cache(run, monkeypatch):
    code, out, err = run("warmup", "--task", "novelty", "--task", "files")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["novelty", "files", "Total"]
    assert compile_cache.cache_folder() in out
    # Numba chooses the folder when it is imported: a machine without one would be another process
    monkeypatch.setattr(compile_cache, "cache_folder", lambda: None)
    check_sentence(run("warmup"), "set NUMBA_CACHE_DIR to a writable one")


AFTER = """
import numpy as np, riskmin
X = np.random.default_rng(5).standard_normal((300, 9))
riskmin.KernelClassifier().fit(X, X[:, 0] > 0)
from riskmin._numba.compile_cache import KernelCache
print(KernelCache.n_compiled)
"""


@pytest.mark.exhaustive
def test_fits_after_warmup_compile_nothing(tmp_path):
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([*RISKMIN, "warmup", "--task", "kernels"], env=env, check=True)
    command = [sys.executable, "-c", AFTER]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]


# ---------------------------------------------------------------- processes
@pytest.mark.slow
def test_a_pipe_of_commands(files, tmp_path, run):
    """The model goes from one process to the next, and no file is written."""
    raw = files / "raw.csv"
    fit = subprocess.run([*RISKMIN, "fit", "-", *RAW, "-o", "-"], input=raw.read_bytes(), capture_output=True)
    assert fit.returncode == 0
    shown = subprocess.run([*RISKMIN, "predict", "-", raw], input=fit.stdout, capture_output=True)
    assert run("fit", raw, *RAW, "-o", tmp_path / "m", "-q")[0] == 0
    assert shown.stdout.decode() == run("predict", tmp_path / "m", raw)[1]


@pytest.mark.slow
def test_processes_print_and_end_as_the_command_in_this_one(files, tmp_path, run, monkeypatch):
    """Without scikit-learn, which a command does not import: it has base classes of its own."""
    monkeypatch.chdir(files)
    for args, code in (
        (["show", "hinge.model"], 0),
        (["evaluate", "hinge.model", "two.svm"], 0),
        (["fit", "missing", "-o", tmp_path / "m"], 2),
        (["fit", "two.svm", "--max-iter", "1", "-q", "-o", tmp_path / "m"], 3),
    ):
        done = subprocess.run([*RISKMIN, *map(str, args)], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == run(*args)
        assert done.returncode == code


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="pipes of this system do not signal")
def test_closed_pipe_is_not_an_error(files, tmp_path):
    data = tmp_path / "long.svm"
    data.write_text("1 1:1\n" * 100_000)
    command = [*RISKMIN, "predict", str(files / "hinge.model"), str(data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(timeout=60)


@pytest.mark.slow
def test_many_columns_of_numbers_and_of_text(tmp_path, run):
    names = [f"column_{k}" for k in range(2_000)]
    for cells in ("123", "uvw"):
        lines = [",".join([cell] * len(names) + [str(k % 2)]) for k, cell in enumerate(cells)]
        (tmp_path / "wide.csv").write_text("\n".join([",".join([*names, "y"]), *lines, ""]))
        assert run("fit", tmp_path / "wide.csv", "-o", tmp_path / "m", "--min-frequency", 1)[0] == 0
        assert len(run("predict", tmp_path / "m", tmp_path / "wide.csv")[1].split()) == len(cells)
