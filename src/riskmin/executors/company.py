"""Decisions of a run that clocks, files and users make: one process decides alone, several must agree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Company(Protocol):
    """Those who run the same program. Each of these methods is called by all of them, in the same order."""

    def agree(self, f: Callable[[], T]) -> T:
        """What f gives at the first of them, at all; what it raises at any is raised at all."""
        ...

    def once(self, f: Callable[[], T]) -> T:
        """The same, f being called by the first only: for what is to be done once, such as writing files."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """A block that all leave alike: an error at one, or Ctrl-C, is raised at all at the same place."""
        ...


class Alone:
    """A single process, as most are: there is nobody to ask."""

    def agree(self, f: Callable[[], T]) -> T:
        return f()

    once = agree

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()


def company_of(risk: Any) -> Company:
    """Those who compute a risk together: its executor, if that of several programs, or of what it wraps."""
    while risk is not None:
        executor: Any = getattr(risk, "executor", None)
        if hasattr(executor, "agree"):
            found: Company = executor
            return found
        risk = getattr(risk, "risk", None)
    return Alone()
