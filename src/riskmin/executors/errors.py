"""Errors that cross the boundary between processes."""

from __future__ import annotations

import pickle
import traceback
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def portable(error: E, origin: str) -> E | RuntimeError:
    """Return the error if it can be pickled, else a RuntimeError with its origin, message and traceback."""
    # some exceptions are pickled but cannot be unpickled: test both ways
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        name = traceback.format_exception_only(error)[-1].strip()
        return RuntimeError(f"{origin} raised {name}\n\n{''.join(traceback.format_exception(error))}")
