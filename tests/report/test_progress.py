"""Progress output: its content, its destination and its frequency."""

import io
import json
import time

import numpy as np
import pytest

from helpers import ticking_clock
from riskmin.report.progress import Progress, StatusLine, duration, time_left


class Terminal(io.StringIO):
    def isatty(self):
        return True


def row(iteration, seconds, value=1.0, lower=0.5, **own):
    counts = {"iteration": iteration, "seconds": seconds, "calls": iteration}
    return {**counts, "value": value, "lower": lower, "gap": value - lower, **own}


def run(progress, rows):
    with progress:
        for each in rows:
            assert not progress(None, each)


def test_json_has_one_line_per_iteration_and_is_valid():
    out, rows = io.StringIO(), [row(k, 0.1 * k, cuts=np.float64(k)) for k in range(1, 6)]
    run(Progress(json=True, file=out), [*rows, row(6, 0.6, value=float("inf"), lower=0.0)])
    lines = [json.loads(line, parse_constant=pytest.fail) for line in out.getvalue().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert (lines[2]["gap_rel"], lines[2]["cuts"], lines[5]["value"]) == (0.5, 3, None)


@pytest.mark.parametrize("out", [io.StringIO, Terminal])
@pytest.mark.parametrize(
    ("settings", "tick"), [({"quiet": True}, 10.0), ({"quiet": True, "json": True}, 10.0), ({}, 1e-3)]
)
def test_quiet_and_short_fits_print_nothing(out, settings, tick):
    with ticking_clock() as clock:
        clock.TICK = tick
        file = out()
        run(Progress(file=file, **settings), [row(k, k * tick) for k in range(1, 9)])
    assert file.getvalue() == ""


def test_a_log_gets_lines_and_a_terminal_one_that_is_erased():
    log, terminal = io.StringIO(), Terminal()
    with ticking_clock() as clock:
        clock.TICK = 10.0  # a report is due at each iteration
        run(Progress(tol=1e-3, file=log), [row(7, 1.5, value=2.0, lower=1.0)])
        run(Progress(tol=1e-3, file=terminal), [row(k, k, lower=1 - 2.0**-k) for k in range(1, 9)])
    assert log.getvalue() == (
        "riskmin: iteration 7, objective 2, lower bound 1, gap 5.0e-01 of 0.001, 1.5 s, ? left\n"
    )
    assert "8 · 0.996094 ≤ min J ≤ 1 · gap 3.9e-03 → 1e-03" in terminal.getvalue()
    assert "s left" in terminal.getvalue()
    assert terminal.getvalue().rstrip().endswith("\x1b[K")


def test_updates_are_rare():
    out = Terminal()
    with ticking_clock() as clock, Progress(file=out) as progress:
        while clock.readings < 500:
            progress(None, row(1, clock.readings * clock.TICK))
    assert 1 <= out.getvalue().count("min J") <= 6


RATES = np.linspace(0, 5, 40)


@pytest.mark.parametrize(
    ("seconds", "gaps", "tol", "left"),
    [
        *((RATES / rate, np.exp(-RATES), np.exp(-8.0), 3 / rate) for rate in (0.1, 30.0)),
        ([0.0, 1.0], [1.0, 1e-5], 1e-3, 0.0),
        ([], [], 1e-3, None),
        ([0], [0.5], 1e-3, None),
        (range(4), [1, 1, 1, 1], 1e-3, None),
        (range(4), [0.1, 0.2, 0.3, 0.4], 1e-3, None),
        (range(4), [0.4, 0.3, 0.2, 0.1], 0, None),
    ],
)
def test_the_time_left_of_a_geometric_gap(seconds, gaps, tol, left):
    """None if the gap does not shrink, or has no end."""
    assert time_left(seconds, gaps, tol) == (left if left is None else pytest.approx(left))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.00051, "0.51 ms"), (0.5, "0.50 s"), (59.96, "1 min 0 s"), (3600, "1 h 0 min")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


STATUS = [
    ({"file": io.StringIO()}, "riskmin: half\n"),
    ({"file": Terminal()}, "\r\033[Kriskmin: half\r\033[K"),
    ({"file": io.StringIO(), "quiet": True}, ""),
]


@pytest.mark.parametrize(("settings", "expected"), STATUS)
def test_a_status_is_reported_now_and_then(settings, expected, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    with StatusLine(**settings) as status:
        status(lambda: "too early")
        now[0] = 10.0
        status(lambda: "half")
        status(lambda: "too early again")
        assert status.left(0.5) == ", 10.0 s left"
    assert settings["file"].getvalue() == expected
