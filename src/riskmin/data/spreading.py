"""Files as parts that are read where they are needed: for clusters, and for data that no machine holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from riskmin.data import limits
from riskmin.data.base import DataError, Dataset, PathLike, check_dtype
from riskmin.data.stored import Stored, open_store
from riskmin.spread import Part, Spread


def spread(
    paths: PathLike | Sequence[PathLike],
    *,
    executor: Any = None,
    n_features: int | None = None,
    **settings: Any,
) -> Dataset:
    """Files whose rows are read where they are computed with; only labels and query ids are brought here.

    Parameters
    ----------
    paths : path or sequence of paths
        One folder of stored data, which can be cut into any number of parts; or files of any known format
        with the same columns, each of which is a part. Workers must find them by the same paths.
    executor : executor settings, optional
        Who will compute. With a `DaskExecutor`, workers read the files at once, and each only once; else
        files that are not stored data are read here too, one after the other, for their labels.
    n_features : int, optional
        The number of columns. By default sparse files have as many as the one with the most.
    **settings
        As for `load`: target, qid, require_labels, dtype, format, zero_based, max_memory.

    Returns
    -------
    Dataset
        X is a `Spread`, which `linear_risk` and the estimators take.

    Raises
    ------
    DataError
        With the file that cannot be used, or whose columns are others.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> from riskmin.data import save, spread
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "tiny.rsk")
    ...     save(path, [(np.eye(2), [1.0, -1.0])])
    ...     X, y, *_ = spread(path)
    ...     X.shape, linear_risk(X, y, Hinge())(np.zeros(2))[0]
    ((2, 2), 1.0)
    """
    from riskmin.data import format_of

    kind = settings.get("format")
    if isinstance(paths, (str, os.PathLike)):
        if (kind or format_of(paths)) == "rsk":
            return _stored(paths, executor, n_features, settings)
        paths = [paths]
    if not paths:
        raise ValueError("there are no files: name one at least")
    kinds = [kind or format_of(path) for path in paths]
    settings = settings | {
        "dtype": check_dtype(np.float64 if settings.get("dtype") is None else settings["dtype"])
    }
    if limits.given() is not None:  # which workers do not know
        settings.setdefault("max_memory", limits.given())
    files = [str(Path(path).absolute()) for path in paths]
    if all(kind == "rsk" for kind in kinds):
        briefs = [_brief_stored(file, settings.get("require_labels", True)) for file in files]
        columns = _columns(files, briefs, n_features)
        parts: list[Part] = [
            Stored(f, columns, b.stamp).part(0, b.shape[0]) for f, b in zip(files, briefs, strict=True)
        ]
    elif "rsk" in kinds:
        raise DataError(
            paths[kinds.index("rsk")], None, "stored data stand beside other files; convert all or none"
        )
    else:
        briefs, parts = _files(files, executor, n_features, settings)
    y, qid = (_joined(files, what, [getattr(b, what) for b in briefs]) for what in ("y", "qid"))
    return Dataset(Spread(parts, executor), y, qid, briefs[0].names)  # type: ignore[arg-type]


class _Brief(NamedTuple):
    """What is known here of a file."""

    shape: tuple[int, int]
    numbers: int
    sparse: bool
    from_one: bool
    """Whether its columns were counted from one, which svmlight does not say."""
    y: NDArray[Any] | None
    qid: NDArray[Any] | None
    names: list[str] | None
    stamp: int = 0
    """Of stored data."""


# ---------------------------------------------------------------- stored data
def _stored(path: PathLike, executor: Any, n_features: int | None, settings: dict[str, Any]) -> Dataset:
    """One folder: labels and query ids are copied, X is not touched."""
    file = str(Path(path).absolute())
    if settings.get("target") is not None or settings.get("qid") is not None:
        problem = "labels and query ids were found when it was converted; leave target and qid out"
        raise DataError(path, None, problem)
    brief = _brief_stored(file, settings.get("require_labels", True))
    source = Stored(file, _columns([file], [brief], n_features), brief.stamp)
    X: Any = Spread(list(source.shards()), executor, source)
    return Dataset(X, brief.y, brief.qid, brief.names)


def _brief_stored(file: str, require_labels: bool) -> _Brief:
    store = open_store(file)
    if require_labels and "y" not in store.dtypes:
        raise DataError(file, None, "it has no labels; convert data that have them")
    _ = store.arrays  # a file that is missing or truncated is found now
    shape = store.rows, store.columns
    return _Brief(shape, store.numbers, store.sparse, False, *store.labels(), store.names, store.stamp)


# ---------------------------------------------------------------- other files
@dataclass(frozen=True)
class FilePart:
    """A file that is read where it is needed."""

    path: str
    shape: tuple[int, int]
    numbers: int
    sparse: bool
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file."""
        return self.path

    def read(self) -> Any:
        """Its rows."""
        from riskmin.data import load

        return load(self.path, n_features=self.shape[1], **self.settings).X


