r"""Newton's equations of many scores a row, :math:`(\lambda I + \sum_i x_i x_i^\top \otimes H_i)\, d = -g`.

By conjugate gradients, under a matrix that is near the one of the equations and easy to invert. A better one
is made when the steps with the one before would cost more, and kept as long as it serves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from riskmin.deadline import checking
from riskmin.matrices import Csr, as_matrix, as_scipy
from riskmin.scorers import WithOnes
from riskmin.solvers import newton_many_inverse as inverse
from riskmin.solvers.newton_many_inverse import Part, Solve
from riskmin.solvers.passes import Passes, mean_square, rows_of, taken
from riskmin.solvers.weights import of_features
from riskmin.types import Array, NDArray

MOST_STEPS = 500
"""Of conjugate gradients, after which a direction is taken as it is."""
WILD = 1e10
"""Where what is left grows by this, it is because of rounding."""
FORCE, FORCE_AT_KINKS = 0.05, 0.01
"""The share of the slopes that may be left: closer directions save no steps."""
DROP, MOST_SHRUNK = 1e-2, 4
"""The share of the second derivatives that is left out, in rows that have next to none; a tenth of it where
that leaves too much, and none at all after so many times."""
WAYS = 3
"""How many matrices there are at most."""
LEFT = 0.2
"""The share that may be left of the slopes because rows were left out."""
FEWER = 0.2
"""Rows are left out if they are at least this share."""
SMOOTH = 1e-9
"""What intercepts are held by under smooth losses, beside those with kinks."""
EXACT = 10.0
"""Where kinks bend, the matrix itself is taken at once if it costs no more than so many steps: what is left
of the slopes decides which rows bend next."""
FEW = 4
"""A matrix that costs no more than so many steps is made anew each time."""


Size = Callable[[NDArray], float]


class Slopes(NamedTuple):
    """What second derivatives are found from: the slopes in the scores, mu, and the rows that may bend."""

    dz: NDArray
    mu: float
    at: NDArray | None = None


class Way(NamedTuple):
    """A matrix near that of the equations."""

    level: int
    """How near it is, from 0 on."""
    cost: float
    make: Callable[[Part, NDArray], Solve]


class ManyEquations:
    """Newton's equations of one problem, for one point after the other."""

    def __init__(self, passes: Passes, reg: Any, direct: int, steps: float = 0.0) -> None:
        self.passes, self.reg, self.direct = passes, reg, direct
        risk: Any = passes.risk
        self.loss, self.scorer = risk.loss, risk.scorer
        self.kept: Solve | None = None
        more, level = divmod(int(steps), WAYS)
        self.level = level
        """Which of the matrices the last one was."""
        self.shrunk = more
        """How often too many rows were left out."""
        self.wait = self.patience = 0
        """How many times a kept one is not tried, and how many it was not the last time."""

    @property
    def steps(self) -> float:
        """What is known of the equations, as one number: for the state of a run."""
        return float(WAYS * self.shrunk + self.level)

    @property
    def drop(self) -> float:
        """The share of the second derivatives that is left out."""
        return DROP * 0.1**self.shrunk if self.shrunk < MOST_SHRUNK else 0.0

    def enough(self, g: Array, rest: float) -> float:
        """The size that a residual may have: well below complementarity, which is rest / lam."""
        return 0.3 * math.sqrt(rest)

    def solve(self, slopes: Slopes, lam: float, g: Array, enough: float) -> Array:
        """The direction d, up to a residual of the size `enough`, or a small share of g."""
        weights = self._weights(g, slopes.mu)
        penalty = lam * weights
        size = _sizes(weights)
        norm = size(g)
        # of a smooth loss, what complementarity would allow is rounding
        least = max(enough, FORCE_AT_KINKS * norm) if slopes.mu else FORCE * norm
        enough, left = min(least, 0.5 * norm), LEFT * norm
        d, r, whole = 0.0 * g, -g, self._part(slopes, slopes.at)
        while True:
            part = whole if slopes.mu else self._few(whole, slopes)
            self.kept = None if slopes.mu else self.kept  # where kinks bend, the rows are others each time
            d = self._descend(part, penalty, _Run(part, penalty, d, r, enough, size), slopes.mu > 0)
            if part is whole or not self.drop:  # without a drop, rows that are left out do not bend at all
                return d
            r = -g - penalty * d - whole.times(d)
            if size(r) <= max(2 * enough, left):
                return d
            self.shrunk += 1

    def _weights(self, g: Array, mu: float) -> NDArray:
        """What lam is multiplied by, entry by entry.

        Intercepts are not penalized, but those of classes that bend nowhere would go anywhere: they are held
        like the weight of a feature as long as the rows are; where the loss is smooth, by next to nothing.
        """
        weights = self.reg.terms(g).square + 0.0 * g
        if isinstance(self.scorer, WithOnes):
            weights[-self.scorer.columns :] = self.held * (1.0 if mu else SMOOTH)
        return np.asarray(weights)

    @cached_property
    def held(self) -> float:
        """The weight that intercepts are held by."""
        assert self.passes.rows is not None
        return 1 / mean_square(self.passes.rows, of_features(self.reg, self.scorer.columns))

    def _part(self, slopes: Slopes, at: NDArray | None) -> Part:
        """Some of the rows, with their second derivatives; or all."""
        rows = self.passes.rows
        assert rows is not None
        dz, y, c, X = slopes.dz, rows.y, rows.c, rows_of(rows)
        if at is None or len(at) > (1 - FEWER) * len(y):
            return Part(X, self.loss.curve(dz, y, c, slopes.mu), self.scorer, self.passes)
        few: Any = as_matrix(as_scipy(X)[at] if isinstance(X, Csr) else taken(X, at))
        return Part(few, self.loss.curve(dz[at], y[at], c[at], slopes.mu), self.scorer, None)

    def _few(self, whole: Part, slopes: Slopes) -> Part:
        """The rows that bend: all but those that together have next to no second derivatives."""
        size = whole.curve.diagonal.sum(axis=1)
        order = np.argsort(size)
        out = int(np.searchsorted(np.cumsum(size[order]), self.drop * float(size.sum()), side="right"))
        return whole if out < FEWER * len(size) else self._part(slopes, np.sort(order[out:]))

    def _descend(self, part: Part, penalty: NDArray, run: _Run, kinks: bool) -> NDArray:
        """The direction to where what is left is small enough."""
        P, step = penalty.reshape(-1, self.scorer.columns), inverse.step_cost(part)
        ways = self._ways(part, P)
        if kinks and ways[-1].cost <= EXACT * step:
            self.level = ways[-1].level
        ways = [way for way in ways if way.level >= self.level] or ways[-1:]
        applied = step + (inverse.APPLY * penalty.size**2 if self.level == 2 else 0.0)
        if self.kept is not None and ways[0].cost > FEW * applied:
            self.wait -= 1
            if self.wait < 0:
                if run.go(self.kept, _most(ways[0].cost / applied)):
                    self.patience = 0
                    return run.d
                self.patience = self.wait = 2 * self.patience + 1
        for way, better in zip_longest(ways, ways[1:]):
            self.level, self.kept = way.level, self._level(way.make(part, P))
            if run.go(self.kept, MOST_STEPS if better is None else _most(better.cost / step)):
                break
        return run.d

    def _level(self, solve: Solve) -> Solve:
        """The same, but for the sum of all intercepts, which no score that counts depends on."""
        if not isinstance(self.scorer, WithOnes):
            return solve
        k = self.scorer.columns

        def centred(r: NDArray) -> NDArray:
            return np.concatenate([r[:-k], r[-k:] - r[-k:].mean()])

        return lambda r: centred(solve(centred(r)))

    def _ways(self, part: Part, P: NDArray) -> list[Way]:
        """The matrices that there are, from cheap to good; none that costs more than a better one."""
        rows = Way(2, inverse.rows_cost(part, P, self.direct), inverse.by_rows)
        if part.X.shape[1] > self.direct:
            found = [Way(0, 0.0, inverse.by_diagonal), rows]
        else:
            one = inverse.gram_cost(part)
            features = Way(2, inverse.features_cost(part, self.direct), inverse.by_features)
            found = [Way(0, one, inverse.by_one), Way(1, P.shape[1] * one, inverse.by_class)]
            found.append(min(rows, features, key=lambda way: way.cost))
        return [
            way
            for i, way in enumerate(found)
            if way.cost < min((better.cost for better in found[i + 1 :]), default=np.inf)
        ]


