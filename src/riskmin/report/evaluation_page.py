"""Sections of HTML pages about predictions: weights, curves with the threshold in use, calibration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from typing import Any

from riskmin.core import NDArray
from riskmin.report.chart import ChartLine, draw_chart, linear_axis, subsample
from riskmin.report.page import html_facts, html_section, html_table, write_page

Point = tuple[float, float]

_UNIT_AXIS = linear_axis(-0.02, 1.02)
"""From 0 to 1, with room for a ring at either end."""

_INTRODUCTION = "How well the predictions of a model agree with the labels of these rows."


def write_evaluation(path: str | os.PathLike[str], title: str, parts: Sequence[str]) -> None:
    """Write one HTML page about an evaluation; the parts are HTML of sections."""
    write_page(path, title, _INTRODUCTION, parts)


def metrics_section(title: str, metrics: dict[str, Any]) -> str:
    """Section with the metrics that are single values."""
    pairs = [(name, value if isinstance(value, str) else f"{value:.6g}") for name, value in metrics.items()]
    return html_section(f"<h2>{escape(title)}</h2>", html_facts(pairs))


def charts_section(title: str, charts: Sequence[str], *more: str) -> str:
    """Section with charts side by side, followed by tables."""
    figure = f'<div class="charts">{"".join(charts)}</div>' if charts else ""
    return html_section(f"<h2>{escape(title)}</h2>", figure, *more)


def weights_section(weights: Sequence[dict[str, Any]], n_weights: int, size_name: str = "size") -> str:
    """Section with the largest weights; an entry has "column", "weight", "size", and "class", or None."""
    largest = max(entry["size"] for entry in weights)
    has_classes = weights[0]["class"] is not None
    rows = []
    for entry in weights:
        weight, share = entry["weight"], 100 * entry["size"] / largest
        # the bar repeats the number, so a screen reader does not announce it
        sign = "positive" if weight > 0 else "negative"
        bar = f'<span class="bar {sign}" style="width: {share:.1f}%" aria-hidden="true"></span>'
        of_class = [escape(entry["class"])] if has_classes else []
        rows.append([escape(entry["column"]), *of_class, f"{weight:.6g}", bar])
    head = ["column", *(["class"] if has_classes else []), "weight", size_name]
    caption = f"The {len(weights):,} largest of {n_weights:,} weights"
    return html_section("<h2>Weights</h2>", html_table(caption, head, rows))


def rate_chart(title: str, label: str, name: str, points: Sequence[Point], used: Point, chance: float) -> str:
    """Chart of one rate against another, both from 0 to 1, with the rates of the threshold in use.

    Parameters
    ----------
    title, label, name : str
        The title, the label of the x axis, and the name of the curve.
    points : sequence of pairs
    used : pair
        The point of the threshold in use.
    chance : float
        The slope of the curve of random scores through the origin if it is 1, else its constant height.
    """
    lines = [
        ChartLine("other", "", [(0.0, 0.0 if chance == 1 else chance), (1.0, chance)]),
        ChartLine("value", name, subsample(points, 300)),
        ChartLine("mark", "threshold in use", [used]),
    ]
    return draw_chart(title, _UNIT_AXIS, _UNIT_AXIS, lines, label=label)


def calibration_chart(title: str, label: str, name: str, points: Sequence[Point]) -> str:
    """Chart of the mean label against the mean prediction of groups of rows, and the diagonal."""
    values = [v for point in points for v in point]
    lo, hi = min(values), max(values)
    lo, hi = (0.0, 1.0) if lo >= 0 and hi <= 1 else (lo, hi if hi > lo else lo + 1.0)
    axis = linear_axis(lo - 0.02 * (hi - lo), hi + 0.02 * (hi - lo))
    lines = [ChartLine("other", "", [(lo, lo), (hi, hi)]), ChartLine("value", name, list(points))]
    return draw_chart(title, axis, axis, lines, label=label)


def sorted_chart(title: str, label: str, name: str, values: NDArray) -> str:
    """Chart of values between 0 and 1 in ascending order, against their share."""
    ordered = sorted(values.tolist())
    n = len(ordered)
    # two points per value make steps
    steps = [point for k, v in enumerate(ordered) for point in ((k / n, v), ((k + 1) / n, v))]
    mean = sum(ordered) / n
    lines = [
        ChartLine("value", name, subsample(steps, 400)),
        ChartLine("tol", f"mean {mean:.4g}", [(0.0, mean), (1.0, mean)]),
    ]
    return draw_chart(title, _UNIT_AXIS, _UNIT_AXIS, lines, label=label)


def confusion_table(labels: Sequence[str], counts: NDArray, caption: str = "Confusion matrix") -> str:
    """Table of counts or weights by true label, in rows, and predicted label, in columns."""
    rows = [[escape(label), *(f"{n:,.6g}" for n in row)] for label, row in zip(labels, counts, strict=True)]
    return html_table(caption, ["true \\ predicted", *labels], rows)
