r"""Multi-output losses, :math:`z_i \in R^k`: classification into k classes, and regression of k targets.

Class labels are the numbers 0 to k - 1; the predicted class is that of the largest score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.devices.gpu import as_cupy, from_cupy, on_stream_of, runs_kernels
from riskmin.arrays.namespace import as_array_like, namespace
from riskmin.core import Array, NDArray
from riskmin.core.messages import check_rescaling
from riskmin.core.registry import ArrayDataclass
from riskmin.linear_maps.linear import MultiOutput
from riskmin.losses.base import Loss
from riskmin.losses.block_hessian import (
    BlockHessian,
    scaled_face_hessian,
    simplex_face_hessian,
    simplex_hessian,
    star_hessian,
)
from riskmin.losses.labels import check_classes, check_finite
from riskmin.numerics.simplex import project_onto_simplex

MAX_KERNEL_CLASSES = 1024
"""The most scores of a row that the threads of a GPU hold in their registers."""


def one_hot(y: Array, z: Array) -> Array:
    """Return the one-hot encoding of the classes y, in the shape, library and dtype of the scores z."""
    return namespace(z).astype(as_array_like(np.arange(float(z.shape[1])), z) == y[:, None], z.dtype)


def _as_scores_array(setting: NDArray, z: Array) -> Array:
    """Return an array setting of a loss in the array library and dtype of the scores z."""
    if namespace(z) is np:
        return setting.astype(z.dtype, copy=False)
    # torch needs writable memory
    return as_array_like(setting.copy(), z)


class _MulticlassLoss(Loss):
    """Label check and linear map shared by the losses of k classes."""

    task = "multiclass"

    check_labels = check_classes

    def linear_map(self, y: NDArray, n_outputs: int | None = None) -> MultiOutput:
        """Return the linear map with one score per class; by default, of classes 0 to the largest in y."""
        n_classes = max(int(y.max()) + 1, 2)
        if n_outputs is None and bool((y == y[0]).all()):
            raise ValueError(
                f"y holds a single class, {float(y[0]):g}, but two are needed: add rows of another, "
                "or give n_outputs"
            )
        if n_outputs is not None and n_outputs < n_classes:
            raise ValueError(
                f"y holds class {float(y.max()):g}, but n_outputs is {n_outputs}: give {n_classes} or more"
            )
        return MultiOutput(n_outputs or n_classes)


@dataclass(frozen=True)
class Softmax(_MulticlassLoss):
    r"""The multinomial logistic loss, :math:`\log \sum_j e^{z_j} - z_y`.

    Examples
    --------
    >>> import numpy as np
    >>> value, dz = Softmax().value_grad(np.zeros((1, 4)), np.array([2.0]), np.ones(1))
    >>> round(float(value), 6), dz.tolist()
    (1.386294, [[0.25, 0.25, -0.75, 0.25]])
    """

    smooth = True
    probabilistic = True
    likelihood = "multinomial"
    self_concordance = 1.0
    formula = "log sum_j exp z_j - z_y"

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the loss and its gradient: probabilities minus the one-hot labels."""
        if namespace(z) is np:
            return _softmax(z, y, c)
        if z.shape[1] <= MAX_KERNEL_CLASSES and runs_kernels(z):
            return _softmax_on_gpu(z, y, c)
        xp, k = namespace(z), z.shape[1]
        # the positions of the scores of the true classes among all scores
        true_entries = k * (xp.cumulative_sum(xp.ones_like(y, dtype=xp.int64)) - 1) + xp.astype(y, xp.int64)
        # subtract the largest score of each row: exp cannot overflow
        z = z - xp.max(z, axis=1, keepdims=True)
        true_scores = xp.take(xp.reshape(z, (-1,)), true_entries)
        e = xp.exp(z)
        total = e @ xp.ones_like(e[0, :])
        dz = e * (c / total)[:, None]
        true_class = as_array_like(np.arange(float(k)), z) == y[:, None]
        return c @ (xp.log(total) - true_scores), xp.where(true_class, dz - c[:, None], dz)

    def constant_prediction_cuts(self, k: int) -> tuple[Any, Any]:
        """Return slopes and offsets of the linear lower bounds z_j - z_y of the loss."""
        # log sum_j e^(z_j) >= z_j for every j
        return 1.0, 0.0

    def multiplier_cut(self, dz: NDArray, y: NDArray, c: NDArray) -> tuple[NDArray, Any, Any]:
        """Return slopes of probabilities near those of dz, and the offset of their cut, the entropy."""
        true_class = one_hot(y, dz)
        q = project_onto_simplex(dz / np.where(c > 0, c, 1.0)[:, None] + true_class)
        terms = c @ -np.where(q > 0, q * np.log(np.where(q > 0, q, 1.0)), 0.0)
        return (q - true_class) * c[:, None], terms.sum(), terms.sum()

    def block_hessian(self, dz: NDArray, y: NDArray, c: NDArray, mu: float = 0.0) -> BlockHessian:
        """Return the Hessian at the point with gradient dz, from the probabilities dz / c + one_hot(y)."""
        # rows of weight zero have dz = 0; any p on the simplex serves, because size is zero
        p = dz / np.where(c > 0, c, 1.0)[:, None]
        p[np.arange(len(p)), y.astype(np.intp)] += 1.0
        return simplex_hessian(p, c)


