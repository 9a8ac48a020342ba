"""Label checks, with error messages that name the cause and the remedy in one sentence.

Each check is a function of the loss and y, so that a loss can use it as a method by one line,
``check_labels = check_signs``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_numpy, is_foreign, namespace, to_numpy
from riskmin.core import Array, NDArray


def check_signs(loss: object, y: Array) -> None:
    """Require labels -1 and +1, both of them present."""
    labels = _in_place(y)
    n_positive, n_negative = (int((labels == sign).sum()) for sign in (1, -1))
    if n_positive and n_negative and n_positive + n_negative == math.prod(labels.shape):
        return
    needs, y = f"{type(loss).__name__} needs labels -1 and +1", to_numpy(_present(loss, labels))
    if n_positive + n_negative < y.size:
        raise ValueError(
            f"{needs}, but y holds {_preview(y)}; use LinearClassifier, "
            "which encodes any two classes, or map them yourself"
        )
    raise ValueError(f"y holds a single class, {y.flat[0]:+g}, but {needs}: add rows of the other class")


def check_finite(loss: object, y: Array) -> None:
    """Require finite numbers."""
    labels = _in_place(y)
    if math.prod(labels.shape) and _is_real(labels) and bool(namespace(labels).isfinite(labels).all()):
        return
    needs, y = f"{type(loss).__name__} needs finite numbers in y", to_numpy(_present(loss, labels))
    if y.dtype.kind not in "biuf":
        raise ValueError(f"{needs}, but y holds {_preview(y)}, not numbers; turn them into numbers first")
    raise ValueError(f"{needs}, but y holds {_preview(y[~np.isfinite(y)])}; drop those rows")


def check_counts(loss: object, y: Array) -> None:
    """Require finite numbers >= 0, such as counts."""
    check_finite(loss, y)
    y = _present(loss, y)
    if bool((y < 0).any()):
        raise ValueError(
            f"{type(loss).__name__} needs y >= 0, but y holds {_preview(y[y < 0])}; "
            "drop those rows, or use the squared or the Huber loss"
        )


def check_positive(loss: object, y: Array) -> None:
    """Require finite numbers > 0, such as amounts."""
    check_finite(loss, y)
    y = _present(loss, y)
    if bool((y <= 0).any()):
        raise ValueError(
            f"{type(loss).__name__} needs y > 0, but y holds {_preview(y[y <= 0])}; "
            "drop those rows, or use Tweedie(power=1.5), which takes zeros"
        )


def check_times(loss: object, y: Array) -> None:
    """Require times of events, or minus the times of rows without one, and at least one event."""
    check_finite(loss, y)
    y = _present(loss, y)
    if bool((y == 0).any()):
        raise ValueError(
            f"{type(loss).__name__} needs times above 0, and minus them for rows without an event, but y "
            "holds 0: give these rows the shortest time that was measured"
        )
    if not bool((y > 0).any()):
        raise ValueError(
            f"{type(loss).__name__} needs an event, but all y are below 0, the times of rows without one: "
            "give minus those of the events"
        )


def check_grades(loss: object, y: Array) -> None:
    """Require finite numbers (higher is better) with at least two different values."""
    check_finite(loss, y)
    y = _present(loss, y)
    first = y.reshape(-1)[0]
    if bool((y == first).all()):
        raise ValueError(
            f"y holds a single grade, {float(first):g}, but {type(loss).__name__} compares rows of different "
            "grades: add rows of another grade"
        )


def check_classes(loss: object, y: Array) -> None:
    """Require classes numbered from 0."""
    y = _present(loss, y)
    needs, xp = f"{type(loss).__name__} needs classes numbered 0, 1, 2, ...", namespace(y)
    if not _is_real(y) or not bool(((y >= 0) & xp.isfinite(y) & (y == xp.floor(y))).all()):
        raise ValueError(
            f"{needs}, but y holds {_preview(y)}; use LinearClassifier, which numbers any classes, "
            "or number them yourself"
        )


def accept_any_labels(loss: object, y: Array) -> None:
    """Accept any labels: the loss does not use them."""


def encode_queries(qid: Any, n_rows: int) -> NDArray:
    """Return the query of each row as an integer from 0, in the sorted order of the ids."""
    if qid is None:
        raise ValueError("rankings are evaluated per query: give qid, the id of its query for each row")
    # a column vector is accepted as well
    ids = np.asarray(qid)
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    if ids.shape != (n_rows,):
        raise ValueError(f"qid has shape {ids.shape}, but there are {n_rows} rows: give one query id per row")
    try:
        # only NaN differs from itself
        has_nan = bool(np.any(ids != ids))
        codes: NDArray = np.unique(ids, return_inverse=True)[1]
    except TypeError:  # None, pandas.NA, numbers beside strings
        raise ValueError(
            "qid holds ids that cannot be compared, such as None, or numbers beside strings: "
            "give every row a number, or every row a string"
        ) from None
    if has_nan:
        raise ValueError("qid holds NaN: drop those rows, or assign them to a separate query")
    return codes


def _in_place(y: Array) -> Array:
    """Return labels as an array, of another library where they are in one."""
    return y if is_foreign(y) else as_numpy(y, "y")


def _is_real(y: Array) -> bool:
    """Return whether labels are real numbers."""
    return is_foreign(y) or y.dtype.kind in "biuf"


def _present(loss: object, y: Array) -> Array:
    """Return the labels y as an array, after checking that there are some and none is NaN."""
    labels = _in_place(y)
    needs = f"{type(loss).__name__} needs a label for every row"
    n = math.prod(labels.shape)
    if n == 0:
        raise ValueError(f"{needs}, but y is empty; pass some rows")
    # only NaN differs from itself, also in object arrays
    missing = int((labels != labels).sum())
    if missing:
        raise ValueError(f"{needs}, but {missing} of {n} are NaN; drop those rows")
    return labels


def _preview(y: Array, max_shown: int = 5) -> str:
    """Return the first few distinct values as text, sorted."""
    y = to_numpy(y)
    # labels that are not numbers are shown as strings
    values = np.unique(y if y.dtype.kind in "biuf" else y.astype(str))
    shown = [f"{v:g}" if values.dtype.kind in "iuf" else repr(v.item()) for v in values[:max_shown]]
    return ", ".join(shown) + (", ..." if len(values) > max_shown else "")
