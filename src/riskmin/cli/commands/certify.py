"""`riskmin certify`: verify the certificate of a saved model against its training data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from riskmin.cli.certification import CertificationResult, certify_model
from riskmin.cli.inputs import (
    NONNEGATIVE_FLOAT,
    PATH_TYPE,
    POSITIVE_FLOAT,
    POSITIVE_INT,
    STANDARDIZED_NOTE,
    ColumnRef,
    json_option,
    load_for_model,
    memory_option,
    pluralize,
    print_pairs,
    qid_option,
    real_option,
    target_option,
    trust_option,
)
from riskmin.cli.tasks.base import TASK_BEHAVIORS
from riskmin.report.progress import duration


@click.command()
@click.argument("model", type=PATH_TYPE)
@click.argument("data", type=PATH_TYPE)
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
@real_option("--max-seconds", type=POSITIVE_FLOAT, help="Time limit of the proof in seconds.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
@trust_option
@json_option
def certify(
    model: Path,
    data: Path,
    target: ColumnRef,
    qid: ColumnRef,
    trust: tuple[str, ...],
    as_json: bool,
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
    from riskmin.estimators import load_model

    # `load_model` would raise an error, but a changed file is a refuted claim
    if not _intact(model):
        result = CertificationResult(1, "refuted", f"{model} was changed: its checksum does not match")
        return _report(result, {}, as_json)
    fitted = load_model(model, trust)
    # J depends on the weights, which no data file holds
    if fitted.weighted_:
        raise ValueError(
            f"{model} was fitted with weights of rows, which {data} does not hold: it cannot be certified"
        )
    table = load_for_model(fitted, data, target, qid, labels=TASK_BEHAVIORS[fitted.task].needs_labels)
    result, numbers = certify_model(fitted, table.X, table.y, table.qid, **limits)
    return _report(result, numbers, as_json)


def _intact(path: Path) -> bool:
    """Whether the content of a model file matches its checksum."""
    from riskmin.core.persist import checksum, load_arrays

    arrays, meta = load_arrays(path, "model")
    # the checksum covers the arrays and all other metadata
    return bool(meta.pop("sha256", None) == checksum(arrays, meta))


def _report(result: CertificationResult, numbers: dict[str, Any], as_json: bool) -> int:
    """Print the result and return the exit code."""
    if as_json:
        click.echo(json.dumps({"verdict": result.outcome, "why": result.reason, **numbers}))
    elif numbers:
        print_pairs(_table_rows(numbers))
    # "bounded" and "open" are neither success nor refutation
    color = {"certified": "green", "refuted": "red"}.get(result.outcome, "yellow")
    if result.exit_code:
        click.secho(f"riskmin: {result.outcome}: {result.reason}", fg=color, bold=True, err=True)
    elif not as_json:
        click.secho(f"{result.outcome}: {result.reason}", fg=color, bold=True)
    return result.exit_code


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
