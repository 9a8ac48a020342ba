"""Automatic selection of a solver by a table of rules, with the reason for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from riskmin.core import Array, Iterate, Solver
from riskmin.problem.objective import Objective
from riskmin.solvers.bundle.bundle import Bundle
from riskmin.solvers.coordinate.coordinate_descent import CoordinateDescent
from riskmin.solvers.costs import COSTS
from riskmin.solvers.dual.chain import ChainAscent
from riskmin.solvers.dual.coordinate_ascent import DualCoordinateAscent
from riskmin.solvers.dual.kernel import KernelDual
from riskmin.solvers.facts import Facts
from riskmin.solvers.interior_point.contingency_tables import ContingencyTables
from riskmin.solvers.interior_point.interior_point import InteriorPoint
from riskmin.solvers.newton.newton import Newton
from riskmin.solvers.portfolio import Portfolio
from riskmin.solvers.proximal_gradient import ProximalGradient
from riskmin.solvers.quasi_newton.lbfgs import Lbfgs
from riskmin.solvers.quasi_newton.owlqn import OwlQn
from riskmin.solvers.reference.augmented_lagrangian import AugmentedLagrangian
from riskmin.solvers.smoothing import Smoothing
from riskmin.solvers.transformed.separable_form import SeparableForm, SeparableProblem
from riskmin.solvers.working_set import WorkingSet


class Rule(NamedTuple):
    """One row of the table: a condition, the solver for it, and the reason."""

    problem: str
    """The problems it is for, in the words of the documentation."""
    applies: Callable[[Facts], bool]
    solver: Solver
    reason: str
    """A template for `result.solver`: {loss} and {reg} are the names of their classes."""


class Group(NamedTuple):
    """Rules for one kind of problem."""

    problem: str
    applies: Callable[[Facts], bool]
    rules: tuple[Rule, ...]


NEWTON, DUAL, BUNDLE = Newton(), DualCoordinateAscent(), Bundle()
DUAL_THEN_NEWTON = Portfolio((DUAL, NEWTON))

# ---------------------------------------------------------------- the rules, in order
EQUALITY_RULES = (Rule("any", lambda f: True, AugmentedLagrangian(), "{reg} has unpenalized directions"),)
KERNEL_RULES = (
    Rule(
        "a loss with a conjugate",
        lambda f: f.conjugate,
        KernelDual(),
        "a kernel, and {loss} has a conjugate",
    ),
    Rule("any other loss", lambda f: True, BUNDLE, "a kernel, and {loss} has no conjugate"),
)
DEVICE_RULES = (
    Rule(
        "a smooth loss with second derivatives, `L2`, 20 rows per column or more, at most 2500 features",
        lambda f: f.whitened,
        Lbfgs(),
        "{loss} is smooth, and a sample of the rows gives its curvature",
    ),
    Rule(
        "any other",
        lambda f: True,
        NEWTON,
        "{loss} has second derivatives, of itself or smoothed, and X is dense",
    ),
)
SMOOTH_RULES = (
    Rule(
        "several outputs, `L2`, local rows; for other losses than `Softmax` on dense X, at most 5000 "
        "weights, or, with fewer rows than columns, 2^20 products of a pass",
        lambda f: f.newton_smooth_multi_output,
        NEWTON,
        "{loss} is smooth, and has second derivatives",
    ),
    Rule(
        "a quadratic conjugate, not `Squared`, `L2`, local sparse X of more than 2500 features",
        lambda f: (
            not f.risk.loss.constant_curvature
            and f.local
            and f.sparse
            and f.wide
            and f.interval_conjugate
            and f.exact_steps
        ),
        DUAL_THEN_NEWTON,
        "{loss} is smooth, X is wide",
    ),
    Rule(
        "finite second derivatives, `L2` or `Quadratic`, local rows, or at most 2^25 remote ones with 2500 "
        "features",
        lambda f: f.finite_curvature and f.quadratic and (f.local or f.newton_remote),
        NEWTON,
        "{loss} is smooth, and has second derivatives",
    ),
    Rule("a regularizer with a gradient", lambda f: f.reg.smooth, Lbfgs(), "{loss} is smooth"),
    Rule(
        "several outputs, `L1`, `Elastic` or `Box`, local rows, at most 500 weights, few rows",
        lambda f: f.interior_point_multi_output and f.cheap_weight_hessian,
        InteriorPoint(),
        "{loss} is smooth, {reg} is not, and w is short",
    ),
    Rule(
        "finite second derivatives, a separable regularizer, local rows that fit into memory",
        lambda f: f.reg.separable and f.fits_in_memory and f.finite_curvature,
        CoordinateDescent(),
        "{loss} is smooth, {reg} is a sum over coordinates",
    ),
    Rule("`L1` or `Elastic`", lambda f: f.l1, OwlQn(), "{loss} is smooth, {reg} is not"),
    Rule(
        "a regularizer that is separable, or has no master problem",
        lambda f: f.reg.penalized_part.separable or not f.reg.has_conjugate_hessian,
        ProximalGradient(),
        "{loss} is smooth, {reg} is not",
    ),
    Rule("any other regularizer", lambda f: True, BUNDLE, "{reg} is not smooth"),
)
MULTI_OUTPUT_RULES = (
    Rule(
        "`L2`, local dense X, few weights, long rows or intercepts",
        lambda f: f.newton_multi_output and f.small_and_hard,
        NEWTON,
        "{loss} is not smooth, and X is dense and small",
    ),
    Rule(
        "one multiplier per row and class, `L2`",
        lambda f: f.dual_multi_output and not f.slow_intercepts,
        DUAL,
        "{loss} is not smooth, and has one multiplier per row and class",
    ),
    Rule("a regularizer with a gradient", lambda f: f.reg.smooth, Smoothing(), "{loss} can be smoothed"),
    Rule(
        "`L1`, `Elastic` or `Box`, local rows, at most 500 weights, few rows",
        lambda f: f.interior_point_multi_output and f.cheap_weight_hessian,
        Smoothing(InteriorPoint()),
        "{loss} can be smoothed, and w is short",
    ),
    Rule("`L1` or `Elastic`", lambda f: f.l1, Smoothing(OwlQn()), "{loss} can be smoothed"),
    Rule(
        "explicit intercepts, or a regularizer without a master problem",
        lambda f: f.reg.n_unpenalized > 0 or not f.master_problem,
        Smoothing(ProximalGradient()),
        "{loss} can be smoothed",
    ),
    Rule("any other regularizer", lambda f: True, BUNDLE, "{loss} is not smooth"),
)
INTERVAL_RULES = (
    Rule(
        "at most 2^25 remote rows and 2500 features",
        lambda f: not f.local and f.newton_remote,
        NEWTON,
        "{loss} is not smooth, and X is remote",
    ),
    Rule(
        "at most 2^22 remote sparse rows",
        lambda f: not f.local,
        DUAL,
        "{loss} is not smooth, and X is remote",
    ),
    Rule("800 rows per column", lambda f: f.long, NEWTON, "{loss} is not smooth, and X is long"),
    Rule(
        "fewer rows than columns, `L2`; not `Absolute` on at most 128 dense rows",
        lambda f: f.wider_than_long and f.l2 and not f.small_system,
        DUAL_THEN_NEWTON,
        "{loss} is not smooth, and X is wider than long",
    ),
    Rule("dense X", lambda f: not f.sparse, NEWTON, "{loss} is not smooth, and X is dense"),
    Rule(
        "sparse X of at most 2^17 entries, zeros included, and 128 columns, with an intercept",
        # few kernels, so that a first fit compiles little
        lambda f: f.newton_small and f.profiled,
        NEWTON,
        "{loss} is not smooth, and X is small",
    ),
    Rule(
        "sparse X of few columns, small lam",
        lambda f: f.cheap_factorization and f.row_norm_ratio > COSTS.slow_dual_row_norm_ratio,
        NEWTON,
        "{loss} is not smooth, X has few columns, and lam is small",
    ),
    Rule(
        "other sparse X, `L2`",
        lambda f: f.l2,
        DUAL_THEN_NEWTON,
        "{loss} is not smooth, and X is sparse",
    ),
    Rule("other sparse X, `Quadratic`", lambda f: True, NEWTON, "{loss} is not smooth, nor is X dense"),
)
NONDECOMPOSABLE_RULES = (
    Rule("remote rows", lambda f: f.risk.rows is None, Smoothing(), "{loss} can be smoothed"),
    Rule(
        "1000 rows or more, large lam relative to the squared gradient at zero",
        # a mean over many pairs is nearly smooth
        lambda f: f.shape[0] >= COSTS.lbfgs_min_rows_of_pairs and f.large_lam,
        Lbfgs(),
        "{loss} is a mean over many pairs, and lam is large",
    ),
    Rule(
        "the same with fewer rows",
        lambda f: f.large_lam,
        BUNDLE,
        "{loss} is not smooth, and lam is large",
    ),
    Rule(
        "fewer rows than columns, at most 2^17 pairs and 2^23 entries of their differences",
        lambda f: f.wider_than_long and f.few_pairs,
        SeparableForm(DUAL_THEN_NEWTON),
        "{loss} is a hinge loss of few pairs of rows",
    ),
    Rule(
        "more than 2500 features",
        lambda f: f.wide_weights,
        Smoothing(),
        "{loss} can be smoothed, and X is wide",
    ),
    Rule("any other", lambda f: True, NEWTON, "{loss} can be smoothed, and has second derivatives then"),
)
CHAIN_RULES = (
    Rule("any", lambda f: True, ChainAscent(), "{loss} is not smooth, and its sequences are local"),
)
STRUCTURED_RULES = (
    Rule("any", lambda f: True, WorkingSet(), "{loss} is not smooth, and caches the outputs of its argmax"),
)
OTHER_RULES = (
    Rule(
        "a loss that can be smoothed, a regularizer without a master problem",
        lambda f: f.smoothable and not f.master_problem,
        Smoothing(ProximalGradient()),
        "{loss} is not smooth, and {reg} has no conjugate_hessian_product",
    ),
    Rule(
        "a quadratic conjugate, `L1`, `Elastic` or `Box`, local rows, at most 100 per column",
        lambda f: f.interior_point and not f.slow_gram,
        InteriorPoint(),
        "{loss} is not smooth, nor is {reg}",
    ),
    Rule(
        "`FBeta`, `PrecisionAtK`, `RecallAtK`, `L2`, at most 4096 local rows, 600 of them or of the columns",
        lambda f: f.tables and f.shape[0] <= COSTS.tables_max_rows,
        ContingencyTables(),
        "{loss} is a maximum over contingency tables, of which few matter",
    ),
    Rule("an oracle", lambda f: f.loss is None, BUNDLE, "{loss} has no attribute smooth"),
    Rule("any other", lambda f: True, BUNDLE, "{loss} is not smooth"),
)
# Where the first solver is too slow, these continue, in order: a fast one, then one that converges.
LATER_RULES = (
    # the number of its steps hardly depends on the sizes of the columns
    Rule(
        "a quadratic conjugate or second derivatives, `L1`, `Elastic` or `Box`, local rows",
        lambda f: f.interior_point or (f.smooth and f.interior_point_multi_output),
        InteriorPoint(),
        "",
    ),
    # quasi-Newton methods need gradients only, and no factorization
    Rule("a smooth loss and regularizer", lambda f: f.smooth and f.reg.smooth, Lbfgs(), ""),
    Rule("a smooth loss, `L1` or `Elastic`", lambda f: f.smooth and f.l1, OwlQn(), ""),
    Rule(
        "several outputs, a nonsmooth loss, `L2`, local rows, at most 1000 weights",
        lambda f: not f.smooth and f.newton_multi_output and f.risk.dim <= COSTS.newton_max_weights,
        NEWTON,
        "",
    ),
    # L-BFGS is slow on columns of very different sizes
    Rule(
        "several outputs, a smooth loss, `L2`, local rows",
        lambda f: f.smooth and f.newton_multi_output,
        NEWTON,
        "",
    ),
    # Newton steps hardly depend on the sizes of the columns
    Rule(
        "`PairwiseHinge`, at most 2^17 pairs and 2^23 entries of their differences, `L2`",
        lambda f: f.few_pairs and not f.smoothed_hessian,
        SeparableForm(NEWTON),
        "",
    ),
    # a table has as much information as hundreds of cuts
    Rule(
        "`FBeta`, `PrecisionAtK`, `RecallAtK`, `L2`, at most 32768 local rows, 600 of them or of the columns",
        lambda f: f.tables and f.shape[0] <= COSTS.tables_max_fallback_rows,
        ContingencyTables(),
        "",
    ),
    # cutting planes converge for every convex risk
    Rule("a regularizer with a master problem", lambda f: f.master_problem, BUNDLE, ""),
    Rule(
        "a nonsmooth loss of a linear model, a smooth regularizer",
        lambda f: not f.smooth and f.reg.smooth and f.risk.linear_map is not None,
        Smoothing(),
        "",
    ),
)
GROUPS = (
    Group(
        "Unpenalized directions (`Equality`)",
        lambda f: f.reg.free_directions is not None,
        EQUALITY_RULES,
    ),
    Group("A kernel", lambda f: f.kernel, KERNEL_RULES),
    Group(
        "Dense X of torch or CuPy, one score per row, `L2` or `Quadratic`, second derivatives of the loss or "
        "of its smoothed form, at most 2500 rows or features",
        lambda f: f.newton_device,
        DEVICE_RULES,
    ),
    Group("A smooth loss", lambda f: f.smooth, SMOOTH_RULES),
    Group("`ChainMaxMargin`, `L2`, local rows", lambda f: f.chain_ascent, CHAIN_RULES),
    Group(
        "Several outputs, a loss that can be smoothed",
        lambda f: f.multi_output and f.smoothable,
        MULTI_OUTPUT_RULES,
    ),
    Group("A `Structured` model", lambda f: f.risk.caches_outputs, STRUCTURED_RULES),
    Group(
        "A quadratic conjugate (`Hinge`, `Quantile`, ...), `L2` or `Quadratic`",
        lambda f: f.interval_dual,
        INTERVAL_RULES,
    ),
    Group(
        "A non-decomposable loss that can be smoothed, `L2`, no intercept",
        lambda f: f.l2 and f.smoothed_hessian and not f.profiled,
        NONDECOMPOSABLE_RULES,
    ),
    Group("Any other", lambda f: True, OTHER_RULES),
)
"""The groups in order: the first rule that applies in the first group that applies selects the solver."""


def matching_rule(facts: Facts) -> Rule:
    """The rule that selects the solver of a problem."""
    group = next(group for group in GROUPS if group.applies(facts))
    return next(rule for rule in group.rules if rule.applies(facts))


def trial_work(first: Solver, facts: Facts) -> float:
    """The work after which the selected solver is compared with the whole run, in passes over X."""
    if isinstance(first, CoordinateDescent):
        # where the interior-point method would continue, it needs few steps
        if not facts.interior_point or facts.slow_gram:
            return COSTS.sparse_weights_trial_work
        # each of its steps factorizes a matrix of this size
        return max(COSTS.interior_point_trial_work, COSTS.interior_point_trial_factor * min(facts.shape))
    if isinstance(first, DualCoordinateAscent | SeparableForm):
        return COSTS.dual_trial_work
    if facts.interior_point_multi_output and facts.cheap_weight_hessian:
        return COSTS.sparse_weights_trial_work
    if isinstance(first, Lbfgs) and facts.newton_multi_output:
        return COSTS.multi_output_trial_work
    if isinstance(first, Newton):
        return max(COSTS.trial_work, min(COSTS.newton_trial_entries / facts.n_entries, COSTS.dual_trial_work))
    return COSTS.trial_work


@dataclass(frozen=True)
class Auto(Solver):
    """Selects a solver for the problem by a table of rules; the reason is in ``result.solver``.

    Newton's method where there are second derivatives, of the loss or of its smoothed form, and a quadratic
    regularizer; dual ascent where X is sparse or has few rows; quasi-Newton, coordinate or proximal methods
    for other regularizers and smooth losses; a bundle method for everything else. docs/solvers.md lists all
    rules, generated from the table. Where the first solver is too slow, others continue (`Portfolio`).

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
        portfolio, reason = self.portfolio(obj, tol)
        several = len(portfolio.solvers) > 1
        return replace(portfolio, others=tuple) if several else portfolio.solvers[0], reason

    def portfolio(self, obj: Objective, tol: float = 1e-3) -> tuple[Portfolio, str]:
        """The solvers for a relative gap of tol, and the reason for the first."""
        facts, tol = Facts(obj), max(tol, COSTS.min_tol)
        if not facts.separable and (same := SeparableProblem.from_objective(obj)) is not None:
            # the same problem in another form, which has faster solvers
            inner, reason = self.portfolio(same.obj, tol)
            reason = f"{facts.loss_name} is a loss of single rows with an intercept, and {reason}"
            return replace(
                inner,
                solvers=tuple(SeparableForm(solver) for solver in inner.solvers),
                others=lambda: [SeparableForm(solver) for solver in inner.others()],
            ), reason
        rule = matching_rule(facts)
        first = rule.solver.for_tolerance(tol)
        selected = first.solvers if isinstance(first, Portfolio) else (first,)

        def others() -> list[Solver]:
            found = [one.solver.for_tolerance(tol) for one in LATER_RULES if one.applies(facts)]
            return [solver for solver in found if type(solver) not in {type(one) for one in selected}]

        reason = rule.reason.format(loss=facts.loss_name, reg=facts.reg_name)
        # one whose successor's cost is known is compared with that, so the last one is judged
        return Portfolio(selected, tol, trial_work(selected[-1], facts), others), reason

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the selected solver, and of its fallbacks where it is too slow."""
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
