"""Write docs/support.md, from trying every solver, the rules of `Auto`, and rows of new classes in tables.

`python -m docs.support`
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import riskmin
from docs import ratios, tables
from riskmin import LOSSES, SOLVERS, Auto, Cox, Gamma, Lbfgs, Objective, linear_risk
from riskmin.solvers.auto import RULES

PAGE = Path(__file__).with_name("support.md")
SOLVERS_PAGE = Path(__file__).with_name("solvers.md")
RULES_START, RULES_END = "<!-- the rules of Auto -->\n", "<!-- end of the rules -->\n"

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
_CLASSES = {type(reg) for reg in REGULARIZERS.values()}
REGULARIZERS |= {
    f"`{type(reg).__name__}`": reg for reg in riskmin.REGULARIZERS.values() if type(reg) not in _CLASSES
}

HEAD = """# What goes with what

`python -m docs.support` asks every solver and writes this page; a test checks that it is up to date. Where a
cell is empty, the solver raises an error that names an alternative. Where it is ticked, the solver finds
cvxpy's optimum, with valid bounds: `tests/solvers/test_support.py` tries every loss with every
regularizer and every solver.

"""
TICK, SOME, ONLY_WITH, STALLS = "✓", "(✓)", "with b", "may stall"
NOTES = f"""
{TICK}: supported. {SOME}: without an intercept only. *{ONLY_WITH}*: with an intercept only. *{STALLS}*:
supported, but may end as `stalled` at a nonsmooth point of the loss. Weights, priors and bounds
may be a number, or one per feature.

Losses on pairs, contingency tables and rankings are non-decomposable, so no solver that visits rows or
columns one by one supports them. Most of them do not depend on an intercept; `FBeta` has one, and
`PrecisionAtK` and `RecallAtK` reject it. `Smoothing` is tried with `Lbfgs` as the inner solver: with `OwlQn`
or `ProximalGradient` it supports the regularizers that they support for smooth losses.

Multi-output losses have their intercepts in w. `Bundle` adds a proximal term for them, in its model only, and
supports them with any regularizer; `Bmrm` and `LineSearchBmrm` cannot change them. Chain losses have no
intercept; a column of ones has the same effect.

X is *remote* if its rows are in other processes or in another array library, or if the risk is a user-defined
function. With an intercept `Auto` treats sparse X as it does dense X.

