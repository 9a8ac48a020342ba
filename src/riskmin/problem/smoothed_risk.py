"""A risk with its loss smoothed, for solvers of smooth problems."""

from __future__ import annotations

from riskmin.core import Array, Cut, HasIntercepts
from riskmin.losses.smoothed import OffsetSmoothed
from riskmin.problem.intercept.explicit import ExplicitInterceptsCursor
from riskmin.problem.intercept.profiled import ProfiledCursor, ProfiledIntercept, without_intercept
from riskmin.problem.risk import Risk, ScoreCursor


class SmoothedRisk:
    r"""A risk with a smoothed loss, :math:`R_\mu \le R`, whose cuts are cuts of R itself.

    It keeps the scores of the last evaluated point, so that the unsmoothed risk there, or the smoothed one
    with another mu, takes no pass over X.

    Parameters
    ----------
    unsmoothed : Risk or ProfiledIntercept
        A result of `linear_risk`, for a loss that can be smoothed.
    mu : float
        The smoothing parameter; it may be changed between runs of a solver.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> smoothed = SmoothedRisk(linear_risk(np.eye(2), [1.0, -1.0], Hinge()), mu=0.5)
    >>> w = np.array([0.75, 0.0])
    >>> value, grad, inexactness = smoothed.evaluate(w)
    >>> round(value, 6), grad.tolist(), round(inexactness, 6)  # negative: the cut of R lies above the tangent
    (0.40625, [-0.25, 0.5], -0.15625)
    >>> smoothed.unsmoothed_value(w)
    0.625
    """

    def __init__(self, unsmoothed: Risk | ProfiledIntercept, mu: float) -> None:
        self.unsmoothed, self.mu = unsmoothed, mu
        self.inner = without_intercept(unsmoothed)
        self.last_cursor: ScoreCursor | None = None
        self.evaluated: list[tuple[Array, Cut, float]] = []  # the last two: point, cut, minorant offset

    @property
    def dim(self) -> int:
        """The length of w."""
        return self.unsmoothed.dim

    @property
    def loss(self) -> OffsetSmoothed:
        """The smoothed loss."""
        return OffsetSmoothed(self.inner.loss, self.mu)

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R_mu(w) and its gradient."""
        value, grad, _ = self.evaluate(w)
        return value, grad

    def evaluate(self, w: Array) -> tuple[float, Array, float]:
        """R_mu(w), its gradient, and the inexactness of its cut, which is negative up to rounding."""
        cursor = self.cursor(w)
        value, grad = cursor.value_grad()
        return value, grad, cursor.inexactness

    def cursor(self, w: Array) -> SmoothedCursor:
        """A cursor at w; it shares the cached scores of the last one, if that is at the same point."""
        self.last_cursor = scores = self._scores(w).with_loss(self.loss)
        # the intercept minimizes R_mu, not R: it is profiled again with the smoothed loss
        return SmoothedCursor(
            self, ProfiledCursor(scores) if isinstance(self.unsmoothed, ProfiledIntercept) else scores
        )

    @property
    def n_intercepts(self) -> int:
        """The number of intercepts that the unsmoothed risk has in w."""
        return self.unsmoothed.n_intercepts if isinstance(self.unsmoothed, HasIntercepts) else 0

    def project_out_intercepts(self, cut: Cut) -> Cut:
        """A cut without a slope in the intercepts."""
        return (
            self.unsmoothed.project_out_intercepts(cut) if isinstance(self.unsmoothed, HasIntercepts) else cut
        )

    def cut(self, w: Array) -> Cut:
        """The cut of R from the tangent at w; evaluated again unless w is one of the last two points."""
        return self._evaluated(w)[1]

    def minorant_offset(self, w: Array) -> float:
        """The minorant offset at w: how far that cut lies above the tangent of R_mu."""
        return self._evaluated(w)[2]

    def unsmoothed_value(self, w: Array) -> float:
        """The unsmoothed risk, R(w)."""
        # the same cached scores, evaluated with the loss that is not smoothed
        scores = self._scores(w).with_loss(self.inner.loss)
        if isinstance(self.unsmoothed, ProfiledIntercept):
            return ProfiledCursor(scores).value_slope(0.0)[0]
        return scores.value_slope(0.0)[0]

    def _evaluated(self, w: Array) -> tuple[Array, Cut, float]:
        # compared by identity: an equal copy of w is evaluated again
        for evaluated in self.evaluated:
            if evaluated[0] is w:
                return evaluated
        self.evaluate(w)
        return self.evaluated[-1]

    def _scores(self, w: Array) -> ScoreCursor:
        if self.last_cursor is None or self.last_cursor.w is not w:
            self.last_cursor = self.inner.cursor(w)
        return self.last_cursor


class SmoothedCursor:
    """A cursor of a smoothed risk, which records its cuts."""

    def __init__(self, smoothed: SmoothedRisk, inner: ScoreCursor | ProfiledCursor) -> None:
        self.smoothed, self.inner = smoothed, inner

    @property
    def w(self) -> Array:
        return self.inner.w

    @property
    def inexactness(self) -> float:
        return self.inner.inexactness

    @property
    def minorant_offset(self) -> float:
        return self.inner.minorant_offset

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        value, grad = self.inner.value_grad(t)
        if not t:
            # R(v) >= value + g'(v - w) - inexactness, where the inexactness is rounding - minorant offset
            cut = Cut(grad, value - float(grad @ self.w) - self.inexactness)
            self.smoothed.evaluated = [*self.smoothed.evaluated[-1:], (self.w, cut, self.minorant_offset)]
        return value, grad

    def set_direction(self, d: Array, slack: float = 0.0) -> None:
        self.inner.set_direction(d, slack)

    def value_slope(self, t: float) -> tuple[float, float]:
        return self.inner.value_slope(t)

    def advance(self, t: float) -> None:
        self.inner.advance(t)

    def optimize_intercepts(self) -> None:
        if isinstance(self.inner, ExplicitInterceptsCursor):
            self.inner.optimize_intercepts()
