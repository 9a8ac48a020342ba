"""From arrays to a risk: checks, weights, shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from riskmin.arrays import like
from riskmin.executors import Serial
from riskmin.intercept import Profiled
from riskmin.matrices import WIDE, Csc, Csr, Dense, Plain, as_matrix, with_transpose
from riskmin.risk import Risk
from riskmin.scorers import Linear
from riskmin.types import ChecksLabels, Executor, Loss, Matrix, Shard

NDArray = np.ndarray[Any, Any]


def _weights(sample_weight: Any, n: int) -> NDArray:
    """The c_i: nonnegative, of sum one."""
    if sample_weight is None:
        return np.full(n, 1.0 / n)
    c = np.asarray(sample_weight, dtype=np.float64)
    if c.shape != (n,):
        raise ValueError(f"sample_weight has shape {c.shape}, but X has {n} rows: give one weight a row")
    if not np.isfinite(c).all() or (c < 0).any():
        raise ValueError("sample_weight holds NaN, infinite or negative numbers: weights must be >= 0")
    total = c.sum()
    if total <= 0:
        raise ValueError("sample_weight is zero for every row: at least one weight must be > 0")
    normed: NDArray = c / total
    return normed


def _stored(X: Matrix) -> NDArray | None:
    """The numbers that a matrix of NumPy arrays holds."""
    if isinstance(X, (Csr, Csc)):
        return X.data
    return None if isinstance(X, Plain) else getattr(X, "X", getattr(X, "T", None))


def _check_finite(X: Matrix) -> None:
    data = _stored(X)
    with np.errstate(over="ignore", invalid="ignore"):
        # a finite sum is the common case, and costs one pass without a temporary
        if data is None or np.isfinite(data.sum(dtype=np.float64)) or np.isfinite(data).all():
            return
    bad = np.flatnonzero(~np.isfinite(data))[0] if data.ndim == 1 else np.argwhere(~np.isfinite(data))[0]
    if isinstance(X, Dense):
        where = f"row {bad[0]}, column {bad[1]}"
    elif isinstance(X, Csr):
        where = f"row {int(np.searchsorted(X.indptr, bad, side='right')) - 1}"
    else:
        where = "a column"
    raise ValueError(f"X holds NaN or infinity ({where}): drop or impute such values first")


def shard_count(X: Matrix) -> int:
    """How many shards: by the data alone, so that no bit of a result depends on who computes it.

    A shard holds about a million numbers, and enough of them to outweigh the sum of its gradient.
    """
    data = _stored(X)
    if data is None or not hasattr(X, "rows"):
        return 1
    return int(np.clip(min(data.size // 2**20, data.size // (4 * max(X.shape[1], 1))), 1, 64))


def make_shards(X: Matrix, y: Any, c: NDArray, n_shards: int) -> list[Shard]:
    """Cut the rows into contiguous shards; a matrix that has no row blocks stays whole."""
    if n_shards == 1 or not hasattr(X, "rows"):
        parts: list[tuple[Matrix, slice]] = [(X, slice(None))]
    else:
        ends = np.linspace(0, X.shape[0], n_shards + 1).astype(int)
        parts = [(X.rows(i, j), slice(i, j)) for i, j in pairwise(ends)]
    wide = isinstance(X, Csr) and X.shape[1] >= WIDE and X.data.size >= 4 * X.shape[1]
    return [
        Shard(with_transpose(part) if wide and isinstance(part, Csr) else part, y[at], c[at], {})
        for part, at in parts
    ]


def linear_risk(
    X: Any,
    y: Any,
    loss: Loss,
    *,
    sample_weight: Any = None,
    fit_intercept: bool = False,
    executor: Callable[[Sequence[Shard]], Executor] | None = None,
    n_shards: int | None = None,
) -> Risk | Profiled:
    r"""The risk of a linear model, :math:`R(w) = \sum_i c_i\, l(x_i^\top w, y_i)`, the weights c of sum one.

    Parameters
    ----------
    X : (n, p) array or sparse matrix
        NumPy in either order, SciPy CSR or CSC, float32 or float64: none is copied. Or a 2-d array of
        another array library.
    y : (n,) array or None
        Labels as the loss takes them: -1 and +1 for classification. None for losses without labels.
    loss : Loss
    sample_weight : (n,) array, optional
    fit_intercept : bool
        Add an intercept that is never penalized: it is minimized out inside the risk.
    executor : executor class or settings, optional
        Such as ``Threads`` or ``Processes(n_workers=4)``; `Serial` by default.
    n_shards : int, optional
        Into how many parts to cut the rows; by default a number that follows from the data alone.

    Returns
    -------
    Risk or Profiled

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> X, y = np.array([[1.0], [-2.0]]), np.array([1.0, -1.0])
    >>> value, grad = linear_risk(X, y, Hinge())(np.array([0.25]))
    >>> value, grad
    (0.625, array([-1.5]))
    """
    if fit_intercept and not loss.separable:
        raise ValueError(
            f"{type(loss).__name__} is not a sum over rows, so its intercept cannot be minimized out: "
            "fit without one"
        )
    matrix = as_matrix(X)
    n, p = matrix.shape
    if n == 0:
        raise ValueError("X has 0 rows: there is nothing to fit")
    labels = np.zeros(n) if y is None else y
    if not isinstance(matrix, Plain):
        labels = np.asarray(labels)
        labels = labels.astype(np.float64) if labels.dtype.kind in "biuf" else labels
    if labels.shape[0] != n:
        raise ValueError(f"y has {labels.shape[0]} labels, but X has {n} rows")
    if isinstance(loss, ChecksLabels):
        loss.check_labels(labels)
    _check_finite(matrix)
    c: Any = _weights(sample_weight, n)
    if isinstance(matrix, Plain):
        labels, c = like(labels, matrix.X), like(c, matrix.X)
    shards = make_shards(matrix, labels, c, n_shards or shard_count(matrix))
    risk = Risk(loss, Linear(), (executor or Serial)(shards), Linear().dim(p))
    return Profiled(risk) if fit_intercept else risk
