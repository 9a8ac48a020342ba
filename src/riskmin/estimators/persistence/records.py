"""Checked reading of the entries of model files: a checksum detects damage, but not invalid values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse

from riskmin.arrays.sparse_checks import check_arrays
from riskmin.core import NDArray

sp: Any = scipy.sparse  # untyped: arrays are sparse or dense

CSR_ARRAYS = ("data", "indices", "indptr")
"""The arrays of a CSR matrix."""


JSON_KINDS = {
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
"""The kinds of values that JSON has, by the type that its reader returns: never a subclass."""


def json_kind(value: Any) -> str:
    """Return the kind of a value that was read from JSON.

    Examples
    --------
    >>> json_kind(1.5), json_kind(True), json_kind(["a"])
    ('a number', 'true or false', 'a list')
    """
    return JSON_KINDS[type(value)]


def is_list_of(value: Any, kind: str) -> bool:
    """Whether a value that was read from JSON is a list, all of whose entries are of this kind."""
    return json_kind(value) == "a list" and all(json_kind(v) == kind for v in value)


def is_homogeneous(value: Any) -> bool:
    """Whether a value is a list of strings, or of numbers."""
    return is_list_of(value, "a string") or is_list_of(value, "a number")


def to_python_number(value: Any) -> Any:
    """Convert NumPy scalars to Python numbers and sequences to lists; return anything else unchanged."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [to_python_number(item) for item in value] if type(value) in (list, tuple) else value


def classes_to_json(classes: NDArray) -> dict[str, Any]:
    """Return labels and their type as JSON-compatible data, which `read_classes` reads."""
    return {"values": classes.tolist(), "dtype": classes.dtype.str}


def read_count(record: dict[str, Any], name: str) -> int:
    """Return an entry that must be an integer >= 0."""
    value = record[name]
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}, not a whole number >= 0")
    return value


def read_flag(record: dict[str, Any], name: str, default: bool | None = None) -> bool:
    """Return an entry that must be a bool."""
    value = record[name] if default is None else record.get(name, default)
    if json_kind(value) != "true or false":
        raise ValueError(f"{name} is {value!r}, neither true nor false")
    return bool(value)


def read_text(record: dict[str, Any], name: str) -> str:
    """Return an entry that must be a string."""
    value = record[name]
    if json_kind(value) != "a string":
        raise ValueError(f"{name} is {value!r}, not a string")
    return str(value)


def read_finite(record: dict[str, Any], name: str) -> float:
    """Return an entry that must be a finite number."""
    value = record[name]
    if json_kind(value) != "a number" or not np.isfinite(value):
        raise ValueError(f"{name} is {value!r}, not a finite number")
    return float(value)


def read_numbers(record: dict[str, Any], name: str, n: int) -> list[float]:
    """Return an entry that must be a list of n finite numbers."""
    values = record[name]
    if json_kind(values) != "a list" or len(values) != n:
        raise ValueError(f"{name} is {values!r}, not a list of {n} numbers")
    return [read_finite({name: value}, name) for value in values]


def check_length(w: NDArray, n: int) -> None:
    """Raise unless w has n entries."""
    if w.shape != (n,):
        raise ValueError(f"coef is {w.dtype}{w.shape}, not float64({n},)")


def read_vector(arrays: dict[str, NDArray], name: str, p: int | None = None) -> NDArray:
    """Return an array that must hold p finite numbers of type float64; None for any number of them."""
    array = arrays[name]
    shape = array.shape if p is None and array.ndim == 1 else (p,)
    if array.shape != shape or array.dtype != np.float64:
        raise ValueError(f"{name} is {array.dtype}{array.shape}, not float64{shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity")
    return array


def read_classes(record: dict[str, Any], *, in_order: bool = True) -> NDArray:
    """Return the classes, which must be distinct; and sorted, unless a parameter defines their order."""
    values, dtype = record["values"], np.dtype(record["dtype"])
    # boolean classes count as numbers
    as_numbers = [int(v) if json_kind(v) == "true or false" else v for v in values]
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


def read_feature_names(values: Any, p: int) -> NDArray:
    """Return the names of p features, which must be strings."""
    if not is_list_of(values, "a string"):
        raise ValueError("the names of its features are not all strings")
    if len(values) != p:
        raise ValueError(f"it names {len(values)} features, but has {p}")
    return np.array(values, dtype=object)


def read_trace_row(record: Any) -> dict[str, Any]:
    """Return the last row of the trace, a dict of numbers and strings."""
    row = dict(record)
    if any(json_kind(v) in ("a list", "an object") for v in row.values()):
        raise ValueError("the last row of its trace holds values that are neither numbers nor strings")
    for name in ("iteration", "seconds"):
        if name in row and (json_kind(row[name]) != "a number" or not math.isfinite(row[name])):
            raise ValueError(f"the entry {name} of its trace is {row[name]!r}, not a finite number")
    return row


def json_name(node: Any) -> Any:
    """Return the name of a node as a type that JSON preserves; raise if there is none."""
    # JSON preserves strings, numbers and null, but no NumPy scalars
    name = to_python_number(node)
    if JSON_KINDS.get(type(name)) in (None, "a list", "an object"):
        raise ValueError(
            f"the node {node!r} is neither a string nor a number, and is not written to model files: "
            "rename it, or pickle the model"
        )
    return name


def rows_to_arrays(rows: Any) -> dict[str, NDArray]:
    """Return support vectors, dense or sparse, as named arrays."""
    if not sp.issparse(rows):
        return {"vectors": np.asarray(rows)}
    arrays = rows.data, rows.indices, rows.indptr
    return {f"vectors.{name}": np.asarray(a) for name, a in zip(CSR_ARRAYS, arrays, strict=True)}


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
