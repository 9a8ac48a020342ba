r"""A change of variables that does not change J: columns of X are centered and scaled to similar sizes.

With an unpenalized intercept, J does not change when columns are shifted; and when columns are multiplied by
numbers, weights are divided by them. So the same problem reads, in :math:`v = w / s`,

.. math:: \min_v\; \lambda\,\Omega(s \circ v) + R'(v), \qquad x' = (x - m) \circ s,

and a cut :math:`(a, b)` of :math:`R'` is the cut :math:`(a / s, b)` of R. Solvers work on the second form;
their proofs hold for the first. The scales :math:`s_j` are powers of two, so that scaling does not round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.arrays.compressed import CsrWithTranspose
from riskmin.arrays.dense import Dense
from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.memory_map import exceeds_memory
from riskmin.arrays.namespace import as_array_like, namespace, to_numpy
from riskmin.arrays.sequences import Sequences, tokens_of
from riskmin.core import Array, Cut, Iterate, Matrix, NDArray, Shard, ShardCache, Solver, UnsupportedProblem
from riskmin.core.limits import LIMITS
from riskmin.executors import Executor
from riskmin.executors.base import RowRanges, row_ends
from riskmin.linear_maps.linear import Standardized, WithIntercept
from riskmin.linear_maps.tree import Tree
from riskmin.problem.column_moments import is_linear, sampled_moments
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.regularizers import with_scaled_variables


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """The change of variables w = s v, with columns (x - m) s.

    Parameters
    ----------
    shift : (p,) array
        m; zeros if J is not invariant to shifts of the columns.
    scale : (p,) array
        s, powers of two.
    tree : Tree, optional
        The tree, if scores are sums along its paths; None if each output has separate weights.
    """

    DENSE_STORAGE_SHARE = 0.25
    """A sparse X of at least this share of nonzeros is stored as a dense one when its columns are
    centered."""
    SHIFT_MAX_NEW_SHARE = 0.25
    """A sparse X stays sparse if only nearly full columns are centered, such as a year beside indicators: if
    this adds at most this share of its entries."""

    SINGLE_PRECISION_MAX_EXPONENT = 60
    """Single precision is kept for scales of 2^-60 to 2^60; its own range is 2^-126 to 2^127."""

    shift: NDArray
    scale: NDArray
    tree: Tree | None = None

    # ------------------------------------------------------------ points and cuts
    def _per_entry(self, w: Array, tail: int) -> Array:
        """The scale of every weight; that of a column is repeated for each output."""
        return as_array_like(np.repeat(self.scale, (len(w) - tail) // len(self.scale)), w)

    def _offset(self, W: Array) -> Array:
        """The change of the scores by the shift of the columns: m' W, one per output."""
        offset = as_array_like(self.shift, W) @ W.reshape(len(self.shift), -1)
        return offset if self.tree is None else self.tree.to_labels(offset[None, :])[0]

    def to_preconditioned(self, w: Array, k: int = 0) -> Array:
        """The v of a point w whose last k entries are intercepts."""
        # v = w / s; the intercept absorbs the shift, b' = b + m' w
        head = w[: len(w) - k] / self._per_entry(w, k)
        return namespace(w).concat([head, w[-k:] + self._offset(w[:-k])]) if k else head

    def to_original(self, v: Array, k: int = 0) -> Array:
        """The w = s v of a point v whose last k entries are intercepts, b = b' - m' w."""
        head = v[: len(v) - k] * self._per_entry(v, k)
        return namespace(v).concat([head, v[-k:] - self._offset(head)]) if k else head

    def cut(self, cut: Cut, k: int = 0) -> Cut:
        """The cut in w that equals a cut in v."""
        a = cut.a
        # z = X' v + b' = X w + b with b = b' - m' w: slopes in the intercepts act on w through m
        head = a[: len(a) - k] / self._per_entry(a, k)
        if k:
            slopes = a[-k:] if self.tree is None else self.tree.from_labels(a[None, -k:])[0]
            head = head + (as_array_like(self.shift, a)[:, None] * slopes).reshape(-1)
            head = namespace(a).concat([head, a[-k:]])
        return Cut(head, cut.b, cut.u)

    def preconditioned_cut(self, cut: Cut, k: int = 0) -> Cut:
        """The cut in v that equals a cut in w whose slopes in the k intercepts are zero."""
        head = cut.a[: len(cut.a) - k] * self._per_entry(cut.a, k)
        return Cut(namespace(head).concat([head, cut.a[-k:]]) if k else head, cut.b)

    def iterates(self, steps: Iterator[Iterate], k: int = 0) -> Iterator[Iterate]:
        """Convert iterates in v to iterates in w; the solver states are not changed."""
        for it in steps:
            w, near = self.to_original(it.w, k), it.intercept
            if near is not None and not k:  # z = X' v + b' = X w + b with b = b' - m' w
                near -= float(self._offset(w)[0])
            yield it._replace(w=w, cut=self.cut(it.cut, k), intercept=near, preconditioned=True)

    # ------------------------------------------------------------ problems
    def objective(self, obj: Objective, risk: Any = None) -> Objective | None:
        """The same problem in v, whose risk may be known already; None if it has no such form."""
        # the entries of w that belong to a column, one per output, are contiguous
        outputs = (obj.risk.dim - obj.n_intercepts) // len(self.scale)
        reg = with_scaled_variables(obj.reg.penalized_part, np.repeat(self.scale, outputs))
        risk = self.risk(obj.risk) if risk is None else risk
        return None if reg is None or risk is None else Objective(risk, reg.without_sizes, obj.lam, obj.count)

    def risk(self, risk: Any) -> Any:
        """The risk as a function of v; None if it is not the risk of a linear model."""
        rows = self._stored(risk)
        if rows is None:
            return self._implicit(risk)
        changed = replace(risk, executor=_with_rows(risk.executor, rows), rows=rows, row_metadata=None)
        if (linear_map := risk.linear_map).centered:
            # the mean of the changed columns (x - m) s
            mean = (to_numpy(linear_map.mean) - self.shift) * self.scale
            return replace(changed, linear_map=replace(linear_map, mean=mean))
        return changed

    def can_store(self, risk: Risk) -> bool:
        """Whether the rows are local, and few enough that a changed copy can be stored."""
        rows = risk.rows
        if rows is None or not risk.executor.is_local:
            return False
        X = tokens_of(rows.X)
        if X.sparse and self._stays_sparse(X.as_scipy()):
            return X.nnz <= LIMITS.copy_max_entries and not exceeds_memory(X.as_scipy().data)
        return X.array is not None and X.nnz <= LIMITS.copy_max_entries

    def _stored(self, risk: Risk) -> Shard | None:
        """The rows with their columns changed, if they are few enough to be stored; else None."""
        rows = risk.rows
        if rows is None or not risk.executor.is_local:
            return None
        changed = self._stored_matrix(tokens_of(rows.X))
        if changed is None:
            return None
        grouped = Sequences(changed, rows.X.ends) if isinstance(rows.X, Sequences) else changed
        return rows._replace(X=grouped, cache=ShardCache())

    def _stored_matrix(self, X: Any) -> Matrix | None:
        """The matrix with its columns changed; None if a copy would be too large."""
        (n, p), array, matrix = X.shape, X.array, X.as_scipy()
        if array is not None and n * p <= LIMITS.copy_max_entries:
            return Dense(self._changed(array))
        if matrix is None or matrix.nnz > LIMITS.copy_max_entries or exceeds_memory(matrix.data):
            return None
        # shifted columns are dense: a sparse X with few nonzeros would take much more memory
        many = n * p <= LIMITS.copy_max_entries and matrix.nnz >= self.DENSE_STORAGE_SHARE * n * p
        if many and self.shift.any():
            return Dense((matrix.toarray() - self.shift) * self.scale)
        if not self._stays_sparse(matrix):
            return None
        changed = self._shifted(matrix).asformat(matrix.format)
        column = (
            changed.indices if changed.format == "csr" else np.repeat(np.arange(p), np.diff(changed.indptr))
        )
        entries = changed.data * self.scale[column], changed.indices, changed.indptr
        result: Matrix = as_matrix(type(changed)(entries, shape=(n, p)))
        return result

    def _changed(self, array: NDArray) -> NDArray:
        """The entries (x - m) s of dense rows, in one new array."""
        if self.shift.any():
            # in double precision: differences of single-precision numbers would lose digits
            changed = np.subtract(array, self.shift, dtype=np.float64, order="C")
            return np.multiply(changed, self.scale, out=changed)
        # products with powers of two are exact, in single precision too, unless they leave its range
        moderate = np.all(np.abs(np.log2(self.scale)) <= self.SINGLE_PRECISION_MAX_EXPONENT)
        powers = moderate and np.all(np.frexp(self.scale)[0] == 0.5)
        dtype = array.dtype if array.dtype == np.float32 and powers else np.dtype(np.float64)
        result: NDArray = np.multiply(array, self.scale.astype(dtype), dtype=dtype, order="C")
        return result

    def _stays_sparse(self, matrix: Any) -> bool:
        """Whether a sparse X has about as many entries with its columns centered."""
        shifted = self.shift != 0
        if not shifted.any():
            return True
        if matrix.format == "csc":
            n_stored = int(np.diff(matrix.indptr)[shifted].sum())
        else:
            n_stored = int(np.count_nonzero(shifted[matrix.indices]))
        new = matrix.shape[0] * int(shifted.sum()) - n_stored
        return bool(new <= self.SHIFT_MAX_NEW_SHARE * matrix.nnz)

    def _shifted(self, matrix: Any) -> Any:
        """X minus the shift of its columns, sparse."""
        n, columns = matrix.shape[0], np.flatnonzero(self.shift)
        if not len(columns):
            return matrix
        indptr = np.arange(0, n * len(columns) + 1, len(columns))
        entries = np.tile(self.shift[columns], n), np.tile(columns, n), indptr
        return matrix - sp.csr_array(entries, shape=matrix.shape)

    def _implicit(self, risk: Risk) -> Risk | None:
        """The risk with X unchanged: every product is corrected by the shift and the scale."""
        inner = risk.linear_map.without_intercepts
        if not inner.can_be_standardized:
            return None
        standardized = Standardized(inner, self.shift, self.scale)
        outer = WithIntercept(standardized) if risk.linear_map.n_intercepts else standardized
        return replace(risk, linear_map=outer, rows=None)


