r"""Preconditioned conjugate gradients for the dual of ridge regression, a linear system.

.. math:: \bigl(q\, I + \tfrac1\lambda C^{1/2} X K^{-1} X^\top C^{1/2}\bigr) \beta = -C^{1/2} y,
          \qquad u = C^{-1/2} \beta.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin._numba import lazy_module
from riskmin.core import Array, Iterate, NDArray, Solver
from riskmin.numerics.linear_systems import CgState, cg
from riskmin.problem.certificate import multiplier_cut
from riskmin.problem.objective import Objective
from riskmin.solvers.base import local_rows_of, local_rows_reason
from riskmin.solvers.reference.transfer import inverse_metric_factor, row_arrays
from riskmin.solvers.state_checks import check_state

_kernels = lazy_module("dual.symmetric_sweep")


@dataclass(frozen=True)
class DualConjugateGradient(Solver):
    r"""Conjugate gradients on the dual of ridge regression, preconditioned by symmetric Gauss-Seidel sweeps.

    The dual of the squared loss with `L2` or `Quadratic` is a linear system A. The preconditioner is the
    symmetrized Algorithm 1 of Zhang (2002): a pass over the rows and a pass back, with exact steps, that is,
    :math:`M = (D + L) D^{-1} (D + L^\top)` for :math:`A = D + L + L^\top`. No inner products of rows are
    formed: a step takes three passes over X and back. With :math:`\kappa` the condition number of
    :math:`M^{-1} A`, the error in the norm of A, the square root of twice the gap of the dual, falls as

    .. math:: |\beta_k - \beta^*|_A \le 2 \left(\frac{\sqrt\kappa - 1}{\sqrt\kappa + 1}\right)^k
              |\beta_0 - \beta^*|_A.

    The preconditioner pays where X has more columns than rows, and rows of different sizes. With p columns, A
    is the identity plus a matrix of rank p, so that plain conjugate gradients take about p steps; the
    preconditioner takes more then. For local rows, without an intercept; `Newton` is usually faster.

    Parameters
    ----------
    preconditioned : bool
        Whether to precondition; plain conjugate gradients otherwise.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002, section 4. G. H. Golub, C. F. Van Loan, Matrix Computations, 1996, section 10.3.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import DualConjugateGradient, L2, Objective, Squared, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
    >>> result = minimize(Objective(linear_risk(X, y, Squared()), L2(), lam=0.1), DualConjugateGradient())
    >>> result.status, round(result.value, 4)
    ('converged', 0.1273)
    """

    preconditioned: bool = True

    def supports(self, obj: Objective) -> str | None:
        """None for the squared loss with `L2` or `Quadratic`, local rows, no intercept."""
        if reason := local_rows_reason(self, obj):
            return reason
        shard, loss, intercept = local_rows_of(obj.risk, self)
        conjugate = loss.interval_conjugate(shard.y)
        if conjugate is None or conjugate.epsilon or not conjugate.square:
            return f"{self.name} needs the squared loss, not {loss!r}: use DualGaussSeidel or Newton"
        if np.isfinite(conjugate.lower).any() or np.isfinite(conjugate.upper).any():
            return f"{self.name} needs the squared loss, not {loss!r}: use DualGaussSeidel or Newton"
        if intercept or not (obj.reg.diagonal or inverse_metric_is_known(obj)):
            return f"{self.name} needs L2() or Quadratic, without an intercept: use Newton or Lbfgs"
        return None

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield one iterate per step; the start is the slopes of the loss at w0."""
        self.check_supports(obj)
        run = RidgeSystem.create(obj)
        slopes = np.asarray(run.shard.X.scores(np.asarray(w0, dtype=float), 0, len(run.scales))) - run.targets
        return run.iterates(self.preconditioned, np.sqrt(run.shard.c) * slopes / run.square, None, 0.0)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        self.check_supports(obj)
        run = RidgeSystem.create(obj)
        check_state(state, {"beta": "n", "p": "n", "rz": "1"}, n=len(run.scales))
        return run.iterates(self.preconditioned, state["beta"], state["p"], float(state["rz"][0]))


def inverse_metric_is_known(obj: Objective) -> bool:
    """Whether the inverse of the metric can be factored."""
    return inverse_metric_factor(obj.reg, obj.risk.dim) is not None


@dataclass
class RidgeSystem:
    """The linear system, as the loops take it: rows in the metric, scales sqrt(c / lam), diagonal."""

    obj: Objective
    shard: Any
    loss: Any
    X: tuple[NDArray, NDArray, NDArray, int]
    scales: NDArray
    square: float
    targets: NDArray

    @classmethod
    def create(cls, obj: Objective) -> RidgeSystem:
        """Return the system of an objective that the solver supports."""
        shard, loss, _ = local_rows_of(obj.risk, DualConjugateGradient())
        conjugate = loss.interval_conjugate(shard.y)
        p = shard.X.shape[1]
        ends, indices, data, dense = row_arrays(shard.X, inverse_metric_factor(obj.reg, p))
        if obj.reg.diagonal:
            weights = np.sqrt(np.broadcast_to(np.asarray(obj.reg.terms(np.zeros(p)).square, float), (p,)))
            data = data / (np.tile(weights, len(shard.y)) if dense else weights[indices])
        scales = np.sqrt(shard.c / obj.lam)
        targets = np.asarray(conjugate.shift, dtype=float)
        return cls(obj, shard, loss, (ends, indices, data, dense), scales, float(conjugate.square), targets)

    def iterates(
        self, preconditioned: bool, beta: NDArray, p: NDArray | None, rz: float
    ) -> Iterator[Iterate]:
        """Yield the iterates from beta; p and rz are the last direction and its r'M^-1 r, if any."""
        k, n = _kernels(), len(beta)
        D, v, image, z = np.empty(n), np.zeros(self.shard.X.shape[1]), np.empty(n), np.empty(n)
        k.diagonal(self.X, self.scales, self.square, D)

        def product(d: NDArray) -> NDArray:
            k.product(self.X, self.scales, self.square, d, v, image)
            return image

        def precondition(r: NDArray) -> NDArray:
            k.precondition(self.X, self.scales, D, r, v, z)
            return z

        rhs = -np.sqrt(self.shard.c) * self.targets
        at = CgState(np.array(beta), np.empty(n), np.array(p) if rz else None, rz)
        while not at.done:
            p = np.zeros(n) if at.direction is None else at.direction.copy()
            x = at.x.copy()
            yield self._iterate(x, {"beta": x, "p": p, "rz": np.array([at.last_square])})
            # the residual from scratch: one more product, without the drift of updates
            at.residual = rhs - product(at.x)
            cg(product, rhs, precondition if preconditioned else None, state=at, max_steps=1)

    def _iterate(self, beta: NDArray, saved: dict[str, Array]) -> Iterate:
        c = self.shard.c
        u = np.divide(beta, np.sqrt(c), out=np.zeros_like(beta), where=c > 0)
        a = np.zeros(self.shard.X.shape[1])
        self.shard.X.pullback(c * u, 0, len(u), a)
        cut = multiplier_cut(a, self.loss.conjugate(self.shard.y), u, c)
        w = self.obj.argmin(cut)
        return Iterate(w, self.obj.value(w), cut, {}, saved.copy)
