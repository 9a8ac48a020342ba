r"""The loss of rows of another array library, by kernels of its traced definition where there are any.

Smoothing around a center :math:`u_0` is smoothing around 0 at other scores,

.. math:: u z - l^*(u) - \tfrac\mu2 (u - u_0)^2 = u (z + \mu u_0) - l^*(u) - \tfrac\mu2 u^2 + const,

so that all evaluations are those of one function of single rows, the loss smoothed by mu.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from riskmin._numba.newton import slots
from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Hessian, Shard
from riskmin.losses.base import OffsetSmoothed
from riskmin.problem import shard_ops
from riskmin.problem.compiled import device_loops
from riskmin.problem.compiled.tracing import TracedLoss, trace_loss
from riskmin.problem.design_operator import DesignOperator
from riskmin.solvers.newton.columns_and_ones import Curvature
from riskmin.solvers.newton.row_model import RowModel, RowSums


@dataclass(frozen=True)
class CurvedSmoothing(OffsetSmoothed):
    """A smoothed loss with its second derivatives."""

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the Hessian of the smoothed loss."""
        result: Hessian | None = self.loss.hessian(z, y, c, self.mu)
        return result


class DeviceRowModel(RowModel):
    """The loss of rows of another array library."""

    def __init__(self, loss: Any, design: DesignOperator) -> None:
        super().__init__(loss, design)
        self.exact = design.risk.compiled(loss)
        smoothed = self.exact
        if self.min_mu or not loss.smooth:
            smoothed = design.risk.compiled(CurvedSmoothing(loss, 1.0))
        self.traced = isinstance(self.exact, TracedLoss) and isinstance(smoothed, TracedLoss)

    def _loss(self, mu: float) -> Any:
        """The loss smoothed by mu: kernels take mu as a parameter."""
        return trace_loss(CurvedSmoothing(self.loss, mu)) if mu else self.exact

    def at(self, z: Array, mu: float, center: Array) -> tuple[Array, Curvature | None, RowSums]:
        """The slopes c u, the second derivatives and the sums of the loss smoothed by mu."""
        if not self.traced:
            return super().at(z, mu, center)
        pulled = z + mu * center if mu else z
        args = self._loss(mu), self.exact if mu else None
        parts = self.design.risk.executor.map(
            _evaluated, *args, each=[(pulled[part], z[part]) for part in self.design.shard_slices]
        )
        s, h, sums = parts[0]
        if len(parts) > 1:
            s, h = (namespace(z).concat([part[i] for part in parts]) for i in (0, 1))
            sums = sum(part[2] for part in parts)
        value, slope, curvature = sums[[slots.VALUE, slots.CUT_SLOPE_B, slots.CUT_CURVATURE_B]].tolist()
        if not mu:
            return s, h, RowSums(value, slope, curvature, value, 0.0)
        # the offset of the cut of s is -sum c l*(u)
        dual, change = float(sums[slots.CUT_OFFSET]) + float(s @ z), self.multipliers(s) - center
        proximal = 0.5 * mu * float(self.c @ (change * change))
        return s, h, RowSums(value, slope, curvature, dual - proximal, max(value - dual, 0.0))

    def along(self, z: Array, dz: Array, t: float, mu: float, center: Array) -> tuple[float, float]:
        """The first two derivatives in t of the loss at z + t dz."""
        if not self.traced:
            return super().along(z, dz, t, mu, center)
        pulled = z + mu * center if mu else z
        each = [(pulled[part], dz[part]) for part in self.design.shard_slices]
        (sums,) = self.design.risk.executor.sum(shard_ops.line_sums, self._loss(mu), t, 0.0, each=each)
        # the slots of `device_loops.line_sums`
        return float(sums[1]), float(sums[5])


def _evaluated(shard: Shard, loss: TracedLoss, exact: TracedLoss | None, rows: tuple[Array, Array]) -> Any:
    """Slopes and second derivatives at the scores rows[0], and the sums of the cut in `slots`.

    The value is that of the loss `exact`, if it is given, at the scores rows[1].
    """
    return device_loops.score_cut(shard, loss, rows[0], 0.0, None if exact is None else (exact, rows[1]))
