r"""Quadratic programs of rows, with unpenalized variables and linear constraints, and their proofs:

.. math:: \min_\theta\; \sum_j \tfrac{s_j}2 \theta_j^2 + \sum_i c_i\, l_i(z_i^\top \theta)
          \quad\text{with}\quad lower \le G \theta \le upper,

for losses with conjugates that are quadratic on an interval. Multipliers u of the rows and :math:`\nu` of the
constraints prove a lower bound if the slope :math:`r = Z^\top (c u) + G^\top \nu` is zero in the variables
F with :math:`s_j = 0`. With the room :math:`m_i` of :math:`u_i`, the distance to the nearer end of its
interval, :math:`u_i - m_i q_i` with :math:`q = Z_F S^{-1} r_F` and
:math:`S = Z_F^\top \mathrm{diag}(c m) Z_F` removes the slope, and stays in the intervals if all
:math:`|q_i| < 1`. What rounding leaves of it, e, changes J by at most :math:`\max |q_i|\, T` for the q of e:
by Fenchel's inequality at :math:`u_i + m_i \operatorname{sign} z_i`, every minimizer has
:math:`\sum_i c_i m_i |z_i| \le T`, where

.. math:: T\, (1 - \max |q_i|) = J + \sum_i c_i \max l_i^*(u_i \pm m_i) + \sigma(\nu)
          + \sum_j \frac{r_j^2}{2 s_j}.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from riskmin.core import Cut, NDArray
from riskmin.losses.conjugate import IntervalConjugate
from riskmin.numerics.barrier import BarrierVariables, interior_point_of
from riskmin.numerics.precision import CUT_ROUNDING, DOT_ROUNDING
from riskmin.numerics.saddle_point import SaddlePoint

sp: Any = scipy.sparse  # its type stubs do not allow a variable to be sparse or dense


class Stacked:
    """The products of a `SaddlePoint` with a dense or sparse matrix."""

    def __init__(self, A: Any) -> None:
        self.A, self.shape = A, A.shape

    def forward(self, w: NDArray) -> NDArray:
        """A w."""
        return np.asarray(self.A @ w)

    def adjoint(self, a: NDArray) -> NDArray:
        """A' a."""
        return np.asarray(self.A.T @ a)

    def gram(self, h: NDArray) -> NDArray:
        """A' diag(h) A."""
        weighted = self.A.multiply(h[:, None]) if sp.issparse(self.A) else h[:, None] * self.A
        product = self.A.T @ weighted
        return np.asarray(product.toarray() if sp.issparse(product) else product)


class Constraints(NamedTuple):
    """lower <= G theta <= upper."""

    G: Any
    lower: NDArray
    upper: NDArray

    @classmethod
    def none(cls, n_variables: int) -> Constraints:
        """Return no constraints."""
        return cls(np.zeros((0, n_variables)), np.zeros(0), np.zeros(0))

    def conjugates(self) -> IntervalConjugate:
        r"""Return the support functions, :math:`\sigma(\nu) = \sup \nu t` over lower <= t <= upper."""
        below, above = np.isfinite(self.lower), np.isfinite(self.upper)
        ends = np.where(below, self.lower, self.upper), np.where(above, self.upper, self.lower)
        return IntervalConjugate(
            np.where(below, -np.inf, 0.0),
            np.where(above, np.inf, 0.0),
            shift=0.5 * (ends[0] + ends[1]),
            epsilon=0.5 * (ends[1] - ends[0]),  # type: ignore[arg-type] # one per constraint
        )


