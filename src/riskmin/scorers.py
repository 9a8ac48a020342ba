"""Linear maps from w to scores, with their adjoints."""

from __future__ import annotations

from dataclasses import dataclass

from riskmin.types import Array, Matrix


@dataclass(frozen=True)
class Linear:
    r"""One score an example, :math:`z_i = x_i^\top w`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin.matrices import as_matrix
    >>> Linear().scores(as_matrix(np.eye(3)), np.array([1.0, 2.0, 3.0]), 1, 3)
    array([2., 3.])
    """

    def dim(self, n_features: int) -> int:
        return n_features

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        return X.scores(w, start, stop)

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        X.pullback(dz, start, stop, out)
