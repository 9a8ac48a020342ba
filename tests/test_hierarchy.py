"""Hierarchies: path sums and distances by brute force, the losses, their optima, and the classifier."""

from __future__ import annotations

import re

import numpy as np
import pytest

from riskmin import Tree
from riskmin.matrices import as_matrix
from riskmin.tree import Hierarchy, path_parents

# Two trees beside each other, of unequal depth; inner nodes are labels too.
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
    """A tree or a forest, its map in any order; some of its nodes are labels, in any order."""
    parents = {0: None} | {
        v: rng.choice([None, *range(v)], p=[0.1, *[0.9 / v] * v]) for v in range(1, n_nodes)
    }
    names = [int(v) for v in rng.permutation(n_nodes)]
    shuffled = {f"n{v}": None if parents[v] is None else f"n{parents[v]}" for v in names}
    chosen = [f"n{v}" for v in rng.permutation(n_nodes)[: max(2, n_nodes * 2 // 3)]] if labels else None
    return Tree.from_parents(shuffled, chosen), shuffled


def path(parents, node):
    """The nodes on the path to a node, from itself to the top."""
    found = [node]
    while parents[found[-1]] is not None:
        found.append(parents[found[-1]])
    return found


def walk(parents, a, b):
    """The edges between two nodes, by breadth-first search; what has no parent hangs from a root."""
    edges = [(node, "root" if parent is None else parent) for node, parent in parents.items()]
    distance, front = {a: 0}, [a]
    while front:
        here = front.pop(0)
        for one, other in [*edges, *[(v, u) for u, v in edges]]:
            if one == here and other not in distance:
                distance[other] = distance[here] + 1
                front.append(other)
    return distance[b]


# ---------------------------------------------------------------- trees
@pytest.mark.parametrize("seed", range(8))
def test_distances_and_path_sums_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    tree, parents = random_tree(rng, 1 + 2 * seed)
    k = len(tree.labels)
    for node, above in zip(tree.nodes, tree.parent.tolist(), strict=True):
        assert parents[node] == (tree.nodes[above] if above >= 0 else None)
    assert tree.distance.shape == (k, k)
    for i, a in enumerate(tree.labels):
        for j, b in enumerate(tree.labels):
            assert tree.distance[i, j] == walk(parents, a, b)
    Z, place = rng.standard_normal((3, len(tree.nodes))), {node: v for v, node in enumerate(tree.nodes)}
    S = np.stack([sum(Z[:, place[u]] for u in path(parents, node)) for node in tree.nodes], axis=1)
    before = Z.copy()
    np.testing.assert_allclose(tree.paths_sum(Z), S, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(tree.to_labels(Z.copy()), S[:, [place[a] for a in tree.labels]], atol=1e-12)
    assert np.array_equal(Z, before)


@pytest.mark.parametrize("seed", range(4))
def test_going_back_is_the_adjoint(seed):
    rng = np.random.default_rng(seed)
    tree, _ = random_tree(rng, 9, labels=seed > 0)
    Z, D = rng.standard_normal((2, 5, len(tree.nodes)))
    assert np.sum(tree.paths_sum(Z) * D) == pytest.approx(np.sum(Z * tree.subtrees_sum(D)), rel=1e-12)
    X, scorer = rng.standard_normal((5, 3)), Hierarchy(tree)
    w, dz = rng.standard_normal(scorer.dim(3)), rng.standard_normal((5, scorer.columns))
    kept, out = dz.copy(), np.ones(scorer.dim(3))
    scorer.pullback(as_matrix(X), dz[1:4], 1, 4, out)
    z = scorer.scores(as_matrix(X), w, 1, 4)
    assert z.shape == (3, len(tree.labels))
    assert np.sum(z * dz[1:4]) == pytest.approx((out - 1) @ w, rel=1e-12)
    assert (dz == kept).all()
    V = rng.standard_normal((3, scorer.columns))  # a slope in the weights of the labels
    summed = tree.to_labels(w.reshape(3, -1).copy())
    assert np.sum(summed * V) == pytest.approx(scorer.spread(V) @ w, rel=1e-12)


def test_the_nodes_come_from_the_top_and_subtrees_are_together():
    tree = Tree.from_parents(TOPICS)
    assert tree.nodes == ("C", "C15", "C151", "C1511", "C152", "C17", "M", "M13")
    assert tree.labels == tree.nodes
    assert tree.depth.tolist() == [1, 2, 3, 4, 3, 2, 1, 2]
    assert tree == Tree(tree.nodes, tree.parents)
    assert Tree.from_parents(TOPICS, ["M13", "C15"]).places.tolist() == [7, 1]
    assert Tree.from_parents(TOPICS).below(["M13", "C151"]) == Tree(
        ("C", "C15", "C151", "M", "M13"), (-1, 0, 1, -1, 3), ("M13", "C151")
    )


def test_paths_name_the_same_tree():
    paths = ["/".join(reversed(path(TOPICS, node))) for node in TOPICS]
    tree, same = Tree.from_paths(paths), Tree.from_parents(TOPICS, TOPICS)
    assert tree.parents == same.parents
    assert [node.rpartition("/")[2] for node in tree.nodes] == list(same.nodes)
    assert (tree.distance == same.distance).all()
    # a part may have the same name elsewhere, and one that is no label is none
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


@pytest.mark.parametrize(("make", "says"), MISTAKES)
def test_what_is_no_tree_is_told(make, says):
    with pytest.raises(ValueError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert re.search("[a-z')]$", str(caught.value))
