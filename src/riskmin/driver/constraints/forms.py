"""The constrained forms of Zhang (2002, section 2): hard margin, basis pursuit, maximum entropy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.driver.constraints.feasible import as_dense
from riskmin.driver.constraints.multipliers import ConstrainedResult, minimize_constrained
from riskmin.losses.labels import check_signs
from riskmin.losses.margin import Hinge
from riskmin.regularizers import L1, L2, Entropy
from riskmin.regularizers.base import Regularizer


def hard_margin(
    X: Any,
    y: Any,
    reg: Regularizer | None = None,
    *,
    fit_intercept: bool = True,
    tol: float = 1e-6,
    max_seconds: float = math.inf,
) -> ConstrainedResult:
    r"""The support vector machine without slack,

    .. math:: \min_{w, b}\; \tfrac12 |w|^2 \quad\text{with}\quad y_i (x_i^\top w + b) \ge 1.

    Parameters
    ----------
    X : array or sparse matrix of shape (n, p)
    y : (n,) array
        Labels -1 and 1.
    reg : Regularizer
        `L2` by default.
    fit_intercept : bool
        Whether there is an intercept b.
    tol, max_seconds : float
        As in `minimize_constrained`.

    Returns
    -------
    ConstrainedResult
        The status is ``infeasible`` if no hyperplane separates the classes: the multipliers are weights of
        the rows for which both classes have the same mean (with an intercept).

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import hard_margin
    >>> result = hard_margin(np.array([[1.0], [3.0]]), np.array([-1, 1]))
    >>> round(float(result.w[0]), 4), round(result.intercept, 4)
    (1.0, -2.0)
    >>> hard_margin(np.array([[1.0], [2.0], [3.0]]), np.array([1, -1, 1])).status
    'infeasible'
    """
    labels = np.asarray(y, dtype=float)
    check_signs(Hinge(), labels)
    lower, upper = np.where(labels > 0, 1.0, -math.inf), np.where(labels > 0, math.inf, -1.0)
    return minimize_constrained(
        X, lower, upper, reg or L2(), fit_intercept=fit_intercept, tol=tol, max_seconds=max_seconds
    )


def basis_pursuit(
    X: Any, y: Any, reg: Regularizer | None = None, *, tol: float = 1e-6, max_seconds: float = math.inf
) -> ConstrainedResult:
    r"""The weights of least L1 norm that fit all targets exactly,

    .. math:: \min_w\; |w|_1 \quad\text{with}\quad x_i^\top w = y_i.

    Parameters
    ----------
    X : array or sparse matrix of shape (n, p)
    y : (n,) array
        Targets.
    reg : Regularizer
        `L1` by default; with `L2` the solution is that of the pseudoinverse.
    tol, max_seconds : float
        As in `minimize_constrained`.

    Returns
    -------
    ConstrainedResult

    References
    ----------
    S. S. Chen, D. L. Donoho, M. A. Saunders, Atomic decomposition by basis pursuit, SIAM J. Scientific
    Computing 20, 1998.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import basis_pursuit
    >>> result = basis_pursuit(np.array([[1.0, 2.0, 0.0], [0.0, 2.0, 1.0]]), np.array([1.0, 1.0]))
    >>> result.status, bool(np.allclose(result.w, [0, 0.5, 0], atol=1e-6))
    ('converged', True)
    """
    targets = np.asarray(y, dtype=float)
    return minimize_constrained(X, targets, targets, reg or L1(), tol=tol, max_seconds=max_seconds)


def maximum_entropy(
    features: Any,
    targets: Any,
    *,
    width: Any = 0.0,
    prior: Any = None,
    tol: float = 1e-6,
    max_seconds: float = math.inf,
) -> ConstrainedResult:
    r"""The distribution of greatest entropy relative to a prior, with given moments,

    .. math:: \min_w\; \sum_j w_j \log\frac{w_j}{\mu_j} \quad\text{with}\quad
              \Bigl|\sum_j w_j f_{ji} - y_i\Bigr| \le width_i, \quad w_j \ge 0, \quad \sum_j w_j = 1.

    Parameters
    ----------
    features : array or sparse matrix of shape (n_outcomes, n_features)
        The value of each feature at each outcome.
    targets : (n_features,) array
        The moments y.
    width : float or (n_features,) array
        Half the width of the box of each moment; 0 for an equality, infinite for no constraint.
    prior : (n_outcomes,) array
        The prior, up to a factor; uniform by default.
    tol, max_seconds : float
        As in `minimize_constrained`.

    Returns
    -------
    ConstrainedResult
        The weights are the distribution, :math:`w_j \propto \mu_j \exp(-\sum_i u_i f_{ji})` with the
        multipliers u. The status is ``infeasible`` if no distribution has such moments.

    References
    ----------
    E. T. Jaynes, Information theory and statistical mechanics, Physical Review 106, 1957.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import maximum_entropy
    >>> die = np.arange(1.0, 7.0)[:, None]
    >>> result = maximum_entropy(die, [4.5])
    >>> result.w.round(3).tolist()
    [0.054, 0.079, 0.114, 0.165, 0.24, 0.347]
    >>> maximum_entropy(die, [6.5]).message
    'the constraints have no solution, as the multipliers prove'
    """
    n_outcomes, n_features = features.shape
    mu = np.ones(n_outcomes) if prior is None else np.asarray(prior, dtype=float)
    if mu.shape != (n_outcomes,) or not (np.isfinite(mu).all() and (mu > 0).all()):
        raise ValueError(f"prior must be {n_outcomes} numbers above 0, one per outcome")
    y, half = (np.array(np.broadcast_to(np.asarray(v, dtype=float), (n_features,))) for v in (targets, width))
    if not (half >= 0).all():
        raise ValueError("width must be >= 0, and not NaN")
    mu = mu / mu.sum()
    # moments relative to those of the prior: the weights have sum one, and small columns are not lost
    rows = as_dense(features).T
    mean = rows @ mu
    bounds = y - half - mean, y + half - mean
    result = minimize_constrained(
        rows - mean[:, None], *bounds, Entropy(mu), tol=tol, max_seconds=max_seconds
    )
    return replace(result, w=_normalized(result.w))


def _normalized(w: NDArray) -> NDArray:
    """Return the distribution without negative rounding errors."""
    w = np.maximum(w, 0.0)
    return np.asarray(w / w.sum())
