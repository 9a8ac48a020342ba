"""From a file to stored data, in one pass and with constant memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from riskmin.data.base import DataError, PathLike, check_dtype
from riskmin.data.streams import Again, DataStream, Stream, stream_of
from riskmin.data.writer import META, Writer, check_replaceable
from riskmin.files import recover

Layout = Literal["auto", "sparse", "dense"]
Watch = Callable[[int, int, float], None]
"""Told after each piece how many rows and bytes were written, and what share of the file was read."""


def convert(
    source: PathLike,
    target: PathLike,
    *,
    target_column: str | int | None = None,
    qid: str | int | None = None,
    require_labels: bool = True,
    n_features: int | None = None,
    dtype: Any = np.float64,
    format: Any = None,
    zero_based: bool | Literal["auto"] = "auto",
    layout: Layout = "auto",
    shard_mb: float = 64.0,
    force: bool = False,
    watch: Watch | None = None,
) -> None:
    """Write a file of any known format as stored data, which need not fit into memory to be fitted to.

    It is read once, and memory does not grow with it, but for the words of labels and query ids that are
    words. The folder is there whole or not at all.

    Parameters
    ----------
    source : path
        As for `load`.
    target : path
        The folder to write, such as ``data.rsk``.
    target_column, qid, require_labels, n_features, format, zero_based
        As for `load`, where target_column is called target.
    dtype : float64 or float32
        Of X: float32 halves it.
    layout : {"auto", "sparse", "dense"}
        Whether zeros are left out: by default for svmlight and what is sparse already. For dense rows from
        svmlight, n_features must say how many columns there are.
    shard_mb : float
        A checksum is kept for about so many megabytes (of 2^20 bytes) each.
    force : bool
        Whether a target that exists is replaced.
    watch : callable, optional
        Called as ``watch(rows, bytes, share)`` now and then: what was written, and how much was read.

    Raises
    ------
    DataError
        With the file, the line, the cause and the remedy; nothing is written then.

    Notes
    -----
    A table whose labels turn out to be words after they began as numbers is read again from its start.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from riskmin.data import convert, load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text, stored = pathlib.Path(folder, "tiny.svm"), pathlib.Path(folder, "tiny.rsk")
    ...     _ = text.write_text("+1 1:0.5 3:2\\n-1 2:1\\n")
    ...     convert(text, stored)
    ...     print(load(stored).X.toarray())
    [[0.5 0.  2. ]
     [0.  1.  0. ]]
    """
    from riskmin.data import format_of

    source = Path(source)
    wanted = target_column, qid, n_features, require_labels
    kind = format or format_of(source)
    if kind in ("svmlight", "npz") and (target_column is not None or qid is not None):
        raise ValueError(f"target and qid name columns of a table, but {source} is {kind}: leave them out")
    dtype = check_dtype(dtype)
    place = _place(source, Path(target), force)
    stream = stream_of(source, kind, wanted, dtype, zero_based)
    if layout == "dense" and stream.sparse and n_features is None and not stream.columns:
        raise DataError(source, None, "how many columns it has is known at its end only; give n_features")
    _write(stream, place, dtype, layout, shard_mb, force, watch)


def save(
    target: PathLike,
    parts: Iterable[Any],
    *,
    feature_names: list[str] | None = None,
    dtype: Any = np.float64,
    shard_mb: float = 64.0,
    force: bool = False,
) -> None:
    """Write rows that a program has, or makes part by part, as stored data.

    Parameters
    ----------
    target : path
        The folder to write, such as ``data.rsk``.
    parts : iterable of Dataset, or of tuples (X, y) or (X, y, qid)
        All with the same columns; y may be None. They are asked for one at a time.
    feature_names : list of str, optional
    dtype, shard_mb, force
        As for `convert`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from riskmin.data import load, save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "squares.rsk")
    ...     save(path, ((np.full((2, 3), k * k), [k, -k]) for k in range(1, 4)))
    ...     load(path).X.shape
    (6, 3)
    """
    dtype = check_dtype(dtype)
    place = _place(None, Path(target), force)
    _write(DataStream(parts, dtype, feature_names), place, dtype, "auto", shard_mb, force, None)


def _place(source: Path | None, target: Path, force: bool) -> Path:
    """Where to write, if that can be done."""
    place = Path(os.path.realpath(target))
    if not place.parent.is_dir():
        raise ValueError(f"{target} cannot be written: there is no folder {place.parent}; make it first")
    if not os.access(place.parent, os.W_OK | os.X_OK):
        raise ValueError(f"{target} cannot be written: the folder {place.parent} is not open to you")
    recover(place, META)
    if not os.path.lexists(place):
        return place
    if source is not None and place.samefile(source):
        raise ValueError(f"{target} is the file to read: name another")
    if not force:
        raise ValueError(f"{target} is there already: name another, or replace it by force")
    check_replaceable(place)
    return place


def _write(
    stream: Stream, place: Path, dtype: np.dtype[Any], layout: Layout, shard_mb: float, force: bool,
    watch: Watch | None,
) -> None:  # fmt: skip
    if layout not in ("auto", "sparse", "dense"):
        raise ValueError(f"layout is {layout!r}; use auto, sparse or dense")
    if not 0 < shard_mb < float("inf"):
        raise ValueError(f"shard_mb is {shard_mb!r}; give a number above 0")
    sparse = stream.sparse if layout == "auto" else layout == "sparse"
    done = False
    while not done:
        with Writer(place, dtype, sparse=sparse, shard_bytes=int(shard_mb * 2**20)) as writer:
            done = _fill(writer, stream, force, watch)


def _fill(writer: Writer, stream: Stream, force: bool, watch: Watch | None) -> bool:
    """Write all rows; False where they must be read again."""
    try:
        for piece in stream:
            with writer.errors():
                writer.add(piece, stream.columns)
            if watch is not None:
                watch(writer.rows, writer.bytes, stream.share)
    except Again:
        return False
    with writer.errors():
        writer.close(stream, force=force)
    return True
