"""What the commands do differently for each kind of model: one record a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from riskmin.cli import graded, multiclass, tagging
from riskmin.cli.common import as_label
from riskmin.cli.measures import loss_scores, mean_loss, raw_scores
from riskmin.types import NDArray


class Task(NamedTuple):
    """How one kind of model meets data."""

    labelled: bool
    """Whether it cannot be fitted or checked without labels."""
    check: Callable[[Any, Any, Any], None]
    """Raise where the labels and query ids of a file cannot be fitted, in the words of the command."""
    classes: Callable[[Any, Any], NDArray | None]
    """The classes or grades that labels hold, in order."""
    truth: Callable[[Any, Any, int], tuple[NDArray, NDArray]]
    """The labels as the risk takes them, and the weights of the rows, of sum one."""
    predictions: Callable[[Any, Any], list[str]]
    """A word a row."""
    scores: Callable[[Any, Any], NDArray]
    """A number a row."""
    metrics: Callable[[Any, Any, Any, Any], dict[str, Any]]
    """How well it does on rows, labels and query ids."""


def queries(model: Any, qid: Any) -> dict[str, Any]:
    """What `fit` takes beside rows and labels."""
    return {"qid": qid} if model.task == "ranking" else {}


def _none(model: Any, y: Any) -> None:
    """No classes."""


# ---------------------------------------------------------------- classification
def _check_classes(model: Any, y: Any, qid: Any) -> None:
    from riskmin.estimators.base import loss_of
    from riskmin.estimators.many import takes_many

    classes = [as_label(label) for label in np.unique(y).tolist()]
    if len(classes) == 2 or (len(classes) > 2 and takes_many(loss_of(model))):
        return
    some = ", ".join(classes[:3]) + (", ..." if len(classes) > 3 else "")
    held = f"{len(classes):,} classes ({some})" if len(classes) > 1 else f"one class ({some})"
    more = "hinge, squared_hinge, logistic or softmax, which take more, " if len(classes) > 1 else ""
    raise ValueError(
        f"the labels hold {held}, but {model.loss} takes two: choose {more}another --target or other rows, "
        "or a loss for regression, ordinal or ranking"
    )


def _classes(model: Any, y: Any) -> NDArray:
    found: NDArray = np.unique(y)
    return found


def _codes(model: Any, y: NDArray) -> NDArray:
    """Labels as the loss takes them, if they are the model's: -1 and +1, or 0 to k - 1."""
    from riskmin.estimators.base import fitted_loss
    from riskmin.estimators.many import is_many

    if strange := sorted(set(np.unique(y).tolist()) - set(model.classes_.tolist()), key=str):
        names = [as_label(label) for label in model.classes_.tolist()]
        known = " and ".join(names) if len(names) == 2 else ", ".join(names[:9]) + ", ..." * (len(names) > 9)
        raise ValueError(
            f"the label {as_label(strange[0])} is none of the model's, {known}: check the data and --target"
        )
    number = np.searchsorted(model.classes_, y).astype(np.float64)
    return number if is_many(fitted_loss(model)) else 2 * number - 1


def _class_truth(model: Any, y: Any, n_rows: int) -> tuple[NDArray, NDArray]:
    from sklearn.utils.class_weight import compute_sample_weight

    codes = _codes(model, y)
    weight = compute_sample_weight(model.class_weight, y)
    return codes, weight / weight.sum()


def _class_names(model: Any, X: Any) -> list[str]:
    return [as_label(label) for label in model.predict(X).tolist()]


def _classification(model: Any, X: Any, y: Any, qid: Any) -> dict[str, Any]:
    from sklearn import metrics

    from riskmin.estimators.base import fitted_loss
    from riskmin.estimators.scorers import measure_of

    codes = _codes(model, y)
    if len(model.classes_) > 2:
        return multiclass.measures(model, X, y, codes)
    z, truth = model.decision_function(X), np.where(y == model.classes_[1], 1.0, -1.0)
    said = np.where(z > 0, 1.0, -1.0)
    found = {
        "accuracy": metrics.accuracy_score(truth, said),
        "balanced accuracy": metrics.balanced_accuracy_score(truth, said),
        f"F1 of class {as_label(model.classes_[1])}": metrics.f1_score(truth, said, zero_division=0.0),
    }
    both, loss = len(np.unique(truth)) == 2, fitted_loss(model)
    judged = both and getattr(loss, "k", 0) <= len(z)  # there may be fewer rows than the loss looks at
    if both:
        found["ROC area"] = metrics.roc_auc_score(truth, z)
    if judged and (measure := measure_of(loss)) is not None:
        named = f"{measure.name} of class {as_label(model.classes_[1])}"
        found[measure.name if measure.name in found else named] = measure.scorer(model, X, y)
    if loss.separable or judged:
        found["mean loss"] = mean_loss(model, loss_scores(model, X), codes)
    return {name: float(value) for name, value in found.items()}


def _decisions(model: Any, X: Any) -> NDArray:
    found: NDArray = model.decision_function(X)
    return found


