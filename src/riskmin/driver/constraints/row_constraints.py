r"""Constraints on the scores, and the squared distance from them as a loss.

.. math:: lower_i \le x_i^\top w + b \le upper_i
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.core import Array, NDArray
from riskmin.losses.base import Loss
from riskmin.losses.conjugate import IntervalConjugate


@dataclass(frozen=True, eq=False)
class SquaredViolation(Loss):
    r"""Half the squared violation of the constraint of row i, :math:`\tfrac12 v_i^2`, where
    :math:`v_i = \mathrm{clip}(z_i - t_i, lower_i, upper_i)`.

    An equality has the interval of all numbers, ``z >= t`` that of all numbers <= 0, ``z <= t`` that of those
    >= 0. The label of a row is its number.
    """

    target: NDArray
    lower: NDArray
    upper: NDArray

    smooth = True
    task = "regression"
    formula = "clip(z - t_i, lower_i, upper_i)^2 / 2"

    def violation(self, z: Array, rows: Array) -> NDArray:
        """Return the signed violations v."""
        return np.asarray(np.clip(z - self.target[rows], self.lower[rows], self.upper[rows]))

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return sum_i c_i v_i^2 / 2 and its gradient in z."""
        v = self.violation(z, y.astype(np.int64))
        g = c * v
        return 0.5 * (g @ v), g

    def conjugate(self, y: Array) -> IntervalConjugate:
        """Return the conjugate, t_i u + u^2 / 2 for u in the interval of the row."""
        # solvers ask for the form of the conjugate by the label 1, which a single constraint has not
        rows = np.asarray(y).astype(np.int64) % len(self.target)
        return IntervalConjugate(self.lower[rows], self.upper[rows], self.target[rows], square=1.0)


@dataclass(frozen=True, eq=False)
class RowConstraints:
    """Constraints of rows of X, one side each: a row with two different finite bounds appears twice."""

    rows: NDArray
    """The row of X of each constraint."""
    target: NDArray
    lower: NDArray
    """The smallest violation: 0 if z may not exceed the target only, else minus infinity."""
    upper: NDArray

    @classmethod
    def from_bounds(cls, lower: NDArray, upper: NDArray) -> RowConstraints:
        """Return the constraints of rows with lower <= z <= upper; infinite bounds are none."""
        if np.isnan(lower).any() or np.isnan(upper).any() or (lower > upper).any():
            raise ValueError("a lower bound is above the upper one, or NaN: give bounds lower <= upper")
        equal = lower == upper
        if not np.isfinite(lower[equal]).all():
            raise ValueError("a target is infinite: give finite numbers")
        below, above = np.isfinite(lower) & ~equal, np.isfinite(upper) & ~equal
        rows = np.concatenate([np.flatnonzero(side) for side in (equal, below, above)])
        n_equal, n_below, n_above = (int(side.sum()) for side in (equal, below, above))
        return cls(
            rows,
            np.concatenate([lower[equal], lower[below], upper[above]]),
            np.concatenate([np.full(n_equal + n_below, -math.inf), np.zeros(n_above)]),
            np.concatenate([np.full(n_equal, math.inf), np.zeros(n_below), np.full(n_above, math.inf)]),
        )

    def shifted(self, shift: NDArray) -> SquaredViolation:
        """Return the loss with other targets."""
        return SquaredViolation(self.target + shift, self.lower, self.upper)

    def violation(self, z: NDArray | float) -> NDArray:
        """Return the signed violations at the scores z of the constraints."""
        return np.asarray(np.clip(z - self.target, self.lower, self.upper))

    def in_cone(self, u: NDArray) -> bool:
        """Whether multipliers have the signs of their constraints."""
        return bool(np.all((u >= self.lower) & (u <= self.upper)))
