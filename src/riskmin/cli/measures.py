"""How good scores are by the measure that a loss is for: what `evaluate` shows and `cv` compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from riskmin.types import NDArray


class Measure(NamedTuple):
    """A number that judges scores."""

    name: str
    """As it is shown."""
    task: str
    """For which models."""
    of: Callable[[NDArray, NDArray, Any], float]
    """Of the labels (signs, or grades), the scores and the query ids; higher is better."""


def measure_of(loss: Any) -> Measure | None:
    """The measure that the loss bounds; None for those that are none but themselves."""
    from sklearn import metrics as known

    from riskmin import losses, metrics

    if isinstance(loss, losses.RocArea):
        return Measure("ROC area", "classification", lambda y, z, qid: known.roc_auc_score(y, z))
    if isinstance(loss, losses.Prbep):
        return Measure("break-even point", "classification", lambda y, z, qid: metrics.prbep_score(y, z))
    if isinstance(loss, losses.FBeta):
        beta = loss.beta
        return Measure(
            f"F{beta:g}",
            "classification",
            lambda y, z, qid: known.fbeta_score(y > 0, z > 0, beta=beta, zero_division=0.0),
        )
    if isinstance(loss, losses.PrecisionAtK):
        at = metrics.recall_at_k_score if isinstance(loss, losses.RecallAtK) else metrics.precision_at_k_score
        word, k = ("recall" if at is metrics.recall_at_k_score else "precision"), loss.k
        return Measure(f"{word} at {k}", "classification", lambda y, z, qid: at(y, z, k=min(k, len(z))))
    return _of_queries(loss)


def _of_queries(loss: Any) -> Measure | None:
    """The measures of rankings, each a mean over queries."""
    from riskmin import losses, metrics

    if isinstance(loss, losses.Mrr):
        return Measure("MRR", "ranking", lambda y, z, qid: metrics.mrr_score(y, z, qid=qid))
    if isinstance(loss, losses.ExpectedRankUtility):
        half = loss.half_life
        return Measure(
            "expected rank utility",
            "ranking",
            lambda y, z, qid: metrics.expected_rank_utility_score(y, z, qid=qid, half_life=half),
        )
    if isinstance(loss, (losses.Ndcg, losses.PairwiseHinge)):
        k = getattr(loss, "k", 10)
        name = "NDCG" if k is None else f"NDCG@{k:g}"
        return Measure(name, "ranking", lambda y, z, qid: metrics.mean_ndcg_score(y, z, qid=qid, k=k))
    return None


def mean_loss(model: Any, z: NDArray, y: NDArray, qid: Any = None) -> float:
    """The loss of the scores, every row with the same weight."""
    from riskmin.estimators.base import loss_of
    from riskmin.linear import check_labels

    loss = loss_of(model)
    labels = check_labels(y, len(z), loss, qid) if getattr(loss, "task", None) == "ranking" else y
    return float(loss.value_grad(z, labels, np.full(len(z), 1 / len(z)))[0])


def raw_scores(model: Any, X: Any) -> NDArray:
    """The scores that decide, of a linear model or a kernel machine."""
    from riskmin.estimators.base import scores
    from riskmin.estimators.mercer import kernel_scores

    return kernel_scores(model, X) if hasattr(model, "dual_coef_") else scores(model, X)


def loss_scores(model: Any, X: Any) -> NDArray:
    """The scores that the loss takes: before they were cut where the metric is best."""
    return raw_scores(model, X) + float(getattr(model, "threshold_", 0.0))
