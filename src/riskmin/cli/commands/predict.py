"""`riskmin predict` and `riskmin evaluate`: predictions of a saved model, and its metrics on labeled data."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from riskmin.cli.completion import complete_columns
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
    parse_columns,
    qid_option,
    suppress_warnings,
    target_option,
    trust_option,
)
from riskmin.cli.loading import load_for_model, load_saved
from riskmin.cli.output import print_pairs
from riskmin.cli.prediction_table import NamedColumn, csv_lines, id_columns, prediction_columns
from riskmin.cli.tables import offset_options, weight_option
from riskmin.cli.tasks import classification, tagging
from riskmin.cli.tasks.base import TASK_BEHAVIORS
from riskmin.cli.tasks.evaluation import evaluation_sections, weight_sections
from riskmin.data.raw_tables.preparation import PreparedRows
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
@click.option(
    "--csv",
    "as_csv",
    is_flag=True,
    help="Print a CSV table with a header: the prediction, and with --scores or --proba their columns.",
)
@click.option(
    "--id",
    "ids",
    metavar="COLUMN",
    multiple=True,
    callback=parse_columns,
    shell_complete=complete_columns,
    help="Column of DATA to copy before the prediction, by name or index; may be repeated (implies --csv).",
)
@target_option
@qid_option
@offset_options[0]
@offset_options[1]
@memory_option
@trust_option
@click.option("-q", "--quiet", is_flag=True, help="Print neither notes nor progress on stderr.")
def predict(
    model: Path,
    data: Path,
    output: Path | None,
    scores: bool,
    proba: bool,
    as_csv: bool,
    ids: tuple[ColumnRef, ...],
    target: ColumnRef,
    qid: ColumnRef,
    offset: ColumnRef,
    exposure: ColumnRef,
    trust: tuple[str, ...],
    quiet: bool,
) -> None:
    """Print one prediction per line for DATA, or a CSV table of them.

    DATA may or may not contain labels. Classes and grades are named as in training; for novelty, -1 is a
    novel row and 1 a normal one. For rankings the prediction is a score: within a query, higher scores rank
    first. For taggers the output is the input file with one more column.
    """
    from riskmin.report import write_text

    as_csv = as_csv or bool(ids)
    if scores and proba and not as_csv:
        raise click.UsageError("--scores and --proba exclude each other, except with --csv")
    # an existing output may be a terminal or a pipe, which `check_writable` rejects
    output = None if str(output) == "-" else output
    if output is not None and (not output.exists() or output.is_dir()):
        check_writable(output)
    check_distinct_paths({"MODEL": model, "DATA": data}, {"--output": output})
    check_not_swapped(model, data)
    fitted = load_saved(model, trust)
    if proba and not hasattr(fitted, "predict_proba") and fitted.task != "tagging":
        raise ValueError(
            f"{model} has no probabilities: fit with --loss logistic, or calibrate the scores in Python by "
            "scikit-learn's CalibratedClassifierCV"
        )
    if as_csv and fitted.task == "tagging":
        raise ValueError(
            "--csv and --id are for models of rows, but a tagger copies its input: leave them out"
        )
    numbers = {"offset": offset, "exposure": exposure}
    table = load_for_model(fitted, data, target, qid, labels=False, quiet=quiet, numbers=numbers)
    id_cells = id_columns(data, ids, table.X.shape[0]) if as_csv else []
    with suppress_warnings():
        if fitted.task == "tagging":
            text = tagging.format_predictions(fitted, table, scores=scores, proba=proba)
        else:
            lines = _csv_lines(id_cells, scores, proba) if as_csv else _lines(scores, proba)
            text = _text(fitted, table, lines, quiet=quiet)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)


def _text(model: Any, table: PreparedRows, lines: Callable[[Any, Any, int], str], *, quiet: bool) -> str:
    """Return the ``lines(model, rows, i)`` of blocks of rows, of which i is the first, with progress."""
    from riskmin.estimators._common.offset import at_row_offset

    X, n, texts = table.X, table.X.shape[0], []
    with StatusLine(quiet) as status:
        for i in range(0, n, BLOCK_ROWS):
            block = slice(i, i + BLOCK_ROWS)
            at = at_row_offset(model, None if table.offset is None else table.offset[block])
            texts.append(lines(at, X[block], i))
            done = min(i + BLOCK_ROWS, n)
            status(partial(_describe_share, status, done, n))
    return "".join(texts)


def _describe_share(status: StatusLine, done: int, n: int) -> str:
    return f"{done:,} of {n:,} rows predicted{status.left(done / n)}"


def _lines(scores: bool, proba: bool) -> Callable[[Any, Any, int], str]:
    """Return the function that formats the predictions, scores or probabilities of a block of rows."""

    def lines(model: Any, X: Any, start: int) -> str:
        task = TASK_BEHAVIORS[model.task]
        if proba:
            return _tab_separated(model.predict_proba(X))
        if scores:
            return _tab_separated(task.scores(model, X))
        return "".join(word + "\n" for word in task.predictions(model, X))

    return lines


def _csv_lines(ids: Sequence[NamedColumn], scores: bool, proba: bool) -> Callable[[Any, Any, int], str]:
    """Return the function that formats a block of rows as CSV, after the cells that identify them."""

    def lines(model: Any, X: Any, start: int) -> str:
        block = [column._replace(cells=column.cells[start : start + X.shape[0]]) for column in ids]
        columns = prediction_columns(model, X, scores=scores, proba=proba)
        return csv_lines([*block, *columns], header=start == 0)

    return lines


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
@offset_options[0]
@offset_options[1]
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
    offset: ColumnRef,
    exposure: ColumnRef,
    report: Path | None,
    trust: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compute the metrics of a model on labeled DATA."""
    from riskmin.estimators import import_sklearn
    from riskmin.estimators._common.offset import at_row_offset
    from riskmin.report.evaluation_page import write_evaluation

    import_sklearn()  # for metrics
    check_writable(report)
    check_distinct_paths({"MODEL": model, "DATA": data}, {"--report": report})
    check_not_swapped(model, data)
    fitted = load_saved(model, trust)
    task = TASK_BEHAVIORS[fitted.task]
    numbers = {"weight": weight, "offset": offset, "exposure": exposure}
    table = load_for_model(fitted, data, target, qid, labels=task.needs_labels, numbers=numbers)
    fitted = at_row_offset(fitted, table.offset)
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
