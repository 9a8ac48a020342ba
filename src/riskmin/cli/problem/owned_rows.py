"""`riskmin fit --owners`: a fit to the rows of data owners, which stay with them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from riskmin.cli.inputs import check_distinct_paths, check_writable, suppress_warnings
from riskmin.core import RunPaused
from riskmin.data.raw_tables.preparation import PreparedRows
from riskmin.report.progress import Progress


class RemoteShape(NamedTuple):
    """The shape of rows that are at their owners."""

    shape: tuple[int, int]


class OwnedFit(NamedTuple):
    """What the summary of a fit to the rows of owners needs."""

    table: PreparedRows
    title: str
    notes: dict[str, str]


def fit_owned_rows(
    model: Any,
    data: Sequence[Path],
    given: dict[str, Any],
    outputs: dict[str, Path | None],
    *,
    as_json: bool,
    quiet: bool,
) -> OwnedFit | None:
    """Fit a model to the rows of data owners; None if the run was paused, with its checkpoint written."""
    from riskmin.owners.executor import OwnersExecutor
    from riskmin.owners.fit import fit_owners

    others = (
        *("processes", "dask", "mpi", "target", "qid", "offset", "exposure"),
        *("validation", "dry_run", "linear_constraints"),
    )
    if data or any(given[name] for name in others):
        raise click.UsageError(
            "--owners takes all rows from owners: leave out DATA and options of other backends"
        )
    check_writable(*outputs.values())
    check_distinct_paths({"--owners": given["owners"]}, outputs)
    owners = OwnersExecutor.from_file(given["owners"])
    try:
        with (
            Progress(tol=model.tol, json=as_json, file=sys.stderr, quiet=quiet) as progress,
            suppress_warnings(),
        ):
            model.set_params(callback=progress)
            fit_owners(model, owners)
        model.set_params(callback=None)
    except RunPaused as pause:
        # the checkpoint is written: the same command goes on from it
        click.echo(f"riskmin: paused: {pause}", err=True)
        return None
    finally:
        owners.close()
    names = ", ".join(d["name"] for d in owners.descriptions)
    table = PreparedRows(RemoteShape(owners.shape), None, None, owners.descriptions[0]["feature_names"])
    errors = f"at most {owners.widening:.1e} of the objective, by rounding and noise, by which cuts are lower"
    return OwnedFit(table, f"{given['loss']} on the rows of {names}", {"errors of owners": errors})
