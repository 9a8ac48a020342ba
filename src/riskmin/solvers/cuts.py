r"""The bundle: cuts, and the program whose solution is their best mixture,

.. math:: \max_\alpha\; b^\top \alpha - \lambda\,\Omega^*(-A^\top \alpha / \lambda)
          \quad\text{over the simplex (Theorem 2 of Smola et al., NIPS 2007).}

With :math:`\tfrac12 w^\top K w` that is a quadratic program in the inner products of the cuts; with an L1-
type regularizer a linear program; with any other that has a smooth conjugate, a few of the quadratic ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from riskmin.arrays import like, namespace, to_numpy, zeros_beside
from riskmin.deadline import check, checking
from riskmin.losses.queries import named
from riskmin.losses.smoothing import can_be_smoothed
from riskmin.objective import Objective
from riskmin.regularizers import Free, Separable
from riskmin.scalar import Tangent, lowest, shrink
from riskmin.solvers.lp import LinearProgram
from riskmin.solvers.qp import simplex_qp
from riskmin.types import Array, CurvedConjugate, Cut, Euclidean, NDArray, Regularizer, Unsuited

HUGE = 1e100


def tame(cut: Cut, most: float = HUGE) -> Cut:
    """The cut, or one so much shrunk that its squares are finite: still a cut, since R >= 0."""
    xp = namespace(cut.a)
    size = float(xp.max(xp.abs(cut.a)))
    return cut if size <= most else Cut(most / size * cut.a, most / size * cut.b)


# ---------------------------------------------------------------- mixtures of two
def mix_two(old: Cut | None, new: Cut, obj: Objective) -> tuple[Cut, float]:
    """The mixture of two cuts that bounds best, and the share of the new one."""
    new = tame(new)
    if old is None:
        return _first(new, obj), 1.0
    da, db = new.a - old.a, new.b - old.b
    if obj.euclidean:
        reg: Any = obj.reg
        across, square = (float(reg.gram(a[None, :], da)[0]) for a in (old.a, da))
        slope, bend = db - across / obj.lam, square / obj.lam
        eta = float(min(1.0, max(0.0, slope / bend)) if bend else slope > 0)
    elif getattr(obj.reg, "polyhedral", False):  # mixing means nothing before the cuts are shrunk
        eta = float(obj.lower(new) > obj.lower(old))
    else:
        eta = _best_share(lambda t: Cut(old.a + t * da, old.b + t * db), Cut(da, db), obj)
    return mixture(old, new, eta), eta


def mixture(old: Cut, new: Cut, share: float) -> Cut:
    """Two cuts mixed: of a large one with a small share, no larger rounding errors are left than that."""
    one, other, part = (old, new, share) if share < 0.5 else (new, old, 1 - share)
    if not part:
        return one
    return Cut(one.a + part * (other.a - one.a), one.b + part * (other.b - one.b))


def _first(cut: Cut, obj: Objective) -> Cut:
    """The cut, or where exponentials may overflow, the part of it that bounds best."""
    if obj.euclidean or getattr(obj.reg, "polyhedral", False):
        return cut
    s = obj.reg.scale(cut, obj.lam)
    return Cut(s * cut.a, s * cut.b)


def _best_share(mixed: Any, step: Cut, obj: Objective) -> float:
    """The t in [0, 1] for which the mixture bounds best: the bound is concave, of slope db + da @ w(t)."""

    def look(t: float) -> Tangent:
        cut = mixed(t)
        with np.errstate(over="ignore", invalid="ignore"):
            slope = step.b + float(step.a @ obj.argmin(cut))
            return Tangent(t, obj.lam * obj.reg.conjugate(-1 / obj.lam * cut.a) - cut.b, -slope)

    lo, hi = look(0.0), look(1.0)
    if lo.slope >= 0 or not np.isfinite(lo.value):
        return float(not np.isfinite(lo.value))
    while not (np.isfinite(hi.value) and np.isfinite(hi.slope)):  # exponentials overflow far out
        hi = look(0.25 * hi.x)
    if hi.slope <= 0:
        return hi.x
    return lowest(*shrink(look, lo, hi, lambda best, bound: best - bound <= 1e-13 * abs(best))).x


# ---------------------------------------------------------------- programs
class Program(Protocol):
    """How the best mixture is found; it may keep what it computed of earlier cuts."""

    most: float
    """The largest entries of a cut that it can do with."""

    def add(self, A: Array, b: NDArray) -> None:
        """Take note of the last cut."""
        ...

    def keep(self, rows: NDArray) -> None:
        """Forget all other cuts."""
        ...

    def solve(self, A: Array, b: NDArray, alpha: NDArray) -> tuple[NDArray, Array | None]:
        """The multipliers, from those before on; and the minimizer of the model, where it is at hand."""
        ...


@dataclass
class QuadraticProgram:
    """For w' K w / 2: it keeps the inner products of the cuts, over lam."""

    reg: Euclidean
    lam: float
    G: NDArray
    most: float = HUGE

    def add(self, A: Array, b: NDArray) -> None:
        row = np.asarray(to_numpy(self.reg.gram(A, A[-1])), dtype=float) / self.lam
        self.G = np.block([[self.G, row[:-1, None]], [row]])

    def keep(self, rows: NDArray) -> None:
        self.G = self.G[np.ix_(rows, rows)]

    def solve(self, A: Array, b: NDArray, alpha: NDArray) -> tuple[NDArray, Array | None]:
        return simplex_qp(self.G, b, alpha), None


