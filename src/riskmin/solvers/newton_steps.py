r"""Newton's equations in steps of conjugate gradients, with those rows and columns alone that take part.

With :math:`C = H^{1/2} X_S K^{-1/2}` of the rows S that have second derivatives, and their columns,
:math:`(\lambda K + X^\top H X)\, d = -g` is :math:`(\lambda + C^\top C)\, K^{1/2} d = -K^{-1/2} g`; or, where
there are fewer rows than columns, a system of as many unknowns as rows, :math:`(\lambda + C C^\top)\, v = C
K^{-1/2} g`, for which :math:`\lambda K^{1/2} d = C^\top v - K^{-1/2} g`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.deadline import checking
from riskmin.matrices import as_matrix
from riskmin.types import Array, Bend, Matrix, NDArray


class Part:
    """The rows with second derivatives, scaled, and their columns.

    Parameters
    ----------
    rows : array, or sparse one of SciPy
        Those that have second derivatives.
    bend : Bend
        A diagonal, and at most one vector s, such that H^-1/2 s is of length one: a projection.
    square : array
        The diagonal of K.
    """

    def __init__(self, rows: Any, bend: Bend, square: NDArray) -> None:
        at = np.flatnonzero(bend.diagonal)
        self.root = np.sqrt(bend.diagonal[at])
        self.axis: NDArray | None = bend.minus[0][at] / self.root if bend.minus else None
        self.square = square
        if sp.issparse(rows):
            self.X, self.used = _compact(rows, len(square))
        else:
            self.X, self.used = as_matrix(rows), np.arange(len(square))
        self.scale = np.sqrt(square[self.used])

    def solve(self, lam: float, g: Array, enough: float, most: int) -> tuple[Array, int]:
        """The d with a residual of at most that norm, and how many steps it took: at most so many."""
        scale = np.sqrt(self.square)
        e = -g / scale
        few = e[self.used]
        rows, columns = self.X.shape
        if rows < columns:
            found, took = self._by_rows(lam, few, self.scale, enough, most)
        else:
            found, took = self._by_columns(lam, few, self.scale, enough, most)
        e = e / lam
        e[self.used] = found
        return e / scale, took

    def _by_rows(
        self, lam: float, g: NDArray, scale: NDArray, enough: float, most: int
    ) -> tuple[NDArray, int]:
        """(lam + C C') v = C (-g), e = (g + C' v) / lam; C' of the residual comes free with each step."""
        r = -self._forward(g)
        along, size, v = r, float(r @ r), 0.0 * g
        image, share = 0.0 * g, 0.0
        for took in checking(range(most)):
            before, image = image, self._back(along)
            rest = scale * (image - share * before)
            if float(rest @ rest) <= (lam * enough) ** 2:
                return (g + v) / lam, took
            product = lam * along + self._forward(image)
            step = size / float(along @ product)
            v = v + step * image
            r = r - step * product
            size, last = float(r @ r), size
            share = size / last
            along = r + share * along
        return (g + v) / lam, most

    def _by_columns(
        self, lam: float, g: NDArray, scale: NDArray, enough: float, most: int
    ) -> tuple[NDArray, int]:
        """(lam + C' C) e = g."""
        e, r = 0.0 * g, g
        along, size = r, float(r @ r)
        for took in checking(range(most)):
            rest = scale * r
            if float(rest @ rest) <= enough * enough:
                return e, took
            product = lam * along + self._back(self._forward(along))
            step = size / float(along @ product)
            e, r = e + step * along, r - step * product
            size, last = float(r @ r), size
            along = r + (size / last) * along
        return e, most

    # rows and columns are scaled as vectors: scaled numbers would be one more copy of them
    def _forward(self, e: NDArray) -> NDArray:
        return self._projected(self.root * self.X.scores(e / self.scale, 0, self.X.shape[0]))

    def _back(self, v: NDArray) -> NDArray:
        out = np.zeros(self.X.shape[1])
        self.X.pullback(self.root * self._projected(v), 0, len(v), out)
        return out / self.scale

    def _projected(self, v: NDArray) -> NDArray:
        return v if self.axis is None else v - self.axis * float(self.axis @ v)


def _compact(part: Any, p: int) -> tuple[Matrix, NDArray]:
    """Rows without the columns that they do not use, of p; and which these are."""
    used = np.zeros(p, dtype=bool)
    used[part.indices] = True
    at = np.flatnonzero(used)
    place = np.cumsum(used, dtype=part.indices.dtype) - 1
    few = sp.csr_array((part.data, place[part.indices], part.indptr), shape=(part.shape[0], len(at)))
    return as_matrix(few), at
