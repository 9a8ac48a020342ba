"""Coordination of the processes of one run.

Decisions that depend on clocks, files or the user must be the same in all processes (ranks) of a run: one
process decides, and broadcasts its decision to the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Coordination(Protocol):
    """The processes that run the same program; all of them call each of these methods, in the same order."""

    def broadcast_from_root(self, f: Callable[[], T]) -> T:
        """Call f in every process and return the root's result in all; an error of one is raised in all."""
        ...

    def on_root(self, f: Callable[[], T]) -> T:
        """Call f in the root only, for instance to write a file, and return its result in all processes."""
        ...

    def synchronized(self) -> AbstractContextManager[None]:
        """Block that all processes leave in the same way: an error or Ctrl-C in one is raised in all."""
        ...


class SingleProcess:
    """Coordination of a single process, which decides by itself."""

    def broadcast_from_root(self, f: Callable[[], T]) -> T:
        """Return f()."""
        return f()

    def on_root(self, f: Callable[[], T]) -> T:
        """Return f()."""
        return f()

    def synchronized(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()


def coordination_of(risk: Any) -> Coordination:
    """Return the coordination of a risk: its executor if that spans several processes, or `SingleProcess`."""
    # only executors that span several processes have the methods of `Coordination`
    executor: Any = getattr(risk, "executor", None)
    return executor if hasattr(executor, "broadcast_from_root") else SingleProcess()
