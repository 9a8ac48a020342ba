r"""Score problems of rows of another array library, by kernels of the traced loss or by array code.

Smoothing around a center :math:`\bar u` is smoothing around 0 at other scores,

.. math:: u z - l^*(u) - \tfrac\mu2 (u - \bar u)^2 = u (z + \mu \bar u) - l^*(u) - \tfrac\mu2 u^2 + const,

so that all evaluations are those of one function of single rows, the loss smoothed by mu.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin._numba.newton import slots
from riskmin.arrays.namespace import as_array_like, namespace
from riskmin.core import Array, Hessian, NDArray, Shard
from riskmin.losses.base import Loss, OffsetSmoothed
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.numerics.univariate import Tangent, best_tangent, refine_on_grids
from riskmin.problem import shard_ops
from riskmin.problem.compiled import device_loops
from riskmin.problem.compiled.tracing import TracedLoss, trace_loss
from riskmin.problem.intercept import solve_intercept
from riskmin.problem.objective import Objective
from riskmin.problem.risk import Risk
from riskmin.solvers.newton.compiled import CompiledScoreProblem
from riskmin.solvers.newton.score_problem import LINE_SEARCH_SLOPE_RATIO, ScoreEvaluation


@dataclass(frozen=True)
class CurvedSmoothing(OffsetSmoothed):
    """A smoothed loss with its second derivatives."""

    def hessian(
        self, z: Array, y: Array, c: Array, mu: float = 0.0, center: Array | None = None
    ) -> Hessian | None:
        """Return the Hessian of the smoothed loss."""
        result: Hessian | None = self.loss.hessian(z, y, c, self.mu)
        return result


class DeviceScoreProblem(CompiledScoreProblem):
    """The loss of rows of another array library, smoothed by mu around a center."""

    FIRST_POINTS = 2.0 ** np.arange(-6.5, 1.5, 0.5)
    """The first 16 trial steps of a line search, among them 1."""

    damp_below_step = 0.0  # as for other losses that are quadratic on intervals

    def __init__(self, risk: Risk, intercept: bool) -> None:
        super().__init__(risk, intercept)
        self._last: tuple[float, Any] = 0.0, risk.compiled(self.loss)
        """The last mu, and the loss smoothed by it."""
        self._is_traced: bool | None = None
        self._pull: tuple[float, Array, Array] = 0.0, None, None
        """The last mu and center, and mu times the multipliers of the center."""

    @classmethod
    def accepts(cls, obj: Objective) -> bool:
        """Whether labels are in an array of another library than NumPy, with one score per row."""
        rows = obj.risk.row_metadata
        return rows is not None and not obj.risk.multi_output and namespace(rows.y) is not np

    @staticmethod
    def has_multipliers(loss: Loss) -> bool:
        """Whether a loss is a sum over rows, and smooth or smoothed by one multiplier per row."""
        return loss.separable and (loss.smooth or loss.interval_conjugate(np.ones(1)) is not None)

    @staticmethod
    def many_points(loss: Any) -> bool:
        """Whether many points of a line are evaluated for the price of about one."""
        return isinstance(loss, TracedLoss)

    def saved_score_gradient(self, state: dict[str, Array]) -> Array | None:
        """The gradient in the scores from the multipliers in a saved state, beside the labels."""
        saved = {k: as_array_like(a, self.c) for k, a in state.items() if k in ("u", "dz")}
        return super().saved_score_gradient(saved)

    # ------------------------------------------------------------ the smoothed loss
    def _smoothed_loss(self, mu: float) -> Loss | TracedLoss:
        """The loss smoothed by mu, in the form that the shards evaluate."""
        if self._last[0] != mu:
            loss = CurvedSmoothing(self.loss, mu) if mu else self.loss
            # kernels take mu as a parameter: they are compared with the array code once
            if self._is_traced is None or not mu:
                compiled: Any = self.risk.compiled(loss)
                self._is_traced = isinstance(compiled, TracedLoss) if mu else self._is_traced
            else:
                compiled = trace_loss(loss) if self._is_traced else loss
            self._last = mu, compiled
        return self._last[1]  # type: ignore[no-any-return]

    def _pulled(self, z: Array, mu: float, center: Array | None) -> Array:
        """The scores z + mu u of the center's multipliers u, at which smoothing has its center at 0."""
        if center is None or not mu:
            return z
        if self._pull[0] != mu or self._pull[1] is not center:
            xp = namespace(center)
            # the center is a gradient c u; rows without weight have no multiplier
            u = center / xp.where(self.c > 0, self.c, 1.0 + 0.0 * self.c)
            self._pull = mu, center, mu * u
        return z + self._pull[2]

    def _sum(self, f: Callable[..., tuple[Any, ...]], *args: Any, rows: tuple[Array, ...]) -> Any:
        """The sum over the shards of f(shard, *args, parts of the vectors of rows)."""
        each = [tuple(a if a is None else a[part] for a in rows) for part in self.design.shard_slices]
        return self.risk.executor.sum(f, *args, each=each)[0]

    def unsmoothed_value(
        self, z: Array, b: float, slack: float = 0.0, curvature: float = 0.0
    ) -> tuple[float, float]:
        """The unsmoothed loss at its best intercept, up to the slack, and that intercept."""
        loss = self.risk.compiled(self.loss)

        def tangent_at(b: float) -> Tangent:
            sums = self._sum(shard_ops.line_sums, loss, 0.0, b, rows=(z, None))
            return Tangent(b, float(sums[0]), float(sums[2]))

        if not self.intercept:
            return tangent_at(0.0).value, 0.0
        best = best_tangent(*solve_intercept(tangent_at, b, slack=slack, curvature=curvature))
        return best.value, best.x

    # ------------------------------------------------------------ evaluations
    def line_derivatives(
        self, z: Array, dz: Array, mu: float, center: Array | None, t: float
    ) -> Callable[[float], NDArray]:
        """A function of the intercept b: the first and second derivatives in (t, b) at z + t dz + b."""
        loss, rows = self._smoothed_loss(mu), (self._pulled(z, mu, center), dz)

        def derivatives(b: float) -> NDArray:
            sums = self._sum(shard_ops.line_sums, loss, t, b, rows=rows)
            # the slots of `device_loops.line_sums`, in the order of `slots`
            return np.asarray(sums[[1, 2, 5, 6, 7, 4]])

        return derivatives

    def line_search(
        self, z: Array, dz: Array, mu: float, center: Array | None, b: float,
        line: Callable[[float], tuple[float, float]], start: float, b_slope: float = 0.0,
    ) -> tuple[float, float, int]:  # fmt: skip
        """The step length along dz, the intercept there, and the number of evaluations.

        Kernels evaluate 16 points at a time, where no intercept is minimized out at each of them.
        """
        loss = self._smoothed_loss(mu)
        if self.intercept or not self.many_points(loss):
            return super().line_search(z, dz, mu, center, b, line, start, b_slope)
        rows, n_evaluations = (self._pulled(z, mu, center), dz), 0

        def tangents(points: NDArray) -> list[Tangent]:
            nonlocal n_evaluations
            n_evaluations += 1
            found = self._sum(shard_ops.line_values, loss, points, rows=rows)
            # without the value of the penalty, which is not needed
            pairs = zip(points.tolist(), found.tolist(), strict=True)
            return [Tangent(t, value, slope + line(t)[0]) for t, (value, slope) in pairs]

        def is_flat(lo: Tangent, hi: Tangent) -> bool:
            return min(-lo.slope, hi.slope) <= -LINE_SEARCH_SLOPE_RATIO * start

        lo, hi = refine_on_grids(tangents, Tangent(0.0, 0.0, start), self.FIRST_POINTS, is_flat)
        # J decreases up to lo, which is a descent step unless it is 0
        return (lo.x if -lo.slope < hi.slope and lo.x else hi.x), 0.0, n_evaluations

    def evaluate_with_cut(
        self, z: Array, mu: float, center: Array | None, b: float
    ) -> tuple[ScoreEvaluation, NDArray]:
        """The evaluation at the intercept b, and the sums of the cut."""
        pulled, loss, exact = self._pulled(z, mu, center), self._smoothed_loss(mu), None
        if mu:
            exact = self.risk.compiled(self.loss)
        each = [(pulled[part], z[part]) for part in self.design.shard_slices]
        parts = self.risk.executor.map(score_cut, loss, b, self.intercept, exact, each=each)
        xp = namespace(z)
        dz, h = (p[0] if len(p) == 1 else xp.concat(p) for p in ([part[i] for part in parts] for i in (0, 1)))
        sums = sum(part[2] for part in parts)
        offset = float(sums[slots.CUT_OFFSET] - CUT_ROUNDING * sums[slots.CUT_ABS_TERMS])
        return ScoreEvaluation(dz, offset, b, float(sums[slots.VALUE]), h), sums


