"""Read a data set from a file of any known format, which its suffix determines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from riskmin.data.base import DataError, Dataset, PathLike, check_dtype
from riskmin.data.formats.svmlight import CHUNK_BYTES, load_svmlight
from riskmin.data.formats.text_table import ColumnSelection
from riskmin.data.limits import memory_limited

Format: TypeAlias = Literal["svmlight", "csv", "tsv", "npz", "parquet", "rsk"]
_FORMATS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".npz": "npz",
    ".parquet": "parquet",
    ".rsk": "rsk",
}


def format_of(path: PathLike) -> Format:
    """Return the format of a file by its suffix, after removing suffixes of compression."""
    suffixes = [s.lower() for s in Path(path).suffixes]
    while suffixes and suffixes[-1] in (".gz", ".xz", ".bz2"):
        suffixes.pop()
    return _FORMATS.get(suffixes[-1] if suffixes else "", "svmlight")


def load(
    path: PathLike,
    *,
    target: str | int | None = None,
    qid: str | int | None = None,
    require_labels: bool = True,
    n_features: int | None = None,
    dtype: Any = None,
    format: Format | None = None,
    zero_based: bool | Literal["auto"] = "auto",
    multilabel: bool = False,
    verify: bool = True,
    max_memory: float | None = None,
    chunk_bytes: int | None = None,
) -> Dataset:
    """Read a data set from a file of any known format.

    Parameters
    ----------
    path : path
        The suffix, without .gz, .xz or .bz2, determines the format: .csv and .tsv are text tables, .parquet
        is Parquet, .npz is NumPy's format, .rsk is a folder written by `convert`, whose X is memory-mapped,
        and any other suffix means svmlight text.
    target : str or int, optional
        The column of the labels in a table, by name or index. By default the first of the columns
        "target", "label", "y" and "class" that exists, else the last column.
    qid : str or int, optional
        The column of the query ids in a table, by name or index; by default the one called "qid", if it
        exists. Query ids may be strings. The column is not a feature.
    require_labels : bool
        If false, as for a prediction, labels are optional. A table of n_features columns has none; otherwise
        the target is determined as above, but the last column is the target only if the table has one
        column more than n_features. Without labels, y is None.
    n_features : int, optional
        The expected number of features. Only sparse data, whose columns have no names, may have fewer.
    dtype : float64 or float32, optional
        Of X; by default float64, or that of the stored data.
    format : {"svmlight", "csv", "tsv", "npz", "parquet", "rsk"}, optional
        The format, if it differs from that of the suffix.
    zero_based, multilabel
        For svmlight text: see `load_svmlight`.
    verify : bool
        Whether to verify the checksums of stored data first, which reads all of them once. If not, only the
        indices and row pointers are checked.
    max_memory : float, optional
        Limit in megabytes on the memory that reading may take, so that small files that expand to large
        data, such as compressed ones, raise an error instead of exhausting memory. The default is the memory
        that the machine, its control group and the limits of the process allow. Memory-mapped data do not
        count.
    chunk_bytes : int, optional
        How much is parsed at a time: bytes of svmlight text, or of the numbers of a CSV or TSV table. The
        result does not depend on it.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        With the file, the line, the cause and the remedy.

    Notes
    -----
    CSV may have commas, semicolons or tabs, quotes and a byte order mark. If all cells of its first row
    are numbers, it has no header. Labels that are not all numbers are class names. A .npz file has the
    arrays X and y, and optionally qid and feature_names; instead of X it may have the arrays written by
    `scipy.sparse.save_npz`. Pickled objects are refused.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "flowers.csv")
    ...     _ = path.write_text("width,height,class\\n1,2,iris\\n3,4,rose\\n")
    ...     data = load(path)
    >>> data.X, data.y.tolist(), data.feature_names
    (array([[1., 2.],
           [3., 4.]]), ['iris', 'rose'], ['width', 'height'])
    """
    # a ColumnSelection; only tables use its target and qid
    columns = target, qid, n_features, require_labels
    with memory_limited(max_memory):
        return _load(
            path, format or format_of(path), columns, dtype, zero_based, multilabel, verify, chunk_bytes
        )


def _load(
    path: PathLike,
    kind: Format,
    columns: ColumnSelection,
    dtype: Any,
    zero_based: bool | Literal["auto"],
    multilabel: bool,
    verify: bool,
    chunk_bytes: int | None,
) -> Dataset:
    """Call the reader of the format, for `load`."""
    target, qid, n_features, require_labels = columns
    # readers are imported when they are needed
    if kind == "rsk":
        from riskmin.data.store.reader import load_stored

        if target is not None or qid is not None:
            problem = "labels and query ids were found when it was converted; leave target and qid out"
            raise DataError(path, None, problem)
        return load_stored(
            path, n_features=n_features, dtype=dtype, require_labels=require_labels, verify=verify
        )
    # stored data have a dtype; all other formats are converted to one
    dtype = check_dtype(np.float64 if dtype is None else dtype)
    if kind == "svmlight":
        return load_svmlight(
            path,
            n_features=n_features,
            dtype=dtype,
            zero_based=zero_based,
            multilabel=multilabel,
            require_labels=require_labels,
            chunk_bytes=chunk_bytes or CHUNK_BYTES,
        )
    if kind == "npz":
        from riskmin.data.formats.npz import load_npz

        return load_npz(path, n_features=n_features, dtype=dtype, require_labels=require_labels)
    if kind == "parquet":
        from riskmin.data.formats.parquet import load_parquet

        return load_parquet(path, columns, dtype)
    if kind not in ("csv", "tsv"):
        raise ValueError(f"format is {kind!r}; use svmlight, csv, tsv, npz, parquet or rsk")
    from riskmin.data.formats.tables import load_csv

    return load_csv(path, columns, dtype, tsv=kind == "tsv", chunk_bytes=chunk_bytes)
