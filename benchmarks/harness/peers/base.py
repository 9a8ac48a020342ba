"""What an adapter of a peer is."""

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
    """0 where the peer has no limit to set."""


def ladder(tols, steps=(0,)):
    """From loose to tight: the tolerances for few iterations, then again for more."""
    return tuple(Rung(tol, most) for most in steps for tol in tols)


TOLS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
FIT = Callable[[Any, Any, Any, float, Rung], Any]
"""fit(held, y, task, lam, rung) -> w, for the mean of the losses and lam as the task has them."""


# ---------------------------------------------------------------- X as a peer likes it best
def rows(X, y):
    """CSR of the old kind, with 32-bit indices, or dense rows."""
    if not sp.issparse(X):
        return X, y
    held = sp.csr_matrix(X)
    held.indices, held.indptr = held.indices.astype(np.int32), held.indptr.astype(np.int32)
    return held, y


def columns(X, y):
    """CSC, or dense columns."""
    return (sp.csc_matrix(rows(X, y)[0]) if sp.issparse(X) else np.asfortranarray(X)), y


def all_numbers(X, y):
    """Dense rows, zeros too."""
    return (X.toarray() if sp.issparse(X) else X), y


def zeros_and_ones(X, y):
    """Rows, with labels 0 and 1 for the two signs."""
    signs = set(np.unique(y)) == {-1.0, 1.0}
    return rows(X, y)[0], (y > 0).astype(float) if signs else y


def threads():
    """How many each solver may have, as the command set it."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


@dataclass(frozen=True)
class Peer:
    """A solver of another package."""

    name: str
    package: str
    """What is imported for it."""
    tasks: tuple[str, ...]
    fit: FIT = field(repr=False)
    ladder: tuple[Rung, ...] = ladder(TOLS)
    hold: Callable[[Any, Any], tuple[Any, Any]] = field(default=rows, repr=False)
    """X and y in the format that suits it best: made before its clock starts."""
    shrinks: bool = False
    """Whether its tolerance also says when rows come back that it left out: a smaller one is another fit."""
    most_numbers: float = np.inf
    """Larger X (rows times columns, zeros too) are not for it: it would take hours, or all memory."""
    most_columns: float = np.inf
    most_lam: float = np.inf
    """1e-8 for those that cannot penalize: J differs by next to nothing then."""

    def installed(self):
        return find_spec(self.package) is not None

    def takes(self, task, X, lam):
        """Whether it can do this."""
        n, p = X.shape
        fits = n * p <= self.most_numbers and p <= self.most_columns
        return task.name in self.tasks and fits and lam <= self.most_lam


def weights(model, task=None):
    """W of a model of scikit-learn's kind; for classes, a column each."""
    coef = np.asarray(model.coef_, dtype=float)
    return coef.T if task is not None and task.labels == "classes" else coef.ravel()
