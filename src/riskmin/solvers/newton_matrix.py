r"""Newton's equations, of matrix :math:`\lambda K + X^\top H X`: by Cholesky, or by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.losses.bends import times, turned
from riskmin.matrices import Columns, Csr, Dense, by_rows
from riskmin.regularizers import L2
from riskmin.types import Array, Bend, Matrix, NDArray, Window

BLOCK = 2**18
"""How many numbers of dense rows are gathered at a time: they stay in cache until they are multiplied."""
MOST_STEPS = 500
"""Of conjugate gradients, after which a direction is taken as it is."""


class Equations:
    """Newton's equations of one problem, (lam K + X' H X) d = -g, for one H after the other."""

    def __init__(self, X: Matrix, reg: Any, lam: float, direct: bool) -> None:
        self.X, self.reg, self.lam, self.direct = X, reg, lam, direct

    def solve(self, bend: Bend, g: Array, enough: float) -> Array:
        """The direction d; up to a residual of the norm `enough`, where it is found in steps."""
        if self.direct:
            return -1.0 * self._cholesky(bend, g)
        return conjugate_gradients(lambda d: self._times(bend, d), -g, enough)

    def _times(self, bend: Bend, d: Array) -> Array:
        n = self.X.shape[0]
        out = self.lam * self.reg.grad(d)
        self.X.pullback(times(bend, self.X.scores(d, 0, n)), 0, n, out)
        return out

    def _cholesky(self, bend: Bend, g: Array) -> Array:
        from scipy.linalg import LinAlgError, cho_factor, cho_solve

        G = product(self._rows, bend)
        diagonal = G.reshape(-1)[:: len(G) + 1]
        if isinstance(self.reg, L2):
            diagonal += self.lam * self.reg.terms(g).square
        else:
            G += self.lam * self._form
        more = 1e-14 * float(diagonal.max())
        while True:
            try:  # the upper triangle of G is the lower one of its transpose, which is in LAPACK's order
                return np.asarray(cho_solve(cho_factor(G.T, lower=True, check_finite=False), g))
            except LinAlgError:  # rounding has turned its least eigenvalues over
                diagonal += more
                more *= 10

    @cached_property
    def _rows(self) -> Csr | Dense | Columns:
        return self.X if isinstance(self.X, Columns) else by_rows(self.X)

    @cached_property
    def _form(self) -> NDArray:
        """K, whatever it is made of."""
        return np.stack([np.asarray(self.reg.grad(e)) for e in np.eye(self.X.shape[1])])


def product(X: Csr | Dense | Columns, bend: Bend) -> NDArray:
    """The upper triangle of X' H X, and anything below it."""
    from riskmin.kernels.gram import csr_gram

    p = X.shape[1]
    out = np.zeros((p, p))
    if isinstance(X, Csr):
        csr_gram(X.indptr, X.indices, X.data, bend.diagonal, out)
    else:
        for rows in _blocks(np.flatnonzero(bend.diagonal), p):
            half = _taken(X, rows) * np.sqrt(bend.diagonal[rows])[:, None]
            out += half.T @ half
    for s in bend.minus:
        m = np.zeros(p)
        X.pullback(s, 0, len(s), m)
        out -= np.outer(m, m)
    for window in bend.windows:
        across = _across(X, _fewer_outside(window))
        out -= across + across.T
    return out


def _fewer_outside(window: Window) -> Window:
    """The window with the shorter list first: each row of that one takes a row of p numbers."""
    if len(window.above) <= len(window.below):
        return window
    first, last = turned(window)
    return Window(window.below, window.q, window.above, window.p, first, last)


def _across(X: Csr | Dense | Columns, window: Window) -> NDArray:
    """X' W X, for one of the two triangles of pairs."""
    from riskmin.kernels.gram import csr_windows, dense_windows

    p = X.shape[1]
    out = np.zeros((p, p))
    if isinstance(X, Csr):
        csr_windows(X.indptr, X.indices, X.data, *window, out)
        return out
    ends, sums = np.zeros(2, np.int64), np.zeros(p)
    whole = X.X if isinstance(X, Dense) else X.T.T
    for at in _blocks(np.flatnonzero(window.last > window.first), p):
        found = np.empty((len(at), p))
        dense_windows(whole, window.below, window.q, window.first[at], window.last[at], ends, sums, found)
        out += (_taken(X, window.above[at]) * window.p[at, None]).T @ found
    return out


def _taken(X: Dense | Columns, rows: NDArray) -> NDArray:
    found = X.X[rows] if isinstance(X, Dense) else X.T[:, rows].T
    return found.astype(np.float64, copy=False)


def _blocks(rows: NDArray, p: int) -> list[NDArray]:
    step = max(BLOCK // p, 16)
    return [rows[i : i + step] for i in range(0, len(rows), step)]


def conjugate_gradients(product: Callable[[Array], Array], g: Array, enough: float) -> Array:
    """The d for which A d is g, up to a residual of that norm; a descent direction wherever it ends.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> conjugate_gradients(lambda d: A @ d, np.array([3.0, 4.0]), 1e-12).round(9).tolist()
    [1.0, 1.0]
    """
    d, r = 0.0 * g, g
    along, size = r, float(r @ r)
    for _ in range(MOST_STEPS):
        if size <= enough * enough:
            break
        image = product(along)
        step = size / float(along @ image)
        d, r = d + step * along, r - step * image
        size, before = float(r @ r), size
        along = r + (size / before) * along
    return d
