"""Row-by-row dual ascent for user-defined losses and regularizers, by calls of their methods.

The steps are those of the kernel. The transfer function is evaluated for all of w at each row, so a pass
costs O(n p). The curvature of the dual along a row is estimated by the fall of its score at the last visit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin._numba import lazy_module
from riskmin.core import NDArray
from riskmin.core.deadline import check_each
from riskmin.solvers.reference.transfer import RowConjugate

_kernels = lazy_module("dual.conjugate_loops")


@dataclass
class RowwiseAscent:
    """Passes over rows by calls of the loss and the regularizer."""

    MAX_CURVATURE_TRIALS = 60
    """Number of curvature estimates tried per visit to a row."""

    X: tuple[NDArray, NDArray, NDArray, int]
    reg: Any
    loss: Any
    conjugate: RowConjugate
    y: NDArray
    kappa: NDArray
    """Estimated curvature of the dual along each row."""

    def ascend(
        self,
        order: Iterable[int],
        weights: NDArray,
        u: NDArray,
        step_rule: tuple[float, float],
        v: NDArray,
        constraints: Any,
    ) -> None:
        """Visit the rows in the given order; change u, v and the constraint violation in place."""
        P, _, violation, _ = constraints
        rate, damping = step_rule
        for i in check_each(i for i in order if weights[i] > 0):
            index, x = self._row(i)
            if rate:
                new = self._explicit(
                    i, u[i], self._score(i, index, x, 0.0, v, constraints), rate / weights[i]
                )
            else:
                new = self._newton(i, weights[i], u[i], v, constraints)
            new = min(max(u[i] + damping * (new - u[i]), self.conjugate.lower[i]), self.conjugate.upper[i])
            # v = -(1 / lam) sum_i c_i u_i x_i and the violation -(1 / lam) P'(c u) follow u.
            step = -(new - u[i]) * weights[i]
            v[index] += step * x
            violation += step * P[i]
            u[i] = new

    def _row(self, i: int) -> tuple[Any, NDArray]:
        """Return the column indices (all, if dense) and the values of row i."""
        indptr, indices, data, dense = self.X
        start, stop = int(indptr[i]), int(indptr[i + 1])
        return (slice(None) if dense else indices[start:stop]), data[start:stop]

    def _score(self, i: int, index: Any, x: NDArray, step: float, v: NDArray, constraints: Any) -> float:
        """Return the score of row i after adding step * x_i to v, with the constraint terms."""
        P, s, violation, rho = constraints
        v_new = v
        if step:
            v_new = v.copy()
            v_new[index] += step * x
        return float(self.reg.conjugate_grad(v_new)[index] @ x + P[i] @ (s + rho * (violation + step * P[i])))

    def _newton(self, i: int, weight: float, u: float, v: NDArray, constraints: Any) -> float:
        """Return the new u by a Newton step with a curvature that bounds the fall of the score."""
        index, x = self._row(i)
        z, kappa = self._score(i, index, x, 0.0, v, constraints), float(self.kappa[i])
        # Differences of scores below this are rounding errors.
        noise = 4e-15 * (1 + abs(z))
        for _ in range(self.MAX_CURVATURE_TRIALS):
            new = self._implicit(i, u, z, kappa)
            move = new - u
            if move == 0:
                return u
            fall = (z - self._score(i, index, x, -move * weight, v, constraints)) * math.copysign(1.0, move)
            # The score fell no faster than kappa allows: the dual improves. Otherwise raise kappa and try
            # again.
            if fall <= kappa * abs(move) * (1 + 1e-9) + noise:
                # The estimate for the next visit falls by at most a factor of 4.
                self.kappa[i] = max(fall / abs(move), 0.25 * kappa)
                return new
            kappa = max(1.5 * kappa, fall / abs(move))
        return u

    # ------------------------------------------------------------ conjugate of the loss
    def _explicit(self, i: int, u: float, z: float, rate: float) -> float:
        """Return u after a gradient step of the given rate, inside the domain."""
        if self.conjugate.kernel is not None:
            kind, rows, shape = self.conjugate.kernel
            return float(_kernels().gradient_step(u, z, rate, kind, rows[i], shape))
        step = rate * (z - self._slope(i, u))
        end = self.conjugate.upper[i] if step > 0 else self.conjugate.lower[i]
        # Go at most 90 % of the distance to an end where the slope is infinite.
        if not math.isfinite(self._slope(i, end)):
            end = u + 0.9 * (end - u)
        return float(min(u + step, end) if step > 0 else max(u + step, end))

    def _slope(self, i: int, u: float) -> float:
        """Return the derivative of the conjugate of row i at u."""
        return float(self.loss.conjugate(self.y[i : i + 1]).grad(np.array([u]))[0])

    def _implicit(self, i: int, u: float, z: float, kappa: float) -> float:
        """Return the minimizer of l*(t) - z t + kappa (t - u)^2 / 2; by bisection if only l*' is known."""
        if self.conjugate.kernel is not None:
            kind, rows, shape = self.conjugate.kernel
            return float(_kernels().proximal_step(u, z, kappa, kind, rows[i], shape))

        def rises(t: float) -> bool:
            return not self._slope(i, t) + kappa * (t - u) < z

        # Bisection until no floating-point number lies between the ends.
        lo, hi = _bracket(rises, u, self.conjugate.lower[i], self.conjugate.upper[i])
        mid = 0.5 * (lo + hi)
        while lo < mid < hi:
            lo, hi = (lo, mid) if rises(mid) else (mid, hi)
            mid = 0.5 * (lo + hi)
        return mid


def _bracket(rises: Callable[[float], bool], u: float, lower: float, upper: float) -> tuple[float, float]:
    """Return an interval around the minimizer, by growing steps from u."""
    lo = hi = u
    step = 1.0
    while hi < upper and not rises(hi):
        hi, step = min(hi + step, upper), 2 * step
    step = 1.0
    while lo > lower and rises(lo):
        lo, step = max(lo - step, lower), 2 * step
    return lo, hi
