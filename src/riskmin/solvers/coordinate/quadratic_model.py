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
from riskmin.solvers.coordinate.active_set import active_set_search, solve_free_coordinates

MAX_EPOCHS_PER_MODEL = 200
"""Maximum number of cycles over the columns per model: a new model gains more than further cycles."""
CYCLES_PER_SOLVE = 10
"""Cycles over a Gram matrix between two solves of a linear system."""


def gram_work(m: int, n_epochs: int) -> float:
    """Return the work of so many cycles over a Gram matrix of m columns, with the solves between them."""
    # both read memory in order: fractions of m^2 and m^3
    solves = n_epochs / CYCLES_PER_SOLVE
    return float(m) ** 2 / 4 * n_epochs + float(m) ** 3 / 64 * solves


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
    exact: bool
    """Whether the Gram matrix must have this curvature and double precision: the last step with another one
    was poor."""


class Solution(NamedTuple):
    """The minimizer of a model."""

    w: NDArray
    b: float
    u: NDArray
    """Change of the scores, without that of the intercept."""
    epochs: int
    curvature: NDArray | None = None
    """Curvature of the model that was minimized; None if it is that of a subsample of the rows."""
    from_gram: bool = False
    """Whether a Gram matrix was used; its steps mostly end closer to the minimizer than `tol` requires."""
    slope: NDArray | None = None
    """Derivatives in the scores at a better minimizer, that of the model without the ranges of the w_j."""
    work: float = 0.0
    """Entries of X, or numbers that take as long, that were visited."""


# ---------------------------------------------------------------- Gram matrices
class ColumnProducts(Protocol):
    """The columns of X, as Gram matrices need them."""

    @property
    def n_entries(self) -> int:
        """Number of stored entries of X."""
        ...

    def gram_rows(self, columns: NDArray, first: int, gram: ColumnGram) -> NDArray:
        """Return the rows of X' D X from `first` on, over all the columns."""
        ...

    def pull_back(self, columns: NDArray, r: NDArray) -> NDArray:
        """Return X' r over the columns."""
        ...


@dataclass
class ColumnGram:
    """Gram matrix X' D X of the columns requested so far, for one curvature D."""

    GRAM_REUSE_MAX_CHANGE = 0.03
    """Reuse a Gram matrix while the mean relative change of the curvature is at most this."""

    curvature: NDArray
    stride: int = 1
    """Only every `stride`-th row of X enters."""
    single_precision: bool = False
    """Whether the products were computed in single precision."""
    columns: NDArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    G: NDArray = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def rounding(self) -> float:
        """A bound on the rounding of G, relative to its diagonal."""
        return 1e-5 if self.single_precision else 1e-11

    def is_reusable_for(self, model: Model) -> bool:
        """Return whether the model may use this matrix; a slightly different D costs one or two steps."""
        if model.exact and (self.single_precision or not np.array_equal(model.curvature, self.curvature)):
            return False
        return (
            self.stride == 1
            and relative_change(model.curvature, self.curvature) <= self.GRAM_REUSE_MAX_CHANGE
        )

    def missing(self, columns: NDArray) -> NDArray:
        """Return those of the columns, in ascending order, that the matrix lacks."""
        return np.setdiff1d(columns, self.columns) if len(self.columns) else columns

    def add_columns(self, columns: NDArray, source: ColumnProducts) -> None:
        """Add the columns that the matrix lacks."""
        new = self.missing(columns)
        if not len(self.columns):
            self.columns, self.G = new, source.gram_rows(new, 0, self)
        elif len(new):
            old, self.columns = len(self.columns), np.concatenate([self.columns, new])
            # The matrix is symmetric: the new rows, without the new columns, are the transposed new columns.
            rows = source.gram_rows(self.columns, old, self)
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
        border = source.pull_back(columns, self.curvature)
        return np.block([[G, border[:, None]], [border[None, :], np.full((1, 1), self.curvature.sum())]])


def relative_change(curvature: NDArray, reference: NDArray) -> float:
    """Return |D - D_0|_1 / |D_0|_1, the mean relative change of a curvature."""
    return float(np.abs(curvature - reference).sum() / reference.sum())


def _descend(
    G: NDArray, g: NDArray, w: NDArray, terms: NDArray, tol: float, max_active: int, rounding: float
) -> int:
    """Minimize a model on its Gram matrix, in place: by an active set of at most so many w_j, or by cycles.

    Cycles alternate with solves over all w_j != 0: they determine which w_j are zero, but converge slowly on
    the others where columns are correlated.
    """
    if max_active and active_set_search(G, g, w, terms, tol, max_active, rounding):
        return 1
    n_epochs, active = 0, np.empty(len(w), np.bool_)
    for _ in check_each(range(MAX_EPOCHS_PER_MODEL // CYCLES_PER_SOLVE)):
        # Some cycles, then one solve; g is the gradient of the smooth part and is updated along with w.
        worst, epochs = kernels().gram_epochs(G, g, w, terms, tol, CYCLES_PER_SOLVE, active)
        n_epochs += epochs
        if worst <= tol:
            break
        solve_free_coordinates(G, g, w, terms, rounding)
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


def solve_by_gram(
    source: ColumnProducts, gram: ColumnGram, model: Model, start: Solution, r: NDArray | None
) -> Solution:
    """Minimize the model on its Gram matrix, from a starting solution.

    `r` is the derivative of the model in the scores at that start; None where it is the model's own.
    """
    gram.add_columns(model.columns, source)
    G, w, terms = gram.submatrix(model.columns, model.has_intercept, source), start.w, model.terms
    g = model.grad.copy() if r is None else source.pull_back(model.columns, r)
    if model.has_intercept:
        # The intercept is one more column, without penalty or bounds.
        unbound = np.array([[0.0], [0.0], [-np.inf], [np.inf]])
        g = np.append(g, (model.slope if r is None else r).sum())
        w, terms = np.append(w, start.b), np.ascontiguousarray(np.hstack([terms, unbound]))
    # An active set is not worth its time for a large model that is soon replaced.
    entries_per_product = source.n_entries / len(w) ** 2
    worthwhile = model.constant_curvature or model.exact or entries_per_product >= 1
    max_active = len(model.slope) if worthwhile else 0
    tol = _proving_tolerance(model, entries_per_product)
    epochs = _descend(G, g, w, terms, tol, max_active, gram.rounding)
    b = float(w[-1]) if model.has_intercept else 0.0
    curvature = gram.curvature if gram.stride == 1 else None
    work = start.work + gram_work(len(w), epochs)
    return Solution(w[: len(model.w)], b, start.u, start.epochs + epochs, curvature, True, work=work)
