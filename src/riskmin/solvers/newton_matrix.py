r"""Newton's equations, of matrix :math:`\lambda K + X^\top H X`: by Cholesky, or by conjugate gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.blas import cho_factor, linalg
from riskmin.deadline import aside, checking, pieces, product
from riskmin.losses.bends import times, turned
from riskmin.matrices import Columns, Csr, Dense
from riskmin.regularizers import L2
from riskmin.solvers.newton_steps import Part
from riskmin.solvers.passes import Passes, blocks, rows_of, taken
from riskmin.sorting import prefix_sums
from riskmin.types import Array, Bend, NDArray, Window

MOST_STEPS = 1500
"""Of conjugate gradients, after which a direction is taken as it is."""
ROUGH = 0.01
"""The share of the gradient that they may leave where a matrix would have left nothing."""
FEW = 3
"""One row in so many, or fewer, are taken out of X for steps of conjugate gradients."""
LEAST = 1e-12
"""The least penalty of a direction, beside the second derivatives of rows of length one."""
DENSE = 8.0
"""How many times as fast an operation with a dense matrix is as one with a sparse one."""


class Equations:
    """Newton's equations of one problem, (lam K + X' H X) d = -g, for one H and lam after the other.

    There are three ways. Conjugate gradients take two passes over X a step, which is least where few will do.
    Where they do not, the matrix of features is factorized, or that of the rows with second derivatives if
    these are fewer, unless both are more than `direct`.
    """

    def __init__(self, passes: Passes, reg: Any, direct: int, steps: float = 0.0) -> None:
        self.passes, self.given, self.reg, self.direct = passes, reg, reg, direct
        self.steps = steps
        """How many steps of conjugate gradients to expect: as last time, or more where they failed."""

    def enough(self, g: Array, rest: float) -> float:
        """The norm that a residual may have: well below complementarity, which is rest / lam."""
        norm = math.sqrt(float(g @ g))
        return max(0.05 * norm * min(1.0, 10 * norm), 0.3 * math.sqrt(rest))

    def solve(self, bend: Bend, lam: float, g: Array, enough: float) -> Array:
        """The direction d; up to a residual of the norm `enough`, where it is found in steps."""
        if isinstance(self.given, L2):  # what is below rounding beside X' H X is held back by that much
            square, least = self.given.terms(g).square, LEAST * float(bend.diagonal.sum()) / lam
            self.reg = L2(np.maximum(square + 0.0 * g, least)) if np.min(square) < least else self.given
        cost, way = self._direct(bend)
        if way is not None and (cost < 4 or self.steps >= cost):
            self.steps *= 0.8  # so that they are tried again in the end
            return way(bend, lam, g)
        most = int(min(MOST_STEPS, cost))
        d, took = self._in_steps(bend, lam, g, enough, most)
        self.steps = took if took < most else 4.0 * most
        return d if took < most or way is None else way(bend, lam, g)

    def _in_steps(self, bend: Bend, lam: float, g: Array, enough: float, most: int) -> tuple[Array, int]:
        """By conjugate gradients; with the rows alone that take part, where these are few."""
        at = np.flatnonzero(bend.diagonal)
        few = FEW * len(at) < len(bend.diagonal) and self.passes.takes(len(at))  # they are copied
        if few and isinstance(self.reg, L2) and not bend.windows and _projects(bend):
            square = self.reg.terms(g).square + 0.0 * g
            return Part(self.passes.take(at), bend, square).solve(lam, g, enough, most)
        return conjugate_gradients(lambda d: self._times(bend, lam, d), -g, enough, most)

    def _direct(self, bend: Bend) -> tuple[float, Callable[[Bend, float, Array], Array] | None]:
        """The cheaper of the ways with a matrix, and its cost in steps of conjugate gradients."""
        n, p = self.passes.shape
        many, numbers = int(np.count_nonzero(bend.diagonal)), self.passes.numbers
        each = numbers / n
        rows = many * many * (0.7 * many / DENSE + each)
        features = p**3 / (3 * DENSE) + 0.5 * many * each * each / (DENSE if each == p else 1.0)
        best, way = min(
            (rows if self._takes(many) else math.inf, 0),
            (features if self._grams(bend) else math.inf, 1),
        )
        if best == math.inf:
            return best, None
        return best / (4 * numbers), (self._by_rows, self._by_features)[way]

    def _takes(self, many: int) -> bool:
        return many <= self.direct and isinstance(self.reg, L2) and self.passes.takes(many)

    def _grams(self, bend: Bend) -> bool:
        return self.passes.shape[1] <= self.direct and self.passes.grams(bool(bend.windows))

    def _by_rows(self, bend: Bend, lam: float, g: Array) -> Array:
        """By Woodbury's formula: u = H X_S d in (I + H G) u = H G' g, for G = X_S (lam K)^-1 X_S'."""
        lapack = linalg().lapack
        at = np.flatnonzero(bend.diagonal)
        weight = 1 / (lam * self.reg.terms(g).square + 0.0 * g)
        if not len(at):
            return -1.0 * weight * g
        part: Any = self.passes.take(at).astype(np.float64, copy=False)
        scaled = part * weight if isinstance(part, np.ndarray) else part @ sp.diags_array(weight)
        dense, few = isinstance(part, np.ndarray), restricted(bend, at)
        gram = product(scaled, part.T) if dense else (scaled @ part.T).toarray()
        H, work = np.eye(len(at)) + times(few, gram), 2 / 3 * len(at) ** 3
        factor, pivots, singular = aside(work, partial(lapack.dgetrf, overwrite_a=True), H)
        if singular:  # beside rows so long, rounding has swallowed the ones
            return self._otherwise(bend, lam, g)
        d, rest = 0.0 * g, -1.0 * g
        for _ in range(2):  # once more for the digits that rounding took
            found, _ = lapack.dgetrs(factor, pivots, times(few, scaled @ rest))
            d = d + weight * rest - weight * (part.T @ found)
            rest = -1.0 * g - self._times(bend, lam, d)
        return d

    def _otherwise(self, bend: Bend, lam: float, g: Array) -> Array:
        """Without a matrix of rows."""
        if self._grams(bend):
            return self._by_features(bend, lam, g)
        enough = ROUGH * float(g @ g) ** 0.5
        return conjugate_gradients(lambda d: self._times(bend, lam, d), -1.0 * g, enough, MOST_STEPS)[0]

    def _times(self, bend: Bend, lam: float, d: Array) -> Array:
        bent = times(bend, self.passes.forward(d))
        return lam * self.reg.grad(d) + self.passes.back(bent)

    def _by_features(self, bend: Bend, lam: float, g: Array) -> Array:
        """By Cholesky's method."""
        return -1.0 * factorized(self.passes, self.reg, lam, bend)(g)


