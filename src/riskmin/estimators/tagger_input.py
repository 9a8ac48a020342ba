"""What a tagger is given, checked and put in rows: tokens, labels, weights, and the last fit's weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse, vstack

from riskmin.data.conll import window_features
from riskmin.estimators.base import as_weights
from riskmin.estimators.rows import checked, here, readable
from riskmin.estimators.tagger_features import Encoder, frequent, short
from riskmin.objective import Objective
from riskmin.types import NDArray


class Tokens(NamedTuple):
    """The tokens of all sequences, one row each."""

    X: Any
    lengths: NDArray
    flat: bool
    """Whether they came as a matrix: then labels are one array too."""


# ---------------------------------------------------------------- tokens as rows
def read_tokens(model: Any, X: Any, lengths: Any, *, reset: bool) -> tuple[Tokens, dict[str, int] | None]:
    """The tokens as rows, and the columns of features that have names.

    With `reset` the features are those of X, else those that the model was fitted on.
    """
    if lengths is None and (issparse(X) or getattr(X, "ndim", 1) == 2):
        raise ValueError("X is a matrix: give lengths, the number of tokens of each sequence, in order")
    sizes: NDArray | None = None
    if lengths is None:
        sequences = sequences_of(X)
        sizes = np.array([_size(sequence) for sequence in sequences], dtype=np.int64)
        if not all(issparse(one) or getattr(one, "ndim", 1) == 2 for one in sequences):
            return _encoded(model, sequences, sizes, reset=reset)
        few = [readable(one, "a sequence of X") for one in sequences]
        X = vstack(few, format="csr") if issparse(few[0]) else np.vstack(few)
    if not reset and model.features_ is not None:
        raise ValueError("X is a matrix, but the model was fitted to feature dicts: give those")
    X = checked(model, X, reset=reset)
    if sizes is not None:
        return Tokens(X, sizes, False), None
    return Tokens(X, check_lengths(lengths, X.shape[0]), True), None


def _encoded(
    model: Any, sequences: list[Any], sizes: NDArray, *, reset: bool
) -> tuple[Tokens, dict[str, int] | None]:
    """Tokens with named features as rows."""
    if not reset and model.features_ is None:
        raise ValueError("X holds features by name, but the model was fitted to a matrix: give one")
    encoder = Encoder(None if reset else model.features_)
    rows = encoder.rows(_templated(model.template, sequences))
    if not reset:
        return Tokens(rows, sizes, False), model.features_
    rows, names = frequent(rows, list(encoder.index), int(model.min_count))
    if not names:
        raise ValueError("no token has a feature that counts: give features, or lower min_count")
    return Tokens(rows, sizes, False), {name: j for j, name in enumerate(names)}


def _size(sequence: Any) -> int:
    return int(sequence.shape[0]) if hasattr(sequence, "shape") else len(sequence)


def split(flat: list[Any], lengths: NDArray) -> list[list[Any]]:
    """What belongs to each sequence."""
    ends = np.cumsum(lengths).tolist()
    return [flat[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]


def weights_of(sample_weight: Any, n: int) -> NDArray | None:
    """The weights, one a sequence and of sum one; None stands for equal weights."""
    sample_weight = here(sample_weight)
    if sample_weight is not None and np.shape(sample_weight) != (n,):
        raise ValueError(
            f"sample_weight has shape {np.shape(sample_weight)}, but there are {n} sequences: "
            "give one weight a sequence"
        )
    return as_weights(sample_weight, n)


def _templated(template: Any, sequences: list[Any]) -> list[Any]:
    """The features of every token."""
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
    make = template if callable(template) else window_features
    made = [make(sequence) for sequence in sequences]
    for number, (features, sequence) in enumerate(zip(made, sequences, strict=True)):
        if len(features) != len(sequence):
            raise ValueError(
                f"template makes features of {len(features)} tokens for sequence {number}, which has "
                f"{len(sequence)}: it must give one dict a token"
            )
    return made


def last_weights(
    last: dict[str, Any], features: dict[str, int] | None, classes: NDArray, dim: int, objective: Objective
) -> NDArray:
    """The weights of the last fit, where its features and labels are still there; zero for others."""
    k, p = len(classes), (dim - len(classes) ** 2 - 2 * len(classes)) // len(classes)
    known = {label: j for j, label in enumerate(last["classes_"].tolist())}
    here = np.array([j for j, label in enumerate(classes.tolist()) if label in known], dtype=np.intp)
    there = np.array([known[label] for label in classes.tolist() if label in known], dtype=np.intp)
    columns = rows = np.arange(p)
    if (features is None) != (last["features_"] is None) or (
        features is None and last["n_features_in_"] != p
    ):
        raise ValueError(
            "warm_start=True starts from the last fit, which had other features: set warm_start=False or "
            "make a new estimator"
        )
    if features is not None:
        both = [(j, last["features_"][name]) for name, j in features.items() if name in last["features_"]]
        columns, rows = np.array(both, dtype=np.intp).reshape(-1, 2).T
    w = np.zeros(dim)
    w[: p * k].reshape(p, k)[np.ix_(columns, here)] = last["coef_"].T[np.ix_(rows, there)]
    w[p * k : -2 * k].reshape(k, k)[np.ix_(here, here)] = last["transitions_"][np.ix_(there, there)]
    w[-2 * k : -k][here], w[-k:][here] = last["start_"][there], last["end_"][there]
    # the last fit may have had another regularizer
    return w if np.isfinite(objective.reg.value(w)) else np.asarray(objective.reg.prox(w, 0.0))


def sequences_of(X: Any) -> list[Any]:
    """A list of sequences of tokens, each of which has a length."""
    if isinstance(X, (str, bytes, dict)) or not hasattr(X, "__iter__"):
        raise ValueError(
            f"X is {short(X)}: give a list of sequences, each a list of feature dicts, "
            "or a matrix with lengths"
        )
    found = list(X)
    if not found:
        raise ValueError("X holds no sequences: give at least one")
    for number, sequence in enumerate(found):
        if isinstance(sequence, (str, bytes, dict)) or not hasattr(sequence, "__len__"):
            raise ValueError(
                f"sequence {number} is {short(sequence)}: give a list of tokens, each a dict of features"
            )
    return found


def check_lengths(lengths: Any, n_tokens: int) -> NDArray:
    """The lengths of the sequences whose tokens are the rows of a matrix."""
    found: NDArray = np.asarray(here(lengths))
    if found.ndim != 1 or found.dtype.kind not in "iu" or (found < 0).any():
        raise ValueError(
            "lengths must be whole numbers >= 0: give the number of tokens of each sequence, in order"
        )
    if int(found.sum()) != n_tokens:
        raise ValueError(
            f"lengths sum to {int(found.sum()):,}, but X has {n_tokens:,} rows: give the number of tokens of "
            "each sequence, in order"
        )
    return found.astype(np.int64)


def labels_of(labels: Iterable[Any]) -> NDArray:
    """The labels that there are, in order."""
    try:
        found = sorted(set(labels))
    except TypeError:
        raise ValueError(
            "y holds labels of several kinds, or none: give strings, or numbers, for all tokens"
        ) from None
    if len(found) == 1:
        raise ValueError(f"y holds one label only, {found[0]!r}: a tagger needs two to choose from")
    classes: NDArray = np.array(found)
    if classes.ndim != 1 or classes.dtype.kind not in "USbiuf" or (classes != classes).any():
        raise ValueError(f"y holds the label {found[0]!r}: give strings or whole numbers")
    return classes


def label_codes(labels: Iterable[Any], classes: Sequence[Any], *, where: str = "y") -> NDArray:
    """The places of labels among the classes; raise where one is none of them."""
    place = {label: j for j, label in enumerate(classes)}
    try:
        return np.array([place[label] for label in labels], dtype=np.float64)
    except KeyError as error:
        known = ", ".join(map(str, classes[:6])) + (", ..." if len(classes) > 6 else "")
        raise ValueError(
            f"{where} holds the label {error.args[0]!r}, which is none of the model's ({known}): "
            "fit on data that hold it, or drop it"
        ) from None
    except TypeError:
        raise ValueError(f"{where} holds labels that are lists or dicts: give one label a token") from None


def flat_labels(y: Any, tokens: Tokens) -> list[Any]:
    """One label a token, of all sequences in order; raise where they do not match, and say where."""
    if y is None:
        raise ValueError("y is None: give a label for every token")
    if tokens.flat and not _nested(y):
        flat: list[Any] = np.asarray(y).tolist() if not isinstance(y, list) else list(y)
        if len(flat) != tokens.X.shape[0]:
            raise ValueError(
                f"y has {len(flat):,} labels, but X has {tokens.X.shape[0]:,} rows: give one a token"
            )
        return flat
    if not _nested(y):
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
                f"sequence {number} has {length} tokens, but {len(labels)} labels: give one label a token"
            )
    return [label for labels in y for label in (labels.tolist() if hasattr(labels, "tolist") else labels)]


def _nested(y: Any) -> bool:
    """Whether y is a sequence of sequences of labels."""
    return len(y) > 0 and all(hasattr(one, "__len__") and not isinstance(one, (str, bytes)) for one in y)
