r"""Products with rows of another array library: vectors with one entry per row stay beside X.

The matrix of a Newton step is :math:`P + Y^\top Y` for the scaled rows :math:`Y = H^{1/2} X` with
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
from riskmin.numerics.linear_systems import Solve
from riskmin.problem import shard_ops
from riskmin.problem.design_operator import DesignOperator
from riskmin.problem.risk import Risk
from riskmin.solvers.newton.columns_and_ones import ColumnsAndOnes
from riskmin.solvers.newton.penalty import Penalty


class DeviceDesign(DesignOperator):
    """The design matrix of rows of another array library; vectors with one entry per column are NumPy's."""

    BLOCK_ENTRIES = 2**27
    """Entries of the scaled rows that are in memory at a time."""
    MAX_SOLVED_ENTRIES = 2**28
    """Entries of the active rows whose system may be solved: they are copied in double precision."""

    updates_pay = False

    def __init__(self, risk: Risk) -> None:
        super().__init__(risk)
        self.c = self.row_metadata.c

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


class DeviceColumns(ColumnsAndOnes):
    """X with a column of ones beside another library's arrays, and the factorizations there.

    Rows are centered by their mean m with the weights h, which eliminates the intercept: the matrix of the
    weights is sum_i h_i (x_i - m)(x_i - m)'. A difference of two matrices would cancel in low precision.
    """

    MATRIX_COST = 0.1
    """A multiplication in products of matrices, on tensor cores."""
    MAX_CURVATURE_RATIO = 2.0
    """A matrix of low precision is rejected if a second derivative is off by this factor."""

    def __init__(self, design: DeviceDesign, intercept: bool) -> None:
        super().__init__(design, intercept, design.row_metadata.sparse, design.nnz)
        self.rounded = True

    def _mean(self, h: Array) -> tuple[NDArray | None, float]:
        """The weighted mean of the rows, if there is an intercept, and the sum of the weights."""
        total = float(h.sum())
        return (np.asarray(self.operator.adjoint(h)) / total if self.intercept and total > 0 else None), total

    def factorized(self, h: Any, P: Penalty) -> Solve:
        """A function that solves (P + X' H X) v = g, by a Cholesky factorization beside X."""
        operator, (mean, total) = self.operator, self._mean(h)
        each, scaled = (
            [h[part] for part in operator.shard_slices],
            (operator.risk.linear_map, mean, self.rounded),
        )
        (G,) = operator.risk.executor.sum(shard_gram_beside, *scaled, each=each)
        solve = shifted_solver(G + as_array_like(P.matrix, G))
        return self._bordered(solve or P.solve, mean, total)

    def solve_rows(self, h: Any, P: Any, g: NDArray) -> NDArray | None:
        """The step by Woodbury's formula in the active rows, with the system of the rows beside X.

        For A = P + Y'Y and the right-hand side r: d = P^-1 (r - Y' u), where (I + Y P^-1 Y') u = Y P^-1 r.
        None if the system is singular in this precision.
        """
        (shard,), (mean, total) = self.operator.risk.executor.map(_itself), self._mean(h)
        rows = self.operator.risk.linear_map, h, mean
        Y = next(scaled_rows(shard, *rows, False, DeviceDesign.MAX_SOLVED_ENTRIES))
        xp, weight = namespace(Y), 1 / P.diagonal[: self.p]
        gram = (Y * as_array_like(weight, Y)) @ xp.matrix_transpose(Y)
        inverse = cholesky_solver(gram + identity_like(gram))
        if inverse is None:
            return None

        def solve(r: NDArray) -> NDArray:
            d, residual = 0.0 * r, r
            for _ in range(2):  # the second pass is iterative refinement
                u = inverse(to_numpy(Y @ as_array_like(weight * residual, Y)))
                d = d + weight * (residual - to_numpy(as_array_like(u, Y) @ Y))
                residual = r - P.product(d) - to_numpy((Y @ as_array_like(d, Y)) @ Y)
            return d

        return self._bordered(solve, mean, total)(-g)

    def _bordered(self, solve: Solve, mean: NDArray | None, total: float) -> Solve:
        """The solution with the intercept, from that of the system without it."""
        if mean is None:
            return solve if not self.intercept else lambda r: np.append(solve(r[:-1]), 0.0)

        def bordered(r: NDArray) -> NDArray:
            d = solve(r[:-1] - r[-1] * mean)
            return np.append(d, r[-1] / total - float(mean @ d))

        return bordered

    def rejects(self, h: Any, v: NDArray, dz: Array, P: Penalty, decrease: float) -> bool:
        """Whether v' (P + X' H X) v is not -g' v, as the matrix was too inaccurate: later ones are exact."""
        curvature = float(P.product(v) @ v) + float((h * dz) @ dz)
        ratio = self.MAX_CURVATURE_RATIO
        rejected = self.rounded and not curvature <= ratio * decrease <= ratio**2 * curvature
        self.rounded = self.rounded and not rejected
        return rejected


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
