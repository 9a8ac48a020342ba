"""`riskmin fit`: fit a model to a data file and save it with its certificate."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from riskmin.cli.backends import backend, backend_options, describe_paths, load_partitions
from riskmin.cli.constraints import constrain
from riskmin.cli.inputs import (
    DATA_TYPE,
    NONNEGATIVE_FLOAT,
    PATH_TYPE,
    POSITIVE_INT,
    check_data_options,
    check_distinct_paths,
    check_writable,
    data_shape,
    describe_data_size,
    fit_summary,
    not_converged_message,
    note_unused_queries,
    note_zero_weights,
    real_option,
    report_facts,
    summary_lines,
    suppress_warnings,
    verbose_option,
)
from riskmin.cli.loading import (
    command_clock,
    fit_kwargs,
    load_for_fit,
    load_like,
    remember_source,
    seconds_left,
)
from riskmin.cli.options import make_estimator, problem_options
from riskmin.cli.output import print_pairs
from riskmin.cli.problem.dry_run import dry_run
from riskmin.cli.problem.early_stopping import EarlyStopping
from riskmin.cli.problem.owned_rows import fit_owned_rows
from riskmin.cli.tables import describe_preparation, load_table, print_notes
from riskmin.cli.tasks import tagging
from riskmin.cli.tasks.base import TASK_BEHAVIORS
from riskmin.cli.tasks.evaluation import evaluation_sections, weight_sections
from riskmin.core import Iterate
from riskmin.core.signals import ignore_interrupts
from riskmin.data.raw_tables.preparation import PreparedRows
from riskmin.estimators import import_sklearn
from riskmin.report.progress import Progress

_EPILOG = """\b
Examples:
  riskmin fit train.svm --loss hinge --lam 1e-4 -o spam.riskmin
  riskmin fit houses.csv --target price --loss quantile:level=0.9 -o q90.riskmin
  riskmin fit genes.csv --loss logistic --reg l1 --lam 1e-2 -o sparse.riskmin
  riskmin fit clicks.svm --loss ndcg --lam 1e-3 -o ranker.riskmin
  riskmin fit wines.csv --loss ordinal --order poor,fair,good -o wine.riskmin
  riskmin fit train.conll --loss chain_crf --constraints bio -o chunks.riskmin
  riskmin fit big.svm.xz --loss logistic --checkpoint run.ckpt --report run.html -o big.riskmin
  riskmin fit --dask tcp://scheduler:8786 /data/part-*.parquet -o clicks.riskmin
  mpiexec -n 8 riskmin fit --mpi data.rsk -o large.riskmin

