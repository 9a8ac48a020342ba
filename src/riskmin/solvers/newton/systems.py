r"""Newton's linear system :math:`(P + X^\top H X)\, v = -g` in the weights and the intercept.

P is lam K, and 0 for the intercept; H is the diagonal matrix of second derivatives h of the rows, or that of
a loss of pairs. There are three ways to solve it: factorize the matrix of the columns, factorize that of the
rows with h > 0 if P and H are diagonal, or run conjugate gradients, preconditioned by the last factorization,
by the diagonal or by P, for at most as many steps as a factorization costs. `NewtonSystem` takes the way of
the least counted cost.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.namespace import to_numpy
from riskmin.core import Array, Hessian, NDArray
from riskmin.losses.hessian import hessian_product
from riskmin.numerics.linear_systems import CgState, Solve, cg, row_products, rows_system
from riskmin.solvers.newton.columns_and_ones import ColumnsAndOnes, Curvature, diagonal_of
from riskmin.solvers.newton.penalty import Penalty

SPARSE_COST, PASS_COST = 8.0, 4.0
"""Costs of a multiplication in sparse loops and in dense products with a vector; in those of matrices, 1."""
CALLS_COST = 1e5
"""The cost of the calls of a step of conjugate gradients."""
PAIR_COST, SCALE_COST = 6.0, 24.0
"""Costs of a pair of entries of a sparse row in X' H X, and of scaling an entry of a dense X for it."""


class Step(NamedTuple):
    """A direction v with the residual r = (P + X' H X) v + g."""

    v: NDArray
    residual: float = 0.0
    """r' P^-1 r / 2, by which r lowers the bound of the predicted multipliers; 0 if factorized."""
    left: float = 0.0
    """r' M^-1 r / 2 for the preconditioner M: about what is left to gain in the quadratic model."""


