"""Automatic selection of solvers by a table of rules, with the reason for the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from riskmin.core import Array, Iterate, Solver
from riskmin.losses.base import Loss
from riskmin.problem.design_operator import mean_squared_norm, rows_exceed_memory
from riskmin.problem.objective import Objective
from riskmin.solvers.base import beside_another_library, bounded_curvature, loss_of
from riskmin.solvers.bundle.bundle import Bundle
from riskmin.solvers.coordinate.coordinate_descent import CoordinateDescent
from riskmin.solvers.dual.chain import ChainAscent
from riskmin.solvers.dual.coordinate_ascent import DualCoordinateAscent
from riskmin.solvers.dual.kernel import KernelDual
from riskmin.solvers.interior_point.contingency_tables import ContingencyTables
from riskmin.solvers.interior_point.interior_point import InteriorPoint
from riskmin.solvers.newton.newton import Newton
from riskmin.solvers.portfolio import Portfolio
from riskmin.solvers.proximal_gradient import ProximalGradient
from riskmin.solvers.quasi_newton.lbfgs import Lbfgs
from riskmin.solvers.quasi_newton.owlqn import OwlQn
from riskmin.solvers.quasi_newton.whitening import Whitening
from riskmin.solvers.reference.augmented_lagrangian import AugmentedLagrangian
from riskmin.solvers.smoothing import Smoothing
from riskmin.solvers.transformed.separable_form import SeparableForm, SeparableProblem
from riskmin.solvers.working_set import WorkingSet


@dataclass(frozen=True)
class CostModel:
    """Sizes and ratios from which one solver is faster than another: see `python -m benchmarks.auto`."""

    min_tol: float = 1e-12
    """The tolerance that replaces 0, which no run reaches."""
    easy_row_norm_ratio: float = 10.0
    """Mean |x_i|^2 / (n lam) up to which dual ascent needs few epochs."""
    max_stored_numbers: int = 2**26
    """Numbers per row in total that a solver stores in this process: half a gigabyte."""
    factorization_passes: float = 100.0
    """Operations of a factorization, m^3, per entry of X up to which m rows or columns are few."""
    newton_max_weights: int = 2000
    """Weights of several outputs up to which Newton's method is fast for nonsmooth losses on dense X."""
    interior_point_max_weights: int = 500
    """Weights of several outputs up to which the interior-point method is the first choice."""
    bundle_max_slope_ratio: float = 500.0
    """|grad R(0)|^2 / lam up to which quasi-Newton methods need few steps for losses on pairs."""
    trial_work: float = 100.0
    """The least work after which a solver is judged, in passes over X."""
    max_trial_work: float = 2000.0
    """The same for solvers whose bounds improve late, and for small X."""
    trial_entries: float = 5e8
    """The same of Newton's method in entries of X: passes over small X cost little."""


COSTS = CostModel()


