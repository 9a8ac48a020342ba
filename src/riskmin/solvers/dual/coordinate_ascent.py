r"""Dual coordinate ascent: the Gauss-Seidel method of Zhang (2002, Algorithm 1).

Each row has a dual variable :math:`u_i`, a slope of its loss. Together they define the cut
:math:`a = \sum_i c_i u_i x_i,\; b = -\sum_i c_i\, l^*(u_i, y_i)`, and a visit to a row changes its u so that
the bound of that cut increases. This module holds the settings; exact steps, gradient steps and intercepts
have one module each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from riskmin.core import Array, Iterate, Solver, UnsupportedProblem
from riskmin.linear_maps.linear import Standardized
from riskmin.losses import Logistic
from riskmin.problem.objective import Objective
from riskmin.problem.risk import local_rows_of
from riskmin.regularizers import L2


@dataclass(frozen=True)
class DualGaussSeidel(Solver):
    r"""Dual coordinate ascent for sparse data: the method of LIBLINEAR, for more losses, with a certificate.

    With L2 the step of a row is exact: the best :math:`u_i` with all others fixed is

    .. math:: \arg\min_u\; l^*(u, y_i) - u\, x_i^\top w
              + \frac{c_i}{2 \lambda} \|x_i\|^2 (u - u_i)^2,

    in closed form for every loss with a piecewise quadratic conjugate, and by Newton's method for
    `Logistic`. Rows are visited in random order; those that stay at a bound are skipped until the next
    check. The lower bound never decreases, unless `damping` is above 1 with `Logistic`; w oscillates, so that
    the point of a check after many epochs is an average. Other losses with a conjugate, and other
    regularizers, take gradient steps (equation 11); an intercept is the multiplier of a constraint
    (Algorithms 2 and 3).

    A row of `MulticlassHinge` has one multiplier per class, and a step optimizes all of them: the method of
    LIBLINEAR for the Crammer-Singer machine. It needs an `L2` with one weight per feature for all classes;
    intercepts are handled by the proximal point method.

    For remote rows, in other processes or on other machines, each shard makes a few epochs over its rows, and
    the best mixture of the results is taken: CoCoA+. The dual variables stay with the solver, so that shards
    hold no state that could be lost; a round sends them, and w, back and forth once. This is implemented for
    exact steps without an intercept.

    Parameters
    ----------
    step : {"auto", "exact", "gradient"}
        Exact steps need `L2` and a loss as above; ``"auto"`` uses them where they exist.
    rate : float, optional
        Learning rate of gradient steps; Newton's bound by default.
    damping : float
        Fraction of an exact step that is taken, between 0 and 2; above 1 it is overrelaxation.
    shuffle : bool
        Visit the rows in a new random order in each pass, else in the given order.
    shrink : bool
        Skip rows that stay at a bound until the next check.
    seed : int
        Seed of the random orders.
    lagrangian : {3, 2}
        Algorithm of the paper that handles an intercept.
    mu : float
        Penalty parameter of that algorithm, above 0.
    bias_rate : float
        Learning rate of the intercept (equation 31), above 0.
    local_epochs : int
        For remote rows, number of epochs per shard and round.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002. C.-J. Hsieh et al., A dual coordinate descent method for large-scale linear SVM, ICML 2008. C. Ma et
    al., Adding vs. averaging in distributed primal-dual optimization, ICML 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import DualGaussSeidel, Hinge, L2, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
    >>> J = Objective(linear_risk(X, y, Hinge()), L2(), lam=0.01)
    >>> result = minimize(J, DualGaussSeidel(), tol=1e-9)
    >>> result.status, round(result.value, 6)
    ('converged', 0.05)
    """

    step: str = "auto"
    rate: float | None = None
    damping: float = 1.0
    shuffle: bool = True
    shrink: bool = True
    seed: int = 0
    lagrangian: int = 3
    mu: float = 1.0
    bias_rate: float = 0.1
    local_epochs: int = 5

    def __repr__(self) -> str:
        """Show only the settings that differ from their defaults."""
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return f"DualGaussSeidel({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"

    def __post_init__(self) -> None:
        if self.step not in ("auto", "exact", "gradient"):
            raise ValueError(f"step is 'auto', 'exact' or 'gradient', not {self.step!r}")
        if not 0 < self.damping < 2:
            raise ValueError(f"damping must be above 0 and below 2 for the bound to rise, not {self.damping}")
        if self.lagrangian not in (2, 3):
            raise ValueError(f"lagrangian is 2 or 3, an algorithm of the paper, not {self.lagrangian}")
        # `rate` alone may be None, for Newton's bound.
        for name in ("rate", "mu", "bias_rate"):
            value = getattr(self, name)
            if not (value is None and name == "rate") and not 0 < value < math.inf:
                raise ValueError(f"{name} must be a number above 0, not {value}")
        if not (isinstance(self.seed, int) and self.seed >= 0):
            raise ValueError(f"seed must be a whole number >= 0, not {self.seed!r}")
        if not (isinstance(self.local_epochs, int) and self.local_epochs >= 1):
            raise ValueError(f"local_epochs must be a whole number >= 1, not {self.local_epochs!r}")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield a certified point every few epochs."""
        return self._run(obj, w0, None)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        return self._run(obj, state.get("w", np.zeros(obj.risk.dim)), state)

    def warm_start(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start from the dual variables of a run on the same risk: its cut is valid for every lam."""
        # u: one dual variable per row; beta: one multiplier per row and class.
        return self._run(obj, state["w"], None, state["u"] if "u" in state else state["beta"])

    def _run(
        self, obj: Objective, w0: Array, state: dict[str, Array] | None, u0: Array | None = None
    ) -> Iterator[Iterate]:
        # Multi-output: block ascent, with a wrapper for intercepts or for feature weights.
        if obj.risk.multi_output:
            from riskmin.solvers.dual.multiclass import MulticlassAscent, unsupported_reason

            if reason := unsupported_reason(self, obj):
                raise UnsupportedProblem(reason)
            if obj.n_intercepts:
                from riskmin.solvers.dual.proximal_intercepts import ProximalIntercepts

                run: Any = ProximalIntercepts(self, obj)
            elif not obj.reg.penalized_part.unweighted:
                from riskmin.solvers.dual.proximal_intercepts import FeatureWeightedAscent

                run = FeatureWeightedAscent(self, obj)
            else:
                run = MulticlassAscent.create(self, obj)
            return run.start(w0, u0) if state is None else run.resume(state)  # type: ignore[no-any-return]
        # Remote rows: CoCoA+, with exact steps on each shard.
        if _has_remote_rows(obj.risk):
            from riskmin.solvers.dual.cocoa import cocoa_iterates

            return cocoa_iterates(self, obj, w0, u0, state)
        # The state of a run with remote rows: only its dual variables carry over.
        if state is not None and "rounds" in state:
            u0, state = state["u"], None
        shard, loss, intercept = local_rows_of(obj.risk, self)
        if loss.conjugate(shard.y[:1]) is None:
            name = type(loss.chosen).__name__
            raise UnsupportedProblem(f"{name} gives no conjugate, which dual methods need: use Bundle")
        # A profiled intercept becomes a linear constraint of the dual.
        if intercept:
            from riskmin.solvers.reference.augmented_lagrangian import lagrangian_iterates

            return lagrangian_iterates(self, obj, w0, u0, state)
        # Exact steps exist for conjugates that are quadratic on an interval, and for the logistic loss.
        closed = loss.interval_conjugate(shard.y[:1]) is not None or isinstance(loss, Logistic)
        if isinstance(obj.reg, L2) and closed and self.step != "gradient":
            from riskmin.solvers.dual.exact import ExactAscent

            ascent = ExactAscent.for_shard(self, obj, shard, loss)
            return ascent.start(w0, u0) if state is None else ascent.resume(state)
        if self.step == "exact":
            raise UnsupportedProblem(
                "exact steps need L2() and a loss that is piecewise quadratic in its dual, or Logistic(), "
                f"not {loss!r} with {obj.reg!r}: use step='gradient'"
            )
        # All other losses and regularizers: gradient steps with a transfer function.
        from riskmin.solvers.reference.dual_gradient import gradient_iterates

        return gradient_iterates(self, obj, w0, u0, state)


def _has_remote_rows(risk: Any) -> bool:
    """Return whether the risk is a sum over remote rows, in shards that the kernels support."""
    if risk.rows is not None or risk.row_metadata is None or not risk.loss.separable:
        return False
    # Shards store their columns without standardization.
    return not isinstance(risk.linear_map, Standardized) and isinstance(risk.row_metadata.y, np.ndarray)
