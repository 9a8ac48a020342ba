"""What the commands do for taggers: sentences from CoNLL files, columns of labels, counts of chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.data import DataError, Dataset, format_of, load_conll
from riskmin.metrics import chunk_counts
from riskmin.metrics.chunks import ChunkCount, overall
from riskmin.types import NDArray

SUFFIXES = (".conll", ".conllu", ".iob", ".bio")
"""Files of these names are sentences, whatever they are compressed with."""


def is_conll(path: Path) -> bool:
    """Whether a file's name says that it holds sentences."""
    return any(suffix.lower() in SUFFIXES for suffix in path.suffixes)


def estimator_of(given: dict[str, Any]) -> Any:
    """The tagger that the options make."""
    from riskmin.estimators import ChainTagger

    return ChainTagger(
        given["loss"],
        alpha=given.get("lam", 1.0),
        regularizer=given["reg"],
        tol=given["tol"],
        atol=given["atol"],
        solver=given["solver"],
        max_iter=given["max_iter"],
        max_seconds=given["max_seconds"],
        n_jobs=given["jobs"],
        constraints=given.get("constraints"),
        min_count=given.get("min_count") or 1,
        template="window",
    )


# ---------------------------------------------------------------- data
def sentences(
    path: Path, target: str | int | None, qid: str | int | None, *, labels: bool, n_columns: int | None = None
) -> Dataset:
    """Sentences and their labels, with as many columns as the model was fitted on where that is known."""
    if isinstance(target, str) or qid is not None:
        raise ValueError(
            f"{path} is taken for sentences, whose columns have no names: give --target as a number, "
            "from 0 on, and no --qid"
        )
    if (kind := format_of(path)) != "svmlight":
        raise ValueError(f"{path} is {kind}, but a tagger takes sentences in CoNLL's form: a token a line")
    tokens, found = load_conll(path, target=-1 if target is None else target, n_columns=n_columns)
    if labels and found is None:
        raise DataError(path, None, "it has no labels; add them as the last column")
    return Dataset(tokens, found)  # type: ignore[arg-type] # lists, where other tasks have rows


def all_sentences(paths: Sequence[Path], target: str | int | None, qid: str | int | None) -> Dataset:
    """The sentences of several files with the same columns, one after the other."""
    found: list[Any] = [sentences(paths[0], target, qid, labels=True)]
    width = len(found[0].X[0][0])
    found += [sentences(path, target, qid, labels=True, n_columns=width) for path in paths[1:]]
    X, y = ([one for data in found for one in data[k]] for k in range(2))
    return Dataset(X, y)  # type: ignore[arg-type] # as above


def n_columns(model: Any) -> int | None:
    """How many columns beside the label the sentences had that the model was fitted on."""
    if model.template != "window":
        raise ValueError("the model was fitted to features that were made in Python: predict there")
    found = {name.partition("[")[0] for name in model.features_}
    return 1 + len(found - {"w"})


def shape(model: Any, X: Any) -> tuple[int, int]:
    """Sentences, and weights of features."""
    return len(X), int(np.size(model.coef_))


def size(model: Any, X: Any) -> str:
    """How large the data are, in words."""
    tokens, p = sum(len(sentence) for sentence in X), model.n_features_in_
    return f"{len(X):,} sentences of {tokens:,} tokens, {p:,} features, {len(model.classes_):,} labels"


def check_labels(model: Any, y: Any, qid: Any) -> None:
    """Two labels at least."""
    found = {label for labels in y for label in labels}
    if len(found) == 1:
        raise ValueError(
            f"all tokens have the label {found.pop()}: choose another --target or other sentences"
        )


def labels_in(model: Any, y: Any) -> NDArray:
    """The labels, in order."""
    found: NDArray = np.unique([label for labels in y for label in labels])
    return found


def truth(model: Any, y: Any, n_rows: int) -> tuple[NDArray, NDArray]:
    """The numbers of the labels, token by token, and the weights of sentences."""
    from riskmin.estimators.tagger_input import label_codes

    flat = (label for labels in y for label in labels)
    return label_codes(flat, model.classes_.tolist(), where="the file"), np.full(len(y), 1 / len(y))


