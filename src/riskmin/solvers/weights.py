"""Feature weights of an L2 penalty with several outputs, where w has one entry per feature and output."""

from __future__ import annotations

from typing import Any

import numpy as np


def feature_weights(reg: Any, k: int) -> Any:
    """The weights of an L2 penalty with k outputs: those of the first output per feature, or one for all."""
    # w is a (features, k) matrix in row-major order: each k-th weight is that of a first output
    weights = reg.penalized_part.weights
    return weights if np.ndim(weights) == 0 else weights[::k]


def outputs_share_weights(reg: Any, k: int) -> bool:
    """Whether each feature has the same weight in all k outputs."""
    weights = reg.penalized_part.weights
    return bool(np.ndim(weights) == 0 or np.array_equal(weights, np.repeat(weights[::k], k)))
