"""`riskmin path`: fits of one data file along the regularization strength, each with its certificate."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.constraints import constrain
from riskmin.cli.inputs import (
    DATA_TYPE,
    PATH_TYPE,
    STANDARDIZED_NOTE,
    check_distinct_paths,
    check_writable,
    describe_data_size,
    makes_zeros,
    problem_facts,
    reg_name,
    suppress_warnings,
    verbose_option,
)
from riskmin.cli.loading import command_clock, load_for_fit, remember_source
from riskmin.cli.options import check_lams, lam_options, make_estimator, problem_options
from riskmin.cli.output import print_pairs, print_table
from riskmin.cli.problem.objective import build_problem
from riskmin.cli.tasks import classification
from riskmin.cli.tasks.base import TASK_BEHAVIORS
from riskmin.core import Iterate, Result
from riskmin.core.signals import ignore_interrupts
from riskmin.data.raw_tables.preparation import PreparedRows
from riskmin.report.progress import Progress, duration, relative_gap

_EPILOG = """\b
Examples:
  riskmin path train.svm --loss hinge -o path.html
  riskmin path genes.csv --loss logistic --reg l1 --n-lams 20 -o path.html
  riskmin path train.svm --reg elastic:eps=0.5 --lams 1,0.1,0.01 --json

