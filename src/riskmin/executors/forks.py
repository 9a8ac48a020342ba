"""How often this process is the child of a fork: threads of the parent do not run in it."""

from __future__ import annotations

import os

_count = [0]


def n_forks() -> int:
    """Return the number of forks on the way to this process: threads started at a lower one are gone."""
    return _count[0]


def _in_child() -> None:
    _count[0] += 1


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)
