r"""A change of variables that leaves J as it is: columns of X centred and brought to one size.

With an unpenalized intercept, J does not change when columns are shifted; and when columns are divided by
numbers, weights are multiplied by them. So the same problem reads, in :math:`v = w / s`,

.. math:: \min_v\; \lambda\,\Omega(s \circ v) + R'(v), \qquad x' = (x - m) \circ s,

and a cut :math:`(a, b)` of :math:`R'` is the cut :math:`(a / s, b)` of R. Solvers work on the second form;
what they prove is of the first. The sizes :math:`s_j` are powers of two, so that no rounding comes in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from riskmin.adaptive import Adaptive
from riskmin.arrays import like, namespace, to_numpy
from riskmin.executors import Serial, Threads
from riskmin.intercept import Profiled
from riskmin.intercepts import CentredRisk, WithIntercepts
from riskmin.maps import crowds, picking
from riskmin.matrices import (
    Columns,
    Csc,
    Csr,
    Dense,
    Plain,
    Wide,
    as_matrix,
    as_scipy,
    with_transpose,
)
from riskmin.objective import Objective
from riskmin.regularizers import Rescaled, opened, penalized, scaled
from riskmin.risk import Risk
from riskmin.scorers import Hierarchy, Linear, Multiclass, Standardized, WithOnes
from riskmin.tree import Tree
from riskmin.types import Array, Cut, Executor, Iterate, Memo, NDArray, Resumable, Shard, Solver, Unsuited

SAMPLE, FEWEST = 2**13, 64
"""Means and sizes of columns are estimated from rows of about so many numbers, and at least so many rows."""
FEWEST_NUMBERS = 5
"""A sparse column with fewer numbers in the sample has no size that is known."""
MOST_COPIED = 2**23
"""Up to so many numbers (64 MB) centred columns are stored; beyond, every product is corrected instead."""
FARTHEST = 400
"""Scales are powers of two up to this one, of either sign."""
SMALL = 2**17
"""Up to so many numbers, a copy costs next to nothing."""
OFFSET, FAR_OFFSET = 1.0, 8.0
"""The mean of a column, beside its standard deviation, that makes a change worth while; if X is not small."""
SPREAD, FAR_SPREAD = 8.0, 100.0
"""The ratio of the largest to the smallest size of a column that does; if X is not small, or is sparse."""
WORDS = 2**15
"""Sparse columns in larger numbers are words or the like, which all have one unit."""
DENSE = 0.25
"""A sparse X with this share of its numbers is stored as a dense one when its columns are centred."""


class Moments(NamedTuple):
    """Of each column of a sample: weight of the rows, mean, mean square around it, least and largest number.

    Of sparse columns, the last two tell only whether they are constant.
    """

    n: float
    mean: NDArray
    variance: NDArray
    least: NDArray
    largest: NDArray


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """The change of variables w = s v, with columns (x - m) s.

    Parameters
    ----------
    shift : (p,) array
        The m; zeros where J would change with it.
    scale : (p,) array
        The s, powers of two.
    tree : Tree, optional
        Of scores that are sums along its paths; else each output has weights of its own.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, L2, Objective, linear_risk
    >>> X, y = np.array([[1000.0], [1002.0]]), np.array([1.0, -1.0])
    >>> J = Objective(linear_risk(X, y, Hinge(), fit_intercept=True), L2(), lam=0.1)
    >>> change = Preconditioner(np.array([1001.0]), np.array([2.0]))
    >>> same = change.objective(J)
    >>> same.risk.risk.rows.X.X.tolist()
    [[-2.0], [2.0]]
    >>> abs(same.value(np.array([0.1])) - J.value(np.array([0.2]))) < 1e-9
    True
    """

    shift: NDArray
    scale: NDArray
    tree: Tree | None = None

    # ------------------------------------------------------------ points and cuts
    def _per_entry(self, w: Array, tail: int) -> Array:
        """The scale of every weight: of each output, where these are many."""
        return like(np.repeat(self.scale, (len(w) - tail) // len(self.scale)), w)

    def _moved(self, W: Array) -> Array:
        """By how much the shift of the columns moves the scores: m' W, one per output."""
        moved = like(self.shift, W) @ W.reshape(len(self.shift), -1)
        return moved if self.tree is None else self.tree.to_labels(moved[None, :])[0]

    def inward(self, w: Array, k: int = 0) -> Array:
        """The v of a point w, of which the last k entries are intercepts."""
        head = w[: len(w) - k] / self._per_entry(w, k)
        return namespace(w).concat([head, w[-k:] + self._moved(w[:-k])]) if k else head

    def outward(self, v: Array, k: int = 0) -> Array:
        """The w of a point v."""
        head = v[: len(v) - k] * self._per_entry(v, k)
        return namespace(v).concat([head, v[-k:] - self._moved(head)]) if k else head

    def cut(self, cut: Cut, k: int = 0) -> Cut:
        """The cut in w that a cut in v is."""
        a = cut.a
        head = a[: len(a) - k] / self._per_entry(a, k)
        if k:
            slopes = a[-k:] if self.tree is None else self.tree.from_labels(a[None, -k:])[0]
            head = head + (like(self.shift, a)[:, None] * slopes).reshape(-1)
            head = namespace(a).concat([head, a[-k:]])
        return Cut(head, cut.b)

    def iterates(self, steps: Iterator[Iterate], k: int = 0) -> Iterator[Iterate]:
        """Iterates in v as iterates in w; their states stay as they are."""
        for it in steps:
            yield it._replace(w=self.outward(it.w, k), cut=self.cut(it.cut, k))

    # ------------------------------------------------------------ problems
    def objective(self, obj: Objective) -> Objective | None:
        """The same problem in v; None where it has no such form."""
        outputs = (obj.risk.dim - obj.n_intercepts) // len(self.scale)
        reg = opened(scaled(penalized(obj.reg), np.repeat(self.scale, outputs)))
        risk = self.risk(obj.risk)
        return None if reg is None or risk is None else Objective(risk, reg, obj.lam, obj.count)

    def risk(self, risk: Any) -> Any:
        """The risk as a function of v; None where it is no risk of a linear model."""
        if isinstance(risk, (Profiled, Adaptive)):
            field = "risk" if isinstance(risk, Profiled) else "base"
            inner = self.risk(getattr(risk, field))
            return None if inner is None else replace(risk, **{field: inner})
        rows = self._stored(risk)
        if rows is None:
            return self._implicit(risk)
        changed = replace(risk, executor=_held(risk.executor, rows.X), rows=rows, table=None)
        if isinstance(risk, CentredRisk):
            scorer: Any = risk.scorer
            mean = (to_numpy(scorer.mean) - self.shift) * self.scale
            return replace(changed, scorer=replace(scorer, mean=mean))
        return changed

    def stores(self, risk: Risk) -> bool:
        """Whether there is room for rows with their columns changed."""
        rows = risk.rows
        if rows is None or not isinstance(risk.executor, (Serial, Threads)):
            return False
        X: Any = rows.X.csr if isinstance(rows.X, Wide) else rows.X
        if isinstance(X, (Csr, Csc)) and not self.shift.any():
            return X.data.size <= MOST_COPIED and not crowds(X.data)
        return isinstance(X, (Dense, Columns)) and X.shape[0] * X.shape[1] <= MOST_COPIED

    def _stored(self, risk: Risk) -> Shard | None:
        """The rows with their columns changed, where there is room for them; else None."""
        rows = risk.rows
        if rows is None or not isinstance(risk.executor, (Serial, Threads)):
            return None
        n, p = rows.X.shape
        X: Any = rows.X
        if isinstance(X, (Dense, Columns)) and n * p <= MOST_COPIED:
            whole = np.asarray(X.X if isinstance(X, Dense) else X.T.T, np.float64, "C")
            return rows._replace(X=Dense((whole - self.shift) * self.scale), memo=Memo())
        if not isinstance(X, (Csr, Csc, Wide)):
            return None
        held: Any = as_scipy(X.csr if isinstance(X, Wide) else X)
        if held.nnz > MOST_COPIED or crowds(held.data):
            return None
        if not self.shift.any():
            return rows._replace(X=as_matrix(held @ sp.diags_array(self.scale)), memo=Memo())
        if n * p > MOST_COPIED or held.nnz < DENSE * n * p:
            return None
        return rows._replace(X=Dense((held.toarray() - self.shift) * self.scale), memo=Memo())

    def _implicit(self, risk: Risk) -> Risk | None:
        """The risk with X as it is: every product is corrected by the shift."""
        scorer: Any = risk.scorer
        inner = scorer.inner if isinstance(scorer, WithOnes) else scorer
        if not isinstance(inner, (Linear, Multiclass, Hierarchy)):
            return None
        changed = Standardized(inner, self.shift, self.scale)
        outer = WithOnes(changed) if isinstance(scorer, WithOnes) else changed
        return replace(risk, scorer=outer, rows=None)


