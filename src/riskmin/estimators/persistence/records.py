"""Checked reading of the entries of model files: a checksum detects damage, but not invalid values."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
import scipy.sparse

from riskmin.arrays.sparse_checks import check_arrays
from riskmin.core import NDArray

sp: Any = scipy.sparse  # untyped: arrays are sparse or dense

CSR_ARRAYS = ("data", "indices", "indptr")
"""The arrays of a CSR matrix."""


def is_number(value: Any) -> bool:
    """Whether a value is a real number; a bool is not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_homogeneous(value: Any) -> bool:
    """Whether a value is a list of strings, or of numbers."""
    if not isinstance(value, list):
        return False
    return all(isinstance(v, str) for v in value) or all(is_number(v) for v in value)


def to_python_number(value: Any) -> Any:
    """Convert NumPy scalars to Python numbers and sequences to lists; return anything else unchanged."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return [to_python_number(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def classes_to_json(classes: NDArray) -> dict[str, Any]:
    """Return labels and their type as JSON-compatible data, which `read_classes` reads."""
    return {"values": classes.tolist(), "dtype": classes.dtype.str}


def read_count(record: dict[str, Any], name: str) -> int:
    """Return an entry that must be an integer >= 0."""
    value = record[name]
    # `type`, not isinstance: a bool is not a count
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}, not a whole number >= 0")
    return value


def read_flag(record: dict[str, Any], name: str, default: bool | None = None) -> bool:
    """Return an entry that must be a bool."""
    value = record[name] if default is None else record.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, neither true nor false")
    return value


def read_finite(record: dict[str, Any], name: str) -> float:
    """Return an entry that must be a finite number."""
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
        raise ValueError(f"{name} is {value!r}, not a finite number")
    return float(value)


def read_vector(arrays: dict[str, NDArray], name: str, p: int) -> NDArray:
    """Return an array that must hold p finite numbers of type float64."""
    array = arrays[name]
    if array.shape != (p,) or array.dtype != np.float64:
        raise ValueError(f"{name} is {array.dtype}{array.shape}, not float64({p},)")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity")
    return array


def read_classes(record: dict[str, Any], *, in_order: bool = True) -> NDArray:
    """Return the classes, which must be distinct; and sorted, unless a parameter defines their order."""
    values, dtype = record["values"], np.dtype(record["dtype"])
    # boolean classes count as numbers
    as_numbers = [int(v) if isinstance(v, bool) else v for v in values]
    if dtype.kind not in "biufUSO" or not is_homogeneous(as_numbers):
        raise ValueError(f"its classes are of {dtype}, or not all strings or all numbers")
    classes: NDArray = np.array(values, dtype=dtype)
    if classes.ndim != 1 or len(np.unique(classes)) != len(classes):
        raise ValueError("its classes are not each named once")
    if classes.dtype.kind == "f" and not np.isfinite(classes).all():
        raise ValueError("its classes are not all finite")
    if in_order and not np.array_equal(np.unique(classes), classes):
        raise ValueError("its classes are not sorted")
    return classes


def read_n_classes(fitted: dict[str, Any], n_classes: int, *, in_order: bool = True) -> NDArray:
    """Return the classes, which must be of this number."""
    classes = read_classes(fitted["classes"], in_order=in_order)
    if classes.shape != (n_classes,):
        raise ValueError(f"it has {classes.size} classes, not {n_classes}")
    return classes


def read_feature_names(values: Any, p: int) -> NDArray:
    """Return the names of p features, which must be strings."""
    if not isinstance(values, list) or not all(isinstance(name, str) for name in values):
        raise ValueError("the names of its features are not all strings")
    if len(values) != p:
        raise ValueError(f"it names {len(values)} features, but has {p}")
    return np.array(values, dtype=object)


def read_trace_row(record: Any) -> dict[str, Any]:
    """Return the last row of the trace, a dict of numbers and strings."""
    row = dict(record)
    if not all(v is None or isinstance(v, (int, float, str)) for v in row.values()):
        raise ValueError("the last row of its trace holds values that are neither numbers nor strings")
    for name in ("iteration", "seconds"):
        if name in row and (not is_number(row[name]) or not math.isfinite(row[name])):
            raise ValueError(f"the entry {name} of its trace is {row[name]!r}, not a finite number")
    return row


def json_name(node: Any) -> Any:
    """Return the name of a node as a type that JSON preserves; raise if there is none."""
    # JSON preserves strings, numbers and null, but no NumPy scalars
    name = node.item() if isinstance(node, np.generic) else node
    if name is not None and not isinstance(name, (str, int, float)):
        raise ValueError(
            f"the node {node!r} is neither a string nor a number, and is not written to model files: "
            "rename it, or pickle the model"
        )
    return name


def read_binary(fitted: dict[str, Any]) -> tuple[NDArray, float]:
    """Return the two classes and the threshold of a binary classifier."""
    # the threshold is absent in older formats
    return read_n_classes(fitted, 2), read_finite({"threshold": 0.0} | fitted, "threshold")


def n_output_weights(fitted: dict[str, Any]) -> int:
    """Return the length of w: one weight per output and feature, and one intercept per output if any."""
    p = read_count(fitted, "n_features")
    return (
        read_count(fitted, "outputs") * (p + read_flag(fitted, "intercepts", False))
        if "outputs" in fitted
        else p
    )


def rows_to_arrays(rows: Any) -> dict[str, NDArray]:
    """Return support vectors, dense or sparse, as named arrays."""
    if not sp.issparse(rows):
        return {"vectors": np.asarray(rows)}
    return {f"vectors.{name}": np.asarray(getattr(rows, name)) for name in CSR_ARRAYS}


def rows_from_arrays(arrays: dict[str, NDArray], shape: tuple[int, int]) -> Any:
    """Return the support vectors from the arrays of `rows_to_arrays`, which must have this shape."""
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
