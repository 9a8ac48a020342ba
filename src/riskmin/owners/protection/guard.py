r"""Protections of single answers: no row can be solved for, no point asked for that is no descent.

An answer is a tangent of the owner's risk in its scores, :math:`T(z) = R(\hat z) + u^\top (z - \hat z)`, with
one slope :math:`u_i` per row: a cut wherever :math:`\hat z` is. Where the slopes at the scores of w would
expose some rows (`RevealedSpan`), these rows keep the scores, and so the slopes, of an earlier answer. The
value is then raised by a bound of the error that depends on no entry of these rows but their number:
:math:`l(z_i) - T_i(z_i)` is at most the range of slopes times :math:`|z_i - \hat z_i|`, and that is at most
:math:`\sum_j M_j |w_j - \hat w_j|` for powers of two :math:`M_j \ge \max_i |x_{ij}|`.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import NDArray
from riskmin.losses.base import Loss
from riskmin.owners.protection.geometry import RevealedSpan
from riskmin.owners.protection.policy import AnswerRefused, Policy


def round_up(error: float) -> float:
    """Return the least power of two that is not below a positive error; 0 for 0."""
    return math.ldexp(1.0, math.ceil(math.log2(error))) if error > 0 else 0.0


class ScorePoint(NamedTuple):
    """A point: its scores at the owner's rows, and the weights and constants that they are made of."""

    z: NDArray
    weights: NDArray
    """In the units of X, of shape (p, outputs)."""
    constants: NDArray
    """One per output: intercepts, and what a shift of columns adds."""

    def reach(self, other: ScorePoint, column_sizes: NDArray) -> float:
        """Return a bound of the difference of a row's scores at two points, which depends on no row."""
        steps = column_sizes @ np.abs(self.weights - other.weights)
        return float(np.max(steps + np.abs(self.constants - other.constants)))


@dataclass(frozen=True, eq=False)
class ScoreTangent:
    """A tangent of the owner's risk as a function of its scores, T(z) = offset + u'z."""

    slopes: NDArray
    offset: float
    minorant_offset: float = 0.0
    """By how much the tangent may be raised, if it is that of a smoothed loss."""
    error: float = 0.0
    """By how much the risk may exceed the tangent at the scores that it answers."""

    def height(self, z: NDArray) -> float:
        """Return T(z)."""
        return self.offset + float(self.slopes.ravel() @ z.ravel())


