"""Data from files: svmlight text, CSV, TSV, .npz and Parquet, each in one call and into one record.

Stored data (.rsk), which `convert` and `save` write, need not fit into memory. Sentences for taggers come
from CoNLL files, by `load_conll`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from riskmin.data.base import DataError as DataError
from riskmin.data.base import Dataset as Dataset
from riskmin.data.base import PathLike, check_dtype
from riskmin.data.conll import Sentences as Sentences
from riskmin.data.conll import load_conll as load_conll
from riskmin.data.conll import window_features as window_features
from riskmin.data.convert import convert as convert
from riskmin.data.convert import save as save
from riskmin.data.limits import limited
from riskmin.data.spreading import spread as spread
from riskmin.data.stored import check as check
from riskmin.data.svmlight import load_svmlight as load_svmlight
from riskmin.data.tables import Wanted
from riskmin.data.write import save_svmlight as save_svmlight

__all__ = [
    "DataError",
    "Dataset",
    "Sentences",
    "check",
    "convert",
    "load",
    "load_conll",
    "load_svmlight",
    "save",
    "save_svmlight",
    "spread",
    "window_features",
]

Format: TypeAlias = Literal["svmlight", "csv", "tsv", "npz", "parquet", "rsk"]
_FORMATS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".npz": "npz",
    ".parquet": "parquet",
    ".rsk": "rsk",
}


def format_of(path: PathLike) -> Format:
    """The format that a file's name stands for, whatever it is compressed with."""
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
) -> Dataset:
    """Read a data set from a file of any known format.

    Parameters
    ----------
    path : path
        The suffix, less .gz, .xz or .bz2, names the format: .csv and .tsv are tables of text, .parquet
        and .npz what they say, .rsk is a folder that `convert` wrote, whose X is mapped into memory, and
        anything else is svmlight text.
    target : str or int, optional
        The column of the labels in a table, by name or index. By default the one called "target",
        "label", "y" or "class" (the first of these there is), else the last.
    qid : str or int, optional
        The column of the query ids in a table, by name or index; by default the one called "qid", if there
        is one. They may be words. It is no feature.
    require_labels : bool
        If false, as for a prediction, the labels may be there or not. A table of n_features columns has
        none; else the target is found as above, but the last column is taken for it only if n_features
        says that there is one too many. y is None without labels.
    n_features : int, optional
        The number of features to expect. Only sparse data, which do not name their columns, may have
        fewer.
    dtype : float64 or float32, optional
        Of X; by default float64, or that of the stored data.
    format : {"svmlight", "csv", "tsv", "npz", "parquet", "rsk"}, optional
        If the suffix misleads.
    zero_based, multilabel
        Of svmlight: see `load_svmlight`.
    verify : bool
        Whether the checksums of stored data are compared first, which reads all of them once. If not, only
        what points from one array into another is looked at.
    max_memory : float, optional
        How many megabytes reading may take, so that small files which stand for large data, such as
        compressed ones, are refused and not read until memory ends. By default, what this machine, its
        control group and the limits of the process allow. Stored data, which are mapped, take none.

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
    arrays X and y, and perhaps qid and feature_names, or y beside what `scipy.sparse.save_npz` writes;
    pickled objects are refused.

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
    columns = target, qid, n_features, require_labels
    with limited(max_memory):
        return _load(path, format or format_of(path), columns, dtype, zero_based, multilabel, verify)


def _load(
    path: PathLike,
    kind: Format,
    columns: Wanted,
    dtype: Any,
    zero_based: bool | Literal["auto"],
    multilabel: bool,
    verify: bool,
) -> Dataset:
    """`load`, by the reader of the format."""
    target, qid, n_features, require_labels = columns
    if kind == "rsk":
        from riskmin.data.stored import load_stored

        if target is not None or qid is not None:
            problem = "labels and query ids were found when it was converted; leave target and qid out"
            raise DataError(path, None, problem)
        return load_stored(
            path, n_features=n_features, dtype=dtype, require_labels=require_labels, verify=verify
        )
    dtype = check_dtype(np.float64 if dtype is None else dtype)
    if kind == "svmlight":
        return load_svmlight(
            path,
            n_features=n_features,
            dtype=dtype,
            zero_based=zero_based,
            multilabel=multilabel,
            require_labels=require_labels,
        )
    if kind == "npz":
        from riskmin.data.npz import load_npz

        return load_npz(path, n_features=n_features, dtype=dtype, require_labels=require_labels)
    if kind == "parquet":
        from riskmin.data.parquet import load_parquet

        return load_parquet(path, columns, dtype)
    if kind not in ("csv", "tsv"):
        raise ValueError(f"format is {kind!r}; use svmlight, csv, tsv, npz, parquet or rsk")
    from riskmin.data.tables import load_csv

    return load_csv(path, columns, dtype, tsv=kind == "tsv")
