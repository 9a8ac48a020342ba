r"""Linear constraints on the weights, written with the names of the columns: :math:`lower \le A w \le upper`.

age + 2 income <= 1        0 <= age <= 0.5        'petal length (cm)' >= 'petal width (cm)'
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import numpy as np

from riskmin.core import NDArray
from riskmin.core.messages import unknown_name
from riskmin.data.formats.text_table import abbreviated
from riskmin.data.raw_tables.preparation import PreparedRows

constraint_option = click.option(
    "--constraint",
    "linear_constraints",
    metavar="TEXT",
    multiple=True,
    help="Linear constraint on the weights: 'age + 2 income <= 1'; quote names with spaces, and repeat the "
    "option for more (--reg l2 or elastic; with --standardize on the weights of standardized columns).",
)

_RELATION = re.compile(r"(<=|>=|==?)(?=(?:[^'`]*['`][^'`]*['`])*[^'`]*$)")  # outside of quotes
_TERM = re.compile(
    r"""\s*(?P<sign>[+-])?\s*(?P<factor>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)?\s*\*?\s*
        (?:'(?P<single>[^']+)'|`(?P<back>[^`]+)`|(?P<name>[^\W\d][\w.]*))?""",
    re.VERBOSE,
)


class Sum(NamedTuple):
    """A weighted sum of weights, by the names of their columns, and a constant."""

    factors: dict[str, float]
    constant: float

    def minus(self, other: Sum) -> Sum:
        """Return the difference of two sums."""
        names = dict.fromkeys([*self.factors, *other.factors])
        factors = {name: self.factors.get(name, 0.0) - other.factors.get(name, 0.0) for name in names}
        return Sum(factors, self.constant - other.constant)


def parse_sum(text: str) -> Sum:
    """Return the sum that a text denotes; a ValueError with an example for any other text.

    Examples
    --------
    >>> parse_sum("age - 2 * 'petal width' + 0.5")
    Sum(factors={'age': 1.0, 'petal width': -2.0}, constant=0.5)
    """
    factors: dict[str, float] = {}
    constant, position = 0.0, 0
    text = text.strip()
    while position < len(text) or not position:
        match = _TERM.match(text, position)
        name = match and (match["single"] or match["back"] or match["name"])
        if not match or not (name or match["factor"]) or (position and not match["sign"]):
            raise ValueError(f"{text!r} is no sum of weights: write age + 2 income, or 'a name' - 0.5 b")
        value = (-1.0 if match["sign"] == "-" else 1.0) * float(match["factor"] or 1)
        if name:
            factors[name] = factors.get(name, 0.0) + value
        else:
            constant += value
        position = match.end()
    return Sum(factors, constant)


def parse_constraint(text: str) -> tuple[dict[str, float], float, float]:
    """Return the factors of the weights in a constraint, and the lower and the upper bound of their sum.

    Examples
    --------
    >>> parse_constraint("0 <= age + income <= 1")
    ({'age': 1.0, 'income': 1.0}, 0.0, 1.0)
    >>> parse_constraint("age >= income")
    ({'age': 1.0, 'income': -1.0}, 0.0, inf)
    """
    sides = _RELATION.split(text)
    if len(sides) not in (3, 5):
        raise ValueError(f"{text!r} is no constraint: write age + 2 income <= 1, or 0 <= age <= 1")
    lower, upper, total = -math.inf, math.inf, Sum({}, 0.0)
    sums = [parse_sum(side) for side in sides[::2]]
    if len(sums) == 3 and (sums[0].factors or sums[2].factors):
        raise ValueError(f"{text!r} has weights at its ends: write two constraints")
    # of a chain, the weights are in the middle
    pairs = [(sums[0], sides[1], sums[1])]
    if len(sums) == 3:
        pairs = [(sums[1], _MIRRORED[sides[1]], sums[0]), (sums[1], sides[3], sums[2])]
    for left, relation, right in pairs:
        total = left.minus(right)
        if relation != ">=":
            upper = min(upper, 0.0 - total.constant)
        if relation != "<=":
            lower = max(lower, 0.0 - total.constant)
    if not any(total.factors.values()):
        raise ValueError(f"{text!r} has no weight: name a column")
    return total.factors, lower, upper


_MIRRORED = {"<=": ">=", ">=": "<=", "=": "=", "==": "=="}


def constrain(model: Any, texts: Sequence[str], data: PreparedRows) -> None:
    """Put the regularizer of a model under constraints, if there are any."""
    from riskmin.estimators._common.fit import resolve_regularizer
    from riskmin.regularizers import LinearConstraints

    if not texts:
        return
    if model.task == "tagging":
        raise ValueError("--constraint is for models of rows, but a tagger is one of sentences: leave it out")
    rows = [parse_constraint(text) for text in texts]
    A = _matrix([factors for factors, _, _ in rows], data)
    try:
        reg = LinearConstraints(resolve_regularizer(model), A, [r[1] for r in rows], [r[2] for r in rows])
    except TypeError:
        raise ValueError(f"--constraint is for --reg l2 or elastic, not {model.regularizer}") from None
    model.set_params(regularizer=reg, positive=False)


def _matrix(rows: Sequence[dict[str, float]], data: PreparedRows) -> NDArray:
    """Return the factors of the weights of all columns; columns without names are x0, x1, ..."""
    n_features = data.X.shape[1]
    names = data.feature_names
    names = [f"x{j}" for j in range(n_features)] if names is None else list(names)
    place = {name: j for j, name in enumerate(names)}
    A = np.zeros((len(rows), n_features))
    for i, factors in enumerate(rows):
        for name, factor in factors.items():
            if name not in place:
                problem, listed = f"--constraint: there is no column {name!r}", abbreviated(names)
                raise ValueError(unknown_name(problem, name, names, f"the columns are {listed}"))
            A[i, place[name]] = factor
    return A
