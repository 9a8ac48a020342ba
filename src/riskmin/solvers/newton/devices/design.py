r"""Products with rows of another array library: vectors with one entry per row stay beside X.

The matrix of a Newton step is :math:`\lambda K + Y^\top Y` for the scaled rows :math:`Y = H^{1/2} X` with
nonzero second derivatives. On a GPU, float32 rows are multiplied by tensor cores, in the precision tf32: this
matrix affects directions only, and no sum of a cut depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from riskmin.arrays.devices.gpu import tensor_cores
from riskmin.arrays.namespace import (
    as_array_like,
    as_indices_like,
    cholesky_solver,
    identity_like,
    namespace,
    to_numpy,
)
from riskmin.core import Array, Hessian, NDArray, Shard
from riskmin.core.deadline import check_each
from riskmin.problem import shard_ops
from riskmin.problem.design_operator import DesignOperator
from riskmin.problem.risk import Risk


def design_of(risk: Risk) -> DesignOperator:
    """The design matrix of a risk: rows of NumPy's arrays, remote ones, or those of another library."""
    rows = risk.row_metadata
    return DesignOperator(risk) if rows is None or namespace(rows.y) is np else DeviceDesign(risk)


class DeviceDesign(DesignOperator):
    """The design matrix of rows of another array library; vectors with one entry per column are NumPy's."""

    BLOCK_ENTRIES = 2**27
    """Entries of the scaled rows that are in memory at a time."""
    MAX_SOLVED_ENTRIES = 2**28
    """Entries of the active rows whose system may be solved: they are copied in double precision."""

    dense_speedup = 100.0
    updates_pay = False

    def __init__(self, risk: Risk) -> None:
        super().__init__(risk)
        self.c = self.row_metadata.c
        self.rounded_gram = True

    # ------------------------------------------------------------ products
    def forward(self, d: Array) -> Array:
        """X d."""
        if not d.any():
            return 0.0 * self.c
        parts = self.risk.executor.map(shard_ops.scores, self.risk.linear_map, d)
        return parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts)

    def hessian_product(self, hessian: Hessian, d: Array) -> Array:
        """X' H X d, in one read of X where there is a kernel for it."""
        each = [hessian.diagonal[part] for part in self.shard_slices]
        (image,) = self.risk.executor.sum(shard_ops.hessian_product, self.risk.linear_map, d, each=each)
        for s in hessian.low_rank:
            m = self.adjoint(s)
            image = image - float(m @ d) * m
        return image

    @property
    def linear_map(self) -> Any:
        """The linear map of rows returned by `gather`, which are as they are stored."""
        return self.risk.linear_map

    def gather(self, index: NDArray) -> Array:
        """The rows of an index, beside X, as they are stored."""
        (shard,) = self.risk.executor.map(_itself)
        return namespace(shard.y).take(shard.X.X, as_indices_like(index, shard.y), axis=0)

    # ------------------------------------------------------------ vectors with one entry per row
    def combination(self, a: Array, t: float, b: Array) -> Array:
        """The vector a + t b."""
        return a + t * b

    def inner(self, a: Array, b: Array) -> float:
        """sum_i a_i b_i."""
        return float(a @ b)

    def weighted_square(self, a: Array, b: Array) -> float:
        """sum_i a_i b_i^2."""
        return float(a @ (b * b))

    def total(self, a: Array) -> float:
        """sum_i a_i."""
        return float(a.sum())

    def count_nonzero(self, a: Array) -> int:
        """The number of entries other than 0."""
        return int((a != 0).sum())

    # ------------------------------------------------------------ linear systems
    @property
    def _has_dense_rows(self) -> bool:
        """Whether X is dense, and its columns are at most shifted and scaled."""
        linear_map: Any = self.risk.linear_map
        inner = linear_map.inner if linear_map.standardized else linear_map
        return not self.row_metadata.sparse and inner.is_identity

    def can_form_gram(self, pair_blocks: bool) -> bool:
        """Whether X is dense."""
        return self._has_dense_rows and not pair_blocks

    def can_gather(self, n_rows: int) -> bool:
        """False: rows are not copied to this process."""
        return False

    def can_sample(self, n_rows: int) -> bool:
        """Whether rows can be copied beside X: those of one dense shard."""
        return self._has_dense_rows and len(self.shard_slices) == 1

    def can_solve_rows(self, n_rows: int) -> bool:
        """Whether the system of so many rows can be solved beside X."""
        return self.can_sample(n_rows) and n_rows * self.shape[1] <= self.MAX_SOLVED_ENTRIES

    def gram_diagonal(self, h: Array) -> NDArray | None:
        """The diagonal of X' diag(h) X; None if X is sparse."""
        if not self._has_dense_rows:
            return None
        each = [h[part] for part in self.shard_slices]
        (total,) = self.risk.executor.sum(_square_sums, self.risk.linear_map, each=each)
        return to_numpy(total)

    def _center(self, hessian: Hessian) -> NDArray | None:
        """The weighted mean of the rows, if an intercept is minimized out.

        The low-rank term of H = diag(h) - h h' / sum(h) centers the rows,
        X' H X = sum_i h_i (x_i - m)(x_i - m)': a difference of two matrices would cancel in low precision.
        """
        if not hessian.low_rank:
            return None
        return self.adjoint(hessian.diagonal) / self.total(hessian.diagonal)

    def factorized(self, reg: Any, lam: float, hessian: Hessian) -> Callable[[Array], Array]:
        """A function that solves (lam K + X' H X) d = g for d, by a Cholesky factorization beside X."""
        each, p = [hessian.diagonal[part] for part in self.shard_slices], self.shape[1]
        scaled = self.risk.linear_map, self._center(hessian), self.rounded_gram
        (G,) = self.risk.executor.sum(shard_gram_beside, *scaled, each=each)
        if reg.diagonal:
            penalty = identity_like(G) * as_array_like(lam * reg.terms(np.ones(p)).square + np.zeros(p), G)
        else:
            penalty = as_array_like(lam * np.stack([np.asarray(reg.grad(e)) for e in np.eye(p)]), G)
        # without a factor, the result is a multiple of g: the direction of steepest descent
        return shifted_solver(G + penalty) or (lambda g: g / lam)

    def solve_by_rows(self, reg: Any, lam: float, hessian: Hessian, g: Array) -> Array | None:
        """The direction by Woodbury's formula in the active rows, with the system of the rows beside X.

        For A = lam K + Y'Y and the right-hand side r: d = (lam K)^-1 (r - Y' u), where
        (I + Y (lam K)^-1 Y') u = Y (lam K)^-1 r. None if the system is singular in this precision.
        """
        (shard,) = self.risk.executor.map(_itself)
        rows = self.risk.linear_map, hessian.diagonal, self._center(hessian)
        Y = next(scaled_rows(shard, *rows, False, self.MAX_SOLVED_ENTRIES), None)
        weight = 1 / (lam * reg.terms(g).square + 0.0 * g)
        if Y is None:
            return -1.0 * weight * g
        xp = namespace(Y)
        gram = (Y * as_array_like(weight, Y)) @ xp.matrix_transpose(Y)
        solve = cholesky_solver(gram + identity_like(gram))
        if solve is None:
            return None
        d, residual = 0.0 * g, -1.0 * g
        for _ in range(2):  # the second pass is iterative refinement
            u = solve(to_numpy(Y @ as_array_like(weight * residual, Y)))
            d = d + weight * (residual - to_numpy(as_array_like(u, Y) @ Y))
            image = to_numpy((Y @ as_array_like(d, Y)) @ Y)
            residual = -1.0 * g - lam * reg.grad(d) - image
        return d