def factorized(passes: Passes, reg: Any, lam: float, bend: Bend) -> Callable[[Array], Array]:
    """Solves (lam K + X' H X) d = g, by Cholesky's method."""
    G = passes.gram(bend.diagonal)
    p = len(G)
    more = 1e-14 * float(np.diagonal(G).max())  # of what cancels, rounding is this part
    G = less(G, passes, bend)
    diagonal = G.reshape(-1)[:: p + 1]
    if isinstance(reg, L2):
        diagonal += lam * reg.terms(np.ones(p)).square
    else:
        G += lam * np.stack([np.asarray(reg.grad(e)) for e in np.eye(p)])
    # the upper triangle of G is the lower one of its transpose, which is in LAPACK's order
    factor = cholesky(G.T, diagonal, more)
    if factor is None:
        return lambda g: g / lam
    return lambda g: np.asarray(linalg().cho_solve(factor, g, check_finite=False))


def cholesky(G: NDArray, diagonal: NDArray, more: float) -> Any:
    """The factor of a matrix by its lower triangle; where rounding has spoilt it, with more on the diagonal.

    The diagonal is a view into the matrix. None if no number is enough.

    Examples
    --------
    >>> import numpy as np
    >>> G = np.ones((2, 2))
    >>> cholesky(G, G.reshape(-1)[::3], 1e-14) is None, bool(G[1, 1] > 1 == G[1, 0])
    (False, True)
    """
    while np.isfinite(more):
        try:
            return cho_factor(G, lower=True)
        except np.linalg.LinAlgError:  # rounding has turned its least eigenvalues over
            diagonal += more
            more *= 10
    return None


