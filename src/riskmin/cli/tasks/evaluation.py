"""HTML sections about a model and its predictions, for the pages of `fit` and `evaluate`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from html import escape
from typing import Any

import numpy as np

from riskmin.cli.tasks.classification import PER_CLASS_METRICS
from riskmin.core import NDArray
from riskmin.core.messages import format_label, printable
from riskmin.data.raw_tables.preparation import PreparedRows
from riskmin.estimators.gpu_rows import dense_weights
from riskmin.metrics import chunk_confusion, ndcg_per_query
from riskmin.problem.column_moments import column_scales
from riskmin.report.evaluation_page import (
    calibration_chart,
    charts_section,
    confusion_table,
    metrics_section,
    rate_chart,
    sorted_chart,
    weights_section,
)
from riskmin.report.page import html_details, html_table

MOST_CLASSES = 20
"""The largest number of classes whose confusion matrix is shown."""


def evaluation_sections(model: Any, rows: PreparedRows, metrics: dict[str, Any], title: str) -> list[str]:
    """Sections with the metrics of `TaskBehavior.metrics`, and charts and tables of the task."""
    single = {name: value for name, value in metrics.items() if not isinstance(value, dict)}
    more = _DETAILS.get(model.task, _no_details)
    return [metrics_section(title, single), *more(model, rows, metrics)]


def weight_sections(model: Any, rows: PreparedRows | None = None, top: int = 20) -> list[str]:
    """Section with the largest weights; none if the model has no weights, or all are zero."""
    scale = _scale_of_columns(model, rows)
    weights = largest_weights(model, top, scale)
    if not weights:
        return []
    name = "size" if scale is None else "size, standardized"
    return [weights_section(weights, int(np.size(model.coef_)), name)]


def _scale_of_columns(model: Any, rows: PreparedRows | None) -> NDArray | None:
    """The standard deviations of the columns in training, or else among rows; None for taggers."""
    if not model.can_standardize or model.scale_ is not None or rows is None:
        return model.scale_ if model.can_standardize else None
    return column_scales(rows.X, rows.weight)


def largest_weights(model: Any, top: int, scale: NDArray | None) -> list[dict[str, Any]]:
    """The largest weights with the names of their columns, and classes if there are several.

    Their sizes are absolute values, with the standard deviations of the columns those of the weights of
    standardized columns, which alone can be compared with each other.
    """
    if "coef_" not in vars(model):
        return []
    W: NDArray = np.atleast_2d(dense_weights(model))
    size = np.abs(W if scale is None else W * scale)
    order = np.argsort(-size, axis=None, kind="stable")[:top]
    names = vars(model).get("feature_names_in_")
    if model.task == "tagging" and model.features_ is not None:  # indices by name
        names = sorted(model.features_, key=model.features_.__getitem__)
    classes = np.ravel(vars(model).get("classes_", []))
    entries = []
    for k, j in zip(*np.unravel_index(order, W.shape), strict=True):
        of_class = printable(format_label(classes[k])) if len(W) == len(classes) else f"output {k}"
        entries.append(
            {
                "column": f"column {j}" if names is None else printable(names[j]),
                "class": None if len(W) == 1 else of_class,
                "weight": float(W[k, j]),
                "size": float(size[k, j]),
            }
        )
    return [entry for entry in entries if entry["weight"] != 0]


def _no_details(model: Any, rows: PreparedRows, metrics: dict[str, Any]) -> list[str]:
    return []


# ---------------------------------------------------------------- classification
def _classification_details(model: Any, rows: PreparedRows, metrics: dict[str, Any]) -> list[str]:
    if len(model.classes_) > 2:
        return [*_class_details(model, rows, metrics), *_confidence_section(model, rows)]
    positive = np.asarray(rows.y) == model.classes_[1]
    z, y_pred = model.decision_function(rows.X), model.predict(rows.X)
    name = format_label(model.classes_[1])
    sections = []
    if len(np.unique(positive)) == 2:
        sections.append(_threshold_section(positive, z, rows.weight, name))
    with contextlib.suppress(AttributeError):  # a loss without probabilities
        p = model.predict_proba(rows.X)[:, 1]
        title = f"predicted probability of {name}"
        sections.append(_calibration_section(title, f"share of {name}", p, positive, rows.weight))
    return [*sections, _confusion_section(model.classes_, rows.y, y_pred, rows.weight)]


def _threshold_section(positive: NDArray, z: NDArray, weight: NDArray | None, name: str) -> str:
    """ROC curve and precision-recall curve with the threshold in use, and a table of thresholds."""
    from sklearn import metrics

    false_rate, true_rate, _ = metrics.roc_curve(positive, z, sample_weight=weight)
    precision, recall, _ = metrics.precision_recall_curve(positive, z, sample_weight=weight)
    used = _rates(positive, z > 0, weight)
    share = float(np.average(positive, weights=weight))
    roc = list(zip(false_rate.tolist(), true_rate.tolist(), strict=True))
    pr = list(zip(recall.tolist(), precision.tolist(), strict=True))[::-1]
    charts = [
        rate_chart(
            "ROC curve", "false positive rate", "true positive rate", roc, (used["FPR"], used["recall"]), 1.0
        ),
        rate_chart(
            "Precision and recall", "recall", "precision", pr, (used["recall"], used["precision"]), share
        ),
    ]
    # thresholds at quantiles of the scores, with as many digits as are shown, and the one in use
    quantiles = np.quantile(z, np.linspace(0.05, 0.95, 19)).tolist()
    cuts = np.unique([0.0, *(float(f"{cut:.4g}") for cut in quantiles)])
    head = ["threshold", "predicted positive", "precision", "recall", "F1", "false positive rate"]
    body = []
    for cut in cuts.tolist():
        at = _rates(positive, z > cut, weight)
        values = (at["share"], at["precision"], at["recall"], at["F1"], at["FPR"])
        body.append([f"{cut:.4g}{' (in use)' if cut == 0 else ''}", *(f"{value:.4f}" for value in values)])
    table = html_table(f"Metrics of class {name} by threshold of the scores", head, body)
    lead = "<p>Curves show all thresholds of the scores; a ring marks the threshold in use.</p>"
    return charts_section("Thresholds", charts, lead, html_details("Numbers of the curves", table))


def _rates(positive: NDArray, predicted: NDArray, weight: NDArray | None) -> dict[str, float]:
    """Rates of a binary prediction; 0 where a rate is not defined."""
    c = np.ones(len(positive)) if weight is None else weight
    hits, alarms = float(c[positive & predicted].sum()), float(c[~positive & predicted].sum())
    n_positive, n_negative = float(c[positive].sum()), float(c[~positive].sum())

    def ratio(a: float, b: float) -> float:
        return a / b if b else 0.0

    return {
        "share": ratio(hits + alarms, n_positive + n_negative),
        "precision": ratio(hits, hits + alarms),
        "recall": ratio(hits, n_positive),
        "F1": ratio(2 * hits, hits + alarms + n_positive),
        "FPR": ratio(alarms, n_negative),
    }


def _class_details(model: Any, rows: PreparedRows, metrics: dict[str, Any]) -> list[str]:
    """Table of the metrics of each class, and the confusion matrix."""
    body = [
        [escape(printable(name)), *(f"{row[metric]:.4f}" for metric in PER_CLASS_METRICS), f"{row['rows']:,}"]
        for name, row in metrics["classes"].items()
    ]
    table = html_table("Metrics of each class", ["class", *PER_CLASS_METRICS, "rows"], body)
    confusion = _confusion_section(model.classes_, rows.y, model.predict(rows.X), rows.weight)
    return [charts_section("Classes", (), table), confusion]


def _confidence_section(model: Any, rows: PreparedRows) -> list[str]:
    """Calibration of the probability of the predicted class; none for a loss without probabilities."""
    try:
        p = model.predict_proba(rows.X)
    except AttributeError:
        return []
    is_right = model.classes_[p.argmax(axis=1)] == np.asarray(rows.y)
    title = "probability of the predicted class"
    return [_calibration_section(title, "share of right predictions", p.max(axis=1), is_right, rows.weight)]


def _confusion_section(classes: Any, y: Any, y_pred: Any, weight: NDArray | None) -> str:
    from sklearn.metrics import confusion_matrix

    labels = np.union1d(np.union1d(y, y_pred), classes)
    if len(labels) > MOST_CLASSES:
        return ""
    counts = confusion_matrix(y, y_pred, labels=labels, sample_weight=weight)
    names = [printable(format_label(label)) for label in labels.tolist()]
    unit = "rows" if weight is None else "weight of the rows"
    return charts_section("Confusion", (), confusion_table(names, counts, f"Confusion matrix: {unit}"))


# ---------------------------------------------------------------- numbers
def _regression_details(model: Any, rows: PreparedRows, metrics: dict[str, Any]) -> list[str]:
    y = np.asarray(rows.y, dtype=float)
    return [_calibration_section("prediction", "mean label", model.predict(rows.X), y, rows.weight)]


def _calibration_section(label: str, name: str, p: NDArray, y: NDArray, weight: NDArray | None) -> str:
    """Mean label against mean prediction of tenths of the rows, by the prediction."""
    groups = [rows for rows in np.array_split(np.argsort(p, kind="stable"), 10) if len(rows)]
    c = np.ones(len(p)) if weight is None else weight
    groups = [rows for rows in groups if c[rows].sum() > 0]
    points = [
        (float(np.average(p[rows], weights=c[rows])), float(np.average(y[rows], weights=c[rows])))
        for rows in groups
    ]
    body = [
        [f"{k + 1}", f"{len(rows):,}", f"{at:.4g}", f"{mean:.4g}"]
        for k, (rows, (at, mean)) in enumerate(zip(groups, points, strict=True))
    ]
    chart = calibration_chart(f"{name[0].upper()}{name[1:]}, by tenths of the rows", label, name, points)
    table = html_table("Tenths of the rows, by their prediction", ["tenth", "rows", label, name], body)
    return charts_section("Calibration", [chart, table])


# ---------------------------------------------------------------- grades, queries, sequences
def _ordinal_details(model: Any, rows: PreparedRows, metrics: dict[str, Any]) -> list[str]:
    return [_confusion_section(model.classes_, rows.y, model.predict(rows.X), rows.weight)]


def _ranking_details(model: Any, rows: PreparedRows, metrics: dict[str, Any]) -> list[str]:
    """NDCG of the queries from the worst to the best, and a table of the worst."""
    grades = np.asarray(rows.y, dtype=float)
    if grades.min() < 0 or grades.max() <= 0:  # NDCG is not defined
        return []
    ndcg = ndcg_per_query(grades, model.predict(rows.X), rows.qid)
    queries, sizes = np.unique(np.asarray(rows.qid), return_counts=True)
    order = [j for j in np.argsort(ndcg, kind="stable").tolist() if np.isfinite(ndcg[j])]
    body = [
        [escape(printable(format_label(queries[j].item()))), f"{ndcg[j]:.4f}", f"{sizes[j]:,}"]
        for j in order[:20]
    ]
    chart = sorted_chart(
        "NDCG@10 of each query", "share of queries, the worst first", "NDCG@10", ndcg[np.isfinite(ndcg)]
    )
    caption = f"The {len(body)} queries of lowest NDCG@10, of {len(order):,} with a grade above 0"
    return [charts_section("Queries", [chart, html_table(caption, ["query", "NDCG@10", "rows"], body)])]


def _tagging_details(model: Any, rows: PreparedRows, metrics: dict[str, Any]) -> list[str]:
    """Table of the metrics of each type of chunk, and their confusion."""
    if "chunks" not in metrics:
        return []
    fractions, counts = ("precision", "recall", "F1"), ("true", "predicted", "correct")
    body = [
        [
            escape(kind or "-"),
            *(f"{row[name]:.4f}" for name in fractions),
            *(f"{row[name]:,}" for name in counts),
        ]
        for kind, row in metrics["chunks"].items()
    ]
    table = html_table("Metrics of each type of chunk", ["chunks", *fractions, *counts], body)
    types, confusion = chunk_confusion(rows.y, model.predict(rows.X))
    names = [*(kind or "-" for kind in types), "none"]
    caption = "Confusion of chunks; none: without a counterpart with the same ends"
    return [charts_section("Chunks", (), table, confusion_table(names, confusion, caption))]


_DETAILS: dict[str, Callable[[Any, PreparedRows, dict[str, Any]], list[str]]] = {
    "classification": _classification_details,
    "hierarchy": _class_details,
    "regression": _regression_details,
    "ordinal": _ordinal_details,
    "ranking": _ranking_details,
    "tagging": _tagging_details,
}
"""Charts and tables of the predictions, by an estimator's `task`."""
