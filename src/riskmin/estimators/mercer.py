"""Kernels by their names, as scikit-learn has them, and functions in their feature space."""

from __future__ import annotations

import math
import numbers
from functools import partial
from typing import Any

import numpy as np
from sklearn.metrics.pairwise import PAIRWISE_KERNEL_FUNCTIONS, pairwise_kernels
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from riskmin.arrays import as_numpy, to_floats
from riskmin.estimators.base import check_number, check_parameters, fit_objective, has_intercept, loss_of
from riskmin.estimators.rows import checked_here, readable
from riskmin.mercer import CHUNK_BYTES, DotProduct, Gram, Polynomial, Rbf, sp, squares
from riskmin.objective import Objective
from riskmin.rkhs import coefficients, kernel_risk, pair
from riskmin.solvers import get_solver
from riskmin.spread import Spread
from riskmin.types import NDArray

NOT_MERCER = {"sigmoid", "additive_chi2"}
"""Kernels of scikit-learn whose matrices may be indefinite: then there is no norm, and nothing is proved."""

ROWS: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64, "order": "C"}
"""What kernels take: float64, rows one after the other."""


def kernel_rows(model: Any, X: Any, y: Any = "no_validation", *, reset: bool = True, **checks: Any) -> Any:
    """X, or X and y: numbers, or anything that an array holds where the kernel is a function of the user's.

    Strings, say, of which only the kernel knows what they are; one a row, or a row of them.
    """
    things = (
        None if not callable(model.kernel) or isinstance(X, Spread) or sp.issparse(X) else as_numpy(X, "X")
    )
    if things is None or things.dtype.kind not in "USO" or to_floats(things) is not None:
        return checked_here(model, X, y, reset=reset, **checks, **ROWS)
    if things.ndim not in (1, 2) or 0 in things.shape:
        raise ValueError(f"X has the shape {things.shape}: give a row, or one thing, for each example")
    width = things.shape[1] if things.ndim == 2 else 1
    if reset:
        model.n_features_in_ = width
    elif width != model.n_features_in_:
        raise ValueError(
            f"X has {width} columns, but {type(model).__name__} was fitted to {model.n_features_in_}"
        )
    if isinstance(y, str):
        return things
    labels = validate_data(model, "no_validation", readable(y, "y"), reset=reset, **checks)
    check_consistent_length(things, labels)
    return things, labels


def kernel_of(model: Any, X: Any, weight: NDArray | None = None) -> Any:
    """The kernel that the model's parameters stand for, on data like X: a callable, or "precomputed"."""
    kernel = model.kernel
    if callable(kernel) or (isinstance(kernel, str) and kernel == "precomputed"):
        return kernel
    names = sorted((set(PAIRWISE_KERNEL_FUNCTIONS) | {"precomputed"}) - NOT_MERCER)
    if kernel in NOT_MERCER:
        raise ValueError(
            f"{kernel!r} is no Mercer kernel, so its problem is not convex: use another, as 'rbf'"
        )
    if not isinstance(kernel, str) or kernel not in names:
        raise ValueError(f"kernel={kernel!r} is neither a callable nor one of {', '.join(names)}")
    if kernel in ("linear", "cosine"):
        return DotProduct() if kernel == "linear" else partial(pairwise_kernels, metric=kernel)
    gamma = _gamma(model, X, weight)
    if kernel == "rbf":
        return Rbf(gamma)
    if kernel in ("poly", "polynomial"):
        return Polynomial(model.degree, gamma, model.coef0)
    return partial(
        pairwise_kernels,
        metric=kernel,
        filter_params=True,
        gamma=gamma,
        degree=model.degree,
        coef0=model.coef0,
    )


def _gamma(model: Any, X: Any, weight: NDArray | None) -> float:
    """A number, or what "scale" and "auto" make of the data, as in scikit-learn's SVC."""
    gamma, p = model.gamma, X.shape[1]
    if isinstance(gamma, str) and gamma in ("scale", "auto"):
        if gamma == "auto":
            return 1.0 / int(p)
        c = np.full(X.shape[0], 1.0 / X.shape[0]) if weight is None else weight
        mean = float((c @ X).mean())
        spread = float(c @ squares(X)) / int(p) - mean * mean
        return 1.0 / (int(p) * spread) if spread > 1e-12 * mean * mean else 1.0
    if isinstance(gamma, bool) or not isinstance(gamma, numbers.Real) or not 0 < float(gamma) < math.inf:
        raise ValueError(f"gamma={gamma!r}: give 'scale', 'auto' or a finite number > 0")
    return float(gamma)


def between(kernel: Any, X: Any, rows: Any, numbers_of: NDArray) -> NDArray:
    """K(X, rows), where the rows have those numbers among the rows that were fitted."""
    if isinstance(kernel, str):
        found = X[:, numbers_of]
        return np.asarray(found.toarray() if sp.issparse(found) else found)
    return np.asarray(kernel(X, rows), dtype=np.float64)


def pieces(n_rows: int, n_columns: int) -> list[slice]:
    """The rows of a wide result, so many at a time that it stays small."""
    step = max(1, CHUNK_BYTES // (8 * max(n_columns, 1)))
    return [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]


def fit_kernel(model: Any, kernel: Any, X: Any, y: NDArray, weight: NDArray | None) -> tuple[NDArray, float]:
    """Minimize J as the parameters say, keep the proof and the support; return its coefficients and b."""
    check_parameters(model)
    check_number(model, "cache_size", "a finite number > 0", lambda v: 0 < v < math.inf)
    K = Gram(kernel, X, int(model.cache_size * 2**20))
    loss = loss_of(model)
    fits = model.fit_intercept and has_intercept(loss)
    risk, reg = kernel_risk(K, y, loss, sample_weight=weight, fit_intercept=fits)
    n, start = len(y), None
    if model.warm_start and hasattr(model, "result_"):
        beta = coefficients(model.result_.w)
        if len(beta) != n:
            raise ValueError(
                f"warm_start=True starts from the last fit, which had {len(beta)} rows, but X has {n}: "
                "set warm_start=False or make a new estimator"
            )
        start = pair(K.product(beta), beta)
    objective = Objective(risk, reg, float(model.alpha))
    w, b = fit_objective(
        model, objective, get_solver(model.solver), start, n_rows=n, weighted=weight is not None
    )
    beta = coefficients(w)
    model.kernel_, model.support_ = kernel, np.flatnonzero(beta)
    model.support_vectors_ = np.empty((0, 0)) if isinstance(kernel, str) else X[model.support_]
    found: NDArray = beta[model.support_]
    return found, b


def gram_of(model: Any, X: Any) -> Gram:
    """The kernel matrix of these rows, by the kernel of a fitted model."""
    return Gram(model.kernel_, kernel_rows(model, X, reset=False), int(model.cache_size * 2**20))


def kernel_scores(model: Any, X: Any) -> NDArray:
    """F(x) + b for rows that come from the user, a few at a time."""
    check_is_fitted(model)
    X = kernel_rows(model, X, reset=False)
    beta, z = np.ravel(model.dual_coef_), np.full(X.shape[0], np.ravel(model.intercept_)[0])
    for part in pieces(X.shape[0], len(beta)):
        if len(beta):
            z[part] += between(model.kernel_, X[part], model.support_vectors_, model.support_) @ beta
    return z
