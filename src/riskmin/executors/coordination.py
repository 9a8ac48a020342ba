"""Coordination of the processes of one run.

Decisions that depend on clocks, files or the user must be the same in all processes (ranks) of a run: one
process decides, and broadcasts its decision to the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

T = TypeVar("T")


class Coordination:
    """The processes that run the same program; all of them call each of these methods, in the same order.

    The defaults are those of a single process, which decides by itself.
    """

    single_process: bool = True
    is_root: bool = True
    """Whether this process is the one that prints and writes files."""

    def broadcast_from_root(self, f: Callable[[], T]) -> T:
        """Call f in every process and return the root's result in all; an error of one is raised in all."""
        return f()

    def on_root(self, f: Callable[[], T]) -> T:
        """Call f in the root only, for instance to write a file, and return its result in all processes."""
        return f()

    def synchronized(self) -> AbstractContextManager[None]:
        """Block that all processes leave in the same way: an error or Ctrl-C in one is raised in all."""
        return nullcontext()


def coordination_of(risk: Any) -> Coordination:
    """Return the coordination of a risk: that of its executor, or that of a single process."""
    executor = risk.executor
    return Coordination() if executor is None else executor.coordination


def blas_threads_of(risk: Any) -> int | None:
    """Return the number of BLAS threads during a fit of a risk; None if it has no executor.

    One per worker of the executor: the workers are the threads of a fit. A number that depended on the number
    of workers would change the rounding of sums, and results would differ in their last bits.
    """
    executor = risk.executor
    return None if executor is None else executor.blas_threads
