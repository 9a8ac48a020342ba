"""Measures as scorers, for scikit-learn's searches, cross-validation and the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import sklearn.metrics as theirs
from sklearn.base import BaseEstimator
from sklearn.utils.metadata_routing import UNUSED

from riskmin import metrics
from riskmin.losses import (
    LOSSES,
    ExpectedRankUtility,
    FBeta,
    Mrr,
    Ndcg,
    PairwiseHinge,
    Prbep,
    PrecisionAtK,
    RecallAtK,
    RocArea,
    Smoothed,
    get_loss,
)
from riskmin.registry import settings_of
from riskmin.types import NDArray


class Measure(NamedTuple):
    """A number that judges models, the higher the better."""

    name: str
    """As it is shown."""
    task: str
    """For which models."""
    scorer: Any
    """``scorer(model, X, y)``; those of rankings need ``qid`` too."""


def get_scorer(name: str) -> Any:
    """A scorer for ``scoring=`` of scikit-learn's searches, by its name.

    Parameters
    ----------
    name : str
        That of a loss that stands for a measure, with parameters where wanted
        (``"precision_at_k:k=50"``): "roc_area", "prbep", "f1", "f_beta", "precision_at_k", "recall_at_k" for
        classifiers of two classes, all of them for ``classes_[1]``; "ndcg", "mrr", "expected_rank_utility"
        for rankings of queries, and "pairwise_hinge", which is judged by the NDCG of ten. Or any name of
        scikit-learn's. See `riskmin.metrics`.

    Returns
    -------
    callable
        ``scorer(model, X, y)``. Those of rankings need the queries: ``scorer(model, X, y, qid=qid)``, and
        with metadata routing they ask for them.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.model_selection import cross_val_score
    >>> from sklearn.preprocessing import scale
    >>> from riskmin import LinearClassifier, get_scorer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LinearClassifier("prbep", alpha=1e-2)
    >>> bool(cross_val_score(model, scale(X), y, cv=3, scoring=get_scorer("prbep")).mean() > 0.95)
    True
    """
    measure = _of_name(name)
    if measure is None:
        if name not in theirs.get_scorer_names():
            raise ValueError(
                f"there is no scorer named {name!r}; the names are {', '.join(_names())}, "
                "and those of sklearn.metrics.get_scorer_names()"
            )
        return theirs.get_scorer(name)
    return measure.scorer


def measure_named(name: str, task: str) -> Measure:
    """The measure that a name stands for, if it judges models of the task."""
    scorer, measure = get_scorer(name), _of_name(name)
    if measure is None and task != "ranking":
        return Measure(name, task, scorer)
    if measure is None or measure.task != task:
        instead = ", ".join(_names(task)) or "one of scikit-learn's, such as accuracy"
        raise ValueError(f"{name} is no measure for {task}: choose {instead}")
    return measure


def measure_of(loss: Any) -> Measure | None:
    """The measure that the loss stands for; None for those that are none but themselves."""
    loss = loss.loss if isinstance(loss, Smoothed) else loss
    if isinstance(loss, RocArea):
        return Measure("ROC area", "classification", theirs.get_scorer("roc_auc"))
    if isinstance(loss, Prbep):
        return Measure("break-even point", "classification", _of_scores(metrics.prbep_score))
    if isinstance(loss, FBeta):
        return Measure(f"F{loss.beta:g}", "classification", FBetaScorer(loss.beta))
    if isinstance(loss, RecallAtK):
        scorer = _of_scores(metrics.recall_at_k_score, k=loss.k)
        return Measure(f"recall at {loss.k}", "classification", scorer)
    if isinstance(loss, PrecisionAtK):
        scorer = _of_scores(metrics.precision_at_k_score, k=loss.k)
        return Measure(f"precision at {loss.k}", "classification", scorer)
    if isinstance(loss, Mrr):
        return Measure("MRR", "ranking", RankingScorer(metrics.mrr_score))
    if isinstance(loss, ExpectedRankUtility):
        settings = {"half_life": loss.half_life}
        scorer = RankingScorer(metrics.expected_rank_utility_score, settings)
        return Measure("expected rank utility", "ranking", scorer)
    if isinstance(loss, (Ndcg, PairwiseHinge)):
        k = getattr(loss, "k", 10)
        return Measure(f"NDCG@{k:g}", "ranking", RankingScorer(metrics.mean_ndcg_score, {"k": k}))
    return None


def _of_scores(measure: Any, **settings: Any) -> Any:
    return theirs.make_scorer(measure, response_method="decision_function", **settings)


def _of_name(name: str) -> Measure | None:
    """The measure of the loss that a name stands for; None where it stands for none."""
    kind = name.partition(":")[0].strip()
    if kind not in LOSSES or measure_of(LOSSES[kind]) is None:
        return None
    settings_of(name, "scorer", "precision_at_k:k=50")
    return measure_of(get_loss(name))


def _names(task: str | None = None) -> list[str]:
    """The losses whose names stand for measures, of one task or of all."""
    found = {name: measure_of(loss) for name, loss in LOSSES.items()}
    return [name for name, measure in found.items() if measure and task in (None, measure.task)]


class RankingScorer(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """A measure of rankings of queries; with metadata routing it asks for ``qid``."""

    __metadata_request__score: ClassVar = {"model": UNUSED, "qid": True, "sample_weight": False}

    def __init__(self, measure: Any, settings: dict[str, Any] | None = None) -> None:
        self.measure = measure
        self.settings = settings

    def __call__(self, model: Any, X: Any, y: Any, qid: Any = None, sample_weight: Any = None) -> float:
        """Of a fitted model, on rows, grades and query ids."""
        return self.score(model, X, y, qid, sample_weight)

    def score(self, model: Any, X: Any, y: Any, qid: Any = None, sample_weight: Any = None) -> float:
        """The same, by the name from which scikit-learn learns what there is to ask for."""
        settings = self.settings or {}
        return float(self.measure(y, model.predict(X), qid=qid, sample_weight=sample_weight, **settings))


@dataclass(frozen=True)
class FBetaScorer:
    """F-beta of ``classes_[1]``, whatever its name is, and whether or not it is among the rows to score."""

    beta: float

    def __call__(self, model: Any, X: Any, y: Any, sample_weight: NDArray | None = None) -> float:
        """Of a fitted model, on rows and labels."""
        if len(model.classes_) != 2:
            raise ValueError("F-beta is for two classes: choose one of scikit-learn's, such as f1_macro")
        truth, said = (np.asarray(some) == model.classes_[1] for some in (y, model.predict(X)))
        score = theirs.fbeta_score(truth, said, beta=self.beta, zero_division=0, sample_weight=sample_weight)
        return float(score)
