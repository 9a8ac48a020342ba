"""Rows of the host on a device: all of them if they fit, else a part; the others are copied in every pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.arrays.compressed import without_transpose
from riskmin.arrays.devices.gpu import copied_to_gpu, empty_on_gpu, free_memory, why_no_gpu
from riskmin.arrays.devices.streamed import BLOCK_BYTES, BYTES_PER_ROW, StreamedRows
from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.namespace import as_array_like, is_sparse
from riskmin.arrays.sequences import Sequences
from riskmin.core import Shard

USABLE_SHARE = 0.9
"""The share of the free memory that is used: libraries allocate some of it themselves."""


def device_number(device: Any) -> int:
    """Return the number of a device such as "cuda" or "cuda:1"; raise a ValueError if there is none here."""
    name, _, number = str(device).partition(":")
    if name != "cuda" or not (number.isdigit() or not number):
        raise ValueError(f"device={device!r} is no device: give 'cuda', 'cuda:1' or None")
    if reason := why_no_gpu():
        raise ValueError(f"device={device!r}: {reason}")
    return int(number or 0)


def on_device(X: Any, device: str, *, stream: bool = True) -> Any:
    """Return an array of NumPy or a sparse matrix of SciPy on a device: copied, or as `StreamedRows`.

    Raises
    ------
    ValueError
        If there is no such device, no CuPy, or too little memory; the message names the remedy.
    """
    number = device_number(device)
    free = free_memory(number)
    if free is None:
        raise ValueError(f"device={device!r}: there is no GPU of this number; they are counted from 0")
    # the layout of sparse entries is built beside a copy of them
    size = 3 * (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes) if is_sparse(X) else X.nbytes
    if size + BYTES_PER_ROW * X.shape[0] <= USABLE_SHARE * free:
        return copied_to_gpu(X, number)
    block = min(BLOCK_BYTES, free // 8)
    # two buffers, and vectors beside X
    room = int(USABLE_SHARE * free) - 2 * block - BYTES_PER_ROW * X.shape[0]
    if is_sparse(X) or not stream or room < 0 or X.shape[0] < 2:
        raise ValueError(
            f"X takes {size / 1e9:.1f} GB on the device, and {device} has {free / 1e9:.1f} GB free: "
            "give X in float32, fewer rows, or leave device out"
        )
    rows = StreamedRows(X, room // X[0].nbytes, empty_on_gpu(number), block_bytes=block)
    speed = rows.copies.bandwidth()
    warnings.warn(
        f"X takes {size / 1e9:.3g} GB, and {device} has {free / 1e9:.3g} GB free: "
        f"{(size - rows.streamed_bytes) / 1e9:.3g} GB stay there, and {rows.streamed_bytes / 1e9:.3g} GB are "
        f"copied in every pass, in about {rows.streamed_bytes / speed:.2g} s at {speed / 1e9:.2g} GB/s; the "
        "memory of the host may be faster than that: compare with device=None, or give X in float32",
        RuntimeWarning,
        stacklevel=2,
    )
    return rows


def shard_on_device(shard: Shard, device: str | Callable[[Any], Any]) -> Shard:
    """Return a shard with rows, labels and weights on a device, or where a function of its rows puts them."""
    X = without_transpose(shard.X)
    rows = X.as_scipy() if X.sparse else X.array
    if rows is None or isinstance(X, Sequences):
        raise ValueError("rows of sequences, and rows that are computed, stay on the CPU: leave device out")
    placed = as_matrix(device(rows) if callable(device) else on_device(rows, device, stream=False))
    labels, like = np.asarray(shard.y), placed.score_like
    if like is None or labels.dtype.kind not in "biuf":
        return shard._replace(X=placed)
    return shard._replace(X=placed, y=as_array_like(labels, like), c=as_array_like(shard.c, like))
