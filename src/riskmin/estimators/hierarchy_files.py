"""What a file holds of a classifier of hierarchies beside its weights: the hierarchy, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from riskmin.estimators.hierarchy import put_back
from riskmin.estimators.plain_checks import classes_of, count_of, flag_of
from riskmin.tree import Tree
from riskmin.types import NDArray


def hierarchy_plain(given: Any) -> Any:
    """The parameter, fit for JSON: pairs, since its keys are strings; None as it is."""
    if isinstance(given, Tree):
        return {"nodes": list(given.nodes), "parents": list(given.parents), "labels": list(given.labels)}
    return [[_name(node), _name(parent)] for node, parent in given.items()] if given is not None else None


def hierarchy_from(written: Any) -> Any:
    """The parameter that `hierarchy_plain` wrote."""
    if isinstance(written, Mapping):
        return Tree(*(tuple(written[name]) for name in ("nodes", "parents", "labels")))
    return None if written is None else dict(written)


def tree_facts(model: Any) -> dict[str, Any]:
    """The labels, the nodes above them, and whether there are intercepts."""
    tree, classes = model.tree_, model.classes_
    return {
        "labels": {"values": [_name(label) for label in tree.labels], "dtype": classes.dtype.str},
        "nodes": [_name(node) for node in tree.nodes],
        "parents": list(tree.parents),
        "intercepts": len(model.result_.w) > model.coef_.size,
    }


def tree_dim(fitted: dict[str, Any]) -> int:
    """The length of w."""
    free = len(fitted["labels"]["values"]) if flag_of(fitted, "intercepts") else 0
    return count_of(fitted, "n_features") * len(fitted["nodes"]) + free


def put_back_tree(model: Any, w: NDArray, fitted: dict[str, Any]) -> None:
    """Set what predictions need."""
    labels = fitted["labels"]
    classes = classes_of(labels)
    if len(classes) < 2:
        raise ValueError("its labels are not two or more")
    tree = Tree(tuple(fitted["nodes"]), tuple(fitted["parents"]), tuple(labels["values"]))
    put_back(model, w, classes, tree, flag_of(fitted, "intercepts"))


def _name(node: Any) -> Any:
    """A name that JSON keeps as it is."""
    plain = node.item() if isinstance(node, np.generic) else node
    if plain is not None and not isinstance(plain, (str, int, float)):
        raise ValueError(
            f"the node {node!r} is neither a word nor a number, and is not written to model files: "
            "rename it, or pickle the model"
        )
    return plain
