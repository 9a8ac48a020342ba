"""Charts as hand-written SVG: two axes, lines, marks, a shaded band, a horizontal rule, a description."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from riskmin.core import Result
from riskmin.report.progress import relative_gap


@dataclass(frozen=True)
class ChartLayout:
    """Lengths of a chart in SVG units: the plotting area, and margins for title, legend and tick labels."""

    width: int = 390
    height: int = 210
    left: int = 54
    right: int = 20
    top: int = 46
    bottom: int = 44


LAYOUT = ChartLayout()


class ChartAxis(NamedTuple):
    """Ticks as (value, label), and the map from values of the range to [0, 1]."""

    ticks: list[tuple[float, str]]
    to_unit_interval: Callable[[float], float]


def linear_axis(lo: float, hi: float, whole: bool = False) -> ChartAxis:
    """An axis with ticks at multiples of 1, 2 or 5 times a power of ten.

    Examples
    --------
    >>> [label for _, label in linear_axis(0.0, 0.97).ticks]
    ['0.0', '0.2', '0.4', '0.6', '0.8']
    """
    # about six ticks: the smallest step of the form 1, 2 or 5 times 10^k that is at least span / 6
    span = hi - lo if hi > lo else abs(hi) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 6))
    step = next(m * power for m in (1, 2, 5, 10, 20) if m * power >= span / 6.001)
    step = max(step, 1.0) if whole else step
    # as many decimals as the step has; 1e-9 absorbs the rounding of the logarithm
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = range(math.ceil(lo / step - 1e-9), math.floor((lo + span) / step + 1e-9) + 1)
    plain = digits < 6 and abs(hi) < 1e7
    labels = [(k * step, f"{k * step:.{digits}f}" if plain else f"{k * step:.3g}") for k in ticks]
    return ChartAxis(labels, lambda v: (v - lo) / span)


def log_axis(lo: float, hi: float) -> ChartAxis:
    """A logarithmic axis of whole decades, with at most eight tick labels.

    Examples
    --------
    >>> [label for _, label in log_axis(0.004, 1.0).ticks]
    ['1', '10⁻¹', '10⁻²', '10⁻³']
    """
    # the decades 10^a to 10^b enclose the range; 1e-9 absorbs the rounding of the logarithm
    a, b = math.floor(math.log10(lo) + 1e-9), math.ceil(math.log10(hi) - 1e-9)
    b = max(b, a + 1)
    powers = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    # every m-th decade, so that there are at most eight labels
    exponents = range(b, a - 1, -math.ceil((b - a) / 7))
    ticks = [(10.0**k, "1" if k == 0 else "10" + str(k).translate(powers)) for k in exponents]
    return ChartAxis(ticks, lambda v: (math.log10(max(v, 1e-300)) - a) / (b - a))


class ChartLine(NamedTuple):
    """A curve of a chart: its class in the style sheet, its name in the legend, its points.

    A line of class "mark" is a single point, which is drawn as a ring.
    """

    css_class: str
    name: str
    points: list[tuple[float, float]]


def draw_chart(
    title: str,
    x: ChartAxis,
    y: ChartAxis,
    lines: Sequence[ChartLine],
    *,
    band: bool = False,
    rule: float = 0.0,
    label: str = "iteration",
) -> str:
    """Draw a chart as SVG.

    Parameters
    ----------
    title : str
    x, y : ChartAxis
    lines : sequence of ChartLine
    band : bool
        Shade the area between the first two lines.
    rule : float
        The y value of a dashed horizontal line, if positive.
    label : str
        The label of the x axis.

    Returns
    -------
    str
    """
    # from the unit interval to SVG coordinates, whose y axis points down
    curves = [
        [
            (x.to_unit_interval(u) * LAYOUT.width, (1 - y.to_unit_interval(v)) * LAYOUT.height)
            for u, v in line.points
        ]
        for line in lines
    ]
    shapes = []
    if band:
        shapes.append(f'<path class="band" d="{_svg_path([*curves[0], *reversed(curves[1])])}Z"/>')
    for line, points in zip(lines, curves, strict=True):
        if line.css_class == "mark":
            shapes += [f'<circle class="mark" cx="{u:.1f}" cy="{v:.1f}" r="6"/>' for u, v in points]
            continue
        shapes.append(f'<path class="{line.css_class}" d="{_svg_path(points)}"/>')
        # dots mark the points of short curves
        if len(points) <= 30 and line.css_class not in ("other", "tol"):
            shapes += [
                f'<circle class="{line.css_class} dot" cx="{u:.1f}" cy="{v:.1f}" r="2.8"/>' for u, v in points
            ]
    names = [(line.css_class, line.name) for line in lines if line.name]
    if rule > 0:
        level = (1 - y.to_unit_interval(rule)) * LAYOUT.height
        shapes.append(f'<path class="tol" d="M0 {level:.1f}H{LAYOUT.width}"/>')
        names.append(("tol", f"tol = {rule:g}"))
    width = LAYOUT.left + LAYOUT.width + LAYOUT.right
    height = LAYOUT.top + LAYOUT.height + LAYOUT.bottom
    plot = (
        f'<svg x="{LAYOUT.left}" y="{LAYOUT.top}" width="{LAYOUT.width}" height="{LAYOUT.height}">'
        f"{''.join(shapes)}</svg>"
    )
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {width} {height}">'
        f"<title>{escape(title)}</title><desc>{escape(_description(lines, label))}</desc>"
        f'<text class="title" x="{LAYOUT.left}" y="14">{escape(title)}</text>'
        f"{_legend(names)}{_frame(x, y, label)}{plot}</svg>"
    )


def _svg_path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{u:.1f} {v:.1f}" for u, v in points)


def _description(lines: Sequence[ChartLine], label: str) -> str:
    """Describe the lines that have names by their ends, and marks by their place: for screen readers."""
    sentences = []
    for line in lines:
        (u, v), (x, y) = line.points[0], line.points[-1]
        if line.css_class == "tol":  # a rule, whose name states where it is
            sentences.append(f"{line.name}.")
        elif line.name and len(line.points) == 1:
            sentences.append(f"{line.name}: {v:.4g} at {label} {u:.4g}.")
        elif line.name:
            sentences.append(f"{line.name}: from {v:.4g} at {label} {u:.4g} to {y:.4g} at {label} {x:.4g}.")
    return " ".join(sentences)


def _legend(names: Sequence[tuple[str, str]]) -> str:
    # x advances by at most 8 SVG units per character of a name, in the larger font of small screens
    marks, x = [], LAYOUT.left
    if sum(50 + 8 * len(name) for _, name in names) > LAYOUT.width + LAYOUT.right + 20:
        most = int((LAYOUT.width / len(names) - 50) / 8)
        names = [(kind, name if len(name) <= most else name[: most - 1] + "…") for kind, name in names]
    for kind, name in names:
        sign = f'<path class="{kind}" d="M{x} 30h18"/>'
        if kind == "mark":
            sign = f'<circle class="mark" cx="{x + 10}" cy="30" r="6"/>'
        marks.append(f'{sign}<text x="{x + 24}" y="34">{escape(name)}</text>')
        x += 50 + 8 * len(name)
    return "".join(marks)


def _frame(x: ChartAxis, y: ChartAxis, label: str) -> str:
    """The grid, the ticks and their labels."""
    # coordinates of the whole chart, with its margins; y points down
    bottom = LAYOUT.top + LAYOUT.height
    marks = [f'<path class="axis" d="M{LAYOUT.left} {bottom}h{LAYOUT.width}"/>']
    for value, tick in y.ticks:
        height = bottom - y.to_unit_interval(value) * LAYOUT.height
        marks.append(f'<path class="grid" d="M{LAYOUT.left} {height:.1f}h{LAYOUT.width}"/>')
        marks.append(f'<text x="{LAYOUT.left - 8}" y="{height + 4:.1f}" text-anchor="end">{tick}</text>')
    for value, tick in x.ticks:
        left = LAYOUT.left + x.to_unit_interval(value) * LAYOUT.width
        marks.append(f'<path class="axis" d="M{left:.1f} {bottom}v4"/>')
        marks.append(f'<text x="{left:.1f}" y="{bottom + 18}" text-anchor="middle">{tick}</text>')
    center = LAYOUT.left + LAYOUT.width / 2
    marks.append(f'<text x="{center}" y="{bottom + 37}" text-anchor="middle">{escape(label)}</text>')
    # the axis last, so that it is drawn on top of the grid
    return "".join(marks[1:] + marks[:1])


def convergence_charts(result: Result, tol: float = 0.0) -> str:
    """Draw the convergence of a run: its two bounds, and the certified gap between them.

    Parameters
    ----------
    result : Result
    tol : float
        The requested relative gap, drawn as a dashed line if positive.

    Returns
    -------
    str
        Two SVG elements.
    """
    # both charts have the same x axis: the iterations
    rows = subsample(result.trace, 400)
    steps = [row["iteration"] for row in rows]
    x = linear_axis(steps[0], max(steps[-1], steps[0] + 1), whole=True)
    value = [row["value"] for row in rows]
    lower = [row["lower"] for row in rows]
    # the first values of a run may be very large: clip the axis at 2.5 times the final objective
    top = min(max(value), 2.5 * result.value) if result.value > 0 else max(value)
    bounds = draw_chart(
        "Objective and lower bound",
        x,
        linear_axis(min(lower), 1.04 * top),
        [
            ChartLine("value", "objective J(w)", list(zip(steps, value, strict=True))),
            ChartLine("lower", "lower bound of min J", list(zip(steps, lower, strict=True))),
        ],
        band=True,
    )
    gaps = [relative_gap(row) for row in rows]
    # gaps below rounding error would stretch the logarithmic axis
    smallest = min([g for g in [*gaps, tol] if g > 1e-16], default=1e-16)
    line = ChartLine("gap", "certified gap / J(w)", list(zip(steps, gaps, strict=True)))
    return bounds + draw_chart("Certified relative gap", x, log_axis(0.7 * smallest, 1.0), [line], rule=tol)


def subsample(rows: Sequence[Any], most: int) -> list[Any]:
    """At most so many rows, evenly spaced, including the first and the last."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(k * (len(rows) - 1) / (most - 1))] for k in range(most)]
