r"""What all answers of an owner reveal together: the span of their multipliers, and leverages in it.

Every answer is :math:`X^\top u` for some multipliers u, one per row. Row i can be solved for from answers
with multipliers :math:`u_1, \dots, u_k` exactly if its unit vector is in their span. For an orthonormal
basis Q of the span, the leverage of the row is

.. math:: h_i = |Q^\top e_i|^2 = \max_{a} \frac{(U a)_i^2}{|U a|^2} \in [0, 1].

In any combination of answers, row i has at most the share :math:`h_i` of the squared weights. If the rows are
independent draws of unit variance, whoever knows all multipliers estimates row i with a mean squared error of
:math:`1 - h_i` at best. No answer is given after which a leverage exceeds the limit, whatever loss, weight,
class, run, coordinator, day or process it belongs to.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from riskmin.core import NDArray


class RevealedSpan:
    """The span of the multipliers of all answers so far.

    Parameters
    ----------
    rows : array of uint64
        A number that identifies each row, by which rows are found again in the file.
    limit : float
        The largest leverage; 1 or more for no limit.
    path : path, optional
        A file in which the basis is kept, so that a process that is started again knows it.

    Examples
    --------
    >>> span = RevealedSpan(np.arange(4, dtype=np.uint64), 0.6)
    >>> span.add(np.ones(4)).any()
    np.False_
    >>> span.add(np.array([2.0, 1.0, 1.0, 1.0]))  # the difference is the first row
    array([ True, False, False, False])
    >>> span.add(3 * np.ones(4)).any()  # reveals nothing new
    np.False_
    """

    NEW = 1e-13
    """Components outside the span below this share of u count as rounding errors."""
    MAX_ENTRIES = 2**28
    """Entries of the basis that are kept, 2 GiB: after that, no answer with new multipliers is given."""

    def __init__(self, rows: NDArray, limit: float, path: Path | None = None) -> None:
        self.limit, self.path = limit, path if limit < 1 else None
        old, basis = (rows[:0], np.zeros((0, 0))) if self.path is None else _read(self.path)
        # rows that are gone stay in the basis: answers before and after a change can be compared
        known = np.concatenate([old, np.setdiff1d(rows, old)])
        order = np.argsort(known)
        self.where = order[np.searchsorted(known[order], rows)]
        self.rank = basis.shape[1]
        self._basis = np.zeros((len(known), max(8, self.rank)), order="F")
        self._basis[: len(old), : self.rank] = basis
        self.leverages = np.einsum("ij,ij->i", self._basis, self._basis)
        if self.path is not None and len(known) > len(old):
            content = np.array([len(known)], "<u8").tobytes() + known.astype("<u8").tobytes()
            partial = self.path.with_suffix(".partial")
            _write(partial, content + self._basis[:, : self.rank].tobytes(order="F"), os.O_TRUNC)
            partial.replace(self.path)

    @property
    def basis(self) -> NDArray:
        """An orthonormal basis of the span, one row per row that was ever served."""
        return self._basis[:, : self.rank]

    def add(self, slopes: NDArray) -> NDArray:
        """Add multipliers, one column per output, unless they expose rows: return which rows they expose."""
        n = len(self.where)
        if self.limit >= 1:
            return np.zeros(n, dtype=bool)
        if not np.isfinite(slopes).all():
            return np.ones(n, dtype=bool)
        new = self._new_directions(slopes.reshape(n, -1))
        leverages = self.leverages + np.einsum("ij,ij->i", new, new)
        exposed: NDArray = leverages > self.limit
        if new.shape[1] and exposed.any():
            return exposed[self.where]
        if (self.rank + new.shape[1]) * len(self._basis) > self.MAX_ENTRIES:
            return np.ones(n, dtype=bool)
        self._append(new, leverages)
        return np.zeros(n, dtype=bool)

    def _new_directions(self, slopes: NDArray) -> NDArray:
        """Return an orthonormal basis of what the columns of some slopes add to the span."""
        found = np.zeros((len(self._basis), 0))
        for column in slopes.T:
            size = float(np.max(np.abs(column), initial=0.0))
            if not size:
                continue
            r = np.zeros(len(self._basis))
            r[self.where] = column / size
            before = np.linalg.norm(r)
            r = self._outside(r, found)
            after = np.linalg.norm(r)
            if after > self.NEW * before:
                # the rest of a small component is not orthogonal to the last digit: once more
                r = self._outside(r / after, found)
                found = np.column_stack([found, r / np.linalg.norm(r)])
        return found

    def _outside(self, r: NDArray, found: NDArray) -> NDArray:
        for _ in range(2):
            for Q in (self._basis[:, : self.rank], found):
                r = r - Q @ (Q.T @ r)
        return r

    def _append(self, new: NDArray, leverages: NDArray) -> None:
        if not new.shape[1]:
            return
        rank = self.rank + new.shape[1]
        if rank > self._basis.shape[1]:
            larger = np.zeros((len(self._basis), 2 * rank), order="F")
            larger[:, : self.rank] = self._basis[:, : self.rank]
            self._basis = larger
        self._basis[:, self.rank : rank] = new
        self.rank, self.leverages = rank, leverages
        if self.path is not None:  # on the disk before the answer goes out
            _write(self.path, np.asfortranarray(new).tobytes(order="F"), os.O_APPEND)


def _write(path: Path, data: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | mode, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> tuple[NDArray, NDArray]:
    """Return the rows and the basis of a file: the number of rows, their identifiers, and directions."""
    if not path.exists():
        return np.zeros(0, np.uint64), np.zeros((0, 0))
    data = path.read_bytes()
    n = int(np.frombuffer(data, "<u8", 1)[0]) if len(data) >= 8 else 0
    if not 0 < n <= len(data) // 8 - 1:
        raise ValueError(
            f"{path} does not hold what was answered before: restore it, or remove it to forget those answers"
        )
    start = 8 * (n + 1)
    rank = (len(data) - start) // (8 * n)
    # what follows is a direction that was being written when the process ended: its answer did not go out
    os.truncate(path, start + 8 * n * rank)
    basis = np.frombuffer(data, "<f8", n * rank, start).reshape((n, rank), order="F")
    return np.frombuffer(data, "<u8", n, 8).astype(np.uint64), basis


def row_identifiers(hashes: NDArray) -> NDArray:
    """Return the hashes of rows, changed where a row is equal to an earlier one, so that all differ.

    Examples
    --------
    >>> len(np.unique(row_identifiers(np.array([5, 7, 5, 5], np.uint64))))
    4
    """
    order = np.argsort(hashes, kind="stable")
    starts = np.flatnonzero(np.diff(hashes[order], prepend=~hashes[order[:1]]))
    numbers = np.empty(len(hashes), np.uint64)
    numbers[order] = np.arange(len(hashes)) - np.repeat(starts, np.diff(starts, append=len(hashes)))
    found: NDArray = hashes + numbers * np.uint64(0x9E3779B97F4A7C15)
    return found