def _with_rows(executor: Executor, rows: Shard) -> Executor:
    """An executor of the same kind, with the new rows in shards of the same sizes."""
    ends, first = np.array(row_ends(executor)), executor.map(_itself)[0]
    wide = isinstance(first.X, CsrWithTranspose)
    return executor.with_shards(RowRanges(rows, ends, wide=wide))


def _itself(shard: Shard) -> Shard:
    """The shard: for executors of this process, which return it uncopied."""
    return shard


@dataclass(frozen=True)
class PreconditionedProblem:
    """A problem in its original variables and in those of the solvers.

    Parameters
    ----------
    original : Objective
        The problem in its original variables.
    obj : Objective
        The problem in the variables of the solvers.
    change : Preconditioner, optional
        The change of variables; None for the same variables.
    """

    original: Objective
    obj: Objective
    change: Preconditioner | None = None

    @classmethod
    def from_objective(cls, obj: Objective, change: Preconditioner | None) -> PreconditionedProblem:
        """The problem in the variables of a preconditioner, if it has such a form."""
        same = None if change is None else change.objective(obj)
        return cls(obj, _opened(obj)) if same is None else cls(obj, same, change)

    def with_objective(self, obj: Objective) -> PreconditionedProblem:
        """The problem of another regularizer or lam with the same risk, in the same variables.

        The changed rows are shared.
        """
        if self.change is None or (same := self.change.objective(obj, self.obj.risk)) is None:
            return type(self)(obj, _opened(obj))
        return type(self)(obj, same, self.change)

    def to_preconditioned(self, w: Array) -> Array:
        """Convert a point of the original problem to the variables of solvers."""
        return w if self.change is None else self.change.to_preconditioned(w, self.original.n_intercepts)

    def preconditioned(self, w: Array, b: Any, cut: Cut) -> tuple[Objective, Array, Any, Cut]:
        """J, a point, its intercept and a cut without slopes in intercepts, in the variables of solvers."""
        if self.change is None:
            return self.original, w, b, cut
        if self.original.risk.intercept.profiled:
            b += float(self.change._offset(w)[0])
        cut = self.change.preconditioned_cut(cut, self.original.n_intercepts)
        return self.obj, self.to_preconditioned(w), b, cut

    def iterates(self, solver: Solver, w0: Array) -> Iterator[Iterate]:
        """The iterates of a solver, as iterates of the original problem.

        A solver that rejects the preconditioned problem runs on the original one: for example a solver that
        visits rows one by one, if columns are centered on the fly.
        """
        if self.change is None:
            return solver.iterates(self.obj, w0)
        try:
            steps = solver.iterates(self.obj, self.to_preconditioned(w0))
            # a generator raises at its first step, not when it is made
            first = [next(steps)]
        except StopIteration:
            first = []
        except UnsupportedProblem:
            return solver.iterates(_opened(self.original), w0)
        return self.change.iterates(chain(first, steps), self.original.n_intercepts)

    @property
    def variables(self) -> str:
        """The name of the variables of solver states: "original", or a checksum of the scales."""
        if self.change is None:
            return "original"
        # means differ by rounding between machines, scales do not
        parts = self.change.scale, self.change.shift != 0
        return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()

    def in_variables(self, name: str | None) -> PreconditionedProblem | None:
        """The problem in the variables of a saved state; None for those of another preconditioner."""
        if name == self.variables:
            return self
        return type(self)(self.original, _opened(self.original)) if name == "original" else None

    def resumed(self, solver: Solver, state: dict[str, Array]) -> Iterator[Iterate] | None:
        """The iterates of a run that continues from a state; None if the solver cannot use it."""
        steps = solver.resume(self.obj, state)
        if self.change is None or steps is None:
            return steps
        return self.change.iterates(steps, self.original.n_intercepts)


