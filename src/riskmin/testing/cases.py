"""Random cases for the checks of losses, and selection of their examples.

An example is one row, or one sequence of rows (tokens): selecting, repeating and permuting keeps sequences
whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from riskmin.core import Array
from riskmin.losses.base import Loss
from riskmin.testing.base import Rng

LabelSampler: TypeAlias = Callable[[Rng, int], Array]
DEFAULT_SCORES_PER_ROW = 3
"""Number of scores per row, for losses that take any number of them."""


class LossCase(NamedTuple):
    """Scores z, labels y and weights c."""

    z: Array
    y: Array
    c: Array

    @property
    def shared(self) -> int:
        """Number of trailing rows of the scores that all examples share (transitions of sequences)."""
        return len(self.z) - len(self.y)

    def example_rows(self) -> list[Array]:
        """The row indices of each example: one row, or those of a sequence."""
        n = len(self.y)
        # y[:, 1] is the sequence number: a sequence ends where it changes
        ends = np.flatnonzero(np.diff(self.y[:, 1])) + 1 if self.shared else np.arange(1, n)
        return [np.arange(i, j) for i, j in pairwise([0, *ends.tolist(), n])]

    def select(self, which: Any) -> tuple[LossCase, Array]:
        """Select examples by index, with repetition; also return the indices of their rows of scores."""
        units = self.example_rows()
        rows = np.concatenate([units[u] for u in which])
        y = self.y[rows]
        if self.shared:  # number the sequences anew: a repeated sequence counts as two
            y[:, 1] = np.repeat(np.arange(len(which)), [len(units[u]) for u in which])
        # shared score rows follow those of the examples
        score_rows = np.append(rows, np.arange(len(self.y), len(self.z)))
        return LossCase(self.z[score_rows], y, self.c[rows]), score_rows

    def scatter_add(self, dz: Array, score_rows: Array) -> Array:
        """Add a gradient in the scores of selected examples to the rows that they were selected from."""
        total = np.zeros_like(self.z)
        np.add.at(total, score_rows, dz)
        return total

    def per_row(self, counts: Array) -> Array:
        """Expand one number per example to one number per row."""
        return np.repeat(counts, [len(unit) for unit in self.example_rows()])


@dataclass(frozen=True)
class CaseSampler:
    """Sampler of random cases for a loss.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import ChainCrf, Hinge, Softmax
    >>> rng = np.random.default_rng(0)
    >>> [make_case_sampler(loss).case(rng, 1.0, n=40).z.shape for loss in (Hinge(), Softmax(), ChainCrf())]
    [(40,), (40, 3), (45, 3)]
    """

    labels: LabelSampler
    columns: int | None
    shared: int = 0
    equal_weights: bool = False
    """Whether the loss requires equal weights of all rows."""

    def case(self, rng: Rng, scale: float, n: int = 40) -> LossCase:
        """Draw n labels and weights, and normal scores of standard deviation `scale`."""
        shape = (n + self.shared,) if self.columns is None else (n + self.shared, self.columns)
        z, y = scale * rng.standard_normal(shape), self.labels(rng, n)
        c = np.ones(n) if self.equal_weights else rng.uniform(0.5, 1.5, n)
        if self.shared:  # all tokens of a sequence have the same weight
            c = c[np.unique(y[:, 1], return_index=True)[1]][y[:, 1].astype(int)]
        return LossCase(z, y, c / np.sum(c))


def make_case_sampler(
    loss: Loss, labels: LabelSampler | None = None, columns: int | None = None
) -> CaseSampler:
    """Make the sampler of cases with the labels and the number of scores per row that the loss takes.

    Raises
    ------
    AssertionError
        If the loss accepts none of the known kinds of labels.
    """
    columns = columns or (DEFAULT_SCORES_PER_ROW if loss.multi_output else None)
    draw, shared = labels or _labels(loss, columns), 0
    if loss.multi_output:
        try:
            linear_map: Any = loss.linear_map(draw(np.random.default_rng(0), 40), columns)
        except ValueError as error:
            raise AssertionError(
                f"{loss!r}: {error}; pass check_loss columns=..., and labels=... that fit"
            ) from error
        columns, shared = int(linear_map.columns), linear_map.shared
    sampler = CaseSampler(draw, columns, shared)
    if loss.separable or not _requires_equal_weights(loss, sampler):
        return sampler
    return CaseSampler(draw, columns, shared, equal_weights=True)


def _requires_equal_weights(loss: Loss, sampler: CaseSampler) -> bool:
    """Whether the loss raises a ValueError for rows of different weights."""
    # weights drawn from [0.5, 1.5] differ
    case = sampler.case(np.random.default_rng(0), 0.0)
    try:
        loss.value_grad(*case)
    except ValueError:
        return True
    return False


# ---------------------------------------------------------------- labels
def _signs(rng: Rng, n: int) -> Array:
    # 40 % positive: both classes occur, in different numbers
    return rng.permutation(np.where(np.arange(n) < 0.4 * n, 1.0, -1.0))


def _reals(rng: Rng, n: int) -> Array:
    return 2 * rng.standard_normal(n)


def _counts(rng: Rng, n: int) -> Array:
    return rng.poisson(2.0, n).astype(float)


def _amounts(rng: Rng, n: int) -> Array:
    return rng.gamma(2.0, size=n)


def _grades(rng: Rng, n: int) -> Array:
    return rng.permutation(np.arange(n) % 4.0)


def _queries(rng: Rng, n: int) -> Array:
    """Grades and query numbers as two columns; the rows of a query are not contiguous."""
    # five queries; for n = 40, each has two rows of each of the four grades
    p = rng.permutation(n)
    return np.column_stack([np.arange(n) // 5 % 4.0, np.arange(n) % 5.0])[p]


def _classes(columns: int | None) -> LabelSampler:
    k = columns or DEFAULT_SCORES_PER_ROW
    return lambda rng, n: rng.permutation(np.arange(n) % float(k))


def _targets(columns: int | None) -> LabelSampler:
    k = columns or DEFAULT_SCORES_PER_ROW
    return lambda rng, n: 2 * rng.standard_normal((n, k))


def _sequences(columns: int | None) -> LabelSampler:
    """Labels and sequence numbers as two columns; some sequences have a single token."""
    k = columns or DEFAULT_SCORES_PER_ROW

    def draw(rng: Rng, n: int) -> Array:
        starts = rng.random(n) < 0.3
        # the first sequence has the number 0
        starts[0] = False
        return np.column_stack([rng.permutation(np.arange(n) % float(k)), np.cumsum(starts)])

    return draw


def _labels(loss: Loss, columns: int | None) -> LabelSampler:
    """The first kind of labels for the loss's task that the loss accepts."""
    choices = {
        "classification": [_signs],
        "regression": [_targets(columns)] if loss.multi_output_targets else [_reals, _counts, _amounts],
        "novelty": [_reals],
        "ordinal": [_grades],
        "ranking": [_queries],
        "multiclass": [_classes(columns)],
        "tagging": [_sequences(columns)],
    }
    # the first choice that `check_labels` accepts, or the first one
    for choice in choices.get(loss.task or "classification", []):
        try:
            loss.check_labels(choice(np.random.default_rng(0), 40))
            return choice
        except ValueError:
            continue
    raise AssertionError(f"{loss!r}: takes none of the usual labels; pass check_loss labels=...")
