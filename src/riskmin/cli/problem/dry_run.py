"""`riskmin fit --dry-run`: what would be solved, by which solver, with how much memory, in what time."""

from __future__ import annotations

import json
import time
from typing import Any

import click
import numpy as np

from riskmin.cli.inputs import describe_data_size, loss_name, reg_name
from riskmin.cli.output import print_pairs
from riskmin.cli.problem.objective import build_problem
from riskmin.cli.tables import describe_preparation
from riskmin.data.raw_tables.preparation import PreparedRows
from riskmin.report.progress import duration

TYPICAL_EVALUATIONS = (10, 300)
"""Evaluations of J and its gradient that most fits take, by the benchmarks: easy and hard ones."""


def dry_run(model: Any, table: PreparedRows, given: dict[str, Any], title: str, *, as_json: bool) -> None:
    """Print the problem and its cost, and fit nothing."""
    from riskmin.driver.loop import precondition
    from riskmin.estimators._common.fit import resolve_solver
    from riskmin.executors import Serial
    from riskmin.losses import formula
    from riskmin.solvers.auto import Auto

    J = build_problem(model, table, Serial()).objective
    solver = resolve_solver(model, J)
    # solvers work in preconditioned variables
    chosen, reason = (
        solver.choose(precondition(J).obj, model.tol) if isinstance(solver, Auto) else (solver, "as given")
    )
    seconds = _evaluation_seconds(J)
    facts = {
        "loss": f"{loss_name(model)}: {formula(model._fitted_loss())}",
        "reg": reg_name(model),
        "lam": float(model.alpha),
        "tol": float(model.tol),
        "rows": table.X.shape[0],
        "columns": table.X.shape[1],
        "weights": J.risk.dim,
        "solver": f"{chosen!r}: {reason}",
        "data_bytes": _data_bytes(table.X),
        "evaluation_seconds": seconds,
        "rough_seconds": [count * seconds for count in TYPICAL_EVALUATIONS],
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(f"{title}, {describe_data_size(model, table)}: nothing is fitted")
    few, many = facts["rough_seconds"]
    pairs = [
        ("minimize", f"J(w) = {model.alpha:g} Omega(w) + mean loss, to a gap of {model.tol:g} J"),
        ("loss", facts["loss"]),
        ("regularizer", facts["reg"]),
        ("weights", f"{J.risk.dim:,}"),
        ("solver", facts["solver"]),
        ("data", f"{facts['data_bytes'] / 1e6:,.1f} MB in memory; solvers may take the same again"),
        ("evaluation", f"{duration(seconds)} for J and its gradient once"),
        ("rough time", f"{duration(few)} to {duration(many)}, without compilation"),
    ]
    if table.preparation is not None:
        pairs.insert(3, ("table", describe_preparation(table.preparation)))
    print_pairs(pairs)


def _data_bytes(X: Any) -> int:
    """Bytes of a dense or sparse X."""
    arrays = (X.data, X.indices, X.indptr) if hasattr(X, "indptr") else (X,)
    return sum(int(array.nbytes) for array in arrays)


def _evaluation_seconds(J: Any) -> float:
    """Seconds of one evaluation of J and its gradient, the second one: the first may compile functions."""
    w = np.zeros(J.risk.dim)
    J(w)
    start = time.perf_counter()
    J(w)
    return time.perf_counter() - start
