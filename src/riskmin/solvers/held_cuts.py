r"""A bundle of cuts with slopes in intercepts, which are not penalized.

They are held near where they are, by :math:`\tfrac\rho2 |b - b_0|^2` in the model alone, so that it is the
same program with one more coordinate an intercept, and offsets :math:`b_t + \beta_t^\top b_0`, where
:math:`\beta_t` are the slopes of a cut. What it finds bounds J once the cut is balanced, and its slopes fade:
they are :math:`\rho` times the way that the model would go. The cuts of "always predict j" are in the bundle
from the start, so that the program balances by itself most of what there is to balance.

Rows are taken less their mean, that is, b is the score of the mean row: else each step of the weights would
need another one of the intercepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays import like, namespace, to_numpy, zeros_beside
from riskmin.intercepts import WithIntercepts
from riskmin.matrices import as_matrix
from riskmin.objective import Objective
from riskmin.regularizers import L2, Separable, penalized
from riskmin.scorers import Standardized
from riskmin.shards import blocks
from riskmin.solvers.cuts import Cuts, NewtonProgram, QuadraticProgram, check_intercepts, no_program
from riskmin.solvers.lp import LinearProgram
from riskmin.types import Array, CurvedConjugate, Cut, Euclidean, NDArray, Scorer, Shard

HOLD = 0.1
"""How strongly intercepts are held, beside a weight of a feature that is as large as the rows are long."""
ROUNDED = 1e-12
"""Rows that differ from their mean by a smaller share are all the same, but for rounding."""
MOST_CONSTANTS = 64
"""Up to so many classes, the cuts of "always predict j" are in the bundle: each is as long as w."""


# ---------------------------------------------------------------- the regularizer of the model
@dataclass(frozen=True)
class Held:
    """A regularizer of w, and a square of the intercepts at its end."""

    reg: Any
    k: int
    weight: float

    def conjugate(self, u: Array) -> float:
        """The sum of both."""
        tail = u[-self.k :]
        return float(self.reg.conjugate(u[: -self.k])) + 0.5 / self.weight * float(tail @ tail)

    def conjugate_grad(self, u: Array) -> Array:
        """Where it is attained."""
        head = self.reg.conjugate_grad(u[: -self.k])
        return namespace(u).concat([head, u[-self.k :] / self.weight])


@dataclass(frozen=True)
class HeldSquare(Held):
    """The same of w' K w / 2."""

    def gram(self, A: Array, a: Array) -> Array:
        """The inner products of the conjugate's norm."""
        k = self.k
        return self.reg.gram(A[:, :-k], a[:-k]) + A[:, -k:] @ (a[-k:] / self.weight)


@dataclass(frozen=True)
class HeldCurved(Held):
    """The same of a regularizer whose conjugate has second derivatives."""

    def conjugate_bend(self, u: Array, A: Array) -> Array:
        """A H A' for the derivative H of `conjugate_grad`."""
        k = self.k
        return self.reg.conjugate_bend(u[:-k], A[:, :-k]) + A[:, -k:] @ A[:, -k:].T / self.weight


# ---------------------------------------------------------------- rows less their mean
@dataclass(frozen=True)
class Frame:
    """Cuts and points as they are with rows less their mean, and back."""

    inner: Any
    """The scorer without intercepts."""
    mean: Array
    k: int

    @classmethod
    def of(cls, risk: WithIntercepts, w: Array) -> Frame:
        known, scorer = risk.constants, risk.scorer
        mean = to_numpy(namespace(known.sums).sum(known.sums, axis=1)) / known.weights.sum()
        inner: Any = scorer.inner  # type: ignore[attr-defined]
        inner = inner.inner if isinstance(inner, Standardized) else inner  # the mean is of standard columns
        return cls(inner, like(mean, w), risk.n_intercepts)

    def inside(self, cut: Cut) -> Cut:
        """A cut of the risk, for rows less their mean."""
        slopes = cut.a[-self.k :]
        return Cut(namespace(cut.a).concat([cut.a[: -self.k] - self._lean(slopes), slopes]), cut.b)

    def outside(self, cut: Cut) -> Cut:
        """And back."""
        slopes = cut.a[-self.k :]
        return Cut(namespace(cut.a).concat([cut.a[: -self.k] + self._lean(slopes), slopes]), cut.b)

    def _lean(self, slopes: Array) -> Array:
        return self.inner.spread(self.mean[:, None] * slopes[None, :])

    def middle(self, w: Array) -> Array:
        """The scores of the mean row, intercepts included."""
        return w[-self.k :] + self._score(w[: -self.k])

    def point(self, w: Array, b: Array) -> Array:
        """The point with such weights, where these are the scores of the mean row."""
        return namespace(w).concat([w, b - self._score(w)])

    def _score(self, w: Array) -> Array:
        return like(self.inner.scores(as_matrix(self.mean[None, :]), w, 0, 1)[0], w)


def _spread(shard: Shard, scorer: Scorer, w: Array) -> tuple[NDArray, NDArray]:
    """The sums of the scores of w, and of their squares."""
    first, second = np.zeros(scorer.columns), np.zeros(scorer.columns)
    for i, j in blocks(shard, scorer):
        z = scorer.scores(shard.X, w, i, j)
        first += to_numpy(shard.c[i:j] @ z)
        second += to_numpy(shard.c[i:j] @ (z * z))
    return first, second


