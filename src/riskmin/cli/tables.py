"""The options by which columns of a table become features, and the loading of tables with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.completion import complete_columns
from riskmin.cli.inputs import POSITIVE_INT, ColumnRef, add_options, parse_column
from riskmin.core.messages import printable
from riskmin.data import Dataset, format_of
from riskmin.data.base import UnpreparedColumn
from riskmin.data.raw_tables.fitting import TableOptions, find_preparation, prepare, target_name
from riskmin.data.raw_tables.preparation import NUMBER_ROLES, PreparedRows, TablePreparation
from riskmin.data.raw_tables.written import looks_like_number

weight_option = click.option(
    "--weight",
    metavar="COLUMN",
    callback=parse_column,
    shell_complete=complete_columns,
    help="Column of the row weights, >= 0.",
)

offset_options = [
    click.option(
        "--offset",
        metavar="COLUMN",
        callback=parse_column,
        shell_complete=complete_columns,
        help="Column that is added to the scores of the rows.",
    ),
    click.option(
        "--exposure",
        metavar="COLUMN",
        callback=parse_column,
        shell_complete=complete_columns,
        help="Column whose logarithm is added to the scores: the time or the size to which counts refer.",
    ),
]

_OPTIONS: list[Callable[..., Any]] = [
    weight_option,
    *offset_options,
    click.option(
        "--columns",
        metavar="A,B,...",
        multiple=True,
        shell_complete=complete_columns,
        help="Columns of a table to use as features (default: all that have no other role).",
    ),
    click.option(
        "--drop",
        metavar="A,B,...",
        multiple=True,
        shell_complete=complete_columns,
        help="Columns of a table to leave out.",
    ),
    click.option(
        "--categorical",
        metavar="A,B,...",
        multiple=True,
        shell_complete=complete_columns,
        help="Columns of numbers that are categories, such as codes; text always is.",
    ),
    click.option(
        "--impute",
        type=click.Choice(["median", "mean"]),
        help="Replace missing numbers by the median or mean of the column, and make missing categories a "
        "level of their own (default: missing cells are refused).",
    ),
    click.option(
        "--min-frequency",
        type=POSITIVE_INT,
        metavar="ROWS",
        help="Levels of categories with fewer rows are merged (default: 1 % of the rows, 10 at most).",
    ),
    click.option(
        "--thousands",
        type=click.Choice([",", ".", " ", "'"]),
        help="What separates thousands in a table (default: recognized by column).",
    ),
    click.option(
        "--decimal",
        type=click.Choice([".", ","]),
        help="What separates decimals in a table (default: recognized by column).",
    ),
    click.option(
        "--dates",
        type=click.Choice(["days", "dmy", "mdy", "drop"]),
        help="Make dates the number of days since the first (days; dmy and mdy: with the day or the month "
        "first), or leave them out (default: they are refused).",
    ),
]

TABLE_FORMATS = ("csv", "tsv", "parquet")


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that prepare a table."""
    return add_options(command, _OPTIONS)


def load_table(
    paths: Sequence[Path],
    given: dict[str, Any],
    load_numbers: Callable[..., Dataset],
    *,
    require_labels: bool,
    local: bool = True,
) -> PreparedRows:
    """Load data for a fit: as they are, if all features are numbers and no option asks for more.

    Parameters
    ----------
    paths : sequence of paths
    given : dict
        The options of the command.
    load_numbers : callable
        Loads files all of whose features are numbers; raises `UnpreparedColumn` for others. Unless `local`,
        it takes the `preparation` of other files, too.
    require_labels : bool
    local : bool
        Whether the rows are in this process. It reads the files of others, too, but only to find the
        preparation, which they apply.
    """
    options = _table_options(given)
    is_table = all(format_of(path) in TABLE_FORMATS for path in paths)
    if options == TableOptions():
        try:
            rows = PreparedRows(*load_numbers())
            if not (local and is_table):
                return rows
            if _are_numbers(rows.y):
                raise UnpreparedColumn(paths[0], None, "its labels are numbers that are not plain")
            name = target_name(paths[0], given["target"], given["qid"], require_labels=require_labels)
            return rows._replace(target_name=name)
        except UnpreparedColumn:
            if not is_table:
                raise
    else:
        _check_table_options(options, paths, is_table)
    roles = {"target": given["target"], "qid": given["qid"], "require_labels": require_labels}
    if local:
        return prepare(paths, options, **roles)
    preparation, source, notes = find_preparation(paths, options, **roles)
    rows = PreparedRows(*load_numbers(preparation=preparation))
    weight, offset = source.rows.numbers.get("weight"), source.rows.offset
    return rows._replace(weight=weight, offset=offset, preparation=preparation, notes=notes)


def _are_numbers(y: Any) -> bool:
    """Whether labels that are text are numbers as people write them, such as 42,000."""
    return y is not None and y.dtype.kind == "U" and all(map(looks_like_number, np.unique(y).tolist()))


def _table_options(given: dict[str, Any]) -> TableOptions:
    names = [field.name for field in fields(TableOptions)]
    return TableOptions(**{name: given[name] for name in names if given.get(name) is not None})


def _check_table_options(options: TableOptions, paths: Sequence[Path], is_table: bool) -> None:
    """Raise if options that prepare a table have no effect."""
    default = TableOptions()
    names = [name for name in vars(default) if getattr(options, name) != getattr(default, name)]
    option = f"--{names[0].replace('_', '-')}"
    if not is_table:
        path = next(path for path in paths if format_of(path) not in TABLE_FORMATS)
        raise ValueError(
            f"{option} is for tables with named columns, but {path} is {format_of(path)}: leave it out, or "
            "give CSV or Parquet"
        )


def load_prepared(
    preparation: TablePreparation,
    path: Path,
    target: ColumnRef,
    qid: ColumnRef,
    *,
    labels: bool,
    **numbers: ColumnRef,
) -> PreparedRows:
    """Load a raw table for a model that has a preparation; `numbers` are columns such as the weights."""
    if format_of(path) not in TABLE_FORMATS:
        raise ValueError(
            f"the model was fitted to a table with named columns, but {path} is {format_of(path)}: give CSV "
            "or Parquet"
        )
    return preparation.read([path], target=target, qid=qid, labels=labels, **numbers)


def print_notes(rows: PreparedRows, *, quiet: bool = False) -> None:
    """Print the notes on columns that were left out and on unseen levels, on stderr."""
    invocation = click.get_current_context().find_root().obj
    for note in () if quiet else rows.notes:
        click.echo(f"riskmin: {invocation.readable(note) if invocation else note}", err=True)


def describe_preparation(preparation: TablePreparation) -> str:
    """Describe the columns of a table: how many are numbers and categories, and what was missing."""
    numbers = [e for e in preparation.encoders if e.kind == "number"]
    dates = [e for e in preparation.encoders if e.kind == "date"]
    categories = [e for e in preparation.encoders if e.kind == "category"]
    n_levels = sum(len(e.feature_names) for e in categories)
    parts = [f"{len(of):,} of {kind}" for of, kind in ((numbers, "numbers"), (dates, "dates")) if of]
    if categories:
        parts.append(f"{len(categories):,} of categories with {n_levels:,} levels")
    for role in NUMBER_ROLES:
        if (column := getattr(preparation, role)) is not None:
            parts.append(f"{role} from {printable(column)}")
    return ", ".join(parts)
