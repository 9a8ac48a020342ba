"""`riskmin predict` and `riskmin evaluate`: predictions of a saved model, and its metrics on labeled data."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from riskmin.cli.inputs import (
    DATA_TYPE,
    MODEL_TYPE,
    PATH_TYPE,
    ColumnRef,
    check_distinct_paths,
    check_not_swapped,
    check_writable,
    json_option,
    memory_option,
    qid_option,
    suppress_warnings,
    target_option,
    trust_option,
)
from riskmin.cli.loading import load_for_model
from riskmin.cli.output import print_pairs
from riskmin.cli.tables import weight_option
from riskmin.cli.tasks import classification, tagging
from riskmin.cli.tasks.base import TASK_BEHAVIORS
from riskmin.cli.tasks.evaluation import evaluation_sections, weight_sections
from riskmin.report.progress import StatusLine

BLOCK_ROWS = 2**16
"""Rows that are predicted between two reports of progress."""


@click.command()
@click.argument("model", type=MODEL_TYPE)
@click.argument("data", type=DATA_TYPE)
@click.option("-o", "--output", type=PATH_TYPE, help="File to write to (default: stdout).")
@click.option(
    "--scores",
    is_flag=True,
    help="Print scores: positive for the second of two classes, else one column per class.",
)
@click.option("--proba", is_flag=True, help="Print probabilities, one column per class (logistic loss).")
@target_option
@qid_option
@memory_option
@trust_option
@click.option("-q", "--quiet", is_flag=True, help="Print neither notes nor progress on stderr.")
def predict(
    model: Path,
    data: Path,
    output: Path | None,
    scores: bool,
    proba: bool,
    target: ColumnRef,
    qid: ColumnRef,
    trust: tuple[str, ...],
    quiet: bool,
) -> None:
    """Print one prediction per line for DATA.

    DATA may or may not contain labels. Classes and grades are named as in training; for novelty, -1 is a
    novel row and 1 a normal one. For rankings the prediction is a score: within a query, higher scores rank
    first. For taggers the output is the input file with one more column.
    """
    from riskmin.estimators import load_model
    from riskmin.report import write_text

    if scores and proba:
        raise click.UsageError("--scores and --proba exclude each other")
    # an existing output may be a terminal or a pipe, which `check_writable` rejects
    output = None if str(output) == "-" else output
    if output is not None and (not output.exists() or output.is_dir()):
        check_writable(output)
    check_distinct_paths({"MODEL": model, "DATA": data}, {"--output": output})
    check_not_swapped(model, data)
    fitted = load_model(model, trust)
    if proba and not hasattr(fitted, "predict_proba") and fitted.task != "tagging":
        raise ValueError(
            f"{model} has no probabilities: fit with --loss logistic, or calibrate the scores in Python by "
            "scikit-learn's CalibratedClassifierCV"
        )
    table = load_for_model(fitted, data, target, qid, labels=False, quiet=quiet)
    with suppress_warnings():
        if fitted.task == "tagging":
            text = tagging.format_predictions(fitted, table, scores=scores, proba=proba)
        else:
            text = _text(fitted, table.X, scores, proba, quiet=quiet)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)


def _text(model: Any, X: Any, scores: bool, proba: bool, *, quiet: bool) -> str:
    """Format the predictions, scores or probabilities, one line per row, with progress on stderr."""
    n, lines = X.shape[0], []
    with StatusLine(quiet) as status:
        for i in range(0, n, BLOCK_ROWS):
            lines.append(_lines(model, X[i : i + BLOCK_ROWS], scores, proba))
            done = min(i + BLOCK_ROWS, n)
            status(partial(_describe_share, status, done, n))
    return "".join(lines)


def _describe_share(status: StatusLine, done: int, n: int) -> str:
    return f"{done:,} of {n:,} rows predicted{status.left(done / n)}"


def _lines(model: Any, X: Any, scores: bool, proba: bool) -> str:
    """Format the predictions of some rows."""
    task = TASK_BEHAVIORS[model.task]
    if proba:
        return _tab_separated(model.predict_proba(X))
    if scores:
        return _tab_separated(task.scores(model, X))
    return "".join(word + "\n" for word in task.predictions(model, X))


def _tab_separated(values: Any) -> str:
    """Format an array as one line per row with columns separated by tabs."""
    rows = values.reshape(len(values), -1).tolist()
    return "".join("\t".join(map(repr, row)) + "\n" for row in rows)


@click.command()
@click.argument("model", type=MODEL_TYPE)
@click.argument("data", type=DATA_TYPE)
@target_option
@qid_option
@weight_option
@click.option(
    "--report",
    type=PATH_TYPE,
    help="Write an HTML page: weights, ROC and precision-recall curves, calibration, classes, queries.",
)
@memory_option
@trust_option
@json_option
def evaluate(
    model: Path,
    data: Path,
    target: ColumnRef,
    qid: ColumnRef,
    weight: ColumnRef,
    report: Path | None,
    trust: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compute the metrics of a model on labeled DATA."""
    from riskmin.estimators import import_sklearn, load_model
    from riskmin.report.evaluation_page import write_evaluation

    import_sklearn()  # for metrics
    check_writable(report)
    check_distinct_paths({"MODEL": model, "DATA": data}, {"--report": report})
    check_not_swapped(model, data)
    fitted = load_model(model, trust)
    task = TASK_BEHAVIORS[fitted.task]
    table = load_for_model(fitted, data, target, qid, labels=task.needs_labels, weight=weight)
    with suppress_warnings():
        metrics = task.metrics(fitted, table)
        if report is not None:
            title = f"{model.name} on {data.name}"
            sections = evaluation_sections(fitted, table, metrics, "Metrics")
            write_evaluation(report, title, [*sections, *weight_sections(fitted, table)])
    if fitted.task == "tagging":
        tagging.print_tagging_metrics(
            metrics, f"{model.name} on {data.name}", len(table.y or ()), as_json=as_json
        )
    elif as_json:
        click.echo(json.dumps({"rows": table.X.shape[0], **metrics}))
    else:
        click.echo(f"{model.name} on {data.name}, {table.X.shape[0]:,} rows")
        # multiclass models have a table of metrics per class
        per_class = metrics.pop("classes", None)
        print_pairs(
            (name, value if isinstance(value, str) else f"{value:.6g}") for name, value in metrics.items()
        )
        if per_class is not None:
            classification.print_class_table(per_class)
