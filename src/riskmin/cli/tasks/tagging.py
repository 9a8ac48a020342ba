"""The commands' treatment of taggers: sentences from CoNLL files, predicted labels, chunk metrics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.output import print_pairs, print_table
from riskmin.core import NDArray
from riskmin.data import DataError, Dataset, format_of, load_conll
from riskmin.data.raw_tables.preparation import PreparedRows
from riskmin.metrics import chunk_counts
from riskmin.metrics.chunks import ChunkCount, sum_counts

CONLL_SUFFIXES = (".conll", ".conllu", ".iob", ".bio")
"""Suffixes of files of sentences; a suffix of compression may follow."""


def is_conll(path: Path) -> bool:
    """Whether a file holds sentences, by its suffix."""
    return any(suffix.lower() in CONLL_SUFFIXES for suffix in path.suffixes)


# ---------------------------------------------------------------- data
def load_sentences(
    path: Path, target: str | int | None, qid: str | int | None, *, labels: bool, n_columns: int | None = None
) -> Dataset:
    """Load sentences and their labels; check the number of columns if `n_columns` is given."""
    if isinstance(target, str) or qid is not None:
        raise ValueError(
            f"{path} is taken for sentences, whose columns have no names: give --target as a number, "
            "from 0 on, and no --qid"
        )
    if (kind := format_of(path)) != "svmlight":
        raise ValueError(
            f"{path} is {kind}, but a tagger takes sentences in CoNLL format: one token per line"
        )
    tokens, tags = load_conll(path, target=-1 if target is None else target, n_columns=n_columns)
    if labels and tags is None:
        raise DataError(path, None, "it has no labels; add them as the last column")
    return Dataset(tokens, tags)  # type: ignore[arg-type] # lists, where other tasks have arrays


def load_all_sentences(paths: Sequence[Path], target: str | int | None, qid: str | int | None) -> Dataset:
    """Load and concatenate the sentences of several files with the same columns."""
    corpora: list[Any] = [load_sentences(paths[0], target, qid, labels=True)]
    # number of columns without the label, that of the first file
    width = len(corpora[0].X[0][0])
    corpora += [load_sentences(path, target, qid, labels=True, n_columns=width) for path in paths[1:]]
    X, y = ([sentence for data in corpora for sentence in data[k]] for k in range(2))
    return Dataset(X, y)  # type: ignore[arg-type] # as above


def n_input_columns(model: Any) -> int | None:
    """Number of input columns, without the label, of the training sentences."""
    if model.template != "window":
        raise ValueError("the model was fitted to features that were made in Python: use it in Python")
    # features are named "w[0]:the", "pos[-1]|pos[0]:DT|NN", ...: one prefix per column, "w" for the word
    prefixes = {name.partition("[")[0] for name in model.features_}
    return 1 + len(prefixes - {"w"})


def corpus_shape(model: Any, X: Any) -> tuple[int, int]:
    """Number of sentences, and of weights of features."""
    return len(X), int(np.size(model.coef_))


def describe_corpus_size(model: Any, X: Any) -> str:
    """Describe the size of the data: sentences, tokens, features, labels."""
    tokens, p = sum(len(sentence) for sentence in X), model.n_features_in_
    return f"{len(X):,} sentences of {tokens:,} tokens, {p:,} features, {len(model.classes_):,} labels"


def check_tag_labels(model: Any, y: Any, qid: Any) -> None:
    """Raise if all tokens have the same label."""
    distinct = {label for labels in y for label in labels}
    if len(distinct) == 1:
        raise ValueError(
            f"all tokens have the label {distinct.pop()}: choose another --target or other sentences"
        )


def predicted_tags(model: Any, X: Any) -> list[str]:
    """The predicted labels, one per token."""
    return [str(label) for labels in model.predict(X) for label in labels]


def tag_scores(model: Any, X: Any) -> NDArray:
    """The scores of the labels, one row per token."""
    z: NDArray = model.decision_function(X)
    return z


# ---------------------------------------------------------------- output
def format_predictions(model: Any, data: Any, *, scores: bool, proba: bool) -> str:
    """Format the input with the predicted labels as an added column, or the labels' probabilities.

    There is one token per line, and a blank line between sentences.
    """
    if scores:
        raise ValueError("a tagger scores whole sentences, not tokens: leave --scores out, or use --proba")
    X: Any = data.X
    if proba:
        rows = [[list(marginal.values()) for marginal in tokens] for tokens in model.predict_marginals(X)]
        return "\n".join("".join("\t".join(map(repr, row)) + "\n" for row in tokens) for tokens in rows)
    y_pred = model.predict(X)
    # without labels, the placeholders are not printed
    y_true: Any = [[()] * len(tokens) for tokens in X] if data.y is None else data.y
    lines = []
    for tokens, true_labels, labels in zip(X, y_true, y_pred, strict=True):
        for cells, true_label, label in zip(tokens, true_labels, labels, strict=True):
            lines.append(" ".join([*cells, *([true_label] if data.y is not None else []), label]) + "\n")
        lines.append("\n")
    return "".join(lines[:-1])


def tagging_metrics(model: Any, rows: PreparedRows) -> dict[str, Any]:
    """Accuracy of tokens and of sentences, and chunk metrics if the labels mark chunks.

    A label that is unknown to the model counts as an error; the mean loss is then left out.
    """
    X, y = rows.X, rows.y
    y_pred = model.predict(X)
    correct = [np.array([a == b for a, b in zip(*both, strict=True)]) for both in zip(y, y_pred, strict=True)]
    tokens = np.concatenate(correct)
    metrics: dict[str, Any] = {
        "tokens": len(tokens),
        "accuracy": float(tokens.mean()),
        "sentences all right": float(np.mean([sentence.all() for sentence in correct])),
    }
    if {label for labels in y for label in labels} <= set(model.classes_.tolist()):
        at = model._risk_arguments(X, y, None)
        metrics["mean loss"] = float(model._fitted_loss().value_grad(*at)[0])
    try:
        counts = chunk_counts(y, y_pred)
    except ValueError:
        return metrics  # these labels mark no chunks
    return metrics | {
        "chunks": {"all": _chunk_metrics(sum_counts(counts))}
        | {k: _chunk_metrics(c) for k, c in counts.items()}
    }


def _chunk_metrics(count: ChunkCount) -> dict[str, Any]:
    return {"precision": count.precision, "recall": count.recall, "F1": count.f1} | count._asdict()


def print_tagging_metrics(metrics: dict[str, Any], title: str, rows: int, *, as_json: bool) -> None:
    """Print the metrics, as text or as one JSON object."""
    if as_json:
        click.echo(json.dumps({"rows": rows, **metrics}))
        return
    click.echo(f"{title}, {rows:,} sentences")
    print_pairs((name, f"{value:.6g}") for name, value in metrics.items() if name != "chunks")
    if "chunks" not in metrics:
        return
    fractions, counts = ("precision", "recall", "F1"), ("true", "predicted", "correct")
    body = [
        [
            kind or "-",
            *(f"{100 * row[name]:.2f}%" for name in fractions),
            *(f"{row[name]:,}" for name in counts),
        ]
        for kind, row in metrics["chunks"].items()
    ]
    print_table([["chunks", *fractions, *counts], *body])
