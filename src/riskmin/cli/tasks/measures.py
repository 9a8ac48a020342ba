"""Scores of fitted models, and the mean loss of scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray


def mean_loss(model: Any, X: Any, y: Any, qid: Any = None, weight: NDArray | None = None) -> float:
    """The mean loss of labeled rows with the given weights, or equal ones; without weights of classes."""
    z, labels, _ = model._risk_arguments(X, y, None, qid=qid)
    c = np.full(len(z), 1 / len(z)) if weight is None else weight / weight.sum()
    return float(model._fitted_loss().value_grad(z, labels, c)[0])


def score(measure: Any, model: Any, X: Any, y: Any, weight: NDArray | None = None, **more: Any) -> float:
    """The value of a measure, with the weights of the rows if it takes them."""
    from riskmin.estimators._common.cv_search import takes_weights

    if weight is not None and takes_weights(measure.scorer):
        more["sample_weight"] = weight
    return float(measure.scorer(model, X, y, **more))


def raw_scores(model: Any, X: Any) -> NDArray:
    """The decision scores of a linear model or a kernel machine."""
    z: NDArray = model.decision_function(X) if model.task == "classification" else model._scores(X)
    return z
