"""The barrier stage of Spark whose tasks hold the rows, and the connections of its tasks to this process.

A round is one message to each task and one reply. Spark starts all tasks of a barrier stage at once, and all
of them again if one is lost.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, NoReturn

from riskmin.core.deadline import LIMIT_POLL_SECONDS, check
from riskmin.core.messages import one_line
from riskmin.executors.connections import WorkerConnection, raise_first, seconds_left
from riskmin.executors.spark.task import Hello, TaskProgram, accept

NO_ROWS = "the DataFrame has no rows: check its filters"


class LostTask(Exception):
    """Raised when the connection to a task breaks: Spark starts all tasks again."""


class TaskConnection(WorkerConnection):
    """The end of the connection to a task that is in this process."""

    def raise_lost(self) -> NoReturn:
        """Raise the error for a task that ended."""
        raise LostTask

    def send_message(self, message: bytes) -> None:
        """Send a message; one that is interrupted leaves the connection unusable."""
        with self._closed_on_error():
            super().send_message(message)

    def _receive_bytes(self) -> bytes:
        with self._closed_on_error():
            return super()._receive_bytes()

    @contextlib.contextmanager
    def _closed_on_error(self) -> Any:
        try:
            yield
        except BaseException:
            self.conn.close()
            raise

    def end(self) -> None:
        """Let the task end."""
        with contextlib.suppress(OSError):
            self.conn.send_bytes(b"")
        self.conn.close()


class _JobEnd(NamedTuple):
    """The end of a job."""

    number: int
    error: Exception | None


class _Shared:
    """What the threads of a stage use: they do not refer to the stage, so that it can be collected."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.token = secrets.token_bytes(32)
        self.events: SimpleQueue[Any] = SimpleQueue()
        """Tasks that connected, as (connection, `Hello`), and `_JobEnd`."""
        self.tasks: dict[int, TaskConnection] = {}

    def close(self) -> None:
        """End all tasks."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes up the thread that accepts
        self.listener.close()
        for task in self.tasks.values():
            task.end()
        self.tasks.clear()


class BarrierStage:
    """Tasks of Spark that hold rows and run functions on them, until the stage is closed or deleted.

    Parameters
    ----------
    spark : SparkSession
    n_tasks : int
        As many cores of the cluster are busy as long as the stage runs.
    host : str
        The name or address of this machine by which the workers reach it.
    patience : float
        Seconds to wait while no task of the job runs; what the tasks read may take any time.
    frame : DataFrame, optional
        The rows, which are divided among the tasks.
    read : callable, optional
        See `TaskProgram`.
    """

    MAX_LOSSES = 5
    """A round fails once more tasks than this have been lost while they computed it."""

    def __init__(
        self,
        spark: Any,
        n_tasks: int,
        host: str,
        patience: float,
        frame: Any = None,
        read: Callable[..., Any] | None = None,
    ) -> None:
        self.spark, self.n_tasks, self.patience = spark, n_tasks, patience
        self.frame = spark.range(n_tasks, numPartitions=n_tasks) if frame is None else frame
        bound = spark.conf.get("spark.driver.bindAddress", None) or host
        self._shared = _Shared(socket.create_server((bound, 0), backlog=max(n_tasks, 128)))
        port = self._shared.listener.getsockname()[1]
        self._program = TaskProgram((host, port), self._shared.token, read)
        self._group = f"riskmin-{secrets.token_hex(8)}"
        self._job, self._complete = 0, False
        self.generation = 0
        """Number of times that all tasks were there: groups of shards of an earlier time are lost."""
        self.summaries: dict[int, Any] = {}
        """What `read` returned beside the rows, by task."""
        self._fingerprints: dict[int, Any] = {}
        self.dead_groups: list[int] = []
        self.close = weakref.finalize(self, self._shared.close)
        threading.Thread(target=_accept_all, args=(self._shared,), daemon=True).start()
        self.ensure_tasks()

    # ------------------------------------------------------------ tasks
    def ensure_tasks(self) -> None:
        """Start the job unless it runs, and wait until all tasks are connected."""
        if len(self._shared.tasks) == self.n_tasks:
            return
        if not self.close.alive:
            raise RuntimeError("the tasks of Spark that hold the rows were closed: make X and the risk anew")
        if not self._job:
            self._start_job()
        start = time.monotonic()
        while len(self._shared.tasks) < self.n_tasks:
            check()
            try:
                event = self._shared.events.get(timeout=LIMIT_POLL_SECONDS)
            except Empty:
                if time.monotonic() - start > self.patience:
                    if not self._is_running():
                        self._give_up()
                    start = time.monotonic()
                continue
            if not isinstance(event, _JobEnd):
                self._add(*event)
            elif event.number == self._job:
                self._job_ended(event.error)
        self._complete = True
        self.generation += 1

    def reset(self) -> None:
        """Drop all connections after one was lost: Spark starts all tasks again."""
        for task in self._shared.tasks.values():
            task.conn.close()
        self._shared.tasks.clear()

    def _start_job(self) -> None:
        self._job += 1
        job = self._job, self._group, self.spark, self.frame, self._program, self._shared.events
        threading.Thread(target=_run_job, args=job, daemon=True).start()

    def _is_running(self) -> bool:
        """Whether Spark runs tasks of the job."""
        tracker = self.spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return any(stage is not None and stage.numActiveTasks for stage in stages)

    def _add(self, conn: Any, hello: Hello) -> None:
        """Add a task that connected; one of an earlier attempt is replaced."""
        from riskmin import __version__

        if hello.version != __version__:
            self._fail(
                RuntimeError(
                    f"a worker of Spark has riskmin {hello.version}, but this process has {__version__}: "
                    "install the same version everywhere"
                )
            )
        if isinstance(hello.summary, Exception):
            self._fail(hello.summary)
        fingerprint = getattr(hello.summary, "fingerprint", None)
        if hello.partition not in self._fingerprints:
            self.summaries[hello.partition] = hello.summary
        if self._fingerprints.setdefault(hello.partition, fingerprint) != fingerprint:
            self._fail(
                RuntimeError(
                    "Spark computed other rows than before when it replaced a lost worker: save the "
                    "DataFrame, or call checkpoint() on it, and fit again"
                )
            )
        previous = self._shared.tasks.pop(hello.partition, None)
        if previous is not None:
            previous.conn.close()
        self._shared.tasks[hello.partition] = TaskConnection(conn)

    def _job_ended(self, error: Exception | None) -> None:
        """Start the job again if it has served before; else raise its error."""
        if not self._complete and error is None:  # Spark starts no task for an empty DataFrame
            self._fail(ValueError(NO_ROWS))
        if not self._complete:
            self._fail(RuntimeError(f"the Spark job that holds the rows ended: {_reason(error)}"))
        self._complete = False
        self._start_job()

    def _give_up(self) -> NoReturn:
        self._fail(
            ConnectionError(
                f"{len(self._shared.tasks)} of {self.n_tasks} Spark tasks started within "
                f"{self.patience:g} s: a barrier stage needs a free core for each; give n_workers=, end "
                "other jobs or rows that are still held (executor.close()), or give more patience="
            )
        )

    def _fail(self, error: Exception) -> NoReturn:
        """Cancel the job and raise an error."""
        self.close()
        with contextlib.suppress(Exception):  # Spark itself may be gone
            self.spark.sparkContext.cancelJobGroup(self._group)
        raise error

    # ------------------------------------------------------------ calls
    def call(self, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Run ``state.run(*arguments)`` in tasks, at the same time, and return the results by task."""
        check()
        seconds = seconds_left()
        for k, arguments in calls.items():
            self._shared.tasks[k].send_message(pickle.dumps((*arguments, seconds), protocol=5))
        replies = {k: pickle.loads(self._shared.tasks[k].receive_message()) for k in calls}
        raise_first(list(replies.values()))
        return {k: result for k, (_, result) in replies.items()}

    def retried(self, f: Callable[[], Any]) -> Any:
        """Return f(), which makes calls; after a loss, wait for the new tasks and call it again."""
        for _ in range(self.MAX_LOSSES + 1):
            try:
                self.ensure_tasks()
                return f()
            except LostTask:
                self.reset()
        raise RuntimeError(
            f"{self.MAX_LOSSES + 1} times in a row a Spark task was lost in the same round: it may need more "
            "memory than a worker has (spark.executor.memoryOverhead); use more workers"
        )


# ---------------------------------------------------------------- threads
def _accept_all(shared: _Shared) -> None:
    """Accept connections until the listener is closed; each is authenticated by a thread of its own."""
    with contextlib.suppress(OSError):
        while True:
            opened, _ = shared.listener.accept()
            threading.Thread(target=_greet, args=(shared, opened), daemon=True).start()


def _greet(shared: _Shared, opened: socket.socket) -> None:
    """Put a task that knows the token into the queue; anything else that connects is dropped."""
    with contextlib.suppress(Exception):
        shared.events.put(accept(opened, shared.token))


def _run_job(
    number: int, group: str, spark: Any, frame: Any, program: TaskProgram, events: SimpleQueue[Any]
) -> None:
    """Run the job, and report its end."""
    error = None
    try:
        spark.sparkContext.setJobGroup(group, "riskmin: the tasks that hold the rows")
        frame.mapInArrow(program, "nothing long", barrier=True).collect()
    except Exception as caught:
        error = caught
    events.put(_JobEnd(number, error))


def _reason(error: object) -> str:
    """Return the line of a Spark error that names its cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error: " in line and not line.startswith(("at ", "File "))]
    return one_line((causes or lines or [type(error).__name__])[0])
