"""Printing of aligned pairs and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click


def print_pairs(rows: Iterable[tuple[str, str]]) -> None:
    """Print pairs of names and values, aligned."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"  {name:<{width}}  {value}")


def print_table(cells: Sequence[Sequence[str]], *, left: bool = False) -> None:
    """Print a table whose first row is the header; cells are aligned to the right, or to the left."""
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]))]
    side = "<" if left else ">"
    for row in cells:
        # the last column is not padded
        line = "  ".join(f"{cell:{side}{width}}" for cell, width in zip(row[:-1], widths[:-1], strict=True))
        click.echo(f"  {line}  {row[-1]}".rstrip())


def pluralize(n: int, noun: str) -> str:
    """Format a count with its noun: "1 iteration", "2 iterations"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
