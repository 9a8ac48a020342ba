r"""Passes over rows, wherever they are: X d, X' dz and X' H X, side by side as the executor has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin import shards
from riskmin.deadline import check, checking, pieces
from riskmin.finite import stored
from riskmin.maps import crowds, passing, picking
from riskmin.matrices import Columns, Csr, Dense, Wide, as_scipy, by_rows
from riskmin.risk import Risk
from riskmin.scorers import Standardized
from riskmin.types import Array, NDArray, Shard

BLOCK = 2**18
"""How many numbers of dense rows are gathered at a time: they stay in cache until they are multiplied."""
MOST_SUMS = 2**25
"""Sums of products, of all shards together, that may be in memory at a time."""
MOST_TAKEN = 2**24
"""Numbers of rows that may be brought here at a time, from where they are."""
MANY_ROWS = 2**15
"""Numbers of rows are looked at in parts, one a shard, if each part has as many as this."""


class Passes:
    """The products of Newton's method with the rows of a risk."""

    def __init__(self, risk: Risk) -> None:
        assert risk.table is not None
        self.risk, self.rows, self.table = risk, risk.rows, risk.table
        self.shape = self.table.shape
        self.numbers = max(self.table.numbers, 1)
        """How many numbers X holds; 1 where there is none, for costs to be shares of it."""
        self.standard = risk.scorer if isinstance(risk.scorer, Standardized) else None
        """The shift and the scale of the columns, where X is stored without them."""
        ends = np.cumsum([0, *risk.executor.map(length)])
        self.parts = [slice(i, j) for i, j in pairwise(ends.tolist())]
        self.looks = self.parts if self.shape[0] >= MANY_ROWS * len(self.parts) else [slice(None)]

    def forward(self, d: Array) -> NDArray:
        """X d."""
        if not d.any():
            return np.zeros(self.shape[0])
        found = self.risk.executor.map(shards.scores, self.risk.scorer, d)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def back(self, dz: Array) -> NDArray:
        """X' dz; rows of zeros cost nothing."""
        each, zero = [dz[part] for part in self.parts], np.zeros(self.shape[1])
        (found,) = self.risk.executor.sum(shards.scatter, self.risk.scorer, zero, each=each)
        return np.asarray(found)

    def gram(self, h: NDArray) -> NDArray:
        """The upper triangle of X' diag(h) X, and anything below it."""
        if self.rows is not None and not self._few_sums:
            return gram(self.rows, h)[0]
        (found,) = self.risk.executor.sum(gram, each=[h[part] for part in self.parts])
        G = np.asarray(found)
        if self.standard is not None:  # sum_i h_i (x_i - m)(x_i - m)' = G - m s' - s m' + (sum h) m m'
            m, s, d = self.standard.shift, self._sums(h), self.standard.scale
            G = (G - np.outer(m, s) - np.outer(s - float(h.sum()) * m, m)) * d[:, None] * d
        return G

    def squares(self, h: NDArray) -> NDArray:
        """The diagonal of X' diag(h) X."""
        (found,) = self.risk.executor.sum(squares, each=[h[part] for part in self.parts])
        q = np.asarray(found)
        if self.standard is None:
            return q
        m = self.standard.shift
        away = q - 2 * m * self._sums(h) + float(h.sum()) * m * m
        found = np.maximum(away, 0.0) * self.standard.scale**2
        return np.asarray(found)

    def _sums(self, h: NDArray) -> NDArray:
        """X' h, of the columns as they are stored."""
        assert self.standard is not None
        each, zero = [h[part] for part in self.parts], np.zeros(self.shape[1])
        (found,) = self.risk.executor.sum(shards.scatter, self.standard.inner, zero, each=each)
        return np.asarray(found)

    @property
    def scorer(self) -> Any:
        """That of rows which were taken out: their columns are shifted and scaled already."""
        return self.risk.scorer if self.standard is None else self.standard.inner

    @property
    def _few_sums(self) -> bool:
        return len(self.parts) * self.shape[1] ** 2 <= MOST_SUMS

    def grams(self, windows: bool) -> bool:
        """Whether X' H X can be made: those of windows go across rows, which must be here."""
        return self.rows is not None or (self._few_sums and not windows)

    def takes(self, many: int) -> bool:
        """Whether so many rows can be taken out."""
        if self.standard is not None and self.table.sparse:
            return False  # with shifted columns, they would not be
        here = self.rows is not None and not crowded(self.rows)
        return here or many * self.numbers <= MOST_TAKEN * self.shape[0]

    def take(self, at: NDArray) -> Any:
        """Some rows by their numbers, which never fall: an array, or a sparse one of SciPy."""
        if self.rows is not None:
            return take(self.rows, at)
        ends = np.searchsorted(at, [part.stop for part in self.parts]).tolist()
        each = [at[i:j] - part.start for (i, j), part in zip(pairwise([0, *ends]), self.parts, strict=True)]
        found = self.risk.executor.map(take, each=each)
        if self.table.sparse:
            return sp.vstack(found, format="csr")
        rows = np.concatenate(found)
        return rows if self.standard is None else (rows - self.standard.shift) * self.standard.scale

    def each(self, f: Callable[[slice], Any]) -> list[Any]:
        """F of ranges of rows: of all together, or of parts side by side where there are many."""
        check()
        if len(self.looks) == 1:
            return [f(self.looks[0])]
        if self.rows is None:
            return [f(part) for part in checking(self.looks)]
        return self.risk.executor.map(lambda _, part: f(part), each=self.looks)


