r"""Dual coordinate ascent: the Gauss-Seidel method of Zhang (2002, Algorithm 1).

Each row has a dual variable :math:`u_i`, a slope of its loss. Together they make the cut
:math:`a = \sum_i c_i u_i x_i,\; b = -\sum_i c_i\, l^*(u_i, y_i)`, and a visit to a row moves its u to where
the bound of that cut is larger. Here are the settings; exact steps, gradient steps and the intercept have a
module each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from riskmin.losses import Logistic
from riskmin.losses.pieces import dual_of
from riskmin.losses.queries import named
from riskmin.objective import Objective
from riskmin.regularizers import L2, penalized
from riskmin.risk import Risk, rows_of
from riskmin.scorers import Standardized
from riskmin.types import Array, Balances, HasConjugate, Iterate, Unsuited


@dataclass(frozen=True)
class DualGaussSeidel:
    r"""Dual coordinate ascent, for sparse data: what LIBLINEAR does, for more losses, and certified.

    With L2 the step of a row is exact: the best :math:`u_i`, all others fixed, is

    .. math:: \arg\min_u\; l^*(u, y_i) - u\, x_i^\top w
              + \frac{c_i}{2 \lambda} \|x_i\|^2 (u - u_i)^2,

    in closed form for every loss with a piecewise quadratic conjugate, and by Newton's method for
    `Logistic`. Rows are visited in random order; those that stay at a bound are left out until the next
    check. The bound never falls, unless `damping` is above 1 with `Logistic`; w goes to and fro, so that the
    point of a check after many epochs is a mean. Other losses that know their conjugate, and other
    regularizers, take gradient steps (equation 11); an intercept is the multiplier of a constraint
    (Algorithms 2 and 3).

    A row of `MulticlassHinge` has a multiplier a class, and a step moves them all to their best: what
    LIBLINEAR does for Crammer and Singer's machine. It needs `L2`, of which all scores of a feature have the
    same weight; intercepts are held near a centre, which moves.

    Where the rows are elsewhere, in other processes or on other machines, each shard visits its own for a few
    epochs, and what all of them find is mixed so that it bounds best: CoCoA+. The dual variables are here, so
    that no shard has anything to lose; a round sends them, and w, to and fro once. That is for exact steps
    without an intercept.

    Parameters
    ----------
    step : {"auto", "exact", "gradient"}
        Exact steps need `L2` and a loss as above; ``"auto"`` takes them where they exist.
    rate : float, optional
        The learning rate of gradient steps; Newton's bound by default.
    damping : float
        Which part of an exact step is taken, between 0 and 2; above 1 it is overrelaxation.
    shuffle : bool
        Visit the rows in a new random order each time, or else in the order given.
    shrink : bool
        Leave out, until the next check, rows that are held at a bound.
    seed : int
        The seed of the random orders.
    lagrangian : {3, 2}
        Which algorithm of the paper handles an intercept.
    mu : float
        Its penalty parameter, above 0.
    bias_rate : float
        The learning rate of the intercept (equation 31), above 0.
    local_epochs : int
        Where rows are elsewhere, how often each shard visits its own in a round.

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
        """What is not as usual: of ten settings, it is mostly none."""
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return f"DualGaussSeidel({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"

    def __post_init__(self) -> None:
        if self.step not in ("auto", "exact", "gradient"):
            raise ValueError(f"step is 'auto', 'exact' or 'gradient', not {self.step!r}")
        if not 0 < self.damping < 2:
            raise ValueError(f"damping must be above 0 and below 2 for the bound to rise, not {self.damping}")
        if self.lagrangian not in (2, 3):
            raise ValueError(f"lagrangian is 2 or 3, an algorithm of the paper, not {self.lagrangian}")
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
        """Go on from a saved state."""
        return self._run(obj, state.get("w", np.zeros(obj.risk.dim)), state)

    def warm(self, obj: Objective, state: dict[str, Array], before: Objective) -> Iterator[Iterate]:
        """Start with the dual variables of a run on the same risk: its cut holds for every lam."""
        return self._run(obj, state["w"], None, state["u"] if "u" in state else state["beta"])

    def _run(
        self, obj: Objective, w0: Array, state: dict[str, Array] | None, u0: Array | None = None
    ) -> Iterator[Iterate]:
        if getattr(obj.risk, "many", False):
            from riskmin.solvers.dual_multiclass import BlockAscent, unsuited

            if reason := unsuited(self, obj):
                raise Unsuited(reason)
            if isinstance(obj.risk, Balances):
                from riskmin.solvers.dual_intercepts import Centres

                run: Any = Centres(self, obj)
            elif not penalized(obj.reg).plain:
                from riskmin.solvers.dual_intercepts import Weighted

                run = Weighted(self, obj)
            else:
                run = BlockAscent.of(self, obj)
            return run.started(w0, u0) if state is None else run.restored(state)  # type: ignore[no-any-return]
        if _elsewhere(obj.risk):
            from riskmin.solvers.dual_local import local_iterates

            return local_iterates(self, obj, w0, u0, state)
        if state is not None and "rounds" in state:  # of a run where the rows were elsewhere
            u0, state = state["u"], None
        shard, loss, intercept = rows_of(obj.risk, self)
        if dual_of(loss, shard.y[:1]) is None and not isinstance(loss, HasConjugate):
            name = type(named(loss)).__name__
            raise Unsuited(f"{name} gives no conjugate, which dual methods need: use Bundle")
        if intercept:
            from riskmin.solvers.lagrangian import lagrangian_iterates

            return lagrangian_iterates(self, obj, w0, u0, state)
        closed = dual_of(loss, shard.y[:1]) is not None or isinstance(loss, Logistic)
        if isinstance(obj.reg, L2) and closed and self.step != "gradient":
            from riskmin.solvers.dual_exact import ExactAscent

            ascent = ExactAscent.on(self, obj, shard, loss)
            return ascent.started(w0, u0) if state is None else ascent.restored(state)
        if self.step == "exact":
            raise Unsuited(
                "exact steps need L2() and a loss that is piecewise quadratic in its dual, or Logistic(), "
                f"not {loss!r} with {obj.reg!r}: use step='gradient'"
            )
        from riskmin.solvers.dual_gradient import gradient_iterates

        return gradient_iterates(self, obj, w0, u0, state)


def _elsewhere(risk: Any) -> bool:
    """Whether it is a sum over rows that are elsewhere, in shards that kernels can take."""
    inner = getattr(risk, "risk", risk)  # that of a profiled intercept
    known = isinstance(inner, Risk) and inner.loss.separable and inner.rows is None
    known = known and not isinstance(inner.scorer, Standardized)  # shards have their columns as they are
    return known and inner.table is not None and isinstance(inner.table.y, np.ndarray)
