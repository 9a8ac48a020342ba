r"""Regions that hold the minimizer of J, by what is known at a point near it.

**Self-concordant losses.** Let :math:`|l'''| \le M l''`, and let H be the Hessian of J at a point
:math:`\theta = (b, w)`. For the minimizer :math:`\theta^* = \theta + d` the scores change by at most
:math:`|d|_H \max_i |x_i|_{H^{-1}} = |d|_H L`, so that the Hessian between the two points is at least
:math:`e^{-M L |d|_H t}` H. Integrated along d, and with :math:`0 \in \partial J(\theta^*)`,

.. math:: |d|_H\, |r|_{H^{-1}} \ge \int_0^1 d^\top \nabla^2 J(\theta + t d)\, d\, dt
          \ge |d|_H\, \frac{1 - e^{-M L |d|_H}}{M L}, \qquad
          |\theta^* - \theta|_H \le -\frac{\log(1 - M L N)}{M L}, \quad N = |r|_{H^{-1}},

for any subgradient r of J at :math:`\theta`. With M = 0, for squares, the bound is N itself. A Hessian at
another point, whose scores differ by at most s, multiplies N by :math:`e^{M s}`.

**Other losses.** If :math:`\Omega - \tfrac12 |w|_m^2` is convex, a gap G of w and of multipliers u proves

.. math:: \Bigl|w^* - \tfrac12 (w + w_u)\Bigr|_m^2 \le \frac G\lambda - \frac14 |w - w_u|_m^2, \qquad
          w_u = \nabla \Omega^*\bigl(-\tfrac1\lambda X^\top (c \circ u)\bigr),

since :math:`J(w) - \min J \ge \tfrac\lambda2 |w - w^*|_m^2`, and :math:`\min J` less the bound of u is at
least :math:`\tfrac\lambda2 |w_u - w^*|_m^2`: both are strongly convex functions above their minimum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.namespace import is_sparse
from riskmin.certificates.curvature import (
    SingularHessian,
    centered_gram,
    column_sums,
    inverse_factor,
    row_curvatures,
)
from riskmin.core import NDArray
from riskmin.core.limits import LIMITS
from riskmin.numerics.precision import EPSILON, sum_rounding

MAX_STEPS = 50
"""The most steps towards the minimizer before a region is stated: each is a pass over X."""
MAX_HESSIANS = 20
"""The most Hessians on the way."""
NEAR = 0.1
"""The largest change of a score, times M, for which the Hessian is kept: it is the rate of the steps, too."""
MAX_INVERSE_ERROR = 0.1
"""The largest relative error of a factor of the inverse Hessian that a region allows for."""


@dataclass(frozen=True)
class CenteredRows:
    """The rows (1, x_i - mean) of X, dense or sparse, without a copy of all of X."""

    X: Any
    mean: NDArray

    def _blocks(self) -> Iterator[tuple[slice, NDArray]]:
        n, p = self.X.shape
        step = max(LIMITS.copy_max_entries // max(p, 1), 1)
        for start in range(0, n, step):
            rows = slice(start, min(start + step, n))
            yield rows, self.X[rows] - self.mean

    def times(self, A: NDArray) -> NDArray:
        """The product with A, of p + 1 rows: the intercept first."""
        if is_sparse(self.X):
            return np.asarray(self.X @ A[1:] + (A[0] - self.mean @ A[1:]))
        out = np.empty((self.X.shape[0], *A.shape[1:]))
        for rows, Z in self._blocks():
            out[rows] = Z @ A[1:] + A[0]
        return out

    def adjoint(self, v: NDArray) -> NDArray:
        """The sums of the rows with the weights v."""
        total = v.sum()
        if is_sparse(self.X):
            return np.append(total, column_sums(self.X, v) - self.mean * total)
        return np.append(total, sum(Z.T @ v[rows] for rows, Z in self._blocks()))

    def absolute(self) -> CenteredRows:
        """Rows whose entries are at least the sizes of the terms of which these are differences."""
        return CenteredRows(abs(self.X), -np.abs(self.mean))

    def scaled_norms(self, s: NDArray) -> NDArray:
        """|s * (x_i - mean)| of each row, with factors s of the columns."""
        if is_sparse(self.X):  # a sum of three terms, and what they may lose
            a, squares = self.mean * s, abs(self.X).power(2)
            terms = squares @ (s * s) + a @ a
            squared_norms = terms - 2 * (self.X @ (a * s)) + 8 * EPSILON * terms
            return np.asarray(np.sqrt(np.maximum(squared_norms, 0.0)))
        out = np.empty(self.X.shape[0])
        for rows, Z in self._blocks():
            out[rows] = np.linalg.norm(Z * s, axis=1)
        return out

    def norms(self, T: NDArray) -> NDArray:
        """|T' x_i| of each row x_i."""
        if is_sparse(self.X):
            return np.asarray(np.linalg.norm(self.times(T), axis=1))
        out = np.empty(self.X.shape[0])
        for rows, Z in self._blocks():
            out[rows] = np.linalg.norm(Z @ T[1:] + T[0], axis=1)
        return out


