"""Multi-output models: the loss for a number of outputs, and the layout of their weights in w."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.losses import (
    Hinge,
    Logistic,
    MulticlassHinge,
    MulticlassSquaredHinge,
    MultivariateSquared,
    Softmax,
    Squared,
    SquaredHinge,
)
from riskmin.regularizers import L2


def supports_multiclass(loss: Any) -> bool:
    """Whether a classification loss has a form for more than two classes."""
    return loss.multi_output or isinstance(loss, (Hinge, Logistic)) or loss == SquaredHinge()


def loss_for_classes(loss: Any, k: int) -> Any:
    """Return the loss for k classes: the loss itself, or the multiclass form of a binary loss.

    Examples
    --------
    >>> loss_for_classes(Logistic(), 2), loss_for_classes(Logistic(), 3)
    (Logistic(), Softmax())
    """
    if hasattr(loss, "tree"):
        raise ValueError(f"{type(loss).__name__} is a loss of labels in a tree: use HierarchicalClassifier")
    if loss.multi_output:
        cost = getattr(loss, "cost", None)
        if cost is not None and len(cost) != k:
            raise ValueError(
                f"cost is for {len(cost)} classes, but y has {k}: give a row and a column for each, "
                "in the order of classes_"
            )
        return loss
    if k <= 2:
        return loss
    if not supports_multiclass(loss):
        raise ValueError(
            f"Only binary classification is supported. The type of the target is multiclass: {loss!r} takes "
            f"two classes, not {k}; use 'hinge', 'squared_hinge', 'logistic' or MulticlassHinge(cost), which "
            "take more, or wrap the model in sklearn.multiclass.OneVsRestClassifier"
        )
    # a margin m is a cost of m for every mistake
    if isinstance(loss, Hinge):
        return MulticlassHinge(None if loss.margin == 1 else loss.margin * (1 - np.eye(k)))
    return Softmax() if isinstance(loss, Logistic) else MulticlassSquaredHinge()


def loss_for_outputs(loss: Any, reg: Any) -> Any:
    """Return the loss that fits all outputs jointly; None if each output is a separate problem.

    Least squares with L2 is one problem, since one pass over X serves all outputs.

    Examples
    --------
    >>> loss_for_outputs(Squared(), L2()), loss_for_outputs(Hinge(), L2())
    (MultivariateSquared(), None)
    """
    # with M = I the outputs do not interact, so the joint optimum is that of each output
    if isinstance(loss, Squared) and isinstance(reg, L2):
        return MultivariateSquared()
    return loss if loss.multi_output else None


def unpack_weights(w: NDArray, k: int, *, intercepts: bool) -> tuple[NDArray, NDArray]:
    """Return the weights, one row per output, and the intercepts, which are the last k entries of w if any.

    Examples
    --------
    >>> coef, b = unpack_weights(np.array([1.0, 2.0, 3.0, 4.0, 10.0, 20.0]), 2, intercepts=True)
    >>> coef.tolist(), b.tolist()
    ([[1.0, 3.0], [2.0, 4.0]], [10.0, 20.0])
    """
    # w holds the (p, k) weight matrix in row-major order
    W, b = (w[:-k], w[-k:].copy()) if intercepts else (w, np.zeros(k))
    return W.reshape(-1, k).T, b
