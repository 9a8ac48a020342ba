"""The sentences that answer common mistakes: each is made on purpose, and its answer is printed.

    python -m benchmarks.mistakes

The exit code is 1 if an answer lacks the words that are written beside its mistake.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_iris

import riskmin as rm

X, Y = load_iris(return_X_y=True, as_frame=True)
TWO = Y > 0
HOLE = X.astype(float).copy()
HOLE.iloc[7, 2] = np.nan

IN_PYTHON: list[tuple[str, Callable[[], Any], str]] = [
    ("LinearClassifier('hing')", lambda: rm.LinearClassifier("hing").fit(X, TWO), "did you mean 'hinge'?"),
    (
        "LinearClassifier('roc_aera')",
        lambda: rm.LinearClassifier("roc_aera").fit(X, TWO),
        "'roc_aera': did you mean 'roc_area'? The names are ",
    ),
    (
        "LinearRegressor('quantile:0.9')",
        lambda: rm.LinearRegressor("quantile:0.9").fit(X, Y),
        "write it like 'quantile:level=0.9'",
    ),
    (
        "LinearRegressor('quantile:levle=0.9')",
        lambda: rm.LinearRegressor("quantile:levle=0.9").fit(X, Y),
        "did you mean 'level'?",
    ),
    (
        "LinearRegressor(regularizer='lasso')",
        lambda: rm.LinearRegressor(regularizer="lasso").fit(X, Y),
        "did you mean 'l1'?",
    ),
    ("solver='lbgfs'", lambda: rm.LinearRegressor(solver="lbgfs").fit(X, Y), "did you mean 'lbfgs'?"),
    ("get_scorer('roc_auk')", lambda: rm.get_scorer("roc_auk"), "did you mean 'roc_auc'?"),
    (
        "KernelClassifier(kernel='rbff')",
        lambda: rm.KernelClassifier(kernel="rbff").fit(X, TWO),
        "did you mean 'rbf'?",
    ),
    (
        "KernelClassifier(kernel='gaussian')",
        lambda: rm.KernelClassifier(kernel="gaussian").fit(X, TWO),
        "'rbf'",
    ),
    ("LinearClassifier(kernel='rbf')", lambda: rm.LinearClassifier(kernel="rbf"), "KernelClassifier"),
    ("LinearRegressor(kernel='rbf')", lambda: rm.LinearRegressor(kernel="rbf"), "KernelRegressor"),
    ("LinearRegressor(alhpa=1)", lambda: rm.LinearRegressor(alhpa=1.0), "did you mean 'alpha'?"),
    (
        "LinearRanker().fit(X, y, group=)",
        lambda: rm.LinearRanker().fit(X, Y, group=[50, 100]),
        "qid=np.repeat",
    ),
    ("fit(X, y, eval_set=)", lambda: rm.LinearRegressor().fit(X, Y, eval_set=[(X, Y)]), "callback"),
    (
        "fit(X, y, sample_weights=)",
        lambda: rm.LinearRegressor().fit(X, Y, sample_weights=Y),
        "did you mean 'sample_weight'?",
    ),
    ("a NaN in column 'petal length (cm)'", lambda: rm.LinearRegressor().fit(HOLE, Y), "'petal length (cm)'"),
    ("the same in predict", lambda: rm.LinearRegressor().fit(X, Y).predict(HOLE), "'petal length (cm)'"),
    ("NaN in kernel rows", lambda: rm.KernelRegressor().fit(HOLE, Y), "'petal length (cm)'"),
]
"""What is done, the call, and words of its answer."""

IN_A_SHELL = [
    ("fti train.csv -o new", "there is no command 'fti': did you mean 'fit'?"),
    ("fit train.csv --los hinge -o new", "there is no option '--los': did you mean '--loss'?"),
    ("fit train.csv --loss roc_aera -o new", "'roc_aera': did you mean 'roc_area'? The names are "),
    ("fit train.csv --loss quantile:0.9 -o new", "write it like 'quantile:level=0.9'"),
    ("fit train.csv --target specie -o new", "'specie': did you mean 'species'? The columns are "),
    ("fit train.csv --qid querry --loss ndcg -o new", "did you mean 'query'?"),
    ("fit train.csv --drop querry -o new", "did you mean 'query'?"),
    ("fit train.csv --weight querry -o new", "did you mean 'query'?"),
    ("fit train.csv --config options.toml -o new", "there is no option 'los': did you mean 'loss'?"),
    ("cv train.csv --scoring acuracy -o new", "did you mean 'accuracy'?"),
    ("predict train.csv iris.riskmin", "MODEL and DATA are swapped"),
    ("evaluate train.csv iris.riskmin", "MODEL and DATA are swapped"),
    ("certify train.csv iris.riskmin", "MODEL and DATA are swapped"),
    ("fit iris.riskmin -o new", "iris.riskmin is a file of riskmin, such as a model, not data"),
    ("fit - -o new < broken.csv", "standard input, line 4: column 'b'"),
    ("predict - train.csv < train.csv", "riskmin: standard input is not a whole riskmin file"),
    ("predict iris.riskmin renamed.csv", "did you mean 'petal_length'?"),
]
"""A command, whose input may be a file, and words of its answer."""


def write_files(folder: Path) -> None:
    """Write the tables, the file of options and the model that the commands name."""
    X.assign(query=np.repeat([1, 2, 3], 50), species=Y).to_csv(folder / "train.csv", index=False)
    X.rename(columns={"petal length (cm)": "petal_length"}).to_csv(folder / "renamed.csv", index=False)
    (folder / "broken.csv").write_text("a,b,target\n1,2,3\n4,3,5\n6,,1\n")
    (folder / "options.toml").write_text("los = 'hinge'\n")
    rm.save_model(rm.LinearClassifier().fit(X, Y), folder / "iris.riskmin")


def answer(call: Callable[[], Any]) -> str:
    """Return the message of the error that a call raises; nothing if it raises none."""
    try:
        call()
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


def answer_of_command(line: str, folder: Path) -> str:
    """Return what a command prints on stderr; nothing if its exit code is not that of bad usage."""
    command, _, source = line.partition(" < ")
    words = [sys.executable, "-m", "riskmin", *shlex.split(command)]
    given = (folder / source).read_bytes() if source else b""
    done = subprocess.run(words, cwd=folder, input=given, capture_output=True, check=False)
    return done.stderr.decode() if done.returncode == 2 else ""


def main() -> int:
    """Make every mistake, and print the answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        answers = [(what, answer(call), words) for what, call, words in IN_PYTHON]
        answers += [(f"riskmin {line}", answer_of_command(line, folder), words) for line, words in IN_A_SHELL]
    for what, text, words in answers:
        print(what, f"    {text.strip() or 'no error'}", sep="\n")
        if words not in text:
            print(f"    WRONG: it does not say {words!r}")
    return int(any(words not in text for _, text, words in answers))


if __name__ == "__main__":
    sys.exit(main())
