r"""Piecewise linear and quadratic risks without a penalty, also under bounds and linear constraints on w.

.. math:: \min_{w, b}\; \sum_i c_i\, l(x_i^\top w + b, y_i) \quad\text{with}\quad lower \le A w \le upper.

Such a risk has a minimum: it is bounded below, convex and quadratic in pieces (Frank and Wolfe 1956). The
variables are those of standardized rows, so that neither units nor nearly dependent columns matter, and the
bound is that of `RowProgram`, a constant cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray, Solver
from riskmin.problem.objective import Objective
from riskmin.regularizers import LinearConstraints, with_scaled_variables
from riskmin.regularizers.unpenalized import NoPenalty
from riskmin.solvers.row_program import Constraints, RowProgram
from riskmin.solvers.transformed.unpenalized import StandardizedRows, UnpenalizedNewton

DEPENDENT = (
    "without a penalty (alpha=0), constraints need independent columns, but some columns of X are sums of "
    "others: drop these, or give alpha > 0, such as 1e-9"
)


@dataclass(frozen=True)
class UnpenalizedProgram(Solver):
    """An interior-point method for losses with a quadratic conjugate, without a penalty.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Box, L2, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0], [2.0], [4.0]]), np.array([-1.0, -2.0, 3.0])
    >>> risk = linear_risk(X, y, "absolute")
    >>> minimize(Objective(risk, NoPenalty(), lam=1.0), UnpenalizedProgram(), tol=1e-9).w.round(6).tolist()
    [0.75]
    >>> bounded = Objective(risk, NoPenalty(Box(L2(), 0.0, 0.5)), lam=1.0)
    >>> minimize(bounded, UnpenalizedProgram(), tol=1e-9).w.round(6).tolist()
    [0.5]
    """

    def supports(self, obj: Objective) -> str | None:
        """None for local rows of moderate size, and a loss with a quadratic conjugate."""
        loss: Any = obj.risk.loss
        if not (isinstance(obj.reg.penalized_part, NoPenalty) and loss.separable and not loss.multi_output):
            return "UnpenalizedProgram is for sums over rows of one score, without a penalty: give alpha > 0"
        if not loss.quadratic_conjugate:
            return "UnpenalizedProgram needs a conjugate that is quadratic on an interval: give alpha > 0"
        return UnpenalizedNewton.size_reason(obj)

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the start, then feasible points near those of the method, with constant cuts."""
        self.check_supports(obj)
        no_penalty: Any = obj.reg.penalized_part
        domain = no_penalty.domain
        rows = StandardizedRows(obj.risk)
        program = self._program(obj, rows, domain)
        w, lower, t = np.asarray(obj.reg.prox(np.asarray(w0, dtype=np.float64), 0.0)), 0.0, 1.0
        while True:
            value = obj.value(w)
            lower = max(lower, min(program.cut(value).b, value)) if rows.resolved else 0.0
            yield Iterate(w, value, Cut(np.zeros(len(w)), lower), {"mu": program.mu})
            if not t:
                return  # the rest of the gap is rounding
            t = program.step()
            w = _feasible(domain, rows.to_weights(program.theta[:, None]), rows.scale)

    def _program(self, obj: Objective, rows: StandardizedRows, domain: Any) -> RowProgram:
        """Return the program in the variables of the standardized rows."""
        zero = np.asarray(obj.reg.prox(np.zeros(obj.risk.dim), 0.0))
        dual = rows.loss.interval_conjugate(rows.y)
        slopes = rows.loss.value_grad(0.0 * rows.c, rows.y, np.ones(len(rows.c)))[1]
        constraints, q = Constraints.none(rows.Z.shape[1]), rows.Z.shape[1]
        if domain is not None:
            A, lower, upper = bounds_of(domain, obj.risk.dim)
            if len(lower) and rows.row_space is not None:
                raise ValueError(DEPENDENT)
            weights = np.column_stack([rows.to_weights(e[:, None]) for e in np.eye(q)])
            G = A @ weights
            # in units of the rows' scores, so that steps and tests are relative
            sizes = np.abs(G).max(axis=1, initial=0.0)
            sizes = np.where(sizes > 0, sizes, 1.0)
            constraints = Constraints(G / sizes[:, None], lower / sizes, upper / sizes)
        return RowProgram(rows.Z, rows.c, dual, np.zeros(q), constraints, slopes, obj.value(zero))


def bounds_of(domain: Any, p: int) -> tuple[NDArray, NDArray, NDArray]:
    """Return A, lower and upper of the bounds of w, those of single weights included."""
    A, lower, upper = np.zeros((0, p)), np.zeros(0), np.zeros(0)
    inner = domain
    if isinstance(domain, LinearConstraints):
        A, inner = domain.A, domain.reg
        lower, upper = domain.lower + np.zeros(len(A)), domain.upper + np.zeros(len(A))
    ends = inner.terms(np.zeros(p))
    low, high = ends.lower + np.zeros(p), ends.upper + np.zeros(p)
    single = np.isfinite(low) | np.isfinite(high)
    A, lower = np.vstack([A, np.eye(p)[single]]), np.append(lower, low[single])
    upper = np.append(upper, high[single])
    given = np.isfinite(lower) | np.isfinite(upper)
    return A[given], lower[given], upper[given]


def _feasible(domain: Any, w: NDArray, scale: NDArray) -> NDArray:
    """Return the nearest weights that satisfy the constraints, in units of standardized columns."""
    if domain is None:
        return w
    projected = with_scaled_variables(domain, 1 / scale).prox(w * scale, 0.0) / scale
    # once more in the units of w, whose rounding is another
    return np.asarray(domain.prox(projected, 0.0))
