"""Checks during a run: cuts are compared with points, and withdrawn if the risk is below them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Cut
from riskmin.problem.convexity.scores import absolute_tolerance, relative_tolerance
from riskmin.problem.objective import describe, is_foreign


@dataclass
class CutMonitor:
    """Compares the cuts of a run with its points: a cut above the risk anywhere is invalid.

    Parameters
    ----------
    obj : Objective
        Its risk is computed by user code.
    w0 : array
        The start of the run.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Objective
    >>> class Dents:
    ...     __module__, dim = "a_module_of_yours", 1
    ...     def __call__(self, w):
    ...         return float(1 + np.sin(w[0])), np.cos(w)
    >>> J = Objective(Dents(), L2(), lam=0.1)
    >>> monitor = CutMonitor(J, np.zeros(1))
    >>> for w in (np.zeros(1), np.ones(1)):
    ...     value, _, cut = J(w)
    ...     monitor.take(w, value, cut)
    >>> monitor.refutation
    'the risk Dents is not convex, or its gradient is wrong: it is 1.841 where a cut... has 2...'
    """

    COMPARED_LAST = 4
    """The number of last cuts and points that are compared, beside the first."""

    obj: Any
    w0: Array
    refutation: str = ""
    """Why nothing is proved; empty as long as no violation is known."""
    negative: bool = False
    """Whether the risk was negative somewhere, so that not even J >= 0 is proved."""
    _largest: float = 0.0
    _points: list[tuple[Array, float]] = field(default_factory=list)
    _cuts: list[Cut] = field(default_factory=list)

    def take(self, w: Array, value: float, cut: Cut) -> None:
        """Compare a point and its J with the cuts so far, and a new cut with the points so far."""
        if self.refutation or not math.isfinite(value):
            return
        # R(w) = J(w) - lam Omega(w)
        r = value - self.obj.lam * self.obj.reg.value(w)
        self._largest = max(self._largest, abs(value))
        if r < -absolute_tolerance(w, self._largest):
            self.negative = True
            self.refute(f"it is {r:.4g}, but a risk must be >= 0")
        self._points.append((w, r))
        for earlier in self._cuts:
            self._compare(earlier, w, r)
        self._cuts.append(cut)
        for v, other in self._points:
            self._compare(cut, v, other)
        # the first point and cut stay, and the last few
        del self._points[1 : -self.COMPARED_LAST], self._cuts[1 : -self.COMPARED_LAST]

    def _compare(self, cut: Cut, w: Array, r: float) -> None:
        """Compare one cut with one point; evaluate the risk again before the cut counts as refuted."""
        if self.refutation or not self._above(cut, w, r):
            return
        # r may come from cached scores with rounding errors: recompute it before the risk is rejected
        r = float(self.obj.risk(w)[0])
        if self._above(cut, w, r):
            self.refute(f"it is {r:.4g} where a cut, a line that must be below it, has {_height(cut, w):.4g}")

    def _above(self, cut: Cut, w: Array, r: float) -> bool:
        """Whether a cut at w is above R(w) = r by more than rounding."""
        above, exact = _height(cut, w) - r, relative_tolerance(cut.a)
        slack = 10 * exact * abs(r) + absolute_tolerance(cut.a, self._largest)
        if not above > slack:
            return False
        # a'w + b is a sum of terms that may be large and cancel: allow for their rounding errors
        size = float(namespace(w).sum(abs(cut.a * w))) + abs(cut.b)
        return above > slack + 1e-2 * exact * size

    def refute(self, why: str) -> None:
        """Record the reason why nothing is proved from now on; only the first reason is kept."""
        if not self.refutation:
            self.refutation = (
                f"{describe(self.obj.risk)} is not convex, or its gradient is wrong: {why}; so nothing is "
                "proved but that J >= 0, and other weights may be better"
            )

    def probe(self, w: Array, value: float, lower: float, cut: Cut) -> tuple[Array, float]:
        """Evaluate a few more points before a bound is claimed; returns the best point if one refutes it."""
        with np.errstate(all="ignore"):
            for v in self._probes(w, cut):
                # at each probe: its cut against all points, all cuts against it, and J against the bound
                evaluation = self.obj.evaluate_risk(v)
                if not (math.isfinite(evaluation.value) and math.isfinite(float(evaluation.gradient @ v))):
                    continue  # overflow far out
                other, _, new_cut = self.obj.add_penalty(v, evaluation)
                self.take(v, other, new_cut)
                if other < lower - 10 * relative_tolerance(w) * abs(lower) - absolute_tolerance(
                    w, self._largest
                ):
                    self.refute(f"J is {other:.4g} at a point, below the bound {lower:.4g} of its cuts")
                if self.refutation:
                    return (v, other) if 0 <= other < value else (w, value)
        return w, value

    def _probes(self, w: Array, cut: Cut) -> Iterator[Array]:
        """The start, zero, multiples of w, a repeat of the last step, and a step along descent of the cut."""
        reg, xp = self.obj.reg, namespace(w)
        yield self.w0
        yield reg.prox(0.0 * w, 0.0)
        for t in (0.5, 2.0, -1.0):
            yield reg.prox(t * w, 0.0)
        previous = next((v for v, _ in reversed(self._points) if bool(xp.any(v != w))), None)
        if previous is not None:  # along the last direction
            yield reg.prox(2.0 * w - previous, 0.0)
        try:
            d = self.obj.argmin(cut) - w
        except TypeError:  # a polyhedral regularizer has no minimizer
            d = -1.0 * cut.a
        # at most about as far as where the cut is zero: R / |a| by Cauchy-Schwarz
        length, slope = float(d @ d) ** 0.5, float(cut.a @ cut.a) ** 0.5
        if bool(xp.all(xp.isfinite(d))) and length * slope > 0:
            risk = abs(float(cut.a @ w) + cut.b)
            yield reg.prox(w + min(1.0, risk / (length * slope)) * d, 0.0)


def _height(cut: Cut, w: Array) -> float:
    """The value of the cut at w."""
    return float(cut.a @ w) + cut.b


def monitor_for(obj: Any, w0: Array) -> CutMonitor | None:
    """The monitor of a run; None if all code is riskmin's, or if a model's argmax is checked instead."""
    return CutMonitor(obj, w0) if is_foreign(obj.risk) and not obj.risk.cuts_always_valid else None
