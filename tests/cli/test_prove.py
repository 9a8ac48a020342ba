"""`riskmin prove` writes proofs of files, and `riskmin verify` checks them."""

import subprocess
import sys

import pytest
from command_files import RAW, fitted

from riskmin import verify


@pytest.mark.parametrize(
    ("data", "loss"),
    [
        ("two.svm", "hinge"),
        ("two.csv", "logistic"),
        ("words.csv", "logistic"),
        ("graded.csv", "softmax"),
        ("houses.csv", "huber"),
    ],
)
def test_text_files_are_proved_as_they_are(files, tmp_path, run, data, loss):
    model = fitted(run, files / data, loss, tmp_path / "m", "--standardize")
    code, out, err = run("prove", tmp_path / "m", files / data, "-o", tmp_path / "m.proof", "-q")
    assert (code, err) == (0, "")
    assert out.startswith(f"proved: J = {model.objective_:.9g} is at most ")
    code, out, err = run("verify", tmp_path / "m.proof", files / data)
    assert (code, err) == (0, "")
    assert out.startswith("PROVED: ")
    other = files / ("ranked.svm" if data != "ranked.svm" else "two.svm")
    assert run("verify", tmp_path / "m.proof", other)[0] == 1
    assert run("verify", tmp_path / "m.proof", tmp_path / "none")[0] == 2


def test_raw_tables_need_the_prepared_matrix(files, tmp_path, run):
    raw, model, matrix = files / "raw.csv", tmp_path / "m", tmp_path / "prepared.svm"
    assert run("fit", raw, *RAW, "-o", model, "--quiet")[0] == 0
    code, _, err = run("prove", model, raw, "-o", tmp_path / "m.proof", "-q")
    assert code == 2
    assert "--matrix" in err
    assert not (tmp_path / "m.proof").exists()
    assert run("prove", model, raw, "-o", tmp_path / "m.proof", "--matrix", matrix, "-q")[0] == 0
    assert run("verify", tmp_path / "m.proof", matrix)[0] == 0


def test_without_a_formula_the_sentence_says_so(files, tmp_path, run):
    fitted(run, files / "two.svm", "roc_area", tmp_path / "m")
    code, _, err = run("prove", tmp_path / "m", files / "two.svm", "-o", tmp_path / "m.proof")
    assert code == 2
    assert "no sum over rows" in err


def test_the_module_is_the_command(files, tmp_path, run):
    fitted(run, files / "two.svm", "hinge", tmp_path / "m")
    assert run("prove", tmp_path / "m", files / "two.svm", "-o", tmp_path / "m.proof")[0] == 0
    command = [sys.executable, "-m", "riskmin.verify", tmp_path / "m.proof", files / "two.svm"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == run("verify", tmp_path / "m.proof", files / "two.svm")[1]
    assert verify.main(["one"]) == 2
