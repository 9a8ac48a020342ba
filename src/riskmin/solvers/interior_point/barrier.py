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
        self.count = sum(int(np.count_nonzero(part)) for part in self.present)
        self.x, self.v = np.array(x, dtype=float), np.zeros(len(x))
        self.slacks = self._slacks()
        self.multipliers = [np.where(p, mu / s, 0.0) for p, s in zip(self.present, self.slacks, strict=True)]
        # a start at x: x = p_1 - p_2
        self.multipliers[0] += np.where(absolute, np.maximum(self.x, 0.0), 0.0)
        self.multipliers[1] += np.where(absolute, np.maximum(-self.x, 0.0), 0.0)

    def without(self, dropped: NDArray) -> BarrierVariables:
        """A copy in which some variables are fixed at zero."""
        result = copy(self)
        result.x, result.v = np.where(dropped, 0.0, self.x), np.where(dropped, 0.0, self.v)
        result.epsilon = np.where(dropped, 0.0, self.epsilon)
        # a curvature that leaves no step
        result.square = np.where(dropped, self.FIXED_CURVATURE, self.square)
        result.present = [part & ~dropped for part in self.present]
        result.count = sum(int(np.count_nonzero(part)) for part in result.present)
        result.slacks = result._slacks()
        result.multipliers = [
            np.where(p, m, 0.0) for p, m in zip(result.present, self.multipliers, strict=True)
        ]
        return result

    def _slacks(self) -> list[NDArray]:
        slacks = self.epsilon - self.v, self.epsilon + self.v, self.upper - self.x, self.x - self.lower
        return [
            np.where(p, np.maximum(s, self.MIN_MULTIPLIER), 1.0)
            for p, s in zip(self.present, slacks, strict=True)
        ]

    @property
    def complementarity(self) -> float:
        """The sum of the products of slacks and multipliers: count times mu on the central path."""
        return float(sum(s @ m for s, m in zip(self.slacks, self.multipliers, strict=True)))

    def linearized(self, mu: float, predictor: Step | None = None) -> Linearized:
        """The slope near x, with mu as target; the products of a predictor's steps are taken off."""
        # the products of the predictor's steps, which a linear model leaves out
        second = [np.zeros(len(self.x))] * 4
        if predictor is not None:
            second = [s * m for s, m in zip(predictor.slacks, predictor.multipliers, strict=True)]
        targets = [
            np.where(p, (mu - q) / s, 0.0) for p, q, s in zip(self.present, second, self.slacks, strict=True)
        ]
        slope, curvature = self.shift + self.square * self.x, np.array(self.square)
        rates = self._rates()
        if self.present[0].any():
            # x + dx = targets[0] - targets[1] + rate dv: dv is linear in dx
            rate = np.where(self.present[0], rates[0] + rates[1], np.inf)
            slope = slope + self.v + (self.x - targets[0] + targets[1]) / rate
            curvature += 1 / rate
        return Linearized(slope + targets[2] - targets[3], curvature + rates[2] + rates[3], targets)

    def _rates(self) -> list[NDArray]:
        """Multipliers over slacks: how fast a multiplier grows as its slack decreases."""
        return [m / s for m, s in zip(self.multipliers, self.slacks, strict=True)]

    def step(self, dx: NDArray, targets: list[NDArray]) -> Step:
        """The step of all parts that belongs to a step dx."""
        rates, dv = self._rates(), np.zeros(len(dx))
        if self.present[0].any():
            rate = np.where(self.present[0], rates[0] + rates[1], np.inf)
            dv = (self.x + dx - targets[0] + targets[1]) / rate
        slacks = [np.where(p, d, 0.0) for p, d in zip(self.present, (-dv, dv, -dx, dx), strict=True)]
        # slack dm + m dslack = mu - slack m
        multipliers = [
            np.where(p, t - m - r * d, 0.0)
            for p, t, m, r, d in zip(self.present, targets, self.multipliers, rates, slacks, strict=True)
        ]
        return Step(dx, dv, slacks, multipliers)

    def reach(self, step: Step) -> float:
        """The largest multiple of a step for which all slacks and multipliers stay nonnegative."""
        pairs = zip(self.slacks + self.multipliers, step.slacks + step.multipliers, strict=True)
        shares = (np.max(-d / np.where(s > 0, s, 1.0), initial=0.0) for s, d in pairs)
        largest = max(float(share) for share in shares)
        return 1 / largest if largest > 0 else np.inf

    def complementarity_after(self, t: float, step: Step) -> float:
        """The complementarity after t times a step."""
        parts = zip(self.slacks, step.slacks, self.multipliers, step.multipliers, strict=True)
        return float(sum((s + t * ds) @ (m + t * dm) for s, ds, m, dm in parts))

    def move(self, t: float, step: Step) -> None:
        """Take t times a step."""
        self.x, self.v = self.x + t * step.x, self.v + t * step.v
        self.multipliers = [
            np.where(p, np.maximum(m + t * dm, self.MIN_MULTIPLIER), 0.0)
            for p, m, dm in zip(self.present, self.multipliers, step.multipliers, strict=True)
        ]
        self.slacks = self._slacks()


Direction = Callable[[list[Linearized]], list[NDArray]]
"""Solves the optimality conditions, linear with these slopes and curvatures, for a step of each group."""

BOUNDARY_SHARE = 0.995
"""The share of the way to the boundary that a step takes at most."""
MIN_STEP = 1e-10
"""Steps that are shorter, as a share of the whole one, are not taken: their direction is rounding."""


def predictor_corrector_step(groups: list[BarrierVariables], factorize: Callable[[], Direction]) -> float:
    """Take one step of Mehrotra's predictor-corrector method; return its length, from 0 to 1.

    0 where rounding leaves no direction; then nothing has moved.
    """
    direction, count = factorize(), max(sum(group.count for group in groups), 1)
    mu = sum(group.complementarity for group in groups) / count

    def steps(models: list[Linearized]) -> list[Step]:
        return [g.step(dx, m.targets) for g, dx, m in zip(groups, direction(models), models, strict=True)]

    predictor = steps([group.linearized(0.0) for group in groups])
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
