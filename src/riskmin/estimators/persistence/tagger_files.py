"""Metadata of taggers in model files: the names of the features, and the labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.estimators.persistence.plain_checks import read_classes, read_count


def tagger_arrays(model: Any) -> dict[str, NDArray]:
    """Return the feature names as one UTF-8 text, and the byte offset at which each of them ends."""
    if model.features_ is None:
        return {}
    # lone surrogates, which come from files that are not valid text, are preserved
    names = [name.encode("utf-8", "surrogatepass") for name in model.features_]
    ends: NDArray = np.cumsum([len(name) for name in names], dtype=np.int64)
    return {"feature_text": np.frombuffer(b"".join(names), dtype=np.uint8), "feature_ends": ends}


def tagger_metadata(model: Any) -> dict[str, Any]:
    """Return the labels."""
    return {"labels": {"values": model.classes_.tolist(), "dtype": model.classes_.dtype.str}}


def tagger_weights_size(fitted: dict[str, Any]) -> int:
    """Return the length of w: p emission, k transition, one start and one end weight for each of k labels."""
    k = len(fitted["labels"]["values"])
    return (read_count(fitted, "n_features") + k + 2) * k


def restore_tagger(model: Any, w: NDArray, fitted: dict[str, Any], arrays: dict[str, NDArray]) -> None:
    """Set the fitted attributes of a tagger from its file."""
    p, labels = int(fitted["n_features"]), fitted["labels"]
    classes = read_classes(labels)
    if len(classes) < 2:
        raise ValueError("its labels are not two or more, each named once")
    names = _feature_names(arrays, p)
    if names is None and model.template is not None:
        raise ValueError("the names of its features are missing, which its template makes")
    model._set_fitted(w, classes, names, p)


def _feature_names(arrays: dict[str, NDArray], p: int) -> dict[str, int] | None:
    if "feature_ends" not in arrays:
        return None
    text, offsets = arrays["feature_text"].tobytes(), arrays["feature_ends"]
    if offsets.dtype != np.int64 or offsets.ndim != 1:
        raise ValueError(f"feature_ends is {offsets.dtype}{offsets.shape}, not a row of int64")
    ends = offsets.tolist()
    starts = [0, *ends[:-1]]
    names = [text[i:j].decode("utf-8", "surrogatepass") for i, j in zip(starts, ends, strict=True)]
    # fewer entries than names if a name occurs twice
    features = {name: j for j, name in enumerate(names)}
    if len(features) != p or len(names) != p:
        raise ValueError(f"it names {len(features)} features, but has {p}")
    return features
