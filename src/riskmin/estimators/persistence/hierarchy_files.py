"""Metadata of a hierarchical classifier in model files: the hierarchy as JSON-compatible data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.estimators.hierarchy import set_tree_weights
from riskmin.estimators.persistence.plain_checks import read_classes, read_count, read_flag
from riskmin.linear_maps.tree import Tree


def hierarchy_to_json(given: Any) -> Any:
    """Return the parameter `hierarchy` for JSON: pairs, since JSON keys are strings; None stays None."""
    if isinstance(given, Tree):
        return {"nodes": list(given.nodes), "parents": list(given.parents), "labels": list(given.labels)}
    return (
        [[_json_name(node), _json_name(parent)] for node, parent in given.items()]
        if given is not None
        else None
    )


def hierarchy_from_json(written: Any) -> Any:
    """Return the parameter that `hierarchy_to_json` wrote."""
    if isinstance(written, Mapping):
        return Tree(*(tuple(written[name]) for name in ("nodes", "parents", "labels")))
    return None if written is None else dict(written)


def tree_metadata(model: Any) -> dict[str, Any]:
    """Return the labels, the nodes with their parents, and whether there are intercepts."""
    tree, classes = model.tree_, model.classes_
    return {
        "labels": {"values": [_json_name(label) for label in tree.labels], "dtype": classes.dtype.str},
        "nodes": [_json_name(node) for node in tree.nodes],
        "parents": list(tree.parents),
        "intercepts": len(model.result_.w) > model.coef_.size,
    }


def tree_weights_size(fitted: dict[str, Any]) -> int:
    """Return the length of w: one weight per feature and node, and one intercept per label."""
    n_intercepts = len(fitted["labels"]["values"]) if read_flag(fitted, "intercepts") else 0
    return read_count(fitted, "n_features") * len(fitted["nodes"]) + n_intercepts


def restore_tree(model: Any, w: NDArray, fitted: dict[str, Any]) -> None:
    """Set the fitted attributes of a model from its file."""
    labels = fitted["labels"]
    classes = read_classes(labels)
    if len(classes) < 2:
        raise ValueError("its labels are not two or more")
    tree = Tree(tuple(fitted["nodes"]), tuple(fitted["parents"]), tuple(labels["values"]))
    set_tree_weights(model, w, classes, tree, read_flag(fitted, "intercepts"))


def _json_name(node: Any) -> Any:
    """Return the name of a node as a type that JSON preserves; raise if there is none."""
    # JSON preserves strings, numbers and null, but no NumPy scalars
    name = node.item() if isinstance(node, np.generic) else node
    if name is not None and not isinstance(name, (str, int, float)):
        raise ValueError(
            f"the node {node!r} is neither a string nor a number, and is not written to model files: "
            "rename it, or pickle the model"
        )
    return name
