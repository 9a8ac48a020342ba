"""The examples of a shard with a model that sums over all outputs instead of maximizing over them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.deadline import check_each
from riskmin.problem.structured.joint_features import SparseVector, as_sparse, mixture
from riskmin.problem.structured.output_cache import ARGMAX_TOL


@dataclass
class PartitionExamples:
    """The examples of a shard with a model that has `log_partition`."""

    model: Any
    xs: list[Any]
    ys: list[Any]
    example_ids: NDArray
    """The indices of the examples in the data, for messages."""
    dim: int
    true_features: list[SparseVector] = field(default_factory=list)
    """joint_feature(x_i, y_i) of each example."""

    def __post_init__(self) -> None:
        self.true_features = [self.phi(i, y) for i, y in enumerate(self.ys)]

    def phi(self, i: int, y: Any) -> SparseVector:
        """The joint features of example i with the output y."""
        name = f"joint_feature of example {self.example_ids[i]}"
        return as_sparse(self.model.joint_feature(self.xs[i], y), self.dim, name)

    def log_partition(self, i: int, w: NDArray) -> tuple[float, SparseVector]:
        """The logarithm of Z(x_i, w), and its gradient."""
        name = f"log_partition of example {self.example_ids[i]}"
        result = self.model.log_partition(self.xs[i], w)
        if not isinstance(result, tuple) or len(result) != 2 or np.ndim(result[0]) != 0:
            raise ValueError(f"{name} is no pair: give its value and its gradient")
        value = float(result[0])
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}: give a finite number, by a sum that does not overflow")
        return value, as_sparse(result[1], self.dim, f"the gradient of {name}")

    def evaluate(self, i: int, w: NDArray) -> tuple[float, SparseVector]:
        """The loss log Z(x_i, w) - w @ phi(x_i, y_i), and the gradient of log Z."""
        total, row = self.log_partition(i, w)
        score = self.true_features[i].dot(w)
        # Z has the term exp(score) of y itself, so log Z >= score
        if total < score - ARGMAX_TOL * (1 + abs(total) + abs(score)):
            raise ValueError(
                f"log_partition of example {self.example_ids[i]} is {total:.9g}, less than the score of y, "
                f"{score:.9g}: it must sum exp(w @ joint_feature(x, y')) over all outputs, y among them"
            )
        return max(total - score, 0.0), row

    def value_grad(self, w: NDArray, c: NDArray) -> tuple[float, NDArray]:
        """The sum of c_i times the losses, and its gradient."""
        # gradient: sum_i c_i (grad log Z(x_i, w) - phi(x_i, y_i))
        terms = [self.evaluate(i, w) for i in check_each(range(len(self.xs)))]
        grad = mixture([row for _, row in terms], c, self.dim) - mixture(self.true_features, c, self.dim)
        return float(c @ [value for value, _ in terms]), grad
