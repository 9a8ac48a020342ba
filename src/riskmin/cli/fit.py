"""`riskmin fit`: from a file to a certified model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.common import (
    ABOVE_0,
    FROM_0,
    FROM_1,
    PATH,
    as_label,
    check_writable,
    facts_for_report,
    lines,
    read,
    show,
    summary,
    target_option,
    without_warnings,
)
from riskmin.data import Dataset
from riskmin.progress import Progress

_REMEDY = {
    "max_iter": "raise --max-iter, --tol or --lam",
    "max_seconds": "raise --max-seconds, --tol or --lam",
    "interrupted": "the model saved is the best so far",
    "stalled": "raise --tol or --lam, scale the features, or try another --solver",
}

_EPILOG = """\b
Examples:
  riskmin fit train.svm --loss hinge --lam 1e-4 -o spam.riskmin
  riskmin fit houses.csv --target price --loss quantile:level=0.9 -o q90.riskmin
  riskmin fit big.svm.xz --loss logistic --checkpoint run.ckpt --report run.html -o big.riskmin

'riskmin losses' lists the losses with their formulas and parameters. With --checkpoint, the same command
goes on where a killed run was.
"""


@click.command(epilog=_EPILOG)
@click.argument("data", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="Where to save the model.")
@click.option("--loss", default="hinge", show_default=True, help="Its name, and NAME:PARAMETER=VALUE.")
@click.option("--lam", type=ABOVE_0, default=1e-4, show_default=True, help="Strength of the regularizer.")
@click.option("--tol", type=FROM_0, default=1e-3, show_default=True, help="Relative certified gap to reach.")
@target_option
@click.option("--no-intercept", is_flag=True, help="Fit no intercept; else it is fitted, unpenalized.")
@click.option("--class-weight", type=click.Choice(["balanced"]), help="Give both classes the same weight.")
@click.option(
    "--contamination",
    type=click.FloatRange(0, 0.5, min_open=True),
    default=0.1,
    show_default=True,
    help="Share of novel rows (novelty).",
)
@click.option("--solver", help="auto, bundle, lbfgs, bmrm or line_search_bmrm (default: auto).")
@click.option("--max-iter", type=FROM_1, default=10_000, show_default=True, help="Most iterations.")
@click.option("--max-seconds", type=ABOVE_0, help="Most seconds.")
@click.option("--jobs", type=int, default=1, show_default=True, help="Threads; -1 for one a core.")
@click.option("--checkpoint", type=PATH, help="Save the run here now and then; resume if it exists.")
@click.option("--checkpoint-every", type=FROM_0, default=30.0, show_default=True, help="Seconds between.")
@click.option("--report", type=PATH, help="Write an HTML page with the convergence pictures.")
@click.option("--json", "as_json", is_flag=True, help="JSON log lines on stderr, JSON summary on stdout.")
@click.option("--quiet", is_flag=True, help="No progress, no summary (but for --json's).")
def fit(data: Path, output: Path, as_json: bool, quiet: bool, report: Path | None, **given: Any) -> int:
    """Fit a linear model to DATA and save it with its certificate."""
    model = _estimator(given)
    check_writable(output, report, given["checkpoint"])
    needs_labels = hasattr(model, "loss")
    table = read(data, quiet=quiet or as_json, target=given["target"], require_labels=needs_labels)
    _fit(model, table, json_lines=as_json, quiet=quiet)
    _save(model, table, output, report, title=f"{given['loss']} on {data.name}")
    facts = summary(model, table.X.shape, model.tol)
    if as_json:
        click.echo(json.dumps({**facts, "model": str(output)}))
    elif not quiet:
        rows, columns = table.X.shape
        click.echo(
            f"{given['loss']} on {data.name}, {rows:,} rows x {columns:,} columns, lam {model.alpha:g}"
        )
        more = [("report", str(report))] if report else []
        show([*lines(facts), ("model", str(output)), *more])
    if facts["status"] == "converged":
        return 0
    if not as_json:
        click.echo(
            f"riskmin: not converged ({facts['status']}): the certified gap is {facts['gap_rel']:.2g}, above "
            f"the {model.tol:g} asked for; {_REMEDY[facts['status']]}",
            err=True,
        )
    return 3


def _estimator(given: dict[str, Any]) -> Any:
    """The estimator for the loss's task, with everything that can be checked before the data are read."""
    from riskmin import Checkpoint, get_loss
    from riskmin.estimators import LinearClassifier, LinearRegressor, NoveltyDetector
    from riskmin.estimators.base import solver_of

    task = get_loss(given["loss"]).task
    solver_of(given["solver"])
    if given["class_weight"] and task != "classification":
        raise ValueError(f"--class-weight is for classification, but {given['loss']} is a loss for {task}")
    path = given["checkpoint"]
    settings: dict[str, Any] = {
        "alpha": given["lam"],
        "tol": given["tol"],
        "solver": given["solver"],
        "max_iter": given["max_iter"],
        "max_seconds": given["max_seconds"],
        "n_jobs": given["jobs"],
        "checkpoint": path and Checkpoint(path, given["checkpoint_every"]),
    }
    if task == "novelty":
        return NoveltyDetector(contamination=given["contamination"], **settings)
    settings |= {"loss": given["loss"], "fit_intercept": not given["no_intercept"]}
    if task == "regression":
        return LinearRegressor(**settings)
    return LinearClassifier(class_weight=given["class_weight"], **settings)


def _fit(model: Any, table: Dataset, *, json_lines: bool, quiet: bool) -> None:
    _check_labels(model, table.y)
    with (
        Progress(tol=model.tol, json=json_lines, file=sys.stderr, quiet=quiet) as progress,
        without_warnings(),
    ):
        model.set_params(callback=progress)
        model.fit(table.X, table.y)
    model.set_params(callback=None)


def _check_labels(model: Any, y: Any) -> None:
    """Raise where the labels do not suit the task, in the words of the command."""
    if hasattr(model, "class_weight"):
        classes = [as_label(label) for label in np.unique(y).tolist()]
        if len(classes) != 2:
            some = ", ".join(classes[:3]) + (", ..." if len(classes) > 3 else "")
            held = f"{len(classes):,} classes ({some})" if len(classes) > 1 else f"one class ({some})"
            raise ValueError(
                f"the labels hold {held}, but {model.loss} takes two: "
                "choose another --target or other rows, or a loss for regression"
            )
    elif hasattr(model, "loss") and y.dtype.kind in "US":
        raise ValueError(
            f"the labels are words (such as {str(y[0])!r}), but {model.loss} takes numbers: "
            "choose another --target, or a loss for classification"
        )


def _save(model: Any, table: Dataset, output: Path, report: Path | None, title: str) -> None:
    from riskmin.estimators import save_model
    from riskmin.report import write_report

    if table.feature_names is not None:
        model.feature_names_in_ = np.array(table.feature_names, dtype=object)
    save_model(model, output)
    if report is not None:
        write_report(report, [(title, model.result_, facts_for_report(model, table.X.shape))], title=title)