def mean_square(rows: Shard, weights: Any = 1.0) -> float:
    """The mean square of the lengths of rows, features being divided by weights; 1 where all are empty.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Shard, as_matrix
    >>> rows = Shard(as_matrix(np.array([[3.0, 0.0], [0.0, 4.0]])), np.zeros(2), np.full(2, 0.5), {})
    >>> mean_square(rows), mean_square(rows, np.array([1.0, 4.0]))
    (12.5, 6.5)
    """
    if "squares" not in rows.memo:
        rows.memo["squares"] = _squares(rows)
    kept: NDArray = rows.memo["squares"]
    return float((kept / weights).sum()) or 1.0


def _squares(rows: Shard) -> NDArray:
    """The mean squares of the features."""
    X, c = rows_of(rows), rows.c
    if isinstance(X, Csr):
        ends = X.indptr.astype(np.int64)
        weights = np.repeat(c, ends[1:] - ends[:-1])
        return np.bincount(X.indices, weights * X.data * X.data, X.shape[1])
    found, n = np.zeros(X.shape[1]), len(c)
    for at in blocks(np.arange(n), X.shape[1]):
        part = taken(X, at)
        found += c[at] @ (part * part)
    return found


def crowded(rows: Shard) -> bool:
    """Whether the rows are mapped from files that crowd the memory."""
    X: Any = getattr(rows.X, "tokens", rows.X)
    numbers = stored(X.csr if isinstance(X, Wide) else X)
    return numbers is not None and crowds(numbers)


def length(shard: Shard) -> int:
    """How many rows there are."""
    return len(shard.c)


def take(shard: Shard, at: NDArray) -> Any:
    """Some rows of a shard: an array, or a sparse one of SciPy."""
    X = rows_of(shard)
    rows: Any = as_scipy(X) if isinstance(X, Csr) else None
    parts: list[Any] = []
    for few in checking(picking(at)):
        parts.append(taken(X, few) if rows is None else rows[few])  # type: ignore[arg-type]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if rows is None else sp.vstack(parts, format="csr")


def rows_of(shard: Shard) -> Csr | Dense | Columns:
    """X as products of rows want it; dense ones may be stored by columns, sparse ones must not be."""
    X = shard.X.csr if isinstance(shard.X, Wide) else shard.X
    return X if isinstance(X, (Csr, Dense, Columns)) else rows_together(shard)


def rows_together(shard: Shard) -> Csr | Dense:
    """X with its rows together, each of its numbers in one place; kept with the shard."""
    if "rows" not in shard.memo:
        X = shard.X.csr if isinstance(shard.X, Wide) else shard.X
        shard.memo["rows"] = X if _once(X) else by_rows(X)
    kept: Csr | Dense = shard.memo["rows"]
    return kept


def _once(X: Any) -> bool:
    """Whether no row names a column twice: quicker to find out than to sort the columns of each row."""
    if not isinstance(X, Csr):
        return False
    from riskmin.kernels.dual_check import repeats

    seen, pairs = np.zeros(X.shape[1], int), pieces(0, X.shape[0], len(X.indices))
    return not any(repeats(X.indptr, X.indices, i, j, seen) for i, j in pairs)


def gram(shard: Shard, h: NDArray) -> tuple[NDArray]:
    """The upper triangle of X' diag(h) X, of one shard."""
    X, p = rows_of(shard), shard.X.shape[1]
    out = np.zeros((p, p))
    if isinstance(X, Csr):
        from riskmin.kernels.gram import csr_gram

        for i, j in gram_pieces(X, h):
            csr_gram(X.indptr[i : j + 1], X.indices, X.data, h[i:j], out)
        below = np.tril(out, -1)
        out += below.T if below.any() else 0.0
        return (out,)
    at = np.flatnonzero(h)
    for rows in blocks(at, p):
        half = taken(X, rows) * np.sqrt(h[rows])[:, None]
        out += half.T @ half
    return (out,)


def squares(shard: Shard, h: NDArray) -> tuple[NDArray]:
    """The diagonal of X' diag(h) X, of one shard."""
    X = rows_of(shard)
    out = np.zeros(X.shape[1])
    if isinstance(X, Csr):
        from riskmin.kernels.smooth import csr_squares

        for i, j in pieces(0, len(h), 2 * len(X.data)):
            csr_squares(X.indptr[i : j + 1], X.indices, X.data, h[i:j], out)
        return (out,)
    for at in blocks(np.arange(X.shape[0]), X.shape[1]):
        out += h[at] @ taken(X, at) ** 2
    return (out,)


def gram_pieces(X: Csr, h: NDArray) -> Iterable[tuple[int, int]]:
    """Ranges of rows of which the products take a while, and a look at the clock before each."""
    each = len(X.data) / max(1, X.shape[0])
    return pieces(0, len(h), np.count_nonzero(h) * each * each)


def taken(X: Dense | Columns, rows: NDArray) -> NDArray:
    """Some rows of a dense matrix, in double precision."""
    found = X.X[rows] if isinstance(X, Dense) else X.T[:, rows].T
    return found.astype(np.float64, copy=False)


def blocks(rows: NDArray, p: int) -> Iterable[NDArray]:
    """Rows in parts that fit into the cache."""
    step = max(BLOCK // p, 16)
    return passing(rows[i : i + step] for i in checking(range(0, len(rows), step)))