def _softmax_on_gpu(z: Array, y: Array, c: Array) -> tuple[Any, Array]:
    """Return softmax loss and gradient by one kernel: two passes over the scores."""
    from riskmin._cuda.lists import softmax

    with on_stream_of(z):
        value, dz = softmax(as_cupy(z), as_cupy(y), as_cupy(c))
        return from_cupy(value, z), namespace(z).astype(from_cupy(dz, z), z.dtype)


def _softmax(z: NDArray, y: NDArray, c: NDArray) -> tuple[Any, NDArray]:
    """Return softmax loss and gradient of NumPy arrays: indexing and in-place updates halve the passes."""
    true_entries = np.arange(len(z)), y.astype(np.intp)
    # relative to the largest score of each row: exp cannot overflow
    # by columns of a copy, five times as fast as by rows for ten classes
    e = z - np.ascontiguousarray(z.T).max(axis=0)[:, None]
    true_scores = e[true_entries]
    # from here on in place: e becomes c (p - one-hot(y))
    np.exp(e, out=e)
    # a matrix-vector product is faster than sum(axis=1)
    total = e @ np.ones(z.shape[1], e.dtype)
    e *= (c / total)[:, None]
    e[true_entries] -= c
    return c @ (np.log(total) - true_scores), e


def margin_formula(rescaled: bool | float, scaled_margin: bool) -> str:
    """Return the term of a class j in the maximum of the multiclass hinge, as text."""
    power = "" if rescaled == 1 else f"^{float(rescaled):g}"
    if not rescaled:
        return "cost[y, j] + z_j - z_y"
    if scaled_margin:
        return f"cost[y, j]{power} (z_j - z_y + cost[y, j])"
    return f"cost[y, j]{power} (z_j - z_y) + cost[y, j]" if power else "cost[y, j] (1 + z_j - z_y)"


