"""`riskmin audit`: read the log of an owner."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import click

from riskmin.cli.inputs import PATH_TYPE
from riskmin.cli.output import print_pairs, print_table


@click.group()
def audit() -> None:
    """Read what an owner was asked, and what it answered."""


@click.argument("log", type=PATH_TYPE)
@click.option("--run", help="Requests of one run only, by the first digits of its number.")
@click.option(
    "--last", type=click.IntRange(1), default=20, show_default=True, help="How many requests to list."
)
@click.option("-o", "--output", type=PATH_TYPE, help="HTML page with the objective over time.")
@click.option("--json", "as_json", is_flag=True, help="Print all entries as JSON lines.")
def _log(log: Path, run: str | None, last: int, output: Path | None, as_json: bool) -> int:
    """Verify the chain of hashes of LOG, and list its requests with a picture of the objective.

    Exit code 1 if a line was changed or removed. Lines cut off at the end are noticed by the last hash only:
    note it from time to time.
    """
    from riskmin.owners.protection.audit import AuditError, read_log

    try:
        entries = list(read_log(log))
    except AuditError as error:
        click.secho(f"riskmin: {error}", fg="red", bold=True, err=True)
        return 1
    chosen = [e for e in entries if run is None or str(e.get("run", "")).startswith(run)]
    if as_json:
        for entry in chosen:
            click.echo(json.dumps(entry))
        return 0
    _summary(entries, chosen, last)
    if output is not None:
        _write_page(output, log.name, chosen)
    return 0


def _summary(entries: list[dict[str, Any]], chosen: list[dict[str, Any]], last: int) -> None:
    decisions = Counter(entry["decision"] for entry in chosen)
    runs = [entry for entry in chosen if entry["what"] == "open" and entry["decision"] == "answered"]
    values = [entry["value"] for entry in chosen if entry["what"] == "pull_back" and "value" in entry]
    print_pairs(
        [
            ("entries", f"{len(entries):,}, all in the chain of hashes"),
            ("last hash", entries[-1]["hash"] if entries else "none"),
            ("decisions", ", ".join(f"{n:,} {name}" for name, n in decisions.most_common()) or "none"),
            ("runs", f"{len(runs):,}"),
            (
                "objective",
                f"{sparkline(values)}  {values[0]:.4g} to {values[-1]:.4g}" if values else "not asked for",
            ),
        ]
    )
    rows = [["time", "who", "what", "decision", "norm of w", "objective", "reason"]]
    for e in chosen[-last:]:
        numbers = [f"{e[k]:.4g}" if isinstance(e.get(k), float) else "" for k in ("norm", "value")]
        rows.append([e["time"][:19], e["who"], e["what"], e["decision"], *numbers, e.get("reason", "")])
    print_table(rows, left=True)


def sparkline(values: list[float], width: int = 60) -> str:
    """Return a line of bars, one per value, or one per group of consecutive values.

    Examples
    --------
    >>> sparkline([1.0, 0.5, 0.25, 0.0])
    '█▅▃▁'
    """
    step = -(-len(values) // width)
    means = [sum(values[i : i + step]) / len(values[i : i + step]) for i in range(0, len(values), step)]
    lo, span = min(means), max(means) - min(means)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (v - lo) / span) if span else 0] for v in means)


def _write_page(output: Path, name: str, entries: list[dict[str, Any]]) -> None:
    """Write an HTML page with the claimed objective on the owner's rows over the requests."""
    from html import escape

    from riskmin.report.chart import ChartLine, draw_chart, linear_axis
    from riskmin.report.page import html_table, write_page

    points = [
        (float(k), e["value"]) for k, e in enumerate(entries) if e["what"] == "pull_back" and "value" in e
    ]
    charts = []
    if points:
        x = linear_axis(0.0, max(points[-1][0], 1.0), whole=True)
        y = linear_axis(min(v for _, v in points), max(v for _, v in points))
        title = "The claimed objective on the rows of this owner"
        charts = [draw_chart(title, x, y, [ChartLine("value", "objective", points)], label="request")]
    notable = [e for e in entries if e["decision"] != "answered" or e["what"] in ("open", "claim")]
    names = ("time", "who", "what", "decision", "reason")
    rows = [[escape(str(e.get(key, ""))) for key in names] for e in notable]
    lead = f"{len(entries):,} requests, of which those are listed that open a run or were not answered."
    write_page(output, name, lead, [*charts, html_table(names, rows)])


audit.command("log")(_log)
