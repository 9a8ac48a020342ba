"""Reports of fits: one self-contained HTML page with charts as inline SVG."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from typing import Any

from riskmin.core import Result
from riskmin.report.chart import convergence_charts, subsample
from riskmin.report.page import (
    fact_rows,
    html_details,
    html_facts,
    html_section,
    html_table,
    status_badge,
    write_page,
)
from riskmin.report.page import write_text as write_text
from riskmin.report.path_page import write_path as write_path
from riskmin.report.path_page import write_search as write_search
from riskmin.report.progress import duration, relative_gap

ReportEntry = tuple[str, Result, dict[str, Any]]

_INTRODUCTION = (
    "Every fit comes with a proof: no weights have an objective below the lower bound, so the optimum lies "
    "in the shaded band between the two curves. The certified gap is the width of that band relative to the "
    "objective; the objective of the model is within that gap of the optimum."
)


def _fact_rows(result: Result, facts: dict[str, Any]) -> list[tuple[str, str]]:
    last = result.trace[-1]
    # known facts in this order, then those of the result; all others follow at the end
    first = {name: facts[name] for name in ("rows", "columns", "loss", "lam", "tol") if name in facts}
    found = {
        "objective": f"{result.value:.10g}",
        "lower bound": f"{result.lower:.10g}",
        "certified gap": f"{result.gap:.3g} ({relative_gap(last):.2e} of the objective)",
        "significant figures": f"{result.significant_figures:.1f}",
        "status": f"{result.status}, by atol" if result.criterion == "atol" else result.status,
        "iterations": f"{result.n_iter:,}",
        "oracle calls": f"{int(last['calls']):,}",
        "time": duration(last["seconds"]),
        "solver": result.solver,
    }
    return fact_rows(first | found | {name: fact for name, fact in facts.items() if name not in first})


def _section(title: str, result: Result, facts: dict[str, Any]) -> str:
    numbers = [
        (f"{result.value:.6g}", "objective J(w)"),
        (f"{result.lower:.6g}", "proved lower bound of min J"),
        (f"{relative_gap(result.trace[-1]):.1e}", "certified relative gap"),
    ]
    headline = "".join(f"<div><b>{number}</b><span>{name}</span></div>" for number, name in numbers)
    return (
        f"<section><header><h2>{escape(title)}</h2>{status_badge(result)}</header>"
        f'<div class="numbers">{headline}</div>'
        f'<div class="charts">{convergence_charts(result, float(facts.get("tol", 0.0)))}</div>'
        f"{html_facts(_fact_rows(result, facts))}"
        f"{html_details('Numbers of the charts', _trace(title, result))}</section>"
    )


def _trace(title: str, result: Result) -> str:
    """Table of the numbers that the charts show."""
    head = ("iteration", "objective", "lower bound", "relative gap", "time")
    rows = [
        (
            f"{row['iteration']:.0f}",
            f"{row['value']:.8g}",
            f"{row['lower']:.8g}",
            f"{relative_gap(row):.1e}",
            duration(row["seconds"]),
        )
        for row in subsample(result.trace, 40)
    ]
    return html_table(f"Objective and lower bound by iteration: {title}", head, rows)


def _overview(fits: Sequence[ReportEntry]) -> str:
    head = ("fit", "objective", "lower bound", "relative gap", "iterations", "time", "status")
    rows = [
        (
            escape(name),
            f"{result.value:.6g}",
            f"{result.lower:.6g}",
            f"{relative_gap(result.trace[-1]):.1e}",
            f"{result.n_iter:,}",
            duration(result.trace[-1]["seconds"]),
            status_badge(result),
        )
        for name, result, _ in fits
    ]
    return html_section(html_table("All fits", head, rows))


def write_report(
    path: str | os.PathLike[str],
    fits: Sequence[ReportEntry],
    title: str = "riskmin report",
    parts: Sequence[str] = (),
) -> None:
    """Write one HTML page about fits. It needs no other file, no network and no script.

    Parameters
    ----------
    path : path
        Written atomically: completely or not at all.
    fits : sequence of (name, result, facts)
        The facts are a dict of entries to show in addition to the `Result`: "loss" (with its formula),
        "rows", "columns", "lam", "tol" (drawn in the chart of the gap), and any others.
    title : str
    parts : sequence of str
        HTML of further sections, such as those of `riskmin.report.evaluation_page`.

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
    # a single fit needs no table of all fits
    first = [_overview(fits)] if len(fits) > 1 else []
    write_page(path, title, _INTRODUCTION, [*first, *(_section(*fit) for fit in fits), *parts])
