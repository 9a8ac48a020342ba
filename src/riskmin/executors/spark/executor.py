"""Shards in the tasks of one barrier stage of Spark: a round is a message to each task, not a job."""

from __future__ import annotations

import io
import math
import numbers
import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NoReturn

from riskmin.arrays.partitioned import LazyShard
from riskmin.core import Shard
from riskmin.core.messages import extra_hint, is_whole_number
from riskmin.executors.base import Backend, Executor
from riskmin.executors.spark.stage import BarrierStage
from riskmin.executors.worker_shards import WorkerPartition, shard_spec, touch_shard


class SparkExecutor(Backend):
    """Shards in the memory of Spark tasks, which connect to this process; those of a lost worker are rebuilt.

    All tasks belong to one barrier stage, which starts when it is first needed. It ends with `close`, or when
    neither the executor nor anything placed on it is referred to any more; until then it occupies
    `n_workers` cores of the cluster.

    Parameters
    ----------
    spark : SparkSession, optional
        The active session by default.
    n_workers : int, optional
        Number of tasks; by default, one per core of the cluster that Spark has at the first use. Results are
        bitwise the same for any number with the same shards.
    host : str, optional
        The name or address by which the workers reach this process; by default that of Spark's driver.
    patience : float
        Seconds to wait for all tasks to start; what they read may take any time.

    Examples
    --------
    ``linear_risk(X, y, loss, executor=SparkExecutor())`` sends local rows to the workers;
    `riskmin.spark.load_frame` has the workers read those of a DataFrame.

    >>> from riskmin import SparkExecutor
    >>> SparkExecutor(n_workers=8)  # starts its tasks when it is first used
    SparkExecutor(n_workers=8)
    """

    def __init__(
        self,
        spark: Any = None,
        *,
        n_workers: int | None = None,
        host: str | None = None,
        patience: float = 60.0,
    ) -> None:
        if spark is not None and not hasattr(spark, "createDataFrame"):
            raise TypeError(f"spark={spark!r:.60} is no session of Spark: give a pyspark.sql.SparkSession")
        if type(spark).__module__.startswith("pyspark.sql.connect"):
            raise TypeError(
                "SparkExecutor needs the session of Spark's driver, not one of Spark Connect: run the "
                "program where the driver is, or save the DataFrame as Parquet and use riskmin.data.convert"
            )
        if n_workers is not None and not is_whole_number(n_workers, at_least=1):
            raise ValueError(
                f"n_workers={n_workers!r}: give a whole number >= 1, or None for one per core of the cluster"
            )
        if not isinstance(patience, numbers.Real) or not 0 <= patience < math.inf:
            raise ValueError(f"patience={patience!r}: give a number of seconds >= 0")
        self._spark: Any = spark
        self.n_workers: int | None = n_workers
        self.host: str | None = host
        self.patience: float = float(patience)
        self._stage: BarrierStage | None = None

    @property
    def spark(self) -> Any:
        """The session."""
        if self._spark is None:
            try:
                from pyspark.sql import SparkSession
            except ImportError as error:
                raise ImportError(
                    f"SparkExecutor needs PySpark and Java ({error}): {extra_hint('spark')}"
                ) from None
            self._spark = SparkSession.getActiveSession()
            if self._spark is None:
                raise ValueError(
                    "there is no active session of Spark: start one, such as "
                    "SparkSession.builder.getOrCreate(), or give it to SparkExecutor(spark)"
                )
        return self._spark

    @property
    def n_tasks(self) -> int:
        """Number of tasks of the stage."""
        if self.n_workers is not None:
            return int(self.n_workers)
        cores: int = self.spark.sparkContext.defaultParallelism
        return max(cores // int(self.spark.conf.get("spark.task.cpus", "1")), 1)

    def start(self, frame: Any = None, read: Callable[..., Any] | None = None) -> BarrierStage:
        """Start the stage, whose tasks read the rows of a DataFrame if one is given.

        Parameters
        ----------
        frame : DataFrame, optional
        read : callable, optional
            Returns rows, in any form that `as_matrix` accepts, and a summary with the attribute
            `fingerprint`, given the number of a partition and its Arrow batches.
        """
        host = self.host or self.spark.conf.get("spark.driver.host")
        return BarrierStage(self.spark, self.n_tasks, host, self.patience, frame, read)

    def place(self, shards: Sequence[Shard | LazyShard]) -> SparkShards:
        """Return an executor that holds these shards."""
        if self._stage is None or not self._stage.close.alive:
            self._stage = self.start()
        return SparkShards(self._stage, shards)

    def holding(self, stage: BarrierStage) -> SparkExecutor:
        """Return an executor with these settings whose tasks are those of a stage."""
        held = SparkExecutor(self._spark, n_workers=self.n_workers, host=self.host, patience=self.patience)
        held._stage = stage
        return held

    def close(self) -> None:
        """End the tasks, with all rows that they hold."""
        if self._stage is not None:
            self._stage.close()

    def __repr__(self) -> str:
        arguments = [] if self.n_workers is None else [f"n_workers={self.n_workers}"]
        arguments += [] if self.host is None else [f"host={self.host!r}"]
        arguments += [] if self.patience == 60 else [f"patience={self.patience:g}"]
        return f"SparkExecutor({', '.join(arguments)})"

    def __copy__(self) -> SparkExecutor:
        return SparkExecutor(self._spark, n_workers=self.n_workers, host=self.host, patience=self.patience)

    def __deepcopy__(self, memo: Any) -> SparkExecutor:
        """Return a copy that shares the session and starts tasks of its own."""
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the settings; the unpickled executor uses the active session."""
        return _from_settings, (self.n_workers, self.host, self.patience)


def _from_settings(n_workers: int | None, host: str | None, patience: float) -> SparkExecutor:
    return SparkExecutor(n_workers=n_workers, host=host, patience=patience)


@dataclass(frozen=True)
class TaskRows:
    """The rows that a task holds: `data` of a `WorkerPartition` in this process."""

    stage: BarrierStage
    task: int

    def result(self) -> Any:
        """Return the rows, sent to this process."""
        return self.stage.retried(lambda: self.stage.call({self.task: ("rows",)}))[self.task]


def partitions_of(stage: BarrierStage, summaries: Sequence[Any]) -> list[WorkerPartition]:
    """Return the rows of the tasks as partitions of X; a summary has `shape`, `nnz` and `sparse`."""
    return [
        WorkerPartition(f"part {k} of the DataFrame", s.shape, s.nnz, s.sparse, TaskRows(stage, k))
        for k, s in enumerate(summaries)
    ]


_group_numbers: Iterator[int] = count()


class SparkShards(Executor):
    """Executor that `SparkExecutor` returns for shards: holds them in the tasks and sends rounds to them."""

    def __init__(self, stage: BarrierStage, shards: Sequence[Shard | LazyShard]) -> None:
        self.stage, self._shards = stage, list(shards)
        self._group, self._rounds = next(_group_numbers), count()
        self._built = -1
        """The generation of tasks that have the shards."""
        self._members: dict[int, list[int]] = {}
        for k, shard in enumerate(self._shards):
            self._members.setdefault(self._task_of(k, shard), []).append(k)
        weakref.finalize(self, stage.dead_groups.append, self._group)
        self.map(touch_shard)  # raises now if a partition cannot be read

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "shards in tasks of Spark cannot be copied: copy the settings, SparkExecutor(), and make the "
            "risk anew"
        )

    def _task_of(self, k: int, shard: Shard | LazyShard) -> int:
        """Return the task that holds the rows of shard k, else one of the contiguous shares."""
        part: Any = shard.part
        rows = part.data if isinstance(part, WorkerPartition) else None
        if not isinstance(rows, TaskRows):
            return k * min(self.stage.n_tasks, len(self._shards)) // len(self._shards)
        if rows.stage is not self.stage:
            raise ValueError(f"{part.name} is in tasks of another SparkExecutor: fit with the executor of X")
        return rows.task

    def map(self, f: Callable[..., Any], *args: Any, each: Sequence[Any] = ()) -> list[Any]:
        """Return [f(shard_k, *args, each_k) for k], computed in parallel."""
        number, shared = next(self._rounds), _pack((f, args))
        dead = list(self.stage.dead_groups)
        calls = {
            task: (
                "round", self._group, number, shared, [each[k] for k in members] if len(each) else None, dead
            )
            for task, members in self._members.items()
        }  # fmt: skip

        def run() -> dict[int, Any]:
            self._build()
            return self.stage.call(calls)

        replies = self.stage.retried(run)
        del self.stage.dead_groups[: len(dead)]
        results: list[Any] = [None] * len(self._shards)
        for task, members in self._members.items():
            for k, reply in zip(members, replies[task], strict=True):
                results[k] = reply
        return results

    def _build(self) -> None:
        """Build the shards in the tasks, unless these have them."""
        if self._built == self.stage.generation:
            return
        self.stage.call(
            {
                task: ("build", self._group, [_pack(shard_spec(self._shards[k])) for k in members])
                for task, members in self._members.items()
            }
        )
        self._built = self.stage.generation


def _pack(obj: Any) -> bytes:
    """Pickle an object, with functions and classes that the workers cannot import."""
    from pyspark.cloudpickle import CloudPickler

    buffer = io.BytesIO()
    CloudPickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(obj)
    return buffer.getvalue()
