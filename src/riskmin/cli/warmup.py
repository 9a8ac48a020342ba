"""`riskmin warmup`: small fits of every kind, so that all that they need is compiled, and kept."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.common import count, show
from riskmin.losses import LOSSES
from riskmin.progress import duration

SMALL, MOST = 1e-4, 50
"""By a larger strength some losses would be solved by cuts alone; and a fit need not end."""
PLAIN = {"hinge", "logistic", "squared", "quantile"}
"""The losses that are also fitted to single precision, to many columns, without an intercept, and with L1."""


def _tables() -> Iterator[tuple[Any, bool]]:
    """Dense and sparse rows, few columns and many, in both precisions; whether for plain losses alone."""
    import scipy.sparse as sp

    X = np.random.default_rng(0).standard_normal((120, 3000))
    few: Any = sp.csr_array(np.where(X[:, :30] > 1, X[:, :30], 0.0))
    wide = sp.csr_array(np.where(X > 2.3, X, 0.0))
    yield from ((X[:, :6].copy(), False), (few, False), (wide, True))
    yield from ((X[:, :6].astype(np.float32), True), (few.astype(np.float32), True))


def _grades(X: Any) -> Any:
    """Numbers 0, 1 and 2, so that there is something to learn."""
    z = np.asarray(X.sum(axis=1)).ravel()
    return np.searchsorted(np.quantile(z, [0.4, 0.7]), z)


def _linear(task: str, estimator: str, label: Callable[[Any], Any]) -> None:
    """All losses of a task, with all that their defaults may pick."""
    import riskmin

    model = getattr(riskmin, estimator)
    for X, only_plain in _tables():
        y = label(_grades(X))
        for name, loss in LOSSES.items():
            if loss.task != task or (only_plain and name not in PLAIN):
                continue
            target = np.column_stack([y, y]) if name.startswith("multivariate") else y
            model(name, alpha=SMALL, max_iter=MOST).fit(X, target).predict(X)
            if name in PLAIN:
                model(name, alpha=SMALL, fit_intercept=False, max_iter=MOST).fit(X, target)
                model(name, alpha=1e-2, regularizer="l1").fit(X, target)


def _classification() -> None:
    _linear("classification", "LinearClassifier", lambda grades: grades > 0)


def _multiclass() -> None:
    from riskmin import LinearClassifier

    for X, only_plain in _tables():
        for loss in ("hinge", "logistic") if only_plain else ("hinge", "logistic", "squared_hinge"):
            LinearClassifier(loss, alpha=1e-2).fit(X, _grades(X)).predict(X)
            LinearClassifier(loss, alpha=1e-2, fit_intercept=False).fit(X, _grades(X))


def _regression() -> None:
    _linear("regression", "LinearRegressor", lambda grades: grades + np.linspace(0, 1, len(grades)))


def _novelty() -> None:
    from riskmin import NoveltyDetector

    for X, _ in _tables():
        NoveltyDetector().fit(X).predict(X)


def _ordinal() -> None:
    from riskmin import OrdinalClassifier

    for X, _ in _tables():
        OrdinalClassifier(alpha=SMALL, max_iter=MOST).fit(X, _grades(X)).predict(X)


def _ranking() -> None:
    from riskmin import LinearRanker

    for X, only_plain in _tables():
        for name, loss in LOSSES.items():
            if loss.task == "ranking" and not (only_plain and name != "pairwise_hinge"):
                ranker = LinearRanker(name, alpha=1e-2, max_iter=MOST)
                ranker.fit(X, _grades(X), qid=np.arange(X.shape[0]) // 8).predict(X)


def _tagging() -> None:
    from riskmin import ChainTagger

    X = [[{"word": str((i + t) % 7)} for t in range(1 + i % 4)] for i in range(12)]
    y = [["ABC"[(i + t) % 3] for t in range(1 + i % 4)] for i in range(12)]
    for loss in ("crf", "max_margin"):
        ChainTagger(loss, alpha=1e-1).fit(X, y).predict(X)


def _kernels() -> None:
    from riskmin import KernelClassifier, KernelRegressor

    for X, only_plain in _tables():
        if not only_plain:
            KernelClassifier(alpha=1e-2).fit(X, _grades(X) > 0).predict(X)
            KernelRegressor(alpha=1e-2).fit(X, _grades(X)).predict(X)


def _files() -> None:
    from riskmin.data import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.svm"
        path.write_text("1 qid:1 1:0.5 3:2\n-1 qid:1 2:1e-3\n", encoding="utf-8")
        load(path)


TASKS: dict[str, Callable[[], None]] = {
    "classification": _classification,
    "multiclass": _multiclass,
    "regression": _regression,
    "novelty": _novelty,
    "ordinal": _ordinal,
    "ranking": _ranking,
    "tagging": _tagging,
    "kernels": _kernels,
    "files": _files,
}


@click.command()
@click.option(
    "--task",
    "names",
    multiple=True,
    type=click.Choice(list(TASKS)),
    help="What to compile for; may be given several times (default: everything).",
)
def warmup(names: tuple[str, ...]) -> None:
    """Compile what fits need, and keep it.

    Otherwise each kind of fit compiles what it needs when it is run for the first time, which takes a second
    or some. Code is kept in NUMBA_CACHE_DIR if that is set, else beside the package or in your home; once it
    is there, the folder need not be writable any more.
    """
    from riskmin.kernels.compiled import Kept, folder

    where, start, lines = folder(), time.perf_counter(), []
    if where is None:
        raise ValueError("there is no folder to keep compiled code in: set NUMBA_CACHE_DIR to a writable one")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*stopped with status")  # it need not converge
        for name in names or TASKS:
            before, made = time.perf_counter(), Kept.made
            TASKS[name]()
            many = count(Kept.made - made, "function")
            lines.append((name, f"{many} compiled in {duration(time.perf_counter() - before)}"))
    show(lines)
    click.echo(f"All of it took {duration(time.perf_counter() - start)}; the code is in {where}")
