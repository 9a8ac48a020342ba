"""The rows that estimators are given, here or elsewhere: checked, picked, and scored where they are.

Rows elsewhere are a `Spread` or a Dask collection. Their labels, weights and queries are brought here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from sklearn.utils.validation import check_consistent_length, validate_data

from riskmin import shards
from riskmin.arrays import refuse_masks_and_dates
from riskmin.executors import Serial, Threads
from riskmin.executors.dask import DaskExecutor, computed, is_dask
from riskmin.finite import check_finite
from riskmin.matrices import as_matrix
from riskmin.scorers import Linear, Multiclass
from riskmin.sparse import check_size, is_sparse, sound
from riskmin.spread import Part, Source, Spread, Unread
from riskmin.types import Executor, NDArray

FORMATS: dict[str, Any] = {
    "accept_sparse": ["csr", "csc"],
    "dtype": [np.float64, np.float32],
    "order": None,
    "ensure_all_finite": False,  # the risk looks for NaN itself, and says where one is
}
"""What X may be without a copy being made of it."""


# ---------------------------------------------------------------- what is given
def here(thing: Any) -> Any:
    """Labels, weights or queries, computed where they are a Dask collection: they are 8 bytes a row."""
    return computed(thing) if is_dask(thing) else thing


def is_elsewhere(X: Any) -> bool:
    """Whether only the parts of X are known here."""
    return isinstance(X, Spread) or is_dask(X)


def checked(model: Any, X: Any, y: Any = "no_validation", *, reset: bool = True, **checks: Any) -> Any:
    """X, or X and y, as `validate_data` has them; of rows that are elsewhere, what can be known of them here.

    That are their columns and how many they are. The numbers are looked at where they are read.
    """
    if not is_elsewhere(X):
        return validate_data(model, readable(X, "X"), readable(y, "y"), reset=reset, **checks, **FORMATS)
    readable(y, "y")
    least = checks.pop("ensure_min_samples", 1)
    labels = y if isinstance(y, str) else validate_data(model, "no_validation", here(y), **checks)
    rows = _spread(X)
    validate_data(model, _named(X, rows), skip_check_array=True, reset=reset)
    if len(rows) < least:
        raise ValueError(f"X has {len(rows)} sample(s), but a minimum of {least} is required: add rows")
    if isinstance(y, str):
        return rows
    check_consistent_length(rows, labels)
    return rows, labels


def readable(thing: Any, name: str) -> Any:
    """The same, if scikit-learn reads it as what it is.

    It would drop the mask of an array, take dates for nanoseconds, and have SciPy convert sparse matrices
    without a look at their indices.
    """
    if isinstance(thing, str):
        return thing  # "no_validation"
    if is_sparse(thing) and len(thing.shape) == 2:
        check_size(thing.shape)
        return sound(thing)
    refuse_masks_and_dates(thing, name)
    return thing


def _spread(X: Any) -> Spread:
    return X if isinstance(X, Spread) else DaskExecutor().spread(X)


def _named(X: Any, rows: Spread) -> Any:
    """What has the names of the columns, where they are known: the head of a frame, or of its first part."""
    heads = (getattr(X, "_meta", None), getattr(rows.parts[0], "X", None))
    return next((head for head in heads if hasattr(head, "columns")), rows)


class LabelsHere:
    """An estimator whose `score` takes labels and weights that are Dask collections."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The measure of scikit-learn for estimators of its kind: the accuracy, or R^2.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.

        Returns
        -------
        float
            1 for perfect predictions.
        """
        return float(super().score(X, here(y), here(sample_weight)))  # type: ignore[misc]


def checked_here(model: Any, X: Any, y: Any = "no_validation", **checks: Any) -> Any:
    """X, or X and y, as `validate_data` has them, for estimators that need rows in pairs or in any order."""
    if isinstance(X, Spread):
        raise ValueError(
            f"{type(model).__name__} needs all rows here: give X.whole() if they fit into memory, or use a "
            "linear estimator such as LinearClassifier, which takes rows that are elsewhere"
        )
    return validate_data(model, readable(X, "X"), readable(y, "y"), **checks)


def executor_for(model: Any, X: Any) -> Any:
    """Who computes: the executor that comes with the rows, else threads by `n_jobs`."""
    own = X.executor if isinstance(X, Spread) else None
    if own is not None:
        return own
    workers = effective_n_jobs(model.n_jobs)
    return Serial() if workers == 1 else Threads(n_workers=workers)


# ---------------------------------------------------------------- some of the rows
def picked(X: Any, mask: NDArray) -> Any:
    """The rows where the mask is true."""
    if not isinstance(X, Spread):
        return X[mask]
    parts = [
        part if mask[i:j].all() else _some(part, np.flatnonzero(mask[i:j]))
        for part, (i, j) in zip(X.parts, pairwise(X.ends), strict=True)
        if mask[i:j].any()
    ]
    source = None if X.source is None else PickedSource(X.source, np.flatnonzero(mask))
    return Spread(parts, X.executor, source)


def _some(part: Any, rows: NDArray) -> Part:
    """Some rows of a part; one that workers keep stays of its kind, by which their executor knows it."""
    found = Picked(part, rows)
    if not hasattr(part, "pick"):
        return found
    kept: Part = replace(part, shape=found.shape, numbers=found.numbers, pick=Pick(rows, part.pick))
    return kept


@dataclass(frozen=True)
class Pick:
    """Picks rows of what was kept, after what was done to it before."""

    rows: NDArray
    before: Callable[[Any], Any] | None = None

    def __call__(self, X: Any) -> Any:
        return taken(X if self.before is None else self.before(X), self.rows)


@dataclass(frozen=True)
class Picked:
    """Some rows of a part."""

    part: Part
    rows: NDArray

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.part.shape[1]

    @property
    def numbers(self) -> int:
        """About: those of all rows, by their share."""
        return round(self.part.numbers * len(self.rows) / max(self.part.shape[0], 1))

    @property
    def sparse(self) -> bool:
        return self.part.sparse

    @property
    def rank(self) -> int:
        """Where it is, if it is in the memory of one of several programs."""
        found: int = self.part.rank  # type: ignore[attr-defined]
        return found

    def read(self) -> Any:
        return taken(self.part.read(), self.rows)


@dataclass(frozen=True)
class PickedSource:
    """Some rows of a source, at these places."""

    source: Source
    rows: NDArray

    def part(self, start: int, stop: int) -> Part:
        first, last = int(self.rows[start]), int(self.rows[stop - 1])
        return Picked(self.source.part(first, last + 1), self.rows[start:stop] - first)

    def whole(self) -> Any:
        return taken(self.source.whole(), self.rows)


def taken(X: Any, rows: NDArray) -> Any:
    """Rows of an array, a sparse matrix or a frame."""
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


# ---------------------------------------------------------------- scores
@dataclass(frozen=True)
class Held:
    """Rows that an executor holds, of which scores alone come here."""

    executor: Executor

    def scores(self, w: NDArray) -> NDArray:
        """X w: a number a row, or a column for each of w's."""
        scorer: Any = Linear() if w.ndim == 1 else Multiclass(w.shape[1])
        return np.concatenate(self.executor.map(shards.scores, scorer, np.ravel(w)))


def held(X: Spread) -> Any:
    """The rows read by their executor, for as long as what is returned is kept; or here, if they are here."""
    run, none = X.executor, np.zeros(0)
    if run is None or run in (Serial, Threads) or isinstance(run, (Serial, Threads)):
        return X.whole()
    return Held(run([Unread(part, none, none) for part in X.parts]))


def products(X: Any, w: NDArray) -> NDArray:
    """The scores X w of rows that were checked, in float64 and without a copy of X."""
    if isinstance(X, Spread):
        X = held(X)
    if isinstance(X, Held):
        return X.scores(w)
    matrix = as_matrix(X)
    check_finite(matrix)  # the scores would not tell: columns of weight zero may be left out of them
    found: NDArray = matrix.scores(w, 0, matrix.shape[0])
    return found


def scored(X: Any, w: NDArray, b: Any, what: str = "row") -> NDArray:
    """The scores X w + b of rows that were checked, if all of them are finite."""
    with np.errstate(over="ignore", invalid="ignore"):  # as is said below
        z: NDArray = products(X, w) + b
    if not np.isfinite(z).all():
        bad = int(np.argwhere(~np.isfinite(z))[0, 0])
        raise ValueError(f"X holds numbers too large to score ({what} {bad}): scale the features")
    return z
