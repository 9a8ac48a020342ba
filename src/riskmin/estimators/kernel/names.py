"""Kernels by the names of scikit-learn, and the fit and scores of kernel machines."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from sklearn.metrics.pairwise import PAIRWISE_KERNEL_FUNCTIONS, pairwise_kernels
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from riskmin.arrays.namespace import as_numpy, to_floats
from riskmin.arrays.partitioned import is_partitioned
from riskmin.core import NDArray
from riskmin.core.limits import LIMITS
from riskmin.core.messages import is_number, unknown_name
from riskmin.estimators._common.fit import fit_objective, supports_intercept
from riskmin.estimators._common.input import NO_LABELS, EncodedLabels, check_readable, validate_local_rows
from riskmin.problem.kernel.mercer import DotProduct, KernelMatrix, Polynomial, Rbf, sp, squared_norms
from riskmin.problem.kernel.rkhs import SQRT2, as_pair, coefficients, kernel_risk
from riskmin.problem.objective import Objective
from riskmin.solvers import get_solver

INDEFINITE_KERNELS = {"sigmoid", "additive_chi2"}
"""Kernels of scikit-learn whose matrices may be indefinite: problems with them are not convex."""

KERNEL_VALIDATION_OPTIONS: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64, "order": "C"}
"""Arguments of `validate_data` for kernels: float64 in row-major order."""


def validate_kernel_rows(model: Any, X: Any, y: Any = NO_LABELS, *, reset: bool = True, **checks: Any) -> Any:
    """Validate X, or X and y: numeric rows, or arbitrary objects if the kernel is a callable.

    Objects, such as strings that only the kernel interprets, are given as one per row or as a 2-d array.
    """
    # only a callable kernel accepts rows that are not numbers
    objects = None if not callable(model.kernel) or is_partitioned(X) or sp.issparse(X) else as_numpy(X, "X")
    if objects is None or objects.dtype.kind not in "USO" or to_floats(objects) is not None:
        return validate_local_rows(model, X, y, reset=reset, **checks, **KERNEL_VALIDATION_OPTIONS)
    if objects.ndim not in (1, 2) or 0 in objects.shape:
        raise ValueError(f"X has the shape {objects.shape}: give one row, or one object, per example")
    # one object per row counts as one feature
    width = objects.shape[1] if objects.ndim == 2 else 1
    if reset:
        model.n_features_in_ = width
    elif width != model.n_features_in_:
        raise ValueError(
            f"X has {width} columns, but {type(model).__name__} was fitted to {model.n_features_in_}"
        )
    if y is NO_LABELS:
        return objects
    labels = validate_data(model, NO_LABELS, check_readable(y, "y"), reset=reset, **checks)
    check_consistent_length(objects, labels)
    return objects, labels


def resolve_kernel(model: Any, X: Any, weight: NDArray | None = None) -> Any:
    """Return the kernel that the model's parameters denote for data X: a callable, or "precomputed"."""
    kernel = model.kernel
    if callable(kernel) or kernel == "precomputed":
        return kernel
    # an indefinite kernel has no norm, so J would not be convex
    names = sorted((set(PAIRWISE_KERNEL_FUNCTIONS) | {"precomputed"}) - INDEFINITE_KERNELS)
    if kernel in INDEFINITE_KERNELS:
        raise ValueError(
            f"{kernel!r} is no Mercer kernel, so its problem is not convex: use another, such as 'rbf'"
        )
    if kernel not in names:
        problem, listed = (
            f"there is no kernel named {kernel!r}",
            f"give a callable, or one of {', '.join(names)}",
        )
        raise ValueError(unknown_name(problem, kernel, names, listed, {"gaussian": "rbf"}))
    if kernel in ("linear", "cosine"):
        return DotProduct() if kernel == "linear" else partial(pairwise_kernels, metric=kernel)
    gamma = _resolve_gamma(model, X, weight)
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


def _resolve_gamma(model: Any, X: Any, weight: NDArray | None) -> float:
    """Return gamma as a number; "scale" and "auto" are computed from X, as in scikit-learn's SVC."""
    gamma, p = model.gamma, X.shape[1]
    if is_number(gamma) and 0 < float(gamma) < math.inf:
        return float(gamma)
    if gamma == "auto":
        return 1.0 / int(p)
    if gamma == "scale":
        c = np.full(X.shape[0], 1.0 / X.shape[0]) if weight is None else weight
        # variance of all entries of X, with row weights c
        mean = float((c @ X).mean())
        variance = float(c @ squared_norms(X)) / int(p) - mean * mean
        # a variance of rounding errors only: X is constant, and gamma = 1 as in scikit-learn
        return 1.0 / (int(p) * variance) if variance > 1e-12 * mean * mean else 1.0
    raise ValueError(f"gamma={gamma!r}: give 'scale', 'auto' or a finite number > 0")