@dataclass(frozen=True)
class RowProblem:
    r"""A separable loss of one score per row, and a sum over the weights:

    .. math:: J(w, b) = \sum_i c_i\, l(x_i^\top w + b, y_i)
              + \sum_j \bigl(\tfrac12 q_j w_j^2 + a_j |w_j|\bigr).
    """

    X: Any
    y: NDArray
    c: NDArray
    loss: Any
    square: NDArray
    """The q_j: lam times the weights of the squares."""
    absolute: NDArray
    """The a_j: lam times the weights of the absolute values."""
    lower: NDArray
    """The least w_j: 0 or minus infinity."""
    intercept: bool

    @classmethod
    def of(cls, X: Any, y: NDArray, c: NDArray, loss: Any, reg: Any, lam: float, intercept: bool) -> Any:
        """The problem of a regularizer; raise ValueError if it is no such sum."""
        reg, p = reg.without_sizes, X.shape[1]
        terms = reg.terms(np.zeros(p)) if reg.separable else None
        if (
            terms is None
            or np.any(terms.upper != math.inf)
            or np.any((terms.lower != 0) & (terms.lower != -math.inf))
        ):
            raise ValueError(
                f"{reg!r} is no sum of squares and absolute values of the weights, or bounds them by other "
                "numbers than zero: regions of the optimum need 'l2', 'l1' or 'elastic'"
            )
        square, absolute, lower = (
            np.broadcast_to(np.asarray(t, dtype=float), (p,))
            for t in (terms.square, terms.absolute, terms.lower)
        )
        return cls(X, y, c, loss, lam * square, lam * absolute, lower, intercept)

    @property
    def concordance(self) -> float:
        """M of the loss; infinite if there is no region by its Hessian."""
        return math.inf if self.loss.multi_output else float(self.loss.self_concordance)

    @property
    def kinked(self) -> NDArray:
        """Whether J may have a kink where a weight is zero."""
        return np.asarray((self.absolute > 0) | (self.lower == 0))

    def slopes(self, z: NDArray) -> NDArray:
        """l'(z_i, y_i), without the row weights."""
        return np.asarray(self.loss.value_grad(z, self.y, np.ones(len(z)))[1])

    def least_subgradient(self, theta: NDArray, gradient: NDArray) -> NDArray:
        """A subgradient of J, entry by entry the least one, from the gradient of the risk."""
        w, r = theta[1:], gradient.copy()
        inner = r[1:] + self.square * w
        # at zero, any slope between -a_j and a_j may be added, and any negative one at a bound
        at_zero = inner - np.clip(inner, -self.absolute, np.where(self.lower == 0, math.inf, self.absolute))
        r[1:] = np.where(self.kinked & (w == 0), at_zero, inner + self.absolute * np.sign(w))
        r[0] = r[0] if self.intercept else 0.0
        return r