class _Run:
    """Conjugate gradients that can go on under another matrix; wherever they end, d is of descent."""

    def __init__(
        self, part: Part, penalty: NDArray, d: NDArray, r: NDArray, enough: float, size: Size
    ) -> None:
        self.part, self.penalty, self.d, self.r, self.enough, self.size = part, penalty, d, r, enough, size

    def go(self, solve: Solve, most: int) -> bool:
        """Take at most so many steps; whether that was enough."""
        rest = self.size(self.r)
        wild, least = WILD * rest, (rest, self.d, self.r)
        if rest <= self.enough:
            return True
        s = solve(self.r)
        along, size = s, float(self.r @ s)
        for _ in checking(range(most)):
            image = self.penalty * along + self.part.times(along)
            bent = float(along @ image)
            if not (bent > 0 and size > 0):
                return True  # nothing but rounding is left
            step = size / bent
            self.d, self.r = self.d + step * along, self.r - step * image
            rest = self.size(self.r)
            least = min(least, (rest, self.d, self.r), key=lambda found: found[0])
            if rest <= self.enough:
                return True
            if not rest <= wild:  # along what nothing bends, steps are of rounding, and without end
                _, self.d, self.r = least
                return True
            s = solve(self.r)
            size, before = float(self.r @ s), size
            along = s + (size / before) * along
        return False


def _sizes(weights: NDArray) -> Size:
    """The size of slopes under a regularizer of such weights: stationarity is its square over 2 lam."""
    scale = 1.0 if np.ptp(weights) == 0 else 1 / np.sqrt(np.where(weights > 0, weights, 1.0))

    def size(g: NDArray) -> float:
        scaled = scale * g
        return math.sqrt(float(scaled @ scaled))

    return size


def _most(steps: float) -> int:
    return int(min(max(steps, 2.0), MOST_STEPS))