def cross_kernel_matrix(kernel: Any, X: Any, rows: Any, index: NDArray) -> NDArray:
    """Return K(X, rows), where `index` holds the positions of the rows in the training data.

    If the kernel is precomputed, X holds the kernel values with all training rows.
    """
    if kernel == "precomputed":
        K = X[:, index]
        return np.asarray(K.toarray() if sp.issparse(K) else K)
    return np.asarray(kernel(X, rows), dtype=np.float64)


def kernel_row_blocks(n_rows: int, n_columns: int) -> list[slice]:
    """Split rows into slices, whose float64 blocks of `n_columns` columns take `kernel_chunk_bytes` each."""
    # 8 bytes per entry
    step = max(1, LIMITS.kernel_chunk_bytes // (8 * max(n_columns, 1)))
    return [slice(i, min(i + step, n_rows)) for i in range(0, n_rows, step)]


def kernel_matrix(model: Any, kernel: Any, X: Any) -> KernelMatrix:
    """Return the kernel matrix of rows, with a cache of the size that the model's parameters denote."""
    # cache_size is in MB of 2**20 bytes
    return KernelMatrix(kernel, X, int(model.cache_size * 2**20))


def fit_kernel_machine(
    model: Any, kernel: Any, X: Any, rows: EncodedLabels, K: KernelMatrix | None = None
) -> None:
    """Minimize J, and store the certificate and the fitted attributes."""
    model._check_parameters()
    K = kernel_matrix(model, kernel, X) if K is None else K
    y, weight, loss = rows.labels, rows.weight, rows.loss
    fit_intercept = model.fit_intercept and supports_intercept(loss)
    risk, reg = kernel_risk(K, y, loss, sample_weight=weight, fit_intercept=fit_intercept)
    n, start = X.shape[0], None
    if model.warm_start and "result_" in vars(model):
        beta = coefficients(model.result_.w)
        if len(beta) != n:
            raise ValueError(
                f"warm_start=True starts from the last fit, which had {len(beta)} rows, but X has {n}: "
                "set warm_start=False or make a new estimator"
            )
        # functions are represented by the pair (K beta, beta), see `kernel_risk`
        start = as_pair(K.product(beta), beta)
    objective = Objective(risk, reg, float(model.alpha))
    w, b = fit_objective(
        model, objective, get_solver(model.solver), start, n_rows=n, weighted=weight is not None
    )
    set_machine(model, kernel, X, w, b, rows)


def set_machine(model: Any, kernel: Any, X: Any, w: NDArray, b: Any, rows: EncodedLabels) -> None:
    """Set the fitted attributes from w and the intercepts, with the support vectors among the rows of X."""
    model.kernel_ = kernel
    # w = (K beta, beta) / sqrt(2): sqrt(2) times its first half are the scores
    model._set_record(w, b, lambda: SQRT2 * w[: X.shape[0]] + b, rows)
    model.support_vectors_ = np.empty((0, 0)) if kernel == "precomputed" else X[model.support_]


def kernel_matrix_of_model(model: Any, X: Any) -> KernelMatrix:
    """Return the kernel matrix of these rows, with the kernel of a fitted model."""
    return kernel_matrix(model, model.kernel_, validate_kernel_rows(model, X, reset=False))


def kernel_scores(model: Any, X: Any) -> NDArray:
    """Validate rows given by the user and return f(x) + b, computed in blocks of rows.

    There is one column per class if the model has more than two.
    """
    check_is_fitted(model)
    X = validate_kernel_rows(model, X, reset=False)
    if np.size(model.intercept_) > 1:  # one function per class
        beta, z = model.dual_coef_.T, np.tile(model.intercept_, (X.shape[0], 1))
    else:
        beta, z = np.ravel(model.dual_coef_), np.full(X.shape[0], np.ravel(model.intercept_)[0])
    for part in kernel_row_blocks(X.shape[0], len(beta)):
        if len(beta):
            z[part] += (
                cross_kernel_matrix(model.kernel_, X[part], model.support_vectors_, model.support_) @ beta
            )
    return z
