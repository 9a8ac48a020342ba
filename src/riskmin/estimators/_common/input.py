"""Validation, selection and scoring of the rows given to estimators, local or remote.

Remote rows are a `PartitionedMatrix` or a Dask collection. They stay on their workers; only labels, weights
and query ids are brought to this process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.finite import check_finite
from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.namespace import (
    as_array_like,
    as_table,
    check_no_masks_or_dates,
    first_text_column,
    is_sparse,
    namespace,
    to_numpy,
)
from riskmin.arrays.partitioned import LazyShard, Partition, PartitionedMatrix, RowSource, is_partitioned
from riskmin.arrays.sparse_checks import check_size, validated_sparse
from riskmin.core import NDArray
from riskmin.estimators.gpu_rows import check_gpu_rows, is_gpu_rows, on_host, stays_on_gpu
from riskmin.estimators.scikit_learn import validate_data
from riskmin.executors import Executor, Serial, Threads, as_backend
from riskmin.executors.dask.collections import is_dask, to_local_array
from riskmin.linear_maps.linear import MultiOutput, SingleOutput
from riskmin.problem import shard_ops

VALIDATION_OPTIONS: dict[str, Any] = {
    "accept_sparse": ["csr", "csc"],
    "dtype": [np.float64, np.float32],
    "order": None,
    "ensure_all_finite": False,  # the risk checks for NaN itself and reports the position
}
"""Arguments of `validate_data` under which X is not copied."""


class EncodedLabels(NamedTuple):
    """Labels of training rows as the loss takes them."""

    labels: Any
    weight: NDArray | None
    """The row weights times class weights; None for equal weights."""
    known: Any
    """What was learned about labels: `Labels`."""
    loss: Any
    """The loss in the form for these labels, such as the multiclass form of a binary loss."""
    offset: NDArray | None = None
    """Numbers that are added to the scores of the rows; None for zeros."""


# ---------------------------------------------------------------- validation
NO_LABELS = "no_validation"
"""What `validate_data` of scikit-learn takes for rows without labels, or labels without rows."""


def compute_if_dask(array: Any) -> Any:
    """Compute labels, weights or query ids (8 bytes per row) if they are a Dask collection."""
    array = on_host(array)
    return to_local_array(array) if not _is_array(array) and is_dask(array) else array


def _is_remote(X: Any) -> bool:
    """Whether X is partitioned, so that its entries need not be in this process."""
    return is_partitioned(X) or (not _is_array(X) and is_dask(X))


def _is_array(data: Any) -> bool:
    """Whether the data are an array or a sparse matrix in this process."""
    return data is None or isinstance(data, np.ndarray) or is_sparse(data)


def validate_rows(model: Any, X: Any, y: Any = NO_LABELS, *, reset: bool = True, **checks: Any) -> Any:
    """Validate X, or X and y, with `validate_data`.

    Of remote rows only the column names and the shape are checked; entries are checked where they are read.
    """
    if is_gpu_rows(X):
        rows = check_gpu_rows(model, X, reset=reset, min_rows=checks.pop("ensure_min_samples", 1))
        if y is NO_LABELS:
            return rows
        labels = y
        if not (model._label_kind.on_device and stays_on_gpu(y, checks.get("multi_output", False))):
            labels = validate_data(model, NO_LABELS, check_readable(on_host(y), "y"), **checks)
        if len(labels) != X.shape[0]:
            raise ValueError(
                f"y has {len(labels)} labels, but X has {X.shape[0]} rows: give one label per row"
            )
        return rows, labels
    if not _is_remote(X):
        y = on_host(y)
        return _validated(
            model, check_readable(X, "X"), check_readable(y, "y"), reset=reset, **checks, **VALIDATION_OPTIONS
        )
    # remote rows: compute the labels, but do not read entries of X
    check_readable(y, "y")
    min_rows = checks.pop("ensure_min_samples", 1)
    labels = y if y is NO_LABELS else validate_data(model, NO_LABELS, compute_if_dask(y), **checks)
    rows = _partitioned(X)
    validate_data(model, _with_column_names(X, rows), skip_check_array=True, reset=reset)
    if len(rows) < min_rows:
        raise ValueError(f"X has {len(rows)} sample(s), but a minimum of {min_rows} is required: add rows")
    if y is NO_LABELS:
        return rows
    from sklearn.utils.validation import check_consistent_length

    check_consistent_length(rows, labels)
    return rows, labels


def _validated(model: Any, X: Any, y: Any, **options: Any) -> Any:
    """Validate local rows; an error about text or NaN names its column and the remedy."""
    try:
        return validate_data(model, X, y, **options)
    except ValueError as error:
        if "Input X contains" in str(error):
            check_finite(as_matrix(X if is_sparse(X) else np.asarray(X, dtype=np.float64)))
        # the words of NumPy, and of pandas for frames with columns of its own types
        about_text = any(words in str(error) for words in ("could not convert string", "Cannot cast"))
        found = first_text_column(X) if about_text else None
        if found is None:
            raise
        column, text = found
        raise ValueError(
            f"column {column!r} of X holds text ({text!r}), which is no number: encode it before the model, "
            "for example by scikit-learn's make_column_transformer((OneHotEncoder(handle_unknown='ignore'), "
            f"[{column!r}]), remainder='passthrough'), or drop it"
        ) from error


def check_readable(data: Any, name: str) -> Any:
    """Return the data, as a frame or table that scikit-learn reads; raise if it would misread them.

    It would drop the mask of a masked array, read dates as nanoseconds, and let SciPy convert sparse matrices
    without checking their indices.
    """
    if data is NO_LABELS:
        return data
    data = as_table(data)
    check_no_masks_or_dates(data, name)
    # compiled loops follow the indices without bounds checks
    if is_sparse(data) and len(data.shape) == 2:
        check_size(data.shape)
        return validated_sparse(data)
    return data


def _partitioned(X: Any) -> PartitionedMatrix:
    if is_partitioned(X):
        return X
    from riskmin.executors.dask.executor import DaskExecutor

    return DaskExecutor().partition(X)


def _with_column_names(X: Any, rows: PartitionedMatrix) -> Any:
    """Return an object with the column names: metadata of a frame or the first partition; else `rows`."""
    # `_meta` is the empty frame that describes a Dask dataframe
    candidates = (getattr(X, "_meta", None), getattr(rows.parts[0], "X", None))
    return next((frame for frame in candidates if hasattr(frame, "columns")), rows)


class DaskLabelsMixin:
    """Mixin whose `score` accepts labels and weights that are Dask collections."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return scikit-learn's default score of the estimator: the accuracy, or R^2.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.

        Returns
        -------
        float
            1 for perfect predictions.
        """
        return self._score_of(self.predict(X), y, sample_weight)  # type: ignore[attr-defined]

    def _score_of(self, predicted: Any, y: Any, sample_weight: Any) -> float:
        """Return the score of predictions."""
        from sklearn.base import is_classifier
        from sklearn.metrics import accuracy_score, r2_score

        measure = accuracy_score if is_classifier(self) else r2_score
        y, sample_weight = compute_if_dask(y), compute_if_dask(sample_weight)
        return float(measure(y, on_host(predicted), sample_weight=sample_weight))


def validate_local_rows(model: Any, X: Any, y: Any = NO_LABELS, **checks: Any) -> Any:
    """Validate X, or X and y, for estimators that need all rows in this process."""
    if is_partitioned(X):
        raise ValueError(
            f"{type(model).__name__} needs all rows in this process: give X.whole() if they fit into memory, "
            "or use a linear estimator such as LinearClassifier, which takes remote rows"
        )
    return _validated(model, check_readable(X, "X"), check_readable(y, "y"), **checks)


def executor_for(model: Any, X: Any) -> Any:
    """Return the executor of partitioned rows, else `Serial` or `Threads` according to `n_jobs`."""
    # n_jobs has no effect on rows that come with an executor
    executor = X.executor if is_partitioned(X) else None
    if executor is not None:
        return executor
    # None is a setting of joblib, which has it only once it is imported
    if model.n_jobs == 1 or (model.n_jobs is None and "joblib" not in sys.modules):
        return Serial()
    from joblib import effective_n_jobs

    workers = effective_n_jobs(model.n_jobs)
    return Serial() if workers == 1 else Threads(n_workers=workers)


# ---------------------------------------------------------------- selection of rows
def select_rows(X: Any, mask: NDArray) -> Any:
    """Return the rows for which the mask is true; empty partitions are dropped."""
    if not is_partitioned(X):
        X = np.asarray(X) if isinstance(X, (list, tuple)) else as_table(X)
        # a mask selects columns of polars, and nothing of Arrow
        return X.filter(mask) if hasattr(X, "filter") and not hasattr(X, "iloc") else X[mask]
    parts = [
        part if mask[i:j].all() else _subset(part, np.flatnonzero(mask[i:j]))
        for part, (i, j) in zip(X.parts, pairwise(X.ends), strict=True)
        if mask[i:j].any()
    ]
    # a source can be split at any row, so the mask is applied to it as a whole
    source = None if X.source is None else RowSubsetSource(X.source, np.flatnonzero(mask))
    return PartitionedMatrix(parts, X.executor, source)


def _subset(part: Any, rows: NDArray) -> Partition:
    """Return some rows of a partition; one held by workers keeps its type, which its executor recognizes."""
    subset = RowSubset(part, rows)
    # only partitions held by workers have `pick`
    if not hasattr(part, "pick"):
        return subset
    remote: Partition = replace(part, shape=subset.shape, nnz=subset.nnz, pick=SelectRows(rows, part.pick))
    return remote


@dataclass(frozen=True)
class SelectRows:
    """Selects rows of a stored partition, after a previous selection, if any."""

    rows: NDArray
    previous: Callable[[Any], Any] | None = None

    def __call__(self, X: Any) -> Any:
        return _take_rows(X if self.previous is None else self.previous(X), self.rows)


@dataclass(frozen=True)
class RowSubset:
    """Some rows of a partition (implements `Partition`)."""

    part: Partition
    rows: NDArray

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.part.shape[1]

    @property
    def nnz(self) -> int:
        """Estimate of the stored entries: those of the partition times the fraction of its rows."""
        # an estimate: counting would read the rows
        return round(self.part.nnz * len(self.rows) / max(self.part.shape[0], 1))

    @property
    def sparse(self) -> bool:
        return self.part.sparse

    @property
    def rank(self) -> int:
        """MPI rank that holds the partition in memory."""
        rank: int = self.part.rank  # type: ignore[attr-defined]
        return rank

    def read(self) -> Any:
        return _take_rows(self.part.read(), self.rows)


@dataclass(frozen=True)
class RowSubsetSource:
    """The rows of a `RowSource` at the given sorted positions."""

    source: RowSource
    rows: NDArray

    def part(self, start: int, stop: int) -> Partition:
        # the smallest contiguous range of the source that holds these rows
        first, last = int(self.rows[start]), int(self.rows[stop - 1])
        return RowSubset(self.source.part(first, last + 1), self.rows[start:stop] - first)

    def whole(self) -> Any:
        return _take_rows(self.source.whole(), self.rows)


def _take_rows(X: Any, rows: NDArray) -> Any:
    """Return rows of an array, a sparse matrix or a data frame, by position."""
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


# ---------------------------------------------------------------- scores
@dataclass(frozen=True)
class PlacedRows:
    """Rows held by an executor; only their scores are sent to this process."""

    executor: Executor

    def scores(self, w: NDArray) -> NDArray:
        """Return X w: one number per row, or one column per column of w."""
        # w is (p,), or (p, k) for k outputs
        linear_map: Any = SingleOutput() if w.ndim == 1 else MultiOutput(w.shape[1])
        return np.concatenate(self.executor.map(shard_ops.scores, linear_map, np.ravel(w)))


def _place(X: PartitionedMatrix) -> Any:
    """Load the rows into their executor for the lifetime of the returned object; return local rows whole."""
    # scores need neither labels nor weights
    backend, empty = as_backend(X.executor or Serial), np.zeros(0)
    if backend.is_local:
        return X.whole()
    return PlacedRows(backend.place([LazyShard(part, empty, empty) for part in X.parts]))


def linear_scores(X: Any, w: NDArray) -> NDArray:
    """Return the scores X w of validated rows, in float64 and without copying X."""
    if is_partitioned(X):
        X = _place(X)
    if type(X) is PlacedRows:
        return X.scores(w)
    matrix, w = as_matrix(X), np.asarray(w, dtype=np.float64)
    # NaN may be missing from the scores, since products may skip columns of weight zero
    check_finite(matrix)
    z: NDArray = matrix.scores(w, 0, matrix.shape[0])
    return z


def affine_scores(X: Any, w: NDArray, b: Any, row_name: str = "row") -> NDArray:
    """Return the scores X w + b of validated rows; raise if one is not finite.

    `row_name` is the word for a row in the message.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is reported below
        z: NDArray = linear_scores(X, w)
        z = z + (b if np.ndim(b) == 0 else as_array_like(b, z))
    return finite_scores(z, row_name)


