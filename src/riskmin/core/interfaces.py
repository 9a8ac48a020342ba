"""The interfaces of matrices, linear maps and solvers, and the adapter of a user's own solver.

Losses, regularizers, executors and risks have abstract bases in their rooms: `losses.base.Loss`,
`regularizers.base.Regularizer`, `executors.base.Executor` and `problem.objective.Oracle`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from riskmin.core.records import Array, Iterate, NDArray, UnsupportedProblem

if TYPE_CHECKING:
    from riskmin.linear_maps.tree import Tree
    from riskmin.problem.objective import Objective


def has_method(thing: object, name: str) -> bool:
    """Whether an object of any class has a method of this name: asked where user-defined objects enter."""
    return callable(getattr(thing, name, None))


# ---------------------------------------------------------------- data and linear maps
class Matrix(ABC):
    """The design matrix X of a shard in any storage format, as a linear operator on ranges of rows.

    Two properties and two products are required; what else a format can do has defaults, which are those of
    rows that are computed on demand. `as_matrix` adapts any object with the four.
    """

    sparse: ClassVar[bool] = False
    """Whether only nonzeros are stored."""
    by_columns: ClassVar[bool] = False
    """Whether columns are contiguous, and rows are not."""
    one_block: bool = False
    """Whether products read all rows at once, whatever their range."""
    on_gpu: bool = False
    """Whether products and losses are computed by kernels of `_cuda`."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]: ...

    @property
    @abstractmethod
    def block_rows(self) -> int:
        """Rows per block, chosen such that a block is still in cache for the adjoint product."""

    @abstractmethod
    def scores(self, w: Array, start: int, stop: int) -> Array:
        """Return X[start:stop] @ w."""

    @abstractmethod
    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        """Add X[start:stop].T @ dz to out, in place."""

    # ------------------------------------------------------------ what is stored
    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return self.shape[0] * self.shape[1]

    @property
    def array(self) -> NDArray | None:
        """The entries, of shape (n, p), if all of them are stored in a NumPy array."""
        return None

    @property
    def score_like(self) -> Array | None:
        """An array of the library, device and dtype of scores, if X is stored by another array library."""
        return None

    def as_scipy(self) -> Any:
        """The same arrays as a sparse SciPy array; None if X is not sparse."""
        return None

    # ------------------------------------------------------------ rows
    def rows(self, start: int, stop: int) -> Matrix:
        """A range of rows, if `shard_ends` gives more than one."""
        raise NotImplementedError(f"{type(self).__name__} has no ranges of rows")

    def shard_ends(self, n_shards: int) -> NDArray:
        """0 and the row numbers at which shards of about equal size end: one shard if rows cannot be cut."""
        return np.array([0, self.shape[0]])

    def absolute(self, start: int, stop: int) -> Matrix | None:
        """A range of rows with the absolute values of their entries; None if they are not stored."""
        return None

    def hessian_product(self, d: Array, h: Array) -> Array | None:
        """X' diag(h) X d, if there is a kernel for it that reads X once; else None."""
        return None


class LinearMap(ABC):
    """The linear map from the weights w to the scores, and its adjoint."""

    shared: int = 0
    """The number of rows of scores that belong to all examples, such as those of label transitions."""
    n_intercepts: int = 0
    """The number of intercepts at the end of w."""
    is_identity: bool = False
    """Whether scores are X w."""
    can_be_standardized: bool = False
    """Whether `Standardized` knows the map."""
    centered: bool = False
    """Whether the rows are centered: there is a `mean`, and an `inner` map of the rows as they are."""
    standardized: bool = False
    """Whether the columns are: there are a `shift`, a `scale`, and an `inner` map of X as it is."""
    dot: Callable[[Array, Array], float] | None = None
    """The inner product of gradients and points, if it is not that of their entries."""

    @property
    @abstractmethod
    def columns(self) -> int:
        """The number of scores per row; scores have shape (n,) if it is one, else (n, columns)."""

    @abstractmethod
    def dim(self, n_features: int) -> int:
        """The length of w."""

    @abstractmethod
    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        """The scores of a range of rows."""

    @abstractmethod
    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        """Add the gradient in w, given the gradient dz in the scores, to out."""

    @property
    def of_rows(self) -> LinearMap:
        """The map of the rows as they are stored, if rows are centered; else the map itself."""
        return self

    def grad_from_outputs(self, D: Array) -> Array:
        """The gradient in w, given the gradient in the weights of the outputs, of shape (p, k)."""
        return D.reshape(-1)

    def absolute_pullback(self, X: Any, slopes: Array, out: Array) -> bool:
        """Add sum_i slopes_i |x_ij| to out, if X has a formula for it; whether it has."""
        return False

    @property
    def without_intercepts(self) -> LinearMap:
        """The map without the intercepts at the end of w."""
        return self

    @property
    def node_tree(self) -> Tree | None:
        """The `Tree`, if scores are sums of weights along its paths; else None."""
        return None

    @property
    def separate_outputs(self) -> bool:
        """Whether each output has weights of its own, up to intercepts and centered rows."""
        return False


