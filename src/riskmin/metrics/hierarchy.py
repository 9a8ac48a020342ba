"""How far predictions are off in a hierarchy of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from riskmin.tree import Tree, path_parents
from riskmin.types import NDArray


def tree_distance(
    y_true: Any, y_pred: Any, hierarchy: Any = None, *, separator: str = "/", sample_weight: Any = None
) -> float:
    r"""The mean number of edges between the right label and the predicted one; 0 is the best.

    Parameters
    ----------
    y_true, y_pred : (n,) arrays
        Labels, right and predicted.
    hierarchy : dict, Tree or None
        The parent of every node, None for those that have none. None for labels that are paths themselves,
        such as ``"C/C15/C151"``.
    separator : str
        What is between the parts of a path.
    sample_weight : (n,) array, optional

    Returns
    -------
    float
        Two labels that have no node in common are as far apart as both are deep.

    Examples
    --------
    >>> tree_distance(["C/C15", "M"], ["C/C17", "M"])
    1.0
    >>> tree_distance(["C15", "M"], ["C", "C"], {"C": None, "C15": "C", "M": None})
    1.5

    As a scorer of scikit-learn's searches, where more is better:

    >>> from sklearn.metrics import make_scorer
    >>> scorer = make_scorer(tree_distance, greater_is_better=False)
    """
    true, said = np.asarray(y_true), np.asarray(y_pred)
    if true.ndim != 1 or true.shape != said.shape or not len(true):
        raise ValueError(
            f"y_true has shape {true.shape} and y_pred {said.shape}: give one label and one prediction a row"
        )
    right, predicted = true.tolist(), said.tolist()
    at = {label: i for i, label in enumerate(dict.fromkeys([*right, *predicted]))}
    apart = tree_of(list(at), hierarchy, separator).distance
    off = apart[[at[label] for label in right], [at[label] for label in predicted]]
    if sample_weight is None:
        return float(off.mean())
    weight: NDArray = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != off.shape or not (weight >= 0).all() or not weight.sum() > 0:
        raise ValueError(f"sample_weight has shape {weight.shape}: give one weight >= 0 a row, not all 0")
    return float(weight @ off / weight.sum())


def tree_of(labels: list[Any], hierarchy: Any, separator: str = "/") -> Tree:
    """The part of a hierarchy that these labels are in, or that they are the paths of.

    Examples
    --------
    >>> tree_of(["C15"], {"C": None, "C15": "C", "M": None}).nodes
    ('C', 'C15')
    >>> tree_of(["C/C15"], None).nodes
    ('C', 'C/C15')
    """
    if hierarchy is None:
        return Tree.from_parents(path_parents(labels, separator), labels)
    if not isinstance(hierarchy, (Mapping, Tree)):
        raise ValueError(
            f"hierarchy={hierarchy!r}, but it must be a dict of the parent of every node, or None for labels "
            "that are paths"
        )
    tree = hierarchy if isinstance(hierarchy, Tree) else Tree.from_parents(hierarchy)
    known = set(tree.nodes)
    if strange := [label for label in labels if label not in known]:
        raise ValueError(
            f"the label {strange[0]!r} is not in the hierarchy: add it with its parent, or drop its rows"
        )
    return tree.below(labels)
