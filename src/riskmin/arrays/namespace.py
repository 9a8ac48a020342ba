"""Array namespaces and devices: the only module that depends on particular array libraries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy.sparse import issparse

from riskmin.arrays.symbols import Symbol, Untraceable
from riskmin.core import Array, NDArray


def namespace(*arrays: Array) -> Any:
    """Return the array-API namespace of the arrays.

    NumPy is returned directly (it follows the standard since 2.1), which avoids wrappers on small blocks.

    Examples
    --------
    >>> import numpy as np
    >>> namespace(np.zeros(2)) is np
    True
    """
    if isinstance(arrays[0], Symbol):  # a loss is traced
        return arrays[0].__array_namespace__()
    for a in arrays:  # a loop: calls of a generator would take as long as a sum over a small block
        if not isinstance(a, np.ndarray):
            break
    else:
        return np
    from array_api_compat import array_namespace  # imported only for torch, CuPy and other libraries

    return array_namespace(*arrays)


def array_shape(a: Any) -> tuple[int, ...]:
    """Return the shape of an array of any library, () for anything else."""
    return tuple(getattr(a, "shape", ()))


def as_array_like(a: Array, b: Array) -> Array:
    """Return a in the library and dtype and on the device of b."""
    if isinstance(b, np.ndarray):
        return to_numpy(a)
    from array_api_compat import device

    return namespace(b).asarray(a, dtype=b.dtype, device=device(b))


def as_indices_like(index: NDArray, b: Array) -> Array:
    """Return row numbers in the library and on the device of b."""
    if isinstance(b, np.ndarray):
        return index
    from array_api_compat import device

    return namespace(b).asarray(index, device=device(b))


def zeros_for(shape: tuple[int, ...], b: Array) -> Array:
    """Return zeros of that shape in the library and dtype and on the device of b."""
    return as_array_like(np.zeros(shape, dtype=b.dtype if namespace(b) is np else float), b)


def in_float64(a: Array) -> Array:
    """Return numbers in double precision, in their library."""
    return namespace(a).astype(a, namespace(a).float64)


def full_like(b: Array, shape: tuple[int, ...], value: float) -> Array:
    """Return an array of one number, in the library and dtype and on the device of b."""
    from array_api_compat import device

    return namespace(b).full(shape, value, dtype=b.dtype, device=device(b))


def identity_like(G: Array) -> Array:
    """Return the identity matrix of the size of a square matrix, in its library and on its device."""
    from array_api_compat import device

    return namespace(G).eye(len(G), dtype=G.dtype, device=device(G))


def cholesky_solver(G: Array) -> Callable[[NDArray], NDArray] | None:
    """Return a function that solves G x = b for x in NumPy, by a Cholesky factorization beside G.

    None if G, a matrix of another library than NumPy, is not positive definite in this precision.
    """
    from array_api_compat import is_torch_array

    if is_torch_array(G):
        import torch

        L, failed = torch.linalg.cholesky_ex(G)
        if bool(failed):
            return None
        return lambda b: to_numpy(torch.cholesky_solve(as_array_like(b, L)[:, None], L)[:, 0])
    try:
        factor = to_numpy(namespace(G).linalg.cholesky(G))
    except Exception:  # each library has its own error for a matrix that is not positive definite
        return None
    if not np.isfinite(factor).all():
        return None
    from riskmin.core.blas_threads import scipy_module

    return lambda b: np.asarray(scipy_module("linalg").cho_solve((factor, True), b, check_finite=False))


class _WritableInterface:
    """Array interface of an array's memory, marked as writable."""

    def __init__(self, a: NDArray) -> None:
        self.a = a  # keeps the memory alive as long as a view of it exists
        self.__array_interface__ = {**a.__array_interface__, "data": (a.ctypes.data, False)}


def as_writable_view(a: NDArray) -> NDArray:
    """Return the same memory as a writable view: Numba compiles a kernel again for read-only arrays.

    Kernels never write to X. Nothing else may either, since the memory may belong to a mapped file.
    """
    return a if a.flags.writeable or a.size == 0 else np.asarray(_WritableInterface(a))


def is_foreign(a: object) -> bool:
    """Whether a is an array of a library other than NumPy, and not a frame or a list."""
    if isinstance(a, np.ndarray) or not hasattr(a, "__dlpack__"):
        return False
    from array_api_compat import is_array_api_obj  # Arrow's arrays have DLPack too, but no arithmetic

    return bool(is_array_api_obj(a))


def is_sparse(X: Any) -> bool:
    """Whether X is a SciPy sparse matrix."""
    return bool(issparse(X))


def is_gpu_sparse(X: Any) -> bool:
    """Whether X is a sparse matrix of CuPy, or a sparse tensor of torch."""
    kind = type(X).__module__.partition(".")[0]
    if kind == "cupyx":
        return hasattr(X, "nnz")
    return kind == "torch" and str(getattr(X, "layout", "")).startswith("torch.sparse")


