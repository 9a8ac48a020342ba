"""Data sets: readers of a folder of svmlight files (listed in benchmarks/RESULTS.md), and synthetic sets.

A reader takes the folder and returns X and y; synthetic sets ignore the folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from benchmarks import sets
from benchmarks.sets import column_max_scale
from benchmarks.unseen.prepare import read as read_prepared
from benchmarks.unseen.tables import UNSEEN
from riskmin.data import DataError, load


class Set(NamedTuple):
    """A reader, and the kind of its labels: signs, numbers, counts or classes."""

    read: Callable[[Any], tuple[Any, Any]]
    labels: str


# ---------------------------------------------------------------- two classes
def binary(name):
    def read(folder):
        X, y, *_ = load(folder / f"{name}.svm.xz")
        return X, np.where(y > 0, 1.0, -1.0)

    return read


def covtype(folder):
    """Class 2 against the rest, each column divided by its maximum."""
    X, y, *_ = load(folder / "covtype.svm.xz")
    return column_max_scale(X), np.where(y == 2, 1.0, -1.0)


def rcv1_ccat(folder):
    """Training and test part together, 27 613 rows."""
    split = sets.rcv1("CCAT")(folder)
    return sp.vstack([split.X, split.T]).tocsr(), np.concatenate([split.y, split.t])


def to_fit(name):
    """The training rows of a set of `benchmarks.sets`."""

    def read(folder):
        split = sets.SETS[name](folder)
        return split.X, split.y

    return read


def dense(folder=None, n=100_000, p=100):
    """Synthetic, standardized, with noisy labels: a shape for which coordinate ascent is slow."""
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((n, p)), rng.standard_normal(p)
    y = np.where(X @ w + 0.5 * np.linalg.norm(w) * rng.standard_normal(n) > 0, 1.0, -1.0)
    return (X - X.mean(0)) / X.std(0), y


def ill(folder=None, n=100_000, p=100):
    """Like `dense`, but the columns are scaled over four decades and then rotated (ill-conditioned).

    The mean squared norm of the rows is p, as in `dense`.
    """
    rng = np.random.default_rng(0)
    Z, w = rng.standard_normal((n, p)), rng.standard_normal(p)
    y = np.where(Z @ w + 0.5 * np.linalg.norm(w) * rng.standard_normal(n) > 0, 1.0, -1.0)
    turn = np.linalg.qr(rng.standard_normal((p, p)))[0]
    scale = np.logspace(0, -4, p)
    return (Z * (scale / np.sqrt(np.mean(scale**2)))) @ turn, y


# ---------------------------------------------------------------- numbers and counts
def regression(name):
    """Columns and labels with mean 0 and variance 1."""

    def read(folder):
        X, y, *_ = load(folder / f"{name}.svm.xz")
        X = X.toarray()
        return (X - X.mean(0)) / np.where(X.std(0), X.std(0), 1.0), (y - y.mean()) / y.std()

    return read


def dense_numbers(folder=None, n=100_000, p=100):
    """Standardized; half of the features matter."""
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((n, p)), rng.standard_normal(p)
    w[p // 2 :] = 0
    z = X @ w
    y = z + 0.5 * np.linalg.norm(w) * rng.standard_normal(n)
    return (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()


def noisy(folder=None, n=20_000, p=20):
    """Noise that grows with a feature, so that quantiles are not parallel; one column is constant 1."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal((n, p - 1)), np.ones(n)])
    noise = rng.standard_normal(n) * (0.5 + np.abs(X[:, 0]))
    return X, X @ rng.standard_normal(p) + noise


