r"""Variables of a separable convex function, with logarithmic barriers, and Mehrotra's steps for them.

The function of each variable is

.. math:: h(x) = shift\, x + \epsilon |x| + \tfrac{square}2 x^2 \quad\text{for } lower \le x \le upper.

Both sides of a regularized risk have this form: the regularizer in a weight, and the conjugate of the loss in
a multiplier. A slope of h at x is :math:`shift + square\, x + v + t_1 - t_2`, with

.. math:: (\epsilon - v)\, p_1 = (\epsilon + v)\, p_2 = (upper - x)\, t_1 = (x - lower)\, t_2 = \mu, \qquad
          x = p_1 - p_2,

and :math:`\mu = 0`; the central path has :math:`\mu > 0`. In each equation, the first factor is a slack and
the second its multiplier, and both are positive.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

import numpy as np

from riskmin.core import NDArray


class Linearized(NamedTuple):
    """The slope as a linear function of the step dx: slope + curvature dx; and the targets of multipliers."""

    slope: NDArray
    curvature: NDArray
    targets: list[NDArray]


class Step(NamedTuple):
    """A step of x, of v, and of the slacks and their multipliers."""

    x: NDArray
    v: NDArray
    slacks: list[NDArray]
    multipliers: list[NDArray]


class BarrierVariables:
    """Variables with their slacks and multipliers; entries of absent terms have no influence."""

    MIN_MULTIPLIER = 1e-150
    """The least slack and multiplier: products of two of them are still positive numbers."""
    FIXED_CURVATURE = 1e150
    """The curvature of variables that are fixed at zero."""

    def __init__(
        self,
        x: NDArray,
        mu: float,
        *,
        shift: NDArray | float = 0.0,
        epsilon: NDArray | float = 0.0,
        square: NDArray | float = 0.0,
        lower: NDArray | float = -np.inf,
        upper: NDArray | float = np.inf,
    ) -> None:
        full = (np.broadcast_to(np.asarray(s, dtype=float), x.shape) for s in (shift, epsilon, square))
        self.shift, self.epsilon, self.square = full
        self.lower, self.upper = np.broadcast_to(lower, x.shape), np.broadcast_to(upper, x.shape)
        absolute = self.epsilon > 0
        self.present = [absolute, absolute, np.isfinite(self.upper), np.isfinite(self.lower)]
        self.x, self.v = np.array(x, dtype=float), np.zeros(len(x))
        self._count_present()
        self.slacks = self._slacks()
        self.multipliers = self._each(lambda k: self._masked(k, mu / self.slacks[k]))
        # a start at x: x = p_1 - p_2
        if 0 in self.kinds:
            self.multipliers[0] = self.multipliers[0] + np.where(absolute, np.maximum(self.x, 0.0), 0.0)
            self.multipliers[1] = self.multipliers[1] + np.where(absolute, np.maximum(-self.x, 0.0), 0.0)

    def _count_present(self) -> None:
        """Count the products of slacks and multipliers, and note which of the four kinds there are."""
        counts = [int(np.count_nonzero(part)) for part in self.present]
        self.count, self.kinds = sum(counts), [k for k in range(4) if counts[k]]
        self.everywhere = [count == len(self.x) for count in counts]
        self.zeros = np.zeros(len(self.x))

    def _each(self, f: Callable[[int], NDArray]) -> list[NDArray]:
        """Return f(k) for each kind that is present, and zeros for the others."""
        return [f(k) if k in self.kinds else self.zeros for k in range(4)]

    def _masked(self, k: int, values: NDArray, absent: float = 0.0) -> NDArray:
        """Return values where the terms of a kind are present."""
        return values if self.everywhere[k] else np.where(self.present[k], values, absent)

    def without(self, dropped: NDArray) -> BarrierVariables:
        """A copy in which some variables are fixed at zero."""
        result = copy(self)
        result.x, result.v = np.where(dropped, 0.0, self.x), np.where(dropped, 0.0, self.v)
        result.epsilon = np.where(dropped, 0.0, self.epsilon)
        # a curvature that leaves no step
        result.square = np.where(dropped, self.FIXED_CURVATURE, self.square)
        result.present = [part & ~dropped for part in self.present]
        result._count_present()
        result.slacks = result._slacks()
        result.multipliers = result._each(lambda k: result._masked(k, self.multipliers[k]))
        return result

    def _slacks(self) -> list[NDArray]:
        def slack(k: int) -> NDArray:
            both = (
                (self.epsilon, -self.v),
                (self.epsilon, self.v),
                (self.upper, -self.x),
                (self.x, -self.lower),
            )
            return self._masked(k, np.maximum(both[k][0] + both[k][1], self.MIN_MULTIPLIER), 1.0)

        return self._each(slack)

    @property
    def complementarity(self) -> float:
        """The sum of the products of slacks and multipliers: count times mu on the central path."""
        return float(sum(self.slacks[k] @ self.multipliers[k] for k in self.kinds))

    def linearized(self, mu: float, predictor: Step | None = None) -> Linearized:
        """The slope near x, with mu as target; the products of a predictor's steps are taken off."""

        def target(k: int) -> NDArray:
            # the products of the predictor's steps, which a linear model leaves out
            second = 0.0 if predictor is None else predictor.slacks[k] * predictor.multipliers[k]
            return self._masked(k, (mu - second) / self.slacks[k])

        targets = self._each(target)
        slope, curvature = self.shift + self.square * self.x, np.array(self.square)
        rates = self._rates()
        if 0 in self.kinds:
            # x + dx = targets[0] - targets[1] + rate dv: dv is linear in dx
            rate = np.where(self.present[0], rates[0] + rates[1], np.inf)
            slope = slope + self.v + (self.x - targets[0] + targets[1]) / rate
            curvature += 1 / rate
        return Linearized(slope + targets[2] - targets[3], curvature + rates[2] + rates[3], targets)

    def _rates(self) -> list[NDArray]:
        """Multipliers over slacks: how fast a multiplier grows as its slack decreases."""
        return self._each(lambda k: self.multipliers[k] / self.slacks[k])

    def step(self, dx: NDArray, targets: list[NDArray]) -> Step:
        """The step of all parts that belongs to a step dx."""
        rates, dv = self._rates(), np.zeros(len(dx))
        if 0 in self.kinds:
            rate = np.where(self.present[0], rates[0] + rates[1], np.inf)
            dv = (self.x + dx - targets[0] + targets[1]) / rate
        changes = -dv, dv, -dx, dx
        slacks = self._each(lambda k: self._masked(k, changes[k]))
        # slack dm + m dslack = mu - slack m
        multipliers = self._each(
            lambda k: self._masked(k, targets[k] - self.multipliers[k] - rates[k] * slacks[k])
        )
        return Step(dx, dv, slacks, multipliers)

    def reach(self, step: Step) -> float:
        """The largest multiple of a step for which all slacks and multipliers stay nonnegative."""
        largest = 0.0
        for k in self.kinds:
            # multipliers of absent terms are zero, and do not change
            divisor = self.multipliers[k] if self.everywhere[k] else self._masked(k, self.multipliers[k], 1.0)
            shares = (-step.slacks[k] / self.slacks[k]).max(), (-step.multipliers[k] / divisor).max()
            # NaN, which no comparison finds, is a step that is not taken
            largest = max(largest, *(float(share) for share in shares))
        return 1 / largest if largest > 0 else np.inf

    def complementarity_after(self, t: float, step: Step) -> float:
        """The complementarity after t times a step."""
        return float(
            sum(
                (self.slacks[k] + t * step.slacks[k]) @ (self.multipliers[k] + t * step.multipliers[k])
                for k in self.kinds
            )
        )

    def move(self, t: float, step: Step) -> None:
        """Take t times a step."""
        self.x, self.v = self.x + t * step.x, self.v + t * step.v
        self.multipliers = self._each(
            lambda k: self._masked(
                k, np.maximum(self.multipliers[k] + t * step.multipliers[k], self.MIN_MULTIPLIER)
            )
        )
        self.slacks = self._slacks()


