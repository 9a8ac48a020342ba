r"""Newton's linear system by conjugate gradients, restricted to the active rows.

Active rows have nonzero second derivatives. For the active rows S and the columns they use, let
:math:`C = H^{1/2} X_S K^{-1/2}`. Then :math:`(\lambda K + X^\top H X)\, d = -g` is equivalent to
:math:`(\lambda + C^\top C)\, K^{1/2} d = -K^{-1/2} g`. If there are fewer rows than columns, a system with
one unknown per row is solved instead,
:math:`(\lambda + C C^\top)\, v = C K^{-1/2} g`, for which :math:`\lambda K^{1/2} d = C^\top v - K^{-1/2} g`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.matrix import as_matrix
from riskmin.core import Array, Hessian, Matrix, NDArray
from riskmin.core.deadline import check_each


class ActiveRows:
    """The active rows, and the columns they use.

    Parameters
    ----------
    rows : array or sparse SciPy array
        The rows with nonzero second derivatives.
    hessian : Hessian
        A diagonal, and at most one low-rank vector s with |H^-1/2 s| = 1, so that I - q q' with q = H^-1/2 s
        is a projection.
    square : array
        The diagonal of K.
    """

    def __init__(self, rows: Any, hessian: Hessian, square: NDArray) -> None:
        active = np.flatnonzero(hessian.diagonal)
        # H = D^1/2 (I - q q') D^1/2 with D the diagonal of the active rows
        self.root = np.sqrt(hessian.diagonal[active])
        self.axis: NDArray | None = hessian.low_rank[0][active] / self.root if hessian.low_rank else None
        """The unit vector q that the projection removes."""
        self.square = square
        if sp.issparse(rows):
            self.X, self.used = _drop_empty_columns(rows, len(square))
        else:
            self.X, self.used = as_matrix(rows), np.arange(len(square))
        self.scale = np.sqrt(square[self.used])

    def solve(self, lam: float, g: Array, tol: float, max_steps: int) -> tuple[Array, int]:
        """The direction d with a residual of norm at most `tol`, and the number of steps."""
        scale = np.sqrt(self.square)
        # e = K^1/2 d; in columns that no row uses it is -K^-1/2 g / lam
        e = -g / scale
        rhs = e[self.used]
        n_rows, n_columns = self.X.shape
        if n_rows < n_columns:
            solution, n_steps = self._by_rows(lam, rhs, self.scale, tol, max_steps)
        else:
            solution, n_steps = self._by_columns(lam, rhs, self.scale, tol, max_steps)
        e = e / lam
        e[self.used] = solution
        return e / scale, n_steps

    def _by_rows(
        self, lam: float, g: NDArray, scale: NDArray, tol: float, max_steps: int
    ) -> tuple[NDArray, int]:
        """Solve (lam + C C') v = -C g for e = (g + C' v) / lam; C' r costs no extra product per step."""
        # here g is the right-hand side -K^-1/2 g of the module's formulas
        r = -self._forward(g)
        direction, rho, v = r, float(r @ r), 0.0 * g  # v holds C' v, one entry per column
        image, ratio = 0.0 * g, 0.0
        for n_steps in check_each(range(max_steps)):
            # direction = r + ratio * last direction, so C' r follows from two images
            last_image, image = image, self._back(direction)
            # a residual r of the rows is the residual K^1/2 C' r / lam of (lam K + X' H X) d = -g
            residual = scale * (image - ratio * last_image)
            if float(residual @ residual) <= (lam * tol) ** 2:
                return (g + v) / lam, n_steps
            product = lam * direction + self._forward(image)
            step = rho / float(direction @ product)
            v = v + step * image
            r = r - step * product
            rho, last_rho = float(r @ r), rho
            ratio = rho / last_rho
            direction = r + ratio * direction
        return (g + v) / lam, max_steps

    def _by_columns(
        self, lam: float, g: NDArray, scale: NDArray, tol: float, max_steps: int
    ) -> tuple[NDArray, int]:
        """Solve (lam + C' C) e = g."""
        e, r = 0.0 * g, g
        direction, rho = r, float(r @ r)
        for n_steps in check_each(range(max_steps)):
            # r is the residual after multiplication by K^-1/2, which `scale` undoes
            residual = scale * r
            if float(residual @ residual) <= tol * tol:
                return e, n_steps
            product = lam * direction + self._back(self._forward(direction))
            step = rho / float(direction @ product)
            e, r = e + step * direction, r - step * product
            rho, last_rho = float(r @ r), rho
            direction = r + (rho / last_rho) * direction
        return e, max_steps

    # vectors are scaled instead of X: scaled rows would be one more copy of them
    def _forward(self, e: NDArray) -> NDArray:
        """C e."""
        return self._projected(self.root * self.X.scores(e / self.scale, 0, self.X.shape[0]))

    def _back(self, v: NDArray) -> NDArray:
        """C' v."""
        out = np.zeros(self.X.shape[1])
        self.X.pullback(self.root * self._projected(v), 0, len(v), out)
        return out / self.scale

    def _projected(self, v: NDArray) -> NDArray:
        """(I - q q') v."""
        return v if self.axis is None else v - self.axis * float(self.axis @ v)


def _drop_empty_columns(part: Any, p: int) -> tuple[Matrix, NDArray]:
    """The rows with their empty columns removed (out of p), and the index of the remaining columns."""
    used = np.zeros(p, dtype=bool)
    used[part.indices] = True
    index = np.flatnonzero(used)
    # the new index of each used column
    position = np.cumsum(used, dtype=part.indices.dtype) - 1
    compact = sp.csr_array(
        (part.data, position[part.indices], part.indptr), shape=(part.shape[0], len(index))
    )
    return as_matrix(compact), index
