r"""The linear system of a Newton step, :math:`(\lambda K + X^\top H X)\, d = -g`.

Solved by a Cholesky factorization of the p x p matrix, by Woodbury's formula in the active rows (those with
nonzero second derivatives), or by conjugate gradients, whichever is expected to cost the least.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.compressed import Csr
from riskmin.arrays.dense import Dense, DenseFortran
from riskmin.core import Array, Hessian, NDArray, PairBlock
from riskmin.core.blas_threads import cholesky, scipy_linalg
from riskmin.core.deadline import check_each, chunk_ranges, interruptible_call, interruptible_matmul
from riskmin.losses.hessian import hessian_product, transposed_ranges
from riskmin.numerics.sorting import prefix_sums
from riskmin.problem.design_operator import DesignOperator, row_blocks, row_matrix
from riskmin.regularizers import L2
from riskmin.solvers.newton.active_rows import ActiveRows


class LinearSystem(ABC):
    """The linear system of Newton's steps for one problem, a strategy that may remember earlier steps."""

    GATHER_BELOW_ONE_ROW_IN = 3
    """Active rows are copied out of X for conjugate gradients if they are fewer than one in this many."""
    MAX_CG_STEPS = 1500
    """Steps of conjugate gradients after which a direction is used as it is."""
    tries_unit_step = False
    """Whether the step t = 1 is tried before a line search: the Hessian changes slowly."""
    steps: float
    """Expected steps of conjugate gradients, or another estimate of the cost, for states."""

    @abstractmethod
    def residual_tolerance(self, g: Array, scaled_gap: float) -> float:
        """The residual norm that conjugate gradients may leave; `scaled_gap` is lam times complementarity."""

    @abstractmethod
    def solve(self, hessian: Any, lam: float, g: Array, tol: float) -> Array:
        """The direction d, up to a residual of norm `tol`."""

    def check_direction(self, hessian: Any, dz: NDArray, t: float) -> None:
        """Compare a matrix that is not the current one with the Hessian along dz = X d, after a step t."""
        return

    def discard(self) -> bool:
        """Drop the matrix after a direction without descent; return whether the next one will be better."""
        return False

    def to_state(self) -> dict[str, Any]:
        """The numbers (and the array "kept") to continue from."""
        return {"cg_steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `to_state` returned."""
        self.steps = state["cg_steps"]


class NewtonSystem(LinearSystem):
    """The linear system of one problem, (lam K + X' H X) d = -g, for a sequence of H and lam.

    There are three methods. Conjugate gradients make two passes over X per step, and are used if few steps
    suffice. Otherwise the p x p matrix is factorized, or that of the active rows if this costs less, unless
    both dimensions exceed `direct`.
    """

    MAX_CURVATURE_RATIO = 2.0
    """A matrix of low precision is rejected if a second derivative is off by this factor."""
    FALLBACK_CG_RESIDUAL = 0.01
    """Residual, as a share of |g|, of conjugate gradients that replace a singular direct solve."""
    MIN_RELATIVE_PENALTY = 1e-12
    """The smallest penalty of a coordinate, as a share of the sum of the second derivatives."""

    def __init__(self, design: DesignOperator, reg: Any, direct: int, steps: float = 0.0) -> None:
        self.design, self.given_reg, self.reg, self.direct = design, reg, reg, direct
        self.expected: tuple[Array, float, float] | None = None
        """The last direction d of a matrix of low precision, lam, and -g'd, which is d' A d."""
        self.steps = steps
        """Expected steps of conjugate gradients: those of the last solve, or more if that failed."""
        self.free: FreeColumns | None = None
        """The columns that are eliminated before conjugate gradients; None before the first of them."""

    def residual_tolerance(self, g: Array, scaled_gap: float) -> float:
        """The residual norm at which conjugate gradients may stop; `scaled_gap` is lam times complementarity.

        With L2 a residual r adds |r|^2 / (2 lam) to the duality gap, which should stay well below the
        complementarity.
        """
        norm = math.sqrt(float(g @ g))
        # the first term falls with |g|^2 near the end, for superlinear convergence; the second adds 4.5 % of
        # the complementarity to the gap
        return max(0.05 * norm * min(1.0, 10 * norm), 0.3 * math.sqrt(scaled_gap))

    def solve(self, hessian: Hessian, lam: float, g: Array, tol: float) -> Array:
        """The direction d; conjugate gradients solve for it up to a residual of norm `tol`."""
        if isinstance(self.given_reg, L2):
            # penalties that vanish in rounding beside X' H X are raised to MIN_RELATIVE_PENALTY of it
            square = self.given_reg.terms(g).square
            floor = self.MIN_RELATIVE_PENALTY * self.design.total(hessian.diagonal) / lam
            self.reg = L2(np.maximum(square + 0.0 * g, floor)) if np.min(square) < floor else self.given_reg
        cost, direct_solve = self._cheapest_direct(hessian)
        # all costs are in steps of conjugate gradients
        if direct_solve is not None and (cost < 4 or self.steps >= cost):
            self.steps *= 0.8  # so that conjugate gradients are tried again some time
            return direct_solve(hessian, lam, g)
        # conjugate gradients get no more steps than a direct solve would cost
        max_steps = int(min(self.MAX_CG_STEPS, cost))
        d, n_steps = self._conjugate_gradients(hessian, lam, g, tol, max_steps)
        # a run that reached its limit counts as four times as long, so that it is not repeated soon
        self.steps = n_steps if n_steps < max_steps else 4.0 * max_steps
        return d if n_steps < max_steps or direct_solve is None else direct_solve(hessian, lam, g)

    def _conjugate_gradients(
        self, hessian: Hessian, lam: float, g: Array, tol: float, max_steps: int
    ) -> tuple[Array, int]:
        """Solve by conjugate gradients; on a copy of the active rows if they are few.

        Columns of large units are nearly unpenalized: they are eliminated, where they are few.
        """
        # a factorization by features needs no such care
        eliminates = not (hessian.pair_blocks or self._can_solve_by_features(hessian))
        if eliminates and isinstance(self.given_reg, L2):
            self.free = self.free or FreeColumns(self.design, self.given_reg)
            if len(self.free.index):
                return self.free.solve(hessian, lam, g, tol, max_steps)
        n_active = self.design.count_nonzero(hessian.diagonal)
        worthwhile = self.GATHER_BELOW_ONE_ROW_IN * n_active < len(hessian.diagonal)
        copied = worthwhile and self.design.can_gather(n_active)
        # ActiveRows needs a diagonal K and H = D^1/2 P D^1/2 with a projection P
        if copied and self.reg.diagonal and not hessian.pair_blocks and _projects(hessian):
            active = np.flatnonzero(hessian.diagonal)
            square = self.reg.terms(g).square + 0.0 * g
            return ActiveRows(self.design.gather(active), hessian, square).solve(lam, g, tol, max_steps)
        return conjugate_gradients(lambda d: self._product(hessian, lam, d), -g, tol, max_steps)

    def _cheapest_direct(
        self, hessian: Hessian
    ) -> tuple[float, Callable[[Hessian, float, Array], Array] | None]:
        """The cheaper direct method, and its cost in steps of conjugate gradients."""
        n, p = self.design.shape
        m, nnz = self.design.count_nonzero(hessian.diagonal), self.design.nnz
        nnz_per_row = nnz / n
        # operations: m^2 products of rows and an LU factorization, or a p x p Gram matrix and Cholesky
        speedup = self.design.dense_speedup
        rows = m * m * (0.7 * m / speedup + nnz_per_row)
        gram = 0.5 * m * nnz_per_row * nnz_per_row / (speedup if nnz_per_row == p else 1.0)
        features = p**3 / (3 * speedup) + gram
        # ties are decided in favor of the rows
        best, method = min(
            (rows if self._can_solve_by_rows(m) else math.inf, 0),
            (features if self._can_solve_by_features(hessian) else math.inf, 1),
        )
        if best == math.inf:
            return best, None
        # a step of conjugate gradients makes two passes over X, of two operations per stored entry each
        return best / (4 * nnz), (self._solve_by_rows, self._solve_by_features)[method]

    def _can_solve_by_rows(self, n_rows: int) -> bool:
        return n_rows <= self.direct and self.reg.diagonal and self.design.can_solve_rows(n_rows)

    def _can_solve_by_features(self, hessian: Hessian) -> bool:
        return self.design.shape[1] <= self.direct and self.design.can_form_gram(bool(hessian.pair_blocks))

    def _solve_by_rows(self, hessian: Hessian, lam: float, g: Array) -> Array:
        """Solve by Woodbury's formula, in the active rows S.

        For the right-hand side r and G = X_S (lam K)^-1 X_S', the unknown u = H X_S d solves
        (I + H G) u = H X_S (lam K)^-1 r, and d = (lam K)^-1 (r - X_S' u).
        """
        d = self.design.solve_by_rows(self.reg, lam, hessian, g)
        if d is not None:
            return d
        if not self.design.can_gather(self.design.count_nonzero(hessian.diagonal)):
            return self._without_rows(hessian, lam, g)
        lapack = scipy_linalg().lapack
        active = np.flatnonzero(hessian.diagonal)
        # (lam K)^-1, one entry per column
        weight = 1 / (lam * self.reg.terms(g).square + 0.0 * g)
        if not len(active):
            return -1.0 * weight * g
        part: Any = self.design.gather(active).astype(np.float64, copy=False)
        dense, H = not sp.issparse(part), restrict_hessian(hessian, active)
        scaled = part * weight if dense else part @ sp.diags_array(weight)
        gram = interruptible_matmul(scaled, part.T) if dense else (scaled @ part.T).toarray()
        # I + H G is not symmetric, hence LU instead of Cholesky; it takes 2/3 m^3 operations
        M, work = np.eye(len(active)) + hessian_product(H, gram), 2 / 3 * len(active) ** 3
        factor, pivots, singular = interruptible_call(work, partial(lapack.dgetrf, overwrite_a=True), M)
        if singular:  # the entries of H G are so large that the identity is lost in rounding
            return self._without_rows(hessian, lam, g)
        d, residual = 0.0 * g, -1.0 * g
        for _ in range(2):  # the second pass is iterative refinement
            u, _ = lapack.dgetrs(factor, pivots, hessian_product(H, scaled @ residual))
            d = d + weight * residual - weight * (part.T @ u)
            residual = -1.0 * g - self._product(hessian, lam, d)
        return d

    def _without_rows(self, hessian: Hessian, lam: float, g: Array) -> Array:
        """The direction if the system of the rows is singular."""
        if self._can_solve_by_features(hessian):
            return self._solve_by_features(hessian, lam, g)
        tol = self.FALLBACK_CG_RESIDUAL * float(g @ g) ** 0.5
        return conjugate_gradients(
            lambda d: self._product(hessian, lam, d), -1.0 * g, tol, self.MAX_CG_STEPS
        )[0]

    def _product(self, hessian: Hessian, lam: float, d: Array) -> Array:
        """(lam K + X' H X) d."""
        return lam * self.reg.grad(d) + self.design.hessian_product(hessian, d)

    def _solve_by_features(self, hessian: Hessian, lam: float, g: Array) -> Array:
        """Solve by a Cholesky factorization of the p x p matrix."""
        d = -1.0 * factorized(self.design, self.reg, lam, hessian)(g)
        self.expected = (d, lam, -float(g @ d)) if self.design.rounded_gram else None
        return d

    def check_direction(self, hessian: Hessian, dz: NDArray, t: float) -> None:
        """Use double precision from now on, if d' A d is not -g'd: the matrix was too inaccurate for d.

        The minimum of the quadratic model along d is at -g'd / d'Ad: steps t of about 1 need no check.
        """
        ratio = self.MAX_CURVATURE_RATIO
        if self.expected is None or 1 / ratio <= t <= ratio:
            return
        (d, lam, expected), self.expected = self.expected, None
        low_rank = sum(self.design.inner(s, dz) ** 2 for s in hessian.low_rank)
        # the penalty is a square: lam d' K d is twice its value
        curvature = self.design.weighted_square(hessian.diagonal, dz) - low_rank + 2 * lam * self.reg.value(d)
        if not (curvature <= ratio * expected and expected <= ratio * curvature):
            self.design.rounded_gram = False

    def discard(self) -> bool:
        """Use double precision from now on; whether the matrix had less."""
        rounded, self.design.rounded_gram = self.design.rounded_gram, False
        return rounded


def factorized(design: DesignOperator, reg: Any, lam: float, hessian: Hessian) -> Callable[[Array], Array]:
    """A function that solves (lam K + X' H X) d = g for d, by a Cholesky factorization."""
    if (solve := design.factorized(reg, lam, hessian)) is not None:
        return solve
    G = design.gram(hessian.diagonal)
    p = len(G)
    shift = 1e-14 * float(np.diagonal(G).max())  # the rounding error of sums that cancel
    G = subtract_low_rank_and_pairs(G, design, hessian)
    diagonal = G.reshape(-1)[:: p + 1]
    if reg.diagonal:
        diagonal += lam * reg.terms(np.ones(p)).square
    else:
        # the gradient of w' K w / 2 is linear: at the unit vectors, it gives the rows of K
        G += lam * np.stack([np.asarray(reg.grad(e)) for e in np.eye(p)])
    # the upper triangle of G is the lower one of its transpose, which is in LAPACK's order
    factor = cholesky(G.T, diagonal, shift)
    # without a factor, the result is a multiple of g: the direction of steepest descent
    if factor is None:
        return lambda g: g / lam
    return lambda g: np.asarray(scipy_linalg().cho_solve(factor, g, check_finite=False))


class FreeColumns:
    """Few columns whose penalties are far below those of the others, eliminated from Newton's system.

    A residual r_j in such a column lowers the certified bound by r_j^2 / (2 lam K_jj), and conjugate
    gradients take many steps to find the weights of a few columns of large curvature. For these columns F
    and the others S of A = lam K + X' H X,
    (A_SS - A_SF A_FF^-1 A_FS) d_S = -g_S + A_SF A_FF^-1 g_F is a system with the penalties of S and the
    Hessian H - H X_F A_FF^-1 X_F' H, and leaves no residual in F.
    """

    MAX_PENALTY_RATIO = 1e-3
    """Penalties below this share of the median are those of free columns."""
    MAX_COLUMNS, MAX_ENTRIES = 64, 2**24
    """So many of them, those of the smallest penalties, are eliminated, and at most so many entries."""

    def __init__(self, design: DesignOperator, reg: Any) -> None:
        n, p = design.shape
        self.design, self.square = design, reg.terms(np.ones(p)).square + np.zeros(p)
        order = np.argsort(self.square, kind="stable")[: min(self.MAX_COLUMNS, self.MAX_ENTRIES // n)]
        self.index = order[self.square[order] < self.MAX_PENALTY_RATIO * float(np.median(self.square))]
        units = np.zeros((len(self.index), p))
        units[np.arange(len(self.index)), self.index] = 1.0
        self.X = np.array([design.forward(unit) for unit in units]).T
        """The free columns, which are read once."""

    def solve(self, hessian: Hessian, lam: float, g: Array, tol: float, max_steps: int) -> tuple[Array, int]:
        """The direction d, whose residual r has r' K^-1 r <= tol^2, and the number of steps."""
        linalg, penalty = scipy_linalg(), lam * self.square
        HX = hessian_product(hessian, self.X)
        A = self.X.T @ HX
        diagonal = A.reshape(-1)[:: len(A) + 1]
        shift = 1e-14 * float(diagonal.max())
        diagonal += penalty[self.index]
        factor = cholesky(A.T, diagonal, shift)
        if factor is None:
            return -g / penalty, max_steps
        solved: Callable[[NDArray], NDArray] = partial(linalg.cho_solve, factor, check_finite=False)
        # H X_F A_FF^-1 X_F' H = S S' for S = H X_F L^-T
        low_rank = linalg.solve_triangular(np.tril(factor[0]), HX.T, lower=True, check_finite=False)
        reduced = hessian._replace(low_rank=(*hessian.low_rank, *low_rank))

        def others(v: NDArray) -> NDArray:
            v[self.index] = 0.0
            return v

        rhs = others(self.design.adjoint(HX @ solved(g[self.index])) - g)
        curvature = self.design.gram_diagonal(hessian.diagonal)
        d, n_steps = conjugate_gradients(
            lambda d: others(penalty * d + self.design.hessian_product(reduced, d)),
            rhs, tol, max_steps, None if curvature is None else curvature + penalty, 1 / self.square,
        )  # fmt: skip
        d[self.index] = -solved(g[self.index] + HX.T @ self.design.forward(d))
        return d, n_steps


class RowGram:
    """The products X K^-1 X' of dense rows with each other, for systems with fewer rows than columns.

    For H = D^1/2 P D^1/2 with a projection P, and C = P D^1/2 X, Woodbury's formula is
    (lam K + C' C)^-1 g = (lam K)^-1 (g - C' (lam + C K^-1 C')^-1 C K^-1 g).
    """

    def __init__(self, design: DesignOperator, reg: Any) -> None:
        self.X = design.dense_rows()
        self.inverse = 1 / (reg.terms(np.ones(design.shape[1])).square + np.zeros(design.shape[1]))
        scaled = self.X if (self.inverse == 1).all() else self.X * np.sqrt(self.inverse)
        self.products = interruptible_matmul(scaled, scaled.T)

    def factorized(self, lam: float, hessian: Hessian) -> Callable[[Array], Array]:
        """A function that solves (lam K + X' H X) d = g for d."""
        root, q = np.sqrt(hessian.diagonal), np.zeros(len(self.X))
        if hessian.low_rank:  # the vector s = h / (1'h)^1/2 of an intercept: q = D^-1/2 s is a unit vector
            q = root / math.sqrt(float(hessian.diagonal.sum()))
        M = root[:, None] * self.products * root
        # P M P for P = I - q q'
        Mq = M @ q
        M = M - np.outer(q, Mq) - np.outer(Mq - float(q @ Mq) * q, q)
        diagonal = M.reshape(-1)[:: len(M) + 1]
        shift = 1e-14 * float(diagonal.max())
        diagonal += lam
        factor = cholesky(M.T, diagonal, shift)
        if factor is None:
            return lambda g: g / lam

        def solve(g: Array) -> Array:
            v = self.inverse * g
            u = root * (self.X @ v)
            u = scipy_linalg().cho_solve(factor, u - float(q @ u) * q, check_finite=False)
            return (v - self.inverse * ((root * (u - float(q @ u) * q)) @ self.X)) / lam

        return solve


def _projects(hessian: Hessian) -> bool:
    """Whether H = D^1/2 P D^1/2 for a diagonal D and P = I - q q' with |q| = 1, or P = I."""
    if len(hessian.low_rank) != 1:
        return not hessian.low_rank
    (s,), h = hessian.low_rank, hessian.diagonal
    positive = h > 0
    # |q|^2 = s' D^-1 s for q = D^-1/2 s
    unit = abs(float(s[positive] @ (s[positive] / h[positive])) - 1) < 1e-9
    return bool(unit and not s[~positive].any())


def subtract_low_rank_and_pairs(G: NDArray, design: DesignOperator, hessian: Hessian) -> NDArray:
    """X' H X from G = X' diag(h) X."""
    # H = diag(h) - sum_s s s' - pair blocks and their transposes; X' s s' X = m m' with m = X' s
    for s in hessian.low_rank:
        m = design.adjoint(s)
        G -= np.outer(m, m)
    for block in hessian.pair_blocks:
        assert design.rows is not None  # else can_form_gram has refused
        triangle = _pair_block_gram(row_matrix(design.rows), _shorter_list_first(block))
        G -= triangle + triangle.T
    return G


def _shorter_list_first(block: PairBlock) -> PairBlock:
    """The same pair block with the shorter list first: each of its rows takes a vector of p entries."""
    if len(block.above) <= len(block.below):
        return block
    first, last = transposed_ranges(block)
    return PairBlock(block.below, block.q, block.above, block.p, first, last)


def _pair_block_gram(X: Csr | Dense | DenseFortran, block: PairBlock) -> NDArray:
    """X' W X, for W one of the two triangles of a symmetric pair block."""
    from riskmin._numba.gram import csr_pair_block_gram, dense_window_sums

    p = X.shape[1]
    out, sums, ends = np.zeros((p, p)), np.zeros(p), np.zeros(2, np.int64)
    if X.sparse:
        # in chunks of rows above, between which the deadline is checked
        above, weights, below, q, first, last = block
        for i, j in chunk_ranges(0, len(above), len(above) * (len(X.data) / X.shape[0]) * p):
            rows = above[i:j], weights[i:j], below, q, first[i:j], last[i:j]
            csr_pair_block_gram(X.indptr, X.indices, X.data, *rows, ends, sums, out)
        return out
    dense = X.array
    for index in row_blocks(np.flatnonzero(block.last > block.first), p):
        # one row of sums of q_j x_j over the range [first, last) of each row above
        range_sums = np.empty((len(index), p))
        dense_window_sums(
            dense, block.below, block.q, block.first[index], block.last[index], ends, sums, range_sums
        )
        out += (X.take(block.above[index]) * block.p[index, None]).T @ range_sums
    return out


def restrict_hessian(hessian: Hessian, active: NDArray) -> Hessian:
    """The Hessian of the active rows alone, in their order; it must be zero in all other rows."""
    # the position of each row among the active ones, -1 for all others
    position = np.full(len(hessian.diagonal), -1)
    position[active] = np.arange(len(active))
    pair_blocks = []
    for above, p, below, q, first, last in hessian.pair_blocks:
        active_above, active_below = position[above] >= 0, position[below] >= 0
        # the number of active rows below before each position: ranges [first, last) in the shorter list
        before = prefix_sums(active_below.astype(np.int64))
        rows, others = position[above[active_above]], position[below[active_below]]
        new_first, new_last = before[first[active_above]], before[last[active_above]]
        pair_blocks.append(PairBlock(rows, p[active_above], others, q[active_below], new_first, new_last))
    return Hessian(hessian.diagonal[active], tuple(s[active] for s in hessian.low_rank), tuple(pair_blocks))


def conjugate_gradients(
    product: Callable[[Array], Array],
    g: Array,
    tol: float,
    max_steps: int,
    diagonal: Array | None = None,
    weight: Any = 1.0,
) -> tuple[Array, int]:
    """The solution d of A d = g up to a residual r with sum_j weight_j r_j^2 <= tol^2, and the steps.

    `diagonal` is that of A, as a preconditioner. After any number of steps, d'g > 0: for g the negative
    gradient, d is a descent direction.
    """
    d, r = 0.0 * g, g
    s = r if diagonal is None else r / diagonal
    direction, rho = s, float(r @ s)  # rho = r' M^-1 r
    for n_steps in check_each(range(max_steps)):
        if float(r @ (weight * r)) <= tol * tol:
            return d, n_steps
        image = product(direction)
        # the minimizer of d' A d / 2 - g'd along the direction; r = g - A d is updated, not recomputed
        step = rho / float(direction @ image)
        d, r = d + step * direction, r - step * image
        s = r if diagonal is None else r / diagonal
        rho, last_rho = float(r @ s), rho
        # the next direction is A-conjugate to all earlier ones
        direction = s + (rho / last_rho) * direction
    return d, max_steps
