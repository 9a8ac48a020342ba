"""Labels in a hierarchy, and weights for each node of it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from riskmin.estimators.base import (
    as_weights,
    check_parameters,
    fit_objective,
    loss_of,
    objective_of,
    regularizer_of,
    warn_unless_converged,
)
from riskmin.estimators.binary import classes_of, with_class_weight
from riskmin.estimators.rows import LabelsHere, checked, executor_for, here, picked, scored
from riskmin.estimators.standardize import standard_of
from riskmin.linear import linear_risk
from riskmin.losses.hierarchy import HierarchicalHinge, HierarchicalSoftmax
from riskmin.losses.multiclass import MulticlassHinge, Softmax
from riskmin.metrics.hierarchy import tree_distance, tree_of
from riskmin.solvers import get_solver
from riskmin.tree import Tree
from riskmin.types import NDArray


def flat_loss(model: Any) -> MulticlassHinge | Softmax:
    """The loss of many classes that the model's parameter stands for."""
    found = (
        model.loss if isinstance(model.loss, str) and model.loss not in model.nicknames else loss_of(model)
    )
    if not isinstance(found, (MulticlassHinge, Softmax)):
        raise ValueError(
            f"loss={model.loss!r}, but HierarchicalClassifier has 'hinge' and 'softmax', or objects "
            "MulticlassHinge() and Softmax(): choose one of these"
        )
    return found


def has_probabilities(model: Any) -> bool:
    """Whether the loss is that of a probabilistic model; an AttributeError says why not."""
    if isinstance(flat_loss(model), Softmax):
        return True
    raise AttributeError(f"probabilities need loss='softmax', not {model.loss!r}")


