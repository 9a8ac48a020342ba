"""The options of `fit`, `path` and `cv` that define the problem, and the estimator that they specify."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import click

from riskmin.cli.completion import complete_losses, complete_regularizers, complete_solvers
from riskmin.cli.config import config_option
from riskmin.cli.constraints import constraint_option
from riskmin.cli.inputs import (
    NONNEGATIVE_FLOAT,
    POSITIVE_FLOAT,
    POSITIVE_INT,
    add_options,
    importing_option,
    memory_option,
    qid_option,
    real_option,
    target_option,
)
from riskmin.cli.tables import table_options


def _parse_grades(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> list[str] | list[float] | None:
    """Parse a comma-separated list of grades; they are numbers if all of them are, as in a data file."""
    if value is None:
        return None
    words = [word.strip() for word in value.split(",")]
    # two or more distinct grades, none of them empty
    if len(words) < 2 or not all(words) or len(set(words)) < len(words):
        raise click.BadParameter(f"{value!r} must name each grade once: write poor,fair,good.", ctx, param)
    try:
        return [float(word) for word in words]
    except ValueError:
        return words


def _check_jobs(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value < 1 and value != -1:
        message = f"{value} is neither a number of threads nor -1 for one per core."
        raise click.BadParameter(message, ctx, param)
    return value


_OPTIONS: list[Callable[..., Any]] = [
    importing_option(
        "--loss",
        default="hinge",
        show_default=True,
        shell_complete=complete_losses,
        help="Name of the loss, NAME:PARAMETER=VALUE, or a class to import, MODULE:CLASS,PARAMETER=VALUE.",
    ),
    importing_option(
        "--reg",
        default="l2",
        show_default=True,
        shell_complete=complete_regularizers,
        help="Regularizer, such as elastic:eps=2, or MODULE:CLASS.",
    ),
    constraint_option,
    click.option("--positive", is_flag=True, help="Constrain the weights to be >= 0 (l1, l2, elastic)."),
    click.option(
        "--standardize",
        is_flag=True,
        help="Penalize the weights of columns divided by their standard deviations; weights are saved and "
        "printed in the units of the data.",
    ),
    real_option(
        "--tol", type=NONNEGATIVE_FLOAT, default=1e-3, show_default=True, help="Relative certified gap."
    ),
    real_option(
        "--atol",
        type=NONNEGATIVE_FLOAT,
        help="Absolute certified gap that also suffices (default: 1e-6 tol times the risk at w = 0).",
    ),
    target_option,
    qid_option,
    memory_option,
    click.option(
        "--order", callback=_parse_grades, help="The grades, lowest first: poor,fair,good (ordinal)."
    ),
    click.option("--no-intercept", is_flag=True, help="Fit no intercept (default: one without penalty)."),
    click.option("--class-weight", type=click.Choice(["balanced"]), help="Give all classes equal weight."),
    importing_option(
        "--solver",
        shell_complete=complete_solvers,
        help="A solver of 'riskmin solvers', or MODULE:CLASS (default: auto).",
    ),
    click.option(
        "--max-iter",
        type=POSITIVE_INT,
        default=10_000,
        show_default=True,
        help="Maximum number of iterations.",
    ),
    real_option(
        "--max-seconds",
        type=POSITIVE_FLOAT,
        help="Time limit in seconds, of reading DATA and of the fit together (path and cv: of each fit).",
    ),
    click.option(
        "--jobs",
        type=int,
        default=1,
        show_default=True,
        callback=_check_jobs,
        help="Number of threads; -1 for one per core.",
    ),
    click.option("--device", help="cuda, or cuda:1: copy the rows to that GPU for the fit (needs CuPy)."),
]


def problem_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that define the objective, its tolerances and limits."""
    return config_option(table_options(add_options(command, _OPTIONS)))


_FOR = {
    "class_weight": "classification",
    "contamination": "novelty",
    "order": "ordinal",
    "constraints": "tagging",
    "min_count": "tagging",
    "possible_states": "tagging",
    "positive": "models of rows",
    "standardize": "models of rows",
    "device": "models of rows",
}
"""What the options are for that only some estimators have as parameters."""