def _hierarchy(model: Any, X: Any, y: Any, qid: Any) -> dict[str, Any]:
    return multiclass.tree_measures(model, X, y, _codes(model, y))


# ---------------------------------------------------------------- regression
def _check_numbers(model: Any, y: Any, qid: Any) -> None:
    if y.dtype.kind in "US":
        raise ValueError(
            f"the labels are words (such as {str(y[0])!r}), but {model.loss} takes numbers: "
            "choose another --target, or a loss for classification"
        )


def _numbers(model: Any, y: Any) -> NDArray:
    """Labels as floats, if the loss takes them."""
    from riskmin.estimators.base import loss_of

    if isinstance(y, list) or y.dtype.kind not in "biuf":
        raise ValueError("the labels are not numbers, but the model is a regression: check --target")
    if np.ndim(getattr(model, "coef_", 0.0)) == 2:
        raise ValueError(
            f"the model predicts {len(model.coef_)} numbers a row, but a file has one label a row: "
            "use the model in Python"
        )
    truth: NDArray = y.astype(np.float64)
    loss_of(model).check_labels(truth)
    return truth


def _number_truth(model: Any, y: Any, n_rows: int) -> tuple[NDArray, NDArray]:
    from riskmin.estimators.base import loss_of
    from riskmin.estimators.many import is_many

    truth = _numbers(model, y)
    return truth[:, None] if is_many(loss_of(model)) else truth, np.full(n_rows, 1 / n_rows)


def _reprs(model: Any, X: Any) -> list[str]:
    said = model.predict(X)
    return ["\t".join(map(repr, row)) for row in said.reshape(len(said), -1).tolist()]


def _regression(model: Any, X: Any, y: Any, qid: Any) -> dict[str, Any]:
    from sklearn import metrics

    from riskmin.estimators.base import loss_of
    from riskmin.losses import Poisson, Quantile

    loss, y = loss_of(model), _numbers(model, y)
    said = model.predict(X)
    found = {
        "mean loss": mean_loss(model, loss_scores(model, X), _number_truth(model, y, len(y))[0]),
        "MAE": metrics.mean_absolute_error(y, said),
        "RMSE": metrics.root_mean_squared_error(y, said),
    }
    if len(y) > 1:
        found["R^2"] = metrics.r2_score(y, said)
    if isinstance(loss, Poisson):
        found["mean Poisson deviance"] = metrics.mean_poisson_deviance(y, np.maximum(said, 1e-300))
    if isinstance(loss, Quantile):
        found[f"labels below prediction (aim: {loss.level:g})"] = np.mean(y <= said)
    return {k: float(v) for k, v in found.items()}


# ---------------------------------------------------------------- novelty
def _no_labels(model: Any, y: Any, qid: Any) -> None:
    """Labels, if there are any, are not looked at."""


def _no_truth(model: Any, y: Any, n_rows: int) -> tuple[NDArray, NDArray]:
    return np.zeros(n_rows), np.full(n_rows, 1 / n_rows)


def _novelty(model: Any, X: Any, y: Any, qid: Any) -> dict[str, Any]:
    from sklearn import metrics

    novel = model.predict(X) == -1
    z = model.score_samples(X)
    found: dict[str, Any] = {
        "novel": float(np.mean(novel)),
        "mean loss": mean_loss(model, z, np.zeros(len(z))),
    }
    classes, counts = np.unique([] if y is None else y, return_counts=True)
    if len(classes) == 2:
        rare = classes[np.argmin(counts)]
        found["class taken for novel"] = f"{as_label(rare)} (the rarer one)"
        found["ROC area"] = float(metrics.roc_auc_score(y == rare, -z))
        found["precision"] = float(metrics.precision_score(y == rare, novel, zero_division=0.0))
        found["recall"] = float(metrics.recall_score(y == rare, novel, zero_division=0.0))
    return found


TASKS: dict[str, Task] = {
    "classification": Task(
        True, _check_classes, _classes, _class_truth, _class_names, raw_scores, _classification
    ),
    "regression": Task(True, _check_numbers, _none, _number_truth, _reprs, raw_scores, _regression),
    "novelty": Task(False, _no_labels, _none, _no_truth, _reprs, _decisions, _novelty),
    "hierarchy": Task(True, _no_labels, _classes, _class_truth, _class_names, _decisions, _hierarchy),
    "ordinal": Task(
        True,
        graded.check_ordinal,
        graded.grades,
        graded.ordinal_truth,
        graded.grade_names,
        raw_scores,
        graded.ordinal_metrics,
    ),
    "ranking": Task(
        True, graded.check_ranking, _none, graded.ranking_truth, _reprs, raw_scores, graded.ranking_metrics
    ),
    "tagging": Task(
        True,
        tagging.check_labels,
        tagging.labels_in,
        tagging.truth,
        tagging.words,
        tagging.scores,
        tagging.measures,
    ),
}
"""By an estimator's `task`."""
