"""`riskmin show`: what a model file holds: the problem, the certificate, the largest weights, its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.inputs import (
    MODEL_TYPE,
    POSITIVE_INT,
    describe_status,
    json_option,
    loss_name,
    reg_name,
    trust_option,
)
from riskmin.cli.loading import load_saved
from riskmin.cli.output import print_pairs, print_table
from riskmin.cli.tables import describe_preparation
from riskmin.cli.tasks.evaluation import largest_weights
from riskmin.core.messages import format_label, printable
from riskmin.estimators.persistence.records import to_python_number
from riskmin.report.progress import duration


@click.command()
@click.argument("model", type=MODEL_TYPE)
@click.option("--top", type=POSITIVE_INT, default=10, show_default=True, help="Number of weights to print.")
@trust_option
@json_option
def show(model: Path, top: int, trust: tuple[str, ...], as_json: bool) -> None:
    """Show what MODEL is: the problem, the certificate, the largest weights, and how it was made.

    Weights are in the units of the data, largest first: by their absolute values, or, for a standardized
    model, by those of standardized columns.
    """
    from riskmin.core.persist import load_arrays

    fitted = load_saved(model, trust)
    facts = _facts(fitted, load_arrays(model, "model")[1].get("version"), top)
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(f"{model.name}, {facts['estimator']} of riskmin {facts['version']}")
    print_pairs(_pairs(fitted, facts))
    if facts["weights"]:
        is_named = facts["weights"][0]["class"] is not None
        head = ["weight", *(["class"] if is_named else []), "column"]
        body = [
            [f"{entry['weight']:.6g}", *([entry["class"]] if is_named else []), entry["column"]]
            for entry in facts["weights"]
        ]
        click.echo(f"  the largest of {facts['n_weights']:,} weights:")
        print_table([head, *body])
    click.echo(f"  made by: {facts['command']}")


def _facts(model: Any, version: Any, top: int) -> dict[str, Any]:
    """The content of a model as JSON-compatible data."""
    has_weights = "coef_" in vars(model)
    claim = {
        "rows": model.n_samples_fit_,
        "columns": model.n_features_in_,
        "objective": model.objective_,
        "lower_bound": model.lower_bound_,
        "gap": model.gap_,
        "gap_rel": model.gap_ / model.objective_ if model.objective_ else 0.0,
        "tol": model.tol,
        "atol": model.atol,
        "status": model.result_.status,
        "criterion": model.result_.criterion,
        "solver": model.result_.solver,
        "seconds": model.result_.trace[-1].get("seconds"),
    }
    return {
        "estimator": type(model).__name__,
        "version": version,
        "loss": loss_name(model),
        "reg": reg_name(model),
        "lam": to_python_number(model.alpha),
        **claim,
        "weighted": model.weighted_,
        "standardized": model.can_standardize and model.scale_ is not None,
        "classes": [format_label(label) for label in np.ravel(vars(model).get("classes_", [])).tolist()],
        "intercept": np.ravel(vars(model).get("intercept_", [])).tolist(),
        "threshold": _threshold(model),
        "n_weights": int(np.size(model.coef_)) if has_weights else 0,
        "weights": largest_weights(model, top, model.scale_ if model.can_standardize else None),
        "table": None if model.preparation_ is None else model.preparation_.to_dict(),
        "command": model.command_ or f"{model!r}.fit(X, y), in Python",
    }


def _threshold(model: Any) -> float | list[float] | None:
    """The threshold of the decisions: that of a binary classifier, or those between grades."""
    for name in ("threshold_", "thresholds_", "offset_"):
        if name in vars(model):
            value = np.asarray(getattr(model, name))
            return float(value) if value.ndim == 0 else value.tolist()
    return None


def _pairs(model: Any, facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Format the problem and the certificate as pairs of names and values."""
    size = f"{facts['rows']:,} rows x {facts['columns']:,} columns"
    pairs = [
        ("loss", facts["loss"]),
        ("regularizer", f"{facts['reg']}, lam {', '.join(f'{lam:g}' for lam in np.ravel(facts['lam']))}"),
        ("fitted to", size + (", weighted" if facts["weighted"] else "")),
    ]
    if model.preparation_ is not None:
        pairs.append(("table", describe_preparation(model.preparation_)))
    if facts["classes"]:
        shown = facts["classes"][:8]
        more = f", ... ({len(facts['classes']):,} in all)" if len(facts["classes"]) > 8 else ""
        pairs.append(("classes", printable(", ".join(shown)) + more))
    if facts["standardized"]:
        pairs.append(("standardized", "yes: lam and the certificate are those of standardized columns"))
    pairs += [
        ("objective", f"{facts['objective']:.9g}"),
        ("lower bound", f"{facts['lower_bound']:.9g}"),
        ("certified gap", f"{facts['gap_rel']:.2e} of the objective (asked for {facts['tol']:g})"),
        ("status", describe_status(facts)),
        ("solver", facts["solver"]),
    ]
    if facts["seconds"] is not None:
        pairs.append(("took", duration(facts["seconds"])))
    if len(facts["intercept"]) == 1:
        pairs.append(("intercept", f"{facts['intercept'][0]:.6g}"))
    if facts["threshold"] not in (None, 0.0):
        pairs.append(("threshold", json.dumps(facts["threshold"])))
    return pairs
