"""The files and models that the tests of commands share, and what they check of every command."""

import json

import numpy as np
import pandas as pd

import riskmin as rm
from helpers import customers
from riskmin.data import save_svmlight

GRADES = np.array(["poor", "fair", "good", "best"])
N, P = 60, 4
RAW = ("--loss", "logistic", "--standardize", "--impute", "median", "--drop", "since", "--target", "bought")
"""Options for the raw table."""


def rows(n=N, seed=0):
    """Features, two classes of which one is rare, grades, and query ids that are not contiguous."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, P)).round(3)
    z = X[:, 0] - X[:, 1] + 0.7 * rng.normal(size=n)
    return X, np.where(z > 0.7, 1, -1), np.digitize(z, [-0.5, 1, 2]), np.arange(n) % 12


def write_csv(path, *columns, names="a,b,c,d,label"):
    """Write columns, each of numbers or words, under the names."""
    table = pd.concat([pd.DataFrame(column) for column in columns], axis=1)
    table.to_csv(path, index=False, header=names.split(","))
    return path


def write_files(folder):
    """Write data of all tasks and models of some, which no test changes."""
    X, y, grade, qid = rows()
    save_svmlight(folder / "two.svm", X, y)
    save_svmlight(folder / "graded.svm", X, grade)
    save_svmlight(folder / "ranked.svm", X, grade, qid)
    write_csv(folder / "two.csv", X, y)
    write_csv(folder / "bare.csv", X, names="a,b,c,d")
    write_csv(folder / "words.csv", X, np.where(y > 0, "spam", "ham"))
    write_csv(folder / "graded.csv", X, GRADES[grade], names="a,b,c,d,grade")
    write_csv(folder / "houses.csv", X, 2 * X[:, 0] + np.sin(X[:, 1]), names="a,b,c,d,price")
    queries = np.array([f"query {q}" for q in qid])
    write_csv(folder / "clicks.csv", X[:, 0], queries, X[:, 1:], grade, names="a,topic,b,c,d,relevance")
    customers(120).to_csv(folder / "raw.csv", index=False)
    rm.save_model(rm.LinearClassifier("hinge", alpha=1e-2).fit(X, y), folder / "hinge.model")
    rm.save_model(rm.OrdinalClassifier(alpha=1e-2).fit(X, grade), folder / "ordinal.model")
    rm.save_model(
        rm.OrdinalClassifier(alpha=1e-2, order=[3, 2, 1, 0]).fit(X, grade), folder / "reversed.model"
    )
    rm.save_model(rm.LinearRanker("ndcg", alpha=1e-2).fit(X, grade, qid=qid), folder / "ranker.model")
    return folder


def run_json(run, *args):
    """The exit code and the facts that a command prints."""
    code, out, _ = run(*args, "--json")
    return code, json.loads(out)


def fitted(run, data, loss, model, *options):
    """The model of a quiet fit, which prints nothing."""
    assert run("fit", data, "--loss", loss, "--lam", 1e-2, "-o", model, "--quiet", *options) == (0, "", "")
    return rm.load_model(model)


def refuted(completed, *words):
    """Check for one sentence that names the false claim."""
    code, _, err = completed
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("riskmin: refuted: ")
    for word in words:
        assert word in err


def altered(path, target, **changes):
    """Save the model with changed attributes, and a valid checksum."""
    model = rm.load_model(path)
    for name, value in changes.items():
        setattr(model, name, value)
    rm.save_model(model, target)
    return target
