r"""Matrices near that of Newton's equations for many scores, :math:`P + \sum_i x_i x_i^\top \otimes H_i`.

The diagonal alone, one matrix for all classes, one a class, or that of the equations itself, which is found
by features or, where few rows bend, by rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from riskmin.blas import inverse, linalg
from riskmin.deadline import LONG, checking, product
from riskmin.losses.curves import Curve
from riskmin.matrices import Columns, Csr, Dense, as_scipy
from riskmin.scorers import Centred, WithOnes
from riskmin.solvers.newton_matrix import cholesky
from riskmin.solvers.passes import Passes, gram_pieces, taken
from riskmin.types import Matrix, NDArray

THIN, EACH, SPARSE, APPLY, CALL = 10.0, 110.0, 40.0, 50.0, 1e6
"""What it costs to multiply thin matrices, numbers that are no matrices, and sparse ones, to use an entry of
a factor, and to call a function of NumPy, beside an operation in a product of large dense ones."""
BLOCK, WHOLE = 2**15, 2**17
"""Rows are taken so many scores at a time, or numbers times classes: these stay in cache."""
DEEP = 256
"""Rows that products of thin matrices have at least, for them to be fast."""
TINY = 1e-100
"""On diagonals of what neither is penalized nor bends: its inverse, squared, is still a number."""

Solve = Callable[[NDArray], NDArray]


class Part(NamedTuple):
    """The rows that bend, and their second derivatives."""

    X: Csr | Dense | Columns
    curve: Curve
    scorer: Any
    whole: Passes | None
    """The passes over all rows, where these are all."""

    def times(self, d: NDArray) -> NDArray:
        """The product of d with what the rows add to the matrix of the equations."""
        if self.whole is None:
            return self._through(self.X, 0, d)
        starts = [part.start for part in self.whole.parts]
        held: Any = self.whole.risk.executor
        (found,) = held.sum(lambda shard, start: (self._through(shard.X, start, d),), each=starts)
        return np.asarray(found)

    def _through(self, X: Matrix, start: int, d: NDArray) -> NDArray:
        """The product with some of the rows, which begin there: forth and back while they are in cache."""
        n, out, scorer = X.shape[0], np.zeros_like(d), self.scorer
        size = max(BLOCK // scorer.columns, 16)
        for i in range(0, n, size):
            j = min(i + size, n)
            z = scorer.scores(X, d, i, j)
            scorer.pullback(X, self.curve.times(z, slice(start + i, start + j)), i, j, out)
        return out

    def gram(self, h: NDArray) -> NDArray:
        """X' diag(h) X, with a column of ones for intercepts, or of rows less their mean."""
        G = _gram(self.X, h)
        if isinstance(self.scorer, (WithOnes, Centred)):
            s, total = np.zeros(len(G)), float(h.sum())
            self.X.pullback(h, 0, len(h), s)
            if isinstance(self.scorer, WithOnes):
                return np.block([[G, s[:, None]], [s[None, :], np.array([[total]])]])
            m = self.scorer.mean
            G += total * np.outer(m, m) - np.outer(s, m) - np.outer(m, s)
        return G

    @property
    def numbers(self) -> int:
        """How many numbers the rows hold."""
        return len(self.X.data) if isinstance(self.X, Csr) else self.X.shape[0] * self.X.shape[1]

    @property
    def bent(self) -> NDArray:
        """How many classes bend in each row."""
        return np.asarray(np.count_nonzero(self.curve.diagonal, axis=1))


# ---------------------------------------------------------------- what they cost
def step_cost(part: Part) -> float:
    """A step of conjugate gradients."""
    numbers = (SPARSE if isinstance(part.X, Csr) else THIN) * part.numbers
    return float(part.scorer.columns * (numbers + EACH * part.X.shape[0]) + 5 * CALL)


