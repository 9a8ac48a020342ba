"""What the checks share."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Rng: TypeAlias = np.random.Generator


def require(holds: Any, who: object, what: str) -> None:
    """Raise an AssertionError that names who fails, and what."""
    if not holds:
        raise AssertionError(f"{who!r}: {what}")


def close(a: Any, b: Any, rtol: float, atol: float) -> bool:
    """Equal up to rounding."""
    return bool(np.allclose(a, b, rtol=rtol, atol=atol))
