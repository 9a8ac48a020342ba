r"""Non-decomposable losses as separable ones: at the best intercept, or with a row for each pair of rows,

.. math:: R(z) = f \min_b \sum_i c_i\, l(z_i + b, y_i), \qquad
          R(z) = \sum_{ij} c_{ij} \max(0, 1 - (z_i - z_j)).

Then :math:`\lambda\,\Omega + R` is f times a problem for which there are dual methods and compiled loops, and
a cut of the one is f times a cut of the other. Pairs of few rows have weights :math:`w = Q v`, with an
orthonormal basis Q of the rows: v is as long as there are rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray, Solver, UnsupportedProblem, as_solver
from riskmin.core.limits import LIMITS
from riskmin.losses.margin import Hinge
from riskmin.problem.intercept import ProfiledIntercept
from riskmin.problem.linear_risk import linear_risk
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.regularizers.separable import L2


@dataclass(frozen=True)
class SeparableProblem:
    """A separable problem in the same weights, and the factor f by which J is larger than its objective."""

    obj: Objective
    factor: float

    @classmethod
    def from_objective(cls, obj: Objective) -> SeparableProblem | None:
        """The problem with an intercept, of a loss that is separable at the best one; else None."""
        rows = local_rows(obj)
        form = None if rows is None else obj.risk.loss.intercept_form(rows.y, rows.c)
        if form is None:
            return None
        loss, factor = form
        risk: Any = replace(obj.risk, loss=loss, intercept=ProfiledIntercept())  # type: ignore[type-var]
        return cls(Objective(risk, obj.reg, obj.lam / factor, obj.count), factor)

    def start(self, w: Array) -> Array:
        """The point of the separable problem for weights w."""
        return w

    def weights(self, v: Array) -> Array:
        """The weights of a point of the separable problem."""
        return v

    def slope(self, a: Array) -> Array:
        """The slope in w of a cut of slope a."""
        return a

    def original(self, it: Iterate) -> Iterate:
        """The iterate of the original problem."""
        cut = Cut(self.factor * self.slope(it.cut.a), self.factor * it.cut.b)
        return it._replace(w=self.weights(it.w), value=self.factor * it.value, cut=cut, intercept=None)


@dataclass(frozen=True)
class PairProblem(SeparableProblem):
    """A problem with a row for each pair of rows, in the coordinates v of the weights w = Q v / roots."""

    MAX_PAIRS: ClassVar[int] = 2**17
    """Pairs that are listed in about a millisecond."""

    Q: NDArray | None
    """An orthonormal basis of the rows, with columns divided by the roots; None if columns are not more."""
    roots: Any
    """The square roots of the penalty's weights, one per column or one for all."""

    @classmethod
    def pairs_of(cls, obj: Objective) -> tuple[NDArray, NDArray, NDArray] | None:
        """Both rows and the weight of each pair, for few pairs of local rows, with `L2`; else None."""
        rows = local_rows(obj)
        if rows is None or not obj.reg.diagonal or not obj.risk.linear_map.is_identity:
            return None
        if math.prod(rows.X.shape) > LIMITS.copy_max_entries:
            return None
        limit = min(LIMITS.copy_max_entries // min(rows.X.shape), cls.MAX_PAIRS)
        pairs = obj.risk.loss.pairs(rows.y, rows.c, limit)
        return pairs if pairs is not None and len(pairs[0]) > 1 else None

    @classmethod
    def from_objective(cls, obj: Objective) -> PairProblem | None:
        """The problem of the pairs, if there are few."""
        pairs = cls.pairs_of(obj)
        if pairs is None:
            return None
        above, below, c = pairs
        reg: Any = obj.reg
        X, roots = obj.risk.rows.X, np.sqrt(reg.penalized_part.weights)
        dense = np.asarray(X.as_scipy().toarray() if X.sparse else X.array, dtype=np.float64)
        Z, Q = dense / roots, None
        if Z.shape[0] < Z.shape[1]:
            # X / roots = R' Q', so that the scores are those of R' and v, and |Q v| = |v|
            Q, R = np.linalg.qr(Z.T)
            Z = R.T
        # labels of both signs, as the hinge loss needs them: a row and its label change sign together
        sign = np.where(np.arange(len(c)) % 2, -1.0, 1.0)
        D = Z[above] - Z[below]
        D *= sign[:, None]
        total = float(c.sum())
        risk = linear_risk(D, sign, Hinge(), sample_weight=c)
        return cls(Objective(risk, L2(), obj.lam / total, obj.count), total, Q, roots)

    def start(self, w: Array) -> Array:
        """The coordinates of the part of w in the span of the rows: the other part only adds to Omega."""
        v = self.roots * w
        return v if self.Q is None else self.Q.T @ v

    def weights(self, v: Array) -> Array:
        """The weights Q v / roots."""
        return (v if self.Q is None else self.Q @ v) / self.roots

    def slope(self, a: Array) -> Array:
        """The slope of a cut in w, which is a'v for w = Q v / roots."""
        return self.roots * (a if self.Q is None else self.Q @ a)


def local_rows(obj: Objective) -> Any:
    """The rows of a non-decomposable loss of a linear model without an intercept, if they are local."""
    risk = obj.risk
    if not isinstance(risk, Risk) or risk.loss.separable or risk.intercept.fitted or obj.reg.halves:
        return None
    return risk.rows


@dataclass(frozen=True)
class SeparableForm(Solver):
    """Minimizes a non-decomposable loss that is separable in another form, by a solver for that form.

    `Prbep` is twice the hinge loss of margin n / (4 n+) at the best intercept, as are `PrecisionAtK` and
    `RecallAtK` if k is the number of positives. `RocArea`, `Ordinal` and `PairwiseHinge` are hinge losses
    with a row for each pair of rows, if there are few, with `L2`. `Auto` uses it.

    Parameters
    ----------
    solver : Solver
        The solver of the separable problem.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, DualCoordinateAscent, Objective, Prbep, linear_risk, minimize
    >>> X, y = np.array([[2.0], [0.5], [-1.0], [1.0]]), np.array([1.0, 1.0, -1.0, -1.0])
    >>> obj = Objective(linear_risk(X, y, Prbep()), L2(), lam=0.1)
    >>> result = minimize(obj, SeparableForm(DualCoordinateAscent()), tol=1e-9)
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
        """None for losses with a separable form on these rows; the solver may still refuse that form."""
        if SeparableProblem.from_objective(obj) is not None or PairProblem.pairs_of(obj) is not None:
            return None
        return "SeparableForm needs local rows and Prbep(), or RocArea() of few pairs with L2(): use Auto"

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the solver on the separable problem."""
        same = self._separable(obj)
        return map(same.original, self.solver.iterates(same.obj, same.start(w0)))

    def verifies_states(self, obj: Objective) -> bool:
        """Whether the solver does that for the separable problem."""
        return self.solver.verifies_states(self._separable(obj).obj)

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
        earlier = replace(same.obj, lam=before.lam / same.factor) if before.reg is obj.reg else None
        steps = None if earlier is None else self.solver.warm_start(same.obj, state, earlier)
        return None if steps is None else map(same.original, steps)

    def for_tolerance(self, tol: float) -> Solver:
        """The solver for a relative gap of tol, which is the same for both problems."""
        return replace(self, solver=self.solver.for_tolerance(tol))

    def summary(self, trace: list[dict[str, float]]) -> str:
        """That of the solver."""
        return self.solver.summary(trace)

    def _separable(self, obj: Objective) -> SeparableProblem:
        same = SeparableProblem.from_objective(obj) or PairProblem.from_objective(obj)
        if same is None:
            raise UnsupportedProblem(self.supports(obj) or "")
        return same
