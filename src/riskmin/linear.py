"""From arrays to a risk: checks, weights, shards."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from riskmin.adaptive import Adaptive, with_intercept
from riskmin.arrays import as_numpy, like, to_floats
from riskmin.executors import Serial, Threads
from riskmin.finite import check_finite, stored
from riskmin.intercept import Profiled
from riskmin.intercepts import CentredRisk, centred
from riskmin.losses import get_loss
from riskmin.losses.labels import queries
from riskmin.losses.queries import ByQuery, OfQueries, ends_of_queries
from riskmin.matrices import STORED, WIDE, Csc, Csr, Plain, as_matrix, by_rows, is_own, with_transpose
from riskmin.risk import Risk
from riskmin.scorers import Linear
from riskmin.sequences import Sequences, cut_at
from riskmin.spread import Spread, Table, Unread
from riskmin.types import ChecksLabels, Executor, Loss, Matrix, Memo, NDArray, Shard


def check_weights(sample_weight: Any, n: int) -> NDArray:
    """The c_i: nonnegative, of sum one."""
    if sample_weight is None:
        return np.full(n, 1.0 / n)
    c = to_floats(as_numpy(sample_weight, "sample_weight"))
    if c is None:
        raise ValueError("sample_weight holds something that is no number: give one weight a row, each >= 0")
    if c.shape != (n,):
        raise ValueError(f"sample_weight has shape {c.shape}, but X has {n} rows: give one weight a row")
    if not np.isfinite(c).all() or (c < 0).any():
        raise ValueError("sample_weight holds NaN, infinite or negative numbers: weights must be >= 0")
    largest = c.max()
    if largest <= 0:
        raise ValueError("sample_weight is zero for every row: at least one weight must be > 0")
    if not largest < np.finfo(float).max / n:
        c /= largest  # else their sum overflows
    normed: NDArray = c / c.sum()
    return normed


def check_labels(y: Any, n: int, loss: Loss, qid: Any = None) -> NDArray:
    """One label a row, as floats where they are numbers; zeros where none are needed.

    For losses of rankings, two columns: the grades, and the numbers of the queries from 0 on.
    """
    name = type(loss).__name__
    if y is None and getattr(loss, "task", "novelty") != "novelty":
        raise ValueError(f"{name} needs a label for every row, but y is None: give one label a row")
    labels: NDArray = np.zeros(n) if y is None else as_numpy(y, "y")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    many = getattr(loss, "many_targets", False)
    if many and labels.ndim == 1:
        labels = labels[:, None]
    if labels.ndim != (2 if many else 1):
        raise ValueError(
            f"y has shape {labels.shape}, but X has {n} rows: give one label a row, an array of shape ({n},)"
        )
    if len(labels) != n:
        raise ValueError(f"y has {len(labels)} labels, but X has {n} rows: give one label a row")
    if labels.dtype.kind == "c":
        raise ValueError("y holds complex numbers: give one real number a row")
    floats = to_floats(labels)
    labels = labels if floats is None else floats
    ranks = getattr(loss, "task", None) == "ranking"
    if ranks or qid is not None:
        labels = _with_queries(labels, qid, name, ranks)
    if isinstance(loss, ChecksLabels):
        loss.check_labels(labels)
    return labels


def _with_queries(labels: NDArray, qid: Any, name: str, ranks: bool) -> NDArray:
    """The labels with the number of each row's query beside them."""
    if not ranks:
        raise ValueError(f"{name} does not look at queries: leave qid out, or use a loss such as Ndcg()")
    if qid is None:
        raise ValueError(f"{name} ranks the rows of each query: give qid, the id of its query for each row")
    if labels.dtype.kind != "f":
        raise ValueError(f"{name} needs grades that are numbers, a higher one better: turn y into numbers")
    return np.column_stack([labels, queries(as_numpy(qid, "qid"), len(labels))])


