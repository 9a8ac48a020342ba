r"""Minimize a regularizer under constraints on the scores, by the method of multipliers.

.. math:: \min_w\; \Omega(w) \quad\text{with}\quad lower_i \le x_i^\top w + b \le upper_i

Each step minimizes :math:`\Omega(w) + \tfrac\rho2 \sum_i \mathrm{clip}(z_i - t_i + u_i / \rho)^2`, a
regularized risk, and sets u to its slopes. For all multipliers u with the signs of their constraints,

.. math:: \Omega(w) \ge -\sum_i u_i t_i - \Omega^*\bigl(-\textstyle\sum_i u_i x_i\bigr)

at every feasible w. A point of the run violates constraints slightly, by an amount whose price is unknown as
long as the multipliers are: it is moved onto them before its value is compared to the bound. And if the
right-hand side without :math:`\Omega` is positive, that is,
:math:`-\sum_i u_i t_i > \sup_w -\sum_i u_i x_i^\top w`, there is no feasible w (Farkas).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from riskmin.arrays.matrix import as_matrix
from riskmin.core import Array, Cut, NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.core.deadline import OutOfTime, TimeLimit, check_each
from riskmin.driver.constraints.feasible import Point, as_dense, feasible_point, row_sizes, rows_are_sparse
from riskmin.driver.constraints.linear_program import linear_program
from riskmin.driver.constraints.row_constraints import RowConstraints
from riskmin.driver.loop import minimize
from riskmin.driver.run import Limits
from riskmin.problem.certificate import balanced
from riskmin.problem.linear_risk import linear_risk
from riskmin.problem.objective import Objective
from riskmin.regularizers.base import Regularizer
from riskmin.regularizers.from_conjugate import as_regularizer

Status: TypeAlias = Literal["converged", "infeasible", "max_iter", "max_seconds", "stalled"]
"""Why a run ended; see `ConstrainedResult`."""


@dataclass(frozen=True)
class ConstrainedResult:
    r"""The result of a constrained problem: the best point, and a proof of its value or of infeasibility.

    Attributes
    ----------
    w : array
        The weights.
    intercept : float
        The intercept; 0 without one.
    value : float
        Omega(w).
    lower : float
        A proved lower bound of Omega at every feasible point, by the multipliers; infinite if there is none.
    violation : float
        The largest violation of a constraint at w; if the run converged, it is a rounding error.
    multipliers : array
        One per row of X, the slope of the optimal value in its bounds: the gradient of Omega at w is
        minus the sum of multipliers times rows. If the problem is infeasible, those of Farkas' lemma.
    status : str
        ``converged`` (w is feasible up to rounding, and Omega(w) - lower within tol), ``infeasible``
        (proved), ``max_iter``, ``max_seconds`` or ``stalled`` (rounding prevents further progress).
    norm_bound : float
        If infeasible: no w of a Euclidean norm below this one is feasible. Infinite where the domain of Omega
        is bounded; else limited by rounding, which makes the sum of multipliers times rows differ from zero.
    n_iter : int
        Number of updates of the multipliers.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import basis_pursuit
    >>> result = basis_pursuit(np.array([[1.0, 2.0]]), np.array([3.0]))
    >>> result.status, round(result.value, 4), round(result.lower, 4), result.multipliers.round(4).tolist()
    ('converged', 1.5, 1.5, [-0.5])
    """

    w: Array
    intercept: float
    value: float
    lower: float
    violation: float
    multipliers: NDArray
    status: Status
    norm_bound: float = 0.0
    n_iter: int = 0

    @property
    def message(self) -> str:
        """What is proved, in one sentence."""
        if self.status == "infeasible":
            if math.isinf(self.norm_bound):
                return "the constraints have no solution, as the multipliers prove"
            return f"the constraints have no solution of norm below {self.norm_bound:.3g}"
        gap = self.value - self.lower
        return f"every solution has a value of at least {self.lower:.6g}: {gap:.2g} below that of w"


def minimize_constrained(
    X: Any,
    lower: Any,
    upper: Any,
    reg: Regularizer,
    *,
    fit_intercept: bool = False,
    tol: float = 1e-6,
    max_iter: int = 100,
    max_seconds: float = math.inf,
) -> ConstrainedResult:
    r"""Minimize Omega(w) under bounds on the scores, :math:`lower \le X w + b \le upper`.

    Parameters
    ----------
    X : array or sparse matrix of shape (n, p)
    lower, upper : (n,) arrays
        Bounds of the scores; equal ones for an equality, infinite ones for none.
    reg : Regularizer
        The function to minimize.
    fit_intercept : bool
        Whether there is an intercept b, which is free.
    tol : float
        Largest gap between the value, at a point that is feasible up to rounding, and the bound, relative to
        the value.
    max_iter, max_seconds : int, float
        Largest number of updates of the multipliers, and largest time.

    Returns
    -------
    ConstrainedResult

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, minimize_constrained
    >>> result = minimize_constrained(np.array([[1.0, 1.0]]), [2.0], [2.0], L2())
    >>> result.status, np.round(result.w, 6).tolist()
    ('converged', [1.0, 1.0])
    >>> contradiction = minimize_constrained(np.array([[1.0], [1.0]]), [1.0, 2.0], [1.0, 2.0], L2())
    >>> contradiction.status, contradiction.norm_bound > 1e12
    ('infeasible', True)
    """
    n = as_matrix(X).shape[0]
    bounds = [np.array(np.broadcast_to(np.asarray(b, dtype=float), (n,))) for b in (lower, upper)]
    constraints = RowConstraints.from_bounds(*bounds)
    if not len(constraints.rows):
        raise ValueError("there are no constraints: give finite bounds")
    limits = Limits(tol, max_iter, max_seconds)
    run = MethodOfMultipliers.create(X, constraints, as_regularizer(reg), fit_intercept, limits)
    return run.solve(n)


@dataclass
class MethodOfMultipliers:
    """State of a run: the multipliers u of the constraints, and the penalty rho."""

    PENALTY_INCREASE = 10.0
    """Factor of rho after a step that decreased the violation by less than `ENOUGH`."""
    ENOUGH = 0.25
    INNER_TOL = 1e-12
    """Relative gap of the last inner problems; that of the first ones is larger."""
    MAX_RHO_RATIO = 1e20
    """Largest rho over the first one: beyond it, rounding dominates."""
    NORM_RATIO = 1e9
    """The constraints are infeasible if a feasible w would be this much larger than the w of the run, and
    than each constraint alone requires."""

    X: Any
    constraints: RowConstraints
    reg: Regularizer
    fit_intercept: bool
    limits: Limits
    u: NDArray
    rho: float
    scale: float
    """The size of targets and scores, to which violations of points of the run are relative."""
    w: NDArray
    row_scale: NDArray
    """The factor of each row, its target and its violation; rows differ in units."""
    b: float = 0.0
    first_rho: float = 0.0
    started_at: float = field(default_factory=time.perf_counter)
    point: Point | None = None
    """The best point on the constraints so far."""
    lower: float = -math.inf
    ray: tuple[NDArray, float] = (np.zeros(0), 0.0)
    """Multipliers that prove infeasibility, and the norm below which no w is feasible."""
    status: Status = "max_iter"
    n_iter: int = 0

    @classmethod
    def create(
        cls, X: Any, constraints: RowConstraints, reg: Regularizer, fit_intercept: bool, limits: Limits
    ) -> MethodOfMultipliers:
        """Start from the minimizer of Omega, and a penalty that moves it."""
        rows = X[constraints.rows]
        row_scale = np.ones(rows.shape[0])
        # an intercept enters all rows alike
        if not fit_intercept:
            row_scale = 1 / row_sizes(rows)
            rows = scaled_rows(rows, row_scale)
            constraints = replace(constraints, target=row_scale * constraints.target)
        w = np.asarray(reg.conjugate_grad(np.zeros(rows.shape[1])), dtype=float)
        scale = float(np.abs(constraints.target).max()) or float(np.abs(rows @ w).max()) or 1.0
        u = np.zeros(rows.shape[0])
        self = cls(rows, constraints, reg, fit_intercept, limits, u, 1.0, scale, w, row_scale)
        self.rho = self.first_rho = self._initial_rho()
        return self

    def _objective(self) -> Objective:
        loss = self.constraints.shifted(-self.u / self.rho)
        risk = linear_risk(self.X, np.arange(len(self.u)), loss, fit_intercept=self.fit_intercept)
        # the risk is a mean over the constraints
        return Objective(risk, self.reg, 1 / (self.rho * len(self.u)))

    def _initial_rho(self) -> float:
        """Return a rho for which Omega and the penalty are about equal: lam Omega*(-g / lam) = R / 3."""
        risk, g = self._objective().risk(self.w)
        lam = (float(g @ g) / risk if risk > 0 else 0.0) or 1.0
        zero = self.reg.conjugate(0 * g)
        for _ in range(200):
            with np.errstate(over="ignore"):
                decrease = lam * (self.reg.conjugate(-g / lam) - zero) + float(g @ self.w)
            if decrease >= risk / 3 or not risk:
                break
            lam *= 0.5
        return 1 / (lam * len(self.u))

    # ------------------------------------------------------------ steps
    def solve(self, n: int) -> ConstrainedResult:
        """Return the result, with the multipliers of the n rows of X."""
        deadline = self.started_at + self.limits.max_seconds
        try:
            TimeLimit(deadline).call(self._iterate)
        except OutOfTime:
            self.status = "max_seconds"
        infeasible = self.status == "infeasible"
        u, norm_bound = self.ray if infeasible else (self.u, 0.0)
        multipliers = np.zeros(n)
        np.add.at(multipliers, self.constraints.rows, self.row_scale * u)
        # a point of the run that violates constraints, if none was found that does not
        w, b, value = self.w, self.b, float(self.reg.value(self.w))
        if self.point is not None and math.isfinite(self.point.value):
            w, b, value = self.point.w, self.point.b, self.point.value
        violation = self.constraints.violation(np.asarray(self.X @ w) + b) / self.row_scale
        size, lower = float(np.abs(violation).max()), math.inf if infeasible else self.lower
        return ConstrainedResult(w, b, value, lower, size, multipliers, self.status, norm_bound, self.n_iter)

    def _iterate(self) -> None:
        """Update the multipliers until the status is known."""
        last = math.inf
        if self.reg.separable and self.reg.polyhedral and self._solve_linear_program():
            self.status = "converged"
            return
        for k in check_each(range(1, self.limits.max_iter + 1)):
            violation, self.n_iter = self.constraints.violation(self._step(k)), k
            size, self.lower = float(np.abs(violation).max()), max(self.lower, self._lower())
            self._move_onto_constraints()
            if size <= self.limits.tol * self.scale and self._is_optimal():
                self.status = "converged"
                return
            self.ray = self._farkas(violation)
            if self.ray[1] > self.NORM_RATIO * max(float(np.linalg.norm(self.w)), self._least_norm()):
                self.status = "infeasible"
                return
            if size > self.ENOUGH * last:
                if self.rho >= self.MAX_RHO_RATIO * self.first_rho:
                    self.status = "stalled"
                    return
                self.rho *= self.PENALTY_INCREASE
            last = size

    def _solve_linear_program(self) -> bool:
        """Take the point and multipliers of a linear program by HiGHS; return whether they are optimal."""
        seconds = self.started_at + self.limits.max_seconds - time.perf_counter()
        found = linear_program(self.X, self.constraints, self.reg, self.fit_intercept, max(seconds, 0.0))
        if found is None:
            return False
        before = self.w, self.b, self.u
        self.w, self.b, self.u = found
        self.lower = self._lower()
        self._move_onto_constraints()
        if not self._is_optimal():
            self.w, self.b, self.u = before
        return self._is_optimal()

    def _move_onto_constraints(self) -> None:
        """Keep the feasible point near w, if its value is the least so far."""
        point = feasible_point(self.X, self.constraints, self.reg, self.w, self.b, self.u, self.fit_intercept)
        if self.point is None or point.value < self.point.value:
            self.point = point

    def _is_optimal(self) -> bool:
        """Whether a feasible point has a value within tol of the bound."""
        assert self.point is not None
        value = self.point.value
        return math.isfinite(value) and value - self.lower <= self.limits.tol * abs(value)

    def _least_norm(self) -> float:
        """Return the largest norm that a single constraint requires of w, without an intercept."""
        return float(np.max(np.abs(self.constraints.violation(0.0)) / row_sizes(self.X)))

    def _step(self, k: int) -> NDArray:
        """Minimize for the current multipliers, update them, and return the scores."""
        obj = self._objective()
        tol, seconds = max(self.INNER_TOL, 10.0 ** (-3 - k)), self.limits.max_seconds
        seconds = max(self.started_at + seconds - time.perf_counter(), 0.0)
        result = minimize(obj, w0=self.w, tol=tol, max_iter=1000, max_seconds=seconds)
        self.w = result.w
        self.b = float(obj.risk.best_intercept(self.w) if result.intercept is None else result.intercept)
        z = np.asarray(self.X @ self.w) + self.b
        # the slopes of the penalty
        self.u = self.rho * self.constraints.shifted(-self.u / self.rho).violation(z, np.arange(len(z)))
        return z

    def _lower(self) -> float:
        """Return the best bound of Omega by a multiple of the multipliers."""
        u = self._balanced(self.u)
        cut = Cut(np.asarray(u @ self.X), -float(u @ self.constraints.target))
        # multiples up to 2: multipliers may be a little too small as well as too large
        s = 2 * self.reg.scale(Cut(2 * cut.a, 2 * cut.b), 1.0)
        return s * cut.b - self.reg.conjugate(-s * cut.a)

    def _balanced(self, u: NDArray) -> NDArray:
        """Return multipliers with sum zero, if there is an intercept: the larger side is scaled down."""
        return balanced(u, np.ones(len(u))) if self.fit_intercept else u

    def _farkas(self, violation: NDArray) -> tuple[NDArray, float]:
        """Return multipliers that prove infeasibility, and the norm below which no w is feasible."""
        best = violation, 0.0
        for ray in (violation, self._without_slope(violation)):
            if not self.constraints.in_cone(ray):
                continue
            ray = self._balanced(ray)
            a, b = np.asarray(ray @ self.X), -float(ray @ self.constraints.target)
            # rounding errors: of b, and of each entry of a
            error = len(ray) * 2.0**-52 * np.asarray(np.abs(ray) @ abs(self.X))
            b -= len(ray) * 2.0**-52 * float(np.abs(ray) @ np.abs(self.constraints.target))
            support = self.reg.domain_support
            if b > support(-a) + abs(support(error)) + abs(support(-error)):
                return ray, math.inf
            bound = b / (float(np.linalg.norm(np.abs(a) + error)) or 1e-300)
            best = (ray, bound) if bound > best[1] else best
        return best

    def _without_slope(self, violation: NDArray) -> NDArray:
        """Return the violations less their part in the span of the columns of X, on the violated rows."""
        rows = np.flatnonzero(violation)
        ray = violation.copy()
        part = as_dense(self.X[rows])
        if self.fit_intercept:
            part = np.column_stack([part, np.ones(len(part))])
        ray[rows] -= part @ np.linalg.lstsq(part, ray[rows], rcond=None)[0]
        return ray


def scaled_rows(X: Any, factors: NDArray) -> Any:
    """Return the rows of X, each times its factor."""
    return scipy_module("sparse").diags_array(factors) @ X if rows_are_sparse(X) else factors[:, None] * X
