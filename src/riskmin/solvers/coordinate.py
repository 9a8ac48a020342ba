r"""Coordinate descent on working sets of features, for smooth losses with sparse regularizers.

Each step is a pass over all columns, which gives the gradient and so the cut and the features that violate
optimality; a quadratic model of the risk over few of them; its minimizer; and a search of J on the way there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from itertools import islice

import numpy as np

from riskmin.objective import Objective
from riskmin.solvers.bundle import check_count
from riskmin.solvers.coordinate_problem import NONE, Pace, Problem
from riskmin.solvers.states import checked
from riskmin.types import Array, Iterate, NDArray

TRUSTED = 0.01
"""What models foresee is worth a look if they are minimized better than this."""
MOST_SAMPLED, SAMPLED_TOL = 20, 1e-2
"""So many steps, or down to this gap, are taken on a sample of the rows."""


@dataclass(frozen=True)
class CoordinateDescent:
    r"""Coordinate descent on working sets, the solver for smooth losses with L1-type regularizers.

    Each step takes the gradient, and with it a cut; chooses the features with :math:`w_j \ne 0` and as many
    that violate optimality most; minimizes lam Omega plus a quadratic model of the risk over them,

    .. math:: \nabla R(w)^\top d + \tfrac12 d^\top X^\top D X d, \quad D = \mathrm{diag}(c_i\, l''(z_i, y_i)),

    one coordinate at a time, on the columns of X or on their Gram matrix, whichever is cheaper; and goes
    there, or part of the way. For `Squared` the model is the risk itself. Zeros of w are exact. Of other
    losses, the slopes that a model foresees at its minimizer make a cut too, which proves as much as the
    next step's would; and where rows are plenty, w = 0 is left for what a sample of them leads to.

    For losses with second derivatives, and sums over coordinates: `L1`, `Elastic`, `L2`, and each of them in
    a `Box`. Columns that were copied out of X stay with the risk, so that a path of several lam pays once.

    Parameters
    ----------
    start : int
        How many features the first working set has, beside those with w_j != 0.

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
        check_count(self, "start")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield points of decreasing objective."""
        problem = Problem.of(self, obj)
        if not np.any(w0):
            w0 = self._sampled(problem, w0)
        yield from self._run(problem, w0, Pace())

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        checked(state, {"w": "d", "pace": "k"}, d=obj.risk.dim, k=len(fields(Pace)))
        steps = self._run(Problem.of(self, obj), state["w"], Pace(*map(float, state["pace"])))
        return self._after_the_first(steps)

    @staticmethod
    def _after_the_first(steps: Iterator[Iterate]) -> Iterator[Iterate]:
        saved = next(steps)
        yield next(steps, saved)  # what came next; at the end of what rounding lets through, nothing does
        yield from steps

    def _sampled(self, problem: Problem, w0: Array) -> Array:
        """Where few of very many rows would end: so far, all of them say little more."""
        part = problem.sample()
        if part is None:
            return w0
        w = w0
        for it in islice(self.iterates(part, w0), MOST_SAMPLED):
            w = it.w
            if it.value - part.lower(it.cut) <= SAMPLED_TOL * it.value:
                break
        return w

    def _run(self, problem: Problem, w0: Array, pace: Pace) -> Iterator[Iterate]:
        at, columns, guess = problem.points.place(w0), NONE, None
        info: dict[str, float] = {"working_set": 0, "epochs": 0}
        while True:
            seen = problem.points.look(at, guess)
            worst = problem.violation(at.w, seen.grad)
            pace = pace.after(float(worst.max()), float(worst[columns].max()) if len(columns) else None)
            yield Iterate(at.w, seen.value, seen.cut, info, _snapshot(at.w, pace))
            if not worst.max() > 0:
                return  # this is the minimum
            columns, maybe = problem.choose(at.w, worst, self.start)
            model, pace = problem.model(at, seen, columns, pace)
            found = problem.columns.solve(model, maybe)
            new, t = problem.search(at, seen, model, found)
            if new is None and not model.exact:
                model = model._replace(exact=True)
                found = problem.columns.solve(model, maybe)
                new, t = problem.search(at, seen, model, found)
            if new is None:
                return  # no descent is left in this precision
            at, pace = new, pace.damped(t, found.bend is not None and found.bend is not model.bend)
            sure = found.close or pace.forcing < TRUSTED
            guess = problem.foreseen(model, found) if sure and t == 1 else None
            info = {"working_set": len(columns), "epochs": found.epochs}


def _snapshot(w: NDArray, pace: Pace) -> Callable[[], dict[str, Array]]:
    return lambda: {"w": w, "pace": np.array(astuple(pace))}
