"""The fits: raw tables and the sets of the other benchmarks, each with every loss that its labels allow.

The lam, the tolerance and the intercept of a set are drawn by a hash of its name and the loss; those of a raw
table are the defaults of the estimators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import scipy.sparse as sp

import riskmin as rm
from benchmarks.harness import data
from benchmarks.harness.tasks import TASKS, Task
from benchmarks.tables.fits import loss_and_labels, losses
from benchmarks.tables.sources import sample, tables
from benchmarks.tables.table import Table

LEFT_OUT = ("kdd99", "covtype", "poisson_fremtpl2", "dense", "ill", "dense numbers", "power law", "noisy")
"""Synthetic sets, and those that take longer to read than to fit."""
LAM, TOL = 1e-4, 1e-3
"""Defaults of the estimators."""
TOLS = (1e-3, 1e-6)
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
            yield from _drawn(name, Task("f1", rm.FBeta(), None, "signs", lams=(1e-3, 1e-4)), folders, seed)


def _drawn(name: str, task: Any, folders: tuple[Path, ...], seed: int) -> Iterator[Fit]:
    draw = int.from_bytes(sha256(f"{seed} {name} {task.name}".encode()).digest()[:6], "big")
    draw, lam = divmod(draw, len(task.lams))
    draw, tol = divmod(draw, len(TOLS))
    takes_intercept = task.takes_intercept and task.name != "f1"
    intercept = takes_intercept and bool(draw % 2 or task.labels == "counts")
    task = task.with_intercept() if intercept else task

    def read() -> tuple[Any, Any]:
        return rows_of(name, folders)

    def strength(X: Any, y: Any) -> float:
        return float(task.strength(X, y, task.lams[lam]))

    label = "logistic l1" if task.name == "l1_logistic" else task.name
    common = (task.loss, task.reg, strength, intercept, TOLS[tol])
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
