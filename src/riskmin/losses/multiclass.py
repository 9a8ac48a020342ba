r"""Losses of many scores a row, :math:`z_i \in R^k`: one of k classes, or k numbers to come close to.

Labels of classes are the numbers 0 to k - 1. In all of them the largest score decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays import like, namespace
from riskmin.losses.curves import Curve, face_curve, faces, simplex_curve, star_curve
from riskmin.losses.labels import check_classes, check_finite
from riskmin.losses.simplex import project
from riskmin.registry import Comparable
from riskmin.scorers import Multiclass
from riskmin.types import Array, NDArray

NONE = 1e-12
"""A multiplier that is made of others and up to this is zero, but for rounding."""


def one_hot(y: Array, z: Array) -> Array:
    """Which score of each row is that of its class, as numbers.

    Examples
    --------
    >>> import numpy as np
    >>> one_hot(np.array([1.0, 0.0]), np.zeros((2, 3))).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    return namespace(z).astype(like(np.arange(float(z.shape[1])), z) == y[:, None], z.dtype)


def _beside(setting: NDArray, z: Array) -> Array:
    """A matrix of a loss's settings in the library and the dtype of the scores."""
    if isinstance(z, np.ndarray):
        return setting.astype(z.dtype, copy=False)
    return like(setting.copy(), z)  # torch wants to own its numbers


class _Classes:
    """What losses of one of k classes share."""

    separable = True
    task = "multiclass"

    check_labels = check_classes

    def scorer(self, y: NDArray, n_outputs: int | None = None) -> Multiclass:
        """A score a class; as many as there are labels, if no more are asked for."""
        least = max(int(y.max()) + 1, 2)
        if n_outputs is None and np.all(y == y.flat[0]):
            raise ValueError(
                f"y holds a single class, {y.flat[0]:g}, but two are needed: add rows of another, "
                "or give n_outputs"
            )
        if n_outputs is not None and n_outputs < least:
            raise ValueError(f"y holds class {y.max():g}, but n_outputs is {n_outputs}: give {least} or more")
        return Multiclass(n_outputs or least)


