"""Validation and encoding of the input of taggers: tokens, labels, weights, and warm starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.sparse import issparse, vstack

from riskmin.arrays.namespace import array_shape
from riskmin.core import NDArray
from riskmin.data.formats.conll import window_features
from riskmin.estimators._common.fit import normalize_weights
from riskmin.estimators._common.input import check_readable, compute_if_dask, validate_rows
from riskmin.estimators.tagger.features import FeatureEncoder, drop_rare_features, short_repr
from riskmin.linear_maps.chain import ChainMap
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk


class EncodedTokens(NamedTuple):
    """The tokens of all sequences, one row per token."""

    X: Any
    lengths: NDArray
    from_matrix: bool
    """Whether they were given as one matrix: then labels are one array, too."""


# ---------------------------------------------------------------- tokens as rows
def read_tokens(
    model: Any, X: Any, lengths: Any, *, reset: bool
) -> tuple[EncodedTokens, dict[str, int] | None]:
    """Return the tokens as rows, and the columns of named features (None for a matrix).

    With `reset` the features are those of X, else those of the fitted model.
    """
    if lengths is None and _is_matrix(X):
        raise ValueError("X is a matrix: give lengths, the number of tokens of each sequence, in order")
    # sizes stays None for one matrix with `lengths`
    sizes: NDArray | None = None
    if lengths is None:
        sequences = _check_sequences(X)
        sizes = np.array([_n_tokens(sequence) for sequence in sequences], dtype=np.int64)
        if not all(_is_matrix(sequence) for sequence in sequences):
            return _encode_features(model, sequences, sizes, reset=reset)
        blocks = [check_readable(sequence, "a sequence of X") for sequence in sequences]
        X = vstack(blocks, format="csr") if issparse(blocks[0]) else np.vstack(blocks)
    if not reset and model.features_ is not None:
        raise ValueError("X is a matrix, but the model was fitted to feature dicts: give those")
    X = validate_rows(model, X, reset=reset)
    if sizes is not None:
        return EncodedTokens(X, sizes, False), None
    return EncodedTokens(X, check_lengths(lengths, X.shape[0]), True), None


def _encode_features(
    model: Any, sequences: list[Any], sizes: NDArray, *, reset: bool
) -> tuple[EncodedTokens, dict[str, int] | None]:
    """Encode tokens with named features as rows."""
    if not reset and model.features_ is None:
        raise ValueError("X holds features by name, but the model was fitted to a matrix: give one")
    encoder = FeatureEncoder(None if reset else model.features_)
    rows = encoder.rows(_apply_template(model.template, sequences))
    if not reset:
        return EncodedTokens(rows, sizes, False), model.features_
    rows, names = drop_rare_features(rows, list(encoder.index), int(model.min_count))
    if not names:
        raise ValueError("no token has a feature that counts: give features, or lower min_count")
    return EncodedTokens(rows, sizes, False), {name: j for j, name in enumerate(names)}


def _is_matrix(X: Any) -> bool:
    return len(array_shape(X)) == 2


def _n_tokens(sequence: Any) -> int:
    return (array_shape(sequence) or (len(sequence),))[0]


def split_by_length(flat: list[Any], lengths: NDArray) -> list[list[Any]]:
    """Split a flat list into one list per sequence."""
    ends = np.cumsum(lengths).tolist()
    return [flat[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]


def normalize_sequence_weights(sample_weight: Any, n: int) -> NDArray | None:
    """Return the weights, one per sequence, normalized to sum to one; None stands for equal weights."""
    sample_weight = compute_if_dask(sample_weight)
    if sample_weight is not None and np.shape(sample_weight) != (n,):
        raise ValueError(
            f"sample_weight has shape {np.shape(sample_weight)}, but there are {n} sequences: "
            "give one weight per sequence"
        )
    weights: NDArray | None = normalize_weights(sample_weight, n)
    return weights


def _apply_template(template: Any, sequences: list[Any]) -> list[Any]:
    """Return the features of every token."""
    if template is None:
        return sequences
    if not callable(template) and template != "window":
        raise ValueError(
            f"template={template!r} is not known: use 'window', a function of a sequence, or None"
        )
    for number, sequence in enumerate(sequences if template == "window" else []):
        if any(isinstance(token, (dict, str)) for token in sequence):
            raise ValueError(
                f"template='window' takes the columns of tokens, as (word, tag), but sequence {number} has "
                "others: give tuples, or set template=None for dicts of features"
            )
    extract = template if callable(template) else window_features
    extracted = [extract(sequence) for sequence in sequences]
    for number, (features, sequence) in enumerate(zip(extracted, sequences, strict=True)):
        if len(features) != len(sequence):
            raise ValueError(
                f"template makes features of {len(features)} tokens for sequence {number}, which has "
                f"{len(sequence)}: it must give one dict per token"
            )
    return extracted


def warm_start_weights(
    last: dict[str, Any], features: dict[str, int] | None, classes: NDArray, p: int, objective: Objective
) -> NDArray:
    """Return the weights of the last fit for features and labels that both fits have; zero for others."""
    k, linear_map = len(classes), cast(ChainMap, cast(Risk, objective.risk).linear_map)
    known = {label: j for j, label in enumerate(last["classes_"].tolist())}
    # positions of the shared labels, and of the shared features, in the new and in the last model
    new = np.array([j for j, label in enumerate(classes.tolist()) if label in known], dtype=np.intp)
    old = np.array([known[label] for label in classes.tolist() if label in known], dtype=np.intp)
    new_features = old_features = np.arange(p)
    if (features is None) != (last["features_"] is None) or (
        features is None and last["n_features_in_"] != p
    ):
        raise ValueError(
            "warm_start=True starts from the last fit, which had other features: set warm_start=False or "
            "make a new estimator"
        )
    if features is not None:
        shared = [(j, last["features_"][name]) for name, j in features.items() if name in last["features_"]]
        new_features, old_features = np.array(shared, dtype=np.intp).reshape(-1, 2).T
    coef, is_sparse = last["coef_"], issparse(last["coef_"])
    coef = coef.toarray() if is_sparse else coef
    # (p, k) emission weights, k rows of transitions, start weights, end weights
    W, tail = np.zeros((p, k)), np.zeros((k + 2, k))
    W[np.ix_(new_features, new)] = coef.T[np.ix_(old_features, old)]
    tail[np.ix_(new, new)] = last["transitions_"][np.ix_(old, old)]
    tail[k, new], tail[k + 1, new] = last["start_"][old], last["end_"][old]
    w = linear_map.join(W, tail)
    # the last fit may have had another regularizer: project onto the domain of this one
    return w if np.isfinite(objective.reg.value(w)) else np.asarray(objective.reg.prox(w, 0.0))


def one_sequence(model: Any, x: Any) -> list[Any]:
    """Return [x]; raise if x is a list of sequences."""
    first = x[0] if isinstance(x, (list, tuple)) and x else None
    # tokens of a function as template may be anything
    items = first if isinstance(first, (list, tuple)) and not callable(model.template) else ()
    if any(isinstance(item, (dict, list, tuple)) for item in items):
        raise ValueError("x is a list of sequences, but this method takes one sequence: give x[0]")
    return [x]


def _check_sequences(X: Any) -> list[Any]:
    """Return X as a list of sequences of tokens; raise if it is not one."""
    if not is_collection(X):
        raise ValueError(
            f"X is {short_repr(X)}: give a list of sequences, each a list of feature dicts, "
            "or a matrix with lengths"
        )
    sequences = list(X)
    if not sequences:
        raise ValueError("X holds no sequences: give at least one")
    for number, sequence in enumerate(sequences):
        if not is_collection(sequence):
            raise ValueError(
                f"sequence {number} is {short_repr(sequence)}: give a list of tokens, each a dict of features"
            )
    return sequences


def check_lengths(lengths: Any, n_tokens: int) -> NDArray:
    """Return the lengths of sequences whose tokens are the rows of a matrix; raise if they do not match."""
    sizes: NDArray = np.asarray(compute_if_dask(lengths))
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 0).any():
        raise ValueError(
            "lengths must be whole numbers >= 0: give the number of tokens of each sequence, in order"
        )
    if int(sizes.sum()) != n_tokens:
        raise ValueError(
            f"lengths sum to {int(sizes.sum()):,}, but X has {n_tokens:,} rows: give the number of tokens of "
            "each sequence, in order"
        )
    return sizes.astype(np.int64)


def unique_labels(labels: Iterable[Any]) -> NDArray:
    """Return the distinct labels, sorted."""
    try:
        distinct = sorted(set(labels))
    except TypeError:
        raise ValueError(
            "y holds labels of several kinds, or none: give strings, or numbers, for all tokens"
        ) from None
    if len(distinct) == 1:
        raise ValueError(f"y holds one class only, {distinct[0]!r}: a tagger needs two to choose from")
    classes: NDArray = np.array(distinct)
    if classes.ndim != 1 or classes.dtype.kind not in "USbiuf" or (classes != classes).any():
        raise ValueError(f"y holds the label {distinct[0]!r}: give strings or whole numbers")
    return classes


def encode_labels(
    labels: Iterable[Any], classes: Sequence[Any], *, where: str = "y", unknown: float | None = None
) -> NDArray:
    """Return the index of each label in the classes, as floats; raise for others, or return `unknown`."""
    code = {label: float(j) for j, label in enumerate(classes)}
    try:
        if unknown is not None:
            return np.array([code.get(label, unknown) for label in labels])
        return np.array([code[label] for label in labels], dtype=np.float64)
    except KeyError as error:
        known = ", ".join(map(str, classes[:6])) + (", ..." if len(classes) > 6 else "")
        raise ValueError(
            f"{where} holds the label {error.args[0]!r}, which is none of the model's ({known}): "
            "fit on data that hold it, or drop it"
        ) from None
    except TypeError:
        raise ValueError(f"{where} holds labels that are lists or dicts: give one label per token") from None


def flatten_labels(y: Any, tokens: EncodedTokens) -> list[Any]:
    """Return the labels of all tokens as one list; raise, naming the place, if their numbers differ."""
    if y is None:
        raise ValueError(
            "ChainTagger requires y to be passed, but the target y is None: give a label for every token"
        )
    if tokens.from_matrix and not _is_nested(y):
        flat: list[Any] = list(y) if type(y) is list else np.asarray(y).tolist()
        if len(flat) != tokens.X.shape[0]:
            raise ValueError(
                f"y has {len(flat):,} labels, but X has {tokens.X.shape[0]:,} rows: give one per token"
            )
        return flat
    if not _is_nested(y):
        raise ValueError(
            "y must hold a list of labels for each sequence: give as many lists as X has sequences"
        )
    if len(y) != len(tokens.lengths):
        raise ValueError(
            f"X has {len(tokens.lengths):,} sequences, but y has {len(y):,}: give labels for each"
        )
    for number, (labels, length) in enumerate(zip(y, tokens.lengths.tolist(), strict=True)):
        if len(labels) != length:
            raise ValueError(
                f"sequence {number} has {length} tokens, but {len(labels)} labels: give one label per token"
            )
    return [label for labels in y for label in (labels.tolist() if array_shape(labels) else labels)]


def _is_nested(y: Any) -> bool:
    """Whether y is a sequence of sequences of labels."""
    return len(y) > 0 and all(is_collection(item) for item in y)


def is_collection(items: Any) -> bool:
    """Whether an object is a list, an array or another collection of items, and no text or dictionary.

    Examples
    --------
    >>> is_collection(["a", "b"]), is_collection("ab"), is_collection({"a": 1}), is_collection(3)
    (True, False, False, False)
    """
    return np.iterable(items) and not isinstance(items, (str, bytes, dict))