def shard_count(X: Matrix | Spread, columns: int = 1) -> int:
    """How many shards: by the data alone, so that no bit of a result depends on who computes it.

    A shard takes about a million products, and enough of them to outweigh the sum of its gradient: that of
    many scores a row does not fit into the cache, where the products of a feature run along.
    """
    if isinstance(X, Spread):
        if X.source is None:
            return len(X.parts)
        size = X.numbers
    else:
        data = stored(getattr(X, "tokens", X))
        if data is None or isinstance(X, Csc):
            return 1
        size = data.size
    enough = (4 if columns == 1 else 16) * max(X.shape[1], 1)
    return int(np.clip(min(columns * size // 2**20, size // enough), 1, 64))


def make_shards(X: Matrix, y: Any, c: NDArray, n_shards: int, *, wide: bool = True) -> list[Shard]:
    """Cut the rows into contiguous shards; a matrix that has no row blocks stays whole."""
    if n_shards == 1 or not hasattr(X, "rows"):
        parts: list[tuple[Matrix, slice]] = [(X, slice(None))]
    else:
        ends = X.cut(n_shards) if hasattr(X, "cut") else _even(X.shape[0], n_shards)
        parts = [(X.rows(i, j), slice(i, j)) for i, j in pairwise(ends)]
    wide = wide and isinstance(X, Csr) and _is_wide(X.shape[1], X.data.size)
    return [
        Shard(with_transpose(part) if wide and isinstance(part, Csr) else part, y[at], c[at], Memo())
        for part, at in parts
    ]


def unread_shards(
    X: Spread, y: Any, c: NDArray, n_shards: int, ends: NDArray | None, *, wide: bool
) -> list[Unread]:
    """Shards of rows that are elsewhere, cut at the same rows as if they were here; or as they come."""
    if X.source is not None:
        X = X.cut((_even(len(X), n_shards) if ends is None else cut_at(ends, n_shards)).tolist())
    elif n_shards != len(X.parts):
        X.cut(_even(len(X), n_shards).tolist())  # which is refused
    elif ends is not None and not np.isin(X.ends[1:], ends).all():
        raise ValueError("a part of X ends within a sequence: have all of its rows in one part")
    wide = wide and X.sparse and _is_wide(X.shape[1], X.numbers)
    found = []
    for part, (i, j) in zip(X.parts, pairwise(X.ends), strict=True):
        inner = None if ends is None else ends[(ends > i) & (ends <= j)] - i
        found.append(Unread(part, y[i:j], c[i:j], inner, wide))
    return found


def _even(n: int, n_shards: int) -> NDArray:
    found: NDArray = np.linspace(0, n, n_shards + 1).astype(int)
    return found


def _is_wide(p: int, size: int) -> bool:
    """Whether a stored transpose pays: there are very many columns, with enough numbers each."""
    return p >= WIDE and size >= 4 * p


def in_sequences(
    tokens: Matrix | Spread, labels: NDArray, sample_weight: Any, lengths: Any, loss: Loss
) -> tuple[NDArray, NDArray, NDArray]:
    """Where sequences end, labels beside the numbers of these, and for each the weight of its sequence."""
    name, n = type(loss).__name__, tokens.shape[0]
    if getattr(loss, "task", None) != "tagging":
        raise ValueError(
            f"{name} does not look at sequences: leave lengths out, or use a loss such as ChainCrf()"
        )
    if lengths is None:
        raise ValueError(f"{name} is a loss of sequences: give lengths, how many rows each sequence has")
    if isinstance(tokens, Plain):
        raise ValueError(
            f"{name} is computed by NumPy: give X as an array of NumPy, or a sparse matrix of SciPy"
        )
    counts = as_numpy(lengths, "lengths")
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or np.any(counts < 1):
        raise ValueError(
            "lengths holds something else than whole numbers >= 1: give each sequence's, in order"
        )
    if counts.sum() != n:
        raise ValueError(f"lengths add up to {counts.sum()}, but X has {n} rows: give one row a token")
    number = np.repeat(np.arange(len(counts)), counts)
    weights = check_weights(sample_weight, len(counts))[number]
    return np.cumsum(counts), np.column_stack([labels, number.astype(float)]), weights


def in_queries(X: Matrix | Spread, labels: NDArray, c: NDArray, loss: Loss) -> tuple[NDArray | None, Loss]:
    """Where queries end, and the loss as a sum over them, if it is one and their rows are together."""
    if not isinstance(loss, OfQueries) or isinstance(X, (Plain, Csc)):
        return None, loss
    ends = ends_of_queries(labels)
    if ends is None or (isinstance(X, Spread) and X.source is None and not np.isin(X.ends[1:], ends).all()):
        return None, loss
    return ends, ByQuery.of(loss, labels, c)


def linear_risk(
    X: Any,
    y: Any,
    loss: str | Loss,
    *,
    sample_weight: Any = None,
    qid: Any = None,
    lengths: Any = None,
    fit_intercept: bool = False,
    executor: Callable[[Sequence[Shard]], Executor] | None = None,
    n_shards: int | None = None,
    n_outputs: int | None = None,
) -> Risk | Profiled | Adaptive:
    r"""The risk of a linear model, :math:`R(w) = \sum_i c_i\, l(x_i^\top w, y_i)`, the weights c of sum one.

    Parameters
    ----------
    X : (n, p) array, sparse matrix, frame or list of rows
        NumPy in either order, SciPy CSR or CSC, float32 or float64: none is copied. Or a 2-d array of
        another array library. Or a `Spread`, rows that are elsewhere. Or an object of your own that fulfils
        `Matrix`, which may make features when scores are asked for; solvers that visit rows one by one
        refuse it.
    y : (n,) or (n, 1) array, or None
        Labels as the loss takes them: -1 and +1 for two classes, 0 to k - 1 for more of them. Of shape
        (n, k) for `MultivariateSquared`. None for losses without labels.
    loss : Loss or str
        A loss object such as ``Hinge()``, or its name, such as ``"hinge"`` (see `get_loss`).
    sample_weight : (n,) array, optional
    qid : (n,) array, optional
        For losses of rankings such as ``Ndcg()``: the id of its query for each row.
    lengths : sequence of int, optional
        For losses of chains such as ``ChainCrf()``, where a row is a token: how many rows each sequence
        has, in their order. Weights are one a sequence then.
    fit_intercept : bool
        Add an intercept that is never penalized: it is minimized out inside the risk. For losses of many
        scores a row, one a score: they are the last entries of w.
    executor : executor class or settings, optional
        Such as ``Threads`` or ``Processes(n_workers=4)``; that of X by default, if it is a `Spread` with one,
        else `Serial`.
    n_shards : int, optional
        Into how many parts to cut the rows; by default a number that follows from the data alone.
    n_outputs : int, optional
        How many scores a row has, for losses of classes; by default as many as y has classes.

    Returns
    -------
    Risk, Profiled or Adaptive
        `Profiled` with an intercept, unless the loss is the same for all; `Adaptive` with one and a loss
        ``Nu(loss, nu)``. Of many scores a row, w is the matrix of the weights, of shape (p, k), row by row.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, linear_risk
    >>> X, y = np.array([[1.0], [-2.0]]), np.array([1.0, -1.0])
    >>> value, grad = linear_risk(X, y, Hinge())(np.array([0.25]))
    >>> value, grad
    (0.625, array([-1.5]))
    """
    chosen: Loss = get_loss(loss)
    run: Any = executor or (X.executor if isinstance(X, Spread) else None) or Serial
    if not callable(run):
        raise TypeError(f"executor={run!r} is no executor: give one such as Threads(n_workers=2)")
    matrix = _as_rows(X, run)
    if is_own(matrix) and not isinstance(matrix, STORED):
        check_own(matrix)
    n, p = matrix.shape
    if n == 0 or p == 0:
        raise ValueError(f"X has 0 {'columns' if n else 'rows'}: there is nothing to fit")
    labels: Any = check_labels(y, n, chosen, qid)
    if not isinstance(matrix, Spread):
        check_finite(matrix)
    ends = None
    if getattr(chosen, "task", None) == "tagging" or lengths is not None:
        ends, labels, c = in_sequences(matrix, labels, sample_weight, lengths, chosen)
    else:
        c = check_weights(sample_weight, n)
        ends, chosen = in_queries(matrix, labels, c, chosen)
    make = getattr(chosen, "scorer", None)
    if n_outputs is not None and (isinstance(n_outputs, bool) or not isinstance(n_outputs, numbers.Integral)):
        raise ValueError(f"n_outputs={n_outputs!r} is no whole number: give how many scores a row has")
    scorer: Any = Linear() if make is None else make(labels, n_outputs)
    target = None
    if fit_intercept and make is not None and getattr(chosen, "many_targets", False):
        target = c @ labels
        labels = labels - target
    if isinstance(matrix, Plain):
        if labels.dtype.kind != "f":
            raise ValueError("y holds something that is no number: turn its labels into numbers first")
        labels, c = like(labels, matrix.X), like(c, matrix.X)
    count = _shard_count(n_shards, n)
    held, rows, table = _held(run, matrix, labels, c, ends, count, scorer, wide=make is None)
    scorer = scorer if target is None else centred(scorer, held, p)
    dim = scorer.dim(p)
    if target is not None:
        return CentredRisk(chosen, scorer, held, dim, rows, table, target)
    risk = Risk(chosen, scorer, held, dim, rows, table)
    return with_intercept(risk) if fit_intercept else risk


def _as_rows(X: Any, executor: Any) -> Matrix | Spread:
    """X as a matrix; as parts only where it is in parts, and computed elsewhere."""
    if not isinstance(X, Spread):
        return as_matrix(X)
    here = executor in (Serial, Threads) or isinstance(executor, (Serial, Threads))
    return as_matrix(X.whole()) if here else X


def check_own(X: Any) -> None:
    """Raise unless a matrix of a user's own gives a score a row, and a finite gradient."""
    name, shape = type(X).__name__, getattr(X, "shape", None)
    if (
        not isinstance(shape, tuple)
        or len(shape) != 2
        or not all(isinstance(k, numbers.Integral) for k in shape)
    ):
        raise ValueError(f"{name}.shape is {shape!r}: give (rows, columns)")
    if not isinstance(X.block_rows, numbers.Integral) or X.block_rows < 1:
        raise ValueError(f"{name}.block_rows is {X.block_rows!r}: give how many rows to take at a time, >= 1")
    stop, out = min(int(shape[0]), 2), np.zeros(int(shape[1]))
    z = X.scores(np.zeros(int(shape[1])), 0, stop)
    if np.shape(z) != (stop,):
        raise ValueError(f"{name}.scores gives the shape {np.shape(z)} for {stop} rows: give one score a row")
    X.pullback(np.ones(stop), 0, stop, out)
    if not np.isfinite(out).all() or out.shape != (shape[1],):
        raise ValueError(f"{name}.pullback adds NaN or infinity: give X[start:stop].T @ dz of finite rows")


def _held(
    executor: Any, X: Matrix | Spread, y: Any, c: Any, ends: NDArray | None, n_shards: int, scorer: Any,
    *, wide: bool,
) -> tuple[Executor, Shard | None, Table | None]:  # fmt: skip
    """An executor with the shards; the rows, if they are here; and what is known of them."""
    count = n_shards or shard_count(X, scorer.columns)
    if isinstance(X, Spread):
        return executor(unread_shards(X, y, c, count, ends, wide=wide)), None, Table.of(X, y, c)
    # blocks of many scores need rows
    X = by_rows(X) if isinstance(X, Csc) and (not wide or ends is not None) else X
    X = X if ends is None else Sequences(X, ends)
    held: Executor = executor(make_shards(X, y, c, count, wide=wide))
    if not isinstance(getattr(X, "tokens", X), STORED):
        return held, None, None  # rows that are made anew are no table: solvers ask for scores alone
    here = isinstance(held, (Serial, Threads)) and not isinstance(X, Plain)
    return held, Shard(X, y, c, Memo()) if here else None, Table.of(X, y, c)


def _shard_count(n_shards: int | None, n: int) -> int:
    """The number of shards asked for; 0 where none is."""
    if n_shards is None:
        return 0
    if isinstance(n_shards, bool) or not isinstance(n_shards, numbers.Integral) or not 1 <= n_shards <= n:
        raise ValueError(f"n_shards={n_shards!r}, but X has {n} rows: give a whole number from 1 to {n}")
    return int(n_shards)
