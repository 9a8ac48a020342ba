r"""Conjugate gradients on a face, where dual block ascent for many classes has become slow.

Once it is known which classes have a multiplier, row by row, the dual is a quadratic on a face of the
simplices. Conjugate gradients find its top in far fewer passes than visits to rows do; what leaves the
simplices on the way is projected back, and the best point of the segment to there is taken, so the bound
never falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin.deadline import checking
from riskmin.matrices import Csr, Dense, as_matrix, as_scipy
from riskmin.types import NDArray

STEPS = 30
"""So many steps of conjugate gradients at most."""
WANING = 0.1
"""They end where a step gains less than this part of the best one."""
TRIES = 4
"""So often a step is shortened whose projection does not lead up."""


def _kernels() -> Any:
    from riskmin.kernels import multiclass_checks

    return multiclass_checks


def _simplex() -> Any:
    from riskmin.kernels import simplex

    return simplex


@dataclass
class Face:
    """The rows with more than one multiplier above zero, and all that is known of them."""

    rows: NDArray
    X: Csr | Dense
    beta: NDArray
    c: NDArray
    cost: NDArray
    bend: NDArray
    """c |x|^2 / lam."""
    lam: float

    @classmethod
    def of(
        cls, X: Csr | Dense, beta: NDArray, y: NDArray, c: NDArray, cost: NDArray, bend: NDArray, lam: float
    ) -> Self:
        """The face on which the multipliers are."""
        k = len(cost)
        rows = np.flatnonzero(((beta > 0).sum(axis=1) > 1) & (bend > 0))
        part: Any = as_matrix(as_scipy(X)[rows] if isinstance(X, Csr) else X.X[rows])
        return cls(rows, part, beta[rows, :k].copy(), c[rows], cost[y[rows], :k], bend[rows], lam)

    def climb(self, z: NDArray, W: NDArray) -> tuple[NDArray, NDArray, float, int]:
        """New multipliers and weights, which part of the way to the projection was taken, and the passes.

        Scores of all rows are in z, and W are the weights that belong to the multipliers.
        """
        d, passes = self._top(z[self.rows] + self.cost)
        for _ in range(TRIES):
            there = self.beta + d
            _simplex().project_rows(there)
            D = self.c[:, None] * (there - self.beta)
            A = self._pull(D)
            rise = float(np.vdot(D, self.cost)) + float(np.vdot(W, A))
            if rise > 0:
                t = min(1.0, self.lam * rise / float(np.vdot(A, A)))
                beta = there if t == 1 else self.beta + t * (there - self.beta)
                return beta, W - t / self.lam * A, t, passes
            d *= 0.25
        return self.beta, W, 0.0, passes

    def _top(self, slopes: NDArray) -> tuple[NDArray, int]:
        """The step to the top of the quadratic, or near to it, scaled by the bend of each row."""
        tangent, inverse = _kernels().tangent, 1 / (self.c * self.bend)[:, None]
        tangent(slopes, self.beta, self.c)
        r, d, best = slopes, np.zeros_like(slopes), 0.0
        q = r * inverse
        size = float(np.vdot(r, q))
        for passes in checking(range(STEPS)):
            h = self.X.scores(self._pull(self.c[:, None] * q), 0, len(self.rows))
            tangent(h, self.beta, self.c / self.lam)
            bend = float(np.vdot(q, h))
            if not (bend > 0 and size > 0):
                return d, passes
            d += size / bend * q
            r -= size / bend * h
            gain = size * size / bend
            best = max(best, gain)
            if gain <= WANING * best:
                break
            y = r * inverse
            size, before = float(np.vdot(r, y)), size
            q = y + size / before * q
        return d, passes + 1

    def _pull(self, D: NDArray) -> NDArray:
        A = np.zeros((self.X.shape[1], D.shape[1]))
        self.X.pullback(D, 0, len(D), A)
        return A
