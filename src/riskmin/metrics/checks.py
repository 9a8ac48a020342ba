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


def queries(qid: Any, n_rows: int) -> NDArray:
    """The number of the query of each row, from 0 on, in the sorted order of the ids."""
    if qid is None:
        raise ValueError("rankings are judged query by query: give qid, the id of its query for each row")
    ids = np.asarray(qid)
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    if ids.shape != (n_rows,):
        raise ValueError(f"qid has shape {ids.shape}, but there are {n_rows} rows: give one query id a row")
    try:
        lost = bool(np.any(ids != ids))  # NaN alone differs from itself
        numbers: NDArray = np.unique(ids, return_inverse=True)[1]
    except TypeError:  # None, pandas.NA, numbers beside strings
        raise ValueError(
            "qid holds ids that cannot be compared, such as None, or numbers beside strings: "
            "give every row a number, or every row a string"
        ) from None
    if lost:
        raise ValueError("qid holds NaN: drop those rows, or give them a query of their own")
    return numbers