@dataclass
class NewtonProgram:
    """For other conjugates: quadratic models of the dual, each solved exactly and searched along.

    R >= 0 is one of the cuts here, the first, since exponentials overflow before a search could begin. For a
    small lam they are nearly steps, on which Newton's method sticks: then it comes from larger ones.
    """

    reg: Any
    lam: float
    most: float = 1e30

    def add(self, A: Array, b: NDArray) -> None: ...
    def keep(self, rows: NDArray) -> None: ...

    def solve(self, A: Array, b: NDArray, alpha: NDArray) -> tuple[NDArray, Array | None]:
        x = np.append(max(0.0, 1 - alpha.sum()), alpha)
        x, solved = self._newton(A, b, x / x.sum(), self.lam)
        if not solved:
            xp = namespace(A)
            lam = max(self.lam, float(xp.max(xp.abs(A))))
            x = np.append(1.0, np.zeros(len(b)))
            while lam > self.lam:
                x, _ = self._newton(A, b, x, lam)
                lam *= 0.3
            x, _ = self._newton(A, b, x, self.lam)
        return x[1:], None

    def _newton(self, A: Array, b: NDArray, x: NDArray, lam: float) -> tuple[NDArray, bool]:
        """The best x on the simplex, the first entry being the floor's; and whether it was reached."""
        idle = 0
        for _ in checking(range(30)):
            value, gain, u = self._look(A, b, x[1:], lam)
            if not value > -HUGE:
                return np.append(1.0, np.zeros(len(b))), False
            gain = np.append(0.0, gain)
            if (gain - gain @ x).max() <= 1e-13 * (abs(value) + np.abs(b) @ x[1:]):
                return x, True
            G = np.zeros((len(x), len(x)))
            G[1:, 1:] = np.asarray(to_numpy(self.reg.conjugate_bend(u, A)), dtype=float) / lam
            target = simplex_qp(G, gain + G @ x, x)
            # the dual is concave: along the way to there it gains no more than this
            idle = idle + 1 if gain @ (target - x) <= 1e-14 * abs(value) else 0
            if idle > 3:
                return x, True
            t = 1.0 if idle else self._along(A, b, x[1:], (target - x)[1:], lam)
            if t == 0:
                return x, True  # no better point is left in this precision
            x = np.maximum(x + t * (target - x), 0.0)
            x /= x.sum()
        return x, False

    def _look(self, A: Array, b: NDArray, x: NDArray, lam: float) -> tuple[float, NDArray, Array]:
        """The dual value at x, its gradient, and the dual point."""
        check()
        u = -1 / lam * (like(x, A) @ A)
        with np.errstate(over="ignore", invalid="ignore"):
            gain = b + np.asarray(to_numpy(A @ self.reg.conjugate_grad(u)), dtype=float)
            return float(b @ x) - lam * self.reg.conjugate(u), gain, u

    def _along(self, A: Array, b: NDArray, x: NDArray, e: NDArray, lam: float) -> float:
        """The best step along e, at most 1."""

        def look(t: float) -> Tangent:
            value, gain, _ = self._look(A, b, x + t * e, lam)
            return Tangent(t, -value, -float(gain @ e))

        lo, most = look(0.0), 1.0
        hi = look(most)
        while not (hi.value < HUGE and abs(hi.slope) < HUGE) and most > 1e-300:
            most *= 0.25
            hi = look(most)
        if lo.slope >= 0 or hi.slope <= 0:
            return 0.0 if lo.slope >= 0 else most
        if most == 1 and -lo.slope <= 1e-6 * abs(lo.value) and hi.slope <= -0.5 * lo.slope:
            return 1.0  # so near the end, values say nothing more, but slopes still do
        near = shrink(look, lo, hi, lambda best, bound: best - bound <= 0.01 * max(lo.value - best, 0.0))
        return lowest(*near).x


