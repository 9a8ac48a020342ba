r"""Preconditioners for the multi-output Newton system, of matrix :math:`P + \sum_i x_i x_i^\top \otimes H_i`.

From cheap to exact: the diagonal, one matrix shared by all classes, one matrix per class, and the matrix
itself, formed by features or, if few rows have nonzero second derivatives (active rows), by rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.compressed import Csr
from riskmin.arrays.dense import Dense, DenseFortran
from riskmin.core import Matrix, NDArray
from riskmin.core.blas_threads import cholesky, inverse, scipy_linalg
from riskmin.core.deadline import THREADED_CALL_OPERATIONS, check_each, interruptible_matmul
from riskmin.core.limits import LIMITS
from riskmin.losses.block_hessian import BlockHessian
from riskmin.problem.design_operator import DesignOperator, gram_row_ranges
from riskmin.solvers.costs import PRODUCT_COSTS

DIAGONAL_FLOOR = 1e-100
"""Added to diagonals, where entries without penalty and second derivative are 0: 1 / floor^2 is finite."""
PIVOT_ROUNDING = 1e-15
"""Pivots of a matrix with a unit diagonal that are rounding."""

Solve = Callable[[NDArray], NDArray]


class MultiOutputActiveRows(NamedTuple):
    """The rows with nonzero second derivatives, and their Hessian blocks."""

    X: Csr | Dense | DenseFortran
    hessian: BlockHessian
    linear_map: Any
    all_rows: DesignOperator | None
    """The operator of all rows, if all of them are active."""

    def product(self, d: NDArray) -> NDArray:
        """(sum_i x_i x_i' (x) H_i) d."""
        if self.all_rows is None:
            return self._block_product(self.X, 0, d)
        starts = [part.start for part in self.all_rows.shard_slices]
        executor: Any = self.all_rows.risk.executor
        (total,) = executor.sum(lambda shard, start: (self._block_product(shard.X, start, d),), each=starts)
        return np.asarray(total)

    def _block_product(self, X: Matrix, start: int, d: NDArray) -> NDArray:
        """The product with the rows of X, which begin at row `start`: block by block, while in cache."""
        n, out, scorer = X.shape[0], np.zeros_like(d), self.linear_map
        size = max(LIMITS.hessian_block_entries // scorer.columns, 16)
        for i in range(0, n, size):
            j = min(i + size, n)
            z = scorer.scores(X, d, i, j)
            scorer.pullback(X, self.hessian.product(z, slice(start + i, start + j)), i, j, out)
        return out

    def gram(self, h: NDArray) -> NDArray:
        """X' diag(h) X, where X has a column of ones for intercepts, or is centered."""
        G = _gram(self.X, h)
        if self.linear_map.n_intercepts or self.linear_map.centered:
            # s = X' h, the sum of h_i x_i
            s, total = np.zeros(len(G)), float(h.sum())
            self.X.pullback(h, 0, len(h), s)
            if self.linear_map.n_intercepts:
                return np.block([[G, s[:, None]], [s[None, :], np.array([[total]])]])
            # sum_i h_i (x_i - m)(x_i - m)' = G - s m' - m s' + (sum_i h_i) m m'
            m = self.linear_map.mean
            G += total * np.outer(m, m) - np.outer(s, m) - np.outer(m, s)
        return G

    @property
    def nnz(self) -> int:
        """The stored entries of the rows."""
        return self.X.nnz

    @property
    def active_classes(self) -> NDArray:
        """The number of classes with nonzero second derivatives, per row."""
        return np.asarray(np.count_nonzero(self.hessian.diagonal, axis=1))


# ---------------------------------------------------------------- costs
# in operations of a large dense matrix product
def cg_step_cost(part: MultiOutputActiveRows) -> float:
    """The cost of a step of conjugate gradients."""
    entries = (PRODUCT_COSTS.sparse_entry if part.X.sparse else PRODUCT_COSTS.thin_product) * part.nnz
    return float(
        part.linear_map.columns * (entries + PRODUCT_COSTS.elementwise * part.X.shape[0])
        + 5 * PRODUCT_COSTS.numpy_call
    )


def gram_cost(part: MultiOutputActiveRows) -> float:
    """The cost of one matrix X' diag(h) X."""
    m, p = part.X.shape
    # nnz / m entries per row, hence (nnz / m)^2 / 2 products of each of the m rows
    if part.X.sparse:
        return 0.5 * PRODUCT_COSTS.sparse_entry * part.nnz**2 / max(m, 1) + p**2
    return m * p * (p + 0.5 * PRODUCT_COSTS.elementwise)


def inverses_cost(part: MultiOutputActiveRows) -> float:
    """The cost of the inverse of a matrix of the features for each class."""
    p = part.X.shape[1]
    return float(part.linear_map.columns * (PRODUCT_COSTS.inverse * p**3 + PRODUCT_COSTS.numpy_call))


def feature_solver_cost(part: MultiOutputActiveRows, direct: int) -> float:
    """The cost of the exact matrix by features; infinite where it is too large."""
    (m, p), k, active = part.X.shape, part.linear_map.columns, part.active_classes
    # the mean number of pairs of classes per row, in one triangle
    pairs = 0.5 * float((active * active).sum()) / max(m, 1)
    extra = k * k * (m * PRODUCT_COSTS.elementwise + 0.5 * PRODUCT_COSTS.numpy_call)
    return pairs * gram_cost(part) + (p * k) ** 3 / 3 + extra if p * k <= 2 * direct else np.inf


def row_solver_cost(part: MultiOutputActiveRows, P: NDArray, direct: int) -> float:
    """The cost of the exact solver by rows; infinite for too many rows, or if penalties of classes differ."""
    plain = part.hessian.factors is not None and not part.X.sparse
    # P^-1 acts on features alone only if it is the same for all classes
    alike = bool((P[:, :1] == P).all() and P.min() > 0)
    if not plain or part.linear_map.centered or not alike:
        return np.inf
    # H_i of a row with r active classes has rank r - 1
    size = int(np.maximum(part.active_classes - 1, 0).sum())
    cost = (
        size * size * (part.X.shape[1] + PRODUCT_COSTS.elementwise)
        + size**3 / 3
        + 20 * PRODUCT_COSTS.numpy_call
    )
    return cost if size <= direct else np.inf


# ---------------------------------------------------------------- preconditioners
def diagonal_preconditioner(part: MultiOutputActiveRows, P: NDArray) -> Solve:
    """The inverse of the diagonal."""
    X, h = part.X, part.hessian.diagonal
    squares = X.as_scipy().power(2).T @ h if X.sparse else X.array.T**2 @ h
    if part.linear_map.n_intercepts:
        squares = np.vstack([squares, h.sum(axis=0)])
    # P and squares have one row per feature and one column per class
    scale = 1 / (P + squares + DIAGONAL_FLOOR).reshape(-1)
    return lambda r: scale * r


def shared_preconditioner(part: MultiOutputActiveRows, P: NDArray) -> Solve:
    """The inverse for H_i = s_i H, a multiple of one matrix for all rows: exact for equal scores, as at 0.

    With the eigenvectors v of H, it is one matrix per eigenvalue e, (e X' diag(s) X + P)^-1 (x) v v'.
    """
    h, k = part.hessian.diagonal, P.shape[1]
    s = h.sum(axis=1) / max(k - 1, 1)
    G, penalty, total = part.gram(s), P.mean(axis=1), float(s.sum())
    e, V = np.linalg.eigh(part.hessian.total() / total if total > 0 else np.eye(k))
    # H 1 = 0 for many losses, while scores of any sum may be asked for
    e = np.where(e > 1e-6 * e[-1], e, 1.0)
    inverses = inverse(np.stack([_definite(factor * G, penalty) for factor in e]))
    return lambda r: ((inverses @ (r.reshape(-1, k) @ V).T[:, :, None])[:, :, 0].T @ V.T).reshape(-1)


def per_class_preconditioner(part: MultiOutputActiveRows, P: NDArray) -> Solve:
    """The inverse of one matrix per class: exact except for the blocks of two different classes."""
    h, k = part.hessian.diagonal, P.shape[1]
    inverses = inverse(np.stack([_definite(part.gram(h[:, j]), P[:, j]) for j in range(k)]))
    return lambda r: (inverses @ r.reshape(-1, k).T[:, :, None])[:, :, 0].T.reshape(-1)


def exact_feature_solver(part: MultiOutputActiveRows, P: NDArray) -> Solve:
    """The inverse of the matrix itself, of dimension features times classes."""
    q, k = P.shape
    # the mean of |S_i|^2 over the rows, for their active classes S_i, against k^2
    sparse_pairs = float((part.active_classes**2).sum()) < 0.3 * k * k * len(part.active_classes)
    by_pairs = part.X.sparse or sparse_pairs
    M = (_matrix_by_pairs(part, q, k) if by_pairs else _matrix_by_rows(part, q, k)).reshape(k * q, k * q)
    solve = _pseudoinverse(M, P.T.reshape(-1))
    # w has its classes together per feature, the matrix its features together per class
    return lambda r: solve(r.reshape(q, k).T.reshape(-1)).reshape(k, q).T.reshape(-1)


def _pseudoinverse(M: NDArray, penalty: NDArray) -> Solve:
    """A solution for the lower triangle of M, with a penalty on its diagonal; it is overwritten.

    Directions without second derivatives and penalty are left out: a Cholesky factorization of the matrix
    with a unit diagonal takes the largest pivot first, and ends at those that are rounding.
    """
    diagonal = M.reshape(-1)[:: len(M) + 1]
    diagonal += penalty
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    M *= scale
    M *= scale[:, None]
    lapack = scipy_linalg().lapack
    # the transpose of an array in C order is one in Fortran's, whose upper triangle is given
    factor, order, rank, _ = lapack.dpstrf(M.T, lower=0, tol=PIVOT_ROUNDING, overwrite_a=1)
    order, factor = order[:rank] - 1, factor[:rank, :rank]

    def solve(r: NDArray) -> NDArray:
        x = np.zeros_like(r)
        if rank:
            x[order] = lapack.dpotrs(factor, (scale * r)[order], lower=0)[0]
        return scale * x

    return solve


def exact_row_solver(part: MultiOutputActiveRows, P: NDArray) -> Solve:
    """The inverse by Woodbury's formula: each H_i is a sum of a few u u', and P the same for all classes."""
    assert part.hessian.factors is not None
    assert not part.X.sparse
    (rows, U), p, k = part.hessian.factors(), P[:, :1], P.shape[1]
    X = part.X.take(rows)
    if part.linear_map.n_intercepts:
        X = np.column_stack([X, np.ones(len(X))])
    # the matrix is P + V V', with one column x_i (x) u of V per factor u of H_i; the matrix I + V' P^-1 V of
    # Woodbury's formula is I + (X P^-1 X') * (U U'), elementwise
    G = interruptible_matmul(X / p.T, X.T)
    G *= U @ U.T
    diagonal = G.reshape(-1)[:: len(G) + 1]
    diagonal += 1.0
    factor = cholesky(G, diagonal, 1e-14 * float(diagonal.max())) if len(rows) else None

    def solve(r: NDArray) -> NDArray:
        R = r.reshape(-1, k) / p
        if factor is None:
            return R.reshape(-1)
        # P^-1 r - P^-1 V (I + V' P^-1 V)^-1 V' P^-1 r
        u = scipy_linalg().cho_solve(factor, ((X @ R) * U).sum(axis=1), check_finite=False)
        return np.asarray(R - X.T @ (U * u[:, None]) / p).reshape(-1)

    return solve


# ---------------------------------------------------------------- matrices
def _matrix_by_pairs(part: MultiOutputActiveRows, q: int, k: int) -> NDArray:
    """The lower triangle of the matrix, one pair of classes at a time: few rows have both of them active."""
    H, m = np.zeros((k, q, k, q)), part.X.shape[0]
    for a in range(k):
        unit = np.zeros((m, k))
        unit[:, a] = 1.0
        # column a of every H_i, up to the diagonal; block (a, b) of the matrix is X' diag((H_i)_ab) X
        columns = np.asfortranarray(part.hessian.product(unit, slice(None))[:, : a + 1])
        for b in np.flatnonzero(columns.any(axis=0)):
            H[a, :, b] = part.gram(columns[:, b])
    return H


def _matrix_by_rows(part: MultiOutputActiveRows, q: int, k: int) -> NDArray:
    """The lower triangle of the matrix, one block of rows at a time, for all pairs of classes."""
    H, m, size = np.zeros((k, q, k * q)), part.X.shape[0], max(LIMITS.pair_block_entries // (k * q), 16)
    assert not part.X.sparse
    X = part.X.array
    for i in check_each(range(0, m, size)):
        block = slice(i, min(i + size, m))
        rows = X[block]
        if part.linear_map.n_intercepts:
            rows = np.column_stack([rows, np.ones(len(rows))])
        elif part.linear_map.centered:
            rows = rows - part.linear_map.mean
        for a in range(k):
            unit = np.zeros((len(rows), k))
            unit[:, a] = 1.0
            columns = part.hessian.product(unit, block)[:, : a + 1]
            # all blocks (a, b) with b <= a in one product: sum_i x_i ((H_i)_ab x_i')
            H[a, :, : (a + 1) * q] += rows.T @ (columns[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
    return H


def _gram(X: Csr | Dense | DenseFortran, h: NDArray) -> NDArray:
    """X' diag(h) X for h of either sign; rows with h = 0 cost nothing."""
    if X.sparse:
        from riskmin._numba.gram import csr_gram

        out = np.zeros((X.shape[1], X.shape[1]))
        for i, j in gram_row_ranges(X, h):
            csr_gram(X.indptr[i : j + 1], X.indices, X.data, h[i:j], out)
        return out + out.T - np.diag(np.diag(out))
    # copying the rows with h != 0 pays only if they are clearly fewer
    index = np.flatnonzero(h)
    rows, h = (X.take(index), h[index]) if len(index) < 0.7 * len(h) else (X.array, h)
    sign = -1.0 if len(h) and h.max() <= 0 else 1.0
    if sign > 0 and len(h) and h.min() < 0:
        return np.asarray(_long_product((rows * h[:, None]).T, rows))
    # with a square root, both factors are the same array, for which BLAS computes one triangle only; the
    # second derivatives in two different classes are all negative
    scaled = rows * np.sqrt(np.abs(h))[:, None]
    return sign * _long_product(scaled.T, scaled)


def _long_product(A: NDArray, B: NDArray) -> NDArray:
    """A B; if B has very many rows, in blocks, between which the deadline is checked."""
    # with fewer rows per block, a product of thin matrices is slow
    n, step = len(B), max(int(THREADED_CALL_OPERATIONS // (2 * len(A) * B.shape[1])), 256)
    if n <= 4 * step:
        return np.asarray(interruptible_matmul(A, B))
    total = np.zeros((len(A), B.shape[1]))
    for i in check_each(range(0, n, step)):
        total += A[:, i : i + step] @ B[i : i + step]
    return total


def _definite(G: NDArray, penalty: NDArray) -> NDArray:
    """G with a penalty on its diagonal, and a small shift for rounding and for zero entries, in place."""
    diagonal = G.reshape(-1)[:: len(G) + 1]
    diagonal += penalty + 1e-13 * float(diagonal.max()) + DIAGONAL_FLOOR
    return G
