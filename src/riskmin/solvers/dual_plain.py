"""Dual ascent a row at a time for losses and regularizers of a user's own, asked as the objects they are.

The same steps as in the kernel. The transfer function is asked for all of w at each row, so a pass costs
O(n p), and what is known of its curvature along a row is how fast the row's score fell last time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.deadline import checking
from riskmin.solvers.transfer import Conjugate
from riskmin.types import NDArray

TRIES = 60

Step = Callable[[int, float, float, float], float]


def _kernels() -> Any:
    from riskmin.kernels import conjugates

    return conjugates


@dataclass
class Plain:
    """A pass over rows, with all that it needs to know."""

    X: tuple[NDArray, NDArray, NDArray, int]
    reg: Any
    loss: Any
    conjugate: Conjugate
    y: NDArray
    kappa: NDArray

    def ascend(
        self,
        order: Iterable[int],
        weights: NDArray,
        u: NDArray,
        pace: tuple[float, float],
        v: NDArray,
        tie: Any,
    ) -> None:
        """Visit the rows in that order, and change u, v and the gap of the constraints."""
        P, _, gap, _ = tie
        rate, damping = pace
        for i in checking(i for i in order if weights[i] > 0):
            at, x = self._row(i)
            if rate:
                new = self._explicit(i, u[i], self._score(i, at, x, 0.0, v, tie), rate / weights[i])
            else:
                new = self._newton(i, weights[i], u[i], v, tie)
            new = min(max(u[i] + damping * (new - u[i]), self.conjugate.lower[i]), self.conjugate.upper[i])
            step = -(new - u[i]) * weights[i]
            v[at] += step * x
            gap += step * P[i]
            u[i] = new

    def _row(self, i: int) -> tuple[Any, NDArray]:
        indptr, indices, data, dense = self.X
        start, stop = int(indptr[i]), int(indptr[i + 1])
        return (slice(None) if dense else indices[start:stop]), data[start:stop]

    def _score(self, i: int, at: Any, x: NDArray, step: float, v: NDArray, tie: Any) -> float:
        """The score of row i, if step * x_i were added to v."""
        P, s, gap, rho = tie
        there = v
        if step:
            there = v.copy()
            there[at] += step * x
        return float(self.reg.conjugate_grad(there)[at] @ x + P[i] @ (s + rho * (gap + step * P[i])))

    def _newton(self, i: int, weight: float, u: float, v: NDArray, tie: Any) -> float:
        """As `_visit` in the kernel, from the curvature that was seen last."""
        at, x = self._row(i)
        z, kappa = self._score(i, at, x, 0.0, v, tie), float(self.kappa[i])
        noise = 4e-15 * (1 + abs(z))
        for _ in range(TRIES):
            new = self._implicit(i, u, z, kappa)
            move = new - u
            if move == 0:
                return u
            fall = (z - self._score(i, at, x, -move * weight, v, tie)) * math.copysign(1.0, move)
            if fall <= kappa * abs(move) * (1 + 1e-9) + noise:
                self.kappa[i] = max(fall / abs(move), 0.25 * kappa)
                return new
            kappa = max(1.5 * kappa, fall / abs(move))
        return u

    # ------------------------------------------------------------ the loss
    def _explicit(self, i: int, u: float, z: float, rate: float) -> float:
        if self.conjugate.kernel is not None:
            kind, rows, shape = self.conjugate.kernel
            return float(_kernels().explicit(u, z, rate, kind, rows[i], shape))
        step = rate * (z - self._slope(i, u))
        end = self.conjugate.upper[i] if step > 0 else self.conjugate.lower[i]
        if not math.isfinite(self._slope(i, end)):  # no further than most of the way to an infinite slope
            end = u + 0.9 * (end - u)
        return float(min(u + step, end) if step > 0 else max(u + step, end))

    def _slope(self, i: int, u: float) -> float:
        return float(self.loss.conjugate_grad(np.array([u]), self.y[i : i + 1])[0])

    def _implicit(self, i: int, u: float, z: float, kappa: float) -> float:
        """The minimizer of l*(t) - z t + kappa (t - u)^2 / 2; by bisection where only l*' is known."""
        if self.conjugate.kernel is not None:
            kind, rows, shape = self.conjugate.kernel
            return float(_kernels().implicit(u, z, kappa, kind, rows[i], shape))

        def rises(t: float) -> bool:
            return not self._slope(i, t) + kappa * (t - u) < z

        lo, hi = _around(rises, u, self.conjugate.lower[i], self.conjugate.upper[i])
        mid = 0.5 * (lo + hi)
        while lo < mid < hi:
            lo, hi = (lo, mid) if rises(mid) else (mid, hi)
            mid = 0.5 * (lo + hi)
        return mid


def _around(rises: Callable[[float], bool], u: float, lower: float, upper: float) -> tuple[float, float]:
    """An interval around the minimizer, by growing steps from u."""
    lo = hi = u
    width = 1.0
    while hi < upper and not rises(hi):
        hi, width = min(hi + width, upper), 2 * width
    width = 1.0
    while lo > lower and rises(lo):
        lo, width = max(lo - width, lower), 2 * width
    return lo, hi
