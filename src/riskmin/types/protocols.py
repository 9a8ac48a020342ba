"""The protocols: what a loss, a regularizer, an executor, a risk and a solver are to the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from riskmin.types.records import Array, Bend, Cut, Dual, Iterate

if TYPE_CHECKING:
    from riskmin.objective import Objective


# ---------------------------------------------------------------- the problem
@runtime_checkable
class Loss(Protocol):
    """A convex, nonnegative function of the scores."""

    @property
    def separable(self) -> bool:
        """Whether it is a sum over rows, so that each block of rows may evaluate its own part."""
        ...

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """sum_i c_i l(z_i, y_i), and a subgradient in z with the c_i already in it."""
        ...


@runtime_checkable
class ChecksLabels(Protocol):
    """A loss that knows which labels it takes."""

    def check_labels(self, y: Array) -> None:
        """Raise a ValueError that names the cause and the remedy."""
        ...


@runtime_checkable
class HasValues(Protocol):
    """A loss that tells what each row contributes, for losses made of it that need to know."""

    def values(self, z: Array, y: Array) -> Array:
        """l(z_i, y_i), a row at a time."""
        ...


@runtime_checkable
class HasDual(Protocol):
    """A loss whose conjugate is quadratic on an interval."""

    def dual(self, y: Array) -> Dual | None:
        """The conjugate, a row at a time, lower <= 0 <= upper; None if the parameters make it another."""
        ...


@runtime_checkable
class HasConjugate(Protocol):
    """A loss with another conjugate, of which it knows the derivative."""

    def conjugate(self, u: Array, y: Array) -> Array:
        """sup_z u_i z - l(z, y_i), a row at a time; infinite outside of its domain."""
        ...

    def conjugate_grad(self, u: Array, y: Array) -> Array:
        """The z that attains it; infinite at the ends of the domain where none does."""
        ...

    def conjugate_domain(self, y: Array) -> tuple[Array, Array]:
        """The least and the largest u of each row, around 0."""
        ...


@runtime_checkable
class Curved(Protocol):
    """A smooth loss with second derivatives."""

    def curvature(self, z: Array, y: Array, c: Array) -> Array:
        """c_i l''(z_i, y_i), a row at a time; from the right where it jumps."""
        ...


@runtime_checkable
class Smoothable(Protocol):
    """A loss that is a maximum over multipliers, and knows it with a square of them taken off."""

    def soft(self, z: Array, y: Array, c: Array, mu: float) -> tuple[Any, Array, Any]:
        """The smoothed loss, its gradient in z, and its lift: what mu times the square took off.

        The tangent, raised by the lift, is a cut of the loss itself. A loss with a multiplier a row may say
        ``centred = True`` and take a further argument, a gradient of before: then it is the distance to its
        multipliers that counts.
        """
        ...


@runtime_checkable
class Bends(Protocol):
    """A loss with a method `soft` that knows its second derivatives too: for Newton's method."""

    def bend(self, z: Array, y: Array, c: Array, mu: float) -> Bend:
        """Those of the smoothed loss in z; of one side, where they jump. A centre as for `soft`."""
        ...


@runtime_checkable
class Lifted(Protocol):
    """A loss that stands for another, which is nowhere below its tangents raised by their lifts."""

    def tangent(self, z: Array, y: Array, c: Array) -> tuple[Any, Array, Any]:
        """Value, gradient in z, and lift."""
        ...


class Matrix(Protocol):
    """The examples of a shard, whatever holds them: rows in, scores out, and back."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def block_rows(self) -> int:
        """How many rows to take at a time, so that they are still in cache on the way back."""
        ...

    def scores(self, w: Array, start: int, stop: int) -> Array:
        """X[start:stop] @ w."""
        ...

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        """Add X[start:stop].T @ dz to out, in place."""
        ...


class Scorer(Protocol):
    """The linear map from w to scores, and its adjoint."""

    @property
    def columns(self) -> int:
        """How many scores a row has; scores are of shape (n,) where that is one."""
        ...

    def dim(self, n_features: int) -> int: ...
    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array: ...
    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None: ...


class Regularizer(Protocol):
    """A convex function of w, with all that duality asks of it. The strength lam is not in it."""

    def value(self, w: Array) -> float: ...
    def prox(self, v: Array, step: float) -> Array:
        """argmin_w step * Omega(w) + |w - v|^2 / 2; for step 0, the nearest point of the domain."""
        ...

    def conjugate(self, u: Array) -> float: ...
    def conjugate_grad(self, u: Array) -> Array:
        """argmax_w u @ w - Omega(w): paper E's transfer function."""
        ...

    def scale(self, cut: Cut, lam: float) -> float:
        """The s in [0, 1] for which the shrunk cut (s a, s b), valid since R >= 0, bounds best."""
        ...

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """T -> Omega(w + t d) and its slope in t, at O(1) a call where that is possible."""
        ...

    def reach(self, w: Array, d: Array) -> float:
        """The largest t for which w + t d is in the domain; mostly infinite."""
        ...


