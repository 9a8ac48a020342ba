"""A risk as Newton's method sees it: a smoothed function of the scores of the rows, wherever these are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from riskmin.deadline import checking
from riskmin.intercept import CLOSE, around_least, without_intercept
from riskmin.losses.bends import bend, times
from riskmin.losses.pieces import dual_of
from riskmin.losses.queries import named
from riskmin.losses.smoothing import can_be_smoothed, soft, takes_centre
from riskmin.objective import Objective
from riskmin.risk import SHRUNK, Risk
from riskmin.scalar import ROUNDING, Tangent, balance, lowest, shrink
from riskmin.solvers.newton_matrix import Equations
from riskmin.solvers.passes import Passes
from riskmin.types import Array, Bend, Bends, Curved, Euclidean, NDArray, Smooth, Unsuited

FLAT = 0.05
"""Searches end where the slope has fallen to this share: closer ones save no steps."""


class Look(NamedTuple):
    """What the multipliers of a point prove: R is nowhere below ``dz @ z + offset``, for scores z."""

    dz: NDArray
    offset: float
    b: float
    """The intercept there."""
    risk: float
    """The loss itself, with an intercept of its own."""
    bends: NDArray | None = None
    """The second derivatives, where they come with the multipliers."""


class Scores:
    """The loss of all rows, smoothed by mu around a centre, and without its intercept."""

    short = 0.3
    """After steps that were cut shorter than this, directions are held back."""

    def __init__(self, risk: Risk, intercept: bool) -> None:
        self.passes = Passes(risk)
        self.y, self.c = self.passes.table.y, self.passes.table.c
        self.loss: Any = risk.loss
        self.risk = risk
        self.intercept = intercept
        self.smooth, self.central = bool(getattr(self.loss, "smooth", False)), takes_centre(self.loss)

    @staticmethod
    def of(solver: object, obj: Objective) -> Scores:
        """Those of an objective; Unsuited, with the remedy, where it is not for Newton's method."""
        name, risk = type(solver).__name__, obj.risk
        if isinstance(risk, Risk) and risk.many:
            from riskmin.solvers.newton_many import ManyScores

            return ManyScores.of(solver, obj)
        inner = without_intercept(risk)
        table = inner.table if isinstance(inner, Risk) else None
        if table is None or not isinstance(table.y, np.ndarray):
            raise Unsuited(
                f"{name} needs a linear_risk of NumPy's numbers, with one score a row: "
                "use Auto, Smoothing or Bundle"
            )
        if not (isinstance(obj.reg, Euclidean) and isinstance(obj.reg, Smooth)):
            raise Unsuited(f"{name} needs L2() or Quadratic(K), not {obj.reg!r}: use Bundle")
        if not bends(inner.loss, table.y):
            raise Unsuited(f"{type(named(inner.loss)).__name__} cannot be smoothed and bent: use Bundle")
        if dual_of(inner.loss, table.y[:1]) is not None:
            from riskmin.solvers.newton_boxes import Boxes

            return Boxes(inner, inner is not risk)
        from riskmin.solvers.newton_curves import KINDS, Curves

        if type(inner.loss) in KINDS:
            return Curves(inner, inner is not risk)
        return Scores(inner, inner is not risk)

    @property
    def least_mu(self) -> float:
        """A smaller mu than this may as well be 0."""
        return 0.0

    def equations(self, reg: Any, direct: int, steps: float) -> Any:
        """Newton's equations."""
        return Equations(self.passes, reg, direct, steps)

    def known(self, state: dict[str, Array]) -> NDArray | None:
        """The slopes in the scores of the multipliers that a state holds, of this or a dual method."""
        u = state.get("u")
        return state.get("dz") if u is None else self.c * u

    def pulled(self, look: Look, before: tuple[Look, NDArray] | None = None) -> NDArray:
        """X' dz of a look; from that of the look before, where only what has changed costs a pass over X.

        Anew where little is left of that: rounding errors must not be those of larger slopes.
        """
        if before is not None:
            last, old = before
            a = old + self.passes.back(look.dz - last.dz)
            if SHRUNK * np.max(np.abs(a)) >= np.max(np.abs(old)):
                return a
        return self.passes.back(look.dz)

    def first_mu(self, z: NDArray, penalty: float) -> float:
        """The mu for which what is taken off is of the size of the loss itself; 0 for smooth losses.

        And no less than J: where a run for a larger lam has left off, the loss may be as good as zero.
        """
        if self.smooth:
            return 0.0
        risk, b = self.truth(z, 0.0)
        if not risk > 0:
            return penalty or 1.0
        tiny = 1e-3 * risk
        most = float(self._soft(z + b if b else z, tiny, None)[2]) / tiny
        return max(risk / most if most > 0 else 0.0, risk + penalty)

    def look(self, z: NDArray, mu: float, centre: NDArray | None, b: float) -> Look:
        """The multipliers at the scores z, and the loss there; b is where to look for the intercept."""
        dz, offset, b = self._multipliers(z, mu, centre, b)
        return Look(dz, offset, b, self.truth(z, b)[0])

    def search(
        self, z: NDArray, dz: NDArray, mu: float, centre: NDArray | None, b: float,
        line: Callable[[float], tuple[float, float]], start: float,
    ) -> tuple[float, int]:  # fmt: skip
        """How far to go along dz, `line` giving slope and second derivative of the rest; and the looks."""

        def slope(t: float) -> float:
            there, *_ = self._multipliers(z + t * dz, mu, centre, b)
            return line(t)[0] + float(there @ dz)

        return root(slope, start)

    def ahead(self, z: NDArray, mu: float, centre: NDArray) -> tuple[NDArray, Any] | None:
        """The slopes at the scores z, and what bends them, if multipliers stayed on the faces that they have
        in the centre; None where these are not known.
        """
        return None

    def first_centre(self, z: NDArray) -> NDArray | None:
        """The centre to begin with; None is zero."""
        return None

    def _multipliers(
        self, z: NDArray, mu: float, centre: NDArray | None, b: float
    ) -> tuple[NDArray, float, float]:
        """The slopes in the scores z, the offset of their cut, and the intercept."""
        if not self.intercept:
            value, dz, lift = self._soft(z, mu, centre)
            return dz, float(value + lift - dz @ z) - self._slip(dz, z, 0.0), 0.0
        seen: dict[float, tuple[float, NDArray]] = {}

        def at(b: float) -> Tangent:
            value, dz, lift = self._soft(z + b, mu, centre)
            seen[b] = float(value + lift - dz @ (z + b)), dz
            return Tangent(b, float(value), float(dz.sum()))

        ends = least(at, b)
        offset, mixed = 0.0, np.zeros_like(z)
        for part, end in zip(balance(*ends), ends, strict=True):  # mixed, they do not change with b
            if part:
                offset, mixed = offset + part * seen[end.x][0], mixed + part * seen[end.x][1]
        b = lowest(*ends).x
        return mixed, offset - self._slip(mixed, z, b), b

    def _slip(self, dz: NDArray, z: NDArray, b: float) -> float:
        """What rounding may have added to the offset of a cut."""
        found = ROUNDING * float(abs(dz) @ (abs(z) + abs(b)))
        return found if self.loss.separable else found + self.risk.slip_of_sums(z)

    def truth(self, z: NDArray, b: float) -> tuple[float, float]:
        """The loss itself, and its intercept."""
        if not self.intercept:
            return float(self.loss.value_grad(z, self.y, self.c)[0]), 0.0

        def at(b: float) -> Tangent:
            value, dz = self.loss.value_grad(z + b, self.y, self.c)
            return Tangent(b, float(value), float(dz.sum()))

        best = lowest(*least(at, b))
        return best.value, best.x

    def bend(self, look: Look, z: NDArray, mu: float, centre: NDArray | None) -> Bend:
        """The second derivatives; the intercept that follows takes a rank of them."""
        b = look.b
        found = bend(self.loss, z + b if b else z, self.y, self.c, mu, centre)
        if not self.intercept:
            return found
        s = times(found, np.ones_like(z))
        total = float(s.sum())
        return found._replace(minus=(*found.minus, s / total**0.5)) if total > 0 else found

    def _soft(self, z: NDArray, mu: float, centre: NDArray | None) -> tuple[Any, NDArray, Any]:
        if mu:
            return soft(self.loss, z, self.y, self.c, mu, centre)
        return *self.loss.value_grad(z, self.y, self.c), 0.0


