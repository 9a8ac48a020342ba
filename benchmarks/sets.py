"""Two-class data sets with a test part, for the benchmarks of non-decomposable losses.

The folder holds the svmlight files listed in benchmarks/RESULTS.md. If a data set has no test part, a fifth
of its rows is held out, with seed 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from riskmin.data import load, load_svmlight


class Split(NamedTuple):
    """Training rows and labels +-1, and test rows and labels."""

    X: Any
    y: Any
    T: Any
    t: Any


def column_max_scale(X):
    """Each column divided by its largest absolute value."""
    top = abs(sp.csc_array(X)).max(axis=0).toarray().ravel()
    return sp.csr_array(X @ sp.diags_array(1 / np.where(top, top, 1.0)))


def signs(y, positive=None):
    return np.where(y > 0 if positive is None else y == positive, 1.0, -1.0)


def hold_out(X, y, seed=0, share=0.2):
    """Hold out a random share of each class."""
    rng = np.random.default_rng(seed)
    out = np.zeros(len(y), dtype=bool)
    for sign in (-1.0, 1.0):
        rows = np.flatnonzero(y == sign)
        out[rng.permutation(rows)[: round(share * len(rows))]] = True
    return Split(X[~out], y[~out], X[out], y[out])


def with_test(name, p=None, train=None):
    """A data set with a separate test file."""

    def read(folder):
        X, y, *_ = load(folder / f"{train or name + '.train'}.svm.xz", n_features=p)
        T, t, *_ = load(folder / f"{name}.test.svm.xz", n_features=X.shape[1])
        return Split(X, signs(y), T, signs(t))

    return read


def without_test(name):
    def read(folder):
        X, y, *_ = load(folder / f"{name}.svm.xz")
        return hold_out(X, signs(y))

    return read


def covtype(folder):
    X, y, *_ = load(folder / "covtype.svm.xz")
    return hold_out(column_max_scale(X), signs(y, 2))


def kdd99(folder):
    split = with_test("kdd99", 119, "kdd99_10pct.train")(folder)
    n = len(split.y)
    both = column_max_scale(sp.vstack([split.X, split.T]).tocsr())
    return Split(both[:n], split.y, both[n:], split.t)


def rcv1(topic):
    """The documents of a topic against the rest."""

    def read(folder):
        rows = (folder / "rcv1_topics.labels.txt").read_text().splitlines()
        index = [row.split()[1] for row in rows if not row.startswith("#")].index(topic)
        parts = [
            load_svmlight(folder / f"rcv1_topics.{part}.svm.xz", n_features=47236, multilabel=True)
            for part in ("train", "test")
        ]
        y, t = (np.array([1.0 if index in labels else -1.0 for labels in part.y]) for part in parts)
        return Split(parts[0].X, y, parts[1].X, t)

    return read


def news20(folder):
    """Even against odd groups, with the test part of the multiclass set; rows have norm one."""
    parts = []
    for part in ("train", "test"):
        X, y, *_ = load(folder / f"news20mc.{part}.svm.xz", n_features=62061)
        X = sp.csr_array(X)
        length = np.sqrt((X * X).sum(axis=1))
        parts += [sp.diags_array(1 / np.where(length, length, 1.0)) @ X, np.where(y % 2 == 0, 1.0, -1.0)]
    return Split(sp.csr_array(parts[0]), parts[1], sp.csr_array(parts[2]), parts[3])


SETS = {
    "a9a": with_test("a9a", 123),
    "w8a": without_test("w8a.train"),
    "covtype": covtype,
    "kdd99": kdd99,
    "rcv1 CCAT": rcv1("CCAT"),
    "rcv1 C11": rcv1("C11"),
    "news20": news20,
    "moneyfx": with_test("reuters_moneyfx", 8315),
    "hiva": without_test("hiva"),
}


def read(name: str, folder: Path) -> Split | None:
    """The data set; None, and a printed message, if its files are missing."""
    try:
        return SETS[name](folder)
    except FileNotFoundError as error:
        print(f"| {name} | left out: {error} |", flush=True)
        return None