@dataclass(frozen=True)
class Softmax(_Classes):
    r"""The multinomial logistic loss, :math:`\log \sum_j e^{z_j} - z_y`.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Softmax().value_grad(np.zeros((1, 4)), np.array([2.0]), np.ones(1))
    >>> round(float(value), 6), dz.tolist()
    (1.386294, [[0.25, 0.25, -0.75, 0.25]])
    """

    smooth = True
    formula = "log sum_j exp z_j - z_y"

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The loss, and its gradient: probabilities less ones."""
        if isinstance(z, np.ndarray):
            return _softmax(z, y, c)
        xp, own = namespace(z), one_hot(y, z)
        z = z - xp.max(z, axis=1, keepdims=True)
        e = xp.exp(z)
        total = xp.sum(e, axis=1, keepdims=True)
        value = c @ (xp.log(total[:, 0]) - xp.sum(z * own, axis=1))
        return value, (e / total - own) * c[:, None]

    def constants(self, k: int) -> tuple[Any, Any]:
        """The slopes, and the offsets, of the bounds z_j - z_y."""
        return 1.0, 0.0

    def curve(self, dz: NDArray, y: NDArray, c: NDArray, mu: float = 0.0) -> Curve:
        """The second derivatives where the slopes are dz: those of probabilities."""
        p = dz / np.where(c > 0, c, 1.0)[:, None]
        p[np.arange(len(p)), y.astype(np.intp)] += 1.0
        return simplex_curve(p, c)


def _softmax(z: NDArray, y: NDArray, c: NDArray) -> tuple[Any, NDArray]:
    """The softmax loss in half of the passes, by numbers picked and changed in place."""
    own = np.arange(len(z)), y.astype(np.intp)
    e = z - z.max(axis=1, keepdims=True)
    right = e[own]
    np.exp(e, out=e)
    total = e @ np.ones(z.shape[1], e.dtype)
    e *= (c / total)[:, None]
    e[own] -= c
    return c @ (np.log(total) - right), e


@dataclass(frozen=True, eq=False, repr=False)
class MulticlassHinge(Comparable, _Classes):
    r"""The soft margin of many classes, :math:`\max_j\; \Delta_{yj} + z_j - z_y`, for any cost matrix.

    `rescaled` scales margins in place of shifting them:
    :math:`\max_j\; \Delta_{yj} (1 + z_j - z_y)`, where cheap mistakes need no large margin.

    Parameters
    ----------
    cost : (k, k) array, optional
        :math:`\Delta_{yj} \ge 0`, the cost of j where y is right, zero on the diagonal. By default 1 off it.
    rescaled : bool

    References
    ----------
    K. Crammer, Y. Singer, On the algorithmic implementation of multiclass kernel-based vector machines,
    JMLR 2, 2001. I. Tsochantaridis, T. Joachims, T. Hofmann, Y. Altun, Large margin methods for structured
    and interdependent output variables, JMLR 6, 2005.

    Examples
    --------
    >>> import numpy as np
    >>> z, y, c = np.array([[0.5, 0.0, 1.0]]), np.array([0.0]), np.ones(1)
    >>> value, dz = MulticlassHinge().value_grad(z, y, c)
    >>> float(value), dz.tolist()
    (1.5, [[-1.0, 0.0, 1.0]])
    >>> cost = [[0, 2, 1], [2, 0, 1], [1, 1, 0]]
    >>> [float(MulticlassHinge(cost, rescaled=r).value_grad(z, y, c)[0]) for r in (False, True)]
    [1.5, 1.5]
    """

    cost: Any = None
    rescaled: bool = False

    smooth = False
    centred = True

    def __post_init__(self) -> None:
        if self.cost is None:
            return
        try:
            cost = np.array(self.cost, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"cost={self.cost!r} is no matrix of numbers: give a row and a column for each class"
            ) from None
        cost.flags.writeable = False
        object.__setattr__(self, "cost", cost)
        if np.ndim(cost) != 2 or cost.shape[0] != cost.shape[1] or len(cost) < 2:
            raise ValueError(f"cost has shape {np.shape(cost)}: give a row and a column for each class")
        if not (np.isfinite(cost).all() and (cost >= 0).all() and (np.diag(cost) == 0).all()):
            raise ValueError("cost holds something else than finite numbers >= 0, and 0 on its diagonal")

    @property
    def formula(self) -> str:
        """The loss in one line."""
        return "max_j cost[y, j] (1 + z_j - z_y)" if self.rescaled else "max_j cost[y, j] + z_j - z_y"

    def scorer(self, y: NDArray, n_outputs: int | None = None) -> Multiclass:
        """A score a class: as many as the cost has."""
        found = super().scorer(y, n_outputs)
        if self.cost is None:
            return found
        k, many = len(self.cost), found.k
        if many > k:
            raise ValueError(
                f"cost is for {k} classes, but there are {many}: give a row and a column for each"
            )
        return Multiclass(k)

    def _slack(self, z: Array, y: Array) -> tuple[Array, Array, Array]:
        """What each class would cost a row, the factor of its slope, and which class is right."""
        xp, own = namespace(z), one_hot(y, z)
        ahead = z - xp.sum(z * own, axis=1, keepdims=True)
        if self.cost is None:
            return ahead + (1 - own), 1.0, own
        cost = xp.take(_beside(self.cost, z), xp.astype(y, xp.int64), axis=0)
        return (cost * (1 + ahead), cost, own) if self.rescaled else (cost + ahead, 1.0, own)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The loss, and a subgradient; that of the right class, where all margins are kept."""
        xp = namespace(z)
        slack, factor, own = self._slack(z, y)
        most = xp.max(slack, axis=1)
        best = xp.astype(xp.argmax(slack, axis=1), z.dtype)
        beta = one_hot(xp.where(most > 0, best, y), z)  # rows whose margins are kept cost no scatter
        return c @ most, self._slope(beta, factor, own, c)

    def _slope(self, beta: Array, factor: Array, own: Array, c: Array) -> Array:
        """The slopes in z of multipliers beta of the classes."""
        beta = beta * factor * (1 - own)
        return (beta - namespace(beta).sum(beta, axis=1, keepdims=True) * own) * c[:, None]

    def soft(
        self, z: Array, y: Array, c: Array, mu: float, centre: Array | None = None
    ) -> tuple[Any, Array, Any]:
        r"""The loss with :math:`\tfrac\mu2 |\beta|^2` taken off multipliers on a simplex a row."""
        xp = namespace(z)
        slack, factor, own = self._slack(z, y)
        start = 0.0 if centre is None else self._multipliers(centre, factor, own, c)
        beta = project(slack / mu + start)
        off = beta - start
        lift = 0.5 * mu * (c @ xp.sum(off * off, axis=1))
        return c @ xp.sum(beta * slack, axis=1) - lift, self._slope(beta, factor, own, c), lift

    def _multipliers(self, dz: Array, factor: Array, own: Array, c: Array) -> Array:
        """The multipliers of which these are the slopes."""
        xp = namespace(dz)
        scale = c[:, None] * factor * (1 - own)
        beta = xp.where(scale > 0, dz / xp.where(scale > 0, scale, 1.0 + 0.0 * scale), 0.0 * dz)
        return beta + own * (1 - xp.sum(beta, axis=1, keepdims=True))

    def curve(self, dz: NDArray, y: NDArray, c: NDArray, mu: float) -> Curve:
        """The second derivatives of `soft` where its slopes are dz: those of faces of the simplex."""
        _, factor, own = self._slack(0.0 * dz, y)
        face = (self._multipliers(dz, factor, own, c) > NONE).astype(float)
        return face_curve(face, factor, own, c / mu) if self.rescaled else faces(face, c / mu)

    def constants(self, k: int) -> tuple[Any, Any]:
        """The slopes, and the offsets, of the bounds that are linear in z."""
        cost = 1.0 - np.eye(k) if self.cost is None else self.cost
        return (cost if self.rescaled else 1.0), cost


