r"""The best alpha of a whole range: bounds of a score on held-out rows that hold for all values of alpha.

At an optimum :math:`\theta` for alpha, with :math:`\Omega = \tfrac12 |w|_m^2` and the Hessian H, the optima
of others follow the direction :math:`v = -H^{-1} P \theta`, with P = diag(0, m). The gradient at
:math:`\theta + \tau v` for alpha + tau is that of the remainder of the risk, and :math:`\tau^2 P v`, so that

.. math:: N(\tau) \le \tau^2 \Bigl(\frac M2 \frac{(\sum_i c_i h_i (x_i^\top v)^4)^{1/2}}{1 - M|\tau| s / 3}
          + |P v|_{H^{-1}}\Bigr), \qquad s = \max_i |x_i^\top v|,

and the region of `certificates.region`, with the Hessian at least
:math:`\min(1, 1 + \tau / \alpha)\, e^{-M |\tau| s} H`, holds the optimum for alpha + tau. Scores of held-out
rows are known up to :math:`O(\tau^2)` on either side of each alpha that was computed. Where these bounds
allow a better score than the best one that is known, another alpha is computed, until no alpha of the range
can be better.

For losses that are not self-concordant, the scores between two values follow from both optima
(`certificates.interpolation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.certificates.curvature import SingularHessian
from riskmin.certificates.interpolation import CutPoint, FoldRows, Optimum, Tube
from riskmin.certificates.region import Ellipsoid, RowProblem, distance_to_minimum, ellipsoid
from riskmin.core import NDArray

PIECES = 24
"""Into how many pieces the bounds divide the range between two values of alpha that were computed."""
FIRST_VALUES = 9
"""How many values are computed first."""
LEAST_WIDTH = 1e-9
"""Values of alpha closer than this, relatively, are not told apart."""
LEAST_WIDTH_OF_CUTS = 1e-6
"""The same, where optima are known up to the square root of a rounding error."""

ROUNDING = 1e-12
"""Scores that differ by less, relatively, are equal up to rounding."""


@dataclass(frozen=True)
class HeldOutRows:
    """Rows that score a fold, and the problem of the others for alpha = 1.

    `loss_of` returns the losses of scores and their slopes; without slopes, a loss of 1 for the wrong sign.
    """

    problem: RowProblem
    X: Any
    y: NDArray
    weight: NDArray
    """Weights of the losses, by which a score decreases."""
    best: float
    """The score without any loss."""
    loss_of: Callable[[NDArray, NDArray], tuple[NDArray, NDArray]] | None

    @property
    def is_expanded(self) -> bool:
        """Whether optima are expanded in alpha: the loss has a Hessian that changes slowly."""
        return math.isfinite(self.problem.concordance)

    @cached_property
    def rows(self) -> FoldRows:
        return FoldRows(self.problem, self.X)

    def score(self, tube: Tube) -> float:
        """The least score of a tube at its first end."""
        z = tube.ends[0]
        if self.loss_of is None:
            return self.best - float(self.weight @ (self.y * z <= tube.error[0]))
        return self.best - float(self.weight @ self.loss_of(z, self.y)[0])


@dataclass(frozen=True)
class _Point:
    """The optimum of a fold for one alpha, and the numbers of its expansion."""

    region: Ellipsoid
    alpha: float
    z: NDArray
    """Scores of the held-out rows."""
    velocity: NDArray
    """Their derivatives in alpha."""
    sizes: NDArray
    """|T' x_i| of the held-out rows."""
    fastest: float
    """The s of the formula."""
    quartic: float
    bend: float
    """|P v| in the metric of the inverse Hessian."""
    speed: float
    """|v| in the metric of the Hessian."""
    direction: NDArray

    @classmethod
    def at(cls, fold: HeldOutRows, alpha: float, w: NDArray, b: float) -> _Point:
        one = fold.problem
        region = ellipsoid(replace(one, square=alpha * one.square), w, b)
        T, rows = region.factor, region.rows
        whitened = T.T @ np.append(0.0, one.square * region.center[1:])
        v = -T @ whitened
        changes = rows.times(v)
        held = replace(rows, X=fold.X)
        return cls(
            region,
            alpha,
            held.times(region.center),
            held.times(v),
            held.norms(T),
            float(np.max(np.abs(changes), initial=0.0)),
            float(np.sqrt(region.curvatures @ changes**4)),
            float(np.linalg.norm(T.T @ np.append(0.0, one.square * v[1:]))),
            float(np.linalg.norm(whitened)),
            v,
        )

    def start(self, alpha: float) -> tuple[NDArray, float]:
        """Weights and intercept near the optimum of another alpha."""
        center = self.region.center + (alpha - self.alpha) * self.direction
        return center[1:], float(center[0] - self.region.rows.mean @ center[1:])

    def scores(self) -> Tube:
        """The scores of the held-out rows."""
        return Tube(self.z[None, :], self.region.radius * self.sizes[None, :])

    def tubes(self, other: _Point, ends: NDArray) -> list[Tube]:
        """The scores of these rows for all alpha between neighboring ends, by either point."""
        return [self._along(ends), other._along(ends)]

    def _along(self, ends: NDArray) -> Tube:
        tau = ends - self.alpha
        radius = self.radius(tau)
        with np.errstate(invalid="ignore"):
            error = np.maximum(radius[:-1], radius[1:])[:, None] * self.sizes
        return Tube(self.z + tau[:, None] * self.velocity, error)

    def radius(self, tau: NDArray) -> NDArray:
        """Radii of the regions of alpha + tau around theta + tau v."""
        region, t = self.region, np.abs(tau)
        M = region.problem.concordance
        error = region.inverse_error
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            quartic = 0.5 * M * self.quartic / np.maximum(1 - M * t * self.fastest / 3, 0.0) if M else 0.0
            N = region.radius + error * t * self.speed + t * t * (quartic + self.bend)
            growth = np.exp(M * t * self.fastest) / (np.minimum(1.0, 1 + tau / self.alpha) - error)
            return np.asarray(
                distance_to_minimum(growth * N, M * float(np.max(region.leverage, initial=0.0)))
            )