def gram_cost(part: Part) -> float:
    """A matrix of features."""
    m, p = part.X.shape
    if isinstance(part.X, Csr):
        return 0.5 * SPARSE * part.numbers**2 / max(m, 1) + p**3
    return m * p * (p + 0.5 * EACH) + p**3


def features_cost(part: Part, direct: int) -> float:
    """The matrix of the equations, of features; infinite where they are too many."""
    (m, p), k, bent = part.X.shape, part.scorer.columns, part.bent
    pairs = 0.5 * float((bent * bent).sum()) / max(m, 1)
    extra = k * k * (m * EACH + 0.5 * CALL)
    return pairs * gram_cost(part) + (p * k) ** 3 / 3 + extra if p * k <= 2 * direct else np.inf


def rows_cost(part: Part, P: NDArray, direct: int) -> float:
    """That of the rows; infinite where they are too many, or not penalized alike."""
    plain = part.curve.roots is not None and not isinstance(part.X, Csr)
    alike = bool((P[:, :1] == P).all() and P.min() > 0)
    if not plain or isinstance(part.scorer, Centred) or not alike:
        return np.inf
    size = int(np.maximum(part.bent - 1, 0).sum())
    return size * size * (part.X.shape[1] + EACH) + size**3 / 3 + 20 * CALL if size <= direct else np.inf


# ---------------------------------------------------------------- the matrices
def by_diagonal(part: Part, P: NDArray) -> Solve:
    """By the diagonal alone."""
    X, h = part.X, part.curve.diagonal
    squares = as_scipy(X).power(2).T @ h if isinstance(X, Csr) else _dense(X).T ** 2 @ h
    if isinstance(part.scorer, WithOnes):
        squares = np.vstack([squares, h.sum(axis=0)])
    scale = 1 / (P + squares + TINY).reshape(-1)
    return lambda r: scale * r


def by_one(part: Part, P: NDArray) -> Solve:
    """By one matrix for all classes: exact where they are all alike, as at the start."""
    h, k = part.curve.diagonal, P.shape[1]
    one = inverse(_definite(part.gram(h.sum(axis=1) / max(k - 1, 1)), P.mean(axis=1)))
    return lambda r: (one @ r.reshape(-1, k)).reshape(-1)


def by_class(part: Part, P: NDArray) -> Solve:
    """By one a class: all but what classes share."""
    h, k = part.curve.diagonal, P.shape[1]
    each = inverse(np.stack([_definite(part.gram(h[:, j]), P[:, j]) for j in range(k)]))
    return lambda r: (each @ r.reshape(-1, k).T[:, :, None])[:, :, 0].T.reshape(-1)


def by_features(part: Part, P: NDArray) -> Solve:
    """By the matrix itself."""
    q, k = P.shape
    alone = isinstance(part.X, Csr) or float((part.bent**2).sum()) < 0.3 * k * k * len(part.bent)
    M = (_one_pair_each(part, q, k) if alone else _all_pairs(part, q, k)).reshape(k * q, k * q)
    diagonal = M.reshape(-1)[:: k * q + 1]
    diagonal += P.T.reshape(-1)
    factor = cholesky(M, diagonal, 1e-13 * float(diagonal.max()))
    if factor is None:
        return by_diagonal(part, P)

    def solve(r: NDArray) -> NDArray:
        found = linalg().cho_solve(factor, r.reshape(q, k).T.reshape(-1), check_finite=False)
        return np.asarray(found).reshape(k, q).T.reshape(-1)

    return solve


