"""The examples of a shard, the model that speaks of them, and the outputs that it found so far."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from riskmin.deadline import checking
from riskmin.structured.rows import EMPTY, Row, as_row, key_of, minus
from riskmin.types import NDArray

CLOSE = 1e-12
"""Values that differ by less than this are the same, but for rounding."""
TRUSTED = 1e-7
"""An argmax may be worse than what is known by this part of the numbers that it adds up: solvers round."""


class Output(NamedTuple):
    """An output that was found for an example: its features less those of y, and its cost."""

    key: Hashable
    row: Row
    cost: float

    @property
    def size(self) -> int:
        """Its bytes, roughly: an index and a number each, here and in the table, and what objects take."""
        return 500 + 32 * len(self.row.values)

    def value(self, w: NDArray) -> float:
        """What it adds to the loss at w: cost + w @ row."""
        return self.cost + self.row.dot(w)


TRUTH = Output(None, EMPTY, 0.0)
"""The label itself as an output: its value is zero everywhere."""


class Table(NamedTuple):
    """Known outputs of all examples, one a row, so that one product scores them all."""

    outputs: list[Output]
    owner: NDArray
    """The example of each, in order."""
    starts: NDArray
    """The first row of each example that has rows."""
    cost: NDArray
    matrix: Any
    transpose: Any


@dataclass
class Examples:
    """The examples of a shard with a max-margin model."""

    model: Any
    xs: list[Any]
    ys: list[Any]
    numbers: NDArray
    """What the examples are called in messages: their places in the data."""
    dim: int
    room: float
    """How many bytes the outputs of one example may take; the last one found is kept in any case."""
    truth: list[Row] = field(default_factory=list)
    kept: list[dict[Hashable, Output]] = field(default_factory=list)
    """The outputs of each example, those that were of use last at the end."""
    always: dict[int, list[Output]] = field(default_factory=dict)
    """Outputs that are never dropped: all those of a few small examples, to check the argmax by."""
    calls: int = 0
    features: int = 0
    """How often the model was asked for an argmax, and for joint features."""
    dropped: int = 0
    """How many outputs were forgotten for want of room."""

    def __post_init__(self) -> None:
        for i in range(len(self.xs)):
            cost = self._cost(i, self.ys[i])
            if cost != 0:
                raise ValueError(
                    f"cost(y, y) of example {self.numbers[i]} is {cost!r}: the cost of the right output is 0"
                )
            self.truth.append(self._phi(i, self.ys[i]))
        self.kept = [{} for _ in self.xs]
        self._table: Table | None = None

    def _phi(self, i: int, y: Any) -> Row:
        self.features += 1
        name = f"joint_feature of example {self.numbers[i]}"
        return as_row(self.model.joint_feature(self.xs[i], y), self.dim, name)

    def _cost(self, i: int, y: Any) -> float:
        cost = self.model.cost(self.ys[i], y)
        try:
            number = float(cost)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"cost of example {self.numbers[i]} is {cost!r}: give a finite number")
        return number

    def output(self, i: int, y: Any) -> Output:
        """The output y of example i, with its features; nothing is kept."""
        return Output(key_of(y), minus(self._phi(i, y), self.truth[i]), self._cost(i, y))

    def ask(self, i: int, w: NDArray) -> Output:
        """What the model's argmax finds for example i at w; kept, so that its features are computed once."""
        self.calls += 1
        y = self.model.loss_augmented_argmax(self.xs[i], self.ys[i], w)
        kept, key = self.kept[i], key_of(y)
        if key in kept:
            kept[key] = kept.pop(key)  # now the last
            return kept[key]
        found = kept[key] = self.output(i, y)
        size = sum(o.size for o in kept.values())
        while size > self.room and len(kept) > 1:
            size -= kept.pop(next(iter(kept))).size
            self.dropped += 1
        self._table = None
        return found

    def forget_table(self) -> None:
        """The table is to be made anew when it is next needed."""
        self._table = None

    def table(self) -> Table:
        """All outputs that are known."""
        if self._table is None:
            pairs = [
                (i, o) for i, kept in enumerate(self.kept) for o in (*kept.values(), *self.always.get(i, ()))
            ]
            rows = [o.row for _, o in pairs]
            owner = np.array([i for i, _ in pairs], dtype=np.int64)
            ends = np.cumsum([0, *(len(row.values) for row in rows)])
            values = np.concatenate([EMPTY.values, *(row.values for row in rows)])
            indices = np.concatenate([EMPTY.indices, *(row.indices for row in rows)])
            matrix = sparse.csr_array((values, indices, ends), shape=(len(rows), self.dim))
            starts, cost = np.unique(owner, return_index=True)[1], np.array([o.cost for _, o in pairs])
            outputs = [o for _, o in pairs]
            self._table = Table(outputs, owner, starts, cost, matrix, matrix.T)
        return self._table

    def trust(self, i: int, found: Output, value: float, known: Output, best: float, w: NDArray) -> Output:
        """The better of what was found and what is known, which are the same but for rounding.

        Raises
        ------
        ValueError
            If the argmax is none: R would be too low, and nothing that is proved with it would be true.
        """
        if best <= value + CLOSE * (1 + abs(best)):
            return found
        sizes = [abs(o.cost) + float(abs(o.row.values) @ abs(w[o.row.indices])) for o in (found, known)]
        if not best <= value + TRUSTED * (1 + max(sizes)):
            what = "y itself has 0" if known is TRUTH else f"another output has {best:.9g}"
            raise ValueError(
                f"loss_augmented_argmax does not maximize: for example {self.numbers[i]} it found "
                f"cost + w @ (joint_feature(x, y') - joint_feature(x, y)) = {value:.9g} where {what}"
            )
        return known

    def known(self, w: NDArray) -> tuple[NDArray, NDArray]:
        """The most that known outputs give for each example at w, and where in the table; -1 for y itself."""
        table = self.table()
        best, where = np.zeros(len(self.xs)), np.full(len(self.xs), -1)
        if not table.outputs:
            return best, where
        values = table.matrix @ w + table.cost
        best[table.owner[table.starts]] = np.maximum(np.maximum.reduceat(values, table.starts), 0.0)
        (hits,) = np.nonzero(values == best[table.owner])
        where[table.owner[hits]] = hits
        return best, where

    def refresh(self, w: NDArray) -> None:
        """The outputs that are best at w are the last to be forgotten."""
        table, (_, where) = self.table(), self.known(w)
        for i, k in enumerate(where):
            if k >= 0 and (key := table.outputs[k].key) in self.kept[i]:
                self.kept[i][key] = self.kept[i].pop(key)

    def at(self, w: NDArray, those: Sequence[int] | None = None) -> tuple[NDArray, list[Output]]:
        """The loss of each example at w, or of those given; and the outputs that attain it."""
        those = range(len(self.xs)) if those is None else those
        if self.dropped:  # what is of use here, and not found once more, is not to be forgotten next
            self.refresh(w)
        found = [self.ask(i, w) for i in checking(those)]
        table, (best, where) = self.table(), self.known(w)
        outputs = []
        for i, new in zip(those, found, strict=True):
            old = table.outputs[where[i]] if where[i] >= 0 else TRUTH
            outputs.append(self.trust(i, new, new.value(w), old, float(best[i]), w))
        return np.array([o.value(w) for o in outputs]), outputs
