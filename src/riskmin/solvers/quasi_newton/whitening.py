r"""The Hessian of a sample of rows as the metric of a quasi-Newton method.

With :math:`M = L L^\top \approx \nabla^2 J`, the function of :math:`u = L^\top w` has a Hessian near the
identity, from which L-BFGS starts. Gradients are :math:`L^{-1} \nabla J`, and a direction in u is
:math:`L^{-\top}` of it in w. Values, cuts and proofs do not depend on M.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace, to_numpy
from riskmin.core import Array, NDArray, Shard
from riskmin.core.blas_threads import scipy_module
from riskmin.losses.base import Loss
from riskmin.problem.objective import Objective


class Metric:
    """The identity: w itself."""

    is_whitened = False

    def gradient(self, g: Array) -> Array:
        """Return the gradient in u, of a gradient in w."""
        return g

    def direction(self, d: Array) -> Array:
        """Return the direction in w, of a direction in u."""
        return d

    def step(self, s: Array) -> Array:
        """Return the step in u, of a step in w."""
        return s

    def pairs(self, S: Any, Y: Any) -> tuple[Any, Any]:
        """Return steps and gradient changes in w as those in u."""
        return S, Y

    def stored_pairs(self, state: dict[str, Array]) -> dict[str, Array]:
        """Return the saved pairs as those in w: another metric may continue from them."""
        return state


class Whitening(Metric):
    """The variables u = L' w."""

    SAMPLE_ROWS = 2**17
    """Rows of a sample; of Gaussian data, about 200 per column suffice."""
    MIN_ROWS_PER_COLUMN = 20
    MAX_COLUMNS = 2500

    is_whitened = True

    def __init__(self, factor: NDArray) -> None:
        self.L = factor

    @classmethod
    def from_objective(cls, obj: Objective, w: Array) -> Metric:
        """Return the metric at w; the identity where a sample gives none, or rows are in NumPy's arrays.

        Rows of NumPy's arrays have `Newton`, which factorizes such a matrix, too, and updates it.
        """
        if not isinstance(w, np.ndarray) or not cls.applies(obj):
            return Metric()
        risk: Any = obj.risk
        n, p = risk.row_metadata.shape
        one_in = max(n // max(cls.SAMPLE_ROWS, cls.MIN_ROWS_PER_COLUMN * p), 1)
        G, weight = risk.executor.sum(sampled_hessian, risk.loss, risk.linear_map, w, one_in)
        if not weight > 0:
            return Metric()
        M = to_numpy(G) / weight
        diagonal = M.reshape(-1)[:: p + 1]
        # the rounding error of the sums, or of columns of zeros
        diagonal += obj.lam * obj.reg.terms(np.ones(p)).square + 1e-12 * float(diagonal.max())
        try:
            factor = to_numpy(namespace(G).linalg.cholesky(as_array_like(M, G)))
        except Exception:  # each library has its own error for a matrix that is not positive definite
            return Metric()
        return cls(factor) if np.isfinite(factor).all() else Metric()

    @classmethod
    def applies(cls, obj: Objective) -> bool:
        """Whether rows of another array library, dense and long, have second derivatives to sample."""
        risk, rows = obj.risk, obj.risk.row_metadata
        if rows is None or rows.sparse or namespace(rows.y) is np:
            return False
        linear_map: Any = risk.linear_map
        plain = linear_map.is_identity or (linear_map.standardized and linear_map.inner.is_identity)
        loss, (n, p) = risk.loss, rows.shape
        smooth = loss.separable and loss.smooth and loss.has_hessian and not risk.multi_output
        return (
            plain
            and smooth
            and obj.reg.diagonal
            and p <= cls.MAX_COLUMNS
            and n >= cls.MIN_ROWS_PER_COLUMN * p
        )

    def _solve(self, b: Array, transposed: bool = False) -> NDArray:
        solve = scipy_module("linalg").solve_triangular
        return np.asarray(solve(self.L, b, lower=True, trans=int(transposed), check_finite=False))

    def gradient(self, g: Array) -> Array:
        return self._solve(g)

    def direction(self, d: Array) -> Array:
        return self._solve(d, transposed=True)

    def step(self, s: Array) -> Array:
        return s @ self.L

    def pairs(self, S: Any, Y: Any) -> tuple[Any, Any]:
        return [self.step(s) for s in S], [self.gradient(y) for y in Y]

    def stored_pairs(self, state: dict[str, Array]) -> dict[str, Array]:
        S, Y = state["S"], state["Y"]
        return {
            "S": np.array([self.direction(s) for s in S]).reshape(len(S), len(self.L)),
            "Y": np.array([self.L @ y for y in Y]).reshape(len(Y), len(self.L)),
        }


def sampled_hessian(
    shard: Shard, loss: Loss, linear_map: Any, w: NDArray, one_in: int
) -> tuple[Array, float]:
    """X' H X of one random row out of each `one_in` of a shard, and the weight of the sample.

    `X` is an array of another library, and the product is computed on its device.
    """
    X: Any = shard.X
    size = X.shape[0] // one_in
    # one row from each range of one_in rows: sorted rows are sampled evenly
    index = one_in * np.arange(size) + np.random.default_rng(0).integers(0, one_in, size)
    rows, y, c = X.take_double(index), *(X.take_labels(a, index) for a in (shard.y, shard.c))
    if linear_map.standardized:
        shift, scale = (as_array_like(a, c) for a in (linear_map.shift, linear_map.scale))
        rows = (rows - shift) * scale
    hessian = loss.hessian(rows @ as_array_like(w, c), y, c)
    assert hessian is not None
    scaled = rows * hessian.diagonal[:, None]
    return namespace(rows).matrix_transpose(rows) @ scaled, float(c.sum())
