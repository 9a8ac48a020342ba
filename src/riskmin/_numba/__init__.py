"""All Numba code: module-level compiled functions of arrays, cached on disk and imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any


def lazy_module(name: str) -> Callable[[], Any]:
    """Return a function that returns a module of this package, which the first call imports.

    The import of Numba is slow: it waits until compiled functions are needed.
    """
    return cache(partial(import_module, f"{__name__}.{name}"))
