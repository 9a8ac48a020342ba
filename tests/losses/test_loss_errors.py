"""What losses, their labels, their settings and their trees refuse: each error names cause and remedy."""

import math
from dataclasses import replace

import numpy as np

import riskmin as rm
from helpers import refusals
from riskmin.metrics import tree_distance

X, CLASSES = np.arange(12.0).reshape(6, 2), np.array([0.0, 1, 2, 0, 1, 2])
SIGNS = np.array([1.0, 1, -1, -1, 1, -1])
TREE = rm.Tree.from_paths(["C/C15/C151", "C", "M/M13"])
PARENTS = {"C": None, "C15": "C", "M": None}
TOPICS = np.array(["C", "C15", "M", "C", "C15", "M"])


def labels(loss, *y, dtype=None):
    return lambda: loss.check_labels(np.array(y, dtype=dtype))


def queries(loss, *rows):
    return lambda: loss.check_labels(np.array(rows, dtype=float))


def risk(loss, y, **settings):
    return lambda: rm.linear_risk(X, y, loss, **settings)


def value(loss, y, n=6, **settings):
    """The risk on the first rows, evaluated: some errors depend on all rows."""
    return lambda: rm.linear_risk(X[:n], y[:n], loss, **settings)(np.zeros(2))


def fit(loss, reg, solver, **settings):
    risk = rm.linear_risk(X, CLASSES, loss, **settings)
    return lambda: rm.minimize(rm.Objective(risk, reg, 0.1), solver)


def classifier(y=TOPICS, **settings):
    return lambda: rm.HierarchicalClassifier(**settings).fit(X[: len(y)], y)


def parents(of_nodes, *labels):
    return lambda: rm.Tree.from_parents(of_nodes, *labels)


def paths(*labels, **settings):
    return lambda: rm.Tree.from_paths(labels, **settings)


def sequences(loss, y, **settings):
    return lambda: rm.linear_risk(X, y, loss, lengths=[2, 4], **settings)


