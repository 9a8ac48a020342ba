"""`riskmin certify`: verify the certificate of a saved model against its training data."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from riskmin.cli.inputs import (
    DATA_TYPE,
    MODEL_TYPE,
    NONNEGATIVE_FLOAT,
    PATH_TYPE,
    POSITIVE_FLOAT,
    POSITIVE_INT,
    STANDARDIZED_NOTE,
    ColumnRef,
    check_not_swapped,
    json_option,
    memory_option,
    qid_option,
    real_option,
    target_option,
    trust_option,
)
from riskmin.cli.loading import command_clock, fit_kwargs, load_for_model, load_saved, seconds_left
from riskmin.cli.output import pluralize, print_pairs
from riskmin.cli.tasks.base import TASK_BEHAVIORS
from riskmin.cli.tasks.ordinal_ranking import require_queries
from riskmin.report.progress import duration

if TYPE_CHECKING:
    from riskmin.estimators import CertificationResult

EXIT_CODES = {"refuted": 1, "open": 3}


@click.command()
@click.argument("model", type=MODEL_TYPE)
@click.argument("data", type=DATA_TYPE, required=False)
@click.option("--owners", type=PATH_TYPE, help="Verify it with the owners of the rows, named in a file.")
@target_option
@qid_option
@memory_option
@real_option(
    "--tol", type=NONNEGATIVE_FLOAT, help="Relative gap to prove (default: the gap claimed by the model)."
)
@click.option("--solver", help="Solver that proves the new bound (default: the model's).")
@click.option(
    "--max-iter", type=POSITIVE_INT, default=10_000, show_default=True, help="Maximum number of iterations."
)
@real_option(
    "--max-seconds",
    type=POSITIVE_FLOAT,
    help="Time limit in seconds, of reading DATA and of the proof together.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@trust_option
@json_option
def certify(
    model: Path,
    data: Path | None,
    owners: Path | None,
    target: ColumnRef,
    qid: ColumnRef,
    trust: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **limits: Any,
) -> int:
    """Verify the certificate of MODEL against DATA, its training data.

    Recomputes the objective and proves a new lower bound, starting from the weights of the model. The claim
    is refuted (exit code 1) if the objective or the number of rows differs, if the claimed lower bound does
    not follow from the saved cut or exceeds an objective value that was reached, if the cut exceeds the risk
    at any visited point, if a decision threshold does not follow from the scores, or if the file was
    modified. The claim is left open (exit code 3) if the limits are reached before the proof is complete.
    With a --tol above the claimed gap, only the looser gap is verified.
    """
    from riskmin import estimators

    clock = command_clock(limits["max_seconds"])
    check_not_swapped(model, data)
    # `load_model` would raise an error, but a changed file is a refuted claim
    if not _intact(model):
        return _report("refuted", f"{model} was changed: its checksum does not match", {}, as_json)
    fitted = load_saved(model, trust)
    if (data is None) == (owners is None):
        raise click.UsageError("give DATA, or --owners for a model that was fitted to the rows of owners")
    if owners is not None:
        return _certify_owners(fitted, owners, limits, as_json=as_json)
    assert data is not None
    # J depends on the weights, which no data file holds
    if fitted.weighted_ and (fitted.preparation_ is None or fitted.preparation_.weight is None):
        raise ValueError(
            f"{model} was fitted with weights of rows, which {data} does not hold: it cannot be certified"
        )
    labels = TASK_BEHAVIORS[fitted.task].needs_labels
    reading = partial(load_for_model, labels=labels, certifying=True, quiet=quiet)
    table = clock.call(reading, fitted, data, target, qid)
    if fitted._fitted_loss().task == "ranking":
        require_queries(fitted, table.qid)
    more = fit_kwargs(fitted, table)
    limits["max_seconds"] = seconds_left(clock)
    found = estimators.certify(fitted, table.X, table.y, verbose=not quiet, **more, **limits)
    return _report(found.status, found.reason, certification_numbers(fitted, found), as_json)


def _certify_owners(model: Any, path: Path, limits: dict[str, Any], *, as_json: bool) -> int:
    """Verify a certificate with the owners of the rows."""
    from riskmin.owners.executor import OwnersExecutor
    from riskmin.owners.fit import certify_owners

    owners = OwnersExecutor.from_file(path)
    try:
        found = certify_owners(model, owners, **limits)
    finally:
        owners.close()
    return _report(found.status, found.reason, certification_numbers(model, found), as_json)


def certification_numbers(model: Any, found: CertificationResult) -> dict[str, Any]:
    """Return the claimed, recomputed and proved quantities behind a verdict by name."""
    numbers: dict[str, Any] = {
        "claimed_objective": found.claimed_value,
        "objective": found.value,
        "claimed_lower_bound": found.claimed_lower,
        "cut_lower_bound": found.cut_lower,
        "claimed_gap_rel": found.claimed_relative_gap,
        "criterion": model.result_.criterion,
        "standardized": model.can_standardize and model.scale_ is not None,
    }
    if found.proof is None:
        return numbers
    return numbers | {
        "lower_bound": found.lower,
        "best_objective": min(found.value, found.proof.value),
        "gap_rel": found.relative_gap,
        "iterations": found.proof.n_iter,
        "seconds": found.proof.trace[-1]["seconds"],
        "solver": found.proof.solver,
    }


def _intact(path: Path) -> bool:
    """Whether the content of a model file matches its checksum."""
    from riskmin.core.persist import checksum, load_arrays

    arrays, meta = load_arrays(path, "model")
    # the checksum covers the arrays and all other metadata
    return bool(meta.pop("sha256", None) == checksum(arrays, meta))


def _report(status: str, reason: str, numbers: dict[str, Any], as_json: bool) -> int:
    """Print the result and return the exit code."""
    if as_json:
        click.echo(json.dumps({"verdict": status, "why": reason, **numbers}))
    elif numbers:
        print_pairs(_table_rows(numbers))
    # "bounded" and "open" are neither success nor refutation
    color = {"certified": "green", "refuted": "red"}.get(status, "yellow")
    exit_code = EXIT_CODES.get(status, 0)
    if exit_code:
        click.secho(f"riskmin: {status}: {reason}", fg=color, bold=True, err=True)
    elif not as_json:
        click.secho(f"{status}: {reason}", fg=color, bold=True)
    return exit_code


def _table_rows(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    """Format claimed, recomputed and newly proved quantities as (name, value) pairs."""
    proved = numbers.get("lower_bound")
    rows = [
        ("objective, claimed", f"{numbers['claimed_objective']:.9g}"),
        ("objective, recomputed", f"{numbers['objective']:.9g}"),
        ("lower bound, claimed", f"{numbers['claimed_lower_bound']:.9g}"),
        ("lower bound, by its cut", f"{numbers['cut_lower_bound']:.9g}"),
        ("lower bound, proved", "not tried" if proved is None else f"{proved:.9g}"),
    ]
    if numbers["standardized"]:
        rows.append(("standardized", STANDARDIZED_NOTE))
    if numbers["criterion"] == "atol":
        rows.append(("tolerance, claimed", "the absolute one (atol)"))
    if proved is not None:
        rows.append(("gap, proved", f"{numbers['gap_rel']:.2e} of the objective"))
        rows.append(
            ("proof", f"{pluralize(numbers['iterations'], 'iteration')} in {duration(numbers['seconds'])}")
        )
        rows.append(("solver", numbers["solver"]))
    return rows
