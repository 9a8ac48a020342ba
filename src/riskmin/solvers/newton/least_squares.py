r"""Conjugate gradients for the squared loss on many columns, with certificates of residuals of least norm.

J is quadratic, with the Hessian :math:`M = \lambda K + X^\top H X`. At a point with the residual
:math:`r = -\nabla J`, the tangent of the risk proves a bound of :math:`J - r^\top (\lambda K)^{-1} r / 2`.
Conjugate gradients minimize J over a Krylov space, but their residuals may be large in directions in which M
is large, where J hardly depends on them. So a second sequence of points v, affine combinations of the first
ones, has residuals of least norm (residual smoothing): J is taken at w, the cut at v.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray
from riskmin.core.deadline import check
from riskmin.losses.hessian import separable_hessian
from riskmin.problem.objective import Objective
from riskmin.solvers.newton.hessian_reuse import ReusedHessian
from riskmin.solvers.newton.piecewise_quadratic import PiecewiseQuadratic
from riskmin.solvers.newton.score_problem import ScoreEvaluation, ScoreProblem
from riskmin.solvers.state_checks import check_state


@dataclass
class KrylovPoints:
    """The points of conjugate gradients, and those of least residual."""

    ARRAYS = ("w", "residual", "direction", "smoothed", "smoothed_residual")

    w: NDArray
    residual: NDArray
    """-grad J(w)."""
    direction: NDArray
    """That of the next step."""
    smoothed: NDArray
    smoothed_residual: NDArray
    steps: int = 0

    @classmethod
    def from_state(cls, obj: Objective, state: dict[str, Array]) -> KrylovPoints:
        """The points that `to_state` saved, after checks."""
        check_state(state, dict.fromkeys(cls.ARRAYS, "d") | {"steps": "1"}, d=obj.risk.dim)
        return cls(**{name: state[name] for name in cls.ARRAYS}, steps=int(state["steps"][0]))

    def to_state(self) -> dict[str, Array]:
        """All arrays by name; steps replace them, and do not change them."""
        arrays = {name: getattr(self, name) for name in self.ARRAYS}
        return arrays | {"steps": np.array([float(self.steps)])}


class LeastSquares:
    """The squared loss of an objective with L2, where conjugate gradients cost less than a factorization."""

    MAX_GAP, GAP_SHARE = 5e-4, 1e-3
    """An iterate is yielded at the first relative gap, then at the second share of that before it."""
    MAX_STEPS = 64
    """Steps between two iterates."""
    MAX_DRIFT = 4.0
    """The steps start anew if the squared residual is larger by this than their recurrence has it."""

    def __init__(self, obj: Objective, problem: PiecewiseQuadratic, system: ReusedHessian) -> None:
        self.obj, self.problem, self.design = obj, problem, problem.design
        h = problem.c / problem.square
        self.product, diagonal = system.operator(separable_hessian(h, problem.intercept), obj.lam)
        self.inverse = 1.0 if diagonal is None else 1 / diagonal
        self.penalty = obj.lam * (obj.reg.terms(np.ones(self.design.shape[1])).square + np.zeros(1))
        self.max_steps = system.max_steps(h) if min(self.design.shape) <= system.direct else math.inf
        """Steps after which a factorization takes over."""

    @classmethod
    def accepts(cls, problem: ScoreProblem, system: ReusedHessian) -> bool:
        """Whether the loss is the squared one of rows in NumPy or SciPy, and no matrix is factorized."""
        quadratic = isinstance(problem, PiecewiseQuadratic) and problem.loss.constant_curvature
        return quadratic and system.prefers_iterations(problem.c)

    def _evaluate(self, w: NDArray, b: float = 0.0) -> tuple[ScoreEvaluation, float]:
        """The evaluation at w and the best intercept, for which b is a guess; and J."""
        evaluation = self.problem.evaluate(self.design.forward(w), 0.0, None, b)
        return evaluation, evaluation.risk + self.obj.lam * self.obj.reg.value(w)

    def started(self, w: NDArray) -> KrylovPoints:
        """The first points: both sequences start at w."""
        a = self.design.adjoint(self._evaluate(w)[0].dz)
        residual = -(a + self.penalty * w)
        return KrylovPoints(w, residual, self.inverse * residual, w, residual)

    def iterates(self, at: KrylovPoints, resumed: bool = False) -> Iterator[Iterate]:
        """The iterates from these points on, until rounding allows no more, or a factorization costs less."""
        obj, best, b, last_gap = self.obj, None, 0.0, math.inf
        while True:
            evaluation, value = self._evaluate(at.w, b)
            b = evaluation.b
            smoothed = self._evaluate(at.smoothed, b)[0] if at.steps else evaluation
            cut = Cut(self.design.adjoint(smoothed.dz), smoothed.offset)
            best = cut if best is None else max(best, cut, key=obj.lower)
            obj.count.calls += 1
            if not resumed:
                near = evaluation.b if self.problem.intercept else None
                info, state = {"passes": float(at.steps)}, replace(at).to_state
                yield Iterate(at.w, value, best, info, state, near)
            resumed, gap = False, value - obj.lower(best)
            exact = -(cut.a + self.penalty * at.smoothed)
            if self._square(exact) > self.MAX_DRIFT * self._square(at.smoothed_residual):
                if not gap < 0.5 * last_gap:
                    return  # what remains is rounding
                self._restart(at)
            last_gap, relative = min(gap, last_gap), gap / value if value > 0 else 0.0
            if not relative > 0 or at.steps > self.max_steps:
                return
            self._advance(at, value, self.GAP_SHARE * relative if relative <= self.MAX_GAP else self.MAX_GAP)

    def _restart(self, at: KrylovPoints) -> None:
        """Start anew from the point w, with its exact residual."""
        new = self.started(at.w)
        at.residual, at.direction = new.residual, new.direction
        at.smoothed, at.smoothed_residual = new.smoothed, new.smoothed_residual

    def _square(self, r: NDArray) -> float:
        """Twice the gap that the tangent at a point with the residual r proves, r' (lam K)^-1 r."""
        return float(r @ (r / self.penalty))

    def _advance(self, at: KrylovPoints, value: float, gap: float) -> None:
        """Steps until the smoothed residual proves a relative gap."""
        rho = float(at.residual @ (self.inverse * at.residual))
        for _ in range(self.MAX_STEPS):
            check()
            image = self.product(at.direction)
            curvature = float(at.direction @ image)
            if not (rho > 0 and curvature > 0):
                return
            step = rho / curvature
            at.w, at.residual = at.w + step * at.direction, at.residual - step * image
            value -= 0.5 * step * rho
            # the point between both sequences whose residual has the least norm
            change = at.residual - at.smoothed_residual
            square = self._square(change)
            t = -float(change @ (at.smoothed_residual / self.penalty)) / square if square > 0 else 1.0
            at.smoothed = at.smoothed + t * (at.w - at.smoothed)
            at.smoothed_residual = at.smoothed_residual + t * change
            preconditioned, last_rho = self.inverse * at.residual, rho
            rho = float(at.residual @ preconditioned)
            at.direction, at.steps = preconditioned + (rho / last_rho) * at.direction, at.steps + 1
            if 0.5 * self._square(at.smoothed_residual) <= gap * value:
                return
