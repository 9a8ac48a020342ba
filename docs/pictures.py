"""Draws the pictures of the documentation with riskmin itself: `python -m docs.pictures`.

The SVG is written without a plotting library, on a white card, which is legible on light and dark pages.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import riskmin
from riskmin.report import chart

IMG = Path(__file__).with_name("img")
STYLE = Path(riskmin.__file__).with_name("report") / "style.css"

INK, GRAY = "#1b1e22", "#57606a"
BLUE, ORANGE, GREEN = "#1d5dbf", "#b4530a", "#14653a"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"


def card(width: int, height: int, title: str, style: str, body: str) -> str:
    """A picture on a white card with round corners."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{title}">\n<title>{title}</title>\n'
        f"<style>text {{ font-family: {FONT}; }}\n{style}</style>\n"
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10" fill="#fff" '
        f'stroke="#e3e5e8"/>\n{body}\n</svg>\n'
    )


# ---------------------------------------------------------------- cuts under a curve
class Panel:
    """A rectangular plot area, which converts data coordinates to SVG."""

    def __init__(self, left: float, top: float, size: tuple[float, float], x: Any, y: Any) -> None:
        self.left, self.top, (self.width, self.height) = left, top, size
        self.x, self.y, self.parts = x, y, []

    def to_svg(self, x: float, y: float) -> tuple[float, float]:
        """Convert data coordinates to SVG coordinates, whose y axis points down."""
        u = (x - self.x[0]) / (self.x[1] - self.x[0])
        v = (y - self.y[0]) / (self.y[1] - self.y[0])
        return self.left + u * self.width, self.top + (1 - v) * self.height

    def curve(self, f: Callable[[float], float], kind: str) -> None:
        """The part of a curve that lies inside the field."""
        xs = np.linspace(*self.x, 601)
        ys = np.array([f(x) for x in xs])
        inside = (ys >= self.y[0]) & (ys <= self.y[1])
        path, drawing = "", False
        for x, y, shown in zip(xs, ys, inside, strict=True):
            if shown:
                path += ("L" if drawing else "M") + "{:.1f} {:.1f}".format(*self.to_svg(x, y))
            drawing = bool(shown)
        self.parts.append(f'<path class="{kind}" d="{path}"/>')

    def line(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        path = "L".join("{:.1f} {:.1f}".format(*self.to_svg(*p)) for p in points)
        self.parts.append(f'<path class="{kind}" d="M{path}"/>')

    def dot(self, x: float, y: float, kind: str, r: float = 4.5) -> None:
        u, v = self.to_svg(x, y)
        self.parts.append(f'<circle class="{kind}" cx="{u:.1f}" cy="{v:.1f}" r="{r}"/>')

    def text(self, x: float, y: float, text: str, kind: str, shift: tuple[float, float] = (0, 0)) -> None:
        u, v = self.to_svg(x, y)
        self.parts.append(f'<text class="{kind}" x="{u + shift[0]:.1f}" y="{v + shift[1]:.1f}">{text}</text>')

    def frame(self, title: str, step: int = 1) -> str:
        bottom = self.top + self.height
        marks = [
            f'<text class="title" x="{self.left}" y="{self.top - 24}">{title}</text>',
            f'<path class="axis" d="M{self.left} {bottom}h{self.width}"/>',
            f'<text class="tick" x="{self.left + self.width}" y="{bottom + 20}">w</text>',
        ]
        for x in range(int(np.ceil(self.x[0])), int(np.floor(self.x[1])) + 1, step):
            u, _ = self.to_svg(x, self.y[0])
            marks.append(f'<path class="axis" d="M{u:.1f} {bottom}v4"/>')
            marks.append(f'<text class="tick" x="{u:.1f}" y="{bottom + 20}">{x}</text>'.replace(">-", ">−"))
        return "\n".join(marks + self.parts)


CUTS_STYLE = f"""
text {{ font-size: 13px; fill: {GRAY}; }}
.title {{ font-size: 14.5px; font-weight: 600; fill: {INK}; }}
.tick {{ text-anchor: middle; }}
.mid {{ text-anchor: middle; }} .end {{ text-anchor: end; }}
.blue {{ fill: {BLUE}; font-weight: 600; }} .orange {{ fill: {ORANGE}; font-weight: 600; }}
.green {{ fill: {GREEN}; font-weight: 600; }}
.axis {{ stroke: {GRAY}; fill: none; }}
.curve {{ stroke: {BLUE}; stroke-width: 2.8; fill: none; stroke-linejoin: round; }}
.cut {{ stroke: {ORANGE}; stroke-width: 1.5; fill: none; stroke-opacity: .8; }}
.model {{ stroke: {ORANGE}; stroke-width: 2.8; fill: none; stroke-linejoin: round; }}
.level {{ stroke: {GRAY}; stroke-width: 1; stroke-dasharray: 4 4; fill: none; }}
.band {{ fill: {GREEN}; fill-opacity: .1; }}
.dot {{ fill: {BLUE}; stroke: #fff; stroke-width: 1.6; }}
.low {{ fill: {ORANGE}; stroke: #fff; stroke-width: 1.6; }}
"""


def one_weight() -> riskmin.Objective:
    """A support vector machine with a single weight, on ten points."""
    y = np.repeat([1.0, -1.0], 5)
    x = 0.7 * y + np.random.default_rng(3).normal(0, 0.7, 10)
    return riskmin.Objective(riskmin.linear_risk(x[:, None], y, riskmin.Hinge()), riskmin.L2(), lam=0.2)


def cuts_picture() -> str:
    """Left: a risk and three cuts of it. Right: with the regularizer added, the lower bound and the gap."""
    J = one_weight()
    steps = list(islice(riskmin.Bmrm().iterates(J, np.array([3.0])), 3))
    points = [float(it.w[0]) for it in steps]
    cuts = [J.cut(it.w) for it in steps]

    def risk(w: float) -> float:
        return float(J.risk(np.array([w]))[0])

    def omega(w: float) -> float:
        return J.lam * J.reg.value(np.array([w]))

    def cut(k: int) -> Callable[[float], float]:
        return lambda w: float(cuts[k].a[0]) * w + cuts[k].b

    def model(w: float) -> float:
        return max(cut(k)(w) for k in range(3))

    left = Panel(30, 62, (372, 300), (-1.7, 3.7), (0.0, 2.2))
    for k in range(3):
        left.curve(cut(k), "cut")
    left.curve(risk, "curve")
    for k, w in enumerate(points):
        left.dot(w, risk(w), "dot")
        left.text(w, risk(w), f"w{'₀₁₂'[k]}", "mid", ((-4, 14, 8)[k], -10))
    left.text(-1.0, risk(-1.0), "R(w)", "blue", (14, 0))
    left.text(1.4, cut(2)(1.4), "a cut, R(v) ≥ a·v + b", "orange", (12, -8))

    best = min(range(3), key=lambda k: steps[k].value)
    value, lower = steps[best].value, J.lower(steps[-1].cut)
    minimizer = float(J.argmin(steps[-1].cut)[0])
    right = Panel(462, 62, (352, 300), (-1.2, 2.8), (0.3, 1.5))
    right.line([(-1.2, value), (2.8, value), (2.8, lower), (-1.2, lower)], "band")
    right.line([(-1.2, value), (2.8, value)], "level")
    right.line([(-1.2, lower), (2.8, lower)], "level")
    for k in range(3):
        right.curve(lambda w, k=k: cut(k)(w) + omega(w), "cut")
    right.curve(lambda w: model(w) + omega(w), "model")
    right.curve(lambda w: risk(w) + omega(w), "curve")
    right.dot(points[best], value, "dot")
    right.dot(minimizer, lower, "low")
    right.text(-0.55, risk(-0.55) + omega(-0.55), "J(w) = λΩ(w) + R(w)", "blue", (12, 0))
    right.text(points[best], value, "best w", "blue", (14, -14))
    right.text(minimizer, lower, "max of the cuts + λΩ", "orange", (46, 26))
    right.text(2.8, value, "J(w)", "blue", (8, 5))
    right.text(2.8, lower, "lower", "orange", (8, 5))
    right.text(2.8, (value + lower) / 2, "gap", "green", (8, 5))
    right.text(-1.2, (value + lower) / 2, "min J lies here", "green", (8, 5))
    return card(
        884,
        406,
        "Cuts of a risk, and the lower bound that they prove",
        CUTS_STYLE,
        left.frame("The risk, and three cuts under it")
        + right.frame("With λΩ added: a lower bound, and the gap"),
    )


# ---------------------------------------------------------------- a run
def light_style() -> str:
    """The rules of the report's pictures, in its light colours."""
    css = STYLE.read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([\w-]+): (#\w+);", css.partition("}")[0]))
    rules = re.findall(
        r"^(?:\.chart|\.grid|\.axis|\.value|\.lower|\.gap|\.dot|\.band|\.tol)[^{\n]*\{.*\}$", css, re.M
    )
    return re.sub(
        r"var\(--([\w-]+)\)", lambda m: colours[m[1]], "\n".join(r for r in rules if "width: 100%" not in r)
    )


def convergence_picture() -> str:
    """A support vector machine on a real data set: the two bounds meet."""
    X, y = load_breast_cancer(return_X_y=True)
    risk = riskmin.linear_risk(
        StandardScaler().fit_transform(X), 2.0 * y - 1, riskmin.Hinge(), fit_intercept=True
    )
    tol = 1e-3
    result = riskmin.minimize(riskmin.Objective(risk, riskmin.L2(), lam=1e-3), riskmin.Bundle(), tol=tol)
    first, second = re.findall(r'<svg class="chart".*?</svg></svg>', chart.convergence_charts(result, tol))
    size = 'y="18" width="464" height="300"'
    return card(
        968,
        336,
        "Objective and lower bound of a fit, iteration by iteration",
        light_style(),
        first.replace("<svg", f'<svg x="14" {size}', 1) + second.replace("<svg", f'<svg x="490" {size}', 1),
    )


# ---------------------------------------------------------------- a warning and a certificate
CERTIFICATE_STYLE = f"""
text {{ font-size: 14px; fill: {GRAY}; }}
.title {{ font-size: 17px; font-weight: 600; fill: {INK}; }}
.tick {{ text-anchor: middle; }}
.blue {{ fill: {BLUE}; font-weight: 600; }} .orange {{ fill: {ORANGE}; font-weight: 600; }}
.green {{ fill: {GREEN}; font-weight: 600; }}
.axis {{ stroke: {GRAY}; fill: none; }}
.value {{ stroke: {BLUE}; stroke-width: 2.6; fill: none; stroke-linejoin: round; }}
.lower {{ stroke: {GREEN}; stroke-width: 2.6; fill: none; stroke-linejoin: round; }}
.other {{ stroke: {ORANGE}; stroke-width: 1.6; stroke-dasharray: 5 4; fill: none; }}
.band {{ fill: {GREEN}; fill-opacity: .12; }}
"""


def warning_and_certificate(alpha: float = 1e-4) -> tuple[float, riskmin.LinearClassifier]:
    """Fit the same objective twice: J(w) of scikit-learn, which warns, and riskmin's estimator.

    By the bundle method, whose bounds show how they meet: the default takes two steps.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    X, y = load_breast_cancer(return_X_y=True)
    with warnings.catch_warnings(record=True, action="always") as caught:
        theirs = LogisticRegression(C=1 / (alpha * len(y))).fit(X, y)
    assert any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    z = theirs.decision_function(X)
    value = alpha / 2 * np.sum(theirs.coef_**2) + np.mean(np.logaddexp(0, (1 - 2 * y) * z))
    return float(value), riskmin.LinearClassifier("logistic", alpha=alpha, solver="bundle").fit(X, y)


def certificate_picture() -> str:
    """The band in which min J is proved to lie, and where scikit-learn stops on the same raw columns.

    Narrow, so that its text can be read on a phone.
    """
    theirs, model = warning_and_certificate()
    trace, top = model.result_.trace, 0.26
    value = np.minimum.accumulate([row["value"] for row in trace])
    lower = np.maximum.accumulate([row["lower"] for row in trace])
    last = len(trace) - 1
    panel = Panel(28, 92, (344, 206), (0, last), (0.0, top))
    steps = [(k, min(v, top)) for k, v in enumerate(value)]
    bounds = [(k, max(v, 0.0)) for k, v in enumerate(lower)]
    panel.line([*steps, *reversed(bounds)], "band")
    panel.line([(0, theirs), (last, theirs)], "other")
    panel.line(steps, "value")
    panel.line(bounds, "lower")
    above = 100 * (theirs / model.objective_ - 1)
    panel.text(9, theirs, "scikit-learn stops with a warning,", "orange", (0, -26))
    panel.text(9, theirs, f"{above:.0f} % above the minimum", "orange", (0, -8))
    panel.text(2, 0.24, "J(w), the objective", "blue", (0, 0))
    panel.text(1, 0.045, "min J is proved", "green", (0, 0))
    panel.text(1, 0.045, "to lie here", "green", (0, 18))
    panel.text(last, value[-1], f"{value[-1]:.4f}", "blue", (8, 2))
    panel.text(last, value[-1], "proved", "green", (8, 19))
    ratio = model.gap_ / model.objective_
    note = f"No model is better by more than {100 * ratio:.1g} %"
    return card(
        452,
        366,
        "The band in which the minimum is proved to lie, and where scikit-learn stops",
        CERTIFICATE_STYLE,
        panel.frame("", 10).replace(">w</text>", "></text>")
        + f'<text class="title" x="28" y="40">{note}</text>'
        + '<text x="28" y="64">Logistic loss on raw columns (breast cancer, 569 x 30)</text>'
        + '<text class="tick" x="200" y="350">iterations of Bundle()</text>',
    )


def main() -> None:
    """Draw all pictures."""
    IMG.mkdir(exist_ok=True)
    from docs import rooms  # uses the card of this module

    (IMG / "rooms.svg").write_text(rooms.picture(), encoding="utf-8")
    (IMG / "cuts.svg").write_text(cuts_picture(), encoding="utf-8")
    (IMG / "convergence.svg").write_text(convergence_picture(), encoding="utf-8")
    (IMG / "certificate.svg").write_text(certificate_picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
