r"""`Softmax` on dense X with fewer rows than columns: in an orthonormal basis of the span of its rows.

The best weights are :math:`X^\top A`. With :math:`X X^\top = L L^\top` they are :math:`Q v` for
:math:`Q = X^\top L^{-\top}`, whose columns are orthonormal, so that scores are :math:`L v`, and penalties
:math:`|v|^2`: a problem with n columns. Values and cuts are computed again from X.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray
from riskmin.core.blas_threads import cholesky, scipy_linalg
from riskmin.core.deadline import interruptible_matmul
from riskmin.losses.multiclass import Softmax
from riskmin.problem.design_operator import row_matrix
from riskmin.problem.linear_risk import linear_risk
from riskmin.problem.objective import Objective
from riskmin.regularizers.separable import L2
from riskmin.solvers.newton.multi_output.score_problems import MultiOutputScoreProblem
from riskmin.solvers.newton.multi_output.softmax import SoftmaxProblem, saved_state

ROUNDING_SHIFT = 1e-13
"""Added to the diagonal of X X', relative to its largest entry: rows may depend on each other."""


class RowSpan:
    """The softmax problem in the span of the rows, and the map of its iterates to the weights."""

    MAX_ROWS = 2500
    MIN_PRODUCTS = 2**20
    """Multiplications of a pass over X from which on it pays: below, calls cost as much."""
    MAX_COST = 40.0
    """The cost of the matrix X X', in products with the Hessian, up to which it pays."""

    def __init__(self, obj: Objective, problem: Any, factor: NDArray) -> None:
        risk: Any = obj.risk
        self.obj, self.problem, self.L, self.k = obj, problem, factor, risk.linear_map.columns
        X: Any = row_matrix(risk.rows)
        self.X: NDArray = X.array
        self.n_intercepts = obj.n_intercepts
        reduced = linear_risk(
            factor, risk.rows.y, Softmax(), sample_weight=risk.rows.c, n_outputs=self.k,
            fit_intercept=bool(self.n_intercepts),
        )  # fmt: skip
        weight = float(np.ravel(self._weights(obj))[0])
        self.inner = SoftmaxProblem(
            Objective(reduced, L2(), obj.lam * weight), MultiOutputScoreProblem(reduced)
        )

    @classmethod
    def of(cls, obj: Objective, problem: Any) -> RowSpan | None:
        """The problem in the span of the rows, if there are few and dense ones, with equal penalties."""
        risk: Any = obj.risk
        X: Any = row_matrix(risk.rows)
        (n, p), k = X.shape, risk.linear_map.columns
        # n^2 p operations, and six for one of a product of thin matrices
        pays = n < p and n * p * k >= cls.MIN_PRODUCTS and n <= min(cls.MAX_ROWS, 12 * k * cls.MAX_COST)
        if X.sparse or not pays or np.ptp(cls._weights(obj)) > 0:
            return None
        K = interruptible_matmul(X.array, X.array.T)
        diagonal = K.reshape(-1)[:: n + 1]
        shift = ROUNDING_SHIFT * float(diagonal.max())
        diagonal += shift
        factor = cholesky(K, diagonal, shift) if shift > 0 else None
        return None if factor is None else cls(obj, problem, np.ascontiguousarray(np.tril(factor[0])))

    @staticmethod
    def _weights(obj: Objective) -> NDArray:
        """The weights of the penalty."""
        reg: Any = obj.reg.penalized_part
        return np.ravel(reg.weights)

    def iterates(self, w: Array, best: Cut | None = None) -> Iterator[Iterate]:
        """The iterates from the weights w, or from their projection onto the span of the rows."""
        obj, inner, m = self.obj, self.inner, len(w) - self.n_intercepts
        start = np.append(self._coordinates(w[:m]), w[m:])
        for it in inner.iterates(inner.start(start)):
            v = it.w[: len(start) - self.n_intercepts].reshape(-1, self.k)
            A = self._solve(v, trans=1)
            w = np.append(interruptible_matmul(self.X.T, A), it.w[v.size :])
            # the last cut of the inner problem, from the slopes in the scores, which are the same
            a = self.problem.design.adjoint(inner.dz)
            cut = obj.project_out_intercepts(Cut(a, inner.offset))
            best = cut if best is None else max(best, cut, key=obj.lower)
            z = self.problem.design.forward(w)
            risk = float(self.problem.loss.value_grad(z, self.problem.y, self.problem.c)[0])
            value = risk + obj.lam * obj.reg.value(w)
            obj.count.calls += int(it.info["evaluations"])
            yield Iterate(w, value, best, it.info, saved_state(self.problem, w, z, risk, best))

    def _coordinates(self, w: NDArray) -> NDArray:
        """The coordinates L^-1 X w of weights."""
        if not w.any():
            return np.zeros(len(self.L) * self.k)
        return self._solve(interruptible_matmul(self.X, w.reshape(-1, self.k))).reshape(-1)

    def _solve(self, b: NDArray, trans: int = 0) -> NDArray:
        """L^-1 b, or L^-T b."""
        solve = scipy_linalg().solve_triangular
        return np.asarray(solve(self.L, b, lower=True, trans=trans, check_finite=False))


def softmax_iterates(
    obj: Objective, problem: Any, w: Array, z: NDArray | None = None, best: Cut | None = None
) -> Iterator[Iterate]:
    """The iterates of an objective that `SoftmaxProblem` accepts, from w; its scores z may be known."""
    span = RowSpan.of(obj, problem)
    if span is not None:
        return span.iterates(w, best)
    softmax = SoftmaxProblem(obj, problem)
    return softmax.iterates(softmax.start(w) if z is None else softmax.evaluated(w, z), best)
