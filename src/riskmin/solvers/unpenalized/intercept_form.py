r"""A non-decomposable loss that is a separable one at its best intercept,

.. math:: R(z) = f \min_b \sum_i c_i\, l(z_i + b, y_i).

Then :math:`\lambda\,\Omega + R` is f times :math:`(\lambda / f)\,\Omega + \min_b \sum_i c_i\, l`, a problem
for which there are dual methods and compiled loops. A cut of the one is f times a cut of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from riskmin.core import Array, Cut, Iterate, Solver, UnsupportedProblem, as_solver
from riskmin.problem.intercept.strategies import ProfiledIntercept
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk


class SeparableProblem(NamedTuple):
    """The separable problem, and the factor f by which J is larger than its objective."""

    obj: Objective
    factor: float

    @classmethod
    def from_objective(cls, obj: Objective) -> SeparableProblem | None:
        """The separable problem of local rows; None if the loss has no such form."""
        risk: Any = obj.risk
        if not isinstance(risk, Risk) or risk.rows is None or risk.intercept.fitted:
            return None
        form = risk.loss.intercept_form(risk.rows.y, risk.rows.c)
        if form is None:
            return None
        loss, factor = form
        same = replace(risk, loss=loss, intercept=ProfiledIntercept())
        return cls(Objective(same, obj.reg, obj.lam / factor, obj.count), factor)

    def original(self, it: Iterate) -> Iterate:
        """The iterate of the original problem: the same w, and f times its value and cut."""
        cut = Cut(self.factor * it.cut.a, self.factor * it.cut.b)
        return it._replace(value=self.factor * it.value, cut=cut, intercept=None)


@dataclass(frozen=True)
class InterceptForm(Solver):
    """Minimizes a non-decomposable loss by a solver for the separable one that it is at its best intercept.

    `Auto` uses it for `Prbep`, which is twice the hinge loss of margin n / (4 n+), and for `PrecisionAtK` and
    `RecallAtK` if k is the number of positives.

    Parameters
    ----------
    solver : Solver
        The solver of the separable problem, which has an intercept.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, DualCoordinateAscent, Objective, Prbep, linear_risk, minimize
    >>> X, y = np.array([[2.0], [0.5], [-1.0], [1.0]]), np.array([1.0, 1.0, -1.0, -1.0])
    >>> obj = Objective(linear_risk(X, y, Prbep()), L2(), lam=0.1)
    >>> result = minimize(obj, InterceptForm(DualCoordinateAscent()), tol=1e-9)
    >>> result.status, round(result.value, 6)
    ('converged', 0.588889)
    """

    solver: Solver

    def __post_init__(self) -> None:
        object.__setattr__(self, "solver", as_solver(self.solver))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.solver!r})"

    @property
    def name(self) -> str:
        """The name of the solver of the separable problem."""
        return self.solver.name

    def supports(self, obj: Objective) -> str | None:
        """None if the loss has a separable form that the solver supports."""
        if (same := SeparableProblem.from_objective(obj)) is None:
            return f"InterceptForm needs local rows and a loss such as Prbep(): use {self.solver!r}"
        return self.solver.supports(same.obj)

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the solver on the separable problem."""
        same = self._separable(obj)
        return map(same.original, self.solver.iterates(same.obj, w0))

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate] | None:
        """Continue from a saved state of the solver."""
        same = self._separable(obj)
        steps = self.solver.resume(same.obj, state)
        return None if steps is None else map(same.original, steps)

    def warm_start(
        self, obj: Objective, state: dict[str, Array], before: Objective
    ) -> Iterator[Iterate] | None:
        """Start from the state of a run on the same risk with another lam or regularizer."""
        same = self._separable(obj)
        steps = self.solver.warm_start(same.obj, state, self._separable(before).obj)
        return None if steps is None else map(same.original, steps)

    def for_tolerance(self, tol: float) -> Solver:
        """The solver for a relative gap of tol, which is the same for both problems."""
        return replace(self, solver=self.solver.for_tolerance(tol))

    def summary(self, trace: list[dict[str, float]]) -> str:
        """That of the solver."""
        return self.solver.summary(trace)

    def _separable(self, obj: Objective) -> SeparableProblem:
        same = SeparableProblem.from_objective(obj)
        if same is None:
            raise UnsupportedProblem(self.supports(obj) or "")
        return same