def _held(executor: Any, X: Any) -> Executor:
    """An executor of the same kind, with the new columns in shards of the same rows."""
    ends = np.cumsum([0, *(len(shard.c) for shard in executor.shards)]).tolist()
    parts: list[Any] = [X] if len(ends) == 2 else [X.rows(i, j) for i, j in pairwise(ends)]
    wide = [isinstance(shard.X, Wide) for shard in executor.shards]
    parts = [with_transpose(part) if w else part for part, w in zip(parts, wide, strict=True)]
    held: Executor = executor(
        [old._replace(X=part, memo=Memo()) for old, part in zip(executor.shards, parts, strict=True)]
    )
    return held


@dataclass(frozen=True)
class Conditioned:
    """A problem as solvers see it, and as it was given.

    Parameters
    ----------
    given : Objective
    obj : Objective
        The same in other variables, or the very same.
    change : Preconditioner, optional
        Which; None for the same variables.
    """

    given: Objective
    obj: Objective
    change: Preconditioner | None = None

    @classmethod
    def of(cls, obj: Objective, change: Preconditioner | None) -> Conditioned:
        """The problem in the variables of a preconditioner, where it has such a form."""
        same = None if change is None else change.objective(obj)
        return cls(obj, _opened(obj)) if same is None else cls(obj, same, change)

    def inward(self, w: Array) -> Array:
        """A point of the given problem in the variables of solvers."""
        return w if self.change is None else self.change.inward(w, self.given.n_intercepts)

    def iterates(self, solver: Solver, w0: Array) -> Iterator[Iterate]:
        """The iterates of a solver, as those of the given problem.

        A solver that does not take the problem in other variables (it visits rows one by one, say, where the
        columns of all rows are centred in passing) gets it as it was given.
        """
        if self.change is None:
            return solver.iterates(self.obj, w0)
        try:
            steps = solver.iterates(self.obj, self.inward(w0))
            first = [next(steps)]
        except StopIteration:
            first = []
        except Unsuited:
            return solver.iterates(_opened(self.given), w0)
        return self.change.iterates(chain(first, steps), self.given.n_intercepts)

    def resumed(self, solver: Resumable, state: dict[str, Array]) -> Iterator[Iterate]:
        """Those of a run that goes on from a state."""
        if self.change is None:
            return solver.resume(self.obj, state)
        return self.change.iterates(solver.resume(self.obj, state), self.given.n_intercepts)


