r"""The records and protocols of riskmin. Read this first.

Everything here serves one problem,

.. math:: \min_w J(w) = \lambda\,\Omega(w) + R(w), \qquad R(w) = \text{loss}(\text{scores}(X, w);\, y) \ge 0,

and flows one way: data -> shards -> executor -> risk -> objective -> solver -> result.
A loss sees only scores, a regularizer sees only w, an executor sees only top-level functions of a
shard, and a solver sees only an objective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from riskmin.objective import Objective

Array: TypeAlias = Any
"""An array of NumPy, or of another library of the array API (torch, CuPy)."""

NDArray: TypeAlias = np.ndarray[Any, Any]
"""An array of NumPy, of any shape and dtype."""

Status: TypeAlias = Literal["converged", "max_iter", "max_seconds", "interrupted", "stalled"]


# ---------------------------------------------------------------- records
class Shard(NamedTuple):
    """Rows that live together. The weights c sum to one over all shards.

    `memo` is the scratch space of the functions that run on the shard (cached scores, say). It
    stays where the shard is, so it is never sent anywhere.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Serial, Shard, as_matrix
    >>> rows = [Shard(as_matrix(np.ones((n, 2))), np.ones(n), np.full(n, 0.2), {}) for n in (2, 3)]
    >>> Serial(rows).map(lambda shard: shard.X.shape)
    [(2, 2), (3, 2)]
    """

    X: Matrix
    y: Array
    c: Array
    memo: dict[str, Any]


class Cut(NamedTuple):
    r"""An affine minorant of the risk, :math:`R(v) \ge a^\top v + b` for every v: the one certificate.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Cut, Hinge, Objective, linear_risk
    >>> J = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), lam=0.1)
    >>> cut = J.cut(np.zeros(2))
    >>> cut.a, round(cut.b, 6)
    (array([-0.5,  0.5]), 1.0)
    >>> round(J.lower(cut), 6), round(J.lower(Cut(0.1 * cut.a, 0.1 * cut.b)), 6)
    (0.1, 0.075)
    """

    a: Array
    b: float


class Iterate(NamedTuple):
    """One step of a solver: a point, its exact objective, and the tightest cut the step knows of.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Hinge, Iterate, Objective, linear_risk
    >>> J = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), lam=0.1)
    >>> w = np.zeros(2)
    >>> value, grad, cut = J(w)
    >>> it = Iterate(w, value, cut)
    >>> bool(J.lower(it.cut) <= it.value)
    True
    """

    w: Array
    value: float
    cut: Cut
    info: Mapping[str, float] = MappingProxyType({})
    state: Callable[[], dict[str, Array]] | None = None
    """All a solver needs to go on from here, as named arrays; called only when a checkpoint is due."""


@dataclass(frozen=True)
class Result:
    r"""What `minimize` returns: the best point found and the proof of how good it is.

    Attributes
    ----------
    w : array
        The best point found.
    value : float
        J(w).
    lower : float
        A proved lower bound of min J.
    cut : Cut
        The minorant of the risk that proves it: ``lower == objective.lower(cut)``.
    status : str
        ``converged`` (the gap is proved to be within tol), ``max_iter``, ``max_seconds``,
        ``interrupted`` (Ctrl-C, or the callback asked for it) or ``stalled`` (no further progress
        is possible in this precision).
    trace : list of dict
        A row an iteration: iteration, seconds, calls, value, lower, gap, and the solver's own.
    solver : str
        The solver that ran, and why it was chosen where that was `Auto`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Hinge, Objective, linear_risk, minimize
    >>> J = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), lam=0.1)
    >>> result = minimize(J, tol=1e-6)
    >>> result.status, result.solver
    ('converged', 'Bundle(keep=20): Hinge is not smooth')
    >>> bool(result.lower <= result.value <= result.lower + 1e-6 * result.value), result.n_iter > 0
    (True, True)
    """

    w: Array
    value: float
    lower: float
    cut: Cut
    status: Status
    trace: list[dict[str, float]] = field(repr=False)
    solver: str = ""

    @property
    def gap(self) -> float:
        """``value - lower``: J(w) is at most this far above the minimum."""
        return self.value - self.lower

    @property
    def n_iter(self) -> int:
        """The number of iterations, as the trace counts them."""
        return int(self.trace[-1]["iteration"])


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

    def dim(self, n_features: int) -> int: ...
    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array: ...
    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None: ...


class Regularizer(Protocol):
    """A convex function of w, with all that duality asks of it. The strength lam is not in it."""

    def value(self, w: Array) -> float: ...
    def prox(self, v: Array, step: float) -> Array:
        """argmin_w step * Omega(w) + |w - v|^2 / 2."""
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


@runtime_checkable
class Smooth(Protocol):
    """A regularizer with a gradient."""

    def grad(self, w: Array) -> Array: ...


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