def square_length(obj: Objective, w: Array) -> float:
    """The mean square of the lengths of rows less their mean, as random weights show it; 1 where it is 0."""
    risk: Any = obj.risk
    draw = np.random.default_rng(0).standard_normal(len(w) - risk.n_intercepts)
    reg = penalized(obj.reg)
    if isinstance(reg, L2):
        draw /= np.sqrt(reg.terms(draw).square)
    inner = risk.scorer.inner
    first, second = risk.executor.sum(_spread, inner, like(draw, w))
    spread = float(np.mean(second - first * first))
    return spread if spread > ROUNDED * float(np.mean(second)) else 1.0


# ---------------------------------------------------------------- the cuts
@dataclass
class HeldCuts(Cuts):
    """A set of cuts with slopes in intercepts, which are held near where they are."""

    obj: Any = None
    frame: Any = None
    held: Any = None
    first: int = 0
    """So many cuts are never dropped: those of constant predictions."""
    centre: Any = None

    @classmethod
    def empty(cls, solver: object, obj: Objective, w: Array) -> HeldCuts:
        found = cls._over(solver, obj, w, {})
        risk: Any = obj.risk
        if found.frame.k <= MOST_CONSTANTS:
            found.first = found.frame.k
            for j in range(found.first):
                cut = risk.always(j)
                found.add(Cut(like(cut.a, w), cut.b))
        return found

    @classmethod
    def _over(cls, solver: object, obj: Objective, w: Array, s: dict[str, Array]) -> HeldCuts:
        """With the cuts of a state, if it has any."""
        if not isinstance(obj.risk, WithIntercepts):
            check_intercepts(solver, obj)
        risk: Any = obj.risk
        frame, reg = Frame.of(risk, w), penalized(obj.reg)
        weight = float(s["weight"][0]) if s else HOLD / square_length(obj, w)
        program: Any
        held = Held(reg, frame.k, weight)
        if isinstance(reg, Euclidean):
            held = HeldSquare(reg, frame.k, weight)
            program = QuadraticProgram(held, obj.lam, np.empty((0, 0)))
        elif isinstance(reg, Separable) and reg.polyhedral:
            program = LinearProgram(reg, obj.lam, len(w), frame.k)
        elif isinstance(reg, CurvedConjugate):
            held = HeldCurved(reg, frame.k, weight)
            program = NewtonProgram(held, obj.lam)
        else:
            raise no_program(solver, obj)
        none = np.empty(0)
        found = cls(program, zeros_beside((8, len(w)), w), none, none, none)
        found.obj, found.frame, found.held, found.centre = obj, frame, held, frame.middle(w)
        return found

    def start(self, w: Array) -> Array:
        """With intercepts far down where no row is of a class."""
        found: Array = self.obj.risk.lowered(w)
        return found

    def add(self, cut: Cut) -> None:
        """Take a cut of the risk, as it comes."""
        super().add(self.frame.inside(cut))

    def mix(self, w: Array = None) -> Cut:
        """The mixture that is best with intercepts near those of w, without slopes in them."""
        self.centre = self.frame.middle(w)
        A, k = self.A[: len(self.b)], self.frame.k
        if isinstance(self.program, LinearProgram):
            self.program.about(to_numpy(self.centre))
            offsets = self.b
        else:
            offsets = self.b + to_numpy(A[:, -k:] @ self.centre)
        self.alpha, self.w = self.program.solve(A, offsets, self.alpha)
        self.idle = np.where(self.alpha > 0, 0, self.idle + 1)
        self.idle[: self.first] = 0
        return self.mixture()

    def mixture(self) -> Cut:
        """The cuts mixed by their multipliers, without slopes in the intercepts."""
        found: Cut = self.obj.balanced(self.frame.outside(super().mixture()))
        return found

    def minimizer(self, obj: Objective, best: Cut) -> Array:
        """The minimizer of the model."""
        k = self.frame.k
        if self.w is not None:
            return self.frame.point(self.w[:-k], self.w[-k:])
        w = self.held.conjugate_grad(-1 / obj.lam * super().mixture().a)
        return self.frame.point(w[:-k], self.centre + w[-k:])

    def has(self, cut: Cut, w: Array, best: Cut, value: float) -> bool:
        """Whether the model knows what a cut says of its minimizer."""
        return super().has(cut, w, self.frame.outside(super().mixture()), value)

    def state(self) -> dict[str, Array]:
        more = {"weight": np.array([self.held.weight]), "first": np.array([self.first])}
        return super().state() | more

    @classmethod
    def restored(cls, solver: object, obj: Objective, s: dict[str, Array]) -> HeldCuts:
        """The cuts of a run, as they were."""
        found = cls._over(solver, obj, s["w"], s)
        found.A, found.first = s["A"], int(s["first"][0])
        if isinstance(found.program, QuadraticProgram) and "G" in s:
            found.program.G = s["G"]
        else:
            for m in range(len(s["b"])):
                found.program.add(s["A"][: m + 1], s["b"][: m + 1])
        found.b, found.alpha, found.idle, found.w = s["b"], s["alpha"], s["idle"], s.get("model")
        return found

    @classmethod
    def inherited(cls, solver: object, obj: Objective, s: dict[str, Array], before: Objective) -> HeldCuts:
        """The cuts of a run on the same risk, with the program of another lam or regularizer."""
        found = {name: a for name, a in s.items() if name not in ("G", "model")}
        if not s["alpha"].sum() > 0:
            found["alpha"] = np.full(len(s["alpha"]), 1 / len(s["alpha"]))
        return cls.restored(solver, obj, found)
