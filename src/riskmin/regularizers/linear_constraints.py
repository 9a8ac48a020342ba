r"""A regularizer under linear constraints on the weights,

.. math:: \Omega(w) = \Omega_0(w) \quad\text{for } lower \le A w \le upper,
          \qquad \Omega^*(u) = \min_\nu\; \Omega_0^*(u - B^\top \nu) + t^\top \nu,

where :math:`B w \le t` are the bounds, one side each, and :math:`\nu \ge 0` their multipliers (free for
equalities). Every :math:`\nu` bounds the conjugate from above: lower bounds of J are valid, however accurate
the multipliers are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.namespace import as_array_like, to_numpy
from riskmin.core import Array, NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.core.deadline import check_each
from riskmin.numerics.nonnegative_qp import nonnegative_qp, solve_semidefinite
from riskmin.numerics.precision import DOT_ROUNDING
from riskmin.regularizers.base import ArrayDataclass, Regularizer, check_setting
from riskmin.regularizers.separable import Separable, SeparableTerms, clip_to_box, shrink


class OneSidedRows(NamedTuple):
    """The constraints B w <= t, of which those of the mask `equal` are equalities."""

    B: NDArray
    t: NDArray
    equal: NDArray
    source: NDArray
    """The row of A of each of them."""


class ConstrainedMaximum(NamedTuple):
    """The maximizer w of u'w - Omega(w), and the multipliers of the constraints."""

    w: NDArray
    multipliers: NDArray
    inside: NDArray
    """The coordinates in which w depends on u: neither zero by an absolute value, nor at a bound."""


