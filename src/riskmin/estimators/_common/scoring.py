"""Performance measures as scikit-learn scorers, for searches, cross-validation and the command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import sklearn.metrics as sklearn_metrics
from sklearn.base import BaseEstimator
from sklearn.utils.metadata_routing import UNUSED

from riskmin import metrics
from riskmin.core import NDArray
from riskmin.core.messages import unknown_name
from riskmin.core.registry import parse_settings
from riskmin.estimators._common.fit import decision_scores_of_validated
from riskmin.estimators._common.labels import codes_among
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


class Measure(NamedTuple):
    """A performance measure, the higher the better."""

    name: str
    """Display name."""
    task: str
    """Task of the models it applies to."""
    scorer: Any
    """``scorer(model, X, y)``; measures of rankings also need ``qid``."""


def get_scorer(name: str) -> Any:
    """Return a scorer by name, for the parameter ``scoring`` of scikit-learn's searches.

    Parameters
    ----------
    name : str
        Name of a loss that corresponds to a measure, optionally with parameters
        (``"precision_at_k:k=50"``): "roc_area", "prbep", "f1", "f_beta", "precision_at_k", "recall_at_k" and
        "average_precision" for binary classifiers, with ``classes_[1]`` as the positive class; "ndcg", "mrr",
        "expected_rank_utility" for rankings, and "pairwise_hinge", which is scored by NDCG@10. Or any
        scorer name of scikit-learn. See `riskmin.metrics`.

    Returns
    -------
    callable
        ``scorer(model, X, y)``. Ranking scorers need the queries, ``scorer(model, X, y, qid=qid)``, and
        request them under metadata routing.

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
    measure = _measure_or_none(name)
    if measure is None:
        if name not in sklearn_metrics.get_scorer_names():
            listed = f"{', '.join(measure_names())}, and those of sklearn.metrics.get_scorer_names()"
            raise ValueError(
                unknown_name(
                    f"there is no scorer named {name!r}",
                    name,
                    [*measure_names(), *sklearn_metrics.get_scorer_names()],
                    f"the names are {listed}",
                    _SCORERS_ELSEWHERE,
                )
            )
        return sklearn_metrics.get_scorer(name)
    return measure.scorer


