r"""The Hessian of a loss with k scores per row: one k by k matrix :math:`H_i` per row.

Those of the softmax and of the smoothed multiclass hinge loss are
:math:`s_i\,(\mathrm{diag}(q_i) - q_i q_i^\top)` for :math:`q_i` on the simplex: probabilities, or the
uniform distribution on the classes with positive multipliers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin._numba import lazy_module
from riskmin.core import NDArray
from riskmin.losses.base import Loss
from riskmin.losses.block_hessian import BlockHessian

simplex_kernels = lazy_module("newton.simplex_rows")


class Blocks(ABC):
    """The matrices of all rows."""

    @property
    @abstractmethod
    def diagonal(self) -> NDArray:
        """Their diagonals, of shape (n, k)."""

    @abstractmethod
    def product(self, V: NDArray, part: slice = slice(None)) -> NDArray:
        """H_i v_i for the rows v_i of V, those of a range; V may be overwritten."""

    @abstractmethod
    def total(self) -> NDArray:
        """The sum of the matrices, which is the Hessian in the intercepts."""

    @abstractmethod
    def take(self, index: NDArray) -> Blocks:
        """Those of some rows."""

    @cached_property
    def active(self) -> NDArray:
        """The number of outputs with second derivatives, of each row."""
        return np.asarray(np.count_nonzero(self.diagonal, axis=1))


@dataclass
class SimplexBlocks(Blocks):
    """The matrices size (diag(q) - q q').

    Parameters
    ----------
    q : (n, k) array
    size : (n,) array
    """

    q: NDArray
    size: NDArray

    @cached_property
    def diagonal(self) -> NDArray:
        return np.asarray(self.q * (1 - self.q) * self.size[:, None])

    def product(self, V: NDArray, part: slice = slice(None)) -> NDArray:
        simplex_kernels().hessian_product(self.q[part], self.size[part], V)
        return V

    def total(self) -> NDArray:
        scaled = self.q * self.size[:, None]
        return np.asarray(np.diag(scaled.sum(axis=0)) - scaled.T @ self.q)

    @cached_property
    def active(self) -> NDArray:
        return np.asarray(np.count_nonzero(self.q, axis=1) * (self.size > 0))

    def take(self, index: NDArray) -> Blocks:
        return SimplexBlocks(self.q[index], self.size[index])

    def factors(self) -> tuple[NDArray, NDArray]:
        """Rows i and vectors u, such that H_i is the sum of u u' over those of row i."""
        # covariances of growing sets: class m adds (t q_m / (t + q_m)) (e_m - mean) (e_m - mean)', where t
        # and the mean are those of the classes before it
        before, rows, vectors = np.cumsum(self.q, axis=1), [], []
        for m in range(1, self.q.shape[1]):
            t, q = before[:, m - 1], self.q[:, m]
            chosen = np.flatnonzero((t > 0) & (q > 0) & (self.size > 0))
            t, q, U = t[chosen], q[chosen], np.zeros((len(chosen), self.q.shape[1]))
            U[:, :m], U[:, m] = -self.q[chosen, :m] / t[:, None], 1.0
            rows.append(chosen)
            vectors.append(U * np.sqrt(self.size[chosen] * t * q / (t + q))[:, None])
        return np.concatenate(rows), np.concatenate(vectors)


@dataclass
class LossBlocks(Blocks):
    """The matrices of a loss, from its slopes s in the scores.

    Parameters
    ----------
    loss : Loss
    s, y, c : array
        Slopes, labels and weights of the rows.
    mu : float
    """

    loss: Loss
    s: NDArray
    y: NDArray
    c: NDArray
    mu: float

    @cached_property
    def hessian(self) -> BlockHessian:
        """That of the loss."""
        found: Any = self.loss.block_hessian(self.s, self.y, self.c, self.mu)
        return found  # type: ignore[no-any-return]

    @property
    def diagonal(self) -> NDArray:
        return self.hessian.diagonal

    def product(self, V: NDArray, part: slice = slice(None)) -> NDArray:
        return self.hessian.product(V, part)

    def total(self) -> NDArray:
        return self.hessian.total()

    def take(self, index: NDArray) -> Blocks:
        return LossBlocks(self.loss, self.s[index], self.y[index], self.c[index], self.mu)
