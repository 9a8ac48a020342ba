r"""The maximum of several contingency tables plus a quadratic penalty, minimized by an interior-point method.

A table k of :math:`m_k` misses and :math:`a_k` alarms has the measure :math:`\Delta_k`, and the loss

.. math:: \psi_k(z) = \Delta_k + \max_\beta\; \sum_i d_i \beta_i z_i, \qquad d_i = \mp \tfrac2n, \quad
          0 \le \beta_i \le 1, \quad \sum_{+} \beta_i = m_k, \quad \sum_{-} \beta_i = a_k,

a linear program with one multiplier per row, not a cut. The dual of
:math:`\min_{w, b} \tfrac12 w^\top L w + \max_k \psi_k(X w + b)` has weights :math:`p_k` of sum one and
multipliers :math:`\gamma^k = p_k \beta^k`. A step factorizes :math:`L + X^\top S X` with a diagonal S, as
Newton's method does, and a system of some four unknowns per table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_linalg
from riskmin.numerics.barrier import BOUNDARY_SHARE
from riskmin.numerics.linear_systems import shifted_cholesky


class TableStep(NamedTuple):
    """A step of the multipliers, their slacks and the weights of tables; w and b are the new ones."""

    gamma: NDArray
    slack: NDArray
    lower: NDArray
    upper: NDArray
    p: NDArray
    r: NDArray
    w: NDArray
    b: float


class TableProgram:
    """The variables of the problem; the table of the true labels, (0, 0), must be one of the tables.

    Parameters
    ----------
    X : (n, p) array
    L : (p,) array
        The penalty of each weight, above 0.
    positive : (n,) array of bool
    tables : (K, 3) array
        Misses, alarms and the measure of each.
    intercept : bool
        Whether an intercept is free; then some tables have more misses than alarms, and some fewer.
    """

    def __init__(
        self, X: NDArray, L: NDArray, positive: NDArray, tables: NDArray, *, intercept: bool
    ) -> None:
        n, K = len(X), len(tables)
        self.X, self.L, self.intercept = X, L, intercept
        self.d = np.where(positive, -2 / n, 2 / n)
        self.Y = X * self.d[:, None]
        self.counts, self.delta = tables[:, :2], tables[:, 2]
        # the class of each row: 0 for positives, which are missed, 1 for negatives
        self.rows = np.where(positive, 0, 1)
        self.members = np.stack([positive, ~positive], axis=1).astype(float)
        self.sizes = self.members.sum(axis=0)
        # multipliers of a class are fixed if all of its rows are mislabeled, or none
        self.partial = (self.counts > 0) & (self.counts < self.sizes)
        self.free = self.partial[:, self.rows]
        self.fixed = (self.counts >= self.sizes)[:, self.rows].astype(float)
        share = (self.counts / self.sizes)[:, self.rows]
        mu = 1 / (K * n)
        self.p, self.w, self.b = np.full(K, 1 / K), np.zeros(X.shape[1]), 0.0
        self.gamma = np.where(self.free, self.p[:, None] * share, 1.0)
        # the distances to the upper bounds are variables: differences would lose their digits
        self.slack = np.where(self.free, self.p[:, None] - self.gamma, 1.0)
        self.lower = np.where(self.free, mu / self.gamma, 0.0)
        self.upper = np.where(self.free, mu / self.slack, 0.0)
        self.r = mu / self.p
        self.count = 2 * int(self.free.sum()) + K

    def total(self, p: NDArray, gamma: NDArray) -> NDArray:
        """Return the sum of the multipliers over the tables, per row."""
        result: NDArray = np.where(self.free, gamma, 0.0).sum(axis=0) + p @ self.fixed
        return result

    def step(self) -> float:
        """Take one step of the predictor-corrector method; return its length, 0 if there is no direction."""
        newton = _TableSystem(self)
        zero = np.zeros(1)
        predictor = newton.solve(zero, zero, zero)
        t = min(1.0, self._reach(predictor))
        mu, after = self._mean_product(0.0, predictor), self._mean_product(t, predictor)
        target = mu * min(max(after / mu, 0.0) ** 3, 1.0)
        chosen = newton.solve(
            target - predictor.gamma * predictor.lower,
            target - predictor.slack * predictor.upper,
            target - predictor.p * predictor.r,
        )
        t = min(1.0, BOUNDARY_SHARE * self._reach(chosen))
        if not (np.isfinite(chosen.w).all() and np.isfinite(chosen.p).all() and t > 1e-10):
            return 0.0
        self.gamma, self.slack = self.gamma + t * chosen.gamma, self.slack + t * chosen.slack
        self.p = self.p + t * chosen.p
        self.lower, self.upper = self.lower + t * chosen.lower, self.upper + t * chosen.upper
        self.r = self.r + t * chosen.r
        self.w, self.b = self.w + t * (chosen.w - self.w), self.b + t * (chosen.b - self.b)
        return t

    def _reach(self, step: TableStep) -> float:
        """Return the largest multiple of a step for which all factors stay nonnegative."""
        pairs = (
            (self.gamma, step.gamma),
            (self.slack, step.slack),
            (np.where(self.free, self.lower, 1.0), step.lower),
            (np.where(self.free, self.upper, 1.0), step.upper),
            (self.p, step.p),
            (self.r, step.r),
        )
        largest = max(float(np.max(-dx / x)) for x, dx in pairs)
        return 1 / largest if largest > 0 else np.inf

    def _mean_product(self, t: float, step: TableStep) -> float:
        """Return the mean product of slacks and multipliers after t times a step."""
        products = (self.gamma + t * step.gamma) * (self.lower + t * step.lower)
        products += (self.slack + t * step.slack) * (self.upper + t * step.upper)
        return (float(products.sum()) + float((self.p + t * step.p) @ (self.r + t * step.r))) / self.count

    # ------------------------------------------------------------ proofs
    def multipliers(self) -> tuple[NDArray, float]:
        """Return feasible slopes d_i sum_k gamma^k_i in the scores, and the offset of their cut."""
        beta = np.where(self.free, np.clip(self.gamma / self.p[:, None], 0.0, 1.0), self.fixed)
        # rounding and steps of less than full length change the sums over the classes: restore them
        sums = (beta @ self.members)[:, self.rows]
        wanted = self.counts[:, self.rows]
        room = np.maximum(self.sizes[self.rows] - sums, 1e-300)
        raised = beta + (1 - beta) * np.maximum(wanted - sums, 0.0) / room
        beta = np.where(sums > wanted, beta * wanted / np.maximum(sums, 1e-300), raised)
        p = self._balanced(self.p / self.p.sum())
        slopes: NDArray = self.d * (p @ np.clip(beta, 0.0, 1.0))
        return slopes, float(p @ self.delta)

    def _balanced(self, p: NDArray) -> NDArray:
        """Return weights with as many misses as alarms, if there is an intercept, in which slopes vanish."""
        excess = self.counts[:, 1] - self.counts[:, 0]
        surplus = float(p @ excess)
        if not self.intercept or surplus == 0:
            return p
        # some weight of the table that is farthest on the other side
        k = int(np.argmin(excess) if surplus > 0 else np.argmax(excess))
        share = surplus / (surplus - excess[k])
        result: NDArray = (1 - share) * p
        result[k] += share
        return result

    def value(self) -> float:
        """Return the value of the model at w and b."""
        z = self.X @ self.w + self.b
        sums = []
        for rows, sign in ((self.rows == 0, 1.0), (self.rows == 1, -1.0)):
            sums.append(sign * np.append(0.0, np.cumsum(np.sort(sign * z[rows]))))
        misses, alarms = self.counts.astype(int).T
        heights = self.delta + 2 / len(z) * (sums[1][alarms] - sums[0][misses])
        return float(0.5 * self.L @ (self.w * self.w)) + float(heights.max())


class _Unknowns(NamedTuple):
    """Steps of multipliers and of weights of tables, and the new multipliers of the equations, w and b."""

    gamma: NDArray
    p: NDArray
    tau: NDArray
    xi: float
    w: NDArray
    b: float

    @classmethod
    def zeros(cls, t: TableProgram) -> _Unknowns:
        return cls(0 * t.gamma, 0 * t.p, np.zeros((len(t.p), 2)), 0.0, 0 * t.w, 0.0)

    def plus(self, more: _Unknowns) -> _Unknowns:
        return _Unknowns(
            self.gamma + more.gamma,
            self.p + more.p,
            self.tau + more.tau,
            self.xi + more.xi,
            self.w + more.w,
            self.b + more.b,
        )


class _TableSystem:
    """The linear optimality conditions at the current point, factorized.

    With f = d (X w + b), h the inverse curvatures and q = upper / slack, a step of the multipliers is
    h (f - tau + rho + q dp), where tau are the multipliers of the counts of each table and rho the targets
    of the barriers. Unknowns are dp, tau of positives and negatives, xi of sum p = 1, and b.
    """

    REFINEMENTS = 2
    """How often the system is solved, each time for the residuals of the last."""

    def __init__(self, program: TableProgram) -> None:
        self.program = t = program
        n, K, free = len(t.d), len(t.p), t.free
        self.slack = t.slack
        self.q = t.upper / self.slack
        theta = t.lower / t.gamma + self.q
        self.h = np.where(free, 1 / np.where(free, theta, 1.0), 0.0)
        self.S = self.h.sum(axis=0)
        self.inverse = shifted_cholesky((t.Y.T * self.S) @ t.Y, t.L)
        # derivatives of the sum of all multipliers by the unknowns, w fixed
        self.C = np.zeros((n, 3 * K + 2))
        self.C[:, :K] = (self.h * self.q + t.fixed).T
        for c in (0, 1):
            self.C[:, (c + 1) * K : (c + 2) * K] = -self.h.T * t.members[:, c : c + 1]
        self.C[:, -1] = self.S * t.d
        # (L + Y'SY) w = -Y'(Gamma + C v + ...), and f = Y w + d b
        self.w_of = -self.inverse(t.Y.T @ self.C)
        self.f_of = t.Y @ self.w_of
        self.f_of[:, -1] += t.d
        W = self._matrix()
        # entries differ by many orders of magnitude: equations and unknowns of similar sizes
        size = np.sqrt(np.maximum(np.abs(np.diagonal(W)), 1e-8 * np.abs(W).max(axis=1)))
        self.scale = 1 / np.maximum(size, 1e-150)
        scaled = self.scale[:, None] * W * self.scale
        self.lu: Any = scipy_linalg().lu_factor(scaled, check_finite=False)

    def _matrix(self) -> NDArray:
        """Return the matrix of the small system, after the elimination of multipliers and w."""
        t, h, q = self.program, self.h, self.q
        K, k = len(t.p), np.arange(len(t.p))
        direct = np.zeros((3 * K + 2, 3 * K + 2))
        # q h q - q, without cancellation
        direct[k, k] = -(q * h * (t.lower / t.gamma)).sum(axis=1) - t.r / t.p
        for c in (0, 1):
            j, part = (c + 1) * K + k, t.partial[:, c]
            direct[k, j] = direct[j, k] = np.where(part, t.counts[:, c], 0.0) - (h * q) @ t.members[:, c]
            # a class without free multipliers has no equation: its unknown is zero
            direct[j, j] = np.where(part, h @ t.members[:, c], 1.0)
        direct[k, 3 * K] = direct[3 * K, k] = -1.0
        W: NDArray = direct
        W[: 3 * K] += self.C[:, : 3 * K].T @ self.f_of
        if t.intercept:
            # the slopes in the intercept: d'(Gamma + S f + C v), less the part of b in C, which f has
            W[-1] = t.d @ (self.C + self.S[:, None] * self.f_of)
            W[-1, -1] = t.d @ (self.S * self.f_of[:, -1])
        else:
            W[:, -1] = 0.0
            W[-1] = 0.0
            W[-1, -1] = 1.0
        return W

    def solve(self, at_lower: NDArray, at_upper: NDArray, at_p: NDArray) -> TableStep:
        """Return the step for targets of the products of multipliers and slacks."""
        t, q, free = self.program, self.q, self.program.free
        theta = t.lower / t.gamma + q
        rho = np.where(free, at_lower / t.gamma - at_upper / self.slack, 0.0)
        raised = t.delta + np.where(free, at_upper / self.slack, 0.0).sum(axis=1) + at_p / t.p
        # the equations of p, of the counts, of the sum of p, and of the intercept, at the current point
        x = _Unknowns.zeros(t)
        for _ in range(self.REFINEMENTS):
            total = t.total(t.p + x.p, t.gamma + x.gamma)
            f = t.Y @ x.w + t.d * x.b
            change = q * (x.gamma - x.p[:, None])
            x = x.plus(
                self._linear(
                    t.L * x.w + t.Y.T @ total,
                    np.where(free, f - x.tau[:, t.rows] + rho + q * x.p[:, None] - theta * x.gamma, 0.0),
                    raised
                    + np.where(t.partial, t.counts * x.tau, 0.0).sum(axis=1)
                    + np.where(free, change, 0.0).sum(axis=1)
                    + t.fixed @ f
                    - x.xi
                    - t.r / t.p * x.p,
                    np.where(free, t.gamma + x.gamma, 0.0) @ t.members - (t.p + x.p)[:, None] * t.counts,
                    float((t.p + x.p).sum()) - 1.0,
                    float(t.d @ total),
                )
            )
        gamma, dp = x.gamma, x.p
        slack = np.where(free, dp[:, None] - gamma, 0.0)
        lower = np.where(free, (at_lower - t.lower * gamma) / t.gamma - t.lower, 0.0)
        upper = np.where(free, (at_upper - t.upper * slack) / self.slack - t.upper, 0.0)
        return TableStep(gamma, slack, lower, upper, dp, (at_p - t.r * dp) / t.p - t.r, x.w, x.b)

    def _linear(
        self, r_w: NDArray, rho: NDArray, r_p: NDArray, r_counts: NDArray, r_sum: float, r_b: float
    ) -> _Unknowns:
        """Return the unknowns that cancel the residuals of all equations."""
        t, h, q, K = self.program, self.h, self.q, len(self.program.p)
        moved = (h * rho).sum(axis=0)
        w = -self.inverse(r_w + t.Y.T @ moved)
        f = t.Y @ w
        right = np.zeros(3 * K + 2)
        right[:K] = -(r_p + (q * h * rho).sum(axis=1))
        right[K : 3 * K] = np.where(t.partial, (h * rho) @ t.members + r_counts, 0.0).T.reshape(-1)
        right[3 * K] = r_sum
        right[: 3 * K] -= self.C[:, : 3 * K].T @ f
        right[-1] = -(r_b + float(t.d @ (moved + self.S * f))) if t.intercept else 0.0
        v = self.scale * scipy_linalg().lu_solve(self.lu, self.scale * right, check_finite=False)
        dp, tau = v[:K], v[K : 3 * K].reshape(2, K).T
        f = f + self.f_of @ v
        gamma = h * (f - tau[:, t.rows] + rho + q * dp[:, None])
        return _Unknowns(gamma, dp, tau, float(v[3 * K]), w + self.w_of @ v, float(v[-1]))
