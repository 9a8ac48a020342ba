"""Joint features as returned by a user's model, checked and converted to sparse vectors."""

from __future__ import annotations

import pickle
from collections.abc import Hashable
from typing import Any, NamedTuple, cast

import numpy as np
from scipy import sparse

from riskmin.arrays.sparse_checks import validated_sparse
from riskmin.core import NDArray


class SparseVector(NamedTuple):
    """The nonzeros of a vector."""

    indices: NDArray
    values: NDArray

    def dot(self, w: NDArray) -> float:
        """The inner product with w."""
        return float(self.values @ w[self.indices])


EMPTY = SparseVector(np.zeros(0, dtype=np.int64), np.zeros(0))


def as_sparse(vector: Any, dim: int, name: str) -> SparseVector:
    """Convert a dense vector, a sparse row or a pair (indices, values); `name` is used in messages.

    Raises
    ------
    ValueError
        If it is not a vector of `dim` finite numbers.
    """
    if sparse.issparse(vector):
        vector = cast(Any, vector)
        # a sparse vector may be 1-d, one row or one column
        if vector.shape not in ((dim,), (1, dim), (dim, 1)):
            raise ValueError(f"{name} has shape {vector.shape}: the model's dim requires (1, {dim})")
        coo = (validated_sparse(vector) if vector.ndim == 2 else vector).reshape((1, dim)).tocoo()
        indices, values = coo.coords[-1].astype(np.int64), _floats(coo.data, name)
    elif isinstance(vector, tuple) and len(vector) == 2 and np.ndim(vector[0]) == 1:
        indices, values = _index_value_pair(vector, dim, name)
    else:
        dense = _floats(vector, name)
        if dense.shape != (dim,):
            raise ValueError(f"{name} has shape {dense.shape}: the model's dim requires ({dim},)")
        (indices,) = np.nonzero(dense)
        values = dense[indices]
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinity: give finite numbers")
    return SparseVector(indices, values)


def _floats(vector: Any, name: str) -> NDArray:
    try:
        return np.asarray(vector, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} is {type(vector).__name__}, no vector: give an array, a sparse row or (indices, values)"
        ) from None


def _index_value_pair(vector: tuple[Any, Any], dim: int, name: str) -> tuple[NDArray, NDArray]:
    indices, values = np.asarray(vector[0]), _floats(vector[1], name)
    if indices.shape != values.shape or (indices.size and indices.dtype.kind not in "iu"):
        raise ValueError(f"{name} is no pair (indices, values): give whole numbers, and as many numbers")
    if indices.size and not (indices.min() >= 0 and indices.max() < dim):
        raise ValueError(f"{name} has an index outside of 0..{dim - 1}: the model's dim is {dim}")
    return indices.astype(np.int64), values


def subtract(a: SparseVector, b: SparseVector) -> SparseVector:
    """The difference a - b, with unique indices and without zeros."""
    # merge the indices, and add up the values at equal ones; entries that cancel are dropped
    indices, position = np.unique(np.concatenate([a.indices, b.indices]), return_inverse=True)
    values = np.bincount(position, np.concatenate([a.values, -b.values]), minlength=len(indices))
    nonzero = values != 0
    return SparseVector(indices[nonzero], values[nonzero])


def mixture(rows: list[SparseVector], c: NDArray, dim: int) -> NDArray:
    """The sum of c_i times row i, as a dense vector."""
    if not rows:
        return np.zeros(dim)
    # all rows as one list of (index, c_i value), added up by index: no matrix is formed
    indices = np.concatenate([row.indices for row in rows])
    values = np.concatenate([row.values for row in rows])
    return np.bincount(indices, values * np.repeat(c, [len(row.values) for row in rows]), minlength=dim)


def key_of(output: Any) -> Hashable:
    """A hashable key of an output: equal keys mean equal outputs."""
    # arrays are not hashable: their shape, dtype and bytes identify them
    if isinstance(output, np.ndarray) and not output.dtype.hasobject:
        return output.shape, output.dtype.str, output.tobytes()
    try:
        hash(output)
    except TypeError:
        return pickle.dumps(output)
    return output  # type: ignore[no-any-return]
