"""The examples of a shard, their model, and the cache of the outputs that its argmax has found."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from riskmin.core import NDArray
from riskmin.core.deadline import check_each
from riskmin.problem.structured.joint_features import EMPTY, SparseVector, as_sparse, key_of, subtract

ARGMAX_TOL = 1e-7
"""Tolerated deficit of an argmax against a cached output, relative to the size of its terms (rounding)."""


class Output(NamedTuple):
    """An output of an example: its joint features minus those of y, times cost^beta, and its cost."""

    key: Hashable
    row: SparseVector
    cost: float

    @property
    def size(self) -> int:
        """Its approximate memory in bytes: index and value, twice (here and in the table), and overhead."""
        return 500 + 32 * len(self.row.values)

    def value(self, w: NDArray) -> float:
        """Its contribution to the loss at w, cost + w @ row."""
        return self.cost + self.row.dot(w)


TRUE_OUTPUT = Output(None, EMPTY, 0.0)
"""The label y itself as an output: its value is zero for every w."""


class OutputTable(NamedTuple):
    """The cached outputs of all examples as rows of one matrix, so that one product scores them all."""

    outputs: list[Output]
    owner: NDArray
    """The example of each row, in ascending order."""
    starts: NDArray
    """The first row of each example that has rows."""
    cost: NDArray
    matrix: Any
    transpose: Any


@dataclass
class MarginExamples:
    """The examples of a shard with a max-margin model."""

    SAME_VALUE_TOL = 1e-12
    """Values whose relative difference is below this are equal up to rounding."""

    model: Any
    xs: list[Any]
    ys: list[Any]
    example_ids: NDArray
    """The indices of the examples in the data, for messages."""
    dim: int
    max_bytes: float
    """Memory for the outputs of one example, in bytes; the last output found is cached in any case."""
    beta: float = 0.0
    """The power of the cost that scales the margin: the loss is cost^beta w @ (...) + cost."""
    search: str = "loss_augmented_argmax"
    """The method of the model that finds the maximizing output, or one output of each cost."""
    true_features: list[SparseVector] = field(default_factory=list)
    """joint_feature(x_i, y_i) of each example."""
    cached: list[dict[Hashable, Output]] = field(default_factory=list)
    """The outputs of each example, the most recently used ones last."""
    pinned: dict[int, list[Output]] = field(default_factory=dict)
    """Outputs that are never dropped: all outputs of a few small examples, to check the argmax."""
    calls: int = 0
    features: int = 0
    """The numbers of calls of the argmax (`calls`) and of joint_feature."""
    dropped: int = 0
    """The number of outputs that were dropped to save memory."""

    def __post_init__(self) -> None:
        for i in range(len(self.xs)):
            cost = self._cost(i, self.ys[i])
            if cost != 0:
                raise ValueError(
                    f"cost(y, y) of example {self.example_ids[i]} is {cost!r}: "
                    "the cost of the right output is 0"
                )
            self.true_features.append(self._phi(i, self.ys[i]))
        self.cached = [{} for _ in self.xs]
        self._table: OutputTable | None = None

    def _phi(self, i: int, y: Any) -> SparseVector:
        self.features += 1
        name = f"joint_feature of example {self.example_ids[i]}"
        return as_sparse(self.model.joint_feature(self.xs[i], y), self.dim, name)

    def _cost(self, i: int, y: Any) -> float:
        cost = self.model.cost(self.ys[i], y)
        try:
            number = float(cost)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"cost of example {self.example_ids[i]} is {cost!r}: give a finite number")
        if self.beta and number < 0:
            raise ValueError(
                f"cost of example {self.example_ids[i]} is {cost!r}: margins are rescaled by costs >= 0"
            )
        return number

    def output(self, i: int, y: Any) -> Output:
        """The output y of example i with its features; it is not cached."""
        row, cost = subtract(self._phi(i, y), self.true_features[i]), self._cost(i, y)
        if self.beta:
            row = SparseVector(row.indices, row.values * cost**self.beta) if cost else EMPTY
        return Output(key_of(y), row, cost)

    def _find(self, i: int, w: NDArray) -> Any:
        """The output of example i with the largest value at w, by the model's method `search`."""
        method, x, y = getattr(self.model, self.search), self.xs[i], self.ys[i]
        if self.search == "best_of_each_cost":
            # for a given cost the value increases with the score, so the best of all costs is the maximum
            return max([y, *method(x, y, w)], key=lambda other: self.output(i, other).value(w))
        return method(x, y, w, self.beta) if self.beta else method(x, y, w)

    def argmax(self, i: int, w: NDArray) -> Output:
        """The result of the model's argmax for example i at w; cached, so that features are computed once."""
        self.calls += 1
        y = self._find(i, w)
        # a dict keeps the order of insertion: removing a key and inserting it again makes it the last one
        cached, key = self.cached[i], key_of(y)
        if key in cached:
            cached[key] = cached.pop(key)
            return cached[key]
        output = cached[key] = self.output(i, y)
        # drop the least recently used outputs, but never the one just found
        size = sum(o.size for o in cached.values())
        while size > self.max_bytes and len(cached) > 1:
            size -= cached.pop(next(iter(cached))).size
            self.dropped += 1
        self._table = None
        return output

    def invalidate_table(self) -> None:
        """Discard the table; it is rebuilt when it is next needed."""
        self._table = None

    def table(self) -> OutputTable:
        """All cached and pinned outputs."""
        if self._table is None:
            pairs = [
                (i, o)
                for i, cached in enumerate(self.cached)
                for o in (*cached.values(), *self.pinned.get(i, ()))
            ]
            # one CSR matrix of all outputs, ordered by example
            rows = [o.row for _, o in pairs]
            owner = np.array([i for i, _ in pairs], dtype=np.int64)
            ends = np.cumsum([0, *(len(row.values) for row in rows)])
            values = np.concatenate([EMPTY.values, *(row.values for row in rows)])
            indices = np.concatenate([EMPTY.indices, *(row.indices for row in rows)])
            matrix = sparse.csr_array((values, indices, ends), shape=(len(rows), self.dim))
            starts, cost = np.unique(owner, return_index=True)[1], np.array([o.cost for _, o in pairs])
            outputs = [o for _, o in pairs]
            self._table = OutputTable(outputs, owner, starts, cost, matrix, matrix.T)
        return self._table

    def checked(
        self, i: int, found: Output, value: float, best_cached: Output, best: float, w: NDArray
    ) -> Output:
        """The better of the argmax's result and the best cached output, if they are equal up to rounding.

        Raises
        ------
        ValueError
            If the argmax does not maximize: R would be too low, and proofs made with it would be wrong.
        """
        if best <= value + self.SAME_VALUE_TOL * (1 + abs(best)):
            return found
        # a larger difference may still be rounding if the terms of the values, which cancel, are large
        sizes = [abs(o.cost) + float(abs(o.row.values) @ abs(w[o.row.indices])) for o in (found, best_cached)]
        if not best <= value + ARGMAX_TOL * (1 + max(sizes)):
            what = "y itself has 0" if best_cached is TRUE_OUTPUT else f"another output has {best:.9g}"
            power = f" cost^{self.beta:g}" if self.beta else ""
            raise ValueError(
                f"{self.search} does not maximize: for example {self.example_ids[i]} it found "
                f"cost +{power} w @ (joint_feature(x, y') - joint_feature(x, y)) = {value:.9g} where {what}"
            )
        return best_cached

    def best_cached(self, w: NDArray) -> tuple[NDArray, NDArray]:
        """The largest value of each example's cached outputs at w, and its row in the table; -1 for y."""
        table = self.table()
        best, where = np.zeros(len(self.xs)), np.full(len(self.xs), -1)
        if not table.outputs:
            return best, where
        values = table.matrix @ w + table.cost
        # the maximum over the rows of each example; y itself has the value zero
        best[table.owner[table.starts]] = np.maximum(np.maximum.reduceat(values, table.starts), 0.0)
        # the rows that attain the maximum of their example; of ties, the last one is taken
        (hits,) = np.nonzero(values == best[table.owner])
        where[table.owner[hits]] = hits
        return best, where

    def touch_best(self, w: NDArray) -> None:
        """Mark the cached outputs that are best at w as most recently used."""
        table, (_, where) = self.table(), self.best_cached(w)
        for i, k in enumerate(where):
            if k >= 0 and (key := table.outputs[k].key) in self.cached[i]:
                self.cached[i][key] = self.cached[i].pop(key)

    def evaluate(self, w: NDArray, those: Sequence[int] | None = None) -> tuple[NDArray, list[Output]]:
        """The losses at w of the examples `those` (by default all), and the outputs that attain them."""
        those = range(len(self.xs)) if those is None else those
        # once outputs are dropped, keep those that are best at w, even if the argmax returns others
        if self.dropped:
            self.touch_best(w)
        argmax_outputs = [self.argmax(i, w) for i in check_each(those)]
        table, (best, where) = self.table(), self.best_cached(w)
        outputs = []
        for i, new in zip(those, argmax_outputs, strict=True):
            old = table.outputs[where[i]] if where[i] >= 0 else TRUE_OUTPUT
            outputs.append(self.checked(i, new, new.value(w), old, float(best[i]), w))
        return np.array([o.value(w) for o in outputs]), outputs