def bends(loss: Any, y: Array) -> bool:
    """Whether Newton's method can be used for a loss, with labels such as y.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import FBeta, Hinge, Logistic, RocArea
    >>> [bends(loss, np.ones(1)) for loss in (Hinge(), Logistic(), RocArea(), FBeta())]
    [True, True, True, False]
    """
    if getattr(loss, "smooth", False):
        return isinstance(loss, Curved)
    return can_be_smoothed(loss, y[:1]) and (isinstance(loss, Bends) or dual_of(loss, y[:1]) is not None)


def least(f: Any, b: float) -> tuple[Tangent, Tangent]:
    """Two tangents around the least of a function of the intercept, looked for from b on."""
    lo, hi = around_least(f, f(b), 0.1)
    return shrink(f, lo, hi, lambda best, bound: best - bound <= CLOSE * abs(best))


def bracketed(at: Callable[[float], tuple[float, float]], start: float) -> tuple[float, int]:
    """Where a convex function is least, by slope and second derivative, from 1 on; and the looks.

    By Newton's method, in a bracket that at least halves every third look: of exponentials, its steps from
    above are short. `start` < 0 is the slope at 0.

    Examples
    --------
    >>> t, looks = bracketed(lambda t: (t**3 - 0.5, 3 * t * t), -0.5)
    >>> abs(t**3 - 0.5) <= 0.05 * 0.5, looks
    (True, 3)
    """
    lo, hi, t, width = 0.0, math.inf, 1.0, math.inf
    for looks in range(1, 61):
        slope, bend = at(t)
        if abs(slope) <= FLAT * abs(start):
            return t, looks
        lo, hi = (t, hi) if slope < 0 else (lo, t)
        new = t - slope / bend if bend > 0 else math.inf
        slow = looks % 3 == 0 and hi - lo > 0.5 * width
        width = hi - lo if looks % 3 == 0 else width
        if slow or not lo < new < hi:
            new = 2 * t if hi == math.inf else 0.5 * (lo + hi)
        if not lo < new < hi:
            break
        t = new
    return lo or t, looks


def root(slope: Callable[[float], float], start: float) -> tuple[float, int]:
    """Where a convex function is least, by its slope: `start` < 0 at 0, and zero near 1; and the looks.

    By secants, of which each side's slope is halved when the other side moves twice.

    Examples
    --------
    >>> t, looks = root(lambda t: t**3 - 0.5, -0.5)
    >>> abs(t**3 - 0.5) <= 0.05 * 0.5
    True
    """
    lo, hi, t = (0.0, start), (math.inf, math.inf), 1.0
    kept = 0
    for looks in checking(range(1, 41)):
        here = slope(t)
        if abs(here) <= FLAT * abs(start):
            return t, looks
        if here > 0:
            hi, lo, kept = (t, here), (lo[0], 0.5 * lo[1]) if kept > 0 else lo, 1
        else:
            lo, hi, kept = (t, here), (hi[0], 0.5 * hi[1]) if kept < 0 else hi, -1
        if hi[0] == math.inf:
            ahead = t * start / (start - here) if here > start else math.inf
            t = min(max(ahead, 2 * t), 10 * t)
        else:
            t = (lo[0] * hi[1] - hi[0] * lo[1]) / (hi[1] - lo[1])
            if not lo[0] < t < hi[0]:
                break
    return lo[0], looks
