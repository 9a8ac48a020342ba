r"""Standardization of columns without copying X, by rescaling the regularizer.

A column divided by its standard deviation :math:`s_j` has the weight :math:`s_j w_j`, and centering it only
changes the intercept, which is not penalized. So the problem is

.. math:: \min_{w, b}\; J(w, b) = \alpha\,\Omega(s \circ w) + R(w, b),

with w and b in the units of X.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.arrays.matrix import as_matrix
from riskmin.core import NDArray, Result
from riskmin.executors.base import coordination_of
from riskmin.problem.column_moments import column_moments
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.regularizers import rescaled


@dataclass(frozen=True)
class ColumnScaling:
    """Scaling of columns by their standard deviations."""

    scale: NDArray
    """Standard deviations, 1 for constant columns."""
    constant: NDArray
    """Mask of the constant columns."""
    constant_value: NDArray
    """Value of each constant column."""

    def with_zeroed_constants(self, objective: Objective, result: Result) -> Result:
        """Return the result with the weights of constant columns set to zero, unless this increases J.

        These weights are redundant with the intercept, but rounding may have moved them from zero.
        """
        # w = (p, k) weights in row-major order, then m explicit intercepts
        w, m = np.array(result.w), objective.n_intercepts
        # head and W are views: the assignment to W below changes w
        head = w[: len(w) - m]
        W = head.reshape(len(self.scale), -1)
        if not np.any(W[self.constant]):
            return result
        zeroed = np.where(self.constant[:, None], 0.0, W)
        if m:  # add the contribution of the constant columns to the intercepts at the end of w
            linear_map: Any = objective.risk.linear_map
            row = as_matrix(np.where(self.constant, self.constant_value, 0.0)[None, :])
            w[-m:] += linear_map.inner.scores(row, np.ascontiguousarray(head), 0, 1)[0]
        W[:] = zeroed
        # accept the change if J increases by no more than rounding
        value, b, _ = objective.at_best_intercept(w, result.intercept)
        if value > result.value + 1e-12 * abs(result.value):
            return result
        return replace(result, w=w, value=value, lower=min(result.lower, value), intercept=b)


def rescale_to_standardized(reg: Any, scale: NDArray, dim: int) -> Any:
    """Return the regularizer of standardized weights as a function of the `dim` weights in the units of X."""
    reg.value(np.zeros(dim))  # report invalid settings before they are rescaled
    return rescaled(reg, np.repeat(scale, dim // len(scale)))


def column_scaling(
    model: Any, risk: Risk, weight: NDArray | None, row_weight: NDArray | None
) -> ColumnScaling | None:
    """Return the column scaling for the rows of a risk; None if the model does not standardize.

    Rows are weighted by `row_weight`, which, unlike `weight`, does not include class weights.
    """
    if not model.standardize:
        return None
    # True: the weights of the shards, False: equal weights; else explicit weights
    weighting = row_weight is not None if row_weight is None or row_weight is weight else row_weight
    with coordination_of(risk).synchronized():
        statistics = column_moments(risk.executor, weighting)
    scale = statistics.scale
    # squares of the others neither underflow nor overflow
    extreme = np.flatnonzero(~((scale >= 1e-100) & (scale <= 1e100)))
    if len(extreme):
        j = int(extreme[0])
        raise ValueError(
            f"{column_name(model, j)} has a standard deviation of {scale[j]:.2g}, too extreme to divide by: "
            "change its unit, or leave it out"
        )
    return ColumnScaling(scale, statistics.constant, statistics.minimum)


def column_name(model: Any, j: int) -> str:
    """Return the name of a column for messages."""
    names = vars(model).get("feature_names_in_")
    return f"column {j}" if names is None else f"{str(names[j])!r}"
