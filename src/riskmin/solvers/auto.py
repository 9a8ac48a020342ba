"""Automatic selection of a solver, with the reason for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.matrix import Csc, Csr, CsrWithTranspose
from riskmin.arrays.partitioned import RowMetadata
from riskmin.core import Array, Iterate, Shard, Solver
from riskmin.linear_maps.linear import Standardized
from riskmin.losses import PowerHinge
from riskmin.losses.base import Loss
from riskmin.problem.convexity.owner import user_object
from riskmin.problem.design_operator import rows_exceed_memory
from riskmin.problem.kernel.rkhs import RkhsNorm
from riskmin.problem.objective import Objective
from riskmin.regularizers import L1, L2, Elastic, Separable
from riskmin.solvers.base import loss_of
from riskmin.solvers.bundle.bundle import Bundle
from riskmin.solvers.bundle.cutting_planes import has_master_problem
from riskmin.solvers.coordinate.coordinate_descent import CoordinateDescent
from riskmin.solvers.coordinate.subproblem import bounded_curvature
from riskmin.solvers.dual.chain import ChainAscent
from riskmin.solvers.dual.coordinate_ascent import DualCoordinateAscent
from riskmin.solvers.dual.kernel import KernelDual
from riskmin.solvers.dual.kernel_conjugates import has_conjugate
from riskmin.solvers.dual.proximal_intercepts import rms_row_norm
from riskmin.solvers.fallback import Fallback
from riskmin.solvers.newton.newton import Newton
from riskmin.solvers.newton.score_problem import has_score_hessian
from riskmin.solvers.newton.subsampling import START_SAMPLE_ONE_ROW_IN, START_SAMPLE_ROWS_PER_COLUMN
from riskmin.solvers.proximal_gradient import ProximalGradient
from riskmin.solvers.quasi_newton.lbfgs import Lbfgs
from riskmin.solvers.quasi_newton.owlqn import OwlQn
from riskmin.solvers.smoothing import Smoothing
from riskmin.solvers.switching import Switching
from riskmin.solvers.working_set import WorkingSet

BUNDLE_MAX_SLOPE_RATIO_OF_PAIRS, BUNDLE_MAX_SLOPE_RATIO_OF_TABLES = 500.0, 10.0
"""`Bundle` needs few cuts up to this |grad R(0)|^2 / lam; for contingency tables, only where X is wide."""
INTERCEPT_ROW_NORM_RATIO = 1e5
"""With explicit intercepts, dual ascent is too slow once the mean |x_i|^2 exceeds this times n lam."""
DUAL_MAX_MULTIPLIERS = 2**26
"""Rows times classes up to which dual ascent stores multipliers (half a gigabyte); else smooth the loss."""
SAMPLED_START_ROWS_PER_COLUMN = START_SAMPLE_ONE_ROW_IN[-1] * START_SAMPLE_ROWS_PER_COLUMN
"""Rows per column from which Newton's method starts on a sample, and is fast on sparse data too."""
NEWTON_PASSES_PER_DIGIT = 30.0
"""Passes over a wide X in which Newton's method gains about one decimal digit of the gap."""
MIN_TOL = 1e-12
"""The tolerance that replaces 0, which no run reaches."""
NEWTON_MAX_WEIGHTS_WITH_INTERCEPTS = 5000
"""Multiclass weights, with explicit intercepts, up to which Newton's method is fast."""
NEWTON_MAX_WEIGHTS, HARD_ROW_NORM_RATIO = 1000, 2.0
"""Multiclass weights up to which Newton's method is fast, and mean |x_i|^2 / (n lam) from which it pays."""
NEWTON_MAX_REMOTE_ROWS = 2**25
"""Remote rows whose scores Newton's method stores in this process: vectors of a quarter gigabyte."""
DUAL_MAX_REMOTE_ROWS = 2**22
"""Remote rows whose dual variables are stored in this process, a dozen numbers each."""
NONSEPARABLE_TRIAL_WORK = 30.0
"""The work after which Newton's method is judged on non-decomposable losses, in passes over X."""
BUNDLE_MAX_ENTRIES = 2**14
"""Entries of X up to which cuts of contingency-table losses cost less than the many Newton steps."""


