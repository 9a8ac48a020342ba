"""The choice of a solver, in one place and with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.intercept import without_intercept
from riskmin.intercepts import WithIntercepts
from riskmin.losses import PowerHinge
from riskmin.losses.pieces import dual_of
from riskmin.losses.smoothing import can_be_smoothed, takes_centre
from riskmin.matrices import Csc, Csr, Wide
from riskmin.objective import Objective
from riskmin.regularizers import L1, L2, Elastic, Free, Separable, penalized
from riskmin.risk import Risk
from riskmin.rkhs import RkhsNorm
from riskmin.scorers import Standardized
from riskmin.solvers.bundle import Bundle
from riskmin.solvers.chain_ascent import ChainAscent, suited
from riskmin.solvers.coordinate import CoordinateDescent
from riskmin.solvers.coordinate_problem import bounded_curvature
from riskmin.solvers.cuts import has_program
from riskmin.solvers.dual import DualGaussSeidel
from riskmin.solvers.dual_intercepts import mean_length
from riskmin.solvers.dual_multiclass import unsuited
from riskmin.solvers.hand_over import HandOver
from riskmin.solvers.kernel_dual import KernelDual
from riskmin.solvers.kernel_terms import has_conjugate
from riskmin.solvers.lbfgs import Lbfgs
from riskmin.solvers.newton import SemismoothNewton
from riskmin.solvers.newton_many import unsuited as without_newton
from riskmin.solvers.newton_smooth import Newton
from riskmin.solvers.newton_start import ENOUGH, PARTS
from riskmin.solvers.owlqn import OwlQn
from riskmin.solvers.passes import crowded
from riskmin.solvers.proximal import ProximalGradient
from riskmin.solvers.proximal import loss_of as loss_of
from riskmin.solvers.relay import Relay
from riskmin.solvers.smoothing import Smoothing
from riskmin.solvers.working_set import Remembers, WorkingSet
from riskmin.spread import Table
from riskmin.types import (
    Array,
    Bends,
    Curved,
    CurvedConjugate,
    Euclidean,
    Iterate,
    Shard,
    Smooth,
    Smoothable,
    Solver,
)

FEW_OF_PAIRS, FEW_OF_TABLES = 500.0, 10.0
"""Few cuts do up to this ratio of the squared slope at zero to lam; of tables, only where X is wide."""
STEEP = 1e5
"""Rows of which the mean square is more than this beside n lam, for those intercepts that are in w."""
MOST_MULTIPLIERS = 2**26
"""So many, half a gigabyte, are kept in a dual method for many classes; beyond, losses are smoothed."""
MANY_ROWS = PARTS[-1] * ENOUGH
"""Rows a column from which on Newton's method starts on a sample, and is fast on sparse data too."""
DIGIT = 30.0
"""Passes over wide X in which Newton's method gains a digit, more or less."""
LEAST_TOL = 1e-12
"""For a tol of 0, which no run reaches."""
SHORT_WITH_INTERCEPTS = 5000
"""Weights of many classes with intercepts that Newton's method is fast for."""
SHORT, LONG = 1000, 2.0
"""Weights of many classes that Newton's method is fast for, and mean squares of rows beside n lam."""
MOST_ELSEWHERE = 2**25
"""Rows that are elsewhere, but whose scores Newton's method brings here: vectors of a quarter gigabyte."""
MOST_SWEPT = 2**22
"""Rows that are elsewhere, but whose dual variables are here, a dozen of each."""
SHORT_TRIAL = 30.0
"""The work after which Newton's method is judged on losses of pairs and tables."""
SMALL = 2**14
"""Up to so many entries of X, cuts of tables cost next to nothing, also where Newton's steps are many."""