# ---------------------------------------------------------------- on a shard
def score_cut(
    shard: Shard, loss: Any, b: float, balance: bool, exact: Any, rows: tuple[Array, Array]
) -> tuple[Array, Array, NDArray]:
    """Slopes and second derivatives at z + b, and the sums of the cut in `slots`, for z = rows[0].

    The value is that of the loss `exact`, if it is given, at the scores rows[1]. Array code sums over rising
    and falling rows only with `balance`.
    """
    z, scores = rows
    if isinstance(loss, TracedLoss):
        return device_loops.score_cut(shard, loss, z, b, None if exact is None else (exact, scores))
    s, y, c = z + b, shard.y, shard.c
    value, g, offset = loss.offset_tangent(s, y, c)
    hessian = loss.hessian(s, y, c)
    assert hessian is not None
    h, terms = hessian.diagonal, abs(g) @ (abs(z) + abs(b))
    sums = [value, value + offset - g @ s, abs(value) + offset + terms, g.sum(), abs(g).sum(), h.sum()]
    for some in (g > 0, g < 0) if balance else ():
        # the cut of these rows alone
        value, slopes, offset = loss.offset_tangent(s, y, c * namespace(c).astype(some & (h > 0), c.dtype))
        sums += [abs(slopes.sum()), value + offset - slopes @ s]
    if exact is not None:
        sums[slots.VALUE] = exact.value_grad(scores + b, y, c)[0]
    return g, h, np.array([float(v) for v in sums] + [0.0] * (10 - len(sums)))
