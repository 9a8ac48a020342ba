r"""Second derivatives of losses of many scores a row: a k by k matrix a row, known by its products.

All are found from the slopes in the scores, which every step knows anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from riskmin.types import NDArray


class Curve(NamedTuple):
    """The second derivatives of all rows.

    Examples
    --------
    >>> import numpy as np
    >>> curve = simplex_curve(np.array([[0.5, 0.5]]), np.ones(1))
    >>> curve.diagonal.tolist(), curve.times(np.array([[1.0, 0.0]]), slice(1)).tolist()
    ([[0.25, 0.25]], [[0.25, -0.25]])
    """

    diagonal: NDArray
    times: Callable[[NDArray, slice], NDArray]
    """H_i v_i for the rows of V, which are those of a range."""
    roots: Callable[[], tuple[NDArray, NDArray]] | None = None
    """Vectors u, and the row of each: H_i is the sum of u u' over those of row i, where they are few."""


def simplex_curve(p: NDArray, size: NDArray) -> Curve:
    r"""Those of :math:`size_i (\mathrm{diag}(p_i) - p_i p_i^\top)`, for p_i on a simplex.

    Examples
    --------
    >>> import numpy as np
    >>> simplex_curve(np.array([[0.25, 0.75]]), np.full(1, 16.0)).times(np.eye(2)[:1], slice(1)).tolist()
    [[3.0, -3.0]]
    """
    scaled, ones = p * size[:, None], np.ones(p.shape[1])

    def times(V: NDArray, at: slice) -> NDArray:
        out: NDArray = V * p[at]
        np.subtract(V, (out @ ones)[:, None], out=out)
        out *= scaled[at]
        return out

    return Curve(scaled * (1 - p), times)


def star_curve(a: NDArray, own: NDArray) -> Curve:
    r"""Those of :math:`\sum_j a_{ij} (e_j - e_y)(e_j - e_y)^\top`, a being zero where `own` is one.

    Examples
    --------
    >>> import numpy as np
    >>> curve = star_curve(np.array([[2.0, 0.0, 3.0]]), np.array([[0.0, 1.0, 0.0]]))
    >>> curve.diagonal.tolist(), curve.times(np.eye(3)[1:2], slice(1)).tolist()
    ([[2.0, 5.0, 3.0]], [[-2.0, 5.0, -3.0]])
    """
    right = np.argmax(own, axis=1)

    def times(V: NDArray, at: slice) -> NDArray:
        mine = np.arange(len(V)), right[at]
        out: NDArray = a[at] * (V - V[mine][:, None])
        out[mine] -= out.sum(axis=1)
        return out

    return Curve(a + own * a.sum(axis=1, keepdims=True), times)


def faces(face: NDArray, size: NDArray) -> Curve:
    r"""Those of :math:`size_i (I_S - 1 1^\top / |S|)`, for the faces S of a simplex.

    Examples
    --------
    >>> import numpy as np
    >>> curve = faces(np.array([[1.0, 1.0, 0.0, 1.0]]), np.ones(1))
    >>> rows, U = curve.roots()
    >>> rows.tolist(), (U.T @ U).round(6)[1].tolist(), curve.diagonal.round(6).tolist()
    ([0, 0], [-0.333333, 0.666667, 0.0, -0.333333], [[0.666667, 0.666667, 0.0, 0.666667]])
    """
    count = np.maximum(face.sum(axis=1), 1.0)

    def roots() -> tuple[NDArray, NDArray]:
        rank = np.cumsum(face, axis=1) * face  # 1, 2, ... in S, and 0 elsewhere
        rows, vectors = [], []
        for many in range(1, int(count.max()) if len(count) else 0):
            at = np.flatnonzero(count > many)
            U = (rank[at] > 0) * ((rank[at] <= many) - many * (rank[at] == many + 1.0))
            rows.append(at)
            vectors.append(U * np.sqrt(size[at] / (many * (many + 1)))[:, None])
        if not rows:
            return np.zeros(0, np.intp), np.zeros((0, face.shape[1]))
        return np.concatenate(rows), np.concatenate(vectors)

    return simplex_curve(face / count[:, None], size * count)._replace(roots=roots)


def face_curve(face: NDArray, factor: NDArray, own: NDArray, size: NDArray) -> Curve:
    r"""Those of :math:`size_i A_i^\top (I_S - 1 1^\top / |S|) A_i`, for the faces S of a simplex.

    A_i takes scores v to :math:`f_j (v_j - v_y)`: margins that are scaled.

    Examples
    --------
    >>> import numpy as np
    >>> curve = face_curve(np.ones((1, 2)), np.array([[0.0, 3.0]]), np.array([[1.0, 0.0]]), np.ones(1))
    >>> curve.times(np.array([[0.0, 1.0]]), slice(1)).tolist()
    [[-4.5, 4.5]]
    """
    f = face * factor * (1 - own)
    count = np.maximum(face.sum(axis=1, keepdims=True), 1.0)
    scaled, total = size[:, None], f.sum(axis=1, keepdims=True)

    def times(V: NDArray, at: slice) -> NDArray:
        ahead = f[at] * (V - (V * own[at]).sum(axis=1, keepdims=True))
        ahead -= face[at] * (ahead.sum(axis=1, keepdims=True) / count[at])
        out: NDArray = f[at] * ahead
        out = out - own[at] * out.sum(axis=1, keepdims=True)
        out *= scaled[at]
        return out

    others, mine = f * f * (1 - 1 / count), (f * f).sum(axis=1, keepdims=True) - total * total / count
    return Curve(scaled * (others + own * mine), times)
