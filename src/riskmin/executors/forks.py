"""Forks: the child has none of the threads of its parent, and its locks as they were at that time."""

from __future__ import annotations

import os
import threading

_count = [0]


def n_forks() -> int:
    """Return the number of forks on the way to this process: threads started at a lower one are gone."""
    return _count[0]


def fork_safe_lock() -> threading.Lock:
    """Return a lock, for as long as the process runs, that a fork does not leave locked in the child."""
    lock = threading.Lock()
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


def _in_child() -> None:
    _count[0] += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