@runtime_checkable
class Smooth(Protocol):
    """A regularizer with a gradient."""

    def grad(self, w: Array) -> Array: ...


@runtime_checkable
class Euclidean(Protocol):
    """A regularizer w' K w / 2: the model of a bundle is a quadratic program in inner products of cuts."""

    def gram(self, A: Array, a: Array) -> Array:
        """A K^-1 a, for the rows of A."""
        ...


@runtime_checkable
class CurvedConjugate(Protocol):
    """A regularizer whose conjugate has second derivatives: Newton's method solves the model of a bundle."""

    def conjugate_bend(self, u: Array, A: Array) -> Array:
        """A H A', for the rows of A, where H is the derivative of `conjugate_grad` at u."""
        ...


# ---------------------------------------------------------------- where it runs
class Executor(Protocol):
    """Holds the shards and runs top-level functions on them: it alone knows where they are."""

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """[f(shard_k, *args, each_k) for k], in shard order."""
        ...

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, each: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The tuples of `map`, added up in shard order."""
        ...


@runtime_checkable
class Oracle(Protocol):
    """What a solver can ask of any risk."""

    @property
    def dim(self) -> int: ...

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R(w) and a subgradient."""
        ...


@runtime_checkable
class Slips(Protocol):
    """A risk that is itself a minimum, known from above, while its cut is known from below."""

    def evaluate(self, w: Array) -> tuple[float, Array, float]:
        """R(w) or a little more, a gradient, and by how much the cut there lies below that value."""
        ...


@runtime_checkable
class Raises(Protocol):
    """A risk that stands for another, which is nowhere below it: its cuts lie above its own tangents."""

    def lift(self, w: Array) -> float:
        """By how much the cut at w does."""
        ...


@runtime_checkable
class Balances(Protocol):
    """A risk with intercepts among the entries of w, the last ones: they are not penalized."""

    @property
    def n_intercepts(self) -> int: ...

    def balanced(self, cut: Cut) -> Cut:
        """A cut without a slope in the intercepts, made of this one: else it would bound nothing."""
        ...


@runtime_checkable
class Cursor(Protocol):
    """A point that keeps its scores, so that a line search costs O(n) a step and no pass over X."""

    slip: float
    """By how much the cut of the last `value_grad` lies below its value."""

    @property
    def w(self) -> Array: ...

    def value_grad(self, t: float = 0.0) -> tuple[float, Array]:
        """R(w + t d) and a subgradient: one pass back over X."""
        ...

    def aim(self, d: Array, slack: float = 0.0) -> None:
        """Look along w + t d: one pass forward over X. The looks may be too high by as much as slack."""
        ...

    def along(self, t: float) -> tuple[float, float]:
        """R(w + t d) and its slope in t."""
        ...

    def move(self, t: float) -> None:
        """Go to w + t d."""
        ...


@runtime_checkable
class KeepsScores(Protocol):
    """A risk that offers cursors."""

    def cursor(self, w: Array) -> Cursor: ...


# ---------------------------------------------------------------- who solves it
class Solver(Protocol):
    """Settings and one method. A solver never stops by itself, unless it can get no further."""

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield for ever; the driver decides when to stop."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A solver that can go on from the state of one of its iterates."""

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]: ...


@runtime_checkable
class Warm(Protocol):
    """A solver that makes use of a run on the same risk with another lam or regularizer."""

    def warm(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """As `iterates`, from the state of an iterate of the objective before: cuts bound R, so they hold."""
        ...
