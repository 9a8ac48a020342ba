r"""The quadratic model of a risk over some columns of X, minimized with the regularizer,

.. math:: \min_{w, b}\; s^\top u + \tfrac12 u^\top D u + \lambda\,\Omega(w), \qquad u = X (w - w_0) + b,

by coordinate descent: on the scores, one column at a time, or on the Gram matrix X' D X of the columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from riskmin.blas import cho_factor, linalg
from riskmin.deadline import checking
from riskmin.types import NDArray

MOST_EPOCHS = 200
"""So many cycles over the columns are enough for one model: the next one is better."""
CLOSE = 0.03
"""How far, on average, a curvature may be from the one of a kept Gram matrix."""


@cache
def kernels() -> Any:
    """The compiled loops; Numba is imported by the first use, not with the package."""
    from riskmin.kernels import coordinate

    return coordinate


class Model(NamedTuple):
    """A quadratic model around a point: all of it a row of X, or one of the chosen columns, at a time."""

    columns: NDArray
    w: NDArray
    """Where to start, on the columns."""
    grad: NDArray
    """The slope of the risk in w, on the columns."""
    slope: NDArray
    """The slope of the risk in the scores."""
    bend: NDArray
    """The curvature in the scores."""
    terms: NDArray
    """Lam times the regularizer: four rows, as in its `terms`, on the columns."""
    free: bool
    """Whether there is an intercept."""
    tol: float
    """How steep the model may still be."""
    lasts: bool
    """Whether the curvature is the same everywhere, as that of a squared loss."""
    exact: bool
    """Whether nothing that is kept of another curvature may serve: it did badly."""


class Solution(NamedTuple):
    """The minimizer of a model."""

    w: NDArray
    b: float
    u: NDArray
    """The change of the scores, without that of the intercept."""
    epochs: int
    bend: NDArray | None = None
    """The curvature it was found with; None where that is of some rows only."""
    close: bool = False
    """Whether a Gram matrix found it, whose steps mostly end nearer to the minimizer than was asked for."""


# ---------------------------------------------------------------- Gram matrices
class Source(Protocol):
    """What Gram matrices are made of."""

    def products(self, columns: NDArray, first: int, gram: Gram) -> NDArray:
        """The rows of X' D X from the first on, over all of the columns."""
        ...

    def pull(self, columns: NDArray, r: NDArray) -> NDArray:
        """X' r, over the columns."""
        ...


@dataclass
class Gram:
    """The Gram matrix of the columns that were asked for so far, of one curvature."""

    bend: NDArray
    stride: int = 1
    """It is made of every so many-th row."""
    rough: bool = False
    """Whether its products are of single precision."""
    columns: NDArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    G: NDArray = field(default_factory=lambda: np.empty((0, 0)))

    def serves(self, model: Model) -> bool:
        """Whether it will do for a model: one that is a little off takes a step or two more."""
        if model.exact and (self.rough or not np.array_equal(model.bend, self.bend)):
            return False
        return self.stride == 1 and away(model.bend, self.bend) <= CLOSE

    def grow(self, columns: NDArray, source: Source) -> None:
        """Add those of the columns that are new."""
        new = np.setdiff1d(columns, self.columns)
        if len(new):
            old, self.columns = len(self.columns), np.concatenate([self.columns, new])
            rows = source.products(self.columns, old, self)
            self.G = np.block([[self.G, rows[:, :old].T], [rows]])

    def part(self, columns: NDArray, free: bool, source: Source) -> NDArray:
        """The matrix of some of its columns; with the intercept's, which is all ones, at the end."""
        order = np.argsort(self.columns)
        at = order[np.searchsorted(self.columns[order], columns)]
        G = self.G[np.ix_(at, at)]
        if not free:
            return G
        border = source.pull(columns, self.bend)
        return np.block([[G, border[:, None]], [border[None, :], np.full((1, 1), self.bend.sum())]])


def away(bend: NDArray, other: NDArray) -> float:
    """How far a curvature is from another, on average."""
    return float(np.abs(bend - other).sum() / other.sum())


def descend(G: NDArray, g: NDArray, w: NDArray, terms: NDArray, tol: float) -> int:
    """Minimize a model by its Gram matrix, in place; by turns cycles, and steps that solve for all w_j != 0.

    Cycles find out which w_j are zero, and are slow to settle the others where columns are alike; the
    linear equations settle them at once, and are wrong as soon as one of them would change its sign.
    """
    taken, active = 0, np.empty(len(w), np.bool_)
    for _ in checking(range(MOST_EPOCHS // 10)):
        worst, epochs = kernels().gram_epochs(G, g, w, terms, tol, 10, active)
        taken += epochs
        if worst <= tol:
            break
        _settle(G, g, w, terms)
    return taken


def _settle(G: NDArray, g: NDArray, w: NDArray, terms: NDArray) -> None:
    """Go towards the minimizer over the w_j that are neither zero nor at a bound, until one of them is."""
    absolute, square, lower, upper = terms
    at = np.flatnonzero(((w != 0) | (absolute == 0)) & (w > lower) & (w < upper) & (G.diagonal() > 0))
    if not len(at):
        return
    here, sign = w[at], np.sign(w[at])
    slope = g[at] + square[at] * here + absolute[at] * sign
    H = G[np.ix_(at, at)] + np.diag(square[at] + 1e-13 * G.diagonal().max())
    try:
        step = linalg().cho_solve(cho_factor(H), -slope, check_finite=False)
    except np.linalg.LinAlgError:
        return  # not positive, where columns are copies of each other
    bend, fall = float(step @ (H @ step)), float(slope @ step)
    if not (bend > 0 and fall < 0):
        return  # rounding, where columns are copies of each other
    far = here + step
    low = np.where((sign > 0) & (absolute[at] > 0), np.maximum(lower[at], 0.0), lower[at])
    high = np.where((sign < 0) & (absolute[at] > 0), np.minimum(upper[at], 0.0), upper[at])
    end, out = np.where(step < 0, low, high), (far < low) | (far > high)
    room = np.full(len(at), np.inf)
    room[out] = (end[out] - here[out]) / step[out]  # a step of zero is never out
    t = min(float(room.min()), -fall / bend)
    new = here + t * step
    new = np.where(room <= t, end, new)  # exactly there, not just before it
    g += G[:, at] @ (new - here)
    w[at] = new


def by_gram(source: Source, gram: Gram, model: Model, start: Solution, r: NDArray | None) -> Solution:
    """From a start on, at which r is the slope of the model in the scores; None where that is the model's."""
    gram.grow(model.columns, source)
    G, w, terms = gram.part(model.columns, model.free, source), start.w, model.terms
    g = model.grad.copy() if r is None else source.pull(model.columns, r)
    if model.free:
        unbound = np.array([[0.0], [0.0], [-np.inf], [np.inf]])
        g = np.append(g, (model.slope if r is None else r).sum())
        w, terms = np.append(w, start.b), np.ascontiguousarray(np.hstack([terms, unbound]))
    epochs = descend(G, g, w, terms, model.tol)
    b = float(w[-1]) if model.free else 0.0
    bend = gram.bend if gram.stride == 1 else None
    return Solution(w[: len(model.w)], b, start.u, start.epochs + epochs, bend, True)
