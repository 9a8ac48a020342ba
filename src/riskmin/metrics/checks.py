"""Validation of the arguments of metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray


def check_labels_scores(y_true: Any, y_score: Any) -> tuple[NDArray, NDArray]:
    """Return labels and scores as arrays; raise unless there is one of each per row."""
    y = np.asarray(y_true)
    try:
        z = np.asarray(y_score, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("y_score holds something else than numbers: give one score per row") from None
    # infinite scores are allowed: they have a place in a ranking, NaN has none
    if y.ndim != 1 or y.shape != z.shape or not len(y):
        raise ValueError(
            f"y_true has shape {y.shape} and y_score {z.shape}: give one label and one score per row"
        )
    if np.isnan(z).any():
        raise ValueError("y_score holds NaN: a row without a score has no place in a ranking")
    return y, z
