"""Working sets: minimize over the outputs found so far before the next expensive call of the risk."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from riskmin.core import Array, Cut, Evaluation, Iterate, NDArray, Solver
from riskmin.problem.certificate import tangent
from riskmin.problem.objective import Objective, Oracle
from riskmin.solvers.bundle.bundle import Bundle
from riskmin.solvers.state_checks import check_state


class RestrictedOracle(Protocol):
    """A risk restricted to the outputs found so far: a lower bound of the risk that is cheap to evaluate."""

    @property
    def dim(self) -> int: ...
    def __call__(self, w: Array) -> tuple[float, Array]:
        """The value and a subgradient at w."""
        ...

    def dropped(self) -> int:
        """The number of outputs that were dropped so far."""
        ...


@dataclass(frozen=True)
class WorkingSet(Solver):
    r"""A working-set method that makes few calls of an expensive risk, such as that of a `Structured` model.

    The outputs found so far give a lower bound of the risk, :math:`\tilde R \le R`, whose evaluation needs no
    argmax. A bundle method minimizes :math:`\lambda\,\Omega + \tilde R` until its own gap is a small share of
    the gap of J; at its solution the risk itself is called, which adds the maximizing outputs. A cut of
    :math:`\tilde R` is a cut of R, so the certificate is that of all solvers.

    This is the cutting-plane method with one slack variable per example, whose master problem is solved only
    to the accuracy that pays: about ten calls of the risk, where a bundle of cuts of R takes hundreds.

    Parameters
    ----------
    share : float
        The gap of the restricted problem, as a share of the gap of J, 0 < share < 1.

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

    MAX_BUNDLE_STEPS_PER_CALL = 200
    """Steps of the bundle method on the restricted problem between two calls of the risk."""

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"WorkingSet needs 0 < share < 1, not {self.share!r}")

    def supports(self, obj: Objective) -> str | None:
        """None for risks that cache the outputs they find, with what `Bundle` supports."""
        if not obj.risk.caches_outputs:
            return (
                "WorkingSet needs a risk that caches the outputs it finds, such as "
                f"Structured(model).risk(...), not {obj.risk!r}: use Bundle"
            )
        return Bundle().supports(obj)

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the points at which the risk is called."""
        self.check_supports(obj)
        return self._run(
            obj, w0, _RestrictedRiskAndCuts(_restricted(obj), w0[None, :][:0], np.zeros(0)), math.inf
        )

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state, whose cuts stand for the outputs that were cached."""
        check_state(state, {"next": "d", "A": "m d", "b": "m", "best": "1"}, d=obj.risk.dim)
        model = _RestrictedRiskAndCuts(_restricted(obj), state["A"], state["b"])
        return self._run(obj, state["next"], model, float(state["best"][0]))

    def _run(self, obj: Objective, w: Array, model: _RestrictedRiskAndCuts, best: float) -> Iterator[Iterate]:
        """The iterates from w; `best` is the smallest J so far."""
        inner = Objective(model, obj.reg, obj.lam)
        state: dict[str, Array] = {}
        cut, dropped = None, 0
        while True:
            value, _, new_cut = obj(w)
            best = min(best, value)
            # the first cut is that of the risk; later ones come from the restricted problem, and are as valid
            cut = new_cut if cut is None else cut
            if state:
                # the call of the risk has added outputs, which raise the restricted risk
                state["value"] = np.array([inner.value(state["w"])])
            # the bundle method continues with the cuts of the last call
            steps = Bundle().warm_start(inner, state, inner) if state else Bundle().iterates(inner, w)
            it, cut, n_steps, ended = self._solve(inner, steps, best, cut)
            assert it.state is not None
            state = it.state()
            saved = {"next": it.w, "A": state["A"], "b": state["b"], "best": np.array([best])}
            yield Iterate(w, value, cut, {"steps": n_steps, "cuts": len(state["b"])}, saved.copy)
            if ended and bool((w == it.w).all()):
                return  # the risk adds no outputs at w, and the restricted problem is solved
            w = it.w
            # outputs that were dropped are represented by the cuts of the bundle method from now on
            if dropped != (dropped := model.restricted.dropped()):
                model.A, model.b = state["A"], state["b"]

    def _solve(
        self, inner: Objective, steps: Iterator[Iterate], best: float, cut: Cut
    ) -> tuple[Iterate, Cut, int, bool]:
        """The last step on the restricted problem, the best cut, the step count, and whether steps ended."""
        # the gap of the restricted problem is compared with that of J
        # a cut of the restricted risk is a cut of the risk, since it is a lower bound of it
        lower = inner.lower(cut)
        for k, it in enumerate(steps, 1):
            if inner.lower(it.cut) > lower:
                cut, lower = it.cut, inner.lower(it.cut)
            if k == self.MAX_BUNDLE_STEPS_PER_CALL or it.value - lower <= self.share * (best - lower):
                return it, cut, k, False
        return it, cut, k, True


@dataclass
class _RestrictedRiskAndCuts(Oracle):
    """The maximum of the restricted risk and of cuts found when it had more outputs."""

    restricted: RestrictedOracle
    A: Array
    b: NDArray

    def __post_init__(self) -> None:
        self.dim = self.restricted.dim

    def evaluate(self, w: Array) -> Evaluation:
        value, grad = self.restricted(w)
        if len(self.b):
            # the values of the cuts a_k'w + b_k; the largest one is active
            heights = self.A @ w + self.b
            k = int(heights.argmax())
            if heights[k] > value:
                return tangent(w, float(heights[k]), self.A[k])
        return tangent(w, value, grad)


def _restricted(obj: Objective) -> RestrictedOracle:
    risk: Any = obj.risk
    restricted: RestrictedOracle = risk.restricted_risk()
    return restricted
