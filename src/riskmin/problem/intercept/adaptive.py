r"""The nu-trick: a threshold that adapts to the data, so that a given share of the rows lies above it.

.. math:: R_\nu(w) = \min_{t \ge 0}\; \nu t + \sum_i c_i \max(0,\, l_i(w) - t)
          = \max_a \sum_i a_i\, l_i(w), \quad 0 \le a_i \le c_i,\; \sum_i a_i \le \nu.

The left-hand side is the problem: a tube or margin that is optimized together with w. The right-hand side is
how it is computed: the rows of the largest losses keep their weights until these add up to nu, and all other
rows get weight zero. Any feasible weights give a minorant, so a cut of the loss with these weights is a cut
of :math:`R_\nu`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from riskmin.core import Array
from riskmin.losses.nondecomposable.nu import Nu
from riskmin.problem.intercept.explicit import with_explicit_intercepts
from riskmin.problem.intercept.profiled import ProfiledCursor, ProfiledIntercept, without_intercept
from riskmin.problem.risk import GatheredCursor, Risk


@dataclass(frozen=True)
class Adaptive:
    r"""A risk with an adaptive threshold, the nu-trick:

    .. math:: R_\nu(w) = \min_{t \ge 0}\; \nu t + \sum_i c_i \max(0,\, l_i(w) - t).

    At most a share :math:`\nu` of the rows has a loss above t, and at least that share has a loss of t or
    more. The risk is :math:`\nu` times the mean of the largest :math:`\nu`-share of losses (the conditional
    value at risk). If the risk has an intercept b, it is minimized out together with t.

    With `Absolute` this is the nu-SVM of regression: t is the width of the tube. With `Hinge` it is that of
    classification, with margin :math:`\rho = 1 - t`. The textbook minimizes :math:`\tfrac\lambda2 |w|^2 -
    \nu \rho + \sum_i c_i \max(0, \rho - y_i z_i)` over w and :math:`\rho`. This risk is larger by the
    constant :math:`\nu`, which makes it nonnegative, and has :math:`\rho \le 1`. In the textbook a smaller
    lam only scales w and :math:`\rho` by the same factor, so nothing is lost: as long as :math:`\rho < 1`,
    the direction of w is the textbook's; at :math:`\rho = 1` it is the usual SVM, which then has at most a
    share :math:`\nu` of the rows within its margin.

    Parameters
    ----------
    base : Risk or ProfiledIntercept
        A result of `linear_risk`, with any executor, and with or without an intercept. Its loss is a sum over
        rows and returns the loss of each (see `Nu`). With an intercept, ``linear_risk(X, y, Nu(loss, nu),
        fit_intercept=True)`` makes the same risk.
    nu : float
        Above 0, at most 1.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Absolute, Adaptive, Objective, linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 2))
    >>> y = X @ [1.0, -1.0] + 3.0 + 0.1 * rng.standard_normal(200)
    >>> risk = Adaptive(linear_risk(X, y, Absolute(), fit_intercept=True), nu=0.2)
    >>> w = minimize(Objective(risk, L2(), lam=1e-4), tol=1e-6).w
    >>> t, residual = risk.threshold(w), np.abs(X @ w + risk.intercept(w) - y)
    >>> bool(np.mean(residual > t + 1e-6) <= 0.2)
    True
    """

    base: Risk | ProfiledIntercept
    nu: float
    loss: Nu = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inner = without_intercept(self.base)
        if not isinstance(inner, Risk):
            raise TypeError(f"Adaptive wraps a risk made by linear_risk, not {self.base!r}")
        object.__setattr__(self, "loss", Nu(inner.loss, self.nu))

    @cached_property
    def risk(self) -> Risk:
        """The risk with the loss ``Nu(loss, nu)`` and without its intercept."""
        inner: Risk = without_intercept(self.base)
        # rows and metadata are removed, so that no solver visits rows one by one
        return replace(inner, loss=self.loss, rows=None, row_metadata=None)

    @property
    def dim(self) -> int:
        """The length of w, the intercept not counted."""
        return self.base.dim

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R_nu(w) and a subgradient."""
        value, grad, _ = self.evaluate(w)
        return value, grad

    def evaluate(self, w: Array) -> tuple[float, Array, float]:
        """R_nu(w), a subgradient, and the inexactness of its cut."""
        cursor = self.cursor(w)
        value, grad = cursor.value_grad()
        return value, grad, cursor.inexactness

    def cursor(self, w: Array) -> GatheredCursor | ProfiledCursor:
        """A cursor that keeps the scores of all rows locally, and its intercept."""
        # the threshold couples all rows, so their scores are gathered
        cursor = GatheredCursor(self.risk, w)
        return ProfiledCursor(cursor) if isinstance(self.base, ProfiledIntercept) else cursor

    def intercept(self, w: Array) -> float:
        """The minimizing b; the midpoint if an interval minimizes, and 0 if the risk has no intercept."""
        cursor = self.cursor(w)
        return (
            0.5 * (cursor.minimizer_interval_end(-1) + cursor.minimizer_interval_end(+1))
            if isinstance(cursor, ProfiledCursor)
            else 0.0
        )

    def threshold(self, w: Array) -> float:
        """The minimizing t: the width of the tube, or 1 minus the margin."""
        # t at the scores z + b, for the minimizing b
        cursor, b = GatheredCursor(self.risk, w), self.intercept(w)
        return self.loss.threshold(cursor.z + b, cursor.y, cursor.c)


def with_intercept(risk: Risk) -> Risk | ProfiledIntercept | Adaptive:
    """The risk with an intercept that is minimized out; with a loss ``Nu(loss, nu)``, together with its t.

    A loss with ``shift_invariant = True`` does not depend on the intercept: the risk is returned as it is.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute, Nu, linear_risk
    >>> type(with_intercept(linear_risk(np.eye(2), np.ones(2), Nu(Absolute(), 0.5)))).__name__
    'Adaptive'
    """
    loss = risk.loss
    # several scores per row: one explicit intercept per score, as entries of w
    if risk.multi_output:
        if not hasattr(loss, "constant_prediction_cuts"):
            raise ValueError(
                f"{type(loss).__name__} has no method for intercepts: fit without, or add a column of ones"
            )
        return with_explicit_intercepts(risk)
    if isinstance(loss, Nu):
        return Adaptive(ProfiledIntercept(replace(risk, loss=loss.loss)), loss.nu)
    if getattr(loss, "shift_invariant", False):
        return risk
    if getattr(loss, "fixed_positive_count", False):
        raise ValueError(
            f"{type(loss).__name__} fixes how many rows are positive, so it has no best intercept: "
            "fit without one"
        )
    return ProfiledIntercept(risk)
