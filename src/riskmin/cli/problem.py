"""What `fit`, `path` and `cv` ask for: the options of a problem, and the estimator that they make."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from riskmin.cli import tagging
from riskmin.cli.common import ABOVE_0, FROM_0, FROM_1, memory_option, qid_option, real_option, target_option


def _words(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | list[float] | None:
    """Grades: as numbers if all of them are, as they would be read from a file."""
    if value is None:
        return None
    found = [word.strip() for word in value.split(",")]
    if len(found) < 2 or not all(found) or len(set(found)) < len(found):
        raise click.BadParameter(f"{value!r} must name each grade once: write poor,fair,good.", ctx, param)
    try:
        return [float(word) for word in found]
    except ValueError:
        return found


def _jobs(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value < 1 and value != -1:
        raise click.BadParameter(f"{value} is neither a number of threads nor -1, one a core.", ctx, param)
    return value


_OPTIONS: list[Callable[..., Any]] = [
    click.option("--loss", default="hinge", show_default=True, help="Its name, and NAME:PARAMETER=VALUE."),
    click.option("--reg", default="l2", show_default=True, help="The regularizer, such as elastic:eps=2."),
    click.option("--positive", is_flag=True, help="Only weights >= 0 (l1, l2, elastic)."),
    click.option(
        "--standardize",
        is_flag=True,
        help="Penalize the weights of columns divided by their standard deviations; all that is saved and "
        "printed of weights is in the units of the data.",
    ),
    real_option("--tol", type=FROM_0, default=1e-3, show_default=True, help="Relative certified gap."),
    real_option(
        "--atol",
        type=FROM_0,
        help="Absolute certified gap that is as good as none (default: 1e-6 tol of the risk at w = 0).",
    ),
    target_option,
    qid_option,
    memory_option,
    click.option("--order", callback=_words, help="The grades, the lowest first: poor,fair,good (ordinal)."),
    click.option("--no-intercept", is_flag=True, help="Fit no intercept; else it is fitted, unpenalized."),
    click.option("--class-weight", type=click.Choice(["balanced"]), help="All classes weigh the same."),
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


def settings_of(given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The task of the loss and the parameters of its estimators, checked as far as they can be yet."""
    from riskmin import get_loss
    from riskmin.solvers import get_solver

    task = get_loss(given["loss"]).task
    task = "classification" if task == "multiclass" else task  # of two classes or more
    _check_options(task, given)
    get_solver(given["solver"])
    settings = {
        "regularizer": given["reg"],
        "positive": given["positive"],
        "standardize": given["standardize"],
        "tol": given["tol"],
        "atol": given["atol"],
        "solver": given["solver"],
        "max_iter": given["max_iter"],
        "max_seconds": given["max_seconds"],
        "n_jobs": given["jobs"],
    }
    if task != "novelty":
        settings |= {"loss": given["loss"], "fit_intercept": not given["no_intercept"]}
    if task == "classification":
        settings["class_weight"] = given["class_weight"]
    if task == "ordinal":
        settings["order"] = given["order"]
    return task, settings


def estimator(given: dict[str, Any]) -> Any:
    """The estimator for the loss's task, with everything that can be checked before the data are read."""
    from riskmin.estimators import (
        LinearClassifier,
        LinearRanker,
        LinearRegressor,
        NoveltyDetector,
        OrdinalClassifier,
    )
    from riskmin.estimators.base import regularizer_of

    task, settings = settings_of(given)
    if task == "tagging":
        return tagging.estimator_of(given)
    kinds = {
        "classification": LinearClassifier,
        "regression": LinearRegressor,
        "novelty": NoveltyDetector,
        "ordinal": OrdinalClassifier,
        "ranking": LinearRanker,
    }
    if given.get("contamination") is not None:
        settings["contamination"] = given["contamination"]
    model = kinds[task](alpha=given.get("lam", 1.0), **settings)
    regularizer_of(model)
    return model


def _check_options(task: str, given: dict[str, Any]) -> None:
    """Raise where an option would do nothing for the task."""
    kind = f"{given['loss']} is a loss for {task}"
    if given["class_weight"] and task != "classification":
        raise ValueError(f"--class-weight is for classification, but {kind}: leave it out")
    if given.get("contamination") is not None and task != "novelty":
        raise ValueError(f"--contamination is for novelty, but {kind}: leave it out")
    if given["order"] is not None and task != "ordinal":
        raise ValueError(f"--order is for ordinal, but {kind}: leave it out")
    for option in ("constraints", "min_count"):
        if given.get(option) is not None and task != "tagging":
            raise ValueError(f"--{option.replace('_', '-')} is for tagging, but {kind}: leave it out")
    if given["positive"] and task == "tagging":
        raise ValueError(f"--positive is for models of rows, but {kind}: leave it out")
    if given["standardize"] and task == "tagging":
        raise ValueError(f"--standardize is for models of rows, but {kind}: leave it out")
    if given["no_intercept"] and task in ("novelty", "ordinal", "ranking", "tagging"):
        raise ValueError(f"--no-intercept does nothing here: {kind}, which has no intercept; leave it out")


# ---------------------------------------------------------------- many strengths
def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> list[float] | None:
    if value is None:
        return None
    try:
        found = [float(word) for word in value.split(",") if word.strip()]
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of numbers: write 1,0.1,0.01.", ctx, param) from None
    if not found or not all(0 < lam < math.inf for lam in found):
        raise click.BadParameter(f"{value!r} must hold finite numbers > 0: write 1,0.1,0.01.", ctx, param)
    return found


_LAMS: list[Callable[..., Any]] = [
    click.option("--lams", callback=_numbers, help="The strengths of the regularizer: 1,0.1,0.01."),
    click.option(
        "--n-lams",
        type=FROM_1,
        help="So many instead (default: 13): for l1 and elastic from the least that makes all weights zero "
        "to a thousandth of it, else from 1 to 1e-6.",
    ),
]


def lam_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which strengths to try."""
    for option in reversed(_LAMS):
        command = option(command)
    return command


def check_lams(given: dict[str, Any]) -> None:
    """Raise if both options are given."""
    if given["lams"] is not None and given["n_lams"] is not None:
        raise click.UsageError("--lams and --n-lams exclude each other")