def finite_scores(z: NDArray, row_name: str) -> NDArray:
    """Return the scores themselves; raise, naming the first row, if one is not finite."""
    xp = namespace(z)
    if not bool(xp.all(xp.isfinite(z))):
        index = int(np.argwhere(~np.isfinite(to_numpy(z)))[0, 0])
        raise ValueError(f"X holds numbers too large to score ({row_name} {index}): scale the features")
    return z


# ---------------------------------------------------------------- equal rows
MERGE_MAX_ROWS, MERGE_MAX_ENTRIES = 1000, 2**16
"""Larger data are left as they are: finding equal rows takes time, and fits agree within tol in any case."""


class WeightedRows(NamedTuple):
    """The rows of a fit."""

    X: Any
    rows: EncodedLabels
    row_weight: NDArray | None
    """The weights without class weights."""


def can_merge_rows(X: Any) -> bool:
    """Return whether X has few rows and columns."""
    n, p = X.shape
    return bool(n <= MERGE_MAX_ROWS and n * p <= MERGE_MAX_ENTRIES)


def merge_equal_rows(X: Any, rows: EncodedLabels, row_weight: NDArray | None) -> WeightedRows:
    """Return few rows of weights > 0 in an order of their own, equal ones as one with the sum of weights.

    A row of weight 2 and two equal rows are the same problem, and so are rows in another order: in this form
    they are the same arrays, and their fits are equal, also where tol leaves room for different weights. Rows
    without weights that are all different are returned as they are, as are large data.

    Examples
    --------
    >>> X, y = np.array([[2.0], [1.0], [2.0]]), np.array([1.0, -1.0, 1.0])
    >>> merged = merge_equal_rows(X, EncodedLabels(y, None, None, "hinge"), None)
    >>> merged.X.tolist(), merged.rows.labels.tolist(), merged.row_weight.tolist()
    ([[1.0], [2.0]], [-1.0, 1.0], [0.3333333333333333, 0.6666666666666666])
    """
    unchanged, weight = WeightedRows(X, rows, row_weight), rows.weight
    dense = isinstance(X, np.ndarray)
    if not (dense or is_sparse(X)) or len(X.shape) != 2 or not can_merge_rows(X):
        return unchanged
    # rows of different projections are different: most tables need no comparison of rows
    if dense and weight is None and X.dtype.kind == "f":
        projections = np.sort(_projections(X))
        if (projections[1:] > projections[:-1]).all():
            return unchanged
    # errors name the rows of X as they were given
    if not (_is_finite(X) and _is_finite(rows.labels)):
        return unchanged
    beside = [a for a in (rows.labels, rows.offset) if a is not None]
    n = X.shape[0]
    used = np.arange(n) if weight is None else np.flatnonzero(weight > 0)
    order, is_first = _ordered_rows(_table(X, beside, used))
    if weight is None and is_first.all():
        return unchanged
    used, group = used[order], np.cumsum(is_first) - 1
    first = used[is_first]

    def merged(c: NDArray | None) -> NDArray:
        """Return the sums of weights by group; numbers of rows are summed exactly."""
        sums: NDArray = np.bincount(group, None if c is None else c[used])
        return sums / n if c is None else sums

    labels, offset = (None if a is None else a[first] for a in (rows.labels, rows.offset))
    unique = rows._replace(labels=labels, weight=merged(weight), offset=offset)
    return WeightedRows(X[first], unique, merged(row_weight))


