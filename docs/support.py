"""Asks every solver what it takes, and writes docs/support.md: `python -m docs.support`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import riskmin
from riskmin import LOSSES, SOLVERS, Auto, Lbfgs, Objective, linear_risk

PAGE = Path(__file__).with_name("support.md")

REGULARIZERS: dict[str, Any] = {
    "`L2`": riskmin.L2(),
    "`L1`": riskmin.L1(),
    "`Elastic`": riskmin.Elastic(),
    "`Box(L2)`": riskmin.Box(riskmin.L2()),
    "`Box(L1)`": riskmin.Box(riskmin.L1()),
    "`Box(Elastic)`": riskmin.Box(riskmin.Elastic(), -1.0, 1.0),
    "`Quadratic`": lambda dim: riskmin.Quadratic(np.eye(dim)),
    "`QNorm`": riskmin.QNorm(),
    "`Entropy`": riskmin.Entropy(),
    "`Entropy`, not normalized": riskmin.Entropy(normalized=False),
    "`Entropy`, balanced": riskmin.Entropy(balanced=True),
    "`Entropy`, balanced, not normalized": riskmin.Entropy(normalized=False, balanced=True),
}

HEAD = """# What goes with what

Every solver was asked: `python -m docs.support` writes this page, and a test sees to it that it is up to
date. Where a cell is empty, the solver says in one sentence what to use instead. Where it is ticked, it finds
the optimum that cvxpy finds, with bounds that hold: `tests/test_support.py` tries every loss with every
regularizer and every solver.

"""
TICK, SOME, STALLS = "✓", "(✓)", "kinks"
NOTES = f"""
{TICK}: takes it. {SOME}: without an intercept only. *{STALLS}*: takes it, but may stall at the kinks of the
loss, and then says so. Weights, priors and bounds may be a number, or one a feature.

Losses of pairs, tables and rankings look at all rows at once, so no solver that visits rows or columns one by
one takes them. An intercept changes nothing for most of them; `FBeta` has one, and `PrecisionAtK` and
`RecallAtK` refuse it. `Smoothing` is asked with `Lbfgs` inside: with `OwlQn` or `ProximalGradient` it takes
what they take for smooth losses.

Losses of many scores a row have their intercepts in w. `Bundle` holds these near where
they are, in its model alone, and takes them with any regularizer; `Bmrm` and `LineSearchBmrm` cannot move
them. Losses of chains have no intercept; a column of ones does the same.

X is *elsewhere* where its rows are in other processes or in another array library, or where the risk is a
function of your own. With an intercept `Auto` treats sparse X as it does dense X.

A loss of your own counts as one with kinks until it says `smooth = True`. `CoordinateDescent` asks it for its
`curvature`, `DualGaussSeidel` for its `dual` or `conjugate`; no other solver asks for more than
[a loss has to have](add-a-loss.md).
"""


def labels(loss: Any) -> Any:
    """Labels that the loss takes."""
    y = np.array([1.0, -1.0, 1.0, -1.0]) if loss.task == "classification" else np.array([1.0, 0.0, 2.0, 1.0])
    return np.column_stack([y, -y]) if getattr(loss, "many_targets", False) else y


def groups(loss: Any) -> dict[str, Any]:
    """The queries of the rows, for losses that rank, or the lengths of their sequences."""
    return {"ranking": {"qid": np.array([0, 0, 1, 1])}, "tagging": {"lengths": [3, 1]}}.get(loss.task, {})


def small(loss: Any) -> Any:
    """The loss, with a k for four rows if it looks at the first k of all."""
    return dataclasses.replace(loss, k=2) if getattr(loss, "counted", False) else loss


@cache
def objective(loss: Any, reg: str, intercept: bool = False, sparse: bool = False) -> Objective:
    """A tiny problem."""
    import scipy.sparse as sp

    X = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]])
    # there a number for all changes nothing, or the first and last labels have weights of their own
    intercept = intercept and not getattr(loss, "counted", False) and loss.task != "tagging"
    matrix = sp.csr_array(X) if sparse else X
    risk: Any = linear_risk(matrix, labels(loss), small(loss), fit_intercept=intercept, **groups(loss))
    known = REGULARIZERS[reg]
    return Objective(
        risk, known(risk.dim - getattr(risk, "n_intercepts", 0)) if callable(known) else known, 0.1
    )


def takes(solver: Any, obj: Objective) -> bool:
    """Whether the solver begins."""
    try:
        next(iter(solver.iterates(obj, obj.reg.conjugate_grad(np.zeros(obj.risk.dim)))))  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return False
    return True


@cache
def cell(name: str, loss: Any, reg: str) -> str:
    """What a solver makes of a loss and a regularizer."""
    with_, without = (takes(SOLVERS[name], objective(loss, reg, intercept)) for intercept in (True, False))
    if not without:
        return ""
    if isinstance(SOLVERS[name], Lbfgs) and not loss.smooth:
        return STALLS
    return TICK if with_ else SOME


def elsewhere(obj: Objective) -> Objective:
    """The same problem, as if its rows were on another machine."""
    return dataclasses.replace(obj, risk=dataclasses.replace(obj.risk, rows=None))  # type: ignore[type-var]


@cache
def picks(loss: Any, reg: str) -> tuple[str, ...]:
    """What Auto takes for dense X, for sparse X, and for X elsewhere."""
    found = objective(loss, reg), objective(loss, reg, sparse=True), elsewhere(objective(loss, reg))
    return tuple(f"`{type(Auto().choose(obj)[0]).__name__}`" for obj in found)


def families() -> dict[tuple[Any, ...], list[Any]]:
    """The losses, those together that are treated alike everywhere."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for loss in dict.fromkeys(LOSSES.values()):  # some have two names
        alike = [(picks(loss, reg), *(cell(name, loss, reg) for name in SOLVERS)) for reg in REGULARIZERS]
        found.setdefault(tuple(alike), []).append(loss)
    return found


def called(loss: Any) -> str:
    """The loss as one writes it, without the settings that are the default."""
    fields = [f for f in dataclasses.fields(loss) if getattr(loss, f.name) != f.default]
    return f"`{type(loss).__name__}({', '.join(f'{f.name}={getattr(loss, f.name):g}' for f in fields)})`"


def table(losses: list[Any]) -> Iterator[str]:
    """The lines for losses that are treated alike."""
    loss = losses[0]
    names = [n for n in SOLVERS if n != "auto" and any(cell(n, loss, reg) for reg in REGULARIZERS)]
    solvers = [f"`{type(SOLVERS[n]).__name__}`" for n in names]
    yield f"## {', '.join(called(each) for each in losses)}\n"
    yield f"| regularizer | {' | '.join(solvers)} | `Auto`, dense X | sparse X | X elsewhere |"
    yield "| --- |" + " --- |" * (len(names) + 3)
    for reg in REGULARIZERS:
        cells = [cell(name, loss, reg) for name in names]
        yield f"| {reg} | {' | '.join([*cells, *picks(loss, reg)])} |"
    yield ""


def page() -> str:
    """The page."""
    lines = [line for losses in families().values() for line in table(losses)]
    return HEAD + "\n".join(lines) + NOTES


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
