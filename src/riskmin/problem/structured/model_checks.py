"""Checks of a user-defined model before a run: of the argmax, of the partition function and of its gradient.

No finite number of checks proves that an argmax is correct. So every result is compared with all cached
outputs, and for a few small examples with all outputs that exist.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import numpy as np

from riskmin.core import NDArray, has_method
from riskmin.problem.structured.log_partition import PartitionExamples
from riskmin.problem.structured.output_cache import MarginExamples

CHECKED_EXAMPLES = 2
"""The number of examples per shard that are checked."""


def probe_points(model: Any, dim: int, size: float) -> list[NDArray]:
    """Random w at which scores are about 0, 1 and 10; projected to where the model is exact."""
    rng = np.random.default_rng(0)
    # |w'phi| is about step for features phi of norm `size`
    weights = [step / (size or 1.0) * rng.standard_normal(dim) for step in (0.0, 1.0, 1.0, 10.0)]
    if not has_method(model, "project"):
        return weights
    return [np.asarray(model.project(w), dtype=np.float64) for w in weights]


def all_outputs(model: Any, x: Any) -> list[Any]:
    """All outputs of a small example; none if there are too many, or the model does not list them."""
    if not has_method(model, "outputs"):
        return []
    # one more than that, to detect that there are too many
    most = 500
    outputs = list(islice(model.outputs(x), most + 1))
    return outputs if len(outputs) <= most else []


def probe_margin(examples: MarginExamples) -> None:
    """Raise a ValueError if the argmax is worse than a cached output."""
    checked = range(min(CHECKED_EXAMPLES, len(examples.xs)))
    for i in checked:
        examples.pinned[i] = [examples.output(i, y) for y in all_outputs(examples.model, examples.xs[i])]
    examples.invalidate_table()
    size = float(np.linalg.norm(examples.true_features[0].values))
    ws = probe_points(examples.model, examples.dim, size)
    for w in [*ws, *ws]:  # twice: outputs found later must not be better at earlier points
        examples.evaluate(w, checked)


def probe_partition(terms: PartitionExamples) -> None:
    """Raise a ValueError if log Z is not the sum over all outputs, or its gradient is wrong."""
    size = float(np.linalg.norm(terms.true_features[0].values))
    ws = probe_points(terms.model, terms.dim, size)
    for i in range(min(CHECKED_EXAMPLES, len(terms.xs))):
        _check_gradient(terms, i, ws)
        features = [terms.phi(i, y) for y in all_outputs(terms.model, terms.xs[i])]
        for w in ws if features else ():
            # log sum_y' exp(w'phi(x, y')), over all outputs y'
            scores = np.array([row.dot(w) for row in features])
            exact = float(np.logaddexp.reduce(scores))
            value, _ = terms.evaluate(i, w)
            value += terms.true_features[i].dot(w)
            if not abs(value - exact) <= 1e-7 * (1 + abs(exact)):
                raise ValueError(
                    f"log_partition of example {terms.example_ids[i]} is {value:.9g}, but the sum over "
                    f"outputs(x) gives {exact:.9g}: it must be log sum exp(w @ joint_feature(x, y')) over "
                    "all outputs"
                )


def _check_gradient(terms: PartitionExamples, i: int, ws: list[NDArray]) -> None:
    """Compare directional derivatives with central differences, halfway between the points."""
    for w, v in pairwise(ws):
        # at the midpoint m: grad'd against (log Z(m + d) - log Z(m - d)) / 2
        d = 1e-4 * (v - w)
        middle = w + 0.5 * (v - w)
        (high, _), (low, _), (_, row) = (terms.log_partition(i, middle + t * d) for t in (1, -1, 0))
        slope, secant = row.dot(d), 0.5 * (high - low)
        # tolerance: relative to the terms of the slope, plus the rounding error of the difference
        size = float(abs(row.values) @ abs(d[row.indices]))
        if not abs(slope - secant) <= 1e-3 * size + 1e-9 * (1 + abs(high)):
            raise ValueError(
                f"the gradient of log_partition of example {terms.example_ids[i]} has slope {slope:.9g} "
                f"where differences give {secant:.9g}: it must be the mean of joint_feature(x, y')"
            )
