"""Joint features as a user's model gives them, checked and without their zeros."""

from __future__ import annotations

import pickle
from collections.abc import Hashable
from typing import Any, NamedTuple, cast

import numpy as np
from scipy import sparse

from riskmin.sparse import sound
from riskmin.types import NDArray


class Row(NamedTuple):
    """A vector without its zeros."""

    indices: NDArray
    values: NDArray

    def dot(self, w: NDArray) -> float:
        """The inner product with w."""
        return float(self.values @ w[self.indices])


EMPTY = Row(np.zeros(0, dtype=np.int64), np.zeros(0))


def as_row(given: Any, dim: int, name: str) -> Row:
    """A dense vector, a sparse row or a pair (indices, values) as a row; `name` is what it is called.

    Raises
    ------
    ValueError
        If it is not a vector of `dim` finite numbers.
    """
    if sparse.issparse(given):
        given = cast(Any, given)
        if given.shape not in ((dim,), (1, dim), (dim, 1)):
            raise ValueError(f"{name} has shape {given.shape}: the model's dim asks for (1, {dim})")
        coo = (sound(given) if given.ndim == 2 else given).reshape((1, dim)).tocoo()
        indices, values = coo.coords[-1].astype(np.int64), _floats(coo.data, name)
    elif isinstance(given, tuple) and len(given) == 2 and np.ndim(given[0]) == 1:
        indices, values = _pair(given, dim, name)
    else:
        dense = _floats(given, name)
        if dense.shape != (dim,):
            raise ValueError(f"{name} has shape {dense.shape}: the model's dim asks for ({dim},)")
        (indices,) = np.nonzero(dense)
        values = dense[indices]
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinity: give finite numbers")
    return Row(indices, values)


def _floats(given: Any, name: str) -> NDArray:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} is {type(given).__name__}, no vector: give an array, a sparse row or (indices, values)"
        ) from None


def _pair(given: tuple[Any, Any], dim: int, name: str) -> tuple[NDArray, NDArray]:
    indices, values = np.asarray(given[0]), _floats(given[1], name)
    if indices.shape != values.shape or (indices.size and indices.dtype.kind not in "iu"):
        raise ValueError(f"{name} is no pair (indices, values): give whole numbers, and as many numbers")
    if indices.size and not (indices.min() >= 0 and indices.max() < dim):
        raise ValueError(f"{name} has an index outside of 0..{dim - 1}: the model's dim is {dim}")
    return indices.astype(np.int64), values


def minus(a: Row, b: Row) -> Row:
    """A - b, each index once, the zeros left out."""
    indices, where = np.unique(np.concatenate([a.indices, b.indices]), return_inverse=True)
    values = np.bincount(where, np.concatenate([a.values, -b.values]), minlength=len(indices))
    kept = values != 0
    return Row(indices[kept], values[kept])


def mixture(rows: list[Row], c: NDArray, dim: int) -> NDArray:
    """The sum of c_i times row i, as a dense vector."""
    if not rows:
        return np.zeros(dim)
    indices = np.concatenate([row.indices for row in rows])
    values = np.concatenate([row.values for row in rows])
    return np.bincount(indices, values * np.repeat(c, [len(row.values) for row in rows]), minlength=dim)


def key_of(output: Any) -> Hashable:
    """What tells an output from others: equal keys, equal outputs."""
    if isinstance(output, np.ndarray) and not output.dtype.hasobject:
        return output.shape, output.dtype.str, output.tobytes()
    try:
        hash(output)
    except TypeError:
        return pickle.dumps(output)
    return output  # type: ignore[no-any-return]