def power_law(folder=None, n=20_000, p=50_000, a_row=88):
    """About 83 entries per row, column counts by a power law, 500 relevant columns, rows of norm one."""
    rng = np.random.default_rng(0)
    columns = (p * rng.random((n, a_row)) ** 3).astype(np.int32)
    rows = np.repeat(np.arange(n, dtype=np.int32), a_row)
    X = sp.csr_array((np.abs(rng.standard_normal(n * a_row)), (rows, columns.ravel())), shape=(n, p))
    X = sp.csr_array(sp.diags_array(1 / np.sqrt(X.multiply(X).sum(axis=1))) @ X)
    w = np.zeros(p)
    w[rng.choice(p // 10, 500, replace=False)] = 3 * rng.standard_normal(500)
    z = X @ w
    return X, z + 0.3 * z.std() * rng.standard_normal(n)


def counts(name):
    """Each column divided by its maximum, and a column of ones."""

    def read(folder):
        X, y, *_ = load(folder / f"{name}.svm.xz")
        X = column_max_scale(X)
        return sp.csr_array(sp.hstack([X, np.ones((X.shape[0], 1))])), np.asarray(y, dtype=float)

    return read


# ---------------------------------------------------------------- multiclass data
def classes(name, scale=1.0):
    """Dense rows, and classes numbered from 0."""

    def read(folder):
        X, y, *_ = load(folder / f"{name}.svm.xz")
        return X.toarray() / scale, np.unique(y, return_inverse=True)[1].astype(float)

    return read


# ---------------------------------------------------------------- sets of other packages
def unseen(name):
    """Dense columns with mean 0 and variance 1, sparse ones with entries of at most 1; labels of variance 1.

    Counts stay as they are.
    """

    def read(folder):
        X, y = read_prepared(folder / f"{name}.npz")
        X = scaled(X)
        return X, (y - y.mean()) / y.std() if UNSEEN[name].labels == "numbers" else y

    return read


def scaled(X):
    """Rows of words have norm one, and stay as they are."""
    if not sp.issparse(X):
        return (X - X.mean(0)) / np.where(X.std(0), X.std(0), 1.0)
    most = np.abs(X).max(axis=0).toarray().ravel()
    return sp.csr_array(X @ sp.diags_array(1 / np.maximum(most, 1.0)))


SETS = {
    "a9a": Set(binary("a9a.train"), "signs"),
    "w8a": Set(binary("w8a.train"), "signs"),
    "rcv1 CCAT": Set(rcv1_ccat, "signs"),
    "covtype": Set(covtype, "signs"),
    "dense": Set(dense, "signs"),
    "ill": Set(ill, "signs"),
    "kdd99": Set(to_fit("kdd99"), "signs"),
    "rcv1 C11": Set(to_fit("rcv1 C11"), "signs"),
    "news20": Set(to_fit("news20"), "signs"),
    "hiva": Set(binary("hiva"), "signs"),
    **{
        f"reg_{name}": Set(regression(f"reg_{name}"), "numbers")
        for name in ("mv", "fried", "2dplanes", "pol", "cal_housing", "cpu_act", "abalone")
    },
    "dense numbers": Set(dense_numbers, "numbers"),
    "power law": Set(power_law, "numbers"),
    "noisy": Set(noisy, "numbers"),
    "poisson_bike_hour": Set(counts("poisson_bike_hour"), "counts"),
    "poisson_fremtpl2": Set(counts("poisson_fremtpl2"), "counts"),
    "satimage": Set(classes("satimage"), "classes"),
    "letter": Set(classes("letter", 15.0), "classes"),
    "usps": Set(classes("usps.train"), "classes"),
}
UNSEEN_SETS = {name: Set(unseen(name), one.labels) for name, one in UNSEEN.items()}


def read(name, folder: Path | None):
    """X and y as float64, or a message that explains why the set is skipped."""
    try:
        X, y = (SETS | UNSEEN_SETS)[name].read(folder)
    except (DataError, FileNotFoundError) as error:
        return f"{name} is left out: {error}"
    except TypeError:
        if folder is not None:
            raise
        return f"{name} is left out: it is read from a folder, so name one with --data-folder"
    X = sp.csr_array(X, dtype=np.float64) if sp.issparse(X) else np.ascontiguousarray(X, dtype=np.float64)
    return X, np.asarray(y, dtype=np.float64)
