r"""The loss of all rows at given scores, from its one traced definition.

With mu > 0 the loss l of a row, with the conjugate l*, is smoothed around a center :math:`u_0`,

.. math:: l_\mu(z) = \max_u\; u z - l^*(u) - \tfrac\mu2 (u - u_0)^2,

whose maximizer u is the multiplier of the row: a proximal point step in the dual. Any u gives the cut
:math:`u z - l^*(u)` of the loss itself, and the sum of :math:`l(z) + l^*(u) - u z \ge 0`, the
*complementarity*, is what smoothing costs.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from riskmin._numba import lazy_module
from riskmin.arrays.symbols import Recording, Symbol, Untraceable
from riskmin.core import NDArray
from riskmin.core.deadline import check
from riskmin.losses.base import Loss
from riskmin.losses.conjugate import Conjugate
from riskmin.problem.compiled import row_loops
from riskmin.problem.compiled.tracing import RowProgram, TracedLoss, try_trace
from riskmin.problem.design_operator import DesignOperator
from riskmin.solvers.newton.score_problem import bracketed_newton

_kernels = lazy_module("newton.rows")


class RowSums(NamedTuple):
    """Sums over all rows at given scores."""

    value: float
    """sum c l(z), unsmoothed."""
    slope: float
    """sum s of the slopes s = c u: the derivative in the intercept."""
    curvature: float
    """The second derivative in the intercept."""
    smoothed: float
    """sum c l_mu(z)."""
    complementarity: float
    """sum c (l(z) + l*(u) - u z)."""


class RowModel:
    """The loss of rows with labels y and weights c.

    Parameters
    ----------
    traced : TracedLoss
    design : DesignOperator
        Its ranges of rows are shared by threads.
    """

    def __init__(self, traced: TracedLoss, design: DesignOperator) -> None:
        rows = design.row_metadata
        self.design, self.loss, self.smooth = design, traced.loss, bool(traced.loss.smooth)
        self.y = np.array(rows.y, dtype=np.float64, copy=None if _usable(rows.y) else True)
        self.c = np.ascontiguousarray(rows.c, dtype=np.float64)
        self.conjugate: Conjugate = traced.loss.conjugate(self.y)  # type: ignore[assignment]
        self.program = row_loops.program(traced.second)
        program = smoothed_program(traced)
        if program is not None:
            self._parameters, self._address = row_loops.program(program)
        bounded = program is not None and bool(
            np.isfinite(self.conjugate.lower).all() and np.isfinite(self.conjugate.upper).all()
        )
        self.min_mu = 0.1 * self.conjugate.square if self.smooth and bounded else 0.0  # type: ignore[attr-defined]
        """The mu below which a smooth loss is not smoothed further; 0 if it is not smoothed at all."""
        self._last_mu, self._smoothed = 0.0, self.program[0]
        self._kernels, self._alone = _kernels(), len(design.row_ranges) == 1
        self.scratch, self.sums, self.line = row_loops.scratch(), np.empty(6), np.empty(2)

    @staticmethod
    def of(loss: Loss, design: DesignOperator) -> RowModel | None:
        """The model of a loss; None if it cannot be traced, or has no conjugate or smoothing of rows."""
        traced = try_trace(loss) if loss.separable and not loss.multi_output else None
        if traced is None or not _has_multipliers(traced):
            return None
        named = type(traced.loss).__module__.startswith("riskmin.")
        rows = design.row_metadata
        # the array code of others may do what a trace does not show
        if not named and not row_loops.agrees_with_array_code(traced, rows.y, rows.c):
            return None
        return RowModel(traced, design)

    def _programs(self, mu: float) -> tuple[NDArray, int, NDArray, int]:
        """Parameters and addresses of the loss, and of the smoothed loss."""
        if not mu:
            return self.program + self.program
        if mu != self._last_mu:
            self._last_mu, self._smoothed = mu, self._parameters.copy()
            self._smoothed[0] = mu
        return (*self.program, self._smoothed, self._address)

    def at(self, z: NDArray, mu: float, center: NDArray) -> tuple[NDArray, NDArray, RowSums]:
        """The slopes c u, the second derivatives and the sums of the loss smoothed by mu."""
        s, h = np.empty((2, len(z)))
        args = z, center, mu, self.y, self.c, *self._programs(mu)
        if self._alone:
            check()
            sums = self.sums
            sums.fill(0.0)
            self._kernels.evaluate(*args, 0, len(z), self.scratch, s, h, sums)
        else:
            sums = self._range_sums(6, self._kernels.evaluate_of_ranges, *args, s, h)
        value, slope, curvature, conjugate, inner, proximal = sums.tolist()
        if not mu:
            return s, h, RowSums(value, slope, curvature, value, 0.0)
        dual = inner - conjugate
        return s, h, RowSums(value, slope, curvature, dual - proximal, max(value - dual, 0.0))

    def minimize_along(
        self, z: NDArray, dz: NDArray, mu: float, center: NDArray, slope: float, square: float, enough: float
    ) -> float:
        """A t > 0 at which the loss at z + t dz, plus slope t + square t^2 / 2, has a slope of `enough`."""
        rows = center, mu, self.y, self.c, *self._programs(mu)[2:]
        if self._alone:
            check()
            memory = self.scratch, self.line
            return float(self._kernels.minimize_along(z, dz, *rows, slope, square, enough, *memory))

        def derivatives(t: float) -> tuple[float, float]:
            sums = self._range_sums(2, self._kernels.along_of_ranges, z, dz, t, *rows)
            return float(sums[0]) + slope + t * square, float(sums[1]) + square

        return bracketed_newton(derivatives, enough, 1.0)[0]

    def _range_sums(self, n_sums: int, kernel: Any, *args: Any) -> NDArray:
        design = self.design
        return design.range_sums(n_sums, kernel, *args, memory=row_loops.scratch_length())

    def multipliers(self, s: NDArray) -> NDArray:
        """The multipliers u = s / c of slopes, in the domain of the conjugate; 0 where c is."""
        c = self.c
        return self.in_domain(s / c if c.all() else np.divide(s, c, out=np.zeros_like(s), where=c > 0))

    def in_domain(self, u: NDArray) -> NDArray:
        """Multipliers cut off at the bounds of the conjugate."""
        return np.minimum(np.maximum(u, self.conjugate.lower), self.conjugate.upper)


def _usable(y: Any) -> bool:
    """Whether labels are as compiled loops read them."""
    return bool(y.dtype == np.float64 and y.flags.c_contiguous and y.flags.writeable)


def _has_multipliers(traced: TracedLoss) -> bool:
    """Whether each row has a conjugate, and second derivatives, or those of the smoothed loss."""
    loss = traced.loss
    if loss.conjugate(np.ones(1)) is None:
        return False
    return loss.has_hessian if loss.smooth else smoothed_program(traced) is not None


@lru_cache(maxsize=64)
def smoothed_program(traced: TracedLoss) -> RowProgram | None:
    """The loss smoothed around 0: c l*(u), c u, u and the second derivative; mu is the first parameter."""
    recording = Recording()
    recording.parameters[math.nan] = "k0"  # no constant is NaN
    z, y, c, mu = (Symbol(recording, name) for name in ("z", "y", "c", "k0"))
    try:
        conjugate = traced.loss.interval_conjugate(y)
        if conjugate is None:
            return None
        u, curvature = conjugate.proximal(z - conjugate.shift, mu)
        outputs = [c * conjugate.inside(u), c * u, u, c * curvature]
        names = [recording.text(v) for v in outputs]
    except Untraceable:
        return None
    return RowProgram(
        tuple(recording.lines), tuple(recording.parameters), (names[0], names[1], names[2], names[3])
    )
