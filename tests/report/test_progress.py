"""Progress output: its content, its destination and its frequency."""

import io
import json

import numpy as np
import pytest

from helpers import ticking_clock
from riskmin import L2, Hinge, Objective, linear_risk, minimize
from riskmin.report import progress as module
from riskmin.report.progress import Progress, duration, time_left


class Terminal(io.StringIO):
    def isatty(self):
        return True


def row(iteration, seconds, value=1.0, lower=0.5, **own):
    return {
        "iteration": iteration,
        "seconds": seconds,
        "calls": iteration,
        "value": value,
        "lower": lower,
        "gap": value - lower,
        **own,
    }


def run(progress, rows):
    with progress:
        for each in rows:
            assert not progress(None, each)


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(module.Progress, "LIVE_UPDATE_SECONDS", 0.0)
    monkeypatch.setattr(module.Progress, "LOG_LINE_SECONDS", 0.0)


def test_json_has_one_line_per_iteration():
    out = io.StringIO()
    run(Progress(json=True, file=out), [row(k, 0.1 * k, cuts=np.float64(k)) for k in range(1, 6)])
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[2]["gap_rel"] == 0.5
    assert lines[2]["cuts"] == 3


def test_json_is_valid_with_nonfinite_numbers():
    out = io.StringIO()
    run(Progress(json=True, file=out), [row(1, 0.0, value=float("inf"), lower=0.0)])
    assert json.loads(out.getvalue(), parse_constant=pytest.fail)["value"] is None


def test_quiet_prints_nothing(fast):
    for json_lines in (False, True):
        out = Terminal()
        run(Progress(quiet=True, json=json_lines, file=out), [row(k, k) for k in range(1, 9)])
        assert out.getvalue() == ""


def test_short_fit_prints_nothing():
    for out in (io.StringIO(), Terminal()):
        run(Progress(file=out), [row(1, 0.01), row(2, 0.02)])
        assert out.getvalue() == ""


def test_log_gets_plain_lines(fast):
    out = io.StringIO()
    run(Progress(tol=1e-3, file=out), [row(7, 1.5, value=2.0, lower=1.0)])
    assert out.getvalue() == (
        "riskmin: iteration 7, objective 2, lower bound 1, gap 5.0e-01 of 0.001, 1.5 s, ? left\n"
    )


def test_terminal_gets_one_line_that_is_erased(fast):
    out = Terminal()
    run(Progress(tol=1e-3, file=out), [row(k, k, lower=1 - 2.0**-k) for k in range(1, 9)])
    assert "8 · 0.996094 ≤ min J ≤ 1 · gap 3.9e-03 → 1e-03" in out.getvalue()
    assert "s left" in out.getvalue()
    assert out.getvalue().rstrip().endswith("\x1b[2K")


def test_updates_are_rare():
    out = Terminal()
    with ticking_clock() as clock, Progress(file=out) as progress:
        while clock.readings < 500:
            progress(None, row(1, clock.readings * clock.TICK))
    assert 1 <= out.getvalue().count("min J") <= 6


def test_progress_as_callback_of_minimize():
    out = io.StringIO()
    J = Objective(linear_risk(np.eye(3), np.array([1.0, -1.0, 1.0]), Hinge()), L2(), lam=0.1)
    with Progress(json=True, file=out) as progress:
        result = minimize(J, callback=progress)
    assert result.status == "converged"
    assert len(out.getvalue().splitlines()) == result.n_iter


@pytest.mark.parametrize("rate", [0.1, 1.0, 30.0])
def test_time_left_of_a_geometric_gap(rate):
    t = np.linspace(0, 5 / rate, 40)
    left = time_left(t, np.exp(-rate * t), np.exp(-8.0))
    assert left == pytest.approx(3 / rate)


@pytest.mark.parametrize(
    ("gaps", "tol"),
    [
        ([], 1e-3),
        ([0.5], 1e-3),
        ([1, 1, 1, 1], 1e-3),
        ([0.1, 0.2, 0.3, 0.4], 1e-3),
        ([0.4, 0.3, 0.2, 0.1], 0),
    ],
)
def test_time_left_is_unknown(gaps, tol):
    assert time_left(range(len(gaps)), gaps, tol) is None


def test_time_left_is_zero_at_the_end():
    assert time_left([0.0, 1.0], [1.0, 1e-5], 1e-3) == 0.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.00051, "0.51 ms"), (0.5, "0.50 s"), (59.96, "1 min 0 s"), (3600, "1 h 0 min")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text
