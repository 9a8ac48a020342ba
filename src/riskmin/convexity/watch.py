"""During a run: cuts are held against points, and withdrawn where one lies below them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from riskmin.arrays import namespace
from riskmin.convexity.owner import is_foreign, named
from riskmin.convexity.scores import exactness, rounding
from riskmin.structured.risk import MarginRisk
from riskmin.types import Array, Cut

KEPT = 4
"""So many of the last cuts and points are kept, and the first."""


@dataclass
class Watch:
    """Holds the cuts of a run against its points: a cut above the risk anywhere is none.

    Parameters
    ----------
    obj : Objective
        Its risk is computed by code of a user's own.
    w0 : array
        Where the run starts.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Objective
    >>> class Dents:
    ...     __module__, dim = "a_module_of_yours", 1
    ...     def __call__(self, w):
    ...         return float(1 + np.sin(w[0])), np.cos(w)
    >>> J = Objective(Dents(), L2(), lam=0.1)
    >>> seen = Watch(J, np.zeros(1))
    >>> for w in (np.zeros(1), np.ones(1)):
    ...     value, _, cut = J(w)
    ...     seen.take(w, value, cut)
    >>> seen.said
    'the risk Dents is not convex, or its gradient is wrong: it is 1.841 where a cut... has 2...'
    """

    obj: Any
    w0: Array
    said: str = ""
    """Why nothing is proved, once that is known."""
    negative: bool = False
    """Whether the risk was seen below zero, so that not even J >= 0 is true."""
    _largest: float = 0.0
    _points: list[tuple[Array, float]] = field(default_factory=list)
    _cuts: list[Cut] = field(default_factory=list)

    def take(self, w: Array, value: float, cut: Cut) -> None:
        """Hold a point and its J against the cuts so far, and a new cut against the points so far."""
        if self.said or not math.isfinite(value):
            return
        r = value - self.obj.lam * self.obj.reg.value(w)
        self._largest = max(self._largest, abs(value))
        if r < -rounding(w, self._largest):
            self.negative = True
            self.refute(f"it is {r:.4g}, but a risk must be >= 0")
        self._points.append((w, r))
        for old in self._cuts:
            self._hold(old, w, r)
        self._cuts.append(cut)
        for v, there in self._points:
            self._hold(cut, v, there)
        del self._points[1:-KEPT], self._cuts[1:-KEPT]

    def _hold(self, cut: Cut, w: Array, r: float) -> None:
        """Hold one cut against one point, and what seems to refute it against a risk from scratch."""
        if self.said or not self._above(cut, w, r):
            return
        r = float(self.obj.risk(w)[0])
        if self._above(cut, w, r):
            self.refute(f"it is {r:.4g} where a cut, a line that must be below it, has {_height(cut, w):.4g}")

    def _above(self, cut: Cut, w: Array, r: float) -> bool:
        above, exact = _height(cut, w) - r, exactness(cut.a)
        slack = 10 * exact * abs(r) + rounding(cut.a, self._largest)
        if not above > slack:
            return False
        size = float(namespace(w).sum(abs(cut.a * w))) + abs(cut.b)  # far out, large terms cancel
        return above > slack + 1e-2 * exact * size

    def refute(self, why: str) -> None:
        """Nothing is proved from now on, for this reason."""
        if not self.said:
            self.said = (
                f"{named(self.obj.risk)} is not convex, or its gradient is wrong: {why}; so nothing is "
                "proved but that J >= 0, and other weights may be better"
            )

    def probe(self, w: Array, value: float, lower: float, cut: Cut) -> tuple[Array, float]:
        """Look at a few points more before a bound is claimed; the best point, should one refute it."""
        with np.errstate(all="ignore"):
            for v in self._probes(w, cut):
                look = self.obj.look(v)
                if not (math.isfinite(look[0]) and math.isfinite(float(look[1] @ v))):
                    continue  # far out, numbers overflow
                there, _, other = self.obj.at(v, *look)
                self.take(v, there, other)
                if there < lower - 10 * exactness(w) * abs(lower) - rounding(w, self._largest):
                    self.refute(f"J is {there:.4g} at a point, below the bound {lower:.4g} of its cuts")
                if self.said:
                    return (v, there) if 0 <= there < value else (w, value)
        return w, value

    def _probes(self, w: Array, cut: Cut) -> Iterator[Array]:
        """The start, zero, w made smaller, larger and turned, the last step again, and a step downwards."""
        reg, xp = self.obj.reg, namespace(w)
        yield self.w0
        yield reg.prox(0.0 * w, 0.0)
        for t in (0.5, 2.0, -1.0):
            yield reg.prox(t * w, 0.0)
        before = next((v for v, _ in reversed(self._points) if bool(xp.any(v != w))), None)
        if before is not None:  # along the last direction
            yield reg.prox(2.0 * w - before, 0.0)
        try:
            d = self.obj.argmin(cut) - w
        except TypeError:  # it has none: a regularizer of straight lines
            d = -1.0 * cut.a
        length, slope = float(d @ d) ** 0.5, float(cut.a @ cut.a) ** 0.5
        if bool(xp.all(xp.isfinite(d))) and length * slope > 0:
            risk = abs(float(cut.a @ w) + cut.b)
            yield reg.prox(w + min(1.0, risk / (length * slope)) * d, 0.0)


def _height(cut: Cut, w: Array) -> float:
    return float(cut.a @ w) + cut.b


def watch(obj: Any, w0: Array) -> Watch | None:
    """What watches a run; nothing does where all code is riskmin's, nor where a model's argmax is watched.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Hinge, Objective, linear_risk
    >>> watch(Objective(linear_risk(np.eye(2), [1.0, -1.0], Hinge()), L2(), 0.1), np.zeros(2)) is None
    True
    """
    argmax = isinstance(obj.risk, MarginRisk)  # whose cuts are below the true risk, whatever it finds
    return Watch(obj, w0) if is_foreign(obj.risk) and not argmax else None