class _Held(NamedTuple):
    """A file that was read."""

    data: Dataset
    from_one: bool


def _read(file: str, n_features: int | None, settings: dict[str, Any]) -> _Held:
    """A file; on a worker, perhaps."""
    from riskmin.data import format_of, load
    from riskmin.data.svmlight import read_svmlight

    if (settings.get("format") or format_of(file)) != "svmlight":
        return _Held(load(file, n_features=n_features, **settings), False)
    base, labels = settings.get("zero_based", "auto"), settings.get("require_labels", True)
    with limits.limited(settings.get("max_memory")):
        reader = read_svmlight(file, n_features, settings["dtype"], base, False, labels)
    return _Held(reader.dataset(), reader.from_one)


def _brief(held: _Held) -> _Brief:
    X, y, qid, names = held.data
    sparse = bool(sp.issparse(X))
    numbers = X.nnz if sparse else X.size  # type: ignore[union-attr]
    return _Brief(X.shape, int(numbers), sparse, held.from_one, y, qid, names)  # type: ignore[arg-type]


def _rows(held: _Held, columns: int, shift: int) -> Any:
    """The rows of a file that was read, with as many columns as the others."""
    X: Any = held.data.X
    if X.shape[1] == columns and not shift:
        return X
    return sp.csr_matrix((X.data, X.indices + shift if shift else X.indices, X.indptr), (X.shape[0], columns))


def _files(
    files: list[str], executor: Any, n_features: int | None, settings: dict[str, Any]
) -> tuple[list[_Brief], list[Part]]:
    """What is known of files, and the parts that they are."""
    read = partial(_read, n_features=n_features, settings=settings)
    handles = executor.keep(read, files) if hasattr(executor, "keep") else None
    briefs = [_brief(read(file)) for file in files] if handles is None else executor.ask(handles, _brief)
    # a file without an index 0 counts from 0 all the same, if another one does
    some = [b for b in briefs if b.sparse]
    mixed = len({b.from_one for b in some}) > 1
    shifts = [int(mixed and b.from_one) for b in briefs]
    wide = [b._replace(shape=(b.shape[0], b.shape[1] + s)) for b, s in zip(briefs, shifts, strict=True)]
    if n_features is not None:
        wide = [b._replace(shape=(b.shape[0], n_features)) for b in wide]
    columns = _columns(files, wide, n_features)
    if settings.get("zero_based", "auto") == "auto" and some:
        settings = settings | {"zero_based": not all(b.from_one for b in some)}
    parts: list[Part] = []
    for k, (file, brief) in enumerate(zip(files, briefs, strict=True)):
        shape = brief.shape[0], columns
        if handles is None:
            parts.append(FilePart(file, shape, brief.numbers, brief.sparse, settings))
        else:
            pick = partial(_rows, columns=columns, shift=shifts[k])
            parts.append(executor.part(handles[k], file, shape, brief.numbers, brief.sparse, pick))
    return briefs, parts


def _columns(files: list[str], briefs: list[_Brief], n_features: int | None) -> int:
    """How many columns all files have; a DataError names the first that has others."""
    first, most = briefs[0], max(b.shape[1] for b in briefs)
    wanted = n_features if n_features is not None else most if first.sparse else first.shape[1]
    for file, b in zip(files, briefs, strict=True):
        if b.sparse != first.sparse:
            problem = (
                f"it is {'sparse' if b.sparse else 'dense'}, unlike {files[0]}; convert both to one layout"
            )
            raise DataError(file, None, problem)
        if b.shape[1] > wanted or (b.shape[1] < wanted and not b.sparse):
            other = f"{n_features} are expected" if n_features is not None else f"{files[0]} has {wanted}"
            raise DataError(file, None, f"it has {b.shape[1]} columns, but {other}; give files of one table")
        if b.names != first.names:
            pairs = zip(b.names or ["none"], first.names or ["none"], strict=False)
            one, two = next(((x, y) for x, y in pairs if x != y), ("none", "none"))
            problem = f"its column {one!r} stands where {files[0]} has {two!r}; give files of one table"
            raise DataError(file, None, problem)
    return wanted


def _joined(files: list[str], what: str, found: list[NDArray[Any] | None]) -> NDArray[Any] | None:
    """The labels, or the query ids, of all files."""
    kinds = ["none" if a is None else "words" if a.dtype.kind == "U" else "numbers" for a in found]
    for file, kind in zip(files, kinds, strict=True):
        if kind != kinds[0]:
            problem = f"its {what} is of {kind}, but that of {files[0]} of {kinds[0]}; make them alike"
            raise DataError(file, None, problem)
    return None if kinds[0] == "none" else np.concatenate([a for a in found if a is not None])
