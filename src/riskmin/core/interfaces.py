"""The interfaces of matrices, linear maps and solvers, and the adapter of a user's own solver.

Losses, regularizers, executors and risks have abstract bases in their rooms: `losses.base.Loss`,
`regularizers.base.Regularizer`, `executors.base.Executor` and `problem.oracle.Oracle`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from riskmin.core.records import Array, Iterate, UnsupportedProblem

if TYPE_CHECKING:
    from riskmin.problem.objective import Objective


# ---------------------------------------------------------------- data and linear maps
class Matrix(Protocol):
    """The design matrix X of a shard in any storage format, as a linear operator on ranges of rows."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def block_rows(self) -> int:
        """Rows per block, chosen such that a block is still in cache for the adjoint product."""
        ...

    def scores(self, w: Array, start: int, stop: int) -> Array:
        """Return X[start:stop] @ w."""
        ...

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        """Add X[start:stop].T @ dz to out, in place."""
        ...


class LinearMap(Protocol):
    """The linear map from the weights w to the scores, and its adjoint."""

    @property
    def columns(self) -> int:
        """The number of scores per row; scores have shape (n,) if it is one, else (n, columns)."""
        ...

    def dim(self, n_features: int) -> int: ...
    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array: ...
    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None: ...


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
        """The iterates after the one whose state was saved; None if the solver cannot use states."""
        return None

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
        self.given = given

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the given solver."""
        steps: Iterator[Iterate] = self.given.iterates(obj, w0)
        return steps

    def supports(self, obj: Objective) -> str | None:
        """The reason that the given solver returns; without the method, it supports everything."""
        return self._optional("supports", obj)  # type: ignore[no-any-return]

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate] | None:
        """Continue from a saved state, if the given solver can."""
        return self._optional("resume", obj, state)  # type: ignore[no-any-return]

    def warm_start(
        self, obj: Objective, state: dict[str, Array], before: Objective
    ) -> Iterator[Iterate] | None:
        """Start from the state of another run, if the given solver can."""
        return self._optional("warm_start", obj, state, before)  # type: ignore[no-any-return]

    def _optional(self, name: str, *args: Any) -> Any:
        method = getattr(self.given, name, None)
        return None if method is None else method(*args)

    @property
    def resumable(self) -> bool:
        """Whether the given solver has the method `resume`."""
        return hasattr(self.given, "resume")

    @property
    def name(self) -> str:
        """The name of the given class."""
        return type(self.given).__name__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AdaptedSolver) and bool(self.given == other.given)

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
    if isinstance(solver, type) or not callable(getattr(solver, "iterates", None)):
        raise TypeError(f"{solver!r} is no solver: give an object with the method iterates, such as Lbfgs()")
    return AdaptedSolver(solver)
