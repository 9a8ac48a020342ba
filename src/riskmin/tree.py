"""Hierarchies of labels: trees, and sums along their paths."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from riskmin.arrays import namespace, zeros_beside
from riskmin.types import Array, NDArray


@dataclass(frozen=True, repr=False)
class Tree:
    """A hierarchy of labels: a tree, or several beside each other.

    Make one by `Tree.from_parents` or `Tree.from_paths`. Every node comes after its parent, and the nodes
    below it come right after it. Trees beside each other hang from a common root that has no weights.

    Parameters
    ----------
    nodes : sequence
        The names of the nodes, each once and after its parent.
    parents : sequence of int
        The place of each node's parent among `nodes`, -1 for those that have none.
    labels : sequence, optional
        The nodes that rows may be labelled with, leaves or inner nodes, in the order of their scores; by
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
        _once(nodes, "node")
        _once(labels, "label")
        if len(parents) != len(nodes) or not all(-1 <= v < i for i, v in enumerate(parents)):
            raise ValueError("parents must name an earlier node for each node, or -1: use Tree.from_parents")
        known = set(nodes)
        if strange := [label for label in labels if label not in known]:
            raise ValueError(f"the label {strange[0]!r} is not in the hierarchy: add it, or drop the label")
        for name, value in (("nodes", nodes), ("parents", parents), ("labels", labels)):
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        depth = int(self.depth.max())
        return f"Tree({len(self.nodes)} nodes, {len(self.labels)} labels, depth {depth})"

    @classmethod
    def from_parents(cls, parents: Mapping[Any, Any], labels: Iterable[Any] | None = None) -> Tree:
        """The tree of a map from each node to its parent.

        Parameters
        ----------
        parents : dict
            The parent of every node, None for a node without one.
        labels : sequence, optional
            The nodes that rows may be labelled with; by default all.

        Returns
        -------
        Tree
            With the children of a node in the order of the map.

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
        nodes, above = _depth_first(roots, children)
        if len(nodes) < len(children):
            lost = next(node for node in children if node not in set(nodes))
            raise ValueError(f"the parents of {lost!r} run in a circle: give one of them the parent None")
        return cls(tuple(nodes), tuple(above), _given(labels))

    @classmethod
    def from_paths(cls, paths: Iterable[str], separator: str = "/") -> Tree:
        """The tree of labels that are paths, such as ``"C/C15/C151"``.

        Parameters
        ----------
        paths : sequence of str
            The labels, each once. The nodes above them are labels only if they are given too.
        separator : str
            What is between the parts of a path.

        Returns
        -------
        Tree
            Its nodes are named by their whole paths.

        Examples
        --------
        >>> from riskmin import Tree
        >>> tree = Tree.from_paths(["C/C15/C151", "C/C15", "M/M13"])
        >>> tree.nodes
        ('C', 'C/C15', 'C/C15/C151', 'M', 'M/M13')
        >>> tree.labels
        ('C/C15/C151', 'C/C15', 'M/M13')
        """
        labels = _given(paths)
        _once(labels, "label")
        return cls.from_parents(path_parents(labels, separator), labels)

    # ------------------------------------------------------------ places
    @cached_property
    def parent(self) -> NDArray:
        """The place of each node's parent, -1 for those that have none."""
        return np.array(self.parents, dtype=np.intp)

    @cached_property
    def places(self) -> NDArray:
        """The place of each label among the nodes."""
        at = {node: i for i, node in enumerate(self.nodes)}
        return np.array([at[label] for label in self.labels], dtype=np.intp)

    @cached_property
    def depth(self) -> NDArray:
        """How many nodes there are on the path to each node, itself among them."""
        depth = np.ones(len(self.nodes), dtype=np.intp)
        for v, above in enumerate(self.parents):
            if above >= 0:
                depth[v] += depth[above]
        return depth

    @cached_property
    def distance(self) -> NDArray:
        """The number of edges on the path between any two labels, of shape (k, k)."""
        on_path = self.paths_sum(np.eye(len(self.nodes)))[:, self.places]  # node above or at label
        depth = self.depth[self.places].astype(np.float64)
        apart: NDArray = depth[:, None] + depth - 2 * (on_path.T @ on_path)
        return apart

    @cached_property
    def _columns(self) -> list[int] | None:
        """The places of the labels as any array library takes them; None if they are all nodes in order."""
        places: list[int] = self.places.tolist()
        return None if places == list(range(len(self.nodes))) else places

    def below(self, labels: Sequence[Any]) -> Tree:
        """The tree with these labels, without the nodes that are on no path to them.

        Examples
        --------
        >>> from riskmin import Tree
        >>> tree = Tree.from_parents({"C": None, "C15": "C", "C17": "C", "M": None})
        >>> tree.below(["C15", "M"]).nodes
        ('C', 'C15', 'M')
        """
        known = {node: v for v, node in enumerate(self.nodes)}
        kept = set()
        for label in labels:
            v = known.get(_plain(label), -1)
            while v >= 0 and v not in kept:
                kept.add(v)
                v = self.parents[v]
        new = {v: i for i, v in enumerate(sorted(kept))} | {-1: -1}
        nodes, parents = zip(*((self.nodes[v], new[self.parents[v]]) for v in sorted(kept)), strict=True)
        return Tree(nodes, parents, tuple(labels))

    # ------------------------------------------------------------ sums
    def paths_sum(self, Z: Array) -> Array:
        r"""Sums along the paths: from what each node has to what each path to a node has.

        .. math:: S_{iv} = \sum_{u \text{ on the path to } v} Z_{iu}

        Z is of shape (n, nodes), and so is S: one pass over the nodes, from the top, for all rows at once.

        Examples
        --------
        >>> import numpy as np
        >>> from riskmin import Tree
        >>> Tree.from_paths(["C/C15", "M"]).paths_sum(np.array([[1.0, 2.0, 4.0]]))
        array([[1., 3., 4.]])
        """
        return self._add_down(namespace(Z).asarray(Z, copy=True))

    def subtrees_sum(self, D: Array) -> Array:
        r"""Sums over subtrees, the adjoint of `paths_sum`: :math:`\sum_{u \text{ at or below } v} D_{iu}`.

        Examples
        --------
        >>> import numpy as np
        >>> from riskmin import Tree
        >>> Tree.from_paths(["C/C15", "M"]).subtrees_sum(np.array([[1.0, 2.0, 4.0]]))
        array([[3., 2., 4.]])
        """
        return self._add_up(namespace(D).asarray(D, copy=True))

    def _add_down(self, Z: Array) -> Array:
        for v, above in enumerate(self.parents):
            if above >= 0:
                Z[:, v] += Z[:, above]
        return Z

    def _add_up(self, D: Array) -> Array:
        for v in range(len(self.parents) - 1, -1, -1):
            if self.parents[v] >= 0:
                D[:, self.parents[v]] += D[:, v]
        return D

    def to_labels(self, Z: Array) -> Array:
        """The path sums of the labels, of shape (n, k), from Z of shape (n, nodes), which is overwritten."""
        S = self._add_down(Z)
        return S if self._columns is None else S[:, self._columns]

    def from_labels(self, D: Array) -> Array:
        """The adjoint of `to_labels`: from (n, k) to (n, nodes)."""
        if self._columns is None:
            return self.subtrees_sum(D)
        full = zeros_beside((D.shape[0], len(self.nodes)), D)
        full[:, self._columns] = D
        return self._add_up(full)


