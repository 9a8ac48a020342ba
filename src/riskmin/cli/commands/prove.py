"""`riskmin prove`: write a proof of a model's gap, which `riskmin verify` and verify.py check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from riskmin.certificates.proof import NO_NAMES, TableNames
from riskmin.cli.inputs import (
    DATA_TYPE,
    MODEL_TYPE,
    PATH_TYPE,
    ColumnRef,
    check_distinct_paths,
    check_writable,
    memory_option,
    suppress_warnings,
    target_option,
    trust_option,
)
from riskmin.cli.loading import load_for_model
from riskmin.data import format_of
from riskmin.data.raw_tables.fitting import target_name
from riskmin.data.raw_tables.preparation import PreparedRows

TEXT_TABLES = ("csv", "tsv")
_EPILOG = """\b
Examples:
  riskmin prove model.riskmin train.csv -o model.proof
  riskmin prove model.riskmin raw.csv --matrix prepared.svm -o model.proof
  riskmin verify model.proof prepared.svm
"""


@click.command(epilog=_EPILOG)
@click.argument("model", type=MODEL_TYPE)
@click.argument("data", type=DATA_TYPE)
@click.option("-o", "--output", type=PATH_TYPE, required=True, help="The proof to write.")
@click.option(
    "--matrix",
    type=PATH_TYPE,
    help="Write the prepared rows as svmlight text, and prove the model for this file: needed where DATA is "
    "no svmlight text and no CSV of plain numbers.",
)
@target_option
@memory_option
@click.option("-q", "--quiet", is_flag=True, help="Print no notes.")
@trust_option
def prove(
    model: Path,
    data: Path,
    output: Path,
    matrix: Path | None,
    target: ColumnRef,
    quiet: bool,
    trust: tuple[str, ...],
) -> int:
    """Write a proof that MODEL is nearly optimal for DATA, its training data.

    The proof holds the model, one number per row, and the SHA-256 of the rows. Before it is written, it is
    checked in exact arithmetic with the file that it is about. riskmin verify checks it, and so does the file
    verify.py, without riskmin.
    """
    from riskmin import estimators
    from riskmin.estimators.evidence import fitted_problem

    check_distinct_paths({"MODEL": model, "DATA": data}, {"--output": output, "--matrix": matrix})
    check_writable(output, matrix)
    fitted = estimators.load_model(model, trust)
    table = load_for_model(fitted, data, target, None, labels=True, certifying=True, quiet=quiet)
    with suppress_warnings():
        problem = fitted_problem(fitted, table.X, table.y, sample_weight=table.weight)
        if matrix is None:
            proof = problem.prove(_names(fitted, table, data, target), data)
        else:
            proof = problem.prove()
            proof.save_rows(matrix)
    proof.save(output)
    click.echo(f"proved: J = {proof.value:.9g} is at most {proof.gap:.3g} above the minimum")
    return 0


def _names(model: Any, table: PreparedRows, path: Path, target: ColumnRef) -> TableNames:
    """Return the columns of a text table by which the verifier finds the rows; svmlight text has none."""
    if format_of(path) not in TEXT_TABLES:
        return NO_NAMES
    prepared = model.preparation_
    known = model.target_name_ if prepared is None else prepared.target
    label = target_name(path, known if target is None else target, None)
    features = vars(model).get("feature_names_in_", table.feature_names)
    return TableNames(list(features), label, None if prepared is None else prepared.weight)
