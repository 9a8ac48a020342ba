"""The step from a point near the constraints onto them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.core.deadline import check_each
from riskmin.driver.constraints.row_constraints import RowConstraints
from riskmin.regularizers.base import Regularizer


@dataclass(frozen=True)
class Point:
    """A point and its value; infinite if it violates a constraint."""

    FEASIBILITY = 1e-10
    """A violation up to this, relative to the sizes of its products, counts as rounding."""
    MAX_CORRECTIONS = 5
    """Largest number of steps onto the constraints, each of which may violate others."""
    LEAST_WEIGHT = 1e-6
    """Weight of entries that are zero, relative to the largest: a step changes large entries first."""

    w: NDArray
    b: float
    value: float


def feasible_point(
    X: Any, constraints: RowConstraints, reg: Regularizer, w: NDArray, b: float, u: NDArray, intercept: bool
) -> Point:
    """Move w, and a free intercept b, onto the constraints that are violated or have multipliers u."""
    active, sizes = u != 0, row_sizes(X)
    for _ in check_each(range(Point.MAX_CORRECTIONS)):
        z = np.asarray(X @ w) + b
        violation = constraints.violation(z)
        room = np.asarray(abs(X) @ np.abs(w)) + abs(b) + np.abs(constraints.target)
        if np.all(np.abs(violation) <= Point.FEASIBILITY * room):
            return Point(w, b, float(reg.value(w)))
        active = active | (violation != 0)
        rows = as_dense(X[np.flatnonzero(active)]) / sizes[active, None]
        step = least_step(
            rows,
            (constraints.target - z)[active] / sizes[active],
            w,
            1 / sizes[active] if intercept else None,
            reg,
        )
        w, b = w + step[: len(w)], b + float(step[len(w) :].sum())
    return Point(w, b, math.inf)


def least_step(rows: NDArray, change: NDArray, w: NDArray, ones: NDArray | None, reg: Regularizer) -> NDArray:
    """Return the least change of w, relative to its entries, and of the intercept, for a change of scores."""
    sizes = np.abs(w) + Point.LEAST_WEIGHT * np.max(np.abs(w), initial=0.0)
    sizes = np.sqrt(sizes) if sizes.any() else np.ones(len(w))
    total = np.ones(len(w))
    # in a simplex, the sum of the weights is fixed
    if reg.domain_support(total) + reg.domain_support(-total) == 0:
        rows, change = np.vstack([rows, total]), np.append(change, 0.0)
    if ones is not None:
        # the intercept is free
        rows, sizes = np.column_stack([rows, ones]), np.append(sizes, 1 / np.max(ones) * np.max(sizes))
    return np.asarray(sizes * np.linalg.lstsq(rows * sizes, change, rcond=None)[0])


def row_sizes(X: Any) -> NDArray:
    """Return the largest absolute entry of each row; 1 for rows of zeros."""
    largest = abs(X).max(axis=1)
    sizes = np.ravel(largest.toarray() if rows_are_sparse(largest) else largest)
    return np.where(sizes > 0, sizes, 1.0)


def as_dense(X: Any) -> NDArray:
    """Return X as an array of NumPy."""
    return np.asarray(X.toarray() if rows_are_sparse(X) else X, dtype=float)


def rows_are_sparse(X: Any) -> bool:
    """Whether X is a sparse matrix or array of SciPy."""
    return bool(scipy_module("sparse").issparse(X))
