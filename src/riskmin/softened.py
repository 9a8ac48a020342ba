"""A risk with its loss smoothed: what solvers for smooth problems see of one that is not."""

from __future__ import annotations

from riskmin.intercept import Profiled, ProfiledCursor, without_intercept
from riskmin.intercepts import BalancedCursor
from riskmin.losses.smoothing import Lifting
from riskmin.risk import Risk, ScoreCursor
from riskmin.types import Array, Balances, Cut


class Softened:
    r"""A risk with a smoothed loss, :math:`R_\mu \le R`, whose cuts are cuts of R itself.

    It keeps the scores of the last point it was asked for, so that the true risk there, or the smoothed one
    with another mu, takes no pass over X.

    Parameters
    ----------
    true : Risk or Profiled
        What `linear_risk` makes, for a loss that can be smoothed.
    mu : float
        How much; it may be changed between one solver's run and the next.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> soft = Softened(linear_risk(np.eye(2), [1.0, -1.0], Hinge()), mu=0.5)
    >>> w = np.array([0.75, 0.0])
    >>> value, grad, slip = soft.evaluate(w)
    >>> round(value, 6), grad.tolist(), round(slip, 6)  # a cut of R is that much higher
    (0.40625, [-0.25, 0.5], -0.15625)
    >>> soft.truth(w)
    0.625
    """

    def __init__(self, true: Risk | Profiled, mu: float) -> None:
        self.true, self.mu = true, mu
        self.inner = without_intercept(true)
        self.last: ScoreCursor | None = None
        self.seen: list[tuple[Array, Cut, float]] = []

    @property
    def dim(self) -> int:
        """The length of w."""
        return self.true.dim

    @property
    def loss(self) -> Lifting:
        """The smoothed loss."""
        return Lifting(self.inner.loss, self.mu)

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R_mu(w) and its gradient."""
        value, grad, _ = self.evaluate(w)
        return value, grad

    def evaluate(self, w: Array) -> tuple[float, Array, float]:
        """R_mu(w), its gradient, and by how much its cut lies below: a negative number."""
        at = self.cursor(w)
        value, grad = at.value_grad()
        return value, grad, at.slip

    def cursor(self, w: Array) -> SoftCursor:
        """A point that keeps its scores; those of the last one, if it is there."""
        self.last = scores = self._scores(w).under(self.loss)
        return SoftCursor(self, ProfiledCursor(scores) if isinstance(self.true, Profiled) else scores)

    @property
    def n_intercepts(self) -> int:
        """As many as the true risk has in w."""
        return self.true.n_intercepts if isinstance(self.true, Balances) else 0

    def balanced(self, cut: Cut) -> Cut:
        """A cut without a slope in these."""
        return self.true.balanced(cut) if isinstance(self.true, Balances) else cut

    def cut(self, w: Array) -> Cut:
        """The cut of R that w gave; w is one of the last two points with a gradient, or is asked anew."""
        return self._seen(w)[1]

    def lift(self, w: Array) -> float:
        """By how much that cut lies above the tangent of R_mu; w as for `cut`."""
        return self._seen(w)[2]

    def truth(self, w: Array) -> float:
        """R(w)."""
        scores = self._scores(w).under(self.inner.loss)
        if isinstance(self.true, Profiled):
            return ProfiledCursor(scores).along(0.0)[0]
        return scores.along(0.0)[0]

    def _seen(self, w: Array) -> tuple[Array, Cut, float]:
        for seen in self.seen:
            if seen[0] is w:
                return seen
        self.evaluate(w)
        return self.seen[-1]

    def _scores(self, w: Array) -> ScoreCursor:
        if self.last is None or self.last.w is not w:
            self.last = self.inner.cursor(w)
        return self.last


class SoftCursor:
    """A cursor of a softened risk, which remembers its cuts."""

    def __init__(self, soft: Softened, at: ScoreCursor | ProfiledCursor) -> None:
        self.soft, self.at = soft, at

    @property
    def w(self) -> Array:
        return self.at.w

    @property
    def slip(self) -> float:
        return self.at.slip

    @property
    def lift(self) -> float:
        return self.at.lift

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        value, grad = self.at.value_grad(t)
        if not t:
            cut = Cut(grad, value - float(grad @ self.w) - self.slip)
            self.soft.seen = [*self.soft.seen[-1:], (self.w, cut, self.lift)]
        return value, grad

    def aim(self, d: Array, slack: float = 0.0) -> None:
        self.at.aim(d, slack)

    def along(self, t: float) -> tuple[float, float]:
        return self.at.along(t)

    def move(self, t: float) -> None:
        self.at.move(t)

    def balance(self) -> None:
        if isinstance(self.at, BalancedCursor):
            self.at.balance()
