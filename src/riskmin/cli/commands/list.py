"""`riskmin losses`, `riskmin regularizers` and `riskmin solvers`: what the names denote."""

from __future__ import annotations

import inspect
import json
import textwrap
from typing import Any

import click
import numpy as np

from riskmin.cli.inputs import json_option
from riskmin.cli.output import print_table
from riskmin.losses import LOSSES, formula
from riskmin.regularizers import REGULARIZERS
from riskmin.solvers import SOLVERS

FORMULA_WIDTH = 59
"""So long are the lines of a formula, for a table of at most 100 characters."""
_NOTES = """\
z = x @ w + b is the score, y the label (-1 or +1 for classification), r = z - y.
With several classes, z_j is the score of class j: hinge, squared_hinge and logistic take them, too.
y' is any labeling; for prbep, with as many misses as false alarms; at k, with k positives, or y.
A ranking orders a query's rows; its lead is sum (z_j - z_i) over inverted pairs y_i > y_j, / pairs.
s(y) scores all labels of a sequence jointly; errors(y, y') counts where two labelings differ.
Parameters follow the name: --loss huber:delta=2"""


def _regularizer_facts(name: str, reg: Any) -> dict[str, Any]:
    return {
        "name": name,
        "formula": reg.formula,
        "parameters": REGULARIZERS.to_dict(reg)["params"],
        # weights are exactly zero by a polyhedral Omega or by the l1 part of an elastic net
        "zeros": reg.separable and bool(np.any(reg.terms(np.zeros(1)).absolute > 0)),
    }


def _format_setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


@click.command()
@json_option
def regularizers(as_json: bool) -> None:
    """List the regularizers with formulas and parameters.

    Parameters follow the name: --reg elastic:eps=2. --positive bounds l1, l2 and elastic by zero.
    """
    entries = [_regularizer_facts(name, reg) for name, reg in REGULARIZERS.items()]
    if as_json:
        click.echo(json.dumps(entries, indent=1))
        return
    rows = [
        [
            row["name"],
            row["formula"],
            ", ".join(f"{k}={_format_setting(v)}" for k, v in row["parameters"].items()),
            "yes" if row["zeros"] else "no",
        ]
        for row in entries
    ]
    print_table([["regularizer", "Omega(w)", "parameters", "makes zeros"], *rows], left=True)
    click.echo("J(w) = lam Omega(w) + mean loss. Parameters follow the name: --reg elastic:eps=2")


@click.command()
@json_option
def solvers(as_json: bool) -> None:
    """List the solvers. The default, auto, selects one and gives the reason."""
    entries = [
        {"name": name, "solver": type(s).__name__, "about": (inspect.getdoc(type(s)) or "").split("\n")[0]}
        for name, s in SOLVERS.items()
    ]
    if as_json:
        click.echo(json.dumps(entries, indent=1))
        return
    print_table(
        [["solver", "class", ""], *([e["name"], e["solver"], e["about"]] for e in entries)], left=True
    )


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
    print_table([["loss", "smooth", "l(z, y); parameters"], *_loss_rows(entries)], left=True)
    click.echo(_NOTES)


def _loss_rows(entries: list[dict[str, Any]]) -> list[list[str]]:
    """Return the rows of the table of losses, with a row of its own where a task begins."""
    rows, task = [], ""
    for entry in entries:
        if entry["task"] != task:
            task = entry["task"]
            rows += [["", "", ""], [f"for {task}:", "", ""]]
        settings = ", ".join(f"{k}={v:g}" for k, v in entry["parameters"].items() if v is not None)
        text = f"{entry['formula']}; {settings}" if settings else entry["formula"]
        first, *others = textwrap.wrap(text, FORMULA_WIDTH)
        rows.append([entry["name"], "yes" if entry["smooth"] else "no", first])
        rows += [["", "", f"  {line}"] for line in others]
    return rows
