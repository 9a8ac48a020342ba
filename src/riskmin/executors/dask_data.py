"""Dask's collections as parts of X, and labels that are brought here from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from riskmin.arrays import as_numpy
from riskmin.executors.dask_cluster import Cluster, connect
from riskmin.executors.dask_tasks import Kept
from riskmin.types import NDArray


def is_dask(thing: Any) -> bool:
    """Whether it is a collection of Dask, a future, or a list of such; Dask need not be installed to ask.

    Examples
    --------
    >>> is_dask([1.0, 2.0]), is_dask([])
    (False, False)
    """
    if isinstance(thing, (list, tuple)):
        return bool(thing) and all(not isinstance(t, (list, tuple)) and is_dask(t) for t in thing)
    return hasattr(type(thing), "__dask_graph__") or _is_future(thing)


def _is_future(thing: Any) -> bool:
    return type(thing).__module__.startswith("distributed.") and hasattr(thing, "key")


def computed(thing: Any, client: Any = None) -> NDArray:
    """Labels, weights or the like, brought here: whatever is no collection of Dask is taken as it is.

    Parameters
    ----------
    thing : Dask array, series or frame of one column, list of delayed or futures, or array
    client : distributed.Client, optional
        The current one by default.

    Examples
    --------
    >>> computed([1.0, -1.0])
    array([ 1., -1.])
    """
    if not is_dask(thing):
        return as_numpy(thing, "y")
    chosen = connect(client)
    many = isinstance(thing, (list, tuple))
    futures = chosen.compute(list(thing)) if many else [_future(chosen, thing)]
    found = Cluster(chosen, 0.0).gather(futures)
    parts = [as_numpy(part, "y") for part in found]
    joined: NDArray = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return joined[:, 0] if joined.ndim == 2 and joined.shape[1] == 1 else joined


def _future(client: Any, thing: Any) -> Any:
    return thing if _is_future(thing) else client.compute(thing)


class Outline(NamedTuple):
    """What is known of a part before it is read."""

    shape: tuple[int, ...]
    numbers: int
    sparse: bool
    columns: tuple[str, ...] | None
    wrong: str
    """What is no number in it."""


def outline(data: Any) -> Outline:
    """Runs where the rows are."""
    shape = tuple(int(n) for n in data.shape)
    if bool(sp.issparse(data)):
        return Outline(shape, int(data.nnz), True, None, _wrong(data.dtype))
    columns = getattr(data, "columns", None)
    if columns is None:
        return Outline(shape, int(np.prod(shape)), False, None, _wrong(np.asarray(data).dtype))
    kinds = zip(columns, data.dtypes, strict=True)
    wrong = [f"column {name!r} holds {kind}" for name, kind in kinds if not _is_number(kind)]
    names = tuple(str(name) for name in columns)
    return Outline(shape, int(np.prod(shape)), False, names, wrong[0] if wrong else "")


def _is_number(dtype: Any) -> bool:
    return getattr(dtype, "kind", "O") in "biuf"


def _wrong(dtype: Any) -> str:
    return "" if _is_number(dtype) else f"it holds {dtype}"


def to_array(frame: Any) -> NDArray:
    """The numbers of a frame, in rows that lie together."""
    return np.ascontiguousarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))


def parts_of(X: Any, cluster: Cluster) -> list[Kept]:
    """The parts of a collection, once it is computed on the workers; those without rows left out."""
    if isinstance(X, Kept) or not is_dask(X):
        raise TypeError(
            f"X is a {type(X).__name__}, no collection of Dask: give a Dask array or dataframe, or a list of "
            "delayed or futures; what is here is sent by linear_risk(X, ..., executor=DaskExecutor())"
        )
    client = cluster.client
    futures = client.compute(_pieces(X))
    outlines: list[Outline] = cluster.gather([client.submit(outline, f, pure=False) for f in futures])
    _check(outlines)
    found: list[Kept] = []
    for k, (future, told) in enumerate(zip(futures, outlines, strict=True)):
        if told.shape[0] == 0 and (found or k < len(futures) - 1):
            continue
        future = future if told.columns is None else client.submit(to_array, future, pure=False)
        n, p = told.shape
        found.append(Kept(f"part {k} of X", (n, p), told.numbers, told.sparse, future, None, told.columns))
    return found


def _pieces(X: Any) -> list[Any]:
    """What becomes a part each: futures and delayed, in the order of the rows."""
    if isinstance(X, (list, tuple)):
        return [piece for x in X for piece in ([x] if _is_future(x) else _pieces(x))]
    kind = type(X)  # a delayed object itself has whatever attribute it is asked for
    if hasattr(kind, "rechunk"):
        if X.ndim != 2:
            raise ValueError(f"X has {X.ndim} dimensions: give a Dask array of two, rows and columns")
        X = X if X.numblocks[1] == 1 else X.rechunk({1: -1})
    if not hasattr(kind, "to_delayed"):  # one delayed object
        return [X]
    return np.ravel(np.asarray(X.to_delayed(), dtype=object)).tolist()


def _check(outlines: Sequence[Outline]) -> None:
    """Raise a ValueError that names the part that differs, or holds something else than numbers."""
    first = outlines[0]
    for k, told in enumerate(outlines):
        if len(told.shape) != 2:
            raise ValueError(f"part {k} of X has {len(told.shape)} dimensions: give rows and columns")
        if told.wrong:
            raise ValueError(
                f"part {k} of X: {told.wrong}, not numbers: drop it or turn it into numbers first"
            )
        if told.shape[1] != first.shape[1] or told.columns != first.columns:
            raise ValueError(
                f"part {k} of X has {_columns(told)}, but part 0 has {_columns(first)}: "
                "give parts of one table"
            )


def _columns(told: Outline) -> str:
    if told.columns is None:
        return f"{told.shape[1]} columns"
    names = ", ".join(told.columns[:6])
    return f"the columns {names}{', ...' if len(told.columns) > 6 else ''}"
