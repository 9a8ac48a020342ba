r"""The risk of several quantiles together, and the rows at which they may not cross,

.. math:: R(W, b) = \sum_k \sum_i c_i\, \rho_k(y_i - z_{ik}), \qquad z_{ik} = x_i^\top w_k + b_k, \qquad
          z_{gk} \le z_{g,k+1} \text{ at every guard } g,

with the pinball loss :math:`\rho_k` of level k. Planes that do not cross at points do not cross in their
convex hull. A larger intercept of all higher planes repairs a violation, so that every W has a feasible b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Evaluation, NDArray
from riskmin.linear_maps.linear import MultiOutput
from riskmin.losses.base import Loss
from riskmin.losses.labels import check_finite
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem.certificate import tangent
from riskmin.problem.objective import Oracle


@dataclass(frozen=True)
class JointQuantiles(Loss):
    """The sum of the pinball losses of several levels, for one score each."""

    levels: tuple[float, ...]

    task = "quantiles"
    formula = "sum over levels of max(level (y - z), (level - 1) (y - z))"
    check_labels = check_finite

    def value_grad(self, z: Array, y: Array, c: Array) -> tuple[Any, Array]:
        """Return the sum of the losses, and a subgradient in the scores (n, k)."""
        xp, r = namespace(z), z - y[:, None]
        g = c[:, None] * (xp.astype(r >= 0, z.dtype) - xp.asarray(self.levels, dtype=z.dtype))
        return xp.sum(g * r), g

    def linear_map(self, y: NDArray, n_outputs: int | None = None) -> MultiOutput:
        """Return the map to one score per level."""
        return MultiOutput(len(self.levels))


class Guards:
    """Points at which planes may not cross: rows, or all points of a box.

    Parameters
    ----------
    rows : (n, p) array
    box : (p, 2) array, optional
        The least and the largest number of each column.
    """

    def __init__(self, rows: NDArray, box: NDArray | None = None) -> None:
        self.rows, self.box = rows, box

    def violations(self, W: NDArray, b: NDArray) -> list[tuple[NDArray, NDArray]]:
        """Return, for each pair of adjacent planes, how far they cross, and where: the largest first."""
        if self.box is not None:
            return [self._corner(W[:, k] - W[:, k + 1], b[k] - b[k + 1]) for k in range(len(b) - 1)]
        z, found = self.rows @ W + b, []
        for k in range(len(b) - 1):
            crossed = z[:, k] - z[:, k + 1]
            worst = np.argsort(-crossed)[: 2 * self.rows.shape[1] + 2]
            found.append((crossed[worst], self.rows[worst]))
        return found

    def _corner(self, w: NDArray, b: float) -> tuple[NDArray, NDArray]:
        """Return the largest w'x + b in the box, and the corner x."""
        assert self.box is not None
        corner = np.where(w > 0, self.box[:, 1], self.box[:, 0])
        return np.array([corner @ w + b]), corner[None]

    def repaired(self, W: NDArray, b: NDArray) -> NDArray:
        """Return intercepts with which no planes cross, not even by rounding: higher planes are raised."""
        points = self.rows if self.box is None else self.box.T
        size = float((np.abs(points) @ np.abs(W)).max(initial=0.0) + np.abs(b).max())
        raised = np.zeros(len(b))
        for k, (crossed, _) in enumerate(self.violations(W, b)):
            raised[k + 1] = max(0.0, raised[k] + float(crossed.max()) + CUT_ROUNDING * size)
        return b + raised


class JointQuantileRisk(Oracle):
    """R of weights (p, k) in row-major order, and k numbers that are added to the quantiles of y.

    So w = 0 are the best constants.
    """

    def __init__(
        self, rows: NDArray, y: NDArray, c: NDArray, levels: tuple[float, ...], guards: Guards
    ) -> None:
        self.X, self.y, self.c, self.k, self.guards = rows, y, c, len(levels), guards
        self.losses = JointQuantiles(levels)
        self.dim = (rows.shape[1] + 1) * self.k
        self.constants = np.quantile(y, levels, weights=c, method="inverted_cdf")
        """The quantiles of y."""

    def split(self, w: NDArray) -> tuple[NDArray, NDArray]:
        """Return the weights (p, k) and the intercepts."""
        return w[: -self.k].reshape(-1, self.k), w[-self.k :] + self.constants

    def joined(self, W: NDArray, b: NDArray) -> NDArray:
        """Return w of weights and intercepts."""
        return np.append(W.ravel(), b - self.constants)

    def evaluate(self, w: Array) -> Evaluation:
        """Return the value, a subgradient and the tangent."""
        W, b = self.split(np.asarray(w))
        value, dz = self.losses.value_grad(self.X @ W + b, self.y, self.c)
        return tangent(w, float(value), np.append((self.X.T @ dz).ravel(), dz.sum(axis=0)))
