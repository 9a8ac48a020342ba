"""The pooled risk over owners, who answer equal requests alike and round what they return."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from riskmin.core import Array, Evaluation
from riskmin.problem.risk import Risk, ScoreCursor


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
                return evaluation