# ---------------------------------------------------------------- facts
class Facts:
    """What a rule asks of an objective; each fact is computed when it is needed."""

    def __init__(self, obj: Objective) -> None:
        self.obj, self.risk, self.reg = obj, obj.risk, obj.reg
        self.loss: Loss | None = loss_of(obj.risk)
        """The loss that the user chose; None for an oracle that has none."""
        self.smooth = self.loss is not None and self.loss.smooth
        """Whether the loss is declared smooth: methods for nonsmooth losses are valid for all."""
        self.separable = self.loss is None or self.loss.separable
        """Whether the loss is a sum over rows."""
        self.multi_output = bool(obj.risk.multi_output)
        """Whether there are several scores per row."""
        self.l1 = obj.reg.penalized_part.sum_of_absolutes
        """Whether the regularizer is `L1` or `Elastic`, with or without explicit intercepts."""

    @property
    def interval(self) -> bool:
        """Whether the conjugate of the loss is quadratic on an interval, for each row."""
        return self.risk.row_metadata is not None and self.risk.loss.quadratic_conjugate

    @property
    def smoothable(self) -> bool:
        """Whether the loss of a linear model has a smoothed form."""
        return self.risk.linear_map is not None and self.loss is not None and self.loss.can_be_smoothed

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of X; zeros for an oracle."""
        rows = self.risk.row_metadata
        return (0, 0) if rows is None else rows.shape

    @property
    def sparse(self) -> bool:
        """Whether X is sparse."""
        return self.risk.row_metadata is not None and self.risk.row_metadata.sparse

    @property
    def wide(self) -> bool:
        """Whether X has fewer rows than columns."""
        return self.shape[0] < self.shape[1]

    @cached_property
    def device(self) -> bool:
        """Whether X is an array of another library, such as on a GPU."""
        return beside_another_library(self.risk)

    @property
    def local(self) -> bool:
        """Whether all rows are in this process, in arrays of NumPy or SciPy."""
        return self.risk.rows is not None and not self.device

    @cached_property
    def in_memory(self) -> bool:
        """Whether all rows are in this process and fit into its memory, if they are mapped from files."""
        return self.local and not rows_exceed_memory(self.risk.rows)

    @property
    def n_entries(self) -> int:
        """Stored entries of X, at least one."""
        return 1 if self.risk.row_metadata is None else max(1, self.risk.row_metadata.nnz)

    @property
    def dual_first(self) -> bool:
        """Whether dual ascent visits rows in less time than a factorization, or conjugate gradients, take."""
        n, p = self.shape
        if self.multi_output:
            if self.smooth or not self.local or DualCoordinateAscent().supports(self.obj) is not None:
                return False
            if n * self.risk.linear_map.columns > COSTS.max_stored_numbers:
                return False
            few = self.risk.dim <= COSTS.newton_max_weights
            return not few or (not self.obj.n_intercepts and (self.sparse or self.wide or self.easy))
        if not self.interval or self.risk.loss.constant_curvature:
            return False
        if not self.local:  # a dozen numbers per row are stored here
            return self.sparse and p > Newton.direct and 12 * n <= COSTS.max_stored_numbers
        if self.smooth:
            return self.sparse and self.wide
        few = min(n, p) ** 3 <= COSTS.factorization_passes * self.n_entries
        return (self.wide or self.sparse) and (self.easy or not few)

    @cached_property
    def easy(self) -> bool:
        """Whether visits of local rows move multipliers far: the mean |x_i|^2 is small relative to n lam."""
        rows: Any = self.risk.rows
        return mean_squared_norm(rows) <= COSTS.easy_row_norm_ratio * len(rows.y) * self.obj.lam

    @property
    def newton_fits(self) -> bool:
        """Whether the rows and matrices of Newton's method fit where X is, for one score per row."""
        n, p = self.shape
        if self.device:
            return not self.sparse and min(n, p) <= Newton.direct
        if self.local:
            return not self.sparse or self.in_memory
        return self.separable and p <= Newton.direct and 2 * n <= COSTS.max_stored_numbers

    @property
    def second_derivatives(self) -> bool:
        """Whether the loss, or its smoothed form, has finite second derivatives."""
        if self.loss is None or not self.loss.has_hessian:
            return False
        return self.multi_output or (bounded_curvature(self.loss) if self.smooth else self.smoothable)

    @cached_property
    def large_lam(self) -> bool:
        """Whether lam is so large relative to the squared gradient of the risk at zero that steps are few."""
        # with L2, J(0) - min J <= |grad R(0)|^2 / (2 lam), by convexity
        g = self.risk(np.zeros(self.risk.dim))[1]
        return float(g @ g) <= COSTS.bundle_max_slope_ratio * self.obj.lam


# ---------------------------------------------------------------- rules
class Rule(NamedTuple):
    """One row of the table: a solver, the problems that it is fast for, and the reason."""

    solver: Solver
    problem: str
    """The problems it is for, in the words of the documentation, besides what it supports."""
    applies: Callable[[Facts], bool]
    reason: str
    """A template for `result.solver`: {loss} and {reg} are classes, {kind} is "is smooth" or the like."""
    smoothed: bool = False
    """Whether the solver is for smooth losses, so that others are smoothed for it."""

    def solver_for(self, facts: Facts) -> Solver | None:
        """The solver for a problem to which the rule applies; None if it does not support the problem."""
        solver = Smoothing(self.solver) if self.smoothed and not facts.smooth else self.solver
        return solver if solver.supports(facts.obj) is None else None


def is_list(f: Facts) -> bool:
    """Whether the loss is one of pairs or contingency tables of local rows."""
    return not f.separable and f.local