@dataclass(frozen=True)
class Auto:
    """Picks a solver for the problem; the reason is in ``result.solver``.

    A smooth loss (one that says ``smooth = True``) goes to

    - `Newton`, if it has finite second derivatives, the regularizer is `L2` or `Quadratic`, and the rows are
      here, or elsewhere and at most 2^25 of at most 2500 features; with many scores a row, only `L2`, with
      rows here, and up to 2500 features. Where X is here, sparse and wider than that, losses with a quadratic
      conjugate go to `DualGaussSeidel` first, by `HandOver`, with `L2` and without an intercept;
    - `Lbfgs` otherwise, if the regularizer has a gradient (`L2`, `Quadratic`, `QNorm`);
    - `CoordinateDescent`, if it is a sum over coordinates (`L1`, `Elastic`, `Box`), the rows are all here,
      and the loss has bounded second derivatives;
    - `OwlQn` otherwise for `L1` and `Elastic`, and `ProximalGradient` for `Box`;
    - `Bundle`, for `Entropy`.

    Any other loss goes to

    - `WorkingSet`, if it is that of a `Structured` model;
    - `SemismoothNewton`, if its conjugate is piecewise quadratic (`Hinge`, `Quantile`, ...), the regularizer
      is `L2` or `Quadratic`, and the rows are here, or elsewhere as above. By `HandOver`, it comes second if
      they are here: with `L2`, after `DualGaussSeidel`, where X is sparse without an intercept, unless it has
      800 rows a column; and after `Bundle`, where X is sparse and has more than 2500 columns. With `L2`,
      no intercept and at most 2500 rows, fewer than columns, it is `DualGaussSeidel` alone; and by local
      sweeps, where X is elsewhere, sparse, wider than 2500, without an intercept, and has at most 2^22 rows;
    - `DualGaussSeidel`, if it is `MulticlassHinge`, not rescaled, with X of any kind and with intercepts too,
      unless these are there and rows very long beside n lam, or rows times classes are more than 2^26; but
      `SemismoothNewton`, rescaled or not, if X is dense and w has at most 5000 entries with intercepts, or at
      most 1000 without and the mean square of a row is more than 2 n lam;
    - `SemismoothNewton`, if it is no sum over rows but can be smoothed (`RocArea`, `Ordinal`, `Prbep`), the
      regularizer is `L2`, the rows are all here, and there are at most 2500 features; or more, for `Prbep`;
    - `Smoothing`, if there are more, or the rows are elsewhere; and for losses of many scores a row that
      can be smoothed, where the above does not hold;
    - `ChainAscent`, if it is `ChainMaxMargin`, the regularizer is `L2`, and the rows are all here;
    - `Bundle` otherwise; also where lam is large beside the square of the slope of the risk at zero, since
      few cuts do then (for `Prbep`, only with more features than that), and for `Prbep` where X is small.

    With a kernel, losses that have a conjugate go to `KernelDual`. Sparse rows that are mapped from files and
    crowd the memory count as if they were very many and elsewhere.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, L2, Auto, Logistic, Objective, linear_risk
    >>> risk = linear_risk(np.eye(2), np.array([1.0, -1.0]), Logistic())
    >>> Auto().choose(Objective(risk, L2(), lam=0.1))
    (Newton(direct=2500, sampled=True), 'Logistic is smooth, and has second derivatives')
    >>> Auto().choose(Objective(risk, L1(), lam=0.1))
    (CoordinateDescent(start=64), 'Logistic is smooth, L1 is a sum over coordinates')
    """

    def choose(self, obj: Objective, tol: float = 1e-3) -> tuple[Solver, str]:
        """The solver for a relative gap of tol, and why."""
        loss = loss_of(obj.risk)
        name = type(obj.risk if loss is None else loss).__name__
        if isinstance(obj.reg, RkhsNorm):
            known = has_conjugate(loss)
            says = f"a kernel, and {name} has {'a' if known else 'no'} conjugate"
            return KernelDual() if known else Bundle(), says
        if getattr(loss, "smooth", False):
            return _for_smooth(obj, loss, name, tol)
        if suited(obj.risk, obj.reg):
            return ChainAscent(), f"{name} is not smooth, and its sequences are here"
        if isinstance(obj.risk, Risk) and obj.risk.many and isinstance(loss, Smoothable):
            return _for_many(obj, name)
        if isinstance(obj.risk, Remembers):
            return WorkingSet(), f"{name} is not smooth, and keeps what its argmax finds"
        if _with_dual(obj):
            if _rows(obj) is None:
                newton, says = SemismoothNewton(), f"{name} is not smooth, and X is elsewhere"
                return (newton if _few_elsewhere(obj, newton) else DualGaussSeidel()), says
            return _for_intervals(obj, tol, name)
        if isinstance(obj.reg, L2) and isinstance(loss, Bends) and isinstance(obj.risk, Risk):
            return _for_whole(obj.risk, obj.lam, loss, name)
        says = f"{name} {'is not smooth' if hasattr(loss, 'smooth') else 'names no smoothness'}"
        smoothable = isinstance(without_intercept(obj.risk), Risk) and can_be_smoothed(loss, np.zeros(1))
        if smoothable and not has_program(penalized(obj.reg)):
            kind = type(penalized(obj.reg)).__name__
            return Smoothing(ProximalGradient()), f"{says}, and {kind} has no conjugate_bend"
        return Bundle(), says

    def relay(self, obj: Objective, tol: float = 1e-3) -> tuple[Relay, str]:
        """The solver with those that go on where it falls behind, for a relative gap of tol; and why it."""
        first, reason = self.choose(obj, tol)
        # steps of losses of pairs and tables are many where J all but vanishes, and cuts are few
        whole = not getattr(loss_of(obj.risk), "separable", True)
        solvers, tol = (first, *_others(obj, first)), max(tol, LEAST_TOL)
        return (Relay(solvers, tol, SHORT_TRIAL) if whole else Relay(solvers, tol)), reason

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the solver it picks, and of others where that one falls behind."""
        return self.relay(obj)[0].iterates(obj, w0)


def _others(obj: Objective, first: Solver) -> list[Solver]:
    """What goes on where the first solver falls behind: one more that is fast, then one that converges."""
    smooth = bool(getattr(loss_of(obj.risk), "smooth", False))
    given = penalized(obj.reg)
    found: list[Solver] = []
    if smooth and isinstance(obj.reg, Smooth):
        found.append(Lbfgs())
    elif smooth and isinstance(given, (L1, Elastic)):
        found.append(OwlQn())
    if has_program(given):
        found.append(Bundle())
    if not smooth and isinstance(obj.reg, Smooth) and isinstance(without_intercept(obj.risk), Risk):
        found.append(Smoothing())
    return [solver for solver in found if type(solver) is not type(first)]


def _for_smooth(obj: Objective, loss: Any, name: str, tol: float) -> tuple[Solver, str]:
    """The solver for a smooth loss, and why."""
    reg = obj.reg
    given = penalized(reg)
    kind, newton = type(given).__name__, Newton()
    if _few_features(obj, newton):
        return newton, f"{name} is smooth, and has second derivatives"
    steep = isinstance(loss, PowerHinge) and loss.p < 2  # its second derivative is infinite at the margin
    rows = _rows(obj) if isinstance(loss, Curved) and not steep else None
    square = isinstance(reg, Smooth) and isinstance(reg, Euclidean)
    if square and rows is not None:
        sparse = isinstance(rows.X, (Csr, Csc, Wide)) and isinstance(reg, L2) and isinstance(obj.risk, Risk)
        if rows.X.shape[1] > newton.direct and sparse and dual_of(loss, rows.y[:1]) is not None:
            return HandOver(DualGaussSeidel(), newton, max(tol, LEAST_TOL)), f"{name} is smooth, X is wide"
        return newton, f"{name} is smooth, and has second derivatives"
    if isinstance(loss, Curved) and not steep and square and _few_elsewhere(obj, newton):
        return newton, f"{name} is smooth, has second derivatives, and X is elsewhere"
    if isinstance(reg, Smooth):
        return Lbfgs(), f"{name} is smooth"
    # coordinate descent has an intercept of its own
    rows = _rows(obj)
    if isinstance(reg, Separable) and rows is not None and bounded_curvature(loss) and not crowded(rows):
        return CoordinateDescent(), f"{name} is smooth, {kind} is a sum over coordinates"
    if isinstance(given, (L1, Elastic)):
        return OwlQn(), f"{name} is smooth, {kind} has kinks"
    if isinstance(given, Separable) or not isinstance(reg, CurvedConjugate):
        return ProximalGradient(), f"{name} is smooth, {kind} is not"
    return Bundle(), f"{kind} is not smooth"


def _few_features(obj: Objective, newton: Newton) -> bool:
    """Whether rows have many scores, and Newton's method can take them without too many features."""
    risk: Any = obj.risk
    return (
        getattr(risk, "many", False)
        and without_newton("Newton", obj) is None
        and bool(risk.rows.X.shape[1] <= newton.direct)
    )