# ---------------------------------------------------------------- on a shard
def _itself(shard: Shard) -> Shard:
    return shard


def scaled_rows(
    shard: Shard, linear_map: Any, h: Array, center: NDArray | None, rounded: bool, max_entries: int
) -> Iterator[Array]:
    """Yield the rows (x_i - center) h_i^1/2 with h_i > 0, in blocks, in double precision or in that of X.

    With `rounded`, the rows are in float32 at most, as tensor cores take them.
    """
    matrix: Any = shard.X
    X = matrix.X
    xp = namespace(X)
    kind = xp.float64 if not rounded or X.dtype == xp.float64 else xp.float32
    (active,) = xp.nonzero(h)
    step = max(max_entries // X.shape[1], 1)
    # shifted and scaled columns: (x - m) s - center = (x - m - center / s) s
    shift: Any = 0.0
    scale = None
    if linear_map.standardized:
        shift, scale = linear_map.shift, linear_map.scale
    if center is not None:
        shift = shift + (center if scale is None else center / scale)
    for i in check_each(range(0, len(active), step)):
        index = active[i : i + step]
        rows = xp.astype(xp.take(X, index, axis=0), kind)
        if center is not None or scale is not None:
            rows -= xp.astype(as_array_like(shift, h), kind)
        if scale is not None:
            rows *= xp.astype(as_array_like(scale, h), kind)
        rows *= xp.astype(xp.sqrt(xp.take(h, index)), kind)[:, None]
        yield rows


def shard_gram_beside(
    shard: Shard, linear_map: Any, center: NDArray | None, rounded: bool, h: Array
) -> tuple[Array]:
    """X' diag(h) X of a shard, of rows less the center, beside X in double precision."""
    xp, p, total = namespace(h), shard.X.shape[1], None
    with tensor_cores(h):
        for Y in scaled_rows(shard, linear_map, h, center, rounded, DeviceDesign.BLOCK_ENTRIES):
            part = xp.astype(xp.matrix_transpose(Y) @ Y, xp.float64)
            total = part if total is None else total + part
    return (as_array_like(np.zeros((p, p)), h) if total is None else total,)


def _square_sums(shard: Shard, linear_map: Any, h: Array) -> tuple[Array]:
    """The diagonal of X' diag(h) X, of one shard."""
    blocks = scaled_rows(shard, linear_map, h, None, False, DeviceDesign.BLOCK_ENTRIES)
    total = as_array_like(np.zeros(shard.X.shape[1]), h)
    for Y in blocks:
        total = total + namespace(Y).sum(Y * Y, axis=0)
    return (total,)


# ---------------------------------------------------------------- factorizations beside X
def shifted_solver(G: Array) -> Callable[[NDArray], NDArray] | None:
    """A function that solves G x = b, for a matrix that rounding may have made indefinite; None if none does.

    Where the factorization fails, 1e-14 of the largest entry is added to the diagonal, and ten times as much
    the next time.
    """
    if (solve := cholesky_solver(G)) is not None:
        return solve
    shift = 1e-14 * float(namespace(G).max(G))
    while 0 < shift < np.inf:
        G = G + shift * identity_like(G)
        if (solve := cholesky_solver(G)) is not None:
            return solve
        shift *= 10
    return None