A user-defined loss counts as nonsmooth unless it has `smooth = True`. `Newton` and `CoordinateDescent`
need its `hessian`, `DualCoordinateAscent` and `DualGaussSeidel` its `conjugate`; all other solvers need only
[the required method of a loss](add-a-loss.md).
"""


def labels(loss: Any) -> Any:
    """Labels that the loss accepts."""
    y = np.array([1.0, -1.0, 1.0, -1.0]) if loss.task == "classification" else np.array([1.0, 0.0, 2.0, 1.0])
    y = y + 1 if isinstance(loss, (Cox, Gamma)) else y  # which take no zeros
    return np.column_stack([y, -y]) if loss.multi_output_targets else y


def groups(loss: Any) -> dict[str, Any]:
    """The queries of the rows, for losses that rank, or the lengths of their sequences."""
    return {"ranking": {"qid": np.array([0, 0, 1, 1])}, "tagging": {"lengths": [3, 1]}}.get(loss.task, {})


def small(loss: Any) -> Any:
    """The loss, with k = 2 for the four rows if it has a k."""
    return dataclasses.replace(loss, k=2) if loss.fixed_positive_count else loss


@cache
def objective(loss: Any, reg: str, intercept: bool = False, sparse: bool = False) -> Objective:
    """A problem of four rows and two columns."""
    import scipy.sparse as sp

    X = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]])
    # losses at k do not depend on an intercept, and chains have start and end weights instead
    intercept = intercept and not loss.fixed_positive_count and loss.task != "tagging"
    matrix = sp.csr_array(X) if sparse else X
    risk: Any = linear_risk(matrix, labels(loss), small(loss), fit_intercept=intercept, **groups(loss))
    known = REGULARIZERS[reg]
    return Objective(
        risk, known(risk.dim - getattr(risk, "n_intercepts", 0)) if callable(known) else known, 0.1
    )


def takes(solver: Any, obj: Objective) -> bool:
    """Whether the solver supports the problem: it returns no reason against it."""
    return solver.supports(obj) is None


@cache
def cell(name: str, loss: Any, reg: str) -> str:
    """The cell of the table for a solver, a loss and a regularizer."""
    supported = [takes(SOLVERS[name], objective(loss, reg, intercept)) for intercept in (True, False)]
    with_intercept, without_intercept = supported
    if not without_intercept:
        return ONLY_WITH if with_intercept else ""
    if isinstance(SOLVERS[name], Lbfgs) and not loss.smooth:
        return STALLS
    return TICK if with_intercept else SOME


def as_remote(obj: Objective) -> Objective:
    """The same problem with its rows treated as remote."""
    return dataclasses.replace(obj, risk=dataclasses.replace(obj.risk, rows=None))  # type: ignore[type-var]


@cache
def picks(loss: Any, reg: str) -> tuple[str, ...]:
    """The solvers that Auto selects for dense X, for sparse X, and for remote X."""
    problems = objective(loss, reg), objective(loss, reg, sparse=True), as_remote(objective(loss, reg))
    return tuple(f"`{type(Auto().choose(obj)[0]).__name__}`" for obj in problems)


def families() -> dict[tuple[Any, ...], list[Any]]:
    """The losses, grouped by equal cells of the table."""
    result: dict[tuple[Any, ...], list[Any]] = {}
    for loss in dict.fromkeys(LOSSES.values()):  # some have two names
        cells = [(picks(loss, reg), *(cell(name, loss, reg) for name in SOLVERS)) for reg in REGULARIZERS]
        result.setdefault(tuple(cells), []).append(loss)
    return result


def called(loss: Any) -> str:
    """The loss as a call, without parameters that have their default."""
    fields = [f for f in dataclasses.fields(loss) if getattr(loss, f.name) != f.default]
    return f"`{type(loss).__name__}({', '.join(f'{f.name}={getattr(loss, f.name):g}' for f in fields)})`"


def table(losses: list[Any]) -> Iterator[str]:
    """The lines of the table for a group of losses."""
    loss = losses[0]
    names = [n for n in SOLVERS if n != "auto" and any(cell(n, loss, reg) for reg in REGULARIZERS)]
    solvers = [f"`{type(SOLVERS[n]).__name__}`" for n in names]
    yield f"## {', '.join(called(each) for each in losses)}\n"
    yield f"| regularizer | {' | '.join(solvers)} | `Auto`, dense X | sparse X | remote X |"
    yield "| --- |" + " --- |" * (len(names) + 3)
    for reg in REGULARIZERS:
        cells = [cell(name, loss, reg) for name in names]
        yield f"| {reg} | {' | '.join([*cells, *picks(loss, reg)])} |"
    yield ""


def page() -> str:
    """The whole page as text."""
    lines = [line for losses in families().values() for line in table(losses)]
    return HEAD + "\n".join(lines) + NOTES


def rules() -> str:
    """The table of the rules of `Auto`."""
    lines = [
        f"| `{rule.solver.name}`{', smoothed' if rule.smoothed else ''} | {rule.problem} |" for rule in RULES
    ]
    return "\n".join(["| solver | problems |", "| --- | --- |", *lines, ""])


def solvers_page() -> str:
    """docs/solvers.md with the rules of `Auto` as they are."""
    text = SOLVERS_PAGE.read_text(encoding="utf-8")
    before, rest = text.split(RULES_START)
    return before + RULES_START + rules() + RULES_END + rest.split(RULES_END)[1]


if __name__ == "__main__":
    SOLVERS_PAGE.write_text(solvers_page(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    tables.REFERENCE_PAGE.write_text(
        tables.reference_page(lambda loss: picks(loss, "`L2`")), encoding="utf-8"
    )
    ratios.PAGE.write_text(ratios.page(), encoding="utf-8")
    tables.REGULARIZERS_PAGE.write_text(tables.regularizers_page(), encoding="utf-8")
