r"""Losses and regularizers as the row-by-row dual methods need them: numbers for the kernel, or objects.

The dual variables are slopes of the loss, :math:`u_i = l'(z_i)`, and

.. math:: v = -\tfrac1\lambda \sum_i c_i u_i x_i, \qquad w = \nabla\Omega^*(v),

where :math:`\nabla\Omega^*` is the transfer function. The kernel implements the losses and regularizers of
this package. `RowwiseAscent` handles all others: it calls their methods, at a cost of O(p) per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.matrix import as_row_matrix
from riskmin.core import Matrix, NDArray
from riskmin.losses import EpsilonInsensitive, Exponential, Logistic, Poisson, PowerHinge
from riskmin.regularizers import Entropy, QNorm

MAX_METRIC_COLUMNS = 5000
"""The inverse of K is formed up to this number of features; with more, rows call the regularizer."""


# ---------------------------------------------------------------- rows
def row_arrays(X: Matrix, metric: NDArray | None = None) -> tuple[NDArray, NDArray, NDArray, int]:
    """Return X, or X times a matrix, by rows as the kernel takes it: indptr, indices, data, dense or not."""
    rows = as_row_matrix(X)
    if metric is not None or not rows.sparse:
        n, p = rows.shape
        ends = np.arange(n + 1, dtype=np.uint64) * np.uint64(p)
        entries: Any = rows.as_scipy() if rows.sparse else rows.array
        dense = entries if metric is None else entries @ metric
        return ends, np.arange(p, dtype=np.uint32), np.ascontiguousarray(dense).reshape(-1), 1
    # 32-bit column indices suffice as long as w fits into memory.
    return rows.indptr.astype(np.uint64), rows.indices.astype(np.uint32, copy=False), rows.data, 0


# ---------------------------------------------------------------- losses
@dataclass(frozen=True)
class RowConjugate:
    """The conjugate of a loss, per row: domain, starting point, and constants for the kernel, if known."""

    lower: NDArray
    upper: NDArray
    start: NDArray
    kernel: tuple[int, NDArray, NDArray] | None = None
    """Code of the conjugate, one row of (lower, upper, base, sign) per row of X, and (epsilon, square,
    power)."""


def conjugate_reason(name: str, loss: Any, y: NDArray) -> str | None:
    """Why the dual method of this name cannot use a loss, and what can; None if it can."""
    if loss.conjugate(y[:1]) is not None:
        return None
    kind = type(loss.chosen).__name__
    return f"{name} needs the conjugate of the loss, which {kind} does not give: use Bundle"


def conjugate_for(loss: Any, y: NDArray) -> RowConjugate:
    """Return what the dual methods need of a loss, which has a conjugate."""
    from riskmin._numba.dual.conjugate_loops import EXPONENTIAL, LOGISTIC, POWER

    zero = np.zeros(len(y))
    # A conjugate that is quadratic on an interval is a power conjugate of exponent 2.
    dual = loss.interval_conjugate(y)
    if dual is not None:
        return _kernel_conjugate(
            POWER, (dual.lower, dual.upper), dual.shift, zero, [dual.epsilon, dual.square, 2.0], zero
        )
    conjugate = loss.conjugate(y)
    domain = conjugate.lower, conjugate.upper
    # Where the conjugate has infinite slopes at the ends of its domain, start inside: at the slope of z = 0.
    if type(loss) is Logistic:
        return _kernel_conjugate(LOGISTIC, domain, zero, -y, [0.0, 0.0, 2.0], -0.5 * y)
    if type(loss) is Exponential:
        return _kernel_conjugate(EXPONENTIAL, domain, zero, -y, [0.0, 0.0, 2.0], -y)
    if type(loss) is Poisson:
        return _kernel_conjugate(EXPONENTIAL, domain, y, zero + 1, [0.0, 0.0, 2.0], 1.0 - y)
    if type(loss) is PowerHinge:
        return _kernel_conjugate(
            POWER, domain, loss.margin * y, zero, [0.0, 1.0, loss.p / (loss.p - 1)], zero
        )
    if type(loss) is EpsilonInsensitive:
        shape = [loss.epsilon, 1.0, loss.power / (loss.power - 1)]
        return _kernel_conjugate(POWER, domain, y, zero, shape, zero)
    lower, upper = (np.asarray(a, dtype=float) + zero for a in domain)
    _, slopes = loss.value_grad(zero, y, zero + 1)
    return RowConjugate(lower, upper, np.clip(slopes, lower, upper))


def _kernel_conjugate(
    kind: int, domain: tuple[Any, Any], base: Any, sign: NDArray, shape: list[float], start: NDArray
) -> RowConjugate:
    columns = [np.asarray(a, dtype=float) + np.zeros(len(start)) for a in (*domain, base, sign)]
    rows = np.ascontiguousarray(np.stack(columns, axis=1))
    return RowConjugate(columns[0], columns[1], start, (kind, rows, np.array(shape)))


# ---------------------------------------------------------------- regularizers
def transfer_for(reg: Any, p: int) -> tuple[int, NDArray, NDArray] | None:
    """Return the transfer function as the kernel takes it; None if only the object can evaluate it."""
    from riskmin._numba.dual.gradient_sweep import CLIPPED, EXPS, LINEAR, NORM, SOFTMAX

    v = np.zeros(p)
    if reg.separable:
        t = reg.terms(v)
        # One row of constants for all columns if they are equal, else one row per column.
        uniform = all(np.ndim(a) == 0 for a in t)
        columns = [np.broadcast_to(np.asarray(a, dtype=float), (1 if uniform else p,)) for a in t]
        terms = np.ascontiguousarray(np.stack(columns, axis=1))
        return (LINEAR if reg.diagonal else CLIPPED), terms, np.zeros(3)
    if type(reg) is Entropy:
        prior = np.atleast_1d(np.asarray(reg.prior, dtype=float))
        total = reg._total(prior) * (p if len(prior) == 1 else 1)
        numbers = np.array([total, 0.0, float(reg.balanced)])
        return (SOFTMAX if reg.normalized else EXPS), np.ascontiguousarray(prior[:, None]), numbers
    if type(reg) is QNorm:
        # The conjugate exponents, 1/p + 1/q = 1, of the norm and of the power that it is raised to.
        dual, power = reg.q / (reg.q - 1), reg.power / (reg.power - 1)
        return NORM, np.zeros((1, 1)), np.array([dual, power, 0.0])
    return None


def inverse_metric_factor(reg: Any, p: int) -> NDArray | None:
    """Return B with K^-1 = B B' for w' K w / 2; None for sums over coordinates, and for many features."""
    if reg.separable or not reg.quadratic or p > MAX_METRIC_COLUMNS:
        return None
    inverse = np.stack([reg.conjugate_grad(e) for e in np.eye(p)])
    return np.asarray(np.linalg.cholesky(0.5 * (inverse + inverse.T)))


def transfer_reason(name: str, reg: Any) -> str | None:
    """Why the dual method of this name cannot use a regularizer, and what can; None if it can."""
    if reg.separable and reg.polyhedral:
        return (
            f"{name} needs a transfer function, which {reg!r} has not: "
            "use CoordinateDescent, ProximalGradient or Bundle, or Elastic(), which adds squares"
        )
    return None