@dataclass(frozen=True)
class MulticlassSquaredHinge(_Classes):
    r"""The squared hinge of many classes, :math:`\tfrac12 \sum_{j \ne y} \max(0, 1 + z_j - z_y)^2`: smooth.

    For two classes, it is the squared hinge of the difference of their scores.

    References
    ----------
    J. Weston, C. Watkins, Support vector machines for multi-class pattern recognition, ESANN 1999.

    Examples
    --------
    >>> import numpy as np
    >>> z, y, c = np.array([[0.5, 0.0, 1.0]]), np.array([0.0]), np.ones(1)
    >>> value, dz = MulticlassSquaredHinge().value_grad(z, y, c)
    >>> float(value), dz.tolist()
    (1.25, [[-2.0, 0.5, 1.5]])
    """

    smooth = True
    formula = "sum_(j != y) max(0, 1 + z_j - z_y)^2 / 2"

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The loss, and its gradient."""
        xp, own = namespace(z), one_hot(y, z)
        slack = 1 + z - xp.sum(z * own, axis=1, keepdims=True)
        slack = xp.maximum(slack, 0.0 * slack) * (1 - own)
        value = 0.5 * (c @ xp.sum(slack * slack, axis=1))
        return value, (slack - xp.sum(slack, axis=1, keepdims=True) * own) * c[:, None]

    def constants(self, k: int) -> tuple[Any, Any]:
        """The slopes, and the offsets, of the bounds 1 + z_j - z_y - 1/2."""
        return 1.0, 0.5 - 0.5 * np.eye(k)

    def curve(self, dz: NDArray, y: NDArray, c: NDArray, mu: float = 0.0) -> Curve:
        """The second derivatives where the slopes are dz: those of the margins that are not kept."""
        return star_curve((dz > 0) * c[:, None], one_hot(y, dz))


@dataclass(frozen=True, eq=False, repr=False)
class MultivariateSquared(Comparable):
    r"""The squared loss of many numbers, :math:`\tfrac12 (z - y)^\top M (z - y)`.

    Parameters
    ----------
    M : (k, k) array, optional
        Symmetric and positive semidefinite; the identity by default.

    Examples
    --------
    >>> import numpy as np
    >>> z, y = np.array([[1.0, 2.0]]), np.array([[0.0, 0.0]])
    >>> value, dz = MultivariateSquared().value_grad(z, y, np.ones(1))
    >>> float(value), dz.tolist()
    (2.5, [[1.0, 2.0]])
    """

    M: Any = None

    separable = True
    smooth = True
    task = "regression"
    many_targets = True
    formula = "(z - y)' M (z - y) / 2"

    check_labels = check_finite

    def __post_init__(self) -> None:
        if self.M is None:
            return
        M = np.array(self.M, dtype=np.float64)
        M.flags.writeable = False
        object.__setattr__(self, "M", M)
        if M.ndim != 2 or M.shape[0] != M.shape[1] or not np.allclose(M, M.T, rtol=1e-12, atol=0.0):
            raise ValueError(
                f"M, of shape {M.shape}, is not symmetric: give a row and a column for each output"
            )
        if not np.isfinite(M).all() or np.linalg.eigvalsh(M)[0] < -1e-10 * abs(M).max():
            raise ValueError(
                "M is not positive semidefinite, so the loss would not be convex: give another M"
            )

    def scorer(self, y: NDArray, n_outputs: int | None = None) -> Multiclass:
        """A score an output."""
        k = y.shape[1]
        if n_outputs is not None and n_outputs != k:
            raise ValueError(f"y has {k} columns, but n_outputs is {n_outputs}: give {k}, or leave it out")
        if self.M is not None and len(self.M) != k:
            raise ValueError(f"M is for {len(self.M)} outputs, but y has {k}: give one row and column each")
        return Multiclass(k)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """The loss, and its gradient."""
        off = z - y
        slope = off if self.M is None else off @ _beside(self.M, z)
        return 0.5 * (c @ namespace(z).sum(slope * off, axis=1)), slope * c[:, None]

    def curve(self, dz: NDArray, y: NDArray, c: NDArray, mu: float = 0.0) -> Curve:
        """The second derivatives: M in every row."""
        M = np.eye(dz.shape[1]) if self.M is None else self.M
        return Curve(c[:, None] * np.diag(M), lambda V, at: c[at, None] * (V @ M))