def path_parents(paths: Sequence[Any], separator: str = "/") -> dict[Any, Any]:
    """The parent of every node on the paths, nodes named by their whole paths.

    What is no string is a node of its own.

    Examples
    --------
    >>> path_parents(["C/C15", "M"])
    {'C': None, 'C/C15': 'C', 'M': None}
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
        parents.setdefault(parts[0], None)
        for depth in range(1, len(parts)):
            parents.setdefault(separator.join(parts[: depth + 1]), separator.join(parts[:depth]))
    return parents


def _depth_first(roots: list[Any], children: dict[Any, list[Any]]) -> tuple[list[Any], list[int]]:
    """The nodes that the roots lead to, each right after what is below its elder siblings; their parents."""
    nodes: list[Any] = []
    above: list[int] = []
    waiting = [(root, -1) for root in reversed(roots)]
    while waiting:
        node, parent = waiting.pop()
        waiting += [(child, len(nodes)) for child in reversed(children[node])]
        nodes.append(node)
        above.append(parent)
    return nodes, above


def _plain(label: Any) -> Any:
    """A label of NumPy's as one of Python's."""
    return label.item() if isinstance(label, np.generic) else label


def _given(labels: Iterable[Any] | None) -> tuple[Any, ...]:
    if labels is None:
        return ()
    found = tuple(_plain(label) for label in labels)
    if not found:
        raise ValueError("the hierarchy has no labels: give at least one")
    return found


def _once(names: tuple[Any, ...], what: str) -> None:
    """Raise where a name is there twice."""
    seen = set()
    for name in names:
        if name in seen:
            raise ValueError(f"the {what} {name!r} is there twice: give each {what} once")
        seen.add(name)
