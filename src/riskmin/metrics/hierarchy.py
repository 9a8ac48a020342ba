"""The distance between true and predicted labels in a hierarchy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.linear_maps.tree import Tree, path_parents


def tree_distance(
    y_true: Any, y_pred: Any, hierarchy: Any = None, *, separator: str = "/", sample_weight: Any = None
) -> float:
    r"""The mean number of edges between the true label and the predicted one; 0 is the best.

    Parameters
    ----------
    y_true, y_pred : (n,) arrays
        True and predicted labels.
    hierarchy : dict, Tree or None
        The parent of every node, None for roots. Use None instead of a dict if the labels are paths, such as
        ``"C/C15/C151"``.
    separator : str
        The separator between the parts of a path.
    sample_weight : (n,) array, optional

    Returns
    -------
    float
        The distance between two labels without a common ancestor is the sum of their depths.

    Examples
    --------
    >>> tree_distance(["C/C15", "M"], ["C/C17", "M"])
    1.0
    >>> tree_distance(["C15", "M"], ["C", "C"], {"C": None, "C15": "C", "M": None})
    1.5

    As a scorer for scikit-learn's searches, where higher is better:

    >>> from sklearn.metrics import make_scorer
    >>> scorer = make_scorer(tree_distance, greater_is_better=False)
    """
    true, pred = np.asarray(y_true), np.asarray(y_pred)
    if true.ndim != 1 or true.shape != pred.shape or not len(true):
        raise ValueError(f"y_true has shape {true.shape} and y_pred {pred.shape}: give one of each per row")
    # the matrix of distances has one row and column per distinct label
    true_labels, pred_labels = true.tolist(), pred.tolist()
    index = {label: i for i, label in enumerate(dict.fromkeys([*true_labels, *pred_labels]))}
    pairwise = tree_of_labels(list(index), hierarchy, separator).distance
    distance = pairwise[[index[label] for label in true_labels], [index[label] for label in pred_labels]]
    if sample_weight is None:
        return float(distance.mean())
    weight: NDArray = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != distance.shape or not (weight >= 0).all() or not weight.sum() > 0:
        raise ValueError(f"sample_weight has shape {weight.shape}: give one weight >= 0 per row, not all 0")
    return float(weight @ distance / weight.sum())


def tree_of_labels(labels: list[Any], hierarchy: Any, separator: str = "/") -> Tree:
    """The subtree of a hierarchy that contains these labels, or the tree that they define as paths.

    Examples
    --------
    >>> tree_of_labels(["C15"], {"C": None, "C15": "C", "M": None}).nodes
    ('C', 'C15')
    >>> tree_of_labels(["C/C15"], None).nodes
    ('C', 'C/C15')
    """
    if hierarchy is None:
        return Tree.from_parents(path_parents(labels, separator), labels)
    if not isinstance(hierarchy, (Mapping, Tree)):
        raise ValueError(
            f"hierarchy={hierarchy!r}, but it must be a dict of the parent of every node, or None for labels "
            "that are paths"
        )
    # nodes that are no ancestors of these labels are left out
    tree = hierarchy if isinstance(hierarchy, Tree) else Tree.from_parents(hierarchy)
    known = set(tree.nodes)
    if unknown := [label for label in labels if label not in known]:
        raise ValueError(
            f"the label {unknown[0]!r} is not in the hierarchy: add it with its parent, or drop its rows"
        )
    return tree.restricted_to(labels)
