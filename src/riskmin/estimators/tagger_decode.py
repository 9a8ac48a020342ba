"""From the weights of a chain to labels: the best ones, and the probabilities of all."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.estimators.tagger_input import Tokens
from riskmin.estimators.tagger_rules import rules_of
from riskmin.linear import check_finite
from riskmin.matrices import as_matrix
from riskmin.types import NDArray


def emissions(model: Any, X: Any) -> NDArray:
    """The scores of each label for each token by itself."""
    matrix = as_matrix(X)
    check_finite(matrix)
    z: NDArray = matrix.scores(np.ascontiguousarray(model.coef_.T), 0, X.shape[0])
    if not np.isfinite(z).all():
        bad = int(np.argwhere(~np.isfinite(z))[0, 0])
        raise ValueError(f"X holds numbers too large to score (token {bad}): scale the features")
    return z


def _chain(model: Any, tokens: Tokens) -> tuple[NDArray, NDArray]:
    """All scores as the kernels take them, less those of what is forbidden, and where sequences end."""
    tail = np.vstack([model.transitions_, model.start_, model.end_])
    rules = rules_of(model.constraints, model.classes_.tolist())
    if rules is not None:
        rules.check(tokens.lengths)
        tail = tail + rules.penalties()
    ends = np.cumsum(tokens.lengths[tokens.lengths > 0])  # an empty sequence has nothing to label
    return np.vstack([emissions(model, tokens.X), tail]), ends


def best_labels(model: Any, tokens: Tokens) -> NDArray:
    """The number of the best label of every token."""
    from riskmin.kernels.chain_max import best_paths

    path: NDArray = np.zeros(tokens.X.shape[0], np.int64)
    if len(path):
        z, ends = _chain(model, tokens)
        best_paths(z, np.zeros_like(path), ends, 0.0, path)
    return path


def marginals(model: Any, tokens: Tokens) -> NDArray:
    """The probabilities of the labels of every token: the slopes of log Z."""
    from riskmin.kernels.chain import expectations

    n, k = tokens.X.shape[0], len(model.classes_)
    if not n:
        return np.zeros((0, k))
    z, ends = _chain(model, tokens)
    dz, value = np.zeros_like(z), np.zeros(len(ends))
    expectations(z, np.zeros(n, np.int64), ends, np.ones(len(ends)), dz, value)
    found: NDArray = dz[:n]
    found[:, 0] += 1.0  # what the labels held against count for: all are the first
    return np.clip(found, 0.0, 1.0)
