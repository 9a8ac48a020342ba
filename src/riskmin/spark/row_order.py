"""Hashes of rows, sum_j m_j h(x_ij) modulo 2^64: the same for equal rows, in any storage and order."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.core import NDArray
from riskmin.core.limits import LIMITS


def hash_rows(rows: Any, seed: int) -> NDArray:
    """Return a 64-bit hash of each row of an array of numbers or strings, or of a sparse matrix.

    Entries that are zero add nothing, so that a row has the same hash in a dense and a sparse matrix.
    """
    if bool(sp.issparse(rows)):
        terms = _mixed(_bits(rows.data)) * _multipliers(rows.indices, seed)
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
        sums: NDArray = total[rows.indptr[1:]] - total[rows.indptr[:-1]]
        return sums
    hashes = np.empty(len(rows), np.uint64)
    step = max(LIMITS.hash_block_entries // max(rows.shape[1], 1), 1)
    for i in range(0, len(rows), step):
        bits = _bits(np.ascontiguousarray(rows[i : i + step])).reshape(len(rows[i : i + step]), -1)
        hashes[i : i + step] = (_mixed(bits) * _multipliers(np.arange(bits.shape[1]), seed)).sum(1, np.uint64)
    return hashes


def _bits(values: NDArray) -> NDArray:
    """Return the bits of numbers as integers; of strings, those of their characters."""
    if values.dtype.kind == "U":
        return values.view(np.uint32).astype(np.uint64)
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64).view(np.uint64)


def _mixed(bits: NDArray) -> NDArray:
    """Return the integers with all bits mixed, by the finalizer of splitmix64; zero stays zero."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray = bits ^ (bits >> np.uint64(31))
    return mixed


def _multipliers(columns: NDArray, seed: int) -> NDArray:
    """Return an odd number for each column; `seed` tells the tables of columns apart."""
    odd: NDArray = _mixed(columns.astype(np.uint64) + np.uint64((seed << 32) + 1)) | np.uint64(1)
    return odd
