"""The records of riskmin: shards (input), cuts and iterates (solver steps), results (output)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from riskmin.core.interfaces import Matrix

Array: TypeAlias = Any
"""An array of NumPy or of another array API library (torch, CuPy)."""

NDArray: TypeAlias = np.ndarray[Any, Any]
"""A NumPy array of any shape and dtype."""

Criterion: TypeAlias = Literal["", "tol", "atol"]
"""The tolerance that is met; empty if none is."""

Status: TypeAlias = Literal["converged", "max_iter", "max_seconds", "interrupted", "stalled"]
"""Why a run ended; see `Result`."""


class ShardCache(dict[str, Any]):
    """The cache of a shard: a dictionary that is pickled as an empty one, so that it is never sent."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardCache, ()


class RunPaused(RuntimeError):
    """Raised if a run cannot go on for now, such as without an owner of rows: the driver saves its state."""


class AnswersEnded(ValueError):
    """Raised if a risk gives no more answers, such as owners who refuse: the run ends with its best point."""


class ShardStateLost(RuntimeError):
    """Raised if the cached state of a shard is lost because its rows were reloaded: rebuild the state."""


class Shard(NamedTuple):
    """Rows that are stored together. The weights c sum to one over all shards.

    `cache` is the scratch space of the functions that run on the shard (for example, cached scores). It
    stays in the process of the shard and is never sent; it is empty after rows had to be reloaded.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Serial, Shard, as_matrix
    >>> rows = [Shard(as_matrix(np.ones((n, 2))), np.ones(n), np.full(n, 0.2), {}) for n in (2, 3)]
    >>> Serial().place(rows).map(lambda shard: shard.X.shape)
    [(2, 2), (3, 2)]
    """

    X: Matrix
    """The n x p design matrix of the rows."""
    y: Array
    """The labels, one per row."""
    c: Array
    """The sample weights, one per row, nonnegative."""
    cache: dict[str, Any]

    @property
    def part(self) -> None:
        """None: the rows are here, not in a partition that is still to be read."""
        return

    def load(self) -> Shard:
        """Return the shard itself: its rows are read."""
        return self

    def without_cache(self) -> Shard:
        """Return the shard with an empty cache, to be sent to another process."""
        return self._replace(cache=ShardCache())


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
    """The slope, of the shape of w."""
    b: float
    """The offset."""
    u: Array = None
    """The multipliers u_i of the rows, a = sum_i c_i u_i x_i, where the cut was made of them; else None."""


class Evaluation(NamedTuple):
    r"""What an oracle returns at a point w: a value, a subgradient, and a cut.

    The cut is a minorant of the risk despite rounding, inexact inner minimization or smoothing: all
    corrections are made where the value is computed.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> value, gradient, cut = linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()).evaluate(np.zeros(2))
    >>> value, gradient.tolist(), round(cut.b, 6)
    (1.0, [-0.5, 0.5], 1.0)
    """

    value: float
    """R(w), or an upper bound of it where an inner minimization is inexact."""
    gradient: Array
    cut: Cut


