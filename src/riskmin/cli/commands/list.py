"""`riskmin regularizers` and `riskmin solvers`: lists of the regularizers and of the solvers."""

from __future__ import annotations

import inspect
import json
from typing import Any

import click
import numpy as np

from riskmin.cli.inputs import json_option, print_table
from riskmin.regularizers import REGULARIZERS
from riskmin.solvers import SOLVERS


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
