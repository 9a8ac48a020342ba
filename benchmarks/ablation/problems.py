"""The fits: raw tables, sets of the other benchmarks and synthetic shapes, with every loss for their labels.

The lam, the tolerance and the intercept of a set are drawn by a hash of its name and the loss; those of a raw
table are the defaults of the estimators; a shape has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks.harness import data
from benchmarks.harness.tasks import TASKS, Task
from benchmarks.tables.fits import loss_and_labels, losses
from benchmarks.tables.sources import sample, tables
from benchmarks.tables.table import Table
from riskmin.data import load

LEFT_OUT = ("kdd99", "covtype", "poisson_fremtpl2", "dense", "ill", "dense numbers", "power law", "noisy")
"""Synthetic sets, and those that take longer to read than to fit."""
LAM, TOL = 1e-4, 1e-3
"""Defaults of the estimators."""
TOLS = (1e-3, 1e-6)
F1 = Task("f1", rm.FBeta(), None, "signs", lams=(1e-3, 1e-4))
WITHOUT_L1 = ("roc_area", "prbep", "f1", "squared", "logistic")
"""Losses of lists, and those that are tasks of their own with L1."""


@dataclass(frozen=True)
class Fit:
    """A problem: rows that are read when they are needed, the objective and the gap to prove."""

    set: str
    task: str
    """The name of the loss, and of the regularizer if it is not L2."""
    read: Callable[[], tuple[Any, Any]]
    loss: Any
    reg: Any
    strength: Callable[[Any, Any], float]
    intercept: bool
    tol: float
    n_lams: int = 1
    """Of a path, the number of lam."""

    @property
    def name(self) -> str:
        return f"{self.set}, {self.task}{', intercept' if self.intercept else ''}, {self.tol:g}"

    def is_for(self, task_names: tuple[str, ...], sparse: bool | None) -> bool:
        """Whether a switch is for this fit."""
        if self.task not in task_names or self.read()[0] is None:
            return False
        return sparse in (None, sp.issparse(self.read()[0]))

    def order(self, seed: int) -> bytes:
        """The place of the fit in a random order, which does not depend on the other fits."""
        return sha256(f"{seed} {self.name}".encode()).digest()


# ---------------------------------------------------------------- sets of the benchmarks
def of_sets(folders: tuple[Path, ...], seed: int) -> Iterator[Fit]:
    """One fit per set and task."""
    for name, one in (data.SETS | data.UNSEEN_SETS).items():
        if name in LEFT_OUT:
            continue
        for task in TASKS.values():
            if task.labels == one.labels or (task.labels == "numbers" and one.labels == "counts"):
                yield from _drawn(name, task, folders, seed)
        if one.labels == "signs":
            yield from _drawn(name, F1, folders, seed)


def _drawn(name: str, task: Any, folders: tuple[Path, ...], seed: int) -> Iterator[Fit]:
    draw = int.from_bytes(sha256(f"{seed} {name} {task.name}".encode()).digest()[:6], "big")
    draw, lam = divmod(draw, len(task.lams))
    draw, tol = divmod(draw, len(TOLS))
    intercept = _takes_intercept(task) and bool(draw % 2 or task.labels == "counts")
    yield from _fits(name, lambda: rows_of(name, folders), task, task.lams[lam], TOLS[tol], intercept)


def _takes_intercept(task: Any) -> bool:
    return bool(task.takes_intercept and task.name != "f1")


def _fits(name: str, read: Any, task: Any, lam: float, tol: float, intercept: bool) -> Iterator[Fit]:
    """A task on some rows, and the same loss with L1."""
    task = task.with_intercept() if intercept else task

    def strength(X: Any, y: Any) -> float:
        return float(task.strength(X, y, lam))

    label = "logistic l1" if task.name == "l1_logistic" else task.name
    common = (task.loss, task.reg, strength, intercept, tol)
    yield Fit(name, label, read, *common)
    if task.slope is None and task.name not in WITHOUT_L1:
        yield Fit(name, f"{task.name} l1", read, task.loss, rm.L1(), *common[2:])


@cache
def rows_of(name: str, folders: tuple[Path, ...]) -> tuple[Any, Any]:
    """X and y of the set in the first folder that holds it; none if no folder does."""
    for folder in folders:
        found = data.read(name, folder)
        if not isinstance(found, str):
            return found
    return None, None


# ---------------------------------------------------------------- raw tables
NAMES = {"quantile:level=0.9": "quantile", "squared": "squared"}


def of_tables(count: int, seed: int) -> Iterator[Fit]:
    """The fits of some raw tables, with L2 and with L1."""
    for table in sample(tables(), count, seed):
        for name in losses(table, lists=True):
            loss, y = loss_and_labels(table, name)
            yield from _of_table(table, name, loss, y)


def _of_table(table: Table, name: str, loss: Any, y: Any) -> Iterator[Fit]:
    if table.n_classes > 2:
        name = {"hinge": "multiclass_hinge", "logistic": "softmax"}[name]
    name, is_list = NAMES.get(name, name), not loss.separable
    rows = table.X, y
    for reg in (rm.L2(),) if is_list else (rm.L2(), rm.L1()):
        task = name if isinstance(reg, rm.L2) else {"squared": "lasso"}.get(name, f"{name} l1")
        yield Fit(table.name, task, lambda: rows, loss, reg, lambda X, y: LAM, not is_list, TOL)


# ---------------------------------------------------------------- shapes
def words(n: int, p: int, labels: str, k: int = 2, entries: int = 40) -> tuple[Any, Any]:
    """Synthetic text: columns by a power law, rows of norm one, scores of a few columns with noise."""
    rng = np.random.default_rng(n + p + k)
    columns = (p * rng.random((n, entries)) ** 3).astype(np.int32)
    rows = np.repeat(np.arange(n, dtype=np.int32), entries)
    X = sp.csr_array((np.abs(rng.standard_normal(n * entries)), (rows, columns.ravel())), shape=(n, p))
    X = sp.csr_array(sp.diags_array(1 / np.sqrt(X.multiply(X).sum(axis=1))) @ X)
    return X, _labels(X @ (rng.standard_normal((p, k)) * (rng.random((p, 1)) < 0.2)), labels, rng)


def correlated(n: int, p: int, labels: str, k: int = 2) -> tuple[Any, Any]:
    """Synthetic dense rows, whose columns share some factors."""
    rng = np.random.default_rng(n + p + k)
    X = rng.standard_normal((n, p)) + rng.standard_normal((n, 5)) @ rng.standard_normal((5, p))
    X = (X - X.mean(0)) / X.std(0)
    return X, _labels(X @ rng.standard_normal((p, k)) / np.sqrt(p), labels, rng)


def _labels(z: Any, labels: str, rng: Any) -> Any:
    z = z + 0.7 * z.std() * rng.standard_normal(z.shape)
    if labels == "classes":
        return np.unique(z.argmax(axis=1), return_inverse=True)[1].astype(float)
    return (
        np.where(z[:, 0] > np.quantile(z[:, 0], 0.7), 1.0, -1.0) if labels == "signs" else z[:, 0] / z.std()
    )


def news(folders: tuple[Path, ...], n: int) -> tuple[Any, Any]:
    """The first rows of the 20 newsgroups, with 20 classes."""
    for folder in folders:
        if (path := folder / "news20mc.train.svm.xz").exists():
            X, y, *_ = load(path)
            X = sp.csr_array(X, dtype=float)[:n]
            X = sp.csr_array(sp.diags_array(1 / np.sqrt(X.multiply(X).sum(axis=1))) @ X)
            return X, np.unique(y[:n], return_inverse=True)[1].astype(float)
    return None, None


def shapes(folders: tuple[Path, ...]) -> Iterator[tuple[str, str, Callable[[], tuple[Any, Any]]]]:
    """Sizes for which mechanisms were written and of which the sets have few; synthetic ones say so."""
    yield "news20, 20 classes, 1500 rows", "classes", lambda: news(folders, 1500)
    yield "news20, 20 classes, 5000 rows", "classes", lambda: news(folders, 5000)
    for n, p, k in ((3000, 2000, 5), (2000, 8000, 8), (1500, 300, 4), (600, 5000, 12)):
        yield f"synthetic words {n} x {p}, {k} classes", "classes", partial(words, n, p, "classes", k)
    for n, p, k in ((60, 1500, 4), (120, 600, 3), (400, 40, 8), (1500, 120, 10), (3000, 30, 5)):
        yield f"synthetic dense {n} x {p}, {k} classes", "classes", partial(correlated, n, p, "classes", k)
    for n, p in ((1000, 60), (4000, 100), (3000, 20000), (8000, 3000), (1500, 60000), (20000, 400)):
        yield f"synthetic words {n} x {p}", "signs", partial(words, n, p, "signs")
    for n, p in ((100, 3000), (300, 10), (200, 600), (1500, 1500), (5000, 40), (20000, 20)):
        yield f"synthetic dense {n} x {p}", "signs", partial(correlated, n, p, "signs")
    for n, p in ((100, 3000), (300, 10), (60, 500), (500, 2000), (5000, 40)):
        yield f"synthetic dense {n} x {p}, numbers", "numbers", partial(correlated, n, p, "numbers")
    for n, p in ((2000, 6000), (5000, 500)):
        yield f"synthetic words {n} x {p}, numbers", "numbers", partial(words, n, p, "numbers")


def of_shapes(folders: tuple[Path, ...]) -> Iterator[Fit]:
    """Each shape with all of its losses, lam and intercepts."""
    for name, labels, rows in shapes(folders):
        read = cache(rows)
        for task in (*TASKS.values(), F1):
            if task.labels != labels:
                continue
            for place, lam in enumerate(task.lams):
                for intercept in (False, True) if _takes_intercept(task) else (False,):
                    yield from _fits(f"{name}, {lam:g}", read, task, lam, TOLS[place % 2], intercept)


def of_paths() -> Iterator[Fit]:
    """Paths of squared errors: few and many lam on the shapes with numbers, correlated columns and words."""
    for n, p, n_lams in ((300, 10, 13), (300, 10, 100), (5000, 40, 13), (5000, 40, 100), (500, 200, 100)):
        read = cache(partial(correlated, n, p, "numbers"))
        for task, reg in (("lasso path", rm.L1()), ("elastic path", rm.Elastic()), ("ridge path", rm.L2())):
            for tol in TOLS:
                name = f"synthetic dense {n} x {p}, numbers, {n_lams} lam"
                yield Fit(name, task, read, rm.Squared(), reg, lambda X, y: LAM, True, tol, n_lams)