@dataclass
class RangeSearch:
    """The best alpha of a range, and what is proved about all others."""

    folds: Sequence[HeldOutRows]
    fit: Callable[[int, float, NDArray | None], Optimum]
    """A point near the optimum of a fold for an alpha, by a run of a solver from weights."""
    eps: float
    max_values: int
    progress: Callable[[int, float, float], None] | None = None
    points: dict[float, list[Any]] = field(default_factory=dict)
    """A `_Point` or a `CutPoint` of each fold, for each alpha."""
    scores: dict[float, NDArray] = field(default_factory=dict)
    """Scores of the folds, for each alpha."""
    pieces: dict[tuple[float, float], tuple[NDArray, NDArray]] = field(default_factory=dict)
    """Between neighboring values of alpha: the ends of the pieces, and a bound of the score in each."""

    def run(self, lo: float, hi: float) -> None:
        """Compute values of alpha until no other can be better than the best by more than eps."""
        values = np.geomspace(hi, lo, FIRST_VALUES)
        for alpha in values:
            self._compute(float(alpha))
        for a, b in zip(values[1:].tolist(), values[:-1].tolist(), strict=True):
            self._bound(a, b)
        while len(self.points) < self.max_values:
            best = self.best[1]
            if self.progress is not None:
                self.progress(len(self.points), best, self.bound)
            least = LEAST_WIDTH if self.folds[0].is_expanded else LEAST_WIDTH_OF_CUTS
            # pieces of the least width stay as they are
            left = [
                pair
                for pair, (_, bounds) in self.pieces.items()
                if bounds.max() > self._goal(best) and pair[1] > pair[0] * (1 + least)
            ]
            if not left:
                return
            self._split(max(left, key=lambda pair: float(self.pieces[pair][1].max())))

    @property
    def best(self) -> tuple[float, float]:
        """The best alpha computed, the largest one of several, and its score."""
        score = max(float(np.mean(scores)) for scores in self.scores.values())
        return max(a for a, scores in self.scores.items() if float(np.mean(scores)) == score), score

    @property
    def bound(self) -> float:
        """The score that no alpha of the range exceeds."""
        best = self.best[1]
        bound = max((float(bounds.max()) for _, bounds in self.pieces.values()), default=best)
        return bound if bound > best + ROUNDING * abs(best) else best

    def _goal(self, best: float) -> float:
        return best + self.eps + ROUNDING * abs(best)

    def _compute(self, alpha: float) -> None:
        near = min(self.points, key=lambda a: abs(math.log(a / alpha)), default=None)
        found = [
            self._point(k, fold, alpha, None if near is None else self.points[near][k])
            for k, fold in enumerate(self.folds)
        ]
        self.points[alpha] = found
        self.scores[alpha] = np.array(
            [fold.score(point.scores()) for fold, point in zip(self.folds, found, strict=True)]
        )

    def _point(self, k: int, fold: HeldOutRows, alpha: float, near: Any) -> _Point | CutPoint:
        """The optimum of a fold, by Newton steps from that of an alpha nearby or by a run of a solver."""
        if not fold.is_expanded:
            start = None if near is None else near.start(alpha)[0]
            return CutPoint.at(fold.rows, alpha, self.fit(k, alpha, start))
        try:
            if near is None:
                raise SingularHessian("no other value of alpha is known")
            return _Point.at(fold, alpha, *near.start(alpha))
        except SingularHessian:
            return _Point.at(fold, alpha, *self.fit(k, alpha, None)[:2])

    def _split(self, pair: tuple[float, float]) -> None:
        """Compute an alpha amid the pieces with too large a bound."""
        ends, bounds = self.pieces.pop(pair)
        over = bounds > self._goal(self.best[1])
        worst = int(np.argmax(bounds))
        first = worst - int(np.argmin(np.append(over[: worst + 1][::-1], False))) + 1
        last = worst + int(np.argmin(np.append(over[worst:], False)))
        alpha = math.sqrt(ends[first] * ends[last])
        if not pair[0] < alpha < pair[1]:
            alpha = math.sqrt(pair[0] * pair[1])
        self._compute(alpha)
        self._bound(pair[0], alpha)
        self._bound(alpha, pair[1])

    def _bound(self, a: float, b: float) -> None:
        """Bound the score between two values of alpha, by the expansions at both."""
        ends = np.geomspace(a, b, PIECES + 1)
        ends[0], ends[-1] = a, b
        total = np.zeros(PIECES)
        for fold, low, high in zip(self.folds, self.points[a], self.points[b], strict=True):
            bound = _count_bound if fold.loss_of is None else _loss_bound
            total += bound(fold, low.tubes(high, ends))
        self.pieces[a, b] = ends, total / len(self.folds)


def _count_bound(fold: HeldOutRows, tubes: Sequence[Tube]) -> NDArray:
    """Bounds of a score that counts errors, in each piece: rows whose sign is certainly wrong count."""
    wrong = np.zeros(tubes[0].error.shape, dtype=bool)
    for tube in tubes:
        margins = fold.y * tube.ends
        with np.errstate(invalid="ignore"):
            wrong |= np.maximum(margins[:-1], margins[1:]) < -tube.error
    return fold.best - wrong @ fold.weight


def _loss_bound(fold: HeldOutRows, tubes: Sequence[Tube]) -> NDArray:
    """Bounds of a score that is a sum of convex losses, in each piece: by tangents at its middle."""
    assert fold.loss_of is not None
    least = np.zeros(len(tubes[0].error))
    for z, error in tubes:
        losses, slopes = fold.loss_of(0.5 * (z[1:] + z[:-1]), fold.y)
        change = np.abs((slopes * 0.5 * (z[1:] - z[:-1])) @ fold.weight)
        with np.errstate(invalid="ignore"):
            below = losses @ fold.weight - change - (np.abs(slopes) * error) @ fold.weight
        least = np.maximum(least, np.nan_to_num(below, nan=0.0))
    return fold.best - least
