r"""The small quadratic program of bundle methods: maximize :math:`b^\top x - \tfrac12 x^\top G x` on the simplex."""

from __future__ import annotations

from typing import Any

import numpy as np

NDArray = np.ndarray[Any, Any]


def _equality(G: NDArray, b: NDArray, ridge: float) -> NDArray | None:
    """The maximizer under sum(x) = 1 alone; None where the ridge is too small for this precision."""
    try:
        free, ones = np.linalg.solve(G + ridge * np.eye(len(b)), np.stack([b, np.ones_like(b)], axis=1)).T
    except np.linalg.LinAlgError:
        return None
    x = free - (free.sum() - 1) / ones.sum() * ones
    return x if np.isfinite(x).all() else None


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
    inside, refused = x > 0, np.zeros(len(b), dtype=bool)
    value, added = -np.inf, -1
    for _ in range(max_steps):
        rows = np.flatnonzero(inside)
        new = _equality(G[np.ix_(rows, rows)], b[rows], ridge)
        if new is None:
            ridge *= 100
            continue
        if new.min() > 0:
            x = np.zeros_like(x)
            x[rows] = new / new.sum()
            gain = b - G @ x
            now, nu = float((b + gain) @ x) / 2, float(gain @ x)
            if now > value:
                value, refused = now, np.zeros_like(refused)
            elif added >= 0:
                refused[added] = True  # it was let in and brought nothing: rounding, so not again
            gain[inside | refused] = -np.inf
            added = int(gain.argmax())
            if gain[added] <= nu + tol * scale:
                break
            inside[added] = True
        else:  # go towards it until the first weight is used up, and drop that one
            old, away = x[rows], np.flatnonzero(new <= 0)
            ratio = old[away] / np.maximum(old[away] - new[away], 1e-300)
            k = int(ratio.argmin())
            x[rows] = np.maximum(old + min(1.0, float(ratio[k])) * (new - old), 0.0)
            x[rows[away[k]]], inside[rows[away[k]]] = 0.0, False
            x /= x.sum()
    return x
