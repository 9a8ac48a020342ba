"""How a risk has an intercept: none, one that is minimized out, entries of w, or centered rows and targets.

An intercept b is never penalized. `Risk` has one of these strategies as its field `intercept`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from riskmin.arrays.namespace import as_array_like
from riskmin.core import Array
from riskmin.linear_maps.linear import WithIntercept
from riskmin.problem.intercept.explicit import optimize_intercepts
from riskmin.problem.intercept.profile import InterceptProfile
from riskmin.problem.intercept.solve import INTERCEPT_RELATIVE_GAP

if TYPE_CHECKING:
    from riskmin.problem.risk import Risk, ScoreCursor


class Intercept:
    """The base of the strategies, with the answers of a risk that has no intercept."""

    fitted: ClassVar[bool] = True
    """Whether there is an intercept, so that a shift of the columns of X does not change min J."""
    profiled: ClassVar[bool] = False
    """Whether b is minimized out inside the risk at each evaluation."""
    relative_gap: ClassVar[float] = 0.0
    """The relative gap to which b is minimized out."""
    n_entries: int = 0
    """The number of intercepts that are entries of w, its last ones."""

    def profile(self, cursor: ScoreCursor) -> InterceptProfile | None:
        """The search for the best intercepts along the cursor's line."""
        return None

    def optimize(self, cursor: ScoreCursor) -> None:
        """Approximately minimize over the intercepts that are entries of w."""

    def best(self, risk: Risk, w: Array) -> tuple[Any, float | None]:
        """The best b that is no entry of w (else 0.0), and R(w, b) if finding b took an evaluation."""
        return 0.0, None


@dataclass(frozen=True)
class NoIntercept(Intercept):
    """No intercept.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import NoIntercept, Squared, linear_risk
    >>> risk = linear_risk(np.eye(2), np.ones(2), Squared())
    >>> risk.intercept, risk.best_intercept(np.zeros(2))
    (NoIntercept(), 0.0)
    """

    fitted = False


NO_INTERCEPT = NoIntercept()


@dataclass(frozen=True)
class ProfiledIntercept(Intercept):
    r"""One intercept, minimized out inside the risk, :math:`\tilde R(w) = \min_b R(w, b)`.

    Solvers do not see it. It is found on the cached scores: O(n) per evaluation in b, and no further pass
    over X. The two tangents that bracket it, mixed so that the slope in b is zero, give a cut of R~. The
    value is R at the best b found, to a relative gap of 1e-12, by which the cut is lower.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute, linear_risk
    >>> risk = linear_risk(np.zeros((3, 1)), np.array([1.0, 2.0, 9.0]), Absolute(), fit_intercept=True)
    >>> risk.intercept, round(risk.best_intercept(np.zeros(1)), 9)  # the median
    (ProfiledIntercept(), 2.0)
    """

    profiled = True
    relative_gap = INTERCEPT_RELATIVE_GAP

    def profile(self, cursor: ScoreCursor) -> InterceptProfile:
        return InterceptProfile(cursor)

    def best(self, risk: Risk, w: Array) -> tuple[float, float]:
        """The minimizing b, and R(w, b)."""
        return risk.minimum(w)


@dataclass(frozen=True)
class ExplicitIntercepts(Intercept):
    """One intercept per output, as the last entries of w: `Objective` does not penalize them."""

    n_entries: int = 0

    def optimize(self, cursor: ScoreCursor) -> None:
        optimize_intercepts(cursor)


@dataclass(frozen=True)
class CenteredIntercepts(Intercept):
    """The intercepts of multi-output squared losses: minimized out by centered rows and targets."""

    target: Any = field(default=None, compare=False)
    """The means of the targets."""

    def best(self, risk: Risk, w: Array) -> tuple[Array, None]:
        """The minimizing b."""
        linear_map: Any = risk.linear_map
        # b = mean(y) - W' mean(x): the minimizer for squared losses
        mean = as_array_like(linear_map.mean, w)
        return self.target - mean @ w.reshape(-1, linear_map.columns), None


def with_intercept(risk: Risk) -> Risk:
    """The risk with an unpenalized intercept; one per output, as entries of w, if it has several outputs.

    A loss with ``shift_invariant = True`` does not depend on the intercept: the risk is returned as it is.
    """
    loss: Any = risk.loss
    if risk.multi_output:
        if not loss.has_constant_cuts:
            raise ValueError(
                f"{type(loss).__name__} has no method for intercepts: fit without, or add a column of ones"
            )
        linear_map: Any = WithIntercept(risk.linear_map)
        k = linear_map.columns
        return replace(risk, linear_map=linear_map, dim=risk.dim + k, intercept=ExplicitIntercepts(k))
    if loss.shift_invariant:
        return risk
    if loss.fixed_positive_count:
        raise ValueError(
            f"{type(loss).__name__} fixes how many rows are positive, so it has no best intercept: "
            "fit without one"
        )
    return replace(risk, intercept=ProfiledIntercept())
