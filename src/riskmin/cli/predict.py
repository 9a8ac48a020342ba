"""`riskmin predict` and `riskmin evaluate`: what a model says of data, and how well it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.common import (
    PATH,
    as_label,
    check_writable,
    json_option,
    read_for,
    show,
    target_option,
    without_warnings,
)

NDArray = np.ndarray[Any, Any]


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@click.option("-o", "--output", type=PATH, help="A file to write to (default: stdout).")
@click.option("--scores", is_flag=True, help="Scores instead: above 0 for the second class.")
@click.option("--proba", is_flag=True, help="Probabilities instead, a column a class (logistic loss).")
@target_option
def predict(
    model: Path, data: Path, output: Path | None, scores: bool, proba: bool, target: str | int | None
) -> None:
    """Print a prediction a line for DATA.

    The labels may be in DATA or not. Classes are named as they were in training; -1 is a novel row,
    1 another.
    """
    from riskmin.estimators import load_model
    from riskmin.report import write_text

    if scores and proba:
        raise click.UsageError("--scores and --proba exclude each other")
    if output is not None and (not output.exists() or output.is_dir()):
        check_writable(output)
    fitted = load_model(model)
    if proba and not hasattr(fitted, "predict_proba"):
        raise ValueError(f"{model} has no probabilities: only classifiers with the logistic loss have")
    table = read_for(fitted, data, target, labels=False)
    with without_warnings():
        text = _text(fitted, table.X, scores, proba)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)


def _text(model: Any, X: Any, scores: bool, proba: bool) -> str:
    """The lines to print."""
    if proba:
        return "".join(f"{p!r}\t{q!r}\n" for p, q in model.predict_proba(X).tolist())
    if scores:
        from riskmin.estimators.base import scores as raw_scores

        values = model.decision_function(X) if hasattr(model, "decision_function") else raw_scores(model, X)
        return "".join(f"{z!r}\n" for z in values.tolist())
    if hasattr(model, "classes_"):
        names = [as_label(label) for label in model.classes_.tolist()]
        return "".join(names[i] + "\n" for i in (model.decision_function(X) > 0).astype(int))
    return "".join(f"{label!r}\n" for label in model.predict(X).tolist())


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@target_option
@json_option
def evaluate(model: Path, data: Path, target: str | int | None, as_json: bool) -> None:
    """Measure how well a model does on DATA with labels."""
    from riskmin.estimators import load_model

    fitted = load_model(model)
    table = read_for(fitted, data, target, labels=hasattr(fitted, "loss"))
    with without_warnings():
        found = _metrics(fitted, table.X, table.y)
    if as_json:
        click.echo(json.dumps({"rows": table.X.shape[0], **found}))
    else:
        click.echo(f"{model.name} on {data.name}, {table.X.shape[0]:,} rows")
        show((name, value if isinstance(value, str) else f"{value:.6g}") for name, value in found.items())


def _metrics(model: Any, X: Any, y: Any) -> dict[str, Any]:
    if hasattr(model, "classes_"):
        return _classification(model, X, y)
    return _regression(model, X, y) if hasattr(model, "loss") else _novelty(model, X, y)


def signs(model: Any, y: NDArray) -> NDArray:
    """Labels as -1 and +1, if they are the model's."""
    if strange := sorted(set(np.unique(y).tolist()) - set(model.classes_.tolist()), key=str):
        known = " and ".join(as_label(label) for label in model.classes_.tolist())
        raise ValueError(
            f"the label {as_label(strange[0])} is none of the model's, {known}: check the data and --target"
        )
    return np.where(y == model.classes_[1], 1.0, -1.0)


def mean_loss(loss: Any, z: NDArray, y: NDArray) -> float:
    """The loss of the scores, every row with the same weight."""
    return float(loss.value_grad(z, y, np.full(len(z), 1 / len(z)))[0])


def _classification(model: Any, X: Any, y: Any) -> dict[str, Any]:
    from sklearn import metrics

    from riskmin.losses import get_loss

    truth, z = signs(model, y), model.decision_function(X)
    said = np.where(z > 0, 1.0, -1.0)
    found = {
        "accuracy": metrics.accuracy_score(truth, said),
        "balanced accuracy": metrics.balanced_accuracy_score(truth, said),
        f"F1 of class {as_label(model.classes_[1])}": metrics.f1_score(truth, said, zero_division=0.0),
    }
    if len(np.unique(truth)) == 2:
        found["ROC area"] = metrics.roc_auc_score(truth, z)
    return {**{k: float(v) for k, v in found.items()}, "mean loss": mean_loss(get_loss(model.loss), z, truth)}


def _regression(model: Any, X: Any, y: Any) -> dict[str, Any]:
    from sklearn import metrics

    from riskmin.estimators.base import scores
    from riskmin.losses import Poisson, Quantile, get_loss

    loss = get_loss(model.loss)
    if isinstance(y, list) or y.dtype.kind not in "biuf":
        raise ValueError("the labels are not numbers, but the model is a regression: check --target")
    loss.check_labels(y)
    said = model.predict(X)
    found = {
        "mean loss": mean_loss(loss, scores(model, X), y),
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


def _novelty(model: Any, X: Any, y: Any) -> dict[str, Any]:
    from sklearn import metrics

    from riskmin.losses import Novelty

    novel = model.predict(X) == -1
    z = model.score_samples(X)
    found: dict[str, Any] = {
        "novel": float(np.mean(novel)),
        "mean loss": mean_loss(Novelty(), z, np.zeros(len(z))),
    }
    classes, counts = np.unique([] if y is None else y, return_counts=True)
    if len(classes) == 2:
        rare = classes[np.argmin(counts)]
        found["class taken for novel"] = f"{as_label(rare)} (the rarer one)"
        found["ROC area"] = float(metrics.roc_auc_score(y == rare, -z))
        found["precision"] = float(metrics.precision_score(y == rare, novel, zero_division=0.0))
        found["recall"] = float(metrics.recall_score(y == rare, novel, zero_division=0.0))
    return found
