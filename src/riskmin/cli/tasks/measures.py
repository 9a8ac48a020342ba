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
    labels = check_labels(y, len(z), loss, qid) if getattr(loss, "task", None) == "ranking" else y
    return float(loss.value_grad(z, labels, np.full(len(z), 1 / len(z)))[0])


def raw_scores(model: Any, X: Any) -> NDArray:
    """The decision scores of a linear model or a kernel machine."""
    from riskmin.estimators._common.fit import decision_scores
    from riskmin.estimators.kernel_names import kernel_scores

    return kernel_scores(model, X) if hasattr(model, "dual_coef_") else decision_scores(model, X)


def loss_scores(model: Any, X: Any) -> NDArray:
    """The scores that the loss takes: all outputs, without the decision threshold."""
    from riskmin.estimators._common.fit import fitted_loss, multi_output_scores
    from riskmin.estimators._common.multi_output import is_multi_output

    # intercept_ = b - threshold_: add the threshold back
    if not is_multi_output(fitted_loss(model)):
        return raw_scores(model, X) + float(getattr(model, "threshold_", 0.0))
    if model.task == "hierarchy":
        z_nodes: NDArray = model.scores(X)
        return z_nodes
    if model.task == "classification":
        return multi_output_scores(model, X)
    z = raw_scores(model, X)
    return z.reshape(len(z), -1)