class RowProgram:
    """The program of rows Z with weights c > 0 and conjugates `dual`, solved by an interior-point method.

    Parameters
    ----------
    Z : (n, q) array or sparse matrix
    c : (n,) array
    dual : IntervalConjugate
    square : (q,) array
        The s_j; 0 for variables without a penalty.
    constraints : Constraints
    slopes : (n,) array
        Derivatives of the losses at the start, theta = 0.
    value : float
        J at some feasible point.
    """

    EQUALITY_SOFTNESS = 1e-12
    """Multipliers without bounds have this square, relative to their size; the bound is not affected."""
    CORRECTIONS = 3
    """How often the slopes of variables without a penalty are removed; what is left then is rounding."""

    def __init__(
        self,
        Z: Any,
        c: NDArray,
        dual: IntervalConjugate,
        square: NDArray,
        constraints: Constraints,
        slopes: NDArray,
        value: float,
    ) -> None:
        self.Z, self.c, self.dual, self.square, self.constraints = Z, c, dual, square, constraints
        self.support = constraints.conjugates()
        free = Z[:, np.flatnonzero(square == 0)]
        self.F = free.toarray() if sp.issparse(free) else np.asarray(free)
        size = float(np.abs(slopes).mean()) or 1.0
        u = interior_point_of(slopes, dual.lower, dual.upper, size)
        nu = interior_point_of(np.zeros(len(constraints.lower)), self.support.lower, self.support.upper, size)
        mu = max(value, 1e-100) / (2 * (len(c) + len(square)))
        hard = np.isinf(self.support.lower) & np.isinf(self.support.upper)

        def both(rows: Any, more: Any) -> NDArray:
            return np.concatenate([rows + np.zeros(len(u)), more + np.zeros(len(nu))])

        multipliers = BarrierVariables(
            both(c * u, nu),
            mu,
            shift=both(dual.shift, self.support.shift),
            epsilon=both(dual.epsilon, self.support.epsilon),
            square=both(dual.square / c, self.EQUALITY_SOFTNESS * hard * (value / size**2)),
            lower=both(c * dual.lower, self.support.lower),
            upper=both(c * dual.upper, self.support.upper),
        )
        stack = (
            sp.vstack([Z, constraints.G], format="csr") if sp.issparse(Z) else np.vstack([Z, constraints.G])
        )
        variables = BarrierVariables(np.zeros(len(square)), mu, square=square), multipliers
        rows = np.arange(len(u) + len(nu))
        self.point = SaddlePoint(Stacked(stack), rows, variables, intercept=False, b=0.0, by_rows=False)

    @property
    def theta(self) -> NDArray:
        """The variables."""
        return self.point.weights.x

    @property
    def mu(self) -> float:
        """The mean product of slacks and multipliers."""
        return self.point.mu

    def step(self) -> float:
        """Take one step; return its length."""
        return self.point.step()

    # ------------------------------------------------------------ the proof
    def cut(self, value: float) -> Cut:
        """Return a cut of the sum of the losses under the constraints, constant in the free variables.

        It is that of the multipliers of the last step, corrected; `value` is J at a feasible point. Where
        nothing is proved, it is zero.
        """
        n, free = len(self.c), self.square == 0
        both = self.point.multipliers.x
        u = np.clip(both[:n] / self.c, self.dual.lower, self.dual.upper)
        nu = np.clip(both[n:], self.support.lower, self.support.upper)
        for _ in range(self.CORRECTIONS):
            room = self._room(u)
            q = self._removal(self.c * room, self._slope(u, nu)[free])
            if not np.abs(q).max(initial=0.0) < 1:
                return Cut(0.0 * self.theta, 0.0)
            u = np.clip(u - room * q, self.dual.lower, self.dual.upper)
        slope = self._slope(u, nu)
        left = self._left(u, nu, slope, value)
        if not left < math.inf:
            return Cut(0.0 * self.theta, 0.0)
        conjugates, supports = self.dual.inside(u), self.support.inside(nu)
        z = np.asarray(self.Z @ self.theta)
        sizes = np.abs(conjugates) + 2 * np.abs(self.dual.shift * u) + np.abs(u * z)
        size = float(self.c @ sizes + np.abs(supports).sum())
        offset = -float(self.c @ conjugates + supports.sum()) - left - CUT_ROUNDING * size
        return Cut(np.where(free, 0.0, slope), offset)

    def bound(self, cut: Cut) -> float:
        """Return the lower bound of J that a cut proves; not below 0, since no loss is."""
        penalized = self.square > 0
        return max(cut.b - float((cut.a[penalized] ** 2 / (2 * self.square[penalized])).sum()), 0.0)

    def _left(self, u: NDArray, nu: NDArray, slope: NDArray, value: float) -> float:
        """Return what the slope that rounding has left in the free variables may add to J, max |q_i| T."""
        penalized, room = self.square > 0, self._room(u)
        if penalized.all():
            return 0.0
        largest = self._largest_removal(u, nu, room, slope[~penalized])
        if not largest < 1:
            return math.inf
        ends = np.maximum(self.dual.inside(u + room), self.dual.inside(u - room))
        squares = slope[penalized] ** 2 / (2 * self.square[penalized])
        total = value + float(self.c @ ends + self.support.inside(nu).sum() + squares.sum())
        return largest * max(total, 0.0) / (1 - largest)

    def _room(self, u: NDArray) -> NDArray:
        """Return the distance of each multiplier to the nearer end of its interval, at most 1 + |u|."""
        return np.asarray(np.minimum(np.minimum(u - self.dual.lower, self.dual.upper - u), 1 + np.abs(u)))

    def _slope(self, u: NDArray, nu: NDArray) -> NDArray:
        return np.asarray(self.Z.T @ (self.c * u) + self.constraints.G.T @ nu)

    def _inverse(self, weights: NDArray) -> NDArray:
        """Return F S^-1, S = F' diag(weights) F."""
        half = np.sqrt(weights)[:, None] * self.F
        # by the singular values of its root: S would square their ratio
        _, sizes, V = np.linalg.svd(np.linalg.qr(half, mode="r"), full_matrices=False)
        scaled = V / np.maximum(sizes, 1e-300)[:, None]
        return np.asarray((self.F @ scaled.T) @ scaled)

    def _removal(self, weights: NDArray, slope: NDArray) -> NDArray:
        """Return q."""
        return np.asarray(self._inverse(weights) @ slope) if len(slope) else np.zeros(len(weights))

    def _largest_removal(self, u: NDArray, nu: NDArray, room: NDArray, slope: NDArray) -> float:
        """Return a bound of max |q_i| for the slope that is left, with the rounding of its computation."""
        free = self.square == 0
        sizes = (
            np.abs(self.F).T @ (self.c * np.abs(u)) + np.asarray(abs(self.constraints.G).T @ np.abs(nu))[free]
        )
        errors = np.abs(slope) + DOT_ROUNDING * sizes
        return float((np.abs(self._inverse(self.c * room)) @ errors).max(initial=0.0))
