"""Newton's equations of smooth losses, with a matrix that is kept from step to step, or made of a sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin import shards
from riskmin.deadline import pieces
from riskmin.losses.bends import bent
from riskmin.matrices import Csr
from riskmin.regularizers import L2
from riskmin.solvers.newton_matrix import (
    DENSE,
    FEW,
    MOST_STEPS,
    Equations,
    conjugate_gradients,
    factorized,
)
from riskmin.solvers.passes import Passes, blocks, rows_of, taken
from riskmin.types import Array, Bend, NDArray, Scorer, Shard

FALL = 50.0
"""A matrix is kept as long as the square of the gradient falls by this a step."""
PARTS, ENOUGH = 16, 250
"""A sample has one row of so many, and at least so many rows a column: with fewer, steps are poor."""
FEWEST, LEAST = 4, 25
"""Where that is more than one row of so many it has these alone, for a first step or two, unless they are
fewer than so many a column."""
SAME = 2.0
"""Second derivatives along a direction that differ by more than this factor speak against a sample."""
SMALL = 64
"""Up to so many features, a matrix is made in any case: it takes no time, and its steps are exact."""
CHEAP = 8.0
"""A matrix that costs less than so many steps of conjugate gradients is made without trying these."""
SPARSE = 1.5
"""How many times as long a product of two numbers of a sparse row takes as one on a pass."""
LOOSE = 0.2
"""Conjugate gradients end when the residual has fallen to this share of the gradient."""


class Chord:
    """Directions d with (lam K + X' H X) d = -g, for H as it is or was, of all rows or of a sample.

    The matrix is factorized and kept while the gradient falls fast. That of a sample gives way to that of all
    rows for good where the two differ along a direction, or after two steps that were poor although it had
    just been made.
    """

    def __init__(
        self, passes: Passes, reg: Any, lam: float, direct: int, intercept: bool, sampled: bool
    ) -> None:
        self.passes, self.reg, self.lam, self.direct, self.intercept = passes, reg, lam, direct, intercept
        n, p = passes.shape
        self.size = min(max(n // PARTS, ENOUGH * p), n // FEWEST)
        self.sampled = sampled and self.size >= LEAST * p
        """Whether second derivatives of a sample are to be trusted."""
        self.kept: NDArray | None = None
        """The second derivatives that the matrix is made of."""
        self.solve: Callable[[Array], Array] | None = None
        self.fresh = False
        """Whether the matrix was made for the last step."""
        self.poor = 0
        """How many of the last steps were poor, each with a matrix of its own."""
        self.last = math.inf
        """The square of the gradient at the last step."""
        self.steps = 0.0
        """How many steps of conjugate gradients to expect."""

    def direction(self, h: NDArray, g: Array) -> Array:
        """The direction at a point with second derivatives h of its rows, and the gradient g."""
        square = float(g @ g)
        poor = square > self.last / FALL
        self.last = square
        self.poor = self.poor + 1 if poor and self.fresh else 0
        if self.poor > 1:
            self.sampled = False
        self.fresh = self.kept is None or poor
        if self.fresh:
            self.kept = self.solve = None
            if not self._suits(h):
                return self._in_steps(h, g, LOOSE * square**0.5)
            self.kept = self._part(h) if self.sampled else h
        assert self.kept is not None
        if self.solve is None:
            self.solve = factorized(self.passes, self.reg, self.lam, bent(self.kept, self.intercept))
        return self.solve(-1.0 * g)

    def judge(self, h: NDArray, dz: NDArray) -> None:
        """Look whether a sample that was just drawn has the second derivatives of all rows, along dz."""
        if self.fresh and self.sampled and self.kept is not None:
            square = dz * dz
            truth, found = float(h @ square), float(self.kept @ square)
            self.sampled = found <= SAME * truth and truth <= SAME * found

    def renewed(self) -> bool:
        """Whether there is a better matrix than the last one, which then comes next."""
        better = self.kept is not None and (self.sampled or not self.fresh)
        self.kept, self.solve, self.sampled, self.last = None, None, False, math.inf
        return better

    def _part(self, h: NDArray) -> NDArray:
        """Those of a sample alone, of the same sum: of one row of each run of rows, in any order of these."""
        n = len(h)
        ends = np.linspace(0, n, self.size + 1).astype(np.int64)
        at = ends[:-1] + (np.random.default_rng(0).random(self.size) * np.diff(ends)).astype(np.int64)
        part = np.zeros(n)
        part[at] = h[at]
        total, found = float(h.sum()), float(part.sum())
        return part * (total / found) if found > 0 else h

    def _suits(self, h: NDArray) -> bool:
        """Whether to factorize a matrix: there are not too many features, and it costs less than steps."""
        p = self.passes.shape[1]
        return (
            p <= self.direct
            and self.passes.grams(False)
            and (p <= SMALL or self._cost(h) <= max(CHEAP, self.steps))
        )

    def _cost(self, h: NDArray) -> float:
        """What a matrix costs, in steps of conjugate gradients."""
        (n, p), numbers, sparse = self.passes.shape, self.passes.numbers, self.passes.table.sparse
        rows = self.size if self.sampled else np.count_nonzero(h)
        products = 0.5 * rows * (numbers / n) ** 2
        return float(p**3 / (3 * DENSE) + products * SPARSE / (1 if sparse else DENSE)) / (2 * numbers)

    # ------------------------------------------------------------ conjugate gradients
    def _in_steps(self, h: NDArray, g: Array, enough: float) -> Array:
        """By conjugate gradients; where these take longer than a matrix, the next time by that.

        Wherever they end, there is a direction of descent.
        """
        bend = bent(h, self.intercept)
        if min(self.passes.shape) > self.direct:
            most = MOST_STEPS
        else:
            most = math.ceil(self._cost(h)) if self.passes.shape[1] <= self.direct else MOST_STEPS // 5
        if self.steps > most or not isinstance(self.reg, L2) or FEW * np.count_nonzero(h) < len(h):
            equations = Equations(self.passes, self.reg, self.direct, self.steps)
            d = equations.solve(bend, self.lam, g, enough)
            self.steps = equations.steps
            return d
        d, took = self._preconditioned(bend, g, enough, most)
        self.steps = took if took < most else 4.0 * most
        return d

    def _preconditioned(self, bend: Bend, g: Array, enough: float, most: int) -> tuple[Array, int]:
        """By conjugate gradients with the diagonal of the matrix, and how many steps it took."""
        risk, h = self.passes.risk, bend.diagonal
        parts = [h[part] for part in self.passes.parts]
        minus = [self.passes.back(s) for s in bend.minus]
        penalty = self.lam * (self.reg.terms(g).square + 0.0 * g)
        (diagonal,) = risk.executor.sum(squares, each=parts)
        diagonal = diagonal + penalty

        def times(d: Array) -> Array:
            (found,) = risk.executor.sum(curve, risk.scorer, d, each=parts)
            for m in minus:
                found = found - float(m @ d) * m
            return found + penalty * d

        return conjugate_gradients(times, -1.0 * g, enough, most, diagonal)


def curve(shard: Shard, scorer: Scorer, d: Array, h: NDArray) -> tuple[Array]:
    """X' H X d of one shard: a block of rows is scattered while it is still in cache."""
    out = np.zeros_like(d)
    for i, j in shards.blocks(shard, scorer):
        scorer.pullback(shard.X, h[i:j] * scorer.scores(shard.X, d, i, j), i, j, out)
    return (out,)


def squares(shard: Shard, h: NDArray) -> tuple[NDArray]:
    """The diagonal of X' H X, of one shard."""
    X = rows_of(shard)
    out = np.zeros(X.shape[1])
    if isinstance(X, Csr):
        from riskmin.kernels.smooth import csr_squares

        for i, j in pieces(0, len(h), 2 * len(X.data)):
            csr_squares(X.indptr[i : j + 1], X.indices, X.data, h[i:j], out)
        return (out,)
    for at in blocks(np.arange(X.shape[0]), X.shape[1]):
        out += h[at] @ taken(X, at) ** 2
    return (out,)
