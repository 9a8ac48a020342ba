"""Linear classification of labels in a hierarchy, with weights for each node."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.estimators._common.base import RowEstimator, estimator
from riskmin.estimators._common.classes import apply_class_weight, class_codes, unique_classes
from riskmin.estimators._common.fit import (
    build_objective,
    fit_objective,
    normalize_weights,
    resolve_loss,
    resolve_regularizer,
    warn_unless_converged,
)
from riskmin.estimators._common.input import (
    DaskLabelsMixin,
    affine_scores,
    compute_if_dask,
    executor_for,
    select_rows,
    validate_rows,
)
from riskmin.estimators._common.standardize import column_scaling
from riskmin.estimators.persistence.records import json_name, read_classes, read_count, read_flag
from riskmin.estimators.scikit_learn import ClassifierMixin, available_if, check_is_fitted
from riskmin.linear_maps.tree import Tree
from riskmin.losses.hierarchy import HierarchicalHinge, HierarchicalSoftmax
from riskmin.losses.multiclass import MulticlassHinge, Softmax
from riskmin.metrics.hierarchy import tree_distance, tree_of_labels
from riskmin.problem.linear_risk import linear_risk
from riskmin.solvers import get_solver


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
        n_rows, weight = len(y), normalize_weights(sample_weight, len(y))
        classes = unique_classes(y, weight)
        if weight is not None and not weight.all():  # labels without weight get no intercept
            X, y, weight = select_rows(X, weight > 0), y[weight > 0], weight[weight > 0]
        codes = np.searchsorted(classes, y)
        tree = tree_of_labels(classes.tolist(), self.hierarchy, self.separator)
        # without class weights, for standard deviations
        row_weight = weight
        if self.class_weight is not None:
            weight = apply_class_weight(self.class_weight, classes, codes, weight)
        w = self._minimize(X, codes.astype(np.float64), weight, row_weight, tree)
        self._set_fitted(w, classes, tree, intercepts=self.fit_intercept)
        self.weighted_ = sample_weight is not None  # class weights are a function of y and do not count
        # the number of rows given, including dropped ones of weight zero
        self.n_samples_fit_ = n_rows
        warn_unless_converged(self)
        return self

    def _minimize(
        self, X: Any, y: NDArray, weight: NDArray | None, row_weight: NDArray | None, tree: Tree
    ) -> NDArray:
        """Return the weights of the nodes followed by the intercepts, as one vector."""
        risk: Any = linear_risk(
            X,
            y,
            self.loss_for_tree(tree),
            sample_weight=weight,
            fit_intercept=bool(self.fit_intercept),
            executor=executor_for(self, X),
        )
        scaling = column_scaling(self, risk, weight, row_weight)
        objective = build_objective(self, risk, resolve_regularizer(self, risk), scaling)
        w, _ = fit_objective(
            self,
            objective,
            get_solver(self.solver),
            self._warm_start_point(tree, X.shape[1]),
            n_rows=len(y),
            weighted=weight is not None,
            scaling=scaling,
        )
        return w

    def loss_for_tree(self, tree: Tree) -> HierarchicalHinge | HierarchicalSoftmax:
        """Return the loss for the labels of a tree."""
        flat = flat_loss(self)
        if flat.probabilistic:
            return HierarchicalSoftmax(tree)
        # a cost given with the loss object precedes the parameter `cost`
        return HierarchicalHinge(
            tree, self.cost if flat.cost is None else flat.cost, flat.rescaled, flat.scaled_margin
        )

    def _warm_start_point(self, tree: Tree, n_features: int) -> NDArray | None:
        if not self.warm_start or "coef_" not in vars(self):
            return None
        if self.tree_ != tree or self.coef_.shape[1] != n_features:
            raise ValueError(
                "warm_start=True starts from the last fit, which had other labels or features: "
                "set warm_start=False or make a new estimator"
            )
        # layout of w: the (p, n_nodes) weights in row-major order, then the intercepts
        last = np.ravel(self.coef_.T)
        return np.concatenate([last, self.intercept_]) if self.fit_intercept else last

    def _set_fitted(self, w: NDArray, classes: NDArray, tree: Tree, *, intercepts: bool) -> None:
        """Set the fitted attributes from w: the weights of the nodes, then the intercepts."""
        k = len(classes)
        W, b = (w[:-k], w[-k:].copy()) if intercepts else (w, np.zeros(k))
        self.classes_, self.tree_, self.intercept_ = classes, tree, b
        # W is the (p, n_nodes) matrix of weights in row-major order
        self.coef_ = W.reshape(-1, len(tree.nodes)).T

    def _fitted_loss(self) -> Any:
        return self.loss_for_tree(self.tree_)

    def _n_unpenalized(self) -> int:
        return len(self.result_.w) - int(self.coef_.size)

    def _targets(self, y: Any, n_rows: int, weight: NDArray | None) -> tuple[NDArray, NDArray | None]:
        return class_codes(self, y, weight)

    def _loss_scores(self, X: Any) -> NDArray:
        return self.scores(X)

    def _state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        tree = self.tree_
        labels = [json_name(label) for label in tree.labels]
        return {"coef": np.asarray(self.result_.w)}, {
            "labels": {"values": labels, "dtype": self.classes_.dtype.str},
            "nodes": [json_name(node) for node in tree.nodes],
            "parents": list(tree.parents),
            "intercepts": self._n_unpenalized() > 0,
        }

    def _n_weights(self, fitted: dict[str, Any], n_rows: int) -> int:
        # one weight per feature and node, and one intercept per label
        n_intercepts = len(fitted["labels"]["values"]) if read_flag(fitted, "intercepts") else 0
        return read_count(fitted, "n_features") * len(fitted["nodes"]) + n_intercepts

    def _restore(self, w: NDArray, fitted: dict[str, Any], arrays: dict[str, NDArray]) -> None:
        labels = fitted["labels"]
        classes = read_classes(labels)
        if len(classes) < 2:
            raise ValueError("its labels are not two or more")
        tree = Tree(tuple(fitted["nodes"]), tuple(fitted["parents"]), tuple(labels["values"]))
        self._set_fitted(w, classes, tree, intercepts=read_flag(fitted, "intercepts"))

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
