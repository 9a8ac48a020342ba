"""What several solver families share: checks of settings and problems, and mixtures of two cuts."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.arrays.namespace import namespace
from riskmin.core import Array, Cut, NDArray, Shard, UnsupportedProblem
from riskmin.losses.base import Loss
from riskmin.numerics.univariate import Tangent, best_tangent, refine_bracket
from riskmin.problem.objective import Objective, Oracle

MAX_CUT_ENTRY = 1e100
"""Largest entry of a cut whose squares and sums stay finite in double precision."""


# ---------------------------------------------------------------- checks
def loss_of(risk: Any) -> Loss | None:
    """The loss of a risk that the user chose; None for an oracle that has none."""
    return None if risk.loss is None else risk.loss.chosen


def beside_another_library(risk: Oracle) -> bool:
    """Whether the rows of a risk are arrays of another library than NumPy, such as on a GPU."""
    return risk.row_metadata is not None and namespace(risk.row_metadata.y) is not np


def local_rows_of(risk: Oracle, solver: object) -> tuple[Shard, Any, bool]:
    """The rows of a linear risk whose rows are all local, its loss, and whether it has an intercept.

    Raises
    ------
    UnsupportedProblem
        If the risk is of another kind or has remote rows; the message names solvers to use instead.
    """
    name = type(solver).__name__
    if beside_another_library(risk):
        raise UnsupportedProblem(
            f"{name} visits rows or columns of X one by one, in arrays of NumPy or SciPy, and X is one of "
            "torch or CuPy: use Auto, Newton or Bundle, or OwlQn for L1, which take all rows at once"
        )
    if risk.rows is None or not risk.loss.chosen.separable or risk.multi_output:
        raise UnsupportedProblem(
            f"{name} visits rows or columns of X one by one: it needs a linear_risk whose "
            "rows are all in this process, with one score per row and a loss that is a sum over rows: use "
            "Auto, Bundle or Lbfgs"
        )
    return risk.rows, risk.loss, risk.intercept.profiled


def local_rows_reason(solver: object, obj: Objective) -> str | None:
    """Why a solver that visits rows cannot minimize an objective, and what can; None for local rows."""
    try:
        local_rows_of(obj.risk, solver)
    except UnsupportedProblem as error:
        return str(error)
    return None


def intercepts_reason(name: str, obj: Objective, remedy: str = "Bundle or Auto") -> str | None:
    """Why a solver cannot move intercepts in w, if there are any: cuts have slope zero in them."""
    if obj.reg.n_unpenalized:
        return f"{name} cannot move the intercepts of a multi-output model: use {remedy}"
    return None


def bounded_curvature(loss: Loss) -> bool:
    """Return whether the loss has finite second derivatives; powers below 2 do not."""
    return loss.smooth and loss.has_hessian and not loss.multi_output and loss.finite_curvature


# ---------------------------------------------------------------- mixtures of two cuts
def clip_magnitude(cut: Cut, max_entry: float = MAX_CUT_ENTRY) -> Cut:
    """Return the cut, scaled down if its squares would overflow: still a cut, since R >= 0."""
    xp = namespace(cut.a)
    size = float(xp.max(xp.abs(cut.a)))
    return cut if size <= max_entry else Cut(max_entry / size * cut.a, max_entry / size * cut.b)


def mix_two(old: Cut | None, new: Cut, obj: Objective) -> tuple[Cut, float]:
    """Return the mixture of two cuts with the best bound, and the weight of the new one."""
    new = clip_magnitude(new)
    if old is None:
        return _scaled_to_bound(new, obj), 1.0
    da, db = new.a - old.a, new.b - old.b
    if obj.has_inverse_metric:
        reg: Any = obj.reg
        # With a quadratic regularizer the bound of the mixture is a parabola in its weight eta,
        # b + eta db - |a + eta da|^2 / (2 lam) in the inverse metric: clip its maximizer to [0, 1].
        cross, square = (float(reg.inverse_metric_product(a[None, :], da)[0]) for a in (old.a, da))
        slope, curvature = db - cross / obj.lam, square / obj.lam
        eta = float(min(1.0, max(0.0, slope / curvature)) if curvature else slope > 0)
    # The bound of an L1-type regularizer is -inf until a cut is scaled: compare the scaled cuts.
    elif obj.reg.polyhedral:
        eta = float(obj.lower(new) > obj.lower(old))
    else:
        eta = _best_weight(lambda t: Cut(old.a + t * da, old.b + t * db), Cut(da, db), obj)
    return mixture(old, new, eta), eta


def mixture(old: Cut, new: Cut, share: float) -> Cut:
    """Return (1 - share) old + share new; rounding errors are those of the smaller part."""
    base, other, step = (old, new, share) if share < 0.5 else (new, old, 1 - share)
    if not step:
        return base
    return Cut(base.a + step * (other.a - base.a), base.b + step * (other.b - base.b))


def _scaled_to_bound(cut: Cut, obj: Objective) -> Cut:
    """Return the cut; for smooth conjugates, which may overflow, its best multiple s <= 1."""
    if obj.has_inverse_metric or obj.reg.polyhedral:
        return cut
    s = obj.reg.scale(cut, obj.lam)
    return Cut(s * cut.a, s * cut.b)


def _best_weight(mixed: Any, step: Cut, obj: Objective) -> float:
    """Return the t in [0, 1] whose mixture bounds best: the bound is concave with slope db + da @ w(t)."""

    # Minus the bound, lam Omega*(-a(t) / lam) - b(t), is convex in t, as `refine_bracket` needs.
    def evaluate(t: float) -> Tangent:
        cut = mixed(t)
        with np.errstate(over="ignore", invalid="ignore"):
            slope = step.b + float(step.a @ obj.argmin(cut))
            return Tangent(t, obj.lam * obj.reg.conjugate(-1 / obj.lam * cut.a) - cut.b, -slope)

    lo, hi = evaluate(0.0), evaluate(1.0)
    # Keep the old cut if the bound falls from it on, and drop it if it has no finite bound.
    if lo.slope >= 0 or not np.isfinite(lo.value):
        return float(not np.isfinite(lo.value))
    # Exponentials overflow far from the minimum: shorten the interval.
    while not (np.isfinite(hi.value) and np.isfinite(hi.slope)):
        hi = evaluate(0.25 * hi.x)
    if hi.slope <= 0:
        return hi.x
    return best_tangent(
        *refine_bracket(evaluate, lo, hi, lambda best, bound: best - bound <= 1e-13 * abs(best))
    ).x


# ---------------------------------------------------------------- segments
class BestOnSegments:
    """The best point so far: the minimizer of J on the segment from it to each new point."""

    def __init__(self, obj: Objective, w: Array | None) -> None:
        self.obj = obj
        self.cursor = None if w is None else obj.cursor(w)

    def towards(self, w: NDArray) -> tuple[NDArray, float]:
        """Return the best point between the last one and w, and J there."""
        if self.cursor is None:
            self.cursor = self.obj.cursor(w)
            return w, self.cursor()[0]
        cursor = self.cursor
        self.obj.count.calls += 1
        # J is convex on the segment: bracket its minimum between t = 0 and t = 1.
        cursor.set_direction(w - cursor.w)
        lo, hi = (Tangent(t, *cursor.value_slope(t)) for t in (0.0, 1.0))
        if lo.slope < 0 < hi.slope:
            start_value = lo.value

            # To 0.1 % of the decrease so far, or to rounding.
            def converged(best: float, low: float) -> bool:
                return best - low <= 1e-3 * (start_value - best) + 1e-15 * abs(best)

            lo, hi = refine_bracket(lambda t: Tangent(t, *cursor.value_slope(t)), lo, hi, converged)
        minimum = best_tangent(lo, hi)
        if minimum.x > 0:
            cursor.advance(minimum.x)
        return cursor.w, minimum.value
