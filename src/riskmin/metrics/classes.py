"""Measures of scores of two classes: the break-even point, and the first k rows."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from riskmin.metrics.checks import checked
from riskmin.types import NDArray


def prbep_score(y_true: Any, y_score: Any, *, pos_label: Any = None) -> float:
    r"""The precision/recall break-even point: the share of positives among the :math:`n_+` highest scores.

    With as many rows predicted positive as there are positive rows, precision and recall are the same.

    Parameters
    ----------
    y_true : (n,) array
        Labels of two classes.
    y_score : (n,) array
        Scores, the higher the more positive.
    pos_label : label, optional
        Which class is the positive one; the greater of the two by default.

    Returns
    -------
    float
        From 0 to 1.

    References
    ----------
    T. Joachims, A support vector method for multivariate performance measures, ICML 2005.

    Examples
    --------
    >>> prbep_score([1, 1, 0, 0, 0], [4.0, 2.0, 3.0, 1.0, 0.0])
    0.5
    """
    positive, z = _two_classes(y_true, y_score, pos_label)
    return _hits(positive, z, int(positive.sum())) / int(positive.sum())


def precision_at_k_score(y_true: Any, y_score: Any, *, k: int = 10, pos_label: Any = None) -> float:
    """The share of positives among the k highest scores.

    Parameters
    ----------
    y_true, y_score, pos_label
        As in `prbep_score`.
    k : int
        How many rows are looked at; no more than there are.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> precision_at_k_score([1, 1, 0, 0, 0], [4.0, 2.0, 3.0, 1.0, 0.0], k=1)
    1.0
    """
    positive, z = _two_classes(y_true, y_score, pos_label)
    return _hits(positive, z, _rows(k, len(z))) / int(k)


def recall_at_k_score(y_true: Any, y_score: Any, *, k: int = 10, pos_label: Any = None) -> float:
    """The share of all positives that is among the k highest scores.

    Parameters
    ----------
    y_true, y_score, pos_label
        As in `prbep_score`.
    k : int
        How many rows are looked at; no more than there are.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> recall_at_k_score([1, 1, 0, 0, 0], [4.0, 2.0, 3.0, 1.0, 0.0], k=3)
    1.0
    """
    positive, z = _two_classes(y_true, y_score, pos_label)
    return _hits(positive, z, _rows(k, len(z))) / int(positive.sum())


def _hits(positive: NDArray, z: NDArray, k: int) -> float:
    """How many of the k highest are positive; of those that tie for the last places, their share."""
    last = np.partition(z, len(z) - k)[len(z) - k]
    above, level = z > last, z == last
    return float(positive[above].sum() + (k - above.sum()) * positive[level].mean())


def _rows(k: int, n: int) -> int:
    if not isinstance(k, numbers.Real) or not 1 <= k <= n or k != int(k):
        raise ValueError(f"k={k!r}, but there are {n} rows: give a whole number from 1 to {n}")
    return int(k)


def _two_classes(y_true: Any, y_score: Any, pos_label: Any) -> tuple[NDArray, NDArray]:
    """Which rows are positive, and the scores."""
    y, z = checked(y_true, y_score)
    classes = np.unique(y).tolist()
    if pos_label is None:
        if len(classes) > 2 or (len(classes) == 1 and classes[0] != 1):
            held = "one class" if len(classes) == 1 else f"{len(classes)} classes"
            raise ValueError(f"y_true holds {held}: give two, or say which by pos_label")
        pos_label = classes[-1]
    positive: NDArray = y == pos_label
    if not positive.any():
        raise ValueError(f"y_true holds no {pos_label!r}: without positives the measure is not defined")
    return positive, z