class GradeError:
    """Scorer of ordinal models: minus the mean absolute error in grades, so that higher is better."""

    name = "error in grades, negative"

    def __init__(self, grades: NDArray) -> None:
        self.grades = grades

    def __call__(self, model: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Score a fitted model on labeled rows; grades unseen in its training are allowed."""
        both = model.predict(X), y
        predicted, given = (codes_among(grades, self.grades, noun="grade") for grades in both)
        return -float(np.average(np.abs(predicted - given), weights=sample_weight))


def default_score(model: Any, X: Any, y: NDArray, sample_weight: NDArray | None = None, **more: Any) -> float:
    """Return the estimator's `score`: the accuracy, R^2 or, with query ids, NDCG."""
    # a model at an offset has a `score` of its own
    if model.task != "classification" or y.ndim > 1 or "score" in vars(model):
        return float(model.score(X, y, sample_weight=sample_weight, **more))
    # the accuracy, as `score` computes it, but without checks of X and y, which take longer than a small fit
    predicted = model._labels_of_scores(decision_scores_of_validated(model, X))
    return float(np.average(predicted == y, weights=sample_weight))


_SCORERS_ELSEWHERE = {
    **dict.fromkeys(("auc", "auroc", "roc"), "roc_auc"),
    "ap": "average_precision",
    "mcc": "matthews_corrcoef",
    "mse": "neg_mean_squared_error",
    "mae": "neg_mean_absolute_error",
}
"""Names of measures in other packages, and those of their scorers."""


def measure_by_name(name: str, task: str) -> Measure:
    """Return the measure of a name; raise if it does not apply to the task."""
    scorer, measure = get_scorer(name), _measure_or_none(name)
    # scorers of scikit-learn take no query ids
    if measure is None and task != "ranking":
        return Measure(name, task, scorer)
    if measure is None or measure.task != task:
        instead = ", ".join(measure_names(task)) or "one of scikit-learn's, such as accuracy"
        raise ValueError(f"{name} is no measure for {task}: choose {instead}")
    return measure


def measure_for_loss(loss: Any) -> Measure | None:
    """Return the measure that a loss bounds; None if there is none."""
    # a smoothed loss bounds the measure of the loss inside
    loss = loss.loss if isinstance(loss, Smoothed) else loss
    # a subclass of a loss bounds the same measure
    make = next((_MEASURES[kind] for kind in type(loss).__mro__ if kind in _MEASURES), None)
    if make is None:
        return None
    name, scorer = make(loss)
    return Measure(name, loss.task, scorer)


def _scorer_of_scores(measure: Any, **settings: Any) -> Any:
    return sklearn_metrics.make_scorer(measure, response_method="decision_function", **settings)


def _ndcg(k: float) -> tuple[str, Any]:
    return f"NDCG@{k:g}", RankingScorer(metrics.mean_ndcg_score, {"k": k})


_MEASURES: dict[type, Callable[[Any], tuple[str, Any]]] = {
    RocArea: lambda loss: ("ROC area", sklearn_metrics.get_scorer("roc_auc")),
    Prbep: lambda loss: ("break-even point", _scorer_of_scores(metrics.prbep_score)),
    FBeta: lambda loss: (f"F{loss.beta:g}", FBetaScorer(loss.beta)),
    PrecisionAtK: lambda loss: (
        f"precision at {loss.k}",
        _scorer_of_scores(metrics.precision_at_k_score, k=loss.k),
    ),
    RecallAtK: lambda loss: (f"recall at {loss.k}", _scorer_of_scores(metrics.recall_at_k_score, k=loss.k)),
    Mrr: lambda loss: ("MRR", RankingScorer(metrics.mrr_score)),
    ExpectedRankUtility: lambda loss: (
        "expected rank utility",
        RankingScorer(metrics.expected_rank_utility_score, {"half_life": loss.half_life}),
    ),
    Ndcg: lambda loss: _ndcg(loss.k),
    # the pairwise hinge bounds no metric at a cutoff: NDCG@10 is reported
    PairwiseHinge: lambda loss: _ndcg(10),
}
"""Name and scorer of the measure that a loss bounds, by its class."""


def _measure_or_none(name: str) -> Measure | None:
    """Return the measure of the loss with this name; None if there is none."""
    kind = name.partition(":")[0].strip()
    if kind == "average_precision":
        return Measure("average precision", "classification", AveragePrecisionScorer())
    if kind not in LOSSES or measure_for_loss(LOSSES[kind]) is None:
        return None
    # raises for malformed parameters, with an example for scorers
    parse_settings(name, "scorer", "precision_at_k:k=50")
    return measure_for_loss(get_loss(name))


def measure_names(task: str | None = None) -> list[str]:
    """Return the names of losses that correspond to measures, of one task or of all."""
    measures = {name: measure_for_loss(loss) for name, loss in LOSSES.items()}
    return [name for name, measure in measures.items() if measure and task in (None, measure.task)]


class RankingScorer(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Scorer of rankings; requests ``qid`` under metadata routing."""

    # the defaults of metadata routing: qid is requested, weights are not
    __metadata_request__score: ClassVar = {"model": UNUSED, "qid": True, "sample_weight": False}

    def __init__(self, measure: Any, settings: dict[str, Any] | None = None) -> None:
        self.measure = measure
        self.settings = settings

    def __call__(self, model: Any, X: Any, y: Any, qid: Any = None, sample_weight: Any = None) -> float:
        """Return the score of a fitted model on rows, grades and query ids."""
        return self.score(model, X, y, qid, sample_weight)

    def score(self, model: Any, X: Any, y: Any, qid: Any = None, sample_weight: Any = None) -> float:
        """Return the same as a call; scikit-learn reads the metadata requests of a method of this name."""
        settings = self.settings or {}
        return float(self.measure(y, model.predict(X), qid=qid, sample_weight=sample_weight, **settings))


@dataclass(frozen=True)
class AveragePrecisionScorer:
    """The mean precision at the ranks of the rows of ``classes_[1]``, for any label."""

    def __call__(self, model: Any, X: Any, y: Any, sample_weight: NDArray | None = None) -> float:
        """Return the average precision of the scores of a fitted model on rows and labels."""
        if len(model.classes_) != 2:
            raise ValueError("average precision is for two classes: choose another metric, such as f1_macro")
        y_true, z = np.asarray(y) == model.classes_[1], model.decision_function(X)
        return float(sklearn_metrics.average_precision_score(y_true, z, sample_weight=sample_weight))


@dataclass(frozen=True)
class FBetaScorer:
    """F-beta of ``classes_[1]``, for any label, also if no row of that class is scored."""

    beta: float

    def __call__(self, model: Any, X: Any, y: Any, sample_weight: NDArray | None = None) -> float:
        """Return F-beta of a fitted model on rows and labels."""
        if len(model.classes_) != 2:
            raise ValueError("F-beta is for two classes: choose one of scikit-learn's, such as f1_macro")
        y_true, y_pred = (np.asarray(labels) == model.classes_[1] for labels in (y, model.predict(X)))
        score = sklearn_metrics.fbeta_score(
            y_true, y_pred, beta=self.beta, zero_division=0, sample_weight=sample_weight
        )
        return float(score)
