"""What to do about a fit that did not converge: in one sentence or two, with names and numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from riskmin.estimators.standardize import column_name
from riskmin.objective import Objective
from riskmin.preconditioning import Moments, sampled_moments
from riskmin.regularizers import L1, L2, Elastic, opened, penalized
from riskmin.solvers import SOLVERS, Auto
from riskmin.solvers.auto import loss_of
from riskmin.types import Bends, Curved, Result, Smooth, Smoothable

FAR = 1e4
"""Sizes of columns that differ by more, or means beyond so many standard deviations, are worth a word."""
MOST_NAMED = 3
"""So many columns are named."""
ROUNDING = 1e-8
"""Where a run stalls at a smaller relative gap, it is the digits of numbers that end it."""


class Words(NamedTuple):
    """How parameters are written."""

    alpha: str
    tol: str
    max_iter: str
    max_seconds: str
    solver: str
    standardize: str
    centre: str
    go_on: str


IN_PYTHON = Words(
    "alpha",
    "tol",
    "max_iter",
    "max_seconds",
    "solver={!r}",
    "set standardize=True, or put a StandardScaler before it in a pipeline",
    "put a StandardScaler before it in a pipeline",
    "fit again with warm_start=True to go on from here",
)
ON_THE_COMMAND_LINE = Words(
    "--lam",
    "--tol",
    "--max-iter",
    "--max-seconds",
    "--solver {}",
    "add --standardize",
    "subtract their means from them in the data",
    "the model saved is the best so far",
)


class Column(NamedTuple):
    """A column that makes a problem hard."""

    j: int
    mean: float
    deviation: float


class Hints(NamedTuple):
    """What is known of a fit that did not converge."""

    far: tuple[Column, ...] = ()
    """Columns that are far from zero beside their spread."""
    apart: tuple[Column, ...] = ()
    """Columns whose sizes are far from those of most."""
    ratio: float = 1.0
    """The largest of these sizes beside the least."""
    solver: str | None = None
    """The name of a solver that was not tried."""


# ---------------------------------------------------------------- what is found
def hints(objective: Objective, result: Result, given: Any) -> Hints:
    """What there is to say of a run: nothing, if it converged or was interrupted."""
    if result.status in ("converged", "interrupted"):
        return Hints()
    found = sampled_moments(objective.risk)
    far, apart, ratio = ((), (), 1.0) if found is None else ill_scaled(found)
    return Hints(far, apart, ratio, untried(objective, result, given))


def ill_scaled(found: Moments) -> tuple[tuple[Column, ...], tuple[Column, ...], float]:
    """The columns that are far from zero beside their spread, those of extreme sizes, and how these differ.

    Examples
    --------
    >>> import numpy as np
    >>> mean, variance = np.array([0.0, 1e9, 0.0]), np.array([1.0, 4.0, 1e-12])
    >>> far, apart, ratio = ill_scaled(Moments(9, mean, variance, mean - 1, mean + 1))
    >>> [column.j for column in far], [column.j for column in apart], round(ratio)
    ([1], [2], 2000000)
    """
    deviation = np.sqrt(found.variance)
    at = np.flatnonzero((found.least < found.largest) & (deviation > 0) & np.isfinite(deviation))
    mean, deviation = found.mean[at], deviation[at]

    def named(order: Any) -> tuple[Column, ...]:
        return tuple(Column(int(at[k]), float(mean[k]), float(deviation[k])) for k in order[:MOST_NAMED])

    offset = np.abs(mean) / deviation
    far = [k for k in np.argsort(-offset, kind="stable") if offset[k] > FAR]
    ratio = float(deviation.max() / deviation.min()) if len(at) else 1.0
    if ratio <= FAR:
        return named(far), (), ratio
    off = np.abs(np.log(deviation / np.median(deviation)))
    apart = [k for k in np.argsort(-off, kind="stable") if off[k] >= min(np.log(FAR) / 2, off.max())]
    return named(far), named(apart), ratio


def untried(objective: Objective, result: Result, given: Any) -> str | None:
    """The name of a solver that takes the problem and was not tried; None where there is none to name."""
    if not (given is None or given == "auto" or isinstance(given, Auto)):
        return "auto"
    loss, reg = loss_of(objective.risk), opened(penalized(objective.reg))
    smooth, some = bool(getattr(loss, "smooth", False)), []
    if isinstance(reg, L2) and isinstance(loss, Curved if smooth else Bends):
        some.append("newton" if smooth else "semismooth_newton")
    if smooth and isinstance(reg, Smooth):
        some.append("lbfgs")
    if smooth and isinstance(reg, (L1, Elastic)):
        some.append("owlqn")
    some.append("bundle")
    if not smooth and isinstance(loss, Smoothable) and isinstance(reg, Smooth):
        some.append("smoothing")
    return next((name for name in some if f"{type(SOLVERS[name]).__name__}" not in result.solver), None)


# ---------------------------------------------------------------- in words
def advice(model: Any, words: Words) -> str:
    """How a fit ended, and what to do about it."""
    result = model.result_
    gap = result.gap / result.value if result.value else 0.0
    above = f"above tol={model.tol:g}" if gap > model.tol else f"known no better than tol={model.tol:g}"
    said = f"stopped with status {result.status!r} at a certified relative gap of {gap:.2g}, {above}"
    if result.note:
        return f"{said}: {result.note}"
    parts = [f"{said}: {remedy(model, words)}", about_columns(model, words)]
    return ". ".join(part for part in parts if part)


def remedy(model: Any, words: Words) -> str:
    """Which parameter to change, and to what."""
    result = model.result_
    if result.status == "interrupted":
        return words.go_on
    if result.status == "stalled" and result.gap <= ROUNDING * abs(result.value):
        return f"raise {words.tol}, since numbers of 16 digits prove no smaller gap here"
    limits = {"max_iter": f"{words.max_iter}, ", "max_seconds": f"{words.max_seconds}, "}
    found = f"raise {limits.get(result.status, '')}{words.tol} or {words.alpha}"
    solver = _hints(model).solver
    return found if solver is None else f"{found}, or try {words.solver.format(solver)}"


def about_columns(model: Any, words: Words) -> str:
    """A sentence about columns that make the problem hard; none where there are none."""
    far, apart, ratio, _ = _hints(model)
    if apart and not getattr(model, "standardize", True):
        said = f"Standard deviations of columns differ by a factor of {ratio:.2g}"
        return f"{said} ({_named(model, apart)}): {words.standardize}"
    if far:
        return f"Columns are far from zero beside their spread ({_named(model, far)}): {words.centre}"
    return ""


def _hints(model: Any) -> Hints:
    found: Hints = getattr(model, "_hints", Hints())
    return found


def _named(model: Any, columns: tuple[Column, ...]) -> str:
    return "; ".join(
        f"{column_name(model, j)}: mean {mean:.3g}, standard deviation {deviation:.3g}"
        for j, mean, deviation in columns
    )
