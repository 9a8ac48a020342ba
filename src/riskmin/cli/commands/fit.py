"""`riskmin fit`: fit a model to a data file and save it with its certificate."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from riskmin.cli.backends import backend, backend_options, describe_paths, load_partitions
from riskmin.cli.inputs import (
    NONNEGATIVE_FLOAT,
    PATH_TYPE,
    POSITIVE_FLOAT,
    POSITIVE_INT,
    check_data_options,
    check_distinct_paths,
    check_writable,
    data_shape,
    describe_data_size,
    fit_summary,
    load_for_fit,
    not_converged_message,
    note_unused_queries,
    note_zero_weights,
    real_option,
    report_facts,
    summary_lines,
    suppress_warnings,
)
from riskmin.cli.options import make_estimator, problem_options
from riskmin.cli.output import print_pairs
from riskmin.cli.tasks import tagging
from riskmin.cli.tasks.base import TASK_BEHAVIORS, query_kwargs
from riskmin.core import RunPaused
from riskmin.core.signals import ignore_interrupts
from riskmin.data import Dataset
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
  riskmin fit --owners owners.toml --loss logistic --checkpoint run.ckpt -o pooled.riskmin

'riskmin losses' and 'riskmin regularizers' list the choices with formulas and parameters.
With --checkpoint, repeating the command resumes an interrupted run.
"""


@click.command(epilog=_EPILOG)
@click.argument("data", type=PATH_TYPE, nargs=-1)
@click.option("-o", "--output", type=PATH_TYPE, required=True, help="File to save the model to.")
@real_option("--lam", type=POSITIVE_FLOAT, default=1e-4, show_default=True, help="Regularization strength.")
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
@click.option("--report", type=PATH_TYPE, help="Write an HTML page with convergence charts.")
@click.option("--json", "as_json", is_flag=True, help="JSON log lines on stderr, JSON summary on stdout.")
@click.option("--quiet", is_flag=True, help="Print neither progress nor summary (except with --json).")
def fit(
    data: tuple[Path, ...], output: Path, as_json: bool, quiet: bool, report: Path | None, **given: Any
) -> int:
    """Fit a linear model to DATA and save it with its certificate.

    Several files are partitions of one table. With --processes, --dask and --mpi each partition is read by
    the process that computes with it, and only the labels are collected. A file that is not .rsk is one
    partition, so give several.
    """
    model = make_estimator(given)
    if given["checkpoint"]:
        from riskmin import Checkpoint

        model.set_params(checkpoint=Checkpoint(given["checkpoint"], given["checkpoint_every"]))
    # paths are checked before any data are read
    outputs = {"--output": output, "--report": report, "--checkpoint": given["checkpoint"]}
    if given["owners"] is not None:
        return _fit_owners(model, data, given, outputs, as_json=as_json, quiet=quiet)
    if not data:
        raise click.MissingParameter(param_hint="'DATA...'", param_type="argument")
    title = f"{given['loss']} on {describe_paths(data)}"
    with backend(given, model.task) as executor:
        # MPI ranks load and fit together; the root alone checks and writes files
        ranks = executor.coordination
        ranks.on_root(lambda: _check_files(data, given, outputs))
        with ranks.synchronized():
            table = _load(data, model, given, executor, quiet=quiet or as_json)
        _fit(model, table, json_lines=as_json, quiet=quiet)
        ranks.on_root(lambda: _save(model, table, output, report, title=title))
    return _finish(model, table, title, output, report, as_json=as_json, quiet=quiet)


def _finish(
    model: Any,
    table: Dataset,
    title: str,
    output: Path,
    report: Path | None,
    *,
    as_json: bool,
    quiet: bool,
    notes: Sequence[tuple[str, str]] = (),
) -> int:
    """Print the summary of a fit with further notes, and return the exit code."""
    facts = fit_summary(model, data_shape(model, table), model.tol)
    if as_json:
        click.echo(json.dumps({**facts, "model": str(output)}))
    elif not quiet:
        click.echo(
            f"{title}, {describe_data_size(model, table)}, "
            f"lam {model.alpha:g}{'' if facts['reg'] == 'l2' else ' ' + facts['reg']}"
        )
        more = [("report", str(report))] if report else []
        print_pairs([*summary_lines(facts), *notes, ("model", str(output)), *more])
    if not as_json:
        note_zero_weights(model)
    # exit codes: 0 if converged, else 3
    if facts["status"] == "converged":
        return 0
    if not as_json:
        click.echo(not_converged_message(model, facts), err=True)
    return 3