def check_intercepts(solver: object, obj: Objective) -> None:
    """Raise where there are intercepts in w: no cut has a slope in them, so that no step would move them."""
    if isinstance(obj.reg, Free):
        raise Unsuited(f"{type(solver).__name__} cannot move intercepts of many outputs: use Bundle or Auto")


def program_for(solver: object, obj: Objective, dim: int) -> Program:
    """The program that suits the regularizer."""
    check_intercepts(solver, obj)
    reg: Regularizer = obj.reg
    if isinstance(reg, Euclidean):
        return QuadraticProgram(reg, obj.lam, np.empty((0, 0)))
    if isinstance(reg, Separable) and reg.polyhedral:
        return LinearProgram(reg, obj.lam, dim)
    if isinstance(reg, CurvedConjugate):
        return NewtonProgram(reg, obj.lam)
    raise no_program(solver, obj)


def has_program(reg: Regularizer) -> bool:
    """Whether there is a program for a regularizer; one of a user's own need not have what it takes."""
    return isinstance(reg, (Euclidean, CurvedConjugate)) or (isinstance(reg, Separable) and reg.polyhedral)


def no_program(solver: object, obj: Objective) -> Unsuited:
    """What is said of a regularizer that no program is for: with what the loss allows for."""
    loss = named(getattr(getattr(obj.risk, "risk", obj.risk), "loss", None))
    if getattr(loss, "smooth", True):
        use = "use ProximalGradient, or "
    else:
        use = "use Smoothing(ProximalGradient()), or " if can_be_smoothed(loss, np.zeros(1)) else ""
    return Unsuited(
        f"{type(solver).__name__} needs a regularizer with gram or conjugate_bend, or an L1-type one, "
        f"not {type(obj.reg).__name__}: {use}add conjugate_bend"
    )


