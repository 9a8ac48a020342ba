"""Newton's method for smooth losses: few steps, each a pass over X there and back, and at times a matrix."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from riskmin.intercept import without_intercept
from riskmin.losses import Squared
from riskmin.objective import Objective
from riskmin.risk import REFRESH
from riskmin.solvers.bundle import check_count
from riskmin.solvers.cuts import mix_two
from riskmin.solvers.newton import SemismoothNewton
from riskmin.solvers.newton_chord import Chord
from riskmin.solvers.newton_scores import Look, Scores
from riskmin.solvers.newton_start import PARTS, sample
from riskmin.solvers.states import NONE, checked, sizes
from riskmin.types import Array, Curved, Cut, Iterate, NDArray, Unsuited

UNDER, OVER = 0.1, 0.9
"""A step of length 1 is taken if what is left of the slope at its end, or has turned over, is at most so much
of that at its start: what bends less and less is worth a longer step, but a shorter one loses elsewhere."""
ROWS = 10
"""A sample to start on has at least so many a column: smooth losses tell much by few, and it ends early."""
MOST_STEPS = 30
"""On a sample."""


NUMBERS = 9
"""Of a saved state; those of `SemismoothNewton`, where that took over, are more."""


@dataclass(frozen=True)
class Newton:
    r"""Newton's method for smooth losses with second derivatives, such as `Logistic` and `SquaredHinge`.

    A step solves

    .. math:: (\lambda K + X^\top H X)\, d = -\nabla J(w),

    and goes along d as far as J falls, on kept scores. The tangent of each point is a cut, which proves a gap
    of at most :math:`\|\nabla J(w)\|^2 / (2 \lambda)` with L2.

    The matrix is factorized, and kept as long as the square of the gradient falls by 50 a step. Where rows
    are many beside columns, it is made of a sample of the rows, unless that proves to be too different, and
    the first point is the minimizer of a sample. With many features, or where that costs less, conjugate
    gradients solve the equations up to a fifth of the gradient, at two passes over X a step of theirs.

    For `L2` and `Quadratic`. Losses of many scores a row, such as `Softmax`, take
    conjugate gradients under a matrix a class, or that of all classes, and need `L2` and all rows here.

    Parameters
    ----------
    direct : int
        Up to so many features, the matrix may be factorized.
    sampled : bool
        Whether samples of the rows may be used on the way; all that is proved is of all rows.

    References
    ----------
    R.-E. Fan, K.-W. Chang, C.-J. Hsieh, X.-R. Wang, C.-J. Lin, LIBLINEAR: a library for large linear
    classification, Journal of Machine Learning Research 9, 2008. R. H. Byrd, G. M. Chin, W. Neveitt,
    J. Nocedal, On the use of stochastic Hessian information in optimization methods for machine learning,
    SIAM Journal on Optimization 21, 2011.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Logistic, Newton, Objective, linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((500, 4)) * [1, 10, 100, 1000]
    >>> y = np.where(X @ [1, 0.1, 0.01, 0.001] + rng.standard_normal(500) > 0, 1.0, -1.0)
    >>> result = minimize(Objective(linear_risk(X, y, Logistic()), L2(), lam=1e-6), Newton(), tol=1e-9)
    >>> result.status, result.n_iter < 12
    ('converged', True)
    """

    direct: int = 2500
    sampled: bool = True

    def __post_init__(self) -> None:
        check_count(self, "direct")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield a point a step."""
        if _many(obj):
            return SemismoothNewton(self.direct).iterates(obj, w0)
        scores = self._scores(obj)
        if scores.first_mu(scores.passes.forward(w0), obj.lam * obj.reg.value(w0)):
            return SemismoothNewton(self.direct).iterates(obj, w0)  # nothing tells how long steps may be
        # one step is all that a square takes
        sampled = self.sampled and not isinstance(scores.loss, Squared) and not w0.any()
        near = self._start(obj, w0) if sampled else w0
        at = _Point.of(scores, near)
        if near is not w0:  # without its best intercept, J at w = 0 is known at once
            zero = float(scores.loss.value_grad(np.zeros(len(scores.y)), scores.y, scores.c)[0])
            at = at if at.look.risk + obj.lam * obj.reg.value(near) < zero else _Point.of(scores, w0)
        return self._run(obj, scores, self._chord(obj, scores), at, at.cut)

    def _start(self, obj: Objective, w: Array) -> Array:
        """Near the minimizers of samples, up to what these can tell of that of all rows."""
        for part in PARTS:
            few = sample(obj, part, ROWS)
            if few is None:
                continue
            known = len(w) * part / without_intercept(obj.risk).table.shape[0]
            with contextlib.suppress(ValueError):  # a sample of one class has no best intercept
                for it in islice(self._from(few, w), MOST_STEPS):
                    w = it.w
                    if it.info["fall"] <= known * it.value:
                        break
        return w

    def _scores(self, obj: Objective) -> Scores:
        risk = without_intercept(obj.risk)
        loss = getattr(risk, "loss", None)
        if not (getattr(loss, "smooth", False) and isinstance(loss, Curved)):
            raise Unsuited(
                f"Newton needs a smooth loss with second derivatives, not {type(loss or risk).__name__}: "
                "use SemismoothNewton or Auto"
            )
        return Scores.of(self, obj)

    def _chord(self, obj: Objective, scores: Scores) -> Chord:
        sampled = self.sampled and not isinstance(scores.loss, Squared)
        return Chord(scores.passes, obj.reg, obj.lam, self.direct, scores.intercept, sampled)

    def _from(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        scores = self._scores(obj)
        at = _Point.of(scores, w0)
        return self._run(obj, scores, self._chord(obj, scores), at, at.cut)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        if _many(obj) or len(state.get("numbers", ())) != NUMBERS:
            return SemismoothNewton(self.direct).resume(obj, state)
        rows = dict.fromkeys(("z", "dz", "kept?", "bends?"), "n")
        checked(state, rows | {"w": "d", "a": "d", "cut": "e", "numbers": "k"}, NONE, **sizes(obj), k=NUMBERS)
        scores = self._scores(obj)
        chord = self._chord(obj, scores)
        numbers = [float(v) for v in state["numbers"]]
        offset, b, risk, age, sampled, fresh, poor, chord.last, chord.steps = numbers
        chord.kept, chord.sampled, chord.fresh = state.get("kept"), bool(sampled), bool(fresh)
        chord.poor = int(poor)
        look = Look(state["dz"], offset, b, risk, state.get("bends"))
        at = _Point(state["w"], state["z"], look, state["a"], int(age))
        steps = self._run(obj, scores, chord, at, Cut(state["cut"][:-1], float(state["cut"][-1])))
        next(steps)  # the iterate that was saved
        return steps

    def _run(self, obj: Objective, scores: Scores, chord: Chord, at: _Point, best: Cut) -> Iterator[Iterate]:
        looks, fall = 1, math.inf
        while True:
            obj.count.calls += 1
            value = at.look.risk + obj.lam * obj.reg.value(at.w)
            yield Iterate(at.w, value, best, {"looks": looks, "fall": fall}, at.saved(best, chord))
            moved, looks, fall = at.newton(obj, scores, chord)
            if moved is None and chord.renewed():
                moved, looks, fall = at.newton(obj, scores, chord)
            if moved is None:
                return  # no descent is left in this precision
            at = moved
            mixed, _ = mix_two(best, at.cut, obj)
            best = max(mixed, at.cut, key=obj.lower)


@dataclass(frozen=True)
class _Point:
    """A point with its scores, and the slopes of the loss in these."""

    w: Array
    z: NDArray
    look: Look
    a: NDArray
    """X' dz of the look."""
    age: int = 0
    """How many times z was brought up to date since it was computed from w alone."""

    @classmethod
    def of(cls, scores: Scores, w: Array) -> _Point:
        """The point of weights alone."""
        z = scores.passes.forward(w)
        look = scores.look(z, 0.0, None, 0.0)
        return cls(w, z, look, scores.passes.back(look.dz))

    @property
    def cut(self) -> Cut:
        return Cut(self.a, self.look.offset)

    def newton(self, obj: Objective, scores: Scores, chord: Chord) -> tuple[_Point | None, int, float]:
        """A lower point along Newton's direction, none where nothing falls; the looks; the fall foreseen."""
        g = obj.lam * obj.reg.grad(self.w) + self.a  # type: ignore[attr-defined]
        h = scores.bend(self.look, self.z, 0.0, None).diagonal
        d = chord.direction(h, g)
        slope = float(g @ d)
        if not -math.inf < slope < 0:
            return None, 0, 0.0
        dz, line = scores.passes.forward(d), obj.reg.line(self.w, d)
        chord.judge(h, dz)
        bent = obj.lam * (line(1.0)[1] - line(0.0)[1])
        look = scores.look(self.z + dz, 0.0, None, self.look.b)
        t, looks = 1.0, 1
        end = float(look.dz @ dz) + obj.lam * line(1.0)[1]
        rise = look.risk - self.look.risk + obj.lam * (line(1.0)[0] - line(0.0)[0])
        if not (UNDER * slope <= end <= -OVER * slope and rise < 0):

            def rest_of(t: float) -> tuple[float, float]:
                return obj.lam * line(t)[1], bent

            t, more = scores.search(self.z, dz, 0.0, None, self.look.b, rest_of, slope)
            look, looks = scores.look(self.z + t * dz, 0.0, None, self.look.b), looks + more
        w, z = self.w + t * d, self.z + t * dz
        if np.array_equal(w, self.w):
            return None, looks, 0.0
        fresh = self.age + 1 >= REFRESH  # rounding errors of the updates must not add up
        if fresh:
            z = scores.passes.forward(w)
            look = scores.look(z, 0.0, None, look.b)
        a = scores.passes.back(look.dz)
        return replace(self, w=w, z=z, look=look, a=a, age=0 if fresh else self.age + 1), looks, -0.5 * slope

    def saved(self, best: Cut, chord: Chord) -> Callable[[], dict[str, Array]]:
        """The state to save: all of this, the best cut, and what the matrix is made of."""
        look = self.look
        numbers = [look.offset, look.b, look.risk, self.age]
        last = min(chord.last, sys.float_info.max)  # a file holds finite numbers only
        numbers += [chord.sampled, chord.fresh, chord.poor, last, chord.steps]
        more = {"kept": chord.kept, "bends": look.bends}

        def state() -> dict[str, Array]:
            found = {"w": self.w, "z": self.z, "dz": look.dz, "a": self.a, "numbers": np.array(numbers)}
            found["cut"] = np.append(best.a, best.b)
            return found | {name: a for name, a in more.items() if a is not None}

        return state


def _many(obj: Objective) -> bool:
    """Whether rows have many scores each, and their loss is smooth."""
    return bool(
        getattr(obj.risk, "many", False) and getattr(without_intercept(obj.risk).loss, "smooth", False)
    )
