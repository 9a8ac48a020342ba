"""`riskmin losses`: list of the losses."""

from __future__ import annotations

import json
from typing import Any

import click

from riskmin.cli.inputs import json_option
from riskmin.losses import LOSSES, formula

UNBROKEN_FORMULAS_WIDTH = 100
"""Terminal width in characters from which on every formula fits into one line."""


def _loss_facts(name: str, loss: Any) -> dict[str, Any]:
    return {
        "name": name,
        "task": loss.task,
        "formula": formula(loss),
        "parameters": LOSSES.to_dict(loss)["params"],
        "smooth": bool(loss.smooth),
    }


@click.command()
@json_option
def losses(as_json: bool) -> None:
    """List the losses with formulas, tasks and parameters.

    z is the score x @ w + b; y is the label, -1 or +1 for classification, a grade for ordinal and ranking.
    Parameters follow the name: --loss huber:delta=2 or --loss epsilon_insensitive:epsilon=0.5,power=2.
    """
    tasks = list(dict.fromkeys(loss.task for loss in LOSSES.values()))
    ordered = sorted(LOSSES.items(), key=lambda item: tasks.index(item[1].task))
    entries = [_loss_facts(name, loss) for name, loss in ordered]
    if as_json:
        click.echo(json.dumps(entries, indent=1))
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    # a file or a pipe has no width: use a fixed one
    if not console.is_terminal:
        console.width = 160
    console.print(_loss_table(entries, unbroken=console.width >= UNBROKEN_FORMULAS_WIDTH))
    click.echo("z = x @ w + b is the score, y the label (-1 or +1 for classification), r = z - y.")
    click.echo(
        "With several classes, z_j is the score of class j: hinge, squared_hinge and logistic take them, too."
    )
    click.echo(
        "y' is any labeling; for prbep, with as many misses as false alarms; at k, with k positives, or y."
    )
    click.echo(
        "A ranking orders a query's rows; its lead is sum (z_j - z_i) over inverted pairs y_i > y_j, / pairs."
    )
    click.echo(
        "s(y) scores all labels of a sequence jointly; errors(y, y') counts where two labelings differ."
    )
    click.echo("Parameters follow the name: --loss huber:delta=2")


def _loss_table(entries: list[dict[str, Any]], *, unbroken: bool) -> Any:
    """Make a table of the losses grouped by task; long formulas are wrapped unless `unbroken`."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("loss", "l(z, y)", "parameters", "smooth"):
        fixed = title == "loss" or (unbroken and title != "parameters")
        table.add_column(title, no_wrap=fixed, style="bold" if title == "loss" else None)
    task = ""
    for row in entries:
        if row["task"] != task:
            task = row["task"]
            table.add_section()
            table.add_row(f"for {task}:", style="italic")
        settings = ", ".join(f"{k}={v:g}" for k, v in row["parameters"].items() if v is not None)
        table.add_row(row["name"], row["formula"], settings, "yes" if row["smooth"] else "no")
    return table
