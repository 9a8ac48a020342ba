"""Linear maps from w to the scores of rows, with their adjoints.

Each map has a method ``scores(X, w, start, stop)``, which returns the scores of a range of rows, and its
adjoint ``pullback(X, dz, start, stop, out)``, which adds its result to out. ``columns`` is the number of
outputs, and ``dim(p)`` the length of w.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from riskmin.arrays.namespace import as_array_like, namespace
from riskmin.core import Array, LinearMap, Matrix, NDArray
from riskmin.linear_maps.tree import Tree


@dataclass(frozen=True)
class SingleOutput(LinearMap):
    r"""One score per row, :math:`z_i = x_i^\top w`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin.arrays.matrix import as_matrix
    >>> SingleOutput().scores(as_matrix(np.eye(3)), np.array([1.0, 2.0, 3.0]), 1, 3)
    array([2., 3.])
    """

    columns = 1
    is_identity = True
    can_be_standardized = True

    def dim(self, n_features: int) -> int:
        return n_features

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        return X.scores(w, start, stop)

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        X.pullback(dz, start, stop, out)


@dataclass(frozen=True)
class MultiOutput(LinearMap):
    r"""k scores per row, :math:`z_i = W^\top x_i`, where w is W of shape (p, k) in row-major order.

    Parameters
    ----------
    k : int
        The number of outputs.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin.arrays.matrix import as_matrix
    >>> W = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> MultiOutput(2).scores(as_matrix(np.eye(2)), W.ravel(), 0, 2)
    array([[1., 2.],
           [3., 4.]])
    """

    k: int

    can_be_standardized = True
    separate_outputs = True

    @property
    def columns(self) -> int:
        return self.k

    def dim(self, n_features: int) -> int:
        return n_features * self.k

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        return X.scores(w.reshape(-1, self.k), start, stop)

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        X.pullback(dz, start, stop, out.reshape(-1, self.k))  # a view, since w is contiguous


@dataclass(frozen=True)
class WithIntercept(LinearMap):
    r"""A linear map with one intercept per output, :math:`z_i + b`, the entries of b at the end of w.

    Parameters
    ----------
    inner : LinearMap
        A map with several outputs.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin.arrays.matrix import as_matrix
    >>> w = np.array([1.0, 2.0, 3.0, 4.0, 10.0, 20.0])
    >>> WithIntercept(MultiOutput(2)).scores(as_matrix(np.eye(2)), w, 0, 2)
    array([[11., 22.],
           [13., 24.]])
    """

    inner: LinearMap

    @property
    def columns(self) -> int:
        return self.inner.columns

    @property
    def n_intercepts(self) -> int:  # type: ignore[override]
        return self.columns

    @property
    def without_intercepts(self) -> LinearMap:
        return self.inner

    @property
    def node_tree(self) -> Tree | None:
        return self.inner.node_tree

    @property
    def separate_outputs(self) -> bool:
        return self.inner.separate_outputs

    def dim(self, n_features: int) -> int:
        return self.inner.dim(n_features) + self.columns

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        # z = X W + 1 b'
        z = self.inner.scores(X, w[: -self.columns], start, stop)
        z += as_array_like(w[-self.columns :], z)
        return z

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        # the adjoint: X' dz for W, and the column sums 1' dz for b
        self.inner.pullback(X, dz, start, stop, out[: -self.columns])
        # a product is several times as fast as the sum over the long axis of a narrow array
        out[-self.columns :] += as_array_like(namespace(dz).ones_like(dz[:, 0]) @ dz, out)


@dataclass(frozen=True)
class Centered(LinearMap):
    r"""A multi-output map of centered rows, :math:`z_i = W^\top (x_i - \bar x)`; X itself is not changed.

    Parameters
    ----------
    inner : MultiOutput
    mean : (p,) array
    """

    inner: MultiOutput
    mean: NDArray = field(compare=False, repr=False)

    centered = True
    separate_outputs = True

    @property
    def columns(self) -> int:
        return self.inner.columns

    @property
    def of_rows(self) -> LinearMap:
        return self.inner

    def dim(self, n_features: int) -> int:
        return self.inner.dim(n_features)

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        z = self.inner.scores(X, w, start, stop)
        # z = X W - 1 (m' W): the mean enters by one vector of length k
        return z - as_array_like(as_array_like(self.mean, w) @ w.reshape(-1, self.columns), z)

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        self.inner.pullback(X, dz, start, stop, out)
        # the adjoint: X' dz - m (1' dz)
        shift = as_array_like(self.mean, out)[:, None] * as_array_like(dz.sum(0), out)
        out -= shift.reshape(-1)


@dataclass(frozen=True)
class Standardized(LinearMap):
    r"""A linear map of standardized columns, :math:`z_i = W^\top ((x_i - m) \circ s)`; X is not changed.

    Parameters
    ----------
    inner : SingleOutput, MultiOutput or TreePaths
    shift, scale : (p,) array
        m and s.
    """

    inner: LinearMap
    shift: NDArray = field(compare=False, repr=False)
    scale: NDArray = field(compare=False, repr=False)

    standardized = True

    @property
    def columns(self) -> int:
        return self.inner.columns

    @property
    def node_tree(self) -> Tree | None:
        return self.inner.node_tree

    def dim(self, n_features: int) -> int:
        return self.inner.dim(n_features)

    def scaled(self, w: Array) -> Array:
        """Return the weights s * w of the columns of X itself."""
        return (as_array_like(self.scale, w)[:, None] * w.reshape(len(self.scale), -1)).reshape(-1)

    def offset(self, w: Array) -> Array:
        """Return m' W, which the shift subtracts from the scores: a number, or one per output."""
        # w is s * w already: (x - m)' (s * w) = x' (s * w) - m' (s * w)
        offset = as_array_like(self.shift, w) @ w.reshape(len(self.shift), -1)
        # weights of nodes: the offset of a label is the sum along its path
        if self.node_tree is not None:
            return self.node_tree.to_labels(offset[None, :])[0]
        return offset if self.columns > 1 else offset[0]

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        w = self.scaled(w)
        z = self.inner.scores(X, w, start, stop)
        offset = self.offset(w)
        return z - (as_array_like(offset, z) if self.columns > 1 else float(offset))

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        # the adjoint: s * (X' dz - m (1' dz))
        unscaled = 0.0 * out
        self.inner.pullback(X, dz, start, stop, unscaled)
        total: Any = as_array_like(dz.sum(0), out) if self.columns > 1 else float(dz.sum())
        # the adjoint of the path sums: from labels to nodes
        if self.node_tree is not None:
            total = self.node_tree.from_labels(total[None, :])[0]
        shift = (as_array_like(self.shift, out)[:, None] * total).reshape(-1)
        out += self.scaled(unscaled - shift)

    def grad_from_outputs(self, D: Array) -> Array:
        """Return the gradient in w, given the gradient in the weights of the outputs, of shape (p, k)."""
        return self.inner.grad_from_outputs(D)

    @property
    def with_separate_weights(self) -> Standardized:
        """The same standardization, with separate weights for each output."""
        return Standardized(MultiOutput(self.columns), self.shift, self.scale)


@dataclass(frozen=True)
class TreePaths(LinearMap):
    r"""Scores of the labels of a tree,

    .. math:: z_{il} = \sum_{v \text{ on the path to } l} x_i^\top W_{\cdot v}.

    w is ``W.ravel()``, W of shape (p, nodes): labels share the weights of their common ancestors.
    """

    tree: Tree

    can_be_standardized = True

    @property
    def node_tree(self) -> Tree:
        return self.tree

    @property
    def columns(self) -> int:
        """The number of scores per row, one per label."""
        return len(self.tree.labels)

    def dim(self, n_features: int) -> int:
        return n_features * len(self.tree.nodes)

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        # scores of nodes, which are summed along the paths to the labels
        return self.tree.to_labels(X.scores(w.reshape(-1, len(self.tree.nodes)), start, stop))

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        W = out.reshape(-1, len(self.tree.nodes))  # a view, since w is contiguous
        X.pullback(self.tree.from_labels(dz), start, stop, W)

    def grad_from_outputs(self, D: Array) -> Array:
        """Return the gradient in w from the gradient in the summed weights of the labels, of shape (p, k)."""
        return self.tree.from_labels(D).reshape(-1)