def _projects(bend: Bend) -> bool:
    """Whether H is D^1/2 P D^1/2, for a diagonal D and a projection P that leaves out one vector at most."""
    if len(bend.minus) != 1:
        return not bend.minus
    (s,), h = bend.minus, bend.diagonal
    at = h > 0
    return bool(abs(float(s[at] @ (s[at] / h[at])) - 1) < 1e-9 and not s[~at].any())


def less(G: NDArray, passes: Passes, bend: Bend) -> NDArray:
    """The product of the diagonal, less those of ranks and windows."""
    for s in bend.minus:
        m = passes.back(s)
        G -= np.outer(m, m)
    for window in bend.windows:
        assert passes.rows is not None  # else there is no matrix to take it off
        across = _across(rows_of(passes.rows), _fewer_outside(window))
        G -= across + across.T
    return G


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
    out, sums, ends = np.zeros((p, p)), np.zeros(p), np.zeros(2, np.int64)
    if isinstance(X, Csr):
        above, weights, below, q, first, last = window
        for i, j in pieces(0, len(above), len(above) * (len(X.data) / X.shape[0]) * p):
            rows = above[i:j], weights[i:j], below, q, first[i:j], last[i:j]
            csr_windows(X.indptr, X.indices, X.data, *rows, ends, sums, out)
        return out
    whole = X.X if isinstance(X, Dense) else X.T.T
    for at in blocks(np.flatnonzero(window.last > window.first), p):
        found = np.empty((len(at), p))
        dense_windows(whole, window.below, window.q, window.first[at], window.last[at], ends, sums, found)
        out += (taken(X, window.above[at]) * window.p[at, None]).T @ found
    return out


def restricted(bend: Bend, at: NDArray) -> Bend:
    """The second derivatives of some rows alone, in their order; all others have none."""
    place = np.full(len(bend.diagonal), -1)
    place[at] = np.arange(len(at))
    windows = []
    for above, p, below, q, first, last in bend.windows:
        here, there = place[above] >= 0, place[below] >= 0
        before = prefix_sums(there.astype(np.int64))
        rows, others = place[above[here]], place[below[there]]
        windows.append(Window(rows, p[here], others, q[there], before[first[here]], before[last[here]]))
    return Bend(bend.diagonal[at], tuple(s[at] for s in bend.minus), tuple(windows))


def conjugate_gradients(
    product: Callable[[Array], Array], g: Array, enough: float, most: int, diagonal: Array | None = None
) -> tuple[Array, int]:
    """The d for which A d is g, up to a residual of that norm, and how many steps it took: at most so many.

    Fewer will do with the diagonal of A, where that differs much. Wherever it ends, d is a direction of
    descent.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> d, took = conjugate_gradients(lambda d: A @ d, np.array([3.0, 4.0]), 1e-12, 10)
    >>> d.round(9).tolist(), took
    ([1.0, 1.0], 2)
    """
    d, r = 0.0 * g, g
    s = r if diagonal is None else r / diagonal
    along, size = s, float(r @ s)
    for took in checking(range(most)):
        if float(r @ r) <= enough * enough:
            return d, took
        image = product(along)
        step = size / float(along @ image)
        d, r = d + step * along, r - step * image
        s = r if diagonal is None else r / diagonal
        size, before = float(r @ s), size
        along = s + (size / before) * along
    return d, most
