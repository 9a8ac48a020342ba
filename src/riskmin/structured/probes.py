"""Checks of a user's model before a run: does it maximize, does it sum, is the gradient one?

No finite number of checks proves an argmax right. So outputs that are known are compared with at every
call, and for a few small examples these are all outputs there are.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import numpy as np

from riskmin.structured.examples import Examples
from riskmin.structured.partition import Partitions
from riskmin.types import NDArray

SMALL = 500
"""An example with up to so many outputs is checked against all of them."""
FEW = 2
"""How many examples of a shard are checked."""


def points(model: Any, dim: int, size: float) -> list[NDArray]:
    """Some w for which scores are about 0, 1 and 10; those for which the model says that it is exact."""
    rng = np.random.default_rng(0)
    found = [step / (size or 1.0) * rng.standard_normal(dim) for step in (0.0, 1.0, 1.0, 10.0)]
    project = getattr(model, "project", None)
    return found if project is None else [np.asarray(project(w), dtype=np.float64) for w in found]


def all_outputs(model: Any, x: Any) -> list[Any]:
    """All outputs of a small example; none where there are too many, or the model does not list them."""
    listed = getattr(model, "outputs", None)
    found = [] if listed is None else list(islice(listed(x), SMALL + 1))
    return found if len(found) <= SMALL else []


def probe_margin(examples: Examples) -> None:
    """Raise a ValueError where the argmax is worse than an output that is known."""
    few = range(min(FEW, len(examples.xs)))
    for i in few:
        examples.always[i] = [examples.output(i, y) for y in all_outputs(examples.model, examples.xs[i])]
    examples.forget_table()
    size = float(np.linalg.norm(examples.truth[0].values))
    ws = points(examples.model, examples.dim, size)
    for w in [*ws, *ws]:  # twice: what is found later must not be better at the points before
        examples.at(w, few)


def probe_partition(terms: Partitions) -> None:
    """Raise a ValueError where log Z is not the sum over all outputs, or its gradient not its slope."""
    size = float(np.linalg.norm(terms.truth[0].values))
    ws = points(terms.model, terms.dim, size)
    for i in range(min(FEW, len(terms.xs))):
        _check_gradient(terms, i, ws)
        listed = [terms.phi(i, y) for y in all_outputs(terms.model, terms.xs[i])]
        for w in ws if listed else ():
            scores = np.array([row.dot(w) for row in listed])
            truth = float(np.logaddexp.reduce(scores))
            value, _ = terms.at(i, w)
            value += terms.truth[i].dot(w)
            if not abs(value - truth) <= 1e-7 * (1 + abs(truth)):
                raise ValueError(
                    f"log_partition of example {terms.numbers[i]} is {value:.9g}, but the sum over outputs(x)"
                    f" gives {truth:.9g}: it must be log sum exp(w @ joint_feature(x, y')) over all outputs"
                )


def _check_gradient(terms: Partitions, i: int, ws: list[NDArray]) -> None:
    """Compare slopes with differences, between the points."""
    for w, v in pairwise(ws):
        d = 1e-4 * (v - w)
        middle = w + 0.5 * (v - w)
        (high, _), (low, _), (_, row) = (terms.log_partition(i, middle + t * d) for t in (1, -1, 0))
        slope, secant = row.dot(d), 0.5 * (high - low)
        size = float(abs(row.values) @ abs(d[row.indices]))
        if not abs(slope - secant) <= 1e-3 * size + 1e-9 * (1 + abs(high)):
            raise ValueError(
                f"the gradient of log_partition of example {terms.numbers[i]} has slope {slope:.9g} where "
                f"differences give {secant:.9g}: it must be the mean of joint_feature(x, y')"
            )
