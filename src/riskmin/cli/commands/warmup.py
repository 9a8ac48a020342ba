"""`riskmin warmup`: run small fits of every kind, so that all compiled functions are in the cache."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.output import pluralize, print_pairs
from riskmin.losses import LOSSES
from riskmin.report.progress import duration

WARMUP_LAM, WARMUP_MAX_ITER = 1e-4, 50
"""Regularization strength, so small that cutting planes alone solve no loss; iteration limit of each fit."""
FULLY_COVERED_LOSSES = {"hinge", "logistic", "squared", "quantile"}
"""Losses also fitted in single precision, to many columns, without an intercept, and with L1."""


def _tables() -> Iterator[tuple[Any, bool]]:
    """Yield matrices (dense or sparse, narrow or wide, both precisions), and whether they are for
    `FULLY_COVERED_LOSSES` only.
    """
    import scipy.sparse as sp

    X = np.random.default_rng(0).standard_normal((120, 3000))
    # about 16 % and 1 % of the entries are nonzero
    narrow: Any = sp.csr_array(np.where(X[:, :30] > 1, X[:, :30], 0.0))
    wide = sp.csr_array(np.where(X > 2.3, X, 0.0))
    yield from ((X[:, :6].copy(), False), (narrow, False), (wide, True))
    yield from ((X[:, :6].astype(np.float32), True), (narrow.astype(np.float32), True))


def _grades(X: Any) -> Any:
    """Labels 0, 1 and 2 that depend on the rows, so that weights are not zero."""
    z = np.asarray(X.sum(axis=1)).ravel()
    return np.searchsorted(np.quantile(z, [0.4, 0.7]), z)


def _linear(task: str, estimator: str, label: Callable[[Any], Any]) -> None:
    """Fit all losses of a task, so that every solver that the defaults may select is compiled."""
    import riskmin

    model = getattr(riskmin, estimator)
    for X, restricted in _tables():
        y = label(_grades(X))
        for name, loss in LOSSES.items():
            if loss.task != task or (restricted and name not in FULLY_COVERED_LOSSES):
                continue
            # multivariate losses take one column per output
            target = np.column_stack([y, y]) if name.startswith("multivariate") else y
            model(name, alpha=WARMUP_LAM, max_iter=WARMUP_MAX_ITER).fit(X, target).predict(X)
            if name in FULLY_COVERED_LOSSES:
                model(name, alpha=WARMUP_LAM, fit_intercept=False, max_iter=WARMUP_MAX_ITER).fit(X, target)
                model(name, alpha=1e-2, regularizer="l1").fit(X, target)


def _classification() -> None:
    _linear("classification", "LinearClassifier", lambda grades: grades > 0)


def _multiclass() -> None:
    from riskmin import LinearClassifier

    for X, restricted in _tables():
        for loss in ("hinge", "logistic") if restricted else ("hinge", "logistic", "squared_hinge"):
            LinearClassifier(loss, alpha=1e-2).fit(X, _grades(X)).predict(X)
            LinearClassifier(loss, alpha=1e-2, fit_intercept=False).fit(X, _grades(X))


def _regression() -> None:
    _linear("regression", "LinearRegressor", lambda grades: grades + np.linspace(0.1, 1, len(grades)))


def _novelty() -> None:
    from riskmin import NoveltyDetector

    for X, _ in _tables():
        NoveltyDetector().fit(X).predict(X)


def _ordinal() -> None:
    from riskmin import OrdinalClassifier

    for X, _ in _tables():
        OrdinalClassifier(alpha=WARMUP_LAM, max_iter=WARMUP_MAX_ITER).fit(X, _grades(X)).predict(X)


def _ranking() -> None:
    from riskmin import LinearRanker

    for X, restricted in _tables():
        for name, loss in LOSSES.items():
            if loss.task == "ranking" and not (restricted and name != "pairwise_hinge"):
                ranker = LinearRanker(name, alpha=1e-2, max_iter=WARMUP_MAX_ITER)
                ranker.fit(X, _grades(X), qid=np.arange(X.shape[0]) // 8).predict(X)


def _tagging() -> None:
    from riskmin import ChainTagger

    X = [[{"word": str((i + t) % 7)} for t in range(1 + i % 4)] for i in range(12)]
    y = [["ABC"[(i + t) % 3] for t in range(1 + i % 4)] for i in range(12)]
    for loss in ("crf", "max_margin"):
        ChainTagger(loss, alpha=1e-1).fit(X, y).predict(X)


def _kernels() -> None:
    from riskmin import KernelClassifier, KernelRegressor

    for X, restricted in _tables():
        if not restricted:
            KernelClassifier(alpha=1e-2).fit(X, _grades(X) > 0).predict(X)
            KernelRegressor(alpha=1e-2).fit(X, _grades(X)).predict(X)


def _files() -> None:
    from riskmin.data import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.svm"
        path.write_text("1 qid:1 1:0.5 3:2\n-1 qid:1 2:1e-3\n", encoding="utf-8")
        load(path)


WARMUPS: dict[str, Callable[[], None]] = {
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
    type=click.Choice(list(WARMUPS)),
    help="Task to compile for; may be repeated (default: all tasks).",
)
def warmup(names: tuple[str, ...]) -> None:
    """Compile all functions that fits need and store them in the cache.

    Without this, the first fit of each kind compiles its functions, which takes a second or more. The cache
    is in NUMBA_CACHE_DIR if set, else next to the package or in the home directory; once it is filled, the
    folder need not be writable.
    """
    from riskmin._numba.compile_cache import KernelCache, cache_folder
    from riskmin.estimators import import_sklearn

    import_sklearn()  # kernel machines need it
    cache, start, lines = cache_folder(), time.perf_counter(), []
    if cache is None:
        raise ValueError(
            "there is no folder to store compiled code in: set NUMBA_CACHE_DIR to a writable one"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(stopped with status|learned nothing)")  # as they may
        for name in names or WARMUPS:
            before, n_before = time.perf_counter(), KernelCache.n_compiled
            WARMUPS[name]()
            compiled = pluralize(KernelCache.n_compiled - n_before, "function")
            lines.append((name, f"{compiled} compiled in {duration(time.perf_counter() - before)}"))
    print_pairs(lines)
    click.echo(f"Total time {duration(time.perf_counter() - start)}; the compiled code is in {cache}")
