"""Online learners as one family: the Perceptron, Winnow and the p-norm algorithms (Zhang 2002, section 5.2).

Each updates on mistakes only. They differ in the transfer function of a regularizer: `L2` gives the
Perceptron, `Entropy` Winnow, normalized or not, and `QNorm` a p-norm algorithm. Their large-margin versions
are `DualGaussSeidel` with the same regularizer and `Hinge`.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.finite import check_finite
from riskmin.arrays.matrix import as_matrix
from riskmin.core import NDArray, UnsupportedProblem
from riskmin.core.deadline import OutOfTime, TimeLimit, check_each, chunk_ranges
from riskmin.regularizers.base import Regularizer
from riskmin.regularizers.from_conjugate import as_regularizer
from riskmin.solvers.reference.transfer import row_arrays, transfer_for, transfer_reason


class Learned(NamedTuple):
    """Result of an online learner: w, the v with w = grad Omega*(v), and the mistakes of the last pass."""

    w: NDArray
    v: NDArray
    mistakes: int
    """Number of mistakes in the last whole pass over the rows."""


def online(
    X: Any,
    y: Any,
    reg: Regularizer,
    *,
    rate: float = 0.01,
    epochs: int = 200,
    v0: NDArray | None = None,
    shuffle: bool = False,
    seed: int = 0,
    max_seconds: float = math.inf,
) -> Learned:
    r"""Learn a linear classifier from its mistakes, by the update of equation (24),

    .. math:: v \leftarrow v + \eta\, y_i x_i \quad\text{if } y_i\, x_i^\top w \le 0,
              \qquad w = \nabla\Omega^*(v).

    For an entropy, an update multiplies :math:`w_j` by :math:`e^{\eta y_i x_{ij}}`.

    Parameters
    ----------
    X : (n, p) array or sparse matrix
        Append a column of ones for a bias.
    y : (n,) array
        Labels of -1 and +1.
    reg : Regularizer
        Selects the algorithm: ``L2()`` the Perceptron, ``Entropy(prior, normalized, balanced)`` Winnow,
        ``QNorm(q)`` the p-norm algorithm with 1/p + 1/q = 1.
    rate : float
        :math:`\eta > 0`.
    epochs : int
        Maximum number of passes over the rows; a pass without a mistake is the last.
    v0 : (p,) array, optional
        Starting point; zero by default, which is the prior of an entropy.
    shuffle : bool
        Whether each pass visits the rows in a new random order.
    seed : int
        Seed of these orders.
    max_seconds : float
        Time limit; w and v are then those of the last row that was visited.

    Returns
    -------
    Learned
        w, v, and the number of mistakes in the last whole pass; n, if time ended the first one.

    References
    ----------
    A. J. Grove, N. Littlestone, D. Schuurmans, General convergence results for linear discriminant updates,
    COLT 1997.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Entropy
    >>> X, y = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, -1.0])
    >>> online(X, y, L2(), rate=0.5).w.tolist()  # the Perceptron
    [0.5, -0.5]
    >>> winnow = Entropy(prior=0.1, normalized=False, balanced=True)
    >>> online(X, y, winnow, rate=1.0).w.round(3).tolist()
    [0.235, -0.235]
    """
    if not 0 < rate < np.inf:
        raise ValueError(f"rate must be a finite number > 0, not {rate!r}")
    if not max_seconds >= 0:
        raise ValueError(f"max_seconds must be >= 0, not {max_seconds!r}")
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs!r}")
    reg = as_regularizer(reg)
    if reason := transfer_reason("online", reg):
        raise UnsupportedProblem(reason)
    matrix, signs = as_matrix(X), np.asarray(y, dtype=np.float64)
    n, p = matrix.shape
    if signs.shape != (n,):
        raise ValueError(f"y has shape {signs.shape}, but X has {n} rows: give one label per row")
    check_finite(matrix)
    if not np.all(np.abs(signs) == 1):
        raise ValueError("online needs labels -1 and +1: use OnlineClassifier, which encodes any two classes")
    rows = row_arrays(matrix)
    v = np.zeros(p) if v0 is None else np.array(v0, dtype=np.float64)
    if v.shape != (p,):
        raise ValueError(f"v0 has shape {v.shape}, but X has {p} columns: give one number per column")
    mistakes = n

    def run() -> None:
        nonlocal mistakes
        for epoch in range(epochs):
            # Seeded by the number of the pass, so that fewer epochs visit the rows in the same order.
            order = np.random.default_rng([seed, epoch]).permutation(n) if shuffle else np.arange(n)
            parts = chunk_ranges(0, n, float(matrix.nnz))
            mistakes = sum(_learn(order[i:j], signs, float(rate), rows, reg, v) for i, j in parts)
            if not mistakes:
                break

    with contextlib.suppress(OutOfTime):
        TimeLimit(time.perf_counter() + max_seconds).call(run)
    return Learned(np.asarray(reg.conjugate_grad(v)), v, mistakes)


def _learn(order: NDArray, y: NDArray, rate: float, rows: Any, reg: Any, v: NDArray) -> int:
    """Run one pass, which changes v in place; return the number of rows on the wrong side."""
    transfer = transfer_for(reg, len(v))
    indptr, indices, data, dense = rows
    if transfer is not None:
        from riskmin._numba.dual.gradient_sweep import online_pass

        # State of the kernel: v, r with w = factor r, the normalizer, and a workspace for the longest row.
        longest = int(np.diff(indptr.astype(np.int64)).max(initial=0))
        return int(
            online_pass(order, y, rate, rows, transfer, (v, np.zeros(len(v)), np.zeros(4), np.zeros(longest)))
        )
    mistakes = 0
    # Regularizers without a kernel: evaluate the transfer function for all of w at each row.
    for i in check_each(order):
        start, stop = int(indptr[i]), int(indptr[i + 1])
        index, x = (slice(None) if dense else indices[start:stop]), data[start:stop]
        if y[i] * float(reg.conjugate_grad(v)[index] @ x) <= 0:
            v[index] += rate * y[i] * x
            mistakes += 1
    return mistakes
