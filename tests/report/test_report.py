"""The report: one self-contained page, for every kind of run."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from helpers import ClosedElements, Problem
from riskmin import Hinge, LineSearchBmrm, Logistic, minimize
from riskmin.core import Cut, Result
from riskmin.report import write_report, write_search
from riskmin.report.chart import linear_axis, log_axis


def fitted(loss=None, solver=None, **settings):
    return minimize(Problem(loss or Hinge()).objective(), solver, **settings)


def made(values, lowers, status="converged"):
    trace = [
        {"iteration": k + 1, "seconds": 0.1 * k, "calls": k + 1, "value": v, "lower": b, "gap": v - b}
        for k, (v, b) in enumerate(zip(values, lowers, strict=True))
    ]
    return Result(np.zeros(1), values[-1], lowers[-1], Cut(np.zeros(1), 0.0), status, trace, "Made()")


RUNS = {
    "hinge": lambda: fitted(),
    "logistic": lambda: fitted(Logistic()),
    "one iteration": lambda: fitted(max_iter=1),
    "long": lambda: fitted(solver=LineSearchBmrm(), tol=0.0, max_iter=1000),
    "zero objective": lambda: made([0.0], [0.0]),
    "bound reached exactly": lambda: made([1.0, 0.5], [0.0, 0.5]),
    "falls from far": lambda: made([1e30, 3.0, 1.0], [0.0, 0.5, 0.999]),
    "large": lambda: made([3e9, 2e9], [0.0, 2e9 - 1]),
    "tiny": lambda: made([3e-9, 2e-9], [0.0, 1.99e-9]),
    "flat": lambda: made([1.0, 1.0], [1.0, 1.0]),
}


@pytest.mark.parametrize("tol", [0.0, 1e-3])
def test_the_page_is_self_contained_and_its_plots_are_valid(tol, tmp_path):
    path = tmp_path / "report.html"
    facts = {"loss": "hinge: max(0, margin - y z)", "rows": 50, "columns": 4, "lam": 1e-2, "tol": tol}
    write_report(path, [(name, make(), facts) for name, make in RUNS.items()], title="All of them")
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:|<script|<link|src=|@import|url\(", page)
    for text in ("50 rows × 4 columns", facts["loss"], "not converged: max_iter", "oracle calls"):
        assert text in page
    assert "prefers-color-scheme: dark" in page
    ClosedElements().check(page)
    root = ET.fromstring(re.sub(r"<!doctype html>|<meta[^>]*>|<style>.*?</style>", "", page, flags=re.S))
    charts = [ET.tostring(svg, "unicode") for svg in root.iter("svg") if svg.get("role") == "img"]
    assert len(charts) == 2 * len(RUNS)
    for chart in charts:
        assert not re.search(r'="[^"]*(nan|inf)\b', chart)
        assert chart.count("L") < 5 * 400
    assert sum("tol = " in chart for chart in charts) == (len(RUNS) if tol else 0)


def test_a_metric_that_is_undefined_in_some_folds_is_drawn_where_it_is_defined(tmp_path):
    scores = {"a": np.array([[0.5, 0.6], [0.7, 0.8]]), "b": np.array([[0.5, np.nan], [0.6, 0.7]])}
    write_search(tmp_path / "cv.html", [1.0, 0.1], scores | {"c": np.full((2, 2), np.nan)}, 0.1)
    page = (tmp_path / "cv.html").read_text(encoding="utf-8")
    assert page.count("<svg class") == 2
    assert not [path for path in re.findall(r' d="([^"]*)"', page) if "nan" in path]


def test_names_are_escaped(tmp_path):
    path = tmp_path / "report.html"
    write_report(path, [("<b>&", fitted(), {"a<b": "<i>"})], title="<u>")
    page = path.read_text(encoding="utf-8")
    assert "<b>&" not in page
    assert "<i>" not in page
    assert "<title>&lt;u&gt;</title>" in page


LINEAR = [(0, 1e-12), (0.4, 0.013), (0, 1), (0.4, 7.3), (0, 9999), (0.4, 3e12)]
AXES = [(linear_axis, lo * hi, hi) for lo, hi in LINEAR]
AXES += [(log_axis, lo, 1.0) for lo in (1e-16, 1e-7, 0.003, 0.1, 1.0)]


@pytest.mark.parametrize(("make", "lo", "hi"), AXES)
def test_ticks_lie_on_the_axis(make, lo, hi):
    axis = make(lo, hi)
    assert 2 + (make is linear_axis) <= len(axis.ticks) <= 8
    assert all(-1e-6 <= axis.to_unit_interval(value) <= 1 + 1e-6 for value, _ in axis.ticks)
    assert axis.to_unit_interval(lo) >= -1e-6
    labels = [label for _, label in axis.ticks]
    assert len(set(labels)) == len(labels)
