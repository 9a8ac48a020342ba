r"""The loss of all rows at given scores, smoothed by mu around a center.

With mu > 0 a loss l of a row, with the conjugate l*, is smoothed around a multiplier :math:`u_0`,

.. math:: l_\mu(z) = \max_u\; u z - l^*(u) - \tfrac\mu2 (u - u_0)^2,

whose maximizer u is the multiplier of the row: a proximal point step in the dual. Any u gives the cut
:math:`u z - l^*(u)` of the loss itself, and the sum of :math:`l(z) + l^*(u) - u z \ge 0`, the
*complementarity*, is what smoothing costs. Losses that are no sum over rows are smoothed in the same way,
around 0 if they have too many multipliers to store.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from riskmin._numba import lazy_module
from riskmin.arrays.namespace import namespace
from riskmin.arrays.symbols import Recording, Symbol, Untraceable
from riskmin.core import Array, Cut, Hessian, NDArray
from riskmin.core.deadline import check
from riskmin.losses.base import Loss
from riskmin.losses.conjugate import Conjugate, IntervalConjugate
from riskmin.losses.hessian import hessian_product
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.numerics.univariate import Tangent, bracketed_newton, zero_slope_weights
from riskmin.problem.certificate import balanced, multiplier_cut
from riskmin.problem.compiled import row_loops
from riskmin.problem.compiled.tracing import RowProgram, TracedLoss, try_trace
from riskmin.problem.design_operator import DesignOperator
from riskmin.problem.intercept import solve_intercept
from riskmin.solvers.newton.columns_and_ones import Curvature, diagonal_of

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
    """sum c (l(z) + l*(u) - u z): the height of the loss above the cut of the slopes."""


class RowModel:
    """The loss of rows with labels y and weights c, by its array code, in the library of y.

    Parameters
    ----------
    loss : Loss
        Of one score per row.
    design : DesignOperator
    """

    def __init__(self, loss: Any, design: DesignOperator) -> None:
        rows = design.row_metadata
        self.design, self.loss, self.smooth = design, loss, bool(loss.smooth)
        self.y, self.c = rows.y, rows.c
        self.conjugate: Conjugate | None = loss.conjugate(self.y) if loss.separable else None
        """That of each row; without it, cuts are tangents, and no multipliers are predicted."""
        self.predicts = self.conjugate is not None
        """Whether a step predicts multipliers."""
        self.has_center = self.conjugate is not None or bool(loss.supports_center)
        domain = loss.interval_conjugate(self.y) if self.smooth and self.conjugate is not None else None
        self.min_mu = 0.1 * domain.square if domain is not None and _is_bounded(domain) else 0.0
        """The mu below which a smooth loss is not smoothed further; 0 if it is not smoothed at all."""
        self._last: tuple[Any, float] = None, 0.0
        """The last scores, and the loss there."""

    @staticmethod
    def of(loss: Any, design: DesignOperator) -> RowModel:
        """The model of a loss: by compiled loops of its traced definition, or by its array code."""
        traced = try_trace(loss) if loss.separable else None
        if traced is None or not _has_multipliers(traced):
            return RowModel(loss, design)
        named = type(traced.loss).__module__.startswith("riskmin.")
        rows = design.row_metadata
        # the array code of others may do what a trace does not show
        if not named and not row_loops.agrees_with_array_code(traced, rows.y, rows.c):
            return RowModel(loss, design)
        return CompiledRowModel(traced, design)

    # ------------------------------------------------------------ values and derivatives
    def at(self, z: Array, mu: float, center: Array) -> tuple[Array, Curvature | None, RowSums]:
        """The slopes c u, the second derivatives and the sums of the loss smoothed by mu."""
        smoothed, s, offset = self._tangent(z, mu, center)
        if self._last[0] is not z:
            self._last = z, float(self.loss.value_grad(z, self.y, self.c)[0]) if mu else smoothed
        value, complementarity = self._last[1], max(self._last[1] - smoothed - offset, 0.0)
        if self.loss.shift_invariant:  # second derivatives cost as much as slopes, and only a step needs them
            return s, None, RowSums(value, 0.0, 0.0, smoothed, complementarity)
        h = self.second_derivatives(z, mu, center)
        low_rank = h.low_rank if isinstance(h, Hessian) else ()
        curvature = float(diagonal_of(h).sum()) - sum(float(q.sum()) ** 2 for q in low_rank)
        return s, h, RowSums(value, float(s.sum()), curvature, smoothed, complementarity)

    def minimize_along(
        self, z: Array, dz: Array, mu: float, center: Array, slope: float, square: float, enough: float
    ) -> float:
        """A t > 0 at which the loss at z + t dz, plus slope t + square t^2 / 2, has a slope of `enough`."""

        def derivatives(t: float) -> tuple[float, float]:
            first, second = self.along(z, dz, t, mu, center)
            return first + slope + t * square, second + square

        return bracketed_newton(derivatives, enough, 1.0)[0]

    def along(self, z: Array, dz: Array, t: float, mu: float, center: Array) -> tuple[float, float]:
        """The first two derivatives in t of the loss at z + t dz."""
        z = z + t * dz
        s = self._tangent(z, mu, center)[1]
        return float(s @ dz), float(_product(self.second_derivatives(z, mu, center), dz) @ dz)

    def _smoothing(self, mu: float, center: Array) -> tuple[Any, ...]:
        """Arguments after the rows: none for the loss itself, which need not take mu, nor a center."""
        return () if not mu else (mu, self.c * center) if self.has_center else (mu,)

    def _tangent(self, z: Array, mu: float, center: Array) -> tuple[float, Array, float]:
        """The smoothed loss, its slopes, and by how much the cut of these slopes is above it at z."""
        check()
        if not mu:
            value, s = self.loss.value_grad(z, self.y, self.c)
            return float(value), s, 0.0
        value, s, offset = self.loss.smoothed_value_grad(z, self.y, self.c, *self._smoothing(mu, center))
        return float(value), s, float(offset)

    def second_derivatives(self, z: Array, mu: float, center: Array) -> Curvature:
        """The second derivatives in the scores z."""
        hessian: Hessian = self.loss.hessian(z, self.y, self.c, *self._smoothing(mu, center))
        return hessian if hessian.low_rank or hessian.pair_blocks else hessian.diagonal

    # ------------------------------------------------------------ multipliers and cuts
    def multipliers(self, s: Array) -> Array:
        """The multipliers u = s / c of slopes, in the domain of the conjugate; 0 where c is."""
        # rows without weight have no slope either
        return self.in_domain(s / namespace(s).where(self.c > 0, self.c, 1.0 + 0.0 * self.c))

    def in_domain(self, u: Array) -> Array:
        """Multipliers cut off at the bounds of the conjugate."""
        if self.conjugate is None:
            return u
        xp = namespace(u)
        return xp.minimum(xp.maximum(u, self.conjugate.lower), self.conjugate.upper)

    def predicted_cut(self, s: Array, z: Array, intercept: bool) -> tuple[Array, Cut]:
        """Slopes near s that are feasible, and their cut, without a; with an intercept, their sum is 0."""
        assert self.conjugate is not None
        u = self.multipliers(s)
        u = balanced(u, self.c, self.conjugate) if intercept else u
        return self.c * u, multiplier_cut(None, self.conjugate, u, self.c, z=z)

    def cut(self, z: Array, s: Array, mu: float, center: Array, intercept: bool) -> tuple[Array, Cut]:
        """Slopes near those at z, and their cut, without a; with an intercept, their sum is 0."""
        if self.conjugate is not None:
            return self.predicted_cut(s, z, intercept)
        found: dict[float, tuple[float, Array, float]] = {}

        def tangent_at(b: float) -> Tangent:
            value, slopes, _ = found[b] = self._tangent(z + b, mu, center)
            return Tangent(b, value, float(slopes.sum()))

        ends = solve_intercept(tangent_at, 0.0) if intercept else (tangent_at(0.0),)
        weights = zero_slope_weights(*ends) if intercept else (1.0,)
        offset, mixed = 0.0, 0.0 * z
        for weight, end in zip(weights, ends, strict=True):
            value, slopes, above = found[end.x]
            error = CUT_ROUNDING * (abs(value) + float(abs(slopes) @ (abs(z) + abs(end.x))))
            offset += weight * (value + above - float(slopes @ (z + end.x)) - error)
            mixed = mixed + weight * slopes
        if not self.loss.separable:
            offset -= self.design.risk.summation_error(z)
        return mixed, Cut(None, offset)


class CompiledRowModel(RowModel):
    """The same by compiled loops of the traced definition, whose ranges of rows are shared by threads."""

    def __init__(self, traced: TracedLoss, design: DesignOperator) -> None:
        super().__init__(traced.loss, design)
        self.y = np.array(self.y, dtype=np.float64, copy=None if _usable(self.y) else True)
        self.c = np.ascontiguousarray(self.c, dtype=np.float64)
        self.program = row_loops.program(traced.second)
        program = smoothed_program(traced)
        if program is not None:
            self._parameters, self._address = row_loops.program(program)
        else:
            self.min_mu = 0.0
        self._last_mu, self._smoothed = 0.0, self.program[0]
        self._kernels, self._alone = _kernels(), len(design.row_ranges) == 1
        self.scratch, self.sums, self.line = row_loops.scratch(), np.empty(6), np.empty(2)

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
        if not self._alone:
            return super().minimize_along(z, dz, mu, center, slope, square, enough)
        check()
        rows = center, mu, self.y, self.c, *self._programs(mu)[2:]
        return float(
            self._kernels.minimize_along(z, dz, *rows, slope, square, enough, self.scratch, self.line)
        )

    def along(self, z: NDArray, dz: NDArray, t: float, mu: float, center: NDArray) -> tuple[float, float]:
        """The first two derivatives in t of the loss at z + t dz."""
        rows = center, mu, self.y, self.c, *self._programs(mu)[2:]
        first, second = self._range_sums(2, self._kernels.along_of_ranges, z, dz, t, *rows).tolist()
        return first, second

    def _range_sums(self, n_sums: int, kernel: Any, *args: Any) -> NDArray:
        design = self.design
        return design.range_sums(n_sums, kernel, *args, memory=row_loops.scratch_length())

    def multipliers(self, s: NDArray) -> NDArray:
        """The multipliers u = s / c of slopes, in the domain of the conjugate; 0 where c is."""
        c = self.c
        u = s / c if c.all() else np.divide(s, c, out=np.zeros_like(s), where=c > 0)
        return np.asarray(self.in_domain(u))


def _product(h: Curvature, d: Array) -> Array:
    """H d."""
    return hessian_product(h, d) if isinstance(h, Hessian) else h * d


def _is_bounded(domain: IntervalConjugate) -> bool:
    """Whether all multipliers have finite bounds."""
    xp = namespace(domain.lower)
    return bool(xp.all(xp.isfinite(domain.lower)) and xp.all(xp.isfinite(domain.upper)))


def _usable(y: Any) -> bool:
    """Whether labels are as compiled loops read them."""
    return bool(y.dtype == np.float64 and y.flags.c_contiguous and y.flags.writeable)


def _has_multipliers(traced: TracedLoss) -> bool:
    """Whether each row has a conjugate, and second derivatives, or those of the smoothed loss."""
    loss = traced.loss
    if loss.conjugate(np.ones(1)) is None:
        return False
    return loss.has_hessian if loss.smooth else smoothed_program(traced) is not None


def has_multipliers(loss: Loss) -> bool:
    """Whether a loss is a sum over rows, and smooth or smoothed by one multiplier per row."""
    return loss.separable and (loss.smooth or loss.interval_conjugate(np.ones(1)) is not None)


def has_score_hessian(loss: Loss) -> bool:
    """Whether Newton's method applies to a loss of one score per row."""
    return not loss.multi_output and loss.has_hessian and (loss.smooth or loss.can_be_smoothed)


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