'riskmin losses' and 'riskmin regularizers' list the choices with formulas and parameters.
With --checkpoint, repeating the command resumes an interrupted run.
"""


@click.command(epilog=_EPILOG)
@click.argument("data", type=DATA_TYPE, nargs=-1)
@click.option(
    "-o", "--output", type=PATH_TYPE, required=True, help="File to save the model to; - for stdout."
)
@real_option(
    "--lam",
    "--alpha",
    "lam",
    type=NONNEGATIVE_FLOAT,
    default=1e-4,
    show_default=True,
    help="Regularization strength: the estimators' alpha; 0 for none (squared, logistic, poisson, gamma).",
)
@problem_options
@real_option(
    "--contamination",
    type=click.FloatRange(0, 0.5, min_open=True),
    help="Fraction of novel rows (novelty; default: 0.1).",
)
@click.option(
    "--constraints",
    type=click.Choice(["bio", "iob1", "bioes", "bilou"]),
    help="Labeling scheme that predictions obey (tagging).",
)
@click.option("--min-count", type=POSITIVE_INT, help="Drop features of fewer tokens (tagging).")
@click.option(
    "--possible-states/--no-possible-states",
    default=None,
    help="Weights for all pairs of feature and label, or for those that occur (tagging; default: all).",
)
@backend_options
@click.option(
    "--owners", type=PATH_TYPE, help="Fit to the rows of data owners, named in a file, instead of DATA."
)
@click.option("--checkpoint", type=PATH_TYPE, help="Save the run here periodically; resume if it exists.")
@real_option(
    "--checkpoint-every",
    type=NONNEGATIVE_FLOAT,
    default=30.0,
    show_default=True,
    help="Seconds between checkpoints.",
)
@click.option(
    "--validation",
    type=PATH_TYPE,
    help="End the fit when the mean loss on these rows has not improved for --patience iterations; the best "
    "iterate is saved, with its certificate.",
)
@click.option(
    "--patience", type=POSITIVE_INT, default=10, show_default=True, help="Iterations without improvement."
)
@click.option(
    "--report",
    type=PATH_TYPE,
    help="Write an HTML page: convergence, weights, and the metrics on the training rows, or on those of "
    "--validation.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON log lines on stderr, JSON summary on stdout.")
@click.option(
    "--dry-run", is_flag=True, help="Print the problem, the solver, memory and rough time; fit nothing."
)
@verbose_option
@click.option("-q", "--quiet", is_flag=True, help="Print neither progress nor summary (except with --json).")
def fit(
    data: tuple[Path, ...], output: Path, as_json: bool, quiet: bool, report: Path | None, **given: Any
) -> int:
    """Fit a linear model to DATA and save it with its certificate.

    Several files are partitions of one table. With --processes, --dask and --mpi each partition is read by
    the process that computes with it, and only the labels are collected. A file that is not .rsk is one
    partition, so give several.
    """
    to_stdout, clock = str(output) == "-", command_clock(given["max_seconds"])
    if to_stdout and as_json:
        raise click.UsageError("-o - writes the model to stdout, where --json writes the summary")
    quiet = quiet or to_stdout
    if report is not None:
        import_sklearn()  # for metrics
    model = make_estimator(given)
    if given["checkpoint"]:
        from riskmin import Checkpoint

        model.set_params(checkpoint=Checkpoint(given["checkpoint"], given["checkpoint_every"]))
    # paths are checked before any data are read
    saved_to = None if to_stdout else output
    outputs = {"--output": saved_to, "--report": report, "--checkpoint": given["checkpoint"]}
    if given["owners"] is not None:
        owned = fit_owned_rows(model, data, given, outputs, as_json=as_json, quiet=quiet)
        if owned is None:
            return 3
        _save(model, owned.table, output, report, None, title=owned.title)
        return _finish(
            model, owned.table, owned.title, output, report, owned.notes, as_json=as_json, quiet=quiet
        )
    if not data:
        raise click.MissingParameter(param_hint="'DATA...'", param_type="argument")
    title = f"{given['loss']} on {describe_paths(data)}"
    with backend(given, model.task) as executor:
        # MPI ranks load and fit together; the root alone checks and writes files
        ranks = executor.coordination
        ranks.on_root(lambda: _check_files(data, given, outputs))
        with ranks.synchronized():
            table = clock.call(partial(_load, quiet=quiet or as_json), data, model, given, executor)
        constrain(model, given["linear_constraints"], table)
        if given["dry_run"]:
            _check_local_rows(model, executor, "--dry-run")
            dry_run(model, table, given, title, as_json=as_json)
            return 0
        stopping = _early_stopping(model, table, given, executor, quiet=quiet or as_json)
        model.set_params(max_seconds=seconds_left(clock))
        _fit(model, table, stopping, json_lines=as_json, quiet=quiet, verbose=given["verbose"])
        # the model is saved with the limit of the command, whatever reading took
        model.set_params(max_seconds=given["max_seconds"])
        # rows of other processes are not evaluated
        labeled = stopping.validation if stopping else table if executor.is_local else None
        ranks.on_root(lambda: _save(model, table, output, report, labeled, title=title))
    notes = {} if stopping is None else {"validation": stopping.describe()}
    stopped = stopping is not None and stopping.stopped
    return _finish(model, table, title, output, report, notes, as_json=as_json, quiet=quiet, stopped=stopped)


def _finish(
    model: Any,
    table: PreparedRows,
    title: str,
    output: Path,
    report: Path | None,
    notes: dict[str, str],
    *,
    as_json: bool,
    quiet: bool,
    stopped: bool = False,
) -> int:
    """Print the summary of a fit with further notes, and return the exit code."""
    facts = fit_summary(model, data_shape(model, table), model.tol)
    if as_json:
        click.echo(json.dumps({**facts, **notes, "model": str(output)}))
    elif not quiet:
        more = [("model", str(output)), *notes.items()]
        _print_summary(model, table, facts, title, [*more, *([("report", str(report))] if report else [])])
    if not as_json:
        note_zero_weights(model)
    # exit codes: 0 if converged, or stopped as asked for; else 3
    if facts["status"] == "converged" or stopped:
        return 0
    if not as_json:
        click.echo(not_converged_message(model, facts), err=True)
    return 3


def _print_summary(
    model: Any, table: PreparedRows, facts: dict[str, Any], title: str, more: list[tuple[str, str]]
) -> None:
    """Print the problem, the certificate and the files written."""
    reg = "" if facts["reg"] == "l2" else f" {facts['reg']}"
    click.echo(f"{title}, {describe_data_size(model, table)}, lam {model.alpha:g}{reg}")
    if table.preparation is not None:
        more = [("table", describe_preparation(table.preparation)), *more]
    print_pairs([*summary_lines(facts), *more])


def _check_local_rows(model: Any, executor: Any, option: str) -> None:
    """Raise unless the problem is one of rows in this process."""
    if model.task == "tagging" or not executor.is_local:
        raise click.UsageError(f"{option} is for models of rows in this process: leave it out")


def _early_stopping(
    model: Any, table: PreparedRows, given: dict[str, Any], executor: Any, *, quiet: bool
) -> EarlyStopping | None:
    """Return the callback that evaluates iterates on the rows of --validation, if it is given."""
    if given["validation"] is None:
        return None
    _check_local_rows(model, executor, "--validation")
    rows = load_like(model, table, given["validation"], given["target"], given["qid"], quiet=quiet)
    return EarlyStopping(model, table, rows, given["patience"])


def _check_files(data: Sequence[Path], given: dict[str, Any], outputs: dict[str, Path | None]) -> None:
    """Raise if an output cannot be written, or would replace a data file or a TLS file."""
    check_writable(*outputs.values())
    names = ("tls-ca", "tls-cert", "tls-key", "validation")
    keys = {f"--{name}": given[name.replace("-", "_")] for name in names}
    # no output may replace any of the inputs
    for path in data:
        check_distinct_paths(
            {"DATA": path} | {name: key for name, key in keys.items() if key is not None}, outputs
        )


def _load(
    data: Sequence[Path], model: Any, given: dict[str, Any], executor: Any, *, quiet: bool
) -> PreparedRows:
    """Load one file or several partitions, in this process or in those of the executor."""
    require_labels = TASK_BEHAVIORS[model.task].needs_labels
    roles = {name: given[name] for name in ("target", "qid")}
    if executor.is_local and len(data) == 1:
        return load_for_fit(data[0], model, given, quiet=quiet, require_labels=require_labels)
    if model.task == "tagging":
        return PreparedRows(*tagging.load_all_sentences(data, **roles))
    for path in data:
        check_data_options(path, **roles, quiet=quiet)
    table = load_table(
        data,
        given,
        lambda **more: load_partitions(data, executor, **roles, require_labels=require_labels, **more),
        require_labels=require_labels,
        local=executor.is_local,
    )
    note_unused_queries(table, model, describe_paths(data), quiet=quiet)
    print_notes(table, quiet=quiet)
    return table


def _fit(
    model: Any,
    table: PreparedRows,
    stopping: EarlyStopping | None,
    *,
    json_lines: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Check the labels and fit, with progress on stderr."""
    TASK_BEHAVIORS[model.task].check(model, table.y, table.qid)
    with Progress(model.tol, json_lines, sys.stderr, quiet, verbose) as progress, suppress_warnings():

        def callback(iterate: Iterate, row: dict[str, float]) -> bool:
            progress(iterate, row)
            return stopping is not None and stopping(iterate, row)

        model.set_params(callback=callback)
        model.fit(table.X, table.y, **fit_kwargs(model, table))
    # the model must not refer to the closed display
    model.set_params(callback=None)
    if stopping is not None:
        stopping.restore()