def to_numpy(a: Array) -> NDArray:
    """Return a as a NumPy array, copied from its device if necessary."""
    if isinstance(a, np.ndarray):
        return a
    from array_api_compat import is_cupy_array, to_device

    # CuPy refuses implicit conversions: get() copies to the host
    return np.asarray(a.get() if is_cupy_array(a) else to_device(a, "cpu"))


def as_table(a: Any) -> Any:
    """Return the frame that narwhals wraps, the result of a lazy query, and streams of Arrow as a table.

    Anything else is returned unchanged.
    """
    if type(a).__module__.startswith("narwhals"):
        a = a.to_native()
    if hasattr(a, "collect_schema") and hasattr(a, "collect"):  # a lazy query of polars
        return a.collect()
    known = ("__array__", "to_numpy", "columns")
    if not hasattr(a, "__arrow_c_stream__") or any(hasattr(a, name) for name in known):
        return a
    try:
        import pyarrow as pa
    except ImportError:
        raise ImportError(
            f"a {type(a).__name__} is read by pyarrow: install it, or give an array or a data frame"
        ) from None
    return pa.table(a)


_DATE_DTYPE_PREFIXES = ("date", "time", "duration")
"""Prefixes of the names of date and time dtypes, in lower case: in NumPy, pandas, polars and Arrow."""


_TIME_TYPES = np.datetime64, np.timedelta64


def check_no_masks_or_dates(a: Any, name: str) -> None:
    """Raise if a holds complex numbers, or masked values, dates or times, which would be read as numbers."""
    if type(a) is np.ndarray and a.dtype.kind in "biuf":
        return
    _refuse_mask(a, name)
    _refuse_complex(a, name)
    remedy = "encode it as days since a first one, or drop it"
    for column, kind in _column_dtypes(a):
        if str(kind).lower().startswith(_DATE_DTYPE_PREFIXES):
            raise ValueError(f"column {column!r} of {name} holds {kind}, which is no number: {remedy}")
    first = a
    # nested lists: the first entry decides
    while type(first) in (list, tuple) and first:
        first = first[0]
    kind = getattr(a, "dtype", type(first).__name__ if isinstance(first, _TIME_TYPES) else "")
    if str(kind).lower().startswith(_DATE_DTYPE_PREFIXES):
        raise ValueError(f"{name} holds {kind}, which is no number: {remedy}")
    if str(kind) == "object" and any(isinstance(v, _TIME_TYPES) for v in np.ravel(a)):
        raise ValueError(f"{name} holds dates or times, which are no numbers: {remedy}")


def _refuse_complex(a: Any, name: str) -> None:
    """Raise if an array, a column of a frame or a list holds complex numbers."""
    kinds = ((column, str(kind).lower()) for column, kind in _column_dtypes(a))
    columns = (
        column for column, kind in kinds
        if kind.startswith("complex") or (kind == "object" and _holds_complex(np.asarray(a[column])))
    )  # fmt: skip
    first = next(columns, None)
    if first is not None or _holds_complex(a):
        what = name if first is None else f"column {first!r} of {name}"
        # the first words are those of scikit-learn, which its checks expect
        raise ValueError(f"Complex data not supported: {what} holds complex numbers; {COMPLEX_REMEDY}")


def _holds_complex(a: Any) -> bool:
    """Return whether an array or nested lists hold a complex number."""
    kind = str(getattr(a, "dtype", ""))
    if kind == "object" or type(a) in (list, tuple):
        return any(map(_holds_complex, np.ravel(a) if kind else a))
    return isinstance(a, complex) or kind.startswith(("complex", "torch.complex"))


def _refuse_mask(a: Any, name: str) -> None:
    if isinstance(a, np.ma.MaskedArray):
        raise ValueError(f"{name} is a masked array: drop or fill what is masked first")


def _column_dtypes(a: Any) -> Iterable[tuple[Any, Any]]:
    """Return name and dtype of each column of a data frame or an Arrow table; nothing for anything else."""
    schema = getattr(a, "schema", None)
    # pandas and polars have `dtypes`; a series has one dtype, not one per column
    dtypes = getattr(a, "dtypes", getattr(schema, "types", ()))
    return zip(column_names(a), dtypes, strict=False) if np.iterable(dtypes) else ()


def column_names(a: Any) -> Iterable[Any]:
    """Return the names of the columns of a data frame or an Arrow table, and 0, 1, ... for anything else."""
    return getattr(a, "column_names", getattr(a, "columns", itertools.count()))  # Arrow; pandas and polars