class Iterate(NamedTuple):
    """One step of a solver: a point, its objective value, and the best cut known at this step.

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
    """Returns the state needed to resume from this iterate; called only when a checkpoint is due."""
    intercept: float | None = None
    """The best intercept for w up to rounding, where it is minimized out: the last search starts there."""
    preconditioned: bool = False
    """Whether the cut was computed in preconditioned variables; set by `minimize`."""


@dataclass(frozen=True)
class Result:
    r"""The result of `minimize`: the best point found and a certificate of its suboptimality.

    Attributes
    ----------
    w : array
        The best point found.
    value : float
        J(w), computed at the numbers w and `intercept`.
    lower : float
        A proved lower bound of min J.
    cut : Cut
        The minorant of the risk that proves it: ``lower == objective.lower(cut)``.
    status : str
        ``converged`` (the gap is proved to be within tol), ``max_iter``, ``max_seconds``,
        ``interrupted`` (by Ctrl-C or by the callback) or ``stalled`` (no further progress
        is possible in this precision).
    trace : list of dict
        One entry per iteration: iteration, seconds, calls, value, lower, gap, significant_figures, and
        solver-specific ones.
    solver : str
        The solver that ran, the reason if `Auto` chose it, and the solvers that continued after it.
    criterion : str
        Which tolerance is met: ``tol`` (relative) or ``atol`` (absolute); empty if none is.
    note : str
        A remark in one sentence: that a custom loss is not convex, so that nothing is proved; in an
        estimator, that the weights are zero. Usually empty.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Hinge, Objective, linear_risk, minimize
    >>> J = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), lam=0.1)
    >>> result = minimize(J, tol=1e-6)
    >>> result.status, result.solver
    ('converged', 'Newton(): Hinge can be smoothed, with second derivatives')
    >>> bool(result.lower <= result.value <= result.lower + 1e-6 * result.value), result.n_iter > 0
    (True, True)
    >>> result.significant_figures >= 6
    True
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
    value_error: float = 0.0
    """By how much the value may exceed J(w): owners of rows round values up."""
    intercept: Any = 0.0
    """The intercept at which the value is J, if it is no entry of w; None if time was over before."""
    multipliers: Array = field(default=None, repr=False, compare=False)
    """The multipliers u_i of the rows that prove `lower`, where the cut was made of them; else None."""

    @property
    def gap(self) -> float:
        """``value - lower``: J(w) is at most this far above the minimum."""
        return self.value - self.lower

    @property
    def significant_figures(self) -> float:
        """The number of decimal digits of J(w) that agree with min J, at least; see `significant_figures`."""
        return significant_figures(self.value, self.lower)

    @property
    def n_iter(self) -> int:
        """The number of iterations, as the trace counts them."""
        return int(self.trace[-1]["iteration"])

    def plot(self, tol: float | None = None, axes: Any = None) -> Any:
        """Draw J(w) with its lower bound, and the relative gap, against seconds, with Matplotlib.

        Parameters
        ----------
        tol : float, optional
            The relative gap that was asked for, drawn as a horizontal line.
        axes : pair of matplotlib axes, optional
            Where to draw; by default in a new figure.

        Returns
        -------
        pair of matplotlib axes
            Those of the bounds and of the gap.
        """
        from riskmin.core.plots.convergence import plot_convergence

        return plot_convergence(self.trace, tol, axes)


def significant_figures(value: float, lower: float) -> float:
    r"""The decimal digits in which an upper and a lower bound of min J agree,

    .. math:: -\log_{10} \frac{2 (J - lower)}{|J| + |lower|},

    equation (16) of Teo et al. (KDD 2007) with its sign corrected: at least so many digits of J(w) are those
    of min J. At most 15.65, since a double has no more; -0.3, which claims nothing, without a bound.

    Examples
    --------
    >>> round(significant_figures(1.0, 0.999), 3), round(significant_figures(1.0, 0.0), 3)
    (3.0, -0.301)
    """
    size = abs(value) + abs(lower)
    if not math.isfinite(size):
        return -math.log10(2.0)
    ratio = 2 * (value - lower) / size if size else 0.0
    return -math.log10(max(ratio, 2.0**-52))


def bounds_row(value: float, lower: float) -> dict[str, float]:
    """The entries of a row of the trace that follow from the two bounds of min J."""
    figures = significant_figures(value, lower)
    return {"value": value, "lower": lower, "gap": value - lower, "significant_figures": figures}


class UnsupportedProblem(TypeError):
    """Raised if a solver does not support a loss, a regularizer or a risk; the message names one that does.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, Logistic, Objective, linear_risk, minimize
    >>> from riskmin.core import UnsupportedProblem
    >>> try:
    ...     minimize(Objective(linear_risk(np.eye(2), [1.0, -1.0], Logistic()), L1(), lam=0.1), "lbfgs")
    ... except UnsupportedProblem as error:
    ...     print(error)
    Lbfgs needs a smooth regularizer such as L2(), not L1: use ProximalGradient or Bundle
    """


class SolverFailed(RuntimeWarning):
    """Warns that one solver of a run raised an exception, its cause, and that the next one continued."""


class PairBlock(NamedTuple):
    r"""A matrix W of weights of pairs of rows, in which each row i is paired with a range of rows j,

    .. math:: W_{above_i,\, below_j} = p_i q_j \quad\text{for } first_i \le j < last_i,

    and zero otherwise. `first` and `last` are nondecreasing.
    """

    above: Array
    p: Array
    below: Array
    q: Array
    first: Array
    last: Array


class Hessian(NamedTuple):
    r"""The Hessian of a loss in the scores, :math:`H = \mathrm{diag}(h) - \sum_k s_k s_k^\top
    - \sum_k (W_k + W_k^\top)`: a diagonal minus a low-rank part minus pair blocks.
    """

    diagonal: Array
    low_rank: tuple[Array, ...] = ()
    """The vectors s_k."""
    pair_blocks: tuple[PairBlock, ...] = ()
    """The matrices W_k."""
