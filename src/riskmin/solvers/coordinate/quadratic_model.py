r"""The quadratic model of a risk over some columns of X, minimized together with the regularizer,

.. math:: \min_{w, b}\; s^\top u + \tfrac12 u^\top D u + \lambda\,\Omega(w), \qquad u = X (w - w_0) + b,

by coordinate descent: either on the scores, one column at a time, or on the Gram matrix X' D X of the
columns. The vector s holds the derivatives of the risk in the scores, the diagonal matrix D its second
derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from riskmin.core import NDArray
from riskmin.core.deadline import check_each
from riskmin.solvers.coordinate.active_set import active_set_search

NO_VALUES = np.empty(0)
FREE = np.array([[0.0], [0.0], [-np.inf], [np.inf]])
"""The terms of a weight without penalty or bounds."""
MAX_EPOCHS_PER_MODEL = 200
"""Maximum number of cycles over the columns per model: a new model gains more than further cycles."""


def gram_work(m: int, n_epochs: int) -> float:
    """Return the work of so many cycles over a Gram matrix of m columns, or of an active set instead."""
    # both read memory in order: fractions of m^2 and m^3
    return (float(m) ** 2 / 4 + float(m) ** 3 / 640) * n_epochs


@cache
def kernels() -> Any:
    """Return the module of compiled loops; Numba is imported on first use, not with the package."""
    from riskmin._numba.coordinate import cycles

    return cycles


class Model(NamedTuple):
    """A quadratic model around a point; arrays have one entry per chosen column or per row of X."""

    columns: NDArray
    """Indices of the columns in the working set."""
    w: NDArray
    """Starting values, per column."""
    grad: NDArray
    """Gradient of the risk in w, per column."""
    slope: NDArray
    """Derivative of the risk in each score, per row."""
    curvature: NDArray
    """Second derivative of the risk in each score (the diagonal of D), per row."""
    terms: NDArray
    """Lam times the regularizer: four rows (absolute, square, lower, upper), as in its `terms`, per
    column."""
    has_intercept: bool
    """Whether an unpenalized intercept b is minimized over, too."""
    tol: float
    """Largest violation of optimality at which the model counts as minimized."""
    constant_curvature: bool
    """Whether the curvature is the same at all points, as for the squared loss."""
    slow: bool
    """Whether the last model left much of the violation of optimality."""


class Solution(NamedTuple):
    """The minimizer of a model."""

    w: NDArray
    b: float
    u: NDArray
    """Change of the scores, without that of the intercept."""
    epochs: int
    work: float
    """Entries of X, or numbers that take as long, that were visited."""
    from_gram: bool = False
    """Whether a Gram matrix was used; its steps mostly end closer to the minimizer than `tol` requires."""
    slope: NDArray | None = None
    """Derivatives in the scores at a better minimizer, that of the model without the ranges of the w_j."""


# ---------------------------------------------------------------- Gram matrices
class ColumnProducts(Protocol):
    """The columns of X, as Gram matrices need them."""

    @property
    def n_entries(self) -> int:
        """Number of stored entries of X."""
        ...

    def gram_rows(self, columns: NDArray, first: int, curvature: NDArray) -> NDArray:
        """Return the rows of X' D X from `first` on, over all the columns."""
        ...

    def pull_back(self, columns: NDArray, r: NDArray) -> NDArray:
        """Return X' r over the columns."""
        ...


