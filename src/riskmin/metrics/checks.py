"""What all measures ask of their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.types import NDArray


def checked(y_true: Any, y_score: Any) -> tuple[NDArray, NDArray]:
    """Labels and scores as arrays, one of each a row."""
    y = np.asarray(y_true)
    try:
        z = np.asarray(y_score, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("y_score holds something else than numbers: give one score a row") from None
    if y.ndim != 1 or y.shape != z.shape or not len(y):
        raise ValueError(f"y_true has shape {y.shape} and y_score {z.shape}: give one label and score a row")
    if np.isnan(z).any():
        raise ValueError("y_score holds NaN: a row without a score has no place in a ranking")
    return y, z
