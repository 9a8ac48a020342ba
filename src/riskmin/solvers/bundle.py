r"""Bundle methods: minimize :math:`\lambda\,\Omega(w) + \max_t (a_t^\top w + b_t)`, cut again, repeat.

`Bmrm` and `LineSearchBmrm` are the methods of the papers, to the letter. `Bundle` is the default: it
searches the true objective along the way to the model's minimizer, on kept scores, and cuts at the best
point it finds.
"""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from riskmin.arrays import like, namespace
from riskmin.objective import Objective, ObjectiveCursor
from riskmin.regularizers import L2
from riskmin.scalar import Tangent, bracket, lowest, shrink
from riskmin.solvers.qp import simplex_qp
from riskmin.types import Array, Cut, Iterate, NDArray

HUGE = 1e100


def _require_l2(solver: object, obj: Objective) -> None:
    if not isinstance(obj.reg, L2):
        raise TypeError(f"{type(solver).__name__} works with L2(), not with {obj.reg!r}")


def check_count(solver: object, name: str) -> None:
    """Raise unless the setting of that name is a whole number from 1 upwards."""
    value = getattr(solver, name)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{type(solver).__name__} needs {name} to be a whole number >= 1, not {value!r}")


def tame(cut: Cut) -> Cut:
    """The cut, or one so much shrunk that its squares are finite: still a cut, since R >= 0."""
    xp = namespace(cut.a)
    size = float(xp.max(xp.abs(cut.a)))
    return cut if size <= HUGE else Cut(HUGE / size * cut.a, HUGE / size * cut.b)


def mix_two(old: Cut | None, new: Cut, lam: float) -> tuple[Cut, float]:
    """The mixture of two cuts that bounds best with L2, and the share of the new one."""
    new = tame(new)
    if old is None:
        return new, 1.0
    da, db = new.a - old.a, new.b - old.b
    slope, bend = db - float(old.a @ da) / lam, float(da @ da) / lam
    eta = min(1.0, max(0.0, slope / bend)) if bend else float(slope > 0)
    return Cut(old.a + eta * da, old.b + eta * db), eta


@dataclass
class Cuts:
    """A set of cuts, their Gram matrix over lam, and the multipliers of their best mixture.

    The vectors live where w does, the small program on the host. Arrays are replaced, never written to
    once a snapshot may hold them, except beyond `len(b)`.
    """

    A: Array
    b: NDArray
    G: NDArray
    alpha: NDArray
    idle: NDArray
    """For how many mixtures each cut has had weight zero."""

    @classmethod
    def empty(cls, w: Array) -> Cuts:
        none = np.empty(0)
        return cls(namespace(w).zeros((8, len(w)), dtype=w.dtype), none, np.empty((0, 0)), none, none)

    def add(self, cut: Cut, lam: float) -> None:
        cut, m = tame(cut), len(self.b)
        if m == len(self.A):
            xp = namespace(self.A)
            self.A = xp.concat([self.A, xp.zeros_like(self.A)])
        self.A[m] = cut.a
        row = np.asarray(self.A[: m + 1] @ cut.a, dtype=float) / lam
        self.G = np.block([[self.G, row[:-1, None]], [row]])
        self.b = np.append(self.b, cut.b)
        self.alpha = np.append(self.alpha, 0.0 if m else 1.0)
        self.idle = np.append(self.idle, 0)

    def mix(self) -> Cut:
        """The mixture that bounds best."""
        self.alpha = simplex_qp(self.G, self.b, self.alpha)
        self.idle = np.where(self.alpha > 0, 0, self.idle + 1)
        return self.mixture()

    def mixture(self) -> Cut:
        """The cuts mixed by their multipliers."""
        used = np.flatnonzero(self.alpha)
        A = self.A[: len(self.b)]
        if len(used) * 2 <= len(self.b):
            return Cut(like(self.alpha[used], A) @ A[used], float(self.alpha @ self.b))
        return Cut(like(self.alpha, A) @ A, float(self.alpha @ self.b))

    def drop(self, patience: int) -> None:
        """Forget cuts that have had no weight for so many mixtures."""
        keep = np.flatnonzero(self.idle < patience)
        if len(keep) < len(self.b):
            xp = namespace(self.A)
            room = xp.zeros((len(self.A) - len(keep), self.A.shape[1]), dtype=self.A.dtype)
            self.A = xp.concat([self.A[keep], room])
            self.G = self.G[np.ix_(keep, keep)]
            self.b, self.alpha, self.idle = self.b[keep], self.alpha[keep], self.idle[keep]

    def state(self) -> dict[str, Array]:
        return {"A": self.A[: len(self.b)], "b": self.b, "G": self.G, "alpha": self.alpha, "idle": self.idle}

    @classmethod
    def restored(cls, s: dict[str, Array]) -> Cuts:
        return cls(s["A"], s["b"], s["G"], s["alpha"], s["idle"])


