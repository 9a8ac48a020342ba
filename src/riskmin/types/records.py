"""The records that flow through riskmin: shards in, cuts and iterates between, a result out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from riskmin.types.protocols import Matrix

Array: TypeAlias = Any
"""An array of NumPy, or of another library of the array API (torch, CuPy)."""

NDArray: TypeAlias = np.ndarray[Any, Any]
"""An array of NumPy, of any shape and dtype."""

Criterion: TypeAlias = Literal["", "tol", "atol"]

Status: TypeAlias = Literal["converged", "max_iter", "max_seconds", "interrupted", "stalled"]


class Memo(dict[str, Any]):
    """A dictionary of which copies are empty: what is remembered of a shard stays where that is.

    Examples
    --------
    >>> import pickle
    >>> pickle.loads(pickle.dumps(Memo(k=1)))
    {}
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return Memo, ()


class Lost(RuntimeError):
    """What a shard remembered is gone: its rows were read anew elsewhere. Ask for it to be made again.

    Examples
    --------
    >>> raise Lost("the scores of a point")
    Traceback (most recent call last):
    ...
    riskmin.types.records.Lost: the scores of a point
    """


class Shard(NamedTuple):
    """Rows that live together. The weights c sum to one over all shards.

    `memo` is the scratch space of the functions that run on the shard (cached scores, say). It
    stays where the shard is, so it is never sent anywhere; where rows had to be read anew, it is empty.

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
        The solver that ran, and why it was chosen where that was `Auto`; and which went on after it.
    criterion : str
        Which tolerance is met: ``tol``, the relative one, or ``atol``; empty if none is.
    note : str
        What else there is to say, in a sentence: that a loss of your own is not convex, so that nothing is
        proved; in an estimator, that the weights are zero. Empty, mostly.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Hinge, Objective, linear_risk, minimize
    >>> J = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), lam=0.1)
    >>> result = minimize(J, tol=1e-6)
    >>> result.status, result.solver
    ('converged', 'SemismoothNewton(direct=2500): Hinge is not smooth, and X is dense')
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
    criterion: Criterion = ""
    note: str = ""

    @property
    def gap(self) -> float:
        """``value - lower``: J(w) is at most this far above the minimum."""
        return self.value - self.lower

    @property
    def n_iter(self) -> int:
        """The number of iterations, as the trace counts them."""
        return int(self.trace[-1]["iteration"])


class Unsuited(TypeError):
    """A solver was given a loss, a regularizer or a risk that it is not for; the message names one that is.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, Logistic, Objective, linear_risk, minimize
    >>> from riskmin.types import Unsuited
    >>> try:
    ...     minimize(Objective(linear_risk(np.eye(2), [1.0, -1.0], Logistic()), L1(), lam=0.1), "lbfgs")
    ... except Unsuited as error:
    ...     print(error)
    Lbfgs needs a smooth regularizer such as L2(), not L1: use ProximalGradient or Bundle
    """


class Dual(NamedTuple):
    r"""A conjugate that is quadratic on an interval, a row at a time,

    .. math:: l^*(u, y_i) = shift_i u + \epsilon |u| + \tfrac q2 u^2, \qquad lower_i \le u \le upper_i.

    That of most losses: one exact step of dual ascent serves them all.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge
    >>> Hinge().dual(np.array([1.0, -1.0]))
    Dual(lower=array([-1.,  0.]), upper=array([0., 1.]), shift=array([ 1., -1.]), epsilon=0.0, square=0.0)
    """

    lower: Array
    upper: Array
    shift: Array
    epsilon: float = 0.0
    square: float = 0.0


class Window(NamedTuple):
    r"""Weights of pairs of two lists of rows, of which each row has those of a range of the other,

    .. math:: W_{above_i,\, below_j} = p_i q_j \quad\text{for } first_i \le j < last_i,

    and zero elsewhere. `first` and `last` never fall.

    Examples
    --------
    >>> import numpy as np
    >>> above, below = np.array([0, 1]), np.array([2, 3])
    >>> Window(above, np.ones(2), below, np.ones(2), np.array([0, 1]), np.array([1, 2])).last.tolist()
    [1, 2]
    """

    above: Array
    p: Array
    below: Array
    q: Array
    first: Array
    last: Array


class Bend(NamedTuple):
    r"""Second derivatives in the scores, as :math:`H = \mathrm{diag}(h) - \sum_k s_k s_k^\top
    - \sum_k (W_k + W_k^\top)`: all that Newton's method asks of a loss.

    Examples
    --------
    >>> import numpy as np
    >>> Bend(np.ones(2), (np.full(2, 0.5**0.5),)).diagonal.tolist()  # [[1, -1], [-1, 1]] / 2
    [1.0, 1.0]
    """

    diagonal: Array
    minus: tuple[Array, ...] = ()
    """The vectors s."""
    windows: tuple[Window, ...] = ()
