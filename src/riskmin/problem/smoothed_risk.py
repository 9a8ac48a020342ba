"""A risk with its loss smoothed, for solvers of smooth problems."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from riskmin.core import Array, Cut, ShardCache
from riskmin.losses.base import OffsetSmoothed
from riskmin.problem.explicit_intercepts import ConstantPredictionCuts
from riskmin.problem.risk import Risk, ScoreCursor


@dataclass(frozen=True)
class SmoothedRisk(Risk):
    r"""A risk with a smoothed loss, :math:`R_\mu \le R`, whose cuts are cuts of R itself.

    It shares the scores of the last point with the risks that `with_mu` makes from it, so that the unsmoothed
    risk there, or the smoothed one with another mu, takes no pass over X.
    """

    unsmoothed: Any = field(default=None, repr=False, compare=False)
    """The risk R."""
    shared: ShardCache = field(default_factory=ShardCache, repr=False, compare=False)
    """The last cursor, shared by the risks of all mu."""

    @classmethod
    def from_risk(cls, risk: Any, mu: float) -> SmoothedRisk:
        """The smoothed form of a risk whose loss can be smoothed."""
        kept = {f.name: vars(risk)[f.name] for f in fields(Risk) if f.init}
        return cls(**kept | {"loss": OffsetSmoothed(risk.loss, mu), "unsmoothed": risk})

    @property
    def mu(self) -> float:
        """The smoothing parameter."""
        return self.loss.mu  # type: ignore[attr-defined, no-any-return]

    @property
    def constant_prediction_cuts(self) -> ConstantPredictionCuts:
        """Those of R, like all cuts of this risk."""
        cuts: ConstantPredictionCuts = self.unsmoothed.constant_prediction_cuts
        return cuts

    def with_mu(self, mu: float) -> SmoothedRisk:
        """The same risk, smoothed by another mu."""
        return replace(self, loss=replace(self.loss, mu=mu))  # type: ignore[type-var]

    def cursor(self, w: Array) -> ScoreCursor:
        """A cursor at w; it shares the cached scores of the last one, if that is at the same point."""
        last: ScoreCursor | None = self.shared.get("cursor")
        same = last is not None and last.w is w
        self.shared["cursor"] = new = last.with_loss(self.loss) if same else super().cursor(w)  # type: ignore[union-attr]
        return new

    def cut(self, w: Array) -> Cut:
        """The cut of R from the tangent at w; evaluated again unless w is the last point."""
        last = self.shared.get("cursor")
        if last is None or last.last_evaluation is None or last.last_evaluation[0] is not w:
            return self.evaluate(w).cut
        cut: Cut = last.last_evaluation[1].cut
        return cut

    def unsmoothed_value(self, w: Array) -> float:
        """The unsmoothed risk, R(w)."""
        last = self.shared.get("cursor")
        point = last if last is not None and last.w is w else self.cursor(w)
        # the same cached scores, evaluated with the loss that is not smoothed
        return float(point.with_loss(self.unsmoothed.loss).value_slope(0.0)[0])
