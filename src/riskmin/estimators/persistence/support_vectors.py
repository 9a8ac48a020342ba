"""Support vectors of kernel machines in model files, as named arrays, dense or sparse."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from riskmin.arrays.sparse_checks import check_arrays
from riskmin.core import NDArray
from riskmin.estimators.kernel_names import resolve_kernel
from riskmin.problem.kernel.mercer import sp
from riskmin.problem.kernel.rkhs import coefficients

CSR_ARRAYS = ("data", "indices", "indptr")
"""The arrays of a CSR matrix."""


def support_arrays(model: Any) -> dict[str, NDArray]:
    """Return the support vectors as arrays; empty if the kernel is precomputed."""
    vectors = model.support_vectors_
    if isinstance(model.kernel_, str):
        return {}
    if not sp.issparse(vectors):
        return {"vectors": np.asarray(vectors)}
    return {f"vectors.{name}": np.asarray(getattr(vectors, name)) for name in CSR_ARRAYS}


def resolved_gamma(model: Any) -> float | None:
    """Return the numeric value of gamma, such as that of "scale" for the training data; None if unused."""
    kernel = model.kernel_
    # kernels of riskmin have an attribute, `partial` of scikit-learn's a keyword
    gamma = getattr(kernel, "gamma", getattr(kernel, "keywords", {}).get("gamma"))
    return None if gamma is None else float(gamma)


def restore_support(
    model: Any, w: NDArray, p: int, arrays: dict[str, NDArray], gamma: float | None
) -> NDArray:
    """Set the kernel and the support of a model from its file; return the coefficients of the support."""
    template = copy.copy(model)  # `gamma` of the model itself may be a string such as "scale"
    if gamma is not None:
        template.gamma = gamma
    beta = coefficients(w)
    model.kernel_ = resolve_kernel(template, np.empty((0, p)))
    model.support_ = np.flatnonzero(beta)
    if isinstance(model.kernel_, str):
        if p != len(beta):
            raise ValueError(f"it has {len(beta)} coefficients for the {p} rows of a precomputed kernel")
        model.support_vectors_ = np.empty((0, 0))
    else:
        model.support_vectors_ = _read_vectors(arrays, (len(model.support_), p))
    support_coef: NDArray = beta[model.support_]
    return support_coef


def _read_vectors(arrays: dict[str, NDArray], shape: tuple[int, int]) -> Any:
    if "vectors" in arrays:
        vectors: Any = arrays["vectors"]
        values = vectors
    else:
        data, indices, indptr = (arrays[f"vectors.{name}"] for name in CSR_ARRAYS)
        check_arrays(indptr, indices, *shape)  # indices read from a file may be out of bounds
        vectors, values = sp.csr_array((data, indices, indptr), shape=shape), data
    if vectors.shape != shape or values.dtype != np.float64:
        raise ValueError(f"its support vectors are {values.dtype}{vectors.shape}, not float64{shape}")
    if not np.isfinite(values).all():
        raise ValueError("its support vectors hold NaN or infinity")
    return vectors
