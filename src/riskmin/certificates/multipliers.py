r"""Multipliers of the rows that prove the gap of given weights.

Any u in the domains of the conjugates, with :math:`\sum_i c_i u_i = 0` if there is an intercept, proves

.. math:: \min J \;\ge\; -\sum_i c_i\, l^*(u_i, y_i)
          - \lambda\, \Omega^*\Bigl(-\tfrac1\lambda \sum_i c_i u_i x_i\Bigr).

At the optimum they are the derivatives of the losses, :math:`u_i = l'(z_i, y_i)`. Where a loss has a kink,
its derivative at a score near the kink says little, and the multipliers of a solver are needed. A run makes
multipliers on its way: in its cuts, or in the state that it would save. Each of them is a candidate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.core import Cut, Iterate, NDArray
from riskmin.driver.loop import minimize
from riskmin.problem.certificate import balanced, lowered_cut, multiplier_cut, scale_of_slopes
from riskmin.problem.objective import Objective, is_foreign
from riskmin.problem.smoothed_risk import SmoothedRisk

SMOOTHING_FACTOR = 0.1
"""By which the smoothing of a loss with kinks decreases, and the share of the gap at which that ends."""
REFUTING_EXCESS = 1e-9
"""A bound above J by more than this share of it is no rounding error."""
MAX_STEPS = 300
"""The most iterations of a run that looks for multipliers."""


@dataclass(frozen=True)
class Multipliers:
    r"""Multipliers of the rows of a model, and what they prove: :math:`J(w) - \min J \le` `gap`.

    Attributes
    ----------
    u : (n,) or (n, k) array
        One number per row, or one per row and class.
    value : float
        J at the weights and intercepts of the model.
    lower : float
        The lower bound of min J that u proves; what rounding may have added is subtracted.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import LinearRegressor, multipliers
    >>> X, y = np.array([[0.0], [1.0], [2.0]]), np.array([0.0, 1.0, 5.0])
    >>> found = multipliers(LinearRegressor("squared", alpha=1.0).fit(X, y), X, y)
    >>> np.round(found.u, 6).tolist(), found.gap < 1e-9
    ([1.0, 1.0, -2.0], True)
    """

    u: NDArray
    value: float
    lower: float

    @property
    def gap(self) -> float:
        """``value - lower``."""
        return self.value - self.lower


class RowCuts:
    """The cuts of multipliers of the rows of an objective, which are in this process."""

    def __init__(self, obj: Objective) -> None:
        risk: Any = obj.risk
        if risk.rows is None or risk.loss is None or not risk.loss.separable:
            raise ValueError("only a sum of losses over rows in this process has multipliers of its rows")
        self.obj, self.loss, (_, self.y, self.c) = obj, risk.loss, risk.rows[:3]
        self.dual = None if self.loss.multi_output else self.loss.conjugate(self.y)
        self.X, self.linear_map = risk.rows.X, risk.linear_map
        supported: Any = self.dual is not None or self.loss.multiplier_cut(
            np.zeros((0, 2)), self.y[:0], self.c[:0]
        )
        if supported is None:
            raise ValueError(
                f"{self.loss!r} has no formula of its conjugate, so that no multipliers are known"
            )

    def scores(self, w: NDArray) -> NDArray:
        """X w, of all rows."""
        return np.asarray(self.linear_map.scores(self.X, w, 0, len(self.c)))

    def adjoint(self, dz: NDArray) -> NDArray:
        """X' dz, of all rows."""
        out = np.zeros(self.obj.risk.dim)
        self.linear_map.pullback(self.X, dz, 0, len(self.c), out)
        return out

    def feasible(self, u: NDArray) -> tuple[NDArray, Cut]:
        """The multipliers near u for which the bound is finite, and their cut."""
        if self.dual is None:
            return self._of_classes(u)
        obj, c = self.obj, self.c
        u = np.where(c > 0, np.clip(np.nan_to_num(u), self.dual.lower, self.dual.upper), 0.0)
        if obj.risk.intercept.profiled:
            u = balanced(u, c, self.dual)
        a = self.adjoint(c * u)
        # where Omega* is infinite, u is scaled: l* is convex, so that this proves more than a scaled cut
        s = self._scale(a)
        return s * u, multiplier_cut(s * a, self.dual, s * u, c)

    def largest_scale(self, u: NDArray) -> float:
        """The largest s <= 1 for which Omega* is finite at the slopes of s u."""
        a = self.adjoint((self.c * u.T).T)
        a[len(a) - self.obj.n_intercepts :] = 0.0
        return self._scale(a)

    def _scale(self, a: NDArray) -> float:
        return scale_of_slopes(self.obj, Cut(a, 1.0)) if self.obj.reg.polyhedral else 1.0

    def _of_classes(self, u: NDArray) -> tuple[NDArray, Cut]:
        """The same for one multiplier per row and class."""
        obj, c = self.obj, self.c
        dz = self.loss.multiplier_cut(np.nan_to_num(u) * c[:, None], self.y, c)[0]
        m = obj.n_intercepts
        dz = self._with_zero_totals(dz) if m else dz
        a = self.adjoint(dz)
        a[len(a) - m :] = 0.0  # the totals, which are zero up to rounding
        s = self._scale(a)
        dz, offset, size = self.loss.multiplier_cut(s * dz, self.y, c)
        return dz / np.where(c > 0, c, 1.0)[:, None], lowered_cut(s * a, float(offset), float(size))

    def _with_zero_totals(self, dz: NDArray) -> NDArray:
        """A mixture of slopes with those of one prediction for all rows, whose sum over the rows is zero.

        l >= r (z_j - z_y) - a constant for every class j: the slopes r (m_j - 1[y = j]) have the totals
        r (m_j - c_j), where m are weights of the classes with sum one, and c_j is the weight of class j.
        """
        r, k = float(np.max(self.loss.constant_prediction_cuts(dz.shape[1])[0])), dz.shape[1]
        true_class = np.arange(k) == self.y[:, None]
        totals, shares = dz.sum(axis=0), self.c @ true_class
        excess = float(np.max(np.where(totals > 0, totals / np.maximum(r * shares, 1e-300), 0.0)))
        t = excess / (1 + excess)
        if not t:
            return dz
        mean = shares - (1 - t) / (t * r) * totals
        mixed: NDArray = (1 - t) * dz + t * r * self.c[:, None] * (mean - true_class)
        return mixed

    # ------------------------------------------------------------ candidates
    def at(self, z: NDArray, mu: float = 0.0) -> Iterator[NDArray]:
        """The slopes at the scores z of the loss, or of its form smoothed by mu."""
        loss, arguments = self.loss, (z, self.y, self.c)
        dz = loss.smoothed_value_grad(*arguments, mu)[1] if mu else loss.value_grad(*arguments)[1]
        per_weight = 1.0 / np.where(self.c > 0, self.c, 1.0)
        yield dz * (per_weight[:, None] if z.ndim == 2 else per_weight)

    def of_iterate(self, it: Iterate) -> Iterator[NDArray]:
        """The multipliers that a solver has at an iterate: those of its cut, and those of its state."""
        if it.cut.u is not None:
            yield np.asarray(it.cut.u)
        state = {} if it.state is None else it.state()
        per_weight = 1.0 / np.where(self.c > 0, self.c, 1.0)
        for name, value in state.items():
            kind = name.rpartition(".")[2]
            if kind in ("dz", "u") and np.shape(value)[:1] == self.c.shape:
                u = np.asarray(value)
                yield u * (per_weight[:, None] if u.ndim == 2 else per_weight) if kind == "dz" else u


