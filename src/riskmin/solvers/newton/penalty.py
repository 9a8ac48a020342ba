r"""The penalty :math:`\tfrac12 v^\top P v` of Newton's method: lam K for the weights, 0 for the intercept."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from riskmin.core import NDArray
from riskmin.numerics.linear_systems import Solve, shifted_cholesky
from riskmin.problem.objective import Objective


class Penalty:
    """The quadratic penalty of an objective; vectors have p weights, and intercepts up to `size`."""

    def __init__(self, obj: Objective, p: int, size: int) -> None:
        self.reg, self.lam, self.p, self.diagonal = obj.reg, obj.lam, p, None
        """The diagonal of P; None if P has other entries."""
        if self.reg.penalized_part.diagonal:
            self.diagonal = np.zeros(size)
            square = self.reg.terms(np.ones(obj.risk.dim)).square
            self.diagonal[:p] = self.lam * np.broadcast_to(square, obj.risk.dim)[:p]
        self.least = math.inf if self.diagonal is None else float(self.diagonal[:p].min(initial=math.inf))

    def product(self, v: NDArray) -> NDArray:
        """P v."""
        if self.diagonal is not None:
            return self.diagonal[: len(v)] * v
        out = np.zeros(len(v))
        out[: self.p] = self.lam * self.reg.grad(v[: self.p])
        return out

    def solve(self, g: NDArray) -> NDArray:
        """P^-1 g of the weights; the intercept stays."""
        out = g.copy()
        if self.diagonal is not None:
            out[: self.p] /= self.diagonal[: self.p]
        else:
            out[: self.p] = self.reg.conjugate_grad(g[: self.p]) / self.lam
        return out

    def conjugate(self, g: NDArray) -> float:
        """Half of g' P^-1 g of the weights: what slopes g that are left cost a bound."""
        g = g[: self.p]
        return 0.5 * float(g @ (g / self.diagonal[: self.p] if self.diagonal is not None else self.solve(g)))

    def raised(self, least: float) -> Penalty:
        """The same with at least this diagonal; a matrix that is no diagonal stays."""
        if self.diagonal is None or least <= self.least:
            return self
        raised = Penalty.__new__(Penalty)
        raised.__dict__ = self.__dict__ | {"diagonal": np.maximum(self.diagonal, least)}
        return raised

    @cached_property
    def matrix(self) -> NDArray:
        """P of the weights."""
        if self.diagonal is not None:
            return np.diag(self.diagonal[: self.p])
        # the gradient of w' K w / 2 is linear: at the unit vectors, it gives the rows of K
        return self.lam * np.stack([np.asarray(self.reg.grad(e)) for e in np.eye(self.p)])

    def factorized(self, G: NDArray) -> Solve:
        """A function that solves (P + G) v = g, for the upper triangle of G."""
        if self.diagonal is not None:
            return shifted_cholesky(G, self.diagonal)
        G[: self.p, : self.p] += self.matrix
        return shifted_cholesky(G)

    def diagonal_solve(self, G: NDArray | None) -> Solve:
        """A function that divides by the diagonal of P + G; by P, if it is no diagonal or G is unknown."""
        if self.diagonal is None or G is None:
            return self.solve
        sums = G + self.diagonal[: self.p]
        return lambda r: r / sums
