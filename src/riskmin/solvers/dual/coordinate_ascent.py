r"""Dual coordinate ascent with exact steps: LIBLINEAR's method, for more losses.

Each row has a dual variable :math:`u_i`, a slope of its loss. Together they define the cut
:math:`a = \sum_i c_i u_i x_i,\; b = -\sum_i c_i\, l^*(u_i, y_i)`, and a visit to a row changes its u so that
the bound of that cut increases. This module holds the settings; local rows, remote rows and several classes
have one module each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.core import Array, Iterate, Solver
from riskmin.core.messages import check_whole
from riskmin.core.registry import repr_of_changes
from riskmin.linear_maps.linear import Standardized
from riskmin.problem.objective import Objective
from riskmin.solvers.base import local_rows_of, local_rows_reason
from riskmin.solvers.dual.ascent import BlockAscent
from riskmin.solvers.dual.cocoa import cocoa_iterates
from riskmin.solvers.dual.exact import ExactAscent, exact_steps_reason
from riskmin.solvers.dual.multiclass import MulticlassAscent, multiclass_reason


@dataclass(frozen=True, repr=False)
class DualCoordinateAscent(Solver):
    r"""Dual coordinate ascent for sparse data: the method of LIBLINEAR, for more losses, with a certificate.

    For `L2`. The step of a row is exact: the best :math:`u_i` with all others fixed is

    .. math:: \arg\min_u\; l^*(u, y_i) - u\, x_i^\top w
              + \frac{c_i}{2 \lambda} \|x_i\|^2 (u - u_i)^2,

    in closed form for every loss with a piecewise quadratic conjugate, and by Newton's method for
    `Logistic`. Rows are visited in random order; those that stay at a bound are skipped until the next
    check. The lower bound never decreases, unless there is an intercept, or `damping` is above 1 with
    `Logistic`. `DualGaussSeidel` is the method for other losses and regularizers.

    An intercept has no penalty: a proximal term :math:`\tfrac\rho2 (b - b_0)^2` takes its place, whose center
    follows b after each epoch.

    A row of `MulticlassHinge` has one multiplier per class, and a step optimizes all of them: the method of
    LIBLINEAR for the Crammer-Singer machine. It needs an `L2` with one weight per feature for all classes;
    intercepts are handled by the proximal point method.

    For remote rows, in other processes or on other machines, each shard makes a few epochs over its rows, and
    the best mixture of the results is taken: CoCoA+. The dual variables stay with the solver, so that shards
    hold no state that could be lost; a round sends them, and w, back and forth once.

    Parameters
    ----------
    damping : float
        Fraction of a step that is taken, between 0 and 2; above 1 it is overrelaxation.
    shuffle : bool
        Visit the rows in a new random order in each pass, else in the given order.
    shrink : bool
        Skip rows that stay at a bound until the next check.
    seed : int
        Seed of the random orders.
    local_epochs : int
        For remote rows, number of epochs per shard and round.

    References
    ----------
    C.-J. Hsieh et al., A dual coordinate descent method for large-scale linear SVM, ICML 2008. C. Ma et
    al., Adding vs. averaging in distributed primal-dual optimization, ICML 2015. T. Zhang, On the dual
    formulation of regularized linear systems with convex risks, Machine Learning 46, 2002.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import DualCoordinateAscent, Hinge, L2, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
    >>> J = Objective(linear_risk(X, y, Hinge()), L2(), lam=0.01)
    >>> result = minimize(J, DualCoordinateAscent(), tol=1e-9)
    >>> result.status, round(result.value, 6)
    ('converged', 0.05)
    """

    damping: float = 1.0
    shuffle: bool = True
    shrink: bool = True
    seed: int = 0
    local_epochs: int = 5

    __repr__ = repr_of_changes

    def __post_init__(self) -> None:
        if not 0 < self.damping < 2:
            raise ValueError(f"damping must be above 0 and below 2 for the bound to rise, not {self.damping}")
        check_whole(self, "seed", 0)
        check_whole(self, "local_epochs")

    def supports(self, obj: Objective) -> str | None:
        """None for `L2` with a loss that has exact steps; for remote rows, without an intercept."""
        if obj.risk.multi_output:
            return multiclass_reason(obj)
        remote = _has_remote_rows(obj.risk)
        if not remote and (reason := local_rows_reason(self, obj)):
            return reason
        rows = "for remote rows, " if remote else ""
        if reason := exact_steps_reason(rows, obj):
            return reason
        if remote and obj.risk.intercept.profiled:
            return f"{rows}DualCoordinateAscent has no intercept with one score per row: use Auto or Bundle"
        return None

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield a certified point every few epochs."""
        return self._run(obj, w0, None)

    def verifies_states(self, obj: Objective) -> bool:
        """True for one score per row on local rows: cuts are those of the dual variables."""
        return obj.risk.rows is not None and not obj.risk.multi_output

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
        self.check_supports(obj)
        run: BlockAscent
        if obj.risk.multi_output:
            run = MulticlassAscent.create(self, obj)
        elif _has_remote_rows(obj.risk):
            return cocoa_iterates(self, obj, w0, u0, state)
        else:
            # The state of a run with remote rows: only its dual variables carry over.
            if state is not None and "rounds" in state:
                u0, state = state["u"], None
            shard, loss, _ = local_rows_of(obj.risk, self)
            run = ExactAscent.for_shard(self, obj, shard, loss)
        if state is None:
            return run.start(w0, u0)
        sizes = run.sizes()
        run.restore(state, {"active_rows": sizes["n"], "rng": 2**64}, **sizes)
        return run.iterates()


def _has_remote_rows(risk: Any) -> bool:
    """Return whether the risk is a sum over remote rows, in shards that the kernels support."""
    if risk.rows is not None or risk.row_metadata is None or not risk.loss.separable:
        return False
    # Shards store their columns without standardization.
    return not isinstance(risk.linear_map, Standardized) and isinstance(risk.row_metadata.y, np.ndarray)