# ---------------------------------------------------------------- which one
def preconditioner(obj: Objective) -> Preconditioner | None:
    """The change of variables for a problem; None where its columns are centred and of one size already.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Absolute, L2, Objective, linear_risk
    >>> X, y = np.array([[1.0, 5000.0], [2.0, 7000.0], [3.0, 8000.0]]), np.array([1.0, 3.0, 2.0])
    >>> change = preconditioner(Objective(linear_risk(X, y, Absolute()), L2(), lam=0.1))
    >>> change.shift.tolist(), change.scale.tolist()
    ([0.0, 0.0], [0.5, 0.0001220703125])
    """
    risk = _linear(obj.risk)
    if risk is None:
        return None
    words = risk.table is not None and risk.table.sparse and risk.table.shape[1] > WORDS
    found = None if words else _moments(risk)
    if found is None:
        return _undoing(obj, risk)
    numbers = risk.table.numbers if risk.table is not None else SMALL + 1
    sparse = risk.table is not None and risk.table.sparse
    small = numbers <= SMALL and not sparse
    constant = found.least == found.largest
    deviation = np.sqrt(found.variance)
    shift = np.zeros_like(found.mean)
    if _shifts(obj.risk):
        far = np.abs(found.mean) > (OFFSET if small else FAR_OFFSET) * deviation
        if np.any(far & ~constant):
            shift = np.where(constant, found.least, found.mean)
            shift = np.where(far, shift, 0.0) if sparse else shift
    if (own := _undoing(obj, risk, shift)) is not None:
        return own
    obj = _opened(obj)
    reg, outputs = penalized(obj.reg), (obj.risk.dim - obj.n_intercepts) // len(shift)
    size = np.hypot(deviation, found.mean - shift)
    scale = _sizes(obj, size)
    seen = size > 0
    scale = np.where(seen, scale, np.median(scale[seen]) if seen.any() else 1.0)
    ratio = float(scale.max() / scale.min())
    if ratio <= (SPREAD if small else FAR_SPREAD) or scaled(reg, np.repeat(scale, outputs)) is None:
        scale = np.ones_like(scale)
    return Preconditioner(shift, scale, _tree(risk)) if shift.any() or (scale != 1).any() else None