@dataclass(frozen=True)
class Ellipsoid:
    """A region that holds the minimizer, in the metric of the Hessian: |T^-1 (theta* - center)| <= radius."""

    problem: RowProblem
    rows: CenteredRows
    center: NDArray
    """The intercept of centered columns, and the weights."""
    factor: NDArray
    """T, with a row of zeros for each weight that is certainly zero."""
    radius: float
    leverage: NDArray
    """|T' x_i| of each row."""
    curvatures: NDArray
    """c_i l''(z_i) of each row, of which the Hessian is made."""
    inverse_error: float
    """How much T T' may differ from the inverse of the Hessian at the center, relatively."""

    @property
    def zero(self) -> NDArray:
        """The weights that are certainly zero."""
        return self.problem.kinked & ~self.factor[1:].any(axis=1)

    @property
    def point(self) -> tuple[NDArray, float]:
        """The weights and the intercept of the center, in the units of X."""
        w = self.center[1:]
        return w, float(self.center[0] - self.rows.mean @ w)

    def along(self, direction: NDArray) -> tuple[NDArray, NDArray]:
        """The ends of direction' theta*, for the columns of `direction`, of p + 1 rows."""
        at = self.center @ direction
        half = self.radius * np.linalg.norm(direction.T @ self.factor, axis=-1)
        half = np.nan_to_num(half, nan=0.0, posinf=math.inf)
        half += 4 * EPSILON * (np.abs(self.center) @ np.abs(direction))
        return at - half, at + half

    def weights(self) -> tuple[NDArray, NDArray]:
        """The ends of the weights."""
        return self.along(np.eye(len(self.center))[:, 1:])

    def intercepts(self) -> tuple[NDArray, NDArray]:
        """The ends of the intercept, in the units of X."""
        return self.along(np.append(1.0, -self.rows.mean))

    def scores(self, X: Any) -> tuple[NDArray, NDArray]:
        """The ends of the scores of rows."""
        rows = CenteredRows(X, self.rows.mean)
        size = rows.absolute().times(np.abs(self.center))
        half = self.radius * rows.norms(self.factor)
        half = np.nan_to_num(half, nan=0.0, posinf=math.inf) + sum_rounding(X.shape[1]) * size
        z = rows.times(self.center)
        return z - half, z + half


def ellipsoid(problem: RowProblem, w: NDArray, b: float) -> Ellipsoid:
    """The region by the Hessian of a self-concordant loss, around a point that Newton steps reach from w, b.

    Raise SingularHessian where H is singular, or the scores of the minimizer are too far away.
    """
    for _ in range(MAX_HESSIANS):
        path = _NewtonPath(problem, w, b)
        theta = path.steps()
        far = problem.concordance * path.change > NEAR
        if not far and path.is_close:
            return path.region()
        if not far:
            break
        w, b = theta[1:], float(theta[0] - path.rows.mean @ theta[1:])
    raise SingularHessian(
        "the minimizer is too far from the fitted weights for a region by the Hessian: fit with a smaller tol"
    )


