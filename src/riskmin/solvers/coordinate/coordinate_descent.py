"""Coordinate descent on working sets of features, for smooth losses with sparse regularizers.

Each step makes one pass over all columns, which gives the gradient, the cut and the violations of optimality;
builds a quadratic model of the risk over a working set; minimizes it; and searches J on the segment to its
minimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields

import numpy as np

from riskmin.core import Array, Iterate, NDArray, Solver
from riskmin.core.messages import check_whole
from riskmin.problem.objective import Objective
from riskmin.solvers.base import bounded_curvature, intercepts_reason, local_rows_reason
from riskmin.solvers.coordinate.subproblem import (
    NO_COLUMNS,
    CoordinateProblem,
    InexactSchedule,
)
from riskmin.solvers.state_checks import check_state


@dataclass(frozen=True)
class CoordinateDescent(Solver):
    r"""Coordinate descent on working sets, the solver for smooth losses with L1-type regularizers.

    Each step computes the gradient, and with it a cut; chooses the features with :math:`w_j \ne 0` and those
    with the largest violations of optimality; minimizes lam Omega plus a quadratic model of the risk over
    this working set,

    .. math:: \nabla R(w)^\top d + \tfrac12 d^\top X^\top D X d, \quad D = \mathrm{diag}(c_i\, l''(z_i, y_i)),

    one coordinate at a time, and by linear systems over the nonzero weights, on the columns of X or on their
    Gram matrix, whichever is cheaper; and takes the step to its minimizer, or a part of it. For `Squared` the
    model is the risk itself. Zeros of w are exact. The slopes that a model predicts at its minimizer give a
    second cut, about as good as the cut of the next step.

    Supports losses with second derivatives and separable regularizers: `L1`, `Elastic`, `L2`, and each of
    them in a `Box`. Columns copied out of a sparse X are cached with the risk, so that a path over several
    lam copies them once.

    Parameters
    ----------
    start : int
        Size of the first working set, in addition to the features with w_j != 0.

    References
    ----------
    M. Massias, A. Gramfort, J. Salmon, Celer: a fast solver for the Lasso with dual extrapolation, ICML 2018.
    G.-X. Yuan, C.-H. Ho, C.-J. Lin, An improved GLMNET for L1-regularized logistic regression, JMLR 2012.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, CoordinateDescent, Objective, Squared, linear_risk, minimize
    >>> J = Objective(linear_risk(np.eye(2), np.array([3.0, 0.5]), Squared()), L1(), lam=0.5)
    >>> result = minimize(J, CoordinateDescent(), tol=1e-9)
    >>> result.status, result.w.round(9).tolist()
    ('converged', [2.0, 0.0])
    """

    start: int = 64

    def __post_init__(self) -> None:
        check_whole(self, "start")

    def supports(self, obj: Objective) -> str | None:
        """None for a sum over coordinates, local rows and a loss with finite second derivatives."""
        if reason := intercepts_reason(self.name, obj):
            return reason
        if not obj.reg.separable:
            return (
                "CoordinateDescent needs a regularizer that is a sum over coordinates, such as L1() or "
                f"Elastic(), not {obj.reg!r}: use ProximalGradient or Bundle"
            )
        if reason := local_rows_reason(self, obj):
            return reason
        loss = obj.risk.loss
        if not bounded_curvature(loss):
            return (
                f"CoordinateDescent needs a loss whose second derivative is finite, not {loss!r}: use Bundle"
            )
        return None

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield points of decreasing objective."""
        self.check_supports(obj)
        yield from self._run(CoordinateProblem.create(self, obj), w0, InexactSchedule())

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        check_state(state, {"w": "d", "pace": "k"}, d=obj.risk.dim, k=len(fields(InexactSchedule)))
        steps = self._run(
            CoordinateProblem.create(self, obj), state["w"], InexactSchedule(*map(float, state["pace"]))
        )
        return self._skip_saved(steps)

    @staticmethod
    def _skip_saved(steps: Iterator[Iterate]) -> Iterator[Iterate]:
        """Skip the iterate that was saved; yield it again if no other follows."""
        saved = next(steps)
        # At the limit of the precision there is no further iterate.
        yield next(steps, saved)
        yield from steps

    def _run(self, problem: CoordinateProblem, w0: Array, schedule: InexactSchedule) -> Iterator[Iterate]:
        point, columns, predicted = problem.points.with_scores(w0), NO_COLUMNS, None
        # passes: the work between oracle calls, in passes over X
        info: dict[str, float] = {"working_set": 0, "epochs": 0, "passes": 0.0}
        while True:
            evaluation = problem.points.evaluate(point, predicted)
            violation = problem.violation(point.w, evaluation.grad)
            schedule = schedule.updated(
                float(violation.max()), float(violation[columns].max()) if len(columns) else None
            )
            state = _snapshot(point.w, schedule)
            yield Iterate(point.w, evaluation.value, evaluation.cut, info, state, intercept=point.b)
            if not violation.max() > 0:
                # No coordinate decreases J: this is the minimum.
                return
            # Working set, model, its minimizer, and a line search on the segment to it.
            columns = problem.choose(point.w, violation, self.start)
            model, schedule = problem.model(point, evaluation, columns, schedule)
            solution = problem.columns.solve(model)
            new, t = problem.search(point, evaluation, model, solution)
            if new is None:
                # No descent is left in this precision.
                return
            point, schedule = new, schedule.with_step(t)
            # Predicted slopes are those at the model's minimizer, hence useful only after a full step to it.
            predicted = problem.predicted_slopes(model, solution) if t == 1 else None
            passes = info["passes"] + solution.work / problem.columns.n_entries
            info = {"working_set": len(columns), "epochs": solution.epochs, "passes": passes}


def _snapshot(w: NDArray, schedule: InexactSchedule) -> Callable[[], dict[str, Array]]:
    return lambda: {"w": w, "pace": np.array(astuple(schedule))}
