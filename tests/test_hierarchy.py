"""Hierarchies: path sums and distances by brute force, the losses, their optima, and the classifier."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import (
    L2,
    Bundle,
    HierarchicalHinge,
    HierarchicalSoftmax,
    Lbfgs,
    Objective,
    Processes,
    Threads,
    Tree,
    linear_risk,
    minimize,
)
from riskmin.losses.multiclass import MulticlassHinge, Softmax
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


def by_hand(loss, X, y, c, W):
    """The risk by its formula, path by path; W is a dict of the weights of the nodes."""
    total = 0.0
    for x, own, weight in zip(X, y, c, strict=True):
        z = [sum(x @ W[v] for v in path(TOPICS, label)) for label in TREE.labels]
        if isinstance(loss, HierarchicalSoftmax):
            total += weight * (math.log(math.fsum(math.exp(one) for one in z)) - z[own])
            continue
        slack = []
        for j, label in enumerate(TREE.labels):
            apart = walk(TOPICS, TREE.labels[own], label)
            cost = {"tree distance": apart, "zero one": float(j != own)}.get(str(loss.cost), COST[own, j])
            slack.append(cost * (1 + z[j] - z[own]) if loss.rescaled else cost + z[j] - z[own])
        total += weight * max(slack)
    return total


@each_loss
def test_risks_by_brute_force_over_all_paths(loss):
    """Value, gradient by finite differences in every weight, and the inequality of subgradients."""
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
def test_on_a_star_they_are_the_flat_losses(loss):
    """One level, every node a label: the tree knows nothing."""
    rng = np.random.default_rng(1)
    star = Tree.from_parents(dict.fromkeys("abcd"))
    assert np.array_equal(star.distance, 2 * (1 - np.eye(4)))
    X, y, w = rng.standard_normal((9, 3)), np.arange(9.0) % 4, rng.standard_normal(12)
    if isinstance(loss, HierarchicalSoftmax):
        ours, flat = HierarchicalSoftmax(star), Softmax()
    else:
        cost = loss.cost if isinstance(loss.cost, str) else COST[:4, :4]
        ours = HierarchicalHinge(star, cost, loss.rescaled)
        flat = MulticlassHinge(
            {"tree distance": star.distance, "zero one": None}.get(str(cost), cost), loss.rescaled
        )
    (value, grad), (same, there) = (linear_risk(X, y, one)(w) for one in (ours, flat))
    assert value == same
    assert np.array_equal(grad, there)


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
    place = {node: v for v, node in enumerate(TREE.nodes)}
    sums = [sum(W[:, place[v]] for v in path(TOPICS, label)) for label in TREE.labels]
    Z = cp.vstack([X @ one for one in sums]).T + (cp.reshape(b, (1, 6), order="C") if fit_intercept else 0)
    rows = []
    for i, own in enumerate(y):
        ahead = Z[i] - Z[i, own]
        if isinstance(loss, HierarchicalSoftmax):
            rows.append(cp.log_sum_exp(ahead))
            continue
        apart = np.array([walk(TOPICS, TREE.labels[own], label) for label in TREE.labels])
        cost = {"tree distance": apart, "zero one": np.arange(6) != own}.get(str(loss.cost), COST[own])
        rows.append(cp.max(cp.multiply(cost, 1 + ahead) if loss.rescaled else cost + ahead))
    program = cp.Problem(cp.Minimize(c @ cp.hstack(rows) + lam / 2 * cp.sum_squares(W)))
    program.solve(solver=cp.CLARABEL)
    J = Objective(linear_risk(X, y, loss, sample_weight=c, fit_intercept=fit_intercept), L2(), lam)
    result = minimize(J, tol=1e-5)
    assert result.status == "converged"
    assert result.lower <= program.value * (1 + 1e-7)
    assert result.value == pytest.approx(program.value, rel=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "hinge"])
def test_any_storage_executor_and_solver_finds_the_same(name):
    rng = np.random.default_rng(4)
    X, y, loss = rng.standard_normal((60, 4)), np.arange(60.0) % 6, LOSSES[name]
    X[rng.random(X.shape) < 0.4] = 0.0
    w = rng.standard_normal(4 * len(TREE.nodes))
    value, grad = linear_risk(X, y, loss)(w)
    for other in (sp.csr_array(X), sp.csc_array(X), np.asfortranarray(X)):
        same, there = linear_risk(other, y, loss)(w)
        assert same == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(there, grad, atol=1e-12)
    serial = linear_risk(X, y, loss, n_shards=3)(w)
    for executor in (Threads(n_workers=2), Processes(n_workers=2)):
        same, there = linear_risk(X, y, loss, executor=executor, n_shards=3)(w)
        assert same == serial[0]
        assert np.array_equal(there, serial[1])
    least = minimize(Objective(linear_risk(X, y, loss), L2(), 0.01), tol=1e-4)
    for solver in (Bundle(), Lbfgs()) if name == "softmax" else (Bundle(),):
        result = minimize(Objective(linear_risk(X, y, loss), L2(), 0.01), solver, tol=1e-3)
        assert result.status == "converged"
        assert result.value == pytest.approx(least.value, rel=2e-3)


@pytest.mark.slow  # for the import of torch
@each_loss
def test_torch_agrees(loss):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((12, 3)), np.arange(12.0) % 6
    w = rng.standard_normal(3 * len(TREE.nodes))
    value, grad = linear_risk(X, y, loss)(w)
    same, there = linear_risk(torch.as_tensor(X), y, loss)(torch.as_tensor(w))
    assert same == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(there.numpy(), grad, atol=1e-12)
    J = Objective(linear_risk(torch.as_tensor(X), y, loss, fit_intercept=True), L2(), 0.1)
    assert minimize(J, tol=1e-3).status == "converged"


def test_what_losses_refuse():
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


def test_losses_are_equal_if_they_do_the_same():
    again = Tree.from_parents(TOPICS, TREE.labels)
    assert HierarchicalHinge(TREE, COST) == HierarchicalHinge(again, COST.tolist())
    assert hash(HierarchicalHinge(TREE, COST)) == hash(HierarchicalHinge(again, COST.tolist()))
    assert HierarchicalHinge(TREE) != HierarchicalHinge(TREE, "zero one")
    assert HierarchicalHinge(TREE) != HierarchicalHinge(TREE, COST)
    assert HierarchicalHinge(TREE) == HierarchicalHinge(TREE, TREE.distance)
    assert HierarchicalHinge(TREE, COST) != HierarchicalHinge(TREE, 2 * COST)
    assert HierarchicalHinge(TREE) != HierarchicalHinge(TREE, rescaled=True)
    assert HierarchicalSoftmax(TREE) == HierarchicalSoftmax(again)
    assert HierarchicalSoftmax(TREE) != HierarchicalSoftmax(Tree.from_parents(TOPICS))