class _NewtonPath:
    """Newton steps with the Hessian at their first point, and the region around the best of them."""

    def __init__(self, problem: RowProblem, w: NDArray, b: float) -> None:
        X, c = problem.X, problem.c
        self.problem, p = problem, X.shape[1]
        self.h = h = row_curvatures(problem.loss, np.asarray(X @ w) + b, problem.y, c)
        weights = h if h.sum() > 0 else c
        mean = column_sums(X, weights) / weights.sum() if problem.intercept else np.zeros(p)
        self.rows = CenteredRows(X, mean)
        self.theta = np.append(b + mean @ w, w)
        self.z0 = self.rows.times(self.theta)
        self.risk_hessian = centered_gram(X, h, mean)
        self.hessian = self.risk_hessian + np.diag(np.append(0.0, problem.square))
        self.columns = np.append(problem.intercept, np.ones(p, bool))
        self.decrement, self.change = math.inf, 0.0
        self.gradient = np.zeros(p + 1)
        self._factors: tuple[NDArray, NDArray] | None = None

    def _inverse_factor(self, columns: NDArray) -> NDArray:
        """T of some columns; that of the last call, if they are the same."""
        if self._factors is None or not np.array_equal(self._factors[0], columns):
            self._factors = columns, inverse_factor(self.hessian[np.ix_(columns, columns)])
        return self._factors[1]

    def steps(self) -> NDArray:
        """The best point of some steps, those of the least Newton decrement; keep what is known there."""
        problem, theta, idle = self.problem, self.theta, 0
        kinked = np.append(False, problem.kinked)
        for _ in range(MAX_STEPS):
            z = self.rows.times(theta)
            with np.errstate(over="ignore", invalid="ignore"):
                gradient = self.rows.adjoint(problem.c * problem.slopes(z))
            r = problem.least_subgradient(theta, gradient)
            active = self.columns & (~kinked | (theta != 0) | (r != 0))
            T = self._inverse_factor(active)
            v = T.T @ r[active]
            decrement = float(np.linalg.norm(v))
            idle = 0 if decrement < 0.5 * self.decrement else idle + 1
            if decrement < self.decrement:
                self.decrement, self.theta, self.gradient = decrement, theta, gradient
                self.change = float(np.max(np.abs(z - self.z0), initial=0.0))
            if idle > 2 or not 0 < decrement < math.inf or problem.concordance * self.change > NEAR:
                break
            step = np.zeros(len(theta))
            step[active] = T @ v
            signs = np.where(theta != 0, np.sign(theta), -np.sign(r))
            theta = theta - step
            theta[kinked & (theta * signs < 0)] = 0.0
        return self.theta

    @property
    def is_close(self) -> bool:
        """Whether the radius is finite for the columns that may be nonzero."""
        return math.isfinite(self.decrement)

    def region(self) -> Ellipsoid:
        """The region, after weights that it proves to be zero are left out of it, and again."""
        problem, M = self.problem, self.problem.concordance
        r = problem.least_subgradient(self.theta, self.gradient)
        moved, rounding = math.exp(M * self.change), self._rounding()
        curvatures = np.sqrt(np.maximum(np.diag(self.risk_hessian), 0.0))
        columns = self.columns
        while True:
            T, error = self._checked_factor(columns)
            leverage = self.rows.norms(T)
            N = np.linalg.norm(T.T @ r) + np.linalg.norm(np.abs(T).T @ rounding)
            radius = distance_to_minimum(moved * N / (1 - error), M * float(np.max(leverage, initial=0.0)))
            difference = error + math.expm1(M * self.change)
            region = Ellipsoid(problem, self.rows, self.theta, T, radius, leverage, self.h, difference)
            if not math.isfinite(radius):
                return region
            # the gradient of the risk changes by at most this on the way to the minimizer
            S = M * radius * float(np.max(leverage, initial=0.0))
            growth = (1 + error) * moved * (math.expm1(S) / S if S > 0 else 1.0)
            change = (growth * radius * curvatures + rounding)[1:]
            slope, a = self.gradient[1:], problem.absolute
            room = np.where(problem.lower == 0, math.inf, a)
            zero = problem.kinked & (self.theta[1:] == 0) & (slope - change > -a) & (slope + change < room)
            left = columns & ~np.append(False, zero)
            if np.array_equal(left, columns):
                return region
            columns = left

    def _checked_factor(self, columns: NDArray) -> tuple[NDArray, float]:
        """T with rows of zeros for other columns, and a bound of its relative error; raise if it is large."""
        H = self.hessian[np.ix_(columns, columns)]
        part = self._inverse_factor(columns)
        sizes = np.sqrt(np.diag(H))[:, None] * part
        error = float(np.linalg.norm(part.T @ H @ part - np.eye(len(H))))
        error += sum_rounding(self.rows.X.shape[0]) * float(np.sum(sizes**2))
        if not error < MAX_INVERSE_ERROR:
            raise SingularHessian("the Hessian is singular up to rounding: leave out columns, or raise alpha")
        T = np.zeros((len(columns), len(H)))
        T[columns] = part
        return T, error

    def _rounding(self) -> NDArray:
        """How much rounding may have changed each entry of the subgradient."""
        problem, sizes = self.problem, self.rows.absolute()
        n, p = self.rows.X.shape
        u = problem.slopes(self.rows.times(self.theta))
        scores = sum_rounding(p) * sizes.times(np.abs(self.theta))
        labels = 1 + np.abs(problem.y).reshape(n, -1).sum(axis=1)  # and their offsets, if there are any
        c = problem.c
        slopes = EPSILON * (c * np.abs(u) + 4 * self.h * labels) + self.h * scores
        of_rows = sizes.adjoint(slopes + sum_rounding(n) * c * np.abs(u))
        error: NDArray = of_rows + 4 * EPSILON * np.append(0.0, problem.square * np.abs(self.theta[1:]))
        return error


def distance_to_minimum(N: Any, L: Any) -> Any:
    """The bound -log(1 - L N) / L of the distance to the minimizer; infinite where L N >= 1."""
    product = np.asarray(L * N, dtype=float)
    inside = product < 1
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(product > 0, -np.log1p(-np.where(inside, product, 0.0)) / product, 1.0)
    return np.where(inside, np.where(inside, N, 0.0) * factor, math.inf)[()]