OTHER = Rule(Bundle(), "any other", lambda f: True, "{loss} is a convex function with subgradients")
RULES = (
    Rule(
        AugmentedLagrangian(),
        "unpenalized directions (`Equality`)",
        lambda f: f.reg.free_directions is not None,
        "{reg} has unpenalized directions",
    ),
    Rule(
        KernelDual(),
        "a kernel, a loss with a conjugate",
        lambda f: f.reg.halves,
        "a kernel, and {loss} has a conjugate",
    ),
    Rule(
        ChainAscent(),
        "`ChainMaxMargin`, `L2`, local rows",
        lambda f: f.loss is not None and f.loss.task == "tagging",
        "{loss} is not smooth, and its sequences are local",
    ),
    Rule(
        WorkingSet(),
        "a `Structured` model, a nonsmooth loss",
        lambda f: f.risk.caches_outputs and not f.smooth,
        "{loss} is not smooth, and caches the outputs of its argmax",
    ),
    Rule(
        InteriorPoint(),
        "several outputs, `L1`, `Elastic` or `Box`, local rows, at most 500 weights",
        lambda f: f.multi_output and not f.reg.quadratic and f.risk.dim <= COSTS.interior_point_max_weights,
        "{reg} is not smooth, and w is short",
        smoothed=True,
    ),
    Rule(
        Lbfgs(),
        "dense X of torch or CuPy, a smooth loss, `L2`, 20 rows per column or more, at most 2500 features",
        lambda f: f.device and Whitening.applies(f.obj),
        "{loss} is smooth, and a sample of the rows gives its curvature",
    ),
    Rule(
        SeparableForm(Portfolio((DualCoordinateAscent(), Newton()))),
        "at most 2^17 pairs of local rows, and fewer rows than columns or no second derivatives, `L2`",
        lambda f: is_list(f) and (f.wide or not f.second_derivatives),
        "{loss} is a hinge loss of few pairs of rows",
    ),
    Rule(
        ContingencyTables(),
        "`FBeta`, `PrecisionAtK`, `RecallAtK`, `L2`, local rows, at most 600 and fewer than columns",
        lambda f: is_list(f) and f.wide,
        "{loss} is a maximum over contingency tables, of which few matter",
    ),
    Rule(
        Lbfgs(),
        "pairs of local rows, large lam relative to the squared gradient at zero, `L2`",
        # a mean over many pairs is nearly smooth
        lambda f: is_list(f) and not f.wide and f.second_derivatives and f.reg.diagonal and f.large_lam,
        "{loss} is a mean over many pairs, and lam is large",
    ),
    Rule(
        DualCoordinateAscent(),
        "a nonsmooth loss, `L2`, local rows: sparse X, or fewer rows than columns, where a factorization "
        "takes longer or lam is large; several outputs, more than 2000 weights, or no intercepts and sparse "
        "or wide X or a large lam; a smooth loss with a quadratic conjugate, sparse X of fewer rows than "
        "columns; sparse remote rows of more than 2500 features, at most 5 million",
        lambda f: f.dual_first,
        "{loss} has one multiplier per row, or per row and class, and visits of rows are cheap",
    ),
    Rule(
        Newton(),
        "second derivatives of the loss or its smoothed form, `L2` or `Quadratic`; for several outputs and a "
        "nonsmooth loss, at most 2000 weights; at most 2^25 remote rows of 2500 features",
        lambda f: (
            f.second_derivatives
            and (f.smooth or f.risk.dim <= COSTS.newton_max_weights if f.multi_output else f.newton_fits)
        ),
        "{loss} {kind}, with second derivatives",
    ),
    Rule(
        CoordinateDescent(),
        "a smooth loss, a sum over coordinates, local rows that fit into memory",
        lambda f: f.smooth and not f.reg.smooth and f.in_memory,
        "{loss} is smooth, {reg} is a sum over coordinates",
    ),
    Rule(
        InteriorPoint(),
        "a quadratic conjugate or second derivatives, `L1`, `Elastic` or `Box`, local rows",
        lambda f: not f.reg.quadratic and not f.multi_output and f.in_memory,
        "{loss} has a quadratic conjugate or second derivatives, and {reg} is a sum over coordinates",
    ),
    Rule(
        Lbfgs(),
        "a smooth loss, several outputs, or pairs, of rows that are known; a regularizer with a gradient",
        # a smoothed form asks owners for many points near each other, which they answer coarsely
        lambda f: (
            f.smooth
            or (
                f.shape[0] > 0
                and not f.interval
                and (f.second_derivatives or (f.multi_output and not f.local))
            )
        ),
        "{loss} {kind}",
        smoothed=True,
    ),
    Rule(
        OwlQn(),
        "a smooth loss or several outputs, `L1` or `Elastic`",
        lambda f: f.l1 and (f.smooth or f.multi_output),
        "{loss} {kind}, and {reg} is not smooth",
        smoothed=True,
    ),
    Rule(
        ProximalGradient(),
        "a smooth loss and a regularizer that is separable or has no Newton step of its conjugate, several "
        "outputs with intercepts, or a regularizer without a master problem",
        lambda f: (
            not f.reg.penalized_part.has_master_problem
            or (f.multi_output and f.reg.n_unpenalized > 0)
            or (f.smooth and (f.reg.penalized_part.separable or not f.reg.has_conjugate_hessian))
        ),
        "{loss} {kind}, and {reg} is not smooth",
        smoothed=True,
    ),
    OTHER,
    Rule(
        ContingencyTables(),
        "`FBeta`, `PrecisionAtK`, `RecallAtK`, `L2`, local rows, at most 600 or of 600 columns",
        is_list,
        "{loss} is a maximum over contingency tables",
    ),
)
"""The rules in order: the first that applies selects the solver, and the solvers of the others continue."""


