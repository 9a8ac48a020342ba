r"""Protections of single answers: no row can be isolated, no point asked for that is no descent.

An answer is a tangent of the owner's risk, :math:`T(z) = q + u^\top z`, with one slope :math:`u_i` per row.
The effective number of rows of slopes is :math:`(\sum_i |u_i|)^2 / \sum_i u_i^2`. If that of an answer, or of
its difference to an earlier one, is positive but below `min_rows`, the rows behind it could be computed; so
the owner answers by the earlier tangent, which is a cut, too, and raises the value by the error, rounded up
to a power of two. The coordinator learns nothing that it could not compute itself but that power.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.owners.protection.policy import AnswerRefused, Policy


@dataclass(frozen=True, eq=False)
class ReferenceTangent:
    """A tangent of the owner's risk as a function of its scores, T(z) = offset + u'z."""

    slopes: NDArray
    offset: float
    minorant_offset: float = 0.0
    """By how much the tangent may be raised, if it is that of a smoothed loss."""

    def height(self, z: NDArray) -> float:
        """Return T(z)."""
        return self.offset + float(self.slopes.ravel() @ z.ravel())


def round_up(error: float) -> float:
    """Return the least power of two that is not below a positive error; 0 for 0."""
    return math.ldexp(1.0, math.ceil(math.log2(error))) if error > 0 else 0.0


class References:
    """The tangents that were answered, by which near ones are answered, too.

    A tangent that differs from an earlier one by few rows is answered by the earlier tangent, of all, that is
    highest at its scores: each is a cut that the coordinator has, so that it could choose the same one.
    Equal slopes are always answered in the same way: the cut of a model with an intercept is a mixture of
    tangents whose slopes were asked for before.

    Parameters
    ----------
    min_rows : int
    shape : tuple
        That of the slopes.
    path : path, optional
        A file in which the tangents are kept, so that a process that is started again knows them.
    """

    MAX_ENTRIES = 2**19
    """Slopes of earlier answers that are kept; beyond this, the oldest is replaced, but 8 always stay."""
    MAX_TANGENTS = 1024
    MAX_DECISIONS = 512
    """Decisions that are remembered, by a hash of the slopes."""
    SAME = 1e-12
    """Slopes that differ by less than this share are the same up to rounding."""

    def __init__(self, min_rows: int, shape: tuple[int, ...], path: Path | None = None) -> None:
        self.min_rows, size = min_rows, math.prod(shape)
        self.capacity = min(max(self.MAX_ENTRIES // max(size, 1), 8), self.MAX_TANGENTS)
        # the zero tangent is a cut of every loss: answers with few active rows are given by it
        self.tangents = [ReferenceTangent(np.zeros(shape), 0.0)]
        self._slopes = np.zeros((8, *shape))
        self._oldest = 1
        self._decisions: OrderedDict[bytes, ReferenceTangent | None] = OrderedDict()
        self._kept: NDArray | None = None
        if path is not None and min_rows:
            self._read(path, (self.capacity, 3 + size))

    def _read(self, path: Path, shape: tuple[int, int]) -> None:
        """Map the file into memory, and add its tangents: rows of number, offsets and slopes."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, 8 * math.prod(shape))
        with os.fdopen(descriptor, "r+b") as file:
            # pages are the system's: they outlive a process that is killed
            self._kept = np.memmap(file, np.float64, "r+", shape=shape)
        numbers = self._kept[:, 0]
        for row in self._kept[1 : int(np.max(np.flatnonzero(numbers), initial=0)) + 1]:
            # a row that was being written counts as zero, which is a cut, too
            whole = row if row[0] else np.zeros_like(row)
            slopes = np.array(whole[3:]).reshape(self._slopes.shape[1:])
            self._append(ReferenceTangent(slopes, float(whole[1]), float(whole[2])))
        if len(self.tangents) == self.capacity:
            self._oldest = int(np.argmax(numbers)) % (self.capacity - 1) + 1

    def answer(self, tangent: ReferenceTangent, z: NDArray) -> ReferenceTangent:
        """Return the tangent at scores z itself, or the earlier one by which it must be answered."""
        if not self.min_rows:
            return tangent
        digest = hashlib.blake2b(np.ascontiguousarray(tangent.slopes).data, digest_size=16).digest()
        if digest not in self._decisions:
            self._decisions[digest] = self._earlier(tangent, z)
            if len(self._decisions) > self.MAX_DECISIONS:
                self._decisions.popitem(last=False)
        self._decisions.move_to_end(digest)
        earlier = self._decisions[digest]
        return tangent if earlier is None else earlier

    def _earlier(self, tangent: ReferenceTangent, z: NDArray) -> ReferenceTangent | None:
        """Return the highest earlier tangent if one differs by few rows; if none does, add this one."""
        k = len(self.tangents)
        sizes = np.abs(self._slopes[:k] - tangent.slopes)
        if sizes.ndim == 3:
            sizes = sizes.sum(axis=2)
        sums, squares = sizes.sum(axis=1), np.einsum("ki,ki->k", sizes, sizes)
        if np.any(sums <= self.SAME * float(np.abs(tangent.slopes).sum())):
            return None
        if not np.any(sums * sums < self.min_rows * squares):
            self._add(tangent)
            return None
        offsets = np.array([each.offset for each in self.tangents])
        return self.tangents[int(np.argmax(offsets + self._slopes[:k].reshape(k, -1) @ z.ravel()))]

    def _add(self, tangent: ReferenceTangent) -> None:
        k = len(self.tangents)
        if k < self.capacity:
            self._append(tangent)
        else:  # the zero tangent stays
            k, self._oldest = self._oldest, self._oldest % (self.capacity - 1) + 1
            self.tangents[k] = tangent
        self._slopes[k] = tangent.slopes
        if self._kept is not None:
            number = float(self._kept[:, 0].max()) + 1
            row = self._kept[k]
            row[0] = 0.0
            row[1:3] = tangent.offset, tangent.minorant_offset
            row[3:] = tangent.slopes.ravel()
            row[0] = number  # last: a row without a number is not whole

    def _append(self, tangent: ReferenceTangent) -> None:
        k = len(self.tangents)
        if k == len(self._slopes):
            self._slopes = np.concatenate([self._slopes, np.zeros_like(self._slopes)])
        self.tangents.append(tangent)
        self._slopes[k] = tangent.slopes