@dataclass(frozen=True, eq=False, repr=False)
class MulticlassHinge(ArrayDataclass, _MulticlassLoss):
    r"""The multiclass hinge loss, :math:`\max_j\; \Delta_{yj} + z_j - z_y`, for any cost matrix.

    With slack rescaling (`rescaled`) it is :math:`\max_j\; \Delta_{yj} (1 + z_j - z_y)`, in which mistakes of
    low cost do not require a large margin. A number :math:`\beta` between 0 and 1 is in between:
    :math:`\max_j\; \Delta_{yj}^\beta (z_j - z_y) + \Delta_{yj}` (paper A, section 3.3), or, with
    `scaled_margin`, :math:`\max_j\; \Delta_{yj}^\beta (z_j - z_y + \Delta_{yj})` (its Table 2).

    Parameters
    ----------
    cost : (k, k) array, optional
        :math:`\Delta_{yj} \ge 0`, the cost of predicting j if y is the true class; zero on the diagonal. By
        default 1 off the diagonal.
    rescaled : bool or float
        Whether the cost scales the margin (slack rescaling) or is added to it (margin rescaling); or
        :math:`\beta`, of which True and False are 1 and 0.
    scaled_margin : bool
        Whether the margin that grows with the cost is scaled, too.

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

    ZERO_MULTIPLIER_TOLERANCE = 1e-12
    """Multipliers up to this value count as zero: they are computed from gradients and have rounding
    errors."""

    cost: Any = None
    rescaled: bool | float = False
    scaled_margin: bool = False

    accepts_center = True

    def __post_init__(self) -> None:
        check_rescaling(self.rescaled)
        object.__setattr__(self, "formula", f"max_j {margin_formula(self.rescaled, self.scaled_margin)}")
        if self.cost is None:
            return
        try:
            cost = np.array(self.cost, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"cost={self.cost!r} is not a matrix of numbers: give a row and a column for each class"
            ) from None
        cost.flags.writeable = False
        object.__setattr__(self, "cost", cost)
        if np.ndim(cost) != 2 or cost.shape[0] != cost.shape[1] or len(cost) < 2:
            raise ValueError(f"cost has shape {np.shape(cost)}: give a row and a column for each class")
        if not (np.isfinite(cost).all() and (cost >= 0).all() and (np.diag(cost) == 0).all()):
            raise ValueError("cost must hold finite numbers >= 0, and 0 on its diagonal: correct the others")

    def linear_map(self, y: NDArray, n_outputs: int | None = None) -> MultiOutput:
        """Return the linear map with one score per class of the cost matrix, if there is one."""
        linear_map = super().linear_map(y, n_outputs)
        if self.cost is None:
            return linear_map
        k, n_classes = len(self.cost), linear_map.k
        if n_classes > k:
            raise ValueError(
                f"cost is for {k} classes, but there are {n_classes}: give a row and a column for each"
            )
        return MultiOutput(k)

    def for_classes(self, k: int) -> Loss:
        """Return the loss itself; raise a ValueError if its cost is for another number of classes."""
        if self.cost is not None and len(self.cost) != k:
            raise ValueError(
                f"cost is for {len(self.cost)} classes, but y has {k}: give a row and a column for each, "
                "in the order of classes_"
            )
        return self

    def _slack(self, z: Array, y: Array) -> tuple[Array, Array, Array]:
        """Return the terms of the maximum over classes, their slopes in z_j - z_y, and the one-hot labels."""
        xp, true_class = namespace(z), one_hot(y, z)
        lead = z - xp.sum(z * true_class, axis=1, keepdims=True)
        if self.cost is None:
            return lead + (1 - true_class), 1.0, true_class
        # the rows of the true classes
        matrices = self._terms() if self.rescaled else (self.cost,)
        rows = [xp.take(_as_scores_array(m, z), xp.astype(y, xp.int64), axis=0) for m in matrices]
        if not self.rescaled:
            return rows[0] + lead, 1.0, true_class
        factor, margin = rows
        return factor * (margin + lead), factor, true_class

    def _terms(self) -> tuple[NDArray, NDArray]:
        """Return the matrices F and M of the terms F_yj (z_j - z_y + M_yj) for a cost matrix."""
        factor = np.power(self.cost, float(self.rescaled))
        if self.scaled_margin or not self.rescaled:
            return factor, self.cost
        # F M is the cost; the diagonal, where both are zero, has no margin
        margin = np.power(self.cost, 1 - float(self.rescaled))
        return factor, np.where(np.eye(len(margin)) > 0, 0.0, margin)

    def margins(self, y: NDArray, k: int) -> NDArray:
        """Return the margin of each class over the true one at which its term is zero, one row per label."""
        matrix = 1.0 - np.eye(k) if self.cost is None else self._terms()[1]
        margins: NDArray = matrix[y.astype(np.intp)]
        return margins

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the loss and a subgradient, which is zero in rows whose margins are all met."""
        xp = namespace(z)
        slack, factor, true_class = self._slack(z, y)
        largest = xp.max(slack, axis=1)
        best = xp.astype(xp.argmax(slack, axis=1), z.dtype)
        # rows with all margins met choose the true class: their gradient is exactly zero
        beta = one_hot(xp.where(largest > 0, best, y), z)
        return c @ largest, self._slope(beta, factor, true_class, c)

    def _slope(self, beta: Array, factor: Array, true_class: Array, c: Array) -> Array:
        """Return the gradient in z for the multipliers beta of the classes."""
        # sum_j beta_j f_j (e_j - e_y)
        beta = beta * factor * (1 - true_class)
        return (beta - namespace(beta).sum(beta, axis=1, keepdims=True) * true_class) * c[:, None]

    def smoothed_value_grad(
        self, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
    ) -> tuple[Any, Array, Any]:
        r"""Return the smoothed loss, its gradient and the minorant offset.

        Each row has multipliers :math:`\beta` on a simplex, and :math:`\tfrac\mu2 |\beta - \beta_0|^2` is
        subtracted, with :math:`\beta_0` the multipliers of the center or zero.
        """
        xp = namespace(z)
        slack, factor, true_class = self._slack(z, y)
        start = 0.0 if center is None else self._multipliers(center, factor, true_class, c)
        # argmax over the simplex of beta'slack - mu |beta - start|^2 / 2
        beta = project_onto_simplex(slack / mu + start)
        step = beta - start
        offset = 0.5 * mu * (c @ xp.sum(step * step, axis=1))
        return c @ xp.sum(beta * slack, axis=1) - offset, self._slope(beta, factor, true_class, c), offset

    def _multipliers(self, dz: Array, factor: Array, true_class: Array, c: Array) -> Array:
        """Return the multipliers of a gradient dz: the inverse of `_slope`."""
        xp = namespace(dz)
        # the multiplier of the true class, whose term has no slope, makes the sum one
        scale = c[:, None] * factor * (1 - true_class)
        beta = xp.where(scale > 0, dz / xp.where(scale > 0, scale, 1.0 + 0.0 * scale), 0.0 * dz)
        return beta + true_class * (1 - xp.sum(beta, axis=1, keepdims=True))

    def multiplier_cut(self, dz: NDArray, y: NDArray, c: NDArray) -> tuple[NDArray, Any, Any]:
        """Return slopes of multipliers on the simplex near those of dz, and the offset of their cut."""
        # at scores of zero, the terms of the maximum are the costs
        costs, factor, true_class = self._slack(0.0 * dz, y)
        beta = project_onto_simplex(self._multipliers(dz, factor, true_class, c))
        offset = c @ (beta * costs).sum(axis=1)
        return self._slope(beta, factor, true_class, c), offset, offset

    def block_hessian(self, dz: NDArray, y: NDArray, c: NDArray, mu: float = 0.0) -> BlockHessian:
        """Return the Hessian of the smoothed loss at the point with gradient dz.

        The multipliers are a projection onto the simplex, whose derivative is that of the active face.
        """
        _, factor, true_class = self._slack(0.0 * dz, y)
        # the active face: classes with positive multipliers
        face = (self._multipliers(dz, factor, true_class, c) > self.ZERO_MULTIPLIER_TOLERANCE).astype(float)
        if not self.rescaled:
            return simplex_face_hessian(face, c / mu)
        # a mistake that costs nothing has the term of the true class, 0, and so its multiplier
        face = np.where(factor > 0, face, np.sum(face * true_class, axis=1, keepdims=True))
        return scaled_face_hessian(face, factor, true_class, c / mu)

    def constant_prediction_cuts(self, k: int) -> tuple[Any, Any]:
        """Return slopes F and offsets O of the linear lower bounds F_yj (z_j - z_y) + O_yj of the loss."""
        # the terms of the maximum
        if self.cost is None:
            return (1.0 - np.eye(k) if self.rescaled else 1.0), 1.0 - np.eye(k)
        factor, margin = self._terms()
        return (factor, factor * margin) if self.rescaled else (1.0, margin)


