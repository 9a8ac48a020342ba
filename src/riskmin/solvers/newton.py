"""Newton's method for losses with kinks: smoothed, ever less so, around multipliers that are moved along."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from riskmin.intercept import without_intercept
from riskmin.intercepts import WithIntercepts
from riskmin.objective import Objective
from riskmin.risk import REFRESH
from riskmin.solvers.bundle import check_count
from riskmin.solvers.cuts import mix_two
from riskmin.solvers.newton_matrix import Equations
from riskmin.solvers.newton_scores import Look, Scores
from riskmin.solvers.newton_start import start
from riskmin.solvers.states import NONE, checked, sizes
from riskmin.types import Array, Cut, Iterate, NDArray

LEAST = 1e-13
"""Below this share of the first mu, what is smoothed is rounding."""

FALL, FALL_SLOWLY, SLOW = 0.3, 0.5, 4
"""By how much mu falls from one stage to the next; less after a stage of more than so many steps."""

SHORT, LONG = 0.3, 0.9
"""A step above the one counts as a full one; after one above the other, the next is held back less."""

NEAR = 0.1
"""The share of the first mu for starts around multipliers that are known."""

EARLY = 0.005
"""Where complementarity is above this share of the first mu, a stage's end would prove little."""


@dataclass(frozen=True)
class SemismoothNewton:
    r"""Newton's method on the smoothed objective, with a certificate for the true one.

    A loss that is a maximum over multipliers becomes smooth by :math:`\tfrac\mu2 |\beta - \bar\beta|^2` taken
    off inside of the maximum. Newton's method minimizes that, by

    .. math:: (\lambda K + X^\top H X)\, d = -(\lambda K w + a),

    an exact search along d on kept scores, and one pass over X each way. The multipliers of any point are
    feasible for the true loss, so each step gives a cut of the true risk, and its gap falls apart into two:
    complementarity, which only a smaller :math:`\mu` or another centre :math:`\bar\beta` lowers, and
    stationarity, which only more steps lower. As soon as the second is below half of the first, the centre
    moves to the multipliers of the point and :math:`\mu` falls. Losses of pairs have too many multipliers to
    keep, so there the centre stays 0, and :math:`\mu` falls after each full step as long as complementarity
    is large. For a smooth loss it is Newton's method itself. From w = 0, and with many rows a column, a run
    begins where runs on samples of the rows end; all that is proved is of all rows.

    For `L2` and `Quadratic`, and rows that are all here; for losses of many scores a row, such as
    `MulticlassHinge`, `L2` alone. Their intercepts are unknowns of the equations like any other, but that
    nothing penalizes them.

    Parameters
    ----------
    direct : int
        Newton's equations are solved by conjugate gradients where few of their steps will do, else by a
        matrix of all features, or of the rows that have second derivatives, if either are at most this many.

    References
    ----------
    X. Li, D. Sun, K.-C. Toh, A highly efficient semismooth Newton augmented Lagrangian method for solving
    Lasso problems, SIAM Journal on Optimization 28, 2018. O. Chapelle, S. S. Keerthi, Efficient algorithms
    for ranking with SVMs, Information Retrieval 13, 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Objective, RocArea, SemismoothNewton, linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((200, 3)), np.where(rng.random(200) < 0.3, 1.0, -1.0)
    >>> X[y > 0] += 1
    >>> J = Objective(linear_risk(X, y, RocArea()), L2(), lam=1e-5)
    >>> result = minimize(J, SemismoothNewton(), tol=1e-5)
    >>> result.status, result.n_iter < 40
    ('converged', True)
    """

    direct: int = 2500

    def __post_init__(self) -> None:
        check_count(self, "direct")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield a point a Newton step, and one whenever mu falls."""
        Scores.of(self, obj)  # refuses what is not for it
        w, mu = start(obj, w0, self._from)
        return self._from(obj, obj.risk.lowered(w) if isinstance(obj.risk, WithIntercepts) else w, mu)

    def warm(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start from the point and the multipliers of a run on the same risk, of this or a dual method."""
        scores = Scores.of(self, obj)
        w = state["next"] if "u" in state and "next" in state else state["w"]
        return self._from(obj, w, 0.0, scores.known(state) if scores.central else None)

    def _from(self, obj: Objective, w: Array, mu: float, centre: NDArray | None = None) -> Iterator[Iterate]:
        """From a point, with a mu unless it is 0, and around a centre."""
        scores = Scores.of(self, obj)
        z = scores.passes.forward(w)
        mu = mu or (1.0 if centre is None else NEAR) * scores.first_mu(z, obj.lam * obj.reg.value(w))
        centre = scores.first_centre(z) if centre is None else centre
        look = scores.look(z, mu, centre, 0.0)
        at = _Point(w, z, mu, centre, look, scores.pulled(look), mu)
        return self._run(obj, scores, at, obj.balanced(at.cut), 0.0)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        scores, many = Scores.of(self, obj), " k" * without_intercept(obj.risk).many
        rows = dict.fromkeys(("z", "dz", "centre?"), f"n{many}") | {"bends?": "n"}
        checked(state, rows | {"w": "d", "a": "d", "cut": "e", "numbers": "10"}, NONE, **sizes(obj))
        mu, first, offset, b, risk, damp, age, known, full, taken = (float(v) for v in state["numbers"])
        look, centre = Look(state["dz"], offset, b, risk, state.get("bends")), state.get("centre")
        rest = first, damp, int(age), bool(full), int(taken)
        at = _Point(state["w"], state["z"], mu, centre, look, state["a"], *rest)
        steps = self._run(obj, scores, at, Cut(state["cut"][:-1], float(state["cut"][-1])), known)
        next(steps)  # the iterate that was saved
        return steps

    def _run(self, obj: Objective, scores: Scores, at: _Point, best: Cut, known: float) -> Iterator[Iterate]:
        equations = scores.equations(obj.reg, self.direct, known)
        looks = 1
        while True:
            obj.count.calls += 1
            risk = at.look.risk
            value = risk + obj.lam * obj.reg.value(at.w)
            yield Iterate(at.w, value, best, {"mu": at.mu, "looks": looks}, at.saved(best, equations.steps))
            rest = max(risk - float(at.a @ at.w) - at.look.offset, 0.0)
            # a centre wants the multipliers of a stage's end, but without one an early stage need not end
            early = at.full and not scores.central and rest > EARLY * at.first
            moved = None
            if not at.mu or not (early or at.stationary(obj, value, rest)):
                moved, looks = at.newton(obj, scores, equations, rest)
            if moved is None:  # or no descent is left in this precision
                if at.mu <= LEAST * at.first:
                    return  # what is left of the gap is rounding
                moved, looks = at.sharper(scores), 1
            at = moved
            cut = obj.balanced(at.cut)
            mixed, _ = mix_two(best, cut, obj)
            best = max(mixed, cut, key=obj.lower)