LABELS = [
    (labels(rm.Hinge(), 0, 1, 1), "Hinge needs labels -1 and .1, but y holds 0, 1; use LinearClassifier"),
    (labels(rm.Logistic(), -1.0, 1.0, 0.5), "Logistic needs .* y holds -1, 0.5, 1"),
    (labels(rm.Hinge(), *range(9)), r"0, 1, 2, 3, 4, \.\.\."),
    (labels(rm.Hinge(), "spam", "ham"), "'ham', 'spam'"),
    (labels(rm.Hinge(), "spam", 1.5, dtype=object), "'1.5', 'spam'"),
    (labels(rm.Hinge(), True, False), "False, True"),
    (labels(rm.Hinge(), 1.0, 1.0), r"y holds a single class, \+1, but Hinge needs"),
    (labels(rm.Hinge(), -1, -1), "y holds a single class, -1"),
    (labels(rm.Hinge(), -1.0, np.nan, 1.0), "1 of 3 are NaN"),
    (labels(rm.Hinge()), "y is empty"),
    (labels(rm.Squared(), 1.0, np.inf), "Squared needs finite numbers in y, but y holds inf"),
    (labels(rm.Huber(), 1.0, np.nan), "1 of 2 are NaN"),
    (labels(rm.Absolute(), "a"), "finite numbers in y, but y holds 'a'"),
    (labels(rm.Poisson(), 3.0, -1.0, -2.0), "Poisson needs y >= 0, but y holds -2, -1"),
    (labels(rm.Poisson(), 3.0, -np.inf), "finite"),
    (risk(rm.Ordinal(), np.ones(6)), "y holds a single grade, 1"),
    (risk(rm.RocArea(), np.ones(6)), "y holds a single class"),
    (risk(rm.Hinge(), SIGNS, qid=np.zeros(6)), "Hinge does not use queries: leave qid out"),
    (risk(rm.Softmax(), list("abcabc")), "needs classes numbered 0, 1, 2, ..., but y holds 'a', 'b', 'c'"),
    (risk(rm.Softmax(), CLASSES - 1), "but y holds -1, 0, 1; use LinearClassifier"),
    (risk(rm.Softmax(), CLASSES / 2), "but y holds 0, 0.5, 1"),
    (risk(rm.Softmax(), np.where(CLASSES == 1, np.nan, CLASSES)), "2 of 6 are NaN; drop those rows"),
    (risk(rm.Softmax(), np.where(CLASSES == 1, np.inf, CLASSES)), "but y holds 0, 2, inf"),
    (risk(rm.Softmax(), np.full(6, 2.0)), "single class, 2, but two are needed: add rows of another, or"),
    (risk(rm.Softmax(), np.zeros(6), n_outputs=1), "y holds class 0, but n_outputs is 1: give 2 or more"),
    (risk(rm.Softmax(), None), "Softmax needs a label for every row, but y is None"),
    (risk(rm.Softmax(), np.eye(6)[:, :3]), r"give one label per row, an array of shape \(6,\)"),
    (risk(rm.Softmax(), CLASSES, n_outputs=2), "y holds class 2, but n_outputs is 2: give 3 or more"),
    (risk(rm.Softmax(), CLASSES, n_outputs=3.5), "n_outputs=3.5 is no whole number"),
    (risk(rm.Softmax(), CLASSES, lengths=[6]), "does not use sequences: leave lengths out"),
    (risk(rm.Softmax(), CLASSES, qid=CLASSES), "does not use queries: leave qid out"),
    (risk(rm.MultivariateSquared(), X, n_outputs=3), "y has 2 columns, but"),
    (risk(rm.MultivariateSquared(), np.inf + X), "needs finite numbers in y"),
    (risk(rm.MultivariateSquared(), X[:5]), "y has 5 labels, but X has 6 rows"),
    (risk(rm.HierarchicalSoftmax(TREE), CLASSES + 1), "y holds 3, but the tree has 3 labels: number them"),
    (risk(rm.HierarchicalSoftmax(TREE), CLASSES, n_outputs=4), "but the tree has 3 labels: leave"),
    (queries(rm.Ndcg(), [0, 0], [0, 0]), "two different grades"),
    (queries(rm.PairwiseHinge(), [1, 0], [0, 1]), "two different grades"),
    (queries(rm.Mrr(), [1, 0], [2, 0]), "grade 0"),
    (queries(rm.Ndcg(), [-1, 0], [2, 0]), "grades >= 0"),
    (queries(rm.Ndcg(), [np.nan, 0], [2, 0]), "NaN"),
    (labels(rm.Ndcg(), np.inf, 2.0), "qid"),
    *(
        # all weight is on rows of one grade
        (value(loss, [1, 0, 1, 1, 1, 1], qid=[0, 0, 1, 1, 1, 1], sample_weight=[0, 0, 1, 1, 1, 1]), "weight")
        for loss in (rm.Ndcg(), rm.Mrr(), rm.ExpectedRankUtility(), rm.PairwiseHinge())
    ),
    (queries(rm.PairwiseHinge(), [np.inf, 0], [2, 0]), "finite"),
    (risk(rm.Ndcg(), CLASSES, qid=np.array([1, "a", None] * 2, dtype=object)), "cannot be compared"),
    (sequences(rm.ChainCrf(), CLASSES - 1), "labels numbered 0, 1, 2"),
    (sequences(rm.ChainCrf(), 0 * CLASSES), "single label"),
    (sequences(rm.ChainCrf(), CLASSES, n_outputs=2), "n_outputs is 2: give 3 or more"),
    (lambda: rm.ChainCrf().value_grad(np.zeros((11, 3)), CLASSES, np.ones(6)), "linear_risk with lengths"),
    (
        lambda: rm.ChainMaxMargin().value_grad(
            np.zeros((11, 3)), np.column_stack([CLASSES + 1] * 2), np.ones(6)
        ),
        "labels 0 to 2",
    ),
    (
        lambda: rm.linear_risk(np.where(X == 9, np.nan, X), CLASSES, rm.Ndcg(), qid=[0, 0, 0, 1, 1, 1]),
        r"X holds NaN or infinity \(row 4, column 1\)",
    ),
]
SETTINGS = [
    (lambda: rm.Hinge(margin=-1.0), "Hinge needs margin >= 0, got -1"),
    (lambda: rm.SquaredHinge(margin=math.nan), "SquaredHinge needs margin >= 0, got nan"),
    (lambda: rm.PowerHinge(p=0.5), "p >= 1"),
    (lambda: rm.PowerHinge(p=2.0, margin=math.inf), "margin"),
    (lambda: rm.SmoothedHinge(mu=0.0), "mu > 0.*Hinge"),
    (lambda: rm.Quantile(level=0.0), "0 < level < 1"),
    (lambda: rm.Quantile(level=90), "0 < level < 1"),
    (lambda: rm.EpsilonInsensitive(epsilon=-0.1), "epsilon >= 0"),
    (lambda: rm.EpsilonInsensitive(power=0.9), "power >= 1"),
    (lambda: rm.Huber(delta=0.0), "delta > 0"),
    (lambda: rm.FBeta(0.0), "FBeta needs a beta > 0"),
    (lambda: rm.FBeta(math.nan), "FBeta needs a beta > 0"),
    (lambda: rm.FBeta(math.inf), "FBeta needs a beta > 0"),
    (lambda: rm.FBeta(1e-200), "whose square is a number"),
    (lambda: rm.FBeta(1e200), "whose square is a number"),
    (lambda: rm.PrecisionAtK(0), "PrecisionAtK needs k to be a whole number >= 1, not 0"),
    (lambda: rm.RecallAtK(2.5), "RecallAtK needs k to be a whole number >= 1"),
    (lambda: rm.PrecisionAtK("3"), "whole number"),
    (lambda: rm.Ordinal([[], [-1.0]]), "costs needs one row per grade"),
    (lambda: rm.Ordinal([[], [0.0]]), "costs needs one row per grade"),
    (lambda: rm.Ordinal([[], []]), "costs needs one row per grade"),
    (lambda: rm.Ordinal([[], [math.nan]]), "costs needs one row per grade"),
    (lambda: rm.Ndcg(k=0), "whole number"),
    (lambda: rm.Ndcg(k=2.5), "whole number"),
    (lambda: rm.ExpectedRankUtility(half_life=1.0), "half_life > 1"),
    (lambda: rm.Ndcg(weights="linear"), "give None, 'discount'"),
    (lambda: rm.Mrr(weights=-1.0), "power > 0"),
    (lambda: rm.PositionWeights(shift=-1), "shift >= 0"),
    (lambda: rm.PositionWeights(k=0.5), "whole number >= 1 or None"),
    (lambda: rm.MulticlassHinge([[0, 1, 2]]), r"cost has shape \(1, 3\): give a row and a column for each"),
    (lambda: rm.MulticlassHinge("abc"), "cost='abc' is not a matrix of numbers: give a row"),
    (lambda: rm.MulticlassHinge([[1, 1], [1, 0]]), "0 on its diagonal"),
    (lambda: rm.MulticlassHinge([[0, -1], [1, 0]]), "finite numbers >= 0"),
    (lambda: rm.MulticlassHinge([[0, np.nan], [1, 0]]), "finite numbers >= 0"),
    *(
        (
            lambda bad=bad: rm.MulticlassHinge(rescaled=bad),
            "rescaled must be False, True or a number from 0 to 1",
        )
        for bad in (-0.1, 1.5, math.nan, "half", None)
    ),
    (lambda: rm.ChainMaxMargin(rescaled=-0.1), "rescaled must be False, True or a number from 0 to 1"),
    (risk(rm.MulticlassHinge(1 - np.eye(2)), CLASSES), "cost is for 2 classes, but there are"),
    (lambda: rm.MultivariateSquared([[1, 2], [0, 1]]), r"M, of shape \(2, 2\), is not symmetric"),
    (lambda: rm.MultivariateSquared([[1, 2], [2, 1]]), "M is not positive semidefinite"),
    (risk(rm.MultivariateSquared(np.eye(3)), X), "M is for 3 outputs, but y has 2"),
    (lambda: rm.HierarchicalHinge(TREE, "far"), "cost='far', but the costs are tree distance and zero one"),
    (lambda: rm.HierarchicalHinge(TREE, np.eye(2)), r"cost has shape \(2, 2\), but the tree has 3 labels"),
    (lambda: rm.HierarchicalHinge(TREE, np.ones((3, 3))), "finite numbers >= 0, and 0 on its diagonal"),
    (value(rm.PrecisionAtK(3), SIGNS[1:], 2), "k=3 rows, but there are 2"),
    (value(rm.Ordinal([[], [1]]), CLASSES), "3 grades: give one row"),
    (
        value(rm.RocArea(), SIGNS, sample_weight=SIGNS > 0),
        "compares two classes, but all rows of one weigh 0",
    ),
    (value(rm.Ordinal(), CLASSES, sample_weight=CLASSES == 1), "no pair of grades in y has a weight above 0"),
    *(
        (value(loss, SIGNS, sample_weight=[1, 2, 1, 1, 1, 1]), "counts rows, so all must weigh the same: fit")
        for loss in (rm.Prbep(), rm.FBeta(), rm.PrecisionAtK(2), rm.RecallAtK(2))
    ),
    (
        lambda: rm.FBeta().smoothed_value_grad(np.zeros(3), SIGNS[1:4], np.array([0.5, 0.25, 0.25]), 0.1),
        "all must weigh the same",
    ),
    (
        lambda: rm.PrecisionAtK(k=5).smoothed_value_grad(np.zeros(3), SIGNS[1:4], np.full(3, 1 / 3), 0.1),
        "PrecisionAtK needs k=5 rows, but there are 3: lower k",
    ),
    (risk(rm.PrecisionAtK(3), SIGNS, fit_intercept=True), "intercept"),
    (risk(rm.RecallAtK(3), SIGNS, fit_intercept=True), "intercept"),
    (
        risk(rm.Smoothed(rm.MulticlassHinge(), 0.1), CLASSES, fit_intercept=True),
        "has no method for intercepts: fit without, or add a column of ones",
    ),
    (
        lambda: replace(rm.linear_risk(X, CLASSES, rm.Softmax()), intercept=rm.ProfiledIntercept()),
        "Softmax has several scores per row, and one intercept is for one score",
    ),
    (lambda: rm.ChainAscent(turns=0), "turns to be a whole number >= 1"),
]
NAMES = [
    (
        lambda: rm.get_loss("hing"),
        "no loss named 'hing': did you mean 'hinge'. The names are hinge, perceptron",
    ),
    (lambda: rm.get_loss("huber:epsilon=1"), "Huber has no parameter epsilon; it has delta"),
    (lambda: rm.get_loss("logistic:margin=1"), "Logistic has no parameter margin; it has none"),
    (lambda: rm.get_loss("huber:delta"), "write it like"),
    (lambda: rm.get_loss("huber:delta=two"), "write it like"),
    (lambda: rm.get_loss("huber:delta=1=2"), "write it like"),
    (lambda: rm.get_loss("huber:delta=-1"), "delta > 0"),
    (lambda: rm.get_loss(rm.Hinge), "Hinge is a class"),
    (lambda: rm.get_loss(3), "3 is not a loss"),
]
TREES = [
    (parents({"a": "b", "b": "a"}), "the parents of 'a' run in a circle: give one"),
    (parents({"r": None, "a": "a"}), "the parents of 'a' run in a circle"),
    (parents({"a": "b"}), "'b', the parent of 'a', is not in the hierarchy itself: add it"),
    (parents({"a": ["b"]}), r"\['b'\], the parent of 'a', is not in the hierarchy itself"),
    (parents({}), "the hierarchy has no nodes: give at least one"),
    (parents({"a": None}, []), "the hierarchy has no labels: give at least one"),
    (parents({"a": None}, ["b"]), "the label 'b' is not in the hierarchy: add it"),
    (parents({"a": None}, ["a", "a"]), "the label 'a' is there twice: give each label once"),
    (paths("a/b", "a/b"), "the label 'a/b' is there twice"),
    (paths("C//C15"), "the label 'C//C15' has an empty part: write its nodes from the"),
    (paths("/C"), "the label '/C' has an empty part"),
    (paths(""), "the label '' has an empty part"),
    (paths("a", separator=""), "separator='', but it must be a string such as '/'"),
    (lambda: rm.Tree(("a", "b"), (1, -1)), "parents must name an earlier node for each node"),
    (lambda: rm.Tree(("a", "a"), (-1, -1)), "the node 'a' is there twice"),
    (lambda: tree_distance(["X"], ["C"], PARENTS), "'X' is not in the hierarchy: add it with its parent"),
    (lambda: tree_distance(["C", "C"], ["C"], PARENTS), r"y_true has shape \(2,\) and y_pred \(1,\)"),
    (lambda: tree_distance(["C"], ["C"], 3), "hierarchy=3, but it must be a dict of the parent of every"),
    (lambda: tree_distance(["C"], ["C"], PARENTS, sample_weight=[0]), "one weight >= 0 per row, not all 0"),
    (classifier(loss="logistic"), "loss='logistic', but HierarchicalClassifier has 'hinge' and 'softmax'"),
    (classifier(loss=rm.Hinge()), "Hinge is a loss for classification"),
    (classifier(hierarchy={"C": None}), "'C15' is not in the hierarchy: add it with its parent, or drop"),
    (classifier(hierarchy="C/C15"), "hierarchy='C/C15', but it must be a dict of the parent of every node"),
    (classifier(hierarchy=PARENTS, cost="far"), "cost='far', but the costs are tree distance and zero one"),
    (classifier(separator="C"), "the label 'C' has an empty part"),
    (classifier(alpha=0.0), "alpha=0.0, but HierarchicalClassifier needs alpha to be a finite number > 0"),
    (classifier(np.array(["C", "C"])), "y holds only one class, 'C', but two are needed: add rows of"),
]
SOLVERS = [
    (lambda: rm.Nu(rm.Softmax(), 0.5), "Nu needs a loss of one score per row"),
    *(
        (
            fit(rm.MulticlassHinge(), rm.L2(), solver, fit_intercept=True),
            "cannot move the intercepts of a multi-output model: use Bundle or Auto",
        )
        for solver in (rm.Bmrm(), rm.CoordinateDescent())
    ),
    (
        fit(rm.MulticlassHinge(), rm.L1(), rm.OwlQn(), fit_intercept=True),
        r"use Smoothing\(ProximalGradient\(",
    ),
    (fit(rm.Softmax(), rm.L2(), rm.OwlQn(), fit_intercept=True), r"L1\(\) and Elastic\(\), not L2: use"),
    (fit(rm.ChainCrf(), rm.L2(), rm.ChainAscent(), lengths=[6]), "ChainAscent needs ChainMaxMargin"),
    (fit(rm.ChainMaxMargin(), rm.L1(), rm.ChainAscent(), lengths=[6]), "ChainAscent needs ChainMaxMargin"),
    *(
        (fit(loss, rm.L2(), rm.Smoothing(), qid=[0] * 6), "cannot be smoothed")
        for loss in (rm.Ndcg(), rm.Ndcg(weights=0.5), rm.Mrr(weights="discount"))
    ),
    (
        lambda: rm.Ndcg().smoothed_value_grad(
            np.zeros(6), np.column_stack([CLASSES, 0 * SIGNS]), np.ones(6), 0.1
        ),
        "cannot be smoothed: use Bundle, or .*discount",
    ),
]
test_refusals = refusals(([*LABELS, *SETTINGS, *NAMES, *TREES], ValueError), (SOLVERS, TypeError))
