"""Build a risk from arrays: check the input, normalize the weights, cut the rows into shards."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from riskmin.arrays.dense import even_ends
from riskmin.arrays.devices.foreign import ForeignArray
from riskmin.arrays.finite import check_finite
from riskmin.arrays.matrix import TRANSPOSE_FROM_COLUMNS, as_matrix, as_row_matrix, check_products, is_stored
from riskmin.arrays.namespace import as_array_like, as_numpy, as_rows_of, full_like, to_floats, to_numpy
from riskmin.arrays.partitioned import LazyShard, PartitionedMatrix, RowMetadata, is_partitioned
from riskmin.arrays.sequences import Sequences, even_sequence_ends
from riskmin.core import Array, Matrix, NDArray, Shard, ShardCache
from riskmin.core.limits import LIMITS
from riskmin.core.messages import is_whole_number
from riskmin.executors import Backend, Executor, Serial, as_backend
from riskmin.executors.base import RowRanges
from riskmin.linear_maps.linear import SingleOutput
from riskmin.losses import get_loss
from riskmin.losses.base import Loss
from riskmin.losses.labels import encode_queries
from riskmin.losses.nondecomposable.by_query import query_ends
from riskmin.losses.offset import check_offset, with_offset
from riskmin.problem import shard_ops
from riskmin.problem.explicit_intercepts import center_rows
from riskmin.problem.intercept import CenteredIntercepts
from riskmin.problem.objective import is_builtin
from riskmin.problem.risk import Risk, with_intercept


def check_weights(sample_weight: Any, n: int, like: Array | None = None) -> Array:
    """The normalized weights c_i: nonnegative, with sum one; beside `like`, if that is an array of another
    library, and they are given in one.
    """
    if sample_weight is None:
        return np.full(n, 1.0 / n) if like is None else full_like(like, (n,), 1.0 / n)
    given = as_rows_of(sample_weight, "sample_weight", like)
    c: Any = to_floats(given) if isinstance(given, np.ndarray) else given
    if c is None:
        raise ValueError(
            "sample_weight holds something that is no number: give one weight per row, each >= 0"
        )
    c = np.full(n, to_numpy(c)) if c.ndim == 0 else c  # a number counts for every row
    if tuple(c.shape) != (n,):
        raise ValueError(
            f"sample_weight has shape {tuple(c.shape)}, but X has {n} rows: give one weight per row"
        )
    largest = float(c.max())
    if not math.isfinite(largest) or not bool((c >= 0).all()):
        raise ValueError("sample_weight holds NaN, infinite or negative numbers: weights must be >= 0")
    if largest <= 0:
        raise ValueError("sample_weight is zero for every row: at least one weight must be > 0")
    # the sum of n weights overflows only if the largest exceeds max / n: then divide by it first
    if not largest < np.finfo(float).max / n:
        c = c / largest
    normed: Array = c / c.sum()
    return normed


def check_labels(y: Any, n: int, loss: Loss, qid: Any = None, like: Array | None = None) -> Array:
    """The labels of all rows, as floats if they are numbers; zeros for losses that need none.

    For ranking losses, two columns: the grades, and the indices of the queries, from 0 on. Labels of other
    losses stay in the library of `like`, if there is one, and they are given in one.
    """
    name = type(loss).__name__
    if y is None and loss.task not in (None, "novelty"):
        raise ValueError(f"{name} needs a label for every row, but y is None: give one label per row")
    # shapes: (n,), also for a single column; (n, k) for losses with several targets per row
    in_place = like is not None and loss.task != "ranking" and qid is None
    labels: Any = np.zeros(n) if y is None else as_rows_of(y, "y", like if in_place else None)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    multi_target = loss.multi_output_targets
    if multi_target and labels.ndim == 1:
        labels = labels[:, None]
    if labels.ndim != (2 if multi_target else 1):
        raise ValueError(
            f"y has shape {tuple(labels.shape)}, but X has {n} rows: "
            f"give one label per row, an array of shape ({n},)"
        )
    if len(labels) != n:
        raise ValueError(f"y has {len(labels)} labels, but X has {n} rows: give one label per row")
    if isinstance(labels, np.ndarray):
        if labels.dtype.kind == "c":
            raise ValueError("y holds complex numbers: give one real number per row")
        floats = to_floats(labels)
        # strings are not converted: user-defined losses may accept them
        labels = labels if floats is None else floats
    is_ranking = loss.task == "ranking"
    if is_ranking or qid is not None:
        labels = _with_queries(labels, qid, name, is_ranking)
    loss.check_labels(labels)
    return labels


def _with_queries(labels: NDArray, qid: Any, name: str, is_ranking: bool) -> NDArray:
    """The labels, with the index of each row's query as a second column."""
    if not is_ranking:
        raise ValueError(f"{name} does not use queries: leave qid out, or use a loss such as Ndcg()")
    if qid is None:
        raise ValueError(f"{name} ranks the rows of each query: give qid, the id of its query for each row")
    if labels.dtype.kind != "f":
        raise ValueError(f"{name} needs grades that are numbers, a higher one better: turn y into numbers")
    return np.column_stack([labels, encode_queries(as_numpy(qid, "qid"), len(labels))])


