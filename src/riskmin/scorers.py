"""Linear maps from w to scores, with their adjoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from riskmin.arrays import like
from riskmin.tree import Tree
from riskmin.types import Array, Matrix, NDArray


@dataclass(frozen=True)
class Linear:
    r"""One score an example, :math:`z_i = x_i^\top w`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin.matrices import as_matrix
    >>> Linear().scores(as_matrix(np.eye(3)), np.array([1.0, 2.0, 3.0]), 1, 3)
    array([2., 3.])
    """

    columns = 1

    def dim(self, n_features: int) -> int:
        return n_features

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        return X.scores(w, start, stop)

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        X.pullback(dz, start, stop, out)


@dataclass(frozen=True)
class Multiclass:
    r"""A score an example and output, :math:`z_i = W^\top x_i`, the p rows of W one after the other in w.

    Parameters
    ----------
    k : int
        The number of outputs.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin.matrices import as_matrix
    >>> W = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> Multiclass(2).scores(as_matrix(np.eye(2)), W.ravel(), 0, 2)
    array([[1., 2.],
           [3., 4.]])
    """

    k: int

    @property
    def columns(self) -> int:
        return self.k

    def dim(self, n_features: int) -> int:
        return n_features * self.k

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        return X.scores(w.reshape(-1, self.k), start, stop)

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        X.pullback(dz, start, stop, out.reshape(-1, self.k))  # a view: w is in one piece

    def spread(self, D: Array) -> Array:
        """Slopes in the weights of the outputs, (p, k), as slopes in w."""
        return D.reshape(-1)


@dataclass(frozen=True)
class WithOnes:
    r"""A scorer with an intercept an output, :math:`z_i + b`, the entries of b at the end of w.

    Parameters
    ----------
    inner : scorer
        Of many scores an example.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin.matrices import as_matrix
    >>> w = np.array([1.0, 2.0, 3.0, 4.0, 10.0, 20.0])
    >>> WithOnes(Multiclass(2)).scores(as_matrix(np.eye(2)), w, 0, 2)
    array([[11., 22.],
           [13., 24.]])
    """

    inner: Any

    @property
    def columns(self) -> int:
        return int(self.inner.columns)

    def dim(self, n_features: int) -> int:
        return int(self.inner.dim(n_features)) + self.columns

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        z = self.inner.scores(X, w[: -self.columns], start, stop)
        return z + like(w[-self.columns :], z)

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        self.inner.pullback(X, dz, start, stop, out[: -self.columns])
        out[-self.columns :] += like(dz.sum(0), out)


@dataclass(frozen=True)
class Centred:
    r"""A scorer of many scores of rows less a mean, :math:`z_i = W^\top (x_i - \bar x)`, X as it is.

    Parameters
    ----------
    inner : Multiclass
    mean : (p,) array

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin.matrices import as_matrix
    >>> X, W = np.array([[1.0], [3.0]]), np.array([1.0, 2.0])
    >>> Centred(Multiclass(2), np.array([2.0])).scores(as_matrix(X), W, 0, 2).tolist()
    [[-1.0, -2.0], [1.0, 2.0]]
    """

    inner: Multiclass
    mean: NDArray = field(compare=False, repr=False)

    @property
    def columns(self) -> int:
        return self.inner.columns

    def dim(self, n_features: int) -> int:
        return self.inner.dim(n_features)

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        z = self.inner.scores(X, w, start, stop)
        return z - like(like(self.mean, w) @ w.reshape(-1, self.columns), z)

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        self.inner.pullback(X, dz, start, stop, out)
        shift = like(self.mean, out)[:, None] * like(dz.sum(0), out)
        out -= shift.reshape(-1)


@dataclass(frozen=True)
class Standardized:
    r"""A scorer of rows with other columns, :math:`z_i = W^\top ((x_i - m) \circ s)`, X as it is.

    Parameters
    ----------
    inner : Linear, Multiclass or Hierarchy
    shift, scale : (p,) array
        The m and the s.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin.matrices import as_matrix
    >>> scorer = Standardized(Linear(), np.array([2.0]), np.array([10.0]))
    >>> scorer.scores(as_matrix(np.array([[1.0], [3.0]])), np.array([1.0]), 0, 2).tolist()
    [-10.0, 10.0]
    """

    inner: Any
    shift: NDArray = field(compare=False, repr=False)
    scale: NDArray = field(compare=False, repr=False)

    @property
    def columns(self) -> int:
        return int(self.inner.columns)

    def dim(self, n_features: int) -> int:
        return int(self.inner.dim(n_features))

    def _scaled(self, w: Array) -> Array:
        """The weights of X as it is."""
        return (like(self.scale, w)[:, None] * w.reshape(len(self.scale), -1)).reshape(-1)

    def _moved(self, w: Array) -> Array:
        """By how much the shift moves the scores: a number, or one per output."""
        moved = like(self.shift, w) @ w.reshape(len(self.shift), -1)
        if isinstance(self.inner, Hierarchy):
            return self.inner.tree.to_labels(moved[None, :])[0]
        return moved if self.columns > 1 else moved[0]

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        w = self._scaled(w)
        z = self.inner.scores(X, w, start, stop)
        moved = self._moved(w)
        return z - (like(moved, z) if self.columns > 1 else float(moved))

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        plain = 0.0 * out
        self.inner.pullback(X, dz, start, stop, plain)
        total: Any = like(dz.sum(0), out) if self.columns > 1 else float(dz.sum())
        if isinstance(self.inner, Hierarchy):
            total = self.inner.tree.from_labels(total[None, :])[0]
        shift = (like(self.shift, out)[:, None] * total).reshape(-1)
        out += self._scaled(plain - shift)

    def spread(self, D: Array) -> Array:
        """Slopes in the weights of the outputs, (p, k), as slopes in w."""
        found: Array = self.inner.spread(D)
        return found

    @property
    def by_output(self) -> Standardized:
        """The same with weights of its own for each output."""
        return Standardized(Multiclass(self.columns), self.shift, self.scale)


@dataclass(frozen=True)
class Hierarchy:
    r"""A score a label of a tree, :math:`z_{il} = \sum_{v \text{ on the path to } l} x_i^\top W_{\cdot v}`.

    w is ``W.ravel()``, W of shape (p, nodes): labels share what the nodes above them have learned.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Tree
    >>> from riskmin.matrices import as_matrix
    >>> scorer = Hierarchy(Tree.from_paths(["C/C15", "M"]))
    >>> scorer.scores(as_matrix(np.array([[2.0]])), np.array([1.0, 2.0, 4.0]), 0, 1)
    array([[6., 8.]])
    """

    tree: Tree

    @property
    def columns(self) -> int:
        """The number of scores a row has."""
        return len(self.tree.labels)

    def dim(self, n_features: int) -> int:
        return n_features * len(self.tree.nodes)

    def scores(self, X: Matrix, w: Array, start: int, stop: int) -> Array:
        return self.tree.to_labels(X.scores(w.reshape(-1, len(self.tree.nodes)), start, stop))

    def pullback(self, X: Matrix, dz: Array, start: int, stop: int, out: Array) -> None:
        W = out.reshape(-1, len(self.tree.nodes))  # a view: w is in one piece
        X.pullback(self.tree.from_labels(dz), start, stop, W)

    def spread(self, D: Array) -> Array:
        """Slopes in the summed weights of the labels, (p, k), as slopes in w."""
        return self.tree.from_labels(D).reshape(-1)
