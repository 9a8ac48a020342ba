r"""Scores of rows by the optimum of the problem without them, from the optimum with them.

Without the rows of a group g, of total weight C, the optimum minimizes

.. math:: F(\theta) = \sum_{i \notin g} c_i\, l(z_i, y_i) + \tfrac12 \sum_j \rho_j q_j w_j^2,

where :math:`\rho_j = 1 - C`, times the change of the variance of column j if columns are standardized. In
coordinates in which the Hessian of J at its minimizer is the identity, that of F without the change of the
penalty is :math:`A = I - B^\top B`, for the rows :math:`\sqrt{c_i h_i}\, v_i` of the group: a matrix of the
size of the group has its inverse. A Newton step d changes the scores of the other rows by at most s, and

.. math:: |F'(\theta + d)|_{A^{-1}} \le |F'(\theta) + F''(\theta)\, d|_{A^{-1}}
          + \frac{e^{M s} - 1 - M s}{M s}\, |d|_A ,

since :math:`|l'(z + t) - l'(z) - l''(z) t| \le l''(z) |t| (e^{M|t|} - 1 - M|t|) / (M|t|)`. With the changes
:math:`t_i \le s` of all scores, the last term is at most
:math:`\tfrac M2 (1 - \tfrac{M s}3)^{-1} (\sum_i c_i h_i t_i^4)^{1/2}`. The distance of
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
        self.d = self.gradient = np.zeros_like(self.first)
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
        return np.asarray(d - np.einsum("mik,mi->mk", self.B, inner) + changed)

    def _in_eigenvectors(self, d: NDArray) -> NDArray:
        return np.asarray(np.einsum("mij,mi->mj", self.vectors, np.einsum("mik,mk->mi", self.B, d)))

    def _solve(self, d: NDArray) -> NDArray:
        """A^-1 d."""
        inner = self._in_eigenvectors(d) / self.values
        return np.asarray(d + np.einsum("mik,mij,mj->mk", self.B, self.vectors, inner))

    def _norm(self, d: NDArray) -> NDArray:
        """|d| in the metric of A^-1."""
        inner = self._in_eigenvectors(d)
        return np.asarray(np.sqrt(np.sum(d**2, axis=1) + np.sum(inner**2 / self.values, axis=1)))

    def _largest_changes(self) -> NDArray:
        """The largest change of a score of the other rows, by the norm of d."""
        return np.asarray(self.L * self._size_of_d())

    def _size_of_d(self) -> NDArray:
        inner = np.einsum("mik,mk->mi", self.B, self.d)
        return np.asarray(np.sqrt(np.maximum(np.sum(self.d**2, axis=1) - np.sum(inner**2, axis=1), 0.0)))

    def held_out(self, norm: NDArray, change: NDArray) -> tuple[NDArray, NDArray]:
        """Scores of the rows of the groups, and their bounds, by the norm of the gradient of F."""
        region, M = self.region, self.M
        error, root = region.inverse_error, np.sqrt(self.values[:, 0])
        # the gradient of J, its rounding, and that of the steps
        norm = norm + (region.radius + (error + 64 * EPSILON) * np.linalg.norm(self.d, axis=1)) / root
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.exp(M * change) / np.maximum(self.least_ratio - error / root**2, 0.0)
            N = np.where(self.least > LEAST_EIGENVALUE, growth * norm, math.inf)
        radius = distance_to_minimum(N, M * self.L)
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

    def _changes(self) -> tuple[NDArray, NDArray]:
        """The changes of the scores of the other rows, of shape (n, m), and the largest of each group."""
        changes = self.V @ self.d.T
        changes[self.groups.T, np.arange(len(self.d))] = 0.0
        return changes, np.maximum(changes.max(axis=0), -changes.min(axis=0))

    def by_changes(self) -> tuple[NDArray, NDArray]:
        """`held_out` by the bound of the remainder for the changes of all scores."""
        changes, largest = self._changes()
        np.square(changes, out=changes)
        np.square(changes, out=changes)
        sums = np.sqrt(self.region.curvatures @ changes)
        with np.errstate(divide="ignore"):
            factor = 0.5 * self.M / np.maximum(1 - self.M * largest / 3, 0.0)
        return self.held_out(self._norm(self.residual) + factor * sums, largest)

    def by_gradient(self, move: bool) -> tuple[NDArray, NDArray]:
        """`held_out` by the gradient at theta + d, after a further step if `move`."""
        problem, m = self.region.problem, len(self.d)
        if move:
            self.d = self.d - self._solve(self.gradient)
        changes, largest = self._changes()
        n, y = len(self.z), problem.y
        with np.errstate(over="ignore", invalid="ignore"):
            z = (self.z[:, None] + changes).ravel()
            slopes = problem.loss.value_grad(z, np.repeat(y, m), np.ones(n * m))[1].reshape(n, m)
            slopes -= self.u[:, None]
            slopes[self.groups.T, np.arange(m)] = 0.0
            risk = (problem.c[:, None] * slopes).T @ self.V
        weights = self.d @ self.T[1:].T
        self.gradient = self.first + risk + ((problem.square + self.change) * weights) @ self.T[1:]
        return self.held_out(self._norm(self.gradient), largest)


def held_out_scores(
    region: Ellipsoid, blocks: Sequence[tuple[NDArray, NDArray]], tol: float, *, signs: bool
) -> HeldOut:
    """Scores of the rows of each group by the optimum without it.

    Each block has groups of the same size, of shape (m, size), and their rho, of shape (m, p). Steps are
    taken until a score is within tol, and of a certain sign if `signs`; those for which this fails keep what
    was proved.
    """
    search = _Search(region, tol, signs)
    q = search.V.shape[1]
    for groups, ratios in blocks:
        size = groups.shape[1]
        for part in _slices(len(groups), size * (q + size)):
            search.run(groups[part], ratios[part])
    return HeldOut(search.scores, search.bounds, search.one_step)


class _Search:
    """What is known of the scores of all rows."""

    def __init__(self, region: Ellipsoid, tol: float, signs: bool) -> None:
        n = len(region.leverage)
        self.region, self.tol, self.signs = region, tol, signs
        self.V = region.rows.times(region.factor)
        sizes = region.rows.absolute().times(np.abs(region.center))
        self.rounding = sum_rounding(self.V.shape[1]) * sizes
        self.scores, self.bounds = np.zeros(n), np.full(n, math.inf)
        self.one_step = np.zeros(n, dtype=bool)

    def run(self, groups: NDArray, ratios: NDArray) -> None:
        """Find the scores of groups of one size: by bounds of a step, then by gradients."""
        step = _Step(self.region, self.V, groups, ratios)
        left = self._store(groups, step.by_remainder(), True)
        groups, ratios = groups[left], ratios[left]
        for part in _slices(len(groups), 4 * len(self.V)):
            some, their_ratios = groups[part], ratios[part]
            step = _Step(self.region, self.V, some, their_ratios)
            left = self._store(some, step.by_changes(), True)
            some, their_ratios = some[left], their_ratios[left]
            if len(some):
                self._take_steps(_Step(self.region, self.V, some, their_ratios))

    def _take_steps(self, step: _Step) -> None:
        """Take steps while the gradient of an open group decreases."""
        last = np.full(len(step.groups), math.inf)
        for k in range(MAX_STEPS):
            with np.errstate(all="ignore"):
                left = self._store(step.groups, step.by_gradient(move=k > 0), k == 0)
                size = np.linalg.norm(step.gradient, axis=1)
            if not np.any(size[left] < 0.5 * last[left]):
                return
            last = size

    def _store(self, groups: NDArray, found: tuple[NDArray, NDArray], first: bool) -> NDArray:
        """Keep what was found where it is better, and return the groups that are still open."""
        z, bound = found[0], np.nan_to_num(found[1], nan=math.inf, posinf=math.inf) + self.rounding[groups]
        better = bound < self.bounds[groups]
        self.scores[groups] = np.where(better, z, self.scores[groups])
        self.bounds[groups] = np.where(better, bound, self.bounds[groups])
        is_open = self.bounds[groups] > self.tol
        if self.signs:
            is_open |= np.abs(self.scores[groups]) <= self.bounds[groups]
        self.one_step[groups] |= first & ~is_open
        return np.flatnonzero(is_open.any(axis=1))


def _slices(n: int, entries: int) -> Iterator[slice]:
    """Slices of n items, few enough for arrays of this many entries per item."""
    step = max(LIMITS.copy_max_entries // max(entries, 1), 1)
    return (slice(start, start + step) for start in range(0, n, step))