def _for_many(obj: Objective, name: str) -> tuple[Solver, str]:
    """The solver for a loss of many scores a row that can be smoothed, and why."""
    if without_newton("SemismoothNewton", obj) is None and _hard(obj):
        return SemismoothNewton(), f"{name} is not smooth, and X is dense and small"
    if unsuited(DualGaussSeidel(), obj) is None and not _steep(obj) and _few_multipliers(obj):
        return DualGaussSeidel(), f"{name} is not smooth, and has a multiplier a row and class"
    if isinstance(obj.reg, Smooth):
        return Smoothing(), f"{name} can be smoothed"
    if isinstance(penalized(obj.reg), (L1, Elastic)):
        return Smoothing(OwlQn()), f"{name} can be smoothed"
    if isinstance(obj.reg, Free):
        return Smoothing(ProximalGradient()), f"{name} can be smoothed"
    return Bundle(), f"{name} is not smooth"


def _hard(obj: Objective) -> bool:
    """Whether X is dense, w short, and rows are long beside n lam: ascent takes many epochs then."""
    risk: Any = obj.risk
    dense = not isinstance(risk.rows.X, (Csr, Csc, Wide))
    if isinstance(risk, WithIntercepts):  # which ascent only follows
        return dense and risk.dim <= SHORT_WITH_INTERCEPTS
    return dense and risk.dim <= SHORT and mean_length(risk.rows) ** 2 > LONG * len(risk.rows.y) * obj.lam


