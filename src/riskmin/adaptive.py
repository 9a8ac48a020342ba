r"""The nu-trick: a threshold that adapts to the data, so that a given share of the rows lies beyond it.

.. math:: R_\nu(w) = \min_{t \ge 0}\; \nu t + \sum_i c_i \max(0,\, l_i(w) - t)
          = \max_a \sum_i a_i\, l_i(w), \quad 0 \le a_i \le c_i,\; \sum_i a_i \le \nu.

On the left is what one wants, a tube or margin that is part of the problem; on the right is how it is
computed: the worst rows keep their weights until these add up to nu, and all others lose theirs. Any such
weights give a minorant, so a cut of the loss at those weights is a cut of :math:`R_\nu`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from riskmin.intercept import Profiled, ProfiledCursor, without_intercept
from riskmin.intercepts import with_intercepts
from riskmin.losses.nu import Nu
from riskmin.risk import GatheredCursor, Risk
from riskmin.types import Array


@dataclass(frozen=True)
class Adaptive:
    r"""A risk with an adaptive threshold, the nu-trick:

    .. math:: R_\nu(w) = \min_{t \ge 0}\; \nu t + \sum_i c_i \max(0,\, l_i(w) - t).

    At most a share :math:`\nu` of the rows has a loss above t, and at least that share one of t or more.
    It is :math:`\nu` times the mean of the worst :math:`\nu`-share of losses. If the risk has an intercept b,
    it is minimized out together with t.

    With `Absolute` this is the nu-SVM of regression: t is the width of the tube. With `Hinge` it is that of
    classification, with margin :math:`\rho = 1 - t`. The textbook minimizes :math:`\tfrac\lambda2 |w|^2 -
    \nu \rho + \sum_i c_i \max(0, \rho - y_i z_i)` over w and :math:`\rho`; here that is larger by the
    constant :math:`\nu`, which makes it a risk, :math:`\ge 0`, and :math:`\rho \le 1`. In the textbook a
    smaller lam only makes w and :math:`\rho` larger by the same factor, so nothing is lost: as long as
    :math:`\rho < 1` here, the direction of w is the textbook's; from there on it is the usual SVM, which
    then has a share of at most :math:`\nu` of the rows within its margin.

    Parameters
    ----------
    base : Risk or Profiled
        What `linear_risk` makes, with any executor, and with or without an intercept; its loss a sum over
        rows that tells the loss of each (see `Nu`). With an intercept, `linear_risk` takes ``Nu(loss, nu)``
        for the same.
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

    base: Risk | Profiled
    nu: float
    loss: Nu = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inner = without_intercept(self.base)
        if not isinstance(inner, Risk):
            raise TypeError(f"Adaptive wraps a risk that linear_risk makes, not {self.base!r}")
        object.__setattr__(self, "loss", Nu(inner.loss, self.nu))

    @cached_property
    def risk(self) -> Risk:
        """The same without its intercept."""
        inner: Risk = without_intercept(self.base)
        return replace(inner, loss=self.loss, rows=None, table=None)  # no solver may take its rows one by one

    @property
    def dim(self) -> int:
        """The length of w, the intercept not counted."""
        return self.base.dim

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R_nu(w) and a subgradient."""
        value, grad, _ = self.evaluate(w)
        return value, grad

    def evaluate(self, w: Array) -> tuple[float, Array, float]:
        """R_nu(w), a subgradient, and by how much its cut lies below."""
        at = self.cursor(w)
        value, grad = at.value_grad()
        return value, grad, at.slip

    def cursor(self, w: Array) -> GatheredCursor | ProfiledCursor:
        """A point that keeps all its scores here, and its intercept."""
        at = GatheredCursor(self.risk, w)
        return ProfiledCursor(at) if isinstance(self.base, Profiled) else at

    def intercept(self, w: Array) -> float:
        """The best b, 0 if the risk has none; the middle of the interval, where a whole interval is best."""
        at = self.cursor(w)
        return 0.5 * (at.last_best(-1) + at.last_best(+1)) if isinstance(at, ProfiledCursor) else 0.0

    def threshold(self, w: Array) -> float:
        """The best t: the width of the tube, or 1 less the margin."""
        at, b = GatheredCursor(self.risk, w), self.intercept(w)
        return self.loss.threshold(at.z + b, at.y, at.c)


def with_intercept(risk: Risk) -> Risk | Profiled | Adaptive:
    """The risk with an intercept that is minimized out; with a loss ``Nu(loss, nu)``, together with its t.

    A loss that says ``invariant = True`` is the same for all intercepts, so that there is none to find.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute, Nu, linear_risk
    >>> type(with_intercept(linear_risk(np.eye(2), np.ones(2), Nu(Absolute(), 0.5)))).__name__
    'Adaptive'
    """
    loss = risk.loss
    if risk.many:
        if not hasattr(loss, "constants"):
            raise ValueError(
                f"{type(loss).__name__} knows of no intercepts: fit without, or add a column of ones"
            )
        return with_intercepts(risk)
    if isinstance(loss, Nu):
        return Adaptive(Profiled(replace(risk, loss=loss.loss)), loss.nu)
    if getattr(loss, "invariant", False):
        return risk
    if getattr(loss, "counted", False):
        raise ValueError(
            f"{type(loss).__name__} fixes how many rows are positive, so it has no best intercept: "
            "fit without one"
        )
    return Profiled(risk)
