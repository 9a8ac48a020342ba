"""Hierarchies: path sums and distances by brute force, the losses, their optima, and the classifier."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.utils.estimator_checks import parametrize_with_checks

from riskmin import (
    L2,
    Bundle,
    HierarchicalClassifier,
    HierarchicalHinge,
    HierarchicalSoftmax,
    Hinge,
    Lbfgs,
    Objective,
    Processes,
    Threads,
    Tree,
    linear_risk,
    load_model,
    minimize,
    save_model,
)
from riskmin.arrays.matrix import as_matrix
from riskmin.linear_maps.linear import TreePaths
from riskmin.linear_maps.tree import path_parents
from riskmin.losses.multiclass import MulticlassHinge, Softmax
from riskmin.metrics import tree_distance

# Two trees side by side, of unequal depth; inner nodes are labels too.
TOPICS = {
    "C": None,
    "C15": "C",
    "C151": "C15",
    "C152": "C15",
    "C1511": "C151",
    "C17": "C",
    "M": None,
    "M13": "M",
}


def random_tree(rng, n_nodes, labels=True):
    """A random tree or forest with its dict in random order; some nodes are labels, in random order."""
    parents = {0: None} | {
        v: rng.choice([None, *range(v)], p=[0.1, *[0.9 / v] * v]) for v in range(1, n_nodes)
    }
    names = [int(v) for v in rng.permutation(n_nodes)]
    shuffled = {f"n{v}": None if parents[v] is None else f"n{parents[v]}" for v in names}
    chosen = [f"n{v}" for v in rng.permutation(n_nodes)[: max(2, n_nodes * 2 // 3)]] if labels else None
    return Tree.from_parents(shuffled, chosen), shuffled


def path(parents, node):
    """The nodes from the given node up to the top."""
    nodes = [node]
    while parents[nodes[-1]] is not None:
        nodes.append(parents[nodes[-1]])
    return nodes


def walk(parents, a, b):
    """The number of edges between two nodes, by breadth-first search; the top nodes hang from a root."""
    edges = [(node, "root" if parent is None else parent) for node, parent in parents.items()]
    distance, front = {a: 0}, [a]
    while front:
        current = front.pop(0)
        for source, target in [*edges, *[(v, u) for u, v in edges]]:
            if source == current and target not in distance:
                distance[target] = distance[current] + 1
                front.append(target)
    return distance[b]


# ---------------------------------------------------------------- trees
@pytest.mark.parametrize("seed", range(8))
def test_distances_and_path_sums_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    tree, parents = random_tree(rng, 1 + 2 * seed)
    k = len(tree.labels)
    for node, parent in zip(tree.nodes, tree.parent.tolist(), strict=True):
        assert parents[node] == (tree.nodes[parent] if parent >= 0 else None)
    assert tree.distance.shape == (k, k)
    for i, a in enumerate(tree.labels):
        for j, b in enumerate(tree.labels):
            assert tree.distance[i, j] == walk(parents, a, b)
    Z, column = rng.standard_normal((3, len(tree.nodes))), {node: v for v, node in enumerate(tree.nodes)}
    S = np.stack([sum(Z[:, column[u]] for u in path(parents, node)) for node in tree.nodes], axis=1)
    before = Z.copy()
    np.testing.assert_allclose(tree.paths_sum(Z), S, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(tree.to_labels(Z.copy()), S[:, [column[a] for a in tree.labels]], atol=1e-12)
    assert np.array_equal(Z, before)


@pytest.mark.parametrize("seed", range(4))
def test_the_pullback_is_the_adjoint(seed):
    rng = np.random.default_rng(seed)
    tree, _ = random_tree(rng, 9, labels=seed > 0)
    Z, D = rng.standard_normal((2, 5, len(tree.nodes)))
    assert np.sum(tree.paths_sum(Z) * D) == pytest.approx(np.sum(Z * tree.subtrees_sum(D)), rel=1e-12)
    X, linear_map = rng.standard_normal((5, 3)), TreePaths(tree)
    w, dz = rng.standard_normal(linear_map.dim(3)), rng.standard_normal((5, linear_map.columns))
    unchanged, out = dz.copy(), np.ones(linear_map.dim(3))
    linear_map.pullback(as_matrix(X), dz[1:4], 1, 4, out)
    z = linear_map.scores(as_matrix(X), w, 1, 4)
    assert z.shape == (3, len(tree.labels))
    assert np.sum(z * dz[1:4]) == pytest.approx((out - 1) @ w, rel=1e-12)
    assert (dz == unchanged).all()
    V = rng.standard_normal((3, linear_map.columns))  # a gradient in the weights of the labels
    summed = tree.to_labels(w.reshape(3, -1).copy())
    assert np.sum(summed * V) == pytest.approx(linear_map.grad_from_outputs(V) @ w, rel=1e-12)


def test_nodes_are_ordered_from_the_top_by_subtree():
    tree = Tree.from_parents(TOPICS)
    assert tree.nodes == ("C", "C15", "C151", "C1511", "C152", "C17", "M", "M13")
    assert tree.labels == tree.nodes
    assert tree.depth.tolist() == [1, 2, 3, 4, 3, 2, 1, 2]
    assert tree == Tree(tree.nodes, tree.parents)
    assert Tree.from_parents(TOPICS, ["M13", "C15"]).label_index.tolist() == [7, 1]
    assert Tree.from_parents(TOPICS).restricted_to(["M13", "C151"]) == Tree(
        ("C", "C15", "C151", "M", "M13"), (-1, 0, 1, -1, 3), ("M13", "C151")
    )


def test_paths_give_the_same_tree():
    paths = ["/".join(reversed(path(TOPICS, node))) for node in TOPICS]
    tree, same = Tree.from_paths(paths), Tree.from_parents(TOPICS, TOPICS)
    assert tree.parents == same.parents
    assert [node.rpartition("/")[2] for node in tree.nodes] == list(same.nodes)
    assert (tree.distance == same.distance).all()
    # a node may have the same name in another subtree, and inner nodes need not be labels
    tree = Tree.from_paths(["a.x", "b.x"], separator=".")
    assert tree.nodes == ("a", "a.x", "b", "b.x")
    assert tree.labels == ("a.x", "b.x")
    assert tree.distance[0, 1] == 4


def test_labels_may_be_numbers():
    tree = Tree.from_parents({np.int64(3): None, 1: np.int64(3), 2: 3})
    assert tree.nodes == (3, 1, 2)
    assert all(type(node) is int for node in tree.nodes)
    assert path_parents([1, "a/b"]) == {1: None, "a": None, "a/b": "a"}


MISTAKES = [
    (lambda: Tree.from_parents({"a": "b", "b": "a"}), "the parents of 'a' run in a circle: give one"),
    (lambda: Tree.from_parents({"r": None, "a": "a"}), "the parents of 'a' run in a circle"),
    (lambda: Tree.from_parents({"a": "b"}), "'b', the parent of 'a', is not in the hierarchy itself: add it"),
    (lambda: Tree.from_parents({"a": ["b"]}), r"\['b'\], the parent of 'a', is not in the hierarchy itself"),
    (lambda: Tree.from_parents({}), "the hierarchy has no nodes: give at least one"),
    (lambda: Tree.from_parents({"a": None}, []), "the hierarchy has no labels: give at least one"),
    (lambda: Tree.from_parents({"a": None}, ["b"]), "the label 'b' is not in the hierarchy: add it"),
    (
        lambda: Tree.from_parents({"a": None}, ["a", "a"]),
        "the label 'a' is there twice: give each label once",
    ),
    (lambda: Tree.from_paths(["a/b", "a/b"]), "the label 'a/b' is there twice"),
    (
        lambda: Tree.from_paths(["C//C15"]),
        "the label 'C//C15' has an empty part: write its nodes from the top",
    ),
    (lambda: Tree.from_paths(["/C"]), "the label '/C' has an empty part"),
    (lambda: Tree.from_paths([""]), "the label '' has an empty part"),
    (lambda: Tree.from_paths(["a"], separator=""), "separator='', but it must be a string such as '/'"),
    (lambda: Tree(("a", "b"), (1, -1)), "parents must name an earlier node for each node"),
    (lambda: Tree(("a", "a"), (-1, -1)), "the node 'a' is there twice"),
]


@pytest.mark.parametrize(("make", "message"), MISTAKES)
def test_invalid_trees_are_refused(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert re.search("[a-z')]$", str(caught.value))


# ---------------------------------------------------------------- losses
TREE = Tree.from_parents(TOPICS, ["M13", "C", "C1511", "C152", "C17", "C15"])
COST = np.where(np.eye(6) > 0, 0.0, np.arange(1.0, 7.0)[:, None] + np.arange(6.0))
LOSSES = {
    "softmax": HierarchicalSoftmax(TREE),
    "hinge": HierarchicalHinge(TREE),
    "hinge, zero one": HierarchicalHinge(TREE, "zero one"),
    "hinge, a matrix": HierarchicalHinge(TREE, COST),
    "hinge, rescaled": HierarchicalHinge(TREE, rescaled=True),
}
each_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
EDGES = {(a, b): walk(TOPICS, a, b) for a in TOPICS for b in TOPICS}


def costs(loss):
    """The cost matrix of the hinge, edge by edge."""
    if not isinstance(loss.cost, str):
        return COST
    edges = np.array([[EDGES[a, b] for b in TREE.labels] for a in TREE.labels], dtype=float)
    return edges if loss.cost == "tree distance" else np.sign(edges)


def by_hand(loss, X, y, c, W):
    """The risk by its formula, path by path; W maps nodes to weights."""
    total = 0.0
    for x, true_label, weight in zip(X, y, c, strict=True):
        z = np.array([sum(x @ W[v] for v in path(TOPICS, label)) for label in TREE.labels])
        if isinstance(loss, HierarchicalSoftmax):
            total += weight * (math.log(math.fsum(np.exp(z))) - z[true_label])
        else:
            cost, lead = costs(loss)[true_label], z - z[true_label]
            total += weight * max(cost * (1 + lead) if loss.rescaled else cost + lead)
    return total


@each_loss
def test_risks_by_brute_force_over_all_paths(loss):
    """Value, gradient by finite differences in every weight, and the subgradient inequality."""
    rng = np.random.default_rng(0)
    X, y, c = rng.standard_normal((7, 2)), rng.integers(0, 6, 7), rng.dirichlet(np.ones(7))
    risk = linear_risk(X, y, loss, sample_weight=c)
    assert risk.dim == 2 * len(TREE.nodes)

    def value(w):
        return by_hand(loss, X, y, c, dict(zip(TREE.nodes, w.reshape(2, -1).T, strict=True)))

    w = rng.standard_normal(risk.dim)
    R, g = risk(w)
    assert pytest.approx(value(w), rel=1e-12) == R
    steps = 1e-6 * np.eye(risk.dim)
    np.testing.assert_allclose(g, [(value(w + d) - value(w - d)) / 2e-6 for d in steps], atol=2e-8)
    for v in rng.standard_normal((20, risk.dim)) * 3:
        assert value(v) >= R + g @ (v - w) - 1e-9


@each_loss
def test_on_a_star_they_equal_the_flat_losses(loss):
    """With one level and every node a label, the tree carries no information."""
    rng = np.random.default_rng(1)
    star = Tree.from_parents(dict.fromkeys("abcd"))
    assert np.array_equal(star.distance, 2 * (1 - np.eye(4)))
    X, y, w = rng.standard_normal((9, 3)), np.arange(9.0) % 4, rng.standard_normal(12)
    if isinstance(loss, HierarchicalSoftmax):
        hierarchical, flat = HierarchicalSoftmax(star), Softmax()
    else:
        cost = loss.cost if isinstance(loss.cost, str) else COST[:4, :4]
        hierarchical = HierarchicalHinge(star, cost, loss.rescaled)
        flat = MulticlassHinge(
            {"tree distance": star.distance, "zero one": None}.get(str(cost), cost), loss.rescaled
        )
    (value, grad), (flat_value, flat_grad) = (linear_risk(X, y, tested)(w) for tested in (hierarchical, flat))
    assert value == flat_value
    assert np.array_equal(grad, flat_grad)


@pytest.mark.slow
@each_loss
def test_fits_are_certified(loss):
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((30, 3)), np.arange(30.0) % 6
    for fit_intercept in (False, True):
        J = Objective(linear_risk(X, y, loss, fit_intercept=fit_intercept), L2(), 0.1)
        result = minimize(J, tol=1e-3)
        assert result.status == "converged"
        assert result.lower <= result.value <= result.lower + 1e-3 * result.value


@pytest.mark.slow
@pytest.mark.parametrize("fit_intercept", [False, True])
@each_loss
def test_optima_by_cvxpy(loss, fit_intercept):
    import cvxpy as cp

    rng = np.random.default_rng(3)
    X, y, c, lam = rng.standard_normal((24, 2)), np.arange(24) % 6, rng.dirichlet(np.ones(24)), 0.05
    W, b = cp.Variable((2, len(TREE.nodes))), cp.Variable(6)
    column = {node: v for v, node in enumerate(TREE.nodes)}
    sums = [sum(W[:, column[v]] for v in path(TOPICS, label)) for label in TREE.labels]
    Z = cp.vstack([X @ weights for weights in sums]).T + (
        cp.reshape(b, (1, 6), order="C") if fit_intercept else 0
    )
    rows = []
    for i, true_label in enumerate(y):
        lead = Z[i] - Z[i, true_label]
        if isinstance(loss, HierarchicalSoftmax):
            rows.append(cp.log_sum_exp(lead))
            continue
        cost = costs(loss)[true_label]
        rows.append(cp.max(cp.multiply(cost, 1 + lead) if loss.rescaled else cost + lead))
    program = cp.Problem(cp.Minimize(c @ cp.hstack(rows) + lam / 2 * cp.sum_squares(W)))
    program.solve(solver=cp.CLARABEL)
    J = Objective(linear_risk(X, y, loss, sample_weight=c, fit_intercept=fit_intercept), L2(), lam)
    result = minimize(J, tol=1e-5)
    assert result.status == "converged"
    assert result.lower <= program.value * (1 + 1e-7)
    assert result.value == pytest.approx(program.value, rel=2e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["softmax", "hinge"])
def test_all_storage_formats_executors_and_solvers_agree(name):
    rng = np.random.default_rng(4)
    X, y, loss = rng.standard_normal((60, 4)), np.arange(60.0) % 6, LOSSES[name]
    X[rng.random(X.shape) < 0.4] = 0.0
    w = rng.standard_normal(4 * len(TREE.nodes))
    value, grad = linear_risk(X, y, loss)(w)
    for other in (sp.csr_array(X), sp.csc_array(X), np.asfortranarray(X)):
        other_value, other_grad = linear_risk(other, y, loss)(w)
        assert other_value == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(other_grad, grad, atol=1e-12)
    serial = linear_risk(X, y, loss, n_shards=3)(w)
    for executor in (Threads(n_workers=2), Processes(n_workers=2)):
        other_value, other_grad = linear_risk(X, y, loss, executor=executor, n_shards=3)(w)
        assert other_value == serial[0]
        assert np.array_equal(other_grad, serial[1])
    reference = minimize(Objective(linear_risk(X, y, loss), L2(), 0.01), tol=1e-4)
    for solver in (Bundle(), Lbfgs()) if name == "softmax" else (Bundle(),):
        result = minimize(Objective(linear_risk(X, y, loss), L2(), 0.01), solver, tol=1e-3)
        assert result.status == "converged"
        assert result.value == pytest.approx(reference.value, rel=2e-3)


@pytest.mark.slow  # for the import of torch
@each_loss
def test_torch_agrees(loss):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((12, 3)), np.arange(12.0) % 6
    w = rng.standard_normal(3 * len(TREE.nodes))
    value, grad = linear_risk(X, y, loss)(w)
    torch_value, torch_grad = linear_risk(torch.as_tensor(X), y, loss)(torch.as_tensor(w))
    assert torch_value == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(torch_grad.numpy(), grad, atol=1e-12)
    J = Objective(linear_risk(torch.as_tensor(X), y, loss, fit_intercept=True), L2(), 0.1)
    assert minimize(J, tol=1e-3).status == "converged"


def test_invalid_losses_are_refused():
    with pytest.raises(
        ValueError, match="cost='far', but the costs are tree distance and zero one, or a matrix"
    ):
        HierarchicalHinge(TREE, "far")
    with pytest.raises(ValueError, match=r"cost has shape \(2, 2\), but the tree has 6 labels"):
        HierarchicalHinge(TREE, np.eye(2))
    with pytest.raises(ValueError, match="finite numbers >= 0, and 0 on its diagonal"):
        HierarchicalHinge(TREE, COST + 1)
    with pytest.raises(ValueError, match="y holds 6, but the tree has 6 labels: number them from 0 to 5"):
        linear_risk(np.eye(2), [6, 0], HierarchicalSoftmax(TREE))
    with pytest.raises(ValueError, match="n_outputs=3, but the tree has 6 labels: leave n_outputs out"):
        linear_risk(np.eye(2), [1, 0], HierarchicalSoftmax(TREE), n_outputs=3)


def test_equality_of_losses():
    same_tree = Tree.from_parents(TOPICS, TREE.labels)
    assert HierarchicalHinge(TREE, COST) == HierarchicalHinge(same_tree, COST.tolist())
    assert hash(HierarchicalHinge(TREE, COST)) == hash(HierarchicalHinge(same_tree, COST.tolist()))
    assert HierarchicalHinge(TREE) != HierarchicalHinge(TREE, "zero one")
    assert HierarchicalHinge(TREE) != HierarchicalHinge(TREE, COST)
    assert HierarchicalHinge(TREE) == HierarchicalHinge(TREE, TREE.distance)
    assert HierarchicalHinge(TREE, COST) != HierarchicalHinge(TREE, 2 * COST)
    assert HierarchicalHinge(TREE) != HierarchicalHinge(TREE, rescaled=True)
    assert HierarchicalSoftmax(TREE) == HierarchicalSoftmax(same_tree)
    assert HierarchicalSoftmax(TREE) != HierarchicalSoftmax(Tree.from_parents(TOPICS))


# ---------------------------------------------------------------- the metric
def test_tree_distance_is_the_mean_number_of_edges():
    y_true, predicted = ["C1511", "C17", "M13", "C"], ["C152", "C17", "C", "C15"]
    edges = [EDGES[a, b] for a, b in zip(y_true, predicted, strict=True)]
    assert edges == [3, 0, 3, 1]
    assert tree_distance(y_true, predicted, TOPICS) == np.mean(edges)
    assert tree_distance(y_true, predicted, Tree.from_parents(TOPICS)) == np.mean(edges)
    assert tree_distance(y_true, predicted, TOPICS, sample_weight=[0, 1, 2, 3]) == pytest.approx(9 / 6)
    paths = [["/".join(reversed(path(TOPICS, label))) for label in labels] for labels in (y_true, predicted)]
    assert tree_distance(*paths) == np.mean(edges)
    assert tree_distance([1, 2], [1, 3]) == 1.0
    with pytest.raises(ValueError, match="the label 'X' is not in the hierarchy: add it with its parent"):
        tree_distance(["X"], ["C"], TOPICS)
    with pytest.raises(ValueError, match=r"y_true has shape \(2,\) and y_pred \(1,\)"):
        tree_distance(["C", "C"], ["C"], TOPICS)
    with pytest.raises(ValueError, match="hierarchy=3, but it must be a dict of the parent of every node"):
        tree_distance(["C"], ["C"], 3)
    with pytest.raises(ValueError, match="give one weight >= 0 per row, not all 0"):
        tree_distance(["C"], ["C"], TOPICS, sample_weight=[0])


# ---------------------------------------------------------------- the classifier
@pytest.mark.exhaustive
@parametrize_with_checks([HierarchicalClassifier("softmax"), HierarchicalClassifier(alpha=0.1)])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
def test_weights_equal_repeated_rows(topics):
    X, y = topics
    settings = {"hierarchy": TOPICS, "alpha": 0.1, "tol": 1e-9, "fit_intercept": False, "solver": "bundle"}
    weight = np.arange(60) % 3
    one = HierarchicalClassifier(**settings).fit(X, y, weight)
    two = HierarchicalClassifier(**settings).fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
    np.testing.assert_allclose(one.decision_function(X), two.decision_function(X), atol=1e-4)
    assert one.objective_ == pytest.approx(two.objective_, rel=1e-9)


@pytest.fixture(scope="module")
def topics():
    """Rows with one indicative feature for each node on the path of their label."""
    rng = np.random.default_rng(6)
    labels = np.array(["C", "C1511", "C152", "C17", "M13"])
    y = labels[np.arange(60) % 5]
    X = rng.standard_normal((60, 8)) * 0.4
    for i, label in enumerate(y):
        for node in path(TOPICS, label):
            X[i, list(TOPICS).index(node)] += 1.0
    return X, y


@pytest.mark.parametrize("loss", ["hinge", "softmax"])
def test_the_classifier_minimizes_its_objective(topics, loss):
    X, y = topics
    model = HierarchicalClassifier(loss, hierarchy=TOPICS, alpha=0.1).fit(X, y)
    classes, number = np.unique(y, return_inverse=True)
    assert np.array_equal(model.classes_, classes)
    assert model.tree_.labels == tuple(classes.tolist())
    assert model.tree_.nodes == ("C", "C15", "C151", "C1511", "C152", "C17", "M", "M13")
    assert model.coef_.shape == (8, 8)
    W = dict(zip(model.tree_.nodes, model.coef_, strict=True))
    z = np.stack([sum(X @ W[v] for v in path(TOPICS, label)) for label in classes], axis=1) + model.intercept_
    np.testing.assert_allclose(model.decision_function(X), z, atol=1e-12)
    assert np.array_equal(model.predict(X), classes[z.argmax(axis=1)])
    lead = z - z[np.arange(60), number][:, None]
    cost = np.array([[EDGES[a, b] for b in classes] for a in classes])[number]
    row_losses = np.log(np.exp(lead).sum(axis=1)) if loss == "softmax" else (cost + lead).max(axis=1)
    J = row_losses.mean() + 0.05 * np.sum(model.coef_**2)
    assert model.objective_ == pytest.approx(J, rel=1e-12)
    assert 0 <= model.gap_ <= 1e-3 * J
    assert model.score(X, y) > 0.9
    predicted = model.predict(X)
    assert model.tree_cost(X, y) == np.mean([EDGES[a, b] for a, b in zip(y, predicted, strict=True)])
    assert hasattr(model, "predict_proba") == (loss == "softmax")
    if loss == "softmax":
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(model.predict_proba(X), p, rtol=1e-9)
        np.testing.assert_allclose(model.predict_log_proba(X), np.log(p), rtol=1e-9)


@pytest.mark.slow
def test_labels_may_be_paths(topics):
    X, y = topics
    paths = np.array([".".join(reversed(path(TOPICS, label))) for label in y])
    one = HierarchicalClassifier("softmax", hierarchy=TOPICS, alpha=0.02).fit(X, y)
    two = HierarchicalClassifier("softmax", separator=".", alpha=0.02).fit(X, paths)
    assert two.objective_ == pytest.approx(one.objective_, rel=2e-3)
    assert [label.rpartition(".")[2] for label in two.predict(X)] == one.predict(X).tolist()
    assert two.tree_cost(X, paths) == one.tree_cost(X, y)


@pytest.mark.slow
def test_unseen_labels_are_never_predicted(topics):
    X, y = topics
    model = HierarchicalClassifier(hierarchy=TOPICS, alpha=0.1).fit(X[y != "M13"], y[y != "M13"])
    assert "M13" not in model.classes_
    assert not {"M", "M13"} & set(model.tree_.nodes)
    assert model.tree_cost(X, y) > 0  # though it may be the true label
    # a label whose rows have weight zero is not seen either
    zero = HierarchicalClassifier(hierarchy=TOPICS, alpha=0.1).fit(X, y, sample_weight=y != "M13")
    assert np.array_equal(zero.classes_, model.classes_)
    assert zero.n_samples_fit_ == 60
    np.testing.assert_allclose(zero.objective_, model.objective_, rtol=1e-3)


@pytest.mark.slow
def test_class_weights_equal_row_weights(topics):
    X, y = topics
    X, y = X[7:], y[7:]
    weight = np.where(y == "C", 3.0, 1.0)
    settings = {"hierarchy": TOPICS, "alpha": 0.05, "tol": 1e-6}
    one = HierarchicalClassifier("softmax", class_weight={"C": 3.0}, **settings).fit(X, y)
    two = HierarchicalClassifier("softmax", **settings).fit(X, y, weight)
    assert one.objective_ == pytest.approx(two.objective_, rel=2e-6)
    assert (one.weighted_, two.weighted_) == (False, True)
    balanced = HierarchicalClassifier("softmax", class_weight="balanced", **settings).fit(X, y)
    counts = dict(zip(*np.unique(y, return_counts=True), strict=True))
    same = HierarchicalClassifier("softmax", **settings).fit(X, y, [1 / counts[label] for label in y])
    assert balanced.objective_ == pytest.approx(same.objective_, rel=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hinge", "softmax", MulticlassHinge(rescaled=True)], ids=str)
def test_models_are_saved_and_loaded(topics, loss, tmp_path):
    X, y = topics
    number = {"C": 1, "C1511": 2, "C152": 3, "C17": 4, "M13": 5}
    if loss == "softmax":  # numbers as labels, and a top node that is no label
        hierarchy, y = {0: None, 1: 0, 2: 1, 3: 1, 4: 0, 5: None}, np.array([number[label] for label in y])
    else:
        hierarchy = TOPICS if loss == "hinge" else Tree.from_parents(TOPICS)
    model = HierarchicalClassifier(loss, hierarchy=hierarchy, alpha=0.1, class_weight={y[0]: 2.0}).fit(X, y)
    save_model(model, tmp_path / "model.rsk")
    loaded = load_model(tmp_path / "model.rsk")
    assert loaded.hierarchy == hierarchy
    assert loaded.class_weight == model.class_weight
    assert loaded.loss == loss
    assert loaded.tree_ == model.tree_
    assert loaded.gap_ == model.gap_
    assert np.array_equal(loaded.classes_, model.classes_)
    assert loaded.classes_.dtype == model.classes_.dtype
    assert np.array_equal(loaded.decision_function(X), model.decision_function(X))
    warm = loaded.set_params(warm_start=True).fit(X, y)
    assert warm.objective_ == pytest.approx(model.objective_, rel=1e-3)
    assert loss != "softmax" or warm.n_iter_ <= 1


@pytest.mark.slow
def test_nodes_that_json_cannot_represent_are_refused(topics, tmp_path):
    X, y = topics
    odd = {("top",): None, "C": ("top",), "C1511": "C", "C152": "C", "C17": "C", "M13": ("top",)}
    model = HierarchicalClassifier("softmax", hierarchy=odd, alpha=0.1).fit(X, y)
    with pytest.raises(ValueError, match="neither a string nor a number, and is not written to model files"):
        save_model(model, tmp_path / "model.rsk")


WRONG = [
    ({"loss": "logistic"}, "loss='logistic', but HierarchicalClassifier has 'hinge' and 'softmax'"),
    ({"loss": Hinge()}, "Hinge is a loss for classification"),
    (
        {"hierarchy": {"C": None}},
        "the label 'C1511' is not in the hierarchy: add it with its parent, or drop",
    ),
    ({"hierarchy": TOPICS | {"C": "C15"}}, "the parents of 'C' run in a circle"),
    ({"hierarchy": "C/C15"}, "hierarchy='C/C15', but it must be a dict of the parent of every node"),
    ({"separator": "C"}, "the label 'C' has an empty part"),
    ({"hierarchy": TOPICS, "cost": "far"}, "cost='far', but the costs are tree distance and zero one"),
    ({"hierarchy": TOPICS, "cost": np.eye(3)}, r"cost has shape \(3, 3\), but the tree has 5 labels"),
    ({"alpha": 0.0}, "alpha=0.0, but HierarchicalClassifier needs alpha to be a finite number > 0"),
    ({"class_weight": {"C": -1.0}}, "must give all classes a finite weight > 0"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_invalid_settings_of_the_classifier_are_refused(topics, settings, message):
    with pytest.raises(ValueError, match=message):
        HierarchicalClassifier(**settings).fit(*topics)


def test_invalid_data_of_the_classifier_are_refused(topics):
    X, y = topics
    with pytest.raises(
        ValueError, match="y holds only one class, 'C', but two are needed: add rows of another"
    ):
        HierarchicalClassifier(hierarchy=TOPICS).fit(X[y == "C"], y[y == "C"])
    model = HierarchicalClassifier("softmax", hierarchy=TOPICS, alpha=0.1, warm_start=True).fit(X, y)
    with pytest.raises(
        ValueError, match="the last fit, which had other labels or features: set warm_start=False"
    ):
        model.fit(X[y != "C"], y[y != "C"])
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba': probabilities need"):
        _ = HierarchicalClassifier("hinge").predict_proba
    with pytest.raises(ValueError, match=r"X holds numbers too large to score \(row 1\): scale the features"):
        model.predict(np.array([[0.0] * 8, [1e308] * 8]))


@pytest.mark.parametrize("loss", ["softmax", pytest.param("hinge", marks=pytest.mark.slow)])
def test_the_command_reads_hierarchical_models(topics, loss, tmp_path, run):
    X, y = topics
    model = HierarchicalClassifier(loss, hierarchy=TOPICS, alpha=1.0, class_weight="balanced").fit(X, y)
    save_model(model, tmp_path / "model.rsk")
    rows = [",".join("abcdefgh") + ",topic"]
    rows += [",".join(map(repr, row)) + "," + label for row, label in zip(X.tolist(), y, strict=True)]
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    files = tmp_path / "model.rsk", tmp_path / "data.csv", "--target", "topic"
    assert run("predict", *files)[1].split() == model.predict(X).tolist()
    scores = [line.split("\t") for line in run("predict", *files, "--scores")[1].splitlines()]
    assert np.array_equal(np.array(scores, dtype=float), model.decision_function(X))
    code, out, _ = run("evaluate", *files, "--json")
    metrics = json.loads(out)
    assert code == 0
    assert metrics["tree distance"] == model.tree_cost(X, y)
    assert metrics["accuracy"] == pytest.approx(model.score(X, y))
    assert set(metrics["classes"]) == set(y)
    code, out, _ = run("certify", *files, "--quiet")
    assert code == 0
    assert "certified" in out
    (tmp_path / "data.csv").write_text("\n".join([*rows[:-1], rows[1]]))
    code, _, err = run("certify", *files, "--quiet")  # one row has changed
    assert code == 1
    assert "refuted: the objective is" in err


@pytest.mark.parametrize("flat", [MulticlassHinge(rescaled=0.5), MulticlassHinge(None, True, True)], ids=repr)
def test_margins_of_the_classifier_are_rescaled_as_those_of_its_loss(flat):
    loss = HierarchicalClassifier(flat).loss_for_tree(TREE)
    expected = MulticlassHinge(TREE.distance, flat.rescaled, flat.scaled_margin)
    rng, k = np.random.default_rng(0), len(TREE.labels)
    z, y, c = rng.standard_normal((30, k)), np.arange(30.0) % k, rng.random(30)
    assert loss.value_grad(z, y, c)[0] == expected.value_grad(z, y, c)[0]
    assert loss.value_grad(z, y, c)[0] != HierarchicalHinge(TREE).value_grad(z, y, c)[0]
    assert loss.formula == f"{expected.formula}, z summed along the paths"