@dataclass(frozen=True)
class Auto(Solver):
    """Selects a solver for the problem; the reason is in ``result.solver``.

    A smooth loss (one with ``smooth = True``) is solved by

    - `Newton`, if it has finite second derivatives, the regularizer is `L2` or `Quadratic`, and the rows are
      local, or remote and at most 2^25 with at most 2500 features; multi-output losses only with `L2`, local
      rows and at most 2500 features. Where X is local, sparse and has more features, losses with a quadratic
      conjugate start with `DualCoordinateAscent`, by `Switching`, with `L2` and without an intercept;
    - `Lbfgs` otherwise, if the regularizer has a gradient (`L2`, `Quadratic`, `QNorm`);
    - `CoordinateDescent`, if the regularizer is separable (`L1`, `Elastic`, `Box`), the rows are all local,
      and the loss has bounded second derivatives;
    - `OwlQn` otherwise for `L1` and `Elastic`, and `ProximalGradient` for `Box`;
    - `Bundle`, for `Entropy`.

    For any other loss, the solver depends on its structure:

    - `ChainMaxMargin` with `L2` and local rows: `ChainAscent`.
    - A `Structured` model: `WorkingSet`.
    - A piecewise quadratic conjugate (`Hinge`, `Quantile`, ...), with `L2` or `Quadratic`:
      `Newton`, if the rows are local, or remote as above, with these exceptions:

      - at most 2500 rows, fewer than columns, with `L2` and without an intercept: `DualCoordinateAscent`;
      - local sparse rows, fewer than 800 per column, with `L2` and without an intercept: `Switching` from
        `DualCoordinateAscent` to `Newton`;
      - other local sparse rows, fewer than 800 per column, with more than 2500 columns: `Switching` from
        `Bundle` to `Newton`;
      - remote sparse rows, at most 2^22, with more than 2500 columns, `L2` and no intercept:
        `DualCoordinateAscent`, with local sweeps of the shards.

    - A multi-output loss that can be smoothed:

      - `MulticlassHinge`, rescaled or not, with dense X and at most 5000 weights with intercepts; or at most
        1000 without, if the mean squared norm of a row is more than 2 n lam: `Newton`;
      - `MulticlassHinge`, not rescaled, with at most 2^26 rows times classes, unless there are intercepts and
        rows are very long relative to n lam: `DualCoordinateAscent`;
      - otherwise `Smoothing`, if the regularizer allows it.

    - A non-decomposable loss that can be smoothed (`RocArea`, `Ordinal`, `Prbep`), with `L2`:
      `Newton`, if the rows are local and there are at most 2500 features (for `Prbep`, any number);
      otherwise `Smoothing`. It is `Bundle` if lam is large relative to the squared gradient of the risk at
      zero, since few cuts suffice then (for `Prbep`, only with more than 2500 features), and for `Prbep` if X
      is small.
    - All others: `Bundle`; but `Smoothing` with `ProximalGradient`, if the loss can be smoothed and the
      regularizer has no ``conjugate_hessian_product``.

    With a kernel, losses that have a conjugate are solved by `KernelDual`. Sparse rows that are mapped from
    files and exceed the memory are treated like remote rows that are too many for the limits above.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, L2, Auto, Logistic, Objective, linear_risk
    >>> risk = linear_risk(np.eye(2), np.array([1.0, -1.0]), Logistic())
    >>> Auto().choose(Objective(risk, L2(), lam=0.1))
    (Newton(), 'Logistic is smooth, and has second derivatives')
    >>> Auto().choose(Objective(risk, L1(), lam=0.1))
    (CoordinateDescent(start=64), 'Logistic is smooth, L1 is a sum over coordinates')
    """

    def choose(self, obj: Objective, tol: float = 1e-3) -> tuple[Solver, str]:
        """The solver for a relative gap of tol, and the reason."""
        loss = loss_of(obj.risk)
        name = type(user_object(obj.risk) if loss is None else loss).__name__
        if isinstance(obj.reg, RkhsNorm):
            conjugate = loss is not None and has_conjugate(loss)
            reason = f"a kernel, and {name} has {'a' if conjugate else 'no'} conjugate"
            return KernelDual() if conjugate else Bundle(), reason
        if loss is not None and loss.smooth:
            return _for_smooth(obj, loss, name, tol)
        # the order matters: the most specific structure is tested first
        if ChainAscent().supports(obj) is None:
            return ChainAscent(), f"{name} is not smooth, and its sequences are local"
        if obj.risk.multi_output and loss is not None and loss.can_be_smoothed:
            return _for_multi_output(obj, name)
        if obj.risk.caches_outputs:
            return WorkingSet(), f"{name} is not smooth, and caches the outputs of its argmax"
        if _has_interval_dual(obj):
            if _local_rows(obj) is None:
                # Newton's method if the scores of all rows fit into this process, else CoCoA+ on the shards
                newton, reason = Newton(), f"{name} is not smooth, and X is remote"
                return (newton if _newton_takes_remote(obj, newton) else DualCoordinateAscent()), reason
            return _for_intervals(obj, tol, name)
        smoothed_hessian = loss is not None and _has_smoothed_hessian(loss)
        if isinstance(obj.reg, L2) and smoothed_hessian and not obj.risk.intercept.profiled:
            return _for_nonseparable(obj, loss, name)
        reason = f"{name} {'has no attribute smooth' if loss is None else 'is not smooth'}"
        # without a conjugate Hessian product, bundle methods have no master problem for the regularizer
        smoothable = obj.risk.linear_map is not None and loss is not None and loss.can_be_smoothed
        if smoothable and not has_master_problem(obj.reg.penalized_part):
            kind = type(obj.reg.penalized_part).__name__
            return Smoothing(ProximalGradient()), f"{reason}, and {kind} has no conjugate_hessian_product"
        return Bundle(), reason

    def with_fallbacks(self, obj: Objective, tol: float = 1e-3) -> tuple[Fallback, str]:
        """The solver and its fallbacks, for a relative gap of tol; and the reason for the solver."""
        first, reason = self.choose(obj, tol)
        # where J is nearly 0, non-decomposable losses need many Newton steps but few cuts
        loss = loss_of(obj.risk)
        nonseparable = loss is not None and not loss.separable
        solvers, tol = (first, *_fallbacks(obj, first)), max(tol, MIN_TOL)
        trial = (NONSEPARABLE_TRIAL_WORK,) if nonseparable else ()
        return Fallback(solvers, tol, *trial), reason

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the selected solver, and of its fallbacks where it is too slow."""
        return self.with_fallbacks(obj)[0].iterates(obj, w0)


def _fallbacks(obj: Objective, first: Solver) -> list[Solver]:
    """The solvers to continue with where the first is too slow: a fast one, then one that converges."""
    loss = loss_of(obj.risk)
    smooth = loss is not None and loss.smooth
    reg = obj.reg.penalized_part
    fallbacks: list[Solver] = []
    # quasi-Newton methods need gradients only, and no factorization
    if smooth and obj.reg.smooth:
        fallbacks.append(Lbfgs())
    elif smooth and isinstance(reg, (L1, Elastic)):
        fallbacks.append(OwlQn())
    # cutting planes converge for every convex risk
    if has_master_problem(reg):
        fallbacks.append(Bundle())
    if not smooth and obj.reg.smooth and obj.risk.linear_map is not None:
        fallbacks.append(Smoothing())
    return [solver for solver in fallbacks if type(solver) is not type(first)]


def _for_smooth(obj: Objective, loss: Any, name: str, tol: float) -> tuple[Solver, str]:
    """The solver for a smooth loss, and the reason."""
    reg = obj.reg
    inner_reg = reg.penalized_part
    kind, newton = type(inner_reg).__name__, Newton()
    if _newton_takes_multi_output(obj, newton):
        return newton, f"{name} is smooth, and has second derivatives"
    # the second derivative of a power below 2 is infinite at the margin
    unbounded = isinstance(loss, PowerHinge) and loss.p < 2
    curved = has_score_hessian(loss) and not unbounded
    rows = _local_rows(obj) if curved else None
    quadratic = reg.smooth and reg.quadratic
    if quadratic and rows is not None:
        # with too many features for a factorization, dual ascent is the faster one at first
        sparse = (
            isinstance(rows.X, (Csr, Csc, CsrWithTranspose))
            and isinstance(reg, L2)
            and not obj.risk.intercept.profiled
        )
        if rows.X.shape[1] > newton.direct and sparse and loss.interval_conjugate(rows.y[:1]) is not None:
            return Switching(
                DualCoordinateAscent(), newton, max(tol, MIN_TOL)
            ), f"{name} is smooth, X is wide"
        return newton, f"{name} is smooth, and has second derivatives"
    if curved and quadratic and _newton_takes_remote(obj, newton):
        return newton, f"{name} is smooth, has second derivatives, and X is remote"
    if reg.smooth:
        return Lbfgs(), f"{name} is smooth"
    # coordinate descent fits the intercept itself
    rows = _local_rows(obj)
    separable = isinstance(reg, Separable)
    if separable and rows is not None and bounded_curvature(loss) and not rows_exceed_memory(rows):
        return CoordinateDescent(), f"{name} is smooth, {kind} is a sum over coordinates"
    if isinstance(inner_reg, (L1, Elastic)):
        return OwlQn(), f"{name} is smooth, {kind} is not"
    # proximal steps need the proximal operator only, Bundle a master problem for the regularizer
    if isinstance(inner_reg, Separable) or not reg.has_conjugate_hessian:
        return ProximalGradient(), f"{name} is smooth, {kind} is not"
    return Bundle(), f"{kind} is not smooth"


def _has_smoothed_hessian(loss: Loss) -> bool:
    """Whether a loss without a conjugate has second derivatives of its smoothed form."""
    return loss.has_hessian and not loss.multi_output and loss.interval_conjugate(np.ones(1)) is None


def _newton_takes_multi_output(obj: Objective, newton: Newton) -> bool:
    """Whether the risk is multi-output, supported by Newton's method, and has few enough features."""
    risk: Any = obj.risk
    return risk.multi_output and newton.supports(obj) is None and bool(risk.rows.X.shape[1] <= newton.direct)


