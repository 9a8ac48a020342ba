"""Rows on a GPU in estimators: given there, or copied there by `device`; results stay beside given rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.arrays.devices.gpu import is_on_gpu
from riskmin.arrays.devices.placement import on_device
from riskmin.arrays.namespace import (
    as_array_like,
    check_two_dimensions,
    is_foreign,
    is_gpu_sparse,
    is_sparse,
    namespace,
    to_numpy,
)
from riskmin.arrays.partitioned import is_partitioned
from riskmin.executors import as_backend


def is_gpu_rows(X: Any) -> bool:
    """Whether X is an array or a sparse matrix of torch or CuPy on a GPU."""
    return not isinstance(X, np.ndarray) and (is_gpu_sparse(X) or (is_foreign(X) and is_on_gpu(X)))


def is_on_gpu_array(a: Any) -> bool:
    """Whether a is an array of torch or CuPy on a GPU."""
    return is_foreign(a) and is_on_gpu(a)


def on_host(a: Any) -> Any:
    """Return an array on a GPU as one of NumPy, and anything else unchanged."""
    return to_numpy(a) if is_on_gpu_array(a) else a


def dense_weights(model: Any) -> Any:
    """Return the weights of a fitted model as an array of NumPy, also after `sparsify` or on a GPU."""
    return model.coef_.toarray() if is_sparse(model.coef_) else on_host(model.coef_)


def beside(a: Any, X: Any) -> Any:
    """Return numbers of this process on the device of rows on a GPU; labels of text stay here."""
    if not is_gpu_rows(X) or np.asarray(a).dtype.kind not in "biuf":
        return a
    return as_array_like(np.asarray(a, dtype=np.float64), _float64_beside(X))


def _float64_beside(X: Any) -> Any:
    """Return an empty array of float64 in the library and on the device of X."""
    values = X[:0, 0] if not is_gpu_sparse(X) else X.data if hasattr(X, "format") else X.values()
    return namespace(values).astype(values[:0], namespace(values).float64)


def stays_on_gpu(y: Any, n_outputs: bool) -> bool:
    """Whether labels are finite numbers on a GPU, one per row, or with `n_outputs` a column per output.

    Other labels are checked in this process, with scikit-learn's errors.
    """
    if not (is_on_gpu_array(y) and (y.ndim == 1 or (n_outputs and y.ndim == 2))):
        return False
    xp = namespace(y)
    return bool(xp.isdtype(y.dtype, ("bool", "integral"))) or bool(xp.all(xp.isfinite(y)))


def float64_like(a: Any) -> Any:
    """Return an empty array of float64 in the library and on the device of an array on a GPU, else None."""
    return namespace(a).astype(a[:0], namespace(a).float64) if is_on_gpu_array(a) else None


def check_gpu_rows(model: Any, X: Any, *, reset: bool, min_rows: int) -> Any:
    """Return rows on a GPU, with the checks of `validate_data` that need no entries."""
    check_two_dimensions(tuple(X.shape))
    n, p = (int(size) for size in X.shape)
    if n < min_rows or p < 1:
        raise ValueError(
            f"X has {n} sample(s) and {p} feature(s), but a minimum of {min_rows} and of 1 is required: "
            "add rows and columns"
        )
    if reset:
        model.n_features_in_ = p
    elif p != model.n_features_in_:
        raise ValueError(
            f"X has {p} features, but {type(model).__name__} is expecting {model.n_features_in_} features "
            "as input: give the columns of the fit"
        )
    return X


def moved(X: Any, device: str | None) -> Any:
    """Return rows of this process on a device: None and "cpu" leave them, "cuda" and "cuda:1" copy them.

    Rows that are too many for the device become `StreamedRows`, which copy a part of them in every pass.

    Raises
    ------
    ValueError
        If there is no such device, no CuPy, or too little memory; the message names the remedy.
    """
    if device is None or device == "cpu" or is_gpu_rows(X):
        return X
    if is_partitioned(X):
        if X.executor is not None and as_backend(X.executor).device == device:
            return X
        raise ValueError(
            f"device={device!r} needs all rows in this process: for rows on workers of Dask, give the device "
            f"to their executor, DaskExecutor(client, device={device!r})"
        )
    return on_device(X, device)
