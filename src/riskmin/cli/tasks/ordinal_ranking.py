"""The commands' treatment of graded labels: ordinal regression, and ranking of the rows of each query."""

from __future__ import annotations

import contextlib
import shlex
from typing import Any

import numpy as np

from riskmin.cli.tasks.measures import mean_loss, raw_scores, score
from riskmin.core import NDArray
from riskmin.core.messages import format_label
from riskmin.data.raw_tables.preparation import PreparedRows


# ---------------------------------------------------------------- ordinal
def check_ordinal_labels(model: Any, y: Any, qid: Any) -> None:
    """Raise if there are fewer than two grades, or if grades are strings and --order is missing."""
    names = [format_label(grade) for grade in np.unique(y).tolist()]
    if len(names) < 2:
        raise ValueError(
            f"the labels hold one grade ({names[0]}), but {model.loss} compares rows of different grades: "
            "choose another --target or other rows"
        )
    if y.dtype.kind in "US" and model.order is None:
        example = ",".join(names[:3]) + (",..." if len(names) > 3 else "")
        raise ValueError(
            "the grades are words, whose order is not known: give all of them, the lowest first, by --order "
            f"{shlex.quote(example)}"
        )


def ordinal_metrics(model: Any, rows: PreparedRows) -> dict[str, Any]:
    """Errors of the predicted grades, and the rank correlation of the scores with the grades.

    The rank correlation has no weights, and is left out if the rows have some.
    """
    from scipy.stats import kendalltau

    from riskmin.estimators._common.labels import codes_among

    X, y, c = rows.X, rows.y, rows.weight
    if y.dtype.kind in "US" and model.classes_.dtype.kind in "biuf":
        raise ValueError(
            "the labels are words, but the model's grades are numbers: check the data and --target"
        )
    # grades unseen in training are inserted in sorted order, so that errors in grades are defined;
    # the loss is defined for the grades of the model only
    known = model.classes_ if model.order is None else np.array(model.order)
    if model.order is None and known.tolist() == sorted(known.tolist()):
        known = np.unique([*known.tolist(), *y.tolist()])
    y_true, y_pred = (codes_among(grades, known, noun="grade") for grades in (y, model.predict(X)))
    metrics = {
        "mean absolute error, in grades": np.average(np.abs(y_pred - y_true), weights=c),
        "accuracy": np.average(y_pred == y_true, weights=c),
        "at most one grade off": np.average(np.abs(y_pred - y_true) <= 1, weights=c),
    }
    z = raw_scores(model, X)
    if np.any(y_true != y_true[0]):
        if c is None:
            tau = kendalltau(z, y_true).statistic
            metrics["Kendall's tau"] = tau if np.isfinite(tau) else 0.0  # NaN if all scores are equal
        if set(np.unique(y).tolist()) <= set(model.classes_.tolist()):
            metrics["mean loss"] = mean_loss(model, X, y, weight=c)
    return {name: float(value) for name, value in metrics.items()}


# ---------------------------------------------------------------- rankings
def check_ranking_labels(model: Any, y: Any, qid: Any) -> None:
    """Raise if grades are not numbers or query ids are missing."""
    if y.dtype.kind in "US":
        raise ValueError(
            f"the labels are words (such as {str(y[0])!r}), but {model.loss} takes grades that are numbers, "
            "a higher one better: choose another --target, or number the grades"
        )
    require_queries(model, qid)


def require_queries(model: Any, qid: Any) -> None:
    """Raise if the query ids that a ranking needs are missing."""
    if qid is None:
        raise ValueError(
            f"the data have no query ids, but {model.loss} ranks the rows of each query: write qid:ID after "
            "each label, or name the column of a table by --qid"
        )


def ranking_metrics(model: Any, rows: PreparedRows) -> dict[str, Any]:
    """Ranking metrics, each a mean over the queries for which it is defined.

    The weight of a query is the mean weight of its rows.
    """
    from riskmin.estimators._common.fit import resolve_loss
    from riskmin.estimators._common.scoring import measure_for_loss
    from riskmin.losses import Mrr, Ndcg

    X, c = rows.X, rows.weight
    qid: Any = rows.qid
    require_queries(model, qid)
    grades: NDArray = model._labels.encode(model, rows.y, model._fitted_loss(), None)[0]
    _, sizes = np.unique(qid, return_counts=True)
    metrics: dict[str, Any] = {"queries": len(sizes)}
    for measure in (
        measure_for_loss(resolve_loss(model)),
        measure_for_loss(Ndcg(k=10)),
        measure_for_loss(Mrr()),
    ):
        # the measures are defined for grades >= 0 of which one is positive
        if measure is not None and grades.min() >= 0 and grades.max() > 0:
            metrics[measure.name] = score(measure, model, X, grades, c, qid=qid)
    with contextlib.suppress(ValueError):  # raised if the loss is defined for none of these queries
        metrics["mean loss"] = mean_loss(model, X, grades, qid, c)
    return metrics
