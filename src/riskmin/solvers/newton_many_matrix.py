r"""Newton's equations of many scores a row, :math:`(\lambda I + \sum_i x_i x_i^\top \otimes H_i)\, d = -g`.

By conjugate gradients, under a matrix that is near the one of the equations and easy to invert. A better one
is made when the steps with the one before would cost more, and kept as long as it serves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from riskmin.deadline import checking
from riskmin.matrices import Csr, as_matrix, as_scipy
from riskmin.scorers import WithOnes
from riskmin.solvers import newton_many_inverse as inverse
from riskmin.solvers.newton_many_inverse import Part, Solve
from riskmin.solvers.passes import Passes, rows_of, taken
from riskmin.types import Array, NDArray

MOST_STEPS = 500
"""Of conjugate gradients, after which a direction is taken as it is."""
WILD = 1e20
"""Where the square of what is left grows by this, it is because of rounding."""
FORCE = 0.05
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
FEW = 4
"""A matrix that costs no more than so many steps is made anew each time."""


class Slopes(NamedTuple):
    """What second derivatives are found from: the slopes in the scores, mu, and the rows that may bend."""

    dz: NDArray
    mu: float
    at: NDArray | None = None


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

    def solve(self, slopes: Slopes, lam: float, g: Array, enough: float) -> Array:
        """The direction d, up to a residual of the norm `enough`, or a small share of g."""
        norm = float(g @ g) ** 0.5
        # of a smooth loss, what complementarity would allow is rounding
        enough, left = min(max(enough if slopes.mu else 0.0, FORCE * norm), 0.5 * norm), LEFT * norm
        penalty = lam * self.reg.terms(g).square + 0.0 * g
        d, r, whole = 0.0 * g, -g, self._part(slopes, slopes.at)
        while True:
            part = whole if slopes.mu else self._few(whole, slopes)
            self.kept = None if slopes.mu else self.kept  # where kinks bend, the rows are others each time
            d = self._descend(part, penalty, d, r, enough)
            if part is whole or not self.drop:  # without a drop, rows that are left out do not bend at all
                return d
            r = -g - penalty * d - whole.times(d)
            if float(r @ r) ** 0.5 <= max(2 * enough, left):
                return d
            self.shrunk += 1

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

    def _descend(self, part: Part, penalty: NDArray, d: NDArray, r: NDArray, enough: float) -> NDArray:
        """From d, which leaves r, to where what is left is of the norm `enough`."""
        run = _Run(lambda v: penalty * v + part.times(v), d, r, enough)
        P = penalty.reshape(-1, self.scorer.columns)
        costs, ways = self._ways(part, P)
        step, self.level = inverse.step_cost(part), min(self.level, len(ways) - 1)
        applied = step + (inverse.APPLY * penalty.size**2 if self.level == 2 else 0.0)
        if self.kept is not None and costs[self.level] > FEW * applied:
            self.wait -= 1
            if self.wait < 0:
                if run.go(self.kept, _most(costs[self.level] / applied)):
                    self.patience = 0
                    return run.d
                self.patience = self.wait = 2 * self.patience + 1
        while True:
            self.kept = self._level(ways[self.level](part, P))
            last = self.level + 1 == len(ways)
            if run.go(self.kept, MOST_STEPS if last else _most(costs[self.level + 1] / step)) or last:
                return run.d
            self.level += 1

    def _level(self, solve: Solve) -> Solve:
        """The same, but for the sum of all intercepts, which no score that counts depends on."""
        if not isinstance(self.scorer, WithOnes):
            return solve
        k = self.scorer.columns

        def centred(r: NDArray) -> NDArray:
            return np.concatenate([r[:-k], r[-k:] - r[-k:].mean()])

        return lambda r: centred(solve(centred(r)))

    def _ways(self, part: Part, P: NDArray) -> tuple[list[float], list[Callable[[Part, NDArray], Solve]]]:
        """The matrices that there are, from cheap to good, and what they cost."""
        if part.X.shape[1] > self.direct:
            return [0.0], [inverse.by_diagonal]
        one, rows = inverse.gram_cost(part), inverse.rows_cost(part, P, self.direct)
        costs: list[float] = [one, P.shape[1] * one]
        ways: list[Callable[[Part, NDArray], Solve]] = [inverse.by_one, inverse.by_class]
        features = inverse.features_cost(part, self.direct)
        if min(rows, features) < np.inf:
            costs.append(min(rows, features))
            ways.append(inverse.by_rows if rows < features else inverse.by_features)
        return costs, ways


class _Run:
    """Conjugate gradients that can go on under another matrix; wherever they end, d is of descent."""

    def __init__(self, product: Callable[[NDArray], NDArray], d: NDArray, r: NDArray, enough: float) -> None:
        self.product, self.d, self.r, self.enough = product, d, r, enough

    def go(self, solve: Solve, most: int) -> bool:
        """Take at most so many steps; whether that was enough."""
        rest = float(self.r @ self.r)
        wild, least = WILD * rest, (rest, self.d, self.r)
        if rest <= self.enough**2:
            return True
        s = solve(self.r)
        along, size = s, float(self.r @ s)
        for _ in checking(range(most)):
            image = self.product(along)
            bent = float(along @ image)
            if not (bent > 0 and size > 0):
                return True  # nothing but rounding is left
            step = size / bent
            self.d, self.r = self.d + step * along, self.r - step * image
            rest = float(self.r @ self.r)
            least = min(least, (rest, self.d, self.r), key=lambda found: found[0])
            if rest <= self.enough**2:
                return True
            if not rest <= wild:  # along what nothing bends, steps are of rounding, and without end
                _, self.d, self.r = least
                return True
            s = solve(self.r)
            size, before = float(self.r @ s), size
            along = s + (size / before) * along
        return False


def _most(steps: float) -> int:
    return int(min(max(steps, 2.0), MOST_STEPS))
