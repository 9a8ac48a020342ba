"""Losses of many scores a row, as Newton's method sees them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin import shards
from riskmin.losses.multiclass import MulticlassHinge, one_hot
from riskmin.objective import Objective
from riskmin.regularizers import L2, penalized
from riskmin.risk import Risk
from riskmin.scalar import ROUNDING
from riskmin.scorers import Centred, Multiclass, WithOnes
from riskmin.shards import inner
from riskmin.solvers.newton_many_matrix import ManyEquations, Slopes
from riskmin.solvers.newton_scores import Look, Scores, bracketed, root
from riskmin.solvers.passes import Passes, mean_square
from riskmin.solvers.weights import of_features
from riskmin.types import Array, NDArray, Unsuited

STIFF = 0.1
"""The share of what the bound bends in a row's multipliers that the first mu is a mean of, with J itself."""
FLAT = 0.3
"""A step of Newton's method for a smooth loss is taken as it is if the slope falls to this share."""


class ManyPasses(Passes):
    """The products with the rows of a risk of many scores."""

    def forward(self, d: Array) -> NDArray:
        """The scores of d, (n, k)."""
        if not d.any():
            return np.zeros((self.shape[0], self.risk.scorer.columns))
        found = self.risk.executor.map(shards.scores, self.risk.scorer, d)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def back(self, dz: Array) -> NDArray:
        """The slopes in w."""
        each, zero = [dz[part] for part in self.parts], np.zeros(self.risk.dim)
        (found,) = self.risk.executor.sum(shards.scatter, self.risk.scorer, zero, each=each)
        return np.asarray(found)


class ManyScores(Scores):
    """The loss of all rows, smoothed by mu around a centre where it has kinks; intercepts are in w."""

    short = 0.0
    stiff = 0.0
    """What the bound bends in the multipliers of a row, beside its weight."""

    def __init__(self, risk: Risk) -> None:
        super().__init__(risk, False)
        self.passes = ManyPasses(risk)
        self.intercepts = risk.scorer.columns if isinstance(risk.scorer, WithOnes) else 0
        self.seen: tuple[Any, ...] = ()
        """The last look along a line: a step often ends there."""

    @staticmethod
    def of(solver: object, obj: Objective) -> ManyScores:
        """Those of an objective; Unsuited, with the remedy, where it is not for Newton's method."""
        name, risk = type(solver).__name__, obj.risk
        if reason := unsuited(name, obj):
            raise Unsuited(reason)
        assert isinstance(risk, Risk)
        simplex = isinstance(risk.loss, MulticlassHinge) and not risk.loss.rescaled
        found = Simplices(risk) if simplex else ManyScores(risk)
        assert risk.rows is not None
        if not found.smooth:
            weights = of_features(obj.reg, risk.scorer.columns)
            found.stiff = mean_square(risk.rows, weights) / (obj.lam * len(risk.rows.c))
        return found

    def equations(self, reg: Any, direct: int, steps: float) -> ManyEquations:
        """Newton's equations."""
        return ManyEquations(self.passes, reg, direct, steps)

    def known(self, state: dict[str, Array]) -> NDArray | None:
        """The slopes in the scores of the multipliers that a state holds, of this or a dual method."""
        beta = state.get("beta")
        if beta is None:
            return state.get("dz")
        own = np.arange(len(beta)), self.y.astype(np.intp)
        dz: NDArray = beta * self.c[:, None]
        dz[own] = 0.0
        dz[own] = -dz.sum(axis=1)
        return dz

    def pulled(self, look: Look, before: tuple[Look, NDArray] | None = None) -> NDArray:
        """The slopes in w; those in intercepts anew each time: where no row is of a class, not even rounding
        may be left of its slope, since no other makes up for it.
        """
        a = super().pulled(look, before)
        if self.intercepts:
            a[-self.intercepts :] = look.dz.sum(axis=0)
        return a

    def look(self, z: NDArray, mu: float, centre: NDArray | None, b: float) -> Look:
        """The slopes at the scores z, the offset of their cut, and the loss there."""
        if self.seen and self.seen[1:3] == (mu, id(centre)) and np.array_equal(self.seen[0], z):
            value, dz, lift = self.seen[3]
        else:
            value, dz, lift = self._soft(z, mu, centre)
        offset = float(value + lift) - inner(dz, z) - ROUNDING * inner(abs(dz), abs(z))
        return Look(dz, offset, 0.0, float(value) if self.smooth else self.truth(z, 0.0)[0])

    def search(
        self, z: NDArray, dz: NDArray, mu: float, centre: NDArray | None, b: float,
        line: Callable[[float], tuple[float, float]], start: float,
    ) -> tuple[float, int]:  # fmt: skip
        """How far to go along dz, `line` giving slope and second derivative of the rest; and the looks."""

        def slope(t: float) -> float:
            there = z + t * dz
            found = self._soft(there, mu, centre)
            self.seen = there, mu, id(centre), found
            return line(t)[0] + inner(found[1], dz)

        first = slope(1.0)
        if abs(first) <= FLAT * abs(start) and self.smooth:
            return 1.0, 1
        return root(lambda t: first if t == 1.0 else slope(t), start)

    def bend(self, look: Look, z: NDArray, mu: float, centre: NDArray | None) -> Any:
        """What the second derivatives are found from."""
        return Slopes(look.dz, mu)

    def ahead(self, z: NDArray, mu: float, centre: NDArray) -> tuple[NDArray, Any] | None:
        """The slopes at the scores z, and what bends them, as if multipliers stayed on the centre's faces."""
        if not centre.any():
            return None  # where they are vertices, nothing bends
        loss, curve = self.loss, self.loss.curve(centre, self.y, self.c, mu)
        plain = loss.cost is None or loss.rescaled
        margins = 1 - one_hot(self.y, z) if plain else loss.cost[self.y.astype(np.intp)]
        return centre + curve.times(z + margins, slice(None)), Slopes(centre, mu)

    def first_centre(self, z: NDArray) -> NDArray | None:
        """All weight on the right classes: then the smoothed loss is a square of what margins lack."""
        return None if self.smooth else np.zeros_like(z)


