r"""The loss of all rows with k scores each: the parts that several outputs bring to the stages of Newton.

.. math:: R(Z) = \sum_i c_i\, l(z_i, y_i), \qquad z_i \in R^k,

smoothed by mu around a center if l is not smooth. Softmax and the multiclass hinge loss have compiled loops;
other losses are evaluated by their own array code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.losses.multiclass import MulticlassHinge, Softmax
from riskmin.numerics.univariate import bracketed_newton
from riskmin.problem.design_operator import DesignOperator
from riskmin.problem.shard_ops import inner
from riskmin.solvers.newton.multi_output.blocks import Blocks, LossBlocks, SimplexBlocks, simplex_kernels
from riskmin.solvers.newton.row_model import RowSums


class OutputRows:
    """The loss of rows with labels y and weights c, by its array code.

    Parameters
    ----------
    design : DesignOperator
        Its ranges of rows are shared by threads.
    """

    min_mu = 0.0
    predicts = has_center = True

    def __init__(self, design: DesignOperator) -> None:
        risk: Any = design.risk
        assert design.rows is not None
        self.design, self.loss, self.k = design, risk.loss, int(risk.linear_map.columns)
        self.smooth, self.y, self.c = bool(risk.loss.smooth), design.rows.y, design.rows.c

    @staticmethod
    def of(design: DesignOperator) -> OutputRows:
        """The model of the loss of a risk with local rows."""
        loss: Any = design.risk.loss
        if type(loss) is Softmax:
            return SoftmaxRows(design)
        return (
            HingeRows(design) if type(loss) is MulticlassHinge and not loss.rescaled else OutputRows(design)
        )

    def first_center(self, z: NDArray) -> NDArray:
        """The center of the first stage: slopes of 0."""
        return np.zeros_like(z)

    def multipliers(self, s: NDArray) -> NDArray:
        """What the next center is made of: here, the slopes."""
        return s

    def in_domain(self, u: NDArray) -> NDArray:
        """A center as it is: any one gives cuts of the loss itself."""
        return u

    def _value(self, z: NDArray, mu: float, center: NDArray) -> tuple[float, NDArray, float]:
        """The smoothed loss, its slopes, and by how much its tangent is below the cut of the slopes."""
        if not mu:
            return *self.loss.value_grad(z, self.y, self.c), 0.0
        smoothing = (mu, center) if self.loss.supports_center else (mu,)
        found: Any = self.loss.smoothed_value_grad(z, self.y, self.c, *smoothing)
        return found  # type: ignore[no-any-return]

    def at(self, z: NDArray, mu: float, center: NDArray) -> tuple[NDArray, Blocks, RowSums]:
        """The slopes, the second derivatives and the sums of the loss smoothed by mu."""
        smoothed, s, offset = self._value(z, mu, center)
        value = float(self.loss.value_grad(z, self.y, self.c)[0]) if mu else float(smoothed)
        # the cut of the slopes is smoothed + offset at these scores
        sums = RowSums(value, 0.0, 0.0, float(smoothed), max(value - float(smoothed) - float(offset), 0.0))
        return s, LossBlocks(self.loss, s, self.y, self.c, mu), sums

    def _derivatives(self, z: NDArray, dz: NDArray, t: float, mu: float, center: NDArray) -> NDArray:
        """The first two derivatives in t of the loss at z + t dz."""
        s, H, _ = self.at(z + t * dz, mu, center)
        return np.array([inner(s, dz), inner(H.product(dz.copy()), dz)])

    def minimize_along(
        self, z: NDArray, dz: NDArray, mu: float, center: NDArray, slope: float, square: float, enough: float
    ) -> float:
        """A t > 0 at which the loss at z + t dz, plus slope t + square t^2 / 2, has a slope of `enough`."""

        def derivatives(t: float) -> tuple[float, float]:
            first, second = self._derivatives(z, dz, t, mu, center).tolist()
            return first + slope + t * square, second + square

        return bracketed_newton(derivatives, enough, 1.0)[0]

    def predicted(
        self, z: NDArray, s: NDArray, H: Blocks, dz: NDArray
    ) -> tuple[NDArray, float, float] | None:
        """Feasible slopes near s + H dz, the offset of their cut and the sum of its absolute terms.

        z are scores at which they are nearly best; None if the loss has no formula for its conjugate.
        """
        found: Any = self.loss.multiplier_cut(s + H.product(dz.copy()), self.y, self.c)
        if found is None:
            return None
        feasible, offset, size = found
        return feasible, float(offset), float(size) + inner(abs(feasible), abs(z))


class SoftmaxRows(OutputRows):
    """The softmax loss, whose multipliers are probabilities."""

    LEAST_FACTOR = 0.1
    """A predicted probability is at least this share of the current one."""

    def __init__(self, design: DesignOperator) -> None:
        super().__init__(design)
        self.labels, self.right = self.y.astype(np.uintp), np.arange(len(self.y))

    def at(self, z: NDArray, mu: float, center: NDArray) -> tuple[NDArray, Blocks, RowSums]:
        p = np.empty(z.shape)
        value = float(self._line(z, z, 0.0, p)[0])
        s = p * self.c[:, None]
        s[self.right, self.labels] -= self.c
        return s, SimplexBlocks(p, self.c), RowSums(value, 0.0, 0.0, value, 0.0)

    def _line(self, z: NDArray, dz: NDArray, t: float, p: NDArray) -> NDArray:
        """Set the probabilities at z + t dz; return the loss and its first two derivatives in t."""

        def partial_sums(i: slice) -> NDArray:
            sums = np.zeros(3)
            rows = z[i], dz[i], t, self.labels[i], self.c[i], p[i], p[i].reshape(-1)
            simplex_kernels().softmax_line(*rows, sums)
            return sums

        return np.asarray(sum(self.design.map_row_ranges(partial_sums)))

    def _derivatives(self, z: NDArray, dz: NDArray, t: float, mu: float, center: NDArray) -> NDArray:
        return self._line(z, dz, t, np.empty(z.shape))[1:]

    def predicted(self, z: NDArray, s: NDArray, H: Any, dz: NDArray) -> tuple[NDArray, float, float]:
        q = np.empty(z.shape)

        def partial_sums(i: slice) -> NDArray:
            sums, rows = np.zeros(2), (H.q[i], z[i], dz[i], self.labels[i], self.c[i])
            simplex_kernels().softmax_predicted_slopes(*rows, self.LEAST_FACTOR, q[i], sums)
            return sums

        offset, size = sum(self.design.map_row_ranges(partial_sums)).tolist()
        return q, offset, size


class HingeRows(OutputRows):
    """The multiclass hinge loss with margin rescaling; a center is the multipliers on the simplex."""

    def __init__(self, design: DesignOperator) -> None:
        super().__init__(design)
        self.labels, cost = self.y.astype(np.uintp), self.loss.cost
        self.cost = 1.0 - np.eye(self.k) if cost is None else cost

    def first_center(self, z: NDArray) -> NDArray:
        """All weight on the right classes: the smoothed loss is then quadratic in the margin violations."""
        return self.multipliers(np.zeros_like(z))

    def multipliers(self, s: NDArray) -> NDArray:
        beta = s / np.where(self.c > 0, self.c, 1.0)[:, None]
        beta[np.arange(len(beta)), self.labels] += 1.0
        return np.asarray(beta)

    def at(self, z: NDArray, mu: float, center: NDArray) -> tuple[NDArray, Blocks, RowSums]:
        if not mu:  # the loss itself, by its array code
            return super().at(z, mu, center)
        s, q, size = np.empty(z.shape), np.empty(z.shape), np.empty(len(z))

        def partial_sums(i: slice) -> NDArray:
            sums, work = np.zeros(4), np.empty((2, self.k))
            rows = z[i], center[i], self.labels[i], self.c[i], self.cost, 1 / mu, *work, s[i], q[i], size[i]
            simplex_kernels().hinge_rows(*rows, sums)
            return sums

        value, offset, product, proximal = sum(self.design.map_row_ranges(partial_sums)).tolist()
        cut = offset + product
        sums = RowSums(value, 0.0, 0.0, cut - mu * proximal, max(value - cut, 0.0))
        return s, SimplexBlocks(q, size), sums

    def _derivatives(self, z: NDArray, dz: NDArray, t: float, mu: float, center: NDArray) -> NDArray:
        def partial_sums(i: slice) -> NDArray:
            sums, work = np.zeros(2), np.empty((3, self.k))
            rows = z[i], dz[i], t, center[i], self.labels[i], self.c[i], self.cost, 1 / mu
            simplex_kernels().hinge_line(*rows, *work, sums)
            return sums

        return np.asarray(sum(self.design.map_row_ranges(partial_sums)))