class _Search:
    """The best multipliers so far."""

    def __init__(self, cuts: RowCuts, goal: float) -> None:
        self.cuts, self.goal, self.u, self.lower = cuts, goal, np.zeros(0), -math.inf

    @property
    def done(self) -> bool:
        return self.lower >= self.goal

    def take(self, candidates: Iterator[NDArray]) -> None:
        """Compare candidates until one proves the goal."""
        for u in candidates:
            if self.done:
                return
            feasible, cut = self.cuts.feasible(u)
            lower = self.cuts.obj.lower(cut)
            if lower > self.lower:
                self.u, self.lower = feasible, float(lower)


def best_multipliers(obj: Objective, w: NDArray, z: NDArray, goal: float) -> tuple[NDArray, float]:
    """Multipliers that prove min J >= goal, and their bound; the best that a run finds if none do.

    w are weights near the minimizer, and z their scores with the intercept. Raise a ValueError if the bound
    is above J there, which refutes the conjugate of a user's loss.
    """
    search, start = _Search(RowCuts(obj), goal), w
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.take(search.cuts.at(z))
        if not search.done:
            w = _search_by_a_run(search, w)
        if not search.done and not search.cuts.loss.smooth and search.cuts.loss.can_be_smoothed:
            _search_smoothed(search, w)
    if is_foreign(obj.risk):
        loss, y, c = search.cuts.loss, search.cuts.y, search.cuts.c
        J = float(loss.value_grad(z, y, c)[0]) + obj.lam * obj.reg.value(start)
        if search.lower > J + REFUTING_EXCESS * abs(J):
            raise ValueError(
                f"the conjugate of {type(loss).__name__} contradicts its values: it bounds the objective by "
                f"{search.lower:.9g}, which is {J:.9g} at these weights"
            )
    return search.u, search.lower


def _search_by_a_run(search: _Search, w: NDArray) -> NDArray:
    """Take the multipliers of a run that starts at w; return its weights."""
    cuts, obj = search.cuts, search.cuts.obj
    risk: Any = obj.risk

    def stop(it: Iterate, row: dict[str, float]) -> bool:
        search.take(cuts.of_iterate(it))
        if cuts.dual is None:  # the scores include the intercepts; a smoothed loss has slopes of its own
            search.take(cuts.at(cuts.scores(np.asarray(it.w)), it.info.get("mu", 0.0)))
        return search.done

    # the tolerance is that of rounding: the callback decides when the goal is reached
    found = np.asarray(minimize(obj, w0=w, tol=1e-15, atol=0.0, max_iter=MAX_STEPS, callback=stop).w)
    search.take(cuts.at(cuts.scores(found) + risk.best_intercept(found)))
    return found


def _search_smoothed(search: _Search, w: NDArray) -> None:
    """Take the slopes of the smoothed loss at the minimizer of its own objective."""
    cuts, obj = search.cuts, search.cuts.obj
    value = obj.value(w)
    gap, mu = value - search.goal, value
    while not search.done and mu > SMOOTHING_FACTOR * gap > 0:
        mu *= SMOOTHING_FACTOR
        risk = SmoothedRisk.from_risk(obj.risk, mu)
        smooth = Objective(risk, obj.reg.penalized_part, obj.lam)
        w = np.asarray(minimize(smooth, w0=w, tol=1e-14, atol=0.0, max_iter=MAX_STEPS).w)
        search.take(cuts.at(cuts.scores(w) + risk.best_intercept(w), mu))
