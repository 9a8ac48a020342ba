"""The plot of a run: J(w) and its lower bound, and the relative gap, against time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from riskmin.core.plots import new_axes


def plot_convergence(trace: Sequence[dict[str, float]], tol: float | None = None, axes: Any = None) -> Any:
    """Draw the bounds and the relative gap of a trace against seconds.

    Parameters
    ----------
    trace : list of dict
        Rows with seconds, value, lower and gap, as in `Result.trace`.
    tol : float, optional
        The relative gap that was asked for: a horizontal line.
    axes : pair of matplotlib axes, optional
        Where to draw: the bounds, and the gap. By default the axes of a new figure.

    Returns
    -------
    pair of matplotlib axes
    """
    bounds, gap = new_axes(2) if axes is None else axes
    seconds, value, lower = (
        np.array([row[key] for row in trace], dtype=float) for key in ("seconds", "value", "lower")
    )
    # the bounds of the run are the best so far, not those of the last step
    value, lower = np.minimum.accumulate(value), np.maximum.accumulate(lower)
    bounds.plot(seconds, value, drawstyle="steps-post", label="J(w), the best so far")
    bounds.plot(seconds, lower, drawstyle="steps-post", label="proved lower bound")
    bounds.fill_between(seconds, lower, value, step="post", alpha=0.15, label="min J lies here")
    bounds.set(xlabel="seconds", ylabel="objective", title="Bounds of min J")
    bounds.legend()
    relative = (value - lower) / np.where(value > 0, value, 1.0)
    gap.plot(seconds, relative, drawstyle="steps-post", marker=".", label="relative gap")
    if np.any(relative > 0):
        gap.set_yscale("log")
    if tol is not None:
        gap.axhline(tol, linestyle="--", color="0.5", label=f"tol = {tol:g}")
    gap.set(xlabel="seconds", ylabel="gap / J(w)", title="Certified gap")
    gap.legend()
    return bounds, gap
