"""A report of fits: one self-contained HTML page, its pictures drawn as inline SVG."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from typing import Any

from riskmin.progress import duration, relative_gap
from riskmin.report.chart import pictures
from riskmin.report.page import badge, table, write_page
from riskmin.report.page import facts as page_facts
from riskmin.report.page import write_text as write_text
from riskmin.report.paths import write_path as write_path
from riskmin.report.paths import write_search as write_search
from riskmin.types import Result

Fit = tuple[str, Result, dict[str, Any]]

_MEANING = (
    "Every fit comes with a proof: the lower bound is a number that the objective cannot go below, whatever "
    "the weights, so the optimum lies in the shaded band between the two curves. The certified gap is the "
    "width of that band relative to the objective, and the model is at most that far from the best there is."
)


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
        ("status", f"{result.status}, by atol" if result.criterion == "atol" else result.status),
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
    return (
        f"<section><header><h2>{escape(name)}</h2>{badge(result)}</header>"
        f'<div class="numbers">{shown}</div>'
        f'<div class="charts">{pictures(result, float(facts.get("tol", 0.0)))}</div>'
        f"{page_facts(_facts(result, facts))}</section>"
    )


def _overview(fits: Sequence[Fit]) -> str:
    head = ("fit", "objective", "lower bound", "relative gap", "iterations", "time", "status")
    rows = [
        (
            escape(name),
            f"{result.value:.6g}",
            f"{result.lower:.6g}",
            f"{relative_gap(result.trace[-1]):.1e}",
            f"{result.n_iter:,}",
            duration(result.trace[-1]["seconds"]),
            badge(result),
        )
        for name, result, _ in fits
    ]
    return table(head, rows)


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
    parts = [_overview(fits)] if len(fits) > 1 else []
    write_page(path, title, _MEANING, parts + [_section(*fit) for fit in fits])
