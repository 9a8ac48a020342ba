r"""Newton steps for losses of several outputs and L1-type regularizers, with a matrix of all weights.

Each step minimizes

.. math:: \lambda\,\Omega(v) + g^\top (v - w) + \tfrac12 (v - w)^\top H (v - w),
          \qquad H = \sum_i x_i x_i^\top \otimes H_i,

where :math:`H_i` are the second derivatives of the loss in the scores of row i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.deadline import check_each
from riskmin.numerics.barrier import BarrierVariables, Linearized, predictor_corrector_step
from riskmin.numerics.linear_systems import shifted_cholesky
from riskmin.problem.objective import Objective

MIN_CURVATURE = 1e-11
"""The least second derivative of a model in any direction, relative to those in the weights."""


class WeightModel:
    """lam Omega plus a quadratic model of the risk at w; `variables` are the weights with their barriers."""

    REFINEMENTS = 2
    """How often the linear system is solved, each time for the residual of the last."""

    def __init__(self, w: NDArray, g: NDArray, H: NDArray, variables: BarrierVariables) -> None:
        self.w, self.g, self.H, self.weights = w, g, H, variables
        self.weight_curvature = np.diagonal(H)

    @property
    def mu(self) -> float:
        """The mean product of slacks and multipliers."""
        return self.weights.complementarity / max(self.weights.count, 1)

    def step(self) -> float:
        """Take one step of the predictor-corrector method; return its length."""
        return predictor_corrector_step([self.weights], self._factorize)

    def _factorize(self, at: list[Linearized]) -> Callable[[list[Linearized]], list[NDArray]]:
        """The function that solves slope + K dv + g + H (v + dv - w) = 0 for dv."""
        K = at[0].curvature
        inverse = shifted_cholesky(self.H, K)

        def direction(models: list[Linearized]) -> list[NDArray]:
            dv = np.zeros(len(K))
            for _ in range(self.REFINEMENTS):
                residual = models[0].slope + K * dv + self.g + self.H @ (self.weights.x + dv - self.w)
                dv = dv - inverse(residual)
            return [dv]

        return direction


def weight_hessian(risk: Any, w: NDArray) -> NDArray:
    """The second derivatives of a risk of several outputs in all weights, and its intercepts."""
    X, y, c = risk.rows.X, risk.rows.y, risk.rows.c
    array = X.array if X.array is not None else X.as_scipy().toarray()
    # an intercept is the weight of a column of ones
    Z = np.column_stack([array, np.ones(len(y))]) if risk.n_intercepts else np.asarray(array)
    dz = risk.loss.value_grad(risk.linear_map.scores(X, w, 0, len(y)), y, c)[1]
    (n, k), q = dz.shape, Z.shape[1]
    blocks, H = risk.loss.block_hessian(dz, y, c), np.zeros((q, k, q, k))
    for a in check_each(range(k)):
        unit = np.zeros((n, k))
        unit[:, a] = 1.0
        # column a of every H_i
        columns = blocks.product(unit, slice(None))
        for b in range(a + 1):
            H[:, a, :, b] = H[:, b, :, a] = Z.T @ (columns[:, b, None] * Z)
    if risk.n_intercepts:
        # losses of classes do not depend on the sum of the intercepts, which nothing else determines
        H[-1, :, -1] += np.trace(H[-1, :, -1]) / k**2
    H = H.reshape(q * k, q * k)
    # nor on the sum of the weights of a column, which only a small penalty may determine
    H.reshape(-1)[:: q * k + 1] *= 1 + MIN_CURVATURE
    return H


def several_outputs_reason(obj: Objective, max_weights: int) -> str | None:
    """Why the risk of several outputs has no such steps, and what to use; None if it has."""
    risk: Any = obj.risk
    loss, dim = risk.loss, risk.dim
    if risk.rows is None or not risk.linear_map.separate_outputs or risk.linear_map.centered:
        return "InteriorPoint needs local rows, and separate weights of the outputs: use OwlQn or Bundle"
    if not loss.smooth or not loss.has_hessian:
        return f"InteriorPoint needs second derivatives, not {loss!r}: use Smoothing(InteriorPoint())"
    if dim > max_weights:
        return f"InteriorPoint factorizes a matrix of {dim} weights: use OwlQn, or raise max_size"
    return None