def _fit_owners(
    model: Any,
    data: Sequence[Path],
    given: dict[str, Any],
    outputs: dict[str, Any],
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    """Fit to the rows of data owners."""
    from riskmin.owners.executor import OwnersExecutor
    from riskmin.owners.fit import fit_owners

    if data or any(given[name] for name in ("processes", "dask", "mpi", "target", "qid")):
        raise click.UsageError(
            "--owners takes all rows from owners: leave out DATA and options of other backends"
        )
    check_writable(*outputs.values())
    check_distinct_paths({"--owners": given["owners"]}, outputs)
    owners = OwnersExecutor.from_file(given["owners"])
    try:
        with (
            Progress(tol=model.tol, json=as_json, file=sys.stderr, quiet=quiet) as progress,
            suppress_warnings(),
        ):
            model.set_params(callback=progress)
            fit_owners(model, owners)
        model.set_params(callback=None)
    except RunPaused as pause:
        # the checkpoint is written: the same command goes on from it
        click.echo(f"riskmin: paused: {pause}", err=True)
        return 3
    finally:
        owners.close()
    table = Dataset(OwnedRows(owners.shape), None, None, owners.descriptions[0]["feature_names"])  # type: ignore[arg-type]
    names = ", ".join(d["name"] for d in owners.descriptions)
    title = f"{given['loss']} on the rows of {names}"
    _save(model, table, outputs["--output"], outputs["--report"], title=title)
    paths = outputs["--output"], outputs["--report"]
    errors = f"at most {owners.widening:.1e} of the objective, by rounding and noise, by which cuts are lower"
    return _finish(
        model, table, title, *paths, as_json=as_json, quiet=quiet, notes=[("errors of owners", errors)]
    )


class OwnedRows(NamedTuple):
    """The shape of rows that are at their owners."""

    shape: tuple[int, int]


def _check_files(data: Sequence[Path], given: dict[str, Any], outputs: dict[str, Path | None]) -> None:
    """Raise if an output cannot be written, or would replace a data file or a TLS file."""
    check_writable(*outputs.values())
    keys = {f"--{name}": given[name.replace("-", "_")] for name in ("tls-ca", "tls-cert", "tls-key")}
    # no output may replace any of the inputs
    for path in data:
        check_distinct_paths(
            {"DATA": path} | {name: key for name, key in keys.items() if key is not None}, outputs
        )


def _load(data: Sequence[Path], model: Any, given: dict[str, Any], executor: Any, *, quiet: bool) -> Dataset:
    """Load one file or several partitions, in this process or in those of the executor."""
    require_labels = TASK_BEHAVIORS[model.task].needs_labels
    roles = {name: given[name] for name in ("target", "qid")}
    if executor.is_local and len(data) == 1:
        return load_for_fit(data[0], model, given, quiet=quiet, require_labels=require_labels)
    if model.task == "tagging":
        return tagging.load_all_sentences(data, **roles)
    for path in data:
        check_data_options(path, **roles, quiet=quiet)
    table: Dataset = load_partitions(data, executor, **roles, require_labels=require_labels)
    note_unused_queries(table, model, describe_paths(data), quiet=quiet)
    return table


def _fit(model: Any, table: Dataset, *, json_lines: bool, quiet: bool) -> None:
    """Check the labels and fit, with progress on stderr."""
    TASK_BEHAVIORS[model.task].check(model, table.y, table.qid)
    with (
        Progress(tol=model.tol, json=json_lines, file=sys.stderr, quiet=quiet) as progress,
        suppress_warnings(),
    ):
        model.set_params(callback=progress)
        model.fit(table.X, table.y, **query_kwargs(model, table.qid))
    # the model must not refer to the closed display
    model.set_params(callback=None)


@ignore_interrupts()
def _save(model: Any, table: Dataset, output: Path, report: Path | None, title: str) -> None:
    """Save the model and write the report; signals are deferred until both are written."""
    from riskmin.estimators import save_model
    from riskmin.report import write_report

    if table.feature_names is not None:
        model.feature_names_in_ = np.array(table.feature_names, dtype=object)
    save_model(model, output)
    if report is not None:
        write_report(
            report, [(title, model.result_, report_facts(model, data_shape(model, table)))], title=title
        )
