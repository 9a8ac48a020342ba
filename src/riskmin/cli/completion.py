"""Completion in shells: names of losses, regularizers, solvers and metrics, and the columns of DATA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


def _continued(names: list[str], incomplete: str) -> list[str]:
    """Names that continue a text, of which the part after the last comma counts."""
    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in names if name.startswith(last)]


def complete_losses(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the losses."""
    from riskmin.losses import LOSSES

    return _continued(list(LOSSES), incomplete)


def complete_regularizers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the regularizers."""
    from riskmin.regularizers import REGULARIZERS

    return _continued(list(REGULARIZERS), incomplete)


def complete_solvers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the solvers."""
    from riskmin.solvers import SOLVERS

    return _continued(list(SOLVERS), incomplete)


def complete_metrics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the metrics of riskmin and scikit-learn."""
    from sklearn.metrics import get_scorer_names

    from riskmin.estimators._common.scoring import measure_names

    return _continued([*measure_names(), *get_scorer_names()], incomplete)


def complete_columns(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the columns of the table that the command line names."""
    from riskmin.data import format_of
    from riskmin.data.raw_tables.reading import open_raw

    # an option without its value ends Click's parsing before the arguments, which it leaves in `args`
    given = [*_paths(ctx.params.get("data")), *_paths(ctx.params.get("source")), *ctx.args]
    for path in map(Path, given):
        if path.is_file() and format_of(path) in ("csv", "tsv", "parquet"):
            try:
                return _continued(open_raw(path, format_of(path)).names, incomplete)
            except (ValueError, OSError):  # the command itself will report it
                return []
    return []


def _paths(given: Any) -> list[str]:
    """The paths that a parameter holds: none, one, or several."""
    if given is None:
        return []
    return [str(path) for path in given] if isinstance(given, tuple) else [str(given)]
