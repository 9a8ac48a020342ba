"""Helpers shared by the checks."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Rng: TypeAlias = np.random.Generator


def require(holds: Any, subject: object, failure: str) -> None:
    """Raise an AssertionError that names the checked object and the failure, unless `holds`."""
    if not holds:
        raise AssertionError(f"{subject!r}: {failure}")


def close(a: Any, b: Any, rtol: float, atol: float) -> bool:
    """Whether two arrays are equal up to the given tolerances."""
    return bool(np.allclose(a, b, rtol=rtol, atol=atol))