@dataclass(frozen=True, eq=False, repr=False)
class LinearConstraints(ArrayDataclass, Regularizer):
    r"""A regularizer under linear constraints, :math:`\Omega_0(w)` for :math:`lower \le A w \le upper`.

    Outside it is infinite. The constraints are on the weights, not on the intercept. Equal bounds are an
    equality, infinite ones none. Violations below 1e-10, relative to the row and w, count as rounding.
    `Bundle` takes any loss, `ProximalGradient` smooth ones. With several outputs, the constraints hold for
    each of them; with ``standardize=True``, for the weights of the standardized columns.

    Parameters
    ----------
    reg : L2, Elastic, or a Box of these
        :math:`\Omega_0`.
    A : (m, p) array
        One row per constraint.
    lower, upper : float or (m,) array
        The bounds of A w. For A w <= b, give ``upper=b``.

    Examples
    --------
    Weights that sum to one, of which the first is at most the second:

    >>> import numpy as np
    >>> from riskmin import L2, LinearConstraints, LinearRegressor
    >>> A = [[1.0, 1.0, 1.0], [1.0, -1.0, 0.0]]
    >>> reg = LinearConstraints(L2(), A, lower=[1.0, -np.inf], upper=[1.0, 0.0])
    >>> reg.prox(np.array([2.0, 0.0, 2.0]), 0.0).round(6).tolist()
    [0.0, 0.0, 1.0]
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> model = LinearRegressor("squared", regularizer=reg, alpha=1e-3, tol=1e-6).fit(X, X @ [0.5, 0.2, 0.9])
    >>> model.gap_ <= 1e-6 * model.objective_, round(float(model.coef_.sum()), 9)
    (True, 1.0)
    """

    FEASIBILITY = 1e-10
    """A violation up to this, relative to the sizes of its row, of w and 1, counts as none."""
    ROUNDING = 1e-14
    """Relative violations up to this are rounding errors."""
    SMALL_STEP = 1e-6
    """Newton steps below this, relative to the multipliers, converge faster than linearly."""
    MAX_NEWTON_STEPS = 100
    OUTSIDE_WEIGHT = 1e-6
    """The weight in the Hessian of coordinates that are zero or at a bound, so that steps along them end."""
    CONTRADICTION = 1e-7
    """Rows contradict each other if one is violated by more than this, relative to its size (HiGHS)."""

    positive_alternative = "LinearConstraints(Box(L2(), 0), A, ...)"

    reg: Any
    A: NDArray
    lower: Any = -math.inf
    upper: Any = math.inf

    def __post_init__(self) -> None:
        if not isinstance(self.reg, Separable) or self.reg.polyhedral:
            raise TypeError(
                f"LinearConstraints takes L2(), Elastic() or a Box of one of them, not {self.reg!r}; close "
                "to L1() is Elastic(eps, weights=1 / eps) with a large eps"
            )
        A = np.atleast_2d(np.array(self.A, dtype=np.float64))
        if A.ndim != 2 or not A.size or not np.isfinite(A).all():
            raise ValueError("LinearConstraints needs A to hold finite numbers, one row per constraint")
        A.flags.writeable = False
        object.__setattr__(self, "A", A)
        object.__setattr__(self, "formula", f"{self.reg.formula}, lower <= A w <= upper")
        check_setting(self, "lower", lambda v: v < math.inf, "numbers below infinity")
        check_setting(self, "upper", lambda v: v > -math.inf, "numbers above minus infinity")
        for name, bound in (("lower", self.lower), ("upper", self.upper)):
            if np.shape(bound) not in ((), (len(A),)):
                raise ValueError(
                    f"{name} has shape {np.shape(bound)}, but A has {len(A)} rows: give a number, or one per "
                    "row"
                )
        if not np.all(np.less_equal(self.lower, self.upper)):
            raise ValueError("LinearConstraints needs lower <= upper in every row of A")
        self._check_feasible()

    @cached_property
    def _rows(self) -> OneSidedRows:
        lower, upper = (bound + np.zeros(len(self.A)) for bound in (self.lower, self.upper))
        equal = lower == upper
        parts = [
            (np.flatnonzero(equal), 1.0, upper),
            (np.flatnonzero(np.isfinite(upper) & ~equal), 1.0, upper),
            (np.flatnonzero(np.isfinite(lower) & ~equal), -1.0, lower),
        ]
        source = np.concatenate([rows for rows, _, _ in parts])
        B = np.concatenate([sign * self.A[rows] for rows, sign, _ in parts])
        t = np.concatenate([sign * bound[rows] for rows, sign, bound in parts])
        return OneSidedRows(B, t, np.arange(len(t)) < equal.sum(), source)

    def _check_feasible(self) -> None:
        """Raise a ValueError that names the contradicting rows of A, if there is no feasible w."""
        B, t, equal, source = self._rows
        # the other sides of the equalities
        B, t, source = (np.concatenate([a, a[equal]]) for a in (B, t, source))
        sides = np.append(np.ones(len(equal)), -np.ones(int(equal.sum())))
        # the least violation s, relative to the sizes of the rows: B w - s size <= t
        size = np.abs(B).max(axis=1, initial=0.0)
        size = np.where(size > 0, size, 1.0)
        rows = np.column_stack([sides[:, None] * B / size[:, None], -(1 + np.abs(t) / size)])
        ends = self.reg.terms(np.zeros(self.A.shape[1]))
        box = np.stack([bound + np.zeros(self.A.shape[1]) for bound in (ends.lower, ends.upper)], axis=1)
        result = scipy_module("optimize").linprog(
            np.append(np.zeros(len(box)), 1.0), rows, sides * t / size, bounds=[*box, (0, None)]
        )
        if result.fun > self.CONTRADICTION:
            rows = np.unique(source[result.ineqlin.marginals != 0])
            named = f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows))} of A"
            bounds = " and the bounds of the weights" if np.isfinite(box).any() else ""
            raise ValueError(
                f"no weights satisfy LinearConstraints: {named}{bounds} contradict each other; drop or relax "
                "one of them"
            )

    # ------------------------------------------------------------ the inner maximum
    def _maximize(self, u: NDArray, terms: SeparableTerms) -> ConstrainedMaximum:
        """Return the maximizer of u'w - Omega_0(w) under the constraints, for coefficients of Omega_0.

        Newton's method on the multipliers: minimize f(nu) = Omega_0*(u - B'nu) + t'nu, piecewise quadratic.
        """
        B, t, equal, _ = self._rows
        square = terms.square + np.zeros(len(u))
        nu, last = np.zeros(len(t)), math.inf
        point = self._point(u, nu, terms)
        for _ in check_each(range(self.MAX_NEWTON_STEPS)):
            excess = B @ point.w - t  # minus the gradient of f
            violation = np.where(equal | (nu > 0), np.abs(excess), excess)
            if np.all(violation <= self.ROUNDING * self._sizes(point.w)):
                break
            weights = np.where(point.inside, 1.0, self.OUTSIDE_WEIGHT) / square
            H = (B * weights) @ B.T
            d = nonnegative_qp(H, excess + H @ nu, nu, equal) - nu
            # small steps that do not decrease any more are rounding errors
            size = np.abs(d).max()
            if size == 0 or last / 2 < size <= self.SMALL_STEP * np.abs(nu).max():
                break
            last = size
            # f is convex: halve the step until its slope at the end is small, or negative
            slope, step = float(excess @ d), 1.0
            new = self._point(u, nu + d, terms)
            while float((t - B @ new.w) @ d) > 0.1 * slope and step > self.ROUNDING:
                step *= 0.5
                new = self._point(u, nu + step * d, terms)
            nu, point = nu + step * d, new
        return self._corrected(point, terms)

    def _corrected(self, point: ConstrainedMaximum, terms: SeparableTerms) -> ConstrainedMaximum:
        """Return the point moved onto its active constraints: multipliers may be much larger than w."""
        B, t, equal, _ = self._rows
        active = equal | (point.multipliers > 0)
        rows, excess = B[active], B[active] @ point.w - t[active]
        step = point.inside / (terms.square + np.zeros_like(point.w)) * rows
        w = point.w - solve_semidefinite(step @ rows.T, excess) @ step
        return point._replace(w=clip_to_box(w, terms))

    def _point(self, u: NDArray, nu: NDArray, terms: SeparableTerms) -> ConstrainedMaximum:
        """Return the maximizer for given multipliers."""
        slopes = u - nu @ self._rows.B
        w = clip_to_box(shrink(slopes, terms.absolute) / terms.square, terms)
        inside = (np.abs(slopes) > terms.absolute) & (w > terms.lower) & (w < terms.upper)
        return ConstrainedMaximum(w, nu, inside)

    def _vector(self, w: Array) -> NDArray:
        """Return w as an array of NumPy with one entry per column of A."""
        if len(w) != self.A.shape[1]:
            raise ValueError(f"A has {self.A.shape[1]} columns, but w has {len(w)} entries: give as many")
        return np.asarray(to_numpy(w), dtype=np.float64)

    @cached_property
    def _last(self) -> dict[str, tuple[NDArray, ConstrainedMaximum]]:
        """The last argument of the conjugate with its maximizer: value, gradient and Hessian share it."""
        return {}

    def _conjugate_maximum(self, u: Array) -> ConstrainedMaximum:
        x = self._vector(u)
        last = self._last.get("u")
        if last is None or not np.array_equal(last[0], x):
            last = self._last["u"] = x.copy(), self._maximize(x, self.reg.terms(x))
        return last[1]

    # ------------------------------------------------------------ the regularizer
    def value(self, w: Array) -> float:
        """Return Omega_0(w); infinite where a constraint is violated."""
        B, t, equal, _ = self._rows
        x = self._vector(w)
        excess = np.where(equal, np.abs(B @ x - t), B @ x - t)
        if np.any(excess > self.FEASIBILITY * self._sizes(x)):
            return math.inf
        return float(self.reg.value(w))

    def _sizes(self, w: NDArray) -> NDArray:
        """The sizes to which violations of the one-sided rows are relative."""
        B, t, _, _ = self._rows
        return np.asarray(np.abs(B).sum(axis=1) * (1 + np.abs(w).max()) + np.abs(t))

    def slope(self, w: Array, d: Array) -> float:
        """Return the derivative of Omega_0 at w along d."""
        return float(self.reg.slope(w, d))

    def prox(self, v: Array, step: float) -> Array:
        """Return argmin_w step Omega_0(w) + |w - v|^2 / 2 under the constraints."""
        x = self._vector(v)
        terms = self.reg.terms(x)
        # the squared distance adds 1 to the weights of the squares
        changed = terms._replace(absolute=step * terms.absolute, square=1 + step * terms.square)
        return as_array_like(self._maximize(x, changed).w, v)

    def conjugate(self, u: Array) -> float:
        """Return the value of the multipliers found, plus its rounding error: not below the supremum."""
        B, t, _, _ = self._rows
        w, nu, _ = self._conjugate_maximum(u)
        slopes = self._vector(u) - nu @ B
        error = DOT_ROUNDING * float(np.abs(nu) @ (np.abs(t) + np.abs(B) @ np.abs(w)))
        return float(self.reg.conjugate(slopes)) + float(nu @ t) + error

    def conjugate_grad(self, u: Array) -> Array:
        """Return the w that attains the conjugate."""
        return as_array_like(self._conjugate_maximum(u).w, u)

    def conjugate_hessian_product(self, u: Array, A: Array) -> Array:
        """Return A H A', where H is the inverse of the squares' weights on the active constraints."""
        _, nu, inside = self._conjugate_maximum(u)
        B, _, equal, _ = self._rows
        half = inside / np.sqrt(self.reg.terms(nu @ B).square + np.zeros(B.shape[1]))
        rows, active = to_numpy(A) * half, B[equal | (nu > 0)] * half
        # without the parts along the active constraints, twice for rounding: the product is semidefinite
        for _ in range(2):
            rows = rows - solve_semidefinite(active @ active.T, active @ rows.T).T @ active
        return as_array_like(rows @ rows.T, A)

    def reach(self, w: Array, d: Array) -> float:
        """Return the largest t for which w + t d is feasible."""
        B, t, equal, _ = self._rows
        x, step = to_numpy(w), to_numpy(d)
        increase, room = B @ step, t - B @ x
        # both sides of an equality
        room = np.where(equal & (increase < 0), -room, room) + 0.5 * self.FEASIBILITY * self._sizes(0 * x)
        increase = np.where(equal, np.abs(increase), increase)
        ahead = increase > 0
        ends = np.maximum(room[ahead], 0.0) / increase[ahead]
        return min(float(np.min(ends, initial=math.inf)), float(self.reg.reach(w, d)))

    def is_finite(self, dim: int) -> bool:
        """Whether no row constrains w, and Omega_0 has no bounds."""
        return not self._rows.B.any() and bool(self.reg.is_finite(dim))

    def domain_support(self, a: Array) -> float:
        """Return that of Omega_0, an upper bound."""
        return float(self.reg.domain_support(a))

    def strong_convexity(self, w: Array) -> float:
        """Return that of Omega_0."""
        return float(self.reg.strong_convexity(w))

    def scaled(self, s: NDArray) -> LinearConstraints:
        """Return the same function of v = w / s, for s > 0."""
        return LinearConstraints(self.reg.scaled(s), self.A * s, self.lower, self.upper)
