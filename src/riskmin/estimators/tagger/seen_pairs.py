"""Emission weights for the pairs of feature and label that occur in training: the others stay zero."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import coo_array, csr_array, issparse

from riskmin.arrays.sequences import tokens_of
from riskmin.core import NDArray, Shard
from riskmin.estimators.persistence.records import read_count
from riskmin.linear_maps.chain import ChainMap, PairChainMap
from riskmin.problem.risk import Risk


def with_seen_pairs(risk: Risk) -> Risk:
    """Return the risk of a chain loss in which only pairs of feature and label that occur have a weight."""
    k = risk.linear_map.columns
    # the features of tokens, and labels of sequences, of positive weight
    parts: list[csr_array] = risk.executor.map(pairs_of_shard, k)
    seen = parts[0]
    for part in parts[1:]:
        seen = seen.maximum(part)  # a sum of many would overflow
    seen.sort_indices()
    linear_map = PairChainMap(k, seen.indptr.astype(np.int64), seen.indices.astype(np.int64))
    return replace(risk, linear_map=linear_map, dim=linear_map.dim(seen.shape[0]))


def pairs_of_shard(shard: Shard, k: int) -> csr_array:
    """Return a (features, k) array that is nonzero where a feature and a label occur at one token."""
    X = tokens_of(shard.X)
    rows = X.as_scipy() if X.sparse else X.array
    if rows is None:
        raise ValueError(
            "possible_states=False lists the features that occur, but X is computed on demand: give an array "
            "or a sparse matrix, or set possible_states=True"
        )
    token, feature = rows.nonzero()
    used = shard.c[token] > 0
    labels = shard.y[token[used], 0].astype(np.int64)
    pairs = coo_array((np.ones(len(labels), np.int8), (feature[used], labels)), shape=(X.shape[1], k)).tocsr()
    pairs.data[:] = 1  # not the number of tokens, which overflows
    pairs.sort_indices()
    return pairs


# ---------------------------------------------------------------- model files
def pairs_to_arrays(coef: Any) -> tuple[dict[str, NDArray], dict[str, Any]]:
    """Return the pairs that have a weight as arrays, and their number; nothing if all pairs have one."""
    is_sparse = issparse(coef)
    if not is_sparse:
        return {}, {}
    pairs = {"pair_ends": coef.indptr.astype(np.int64), "pair_labels": coef.indices.astype(np.int64)}
    return pairs, {"n_pairs": coef.nnz}


def map_from_arrays(arrays: dict[str, NDArray], fitted: dict[str, Any], k: int, p: int) -> ChainMap:
    """Return the map from w to scores; its pairs are checked, since compiled loops use them as indices."""
    if "n_pairs" not in fitted:
        return ChainMap(k)
    ends, labels = arrays["pair_ends"], arrays["pair_labels"]
    m = read_count(fitted, "n_pairs")
    if ends.dtype != np.int64 or ends.shape != (p + 1,) or labels.dtype != np.int64 or labels.shape != (m,):
        raise ValueError(f"its pairs of feature and label are not {m} of {p} features")
    if ends[0] != 0 or ends[-1] != m or np.any(np.diff(ends) < 0) or np.any((labels < 0) | (labels >= k)):
        raise ValueError("its pairs of feature and label name other labels or features than it has")
    pairs = PairChainMap(k, ends, labels)
    order = pairs.pairs[0] * k + labels
    if np.any(np.diff(order) <= 0):
        raise ValueError("its pairs of feature and label are not in order, each once")
    return pairs