@dataclass(frozen=True)
class _Point:
    """A point with its scores, and the multipliers that it has for a mu and a centre."""

    w: Array
    z: NDArray
    mu: float
    centre: NDArray | None
    look: Look
    a: NDArray
    """X' dz of the look."""
    first: float
    """The first mu."""
    damp: float = 0.0
    """How much more than lam holds Newton's direction back."""
    age: int = 0
    """How many times z and a were brought up to date since they were computed from w and dz alone."""
    full: bool = False
    """Whether a step was taken, and not cut short, since mu fell."""
    steps: int = 0
    """How many were taken since."""

    @property
    def cut(self) -> Cut:
        return Cut(self.a, self.look.offset)

    def stationary(self, obj: Objective, value: float, rest: float) -> bool:
        """Whether stationarity is below half of complementarity, the rest of the gap: only mu lowers that.

        The cut is taken as it is: one that bounds no more than R >= 0 does, but for that it can be shrunk, is
        of a point that is far from its stage's end, where multipliers are no centre.
        """
        cut = obj.balanced(self.cut)
        return value - cut.b + obj.lam * obj.reg.conjugate(-1 / obj.lam * cut.a) <= 1.5 * rest

    def sharper(self, scores: Scores) -> _Point:
        """The same point with a smaller mu, around its own multipliers."""
        mu = (FALL_SLOWLY if self.steps > SLOW and scores.central else FALL) * self.mu
        mu = mu if mu > scores.least_mu else 0.0
        centre = self.look.dz if scores.central else None
        return replace(self, mu=mu, centre=centre, full=False, steps=0)._seen(scores)

    def newton(
        self, obj: Objective, scores: Scores, equations: Equations, rest: float
    ) -> tuple[_Point | None, int]:
        """The least point along Newton's direction, and how many looks it took; none where nothing falls.

        Where the equations are solved in steps, these end once stationarity is well below complementarity.
        """
        d, start = self._direction(obj, scores, equations, rest)
        if not -math.inf < start < 0:
            return None, 0
        dz, line = scores.passes.forward(d), obj.reg.line(self.w, d)
        bent = obj.lam * (line(1.0)[1] - line(0.0)[1])

        def rest_of(t: float) -> tuple[float, float]:
            return obj.lam * line(t)[1], bent

        t, looks = scores.search(self.z, dz, self.mu, self.centre, self.look.b, rest_of, start)
        w = self.w + t * d
        if np.array_equal(w, self.w):
            return None, looks
        damp = self._damped(t, scores.short)
        moved = replace(self, w=w, z=self.z + t * dz, damp=damp, full=t > SHORT, steps=self.steps + 1)
        return moved._seen(scores), looks

    def _direction(
        self, obj: Objective, scores: Scores, equations: Equations, rest: float
    ) -> tuple[Array, float]:
        """Newton's direction, and the slope along it.

        Where the centre was moved and mu has fallen, multipliers jump off the faces where they had settled,
        and little is left that bends. So the first direction is that of a model in which they stay there.
        """
        pull = obj.lam * obj.reg.grad(self.w)  # type: ignore[attr-defined]
        g = pull + self.a
        lam, enough = obj.lam * (1 + self.damp), equations.enough(g, obj.lam * rest)
        ahead = None
        if self.centre is not None and not self.steps:
            ahead = scores.ahead(self.z, self.mu, self.centre)
        if ahead is not None:
            d = equations.solve(ahead[1], lam, pull + scores.passes.back(ahead[0]), enough)
            if -math.inf < float(g @ d) < 0:
                return d, float(g @ d)
        d = equations.solve(scores.bend(self.look, self.z, self.mu, self.centre), lam, g, enough)
        return d, float(g @ d)

    def _damped(self, t: float, short: float) -> float:
        """The damping after a step of length t.

        Where the bent rows do not determine d, it goes far along what only lam holds back; a search that ends
        it early takes from all of it, while damping takes from that part alone.
        """
        if t < short:
            return max(4 * self.damp, 1.0)
        return 0.25 * self.damp if t > LONG and self.damp > 0.5 else self.damp * (t <= LONG)

    def _seen(self, scores: Scores) -> _Point:
        """With the multipliers of this z, mu and centre; only those that changed cost a pass over X."""
        fresh = self.age + 1 >= REFRESH  # rounding errors of the updates must not add up
        z = scores.passes.forward(self.w) if fresh else self.z
        look = scores.look(z, self.mu, self.centre, self.look.b)
        a = scores.pulled(look, None if fresh else (self.look, self.a))
        return replace(self, z=z, look=look, a=a, age=0 if fresh else self.age + 1)

    def saved(self, best: Cut, known: float) -> Callable[[], dict[str, Array]]:
        """The state to save: all of this, the best cut, and what is known of the equations."""

        def state() -> dict[str, Array]:
            found = {"w": self.w, "z": self.z, "dz": self.look.dz, "a": self.a}
            numbers = [
                self.mu,
                self.first,
                self.look.offset,
                self.look.b,
                self.look.risk,
                self.damp,
                self.age,
                known,
                self.full,
                self.steps,
            ]
            found["numbers"] = np.array(numbers)
            found["cut"] = np.append(best.a, best.b)
            more = {"centre": self.centre, "bends": self.look.bends}
            return found | {name: a for name, a in more.items() if a is not None}

        return state
