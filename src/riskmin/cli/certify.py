"""`riskmin certify`: verify the certificate of a saved model against its training data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from riskmin.cli.common import (
    ABOVE_0,
    FROM_0,
    FROM_1,
    PATH,
    STANDARDIZED,
    Column,
    count,
    json_option,
    memory_option,
    qid_option,
    read_for,
    real_option,
    show,
    target_option,
)
from riskmin.cli.examine import Verdict, examine
from riskmin.cli.tasks import TASKS
from riskmin.progress import duration


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@target_option
@qid_option
@memory_option
@real_option("--tol", type=FROM_0, help="Relative gap to prove (default: the gap claimed by the model).")
@click.option("--solver", help="Solver that proves the new bound (default: the model's).")
@click.option(
    "--max-iter", type=FROM_1, default=10_000, show_default=True, help="Maximum number of iterations."
)
@real_option("--max-seconds", type=ABOVE_0, help="Time limit of the proof in seconds.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
@json_option
def certify(model: Path, data: Path, target: Column, qid: Column, as_json: bool, **limits: Any) -> int:
    """Verify the certificate of MODEL against DATA, its training data.

    Recomputes the objective and proves a new lower bound, starting from the weights of the model. The claim
    is refuted (exit code 1) if the objective or the number of rows differs, if the claimed lower bound does
    not follow from the saved cut or exceeds an objective value that was reached, if the cut exceeds the risk
    at any visited point, if a decision threshold does not follow from the scores, or if the file was
    modified. The claim is left open (exit code 3) if the limits are reached before the proof is complete.
    With a --tol above the claimed gap, only the looser gap is verified.
    """
    from riskmin.estimators import load_model

    if not _intact(model):
        result = Verdict(1, "refuted", f"{model} was changed: its checksum does not match")
        return _report(result, {}, as_json)
    fitted = load_model(model)
    if fitted.weighted_:
        raise ValueError(
            f"{model} was fitted with weights of rows, which {data} does not hold: no claim to check"
        )
    table = read_for(fitted, data, target, qid, labels=TASKS[fitted.task].labelled)
    result, numbers = examine(fitted, table.X, table.y, table.qid, **limits)
    return _report(result, numbers, as_json)


def _intact(path: Path) -> bool:
    """Whether the content of a model file matches its checksum."""
    from riskmin.persist import checksum, load_arrays

    arrays, meta = load_arrays(path, "model")
    return bool(meta.pop("sha256", None) == checksum(arrays, meta))


def _report(result: Verdict, numbers: dict[str, Any], as_json: bool) -> int:
    """Print the result and return the exit code."""
    if as_json:
        click.echo(json.dumps({"verdict": result.word, "why": result.why, **numbers}))
    elif numbers:
        show(_table_rows(numbers))
    color = {"certified": "green", "refuted": "red"}.get(result.word, "yellow")
    if result.code:
        click.secho(f"riskmin: {result.word}: {result.why}", fg=color, bold=True, err=True)
    elif not as_json:
        click.secho(f"{result.word}: {result.why}", fg=color, bold=True)
    return result.code


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
        rows.append(("standardized", STANDARDIZED))
    if numbers["criterion"] == "atol":
        rows.append(("tolerance, claimed", "the absolute one (atol)"))
    if proved is not None:
        rows.append(("gap, proved", f"{numbers['gap_rel']:.2e} of the objective"))
        rows.append(
            ("proof", f"{count(numbers['iterations'], 'iteration')} in {duration(numbers['seconds'])}")
        )
        rows.append(("solver", numbers["solver"]))
    return rows