def _for_multi_output(obj: Objective, name: str) -> tuple[Solver, str]:
    """The solver for a multi-output loss that can be smoothed, and the reason."""
    if Newton().supports(obj) is None and _is_small_and_hard(obj):
        return Newton(), f"{name} is not smooth, and X is dense and small"
    supported = DualCoordinateAscent().supports(obj) is None
    # dual ascent first; if it does not apply, a smoothed loss with the first-order method for the regularizer
    if supported and not _intercepts_slow_ascent(obj) and _multipliers_fit(obj):
        return DualCoordinateAscent(), f"{name} is not smooth, and has one multiplier per row and class"
    if obj.reg.smooth:
        return Smoothing(), f"{name} can be smoothed"
    if isinstance(obj.reg.penalized_part, (L1, Elastic)):
        return Smoothing(OwlQn()), f"{name} can be smoothed"
    if obj.reg.n_unpenalized:
        return Smoothing(ProximalGradient()), f"{name} can be smoothed"
    return Bundle(), f"{name} is not smooth"


def _is_small_and_hard(obj: Objective) -> bool:
    """Whether X is dense, w short, and |x_i|^2 large relative to n lam: dual ascent is slow then."""
    risk: Any = obj.risk
    dense = not isinstance(risk.rows.X, (Csr, Csc, CsrWithTranspose))
    if risk.n_intercepts:  # dual ascent approaches intercepts slowly
        return dense and risk.dim <= NEWTON_MAX_WEIGHTS_WITH_INTERCEPTS
    if not dense or risk.dim > NEWTON_MAX_WEIGHTS:
        return False
    # a visit moves a multiplier by about n lam / |x_i|^2: dual ascent needs many where that is small
    return rms_row_norm(risk.rows) ** 2 > HARD_ROW_NORM_RATIO * len(risk.rows.y) * obj.lam


