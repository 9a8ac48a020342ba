r"""Standardized columns without a copy of X: the regularizer sees the weights that they would have.

A column divided by its standard deviation :math:`s_j` has the weight :math:`s_j w_j`, and centring it changes
nothing but the intercept, which is not penalized. So the problem is

.. math:: \min_{w, b}\; J(w, b) = \alpha\,\Omega(s \circ w) + R(w, b),

with w and b in the units of X as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.executors.company import company_of
from riskmin.matrices import as_matrix
from riskmin.moments import moments
from riskmin.objective import Objective
from riskmin.regularizers import rescaled
from riskmin.risk import Risk
from riskmin.types import NDArray, Result

LEAST, MOST = 1e-100, 1e100
"""Standard deviations whose squares are numbers."""


@dataclass(frozen=True)
class Standard:
    """The standard deviations of columns, 1 for those that are constant, and the numbers that these are."""

    scale: NDArray
    constant: NDArray
    level: NDArray

    def penalty(self, reg: Any, dim: int) -> Any:
        """A regularizer of standardized weights, of which there may be many a column, in terms of w."""
        return standardized(reg, self.scale, dim)

    def tidied(self, objective: Objective, result: Result) -> Result:
        """The result with weights of constant columns that are zero, where J is no larger with those.

        They say no more than the intercept does, but rounding may have moved them.
        """
        w, m = np.array(result.w), objective.n_intercepts
        head = w[: len(w) - m]
        W = head.reshape(len(self.scale), -1)
        if not np.any(W[self.constant]):
            return result
        kept = np.where(self.constant[:, None], 0.0, W)
        if m:  # intercepts are in w, and take over
            scorer: Any = objective.risk.scorer  # type: ignore[attr-defined]
            row = as_matrix(np.where(self.constant, self.level, 0.0)[None, :])
            w[-m:] += scorer.inner.scores(row, np.ascontiguousarray(head), 0, 1)[0]
        W[:] = kept
        value = objective.value(w)
        if value > result.value + 1e-12 * abs(result.value):
            return result
        return replace(result, w=w, value=value, lower=min(result.lower, value))


def standardized(reg: Any, scale: NDArray, dim: int) -> Any:
    """The regularizer as a function of the weights of columns as they are, `dim` in all."""
    reg.value(np.zeros(dim))  # what is wrong with its settings is said in terms of these
    return rescaled(reg, np.repeat(scale, dim // len(scale)))


def standard_of(
    model: Any, risk: Risk, weight: NDArray | None, row_weight: NDArray | None
) -> Standard | None:
    """What standardization comes to for the rows of a risk; None where the model does without.

    The rows count by `row_weight`, without the weights of their classes that are in `weight`.
    """
    if not model.standardize:
        return None
    own = row_weight is not None if row_weight is None or row_weight is weight else row_weight
    with company_of(risk).together():
        found = moments(risk.executor, own)
    scale = found.scale
    if not np.all((scale >= LEAST) & (scale <= MOST)):
        j = int(np.flatnonzero(~((scale >= LEAST) & (scale <= MOST)))[0])
        raise ValueError(
            f"{column_name(model, j)} has a standard deviation of {scale[j]:.2g}, too extreme to divide by: "
            "change its unit, or leave it out"
        )
    return Standard(scale, found.constant, found.least)


def column_name(model: Any, j: int) -> str:
    """What messages call a column."""
    names = getattr(model, "feature_names_in_", None)
    return f"column {j}" if names is None else f"{str(names[j])!r}"
