r"""Losses of the contingency table, minimized over the tables that matter: F-beta, precision and recall at k.

.. math:: R(z) = \max_k \psi_k(z), \qquad \psi_k(z) = \Delta_k + \max_{y' \text{ with table } k}
          \tfrac1n \sum_i z_i (y'_i - y_i).

A cut of R is one labeling; :math:`\psi_k` are all labelings of a table at once. Few tables are active at the
minimizer, so that a model of tables needs tens of them where one of cuts needs hundreds of cuts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray, Solver
from riskmin.core.deadline import check_each
from riskmin.core.limits import LIMITS
from riskmin.numerics.univariate import Tangent, best_tangent, bracket_minimum, refine_bracket
from riskmin.problem.objective import Objective, ObjectiveCursor
from riskmin.problem.risk import Risk
from riskmin.solvers.interior_point.table_program import TableProgram


@dataclass(frozen=True)
class ContingencyTables(Solver):
    r"""Cutting planes with a whole contingency table in place of each cut, by an interior-point method.

    For `FBeta`, `PrecisionAtK` and `RecallAtK` with `L2` on local rows. Each step minimizes the maximum of
    the tables so far, searches J from the best point towards that minimizer, and adds the worst tables of
    both points. A model takes some 15 factorizations of a matrix of the rows or columns, whichever are fewer.

    Parameters
    ----------
    max_size : int
        The largest number of rows or columns, whichever are fewer.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, ContingencyTables, FBeta, Objective, linear_risk, minimize
    >>> X, y = np.array([[2.0], [0.5], [-1.0], [1.0]]), np.array([1.0, 1.0, -1.0, -1.0])
    >>> result = minimize(Objective(linear_risk(X, y, FBeta()), L2(), lam=0.1), ContingencyTables(), tol=1e-9)
    >>> result.status, round(result.value, 6)
    ('converged', 0.6375)
    """

    NEW_TABLES = 8
    """Tables that a point adds: local maxima of the objective over the number of misses."""
    GAP_SHARE = 0.1
    """The gap of the model, as a share of that of the run, to which it is minimized at first."""
    MIN_GAP_SHARE = 1e-6
    """The run ends if no table is missing and the gap of the model is this share of that of the run."""
    MAX_STEPS = 80
    """Steps of the interior-point method per model."""
    USED_SHARE = 1e-4
    """Tables of a smaller share of the largest weight, true labels aside, are dropped."""

    max_size: int = 600

    def supports(self, obj: Objective) -> str | None:
        """None for a loss of contingency tables on few local rows or columns, with `L2`."""
        risk = obj.risk
        if not isinstance(risk, Risk) or not risk.loss.has_tables or not obj.reg.diagonal:
            return "ContingencyTables needs FBeta(), PrecisionAtK() or RecallAtK(), and L2(): use Bundle"
        rows = risk.rows
        if rows is None or not risk.linear_map.is_identity or rows.X.score_like is not None:
            return "ContingencyTables needs rows in this process: use Bundle"
        shape = rows.X.shape
        if min(shape) > self.max_size or math.prod(shape) > LIMITS.copy_max_entries:
            return f"ContingencyTables is for at most {self.max_size} rows or columns: use Bundle"
        return None

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the best points."""
        self.check_supports(obj)
        return self._run(_Problem(obj), obj.cursor(w0))

    def _run(self, problem: _Problem, cursor: ObjectiveCursor) -> Iterator[Iterate]:
        """Yield iterates from the cursor's point."""
        obj = problem.obj
        value, _, best = cursor()
        lower, share, n_evaluations = obj.lower(best), self.GAP_SHARE, 0
        tables = problem.first_tables() | problem.worst_tables(cursor.w, None, self.NEW_TABLES)
        program = problem.program(tables)
        while True:
            info = {"tables": len(tables), "evaluations": n_evaluations}
            yield Iterate(cursor.w, value, best, info)
            cut = self._minimize(problem, program, value, share)
            if cut is not None and (bound := obj.lower(cut)) > lower:
                best, lower = cut, bound
            w = problem.weights(program.w)
            cursor.set_direction(w - cursor.w, 0.01 * max(value - lower, 0.0))
            new, n_evaluations = _search(cursor, value - lower)
            if new.x:
                cursor.advance(new.x)
            value = new.value
            found = problem.worst_tables(w, program.b, self.NEW_TABLES)
            found |= problem.worst_tables(cursor.w, None, self.NEW_TABLES)
            if not found.keys() - tables.keys():
                # the model is right: its minimizer must be found more closely
                if share < self.MIN_GAP_SHARE:
                    return
                share *= 0.1
                continue
            weight = dict(zip(tables, program.p, strict=True)) | {(0, 0): 0.0}
            least = self.USED_SHARE * max(weight.values())
            tables = {counts: delta for counts, delta in tables.items() if weight[counts] > least}
            tables = problem.first_tables() | tables | found
            program, share = problem.program(tables), self.GAP_SHARE

    def _minimize(self, problem: _Problem, program: TableProgram, value: float, share: float) -> Cut | None:
        """Minimize the model to a share of the gap of the run; return the best cut."""
        cut, lower = None, -math.inf
        for _ in check_each(range(self.MAX_STEPS)):
            if not program.step() > 0:
                break
            candidate = problem.cut(*program.multipliers())
            if (bound := problem.obj.lower(candidate)) > lower:
                cut, lower = candidate, bound
            if program.value() - lower <= share * (value - max(lower, 0.0)):
                break
        return cut


