"""Losses of labels in a hierarchy: those of many classes, on scores summed along the paths of a tree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.losses.multiclass import MulticlassHinge, Softmax
from riskmin.scorers import Hierarchy
from riskmin.tree import Tree
from riskmin.types import Array, NDArray

COSTS = ("tree distance", "zero one")


class _OnPaths:
    """A loss of many classes on the scores of the paths: it is told the scores alone, and is as it was."""

    tree: Tree
    flat: Any

    separable = True
    task = "multiclass"

    def check_labels(self, y: Array) -> None:
        """Numbers of labels of the tree."""
        self.flat.check_labels(y)
        many = len(self.tree.labels)
        if y.max() >= many:
            raise ValueError(
                f"y holds {y.max():g}, but the tree has {many} labels: number them from 0 to {many - 1}, "
                "in the order of tree.labels"
            )

    def scorer(self, y: NDArray, n_outputs: int | None = None) -> Hierarchy:
        """A weight vector a node, and a score a label."""
        many = len(self.tree.labels)
        if n_outputs not in (None, many):
            raise ValueError(f"n_outputs={n_outputs}, but the tree has {many} labels: leave n_outputs out")
        return Hierarchy(self.tree)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Those of the loss, z being the scores of the paths."""
        found: tuple[Any, Array] = self.flat.value_grad(z, y, c)
        return found

    def constants(self, k: int) -> tuple[Any, Any]:
        """Those of the loss."""
        found: tuple[Any, Any] = self.flat.constants(k)
        return found


@dataclass(frozen=True)
class HierarchicalSoftmax(_OnPaths):
    r"""The multinomial logistic loss of labels in a hierarchy, :math:`\log \sum_l e^{z_l} - z_y`.

    .. math:: z_l = \sum_{v \text{ on the path to } l} x^\top w_v

    Every node v of the tree has weights :math:`w_v`, and the score of a label is the sum along its path:
    what neighbours have in common is learned from the rows of all of them. Labels y are the numbers of
    `Tree.labels`, from 0 on.

    Parameters
    ----------
    tree : Tree

    References
    ----------
    O. Dekel, J. Keshet, Y. Singer, Large margin hierarchical classification, ICML 2004.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, HierarchicalSoftmax, Objective, Tree, linear_risk, minimize
    >>> tree = Tree.from_paths(["C/C15", "C/C17", "M"])
    >>> X, y = np.array([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.5]]), np.array([0.0, 1.0, 2.0])
    >>> result = minimize(Objective(linear_risk(X, y, HierarchicalSoftmax(tree)), L2(), lam=0.1))
    >>> result.status, result.w.reshape(2, 4).shape  # features x nodes
    ('converged', (2, 4))
    """

    tree: Tree

    smooth = True
    formula = "log sum_l exp z_l - z_y, z summed along the paths"
    flat = Softmax()


@dataclass(frozen=True, eq=False)
class HierarchicalHinge(_OnPaths):
    r"""The soft margin of labels in a hierarchy, :math:`\max_l\; \Delta_{yl} + z_l - z_y`.

    .. math:: z_l = \sum_{v \text{ on the path to } l} x^\top w_v

    A mistake costs as much as the labels are apart in the tree, and so far the scores must be apart. It is
    an upper bound of the cost of the label with the largest score.

    Parameters
    ----------
    tree : Tree
    cost : "tree distance", "zero one" or (k, k) array
        :math:`\Delta`: the number of edges between two labels, 1 for any mistake, or a matrix in the order of
        `Tree.labels`, zero on its diagonal.
    rescaled : bool
        Whether margins are scaled in place of shifted: :math:`\max_l\; \Delta_{yl} (1 + z_l - z_y)`.

    References
    ----------
    O. Dekel, J. Keshet, Y. Singer, Large margin hierarchical classification, ICML 2004. L. Cai,
    T. Hofmann, Hierarchical document categorization with support vector machines, CIKM 2004.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import HierarchicalHinge, Tree
    >>> loss = HierarchicalHinge(Tree.from_paths(["C/C15", "C/C17", "M"]))
    >>> value, dz = loss.value_grad(np.zeros((1, 3)), np.array([0.0]), np.ones(1))
    >>> float(value), dz.tolist()  # M is three edges from C15
    (3.0, [[-1.0, 0.0, 1.0]])
    """

    tree: Tree
    cost: Any = "tree distance"
    rescaled: bool = False

    smooth = False
    centred = MulticlassHinge.centred

    def __post_init__(self) -> None:
        if isinstance(self.cost, str):
            if self.cost not in COSTS:
                raise ValueError(f"cost={self.cost!r}, but the costs are {' and '.join(COSTS)}, or a matrix")
            return
        many = len(self.tree.labels)
        if np.shape(self.cost) != (many, many):
            raise ValueError(
                f"cost has shape {np.shape(self.cost)}, but the tree has {many} labels: give a row and a "
                "column for each, in the order of tree.labels"
            )
        object.__setattr__(self, "cost", self.flat.cost)  # checked, and an array

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HierarchicalHinge):
            return NotImplemented
        return self.tree == other.tree and self.flat == other.flat

    def __hash__(self) -> int:
        return hash((type(self), self.tree, self.rescaled))

    @cached_property
    def flat(self) -> MulticlassHinge:
        """The loss of the scores."""
        if isinstance(self.cost, str):
            cost = self.tree.distance if self.cost == "tree distance" else None
            return MulticlassHinge(cost, self.rescaled)
        return MulticlassHinge(self.cost, self.rescaled)

    @property
    def formula(self) -> str:
        """The loss in one line."""
        return f"{self.flat.formula}, z summed along the paths"

    def soft(
        self, z: Array, y: Array, c: Array, mu: float, centre: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """The smoothed loss of the scores, its gradient and its lift."""
        return self.flat.soft(z, y, c, mu, centre)