@dataclass(frozen=True)
class MulticlassSquaredHinge(_MulticlassLoss):
    r"""The multiclass squared hinge loss, :math:`\tfrac12 \sum_{j \ne y} \max(0, 1 + z_j - z_y)^2`; smooth.

    For two classes, it is the squared hinge loss of the difference of the scores.

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
        """Return the loss and its gradient."""
        xp, true_class = namespace(z), one_hot(y, z)
        slack = 1 + z - xp.sum(z * true_class, axis=1, keepdims=True)
        # margin violations of the other classes
        slack = xp.maximum(slack, 0.0 * slack) * (1 - true_class)
        value = 0.5 * (c @ xp.sum(slack * slack, axis=1))
        return value, (slack - xp.sum(slack, axis=1, keepdims=True) * true_class) * c[:, None]

    def constant_prediction_cuts(self, k: int) -> tuple[Any, Any]:
        """Return slopes and offsets of the linear lower bounds 1 + z_j - z_y - 1/2 of the loss."""
        # max(0, s)^2 / 2 >= s - 1/2, the tangent at s = 1
        return 1.0, 0.5 - 0.5 * np.eye(k)

    def multiplier_cut(self, dz: NDArray, y: NDArray, c: NDArray) -> tuple[NDArray, Any, Any]:
        """Return slopes of nonnegative multipliers near those of dz, and the offset of their cut."""
        true_class = one_hot(y, dz)
        a = np.maximum(dz / np.where(c > 0, c, 1.0)[:, None], 0.0) * (1 - true_class)
        # max(0, 1 + s)^2 / 2 >= a (1 + s) - a^2 / 2 for a >= 0
        linear, square = c @ a.sum(axis=1), 0.5 * (c @ (a * a).sum(axis=1))
        return (a - a.sum(axis=1, keepdims=True) * true_class) * c[:, None], linear - square, linear + square

    def block_hessian(self, dz: NDArray, y: NDArray, c: NDArray, mu: float = 0.0) -> BlockHessian:
        """Return the Hessian at the point with gradient dz, from the violated margins (dz > 0)."""
        # a class j != y has dz > 0 iff its margin is violated; each adds c (e_j - e_y)(e_j - e_y)'
        return star_hessian((dz > 0) * c[:, None], one_hot(y, dz))


@dataclass(frozen=True, eq=False, repr=False)
class MultivariateSquared(ArrayDataclass, Loss):
    r"""The squared loss of several targets, :math:`\tfrac12 (z - y)^\top M (z - y)`.

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

    smooth = True
    constant_curvature = True
    self_concordance = 0.0
    task = "regression"
    multi_output_targets = True
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

    def linear_map(self, y: NDArray, n_outputs: int | None = None) -> MultiOutput:
        """Return the linear map with one score per target."""
        k = y.shape[1]
        if n_outputs is not None and n_outputs != k:
            raise ValueError(f"y has {k} columns, but n_outputs is {n_outputs}: give {k}, or leave it out")
        if self.M is not None and len(self.M) != k:
            raise ValueError(f"M is for {len(self.M)} outputs, but y has {k}: give one row and column each")
        return MultiOutput(k)

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the loss and its gradient."""
        # gradient M (z - y); M is symmetric
        residual = z - y
        gradient = residual if self.M is None else residual @ _as_scores_array(self.M, z)
        return 0.5 * (c @ namespace(z).sum(gradient * residual, axis=1)), gradient * c[:, None]

    def block_hessian(self, dz: NDArray, y: NDArray, c: NDArray, mu: float = 0.0) -> BlockHessian:
        """Return the Hessian: c_i M in row i."""
        # the same M in all rows: the products of all rows are one matrix product
        M = np.eye(dz.shape[1]) if self.M is None else self.M
        return BlockHessian(c[:, None] * np.diag(M), lambda V, rows: c[rows, None] * (V @ M))
