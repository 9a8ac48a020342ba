"""Metrics of scores of two classes: the precision/recall break-even point, precision and recall at k."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.messages import is_whole
from riskmin.metrics.checks import check_labels_scores


def prbep_score(y_true: Any, y_score: Any, *, pos_label: Any = None) -> float:
    r"""The precision/recall break-even point: the fraction of positives among the :math:`n_+` highest scores.

    If the number of predicted positives equals the number :math:`n_+` of positives, precision equals recall.

    Parameters
    ----------
    y_true : (n,) array
        Labels of two classes.
    y_score : (n,) array
        Scores, the higher the more positive.
    pos_label : label, optional
        The positive class; by default the greater of the two.

    Returns
    -------
    float
        Between 0 and 1.

    References
    ----------
    T. Joachims, A support vector method for multivariate performance measures, ICML 2005.

    Examples
    --------
    >>> prbep_score([1, 1, 0, 0, 0], [4.0, 2.0, 3.0, 1.0, 0.0])
    0.5
    """
    # with k = n_+ predicted positives, hits / k is both the precision and the recall
    positive, z = _two_classes(y_true, y_score, pos_label)
    return _hits(positive, z, int(positive.sum())) / int(positive.sum())


def precision_at_k_score(y_true: Any, y_score: Any, *, k: int = 10, pos_label: Any = None) -> float:
    """The fraction of positives among the k highest scores.

    Parameters
    ----------
    y_true, y_score, pos_label
        As in `prbep_score`.
    k : int
        The number of highest-scoring rows; at most n.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> precision_at_k_score([1, 1, 0, 0, 0], [4.0, 2.0, 3.0, 1.0, 0.0], k=1)
    1.0
    """
    positive, z = _two_classes(y_true, y_score, pos_label)
    return _hits(positive, z, _check_k(k, len(z))) / int(k)


def recall_at_k_score(y_true: Any, y_score: Any, *, k: int = 10, pos_label: Any = None) -> float:
    """The fraction of all positives that are among the k highest scores.

    Parameters
    ----------
    y_true, y_score, pos_label
        As in `prbep_score`.
    k : int
        The number of highest-scoring rows; at most n.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> recall_at_k_score([1, 1, 0, 0, 0], [4.0, 2.0, 3.0, 1.0, 0.0], k=3)
    1.0
    """
    positive, z = _two_classes(y_true, y_score, pos_label)
    return _hits(positive, z, _check_k(k, len(z))) / int(positive.sum())


def _hits(positive: NDArray, z: NDArray, k: int) -> float:
    """Number of positives among the k highest scores; tied rows at the k-th place count in expectation."""
    # the k-th highest score; of the rows tied with it, k - #above count, each with their share of positives
    threshold = np.partition(z, len(z) - k)[len(z) - k]
    above, tied = z > threshold, z == threshold
    return float(positive[above].sum() + (k - above.sum()) * positive[tied].mean())


def _check_k(k: int, n: int) -> int:
    if not is_whole(k, at_least=1) or k > n:
        raise ValueError(f"k={k!r}, but there are {n} rows: give a whole number from 1 to {n}")
    return int(k)


def _two_classes(y_true: Any, y_score: Any, pos_label: Any) -> tuple[NDArray, NDArray]:
    """Return the mask of positive rows and the scores; raise if y_true does not define two classes."""
    y, z = check_labels_scores(y_true, y_score)
    # sorted, so that the last one is the greater; a single class is accepted if it is 1
    classes = np.unique(y).tolist()
    if pos_label is None:
        if len(classes) > 2 or (len(classes) == 1 and classes[0] != 1):
            content = "one class" if len(classes) == 1 else f"{len(classes)} classes"
            raise ValueError(f"y_true holds {content}: give two, or name the positive one by pos_label")
        pos_label = classes[-1]
    positive: NDArray = y == pos_label
    if not positive.any():
        raise ValueError(f"y_true holds no {pos_label!r}: without positives the metric is not defined")
    return positive, z