class DescentCheck:
    """Whether the points that are asked for come from a descent of the claimed objective.

    Parameters
    ----------
    policy : Policy
    value_at_zero : float
        The objective of the claimed problem at w = 0 on the owner's rows.
    """

    def __init__(self, policy: Policy, value_at_zero: float) -> None:
        self.policy, self.best = policy, value_at_zero
        self.slack = policy.rise_tolerance * value_at_zero
        self.rises = self.probes = 0
        self.last: NDArray | None = None

    def take(self, w: NDArray, value: float) -> None:
        """Record a point at which a gradient is asked for; raise `AnswerRefused` if there is no descent."""
        self._check_support(w)
        # NaN and infinity count as a rise
        self.rises = 0 if value <= self.best + self.slack else self.rises + 1
        self.best = min(self.best, value)
        if self.policy.max_rises and self.rises >= self.policy.max_rises:
            raise AnswerRefused(
                f"the claimed objective was above its lowest value here at {self.rises} points in a row "
                f"({value:.4g}, lowest {self.best:.4g}): this is no descent of the claimed problem",
                final=True,
            )

    def _check_support(self, w: NDArray) -> None:
        # with few weights, any step changes few of them
        if self.last is not None and len(w) >= 8:
            changed = int(np.count_nonzero(w != self.last))
            # from one column to the next, two weights change; the same point may be asked for again
            self.probes = self.probes if not changed else self.probes + 1 if changed <= 2 else 0
        self.last = w.copy()
        if self.policy.max_coordinate_probes and self.probes >= self.policy.max_coordinate_probes:
            raise AnswerRefused(
                f"{self.probes} points in a row differ in one or two weights: this probes columns", final=True
            )


@dataclass(frozen=True)
class Rounding:
    """Rounding of answers, with bounds on its errors.

    Parameters
    ----------
    digits : int
        0 for no rounding.
    scale : float
        The risk of the owner's rows at w = 0, to which the digits of values are relative.
    """

    digits: int
    scale: float

    def value(self, value: float) -> tuple[float, float]:
        """Return a value rounded up, so that it stays an upper bound, and the largest error."""
        step = self._step(self.scale)
        return (math.ceil(value / step) * step, step) if step and math.isfinite(value) else (value, 0.0)

    def slope(self, slope: float) -> float:
        """Return a slope along a line, rounded relative to its size."""
        step = self._step(abs(slope))
        return round(slope / step) * step if step and math.isfinite(slope) else slope

    def gradient(self, gradient: NDArray, n_exact: int) -> tuple[NDArray, float]:
        """Return a gradient with all but the last n_exact entries rounded, and the largest error of one.

        Slopes in intercepts stay exact: intercepts are not penalized, so that no bound of them is known.
        """
        head = gradient[: len(gradient) - n_exact]
        step = self._step(float(np.max(np.abs(head), initial=0.0)))
        if not step or not math.isfinite(step):
            return gradient, 0.0
        rounded = gradient.copy()
        rounded[: len(head)] = np.round(head / step) * step
        return rounded, 0.5 * step

    def _step(self, size: float) -> float:
        """Return the spacing of rounded numbers: a power of two, so that rounded numbers have few digits."""
        if not self.digits or not size > 0 or not math.isfinite(size):
            return 0.0
        return math.ldexp(1.0, math.floor(math.log2(size * 10.0**-self.digits)))


def sanitized_moments(moments: Any) -> Any:
    """Return moments of columns without their extremes, which are entries of single rows.

    The minimum and maximum of a column that is not constant are replaced by one deviation from the mean.
    """
    deviation = np.sqrt(np.maximum(moments.variance, 0.0))
    constant = moments.minimum == moments.maximum
    return moments._replace(
        minimum=np.where(constant, moments.minimum, moments.mean - deviation),
        maximum=np.where(constant, moments.maximum, moments.mean + deviation),
    )