def make_estimator(given: dict[str, Any]) -> Any:
    """Make the estimator for the loss's task; all checks that do not need the data are done."""
    from riskmin.estimators._common.fit import resolve_regularizer

    kind, settings = estimator_settings(given)
    # `path` and `cv` have no --lam: they replace alpha in every fit
    model = kind(alpha=given.get("lam", 1.0), **settings)
    # raises if the name is unknown, or --positive does not support the regularizer
    resolve_regularizer(model)
    return model


def estimator_settings(given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the estimator of the loss's task and its parameters, checked before data are read."""
    from riskmin import estimators, get_loss
    from riskmin.solvers import get_solver

    loss = get_loss(given["loss"])
    task = loss.task
    if task is None:
        raise ValueError(f"{type(loss).__name__} has no task: write task = 'regression', say, in its class")
    if task not in estimators.ESTIMATOR_OF_TASK:
        raise ValueError(f"{given['loss']} is a loss for {task}, which the command does not fit: use Python")
    kind = getattr(estimators, estimators.ESTIMATOR_OF_TASK[task])
    parameters = inspect.signature(kind).parameters
    _check_options(kind.task, parameters, given)
    # raises if the name is unknown
    get_solver(given["solver"])
    settings = {
        "loss": given["loss"],
        "regularizer": given["reg"],
        "n_jobs": given["jobs"],
        "fit_intercept": not given["no_intercept"],
        "template": "window",
        **{name: given[name] for name in ("tol", "atol", "solver", "max_iter", "max_seconds")},
        **{name: given[name] for name in _FOR if given.get(name) is not None},
    }
    return kind, {name: value for name, value in settings.items() if name in parameters}


def _check_options(task: str, parameters: Mapping[str, Any], given: dict[str, Any]) -> None:
    """Raise if an option would have no effect for the task."""
    # an option without effect is an error, since the user expects one
    problem = f"{given['loss']} is a loss for {task}"
    for name, use in _FOR.items():
        value = given.get(name)
        if value is not None and value is not False and name not in parameters:
            raise ValueError(f"--{name.replace('_', '-')} is for {use}, but {problem}: leave it out")
    for name in ("offset", "exposure"):
        if given.get(name) is not None and task not in ("classification", "regression"):
            raise ValueError(f"--{name} is for classification and regression, but {problem}: leave it out")
    if given["no_intercept"] and task in ("novelty", "ordinal", "ranking", "tagging"):
        raise ValueError(f"--no-intercept has no effect: {problem}, which has no intercept; leave it out")


# ---------------------------------------------------------------- regularization strengths
def _parse_lams(ctx: click.Context, param: click.Parameter, value: str | None) -> list[float] | None:
    if value is None:
        return None
    try:
        lams = [float(word) for word in value.split(",") if word.strip()]
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of numbers: write 1,0.1,0.01.", ctx, param) from None
    if not lams or not all(0 < lam < math.inf for lam in lams):
        raise click.BadParameter(f"{value!r} must hold finite numbers > 0: write 1,0.1,0.01.", ctx, param)
    return lams


_LAM_OPTIONS: list[Callable[..., Any]] = [
    click.option(
        "--lams", "--alphas", "lams", callback=_parse_lams, help="Regularization strengths: 1,0.1,0.01."
    ),
    click.option(
        "--n-lams",
        "--n-alphas",
        "n_lams",
        type=POSITIVE_INT,
        help="Number of strengths in a geometric grid (default: 13): for l1 and elastic from the smallest "
        "that makes all weights zero down to a thousandth of it, else from 1 to 1e-6.",
    ),
]


def lam_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose the regularization strengths."""
    return add_options(command, _LAM_OPTIONS)


def check_lams(given: dict[str, Any]) -> None:
    """Raise if both options are given."""
    if given["lams"] is not None and given["n_lams"] is not None:
        raise click.UsageError("--lams and --n-lams exclude each other")