def first_text_column(a: Any) -> tuple[Any, str] | None:
    """Return the first column of a table that holds text, by name or index, and the text; None without any.

    Examples
    --------
    >>> first_text_column(np.array([[1, "3.5"], [2, "Rome"]], dtype=object))
    (1, 'Rome')
    """
    a = np.asarray(a, dtype=object) if type(a) in (list, tuple) else a
    # columns one by one, so that a frame is not copied as a whole
    for j, name in zip(range(np.shape(a)[1] if np.ndim(a) == 2 else 0), column_names(a), strict=False):
        column = a.iloc[:, j] if hasattr(a, "iloc") else a[:, j] if hasattr(a, "__getitem__") else a.column(j)
        for cell in np.asarray(column, dtype=object):
            if isinstance(cell, str) and not _is_number(cell):
                return name, str(cell)
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_numpy(a: Any, name: str) -> NDArray:
    """Return an array of any library, a frame, a series or nested lists as a NumPy array.

    Examples
    --------
    >>> as_numpy([[1, 2], [3, 4]], "X")
    array([[1, 2],
           [3, 4]])
    """
    _refuse_mask(a, name)
    a = as_table(a)
    if is_foreign(a):
        return to_numpy(a)
    try:
        result = np.asarray(a.to_numpy() if hasattr(a, "to_numpy") and not hasattr(a, "__array__") else a)
        # NumPy converts a list of numbers and text to text: object keeps the numbers
        return np.asarray(a, dtype=object) if result.dtype.kind in "US" and type(a) is list else result
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise ValueError(
            f"the rows of {name} differ in length: give each the same number of values"
        ) from None


def as_rows_of(a: Any, name: str, like: Array | None) -> Array:
    """Return numbers of the rows beside an array of another library than NumPy, in its dtype, if they are
    in such a library as well; without one, or for anything else, a NumPy array.
    """
    if like is None or not is_foreign(a):
        return as_numpy(a, name)
    _refuse_complex(a, name)
    return as_array_like(a, like)


def count_by_index(index: Array, weights: Array, length: int) -> Array:
    """Return the sums of the weights of each index from 0, in float64.

    Examples
    --------
    >>> count_by_index(np.array([0, 2, 0]), np.array([1.0, 2.0, 3.0]), 3)
    array([4., 0., 2.])
    """
    # no function of the standard: NumPy, torch and CuPy have the same one
    sums: Array = namespace(weights).bincount(index, weights=weights, minlength=length)
    return sums


def to_floats(a: NDArray) -> NDArray | None:
    """Return a copy in float64, with None read as NaN; None if a holds anything but real numbers."""
    if a.dtype.kind in "biuf":
        return a.astype(np.float64)
    # object arrays may hold None, which becomes NaN
    if a.dtype.kind != "O" or any(isinstance(v, (str, bytes, *_TIME_TYPES)) for v in a.flat):
        return None  # text is not converted, even if it reads as a number, and neither are dates
    try:
        return a.astype(np.float64)
    except (TypeError, ValueError):
        return None


COMPLEX_REMEDY = "give their real and imaginary parts as separate columns"
COMPLEX_X_MESSAGE = f"X holds complex numbers: {COMPLEX_REMEDY}"


def as_floats(a: NDArray, X: Any) -> NDArray:
    """Return the entries a of X as they are if float32 or float64, and otherwise converted to float64."""
    if a.dtype in (np.float32, np.float64):
        return as_writable_view(a)
    if a.dtype.kind == "c":
        raise ValueError(COMPLEX_X_MESSAGE)
    floats = to_floats(a)
    if floats is None:
        raise ValueError(_not_numeric_message(a, X) if a.ndim == 2 else "X holds something that is no number")
    return floats


def _not_numeric_message(a: NDArray, X: Any) -> str:
    """Return the error message for the first non-numeric column of X, named as in its frame."""
    j = next(j for j in range(a.shape[1]) if to_floats(a[:, j]) is None)
    # without the object dtype all entries of the column are non-numeric: take the first one
    column = a[:, j] if a.dtype.kind == "O" else a[:1, j]
    # with None, so that the array has the object dtype whatever v is
    bad = next((v for v in column if to_floats(np.array([v, None], dtype=object)) is None), column[0])
    column_name = next(itertools.islice(column_names(X), j, None))
    return f"column {column_name!r} of X holds {str(bad)!r}, which is no number: encode or drop that column"


def check_two_dimensions(shape: tuple[int, ...]) -> None:
    """Raise unless X has two dimensions."""
    if len(shape) != 2:
        hint = "; X.reshape(-1, 1) makes one column of it" if len(shape) == 1 else ""
        raise ValueError(
            f"X must have two dimensions, rows and columns, but its shape is {tuple(shape)}{hint}"
        )


def special_function(name: str, x: Array) -> Array:
    """Return a function of `scipy.special` of an array, in the array's own library.

    Examples
    --------
    >>> special_function("log_ndtr", np.zeros(1)).round(6)
    array([-0.693147])
    """
    from riskmin.core.blas_threads import scipy_module

    if isinstance(x, np.ndarray):
        return getattr(scipy_module("special"), name)(x)
    if isinstance(x, Symbol):
        raise Untraceable(f"the special function {name}")
    from array_api_compat import is_cupy_array, is_torch_array

    if is_torch_array(x):
        import torch

        return getattr(torch.special, name)(x)
    if is_cupy_array(x):
        import cupyx.scipy.special

        return getattr(cupyx.scipy.special, name)(x)
    return as_array_like(getattr(scipy_module("special"), name)(np.from_dlpack(x)), x)


def largest_exponent(z: Array) -> float:
    """Return half the logarithm of the largest finite number of z's dtype: e^x cannot overflow below it."""
    return 0.5 * float(np.log(float(namespace(z).finfo(z.dtype).max)))
