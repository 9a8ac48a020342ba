r"""Constraints on the weights for fairness, and what they cost, with a proof.

The cost of constraints is :math:`\min_{A w \in [l, u]} J - \min J`. With the proved bounds
:math:`\underline J \le \min J \le J(w)` of the models with and without them,

.. math:: \underline J_{\text{with}} - J_{\text{without}} \;\le\; \text{cost} \;\le\;
          J_{\text{with}} - \underline J_{\text{without}}.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_table, is_sparse
from riskmin.core import NDArray
from riskmin.estimators._common.input import compute_if_dask
from riskmin.estimators.scikit_learn import check_is_fitted
from riskmin.problem.linear_risk import check_weights
from riskmin.regularizers import L2, LinearConstraints, get_regularizer


def fairness_constraints(
    X: Any, sensitive: Any, bound: float, reg: Any = None, *, sample_weight: Any = None
) -> LinearConstraints:
    r"""Constraints that limit the covariance of the scores with a sensitive column,

    .. math:: \Bigl|\sum_i c_i\,(s_i - \bar s)\; x_i^\top w\Bigr| \le \text{bound},

    as in Zafar et al. (2017). A column of two groups, one of them with the share q of the rows, has the
    covariance q (1 - q) times the difference of the mean scores of the groups.

    Parameters
    ----------
    X : (n, p) array, sparse matrix or data frame
        The training data, without the intercept: it has no covariance.
    sensitive : (n,) or (n, k) array
        Numbers; or labels of groups, each of which is a column of zeros and ones.
    bound : float
        The largest absolute covariance, >= 0.
    reg : Regularizer, optional
        The penalty under the constraints: `L2` by default.
    sample_weight : (n,) array, optional
        As given to `fit`.

    Returns
    -------
    LinearConstraints
        For the parameter `regularizer`, of a model without `standardize`.

    References
    ----------
    M. B. Zafar, I. Valera, M. Gomez Rodriguez, K. P. Gummadi, Fairness constraints: mechanisms for fair
    classification, AISTATS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import LinearClassifier, constraint_prices, fairness_constraints
    >>> rng = np.random.default_rng(0)
    >>> group = rng.random(500) < 0.5
    >>> X = rng.normal(size=(500, 3)) + np.outer(group, [1.0, 0.5, 0.0])
    >>> y = X @ [1.0, 1.0, 1.0] + rng.normal(size=500) > 0.8
    >>> fair = fairness_constraints(X, group, 0.02)
    >>> model = LinearClassifier("logistic", regularizer=fair, alpha=1e-3).fit(X, y)
    >>> z = model.decision_function(X)
    >>> bool(abs(np.cov(z, group, bias=True)[0, 1]) <= 0.02 + 1e-9)
    True
    >>> price = constraint_prices(model, X, y)
    >>> bool(0 < price.each[0, 0] <= price.each[0, 1] < price.each[0, 0] + 2 * 1e-3 * model.objective_)
    True
    """
    X = as_table(X)
    X = X if is_sparse(X) else np.asarray(X, dtype=np.float64)
    c, S = check_weights(sample_weight, X.shape[0]), np.asarray(compute_if_dask(sensitive))
    if S.shape[:1] != (X.shape[0],) or S.ndim > 2:
        raise ValueError(
            f"sensitive has shape {S.shape}, but X has {X.shape[0]} rows: give one value per row"
        )
    if not bound >= 0:
        raise ValueError(f"bound={bound!r}, but a covariance is limited by a number >= 0")
    columns = [column for part in S.reshape(len(S), -1).T for column in _numbers(part)]
    A = np.stack([np.asarray(X.T @ (c * (s - c @ s))).ravel() for s in columns])
    return LinearConstraints(L2() if reg is None else get_regularizer(reg), A, -bound, bound)


def _numbers(column: NDArray) -> list[NDArray]:
    """A column of numbers, or one of zeros and ones for each label but one of two."""
    if column.dtype.kind in "iuf":
        if not np.isfinite(column).all():
            raise ValueError("sensitive holds NaN or infinity: fill in its missing values, or leave out rows")
        return [column.astype(np.float64)]
    levels = np.unique(column.astype(str))
    if len(levels) < 2:
        raise ValueError("sensitive holds a single group: there is no covariance to limit")
    return [(column.astype(str) == level).astype(np.float64) for level in levels[len(levels) == 2 :]]


@dataclass(frozen=True)
class ConstraintPrices:
    """What linear constraints cost, in units of the objective; `constraint_prices` makes it.

    Attributes
    ----------
    total : (2,) array
        The ends of the cost of all constraints together.
    each : (m, 2) array
        The ends of the cost of each row of A: by how much the minimum of J would decrease without it.

    Examples
    --------
    >>> prices = ConstraintPrices(np.array([0.1, 0.2]), np.array([[0.1, 0.2]]))
    >>> print(prices)
    constraint 0 costs between 0.1 and 0.2
    all constraints cost between 0.1 and 0.2 of the objective
    """

    total: NDArray
    each: NDArray

    def __str__(self) -> str:
        lines = [f"constraint {k} costs between {a:.6g} and {b:.6g}" for k, (a, b) in enumerate(self.each)]
        lines.append("all constraints cost between {:.6g} and {:.6g}".format(*self.total))
        return "\n".join(lines) + " of the objective"


def constraint_prices(model: Any, X: Any, y: Any, *, sample_weight: Any = None) -> ConstraintPrices:
    r"""Proved bounds of what each of a model's `LinearConstraints` costs, in units of the objective.

    A model is fitted without each row of A, and one without all of them. The bounds follow from the
    certificates, so that a smaller `tol` makes them tighter.

    Parameters
    ----------
    model : LinearClassifier or LinearRegressor
        Fitted with ``regularizer=LinearConstraints(...)``.
    X, y
        The training data, as given to `fit`.
    sample_weight : (n,) array, optional
        As given to `fit`.

    Returns
    -------
    ConstraintPrices

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin import L2, LinearConstraints, LinearRegressor, constraint_prices
    >>> X, y = load_diabetes(return_X_y=True)
    >>> same_sign = LinearConstraints(L2(), [[0.0] * 4 + [1.0, 1.0] + [0.0] * 4], lower=0.0)
    >>> model = LinearRegressor("squared", regularizer=same_sign, alpha=1e-4, tol=1e-6).fit(X, y)
    >>> print(constraint_prices(model, X, y))
    constraint 0 costs between ... and ...
    all constraints cost between ... and ... of the objective
    """
    check_is_fitted(model)
    given = get_regularizer(model.regularizer) if hasattr(model, "regularizer") else None
    if not isinstance(given, LinearConstraints):
        raise ValueError(
            f"{type(model).__name__} has no LinearConstraints, so that there is nothing to price: fit with "
            "regularizer=LinearConstraints(...)"
        )
    if model.weighted_ and sample_weight is None:
        raise ValueError("the model was fitted with weights of rows, on which J depends: give sample_weight")
    lower, upper = (np.broadcast_to(bound, (len(given.A),)) for bound in (given.lower, given.upper))

    def cost(rows: NDArray) -> NDArray:
        """The ends of the cost of the constraints other than those of these rows."""
        reg = (
            LinearConstraints(given.reg, given.A[rows], lower[rows], upper[rows]) if len(rows) else given.reg
        )
        free: Any = copy.copy(model)
        free.regularizer, free.checkpoint, free.callback = reg, None, None
        free.fit(X, y, sample_weight)
        ends = [model.lower_bound_ - free.objective_, model.objective_ - free.lower_bound_]
        return np.asarray(np.maximum(np.array(ends), 0.0))

    m = len(given.A)
    total = cost(np.array([], dtype=int))
    each = [cost(np.delete(np.arange(m), k)) for k in range(m)] if m > 1 else [total]
    return ConstraintPrices(total, np.array(each))
