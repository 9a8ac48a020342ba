"""Linear maps from w to scores, with their adjoints."""

from __future__ import annotations

from dataclasses import dataclass

from riskmin.types import Array, Matrix


@dataclass(frozen=True)
class Linear:
    """One score an example: z_i = x_i @ w."""

    def dim(self, n_features: int) -> int:
        return n_features

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        return X.scores(w, start, stop)

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        X.pullback(dz, start, stop, out)
