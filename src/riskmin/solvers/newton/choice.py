"""The choice of a score problem for an objective: the first that accepts it."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.problem.objective import Objective
from riskmin.solvers.newton.exponential_family import ExponentialFamily
from riskmin.solvers.newton.multi_output.score_problems import (
    MultiOutputScoreProblem,
    SimplexDual,
    multi_output_reason,
)
from riskmin.solvers.newton.piecewise_quadratic import PiecewiseQuadratic
from riskmin.solvers.newton.score_problem import ScoreProblem, has_score_hessian

SCORE_PROBLEMS: tuple[type[ScoreProblem], ...] = (
    SimplexDual,
    MultiOutputScoreProblem,
    PiecewiseQuadratic,
    ExponentialFamily,
    ScoreProblem,
)
"""From the most special to the most general."""


def choose_score_problem(obj: Objective) -> ScoreProblem:
    """The score problem of an objective, of which `unsupported_reason` is None."""
    return next(kind for kind in SCORE_PROBLEMS if kind.accepts(obj)).from_objective(obj)


def unsupported_reason(obj: Objective) -> str | None:
    """Why Newton's method cannot minimize an objective, and what can; None if it can."""
    risk: Any = obj.risk
    if risk.multi_output:
        return multi_output_reason(obj)
    table = risk.row_metadata
    if table is None or namespace(table.y) is not np:
        return (
            "Newton needs a linear_risk of NumPy arrays, with one score per row: "
            "use Auto, Smoothing or Bundle"
        )
    if not (obj.reg.quadratic and obj.reg.smooth):
        return f"Newton needs L2() or Quadratic(K), not {obj.reg!r}: use Bundle"
    if not has_score_hessian(risk.loss):
        name = type(risk.loss.chosen).__name__
        return (
            f"Newton needs second derivatives, and {name} has none: "
            "use Bundle, or Lbfgs if the loss is smooth"
        )
    return None