def by_rows(part: Part, P: NDArray) -> Solve:
    """By the formula of Woodbury: H_i is a sum of few squares u u', and P the same for all classes."""
    assert part.curve.roots is not None
    assert not isinstance(part.X, Csr)
    (rows, U), p, k = part.curve.roots(), P[:, :1], P.shape[1]
    X = taken(part.X, rows)
    if isinstance(part.scorer, WithOnes):
        X = np.column_stack([X, np.ones(len(X))])
    G = product(X / p.T, X.T)
    G *= U @ U.T
    diagonal = G.reshape(-1)[:: len(G) + 1]
    diagonal += 1.0
    factor = cholesky(G, diagonal, 1e-14 * float(diagonal.max())) if len(rows) else None

    def solve(r: NDArray) -> NDArray:
        R = r.reshape(-1, k) / p
        if factor is None:
            return R.reshape(-1)
        u = linalg().cho_solve(factor, ((X @ R) * U).sum(axis=1), check_finite=False)
        return np.asarray(R - X.T @ (U * u[:, None]) / p).reshape(-1)

    return solve


# ---------------------------------------------------------------- what they are made of
def _one_pair_each(part: Part, q: int, k: int) -> NDArray:
    """The lower triangle of the matrix, one pair of classes after the other: few rows have both."""
    H, m = np.zeros((k, q, k, q)), part.X.shape[0]
    for a in range(k):
        one = np.zeros((m, k))
        one[:, a] = 1.0
        columns = np.asfortranarray(part.curve.times(one, slice(None))[:, : a + 1])
        for b in np.flatnonzero(columns.any(axis=0)):
            H[a, :, b] = part.gram(columns[:, b])
    return H


def _all_pairs(part: Part, q: int, k: int) -> NDArray:
    """The same, one range of rows after the other."""
    H, m, size = np.zeros((k, q, k * q)), part.X.shape[0], max(WHOLE // (k * q), 16)
    X = _dense(part.X)
    for i in checking(range(0, m, size)):
        at = slice(i, min(i + size, m))
        rows = X[at]
        if isinstance(part.scorer, WithOnes):
            rows = np.column_stack([rows, np.ones(len(rows))])
        elif isinstance(part.scorer, Centred):
            rows = rows - part.scorer.mean
        for a in range(k):
            one = np.zeros((len(rows), k))
            one[:, a] = 1.0
            columns = part.curve.times(one, at)[:, : a + 1]
            H[a, :, : (a + 1) * q] += rows.T @ (columns[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
    return H


def _gram(X: Csr | Dense | Columns, h: NDArray) -> NDArray:
    """X' diag(h) X, h of either sign; rows without h cost nothing."""
    if isinstance(X, Csr):
        from riskmin.kernels.gram import csr_gram

        out = np.zeros((X.shape[1], X.shape[1]))
        for i, j in gram_pieces(X, h):
            csr_gram(X.indptr[i : j + 1], X.indices, X.data, h[i:j], out)
        return out + out.T - np.diag(np.diag(out))
    at = np.flatnonzero(h)
    rows, h = (taken(X, at), h[at]) if len(at) < 0.7 * len(h) else (_dense(X), h)
    if len(h) and h.min() < 0:
        return np.asarray(_squares((rows * h[:, None]).T, rows))
    half = rows * np.sqrt(h)[:, None]
    return _squares(half.T, half)


def _squares(A: NDArray, B: NDArray) -> NDArray:
    """A B of many rows of B; where these are very many, in parts, each of which takes a moment."""
    n, step = len(B), max(int(LONG // (2 * len(A) * B.shape[1])), DEEP)
    if n <= 4 * step:
        return np.asarray(product(A, B))
    found = np.zeros((len(A), B.shape[1]))
    for i in checking(range(0, n, step)):
        found += A[:, i : i + step] @ B[i : i + step]
    return found


def _dense(X: Any) -> NDArray:
    found: NDArray = X.X if isinstance(X, Dense) else X.T.T
    return found


def _definite(G: NDArray, penalty: NDArray) -> NDArray:
    """The matrix with a penalty on its diagonal, and a little more, for rounding and what nothing bends."""
    diagonal = G.reshape(-1)[:: len(G) + 1]
    diagonal += penalty + 1e-13 * float(diagonal.max()) + TINY
    return G
