"""What a fitted kernel machine keeps of the data, as named arrays: its support vectors, dense or sparse."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from riskmin.estimators.mercer import kernel_of
from riskmin.mercer import sp
from riskmin.rkhs import coefficients
from riskmin.sparse import check_arrays
from riskmin.types import NDArray

PARTS = ("data", "indices", "indptr")
"""The arrays of a sparse matrix."""


def support_arrays(model: Any) -> dict[str, NDArray]:
    """The support vectors as arrays; none where the kernel is precomputed."""
    vectors = model.support_vectors_
    if isinstance(model.kernel_, str):
        return {}
    if not sp.issparse(vectors):
        return {"vectors": np.asarray(vectors)}
    return {f"vectors.{part}": np.asarray(getattr(vectors, part)) for part in PARTS}


def gamma_of(model: Any) -> float | None:
    """The number that gamma stood for, such as "scale" on the data of the fit; None without one."""
    kernel = model.kernel_
    found = getattr(kernel, "gamma", getattr(kernel, "keywords", {}).get("gamma"))
    return None if found is None else float(found)


def put_back_support(
    model: Any, w: NDArray, p: int, arrays: dict[str, NDArray], gamma: float | None
) -> NDArray:
    """Set the kernel and the support, which the coefficients tell; return those of the support."""
    again = copy.copy(model)
    if gamma is not None:
        again.gamma = gamma
    beta = coefficients(w)
    model.kernel_ = kernel_of(again, np.empty((0, p)))
    model.support_ = np.flatnonzero(beta)
    if isinstance(model.kernel_, str):
        if p != len(beta):
            raise ValueError(f"it has {len(beta)} coefficients for the {p} rows of a precomputed kernel")
        model.support_vectors_ = np.empty((0, 0))
    else:
        model.support_vectors_ = _vectors(arrays, (len(model.support_), p))
    found: NDArray = beta[model.support_]
    return found


def _vectors(arrays: dict[str, NDArray], shape: tuple[int, int]) -> Any:
    if "vectors" in arrays:
        found: Any = arrays["vectors"]
        values = found
    else:
        data, indices, indptr = (arrays[f"vectors.{part}"] for part in PARTS)
        check_arrays(indptr, indices, *shape)  # what is read may index beyond the row
        found, values = sp.csr_array((data, indices, indptr), shape=shape), data
    if found.shape != shape or values.dtype != np.float64:
        raise ValueError(f"its support vectors are {values.dtype}{found.shape}, not float64{shape}")
    if not np.isfinite(values).all():
        raise ValueError("its support vectors hold NaN or infinity")
    return found
