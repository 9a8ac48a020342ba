"""Self-contained HTML pages, and atomic writing of text files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from riskmin.core import Result
from riskmin.core.persist import write_atomically


def status_badge(result: Result) -> str:
    """HTML of the status of a fit: certified, or not converged."""
    converged = result.status == "converged"
    text = "certified" if converged else f"not converged: {result.status}"
    return f'<span class="badge {"good" if converged else "bad"}">{escape(text)}</span>'


def html_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """HTML of a table that scrolls sideways, by keys too; the cells are HTML already, the first a heading."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def html_section(*parts: str) -> str:
    """HTML of a card."""
    return f"<section>{''.join(parts)}</section>"


def html_details(summary: str, content: str) -> str:
    """HTML that a click or the enter key opens."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def html_facts(rows: Sequence[tuple[str, str]]) -> str:
    """HTML of a list of names and values, in columns."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(fact)}</dd></div>" for name, fact in rows)
    return f'<dl class="facts">{items}</dl>'


def fact_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Format facts about a problem as (name, value) pairs, with rows and columns in one entry."""
    left = dict(facts)
    rows: list[tuple[str, Any]] = []
    if "rows" in left and "columns" in left:
        rows.append(("data", f"{left.pop('rows'):,} rows × {left.pop('columns'):,} columns"))
    rows += left.items()
    return [(name, f"{fact:g}" if isinstance(fact, float) else str(fact)) for name, fact in rows]


def certificate_html(result: Result, value: float, tol: float, title: str = "certificate") -> str:
    """Return a small table of the certificate, in the colors of the page around it: for notebooks.

    `value` is J at the fitted point, the best intercept included.
    """
    gap = value - result.lower
    relative = f", {gap / value:.2g} of the objective (tol {tol:g})" if value else ""
    rows = [
        ("status", f"{result.status}, by atol" if result.criterion == "atol" else result.status),
        ("objective", f"{value:.9g}"),
        ("proved gap", f"{gap:.3g}{relative}"),
        ("solver", result.solver),
        ("iterations", f"{result.n_iter:,}"),
    ]
    rows += [("note", result.note)] if result.note else []
    cell = 'style="text-align: left; vertical-align: top; padding: 1px 12px 1px 4px"'
    body = "".join(
        f'<tr><th scope="row" {cell}>{name}</th><td {cell}>{escape(text)}</td></tr>' for name, text in rows
    )
    caption = f'<caption style="text-align: left; padding: 1px 4px">{escape(title)}</caption>'
    return f'<table class="riskmin-certificate">{caption}<tbody>{body}</tbody></table>'


def write_page(path: str | os.PathLike[str], title: str, lead: str, parts: Sequence[str]) -> None:
    """Write a page with a title, an introduction and HTML sections."""
    from riskmin import __version__

    # the style sheet is embedded, so that the page needs no other file
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    write_text(
        path,
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>'
        f'<body><main><h1>{escape(title)}</h1><p class="lead">{lead}</p>{"".join(parts)}</main>'
        f"<footer>riskmin {__version__} · J(w) = lam · Ω(w) + R(w), R(w) the empirical risk"
        "</footer></body></html>\n",
    )


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file atomically; a `FileError` is raised if it cannot be written.

    Parameters
    ----------
    path : path
    text : str
    """
    write_atomically(path, text.encode())
