"""`riskmin predict` and `riskmin evaluate`: what a model says of data, and how well it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from riskmin.cli import multiclass, tagging
from riskmin.cli.common import (
    PATH,
    Column,
    check_apart,
    check_writable,
    json_option,
    memory_option,
    qid_option,
    read_for,
    show,
    target_option,
    without_warnings,
)
from riskmin.cli.tasks import TASKS


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@click.option("-o", "--output", type=PATH, help="A file to write to (default: stdout).")
@click.option(
    "--scores",
    is_flag=True,
    help="Scores instead: above 0 for the second of two classes, else a column a class.",
)
@click.option("--proba", is_flag=True, help="Probabilities instead, a column a class (logistic loss).")
@target_option
@qid_option
@memory_option
def predict(
    model: Path,
    data: Path,
    output: Path | None,
    scores: bool,
    proba: bool,
    target: Column,
    qid: Column,
) -> None:
    """Print a prediction a line for DATA.

    The labels may be in DATA or not. Classes and grades are named as they were in training; -1 is a novel
    row, 1 another. For rankings it is a score: the higher, the further up in its query. For taggers it is
    the file with a column more.
    """
    from riskmin.estimators import load_model
    from riskmin.report import write_text

    if scores and proba:
        raise click.UsageError("--scores and --proba exclude each other")
    if output is not None and (not output.exists() or output.is_dir()):
        check_writable(output)
    check_apart({"MODEL": model, "DATA": data}, {"--output": output})
    fitted = load_model(model)
    if proba and not hasattr(fitted, "predict_proba") and fitted.task != "tagging":
        raise ValueError(f"{model} has no probabilities: only classifiers with the logistic loss have")
    table = read_for(fitted, data, target, qid, labels=False)
    with without_warnings():
        if fitted.task == "tagging":
            text = tagging.predicted(fitted, table, scores=scores, proba=proba)
        else:
            text = _text(fitted, table.X, scores, proba)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)


def _text(model: Any, X: Any, scores: bool, proba: bool) -> str:
    """The lines to print."""
    task = TASKS[model.task]
    if proba:
        return _lines(model.predict_proba(X))
    if scores:
        return _lines(task.scores(model, X))
    return "".join(word + "\n" for word in task.predictions(model, X))


def _lines(numbers: Any) -> str:
    """A line a row, its columns apart by tabs."""
    rows = numbers.reshape(len(numbers), -1).tolist()
    return "".join("\t".join(map(repr, row)) + "\n" for row in rows)


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@target_option
@qid_option
@memory_option
@json_option
def evaluate(model: Path, data: Path, target: Column, qid: Column, as_json: bool) -> None:
    """Measure how well a model does on DATA with labels."""
    from riskmin.estimators import load_model

    fitted = load_model(model)
    task = TASKS[fitted.task]
    table = read_for(fitted, data, target, qid, labels=task.labelled)
    with without_warnings():
        found = task.metrics(fitted, table.X, table.y, table.qid)
    if fitted.task == "tagging":
        tagging.say(found, f"{model.name} on {data.name}", len(table.y or ()), as_json=as_json)
    elif as_json:
        click.echo(json.dumps({"rows": table.X.shape[0], **found}))
    else:
        click.echo(f"{model.name} on {data.name}, {table.X.shape[0]:,} rows")
        each = found.pop("classes", None)
        show((name, value if isinstance(value, str) else f"{value:.6g}") for name, value in found.items())
        if each is not None:
            multiclass.say(each)
