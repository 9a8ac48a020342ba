"""Files as partitions of X that are read by the process that needs them: for clusters and large data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from riskmin.arrays.partitioned import Partition, PartitionedMatrix
from riskmin.data import limits
from riskmin.data.base import DataError, Dataset, PathLike, check_dtype, concatenated
from riskmin.data.formats.svmlight import read_svmlight
from riskmin.data.loading import format_of, load
from riskmin.data.store.reader import StoredMatrix, open_store
from riskmin.executors import Processes, as_backend


def load_partitioned(
    paths: PathLike | Sequence[PathLike],
    *,
    executor: Any = None,
    n_features: int | None = None,
    **settings: Any,
) -> Dataset:
    """Return files as a partitioned X, whose rows the workers read; labels and query ids are read at once.

    Parameters
    ----------
    paths : path or sequence of paths
        One folder of stored data, which can be split into any number of partitions; or files of any known
        format with the same columns, one partition each. The paths must be valid on the workers, too.
    executor : Backend, optional
        The executor of the fit. With a `DaskExecutor`, the workers read each file once, at this call; with
        `Serial` or `Threads`, this process does. Otherwise this process also reads files that are not stored
        data, one after the other, for their labels.
    n_features : int, optional
        The number of columns; for sparse files, the largest number in any of them by default.
    **settings
        As for `load`: target, qid, require_labels, dtype, format, zero_based, max_memory. And the
        preparation of raw tables, a `TablePreparation`, which the workers apply.

    Returns
    -------
    Dataset
        X is a `PartitionedMatrix`, which `linear_risk` and the estimators accept.

    Raises
    ------
    DataError
        With the file that cannot be used, or whose columns differ.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> from riskmin.data import save, load_partitioned
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "tiny.rsk")
    ...     save(path, [(np.eye(2), [1.0, -1.0])])
    ...     X, y, *_ = load_partitioned(path)
    ...     X.shape, linear_risk(X, y, Hinge())(np.zeros(2))[0]
    ((2, 2), 1.0)
    """
    kind = settings.get("format")
    if isinstance(paths, (str, os.PathLike)):
        if (kind or format_of(paths)) == "rsk":
            return _stored(paths, executor, n_features, settings)
        paths = [paths]
    if not paths:
        raise ValueError("there are no files: name one at least")
    kinds = [kind or format_of(path) for path in paths]
    # the settings are sent to the workers, so that all files are read in the same way
    settings = settings | {
        "dtype": check_dtype(np.float64 if settings.get("dtype") is None else settings["dtype"])
    }
    if limits.current_max_memory() is not None:  # workers do not share the context variable
        settings.setdefault("max_memory", limits.current_max_memory())
    files = [str(Path(path).absolute()) for path in paths]
    if all(kind == "rsk" for kind in kinds):
        summaries = [_stored_summary(file, settings.get("require_labels", True)) for file in files]
        columns = _common_columns(files, summaries, n_features)
        parts: list[Partition] = [
            StoredMatrix(f, columns, summary.meta_crc32).part(0, summary.shape[0])
            for f, summary in zip(files, summaries, strict=True)
        ]
    elif "rsk" in kinds:
        raise DataError(
            paths[kinds.index("rsk")], None, "stored data are mixed with other files; convert all or none"
        )
    else:
        summaries, parts = _file_parts(files, executor, n_features, settings)
    y = concatenated(files, "y", [summary.y for summary in summaries])
    qid = concatenated(files, "qid", [summary.qid for summary in summaries])
    return Dataset(PartitionedMatrix(parts, executor), y, qid, summaries[0].names)  # type: ignore[arg-type]


class _FileSummary(NamedTuple):
    """Shape, labels and names of a file, without its rows."""

    shape: tuple[int, int]
    nnz: int
    sparse: bool
    one_based: bool
    """Whether its column indices were assumed to start from one, which svmlight leaves open."""
    y: NDArray[Any] | None
    qid: NDArray[Any] | None
    names: list[str] | None
    meta_crc32: int = 0
    """Checksum of the metadata, for stored data."""


# ---------------------------------------------------------------- stored data
def _stored(path: PathLike, executor: Any, n_features: int | None, settings: dict[str, Any]) -> Dataset:
    """Return one folder of stored data: labels and query ids are copied, X is not read."""
    file = str(Path(path).absolute())
    if settings.get("target") is not None or settings.get("qid") is not None:
        problem = "labels and query ids were found when it was converted; leave target and qid out"
        raise DataError(path, None, problem)
    summary = _stored_summary(file, settings.get("require_labels", True))
    source = StoredMatrix(file, _common_columns([file], [summary], n_features), summary.meta_crc32)
    X: Any = PartitionedMatrix(list(source.shards()), executor, source)
    return Dataset(X, summary.y, summary.qid, summary.names)


def _stored_summary(file: str, require_labels: bool) -> _FileSummary:
    """Summarize a folder of stored data."""
    store = open_store(file)
    if require_labels and "y" not in store.dtypes:
        raise DataError(file, None, "it has no labels; convert data that have them")
    _ = store.arrays  # raises now if a file is missing or truncated
    shape = store.rows, store.columns
    return _FileSummary(shape, store.nnz, store.sparse, False, *store.labels(), store.names, store.meta_crc32)


# ---------------------------------------------------------------- other files
class _LoadedFile(NamedTuple):
    """Content of a file."""

    data: Dataset
    one_based: bool


def _read(file: str, n_features: int | None, settings: dict[str, Any]) -> _LoadedFile:
    """Read a file; may run on a worker."""
    if (preparation := settings.get("preparation")) is not None:
        roles, labels = {name: settings.get(name) for name in ("target", "qid")}, settings["require_labels"]
        with limits.memory_limited(settings.get("max_memory")):
            rows = preparation.read([file], **roles, labels=labels)
        return _LoadedFile(Dataset(rows.X, rows.y, rows.qid, rows.feature_names), False)
    if (settings.get("format") or format_of(file)) != "svmlight":
        return _LoadedFile(load(file, n_features=n_features, **settings), False)
    base, labels = settings.get("zero_based", "auto"), settings.get("require_labels", True)
    with limits.memory_limited(settings.get("max_memory")):
        reader = read_svmlight(file, n_features, settings["dtype"], base, False, labels)
    return _LoadedFile(reader.dataset(), reader.one_based)


def _summary(loaded: _LoadedFile) -> _FileSummary:
    """Summarize a file; may run on a worker."""
    X, y, qid, names = loaded.data
    sparse = bool(sp.issparse(X))
    nnz = X.nnz if sparse else X.size  # type: ignore[union-attr]
    return _FileSummary(X.shape, int(nnz), sparse, loaded.one_based, y, qid, names)  # type: ignore[arg-type]


def _rows(loaded: _LoadedFile, columns: int, shift: int) -> Any:
    """Return the rows of a file with the common number of columns, and with indices increased by `shift`."""
    X: Any = loaded.data.X
    if X.shape[1] == columns and not shift:
        return X
    return sp.csr_matrix((X.data, X.indices + shift if shift else X.indices, X.indptr), (X.shape[0], columns))


def _file_parts(
    files: list[str], executor: Any, n_features: int | None, settings: dict[str, Any]
) -> tuple[list[_FileSummary], list[Partition]]:
    """Return the summaries of files, and their partitions."""
    # rows of which it is not known where they are needed are read again there, as with `Processes`
    backend = as_backend(executor or Processes)
    # backends with memory for them read each file once and keep it there; `handles` refer to the results
    handles = backend.persist(partial(_read, n_features=n_features, settings=settings), files)
    summaries = backend.apply(handles, _summary)
    # if one sparse file has an index 0, the indices of all of them start from 0
    sparse_files = [info for info in summaries if info.sparse]
    mixed = len({info.one_based for info in sparse_files}) > 1
    shifts = [int(mixed and info.one_based) for info in summaries]
    # files that were read with indices from 1 have one column less than with indices from 0
    shifted = [
        info._replace(shape=(info.shape[0], info.shape[1] + shift))
        for info, shift in zip(summaries, shifts, strict=True)
    ]
    if n_features is not None:
        shifted = [info._replace(shape=(info.shape[0], n_features)) for info in shifted]
    columns = _common_columns(files, shifted, n_features)
    parts = [
        backend.part(
            handle,
            file,
            (summary.shape[0], columns),
            summary.nnz,
            summary.sparse,
            partial(_rows, columns=columns, shift=shift),
        )
        for handle, file, summary, shift in zip(handles, files, summaries, shifts, strict=True)
    ]
    return summaries, parts


def _common_columns(files: list[str], summaries: list[_FileSummary], n_features: int | None) -> int:
    """Return the number of columns of all files; raise a DataError for the first file with other columns."""
    # sparse files may have fewer columns than others: the last columns may have no entries in them
    first, largest = summaries[0], max(info.shape[1] for info in summaries)
    expected = n_features if n_features is not None else largest if first.sparse else first.shape[1]
    for file, info in zip(files, summaries, strict=True):
        if info.sparse != first.sparse:
            problem = (
                f"it is {'sparse' if info.sparse else 'dense'}, unlike {files[0]}; convert both to one layout"
            )
            raise DataError(file, None, problem)
        if info.shape[1] > expected or (info.shape[1] < expected and not info.sparse):
            expectation = (
                f"{n_features} are expected" if n_features is not None else f"{files[0]} has {expected}"
            )
            raise DataError(
                file, None, f"it has {info.shape[1]} columns, but {expectation}; give files of one table"
            )
        if info.names != first.names:
            pairs = zip(info.names or ["none"], first.names or ["none"], strict=False)
            name, expected_name = next(((x, y) for x, y in pairs if x != y), ("none", "none"))
            problem = (
                f"its column {name!r} is where {files[0]} has {expected_name!r}; give files of one table"
            )
            raise DataError(file, None, problem)
    return expected