class NewtonSystem:
    """The systems of one run: it chooses how to solve each, and keeps the last factorization.

    Parameters
    ----------
    X : ColumnsAndOnes
    penalty : Penalty
    keeps : bool
        Whether second derivatives change little from step to step; those of smoothed losses jump.
    max_dimension : int
        The largest dimension of a factorized matrix.
    """

    MIN_CG_STEPS = 12
    """Conjugate gradients are tried if a factorization costs as many steps of them."""
    FORCING, SMOOTHED_FORCING = 0.1, 0.01
    """Conjugate gradients end at this share of the gradient; pieces of a smoothed loss need exact steps."""
    COPIED_SHARE = 0.5
    """Sparse rows with h > 0 are copied if they are fewer than this share of all rows."""
    ROWS_GAIN = 4.0
    """A system of the rows must cost this much less than one of the columns, which needs no copy of rows."""
    MIN_RELATIVE_PENALTY = 1e-16
    """The smallest penalty of a column in a system, as a share of the sum of the second derivatives."""
    MAX_ERROR = 1e-3
    """The largest relative error of a system of the rows; beyond it, later ones are by columns."""
    FIRST_SKIP = 2
    """Systems that are factorized at once after conjugate gradients were too slow; then twice as many, ..."""

    def __init__(self, X: ColumnsAndOnes, penalty: Penalty, keeps: bool, max_dimension: int) -> None:
        self.X, self.P, self.keeps, self.max_dimension = X, penalty, keeps, max_dimension
        self.raised = penalty
        """The penalty of the last system."""
        self.kept: Solve | None = None
        self.kept_h: Array | None = None
        """The second derivatives of the kept factorization."""
        self.before = math.inf
        """g' M^-1 g of the last system, where its step was about one of the kept factorization M."""
        self.skip, self.next_skip, self.inexact_rows = 0, self.FIRST_SKIP, False
        lengths = X.nnz / X.n
        self.pair_cost = (
            PAIR_COST * lengths**2 if X.sparse else X.MATRIX_COST * 0.5 * X.p**2 + SCALE_COST * X.p
        )
        self.pass_cost = X.nnz * (SPARSE_COST if X.sparse else PASS_COST)
        self._row_gram: NDArray | None = None

    def solve(self, h: Curvature, g: NDArray, residual: float, last: float) -> Step:
        """The step for second derivatives h and the gradient g.

        A proof allows the `residual`; conjugate gradients go on to it, unless the step gains more than
        `last` times as much, so that another one follows anyway.
        """
        X, diagonal = self.X, diagonal_of(h)
        m = X.operator.count_nonzero(diagonal)
        if not m:  # a linear piece: the penalty alone
            return Step(-self.P.solve(g))
        # penalties that vanish in rounding beside X' H X are raised to a share of it
        P = self.raised = self.P.raised(self.MIN_RELATIVE_PENALTY * float(diagonal.sum()))
        if (step := self._kept_step(g)) is not None:
            return step
        rows, columns, by_rows = self._costs(m, h)
        possible = by_rows or (X.size <= self.max_dimension and X.can_form_gram(h))
        reads = m / X.n + (m / X.n if X.sparse else 1.0)  # dense loops skip rows with h = 0 in X' alone
        step_cost = CALLS_COST + reads * self.pass_cost + (PASS_COST * X.size**2 if self.kept else 0.0)
        limit = (rows if by_rows else columns) / step_cost if possible else math.inf
        pairs = isinstance(h, Hessian) and bool(h.pair_blocks)
        copied = by_rows or (X.sparse and m < self.COPIED_SHARE * X.n and not pairs)
        index = np.flatnonzero(diagonal) if copied and X.operator.can_gather(m) else None
        part, h_part = (X, h) if index is None else (X.gathered(index), _of_rows(h, index))
        forcing = self.FORCING if self.keeps else self.SMOOTHED_FORCING
        if limit >= self.MIN_CG_STEPS and not (self.skip and possible):
            found, done = conjugate_gradients(part, h_part, P, g, self.kept, residual, limit, forcing, last)
            if done or not possible:
                self.before, self.next_skip = 0.0, self.FIRST_SKIP
                return found
            if self.kept is not None or by_rows or not self.keeps:  # else a better preconditioner comes
                self.skip, self.next_skip = self.next_skip, 2 * self.next_skip
        self.skip = max(self.skip - 1, 0)
        if by_rows and (v := self.X.solve_rows(diagonal, P, g)) is not None:
            return Step(v)
        if by_rows and index is not None and (v := self._by_rows(part, h_part, g, index)) is not None:
            return Step(v)
        return self._by_columns(diagonal, part, h_part, g)

    def _kept_step(self, g: NDArray) -> Step | None:
        """The step of the last factorization M, while g' M^-1 g falls fast enough by such steps."""
        if self.kept is None:
            return None
        v = -self.kept(g)
        square = -float(g @ v)
        rate, self.before = square / self.before if self.before else math.inf, square
        if not rate <= self.FORCING**2:
            return None
        return Step(v, 10.0 * rate * self.P.conjugate(g), 5.0 * rate * square)

    def _costs(self, m: int, h: Curvature) -> tuple[float, float, bool]:
        """The costs of systems of the rows and of the columns, and whether that of the rows is taken."""
        X = self.X
        columns = m * self.pair_cost + X.MATRIX_COST * X.size**3 / 6 + PASS_COST * X.size**2
        per_pair = SPARSE_COST * X.nnz / X.n if X.sparse else X.p
        rows = m**2 * per_pair / 2 + m**3 / 6 + m * X.p
        if self._keeps_row_gram:  # the products of all rows are made once, for about ten systems
            rows = m**3 / 6 + PASS_COST * m**2 + 0.1 * (self._row_gram is None) * X.n**2 * per_pair / 2
        gains = self.ROWS_GAIN * rows < columns and not self.inexact_rows
        if self.P.diagonal is None or diagonal_of(h) is not h or not X.operator.can_solve_rows(m):
            return rows, columns, False
        return rows, columns, m <= self.max_dimension and (gains or X.size > self.max_dimension)

    @property
    def _keeps_row_gram(self) -> bool:
        X = self.X
        return not X.sparse and X.n <= min(X.p, self.max_dimension)

    def _by_columns(self, h: Array, part: ColumnsAndOnes, h_part: Curvature, g: NDArray) -> Step:
        solve = part.factorized(h_part, self.raised)
        v = -solve(g)
        self.before = -float(g @ v)
        if self.keeps and not isinstance(h_part, Hessian):
            self.kept, self.kept_h = solve, h
        return Step(v)

    def _by_rows(self, part: ColumnsAndOnes, h: Any, g: NDArray, index: NDArray) -> NDArray | None:
        """The solution by the rows with h > 0; None if it has lost too many digits."""
        X, p, products, P = part.operator.X, part.p, None, self.P.diagonal
        assert P is not None
        if self._keeps_row_gram:
            if self._row_gram is None:
                self._row_gram = row_products(self.X.operator.gather(np.arange(self.X.n)), P[:p])
            products = self._row_gram[np.ix_(index, index)]
        solve = rows_system(X, P[:p], 1 / h, intercept=part.intercept, products=products)
        w, _, b = solve(-g[:p], 0.0, -float(g[-1]) if part.intercept else 0.0)
        v = np.append(w, b) if part.intercept else w
        # v' (P + X' H X) v = -g' v, unless columns of large units have left no digits of others
        z, decrease = part.forward(v), -float(g @ v)
        if abs(float((P * v) @ v) + float((h * z) @ z) - decrease) <= self.MAX_ERROR * abs(decrease):
            return v
        self.inexact_rows = True
        return v if part.size > self.max_dimension else None

    def to_arrays(self) -> dict[str, Any]:
        """What a run continues from."""
        numbers = np.array([self.before, self.skip, self.next_skip, float(self.inexact_rows)])
        return {"system": numbers} | ({} if self.kept_h is None else {"kept": to_numpy(self.kept_h)})

    def restore(self, arrays: dict[str, Any]) -> None:
        """Continue from what `to_arrays` has returned."""
        before, skip, next_skip, inexact = arrays["system"].tolist()
        if "kept" in arrays:
            self.kept_h = arrays["kept"]
            self.kept = self.X.factorized(self.kept_h, self.P)
        self.before, self.skip, self.next_skip, self.inexact_rows = (
            before,
            int(skip),
            int(next_skip),
            bool(inexact),
        )


