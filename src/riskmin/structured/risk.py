"""The risk of a user's structured model: what runs on a shard, and the oracles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from riskmin.risk import MOST_LOSSES, check_point
from riskmin.structured.examples import Examples
from riskmin.structured.partition import Partitions
from riskmin.structured.probes import probe_margin, probe_partition
from riskmin.structured.rows import mixture
from riskmin.types import Array, Executor, Lost, NDArray, Shard


# ---------------------------------------------------------------- on a shard
def open_shard(
    shard: Shard, model: Any, dim: int, smooth: bool, room: float, check: bool, numbers: NDArray
) -> None:
    """Put the model beside the examples, once: it stays there."""
    if "examples" in shard.memo:  # with what it has found, while another shard was read anew
        return
    xs: Any = shard.X
    if smooth:
        terms = shard.memo["examples"] = Partitions(model, xs, shard.y, numbers, dim)
        if check:
            probe_partition(terms)
    else:
        examples = shard.memo["examples"] = Examples(model, xs, shard.y, numbers, dim, room)
        if check:
            probe_margin(examples)


def _examples(shard: Shard) -> Any:
    """What `open_shard` put there."""
    try:
        return shard.memo["examples"]
    except KeyError:
        raise Lost("the model of a shard") from None


def summed(shard: Shard, w: NDArray) -> tuple[float, NDArray]:
    """The sum of c_i [log Z(x_i, w) - w @ phi(x_i, y_i)], and its gradient."""
    value, grad = _examples(shard).value_grad(w.copy(), shard.c)
    return value, grad


def margin(shard: Shard, w: NDArray) -> tuple[float, NDArray]:
    """The sum of c_i max_y' [cost(y_i, y') + w @ (phi(x_i, y') - phi(x_i, y_i))], and a subgradient."""
    values, outputs = _examples(shard).at(w.copy())
    return float(shard.c @ values), mixture([o.row for o in outputs], shard.c, len(w))


def known(shard: Shard, w: NDArray) -> tuple[float, NDArray]:
    """As `margin`, but over the outputs found so far: no more than it, and without an argmax."""
    examples = _examples(shard)
    best, where = examples.known(w)
    share = np.zeros(len(examples.table().cost))
    share[where[where >= 0]] = shard.c[where >= 0]
    return float(shard.c @ best), examples.table().transpose @ share


def counts(shard: Shard) -> tuple[int, int, int, int]:
    """Calls of the argmax and of joint_feature, outputs kept, outputs dropped."""
    examples = _examples(shard)
    return examples.calls, examples.features, sum(map(len, examples.kept)), examples.dropped


# ---------------------------------------------------------------- the risks
@dataclass
class Opened:
    """Shards that have the model beside their examples; one that was read anew elsewhere gets it again.

    Parameters
    ----------
    executor : Executor
    given : tuple
        What `open_shard` takes: the model, the length of w, whether it is smooth, and room.
    numbers : list of arrays
        Those of each shard's examples.
    """

    executor: Executor
    given: tuple[Any, ...]
    numbers: list[NDArray]
    losses: int = 0
    """How often a shard had lost the model, and the outputs that it knew."""

    def open(self, check: bool) -> None:
        """Send the model to the shards that have none."""
        self.executor.map(open_shard, *self.given, check, each=self.numbers)

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any) -> tuple[Any, ...]:
        """Sums over the shards."""
        for _ in range(MOST_LOSSES):
            try:
                return self.executor.sum(f, *args)
            except Lost:
                self.losses += 1
                self.open(check=False)
        raise Lost(f"the model of a shard was lost {MOST_LOSSES} times in a row: look after the workers")


@dataclass(frozen=True)
class PartitionRisk:
    """The risk of a model with `log_partition`; `Structured` makes it."""

    loss: Any
    held: Opened = field(repr=False, compare=False)
    dim: int

    @property
    def executor(self) -> Executor:
        """Who holds the examples."""
        return self.held.executor

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R(w) and its gradient."""
        check_point(self.dim, w)
        value, grad = self.held.sum(summed, w)
        return value, grad


@dataclass(frozen=True)
class MarginRisk:
    """The risk of a model with `loss_augmented_argmax`; `Structured` makes it."""

    loss: Any
    held: Opened = field(repr=False, compare=False)
    dim: int

    @property
    def executor(self) -> Executor:
        """Who holds the examples."""
        return self.held.executor

    def __call__(self, w: Array) -> tuple[float, Array]:
        """R(w) and a subgradient: one argmax an example."""
        check_point(self.dim, w)
        value, grad = self.held.sum(margin, w)
        return value, grad

    def known(self) -> KnownRisk:
        """The risk over the outputs found so far."""
        return KnownRisk(self.held, self.dim)

    def asked(self) -> dict[str, int]:
        """How often the model was asked, and how many outputs are kept."""
        found = self.held.sum(counts)
        return dict(zip(("argmax", "joint_feature", "kept", "dropped"), found, strict=True))


@dataclass(frozen=True)
class KnownRisk:
    """A lower bound of a `MarginRisk`, which the outputs found so far give; it asks for no argmax."""

    held: Opened = field(repr=False, compare=False)
    dim: int

    def __call__(self, w: Array) -> tuple[float, Array]:
        """Its value and a subgradient."""
        check_point(self.dim, w)
        value, grad = self.held.sum(known, w)
        return value, grad

    def dropped(self) -> int:
        """How many outputs were forgotten so far: by that it may be lower than it was.

        A shard that was lost counts as one: how many it knew went with it.
        """
        return int(self.held.sum(counts)[3]) + self.held.losses