def trial_work(first: Solver, facts: Facts) -> float:
    """The work after which the selected solver is compared with the whole run, in passes over X."""
    if isinstance(first, Newton):
        return max(COSTS.trial_work, min(COSTS.trial_entries / facts.n_entries, COSTS.max_trial_work))
    late = isinstance(first, DualCoordinateAscent | SeparableForm | CoordinateDescent)
    return COSTS.max_trial_work if late else COSTS.trial_work


@dataclass(frozen=True)
class Auto(Solver):
    """Selects a solver for the problem by a table of rules; the reason is in ``result.solver``.

    Newton's method where there are second derivatives, of the loss or of its smoothed form, and a quadratic
    regularizer; dual ascent where X is sparse or has few rows; quasi-Newton, coordinate or proximal methods
    for other regularizers and smooth losses; a bundle method for everything else. docs/solvers.md lists all
    rules, generated from the table. Where a solver is too slow, that of the next rule continues
    (`Portfolio`).

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, L2, Auto, Logistic, Objective, linear_risk
    >>> risk = linear_risk(np.eye(2), np.array([1.0, -1.0]), Logistic())
    >>> Auto().choose(Objective(risk, L2(), lam=0.1))
    (Newton(), 'Logistic is smooth, with second derivatives')
    >>> Auto().choose(Objective(risk, L1(), lam=0.1))
    (CoordinateDescent(start=64), 'Logistic is smooth, L1 is a sum over coordinates')
    """

    def choose(self, obj: Objective, tol: float = 1e-3) -> tuple[Solver, str]:
        """The solver for a relative gap of tol, and the reason."""
        portfolio, reason = self.portfolio(obj, tol)
        return portfolio.solvers[0], reason

    def portfolio(self, obj: Objective, tol: float = 1e-3) -> tuple[Portfolio, str]:
        """The solvers for a relative gap of tol, and the reason for the first."""
        facts, tol = Facts(obj), max(tol, COSTS.min_tol)
        names = {
            "loss": type(facts.risk.source if facts.loss is None else facts.loss).__name__,
            "reg": type(facts.reg.penalized_part).__name__,
            "kind": "is smooth" if facts.smooth else "can be smoothed",
        }
        if is_list(facts) and (same := SeparableProblem.from_objective(obj)) is not None:
            # the same problem in another form, which has faster solvers
            inner, reason = self.portfolio(same.obj, tol)
            reason = f"{names['loss']} is a loss of single rows with an intercept, and {reason}"
            return replace(
                inner,
                solvers=tuple(SeparableForm(solver) for solver in inner.solvers),
                others=lambda: [SeparableForm(solver) for solver in inner.others()],
            ), reason
        first, rule, rest = None, OTHER, list(RULES)
        while first is None and rest:
            rule = rest.pop(0)
            first = rule.solver_for(facts) if rule.applies(facts) else None
        if first is None:  # no solver supports the problem: `Bundle` says why
            rule, first = OTHER, OTHER.solver

        def others() -> list[Solver]:
            later = dict.fromkeys(one.solver_for(facts) for one in rest if one.applies(facts))
            return [one.for_tolerance(tol) for one in later if one is not None and one != first]

        portfolio = Portfolio((first.for_tolerance(tol),), tol, trial_work(first, facts), others)
        return portfolio, rule.reason.format(**names)

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the selected solver, and of the next ones where it is too slow."""
        return self.portfolio(obj)[0].iterates(obj, w0)


def describe_solver(solver: Solver, reason: str, trace: list[dict[str, float]]) -> str:
    """A solver, the reason for its selection, and for a `Portfolio` a summary of the run."""
    # the reason is that for the first of the solvers
    first = solver.solvers[0] if isinstance(solver, Portfolio) and reason else solver
    parts = [f"{first!r}: {reason}" if reason else repr(first)]
    for combined in (first,) if first is solver else (first, solver):
        if summary := combined.summary(trace):
            parts.append(summary)
    return "; ".join(parts)