def _tree(risk: Risk) -> Tree | None:
    """That of scores that are sums along its paths."""
    inner = getattr(risk.scorer, "inner", risk.scorer)
    return inner.tree if isinstance(inner, Hierarchy) else None


def _undoing(obj: Objective, risk: Risk, shift: NDArray | None = None) -> Preconditioner | None:
    """That in which a rescaled regularizer is what it is without: a form that more solvers take.

    None where there is no room for such rows, if the regularizer can also be rescaled itself.
    """
    reg = penalized(obj.reg)
    if not isinstance(reg, Rescaled) or (shift is None and risk.table is None):
        return None
    shift = np.zeros(risk.table.shape[1]) if shift is None else shift  # type: ignore[union-attr]
    own = Preconditioner(shift, 1 / reg.sizes[:: len(reg.sizes) // len(shift)], _tree(risk))
    return own if own.stores(risk) or opened(reg) is reg else None


def _opened(obj: Objective) -> Objective:
    """The problem with its regularizer as solvers know it."""
    reg = penalized(obj.reg)
    return replace(obj, reg=opened(reg)) if isinstance(reg, Rescaled) else obj


def sampled_moments(risk: Any) -> Moments | None:
    """The moments of a sample of the rows of a linear risk; None of any other."""
    inner = _linear(risk)
    return None if inner is None else _moments(inner)


def _linear(risk: Any) -> Risk | None:
    """The risk of scores that are linear in the rows of a table; None of any other."""
    while isinstance(risk, (Profiled, Adaptive)):
        risk = risk.risk if isinstance(risk, Profiled) else risk.base
    return risk if isinstance(risk, Risk) and getattr(risk.loss, "task", None) != "tagging" else None


def _shifts(risk: Any) -> bool:
    """Whether J stays the same when columns are shifted: there is an intercept, or none is needed."""
    if isinstance(risk, (Profiled, WithIntercepts, CentredRisk)):
        return True
    if isinstance(risk, Adaptive):
        return _shifts(risk.base)
    return not risk.many and bool(getattr(risk.loss, "invariant", False))


def _sizes(obj: Objective, size: NDArray) -> NDArray:
    """The scale of each column, a power of two near 1 / sqrt(size^2 + lam m), for penalties m w^2 / 2.

    Where the penalty is larger than the column, the column does not matter to the conditioning.
    """
    reg, floor = penalized(obj.reg), np.zeros_like(size)
    terms = getattr(reg, "terms", None)
    if terms is not None:
        square = np.asarray(terms(np.zeros(obj.risk.dim - obj.n_intercepts)).square) + np.zeros(1)
        floor = obj.lam * (square.reshape(len(size), -1).max(1) if square.size > 1 else square + floor)
    found = np.hypot(size, np.sqrt(floor))
    found = np.where(found > 0, found, 1.0)
    # so that squares of scales are numbers, too
    return np.exp2(-np.clip(np.round(np.log2(found)), -FARTHEST, FARTHEST))


def _moments(risk: Risk) -> Moments | None:
    """Those of a sample of the rows, a few of each shard."""
    try:
        n, p = (0, 1) if risk.table is None else risk.table.shape
        each = p if risk.table is None or not risk.table.sparse else max(risk.table.numbers // (4 * n), 1)
        parts = risk.executor.map(_sampled, max(SAMPLE // each, FEWEST) / max(n, 1))
    except TypeError:  # what stands for the rows has no rows to look at
        return None
    if any(part is None for part in parts):
        return None
    parts = [part for part in parts if part.n]
    if not parts:
        return None
    n = sum(part.n for part in parts)
    mean = sum(part.n / n * part.mean for part in parts)
    variance = sum(part.n / n * (part.variance + (part.mean - mean) ** 2) for part in parts)
    least = np.min([part.least for part in parts], axis=0)
    return Moments(n, mean, variance, least, np.max([part.largest for part in parts], axis=0))


def _sampled(shard: Shard, share: float) -> Moments | None:
    """The moments of a sample of a shard's rows; around the first row, since far offsets cancel."""
    X: Any = shard.X
    if not isinstance(X, (Dense, Columns, Csr, Csc, Wide, Plain)):
        return None
    c = to_numpy(shard.c)
    at = np.flatnonzero(c > 0)
    at = at[:: max(int(1 / share), 1)]
    if not len(at):
        zero = np.zeros(X.shape[1])
        return Moments(0.0, zero, zero, zero, zero)
    rows: Any = _taken(X, at)
    n = float(c[at].sum())
    with np.errstate(over="ignore", invalid="ignore"):
        if not isinstance(rows, np.ndarray):
            return _sparse_moments(rows, c[at] if rows.format == "csr" else c)
        c = c[at] / n if len(rows) == len(at) else np.full(len(rows), 1 / len(rows))
        away = rows - rows[0]
        mean = c @ away
        return Moments(n, rows[0] + mean, c @ (away - mean) ** 2, rows.min(0), rows.max(0))


def _taken(X: Any, at: NDArray) -> Any:
    """Some rows, in double precision; sparse ones as they are."""
    if isinstance(X, Dense):
        return np.concatenate([X.X[few] for few in picking(at)]).astype(np.float64, copy=False)
    if isinstance(X, Columns):
        return X.T[:, at].T.astype(np.float64, copy=False)
    if isinstance(X, Plain):
        return to_numpy(X.X[:: max(X.shape[0] // len(at), 1)]).astype(np.float64, copy=False)
    X = X.csr if isinstance(X, Wide) else X
    if isinstance(X, Csr):
        return sp.vstack([as_scipy(X)[few] for few in picking(at)], format="csr")
    return as_scipy(X)  # columns have no rows to pick


def _sparse_moments(rows: Any, c: NDArray) -> Moments:
    """Those of sparse rows of weights c; a column of few numbers has none that are known."""
    n, p = float(c.sum()), rows.shape[1]
    lengths = np.diff(rows.indptr)
    if rows.format == "csr":
        column, weight = rows.indices, np.repeat(c, lengths)
    else:
        column, weight = np.repeat(np.arange(p), lengths), c[rows.indices]
    values = rows.data.astype(np.float64)
    mean, square = (np.bincount(column, weight * v, p) / n for v in (values, values**2))
    few = np.bincount(column, minlength=p) < min(FEWEST_NUMBERS, rows.shape[0])
    mean, square = np.where(few, 0.0, mean), np.where(few, 0.0, square)
    variance = np.maximum(square - mean**2, 0.0)
    # what cancels is known to few digits: a column that is constant has no variance
    constant = variance <= 1e-12 * square
    variance = np.where(constant, 0.0, variance)
    return Moments(n, mean, variance, mean, np.where(constant, mean, mean + 1.0))