def _multipliers_fit(obj: Objective) -> bool:
    """Whether one multiplier per row and class fits in memory."""
    risk: Any = obj.risk
    return risk.rows is not None and bool(len(risk.rows.y) * risk.linear_map.columns <= DUAL_MAX_MULTIPLIERS)


def _intercepts_slow_ascent(obj: Objective) -> bool:
    """Whether there are explicit intercepts, and |x_i|^2 so large relative to n lam that they hardly move."""
    rows = obj.risk.rows if obj.n_intercepts else None
    return rows is not None and rms_row_norm(rows) ** 2 > INTERCEPT_ROW_NORM_RATIO * len(rows.y) * obj.lam


def _for_nonseparable(obj: Objective, loss: Any, name: str) -> tuple[Solver, str]:
    """The solver for a non-decomposable loss that can be smoothed, and the reason."""
    risk = obj.risk
    newton, centered = Newton(), loss.supports_center  # contingency-table losses have a center
    if risk.rows is None:
        return Smoothing(), f"{name} can be smoothed"
    if centered and math.prod(risk.rows.X.shape) <= BUNDLE_MAX_ENTRIES:
        return Bundle(), f"{name} is not smooth, and X is small"
    wide = risk.dim > newton.direct
    if wide or not centered:
        # with L2, J(0) - min J <= |grad R(0)|^2 / (2 lam), by convexity
        g = risk(np.zeros(risk.dim))[1]
        ratio = BUNDLE_MAX_SLOPE_RATIO_OF_TABLES if centered else BUNDLE_MAX_SLOPE_RATIO_OF_PAIRS
        if float(g @ g) <= ratio * obj.lam:
            return Bundle(), f"{name} is not smooth, and lam is large"
    if wide and not centered:  # Newton's steps would be many, and each of them expensive
        return Smoothing(), f"{name} can be smoothed, and X is wide"
    return newton, f"{name} can be smoothed, and has second derivatives then"


