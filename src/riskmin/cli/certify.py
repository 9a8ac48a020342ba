"""`riskmin certify`: check what a saved model claims against the data."""

from __future__ import annotations

import copy
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from riskmin.cli.common import (
    ABOVE_0,
    FROM_0,
    FROM_1,
    PATH,
    count,
    json_option,
    loss_name,
    read_for,
    show,
    target_option,
    without_warnings,
)
from riskmin.cli.predict import signs
from riskmin.progress import Progress, duration
from riskmin.regularizers import L2
from riskmin.types import Iterate, Result

SAME = 1e-6
"""Objectives that differ by less, relatively, are the same; no gap below it is asked to be proved again."""
ROUNDING = 1e-9


class Verdict(NamedTuple):
    """What came out: an exit code, a word, and one sentence."""

    code: int
    word: str
    why: str


@click.command()
@click.argument("model", type=PATH)
@click.argument("data", type=PATH)
@target_option
@click.option("--tol", type=FROM_0, help="Relative gap to prove (default: the one the model claims).")
@click.option("--solver", help="The solver for the proof (default: the model's).")
@click.option("--max-iter", type=FROM_1, default=10_000, show_default=True, help="Most iterations.")
@click.option("--max-seconds", type=ABOVE_0, help="Most seconds for the proof.")
@click.option("--quiet", is_flag=True, help="No progress.")
@json_option
def certify(model: Path, data: Path, target: str | int | None, as_json: bool, **limits: Any) -> int:
    """Check what MODEL claims against DATA.

    Recomputes the objective and proves a fresh lower bound, starting from the model. DATA are those that it
    was fitted to. The claim is refuted (exit code 1) if the objective is another one, if the lower bound is
    above an objective value that was found, or if the file was changed; it is open (exit code 3) if the
    proof did not get as far within the limits.
    """
    from riskmin.estimators import load_model

    if not _intact(model):
        return _say(Verdict(1, "refuted", f"{model} was changed: its checksum does not match"), {}, as_json)
    fitted = load_model(model)
    if fitted.weighted_:
        raise ValueError(
            f"{model} was fitted with weights of rows, which {data} does not hold: no claim to check"
        )
    table = read_for(fitted, data, target, labels=hasattr(fitted, "loss"))
    verdict, numbers = examine(fitted, table.X, table.y, **limits)
    return _say(verdict, numbers, as_json)


def _intact(path: Path) -> bool:
    """Whether the content of a model file is what its checksum says."""
    from riskmin.estimators.store import checksum
    from riskmin.persist import load_arrays

    arrays, meta = load_arrays(path, "model")
    return bool(meta.pop("sha256", None) == checksum(arrays, meta))


def examine(
    model: Any,
    X: Any,
    y: Any,
    *,
    tol: float | None = None,
    solver: str | None = None,
    max_iter: int = 10_000,
    max_seconds: float | None = None,
    quiet: bool = False,
) -> tuple[Verdict, dict[str, Any]]:
    """Check the claim of a fitted model: its objective, then its lower bound.

    Parameters
    ----------
    model : LinearClassifier, LinearRegressor or NoveltyDetector
        Fitted, or loaded.
    X, y : arrays
        What it was fitted to.
    tol : float, optional
        The relative gap to prove; the claimed one by default.
    solver : str, optional
        The model's by default.
    max_iter, max_seconds : int, float
        Limits of the proof.
    quiet : bool
        Show no progress.

    Returns
    -------
    Verdict
    dict
        The numbers that it rests on.
    """
    claimed, bound = model.objective_, model.lower_bound_
    J = objective(model, X, y)
    numbers: dict[str, Any] = {"claimed_objective": claimed, "objective": J, "claimed_lower_bound": bound}
    if abs(J - claimed) > SAME * abs(claimed):
        rows = f" ({model.n_samples_fit_:,} rows were fitted, here are {X.shape[0]:,})"
        off = abs(J / claimed - 1) if claimed else math.inf
        why = f"the objective is {J:.9g}, not {claimed:.9g} as claimed: off by {off:.2g} of it"
        return Verdict(1, "refuted", why + (rows if model.n_samples_fit_ != X.shape[0] else "")), numbers
    goal = max((J - bound) / J if J else 0.0, SAME) if tol is None else tol
    stop = goal * J + ROUNDING * J
    progress = Progress(tol=goal, file=sys.stderr, quiet=quiet)

    def callback(iterate: Iterate, row: dict[str, float]) -> bool:
        progress(iterate, row)
        return J - row["lower"] <= stop or row["value"] < bound * (1 - ROUNDING)

    with progress:
        result = _run(model, X, y, callback, solver, max_iter, max_seconds)
    numbers |= {
        "lower_bound": result.lower,
        "best_objective": min(J, result.value),
        "gap_rel": (J - result.lower) / J if J else 0.0,
        "iterations": result.n_iter,
        "seconds": result.trace[-1]["seconds"],
        "solver": result.solver,
    }
    return _verdict(numbers, goal, done=J - result.lower <= stop), numbers