# ---------------------------------------------------------------- solvers
class Solver(ABC):
    """An algorithm with its settings. It does not test for convergence; it ends only if it cannot proceed."""

    @abstractmethod
    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield iterates without end; the driver decides when to stop."""

    def supports(self, obj: Objective) -> str | None:
        """None if the solver can minimize the objective; else why not, and what can, in one sentence."""
        return None

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate] | None:
        """The iterates after the one whose state was saved; None if the solver cannot use states.

        A state in a file is a hint: it may have been changed, within the checks of shapes and ranges.
        """
        return None

    def verifies_states(self, obj: Objective) -> bool:
        """Whether the cuts after `resume` are computed from the data alone, whatever the state holds.

        Otherwise they count as hints, and the solver starts again from the best point before a run ends.
        """
        return False

    def warm_start(
        self, obj: Objective, state: dict[str, Array], before: Objective
    ) -> Iterator[Iterate] | None:
        """The iterates from the state of a run on the same risk with another lam or regularizer.

        Cuts bound R, which is the same, so they stay valid. None if only the
        best point of that run is of use.
        """
        return None

    def for_tolerance(self, tol: float) -> Solver:
        """The solver for a relative gap of tol; the same unless it decides by the gap that is left."""
        return self

    def passes_per_digit(self, obj: Objective) -> float | None:
        """The passes over X in which the solver is expected to gain a decimal digit; None if not known."""
        return None

    def summary(self, trace: list[dict[str, float]]) -> str:
        """A sentence on the parts of a run, for solvers that combine others; else empty."""
        return ""

    def check_supports(self, obj: Objective) -> None:
        """Raise `UnsupportedProblem` with the reason, if there is one."""
        if reason := self.supports(obj):
            raise UnsupportedProblem(reason)

    @property
    def resumable(self) -> bool:
        """Whether the solver continues from states, which its iterates must then have."""
        return type(self).resume is not Solver.resume

    @property
    def name(self) -> str:
        """The name of the class, for messages."""
        return type(self).__name__


class AdaptedSolver(Solver):
    """A user's own solver, any object with `iterates`; `supports`, `resume` and `warm_start` are optional."""

    def __init__(self, given: Any) -> None:
        self.given: Any = given

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the given solver."""
        steps: Iterator[Iterate] = self.given.iterates(obj, w0)
        return steps

    def supports(self, obj: Objective) -> str | None:
        """The reason that the given solver returns; without the method, it supports everything."""
        return self.given.supports(obj) if has_method(self.given, "supports") else None

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate] | None:
        """Continue from a saved state, if the given solver can."""
        return self.given.resume(obj, state) if self.resumable else None

    def verifies_states(self, obj: Objective) -> bool:
        """What the given solver says; without the method, its cuts after `resume` count as hints."""
        return has_method(self.given, "verifies_states") and bool(self.given.verifies_states(obj))

    def warm_start(
        self, obj: Objective, state: dict[str, Array], before: Objective
    ) -> Iterator[Iterate] | None:
        """Start from the state of another run, if the given solver can."""
        return self.given.warm_start(obj, state, before) if has_method(self.given, "warm_start") else None

    @property
    def resumable(self) -> bool:
        """Whether the given solver has the method `resume`."""
        return has_method(self.given, "resume")

    @property
    def name(self) -> str:
        """The name of the given class."""
        return type(self.given).__name__

    def __eq__(self, other: object) -> bool:
        return type(other) is AdaptedSolver and bool(self.given == other.given)

    def __hash__(self) -> int:
        return hash(type(self.given))

    def __repr__(self) -> str:
        """That of the given solver; the class and its settings in place of a memory address."""
        kind: Any = type(self.given)
        if kind.__repr__ is not object.__repr__:
            return repr(self.given)
        settings = ", ".join(f"{k}={v!r}" for k, v in vars(self.given).items())
        return f"{kind.__module__}.{kind.__qualname__}({settings})"


def as_solver(solver: Any) -> Solver:
    """Return the solver itself, or the adapter of any other object with the method `iterates`."""
    if isinstance(solver, Solver):
        return solver
    if isinstance(solver, type) or not has_method(solver, "iterates"):
        raise TypeError(f"{solver!r} is no solver: give an object with the method iterates, such as Lbfgs()")
    return AdaptedSolver(solver)
