"""Hierarchies of labels: trees, path sums and subtree sums."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace, zeros_for
from riskmin.core import Array, NDArray


@dataclass(frozen=True, repr=False)
class Tree:
    """A hierarchy of labels: a tree, or a forest.

    Create one by `Tree.from_parents` or `Tree.from_paths`. Nodes are in depth-first order: every node comes
    after its parent, and its descendants come right after it. Trees of a forest share a root without weights.

    Parameters
    ----------
    nodes : sequence
        The names of the nodes, each once and after its parent.
    parents : sequence of int
        The index of each node's parent in `nodes`, -1 for roots.
    labels : sequence, optional
        The nodes that rows may be labeled with, leaves or inner nodes, in the order of their scores; by
        default all nodes.

    Examples
    --------
    >>> from riskmin import Tree
    >>> tree = Tree.from_parents({"C": None, "C15": "C", "C151": "C15", "M": None})
    >>> tree
    Tree(4 nodes, 4 labels, depth 3)
    >>> tree.distance.astype(int).tolist()
    [[0, 1, 2, 2], [1, 0, 1, 3], [2, 1, 0, 4], [2, 3, 4, 0]]
    """

    nodes: tuple[Any, ...]
    parents: tuple[int, ...]
    labels: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        nodes = tuple(_plain(node) for node in self.nodes)
        parents = tuple(int(v) for v in self.parents)
        labels = tuple(_plain(label) for label in self.labels) or nodes
        if not nodes:
            raise ValueError("the hierarchy has no nodes: give at least one label")
        _check_unique(nodes, "node")
        _check_unique(labels, "label")
        if len(parents) != len(nodes) or not all(-1 <= v < i for i, v in enumerate(parents)):
            raise ValueError("parents must name an earlier node for each node, or -1: use Tree.from_parents")
        node_set = set(nodes)
        if unknown := [label for label in labels if label not in node_set]:
            raise ValueError(f"the label {unknown[0]!r} is not in the hierarchy: add it, or drop the label")
        for name, value in (("nodes", nodes), ("parents", parents), ("labels", labels)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        depth = int(self.depth.max())
        return f"Tree({len(self.nodes)} nodes, {len(self.labels)} labels, depth {depth})"

    @classmethod
    def from_parents(cls, parents: Mapping[Any, Any], labels: Iterable[Any] | None = None) -> Tree:
        """Return the tree of a mapping from each node to its parent.

        Parameters
        ----------
        parents : dict
            The parent of every node, None for a node without one.
        labels : sequence, optional
            The nodes that rows may be labeled with; by default all.

        Returns
        -------
        Tree
            With the children of a node in the order of the mapping.

        Examples
        --------
        >>> from riskmin import Tree
        >>> Tree.from_parents({"C151": "C15", "C15": "C", "M": None, "C": None}).nodes
        ('M', 'C', 'C15', 'C151')
        """
        children: dict[Any, list[Any]] = {_plain(node): [] for node in parents}
        roots = []
        for node, parent in parents.items():
            if parent is None:
                roots.append(_plain(node))
            elif not isinstance(parent, Hashable) or _plain(parent) not in children:
                raise ValueError(
                    f"{parent!r}, the parent of {node!r}, is not in the hierarchy itself: add it, "
                    "with None for its parent if it has none"
                )
            else:
                children[_plain(parent)].append(_plain(node))
        # nodes on a cycle are not reachable from any root
        nodes, parent_index = _depth_first(roots, children)
        if len(nodes) < len(children):
            unreached = next(node for node in children if node not in set(nodes))
            raise ValueError(
                f"the parents of {unreached!r} run in a circle: give one of them the parent None"
            )
        return cls(tuple(nodes), tuple(parent_index), _as_labels(labels))

    @classmethod
    def from_paths(cls, paths: Iterable[str], separator: str = "/") -> Tree:
        """Return the tree of labels that are paths, such as ``"C/C15/C151"``.

        Parameters
        ----------
        paths : sequence of str
            The labels, each once. Their ancestors are labels only if they are listed, too.
        separator : str
            The string between the parts of a path.

        Returns
        -------
        Tree
            Its nodes are named by their full paths.

        Examples
        --------
        >>> from riskmin import Tree
        >>> tree = Tree.from_paths(["C/C15/C151", "C/C15", "M/M13"])
        >>> tree.nodes
        ('C', 'C/C15', 'C/C15/C151', 'M', 'M/M13')
        >>> tree.labels
        ('C/C15/C151', 'C/C15', 'M/M13')
        """
        labels = _as_labels(paths)
        _check_unique(labels, "label")
        return cls.from_parents(path_parents(labels, separator), labels)

    # ------------------------------------------------------------ indices
    @cached_property
    def parent(self) -> NDArray:
        """The index of each node's parent, -1 for roots."""
        return np.array(self.parents, dtype=np.intp)

    @cached_property
    def label_index(self) -> NDArray:
        """The index of each label in `nodes`."""
        index = {node: i for i, node in enumerate(self.nodes)}
        return np.array([index[label] for label in self.labels], dtype=np.intp)

    @cached_property
    def depth(self) -> NDArray:
        """The number of nodes on the path from the root to each node, including it."""
        # parents precede their children, so one pass suffices
        depth = np.ones(len(self.nodes), dtype=np.intp)
        for v, parent in enumerate(self.parents):
            if parent >= 0:
                depth[v] += depth[parent]
        return depth

    @cached_property
    def distance(self) -> NDArray:
        """The number of edges on the path between any two labels, of shape (k, k)."""
        # on_path[u, l] = 1 if node u is label l or an ancestor of it: the products count common ancestors
        on_path = self.paths_sum(np.eye(len(self.nodes)))[:, self.label_index]
        depth = self.depth[self.label_index].astype(np.float64)
        # depth(a) + depth(b) - 2 depth(deepest common ancestor)
        edges: NDArray = depth[:, None] + depth - 2 * (on_path.T @ on_path)
        return edges

    @cached_property
    def _columns(self) -> list[int] | None:
        """The indices of the labels as a list, valid for any array library; None if they are all nodes."""
        columns: list[int] = self.label_index.tolist()
        return None if columns == list(range(len(self.nodes))) else columns

    def restricted_to(self, labels: Sequence[Any]) -> Tree:
        """Return the tree with these labels, without nodes that are on no path to them.

        Examples
        --------
        >>> from riskmin import Tree
        >>> tree = Tree.from_parents({"C": None, "C15": "C", "C17": "C", "M": None})
        >>> tree.restricted_to(["C15", "M"]).nodes
        ('C', 'C15', 'M')
        """
        index = {node: v for v, node in enumerate(self.nodes)}
        on_paths = set()
        for label in labels:
            v = index.get(_plain(label), -1)
            # up to the root, or to a node whose ancestors are included already
            while v >= 0 and v not in on_paths:
                on_paths.add(v)
                v = self.parents[v]
        new_index = {v: i for i, v in enumerate(sorted(on_paths))} | {-1: -1}
        # sorted indices keep parents before their children
        nodes, parents = zip(
            *((self.nodes[v], new_index[self.parents[v]]) for v in sorted(on_paths)), strict=True
        )
        return Tree(nodes, parents, tuple(labels))

    # ------------------------------------------------------------ sums
    def paths_sum(self, Z: Array) -> Array:
        r"""Return the sums along the paths from the roots: from values of nodes to values of paths.

        .. math:: S_{iv} = \sum_{u \text{ on the path to } v} Z_{iu}

        Z and S have the shape (n, nodes). One pass over the nodes, from the roots, for all rows at once.

        Examples
        --------
        >>> import numpy as np
        >>> from riskmin import Tree
        >>> Tree.from_paths(["C/C15", "M"]).paths_sum(np.array([[1.0, 2.0, 4.0]]))
        array([[1., 3., 4.]])
        """
        return self._add_down(namespace(Z).asarray(Z, copy=True))

    def subtrees_sum(self, D: Array) -> Array:
        r"""Return subtree sums, the adjoint of `paths_sum`: :math:`\sum_{u \text{ at or below } v} D_{iu}`.

        Examples
        --------
        >>> import numpy as np
        >>> from riskmin import Tree
        >>> Tree.from_paths(["C/C15", "M"]).subtrees_sum(np.array([[1.0, 2.0, 4.0]]))
        array([[3., 2., 4.]])
        """
        return self._add_up(namespace(D).asarray(D, copy=True))

    def _add_down(self, Z: Array) -> Array:
        """Add to each node the sum of its parent, in place; parents come first."""
        for v, parent in enumerate(self.parents):
            if parent >= 0:
                Z[:, v] += Z[:, parent]
        return Z

    def _add_up(self, D: Array) -> Array:
        """Add the sum of each node to its parent, in place; children come first."""
        for v in range(len(self.parents) - 1, -1, -1):
            if self.parents[v] >= 0:
                D[:, self.parents[v]] += D[:, v]
        return D

    def to_labels(self, Z: Array) -> Array:
        """Return the path sums of the labels, (n, k), for Z of shape (n, nodes), which is overwritten."""
        S = self._add_down(Z)
        return S if self._columns is None else S[:, self._columns]

    def from_labels(self, D: Array) -> Array:
        """Return the adjoint of `to_labels`: from (n, k) to (n, nodes)."""
        if self._columns is None:
            return self.subtrees_sum(D)
        # nodes that are no labels start at zero
        full = zeros_for((D.shape[0], len(self.nodes)), D)
        full[:, self._columns] = D
        return self._add_up(full)