def _of_rows(h: Curvature, index: NDArray) -> Curvature:
    """The second derivatives of some rows, without those that have none: low-rank terms are 0 there."""
    if not isinstance(h, Hessian):
        return h[index]
    return Hessian(h.diagonal[index], tuple(s[index] for s in h.low_rank))


def conjugate_gradients(
    X: ColumnsAndOnes, h: Curvature, P: Penalty, g: NDArray, precondition: Solve | None, residual: float,
    limit: float, forcing: float, last: float,
) -> tuple[Step, bool]:  # fmt: skip
    r"""The step, and whether it is solved within `limit` products.

    The intercept e = -(g_b + h' X d) / 1' h is eliminated, so that the slopes of any d have the sum 0: the
    matrix is P + X' H X - (X' h)(X' h)' / 1' h for h = H 1.
    """
    p, hessian = X.p, h if isinstance(h, Hessian) else Hessian(h)
    pull, total, g_b = np.zeros(p), 1.0, 0.0
    if X.intercept:
        sums: Array = h if hessian is not h else hessian_product(hessian, 1.0 + 0.0 * hessian.diagonal)
        pull, total, g_b = X.adjoint(sums)[:p], float(sums.sum()), float(g[-1])
    apply = precondition
    if precondition is None:
        # fewer rows than columns: the eigenvalues beside P are as few, and only P keeps the others together
        apply = P.solve if X.n < p else P.diagonal_solve(X.operator.gram_diagonal(hessian.diagonal))
    elif X.intercept:  # the inverse of a Schur complement is a block of the inverse
        apply = lambda r: precondition(np.append(r, 0.0))[:p]  # noqa: E731

    def product(d: NDArray) -> NDArray:
        image: NDArray = X.operator.hessian_product(hessian, d) + P.product(d)
        if X.intercept:
            image -= (float(pull @ d) / total) * pull
        return image

    def stop(at: CgState) -> bool:
        if at.steps == 0:
            enough[0] = forcing**2 * at.square if 0.5 * at.square > last * residual else 0.0
        return P.conjugate(at.residual) <= residual or at.square <= enough[0]

    enough = [0.0]
    at = cg(product, -g[:p] + (g_b / total) * pull, apply, stop, max_steps=limit)
    v = np.append(at.x, -(g_b + float(pull @ at.x)) / total) if X.intercept else at.x
    return Step(v, P.conjugate(at.residual), 0.5 * at.square), at.done
