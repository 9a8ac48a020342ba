"""Errors on their way from where they were raised."""

from __future__ import annotations

import pickle
import traceback
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def portable(error: E, who: str) -> E | RuntimeError:
    """The error, if it survives the way; else one that says who raised it, its name, message and traceback.

    Examples
    --------
    >>> portable(ValueError("no such column"), "rank 1")
    ValueError('no such column')
    """
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        name = traceback.format_exception_only(error)[-1].strip()
        return RuntimeError(f"{who} raised {name}\n\n{''.join(traceback.format_exception(error))}")