class _Problem:
    """The rows of an objective, in coordinates of their span if they are fewer than the columns."""

    def __init__(self, obj: Objective) -> None:
        risk: Any = obj.risk
        X = risk.rows.X
        self.obj, self.y, self.c, self.intercept = obj, risk.rows.y, risk.rows.c, risk.intercept.fitted
        self.X = np.asarray(X.as_scipy().toarray() if X.sparse else X.array, dtype=np.float64)
        reg: Any = obj.reg.penalized_part
        self.L = obj.lam * (np.asarray(reg.weights, dtype=float) + np.zeros(self.X.shape[1]))
        self.positive = np.asarray(self.y > 0)
        self.Z, self.Q = self.X, None
        if self.X.shape[0] < self.X.shape[1]:
            # X / roots = R' Q', so that the scores are those of R' and v, and w' L w = |v|^2
            self.Q, R = np.linalg.qr((self.X / np.sqrt(self.L)).T)
            self.Z = R.T

    def weights(self, v: NDArray) -> NDArray:
        """Return the weights of a point of the model."""
        return v if self.Q is None else (self.Q @ v) / np.sqrt(self.L)

    def program(self, tables: dict[tuple[int, int], float]) -> TableProgram:
        """Return the model of some tables."""
        L = self.L if self.Q is None else np.ones(self.Z.shape[1])
        array = np.array([(*counts, delta) for counts, delta in tables.items()])
        return TableProgram(self.Z, L, self.positive, array, intercept=self.intercept)

    def cut(self, slopes: NDArray, offset: float) -> Cut:
        """Return the cut of slopes in the scores."""
        return Cut(self.X.T @ slopes, offset)

    def first_tables(self) -> dict[tuple[int, int], float]:
        """Return the table of the true labels, and with an intercept those of constant predictions."""
        tables = {(0, 0): 0.0}
        # at very low scores the worst table misses all positives, at very high ones all others are alarms
        for score in (-1e9, 1e9) if self.intercept else ():
            tables |= self._worst(np.full(len(self.y), score), 1)
        return tables

    def worst_tables(self, w: NDArray, b: float | None, n: int) -> dict[tuple[int, int], float]:
        """Return up to n tables of the largest objectives at w, and their measures."""
        risk: Any = self.obj.risk
        z = self.X @ w
        if self.intercept:
            z = z + (risk.best_intercept(w) if b is None else b)
        return self._worst(z, n)

    def _worst(self, z: NDArray, n: int) -> dict[tuple[int, int], float]:
        """Return up to n local maxima of the objective over the number of misses."""
        risk: Any = self.obj.risk
        worst = risk.loss.worst_tables(z, self.y, self.c)
        padded = np.concatenate([[-np.inf], worst.values, [-np.inf]])
        peaks = np.flatnonzero((padded[1:-1] >= padded[:-2]) & (padded[1:-1] >= padded[2:]))
        peaks = peaks[np.argsort(-worst.values[peaks], kind="stable")][:n]
        return {(int(worst.misses[k]), int(worst.alarms[k])): float(worst.delta[k]) for k in peaks}


def _search(cursor: ObjectiveCursor, gap: float) -> tuple[Tangent, int]:
    """Return the best point on the line, and the number of evaluations."""
    evaluations: list[Tangent] = []

    def evaluate(t: float) -> Tangent:
        evaluations.append(Tangent(t, *cursor.value_slope(t)))
        return evaluations[-1]

    start = evaluate(0.0)
    if start.slope < 0:
        # J is coercive along the line, but floating-point values need not show where it rises
        with contextlib.suppress(ValueError):
            refine_bracket(
                evaluate,
                *bracket_minimum(evaluate, start, 1.0, cursor.reach),
                lambda best, bound: best - bound <= 0.1 * max(start.value - best, 0.01 * gap),
            )
    return best_tangent(*evaluations), len(evaluations)
