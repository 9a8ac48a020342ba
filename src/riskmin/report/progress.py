"""Progress output: a live line on a terminal or in a notebook, plain lines in a log, JSON for a program."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TextIO

from riskmin.core import Iterate
from riskmin.report.notebook import NotebookDisplay, in_notebook


def relative_gap(row: dict[str, float]) -> float:
    """The certified gap divided by the objective, which is compared with `tol`; 0 if the objective is 0."""
    return row["gap"] / row["value"] if row["value"] else 0.0


def duration(seconds: float) -> str:
    """Format a number of seconds for reading.

    Examples
    --------
    >>> duration(0.0123), duration(0.512), duration(8.25), duration(95), duration(7260)
    ('12 ms', '0.51 s', '8.2 s', '1 min 35 s', '2 h 1 min')
    """
    if seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes} min {remainder} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def time_left(seconds: Sequence[float], gaps: Sequence[float], tol: float) -> float | None:
    """Estimate the seconds until the gap reaches tol.

    A line is fitted to log(gap) over time by least squares, over the later half of the elapsed time.

    Parameters
    ----------
    seconds, gaps : sequences of float
        Times, and the relative gap known at each.
    tol : float
        The relative gap to reach.

    Returns
    -------
    float or None
        None if no estimate is possible: too few points, no progress, or no gap between 0 and 1.

    Examples
    --------
    >>> round(time_left([0, 1, 2, 3, 4], [1e-1, 1e-2, 1e-3, 1e-4, 1e-5], 1e-7), 6)
    2.0
    >>> time_left([0, 1, 2, 3, 4], [0.5, 0.5, 0.5, 0.5, 0.5], 1e-3) is None
    True
    """
    if len(seconds) == 0:
        return None
    if gaps[-1] <= tol:
        return 0.0
    since = (seconds[0] + seconds[-1]) / 2
    points = [(t, math.log(g)) for t, g in zip(seconds, gaps, strict=True) if t >= since and 0 < g < 1]
    if tol <= 0 or len(points) < 3:
        return None
    # slope of the regression line, cov(t, log gap) / var(t); then log tol = log gap + slope * left
    mean_t = sum(t for t, _ in points) / len(points)
    mean_g = sum(g for _, g in points) / len(points)
    variation = sum((t - mean_t) ** 2 for t, _ in points)
    slope = sum((t - mean_t) * (g - mean_g) for t, g in points) / variation if variation else 0.0
    left = (math.log(tol) - math.log(gaps[-1])) / slope if slope < 0 else math.inf
    # an extrapolation beyond 1000 times the observed interval means nothing
    return left if left < 1000 * (seconds[-1] - seconds[0]) else None


def share_done(first_gap: float, gap: float, target: float) -> float:
    """Return the share of the way from the first gap to the target that a run has come, by their logarithms.

    Examples
    --------
    >>> round(share_done(1.0, 1e-2, 1e-4), 6), share_done(1.0, 1e-5, 1e-4), share_done(1.0, 2.0, 1e-4)
    (0.5, 1.0, 0.0)
    """
    if gap <= target:
        return 1.0
    if not 0 < gap < first_gap < math.inf:
        return 0.0
    # a target of zero is as far away as the smallest number
    return math.log(first_gap / gap) / math.log(first_gap / max(target, sys.float_info.min))


class Progress:
    """Callback of `minimize` that prints progress, and context manager that removes the live line at the end.

    Parameters
    ----------
    tol : float
        The relative gap that the run is to reach, for the estimate of the time left.
    json : bool
        Write one JSON object per line for every iteration instead: the row of the trace and ``gap_rel``.
    file : text file, optional
        By default stderr; in a notebook, a live bar in the output of the cell. A terminal gets one live line,
        any other file one line every few seconds.
    quiet : bool
        Write nothing.
    verbose : bool
        Write a line for every iteration.

    Examples
    --------
    >>> import numpy as np, sys
    >>> from riskmin import Hinge, L2, Objective, linear_risk, minimize
    >>> J = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), lam=0.1)
    >>> with Progress(tol=1e-3) as progress:
    ...     result = minimize(J, tol=1e-3, callback=progress)
    """

    LOG_LINE_SECONDS = 5.0
    """Seconds between two lines of a log."""
    LIVE_UPDATE_SECONDS = 0.1
    """Seconds between two updates of the live line."""

    def __init__(
        self,
        tol: float = 1e-3,
        json: bool = False,
        file: TextIO | None = None,
        quiet: bool = False,
        verbose: bool = False,
    ) -> None:
        self.tol, self.json, self.quiet, self.verbose = tol, json, quiet, verbose
        self.notebook = NotebookDisplay() if file is None and not verbose and in_notebook() else None
        self.file = sys.stderr if file is None else file
        self.live = False  # whether a live line is shown
        self.last_row: dict[str, float] = {}
        self.samples: deque[tuple[float, float]] = deque(maxlen=512)
        is_live = self.notebook is not None or self.file.isatty()
        self.report_interval = self.LIVE_UPDATE_SECONDS if is_live else self.LOG_LINE_SECONDS
        self.__enter__()

    def __enter__(self) -> Progress:
        self.first_gap = math.inf
        self.next_sample_time = time.perf_counter()
        # the first report is delayed, so that a short fit ends before it and pays nothing for progress
        self.next_report_time = self.next_sample_time + max(
            self.report_interval, 2 * self.LIVE_UPDATE_SECONDS
        )
        return self

    def __exit__(self, *exc: object) -> None:
        if self.live:
            self.live = show_live(self.file, "")
        if self.notebook is not None and self.notebook.is_shown:
            self._report(self.last_row, "")
            self.notebook = NotebookDisplay()  # another run has an output of its own

    def __call__(self, iterate: Iterate, row: dict[str, float]) -> None:
        """Record an iteration and report it if a report is due."""
        if self.quiet:
            return
        if self.json:
            self.file.write(trace_row_json(row) + "\n")
            self.file.flush()
            return
        self.last_row = row
        self.first_gap = row["gap"] if math.isinf(self.first_gap) else self.first_gap
        now = time.perf_counter()
        # samples at intervals, so that a fast solver does not fill the deque with the last moments
        if now >= self.next_sample_time:
            self.samples.append((row["seconds"], relative_gap(row)))
            self.next_sample_time = now + self.LIVE_UPDATE_SECONDS
        if self.verbose or now >= self.next_report_time:
            self.next_report_time = now + self.report_interval
            left = time_left([t for t, _ in self.samples], [g for _, g in self.samples], self.tol)
            self._report(row, f"{'?' if left is None else duration(left)} left")

    def _report(self, row: dict[str, float], left: str) -> None:
        """Write a line to a log, or update the live line of a terminal or a notebook."""
        if self.notebook is None and (self.verbose or not self.file.isatty()):
            self.file.write(
                f"riskmin: iteration {row['iteration']:.0f}, objective {row['value']:.8g}, "
                f"lower bound {row['lower']:.8g}, gap {relative_gap(row):.1e} of {self.tol:g}, "
                f"{duration(row['seconds'])}, {left}\n"
            )
            self.file.flush()
            return
        line = (
            f"{row['iteration']:.0f} · {row['lower']:.6g} ≤ min J ≤ {row['value']:.6g} · "
            f"gap {relative_gap(row):.1e} → {self.tol:.0e} · {duration(row['seconds'])}"
        )
        line += f" · {left}" if left else ""
        if self.notebook is not None:
            self.notebook.update(share_done(self.first_gap, row["gap"], self.tol * abs(row["value"])), line)
            return
        self.live = show_live(self.file, line)


def show_live(file: TextIO, line: str) -> bool:
    """Replace the live line of a terminal, cut at its width; return whether one is shown now."""
    width = shutil.get_terminal_size().columns - 1
    if len(line) > width:
        line = line[: width - 1] + "…"
    # carriage return, then the ANSI code that clears to the end of the line
    file.write(f"\r\033[K{line}")
    file.flush()
    return bool(line)


class StatusLine:
    """One line about work in progress: live on a terminal, else a line of a log every few seconds.

    Parameters
    ----------
    quiet : bool
        Write nothing.
    file : text file, optional
        By default stderr.

    Examples
    --------
    >>> with StatusLine() as status:
    ...     status(lambda: "100 rows")
    """

    def __init__(self, quiet: bool = False, file: TextIO | None = None) -> None:
        self.file = sys.stderr if file is None else file
        self.quiet, self.live = quiet, self.file.isatty()
        # seconds between two reports
        self.interval = Progress.LIVE_UPDATE_SECONDS if self.live else Progress.LOG_LINE_SECONDS
        self.start = time.perf_counter()
        self.next_report_time = self.start + self.interval

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.live and not self.quiet:
            show_live(self.file, "")

    def __call__(self, text: Callable[[], str]) -> None:
        """Report the text that the function returns, if a report is due."""
        now = time.perf_counter()
        if self.quiet or now < self.next_report_time:
            return
        self.next_report_time = now + self.interval
        if self.live:
            show_live(self.file, f"riskmin: {text()}")
            return
        self.file.write(f"riskmin: {text()}\n")
        self.file.flush()

    def left(self, share: float) -> str:
        """Describe the time left if the rest takes as long as the share that is done, from 0 to 1."""
        elapsed = time.perf_counter() - self.start
        return f", {duration(elapsed * (1 / share - 1))} left" if share > 0 else ""


def trace_row_json(row: dict[str, float]) -> str:
    """Format a row of a trace and its relative gap as one line of JSON; nonfinite numbers become null."""
    full = {**row, "gap_rel": relative_gap(row)}
    plain = {k: v if isinstance(v, int) else float(v) for k, v in full.items()}
    return json.dumps({k: v if math.isfinite(v) else None for k, v in plain.items()})