def _few_multipliers(obj: Objective) -> bool:
    """Whether there is room for a multiplier a row and class, and what goes with it."""
    risk: Any = obj.risk
    return risk.rows is not None and bool(len(risk.rows.y) * risk.scorer.columns <= MOST_MULTIPLIERS)


def _steep(obj: Objective) -> bool:
    """Whether there are intercepts, and rows so long beside n lam that steps of theirs hardly move."""
    rows = obj.risk.rows if isinstance(obj.risk, WithIntercepts) else None
    return rows is not None and mean_length(rows) ** 2 > STEEP * len(rows.y) * obj.lam


def _for_whole(risk: Risk, lam: float, loss: Any, name: str) -> tuple[Solver, str]:
    """The solver for a loss of pairs or tables that can be smoothed, and why."""
    newton, centred = SemismoothNewton(), takes_centre(loss)
    if risk.rows is None:
        return Smoothing(), f"{name} can be smoothed"
    if centred and math.prod(risk.rows.X.shape) <= SMALL:
        return Bundle(), f"{name} is not smooth, and X is small"
    wide = risk.dim > newton.direct
    if wide or not centred:
        slope = risk(np.zeros(risk.dim))[1]
        if float(slope @ slope) <= (FEW_OF_TABLES if centred else FEW_OF_PAIRS) * lam:
            return Bundle(), f"{name} is not smooth, and lam is large"
    if wide and not centred:  # too many steps, of too many products each
        return Smoothing(), f"{name} can be smoothed, and X is wide"
    return newton, f"{name} can be smoothed, and has second derivatives then"