# ---------------------------------------------------------------- choosing the change of variables
def preconditioner(obj: Objective) -> Preconditioner | None:
    """The change of variables for a problem; None if its columns are centered and of similar sizes."""
    risk: Any = obj.risk
    if not is_linear(risk):
        return None
    # more sparse columns than this are taken for words or similar features
    same_unit = (
        risk.row_metadata is not None and risk.row_metadata.sparse and risk.row_metadata.shape[1] > 2**15
    )
    moments = None if same_unit else sampled_moments(risk)
    if moments is None:
        return _undoing(obj, risk)
    entries = risk.row_metadata.nnz if risk.row_metadata is not None else LIMITS.cheap_copy_entries + 1
    sparse = risk.row_metadata is not None and risk.row_metadata.sparse
    cheap = entries <= LIMITS.cheap_copy_entries and not sparse
    # step 1: the shift m, if some column that is not constant is far from zero relative to its deviation,
    # or very far where copying X is not cheap
    constant = moments.variance == 0
    deviation = np.sqrt(moments.variance)
    shift = np.zeros(len(deviation))
    if _shift_invariant(obj.risk):
        # dense columns are all centered if one of them needs it, sparse ones only where it is needed
        off_center = abs(moments.mean) > (1.0 if cheap else 8.0) * deviation
        if (off_center & ~constant).any():
            shift = np.where(off_center, moments.mean, 0.0) if sparse else moments.mean
    if (undoing := _undoing(obj, risk, shift)) is not None:
        return undoing
    obj = _opened(obj)
    reg, outputs = obj.reg.penalized_part, (obj.risk.dim - obj.n_intercepts) // len(shift)
    # step 2: the scale, from the root mean square of each column after the shift
    size = np.hypot(deviation, moments.mean - shift)
    # a column that is constant in the sample may be a rare indicator, of which that constant is no size
    if 0 < constant.sum() < len(size):
        size = np.where(constant & (size > 0), np.maximum(size, np.median(size[~constant])), size)
    # only a larger ratio of column sizes is worth a copy of X
    min_ratio, square = 8.0 if cheap else 100.0, _quadratic_part(obj, len(size))
    # a penalty that is the same for all columns makes the ratio smaller, and rounding to powers of two at
    # most twice as large
    if not (np.ndim(square) or shift.any()) and 0 < 2 * size.max() <= min_ratio * size.min():
        return None
    scale = _scales(size, obj.lam * square)
    known = size > 0
    if not known.all():  # columns of unknown size get the median scale
        scale = np.where(known, scale, np.median(scale[known]) if known.any() else 1.0)
    ratio = float(scale.max() / scale.min())
    if ratio <= min_ratio or with_scaled_variables(reg, np.repeat(scale, outputs)) is None:
        scale = np.ones_like(scale)
    tree = risk.linear_map.node_tree
    return Preconditioner(shift, scale, tree) if shift.any() or (scale != 1).any() else None


