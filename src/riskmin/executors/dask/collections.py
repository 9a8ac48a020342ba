"""Dask collections as partitions of X, and labels gathered from Dask collections into local arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.namespace import as_numpy
from riskmin.core import NDArray
from riskmin.executors.dask.cluster import DaskCluster, connect_client
from riskmin.executors.worker_shards import WorkerPartition


def is_dask(obj: Any) -> bool:
    """Whether `obj` is a Dask collection, a future, or a list of these; works without Dask installed."""
    if isinstance(obj, (list, tuple)):
        return bool(obj) and all(
            not isinstance(element, (list, tuple)) and is_dask(element) for element in obj
        )
    # other objects, such as arrays of xarray, have the method, too, and no graph; a collection imports Dask
    dask = sys.modules.get("dask")
    has_graph = dask is not None and hasattr(type(obj), "__dask_graph__") and dask.is_dask_collection(obj)
    return bool(has_graph) or _is_future(obj)


def _is_future(obj: Any) -> bool:
    return type(obj).__module__.startswith("distributed.") and hasattr(obj, "key")


def to_local_array(values: Any, client: Any = None) -> NDArray:
    """Return labels, weights or other row vectors as a local array; gathers Dask collections.

    Parameters
    ----------
    values : Dask array, series or frame of one column, list of delayed or futures, or array
    client : distributed.Client, optional
        The current one by default.
    """
    if not is_dask(values):
        return as_numpy(values, "y")
    connected = connect_client(client)
    # a list of delayed objects or futures has one entry per partition, in the order of the rows
    several = isinstance(values, (list, tuple))
    futures = connected.compute(list(values)) if several else [_future(connected, values)]
    results = DaskCluster(connected, 0.0).gather(futures)
    parts = [as_numpy(part, "y") for part in results]
    joined: NDArray = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return joined[:, 0] if joined.ndim == 2 and joined.shape[1] == 1 else joined


def _future(client: Any, obj: Any) -> Any:
    return obj if _is_future(obj) else client.compute(obj)


class PartitionInfo(NamedTuple):
    """Shape and types of a partition, known before it is read."""

    shape: tuple[int, ...]
    nnz: int
    sparse: bool
    columns: tuple[str, ...] | None
    error: str
    """Description of the entries that are not numeric; empty if there are none."""


def partition_info(data: Any) -> PartitionInfo:
    """Describe a partition; runs on the worker that holds the rows."""
    # sparse matrix, array, or (with attribute columns) dataframe
    shape = tuple(int(n) for n in data.shape)
    if bool(sp.issparse(data)):
        return PartitionInfo(shape, int(data.nnz), True, None, _type_error(data.dtype))
    columns = getattr(data, "columns", None)
    if columns is None:
        return PartitionInfo(shape, int(np.prod(shape)), False, None, _type_error(np.asarray(data).dtype))
    kinds = zip(columns, data.dtypes, strict=True)
    errors = [f"column {name!r} holds {kind}" for name, kind in kinds if not _is_number(kind)]
    names = tuple(str(name) for name in columns)
    return PartitionInfo(shape, int(np.prod(shape)), False, names, errors[0] if errors else "")


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "biuf"


def _type_error(dtype: Any) -> str:
    return "" if _is_number(dtype) else f"it holds {dtype}"


def to_array(frame: Any) -> NDArray:
    """Return the values of a numeric dataframe as a C-contiguous float64 array."""
    return np.ascontiguousarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))


def partitions_of(X: Any, cluster: DaskCluster) -> list[WorkerPartition]:
    """Compute a collection on the workers and return its partitions, without the empty ones."""
    if isinstance(X, WorkerPartition) or not is_dask(X):
        raise TypeError(
            f"X is a {type(X).__name__}, no collection of Dask: give a Dask array or dataframe, or a list of "
            "delayed or futures; local data are sent by linear_risk(X, ..., executor=DaskExecutor())"
        )
    client = cluster.client
    futures = client.compute(_delayed_parts(X))
    infos: list[PartitionInfo] = cluster.gather(
        [client.submit(partition_info, f, pure=False) for f in futures]
    )
    _check(infos)
    parts: list[WorkerPartition] = []
    for k, (future, info) in enumerate(zip(futures, infos, strict=True)):
        # empty partitions are skipped, but if all are empty, the last one is kept
        if info.shape[0] == 0 and (parts or k < len(futures) - 1):
            continue
        # dataframes become arrays on the worker
        future = future if info.columns is None else client.submit(to_array, future, pure=False)
        n, p = info.shape
        parts.append(
            WorkerPartition(f"part {k} of X", (n, p), info.nnz, info.sparse, future, None, info.columns)
        )
    return parts


def _delayed_parts(X: Any) -> list[Any]:
    """Return the futures and delayed objects that become one partition each, in the order of the rows."""
    if isinstance(X, (list, tuple)):
        return [part for x in X for part in ([x] if _is_future(x) else _delayed_parts(x))]
    # test attributes of the type: hasattr of a delayed object is true for any name
    kind = type(X)
    # an array: a partition must have all columns, so blocks of columns are merged
    if hasattr(kind, "rechunk"):
        if X.ndim != 2:
            raise ValueError(f"X has {X.ndim} dimensions: give a Dask array of two, rows and columns")
        X = X if X.numblocks[1] == 1 else X.rechunk({1: -1})
    if not hasattr(kind, "to_delayed"):  # one delayed object
        return [X]
    return np.ravel(np.asarray(X.to_delayed(), dtype=object)).tolist()


def _check(infos: Sequence[PartitionInfo]) -> None:
    """Raise a ValueError for a partition with other columns than the first, or with nonnumeric entries."""
    first = infos[0]
    for k, info in enumerate(infos):
        if len(info.shape) != 2:
            raise ValueError(f"part {k} of X has {len(info.shape)} dimensions: give rows and columns")
        if info.error:
            raise ValueError(
                f"part {k} of X: {info.error}, not numbers: drop it or turn it into numbers first"
            )
        if info.shape[1] != first.shape[1] or info.columns != first.columns:
            raise ValueError(
                f"part {k} of X has {_columns(info)}, but part 0 has {_columns(first)}: "
                "give parts of one table"
            )


def _columns(info: PartitionInfo) -> str:
    if info.columns is None:
        return f"{info.shape[1]} columns"
    names = ", ".join(info.columns[:6])
    return f"the columns {names}{', ...' if len(info.columns) > 6 else ''}"