def shard_count(X: Matrix | PartitionedMatrix, columns: int = 1) -> int:
    """The default number of shards, up to 64; it depends on the data alone: so executors give equal results.

    A shard takes about 2^20 multiplications per pass, and has enough stored entries per column to outweigh
    the summation of its gradient. Multi-output risks need more entries per column, because their gradient
    does not fit into the cache.
    """
    if isinstance(X, PartitionedMatrix):
        if X.source is None:
            return len(X.parts)
    elif X.one_block or not is_stored(X):
        return 1
    size = X.nnz
    # a shard adds p numbers per output to the gradient: it needs several entries per column
    entries_per_shard = (4 if columns == 1 else 16) * max(X.shape[1], 1)
    return min(max(min(columns * size // LIMITS.shard_entries, size // entries_per_shard), 1), 64)


def make_shards(X: Matrix, y: Any, c: NDArray, n_shards: int, *, wide: bool = True) -> RowRanges:
    """Cut the rows into contiguous shards; a matrix whose rows cannot be cut becomes a single one."""
    # the shards of a wide X also store its transpose, for the pullback
    wide = wide and X.sparse and not X.one_block and _is_wide(X.shape[1], X.nnz)
    return RowRanges(Shard(X, y, c, ShardCache()), X.shard_ends(n_shards), wide=wide)


def lazy_shards(
    X: PartitionedMatrix, y: Any, c: NDArray, n_shards: int, ends: NDArray | None, *, wide: bool
) -> list[LazyShard]:
    """Lazy shards of partitioned rows: cut like local rows if X has a source, else one per part of X."""
    if X.source is not None:
        X = X.cut(
            (even_ends(len(X), n_shards) if ends is None else even_sequence_ends(ends, n_shards)).tolist()
        )
    elif n_shards != len(X.parts):
        X.cut(even_ends(len(X), n_shards).tolist())  # raises: without a source it cannot be cut again
    elif ends is not None and not np.isin(X.ends[1:], ends).all():
        raise ValueError("a part of X ends within a sequence: have all of its rows in one part")
    wide = wide and X.sparse and _is_wide(X.shape[1], X.nnz)
    shards = []
    for part, (i, j) in zip(X.parts, pairwise(X.ends), strict=True):
        # the ends of the sequences in rows i to j, relative to row i
        inner = None if ends is None else ends[(ends > i) & (ends <= j)] - i
        shards.append(LazyShard(part, y[i:j], c[i:j], inner, wide))
    return shards


def _is_wide(p: int, size: int) -> bool:
    """Whether to store the transpose as well: for very many columns, with at least 4 entries per column."""
    return p >= TRANSPOSE_FROM_COLUMNS and size >= 4 * p


def sequence_layout(
    tokens: Matrix | PartitionedMatrix, labels: NDArray, sample_weight: Any, lengths: Any, loss: Loss
) -> tuple[NDArray, NDArray, NDArray]:
    """The ends of the sequences, the labels beside sequence indices, and each row's sequence weight."""
    name, n = type(loss).__name__, tokens.shape[0]
    if loss.task != "tagging":
        raise ValueError(
            f"{name} does not use sequences: leave lengths out, or use a loss such as ChainCrf()"
        )
    if lengths is None:
        raise ValueError(f"{name} is a loss of sequences: give lengths, how many rows each sequence has")
    if isinstance(tokens, ForeignArray):
        raise ValueError(
            f"{name} is computed by NumPy: give X as an array of NumPy, or a sparse matrix of SciPy"
        )
    counts = as_numpy(lengths, "lengths")
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or np.any(counts < 1):
        raise ValueError(
            "lengths holds something else than whole numbers >= 1: give the length of each sequence, in order"
        )
    if counts.sum() != n:
        raise ValueError(f"lengths add up to {counts.sum()}, but X has {n} rows: give one row per token")
    # the index of the sequence of each row; weights are normalized over sequences, not over rows
    sequence = np.repeat(np.arange(len(counts)), counts)
    weights = check_weights(sample_weight, len(counts))[sequence]
    return np.cumsum(counts), np.column_stack([labels, sequence.astype(float)]), weights


def query_layout(
    X: Matrix | PartitionedMatrix, labels: NDArray, c: NDArray, loss: Loss
) -> tuple[NDArray | None, Loss]:
    """The ends of queries, and the loss as a sum over queries, if it is one and their rows are contiguous."""
    if loss.task != "ranking" or X.one_block:
        return None, loss
    ends = query_ends(labels)
    # parts that cannot be cut again must not end within a query
    if ends is None or (isinstance(X, PartitionedMatrix) and not X.can_end_at(ends)):
        return None, loss
    split = loss.by_query(labels, c)
    return (None, loss) if split is None else (ends, split)


def linear_risk(
    X: Any,
    y: Any,
    loss: str | Loss,
    *,
    sample_weight: Any = None,
    qid: Any = None,
    lengths: Any = None,
    fit_intercept: bool = False,
    executor: Any = None,
    n_shards: int | None = None,
    n_outputs: int | None = None,
    offset: Any = None,
) -> Risk:
    r"""The risk of a linear model, :math:`R(w) = \sum_i c_i\, l(x_i^\top w, y_i)`, with weights c of sum one.

    Parameters
    ----------
    X : (n, p) array, sparse matrix, frame or list of rows
        NumPy in either order, SciPy CSR or CSC, float32 or float64: none is copied. Or a 2-d array of
        another array library. Or a `PartitionedMatrix`, with remote rows. Or a user-defined object with
        ``shape``, ``block_rows``, ``scores`` and ``pullback`` (see `Matrix`), which may compute features on
        the fly; solvers that visit rows one by one reject it.
    y : (n,) or (n, 1) array, or None
        Labels as the loss takes them: -1 and +1 for two classes, 0 to k - 1 for more of them. Of shape
        (n, k) for `MultivariateSquared`. None for losses without labels.
    loss : Loss or str
        A loss object such as ``Hinge()``, or its name, such as ``"hinge"`` (see `get_loss`).
    sample_weight : (n,) array, optional
    qid : (n,) array, optional
        For ranking losses such as ``Ndcg()``: the query id of each row.
    lengths : sequence of int, optional
        For losses of chains such as ``ChainCrf()``, where a row is a token: the number of rows of each
        sequence, in order. Then there is one weight per sequence.
    fit_intercept : bool
        Add an intercept that is never penalized: it is minimized out inside the risk. Multi-output losses get
        one per output: they are the last entries of w.
    executor : Backend, optional
        Such as ``Threads(n_workers=4)`` or ``Processes``; or a class derived from `Executor`. The default is
        the executor of X, if X is a `PartitionedMatrix` that has one, else `Serial`.
    n_shards : int, optional
        The number of contiguous shards of rows; by default a function of the data alone.
    n_outputs : int, optional
        The number of scores per row, for multiclass losses; by default the number of classes in y.
    offset : (n,) array, optional
        Numbers :math:`o_i` that are added to the scores, :math:`l(x_i^\top w + b + o_i, y_i)`; for sums over
        rows of one score each.

    Returns
    -------
    Risk
        ``risk.best_intercept(w)`` is the intercept, if there is one that is no entry of w. For multi-output
        losses, w is the weight matrix of shape (p, k) in row-major order.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> X, y = np.array([[1.0], [-2.0]]), np.array([1.0, -1.0])
    >>> value, grad = linear_risk(X, y, Hinge())(np.array([0.25]))
    >>> value, grad
    (0.625, array([-1.5]))
    """
    resolved: Loss = get_loss(loss)
    backend = as_backend(executor or (X.executor if is_partitioned(X) else None) or Serial)
    matrix = _as_rows(X, backend)
    n, p = matrix.shape
    if n == 0 or p == 0:
        raise ValueError(f"X has 0 {'columns' if n else 'rows'}: there is nothing to fit")
    like = matrix.score_like
    labels = check_labels(y, n, resolved, qid, like)
    if not backend.is_local:
        check_finite(matrix)
    # step 1: rows that belong together (sequences, queries), with their ends, and normalized weights
    ends = None
    if resolved.task == "tagging" or lengths is not None:
        ends, labels, c = sequence_layout(matrix, labels, sample_weight, lengths, resolved)
    else:
        c = check_weights(sample_weight, n, like)
        ends, resolved = query_layout(matrix, labels, c, resolved)
    # step 2: the map from w to scores; multi-output losses make their own
    if n_outputs is not None and not is_whole_number(n_outputs):
        raise ValueError(f"n_outputs={n_outputs!r} is no whole number: give the number of scores per row")
    linear_map: Any = resolved.linear_map(labels, n_outputs) or SingleOutput()
    if offset is not None:
        resolved, labels = with_offset(resolved, labels, check_offset(offset, n))
    _check_linear_map(linear_map, matrix)
    # with squared losses, intercepts are minimized out by centering rows and targets
    target = None
    if fit_intercept and resolved.multi_output and resolved.multi_output_targets:
        labels = labels if like is None else as_array_like(labels, like)
        target = c @ labels
        labels, target = labels - target, to_numpy(target)
    if like is not None:
        if isinstance(labels, np.ndarray) and labels.dtype.kind != "f":
            raise ValueError("y holds something that is not a number: turn its labels into numbers first")
        labels, c = (as_array_like(a, like) for a in (labels, c))
    # step 3: cut the rows into shards and place them on the executor
    count = _shard_count(n_shards, n)
    holder, rows, row_metadata = _place_rows(
        backend, matrix, labels, c, ends, count, linear_map, wide=not resolved.multi_output
    )
    # local shards in parallel; the whole matrix again only for the message
    if backend.is_local and not all(holder.map(shard_ops.is_finite)):
        check_finite(matrix)
    linear_map = linear_map if target is None else center_rows(linear_map, holder, p)
    dim = linear_map.dim(p)
    if target is not None:
        return Risk(resolved, linear_map, holder, dim, rows, row_metadata, CenteredIntercepts(target))
    risk = Risk(resolved, linear_map, holder, dim, rows, row_metadata)
    return with_intercept(risk) if fit_intercept else risk


def _check_linear_map(linear_map: Any, X: Matrix | PartitionedMatrix) -> None:
    """Raise a ValueError if the products of a user-defined linear map do not fit, on the first rows."""
    if is_builtin(linear_map) or not isinstance(X, Matrix) or linear_map.shared or X.score_like is not None:
        return
    products = SimpleNamespace(scores=partial(linear_map.scores, X), pullback=partial(linear_map.pullback, X))
    first_rows = (0, min(X.shape[0], X.block_rows))
    check_products(type(linear_map).__name__, products, linear_map.dim(X.shape[1]), [first_rows])


def _as_rows(X: Any, backend: Backend) -> Matrix | PartitionedMatrix:
    """X as a matrix; a partitioned X is gathered into this process if the backend is local."""
    if not is_partitioned(X):
        return as_matrix(X)
    return as_matrix(X.whole()) if backend.is_local else X


def _place_rows(
    backend: Backend,
    X: Matrix | PartitionedMatrix,
    y: Any,
    c: Any,
    ends: NDArray | None,
    n_shards: int,
    linear_map: Any,
    *,
    wide: bool,
) -> tuple[Executor, Shard | None, RowMetadata | None]:
    """An executor that holds the shards; the rows, if they are local; and their metadata."""
    count = n_shards or shard_count(X, linear_map.columns)
    if isinstance(X, PartitionedMatrix):
        holder = backend.place(lazy_shards(X, y, c, count, ends, wide=wide))
        return holder, None, RowMetadata.from_rows(X, y, c)
    # blocks of multi-output scores need row access
    X = as_row_matrix(X) if X.sparse and X.by_columns and (not wide or ends is not None) else X
    stored = is_stored(X)
    X = X if ends is None else Sequences(X, ends)
    shards = make_shards(X, y, c, count, wide=wide)
    holder = backend.place(shards)
    if not stored:
        return holder, None, None  # rows computed on the fly are not stored: solvers only get their scores
    # solvers that visit rows need them in this process, in NumPy or SciPy
    local = holder.is_local and X.score_like is None
    return holder, shards.rows if local else None, RowMetadata.from_rows(X, y, c)


def _shard_count(n_shards: int | None, n: int) -> int:
    """The requested number of shards; 0 for the default."""
    if n_shards is None:
        return 0
    if not is_whole_number(n_shards, at_least=1) or n_shards > n:
        raise ValueError(f"n_shards={n_shards!r}, but X has {n} rows: give a whole number from 1 to {n}")
    return int(n_shards)