def _undoing(obj: Objective, risk: Risk, shift: NDArray | None = None) -> Preconditioner | None:
    """The change of variables in which a rescaled regularizer is not rescaled: more solvers accept that form.

    None if the changed rows cannot be stored and the regularizer can also be rescaled itself.
    """
    reg: Any = obj.reg.penalized_part
    if not reg.is_rescaled or (shift is None and risk.row_metadata is None):
        return None
    shift = np.zeros(risk.row_metadata.shape[1]) if shift is None else shift  # type: ignore[union-attr]
    tree = risk.linear_map.node_tree
    candidate = Preconditioner(shift, 1 / reg.sizes[:: len(reg.sizes) // len(shift)], tree)
    return candidate if candidate.can_store(risk) or reg.without_sizes is reg else None


def _opened(obj: Objective) -> Objective:
    """The problem with a rescaled regularizer replaced by the form that solvers accept."""
    reg = obj.reg.penalized_part
    return replace(obj, reg=reg.without_sizes) if reg.is_rescaled else obj


def _shift_invariant(risk: Any) -> bool:
    """Whether J does not change when columns are shifted: it has an intercept, or does not depend on one."""
    return risk.intercept.fitted or (not risk.multi_output and risk.loss.shift_invariant)


def _quadratic_part(obj: Objective, n_columns: int) -> NDArray | float:
    """The m_j of the penalty's terms m_j w_j^2 / 2: one number, or the largest of each column's outputs."""
    terms = obj.reg.penalized_part.terms(np.zeros(obj.risk.dim - obj.n_intercepts))
    if terms is None or np.ndim(terms.square) == 0:
        return 0.0 if terms is None else float(terms.square)
    largest: NDArray = np.asarray(terms.square).reshape(n_columns, -1).max(1)
    return largest


def _scales(size: NDArray, floor: NDArray | float) -> NDArray:
    """The scale of each column, a power of two near 1 / sqrt(size^2 + lam m), for penalties m w^2 / 2.

    If the penalty lam m, the `floor`, is larger than the column, it does not matter to the conditioning.
    """
    column_size = np.hypot(size, np.sqrt(floor))
    column_size = np.where(column_size > 0, column_size, 1.0)
    # squares of the scales must not overflow either
    largest = 400
    return np.exp2(-np.clip(np.round(np.log2(column_size)), -largest, largest))
