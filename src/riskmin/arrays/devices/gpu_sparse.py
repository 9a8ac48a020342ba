"""Sparse matrices on a GPU: CSR or CSC of CuPy, and CSR of torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.dense import check_weight_count, even_ends
from riskmin.arrays.devices.gpu import as_cupy, from_cupy, on_stream_of, to_library_of, why_no_gpu
from riskmin.arrays.namespace import COMPLEX_X_MESSAGE, namespace
from riskmin.core import Array, Matrix, NDArray
from riskmin.core.deadline import check


def _csr_arrays(X: Any) -> tuple[Any, Any, Any]:
    """Return the row ends, columns and values of a sparse matrix in its own library; checks its form."""
    if type(X).__module__.partition(".")[0] == "cupyx":
        if X.format not in ("csr", "csc"):
            raise ValueError(f"X is a sparse matrix of CuPy in the format {X.format}: give X.tocsr()")
        rows = X.tocsr()
        return rows.indptr, rows.indices, rows.data
    if str(X.layout) != "torch.sparse_csr":
        raise ValueError(f"X is a tensor of the layout {X.layout}: give X.to_sparse_csr()")
    if not X.is_cuda:
        raise ValueError(
            "X is a sparse tensor of torch on the CPU: give X.cuda(), or a sparse matrix of SciPy, "
            "scipy.sparse.csr_array((X.values(), X.col_indices(), X.crow_indices()), X.shape)"
        )
    return X.crow_indices(), X.col_indices(), X.values()


@dataclass(frozen=True, eq=False)
class GpuSparse(Matrix):
    """A sparse matrix on a GPU, laid out anew by blocks of columns (see `_cuda.sparse`)."""

    kernels: Any
    like: Any
    """An empty array of float64 in the library of X, on its device."""

    sparse = True
    one_block = True
    on_gpu = True
    one_pass = False  # value and gradient take two reads of X

    @classmethod
    def from_sparse(cls, X: Any) -> GpuSparse:
        """Return a sparse matrix of CuPy or torch with its entries in blocks of columns."""
        if reason := why_no_gpu():
            raise ValueError(f"X is a sparse matrix on a GPU: {reason}")
        from riskmin._cuda.sparse import SparseRows

        indptr, indices, values = _csr_arrays(X)
        if str(values.dtype).rpartition(".")[2].startswith("complex"):
            raise ValueError(COMPLEX_X_MESSAGE)
        xp = namespace(values)
        with on_stream_of(values):
            kind = np.float32 if values.dtype == xp.float32 else np.float64
            parts = as_cupy(indptr, np.int64), as_cupy(indices, np.int32), as_cupy(values, kind)
            _check_indices(*parts, X.shape[1])
            return cls(SparseRows.from_csr(*parts, int(X.shape[1])), xp.astype(values[:0], xp.float64))

    @property
    def shape(self) -> tuple[int, int]:
        n, p = self.kernels.shape
        return int(n), int(p)

    @property
    def score_like(self) -> Array:
        return self.like

    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return int(self.kernels.nnz)

    @property
    def block_rows(self) -> int:
        return max(self.shape[0], 1)

    def shard_ends(self, n_shards: int) -> NDArray:
        return even_ends(self.shape[0], 1)

    def scores(self, w: Array, start: int, stop: int) -> Array:
        check_weight_count(w, self.shape[1])
        check()
        with on_stream_of(self.score_like):
            W = as_cupy(w)
            if W.ndim == 1:
                return from_cupy(self.kernels.scores(W)[start:stop], self.score_like)
            columns = [self.kernels.scores(W[:, j])[start:stop] for j in range(W.shape[1])]
            xp = namespace(self.score_like)
            return xp.stack([from_cupy(z, self.score_like) for z in columns], axis=1)

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        check()
        with on_stream_of(self.score_like):
            D = as_cupy(dz)
            for j in range(D.shape[1]) if D.ndim == 2 else [None]:
                g = self._all_rows(D if j is None else D[:, j], start)
                part = to_library_of(self.kernels.pullback(g), out)
                if j is None:
                    out += part
                else:
                    out[:, j] += part

    def _all_rows(self, g: Any, start: int) -> Any:
        """Return g with zeros for the rows that it does not have."""
        if len(g) == self.shape[0]:
            return as_cupy(g)
        whole = as_cupy(np.zeros(self.shape[0]))
        whole[start : start + len(g)] = g
        return whole

    def absolute(self, start: int, stop: int) -> Matrix:
        return replace(self, kernels=self.kernels.absolute())

    @cached_property
    def _host(self) -> Any:
        """The same matrix as one of SciPy, copied from the device."""
        with on_stream_of(self.score_like):
            return sp.csr_array(self.kernels.to_scipy())

    def as_scipy(self) -> Any:
        return self._host


def _check_indices(indptr: Any, indices: Any, values: Any, p: int) -> None:
    """Raise if row ends or columns are out of range: kernels follow them without checks."""
    ends_fit = bool((indptr[1:] >= indptr[:-1]).all()) and int(indptr[0]) == 0
    if not ends_fit or int(indptr[-1]) != len(values) or len(indices) != len(values):
        raise ValueError("the row ends of the sparse X do not fit its entries: build X anew")
    if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= p):
        raise ValueError(f"the sparse X has columns out of range: they must be from 0 to {p - 1}")
