"""The adapter of a peer, and the formats of X that peers prefer."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp


class Rung(NamedTuple):
    """A tolerance and an iteration limit: one setting of a peer, fitted from a cold start."""

    tol: float
    steps: int = 0
    """Iteration limit; 0 if the peer has none."""


def ladder(tols, steps=(0,)):
    """Settings from loose to tight: all tolerances with few iterations, then again with more."""
    return tuple(Rung(tol, most) for most in steps for tol in tols)


TOLS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
FIT = Callable[[Any, Any, Any, float, Rung], Any]
"""fit(data, y, task, lam, rung) -> w, or w and b, where lam weighs the regularizer against the mean loss."""


# ---------------------------------------------------------------- the peer's preferred format of X
def rows(X, y):
    """CSR matrix (not array) with 32-bit indices, or a C-ordered dense array."""
    if not sp.issparse(X):
        return X, y
    csr = sp.csr_matrix(X)
    csr.indices, csr.indptr = csr.indices.astype(np.int32), csr.indptr.astype(np.int32)
    return csr, y


def columns(X, y):
    """CSC matrix, or a Fortran-ordered dense array."""
    return (sp.csc_matrix(rows(X, y)[0]) if sp.issparse(X) else np.asfortranarray(X)), y


def all_numbers(X, y):
    """C-ordered dense array."""
    return (X.toarray() if sp.issparse(X) else X), y


def zeros_and_ones(X, y):
    """Like `rows`, with labels 0 and 1 instead of -1 and 1."""
    signs = set(np.unique(y)) == {-1.0, 1.0}
    return rows(X, y)[0], (y > 0).astype(float) if signs else y


def threads():
    """Number of threads per solver, as set by the command."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


@dataclass(frozen=True)
class Peer:
    """A solver of another package."""

    name: str
    package: str
    """Module that must be importable."""
    tasks: tuple[str, ...]
    fit: FIT = field(repr=False)
    ladder: tuple[Rung, ...] = ladder(TOLS)
    hold: Callable[[Any, Any], tuple[Any, Any]] = field(default=rows, repr=False)
    """Converts X and y to the preferred format, before the clock starts."""
    shrinks: bool = False
    """Whether the tolerance also controls shrinking, so that a smaller one takes another path."""
    intercept: bool = False
    """Whether it also has an intercept, penalized slightly or not at all."""
    without: bool = True
    """Whether it takes part where there is no intercept."""
    most_numbers: float = np.inf
    """Largest number of entries of X (rows times columns): beyond it, time or memory is prohibitive."""
    most_columns: float = np.inf
    most_rows: float = np.inf
    most_lam: float = np.inf
    """Largest lam: 1e-8 for peers without a penalty, for which the difference of J is negligible."""

    def installed(self):
        return find_spec(self.package) is not None

    def takes(self, task, X, lam):
        """Whether the peer applies to this problem."""
        n, p = X.shape
        fits = n * p <= self.most_numbers and p <= self.most_columns and n <= self.most_rows
        fits = fits and (self.intercept if task.intercept else self.without)
        return task.name in self.tasks and fits and lam <= self.most_lam


def weights(model, task=None):
    """Weights of a fitted scikit-learn-like model, with its intercepts if the task has them.

    For classes, one column per class.
    """
    if sp.issparse(model.coef_):
        model.coef_ = model.coef_.toarray()
    coef = np.asarray(model.coef_, dtype=float)
    coef = coef.T if task is not None and task.labels == "classes" else coef.ravel()
    if task is None or not task.intercept:
        return coef
    return coef, np.asarray(model.intercept_, dtype=float).ravel()
