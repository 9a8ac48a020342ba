r"""Working sets: what an expensive risk has found already is used up before it is asked again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from riskmin.objective import Objective
from riskmin.solvers.bundle import Bundle
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Iterate, NDArray, Unsuited

MOST = 200
"""The most steps on what is known between two calls of the risk."""


class Known(Protocol):
    """A lower bound of a risk, cheap where the risk is not: what it has found so far."""

    @property
    def dim(self) -> int: ...
    def __call__(self, w: Array) -> tuple[float, Array]:
        """Its value and a subgradient."""
        ...

    def dropped(self) -> int:
        """How many of its parts were forgotten so far."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A risk that keeps what it finds."""

    def known(self) -> Known:
        """A lower bound of the risk, equal to it at the last point that it was called at."""
        ...


@dataclass(frozen=True)
class WorkingSet:
    r"""For risks whose calls are expensive, as those of `Structured` models are: few calls.

    The outputs that were found so far give a lower bound of the risk, :math:`\tilde R \le R`, whose calls
    need no argmax. A bundle method minimizes :math:`\lambda\,\Omega + \tilde R` until its own gap is a small
    part of the gap of J; there the risk itself is asked, which adds the outputs that are best there. A cut of
    :math:`\tilde R` is one of R, so the certificate is that of all solvers.

    This is the cutting-plane method with a slack variable for each example, its program solved as closely
    as it pays: it takes some ten calls of the risk where a bundle of cuts of R takes hundreds.

    Parameters
    ----------
    share : float
        The part of the gap that may be left of the program, 0 < share < 1.

    References
    ----------
    I. Tsochantaridis, T. Joachims, T. Hofmann, Y. Altun, Large margin methods for structured and
    interdependent output variables, JMLR 6, 2005.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Objective, Structured, WorkingSet, minimize
    >>> class Three:
    ...     dim = 6
    ...     def joint_feature(self, x, y):
    ...         return np.outer(np.eye(3)[y], x).ravel()
    ...     def cost(self, y, other):
    ...         return float(y != other)
    ...     def loss_augmented_argmax(self, x, y, w):
    ...         return int(np.argmax(w.reshape(3, 2) @ x + (np.arange(3) != y)))
    >>> xs, ys = np.random.default_rng(0).standard_normal((50, 2)), [k % 3 for k in range(50)]
    >>> result = minimize(Objective(Structured(Three()).risk(xs, ys), L2(), lam=0.1), WorkingSet(), tol=1e-6)
    >>> result.status, result.n_iter < 20
    ('converged', True)
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"WorkingSet needs 0 < share < 1, not {self.share!r}")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the points at which the risk is asked."""
        return self._run(obj, w0, _Above(_known(obj), w0[None, :][:0], np.zeros(0)), math.inf)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state: its cuts stand for the outputs that were known."""
        checked(state, {"next": "d", "A": "m d", "b": "m", "best": "1"}, d=obj.risk.dim)
        return self._run(
            obj, state["next"], _Above(_known(obj), state["A"], state["b"]), float(state["best"][0])
        )

    def _run(self, obj: Objective, w: Array, model: _Above, best: float) -> Iterator[Iterate]:
        inner = Objective(model, obj.reg, obj.lam)
        state: dict[str, Array] = {}
        cut, dropped = None, 0
        while True:
            value, _, here = obj(w)
            best = min(best, value)
            cut = here if cut is None else cut
            if state:
                state["value"] = np.array([inner.value(state["w"])])  # more is known now than before
            steps = Bundle().warm(inner, state, inner) if state else Bundle().iterates(inner, w)
            it, cut, n_steps, ended = self._solve(inner, steps, best, cut)
            assert it.state is not None
            state = it.state()
            saved = {"next": it.w, "A": state["A"], "b": state["b"], "best": np.array([best])}
            yield Iterate(w, value, cut, {"steps": n_steps, "cuts": len(state["b"])}, saved.copy)
            if ended and bool((w == it.w).all()):
                return  # nothing new was found here, and nothing more follows from what is known
            w = it.w
            if dropped != (dropped := model.known.dropped()):  # the cuts know what was forgotten
                model.A, model.b = state["A"], state["b"]

    def _solve(
        self, inner: Objective, steps: Iterator[Iterate], best: float, cut: Cut
    ) -> tuple[Iterate, Cut, int, bool]:
        """The last step on what is known, the best cut, the number of steps, and whether they ended there."""
        lower = inner.lower(cut)
        for k, it in enumerate(steps, 1):
            if inner.lower(it.cut) > lower:
                cut, lower = it.cut, inner.lower(it.cut)
            if k == MOST or it.value - lower <= self.share * (best - lower):
                return it, cut, k, False
        return it, cut, k, True


@dataclass
class _Above:
    """The larger of what is known and of some cuts that were found when more was known."""

    known: Known
    A: Array
    b: NDArray

    @property
    def dim(self) -> int:
        return self.known.dim

    def __call__(self, w: Array) -> tuple[float, Array]:
        value, grad = self.known(w)
        if len(self.b):
            heights = self.A @ w + self.b
            k = int(heights.argmax())
            if heights[k] > value:
                return float(heights[k]), self.A[k]
        return value, grad


def _known(obj: Objective) -> Known:
    risk: Any = obj.risk
    if not isinstance(risk, Remembers):
        raise Unsuited(
            "WorkingSet needs a risk that keeps what it finds, such as Structured(model).risk(...), "
            f"not {risk!r}: use Bundle"
        )
    return risk.known()