class GuardedTangents:
    """The answers to one loss: tangents, in which rows that would be exposed keep the scores of earlier ones.

    Equal requests are always answered alike: the cut of a model with an intercept is a mixture of tangents
    that were asked for before.

    Parameters
    ----------
    span : RevealedSpan
        What all answers of the owner reveal.
    tangent_at : callable
        Returns the tangent at some scores.
    bound : SlopeBound
        Bounds of what a tangent lacks at other scores.
    """

    MAX_ENTRIES = 2**20
    """Scores and slopes of earlier answers that are kept; beyond this the oldest is dropped, but 8 stay."""
    MAX_DECISIONS = 512
    """Decisions that are remembered, by a hash of the slopes and scores."""
    MAX_ROUNDS = 64
    """How often further rows take the scores of the same earlier answer."""
    MAX_BASES = 8
    """How many earlier answers are tried, before all rows keep the scores of the nearest."""

    def __init__(
        self, span: RevealedSpan, tangent_at: Callable[[NDArray], ScoreTangent], bound: SlopeBound
    ) -> None:
        self.span, self.tangent_at, self.bound = span, tangent_at, bound
        self._earlier: list[tuple[ScorePoint, ScoreTangent]] = []
        self._decisions: OrderedDict[bytes, ScoreTangent | None] = OrderedDict()

    def answer(self, own: ScoreTangent, point: ScorePoint) -> ScoreTangent:
        """Return the tangent at a point itself, or one in which some rows keep the scores of another."""
        if self.span.limit >= 1:
            return own
        digest = hashlib.blake2b(np.ascontiguousarray(own.slopes).data, digest_size=16)
        digest.update(np.ascontiguousarray(point.z).data)
        key = digest.digest()
        if key not in self._decisions:
            self._decisions[key] = self._guarded(own, point)
            if len(self._decisions) > self.MAX_DECISIONS:
                self._decisions.popitem(last=False)
        self._decisions.move_to_end(key)
        return self._decisions[key] or own

    def _guarded(self, own: ScoreTangent, point: ScorePoint) -> ScoreTangent | None:
        """Return the tangent by which an own one must be answered; None for itself."""
        exposed = self.span.add(own.slopes)
        if not exposed.any():
            self._earlier.append((point, own))
            if len(self._earlier) > max(self.MAX_ENTRIES // max(2 * point.z.size, 1), 8):
                del self._earlier[0]
            return None
        bases = self._nearest(point)
        for base, _ in bases:
            fixed = exposed
            for _ in range(self.MAX_ROUNDS):
                rows = fixed if point.z.ndim == 1 else fixed[:, None]
                mixed = self.tangent_at(np.where(rows, base.z, point.z))
                exposed_now = self.span.add(mixed.slopes)
                if not exposed_now.any():
                    return replace(mixed, error=self.bound(fixed, point, base))
                # where the fixed rows stay exposed, another point is tried
                if not (exposed_now & ~fixed).any():
                    break
                fixed = fixed | exposed_now
        base, tangent = bases[0]
        return replace(tangent, error=tangent.error + self.bound(np.ones_like(exposed), point, base))

    def _nearest(self, point: ScorePoint) -> list[tuple[ScorePoint, ScoreTangent]]:
        """Return the earlier answers whose points are nearest; without any, zero, a cut of all losses."""
        if self._earlier:
            sizes = self.bound.column_sizes()
            return sorted(self._earlier, key=lambda each: point.reach(each[0], sizes))[: self.MAX_BASES]
        origin = ScorePoint(*(np.zeros_like(a) for a in point))
        at_zero = self.tangent_at(origin.z)
        # the loss at zero scores depends on labels only
        return [(origin, ScoreTangent(0 * at_zero.slopes, 0.0, 0.0, round_up(at_zero.height(origin.z))))]


def too_small(exposed: int, n: int) -> str:
    """Return why an answer is refused, and what to change."""
    return (
        f"the answer would expose {exposed:,} of {n:,} rows, which are too few to hide behind each other: "
        "choose a smooth loss such as logistic, ask for fewer rounds, or have the owner add rows, leave out "
        "outlying rows, or raise max_leverage in its policy"
    )


class SlopeBound:
    """By how much a risk may exceed a tangent whose slopes in some rows are those of another point.

    Parameters
    ----------
    loss : Loss
    y, c : array
        Labels and weights of the rows.
    column_sizes : callable
        Returns powers of two that are not below the largest absolute entry of each column.
    """

    FAR = 2.0**40
    """Scores at which the slopes of a loss of bounded slopes are the extreme ones."""

    def __init__(self, loss: Loss, y: NDArray, c: NDArray, column_sizes: Callable[[], NDArray]) -> None:
        self.loss, self.y, self.c, self.column_sizes = loss, y, c, column_sizes
        self.by_query = y.ndim == 2  # grades and queries
        self._range: NDArray | None = None

    def __call__(self, rows: NDArray, point: ScorePoint, base: ScorePoint) -> float:
        """Return a bound for the slopes of some rows at `base`, which depends on no entry of these rows."""
        reach = point.reach(base, self.column_sizes())
        if self.loss.constant_curvature and point.z.ndim == 1:
            slopes = self._slopes(np.full_like(point.z, reach)) - self._slopes(np.full_like(point.z, -reach))
            return round_up(float(slopes[rows].sum())) * reach
        if self._range is None:
            self._range = self._far_range(point.z.shape, self.FAR)
            if not np.all(self._far_range(point.z.shape, 2 * self.FAR) <= 1.5 * self._range):
                self._range = np.full(len(self.c), np.inf)
        if not math.isfinite(total := float(self._range[rows].sum())):
            raise AnswerRefused(too_small(int(rows.sum()), len(rows)))
        return round_up(total) * reach

    def _slopes(self, z: NDArray) -> NDArray:
        with np.errstate(over="ignore", invalid="ignore"):
            slopes: NDArray = self.loss.offset_tangent(z, self.y, self.c)[1]
        return slopes

    def _far_range(self, shape: tuple[int, ...], far: float) -> NDArray:
        """Return the range of the slopes of each row: those of a convex loss are extreme far out."""
        if len(shape) == 2:  # the sum over outputs, each of which may be the largest or the smallest
            probes = [sign * far * e for e in np.eye(shape[1]) for sign in (1.0, -1.0)]
            slopes = [np.abs(self._slopes(np.tile(probe, (shape[0], 1)))) for probe in probes]
            return np.asarray(2 * np.max(slopes, axis=0).sum(axis=1))
        direction = self.y[:, 0] if self.by_query else np.ones(shape)
        sizes = sum(np.abs(self._slopes(sign * far * direction)) for sign in (1.0, -1.0))
        if not self.by_query:
            return np.asarray(sizes)
        # no slope of a query is larger than the largest of its reversed ranking
        _, query = np.unique(self.y[:, 1], return_inverse=True)
        largest = np.zeros(query.max() + 1)
        np.maximum.at(largest, query, sizes)
        return np.asarray(2 * largest[query])


def column_sizes(matrix: Any) -> NDArray:
    """Return powers of two that are not below the largest absolute entries of the columns."""
    X = abs(matrix.as_scipy() if matrix.sparse else matrix.array)
    largest = np.asarray(X.max(axis=0).todense() if matrix.sparse else X.max(axis=0)).ravel()
    found: NDArray = np.exp2(np.ceil(np.log2(np.maximum(largest, np.finfo(float).tiny))))
    return found


class DescentCheck:
    """Whether the points that are asked for come from a descent of the claimed objective.

    Parameters
    ----------
    policy : Policy
    value_at_zero : float
        The objective of the claimed problem at w = 0 on the owner's rows.
    """

    def __init__(self, policy: Policy, value_at_zero: float) -> None:
        self.policy, self.best = policy, value_at_zero
        self.slack = policy.rise_tolerance * value_at_zero
        self.rises = 0

    def take(self, value: float) -> None:
        """Record a point at which a gradient is asked for; raise `AnswerRefused` if there is no descent."""
        # NaN and infinity count as a rise
        self.rises = 0 if value <= self.best + self.slack else self.rises + 1
        self.best = min(self.best, value)
        if self.policy.max_rises and self.rises >= self.policy.max_rises:
            raise AnswerRefused(
                f"the claimed objective was above its lowest value here at {self.rises} points in a row "
                f"({value:.4g}, lowest {self.best:.4g}): this is no descent of the claimed problem",
                final=True,
            )


@dataclass(frozen=True)
class Rounding:
    """Rounding of answers, with bounds on its errors.

    Parameters
    ----------
    digits : int
        0 for no rounding.
    scale : float
        The risk of the owner's rows at w = 0, to which the digits of values are relative.
    """

    digits: int
    scale: float

    def value(self, value: float) -> tuple[float, float]:
        """Return a value rounded up, so that it stays an upper bound, and the largest error."""
        step = self._step(self.scale)
        return (math.ceil(value / step) * step, step) if step and math.isfinite(value) else (value, 0.0)

    def slope(self, slope: float) -> float:
        """Return a slope along a line, rounded relative to its size."""
        step = self._step(abs(slope))
        return round(slope / step) * step if step and math.isfinite(slope) else slope

    def gradient(self, gradient: NDArray, n_exact: int) -> tuple[NDArray, float]:
        """Return a gradient with all but the last n_exact entries rounded, and the largest error of one.

        Slopes in intercepts stay exact: intercepts are not penalized, so that no bound of them is known.
        """
        head = gradient[: len(gradient) - n_exact]
        step = self._step(float(np.max(np.abs(head), initial=0.0)))
        if not step or not math.isfinite(step):
            return gradient, 0.0
        rounded = gradient.copy()
        rounded[: len(head)] = np.round(head / step) * step
        return rounded, 0.5 * step

    def _step(self, size: float) -> float:
        """Return the spacing of rounded numbers: a power of two, so that rounded numbers have few digits."""
        if not self.digits or not size > 0 or not math.isfinite(size):
            return 0.0
        return math.ldexp(1.0, math.floor(math.log2(size * 10.0**-self.digits)))


def sanitized_moments(moments: Any) -> Any:
    """Return moments of columns without their extremes, which are entries of single rows.

    The minimum and maximum of a column that is not constant are replaced by one deviation from the mean.
    """
    deviation = np.sqrt(np.maximum(moments.variance, 0.0))
    constant = moments.minimum == moments.maximum
    return moments._replace(
        minimum=np.where(constant, moments.minimum, moments.mean - deviation),
        maximum=np.where(constant, moments.maximum, moments.mean + deviation),
    )
