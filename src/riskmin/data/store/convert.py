"""Conversion of files to stored data, in one pass and with constant memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from riskmin.core.atomic_files import recover
from riskmin.data.base import DataError, PathLike, check_dtype
from riskmin.data.loading import format_of
from riskmin.data.store.streams import (
    ArrowStream,
    DatasetStream,
    RestartStream,
    RowStream,
    is_table,
    open_stream,
)
from riskmin.data.store.writer import META, StoreWriter, check_replaceable

Layout = Literal["auto", "sparse", "dense"]
ProgressCallback = Callable[[int, int, float], None]
"""Called after each chunk with the number of rows and bytes written, and the fraction of the file read."""


def convert(
    source: Any,
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
    watch: ProgressCallback | None = None,
    chunk_bytes: int | None = None,
) -> None:
    """Write a file of any known format, or a table, as stored data, which need not fit into memory for a fit.

    It is read once, in constant memory apart from the distinct labels and query ids that are strings. The
    folder is created atomically.

    Parameters
    ----------
    source : path or table
        A path as for `load`. Or a table that is computed in batches of rows: a lazy frame of polars, a
        relation of DuckDB, a ``pyarrow.RecordBatchReader``, or any other object with the method
        ``__arrow_c_stream__``; with the columns of a table file, and no format.
    target : path
        The folder to write, such as ``data.rsk``.
    target_column, qid, require_labels, n_features, format, zero_based
        As for `load`, where target_column is called target.
    dtype : float64 or float32
        The dtype of X; float32 takes half the space.
    layout : {"auto", "sparse", "dense"}
        Whether zeros are left out: "auto" leaves them out for svmlight and for sparse matrices. Dense rows
        from svmlight require n_features.
    shard_mb : float
        Size of a shard, which has its own checksum, in megabytes (2^20 bytes).
    force : bool
        Whether to replace an existing target.
    watch : callable, optional
        Called as ``watch(rows, bytes, share)`` after each chunk, with the number of rows and bytes written
        and the fraction of the file that was read.
    chunk_bytes : int, optional
        As for `load`.

    Raises
    ------
    DataError
        With the file, the line, the cause and the remedy; nothing is written then.

    Notes
    -----
    A table with string labels after numeric ones is read again from its start.

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
    selection = target_column, qid, n_features, require_labels
    dtype = check_dtype(dtype)
    if is_table(source):
        folder = _target_folder(None, Path(target), force)
        _write(ArrowStream(source, selection, dtype), folder, dtype, layout, shard_mb, force, watch)
        return
    source = Path(source)
    kind = format or format_of(source)
    if kind in ("svmlight", "npz") and (target_column is not None or qid is not None):
        raise ValueError(f"target and qid name columns of a table, but {source} is {kind}: leave them out")
    folder = _target_folder(source, Path(target), force)
    stream = open_stream(source, kind, selection, dtype, zero_based, chunk_bytes)
    # dense rows have a fixed length, so that the number of columns must be known before the first row
    if layout == "dense" and stream.sparse and n_features is None and not stream.columns:
        raise DataError(source, None, "its number of columns is known only at its end; give n_features")
    _write(stream, folder, dtype, layout, shard_mb, force, watch)


def save(
    target: PathLike,
    parts: Iterable[Any],
    *,
    feature_names: list[str] | None = None,
    dtype: Any = np.float64,
    shard_mb: float = 64.0,
    force: bool = False,
) -> None:
    """Write rows that are in memory, or are generated part by part, as stored data.

    Parameters
    ----------
    target : path
        The folder to write, such as ``data.rsk``.
    parts : iterable of Dataset, or of tuples (X, y) or (X, y, qid)
        All with the same columns; y may be None. They are consumed one at a time.
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
    folder = _target_folder(None, Path(target), force)
    _write(DatasetStream(parts, dtype, feature_names), folder, dtype, "auto", shard_mb, force, None)


def _target_folder(source: Path | None, target: Path, force: bool) -> Path:
    """Return the real path to write to; raise a ValueError if nothing can be written there."""
    folder = Path(os.path.realpath(target))
    if not folder.parent.is_dir():
        raise ValueError(f"{target} cannot be written: there is no folder {folder.parent}; make it first")
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        raise ValueError(f"{target} cannot be written: the folder {folder.parent} is not writable")
    # first restore a folder that a killed process had renamed in order to replace it
    recover(folder, META)
    if not os.path.lexists(folder):
        return folder
    if source is not None and folder.samefile(source):
        raise ValueError(f"{target} is the file to read: name another")
    if not force:
        raise ValueError(f"{target} is there already: name another, or replace it by force")
    check_replaceable(folder)
    return folder


def _write(
    stream: RowStream, folder: Path, dtype: np.dtype[Any], layout: Layout, shard_mb: float, force: bool,
    watch: ProgressCallback | None,
) -> None:  # fmt: skip
    if layout not in ("auto", "sparse", "dense"):
        raise ValueError(f"layout is {layout!r}; use auto, sparse or dense")
    if not 0 < shard_mb < float("inf"):
        raise ValueError(f"shard_mb is {shard_mb!r}; give a number above 0")
    sparse = stream.sparse if layout == "auto" else layout == "sparse"
    # a second pass is needed if labels turn out to be strings; the files of the first are discarded
    done = False
    while not done:
        with StoreWriter(folder, dtype, sparse=sparse, shard_bytes=int(shard_mb * 2**20)) as writer:
            done = _fill(writer, stream, force, watch)


def _fill(writer: StoreWriter, stream: RowStream, force: bool, watch: ProgressCallback | None) -> bool:
    """Write all rows; return False if they must be read again from the start."""
    try:
        for chunk in stream:
            with writer.errors():
                writer.add(chunk, stream.columns)
            if watch is not None:
                watch(writer.rows, writer.bytes, stream.fraction_read)
    except RestartStream:
        # the writer, as a context manager, removes the rows written so far
        return False
    with writer.errors():
        writer.close(stream, force=force)
    return True