Each fit is warm-started from its neighbor. Ctrl-C ends the path: fits that were not reached are shown with
the bounds that follow from the others.
"""


@click.command(epilog=_EPILOG)
@click.argument("data", type=DATA_TYPE)
@click.option("-o", "--output", type=PATH_TYPE, help="Write an HTML page with charts.")
@lam_options
@problem_options
@click.option("--json", "as_json", is_flag=True, help="JSON log lines on stderr, a JSON object on stdout.")
@verbose_option
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
def path(data: Path, output: Path | None, as_json: bool, quiet: bool, **given: Any) -> int:
    """Fit DATA along a sequence of regularization strengths.

    Prints one line for each: the objective, the certified gap, the number of nonzero weights, and the cost.
    The exit code is 0 if all fits converged, else 3.
    """
    check_lams(given)
    model = make_estimator(given)
    check_writable(output)
    check_distinct_paths({"DATA": data}, {"--output": output})
    if model.task == "tagging":
        raise ValueError(
            "path is for models of rows, not for taggers: use fit with one --lam after the other"
        )
    require_labels = TASK_BEHAVIORS[model.task].needs_labels
    reading = partial(load_for_fit, quiet=quiet or as_json, require_labels=require_labels)
    table = command_clock(given["max_seconds"]).call(reading, data, model, given)
    constrain(model, given["linear_constraints"], table)
    lams, results = _fit_path(model, table, given, json_lines=as_json, quiet=quiet)
    title = f"{given['loss']} on {data.name}"
    if output is not None:
        _write(model, table, output, lams, results, title)
    rows = [_facts(lam, result) for lam, result in zip(lams, results, strict=True)]
    if as_json:
        n, p = table.X.shape
        # facts about the problem, followed by one entry per lam
        about = {"loss": given["loss"], "reg": reg_name(model), "rows": n, "columns": p, "tol": model.tol}
        about["standardized"] = bool(model.standardize)
        click.echo(json.dumps({**about, "path": rows, **({"page": str(output)} if output else {})}))
    else:
        click.echo(f"{title}, {describe_data_size(model, table)}, {reg_name(model)}")
        if model.standardize:
            print_pairs([("standardized", STANDARDIZED_NOTE)])
        print_table(_cells(rows))
        if output is not None:
            click.echo(f"  page  {output}")
    remember_source(model, table)
    return _report_convergence(model, results, as_json)


def _fit_path(
    model: Any, table: PreparedRows, given: dict[str, Any], *, json_lines: bool, quiet: bool
) -> tuple[list[float], list[Result]]:
    """Return the regularization strengths and the result of each fit."""
    from riskmin.driver.path import lam_grid, path
    from riskmin.estimators._common.advice import diagnose_run
    from riskmin.executors import Serial, Threads

    executor: Any = Serial() if given["jobs"] == 1 else Threads(n_workers=_threads(given["jobs"]))
    # J has alpha as its strength; only its risk and its regularizer are used along the path
    J = build_problem(model, table, executor).objective
    risk, reg = J.risk, J.reg.penalized_part
    # the default grid starts at lam_max if Omega makes weights zero
    lams = given["lams"] or lam_grid(risk, reg.without_sizes, given["n_lams"] or 13).tolist()
    with (
        Progress(model.tol, json_lines, sys.stderr, quiet, given["verbose"]) as progress,
        suppress_warnings(),
    ):
        last_lam = math.nan

        def report(iterate: Iterate, row: dict[str, float]) -> None:
            nonlocal last_lam
            if row["lam"] != last_lam:
                progress.samples.clear()  # estimate the time left from the current fit only
                last_lam = row["lam"]
            progress(iterate, row)

        results = path(
            risk,
            reg,
            lams,
            solver=model.solver,
            tol=model.tol,
            atol=model.atol,
            max_iter=model.max_iter,
            max_seconds=math.inf if model.max_seconds is None else model.max_seconds,
            callback=report,
        )
    failed = [result for result in results if result.status != "converged"]
    # advice for the last fit that failed: in the default grid, that of the smallest lam
    if failed and failed[-1].status != "interrupted":
        model._hints = diagnose_run(J, failed[-1], model.solver)
    # multi-output risks keep their intercepts at the end of w; they are not counted as weights
    n_intercepts = risk.n_intercepts
    return lams, [replace(r, w=r.w[: len(r.w) - n_intercepts]) for r in results]


def _threads(jobs: int) -> int | None:
    # None: one thread per core
    return None if jobs == -1 else jobs


def _facts(lam: float, result: Result) -> dict[str, Any]:
    last = result.trace[-1]
    return {
        "lam": lam,
        "objective": result.value,
        "lower_bound": result.lower,
        "gap_rel": relative_gap(last),
        "nonzeros": int(np.count_nonzero(result.w)),
        "iterations": result.n_iter,
        "calls": int(last["calls"]),
        "seconds": last["seconds"],
        "status": result.status,
        "criterion": result.criterion,
        "solver": result.solver,
    }


def _cells(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    head = ["lam", "objective", "certified gap", "nonzeros", "calls", "time", "status"]
    body = [
        [
            f"{row['lam']:.4g}",
            f"{row['objective']:.9g}",
            f"{row['gap_rel']:.2e}",
            f"{row['nonzeros']:,}",
            f"{row['calls']:,}",
            duration(row["seconds"]),
            row["status"],
        ]
        for row in rows
    ]
    calls, seconds = (sum(row[name] for row in rows) for name in ("calls", "seconds"))
    return [head, *body, ["all", "", "", "", f"{calls:,}", duration(seconds), ""]]


@ignore_interrupts()
def _write(
    model: Any,
    table: PreparedRows,
    output: Path,
    lams: Sequence[float],
    results: Sequence[Result],
    title: str,
) -> None:
    from riskmin.report import write_path

    write_path(
        output,
        results,
        lams,
        title=title,
        about=problem_facts(model, table.X.shape),
        names=_weight_names(model, table),
        sparse=makes_zeros(model, table.X.shape[1]),
    )


def _weight_names(model: Any, table: PreparedRows) -> Any:
    """Names of the weights: the columns, or for multiclass models "column, class"."""
    if model.task != "classification" or not model._fitted_loss().multi_output:
        return table.feature_names
    return classification.WeightNames(table.feature_names, model.classes_)


def _report_convergence(model: Any, results: Sequence[Result], as_json: bool) -> int:
    """Report fits that did not converge on stderr and return the exit code."""
    from riskmin.estimators._common.advice import COMMAND_LINE_PHRASES, describe_ill_scaled_columns

    failed = [result for result in results if result.status != "converged"]
    if any(result.status == "interrupted" for result in failed) and not as_json:
        click.echo(f"riskmin: interrupted, with {len(failed)} of {len(results)} fits not done", err=True)
    elif failed and not as_json:
        message = (
            f"riskmin: {len(failed)} of {len(results)} fits did not reach the certified gap of "
            f"{model.tol:g}: raise --max-iter, --max-seconds or --tol, or leave out the smallest lam"
        )
        advice = describe_ill_scaled_columns(model, COMMAND_LINE_PHRASES)
        click.echo(f"{message}. {advice}" if advice else message, err=True)
    return 3 if failed else 0