def _with_dual(obj: Objective) -> bool:
    """Whether rows are here, or few elsewhere, of a quadratic conjugate, and the regularizer is a square."""
    risk = without_intercept(obj.risk)
    held = _rows(obj) is not None or _few_elsewhere(obj, SemismoothNewton()) or _swept_elsewhere(obj)
    fits = isinstance(obj.reg, Euclidean) and isinstance(obj.reg, Smooth) and isinstance(risk, Risk)
    return held and fits and dual_of(risk.loss, risk.table.y[:1]) is not None


def _elsewhere(obj: Objective) -> Table | None:
    """What is known of rows that are elsewhere, of one score each and a sum over them; else None."""
    risk = without_intercept(obj.risk)
    if not isinstance(risk, Risk) or risk.rows is not None or risk.table is None:
        return None
    simple = risk.loss.separable and not risk.many and isinstance(risk.table.y, np.ndarray)
    return risk.table if simple else None


def _few_elsewhere(obj: Objective, newton: Newton | SemismoothNewton) -> bool:
    """Whether rows are elsewhere, and neither they nor their features are too many for Newton's method."""
    table = _elsewhere(obj)
    return table is not None and table.shape[0] <= MOST_ELSEWHERE and table.shape[1] <= newton.direct


def _swept_elsewhere(obj: Objective) -> bool:
    """Whether rows are elsewhere, sparse, without an intercept, and not too many for dual variables here."""
    table = _elsewhere(obj) if isinstance(obj.risk, Risk) and isinstance(obj.reg, L2) else None
    standard = isinstance(getattr(obj.risk, "scorer", None), Standardized)  # sweeps take columns as they are
    return table is not None and table.sparse and table.shape[0] <= MOST_SWEPT and not standard


def _for_intervals(obj: Objective, tol: float, name: str) -> tuple[Solver, str]:
    """The solver for a loss with one multiplier a row, and why."""
    newton, tol, says = SemismoothNewton(), max(tol, LEAST_TOL), f"{name} is not smooth, and X is"
    rows = _rows(obj)
    assert rows is not None
    n, p = rows.X.shape
    if isinstance(obj.reg, L2) and n < p and n <= newton.direct and isinstance(obj.risk, Risk):
        return DualGaussSeidel(), f"{says} wider than long"
    if not isinstance(rows.X, (Csr, Csc, Wide)) or n >= MANY_ROWS * p:
        return newton, f"{says} {'dense' if n < MANY_ROWS * p else 'long'}"
    if isinstance(obj.reg, L2) and isinstance(obj.risk, Risk):
        return HandOver(DualGaussSeidel(), newton, tol), f"{says} sparse"
    if p > newton.direct:
        return HandOver(Bundle(), newton, tol, DIGIT), f"{says} sparse and wide"
    return newton, f"{says} not wide"


def _rows(obj: Objective) -> Shard | None:
    """The rows of a sum over rows that are all here, with an intercept or not; None of any other risk.

    None as well of sparse rows that are mapped and crowd the memory: no room for what is kept of each.
    """
    risk = getattr(obj.risk, "risk", obj.risk)
    if not isinstance(risk, Risk) or not risk.loss.separable or risk.many or risk.rows is None:
        return None
    return None if isinstance(risk.rows.X, (Csr, Csc, Wide)) and crowded(risk.rows) else risk.rows


def said(solver: Solver, reason: str, trace: list[dict[str, float]]) -> str:
    """A solver, why it was taken, and what it did if it can tell: those that hand over can."""
    first = solver.solvers[0] if isinstance(solver, Relay) and reason else solver
    parts = [f"{first!r}: {reason}" if reason else repr(first)]
    for told in (first,) if first is solver else (first, solver):
        if isinstance(told, (HandOver, Relay)) and (words := told.account(trace)):
            parts.append(words)
    return "; ".join(parts)
