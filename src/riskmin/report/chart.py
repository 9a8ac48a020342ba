"""Pictures of convergence as SVG, drawn by hand: two axes, lines, a band, a rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from riskmin.progress import relative_gap
from riskmin.types import Result

WIDTH, HEIGHT = 390, 210
"""Of the field of a picture; the labels lie around it."""
LEFT, RIGHT, TOP, BOTTOM = 54, 20, 46, 44
MOST_POINTS = 400
"""A picture shows no more than these many rows of a trace."""


class Axis(NamedTuple):
    """Ticks with their labels, and the map from the range to [0, 1]."""

    ticks: list[tuple[float, str]]
    place: Callable[[float], float]


def linear_axis(lo: float, hi: float, whole: bool = False) -> Axis:
    """An axis with ticks at multiples of 1, 2 or 5 times a power of ten.

    Examples
    --------
    >>> [label for _, label in linear_axis(0.0, 0.97).ticks]
    ['0.0', '0.2', '0.4', '0.6', '0.8']
    """
    span = hi - lo if hi > lo else abs(hi) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 6))
    step = next(m * power for m in (1, 2, 5, 10, 20) if m * power >= span / 6.001)
    step = max(step, 1.0) if whole else step
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = range(math.ceil(lo / step - 1e-9), math.floor((lo + span) / step + 1e-9) + 1)
    plain = digits < 6 and abs(hi) < 1e7
    labels = [(k * step, f"{k * step:.{digits}f}" if plain else f"{k * step:.3g}") for k in ticks]
    return Axis(labels, lambda v: (v - lo) / span)


def log_axis(lo: float, hi: float) -> Axis:
    """An axis of whole decades, eight of them labelled at most.

    Examples
    --------
    >>> [label for _, label in log_axis(0.004, 1.0).ticks]
    ['1', '10⁻¹', '10⁻²', '10⁻³']
    """
    a, b = math.floor(math.log10(lo) + 1e-9), math.ceil(math.log10(hi) - 1e-9)
    b = max(b, a + 1)
    powers = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    exponents = range(b, a - 1, -math.ceil((b - a) / 7))
    ticks = [(10.0**k, "1" if k == 0 else "10" + str(k).translate(powers)) for k in exponents]
    return Axis(ticks, lambda v: (math.log10(max(v, 1e-300)) - a) / (b - a))


class Line(NamedTuple):
    """A curve of a picture: its class in the style sheet, its name in the legend, its points."""

    kind: str
    name: str
    points: list[tuple[float, float]]


def draw(
    title: str,
    x: Axis,
    y: Axis,
    lines: Sequence[Line],
    *,
    band: bool = False,
    rule: float = 0.0,
    label: str = "iteration",
) -> str:
    """A picture as SVG.

    Parameters
    ----------
    title : str
    x, y : Axis
    lines : sequence of Line
    band : bool
        Shade what lies between the first two lines.
    rule : float
        A level to draw a dashed line at, if positive.
    label : str
        Of the axis x.

    Returns
    -------
    str
    """
    at = [[(x.place(u) * WIDTH, (1 - y.place(v)) * HEIGHT) for u, v in line.points] for line in lines]
    field = []
    if band:
        field.append(f'<path class="band" d="{_path([*at[0], *reversed(at[1])])}Z"/>')
    for line, points in zip(lines, at, strict=True):
        field.append(f'<path class="{line.kind}" d="{_path(points)}"/>')
        if len(points) <= 30 and line.kind not in ("other", "tol"):
            field += [
                f'<circle class="{line.kind} dot" cx="{u:.1f}" cy="{v:.1f}" r="2.8"/>' for u, v in points
            ]
    names = [(line.kind, line.name) for line in lines if line.name]
    if rule > 0:
        level = (1 - y.place(rule)) * HEIGHT
        field.append(f'<path class="tol" d="M0 {level:.1f}H{WIDTH}"/>')
        names.append(("tol", f"tol = {rule:g}"))
    return (
        f'<svg class="chart" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {LEFT + WIDTH + RIGHT} {TOP + HEIGHT + BOTTOM}">'
        f'<text class="title" x="{LEFT}" y="14">{escape(title)}</text>{_legend(names)}{_frame(x, y, label)}'
        f'<svg x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}">{"".join(field)}</svg></svg>'
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{u:.1f} {v:.1f}" for u, v in points)


def _legend(names: Sequence[tuple[str, str]]) -> str:
    marks, at = [], LEFT
    for kind, name in names:
        marks.append(
            f'<path class="{kind}" d="M{at} 30h18"/><text x="{at + 24}" y="34">{escape(name)}</text>'
        )
        at += 44 + 7 * len(name)
    return "".join(marks)


def _frame(x: Axis, y: Axis, label: str) -> str:
    """The grid, the ticks and their labels."""
    bottom = TOP + HEIGHT
    marks = [f'<path class="axis" d="M{LEFT} {bottom}h{WIDTH}"/>']
    for value, tick in y.ticks:
        at = bottom - y.place(value) * HEIGHT
        marks.append(f'<path class="grid" d="M{LEFT} {at:.1f}h{WIDTH}"/>')
        marks.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tick}</text>')
    for value, tick in x.ticks:
        at = LEFT + x.place(value) * WIDTH
        marks.append(f'<path class="axis" d="M{at:.1f} {bottom}v4"/>')
        marks.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{tick}</text>')
    middle = LEFT + WIDTH / 2
    marks.append(f'<text x="{middle}" y="{bottom + 37}" text-anchor="middle">{escape(label)}</text>')
    return "".join(marks[1:] + marks[:1])


def pictures(result: Result, tol: float = 0.0) -> str:
    """The convergence of a run: its two bounds, and the certified gap between them.

    Parameters
    ----------
    result : Result
    tol : float
        Where to draw the line of the gap asked for; nowhere if 0.

    Returns
    -------
    str
        Two SVG elements.
    """
    rows = _thin(result.trace)
    steps = [row["iteration"] for row in rows]
    x = linear_axis(steps[0], max(steps[-1], steps[0] + 1), whole=True)
    value = [row["value"] for row in rows]
    lower = [row["lower"] for row in rows]
    # the first points of a run may lie far off: the interesting part of the picture comes first
    top = min(max(value), 2.5 * result.value) if result.value > 0 else max(value)
    bounds = draw(
        "Objective and lower bound",
        x,
        linear_axis(min(lower), 1.04 * top),
        [
            Line("value", "objective J(w)", list(zip(steps, value, strict=True))),
            Line("lower", "lower bound of min J", list(zip(steps, lower, strict=True))),
        ],
        band=True,
    )
    gaps = [relative_gap(row) for row in rows]
    least = min([g for g in [*gaps, tol] if g > 1e-16], default=1e-16)
    line = Line("gap", "certified gap / J(w)", list(zip(steps, gaps, strict=True)))
    return bounds + draw("Certified relative gap", x, log_axis(0.7 * least, 1.0), [line], rule=tol)


def _thin(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """At most so many rows, the first and the last among them."""
    if len(rows) <= MOST_POINTS:
        return list(rows)
    return [rows[round(k * (len(rows) - 1) / (MOST_POINTS - 1))] for k in range(MOST_POINTS)]