START_INTERIOR_SHARE = 0.1
"""The least distance of the first variables to their bounds, as a share of the interval."""


def interior_point_of(x: NDArray, lower: NDArray, upper: NDArray, size: float) -> NDArray:
    """The point nearest to x at a distance from its bounds: a share of the interval, or of a size."""
    with np.errstate(invalid="ignore"):
        margin = START_INTERIOR_SHARE * np.where(np.isfinite(upper - lower), upper - lower, size)
    return np.clip(x, lower + margin, upper - margin)


Direction = Callable[[list[Linearized]], list[NDArray]]
"""Solves the optimality conditions, linear with these slopes and curvatures, for a step of each group."""

BOUNDARY_SHARE = 0.995
"""The share of the way to the boundary that a step takes at most."""
MIN_STEP = 1e-10
"""Steps that are shorter, as a share of the whole one, are not taken: their direction is rounding."""


def predictor_corrector_step(
    groups: list[BarrierVariables], factorize: Callable[[list[Linearized]], Direction]
) -> float:
    """Take one step of Mehrotra's predictor-corrector method; return its length, from 0 to 1.

    0 where rounding leaves no direction; then nothing has moved.
    """
    models, count = [group.linearized(0.0) for group in groups], max(sum(group.count for group in groups), 1)
    direction = factorize(models)
    mu = sum(group.complementarity for group in groups) / count

    def steps(models: list[Linearized]) -> list[Step]:
        return [g.step(dx, m.targets) for g, dx, m in zip(groups, direction(models), models, strict=True)]

    predictor = steps(models)
    reach = min(1.0, *(g.reach(s) for g, s in zip(groups, predictor, strict=True)))
    after = sum(g.complementarity_after(reach, s) for g, s in zip(groups, predictor, strict=True)) / count
    # Mehrotra's rule: the better the predictor, the smaller the target
    target = mu * min(max(after / mu, 0.0) ** 3, 1.0) if mu > 0 else 0.0
    chosen = steps([g.linearized(target, s) for g, s in zip(groups, predictor, strict=True)])
    t = min(1.0, *(BOUNDARY_SHARE * g.reach(s) for g, s in zip(groups, chosen, strict=True)))
    if not all(np.isfinite(part).all() for step in chosen for part in (step.x, step.v)) or not t > MIN_STEP:
        return 0.0
    for group, step in zip(groups, chosen, strict=True):
        group.move(t, step)
    return t
