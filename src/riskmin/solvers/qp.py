r"""The small quadratic program of bundle methods: maximize :math:`b^\top x - \tfrac12 x^\top G x` on the simplex."""

from __future__ import annotations

from typing import Any

import numpy as np

NDArray = np.ndarray[Any, Any]


def _equality(G: NDArray, b: NDArray, ridge: float) -> tuple[NDArray, float]:
    """The maximizer under sum(x) = 1 alone, and its multiplier."""
    K = G + ridge * np.eye(len(b))
    sol = np.linalg.solve(K, np.stack([b, np.ones_like(b)], axis=1))
    total = sol[:, 1].sum()
    nu = (sol[:, 0].sum() - 1) / total
    return sol[:, 0] - nu * sol[:, 1], nu


def simplex_qp(G: NDArray, b: NDArray, x: NDArray, *, tol: float = 1e-13, max_steps: int = 1000) -> NDArray:
    """Maximize b @ x - x @ G @ x / 2 over x >= 0, sum(x) = 1, by an active set warm-started at x.

    Parameters
    ----------
    G : (m, m) array
        Positive semidefinite, may be singular: a ridge at the level of rounding makes it definite.
    b : (m,) array
    x : (m,) array
        A point of the simplex; the start.
    tol : float
        Relative accuracy of the optimality conditions.

    Returns
    -------
    (m,) array
        Always a point of the simplex, whatever the rounding: so a valid mixture of cuts.

    Examples
    --------
    >>> import numpy as np
    >>> simplex_qp(np.diag([1.0, 1.0]), np.zeros(2), np.array([1.0, 0.0]))
    array([0.5, 0.5])
    """
    x = np.maximum(x, 0.0)
    x = x / x.sum()
    top = float(np.abs(np.diag(G)).max(initial=0.0))
    scale, ridge = top + float(np.abs(b).max()) + 1e-300, 1e-14 * top + 1e-300
    inside = x > 0
    blocked = -1
    for _ in range(max_steps):
        rows = np.flatnonzero(inside)
        try:
            new, nu = _equality(G[np.ix_(rows, rows)], b[rows], ridge)
        except np.linalg.LinAlgError:
            ridge = 100 * ridge
            continue
        if not np.isfinite(new).all():
            ridge = 100 * ridge
            continue
        if new.min() > 0:
            x = np.zeros_like(x)
            x[rows] = new
            x /= x.sum()
            gain = b - G @ x
            gain[rows] = -np.inf
            j = int(gain.argmax())
            if gain[j] <= float((b[rows] - G[rows] @ x) @ x[rows]) + tol * scale or j == blocked:
                break
            inside[j] = True
            blocked = j
        else:  # go towards it until the first weight is used up, and drop that one
            old = x[rows]
            away = new <= 0
            ratio = old[away] / (old[away] - new[away])
            k = int(ratio.argmin())
            step = min(1.0, float(ratio[k]))
            x[rows] = np.maximum(old + step * (new - old), 0.0)
            out = rows[np.flatnonzero(away)[k]]
            x[out], inside[out] = 0.0, False
            x /= x.sum()
            if not inside.any():
                raise ArithmeticError("the simplex program lost all its points")
    return x
