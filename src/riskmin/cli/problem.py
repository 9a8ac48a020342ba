"""What `fit`, `path` and `cv` ask for: the options of a problem, and the estimator that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from riskmin.cli.common import ABOVE_0, FROM_0, FROM_1, real_option, target_option


def _jobs(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value < 1 and value != -1:
        raise click.BadParameter(f"{value} is neither a number of threads nor -1, one a core.", ctx, param)
    return value


_OPTIONS: list[Callable[..., Any]] = [
    click.option("--loss", default="hinge", show_default=True, help="Its name, and NAME:PARAMETER=VALUE."),
    click.option("--reg", default="l2", show_default=True, help="The regularizer, such as elastic:eps=2."),
    click.option("--positive", is_flag=True, help="Only weights >= 0 (l1, l2, elastic)."),
    real_option("--tol", type=FROM_0, default=1e-3, show_default=True, help="Relative certified gap."),
    target_option,
    click.option("--no-intercept", is_flag=True, help="Fit no intercept; else it is fitted, unpenalized."),
    click.option("--class-weight", type=click.Choice(["balanced"]), help="Both classes weigh the same."),
    click.option("--solver", help="A name of 'riskmin solvers' (default: auto)."),
    click.option("--max-iter", type=FROM_1, default=10_000, show_default=True, help="Most iterations."),
    real_option("--max-seconds", type=ABOVE_0, help="Most seconds for a fit."),
    click.option(
        "--jobs", type=int, default=1, show_default=True, callback=_jobs, help="Threads; -1 for one a core."
    ),
]


def problem_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what is minimized, and how far."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings_of(given: dict[str, Any]) -> dict[str, Any]:
    """The parameters that all estimators share, checked as far as they can be without data."""
    from riskmin import get_regularizer
    from riskmin.solvers import get_solver

    get_solver(given["solver"])
    get_regularizer(given["reg"])
    return {
        "regularizer": given["reg"],
        "positive": given["positive"],
        "tol": given["tol"],
        "solver": given["solver"],
        "max_iter": given["max_iter"],
        "max_seconds": given["max_seconds"],
        "n_jobs": given["jobs"],
    }


def labelled_settings(given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The task of the loss, and the parameters that classifiers or regressors share."""
    from riskmin import get_loss

    task = get_loss(given["loss"]).task
    check_options(task, given)
    settings = settings_of(given) | {"loss": given["loss"], "fit_intercept": not given["no_intercept"]}
    if task == "classification":
        settings["class_weight"] = given["class_weight"]
    return task, settings


def check_options(task: str, given: dict[str, Any]) -> None:
    """Raise where an option would do nothing for the task."""
    kind = f"{given['loss']} is a loss for {task}"
    if given["class_weight"] and task != "classification":
        raise ValueError(f"--class-weight is for classification, but {kind}: leave it out")
    if given.get("contamination") is not None and task != "novelty":
        raise ValueError(f"--contamination is for novelty, but {kind}: leave it out")
    if given["no_intercept"] and task == "novelty":
        raise ValueError(f"--no-intercept does nothing here: {kind}, which has no intercept; leave it out")
