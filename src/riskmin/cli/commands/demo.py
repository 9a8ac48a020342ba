"""`riskmin demo`: three certified fits of a real data set, and an HTML page of charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.commands.certify import EXIT_CODES
from riskmin.cli.inputs import PATH_TYPE, check_writable, report_facts
from riskmin.cli.output import pluralize, print_pairs
from riskmin.report.progress import duration, relative_gap

DEMO_LOSSES = ("hinge", "squared_hinge", "logistic")


def _independent_solver(solver: str) -> str:
    """Name a solver of another kind, to prove the second bound independently."""
    return "bundle" if solver.startswith("Lbfgs") else "bmrm"


@click.command()
@click.option(
    "-o",
    "--output",
    type=PATH_TYPE,
    default=Path("riskmin-demo.html"),
    show_default=True,
    help="The page to write.",
)
def demo(output: Path) -> int:
    """Fit and certify a real data set with three losses."""
    check_writable(output)
    from sklearn.datasets import load_breast_cancer

    from riskmin.report import write_report

    X, y = load_breast_cancer(return_X_y=True)
    # standardized columns, so that one lam suits all of them
    X, lam = (X - X.mean(axis=0)) / X.std(axis=0), 1e-3
    y = np.where(y == 1, "benign", "malignant")
    click.echo(
        f"Wisconsin breast cancer: {X.shape[0]} tumours, {X.shape[1]} measurements, benign or malignant."
    )
    click.echo(
        f"Each fit minimizes J(w) = lam |w|^2 / 2 + mean loss with lam = {lam:g}, to a certified gap of 1e-3."
    )
    fits = [_fit(loss, X, y, lam) for loss in DEMO_LOSSES]
    write_report(output, [fit for fit, _ in fits], title="Breast cancer: three losses, three certificates")
    click.echo(
        "\nJ is the objective that the fit reached, and no weights have an objective below the lower bound:\n"
        "the gap between the two bounds the distance of the fit from the optimum. The second bound was\n"
        "proved anew by another method, as 'riskmin certify' does for a saved model; it confirms the first."
    )
    click.echo(f"\nThe charts are in {output.resolve()}")
    return max(code for _, code in fits)


def _fit(loss: str, X: Any, y: Any, lam: float) -> tuple[tuple[str, Any, dict[str, Any]], int]:
    """Fit, certify and print; return the entry for the report and the exit code."""
    from riskmin.estimators import LinearClassifier, certify

    model = LinearClassifier(loss, alpha=lam).fit(X, y)
    result = model.result_
    # the second bound is proved by a solver of another kind
    found = certify(model, X, y, solver=_independent_solver(result.solver))
    proof = found.proof or result
    last = result.trace[-1]
    took = f"{pluralize(result.n_iter, 'iteration')}, {duration(last['seconds'])}"
    click.echo()
    click.secho(loss.replace("_", " "), bold=True)
    print_pairs(
        [
            ("objective", f"{model.objective_:.7f}"),
            ("lower bound", f"{model.lower_bound_:.7f}  by {result.solver}"),
            ("certified gap", f"{relative_gap(last):.1e} after {took}"),
            ("second bound", f"{found.lower:.7f}  by {proof.solver}, started at the model"),
            ("verdict", click.style(found.status, fg="green" if found else "red", bold=True)),
            ("correct", f"{model.score(X, y):.1%} of the tumours it was fitted to"),
        ]
    )
    facts = report_facts(model, X.shape)
    facts["second bound"] = f"{found.lower:.10g} by {proof.solver}: {found.status}"
    return (loss.replace("_", " "), result, facts), EXIT_CODES.get(found.status, 0)
