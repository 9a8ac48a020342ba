"""`riskmin losses`: what there is to minimize."""

from __future__ import annotations

import json
from typing import Any

import click

from riskmin.cli.common import json_option
from riskmin.losses import LOSSES, formula, spec


def _facts(name: str, loss: Any) -> dict[str, Any]:
    return {
        "name": name,
        "task": loss.task,
        "formula": formula(loss),
        "parameters": spec(loss)["params"],
        "smooth": bool(loss.smooth),
    }


@click.command()
@json_option
def losses(as_json: bool) -> None:
    """List the losses: formulas, tasks, parameters.

    z is the score x @ w + b; y is the label, -1 or +1 for classification. Parameters follow the name:
    --loss huber:delta=2 or --loss epsilon_insensitive:epsilon=0.5,power=2.
    """
    found = [_facts(name, loss) for name, loss in LOSSES.items()]
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("loss", "task", "l(z, y)", "parameters", "smooth"):
        table.add_column(title, no_wrap=title == "loss", style="bold" if title == "loss" else None)
    for row in found:
        settings = ", ".join(f"{k}={v:g}" for k, v in row["parameters"].items())
        smooth = "yes" if row["smooth"] else "no"
        table.add_row(row["name"], row["task"], row["formula"], settings, smooth)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 160
    console.print(table)
    click.echo("z = x @ w + b is the score, y the label (-1 or +1 for classification).")
    click.echo("Parameters follow the name: --loss huber:delta=2")
