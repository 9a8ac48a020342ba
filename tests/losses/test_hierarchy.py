"""Hierarchies: path sums and distances by brute force, the losses, the metric, and the classifier."""

from __future__ import annotations

import json

import numpy as np
import pytest

import riskmin as rm
from riskmin.linear_maps.tree import path_parents
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
    return rm.Tree.from_parents(shuffled, chosen), shuffled


def path(parents, node):
    """The nodes from the given node up to the top."""
    nodes = [node]
    while parents[nodes[-1]] is not None:
        nodes.append(parents[nodes[-1]])
    return nodes


def walk(parents, a, b):
    """The number of edges between two nodes; the top nodes hang from a root."""
    return len(set(path(parents, a)) ^ set(path(parents, b)))


# ---------------------------------------------------------------- trees
@pytest.mark.parametrize("seed", [0, 2, 4, 7])
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


def test_nodes_are_ordered_from_the_top_by_subtree():
    tree = rm.Tree.from_parents(TOPICS)
    assert tree.nodes == ("C", "C15", "C151", "C1511", "C152", "C17", "M", "M13")
    assert tree.labels == tree.nodes
    assert tree.depth.tolist() == [1, 2, 3, 4, 3, 2, 1, 2]
    assert tree == rm.Tree(tree.nodes, tree.parents)
    assert rm.Tree.from_parents(TOPICS, ["M13", "C15"]).label_index.tolist() == [7, 1]
    assert rm.Tree.from_parents(TOPICS).restricted_to(["M13", "C151"]) == rm.Tree(
        ("C", "C15", "C151", "M", "M13"), (-1, 0, 1, -1, 3), ("M13", "C151")
    )


def test_paths_give_the_same_tree():
    paths = ["/".join(reversed(path(TOPICS, node))) for node in TOPICS]
    tree, same = rm.Tree.from_paths(paths), rm.Tree.from_parents(TOPICS, TOPICS)
    assert tree.parents == same.parents
    assert [node.rpartition("/")[2] for node in tree.nodes] == list(same.nodes)
    assert (tree.distance == same.distance).all()
    # a node may have the same name in another subtree, and inner nodes need not be labels
    tree = rm.Tree.from_paths(["a.x", "b.x"], separator=".")
    assert tree.nodes == ("a", "a.x", "b", "b.x")
    assert tree.labels == ("a.x", "b.x")
    assert tree.distance[0, 1] == 4


def test_labels_may_be_numbers():
    tree = rm.Tree.from_parents({np.int64(3): None, 1: np.int64(3), 2: 3})
    assert tree.nodes == (3, 1, 2)
    assert all(type(node) is int for node in tree.nodes)
    assert path_parents([1, "a/b"]) == {1: None, "a": None, "a/b": "a"}


def test_losses_of_equal_costs_are_equal_and_of_other_labels_not():
    tree = rm.Tree.from_parents(TOPICS, ["M13", "C", "C1511", "C152", "C17", "C15"])
    assert rm.HierarchicalHinge(tree) == rm.HierarchicalHinge(tree, tree.distance.tolist())
    assert rm.HierarchicalSoftmax(tree) != rm.HierarchicalSoftmax(rm.Tree.from_parents(TOPICS))


# ---------------------------------------------------------------- the metric
def test_tree_distance_is_the_mean_number_of_edges():
    y_true, predicted = ["C1511", "C17", "M13", "C"], ["C152", "C17", "C", "C15"]
    edges = [walk(TOPICS, a, b) for a, b in zip(y_true, predicted, strict=True)]
    assert edges == [3, 0, 3, 1]
    assert tree_distance(y_true, predicted, TOPICS) == np.mean(edges)
    assert tree_distance(y_true, predicted, rm.Tree.from_parents(TOPICS)) == np.mean(edges)
    assert tree_distance(y_true, predicted, TOPICS, sample_weight=[0, 1, 2, 3]) == pytest.approx(9 / 6)
    paths = [["/".join(reversed(path(TOPICS, label))) for label in labels] for labels in (y_true, predicted)]
    assert tree_distance(*paths) == np.mean(edges)
    assert tree_distance([1, 2], [1, 3]) == 1.0


# ---------------------------------------------------------------- the classifier
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
def test_scores_of_the_classifier_are_sums_along_the_paths(topics, loss):
    X, y = topics
    model = rm.HierarchicalClassifier(loss, hierarchy=TOPICS, alpha=0.1).fit(X, y)
    classes = np.unique(y)
    assert np.array_equal(model.classes_, classes)
    assert model.tree_.labels == tuple(classes.tolist())
    assert model.tree_.nodes == ("C", "C15", "C151", "C1511", "C152", "C17", "M", "M13")
    W = dict(zip(model.tree_.nodes, model.coef_, strict=True))
    z = np.stack([sum(X @ W[v] for v in path(TOPICS, label)) for label in classes], axis=1) + model.intercept_
    np.testing.assert_allclose(model.decision_function(X), z, atol=1e-12)
    assert np.array_equal(model.predict(X), classes[z.argmax(axis=1)])
    edges = [walk(TOPICS, a, b) for a, b in zip(y, model.predict(X), strict=True)]
    assert model.tree_cost(X, y) == np.mean(edges)
    assert hasattr(model, "predict_proba") == (loss == "softmax")
    if loss == "softmax":
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(model.predict_proba(X), p, rtol=1e-9)


@pytest.mark.slow
def test_unseen_labels_are_never_predicted(topics):
    X, y = topics
    model = rm.HierarchicalClassifier(hierarchy=TOPICS, alpha=0.1).fit(X[y != "M13"], y[y != "M13"])
    assert "M13" not in model.classes_
    assert not {"M", "M13"} & set(model.tree_.nodes)
    assert model.tree_cost(X, y) > 0  # though it may be the true label


def test_what_a_fitted_classifier_refuses(topics, tmp_path):
    X, y = topics
    model = rm.HierarchicalClassifier("softmax", hierarchy=TOPICS, alpha=0.1, warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match="the last fit, which had other labels or features: set warm_start"):
        model.fit(X[y != "C"], y[y != "C"])
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba': probabilities need"):
        _ = rm.HierarchicalClassifier("hinge").predict_proba
    with pytest.raises(ValueError, match=r"X holds numbers too large to score \(row 1\): scale the features"):
        model.predict(np.array([[0.0] * 8, [1e308] * 8]))
    odd = {("top",): None, "C": ("top",), "C1511": "C", "C152": "C", "C17": "C", "M13": ("top",)}
    model = rm.HierarchicalClassifier("softmax", hierarchy=odd, alpha=0.1).fit(X, y)
    with pytest.raises(ValueError, match="neither a string nor a number, and is not written to model files"):
        rm.save_model(model, tmp_path / "model")


def test_the_command_evaluates_hierarchical_models(topics, tmp_path, run):
    X, y = topics
    model = rm.HierarchicalClassifier("softmax", hierarchy=TOPICS, alpha=1.0, class_weight="balanced")
    rm.save_model(model.fit(X, y), tmp_path / "model")
    rows = [",".join("abcdefgh") + ",topic"]
    rows += [",".join(map(repr, row)) + "," + label for row, label in zip(X.tolist(), y, strict=True)]
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    files = tmp_path / "model", tmp_path / "data.csv", "--target", "topic"
    assert run("predict", *files)[1].split() == model.predict(X).tolist()
    metrics = json.loads(run("evaluate", *files, "--json")[1])
    assert metrics["tree distance"] == model.tree_cost(X, y)
    assert set(metrics["classes"]) == set(y)
    assert run("certify", *files, "--quiet")[0] == 0
