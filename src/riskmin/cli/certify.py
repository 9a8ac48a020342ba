"""`riskmin certify`: check what a saved model claims against the data."""

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
@real_option("--tol", type=FROM_0, help="Relative gap to prove (default: the one the model claims).")
@click.option("--solver", help="The solver for the proof (default: the model's).")
@click.option("--max-iter", type=FROM_1, default=10_000, show_default=True, help="Most iterations.")
@real_option("--max-seconds", type=ABOVE_0, help="Most seconds for the proof.")
@click.option("--quiet", is_flag=True, help="No progress.")
@json_option
def certify(model: Path, data: Path, target: Column, qid: Column, as_json: bool, **limits: Any) -> int:
    """Check what MODEL claims against DATA.

    Recomputes the objective and proves a fresh lower bound, starting from the model. DATA are those that it
    was fitted to. The claim is refuted (exit code 1) if the objective or the number of rows is another one,
    if the lower bound is not what the saved cut proves or is above an objective value that was found, if the
    cut is above the risk somewhere, if a threshold of the scores is not the one that belongs to them, or
    if the file was changed; it is open (exit code 3) if the proof did
    not get as far within the limits. With a --tol above the claimed gap, the claim itself stays unchecked.
    """
    from riskmin.estimators import load_model

    if not _intact(model):
        return _say(Verdict(1, "refuted", f"{model} was changed: its checksum does not match"), {}, as_json)
    fitted = load_model(model)
    if fitted.weighted_:
        raise ValueError(
            f"{model} was fitted with weights of rows, which {data} does not hold: no claim to check"
        )
    table = read_for(fitted, data, target, qid, labels=TASKS[fitted.task].labelled)
    verdict, numbers = examine(fitted, table.X, table.y, table.qid, **limits)
    return _say(verdict, numbers, as_json)


def _intact(path: Path) -> bool:
    """Whether the content of a model file is what its checksum says."""
    from riskmin.persist import checksum, load_arrays

    arrays, meta = load_arrays(path, "model")
    return bool(meta.pop("sha256", None) == checksum(arrays, meta))


def _say(verdict: Verdict, numbers: dict[str, Any], as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"verdict": verdict.word, "why": verdict.why, **numbers}))
    elif numbers:
        show(_lines(numbers))
    colour = {"certified": "green", "refuted": "red"}.get(verdict.word, "yellow")
    if verdict.code:
        click.secho(f"riskmin: {verdict.word}: {verdict.why}", fg=colour, bold=True, err=True)
    elif not as_json:
        click.secho(f"{verdict.word}: {verdict.why}", fg=colour, bold=True)
    return verdict.code


def _lines(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    fresh = numbers.get("lower_bound")
    rows = [
        ("objective, claimed", f"{numbers['claimed_objective']:.9g}"),
        ("objective, recomputed", f"{numbers['objective']:.9g}"),
        ("lower bound, claimed", f"{numbers['claimed_lower_bound']:.9g}"),
        ("lower bound, by its cut", f"{numbers['cut_lower_bound']:.9g}"),
        ("lower bound, proved", "not tried" if fresh is None else f"{fresh:.9g}"),
    ]
    if numbers["standardized"]:
        rows.append(("standardized", STANDARDIZED))
    if numbers["criterion"] == "atol":
        rows.append(("tolerance, claimed", "the absolute one (atol)"))
    if fresh is not None:
        rows.append(("gap, proved", f"{numbers['gap_rel']:.2e} of the objective"))
        rows.append(
            ("proof", f"{count(numbers['iterations'], 'iteration')} in {duration(numbers['seconds'])}")
        )
        rows.append(("solver", numbers["solver"]))
    return rows
