"""Measures as scorers, for scikit-learn's searches and cross-validation."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import sklearn.metrics as theirs

from riskmin import metrics
from riskmin.losses import FBeta, Prbep, PrecisionAtK, RecallAtK, RocArea, Smoothed
from riskmin.registry import settings_of
from riskmin.types import NDArray

MEASURES: dict[str, Callable[..., float]] = {
    "prbep": metrics.prbep_score,
    "precision_at_k": metrics.precision_at_k_score,
    "recall_at_k": metrics.recall_at_k_score,
    "ndcg": metrics.mean_ndcg_score,
    "mrr": metrics.mrr_score,
    "expected_rank_utility": metrics.expected_rank_utility_score,
}
"""What scikit-learn has no scorers for."""


def get_scorer(name: str) -> Any:
    """A scorer for ``scoring=`` of scikit-learn's searches, by its name.

    Parameters
    ----------
    name : str
        "prbep", "precision_at_k", "recall_at_k" for classifiers of two classes, "ndcg", "mrr",
        "expected_rank_utility" for rankings of queries, with parameters where wanted
        (``"precision_at_k:k=50"``), or any name of scikit-learn's. See `riskmin.metrics`.

    Returns
    -------
    callable
        ``scorer(model, X, y)``. Those of rankings need the queries: ``scorer(model, X, y, qid=qid)``, or
        ``scorer.set_score_request(qid=True)`` with metadata routing.

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
    kind = name.partition(":")[0].strip()
    if kind not in MEASURES:
        if kind not in theirs.get_scorer_names():
            raise ValueError(
                f"there is no scorer named {kind!r}; the names are {', '.join(MEASURES)}, "
                "and those of sklearn.metrics.get_scorer_names()"
            )
        return theirs.get_scorer(name)
    measure, settings = MEASURES[kind], settings_of(name, "scorer", "precision_at_k:k=50")
    known = [p for p in signature(measure).parameters if p in ("k", "half_life")]
    if unknown := sorted(set(settings) - set(known)):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ValueError(f"{kind} has no parameter {', '.join(unknown)}; {has}")
    ranks = "qid" in signature(measure).parameters
    return theirs.make_scorer(
        measure, response_method="predict" if ranks else "decision_function", **settings
    )


def scorer_for(loss: Any) -> Any:
    """The scorer of the metric that a loss stands for; None where it stands for none."""
    loss = loss.loss if isinstance(loss, Smoothed) else loss
    if isinstance(loss, RocArea):
        return get_scorer("roc_auc")
    if isinstance(loss, Prbep):
        return get_scorer("prbep")
    if isinstance(loss, PrecisionAtK):
        return get_scorer(f"{'recall' if isinstance(loss, RecallAtK) else 'precision'}_at_k:k={loss.k}")
    if isinstance(loss, FBeta):
        beta = loss.beta

        def f_beta(model: Any, X: Any, y: NDArray) -> float:
            """F-beta of ``classes_[1]``, whatever its name is."""
            said = model.predict(X)
            return float(theirs.fbeta_score(y, said, beta=beta, pos_label=model.classes_[1], zero_division=0))

        return f_beta
    return None
