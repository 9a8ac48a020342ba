r"""Scores of rows by the optimum of the problem without them, from the optimum with them.

Without the rows of a group g, of total weight C, the optimum minimizes

.. math:: F(\theta) = \sum_{i \notin g} c_i\, l(z_i, y_i) + \tfrac12 \sum_j \rho_j q_j w_j^2,

where :math:`\rho_j = 1 - C`, times the change of the variance of column j if columns are standardized. In
coordinates in which the Hessian of J at its minimizer is the identity, that of F without the change of the
penalty is :math:`A = I - B^\top B`, for the rows :math:`\sqrt{c_i h_i}\, v_i` of the group: a matrix of the
size of the group has its inverse. A Newton step d changes the scores of the other rows by at most s, and

.. math:: |F'(\theta + d)|_{A^{-1}} \le |F'(\theta) + F''(\theta)\, d|_{A^{-1}}
          + \frac{e^{M s} - 1 - M s}{M s}\, |d|_A ,

since :math:`|l'(z + t) - l'(z) - l''(z) t| \le l''(z) |t| (e^{M|t|} - 1 - M|t|) / (M|t|)`. The distance of
:math:`\theta + d` to the minimizer of F follows as in `certificates.region`, with the Hessian
:math:`\min(1, \rho)\, e^{-M s} A`, and with it that of the scores of the group. Where this is too much, the
gradient at :math:`\theta + d` is computed, and further steps are taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from riskmin.certificates.region import Ellipsoid, distance_to_minimum
from riskmin.core import NDArray
from riskmin.core.limits import LIMITS
from riskmin.numerics.precision import EPSILON, sum_rounding

MAX_STEPS = 12
"""The most steps whose gradients are computed, for groups that one step leaves open."""
MAX_SOLVE_STEPS = 8
"""Steps of the iteration for the change of the penalty, each of which gains a factor of about the rows."""
LEAST_EIGENVALUE = 1e-8
"""Of A: below, the rows of the group determine the optimum, and it is not near without them."""


@dataclass(frozen=True)
class HeldOut:
    """Scores of rows by the optimum without their groups."""

    scores: NDArray
    bounds: NDArray
    """How far the scores are from those of the optimum, at most; infinite where nothing is proved."""
    one_step: NDArray
    """Whether one step was enough, of each row."""


class _Step:
    """Points theta + d for groups of the same size, and the distance of the minimizers without them."""

    def __init__(self, region: Ellipsoid, V: NDArray, groups: NDArray, ratios: NDArray) -> None:
        problem = region.problem
        self.region, self.V, self.groups = region, V, groups
        self.M, self.T = problem.concordance, region.factor
        self.change = (ratios - 1) * problem.square
        self.least_ratio = np.minimum(1.0, ratios.min(axis=1, initial=1.0))
        c, w = problem.c, region.center[1:]
        self.z = region.rows.times(region.center)
        self.u = problem.slopes(self.z)
        self.own = V[groups]
        self.B = np.sqrt(region.curvatures[groups])[:, :, None] * self.own
        gram = self.B @ self.B.transpose(0, 2, 1)
        values, self.vectors = np.linalg.eigh(np.eye(groups.shape[1]) - gram)
        self.least = values[:, 0]
        self.values = np.maximum(values, LEAST_EIGENVALUE)
        removed = np.einsum("mi,mik->mk", (c * self.u)[groups], self.own)
        self.first = (self.change * w) @ self.T[1:] - removed
        self.d = np.zeros_like(self.first)
        for _ in range(MAX_SOLVE_STEPS):
            residual = self.first + self._times_hessian(self.d)
            if np.all(np.linalg.norm(residual, axis=1) <= 4 * EPSILON * np.linalg.norm(self.first, axis=1)):
                break
            self.d = self.d - self._solve(residual)
        self.residual = self.first + self._times_hessian(self.d)
        L = float(np.max(region.leverage, initial=0.0))
        self.L = L / np.sqrt(self.values[:, 0])
        own_in_B = np.einsum("msk,mik->msi", self.B, self.own)
        rotated = self.vectors.transpose(0, 2, 1) @ own_in_B
        self.sizes = np.sqrt(
            np.sum(self.own**2, axis=2) + np.sum(rotated**2 / self.values[:, :, None], axis=1)
        )

    def _times_hessian(self, d: NDArray) -> NDArray:
        """F'' d: A d, and the change of the penalty."""
        inner = np.einsum("mik,mk->mi", self.B, d)
        changed = (self.change * (d @ self.T[1:].T)) @ self.T[1:]
        return d - np.einsum("mik,mi->mk", self.B, inner) + changed

    def _in_eigenvectors(self, d: NDArray) -> NDArray:
        return np.einsum("mij,mi->mj", self.vectors, np.einsum("mik,mk->mi", self.B, d))

    def _solve(self, d: NDArray) -> NDArray:
        """A^-1 d."""
        inner = self._in_eigenvectors(d) / self.values
        return d + np.einsum("mik,mij,mj->mk", self.B, self.vectors, inner)

    def _norm(self, d: NDArray) -> NDArray:
        """|d| in the metric of A^-1."""
        inner = self._in_eigenvectors(d)
        return np.sqrt(np.sum(d**2, axis=1) + np.sum(inner**2 / self.values, axis=1))

    def _largest_changes(self) -> NDArray:
        """The largest change of a score of the other rows, by the norm of d."""
        return self.L * self._size_of_d()

    def _size_of_d(self) -> NDArray:
        inner = np.einsum("mik,mk->mi", self.B, self.d)
        return np.sqrt(np.maximum(np.sum(self.d**2, axis=1) - np.sum(inner**2, axis=1), 0.0))

    def held_out(self, norm: NDArray, change: NDArray) -> tuple[NDArray, NDArray]:
        """Scores of the rows of the groups, and their bounds, where the gradient of F has at most this norm."""
        region, M = self.region, self.M
        error, root = region.inverse_error, np.sqrt(self.values[:, 0])
        # the gradient of J, its rounding, and that of the steps
        norm = norm + (region.radius + (error + 64 * EPSILON) * np.linalg.norm(self.d, axis=1)) / root
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.exp(M * change) / np.maximum(self.least_ratio - error / root**2, 0.0)
            N = np.where(self.least > LEAST_EIGENVALUE, growth * norm, math.inf)
        radius = np.array(
            [distance_to_minimum(a, b) for a, b in zip(N.tolist(), (M * self.L).tolist(), strict=True)]
        )
        scores = self.z[self.groups] + np.einsum("mik,mk->mi", self.own, self.d)
        return scores, radius[:, None] * self.sizes

    def by_remainder(self) -> tuple[NDArray, NDArray]:
        """`held_out` without the gradient at theta + d, by the bound of the remainder."""
        norm, change = self._norm(self.residual), self._largest_changes()
        if not self.M:
            return self.held_out(norm, 0 * norm)
        with np.errstate(over="ignore", invalid="ignore"):
            s = np.maximum(self.M * change, 1e-300)
            remainder = np.where(s < 1e-5, 0.5001 * s, (np.expm1(s) - s) / s) * self._size_of_d()
            return self.held_out(norm + remainder, change)

    def by_gradient(self, move: bool) -> tuple[NDArray, NDArray]:
        """`held_out` by the gradient at theta + d, after a further step if `move`."""
        problem, V, m = self.region.problem, self.V, len(self.d)
        if move:
            self.d = self.d - self._solve(self.gradient)
        changes = V @ self.d.T
        changes[self.groups.T, np.arange(m)] = 0.0
        n, y = len(self.z), problem.y
        with np.errstate(over="ignore", invalid="ignore"):
            z = (self.z[:, None] + changes).ravel()
            slopes = problem.loss.value_grad(z, np.repeat(y, m), np.ones(n * m))[1].reshape(n, m)
            slopes -= self.u[:, None]
            slopes[self.groups.T, np.arange(m)] = 0.0
            risk = (problem.c[:, None] * slopes).T @ V
        weights = self.d @ self.T[1:].T
        penalty = ((problem.square + self.change) * weights) @ self.T[1:]
        self.gradient = self.first + risk + penalty
        return self.held_out(self._norm(self.gradient), np.max(np.abs(changes), axis=0, initial=0.0))


def held_out_scores(
    region: Ellipsoid, groups: Sequence[NDArray], ratios: NDArray, tol: float, *, signs: bool
) -> HeldOut:
    """Scores of the rows of each group by the optimum without it.

    `ratios` are the rho of each group and column. Steps are taken until a score is within tol, and of a
    certain sign if `signs`; those for which this fails keep what was proved.
    """
    n = len(region.leverage)
    V = region.rows.times(region.factor)
    size = sum_rounding(V.shape[1]) * region.rows.absolute().times(np.abs(region.center))
    scores, bounds, one_step = np.zeros(n), np.full(n, math.inf), np.zeros(n, dtype=bool)

    def store(index: NDArray, rows: NDArray, found: tuple[NDArray, NDArray], first: bool) -> NDArray:
        """Keep what was found for groups, and return those that are still open."""
        z, bound = found[0], np.nan_to_num(found[1], nan=math.inf, posinf=math.inf) + size[rows]
        is_open = bound > tol
        if signs:
            is_open = is_open | (np.abs(z) <= bound)
        scores[rows], bounds[rows] = z, bound
        is_open = is_open.any(axis=1)
        one_step[rows] = first & ~is_open[:, None]
        return index[is_open]

    for index in _by_size(groups, V.shape):
        rows = np.stack([groups[k] for k in index])
        step = _Step(region, V, rows, ratios[index])
        left = store(index, rows, step.by_remainder(), True)
        block = max(LIMITS.copy_max_entries // (4 * n), 1)
        for start in range(0, len(left), block):
            part = left[start : start + block]
            previous, own = np.full(len(part), math.inf), np.stack([groups[k] for k in part])
            step = _Step(region, V, own, ratios[part])
            for k in range(MAX_STEPS):
                found = step.by_gradient(move=k > 0)
                open_groups = store(part, own, found, k == 0)
                # steps of a fixed Hessian that do not halve the bound lead nowhere
                now = np.linalg.norm(step.gradient, axis=1)
                if not len(open_groups) or not np.any(now < 0.5 * previous):
                    break
                previous = now
    return HeldOut(scores, bounds, one_step)


def _by_size(groups: Sequence[NDArray], shape: tuple[int, int]) -> Iterator[NDArray]:
    """Indices of groups of equal size, few enough for their rows to be copied."""
    sizes = np.array([len(group) for group in groups])
    for size in np.unique(sizes):
        index = np.flatnonzero(sizes == size)
        block = max(LIMITS.copy_max_entries // (int(size) * (shape[1] + int(size))), 1)
        yield from (index[k : k + block] for k in range(0, len(index), block))
