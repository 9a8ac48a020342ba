"""Rows for new losses, regularizers and solvers in the tables of docs/reference.md and docs/regularizers.md.

`python -m docs.support` adds a row for whatever has none, from its class: the formula, the names, the first
line of the docstring. Texts of rows that are there stay as they were written.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import riskmin
from riskmin import LOSSES, REGULARIZERS

REFERENCE_PAGE = Path(__file__).with_name("reference.md")
REGULARIZERS_PAGE = Path(__file__).with_name("regularizers.md")


def signature(thing: Any) -> str:
    """The call of a class with its defaults: `Huber(delta=1)`."""
    fields = [f"{f.name}={getattr(thing, f.name):g}" for f in dataclasses.fields(thing)]
    return f"`{type(thing).__name__}({', '.join(fields)})`"


def escaped(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return text.replace("|", r"\|")


def first_line(thing: Any) -> str:
    """The first line of the documentation of its class, as a phrase."""
    line = (inspect.getdoc(type(thing)) or "").split("\n")[0].rstrip(".")
    return re.sub(r", :math:.*", "", line)


def names(registry: dict[str, Any], thing: Any) -> str:
    """The names of all objects of the class."""
    return ", ".join(f"`{name}`" for name, other in registry.items() if type(other) is type(thing))


def with_rows(text: str, title: str, known: dict[str, Any], row: Callable[[Any], str]) -> str:
    """The text with a row for each key that occurs in no row of a table, below the last one that does.

    Parameters
    ----------
    text : str
    title : str
        The title of the first column.
    known : dict
        What the table lists, by the word that its rows have in backquotes, alone or before a parenthesis.
    row : callable
        The row of an object.
    """
    start = text.index(f"| {title} |")
    lines = text[start:].partition("\n\n")[0].splitlines()
    words = [re.findall(r"`(\w+)[`(]", line) for line in lines]
    listed = {word for line in words for word in line}
    missing = [thing for word, thing in known.items() if word not in listed]
    end = 1 + max(i for i, line in enumerate(words) if set(line) & known.keys())
    new = [*lines[:end], *(row(thing) for thing in missing), *lines[end:]]
    return text[:start] + "\n".join(new) + text[start + len("\n".join(lines)) :]


def reference_page(picks: Callable[[Any], tuple[str, ...]]) -> str:
    """docs/reference.md with a row for every loss, regularizer and solver.

    `picks` gives the solvers that `Auto` selects for a loss.
    """
    text = REFERENCE_PAGE.read_text(encoding="utf-8")
    losses = {type(loss).__name__: loss for loss in reversed(LOSSES.values())}
    solvers = {name: getattr(riskmin, name) for name in riskmin.SOLVERS.own_classes}
    text = re.sub(r"\d+ losses in all", f"{len(losses)} losses in all", text)
    text = with_rows(
        text,
        "loss",
        losses,
        lambda loss: (
            f"| {signature(loss)} | {names(LOSSES, loss)} | {escaped(loss.formula)} | "
            f"{'yes' if loss.smooth else 'no'} | {', '.join(dict.fromkeys(picks(loss)))} |"
        ),
    )
    text = with_rows(
        text,
        "regularizer",
        REGULARIZERS,
        lambda reg: (
            f"| {signature(reg)} | {names(REGULARIZERS, reg)} | {escaped(reg.formula)} | {first_line(reg)} |"
        ),
    )
    supported = "[those that it supports](support.md)"
    return with_rows(
        text,
        "solver",
        {name: kind() for name, kind in solvers.items()},
        lambda solver: f"| `{type(solver).__name__}` | {supported} | {supported} | {first_line(solver)} |",
    )


def regularizers_page() -> str:
    """docs/regularizers.md with a row for every name."""
    return with_rows(
        REGULARIZERS_PAGE.read_text(encoding="utf-8"),
        "name",
        REGULARIZERS,
        lambda reg: (
            f"| {names(REGULARIZERS, reg)} | {signature(reg)} | {escaped(reg.formula)} | "
            f"{', '.join(f.name for f in dataclasses.fields(reg))} | {first_line(reg)} |"
        ),
    )