def objective(model: Any, X: Any, y: Any) -> float:
    """J at the model's own w and b, from scratch."""
    from sklearn.utils.class_weight import compute_sample_weight

    from riskmin.estimators.base import scores
    from riskmin.losses import get_loss

    loss = get_loss(loss_name(model)) if isinstance(getattr(model, "loss", ""), str) else model.loss
    with without_warnings():
        z = scores(model, X)
    c = np.ones(len(z))
    labels = np.zeros(len(z))
    if hasattr(model, "classes_"):
        labels = signs(model, y)
        c = compute_sample_weight(model.class_weight, y)
    elif hasattr(model, "loss"):
        labels = np.asarray(y, dtype=np.float64)
        loss.check_labels(labels)
    value, _ = loss.value_grad(z, labels, c / c.sum())
    return float(value) + float(model.alpha) * L2().value(np.ravel(model.coef_))


def _run(
    model: Any, X: Any, y: Any, callback: Any, solver: str | None, max_iter: int, max_seconds: float | None
) -> Result:
    """Minimize J once more from the model's w on, until the callback has seen enough."""
    again = copy.copy(model).set_params(
        warm_start=True,
        tol=0.0,
        solver=solver or model.solver,
        callback=callback,
        checkpoint=None,
        max_iter=max_iter,
        max_seconds=max_seconds,
    )
    with without_warnings():
        again.fit(X, y)
    result: Result = again.result_
    return result


def _verdict(numbers: dict[str, Any], goal: float, done: bool) -> Verdict:
    J, best, bound = numbers["objective"], numbers["best_objective"], numbers["claimed_lower_bound"]
    if bound > best * (1 + ROUNDING):
        why = (
            f"the claimed lower bound {bound:.9g} is above an objective of {best:.9g}, by {bound - best:.2g}"
        )
        return Verdict(1, "refuted", why)
    gap = (J - numbers["lower_bound"]) / J if J else 0.0
    if not done:
        why = f"within the limits a gap of {gap:.2e} was proved, not the {goal:.2e} asked for"
        return Verdict(3, "open", why)
    return Verdict(
        0, "certified", f"the objective is within {gap:.2e} of the least possible, as proved afresh"
    )


def _say(verdict: Verdict, numbers: dict[str, Any], as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"verdict": verdict.word, "why": verdict.why, **numbers}))
    elif numbers:
        show(_lines(numbers))
    colour = {0: "green", 1: "red", 3: "yellow"}[verdict.code]
    if verdict.code:
        click.secho(f"riskmin: {verdict.word}: {verdict.why}", fg=colour, bold=True, err=True)
    elif not as_json:
        click.secho(f"{verdict.word}: {verdict.why}", fg=colour, bold=True)
    return verdict.code


def _lines(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    fresh = numbers.get("lower_bound")
    rows = [
        ("objective, claimed", f"{numbers['claimed_objective']:.9g}"),
        ("objective, recomputed", f"{numbers['objective']:.9g}"),
        ("lower bound, claimed", f"{numbers['claimed_lower_bound']:.9g}"),
        ("lower bound, proved", "not tried" if fresh is None else f"{fresh:.9g}"),
    ]
    if fresh is not None:
        rows.append(("gap, proved", f"{numbers['gap_rel']:.2e} of the objective"))
        rows.append(
            ("proof", f"{count(numbers['iterations'], 'iteration')} in {duration(numbers['seconds'])}")
        )
        rows.append(("solver", numbers["solver"]))
    return rows
