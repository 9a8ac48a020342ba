"""Decoding of linear chains: the best labels, and the marginal probabilities of all labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse

from riskmin.arrays.finite import check_finite
from riskmin.arrays.matrix import as_matrix
from riskmin.core import NDArray
from riskmin.estimators._common.input import affine_scores, finite_scores
from riskmin.estimators.tagger.constraints import transition_rules
from riskmin.estimators.tagger.sequences_input import EncodedTokens
from riskmin.linear_maps.chain import decode, marginals


def emissions(model: Any, X: Any) -> NDArray:
    """Return the scores of each label for each token, without transitions."""
    coef, is_sparse = model.coef_, issparse(model.coef_)
    if is_sparse and issparse(X):
        check_finite(as_matrix(X))  # products skip pairs without a weight
        return finite_scores((X @ coef.T).toarray(), "token")
    W = (coef.toarray() if is_sparse else coef).T
    return affine_scores(X, np.ascontiguousarray(W), 0.0, row_name="token")


def _chain_scores(model: Any, tokens: EncodedTokens) -> tuple[NDArray, NDArray, NDArray, NDArray, NDArray]:
    """Return emission, transition, start and end scores, with penalties of constraints, and sequence ends."""
    k = len(model.classes_)
    # rows: k transitions, the start scores, the end scores
    tail = np.vstack([model.transitions_, model.start_, model.end_])
    rules = transition_rules(model.constraints, model.classes_.tolist())
    if rules is not None:
        rules.check(tokens.lengths)
        tail = tail + rules.penalties()
    ends = np.cumsum(tokens.lengths[tokens.lengths > 0])  # empty sequences have no labels
    return emissions(model, tokens.X), tail[:k], tail[k], tail[k + 1], ends


def best_labels(model: Any, tokens: EncodedTokens) -> NDArray:
    """Return the index of the best label of every token."""
    if tokens.X.shape[0] == 0:
        return np.zeros(0, np.int64)
    return decode(*_chain_scores(model, tokens))


def label_marginals(model: Any, tokens: EncodedTokens) -> NDArray:
    """Return the marginal probabilities of the labels of every token."""
    if tokens.X.shape[0] == 0:
        return np.zeros((0, len(model.classes_)))
    return marginals(*_chain_scores(model, tokens))
