"""Loading of data for the commands: for a fit, and for a model that was fitted to the same columns."""

from __future__ import annotations

import copy
import math
import shlex
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
import numpy as np
import scipy.sparse as sp

from riskmin.cli.inputs import ColumnRef, check_data_options, note_unused_queries
from riskmin.cli.tables import TABLE_FORMATS, load_prepared, load_table, print_notes
from riskmin.cli.tasks import tagging
from riskmin.cli.tasks.base import query_kwargs
from riskmin.core.deadline import TimeLimit
from riskmin.data import Dataset, format_of, load
from riskmin.data.base import UnpreparedColumn
from riskmin.data.formats.text_table import column_index, default_target, missing_column
from riskmin.data.raw_tables.encoders import NumberEncoder
from riskmin.data.raw_tables.fitting import TableOptions, prepare
from riskmin.data.raw_tables.preparation import NUMBER_ROLES, PreparedRows, TablePreparation
from riskmin.data.raw_tables.reading import RawTable, open_raw


def load_saved(path: Path, trust: Collection[str]) -> Any:
    """Read a model; raise if it is a pipeline, whose steps take frames and arrays of Python."""
    from riskmin.estimators import load_model

    model = load_model(path, trust)
    if hasattr(model, "steps"):
        raise ValueError(
            f"{path} holds a pipeline of scikit-learn, which the command does not apply to files: use it in "
            "Python, or fit the raw table by 'riskmin fit', which prepares it"
        )
    return model


def command_clock(max_seconds: float | None) -> TimeLimit:
    """Return the limit of --max-seconds, counted from now: the start of a command."""
    return TimeLimit(time.perf_counter() + (math.inf if max_seconds is None else max_seconds))


def seconds_left(clock: TimeLimit) -> float | None:
    """Return the time that reading has left, a millisecond at least; None without a limit."""
    if clock.deadline == math.inf:
        return None
    return max(clock.deadline - time.perf_counter(), 1e-3)


def fit_kwargs(model: Any, rows: PreparedRows) -> dict[str, Any]:
    """Keyword arguments of `fit` in addition to rows and labels: query ids, weights and offset."""
    given = {"sample_weight": rows.weight, "offset": rows.offset}
    return query_kwargs(model, rows.qid) | {name: v for name, v in given.items() if v is not None}


def load_for_fit(
    path: Path, model: Any, given: dict[str, Any], *, quiet: bool, require_labels: bool = True
) -> PreparedRows:
    """Load the data for a fit; note on stderr if their query ids are not used."""
    target, qid = given["target"], given["qid"]
    if model.task == "tagging":
        return PreparedRows(*tagging.load_sentences(path, target, qid, labels=True))
    check_data_options(path, target=target, qid=qid, quiet=quiet)
    data = load_table(
        [path],
        given,
        lambda: load(path, target=target, qid=qid, require_labels=require_labels),
        require_labels=require_labels,
    )
    note_unused_queries(data, model, path.name, quiet=quiet)
    print_notes(data, quiet=quiet)
    return data


def load_for_model(
    model: Any,
    path: Path,
    target: ColumnRef,
    qid: ColumnRef,
    *,
    labels: bool,
    certifying: bool = False,
    quiet: bool = False,
    numbers: Mapping[str, ColumnRef] = MappingProxyType({}),
) -> PreparedRows:
    """Load data for a fitted model; reorder the columns by name where both model and data name them.

    `numbers` are the columns of weights, offset and exposure. With `certifying` the data must be those of
    training: their weights are read, and no feature is ignored.
    """
    numbers = {role: column for role, column in numbers.items() if column is not None}
    weight, offset, exposure = (numbers.get(role) for role in NUMBER_ROLES)
    options = TableOptions(weight=weight, offset=offset, exposure=exposure)
    if numbers and (model.task == "tagging" or format_of(path) not in TABLE_FORMATS):
        option = f"--{next(iter(numbers))}"
        raise ValueError(f"{option} names a column of a table, but {path} is none: give CSV or Parquet")
    if model.task == "tagging":
        n_columns = tagging.n_input_columns(model)
        return PreparedRows(*tagging.load_sentences(path, target, qid, labels=labels, n_columns=n_columns))
    check_data_options(path, target=target, qid=qid, quiet=quiet)
    if model.preparation_ is not None:
        if certifying and model.weighted_:
            numbers["weight"] = model.preparation_.weight
        rows = load_prepared(model.preparation_, path, target, qid, labels=labels, **numbers)
        print_notes(rows, quiet=quiet)
        return rows
    table = _named_table(model, path)
    if table is not None:
        return _load_named(model, table, (target, qid), numbers, labels=labels)
    if numbers:
        rows = prepare([path], options, target=target, qid=qid, require_labels=labels)
        return PreparedRows(*rows[:3], weight=rows.weight, offset=rows.offset)
    if format_of(path) == "svmlight" and not certifying:
        rows = _with_known_features(load(path, require_labels=labels), model.n_features_in_, path)
        print_notes(rows, quiet=quiet)
        return rows
    data = load(path, target=target, qid=qid, require_labels=labels, n_features=model.n_features_in_)
    return PreparedRows(*_in_order_of_model(model, data, path))


