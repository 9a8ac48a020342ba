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
from riskmin.numerics.barrier import BarrierVariables, Linearized, predictor_corrector_step
from riskmin.numerics.linear_systems import shifted_cholesky


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
        self.index = np.flatnonzero(self.free)
        self.fixed = (self.counts >= self.sizes)[:, self.rows].astype(float)
        self.w, self.b, self.target = np.zeros(X.shape[1]), 0.0, (np.zeros(X.shape[1]), 0.0)
        share, mu = (self.counts / self.sizes)[:, self.rows][self.free] / K, 1 / (K * n)
        # the distances to the upper bounds are variables: differences would lose their digits
        starts = share, 1 / K - share, np.full(K, 1 / K)
        self.groups = [BarrierVariables(x, mu, lower=0.0) for x in starts]

    @property
    def p(self) -> NDArray:
        """The weights of the tables."""
        return self.groups[2].x

    def spread(self, values: NDArray) -> NDArray:
        """Return one number per table and row, 0 for the multipliers that are fixed."""
        full = np.zeros(self.free.shape)
        full.reshape(-1)[self.index] = values
        return full

    def step(self) -> float:
        """Take one step of the predictor-corrector method; return its length, 0 if there is no direction."""
        t = predictor_corrector_step(self.groups, lambda models: _TableSystem(self, models).direction)
        w, b = self.target
        self.w, self.b = self.w + t * (w - self.w), self.b + t * (b - self.b)
        return t

    # ------------------------------------------------------------ proofs
    def multipliers(self) -> tuple[NDArray, float]:
        """Return feasible slopes d_i sum_k gamma^k_i in the scores, and the offset of their cut."""
        gamma = self.spread(self.groups[0].x)
        beta = np.where(self.free, np.clip(gamma / self.p[:, None], 0.0, 1.0), self.fixed)
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


class _TableSystem:
    """The linear optimality conditions at the current point, factorized.

    With f = d (X w + b), h the inverse curvatures and q the curvatures of the slacks, a step of the
    multipliers is h (f - tau + rho + q dp), where tau are the multipliers of the counts of each table and rho
    the targets of the barriers. Unknowns are dp, tau of positives and negatives, xi of sum p = 1, and b.
    """

    REFINEMENTS = 2
    """How often the system is solved, each time for the residuals of the last."""

    def __init__(self, program: TableProgram, models: list[Linearized]) -> None:
        self.program = t = program
        n, K = len(t.d), len(t.p)
        lower, upper, self.curvature = (model.curvature for model in models)
        self.kappa, self.q = t.spread(lower), t.spread(upper)
        self.h = t.spread(1 / (lower + upper))
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
        lu, pivots, singular = scipy_linalg().lapack.dgetrf(scaled)
        if singular:  # pivots that vanished are of the size of their rounding
            np.fill_diagonal(lu, np.where(np.diagonal(lu) == 0, np.finfo(float).eps, np.diagonal(lu)))
        self.lu: Any = lu, pivots

    def _matrix(self) -> NDArray:
        """Return the matrix of the small system, after the elimination of multipliers and w."""
        t, h, q = self.program, self.h, self.q
        K, k = len(t.p), np.arange(len(t.p))
        W = np.zeros((3 * K + 2, 3 * K + 2))
        # q h q - q, without cancellation
        W[k, k] = -(q * h * self.kappa).sum(axis=1) - self.curvature
        for c in (0, 1):
            j, part = (c + 1) * K + k, t.partial[:, c]
            W[k, j] = W[j, k] = np.where(part, t.counts[:, c], 0.0) - (h * q) @ t.members[:, c]
            # a class without free multipliers has no equation: its unknown is zero
            W[j, j] = np.where(part, h @ t.members[:, c], 1.0)
        W[k, 3 * K] = W[3 * K, k] = -1.0
        W[: 3 * K] += self.C[:, : 3 * K].T @ self.f_of
        if t.intercept:
            # the slopes in the intercept: d'(Gamma + S f + C v), less the part of b in C, which f has
            W[-1] = t.d @ (self.C + self.S[:, None] * self.f_of)
            W[-1, -1] = t.d @ (self.S * self.f_of[:, -1])
        else:
            W[:, -1] = W[-1] = 0.0
            W[-1, -1] = 1.0
        return W

    def direction(self, models: list[Linearized]) -> list[NDArray]:
        """Return the steps of multipliers, slacks and weights of tables; the new w and b are the target."""
        t, (lower, upper, weight) = self.program, (model.slope for model in models)
        rho, raised = t.spread(upper - lower), t.delta - t.spread(upper).sum(axis=1) - weight
        x = _Unknowns(0 * self.h, 0 * t.p, np.zeros((len(t.p), 2)), 0.0, 0 * t.w, 0.0)
        for _ in range(self.REFINEMENTS):
            more = self._linear(*self._residuals(x, rho, raised))
            x = _Unknowns(*(a + b for a, b in zip(x, more, strict=True)))  # type: ignore[operator]
        t.target = x.w, x.b
        return [x.gamma.take(t.index), (x.p[:, None] - x.gamma).take(t.index), x.p]

    def _residuals(self, x: _Unknowns, rho: NDArray, raised: NDArray) -> tuple[Any, ...]:
        """Return what remains of the equations of w, gamma, p, the counts, the sum of p, and b."""
        t, q = self.program, self.q
        p, gamma, f = t.p + x.p, t.spread(t.groups[0].x) + x.gamma, t.Y @ x.w + t.d * x.b
        total = gamma.sum(axis=0) + p @ t.fixed
        change = q * (x.gamma - x.p[:, None])
        return (
            t.L * x.w + t.Y.T @ total,
            np.where(t.free, f - x.tau[:, t.rows] + rho - change - self.kappa * x.gamma, 0.0),
            raised
            + np.where(t.partial, t.counts * x.tau, 0.0).sum(axis=1)
            + change.sum(axis=1)
            + t.fixed @ f
            - x.xi
            - self.curvature * x.p,
            gamma @ t.members - p[:, None] * t.counts,
            float(p.sum()) - 1.0,
            float(t.d @ total),
        )

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
