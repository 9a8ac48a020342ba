"""Scores of fitted models, and the mean loss of scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray


def mean_loss(model: Any, z: NDArray, y: NDArray, qid: Any = None) -> float:
    """The loss of the scores with equal weights of the rows."""
    from riskmin.estimators._common.fit import fitted_loss
    from riskmin.problem.linear_risk import check_labels

    loss = fitted_loss(model)
    labels = check_labels(y, len(z), loss, qid) if loss.task == "ranking" else y
    return float(loss.value_grad(z, labels, np.full(len(z), 1 / len(z)))[0])


def raw_scores(model: Any, X: Any) -> NDArray:
    """The decision scores of a linear model or a kernel machine."""
    z: NDArray = model._scores(X)
    return z


def loss_scores(model: Any, X: Any) -> NDArray:
    """The scores that the loss takes: all outputs, without the decision threshold."""
    z: NDArray = model._loss_scores(X)
    return z
