"""Conjugate gradients on a face of the dual, where block ascent for multiclass problems has become slow.

Once it is known which multipliers of each row are positive, the dual is a quadratic on a face of the
simplices. Conjugate gradients maximize it in far fewer passes than visits to rows. The result is projected
back onto the simplices, and the best point of the segment to it is taken, so that the bound never decreases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin.arrays.compressed import Csr
from riskmin.arrays.dense import Dense
from riskmin.arrays.matrix import as_matrix
from riskmin.core import NDArray
from riskmin.numerics.linear_systems import CgState, cg


def _kernels() -> Any:
    from riskmin._numba.dual import multiclass_check

    return multiclass_check


def _simplex() -> Any:
    from riskmin._numba import simplex_loops

    return simplex_loops


@dataclass
class SimplexFace:
    """The rows with more than one positive multiplier, with their data."""

    MAX_FACE_CG_STEPS = 30
    """Maximum number of conjugate gradient steps."""
    CG_STOP_GAIN_RATIO = 0.1
    """Stop when a step gains less than this fraction of the best one."""
    MAX_PROJECTION_TRIALS = 4
    """How often a step is shortened whose projection is no ascent direction."""

    rows: NDArray
    X: Csr | Dense
    beta: NDArray
    c: NDArray
    cost: NDArray
    curvature: NDArray
    """c |x|^2 / lam, per row."""
    lam: float

    @classmethod
    def create(
        cls,
        X: Csr | Dense,
        beta: NDArray,
        y: NDArray,
        c: NDArray,
        cost: NDArray,
        curvature: NDArray,
        lam: float,
    ) -> Self:
        """Return the face that contains the multipliers."""
        k = len(cost)
        # A row with a single positive multiplier is at a vertex of its simplex: it cannot move on the face.
        rows = np.flatnonzero(((beta > 0).sum(axis=1) > 1) & (curvature > 0))
        X_face: Any = as_matrix(X.as_scipy()[rows] if X.sparse else X.X[rows])
        return cls(rows, X_face, beta[rows, :k].copy(), c[rows], cost[y[rows], :k], curvature[rows], lam)

    def climb(self, z: NDArray, W: NDArray) -> tuple[NDArray, NDArray, float, int]:
        """Return new multipliers and weights, the part of the step taken, and the number of passes.

        z holds the scores of all rows, W the weights of the multipliers.
        """
        d, passes = self._conjugate_gradients(z[self.rows] + self.cost)
        for _ in range(self.MAX_PROJECTION_TRIALS):
            projected = self.beta + d
            _simplex().project_rows(projected)
            D = self.c[:, None] * (projected - self.beta)
            A = self._pull_back(D)
            # The dual is sum_i c_i beta_i' cost_i - lam |W|^2 / 2, with W = -a / lam.
            rise = float(np.vdot(D, self.cost)) + float(np.vdot(W, A))
            if rise > 0:
                # Exact line search: the dual along A has slope rise and curvature |A|^2 / lam.
                t = min(1.0, self.lam * rise / float(np.vdot(A, A)))
                beta = projected if t == 1 else self.beta + t * (projected - self.beta)
                return beta, W - t / self.lam * A, t, passes
            # The projection of a shorter step is closer to the step itself, an ascent direction.
            d *= 0.25
        return self.beta, W, 0.0, passes

    def _conjugate_gradients(self, slopes: NDArray) -> tuple[NDArray, int]:
        """Return a step close to the maximum of the quadratic, with a diagonal preconditioner per row."""
        # The Hessian is diag(c) X X' diag(c) / lam; its diagonal is c_i^2 |x_i|^2 / lam = c_i curvature_i.
        tangent, inverse = _kernels().project_to_face, 1 / (self.c * self.curvature)[:, None]
        tangent(slopes, self.beta, self.c)
        best = before = 0.0

        def product(q: NDArray) -> NDArray:
            # one adjoint and one forward pass
            h: NDArray = self.X.scores(self._pull_back(self.c[:, None] * q), 0, len(self.rows))
            tangent(h, self.beta, self.c / self.lam)
            return h

        def gains_little(at: CgState) -> bool:
            nonlocal best, before
            gain, before = at.decrease - before, at.decrease
            best = max(best, gain)
            return at.steps > 0 and gain <= self.CG_STOP_GAIN_RATIO * best

        at = cg(product, slopes, lambda r: r * inverse, gains_little, max_steps=self.MAX_FACE_CG_STEPS)
        return at.x, at.steps

    def _pull_back(self, D: NDArray) -> NDArray:
        """Return X' D."""
        A = np.zeros((self.X.shape[1], D.shape[1]))
        self.X.pullback(D, 0, len(D), A)
        return A