@ignore_interrupts()
def _save(
    model: Any,
    table: PreparedRows,
    output: Path,
    report: Path | None,
    labeled: PreparedRows | None,
    title: str,
) -> None:
    """Save the model and write the report; signals are deferred until both are written.

    The report has the metrics of the labeled rows.
    """
    from riskmin.estimators import save_model
    from riskmin.report import write_report

    remember_source(model, table)
    if str(output) == "-":
        with tempfile.TemporaryDirectory() as folder:
            save_model(model, Path(folder, "model"))
            sys.stdout.buffer.write(Path(folder, "model").read_bytes())
            sys.stdout.buffer.flush()
    else:
        save_model(model, output)
    if report is not None:
        sections = [] if labeled is None else _evaluation(model, labeled, labeled is table)
        fit = (title, model.result_, report_facts(model, data_shape(model, table)))
        write_report(
            report, [fit], title, [*weight_sections(model, None if labeled is None else table), *sections]
        )


def _evaluation(model: Any, rows: PreparedRows, is_training: bool) -> list[str]:
    """Sections with the metrics of labeled rows."""
    from riskmin.estimators._common.offset import at_row_offset

    model = at_row_offset(model, rows.offset)
    with suppress_warnings():
        metrics = TASK_BEHAVIORS[model.task].metrics(model, rows)
        title = "On the training rows" if is_training else "On the rows of --validation"
        return evaluation_sections(model, rows, metrics, title)