class HierarchicalClassifier(LabelsHere, ClassifierMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""A linear classifier of labels in a hierarchy, with a certified objective.

    .. math::
        \min_{W, b}\; J = \alpha\,\Omega(W) + \sum_i c_i\, l(z_i, y_i), \qquad
        z_{il} = b_l + \sum_{v \text{ on the path to } l} x_i^\top w_v.

    Every node v of the hierarchy has weights :math:`w_v`, and the score of a label is the sum along its path:
    what neighbours have in common is learned from the rows of all of them. The label with the largest score
    is predicted. Leaves and inner nodes may be labels, and paths may differ in length. The intercepts, one a
    label, are not penalized. The fit ends when :math:`J - \min J \le \text{tol} \cdot J` is proved.

    Parameters
    ----------
    loss : "hinge", "softmax" or loss
        "hinge" is :math:`\max_l \Delta_{yl} + z_l - z_y`, so that scores are further apart where labels are
        (`riskmin.HierarchicalHinge`); "softmax" is :math:`\log \sum_l e^{z_l} - z_y`, and has probabilities.
        Or an object, ``MulticlassHinge(rescaled=True)``.
    hierarchy : dict, Tree or None
        The parent of every node, None for the nodes that have none: ``{"C": None, "C15": "C"}``. None for
        labels that are paths, such as ``"C/C15/C151"``; there, what is no string is a node of its own.
    separator : str
        What is between the parts of a path.
    cost : "tree distance", "zero one" or (k, k) array
        :math:`\Delta` of the hinge: the number of edges between two labels, 1 for any mistake, or a matrix in
        the order of `classes_`.
    alpha : float
        The strength of the regularizer.
    regularizer, positive, standardize
        As in `LinearClassifier`, for the weights of all nodes.
    fit_intercept : bool
        Whether to fit b, or to have it zero.
    class_weight : dict, "balanced" or None
        Factors for the weights of the rows of each label; "balanced" gives all labels the same sum.
    solver, tol, atol, max_iter, max_seconds, n_jobs, callback, checkpoint, verbose
        As in `LinearClassifier`.
    warm_start : bool
        Whether `fit` starts from the last weights.

    Attributes
    ----------
    classes_ : (k,) array
        The labels of the rows fitted to, in order. Others of the hierarchy are never predicted.
    tree_ : Tree
        The nodes on the paths to them.
    coef_ : (nodes, p) array
        The weights, in the order of ``tree_.nodes``.
    intercept_ : (k,) array
        b, in the order of `classes_`.
    scale_ : (p,) array or None
        The standard deviations of the columns; None without `standardize`.
    objective_, lower_bound_, gap_ : float
        J, what min J is proved not to be below, and their difference.
    n_iter_, result_, n_samples_fit_, weighted_, n_features_in_, feature_names_in_
        As in `LinearClassifier`.

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
    also_for = ("multiclass",)
    nicknames: ClassVar = {"hinge": "multiclass_hinge", "softmax": "softmax"}

    def __init__(
        self,
        loss: Any = "hinge",
        *,
        hierarchy: Any = None,
        separator: str = "/",
        cost: Any = "tree distance",
        alpha: float = 1e-4,
        regularizer: Any = "l2",
        positive: bool = False,
        standardize: bool = False,
        fit_intercept: bool = True,
        class_weight: Any = None,
        solver: Any = None,
        tol: float = 1e-3,
        atol: float | None = None,
        max_iter: int = 10_000,
        max_seconds: float | None = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        callback: Any = None,
        checkpoint: Any = None,
        verbose: bool = False,
    ) -> None:
        self.loss = loss
        self.hierarchy = hierarchy
        self.separator = separator
        self.cost = cost
        self.alpha = alpha
        self.regularizer = regularizer
        self.positive = positive
        self.standardize = standardize
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.solver = solver
        self.tol = tol
        self.atol = atol
        self.max_iter = max_iter
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.callback = callback
        self.checkpoint = checkpoint
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> HierarchicalClassifier:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame; `riskmin.Spread` or Dask array or dataframe
            Float arrays in either order and CSR are not copied. Rows that are elsewhere stay there.
        y : (n,) array
            Nodes of the hierarchy, at least two different ones.
        sample_weight : (n,) array, optional
            Weights >= 0; a row of weight zero might as well not be there.

        Returns
        -------
        HierarchicalClassifier
            Itself.
        """
        flat_loss(self)  # what is wrong with it is said before y is looked at
        check_parameters(self)
        X, y = checked(self, X, y)
        n_rows, weight = len(y), as_weights(sample_weight, len(y))
        classes = classes_of(y, weight)
        if weight is not None and not weight.all():  # a label without weight is none, and has no intercept
            X, y, weight = picked(X, weight > 0), y[weight > 0], weight[weight > 0]
        number = np.searchsorted(classes, y)
        tree = tree_of(classes.tolist(), self.hierarchy, self.separator)
        row_weight = weight
        if self.class_weight is not None:
            weight = with_class_weight(self.class_weight, classes, number, weight)
        w = self._minimize(X, number.astype(np.float64), weight, row_weight, tree)
        put_back(self, w, classes, tree, self.fit_intercept)
        self.weighted_ = sample_weight is not None  # class weights follow from y, so they are no part of it
        self.n_samples_fit_ = n_rows
        warn_unless_converged(self)
        return self

    def _minimize(
        self, X: Any, y: NDArray, weight: NDArray | None, row_weight: NDArray | None, tree: Tree
    ) -> NDArray:
        """The weights of the nodes, then the intercepts, in one vector."""
        risk: Any = linear_risk(
            X,
            y,
            self.loss_in(tree),
            sample_weight=weight,
            fit_intercept=bool(self.fit_intercept),
            executor=executor_for(self, X),
        )
        standard = standard_of(self, risk, weight, row_weight)
        objective = objective_of(self, risk, regularizer_of(self, risk), standard)
        w, _ = fit_objective(
            self,
            objective,
            get_solver(self.solver),
            self._start(tree, X.shape[1]),
            n_rows=len(y),
            weighted=weight is not None,
            standard=standard,
        )
        return w

    def loss_in(self, tree: Tree) -> HierarchicalHinge | HierarchicalSoftmax:
        """The loss of the labels of a tree."""
        flat = flat_loss(self)
        if isinstance(flat, Softmax):
            return HierarchicalSoftmax(tree)
        return HierarchicalHinge(tree, self.cost if flat.cost is None else flat.cost, flat.rescaled)

    def _start(self, tree: Tree, n_features: int) -> NDArray | None:
        if not self.warm_start or not hasattr(self, "coef_"):
            return None
        if self.tree_ != tree or self.coef_.shape[1] != n_features:
            raise ValueError(
                "warm_start=True starts from the last fit, which had other labels or features: "
                "set warm_start=False or make a new estimator"
            )
        last = np.ravel(self.coef_.T)
        return np.concatenate([last, self.intercept_]) if self.fit_intercept else last

    def scores(self, X: Any) -> NDArray:
        """The scores of the labels, a column for each of `classes_`, for two of them too."""
        check_is_fitted(self)
        along = np.ascontiguousarray(self.tree_.to_labels(self.coef_.T.copy()))  # it adds in place
        return scored(checked(self, X, reset=False), along, self.intercept_)

    def decision_function(self, X: Any) -> NDArray:
        """The scores of the labels, as `scores` has them.

        For two labels, as everywhere in scikit-learn, a number above zero for ``classes_[1]``.
        """
        z = self.scores(X)
        return z[:, 1] - z[:, 0] if len(self.classes_) == 2 else z

    def predict(self, X: Any) -> NDArray:
        """The label of every row."""
        best = np.argmax(self.scores(X), axis=1)
        labels: NDArray = self.classes_[best]
        return labels

    @available_if(has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray:
        """The probabilities of the labels, in the order of `classes_`: for "softmax" only."""
        p: NDArray = softmax(self.scores(X), axis=1)
        return p

    @available_if(has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> NDArray:
        """The logarithms of the probabilities, exact where those round to 0 or 1."""
        p: NDArray = log_softmax(self.scores(X), axis=1)
        return p

    def tree_cost(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The mean number of edges between the right labels and the predicted ones; 0 is the best."""
        y, said, sample_weight = here(y), self.predict(X), here(sample_weight)
        return tree_distance(y, said, self.hierarchy, separator=self.separator, sample_weight=sample_weight)


def put_back(model: Any, w: NDArray, classes: NDArray, tree: Tree, fit_intercept: bool) -> None:
    """Set what predictions need, from the vector that was fitted."""
    k = len(classes)
    W, b = (w[:-k], w[-k:].copy()) if fit_intercept else (w, np.zeros(k))
    model.classes_, model.tree_, model.intercept_ = classes, tree, b
    model.coef_ = W.reshape(-1, len(tree.nodes)).T