def path_parents(paths: Sequence[Any], separator: str = "/") -> dict[Any, Any]:
    """Return the parent of every node on the paths; nodes are named by their full paths.

    A label that is no string is a root.
    """
    if not isinstance(separator, str) or not separator:
        raise ValueError(f"separator={separator!r}, but it must be a string such as '/'")
    parents: dict[Any, Any] = {}
    for path in paths:
        parts = path.split(separator) if isinstance(path, str) else [path]
        if "" in parts:
            raise ValueError(
                f"the label {path!r} has an empty part: write its nodes from the top with one {separator!r} "
                "between any two, or choose another separator"
            )
        # every prefix of the path is a node, whose parent is the next shorter prefix
        parents.setdefault(parts[0], None)
        for depth in range(1, len(parts)):
            parents.setdefault(separator.join(parts[: depth + 1]), separator.join(parts[:depth]))
    return parents


def _depth_first(roots: list[Any], children: dict[Any, list[Any]]) -> tuple[list[Any], list[int]]:
    """Return the nodes reachable from the roots in depth-first order, and the indices of their parents."""
    nodes: list[Any] = []
    parent_index: list[int] = []
    stack = [(root, -1) for root in reversed(roots)]
    while stack:
        node, parent = stack.pop()
        # reversed, so that the first child is visited first; len(nodes) is the index of this node
        stack += [(child, len(nodes)) for child in reversed(children[node])]
        nodes.append(node)
        parent_index.append(parent)
    return nodes, parent_index


def _plain(label: Any) -> Any:
    """Return a NumPy scalar as a Python object; anything else unchanged."""
    return label.item() if isinstance(label, np.generic) else label


def _as_labels(labels: Iterable[Any] | None) -> tuple[Any, ...]:
    """Return the labels as a tuple; empty for None, but never for an empty sequence."""
    if labels is None:
        return ()
    result = tuple(_plain(label) for label in labels)
    if not result:
        raise ValueError("the hierarchy has no labels: give at least one")
    return result


def _check_unique(names: tuple[Any, ...], what: str) -> None:
    """Raise if a name occurs twice."""
    previous_names = set()
    for name in names:
        if name in previous_names:
            raise ValueError(f"the {what} {name!r} is there twice: give each {what} once")
        previous_names.add(name)
