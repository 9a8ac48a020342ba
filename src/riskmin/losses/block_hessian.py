r"""Hessians of multi-output losses: one k by k matrix H_i per row, given by its products.

All of them are computed from the gradient in the scores, which is known in every Newton step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from riskmin.core import NDArray


class BlockHessian(NamedTuple):
    """The block-diagonal Hessian of all rows, with one (k, k) block per row."""

    diagonal: NDArray
    product: Callable[[NDArray, slice], NDArray]
    """Return H_i v_i for the rows v_i of V, where V holds the rows of a range (slice)."""
    factors: Callable[[], tuple[NDArray, NDArray]] | None = None
    """Return row indices and vectors u with H_i = sum of u u' over the vectors of row i; None if unknown."""
    block_sum: Callable[[], NDArray] | None = None
    """Return the sum of the blocks, by default from products."""

    def total(self) -> NDArray:
        """Return the sum of the blocks, the (k, k) Hessian in intercepts."""
        if self.block_sum is not None:
            return self.block_sum()
        n, k = self.diagonal.shape
        return np.array([np.ones(n) @ self.product(np.tile(e, (n, 1)), slice(None)) for e in np.eye(k)])


def simplex_hessian(p: NDArray, size: NDArray) -> BlockHessian:
    r"""Return the blocks :math:`size_i (\mathrm{diag}(p_i) - p_i p_i^\top)`, for p_i on the simplex."""
    scaled, ones = p * size[:, None], np.ones(p.shape[1])

    def times(V: NDArray, rows: slice) -> NDArray:
        # p_j (v_j - p'v) size, in place: one temporary of the size of V
        out: NDArray = V * p[rows]
        np.subtract(V, (out @ ones)[:, None], out=out)
        out *= scaled[rows]
        return out

    def block_sum() -> NDArray:
        return np.asarray(np.diag(np.ones(len(p)) @ scaled) - scaled.T @ p)

    return BlockHessian(scaled * (1 - p), times, None, block_sum)


def star_hessian(a: NDArray, true_class: NDArray) -> BlockHessian:
    r"""Return the blocks :math:`\sum_j a_{ij} (e_j - e_y)(e_j - e_y)^\top`.

    They are weighted Laplacians of star graphs with center y. `true_class` is the one-hot encoding of y, and
    a is zero for the true class.
    """
    # H v = sum_j a_j (v_j - v_y) (e_j - e_y)
    y = np.argmax(true_class, axis=1)

    def times(V: NDArray, rows: slice) -> NDArray:
        true_entries = np.arange(len(V)), y[rows]
        # a_j (v_j - v_y) for j != y, and minus their sum for the true class
        out: NDArray = a[rows] * (V - V[true_entries][:, None])
        out[true_entries] -= out.sum(axis=1)
        return out

    return BlockHessian(a + true_class * a.sum(axis=1, keepdims=True), times)


def simplex_face_hessian(face: NDArray, size: NDArray) -> BlockHessian:
    r"""Return the blocks :math:`size_i (I_S - 1 1^\top / |S|)`, for the faces S of the simplex.

    `face` is 1.0 for the classes in S and 0.0 for the others. The factors are the vectors
    :math:`(1, \ldots, 1, -m, 0, \ldots) / \sqrt{m (m + 1)}` on S, m = 1, ..., |S| - 1 (a Helmert basis of the
    complement of the constant vector), times :math:`\sqrt{size_i}`.
    """
    count = np.maximum(face.sum(axis=1), 1.0)

    def roots() -> tuple[NDArray, NDArray]:
        # 1, 2, ... on S, and 0 for the other classes
        position = np.cumsum(face, axis=1) * face
        rows, vectors = [], []
        for m in range(1, int(count.max()) if len(count) else 0):
            selected = np.flatnonzero(count > m)
            # entries 1 at the first m classes of S, -m at the next one, else 0
            U = (position[selected] > 0) * ((position[selected] <= m) - m * (position[selected] == m + 1.0))
            rows.append(selected)
            vectors.append(U * np.sqrt(size[selected] / (m * (m + 1)))[:, None])
        if not rows:
            return np.zeros(0, np.intp), np.zeros((0, face.shape[1]))
        return np.concatenate(rows), np.concatenate(vectors)

    # with p uniform on S: size |S| (diag(p) - p p') = size (I_S - 1 1' / |S|)
    return simplex_hessian(face / count[:, None], size * count)._replace(factors=roots)


def scaled_face_hessian(face: NDArray, factor: NDArray, true_class: NDArray, size: NDArray) -> BlockHessian:
    r"""Return the blocks :math:`size_i A_i^\top (I_S - 1 1^\top / |S|) A_i`, for the faces S of the simplex.

    A_i maps scores v to the scaled margins :math:`f_j (v_j - v_y)` (slack rescaling). `true_class` is the
    one-hot encoding of y.
    """
    f = face * factor * (1 - true_class)
    count = np.maximum(face.sum(axis=1, keepdims=True), 1.0)
    scaled, total = size[:, None], f.sum(axis=1, keepdims=True)

    def times(V: NDArray, rows: slice) -> NDArray:
        # A_i v, then the projection I_S - 1 1'/|S|, then A_i'
        margins = f[rows] * (V - (V * true_class[rows]).sum(axis=1, keepdims=True))
        margins -= face[rows] * (margins.sum(axis=1, keepdims=True) / count[rows])
        out: NDArray = f[rows] * margins
        out = out - true_class[rows] * out.sum(axis=1, keepdims=True)
        out *= scaled[rows]
        return out

    # the diagonal entries of the other classes in S, and that of the true class
    other_diagonal = f * f * (1 - 1 / count)
    true_diagonal = (f * f).sum(axis=1, keepdims=True) - total * total / count
    return BlockHessian(scaled * (other_diagonal + true_class * true_diagonal), times)
