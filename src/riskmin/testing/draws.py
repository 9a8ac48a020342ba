"""The random cases that losses are checked on, and how to take some of their rows.

Where rows come in sequences, what is taken, repeated or put in another order is whole sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from riskmin.testing.base import Rng
from riskmin.types import Array, ChecksLabels, Loss

Labels: TypeAlias = Callable[[Rng, int], Array]
COLUMNS = 3
"""How many scores a row has, where a loss takes any number of them."""


class Case(NamedTuple):
    """Scores, labels and weights."""

    z: Array
    y: Array
    c: Array

    @property
    def shared(self) -> int:
        """How many rows of the scores belong to all examples."""
        return len(self.z) - len(self.y)

    def units(self) -> list[Array]:
        """The rows of each example: one, or those of a sequence."""
        n = len(self.y)
        ends = np.flatnonzero(np.diff(self.y[:, 1])) + 1 if self.shared else np.arange(1, n)
        return [np.arange(i, j) for i, j in pairwise([0, *ends.tolist(), n])]

    def take(self, which: Any) -> tuple[Case, Array]:
        """Some examples, in any order and number, and which rows of the scores theirs are."""
        units = self.units()
        rows = np.concatenate([units[u] for u in which])
        y = self.y[rows]
        if self.shared:  # neighbours that are the same sequence are two
            y[:, 1] = np.repeat(np.arange(len(which)), [len(units[u]) for u in which])
        at = np.append(rows, np.arange(len(self.y), len(self.z)))
        return Case(self.z[at], y, self.c[rows]), at

    def put(self, dz: Array, at: Array) -> Array:
        """The slopes in the scores of some examples, added up where they belong."""
        total = np.zeros_like(self.z)
        np.add.at(total, at, dz)
        return total

    def times(self, counts: Array) -> Array:
        """A number a row, from a number an example."""
        return np.repeat(counts, [len(unit) for unit in self.units()])


@dataclass(frozen=True)
class Draws:
    """Random cases for a loss.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import ChainCrf, Hinge, Softmax
    >>> rng = np.random.default_rng(0)
    >>> [draws(loss).case(rng, 1.0, n=40).z.shape for loss in (Hinge(), Softmax(), ChainCrf())]
    [(40,), (40, 3), (45, 3)]
    """

    labels: Labels
    columns: int | None
    shared: int = 0
    equal: bool = False
    """Whether all rows have to weigh the same."""

    def case(self, rng: Rng, scale: float, n: int = 40) -> Case:
        """Scores of that size, with labels and weights."""
        shape = (n + self.shared,) if self.columns is None else (n + self.shared, self.columns)
        z, y = scale * rng.standard_normal(shape), self.labels(rng, n)
        c = np.ones(n) if self.equal else rng.uniform(0.5, 1.5, n)
        if self.shared:  # a token weighs what its sequence does
            c = c[np.unique(y[:, 1], return_index=True)[1]][y[:, 1].astype(int)]
        return Case(z, y, c / np.sum(c))


def draws(loss: Loss, labels: Labels | None = None, columns: int | None = None) -> Draws:
    """Cases with labels and as many scores a row as the loss takes.

    Raises
    ------
    AssertionError
        Where the loss takes none of the labels that are known.
    """
    make: Any = getattr(loss, "scorer", None)
    columns = columns or (COLUMNS if make is not None else None)
    draw, shared = labels or _labels(loss, columns), 0
    if make is not None:
        try:
            scorer = make(draw(np.random.default_rng(0), 40), columns)
        except ValueError as error:
            raise AssertionError(
                f"{loss!r}: {error}; pass check_loss columns=..., and labels=... that fit"
            ) from error
        columns, shared = int(scorer.columns), int(getattr(scorer, "shared", 0))
    found = Draws(draw, columns, shared)
    if loss.separable or not _counts_rows(loss, found):
        return found
    return Draws(draw, columns, shared, equal=True)


def _counts_rows(loss: Loss, found: Draws) -> bool:
    """Whether the loss refuses rows of different weights."""
    case = found.case(np.random.default_rng(0), 0.0)
    try:
        loss.value_grad(*case)
    except ValueError:
        return True
    return False


# ---------------------------------------------------------------- labels
def _signs(rng: Rng, n: int) -> Array:
    return rng.permutation(np.where(np.arange(n) < 0.4 * n, 1.0, -1.0))


def _reals(rng: Rng, n: int) -> Array:
    return 2 * rng.standard_normal(n)


def _counts(rng: Rng, n: int) -> Array:
    return rng.poisson(2.0, n).astype(float)


def _grades(rng: Rng, n: int) -> Array:
    return rng.permutation(np.arange(n) % 4.0)


def _queries(rng: Rng, n: int) -> Array:
    """Grades, and beside them the numbers of the queries, whose rows are not together."""
    p = rng.permutation(n)
    return np.column_stack([np.arange(n) // 5 % 4.0, np.arange(n) % 5.0])[p]


def _classes(columns: int | None) -> Labels:
    k = columns or COLUMNS
    return lambda rng, n: rng.permutation(np.arange(n) % float(k))


def _targets(columns: int | None) -> Labels:
    k = columns or COLUMNS
    return lambda rng, n: 2 * rng.standard_normal((n, k))


def _sequences(columns: int | None) -> Labels:
    """Labels, and beside them the numbers of the sequences, some of a single token."""
    k = columns or COLUMNS

    def draw(rng: Rng, n: int) -> Array:
        starts = rng.random(n) < 0.3
        starts[0] = False
        return np.column_stack([rng.permutation(np.arange(n) % float(k)), np.cumsum(starts)])

    return draw


def _labels(loss: Loss, columns: int | None) -> Labels:
    """The first kind of labels of the loss's task that the loss takes."""
    choices = {
        "classification": [_signs],
        "regression": [_targets(columns)] if getattr(loss, "many_targets", False) else [_reals, _counts],
        "novelty": [_reals],
        "ordinal": [_grades],
        "ranking": [_queries],
        "multiclass": [_classes(columns)],
        "tagging": [_sequences(columns)],
    }
    for choice in choices.get(getattr(loss, "task", "classification"), []):
        try:
            if isinstance(loss, ChecksLabels):
                loss.check_labels(choice(np.random.default_rng(0), 40))
            return choice
        except ValueError:
            continue
    raise AssertionError(f"{loss!r}: takes none of the usual labels; pass check_loss labels=...")
