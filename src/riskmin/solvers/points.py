r"""Points of a linear risk with a smooth loss, all of whose rows are here: they keep their scores.

Looking at one takes a pass back over X; its intercept is found on the kept scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from riskmin.deadline import checking, pieces
from riskmin.losses.pieces import conjugate_of, dual_of
from riskmin.matrices import Csr, Dense
from riskmin.objective import Objective
from riskmin.scalar import ROUNDING, Tangent, balance, crossing, lowest
from riskmin.types import Array, Cut, HasConjugate, NDArray, Shard


@dataclass
class Point:
    """A point, with its scores and its intercept."""

    w: NDArray
    z: NDArray
    b: float = 0.0
    moves: int = 0


@dataclass
class Seen:
    """What is known of a point: J and a cut, and the slopes of the risk in w and in the scores."""

    value: float
    grad: NDArray
    cut: Cut
    risk: float
    slope: NDArray


class Side(NamedTuple):
    """A tangent of the risk in the intercept, and the slopes in the scores there."""

    at: Tangent
    slopes: NDArray


Sides: TypeAlias = tuple[Side, Side] | tuple[None, None]


@dataclass
class Points:
    """Where an objective is looked at."""

    obj: Objective
    rows: Shard
    loss: Any
    free: bool
    """Whether there is an intercept."""

    def place(self, w: Array) -> Point:
        """A point of the domain, with scores computed anew."""
        w = self.obj.reg.prox(np.array(w, dtype=np.float64), 0.0)
        n = len(self.rows.y)
        return Point(w, self.rows.X.scores(w, 0, n) if w.any() else np.zeros(n))

    def look(self, at: Point, guess: NDArray | None = None) -> Seen:
        """One pass over the columns; and over the slopes in the scores that a model foresaw, where it did.

        A model's slopes pull at its columns by lam at most, if it is solved exactly, while those of the risk
        itself differ by the square of the step: so their cut proves as much as the next step would.
        """
        self.obj.count.calls += 1
        y, c = self.rows.y, self.rows.c
        if self.free:
            risk, slope, slip = self._profile(at)
        else:
            risk, slope = self.loss.value_grad(at.z, y, c)
            slip = 0.0
        grad, other = self._pull(slope, None if guess is None else c * guess)
        slip += ROUNDING * float(np.abs(slope) @ (np.abs(at.z) + abs(at.b)))
        value, grad, cut = self.obj.at(at.w, float(risk), grad, slip)
        if guess is not None:
            better = self._foreseen(guess, other, at.z)
            cut = max(cut, better, key=self.obj.lower)
        return Seen(value, grad, cut, float(risk), slope)

    def _pull(self, slope: NDArray, guess: NDArray | None) -> tuple[NDArray, NDArray]:
        """The gradients of slopes in the scores, in one pass over rows."""
        X: Any = self.rows.X
        grad, other = np.zeros(X.shape[1]), np.zeros(X.shape[1])
        if guess is None or not isinstance(X, (Csr, Dense)):
            X.pullback(slope, 0, len(slope), grad)
            if guess is not None:
                X.pullback(guess, 0, len(slope), other)
            return grad, other
        from riskmin.kernels import linear  # Numba is imported by the first look, not with the package

        n, p = X.shape
        if isinstance(X, Dense):
            for i, j in pieces(0, n, 2 * n * p):
                linear.dense_pull_two(X.X[i:j], slope[i:j], guess[i:j], grad, other)
            return grad, other
        both = np.zeros((p, 2))
        for i, j in pieces(0, n, 2 * len(X.data)):
            linear.csr_pull_two(X.indptr[i : j + 1], X.indices, X.data, slope[i:j], guess[i:j], both)
        grad, other = np.ascontiguousarray(both.T)
        return grad, other

    def _foreseen(self, u: NDArray, a: NDArray, z: NDArray) -> Cut:
        """The cut of such slopes, by the conjugate of the loss, less what rounding may add."""
        y, c = self.rows.y, self.rows.c
        conjugate = np.where(c > 0, conjugate_of(self.loss, u, y), 0.0)
        dual = dual_of(self.loss, y)
        far = np.abs(z) + (1.0 if dual is None else np.abs(dual.shift))
        return Cut(a, -float(c @ conjugate) - ROUNDING * float(c @ (np.abs(conjugate) + np.abs(u) * far)))

    def foresee(self, slopes: NDArray) -> NDArray | None:
        """Slopes in the scores over the weights, as near as the loss can have them; None if it cannot say."""
        y, c = self.rows.y, self.rows.c
        dual = dual_of(self.loss, y)
        if dual is not None:
            lower, upper = dual.lower, dual.upper
        elif isinstance(self.loss, HasConjugate):
            lower, upper = self.loss.conjugate_domain(y)
        else:
            return None
        return np.clip(np.where(c > 0, slopes / np.where(c > 0, c, 1.0), 0.0), lower, upper)

    def _profile(self, at: Point) -> tuple[float, NDArray, float]:
        """Find the best intercept; the risk there, slopes of sum zero, and how far their cut lies below.

        As in `Profiled`, two tangents around it are mixed so that the slope in b is zero. Newton's method
        brings them closer together, which the gradient shows where lam is small.
        """
        lo, hi = self._newton(at) if at.moves else (None, None)
        if lo is None or hi is None:
            around = self.obj.risk.cursor(at.w).known[0.0]  # type: ignore[attr-defined]
            at.b = lowest(*around).x
            lo, hi = self._newton(at)
        if lo is None or hi is None:
            lo, hi = self._straddle(at, sum(t.x for t in around) / 2, (around[1].x - around[0].x) / 2, 12)
        if lo is None or hi is None:
            raise ValueError("rounding hides the best intercept: use Bundle, which needs it less exactly")
        best, (one, other) = lowest(lo.at, hi.at), balance(lo.at, hi.at)
        at.b = best.x
        return best.value, one * lo.slopes + other * hi.slopes, best.value - crossing(lo.at, hi.at)[1]

    def _newton(self, at: Point) -> Sides:
        """Tangents close around the best intercept, if Newton's method finds it from the last one on."""
        y, c = self.rows.y, self.rows.c
        b, reach = at.b, 1.0
        for _ in checking(range(8)):
            slope = float(self.loss.value_grad(at.z + b, y, c)[1].sum())
            bend = float(self.loss.curvature(at.z + b, y, c).sum())
            reach = abs(slope) / bend if bend > 0 else math.inf
            if not 1e-14 * (1 + abs(b)) < reach < 1:
                break
            b -= slope / bend
        return self._straddle(at, b, 4 * reach, 4) if reach < 1e-6 else (None, None)

    def _straddle(self, at: Point, b: float, reach: float, tries: int) -> Sides:
        """Tangents on either side of b, as close as they can be, with the minimum between them."""
        reach += 1e-15 * (1 + abs(b))
        for _ in checking(range(tries)):
            lo, hi = self._side(at, b - reach), self._side(at, b + reach)
            if lo.at.slope <= 0 <= hi.at.slope:
                return lo, hi
            reach *= 8
        return None, None

    def _side(self, at: Point, b: float) -> Side:
        risk, slopes = self.loss.value_grad(at.z + b, self.rows.y, self.rows.c)
        return Side(Tangent(b, float(risk), float(slopes.sum())), slopes)
