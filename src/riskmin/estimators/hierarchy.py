"""Linear classification of labels in a hierarchy, with weights for each node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np

from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.estimators._common.base import RowEstimator, estimator
from riskmin.estimators._common.fit import (
    resolve_loss,
    warn_unless_converged,
)
from riskmin.estimators._common.input import (
    DaskLabelsMixin,
    affine_scores,
    compute_if_dask,
    validate_rows,
)
from riskmin.estimators._common.labels import Classes, unique_classes
from riskmin.estimators.persistence.records import json_name
from riskmin.estimators.scikit_learn import ClassifierMixin, available_if, check_is_fitted
from riskmin.linear_maps.tree import Tree
from riskmin.losses.hierarchy import HierarchicalHinge, HierarchicalSoftmax
from riskmin.losses.multiclass import MulticlassHinge, Softmax
from riskmin.metrics.hierarchy import tree_distance, tree_of_labels


@dataclass(frozen=True, eq=False)
class Paths(Classes):
    """Labels of a hierarchy, with the nodes on their paths."""

    selects_rows = True

    tree: Tree

    @classmethod
    def learn(cls, model: Any, y: Any, weight: NDArray | None, order: list[Any] | None = None) -> Paths:
        classes = unique_classes(y, weight)
        tree = tree_of_labels(classes.tolist(), model.hierarchy, model.separator)
        if model.warm_start and vars(model).get("tree_", tree) != tree:
            raise ValueError(
                "warm_start=True starts from the last fit, which had other labels or features: set "
                "warm_start=False or make a new estimator"
            )
        return cls(classes, tree)

    def loss(self, model: Any) -> Any:
        return model.loss_for_tree(self.tree)

    def columns(self, loss: Any) -> int:
        return len(self.tree.nodes)

    def to_json(self) -> dict[str, Any]:
        return {
            "values": [json_name(label) for label in self.tree.labels],
            "dtype": self.values.dtype.str,
            "nodes": [json_name(node) for node in self.tree.nodes],
            "parents": list(self.tree.parents),
        }

    @classmethod
    def read(cls, record: dict[str, Any]) -> Paths:
        tree = Tree(tuple(record["nodes"]), tuple(record["parents"]), tuple(record["values"]))
        return cls(Classes.read(record).values, tree)


def flat_loss(model: Any) -> Any:
    """Return the multiclass loss that the parameter `loss` denotes, without the hierarchy."""
    named = model.loss_aliases.get(model.loss) if isinstance(model.loss, str) else model.loss
    loss = None if named is None else resolve_loss(model)
    if not isinstance(loss, (MulticlassHinge, Softmax)):
        raise ValueError(
            f"loss={model.loss!r}, but HierarchicalClassifier has 'hinge' and 'softmax', or objects "
            "MulticlassHinge() and Softmax(): choose one of these"
        )
    return loss


def has_probabilities(model: Any) -> bool:
    """Whether the loss is that of a probabilistic model; raise AttributeError otherwise."""
    if flat_loss(model).probabilistic:
        return True
    raise AttributeError(
        f"probabilities need loss='softmax', not {model.loss!r}; or calibrate the scores by "
        f"sklearn.calibration.CalibratedClassifierCV({type(model).__name__}({model.loss!r}))"
    )


@estimator
class HierarchicalClassifier(DaskLabelsMixin, ClassifierMixin, RowEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""A linear classifier of labels in a hierarchy, with a certified objective.

    .. math::
        \min_{W, b}\; J = \alpha\,\Omega(W) + \sum_i c_i\, l(z_i, y_i), \qquad
        z_{il} = b_l + \sum_{v \text{ on the path to } l} x_i^\top w_v.

    Every node v of the hierarchy has weights :math:`w_v`, and the score of a label is the sum along its path,
    so that labels below the same node share its weights. The label with the largest score is predicted.
    Leaves and inner nodes may be labels, and paths may differ in length. The intercepts, one per label, are
    not penalized. The fit stops when :math:`J - \min J \le \text{tol} \cdot J` is proved.

    Parameters
    ----------
    loss : "hinge", "softmax" or loss
        "hinge" is :math:`\max_l \Delta_{yl} + z_l - z_y`, a margin that grows with the distance of labels
        (`riskmin.HierarchicalHinge`); "softmax" is :math:`\log \sum_l e^{z_l} - z_y`, and has probabilities.
        Or an object, ``MulticlassHinge(rescaled=True)``.
    hierarchy : dict, Tree or None
        The parent of every node, None for top-level nodes: ``{"C": None, "C15": "C"}``. None for labels that
        are paths, such as ``"C/C15/C151"``; labels that are not strings are then top-level nodes.
    separator : str
        Separator between the components of a path.
    cost : "tree distance", "zero one" or (k, k) array
        :math:`\Delta` of the hinge: the number of edges between two labels, 1 for any mistake, or a matrix in
        the order of `classes_`.
    fit_intercept : bool
        Whether to fit the intercept b; if False, b = 0.
    class_weight : dict, "balanced" or None
        Factors for the row weights of each label; "balanced" gives all labels the same total weight.

    Attributes
    ----------
    classes_ : (k,) array
        The labels of the training rows, sorted. Other labels of the hierarchy are never predicted.
    tree_ : Tree
        The nodes on the paths to these labels.
    coef_ : (nodes, p) array
        The weights, in the order of ``tree_.nodes``.
    intercept_ : (k,) array
        b, in the order of `classes_`.

    References
    ----------
    O. Dekel, J. Keshet, Y. Singer, Large margin hierarchical classification, ICML 2004. L. Cai,
    T. Hofmann, Hierarchical document categorization with support vector machines, CIKM 2004.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> from riskmin import HierarchicalClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> parents = {"light": None, "full": None, 0: "full", 1: "light", 2: "light"}
    >>> model = HierarchicalClassifier("softmax", hierarchy=parents, alpha=1e-3).fit(scale(X), y)
    >>> model.tree_.nodes, model.coef_.shape
    (('light', 1, 2, 'full', 0), (5, 13))
    >>> model.tree_cost(scale(X), y) < 0.02
    True
    >>> model.gap_ <= model.tol * model.objective_
    True
    """

    task = "hierarchy"
    _label_kind = Paths
    extra_loss_tasks = ("multiclass",)
    intercepts_in_w = True
    loss_aliases: ClassVar = {"hinge": "multiclass_hinge", "softmax": "softmax"}

    loss: Any = field(default="hinge", kw_only=False)
    hierarchy: Any = None
    separator: str = "/"
    cost: Any = "tree distance"
    fit_intercept: bool = True
    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> HierarchicalClassifier:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame; `riskmin.PartitionedMatrix` or Dask array or dataframe
            Float arrays in either order and CSR are not copied. Remote rows are not moved.
        y : (n,) array
            Labels: nodes of the hierarchy, at least two different ones.
        sample_weight : (n,) array, optional
            Weights >= 0; rows of weight zero have no effect on the fit.

        Returns
        -------
        HierarchicalClassifier
            The fitted estimator itself.
        """
        flat_loss(self)  # report an invalid loss before reading y
        self._check_parameters()
        X, y = validate_rows(self, X, y)
        self._fit_rows(X, y, sample_weight)
        warn_unless_converged(self)
        return self

    def loss_for_tree(self, tree: Tree) -> HierarchicalHinge | HierarchicalSoftmax:
        """Return the loss for the labels of a tree."""
        flat = flat_loss(self)
        if flat.probabilistic:
            return HierarchicalSoftmax(tree)
        # a cost given with the loss object precedes the parameter `cost`
        return HierarchicalHinge(
            tree, self.cost if flat.cost is None else flat.cost, flat.rescaled, flat.scaled_margin
        )

    def _set_weights(self, w: NDArray, b: NDArray, cuts: NDArray) -> None:
        known = cast(Paths, self._labels)
        self.classes_, self.tree_, n_nodes = known.values, known.tree, len(known.tree.nodes)
        # the (p, n_nodes) weights in row-major order, then the intercepts, if there are any
        size, k = n_nodes * self.n_features_in_, len(known.values)
        self.coef_ = w[:size].reshape(-1, n_nodes).T
        self.intercept_ = w[size:].copy() if len(w) > size else np.zeros(k)

    def _scores(self, X: Any) -> NDArray:
        return self.scores(X)

    def scores(self, X: Any) -> NDArray:
        """Return the scores of the labels, one column per entry of `classes_`, also if there are two."""
        check_is_fitted(self)
        # weights of the labels: sums of the weights along their paths; `to_labels` adds in place
        W = np.ascontiguousarray(self.tree_.to_labels(self.coef_.T.copy()))
        return affine_scores(validate_rows(self, X, reset=False), W, self.intercept_)

    def decision_function(self, X: Any) -> NDArray:
        """Return the scores of the labels, as `scores` does.

        For two labels, as in scikit-learn, return one number per row, above zero for ``classes_[1]``.
        """
        z = self.scores(X)
        return z[:, 1] - z[:, 0] if len(self.classes_) == 2 else z

    def predict(self, X: Any) -> NDArray:
        """Predict the label of every row."""
        best = np.argmax(self.scores(X), axis=1)
        labels: NDArray = self.classes_[best]
        return labels

    @available_if(has_probabilities)
    def predict_proba(self, X: Any) -> NDArray:
        """Predict the probabilities of the labels, in the order of `classes_` (loss "softmax" only)."""
        p: NDArray = scipy_module("special").softmax(self.scores(X), axis=1)
        return p

    @available_if(has_probabilities)
    def predict_log_proba(self, X: Any) -> NDArray:
        """Predict log-probabilities, accurate also where the probabilities round to 0 or 1."""
        p: NDArray = scipy_module("special").log_softmax(self.scores(X), axis=1)
        return p

    def tree_cost(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean number of edges between true and predicted labels; 0 is best."""
        y_true, y_pred, sample_weight = compute_if_dask(y), self.predict(X), compute_if_dask(sample_weight)
        return tree_distance(
            y_true, y_pred, self.hierarchy, separator=self.separator, sample_weight=sample_weight
        )
