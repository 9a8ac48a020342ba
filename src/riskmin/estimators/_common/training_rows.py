r"""The training rows of a model, given once more, and a check that J on them is that of the fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.arrays.namespace import to_numpy
from riskmin.arrays.partitioned import is_partitioned
from riskmin.core import NDArray
from riskmin.estimators._common.base import RiskArguments
from riskmin.estimators._common.fit import normalize_weights
from riskmin.estimators._common.input import compute_if_dask, select_rows, validate_rows
from riskmin.estimators._common.offset import row_offset
from riskmin.estimators.gpu_rows import is_gpu_rows, on_host

OBJECTIVE_RTOL = 1e-6
"""Relative difference up to which the recomputed objective counts as that of the fit."""


def training_rows(
    model: Any, X: Any, y: Any, sample_weight: Any, offset: Any = None
) -> tuple[Any, RiskArguments, NDArray]:
    """Return the rows of positive weight, the arguments of the loss, and the given weights; check J."""
    if model.task != "classification" and (np.ndim(model.coef_) == 2 or model._fitted_loss().multi_output):
        raise ValueError(
            "this takes regressions of one column: fit one model per output, and give each its own y"
        )
    X = np.asarray(X) if isinstance(X, list) else X
    rows = validate_rows(model, X, reset=False)
    if is_partitioned(rows):
        raise ValueError("this needs all rows in this process: give X.whole()")
    y, given, offset = compute_if_dask(y), compute_if_dask(sample_weight), row_offset(offset, X.shape[0])
    if model.weighted_ and given is None:
        raise ValueError("the model was fitted with weights of rows, on which J depends: give sample_weight")
    weight = normalize_weights(given, X.shape[0])
    counts = np.ones(X.shape[0]) if given is None else np.asarray(given, dtype=np.float64)
    if weight is not None and not (counts > 0).all():
        used = counts > 0
        X, rows, y = select_rows(X, used), select_rows(rows, used), np.asarray(y)[used]
        weight, counts = weight[used], counts[used]
        offset = None if offset is None else offset[used]
    at = model._risk_arguments(X, y, weight, offset=offset)
    at = RiskArguments(*(np.asarray(on_host(part), dtype=np.float64) for part in at))
    J = float(model._fitted_loss().value_grad(*at)[0]) + float(model.alpha) * model._penalty().value(
        np.asarray(model.result_.w)
    )
    if abs(J - model.objective_) > OBJECTIVE_RTOL * abs(model.objective_) + 1e-300:
        raise ValueError(
            f"the objective is {J:.9g} for these data, not {model.objective_:.9g} as in the fit: give the X, "
            "y, sample_weight and offset of the fit"
        )
    return to_numpy(rows) if is_gpu_rows(rows) else rows, at, counts


def used_rows(sample_weight: Any, X: Any) -> NDArray:
    """Return which rows have a positive weight."""
    n_rows = len(X) if isinstance(X, list) else X.shape[0]
    if sample_weight is None:
        return np.ones(n_rows, bool)
    used: NDArray = np.asarray(compute_if_dask(sample_weight), dtype=np.float64) + np.zeros(n_rows) > 0
    return used


def offset_of_used(offset: Any, sample_weight: Any, X: Any) -> NDArray | None:
    """Return the offset of the rows of positive weight; None stands for zeros."""
    used = used_rows(sample_weight, X)
    found = row_offset(offset, len(used))
    return None if found is None else found[used]