def _has_interval_dual(obj: Objective) -> bool:
    """Whether rows are local, or few and remote, their conjugates quadratic, and the regularizer, too."""
    risk = obj.risk
    local = _local_rows(obj) is not None
    reachable = local or _newton_takes_remote(obj, Newton()) or _dual_takes_remote(obj)
    quadratic = obj.reg.quadratic and obj.reg.smooth
    return reachable and quadratic and risk.loss.interval_conjugate(risk.row_metadata.y[:1]) is not None


def _remote_metadata(obj: Objective) -> RowMetadata | None:
    """The metadata of remote rows with one score each and a separable loss; None for other rows."""
    risk = obj.risk
    if risk.rows is not None or risk.row_metadata is None:
        return None
    simple = risk.loss.separable and not risk.multi_output and isinstance(risk.row_metadata.y, np.ndarray)
    return risk.row_metadata if simple else None


def _newton_takes_remote(obj: Objective, newton: Newton) -> bool:
    """Whether rows are remote, and neither they nor their features are too many for Newton's method."""
    rows = _remote_metadata(obj)
    return rows is not None and rows.shape[0] <= NEWTON_MAX_REMOTE_ROWS and rows.shape[1] <= newton.direct


def _dual_takes_remote(obj: Objective) -> bool:
    """Whether rows are remote, sparse, without an intercept, and few enough for local dual variables."""
    rows = None if obj.risk.intercept.profiled or not isinstance(obj.reg, L2) else _remote_metadata(obj)
    # sweeps of the shards use the columns as they are stored
    standardized = isinstance(obj.risk.linear_map, Standardized)
    return rows is not None and rows.sparse and rows.shape[0] <= DUAL_MAX_REMOTE_ROWS and not standardized


def _for_intervals(obj: Objective, tol: float, name: str) -> tuple[Solver, str]:
    """The solver for a loss with one multiplier per row, and the reason."""
    newton, tol, reason = Newton(), max(tol, MIN_TOL), f"{name} is not smooth, and X is"
    rows = _local_rows(obj)
    assert rows is not None
    n, p = rows.X.shape
    # dual ascent has one variable per row, fewer than the primal has
    if isinstance(obj.reg, L2) and n < p and n <= newton.direct and not obj.risk.intercept.profiled:
        return DualCoordinateAscent(), f"{reason} wider than long"
    # Newton's method on a sample of the rows gives a start from which few steps on all rows remain
    long = n >= SAMPLED_START_ROWS_PER_COLUMN * p
    if not isinstance(rows.X, (Csr, Csc, CsrWithTranspose)) or long:
        return newton, f"{reason} {'long' if long else 'dense'}"
    if isinstance(obj.reg, L2) and not obj.risk.intercept.profiled:
        return Switching(DualCoordinateAscent(), newton, tol), f"{reason} sparse"
    # with too many columns for a factorization, cuts are cheaper than Newton steps at first
    if p > newton.direct:
        return Switching(Bundle(), newton, tol, NEWTON_PASSES_PER_DIGIT), f"{reason} sparse and wide"
    return newton, f"{reason} not wide"


def _local_rows(obj: Objective) -> Shard | None:
    """The rows of a separable single-output risk, with an intercept or not, if all are local; else None.

    None, too, for sparse mapped rows that exceed the memory: solvers of local rows store more per row.
    """
    risk = obj.risk
    if risk.rows is None or not risk.loss.separable or risk.multi_output:
        return None
    return (
        None
        if isinstance(risk.rows.X, (Csr, Csc, CsrWithTranspose)) and rows_exceed_memory(risk.rows)
        else risk.rows
    )


def describe_solver(solver: Solver, reason: str, trace: list[dict[str, float]]) -> str:
    """A solver, the reason for its selection, and for `Switching` and `Fallback` a summary of the run."""
    # the reason is that for the first of the solvers
    first = solver.solvers[0] if isinstance(solver, Fallback) and reason else solver
    parts = [f"{first!r}: {reason}" if reason else repr(first)]
    for combined in (first,) if first is solver else (first, solver):
        if isinstance(combined, (Switching, Fallback)) and (summary := combined.summary(trace)):
            parts.append(summary)
    return "; ".join(parts)