def _is_finite(a: Any) -> bool:
    """Return whether an array, if there is one, has finite numbers only."""
    numbers = a.data if is_sparse(a) else a
    return numbers is None or (np.asarray(numbers).dtype.kind in "biuf" and bool(np.isfinite(numbers).all()))


def _table(X: Any, beside: list[Any], used: NDArray) -> NDArray:
    """Return some rows of X with the numbers beside them, their labels and offsets, in double precision."""
    rows = X[used].toarray() if is_sparse(X) else X[used]
    parts = [rows, *(np.asarray(a)[used].reshape(len(used), -1) for a in beside)]
    return np.hstack(parts).astype(np.float64)


def _projections(table: NDArray) -> NDArray:
    """Return a number per row, sum_j x_ij sin(j + 1): whole numbers x_ij have no other zero sums than 0."""
    projections: NDArray = (table * np.sin(np.arange(1.0, table.shape[1] + 1))).sum(axis=1)
    return projections


def _ordered_rows(table: NDArray) -> tuple[NDArray, NDArray]:
    """Return an order of the rows in which equal ones are neighbors, and whether each is the first of these.

    The order depends on the numbers in the rows alone.

    Examples
    --------
    >>> table = np.array([[1e20, 1.0], [1e20, 2.0], [1e20, 1.0]])  # of equal projections
    >>> order, is_first = _ordered_rows(table)
    >>> table[order, 1].tolist(), is_first.tolist()
    ([1.0, 1.0, 2.0], [True, False, True])
    """
    projections = _projections(table)
    order = np.argsort(projections)
    differs = (table[order[1:]] != table[order[:-1]]).any(axis=1)
    # different rows may have the same projection by rounding
    if (differs & (projections[order[1:]] == projections[order[:-1]])).any():
        order = np.lexsort(table.T)
        differs = (table[order[1:]] != table[order[:-1]]).any(axis=1)
    return order, np.concatenate([[True], differs])
