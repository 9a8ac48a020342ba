"""Multi-output models: the loss for a number of outputs, and the layout of their weights in w."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.losses import MultivariateSquared, Squared


def supports_multiclass(loss: Any) -> bool:
    """Whether a classification loss has a form for more than two classes."""
    return loss.multi_output or loss.for_classes(3) is not None


def loss_for_classes(loss: Any, k: int) -> Any:
    """Return the loss for k classes: the loss itself, or the multiclass form of a binary loss.

    Examples
    --------
    >>> from riskmin import Logistic
    >>> loss_for_classes(Logistic(), 2), loss_for_classes(Logistic(), 3)
    (Logistic(), Softmax())
    """
    result = loss.for_classes(k)
    if result is None:
        raise ValueError(
            f"Only binary classification is supported. The type of the target is multiclass: {loss!r} takes "
            f"two classes, not {k}; use 'hinge', 'squared_hinge', 'logistic' or MulticlassHinge(cost), which "
            "take more, or wrap the model in sklearn.multiclass.OneVsRestClassifier"
        )
    return result


def loss_for_outputs(loss: Any, reg: Any) -> Any:
    """Return the loss that fits all outputs jointly; None if each output is a separate problem.

    Least squares with L2 is one problem, since one pass over X serves all outputs.

    Examples
    --------
    >>> from riskmin import L2, Hinge
    >>> loss_for_outputs(Squared(), L2()), loss_for_outputs(Hinge(), L2())
    (MultivariateSquared(), None)
    """
    # with M = I the outputs do not interact, so the joint optimum is that of each output
    if isinstance(loss, Squared) and reg.diagonal:
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
