r"""Cox's partial likelihood, by sums over the rows at risk at the time of each event.

.. math:: R(z) = \sum_k d_k \log \frac{S_k}{d_k} - \sum_{i \in E} c_i z_i, \qquad
          S_k = \sum_{j : t_j \ge t_k} c_j e^{z_j},

with the times :math:`t_k` of the events E, and the total weights :math:`d_k` of the events at each. In the
order of the times, all :math:`S_k` are one cumulative sum, and value, gradient and Hessian take O(n log n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace, to_numpy
from riskmin.core import Array, Hessian, NDArray, PairBlock
from riskmin.losses.base import Loss
from riskmin.losses.conjugate import xlogx
from riskmin.losses.labels import check_times

MAX_EXPONENT = 350.0
"""Exponents of factors of second derivatives end here, so that the product of two is a number."""


class _RiskSets(NamedTuple):
    """Rows in decreasing order of their times; logarithms, since scores may be far apart."""

    order: NDArray
    log_mass: NDArray
    """log c_i + z_i."""
    group: NDArray
    """The number of the time of each row."""
    events: NDArray
    """The total weight d of the events at each time."""
    log_sums: NDArray
    """log S at each time."""
    own: NDArray
    """c_i of the rows with an event, 0 of the others."""

    def hazard(self, power: int) -> NDArray:
        """Return log sum_k d_k / S_k^power over the events until the time of each row."""
        terms, at_events = np.full(len(self.events), -np.inf), self.events > 0
        terms[at_events] = np.log(self.events[at_events]) - power * self.log_sums[at_events]
        return np.asarray(np.logaddexp.accumulate(terms[::-1])[::-1][self.group])


def _risk_sets(z: NDArray, y: NDArray, c: NDArray) -> _RiskSets:
    order = np.argsort(-np.abs(y), kind="stable")
    times, own = np.abs(y[order]), np.where(y[order] > 0, c[order], 0.0)
    group = np.append(0, np.cumsum(times[1:] != times[:-1]))
    with np.errstate(divide="ignore"):
        log_mass = np.log(c[order]) + z[order]
    last = np.append(np.flatnonzero(np.diff(group)), len(group) - 1)
    return _RiskSets(
        order, log_mass, group, np.bincount(group, own), np.logaddexp.accumulate(log_mass)[last], own
    )


def _beside(a: NDArray, z: Array) -> Array:
    """Return numbers in the library and the precision of the scores z."""
    return namespace(z).astype(as_array_like(a, z), z.dtype)


@dataclass(frozen=True)
class Cox(Loss):
    r"""Minus the logarithm of Cox's partial likelihood, per unit of weight, with Breslow's treatment of ties,

    .. math:: \sum_{i \in E} c_i \Bigl(\log \sum_{j : t_j \ge t_i} c_j e^{z_j} - z_i\Bigr)
              - \sum_k d_k \log d_k.

    The label is the time t > 0 of an event (E), and -t of a row that was observed without an event until t.
    The score is the logarithm of the hazard, up to a constant, so that there is no intercept. The last term,
    with the total weight :math:`d_k` of the events at one time, makes zero the least value. With n rows of
    equal weight and distinct times, n times the loss is minus the logarithm of the partial likelihood.

    References
    ----------
    D. R. Cox, Regression models and life-tables, J. Royal Statistical Society B 34, 1972. N. E. Breslow,
    Covariance analysis of censored survival data, Biometrics 30, 1974.

    Examples
    --------
    Two events, at the times 1 and 3, and a row that was observed until 2:

    >>> import numpy as np
    >>> value, dz = Cox().value_grad(np.zeros(3), np.array([1.0, -2.0, 3.0]), np.ones(3))
    >>> bool(np.isclose(value, np.log(3.0) + np.log(1.0))), dz.round(3).tolist()
    (True, [-0.667, 0.333, 0.333])
    """

    smooth = True
    separable = False
    shift_invariant = True
    task = "regression"
    margin = 0.0
    # third central moments are at most the variance times the range, twice the largest change of a score
    self_concordance = 2.0
    formula = "sum over events of c_i (log sum_(t_j >= t_i) c_j exp(z_j) - z_i), less a constant"
    check_labels = check_times

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the loss and its gradient in z."""
        sets, scores = self._sets(z, y, c)
        at_events = sets.events > 0
        value = sets.events[at_events] @ sets.log_sums[at_events] - xlogx(sets.events).sum()
        slopes = np.empty(len(scores))
        slopes[sets.order] = np.exp(sets.log_mass + sets.hazard(1)) - sets.own
        return value - sets.own @ scores[sets.order], _beside(slopes, z)

    def terms(self, z: Array, y: Array, c: Array) -> Any:
        """Return the sum of the absolute terms of the value, a scale for its rounding error."""
        sets, _ = self._sets(z, y, c)
        at_events = sets.events > 0
        return sets.events[at_events] @ abs(sets.log_sums[at_events]) + abs(xlogx(sets.events)).sum()

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the Hessian: rows i and j have the entry -m_i m_j sum_k d_k / S_k^2 up to the first time."""
        if mu:
            return None
        sets, scores = self._sets(z, y, c)
        n, middle = len(scores), sets.log_mass.max()
        total, squares = sets.log_mass + sets.hazard(1), 2 * sets.log_mass + sets.hazard(2)
        diagonal = np.empty(n)
        diagonal[sets.order] = np.maximum(np.exp(total) - np.exp(squares), 0.0)
        # row i of the order is at risk whenever an earlier row j, of a later time, is counted with it
        p = np.exp(np.minimum(sets.log_mass + sets.hazard(2) + middle, MAX_EXPONENT))
        q = np.exp(sets.log_mass - middle)
        first, last = np.zeros(n, np.intp), np.arange(n)
        block = PairBlock(sets.order, p, sets.order, q, first, last)
        weights = block._replace(p=_beside(p, z), q=_beside(q, z))
        return Hessian(_beside(diagonal, z), (), (weights,))

    @staticmethod
    def _sets(z: Array, y: Array, c: Array) -> tuple[_RiskSets, NDArray]:
        """Return the rows in order, and the scores, as numbers of NumPy: cumulative sums of logarithms."""
        scores, y, c = (np.asarray(to_numpy(a), dtype=np.float64) for a in (z, y, c))
        return _risk_sets(scores, y, c), scores