# ---------------------------------------------------------------- the cuts
@dataclass
class Cuts:
    """A set of cuts, and the multipliers of their best mixture.

    The vectors live where w does, the small program on the host. Arrays are replaced, never written to
    once a snapshot may hold them, except beyond `len(b)`.
    """

    program: Program
    A: Array
    b: NDArray
    alpha: NDArray
    idle: NDArray
    """For how many mixtures each cut has had weight zero."""
    w: Array | None = None
    """The minimizer of the model, where the program gives it."""

    @classmethod
    def empty(cls, solver: object, obj: Objective, w: Array) -> Cuts:
        none = np.empty(0)
        room = zeros_beside((8, len(w)), w)
        return cls(program_for(solver, obj, len(w)), room, none, none, none)

    def start(self, w: Array) -> Array:
        """Where a run begins that is to begin at w."""
        return w

    def add(self, cut: Cut) -> None:
        cut, m = tame(cut, self.program.most), len(self.b)
        if m == len(self.A):
            xp = namespace(self.A)
            self.A = xp.concat([self.A, xp.zeros_like(self.A)])
        self.A[m] = cut.a
        self.b = np.append(self.b, cut.b)
        self.alpha = np.append(self.alpha, 0.0 if m else 1.0)
        self.idle = np.append(self.idle, 0)
        self.program.add(self.A[: m + 1], self.b)

    def mix(self, w: Array = None) -> Cut:
        """The mixture that bounds best; w is the best point so far."""
        self.alpha, self.w = self.program.solve(self.A[: len(self.b)], self.b, self.alpha)
        self.idle = np.where(self.alpha > 0, 0, self.idle + 1)
        return self.mixture()

    def mixture(self) -> Cut:
        """The cuts mixed by their multipliers."""
        used = np.flatnonzero(self.alpha)
        A = self.A[: len(self.b)]
        if len(used) * 2 <= len(self.b):
            return Cut(like(self.alpha[used], A) @ A[used], float(self.alpha @ self.b))
        return Cut(like(self.alpha, A) @ A, float(self.alpha @ self.b))

    def minimizer(self, obj: Objective, best: Cut) -> Array:
        """The minimizer of the model, given its best mixture."""
        return obj.argmin(best) if self.w is None else self.w

    def has(self, cut: Cut, w: Array, best: Cut, value: float) -> bool:
        """Whether the model, given its best mixture, knows what a cut says of its minimizer w."""
        return float((cut.a - best.a) @ w) + cut.b - best.b <= 1e-15 * value

    def drop(self, patience: int) -> None:
        """Forget cuts without weight for so many mixtures, once they are worth a copy of the others."""
        keep = np.flatnonzero(self.idle < patience)
        if len(self.b) - len(keep) > len(self.b) // 16:
            xp = namespace(self.A)
            room = zeros_beside((len(self.A) - len(keep), self.A.shape[1]), self.A)
            self.A = xp.concat([self.A[keep], room])
            self.program.keep(keep)
            self.b, self.alpha, self.idle = self.b[keep], self.alpha[keep], self.idle[keep]

    def state(self) -> dict[str, Array]:
        found = {"A": self.A[: len(self.b)], "b": self.b, "alpha": self.alpha, "idle": self.idle}
        if isinstance(self.program, QuadraticProgram):
            found["G"] = self.program.G
        return found if self.w is None else found | {"model": self.w}

    @classmethod
    def restored(cls, solver: object, obj: Objective, s: dict[str, Array]) -> Cuts:
        """The cuts of a run, as they were."""
        program = program_for(solver, obj, s["A"].shape[1])
        if isinstance(program, QuadraticProgram):
            program.G = s["G"]
        else:
            for m in range(len(s["b"])):
                program.add(s["A"][: m + 1], s["b"][: m + 1])
        return cls(program, s["A"], s["b"], s["alpha"], s["idle"], s.get("model"))

    @classmethod
    def inherited(cls, solver: object, obj: Objective, s: dict[str, Array], before: Objective) -> Cuts:
        """The cuts of a run on the same risk, with the program of another lam or regularizer."""
        A, alpha = s["A"], s["alpha"]
        found: dict[str, Array] = {"A": A, "b": s["b"], "alpha": alpha, "idle": s["idle"]}
        if isinstance(obj.reg, Euclidean):
            if "G" in s and obj.reg is before.reg:
                found["G"] = s["G"] * (before.lam / obj.lam)
            else:
                found["G"] = np.stack([np.asarray(to_numpy(obj.reg.gram(A, a)), float) for a in A]) / obj.lam
            if not alpha.sum() > 0:  # a linear program may rest on R >= 0 alone, this one has no such cut
                found["alpha"] = np.full(len(alpha), 1 / len(alpha))
        return cls.restored(solver, obj, found)