def words(model: Any, X: Any) -> list[str]:
    """A label a token."""
    return [str(label) for labels in model.predict(X) for label in labels]


def scores(model: Any, X: Any) -> NDArray:
    """The scores of the labels, token by token."""
    found: NDArray = model.decision_function(X)
    return found


# ---------------------------------------------------------------- what it says
def predicted(model: Any, data: Dataset, *, scores: bool, proba: bool) -> str:
    """The tokens with a column more, or the probabilities of their labels; blank lines between sentences."""
    if scores:
        raise ValueError("a tagger scores whole sentences, not tokens: leave --scores out, or use --proba")
    X: Any = data.X
    if proba:
        rows = [[list(one.values()) for one in tokens] for tokens in model.predict_marginals(X)]
        return "\n".join("".join("\t".join(map(repr, row)) + "\n" for row in tokens) for tokens in rows)
    said = model.predict(X)
    given: Any = [[()] * len(tokens) for tokens in X] if data.y is None else data.y
    parts = []
    for tokens, true, labels in zip(X, given, said, strict=True):
        for cells, right, label in zip(tokens, true, labels, strict=True):
            parts.append(" ".join([*cells, *([right] if data.y is not None else []), label]) + "\n")
        parts.append("\n")
    return "".join(parts[:-1])


def measures(model: Any, X: Any, y: Any, qid: Any) -> dict[str, Any]:
    """Tokens and sentences that are right, and chunks where the labels mark any; a new label is an error."""
    said = model.predict(X)
    right = [np.array([a == b for a, b in zip(*both, strict=True)]) for both in zip(y, said, strict=True)]
    tokens = np.concatenate(right)
    found: dict[str, Any] = {
        "tokens": len(tokens),
        "accuracy": float(tokens.mean()),
        "sentences all right": float(np.mean([one.all() for one in right])),
    }
    if {label for labels in y for label in labels} <= set(model.classes_.tolist()):
        found["mean loss"] = risk(model, X, y)
    try:
        counts = chunk_counts(y, said)
    except ValueError:
        return found  # these labels mark no chunks
    return found | {
        "chunks": {"all": _measures(overall(counts))} | {k: _measures(c) for k, c in counts.items()}
    }


def _measures(count: ChunkCount) -> dict[str, Any]:
    return {"precision": count.precision, "recall": count.recall, "F1": count.f1} | count._asdict()


def say(found: dict[str, Any], title: str, rows: int, *, as_json: bool) -> None:
    """Print the measures."""
    from riskmin.cli.common import columns, show

    if as_json:
        click.echo(json.dumps({"rows": rows, **found}))
        return
    click.echo(f"{title}, {rows:,} sentences")
    show((name, f"{value:.6g}") for name, value in found.items() if name != "chunks")
    if "chunks" not in found:
        return
    shares, numbers = ("precision", "recall", "F1"), ("true", "predicted", "correct")
    body = [
        [
            kind or "-",
            *(f"{100 * one[name]:.2f}%" for name in shares),
            *(f"{one[name]:,}" for name in numbers),
        ]
        for kind, one in found["chunks"].items()
    ]
    columns([["chunks", *shares, *numbers], *body])


# ---------------------------------------------------------------- the claim
def risk(model: Any, X: Any, y: Any) -> float:
    """The mean loss at the model's weights, computed from its arrays alone."""
    from riskmin.estimators.base import loss_of
    from riskmin.estimators.tagger_decode import emissions
    from riskmin.estimators.tagger_input import read_tokens

    tokens, _ = read_tokens(model, X, None, reset=False)
    codes, _ = truth(model, y, len(y))
    number = np.repeat(np.arange(len(tokens.lengths)), tokens.lengths)
    z = np.vstack([emissions(model, tokens.X), model.transitions_, model.start_, model.end_])
    c = np.full(len(codes), 1 / len(tokens.lengths))
    value, _ = loss_of(model).value_grad(z, np.column_stack([codes, number]), c)
    return float(value)
