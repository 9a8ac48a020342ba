"""A report of fits: one self-contained HTML page, its pictures drawn as inline SVG."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from riskmin.persist import write_whole
from riskmin.progress import duration, relative_gap
from riskmin.report.chart import pictures
from riskmin.types import Result

Fit = tuple[str, Result, dict[str, Any]]

_MEANING = (
    "Every fit comes with a proof: the lower bound is a number that the objective cannot go below, whatever "
    "the weights, so the optimum lies in the shaded band between the two curves. The certified gap is the "
    "width of that band relative to the objective, and the model is at most that far from the best there is."
)


def _badge(result: Result) -> str:
    done = result.status == "converged"
    said = "certified" if done else f"not converged: {result.status}"
    return f'<span class="badge {"good" if done else "bad"}">{escape(said)}</span>'


def _facts(result: Result, facts: dict[str, Any]) -> list[tuple[str, str]]:
    last, more = result.trace[-1], dict(facts)
    rows: list[tuple[str, Any]] = []
    if "rows" in more and "columns" in more:
        rows.append(("data", f"{more.pop('rows'):,} rows × {more.pop('columns'):,} columns"))
    rows += [(name, more.pop(name)) for name in ("loss", "lam", "tol") if name in more]
    rows += [
        ("objective", f"{result.value:.10g}"),
        ("lower bound", f"{result.lower:.10g}"),
        ("certified gap", f"{result.gap:.3g} ({relative_gap(last):.2e} of the objective)"),
        ("status", result.status),
        ("iterations", f"{result.n_iter:,}"),
        ("oracle calls", f"{int(last['calls']):,}"),
        ("time", duration(last["seconds"])),
        ("solver", result.solver),
        *more.items(),
    ]
    return [(name, f"{fact:g}" if isinstance(fact, float) else str(fact)) for name, fact in rows]


def _section(name: str, result: Result, facts: dict[str, Any]) -> str:
    numbers = [
        (f"{result.value:.6g}", "objective J(w)"),
        (f"{result.lower:.6g}", "proved lower bound of min J"),
        (f"{relative_gap(result.trace[-1]):.1e}", "certified relative gap"),
    ]
    shown = "".join(f"<div><b>{number}</b><span>{what}</span></div>" for number, what in numbers)
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(fact)}</dd></div>" for name, fact in _facts(result, facts)
    )
    return (
        f"<section><header><h2>{escape(name)}</h2>{_badge(result)}</header>"
        f'<div class="numbers">{shown}</div>'
        f'<div class="charts">{pictures(result, float(facts.get("tol", 0.0)))}</div>'
        f'<dl class="facts">{rows}</dl></section>'
    )


def _overview(fits: Sequence[Fit]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{result.value:.6g}</td><td>{result.lower:.6g}</td>"
        f"<td>{relative_gap(result.trace[-1]):.1e}</td><td>{result.n_iter:,}</td>"
        f"<td>{duration(result.trace[-1]['seconds'])}</td><td>{_badge(result)}</td></tr>"
        for name, result, _ in fits
    )
    head = "".join(
        f"<th>{name}</th>"
        for name in ("fit", "objective", "lower bound", "relative gap", "iterations", "time", "status")
    )
    return (
        f'<section class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>'
    )


def write_report(path: str | os.PathLike[str], fits: Sequence[Fit], title: str = "riskmin report") -> None:
    """Write one HTML page about fits. It needs no other file, no network and no script.

    Parameters
    ----------
    path : path
        Written whole or not at all.
    fits : sequence of (name, result, facts)
        The facts are a dict of what shall be said about a fit beside its `Result`: "loss" (with its
        formula), "rows", "columns", "lam", "tol" (which the picture shows), and any others.
    title : str

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> from riskmin import Hinge, L2, Objective, linear_risk, minimize
    >>> result = minimize(Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), 0.1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = pathlib.Path(folder, "report.html")
    ...     write_report(page, [("a tiny SVM", result, {"loss": "hinge", "lam": 0.1, "tol": 1e-3})])
    ...     page.read_text(encoding="utf-8").count("<svg class")
    2
    """
    from riskmin import __version__

    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    parts = [_overview(fits)] if len(fits) > 1 else []
    parts += [_section(*fit) for fit in fits]
    write_text(
        path,
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>'
        f'<body><h1>{escape(title)}</h1><p class="lead">{_MEANING}</p>{"".join(parts)}'
        f"<footer>riskmin {__version__} · J(w) = lam · Ω(w) + R(w), R(w) the weighted mean of the loss"
        "</footer></body></html>\n",
    )


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file whole or not at all; a `FileError` says why it cannot be written.

    Parameters
    ----------
    path : path
    text : str
    """
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():
        target.write_text(text, encoding="utf-8")  # a pipe or a device, which must not be replaced
    else:
        write_whole(target, text.encode())