@dataclass
class ColumnGram:
    """Gram matrix X' D X of the columns requested so far, for one curvature D."""

    curvature: NDArray
    columns: NDArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    G: NDArray = field(default_factory=lambda: np.empty((0, 0)))

    def missing(self, columns: NDArray) -> NDArray:
        """Return those of the columns, in ascending order, that the matrix lacks."""
        return np.setdiff1d(columns, self.columns) if len(self.columns) else columns

    def add_columns(self, columns: NDArray, source: ColumnProducts) -> None:
        """Add the columns that the matrix lacks."""
        new = self.missing(columns)
        if not len(self.columns):
            self.columns, self.G = new, source.gram_rows(new, 0, self.curvature)
        elif len(new):
            old, self.columns = len(self.columns), np.concatenate([self.columns, new])
            # The matrix is symmetric: the new rows, without the new columns, are the transposed new columns.
            rows = source.gram_rows(self.columns, old, self.curvature)
            self.G = np.block([[self.G, rows[:, :old].T], [rows]])

    def submatrix(self, columns: NDArray, has_intercept: bool, source: ColumnProducts) -> NDArray:
        """Return the matrix of some of its columns; the intercept, a column of ones, comes last."""
        G = self.G
        if not np.array_equal(columns, self.columns):
            # Position of each requested column in `self.columns`, which is sorted only by `order`.
            order = np.argsort(self.columns)
            index = order[np.searchsorted(self.columns[order], columns)]
            G = G[np.ix_(index, index)]
        if not has_intercept:
            return G
        # Products with the column of ones: X' D 1 beside the matrix, 1' D 1 in the corner.
        bordered = np.empty((len(G) + 1, len(G) + 1))
        bordered[:-1, :-1] = G
        bordered[-1, :-1] = bordered[:-1, -1] = source.pull_back(columns, self.curvature)
        bordered[-1, -1] = self.curvature.sum()
        return bordered


def reusable(gram: ColumnGram | None, model: Model) -> ColumnGram:
    """Return the Gram matrix if it has the curvature of the model, else an empty one that has it."""
    if gram is not None and np.array_equal(model.curvature, gram.curvature):
        return gram
    return ColumnGram(model.curvature)


def _descend(G: NDArray, g: NDArray, w: NDArray, terms: NDArray, tol: float, max_active: int) -> int:
    """Minimize a model on its Gram matrix, in place: by an active set of some w_j, or by cycles."""
    if max_active and active_set_search(G, g, w, terms, tol, max_active):
        return 1
    n_epochs, active = 0, np.empty(len(w), np.bool_)
    for _ in check_each(range(MAX_EPOCHS_PER_MODEL // 10)):
        # g is the gradient of the smooth part and is updated along with w.
        worst, epochs = kernels().gram_epochs(G, g, w, terms, tol, 10, active)
        n_epochs += epochs
        if worst <= tol:
            break
    return n_epochs


def _proving_tolerance(model: Model, entries_per_product: float) -> float:
    """Return a tolerance at which the slopes that the model predicts prove about as much as its minimizer's.

    Slopes that violate the conditions by a share t of the penalties must be scaled by 1 / (1 + t). The second
    argument is the number of entries of X over that of the Gram matrix.
    """
    if model.constant_curvature:
        # The model is the risk itself; of so few columns, steps on the matrix cost less than a pass over X.
        return 1e-3 * model.tol if entries_per_product >= 20 else model.tol
    penalty = float(model.terms[0].max(initial=0.0))
    # A violation of 1 % costs the bound 1 % of lam |w|_1 at most.
    return min(model.tol, 0.01 * penalty) if penalty and entries_per_product >= 1 else model.tol


def solve_by_gram(source: ColumnProducts, gram: ColumnGram, model: Model, work: float) -> Solution:
    """Minimize the model on its Gram matrix, which takes so much work to compute; u is left to the caller."""
    gram.add_columns(model.columns, source)
    G = gram.submatrix(model.columns, model.has_intercept, source)
    g, w, terms = model.grad.copy(), model.w.copy(), model.terms
    if model.has_intercept:
        # The intercept is one more column, without penalty or bounds.
        g, w = np.concatenate([g, [model.slope.sum()]]), np.concatenate([w, [0.0]])
        terms = np.concatenate([terms, FREE], axis=1)
    # An active set is not worth its time for a large model that is soon replaced.
    entries_per_product = source.n_entries / len(w) ** 2
    worthwhile = model.constant_curvature or entries_per_product >= 1
    tol = _proving_tolerance(model, entries_per_product)
    epochs = _descend(G, g, w, terms, tol, len(model.slope) if worthwhile else 0)
    b = float(w[-1]) if model.has_intercept else 0.0
    work += gram_work(len(w), epochs)
    return Solution(w[: len(model.w)], b, NO_VALUES, epochs, work, from_gram=True)
