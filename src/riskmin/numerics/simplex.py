"""Euclidean projection of rows onto the probability simplex."""

from __future__ import annotations

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace
from riskmin.core import Array


def project_onto_simplex(v: Array) -> Array:
    """Return the projection of each row of v onto the simplex (entries >= 0 with sum one).

    It is max(v - theta, 0), with the shift theta of a row determined by its largest entries.
    """
    if namespace(v) is np and v.dtype == np.float64:
        from riskmin._numba.simplex_loops import project_rows  # compiled with Numba: a third of the time

        rows = v.copy()
        project_rows(rows)
        return rows
    return project_onto_simplex_generic(v)


def project_onto_simplex_generic(v: Array) -> Array:
    """Return the same projection, for arrays of any library."""
    xp = namespace(v)
    # relative to the largest entry: entries far below it are zero in the result, so no digits are lost
    v = v - xp.max(v, axis=1, keepdims=True)
    decreasing = xp.flip(xp.sort(v, axis=1), axis=1)
    count = xp.astype(as_array_like(np.arange(1.0, v.shape[1] + 1), v), v.dtype)
    shift = (xp.cumulative_sum(decreasing, axis=1) - 1) / count
    # theta is the largest of the shifts (cumsum_m - 1) / m of the m largest entries
    return xp.maximum(v - xp.max(shift, axis=1, keepdims=True), xp.zeros_like(v))