@dataclass(frozen=True)
class Bmrm:
    r"""The bundle method of the papers: each cut is taken where the model of all earlier cuts is least.

    Parameters
    ----------
    floor : bool
        Also use R >= 0 as a cut from the start, as Teo et al. (2007) do; Zhang et al. (2010) do not.

    References
    ----------
    C. H. Teo, S. V. N. Vishwanathan, A. Smola, Q. V. Le, Bundle methods for regularized risk
    minimization, JMLR 11, 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Bmrm, Hinge, Objective, linear_risk
    >>> X, y = np.array([[1.0], [-0.5]]), np.array([1.0, -1.0])
    >>> steps = Bmrm().iterates(Objective(linear_risk(X, y, Hinge()), L2(), lam=0.25), np.zeros(1))
    >>> for _ in range(4):
    ...     it = next(steps)
    ...     print(f"w = {it.w[0]:.3f}, J(w) = {it.value:.3f}")
    w = 0.000, J(w) = 1.000
    w = 3.000, J(w) = 1.125
    w = 1.333, J(w) = 0.389
    w = 1.000, J(w) = 0.375
    """

    floor: bool = False

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the points w_0, w_1, ... of the method."""
        _require_l2(self, obj)
        cuts = Cuts.empty(w0)
        if self.floor:
            cuts.add(Cut(namespace(w0).zeros_like(w0), 0.0), obj.lam)
        return self._run(obj, cuts, w0)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        return self._run(obj, Cuts.restored(state), state["w"])

    def _run(self, obj: Objective, cuts: Cuts, w: Array) -> Iterator[Iterate]:
        while True:
            value, _, cut = obj(w)
            cuts.add(cut, obj.lam)
            best = cuts.mix()
            new = obj.argmin(best)
            saved = cuts.state() | {"w": new}
            yield Iterate(w, value, best, {"cuts": len(cuts.b)}, saved.copy)
            w = new


@dataclass(frozen=True)
class LineSearchBmrm:
    r"""The line search variant of the bundle method: no stored gradients, no quadratic program.

    The model is the best mixture of the last model and the new cut, so its minimizer is
    :math:`w_{k+1} = (1 - \eta) w_k - \eta\, a_{k+1} / \lambda` with a closed-form :math:`\eta`.

    References
    ----------
    A. Smola, S. V. N. Vishwanathan, Q. V. Le, Bundle methods for machine learning, NIPS 2007.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, LineSearchBmrm, Logistic, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0], [-0.5]]), np.array([1.0, -1.0])
    >>> minimize(Objective(linear_risk(X, y, Logistic()), L2(), lam=0.25), LineSearchBmrm()).status
    'converged'
    """

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the points w_0, w_1, ... of the method."""
        _require_l2(self, obj)
        return self._run(obj, None, w0)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        return self._run(obj, Cut(state["a"], float(state["b"][0])), state["w"])

    def _run(self, obj: Objective, model: Cut | None, w: Array) -> Iterator[Iterate]:
        while True:
            value, _, cut = obj(w)
            model, eta = mix_two(model, cut, obj.lam)
            new = obj.argmin(model)
            saved = {"a": model.a, "b": np.array([model.b]), "w": new}
            yield Iterate(w, value, model, {"eta": eta}, saved.copy)
            w = new


@dataclass(frozen=True)
class Bundle:
    r"""The accelerated bundle method, and the default for losses that are not smooth.

    As `Bmrm`, but from the best point so far it searches the *true* objective along the way to the
    model's minimizer, on kept scores, and takes the next cut at the best point found. Cuts that have
    had no weight for a while are dropped.

    Parameters
    ----------
    keep : int
        For how many steps a cut without weight is kept.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Bundle, Hinge, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0], [-0.5]]), np.array([1.0, -1.0])
    >>> result = minimize(Objective(linear_risk(X, y, Hinge()), L2(), lam=0.25), Bundle(), tol=1e-9)
    >>> round(float(result.w[0]), 6), round(result.value, 6), round(result.lower, 6)
    (1.0, 0.375, 0.375)
    """

    keep: int = 20

    def __post_init__(self) -> None:
        check_count(self, "keep")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the best points."""
        _require_l2(self, obj)
        cuts, at = Cuts.empty(w0), obj.cursor(w0)
        value, _, cut = at()
        cuts.add(cut, obj.lam)
        return self._run(obj, cuts, at, value, cuts.mix())

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        cuts, at = Cuts.restored(state), obj.cursor(state["w"])
        steps = self._run(obj, cuts, at, float(state["value"][0]), cuts.mixture())
        next(steps)  # the iterate that was saved
        return steps

    def _run(
        self, obj: Objective, cuts: Cuts, at: ObjectiveCursor, value: float, best: Cut
    ) -> Iterator[Iterate]:
        looks = 0
        while True:
            saved = cuts.state() | {"w": at.w, "value": np.array([value])}
            yield Iterate(at.w, value, best, {"cuts": len(cuts.b), "looks": looks}, saved.copy)
            w, gap = obj.argmin(best), value - obj.lower(best)
            at.aim(w - at.w, 0.01 * gap)
            new, beyond, looks = self._search(at, gap)
            # where no step helps, the cut just beyond the kink is the one that the model lacks
            _, _, cut = at(new.x or beyond)
            if new.x:
                at.move(new.x)
            elif new.value >= value and float((cut.a - best.a) @ w) + cut.b - best.b <= 1e-15 * value:
                return  # the model has that cut already: what is left of the gap is rounding
            value = new.value  # without a step too: a closer look than the one that led here may be lower
            cuts.add(cut, obj.lam)
            best = cuts.mix()
            cuts.drop(self.keep)

    def _search(self, at: ObjectiveCursor, gap: float) -> tuple[Tangent, float, int]:
        """The best point along the line, and one just beyond the minimum.

        The bracket of the minimum is narrow against what was gained and what is to gain.
        """
        seen: list[Tangent] = []

        def look(t: float) -> Tangent:
            seen.append(Tangent(t, *at.along(t)))
            return seen[-1]

        def enough(best: float, bound: float) -> bool:
            return best - bound <= 0.1 * max(start.value - best, 0.01 * gap)

        start = look(0.0)
        beyond = 0.0
        if start.slope < 0:
            with contextlib.suppress(ValueError):  # J rises in the end, but not always where numbers can tell
                beyond = shrink(look, *bracket(look, start, 1.0), enough)[1].x
        return lowest(*seen), beyond, len(seen)
