"""Losses of labels in a hierarchy: multiclass losses of scores that are summed along the paths of a tree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_numpy
from riskmin.core import Array, NDArray
from riskmin.linear_maps.linear import TreePaths
from riskmin.linear_maps.tree import Tree
from riskmin.losses.base import Loss
from riskmin.losses.multiclass import MulticlassHinge, Softmax, margin_formula

COSTS = ("tree distance", "zero one")


class _PathLoss(Loss):
    """A multiclass loss applied to the scores of the paths, one per label of the tree."""

    tree: Tree
    multiclass_loss: Any

    task = "multiclass"

    def check_labels(self, y: Array) -> None:
        """Require labels numbered as in `Tree.labels`."""
        self.multiclass_loss.check_labels(y)
        # labels are indices into tree.labels
        n_labels, largest = len(self.tree.labels), float(as_numpy(y, "y").max())
        if largest >= n_labels:
            raise ValueError(
                f"y holds {largest:g}, but the tree has {n_labels} labels: number them from 0 to "
                f"{n_labels - 1}, in the order of tree.labels"
            )

    def linear_map(self, y: NDArray, n_outputs: int | None = None) -> TreePaths:
        """Return the linear map with one weight vector per node and one score per label."""
        n_labels = len(self.tree.labels)
        if n_outputs not in (None, n_labels):
            raise ValueError(
                f"n_outputs={n_outputs}, but the tree has {n_labels} labels: leave n_outputs out"
            )
        return TreePaths(self.tree)

    def for_classes(self, k: int) -> Loss:
        """Raise: the labels are those of the tree."""
        raise ValueError(f"{type(self).__name__} is a loss of labels in a tree: use HierarchicalClassifier")

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return value and gradient of the multiclass loss, z being the scores of the paths."""
        result: tuple[Any, Array] = self.multiclass_loss.value_grad(z, y, c)
        return result

    def constant_prediction_cuts(self, k: int) -> tuple[Any, Any]:
        """Return slopes and offsets of the linear lower bounds of the multiclass loss."""
        result: tuple[Any, Any] = self.multiclass_loss.constant_prediction_cuts(k)
        return result


@dataclass(frozen=True)
class HierarchicalSoftmax(_PathLoss):
    r"""The multinomial logistic loss of labels in a hierarchy, :math:`\log \sum_l e^{z_l} - z_y`.

    .. math:: z_l = \sum_{v \text{ on the path to } l} x^\top w_v

    Every node v of the tree has weights :math:`w_v`, and the score of a label is the sum along its path, so
    that labels share the weights of their common ancestors. Labels y are indices into `Tree.labels`.

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
    multiclass_loss = Softmax()


@dataclass(frozen=True, eq=False)
class HierarchicalHinge(_PathLoss):
    r"""The multiclass hinge loss of labels in a hierarchy, :math:`\max_l\; \Delta_{yl} + z_l - z_y`.

    .. math:: z_l = \sum_{v \text{ on the path to } l} x^\top w_v

    By default, the cost of a mistake is the distance of the labels in the tree, which is also the required
    margin of the scores. The loss is an upper bound of the cost of the label with the largest score.

    Parameters
    ----------
    tree : Tree
    cost : "tree distance", "zero one" or (k, k) array
        :math:`\Delta`: the number of edges between two labels, 1 for any mistake, or a matrix in the order of
        `Tree.labels`, zero on its diagonal.
    rescaled : bool or float
        Whether to use slack rescaling, :math:`\max_l\; \Delta_{yl} (1 + z_l - z_y)`; or the power of the cost
        that scales, see `MulticlassHinge`.
    scaled_margin : bool
        Whether the margin that grows with the cost is scaled, too; see `MulticlassHinge`.

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
    rescaled: bool | float = False
    scaled_margin: bool = False

    accepts_center = MulticlassHinge.accepts_center

    def __post_init__(self) -> None:
        term = margin_formula(self.rescaled, self.scaled_margin)
        object.__setattr__(self, "formula", f"max_j {term}, z summed along the paths")
        # names are resolved by `multiclass_loss`
        if isinstance(self.cost, str):
            if self.cost not in COSTS:
                raise ValueError(f"cost={self.cost!r}, but the costs are {' and '.join(COSTS)}, or a matrix")
            return
        n_labels = len(self.tree.labels)
        if np.shape(self.cost) != (n_labels, n_labels):
            raise ValueError(
                f"cost has shape {np.shape(self.cost)}, but the tree has {n_labels} labels: give a row and a "
                "column for each, in the order of tree.labels"
            )
        # the multiclass loss has validated the cost and made it an array
        object.__setattr__(self, "cost", self.multiclass_loss.cost)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HierarchicalHinge):
            return NotImplemented
        # the multiclass loss compares the cost matrix, whether it is given by name or as an array
        return self.tree == other.tree and self.multiclass_loss == other.multiclass_loss

    def __hash__(self) -> int:
        # without the cost matrix, which is not hashable
        return hash((type(self), self.tree, self.rescaled, self.scaled_margin))

    @cached_property
    def multiclass_loss(self) -> MulticlassHinge:
        """The multiclass loss of the path scores."""
        if isinstance(self.cost, str):
            # None is the zero-one cost of `MulticlassHinge`
            cost = self.tree.distance if self.cost == "tree distance" else None
            return MulticlassHinge(cost, self.rescaled, self.scaled_margin)
        return MulticlassHinge(self.cost, self.rescaled, self.scaled_margin)

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        """Return smoothed loss, gradient and minorant offset; the center is an earlier gradient."""
        return self.multiclass_loss.smoothed_value_grad(z, y, c, mu, center)
