"""The risk of a user-defined structured model: the functions that run on a shard, and the oracles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from riskmin.core import Array, Evaluation, NDArray, Shard, ShardStateLost
from riskmin.executors import Executor
from riskmin.problem.certificate import tangent
from riskmin.problem.objective import Oracle
from riskmin.problem.risk import MAX_CACHE_REBUILDS, check_point
from riskmin.problem.structured.joint_features import mixture
from riskmin.problem.structured.log_partition import PartitionExamples
from riskmin.problem.structured.model_checks import probe_margin, probe_partition
from riskmin.problem.structured.output_cache import MarginExamples


# ---------------------------------------------------------------- on a shard
def open_shard(
    shard: Shard,
    model: Any,
    dim: int,
    smooth: bool,
    settings: tuple[Any, ...],
    check: bool,
    example_ids: NDArray,
) -> None:
    """Store the model and its examples in the shard's cache, unless they are there.

    `settings` are the last fields of `MarginExamples`: bytes per example, the power of the cost, the method.
    """
    # if only another shard has lost its cache, this one keeps its cached outputs
    if "examples" in shard.cache:
        return
    xs: Any = shard.X
    if smooth:
        terms = shard.cache["examples"] = PartitionExamples(model, xs, shard.y, example_ids, dim)
        if check:
            probe_partition(terms)
    else:
        max_bytes, beta, search = settings
        examples = shard.cache["examples"] = MarginExamples(
            model, xs, shard.y, example_ids, dim, max_bytes, beta, search
        )
        if check:
            probe_margin(examples)


def _examples(shard: Shard) -> Any:
    """The examples that `open_shard` stored; raises if the shard has lost them."""
    try:
        return shard.cache["examples"]
    except KeyError:
        raise ShardStateLost("the model of a shard") from None


def partition_value_grad(shard: Shard, w: NDArray) -> tuple[float, NDArray]:
    """The sum of c_i [log Z(x_i, w) - w @ phi(x_i, y_i)], and its gradient."""
    value, grad = _examples(shard).value_grad(w.copy(), shard.c)
    return value, grad


def margin_value_grad(shard: Shard, w: NDArray) -> tuple[float, NDArray]:
    """The sum of c_i max_y' [cost(y_i, y') + w @ (phi(x_i, y') - phi(x_i, y_i))], and a subgradient.

    With beta > 0, w @ (...) is multiplied by cost(y_i, y')^beta.
    """
    # subgradient: sum_i c_i row_i, with row_i = phi(x_i, y') - phi(x_i, y_i) of the maximizing output, times
    # cost^beta; a copy of w, since user code might change it
    values, outputs = _examples(shard).evaluate(w.copy())
    return float(shard.c @ values), mixture([o.row for o in outputs], shard.c, len(w))


def restricted_value_grad(shard: Shard, w: NDArray) -> tuple[float, NDArray]:
    """Like `margin_value_grad`, but over the cached outputs: a lower bound, without calls of the argmax."""
    examples = _examples(shard)
    best, where = examples.best_cached(w)
    # subgradient sum_i c_i row_i over the best cached outputs; y itself (where = -1) has a zero row
    share = np.zeros(len(examples.table().cost))
    share[where[where >= 0]] = shard.c[where >= 0]
    return float(shard.c @ best), examples.table().transpose @ share


def counts(shard: Shard) -> tuple[int, int, int, int]:
    """Calls of the argmax and of joint_feature, cached outputs, dropped outputs."""
    examples = _examples(shard)
    return examples.calls, examples.features, sum(map(len, examples.cached)), examples.dropped


# ---------------------------------------------------------------- the risks
@dataclass
class OpenedExamples:
    """Shards that hold the model and their examples; a shard that has lost the model receives it again.

    Parameters
    ----------
    executor : Executor
    given : tuple
        Arguments of `open_shard`: the model, the length of w, whether it is smooth, and the settings.
    numbers : list of arrays
        The indices of each shard's examples in the data.
    """

    executor: Executor
    given: tuple[Any, ...]
    numbers: list[NDArray]
    losses: int = 0
    """How often a shard had lost the model, and with it the cached outputs."""

    def open(self, check: bool) -> None:
        """Send the model to the shards that do not have it."""
        self.executor.map(open_shard, *self.given, check, each=self.numbers)

    def sum(self, f: Callable[..., tuple[Any, ...]], *args: Any) -> tuple[Any, ...]:
        """The sums of f over the shards."""
        # a restarted worker reads its shard again, without the cache: send the model again and retry
        for _ in range(MAX_CACHE_REBUILDS):
            try:
                return self.executor.sum(f, *args)
            except ShardStateLost:
                self.losses += 1
                self.open(check=False)
        raise ShardStateLost(
            f"the model of a shard was lost {MAX_CACHE_REBUILDS} times in a row: check the workers"
        )


@dataclass(frozen=True)
class ExamplesRisk(Oracle):
    """A risk of examples that an executor holds; `Structured` makes it."""

    loss: Any = field()
    held: OpenedExamples = field(repr=False, compare=False)
    dim: int

    @property
    def executor(self) -> Executor:
        """The executor that holds the examples."""
        return self.held.executor


@dataclass(frozen=True)
class PartitionRisk(ExamplesRisk):
    """The risk of a model with `log_partition`."""

    def evaluate(self, w: Array) -> Evaluation:
        """R(w), its gradient and a cut."""
        check_point(self.dim, w)
        return tangent(w, *self.held.sum(partition_value_grad, w))


@dataclass(frozen=True)
class MarginRisk(ExamplesRisk):
    """The risk of a model with `loss_augmented_argmax`."""

    caches_outputs = True
    cuts_always_valid = True

    def evaluate(self, w: Array) -> Evaluation:
        """R(w), a subgradient and a cut: one argmax per example."""
        check_point(self.dim, w)
        return tangent(w, *self.held.sum(margin_value_grad, w))

    def restricted_risk(self) -> RestrictedRisk:
        """The risk restricted to the outputs found so far."""
        return RestrictedRisk(self.held, self.dim)

    def call_counts(self) -> dict[str, int]:
        """The numbers of model calls, and of cached and dropped outputs."""
        totals = self.held.sum(counts)
        return dict(zip(("argmax", "joint_feature", "kept", "dropped"), totals, strict=True))


@dataclass(frozen=True)
class RestrictedRisk(Oracle):
    """A lower bound of a `MarginRisk`, by the outputs found so far; it calls no argmax."""

    held: OpenedExamples = field(repr=False, compare=False)
    dim: int

    def evaluate(self, w: Array) -> Evaluation:
        """Its value, a subgradient and a cut."""
        check_point(self.dim, w)
        return tangent(w, *self.held.sum(restricted_value_grad, w))

    def dropped(self) -> int:
        """The number of outputs dropped so far: the risk may be lower than before by their values.

        A shard that was lost counts as one: the number of its outputs is unknown.
        """
        return int(self.held.sum(counts)[3]) + self.held.losses
