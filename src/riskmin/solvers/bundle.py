r"""Bundle methods: minimize :math:`\lambda\,\Omega(w) + \max_t (a_t^\top w + b_t)`, cut again, repeat.

`Bmrm` and `LineSearchBmrm` are the methods of the papers, to the letter. `Bundle` is the default: it
searches the true objective along the way to the model's minimizer, on kept scores, and cuts at the best
point it finds.
"""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from riskmin.arrays import namespace
from riskmin.objective import Objective, ObjectiveCursor
from riskmin.regularizers import Free
from riskmin.scalar import Tangent, bracket, lowest, shrink
from riskmin.solvers.cuts import Cuts, check_intercepts, mix_two
from riskmin.solvers.held_cuts import HeldCuts
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Iterate, Unsuited

CUTS = {"A": "m d", "b": "m", "alpha": "m", "idle": "m", "G?": "m m", "model?": "d"}
"""The shapes of a saved bundle of m cuts."""


FAR = 4.0
"""Steps so many times as long as to the model's minimizer go along what rounding has left of a direction: of
one in a feature space, the scores are then computed from its coefficients."""


def check_count(solver: object, name: str) -> None:
    """Raise unless the setting of that name is a whole number from 1 upwards."""
    value = getattr(solver, name)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{type(solver).__name__} needs {name} to be a whole number >= 1, not {value!r}")


def _cuts(obj: Objective) -> type[Cuts]:
    """The kind of bundle that an objective needs."""
    return HeldCuts if isinstance(obj.reg, Free) else Cuts


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
        cuts = Cuts.empty(self, obj, w0)
        if self.floor:
            cuts.add(Cut(namespace(w0).zeros_like(w0), 0.0))
        return self._run(obj, cuts, w0)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        checked(state, CUTS | {"w": "d"}, d=obj.risk.dim)
        return self._run(obj, Cuts.restored(self, obj, state), state["w"])

    def _run(self, obj: Objective, cuts: Cuts, w: Array) -> Iterator[Iterate]:
        while True:
            value, _, cut = obj(w)
            cuts.add(cut)
            best = cuts.mix()
            new = cuts.minimizer(obj, best)
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
        check_intercepts(self, obj)
        if getattr(obj.reg, "polyhedral", False):
            raise Unsuited(
                f"LineSearchBmrm needs a conjugate without kinks, not that of {type(obj.reg).__name__}(): "
                "use Bundle"
            )
        return self._run(obj, None, w0)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        checked(state, {"a": "d", "b": "1", "w": "d"}, d=obj.risk.dim)
        return self._run(obj, Cut(state["a"], float(state["b"][0])), state["w"])

    def _run(self, obj: Objective, model: Cut | None, w: Array) -> Iterator[Iterate]:
        while True:
            value, _, cut = obj(w)
            model, eta = mix_two(model, cut, obj)
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

    Intercepts of many outputs are held near where they are, in the model alone; it converges with them as it
    does without.

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
        cuts = _cuts(obj).empty(self, obj, w0)
        at = obj.cursor(cuts.start(w0))
        value, cut = at.tangent()
        cuts.add(cut)
        return self._run(obj, cuts, at, value, cuts.mix(at.w))

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        held = {"weight": "1", "first": "1"} if _cuts(obj) is HeldCuts else {}
        many = {"first": len(state.get("b", ())) + 1}
        checked(state, CUTS | held | {"w": "d", "value": "1"}, many, d=obj.risk.dim)
        cuts, at = _cuts(obj).restored(self, obj, state), obj.cursor(state["w"])
        steps = self._run(obj, cuts, at, float(state["value"][0]), cuts.mixture())
        next(steps)  # the iterate that was saved
        return steps

    def warm(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start with the cuts of a run on the same risk: they bound it whatever is added to it."""
        cuts = _cuts(obj).inherited(self, obj, state, before)
        w = state["w"]
        risk = float(state["value"][0]) - before.lam * before.reg.value(w)
        value = risk + obj.lam * obj.reg.value(w)
        at = obj.cursor(w if math.isfinite(value) else obj.reg.prox(w, 0.0))
        if not math.isfinite(value):
            value, cut = at.tangent()
            cuts.add(cut)
        return self._run(obj, cuts, at, value, cuts.mix(at.w))

    def _run(
        self, obj: Objective, cuts: Cuts, at: ObjectiveCursor, value: float, best: Cut
    ) -> Iterator[Iterate]:
        looks, anew = 0, getattr(obj.reg, "anew", None)
        while True:
            saved = cuts.state() | {"w": at.w, "value": np.array([value])}
            yield Iterate(at.w, value, best, {"cuts": len(cuts.b), "looks": looks}, saved.copy)
            w, gap = cuts.minimizer(obj, best), value - obj.lower(best)
            at.aim(w - at.w, 0.01 * gap)
            new, beyond, looks = self._search(at, gap)
            if new.x > FAR and anew is not None:
                at.aim(anew(at.d), 0.01 * gap)
                new, beyond, looks = self._search(at, gap)
            # where no step helps, the cut just beyond the kink is the one that the model lacks
            _, cut = at.tangent(new.x or beyond)
            if new.x:
                at.move(new.x)
            elif new.value >= value and cuts.has(cut, w, best, value):
                return  # the model has that cut already: what is left of the gap is rounding
            if not math.isfinite(float(cut.a @ cut.a)):
                return  # its square, of which the model is made, is beyond double precision
            value = new.value  # without a step too: a closer look than the one that led here may be lower
            cuts.add(cut)
            best = cuts.mix(at.w)
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
                beyond = shrink(look, *bracket(look, start, 1.0, at.reach), enough)[1].x
        return lowest(*seen), beyond, len(seen)
