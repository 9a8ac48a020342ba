"""The commands' behavior for each task (kind of model): one record per task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import click
import numpy as np

from riskmin.cli.tasks import classification, ordinal_ranking, tagging
from riskmin.cli.tasks.measures import mean_loss, raw_scores, score
from riskmin.core import NDArray
from riskmin.core.messages import format_label
from riskmin.data.raw_tables.preparation import PreparedRows


class TaskBehavior(NamedTuple):
    """The behavior of the commands for one task."""

    needs_labels: bool
    """Whether fitting and certifying need labels."""
    check: Callable[[Any, Any, Any], None]
    """``check(model, y, qid)`` raises if labels or query ids cannot be fitted, naming the options."""
    predictions: Callable[[Any, Any], list[str]]
    """``predictions(model, X)``: one text per row."""
    scores: Callable[[Any, Any], NDArray]
    """``scores(model, X)``: one number per row, or one per row and class."""
    metrics: Callable[[Any, PreparedRows], dict[str, Any]]
    """``metrics(model, rows)``: metrics of labeled rows by name, with their weights if they have some."""


def query_kwargs(model: Any, qid: Any) -> dict[str, Any]:
    """Keyword arguments of `fit` in addition to rows and labels: query ids, for rankings only."""
    return {"qid": qid} if model.task == "ranking" else {}


# ---------------------------------------------------------------- classification
def _check_classes(model: Any, y: Any, qid: Any) -> None:
    from riskmin.estimators._common.fit import resolve_loss, supports_multiclass

    distinct = np.unique(y)
    classes = [format_label(label) for label in distinct.tolist()]
    if y.dtype.kind == "f" and (fractions := distinct[distinct != np.round(distinct)]).size:
        raise ValueError(
            f"the labels are numbers such as {format_label(fractions[0].item())}, but {model.loss} takes "
            "classes: choose another --target, or a loss for regression, such as --loss squared"
        )
    if len(classes) == 2 or (len(classes) > 2 and supports_multiclass(resolve_loss(model))):
        if y.dtype.kind in "biuf" and len(classes) > max(2, len(y) / 2):
            click.echo(
                f"riskmin: the labels are {len(classes):,} different numbers in {len(y):,} rows, and "
                f"{model.loss} takes each for a class; for numbers, use --loss squared",
                err=True,
            )
        return
    examples = ", ".join(classes[:3]) + (", ..." if len(classes) > 3 else "")
    content = f"{len(classes):,} classes ({examples})" if len(classes) > 1 else f"one class ({examples})"
    losses = "hinge, squared_hinge, logistic or softmax, which take more, " if len(classes) > 1 else ""
    raise ValueError(
        f"the labels hold {content}, but {model.loss} takes two: choose {losses}another --target or other "
        "rows, or a loss for regression, ordinal or ranking"
    )


def _predicted_classes(model: Any, X: Any) -> list[str]:
    return [format_label(label) for label in model.predict(X).tolist()]


def _classification_metrics(model: Any, rows: PreparedRows) -> dict[str, Any]:
    from sklearn import metrics

    from riskmin.estimators._common.labels import codes_among
    from riskmin.estimators._common.scoring import measure_for_loss

    X, y, c = rows.X, rows.y, rows.weight
    codes_among(y, model.classes_)  # raises for labels unknown to the model
    if len(model.classes_) > 2:
        return classification.class_metrics(model, rows)
    z, y_true = model.decision_function(X), np.where(y == model.classes_[1], 1.0, -1.0)
    y_pred = np.where(z > 0, 1.0, -1.0)
    result = {
        "accuracy": metrics.accuracy_score(y_true, y_pred, sample_weight=c),
        "balanced accuracy": metrics.balanced_accuracy_score(y_true, y_pred, sample_weight=c),
        f"F1 of class {format_label(model.classes_[1])}": metrics.f1_score(
            y_true, y_pred, zero_division=0.0, sample_weight=c
        ),
    }
    # ROC area and the metric of the loss need rows of both classes
    both_classes, loss = len(np.unique(y_true)) == 2, model._fitted_loss()
    defined = both_classes and loss.min_rows <= len(z)  # a loss at k needs k rows
    if both_classes:
        result["ROC area"] = metrics.roc_auc_score(y_true, z, sample_weight=c)
        result["average precision"] = metrics.average_precision_score(y_true, z, sample_weight=c)
    if defined and (measure := measure_for_loss(loss)) is not None:
        full_name = f"{measure.name} of class {format_label(model.classes_[1])}"
        result[measure.name if measure.name in result else full_name] = score(measure, model, X, y, c)
    if loss.separable or defined:
        result["mean loss"] = mean_loss(model, X, y, weight=c)
    return {name: float(value) for name, value in result.items()}


def _decision_function(model: Any, X: Any) -> NDArray:
    z: NDArray = model.decision_function(X)
    return z


# ---------------------------------------------------------------- regression
def _reject_text_labels(model: Any, y: Any, qid: Any) -> None:
    if y.dtype.kind in "US":
        raise ValueError(
            f"the labels are words (such as {str(y[0])!r}), but {model.loss} takes numbers: "
            "choose another --target, or a loss for classification"
        )


def _check_numeric_labels(model: Any, y: Any) -> NDArray:
    """Return labels as floats; raise if they are not numbers or the loss does not take them."""
    from riskmin.estimators._common.fit import resolve_loss

    if isinstance(y, list) or y.dtype.kind not in "biuf":
        raise ValueError("the labels are not numbers, but the model is a regression: check --target")
    # one row of coef_ per output
    if np.ndim(vars(model).get("coef_", 0.0)) == 2:
        raise ValueError(
            f"the model predicts {len(model.coef_)} numbers per row, but a file has one label per row: "
            "use the model in Python"
        )
    targets: NDArray = y.astype(np.float64)
    resolve_loss(model).check_labels(targets)
    return targets


def _formatted_numbers(model: Any, X: Any) -> list[str]:
    y_pred = model.predict(X)
    return ["\t".join(map(repr, row)) for row in y_pred.reshape(len(y_pred), -1).tolist()]


def _regression_metrics(model: Any, rows: PreparedRows) -> dict[str, Any]:
    from sklearn import metrics

    from riskmin.estimators._common.fit import resolve_loss
    from riskmin.losses import Quantile

    loss, X, y, c = resolve_loss(model), rows.X, _check_numeric_labels(model, rows.y), rows.weight
    y_pred = model.predict(X)
    result = {
        "mean loss": mean_loss(model, X, y, weight=c),
        "MAE": metrics.mean_absolute_error(y, y_pred, sample_weight=c),
        "RMSE": metrics.root_mean_squared_error(y, y_pred, sample_weight=c),
    }
    if len(y) > 1:
        result["R^2"] = metrics.r2_score(y, y_pred, sample_weight=c)
    if loss.log_link:  # these losses are half the deviance
        result[f"mean {type(loss).__name__} deviance"] = 2 * result["mean loss"]
    if isinstance(loss, Quantile):
        result[f"labels below prediction (aim: {loss.level:g})"] = np.average(y <= y_pred, weights=c)
    return {k: float(v) for k, v in result.items()}


# ---------------------------------------------------------------- novelty
def _accept_any_labels(model: Any, y: Any, qid: Any) -> None:
    """Accept any labels: they are not used in training, or the estimator checks them."""


def _novelty_metrics(model: Any, rows: PreparedRows) -> dict[str, Any]:
    from sklearn import metrics

    y, c = rows.y, rows.weight
    novel = model.predict(rows.X) == -1
    z = model.score_samples(rows.X)
    result: dict[str, Any] = {
        "novel": float(np.average(novel, weights=c)),
        "mean loss": mean_loss(model, rows.X, None, weight=c),
    }
    # labels are optional; of two classes, the rarer one is taken for novel
    classes, counts = np.unique([] if y is None else y, return_counts=True)
    if len(classes) == 2:
        rare = classes[np.argmin(counts)]
        result["class taken for novel"] = f"{format_label(rare)} (the rarer one)"
        more = {"zero_division": 0.0, "sample_weight": c}
        result["ROC area"] = float(metrics.roc_auc_score(y == rare, -z, sample_weight=c))
        result["precision"] = float(metrics.precision_score(y == rare, novel, **more))
        result["recall"] = float(metrics.recall_score(y == rare, novel, **more))
    return result


TASK_BEHAVIORS: dict[str, TaskBehavior] = {
    "classification": TaskBehavior(
        True, _check_classes, _predicted_classes, raw_scores, _classification_metrics
    ),
    "regression": TaskBehavior(
        True, _reject_text_labels, _formatted_numbers, raw_scores, _regression_metrics
    ),
    "novelty": TaskBehavior(
        False, _accept_any_labels, _formatted_numbers, _decision_function, _novelty_metrics
    ),
    "hierarchy": TaskBehavior(
        True,
        _accept_any_labels,
        _predicted_classes,
        _decision_function,
        classification.hierarchy_metrics,
    ),
    "ordinal": TaskBehavior(
        True,
        ordinal_ranking.check_ordinal_labels,
        _predicted_classes,
        raw_scores,
        ordinal_ranking.ordinal_metrics,
    ),
    "ranking": TaskBehavior(
        True,
        ordinal_ranking.check_ranking_labels,
        _formatted_numbers,
        raw_scores,
        ordinal_ranking.ranking_metrics,
    ),
    "tagging": TaskBehavior(
        True,
        tagging.check_tag_labels,
        tagging.predicted_tags,
        tagging.tag_scores,
        tagging.tagging_metrics,
    ),
}
"""The records by an estimator's `task`."""
