"""Parts of the pages of docs/papers: an experiment of a paper, its finished cells, its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from docs.pictures import card, light_style

from riskmin.report import chart

COLORS = ("#1d5dbf", "#b4530a", "#14653a", "#7a3ea8", "#57606a", "#b3261e")
"""One per curve of a panel."""
N_POINTS = 150
"""Curves are thinned to about this many points."""


class Part(NamedTuple):
    """An experiment: a heading, the name of its figure and of its file of cells, and its function."""

    name: str
    heading: str
    run: Callable[[Lab], str]


class MissingData(Exception):
    """The folder of data, or one of its files, is not there."""


@dataclass
class Lab:
    """Where the data, the finished cells and the figures of a part are."""

    name: str
    data: Path | None
    cells: Path
    out: Path

    def folder(self) -> Path:
        """The folder of the data sets."""
        if self.data is None:
            raise MissingData("no --data folder was given")
        return self.data

    def once(self, key: str, compute: Callable[[], Any]) -> Any:
        """What `compute` returns, or what it returned in an earlier run."""
        file = self.cells / f"{self.name}.json"
        done = json.loads(file.read_text()) if file.exists() else {}
        if key not in done:
            done[key] = compute()
            self.cells.mkdir(parents=True, exist_ok=True)
            file.with_suffix(".part").write_text(json.dumps(done))
            file.with_suffix(".part").replace(file)
            print(f"  {self.name}: {key}", flush=True)
        return done[key]

    def figure(self, title: str, panels: Sequence[Panel], suffix: str = "") -> str:
        """Draw panels side by side, two per row; return the Markdown that shows them."""
        name = f"{self.name}{suffix}.svg"
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / name).write_text(picture(title, panels), encoding="utf-8")
        return f"![{title}]({name})\n"


class Panel(NamedTuple):
    """A chart: its curves by name, each a list of points (x, y)."""

    title: str
    curves: dict[str, list[tuple[float, float]]]
    label: str
    log_x: bool = True
    log_y: bool = True
    lowest: float = 0.0
    """Values of y below this are drawn at it."""


def thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """About `N_POINTS` of the points, with the last."""
    step = max(len(points) // N_POINTS, 1)
    return [*points[:-1][::step], points[-1]]


def draw(panel: Panel) -> str:
    """One panel as SVG."""
    curves = {
        name: thin([(x, max(y, panel.lowest)) for x, y in points if x > 0 or not panel.log_x])
        for name, points in panel.curves.items()
        if points
    }
    xs = [x for points in curves.values() for x, _ in points] or [1.0]
    ys = [y for points in curves.values() for _, y in points if y > 0 or not panel.log_y] or [1.0]
    x_axis = (chart.log_axis if panel.log_x else chart.linear_axis)(min(xs), max(xs))
    y_axis = (chart.log_axis if panel.log_y else chart.linear_axis)(min(ys), max(ys))
    lines = [
        chart.ChartLine(f"c{k % len(COLORS)}", name, points)
        for k, (name, points) in enumerate(curves.items())
    ]
    return chart.draw_chart(panel.title, x_axis, y_axis, lines, label=panel.label)


def picture(title: str, panels: Sequence[Panel]) -> str:
    """All panels on one card, two per row."""
    style = light_style() + "".join(
        f"\n.c{k} {{ fill: none; stroke: {color}; stroke-width: 2; stroke-linejoin: round; }}"
        f"\n.c{k}.dot {{ fill: {color}; stroke: none; }}"
        for k, color in enumerate(COLORS)
    )
    body = []
    for k, panel in enumerate(panels):
        place = f'x="{14 + 476 * (k % 2)}" y="{18 + 312 * (k // 2)}" width="464" height="300"'
        body.append(draw(panel).replace("<svg", f"<svg {place}", 1))
    columns, rows = min(len(panels), 2), (len(panels) + 1) // 2
    return card(16 + 476 * columns, 24 + 312 * rows, title, style, "".join(body))


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def seconds(value: float | None) -> str:
    """Seconds as a table entry; a dash where the goal was not reached."""
    return "-" if value is None else f"{value:.2g}"