def _with_known_features(data: Dataset, n_features: int, path: Path) -> PreparedRows:
    """Return sparse rows with the features of training; later ones have no weight, and are counted."""
    X: Any = data.X
    n_unseen = int((X.indices >= n_features).sum())
    if X.shape[1] > n_features:
        data = data._replace(X=X[:, :n_features])
    elif X.shape[1] < n_features:
        data = data._replace(X=sp.csr_matrix((X.data, X.indices, X.indptr), (X.shape[0], n_features)))
    note = (
        f"{path}: {n_unseen:,} of {X.nnz:,} entries are of features beyond the {n_features:,} of training, "
        "and are ignored"
    )
    return PreparedRows(*data, notes=(note,) if n_unseen else ())


def _named_table(model: Any, path: Path) -> RawTable | None:
    """Return the table if both it and the model name the columns."""
    if "feature_names_in_" not in vars(model) or format_of(path) not in TABLE_FORMATS:
        return None
    table = open_raw(path, format_of(path))
    return table if table.has_names else None


def _load_named(
    model: Any,
    table: RawTable,
    roles: tuple[ColumnRef, ColumnRef],
    numbers: dict[str, ColumnRef],
    *,
    labels: bool,
) -> PreparedRows:
    """Load the columns of the model by their names; others may be between them."""
    path, known, (target, qid) = Path(table.path), list(model.feature_names_in_), roles
    present = set(table.names)
    missing = [name for name in known if name not in present]
    if missing:
        raise missing_column(path, table.names, missing[0], "which the model was fitted on", known)
    if qid is None and "qid" in table.names and "qid" not in known:
        qid = "qid"
    target = model.target_name_ if target is None else target
    used = {column_index(path, table.names, column, "role") for column in (qid, target, *numbers.values())}
    features = set(known)
    others = [
        name
        for i, name in enumerate(table.names)
        if not (name in features or i in used or i in table.index_columns)
    ]
    if target is None and others:
        target = default_target(others)
        if target is None and labels:
            raise ValueError(f"{path}: several columns may be the labels; name one by --target")
    # without columns to leave out, the reader of numbers is faster
    if not numbers and others in ([], [target]):
        try:
            data = load(path, target=target, qid=qid, require_labels=labels, n_features=len(known))
            return PreparedRows(*_in_order_of_model(model, data, path))
        except UnpreparedColumn:  # True and False are numbers, too
            pass
    by_name = TablePreparation(tuple(NumberEncoder(name) for name in known))
    rows = by_name.read([path], target=target, qid=qid, labels=labels, **numbers)
    return rows._replace(preparation=None)


def _in_order_of_model(model: Any, data: Dataset, path: Path) -> Dataset:
    """Return the data with the columns in the order of the model, if both name them."""
    known = vars(model).get("feature_names_in_")
    if known is None or data.feature_names is None or data.feature_names == list(known):
        return data
    position = {name: i for i, name in enumerate(data.feature_names)}
    missing = [name for name in known if name not in position]
    if missing:
        raise ValueError(
            f"{path}: there is no feature {missing[0]!r}, which the model was fitted on; check the file, or "
            "name the column of the labels by --target"
        )
    return data._replace(X=data.X[:, [position[name] for name in known]])


def load_like(
    model: Any, rows: PreparedRows, path: Path, target: ColumnRef, qid: ColumnRef, *, quiet: bool
) -> PreparedRows:
    """Load labeled rows with the columns of others, to which the model is about to be fitted."""
    like = copy.copy(model)
    like.n_features_in_ = rows.X.shape[1]
    set_columns(like, rows)
    return load_for_model(like, path, target, qid, labels=True, quiet=quiet)


def remember_source(model: Any, rows: PreparedRows) -> None:
    """Set what model files hold of the data: names of columns, preparation of a table, the command line."""
    invocation = click.get_current_context().find_root().obj
    if invocation:
        model.command_ = shlex.join(["riskmin", *invocation.arguments])
    set_columns(model, rows)


def set_columns(model: Any, rows: PreparedRows) -> None:
    """Set the names of the columns and the preparation of a table."""
    if rows.feature_names is not None:
        model.feature_names_in_ = np.array(rows.feature_names, dtype=object)
    model.target_name_ = rows.target_name
    if rows.preparation is not None:
        model.preparation_ = rows.preparation
