"""The pooled risk over owners, who answer equal requests alike and round what they return."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.matrix import as_matrix
from riskmin.core import Array, Cut, Evaluation, NDArray
from riskmin.linear_maps.linear import Standardized
from riskmin.numerics.univariate import best_tangent
from riskmin.problem.risk import Risk, ScoreCursor


def in_units_of_rows(w: NDArray, linear_map: Any) -> NDArray:
    """Return the penalized weights in the units of X, without intercepts."""
    head, inner = w[: len(w) - linear_map.n_intercepts], linear_map.without_intercepts
    found: NDArray = inner.scaled(head) if isinstance(inner, Standardized) else head
    return found


def constant_scores(w: NDArray, linear_map: Any, p: int) -> NDArray:
    """Return the scores of a row of zeros: what intercepts and a shift of columns add."""
    found: NDArray = np.ravel(linear_map.scores(as_matrix(np.zeros((1, p))), w, 0, 1))
    return found


@dataclass(frozen=True)
class PooledRisk(Risk):
    """A risk over the rows of owners, whose answers carry the errors of their rounding."""

    @property
    def _single_pass(self) -> bool:
        """Always by a cursor: its answers have bounds on their errors."""
        return False

    def cursor(self, w: Array) -> PooledCursor:
        """A cursor at w whose scores are kept by the owners."""
        return PooledCursor(self, w)

    def at_best_intercept(self, w: Array, near: float | None = None) -> tuple[float, Any, Cut | None]:
        """The lowest R(w, b) that owners have answered lately, its b, and a cut."""
        value, b, cut = super().at_best_intercept(w, near)
        return *min((value, b), self._answered(w) or (value, b)), cut

    def best_intercept(self, w: Array) -> Any:
        """The b of the lowest R(w, b) that owners have answered lately; owners are asked if there is none."""
        known = self._answered(w)
        return super().best_intercept(w) if known is None else known[1]

    def _answered(self, w: Array) -> tuple[float, float] | None:
        """The lowest R(w, b) that owners have answered lately, in any variables, and its b."""
        run: Any = self.executor
        if not (self.intercept.profiled and run.raises_values):
            return None
        point = in_units_of_rows(w, self.linear_map)
        near = 1e-9 * float(np.max(np.abs(point), initial=0.0))
        same = [each for each in run.minima if float(np.max(np.abs(each[2] - point), initial=0.0)) <= near]
        if not same:
            return None
        value, constant, _ = min(same, key=lambda each: float(each[0]))
        return value, constant - float(constant_scores(w, self.linear_map, len(point))[0])


class PooledCursor(ScoreCursor):
    """A cursor over owners, who answer equal requests alike, unless one of them was restarted meanwhile."""

    INTERCEPT_GAP = 1e-8
    """To which the intercept is minimized out, relative to the risk at w = 0: each step is a round."""

    restarts: int = 0
    """The number of restarts when the tangents in the intercept were asked for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.profile is not None:
            at_zero = self.risk.executor.value_at_zero  # type: ignore[attr-defined]
            self.profile.min_slack = self.INTERCEPT_GAP * at_zero if math.isfinite(at_zero) else 0.0

    def evaluate(self, t: float = 0.0) -> Evaluation:
        """R(w + t d), a subgradient and a cut, from answers of the same processes of all owners."""
        executor: Any = self.risk.executor
        while True:
            if self.profile is not None and executor.n_restarts != self.restarts:
                self.profile.brackets, self.restarts = {}, executor.n_restarts
            evaluation = super().evaluate(t)
            if self.profile is None or executor.n_restarts == self.restarts:
                if self.profile is not None and executor.raises_values:
                    self._remember(t)
                return evaluation

    def _remember(self, t: float) -> None:
        """Keep the best intercept at w + t d: a later search may get coarser answers."""
        assert self.profile is not None
        best, w, run = best_tangent(*self.profile.brackets[t]), np.asarray(self.point(t)), self.risk.executor
        point = in_units_of_rows(w, self.risk.linear_map)
        constant = best.x + float(constant_scores(w, self.risk.linear_map, len(point))[0])
        run.minima.append((best.value, constant, point))  # type: ignore[attr-defined]
