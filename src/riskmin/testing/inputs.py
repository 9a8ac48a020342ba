"""Check that a function leaves its arguments as they are, in every storage of X."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from riskmin.arrays.namespace import column_names
from riskmin.core import NDArray
from riskmin.testing.base import require

sp: Any = scipy.sparse  # untyped: formats are selected by name


def check_inputs(
    function: Callable[..., Any], X: NDArray, *args: Any, formats: tuple[str, ...] = (), **options: Any
) -> None:
    """Check that a function of X changes no bit of its arguments, in any storage of X.

    The function is called with X in C and Fortran order, as a window of a larger array, in single precision,
    as memory that must not be written to, and as CSR, CSC and COO matrices with sorted, unsorted and
    duplicate entries. Sparse storages that are equal when duplicates are summed must give equal results.

    Parameters
    ----------
    function : callable
        Takes X and the other arguments; returns an array, or None if there is no result to compare.
    X : ndarray of shape (n, p)
        The entries.
    *args, **options
        Further arguments: arrays, sparse matrices, frames, lists, dictionaries and dataclasses of them are
        compared bit by bit before and after the call.
    formats : tuple of str
        Names of the storages to try, as in `storages`; all of them by default.

    Raises
    ------
    AssertionError
        Names the storage and the argument that was changed.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import LinearRegressor
    >>> X, y = np.eye(4), np.arange(4.0)
    >>> check_inputs(lambda X, y: LinearRegressor().fit(X, y).coef_, X, y)
    """
    results: dict[str, Any] = {}
    for name, stored in storages(X).items():
        if formats and name not in formats:
            continue
        given = {"X": stored, **{f"argument {k + 1}": a for k, a in enumerate(args)}, **options}
        before = {key: bits(value) for key, value in given.items()}
        result = function(stored, *args, **options)
        for key, value in given.items():
            require(bits(value) == before[key], function, f"it changes {key}, where X is stored as {name}")
        kind = name.partition(",")[0]
        if scipy.sparse.issparse(stored) and result is not None:
            same = np.array_equal(np.asarray(results.setdefault(kind, result)), np.asarray(result))
            require(same, function, f"its result differs from that of {kind}, where X is stored as {name}")


def bits(thing: Any) -> Any:
    """Return an object that is equal for two things if they hold the same bits, and only then."""
    if isinstance(thing, np.ndarray):
        entries = [repr(v) for v in thing.flat] if thing.dtype.kind == "O" else thing.tobytes()
        return thing.dtype.str, thing.shape, entries
    if scipy.sparse.issparse(thing):
        return {k: bits(v) for k, v in vars(thing).items() if isinstance(v, (np.ndarray, tuple))}
    if isinstance(thing, dict):
        return {key: bits(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [bits(value) for value in thing]
    if hasattr(thing, "columns"):  # a frame or a table
        return [(name, bits(np.asarray(thing[name]))) for name in column_names(thing)]
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return {f.name: bits(getattr(thing, f.name)) for f in dataclasses.fields(thing)}
    return repr(thing)


def storages(X: NDArray) -> dict[str, Any]:
    """Return the entries of X in every storage; sparse ones with the same name up to a comma are equal.

    Examples
    --------
    >>> list(storages(np.eye(2)))[:4]
    ['C order', 'Fortran order', 'a window', 'float32']
    """
    window = np.full((2 * X.shape[0], 3 * X.shape[1]), np.nan)
    window[::2, ::3] = X
    result: dict[str, Any] = {
        "C order": np.array(X, order="C"),
        "Fortran order": np.array(X, order="F"),
        "a window": window[::2, ::3],
        "float32": X.astype(np.float32),
        "read only": _read_only(X),
    }
    for kind in ("CSR", "CSC"):
        sparse = getattr(sp, f"{kind.lower()}_array")(X)
        result[kind] = sparse
        result[f"{kind}, int64 indices"] = _with_arrays(
            sparse, sparse.data, sparse.indices.astype(np.int64), sparse.indptr.astype(np.int64)
        )
        result[f"{kind}, unsorted"] = unsorted(sparse)
        result[f"{kind}, duplicates"] = unsorted(with_duplicates(sparse))
        twice = result[f"{kind}, duplicates"]
        result[f"{kind}, duplicates, read only"] = _with_arrays(
            sparse, *map(_read_only, (twice.data, twice.indices, twice.indptr))
        )
    coo = result["CSR, duplicates"].tocoo()
    result["CSR, as COO with duplicates"] = sp.coo_array((coo.data, coo.coords), shape=X.shape)
    return result


def unsorted(X: Any) -> Any:
    """Return a compressed sparse matrix with the entries of each row (or column) in reverse order."""
    line = np.repeat(np.arange(len(X.indptr) - 1), np.diff(X.indptr))
    order = np.lexsort((-np.arange(len(line)), line))
    return _with_arrays(X, X.data[order], X.indices[order], X.indptr.copy())


def with_duplicates(X: Any) -> Any:
    """Return a compressed sparse matrix with each entry as two halves, whose sum is exact."""
    return _with_arrays(X, np.repeat(X.data / 2, 2), np.repeat(X.indices, 2), 2 * X.indptr)


def _with_arrays(X: Any, data: NDArray, indices: NDArray, indptr: NDArray) -> Any:
    """Return a sparse matrix of the same kind with these arrays, which SciPy neither copies nor checks."""
    result = type(X)(X.shape)
    result.data, result.indices, result.indptr = data, indices, indptr
    return result


def _read_only(a: NDArray) -> NDArray:
    result = a.copy()
    result.setflags(write=False)
    return result