class Simplices(ManyScores):
    """The same for multipliers on a simplex a row, by kernels."""

    def __init__(self, risk: Risk) -> None:
        super().__init__(risk)
        k, cost = risk.scorer.columns, self.loss.cost
        self.cost = 1.0 - np.eye(k) if cost is None else cost
        self.own = self.y.astype(np.uintp)
        self.pulls: tuple[float, NDArray | None, NDArray] = (0.0, None, np.zeros((len(self.y), k)))

    def first_mu(self, z: NDArray, penalty: float) -> float:
        """The size of the objective: at zero, all wrong classes have their multipliers then.

        And more where the bound bends much in these: a small one would put most rows on a single class, and
        leave it to few which way to go.
        """
        size = self.truth(z, 0.0)[0] + penalty or 1.0
        return max(size, math.sqrt(STIFF * self.stiff * size))

    def look(self, z: NDArray, mu: float, centre: NDArray | None, b: float) -> Look:
        """The slopes at the scores z, the offset of their cut, and the loss there."""
        slopes, counts = np.empty_like(z), np.empty(len(z))
        pull = self._pull(mu, centre)

        def part(s: slice) -> NDArray:
            out, room = np.zeros(3), np.empty((2, z.shape[1]))
            rows = z[s], pull[s], self.own[s], self.c[s]
            _kernels().settle(*rows, self.cost, 1 / mu, *room, slopes[s], counts[s], out)
            return out

        truth, gain, size = (float(v) for v in sum(self.passes.each(part)))
        return Look(slopes, gain - ROUNDING * size, 0.0, truth, counts)

    def search(
        self, z: NDArray, dz: NDArray, mu: float, centre: NDArray | None, b: float,
        line: Callable[[float], tuple[float, float]], start: float,
    ) -> tuple[float, int]:  # fmt: skip
        """How far to go along dz, by Newton's method in a bracket; and the looks."""
        pull = self._pull(mu, centre)

        def at(t: float) -> tuple[float, float]:
            def part(s: slice) -> NDArray:
                out, room = np.zeros(2), np.empty((3, z.shape[1]))
                rows = z[s], dz[s], t, pull[s], self.own[s], self.c[s]
                _kernels().along(*rows, self.cost, 1 / mu, *room, out)
                return out

            found, more = sum(self.passes.each(part)), line(t)
            return float(found[0]) + more[0], float(found[1]) + more[1]

        return bracketed(at, start)

    def bend(self, look: Look, z: NDArray, mu: float, centre: NDArray | None) -> Any:
        """What the second derivatives are found from."""
        assert look.bends is not None
        return Slopes(look.dz, mu, np.flatnonzero(look.bends > 1))

    def _pull(self, mu: float, centre: NDArray | None) -> NDArray:
        """Mu times the multipliers of the centre; kept until either changes."""
        if centre is not None and (self.pulls[0] != mu or self.pulls[1] is not centre):
            pull = centre * (mu / np.where(self.c > 0, self.c, 1.0))[:, None]
            pull[np.arange(len(pull)), self.own] += mu
            self.pulls = mu, centre, pull
        return self.pulls[2]


def _kernels() -> Any:
    from riskmin.kernels import newton_many  # Numba is imported by the first look, not with the package

    return newton_many


def unsuited(name: str, obj: Objective) -> str | None:
    """What Newton's method cannot do with, and what to use instead; None where it is for the objective."""
    risk: Any = obj.risk
    loss, reg = getattr(risk, "loss", None), penalized(obj.reg)
    if not isinstance(risk, Risk) or risk.rows is None:
        return f"{name} needs a linear_risk whose rows are all here: use Lbfgs or Smoothing"
    scorer: Any = risk.scorer
    plain = isinstance(scorer, Multiclass) or (
        isinstance(scorer, (WithOnes, Centred)) and isinstance(scorer.inner, Multiclass)
    )
    if not hasattr(loss, "curve") or not plain:
        return f"{type(loss).__name__} has no second derivatives for {name} here: use Lbfgs or Smoothing"
    if not isinstance(reg, L2):
        return f"{name} needs L2() for many scores, not {reg!r}: use Lbfgs or Smoothing"
    return None
