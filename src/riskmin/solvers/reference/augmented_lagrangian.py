r"""Dual ascent under linear constraints: Algorithms 2 and 3 of Zhang (2002), an augmented Lagrangian method.

An unpenalized intercept adds the dual constraint :math:`\sum_i c_i u_i = 0`, and unpenalized directions C
add :math:`C v = 0`. With P the scores of the unpenalized directions (a column of ones for the intercept),
both are :math:`g = -\tfrac1\lambda P^\top (c \circ u) = 0`, and the rows are visited as without
constraints, but at the scores

.. math:: x_i^\top w + P_i^\top (s + \rho\, g), \qquad \rho = \lambda n / \mu,

after which the multipliers s (the bias) move by a multiple of :math:`\rho\, g`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.core import Array, Cut, Iterate, NDArray
from riskmin.core.deadline import check_each
from riskmin.problem.certificate import balanced
from riskmin.solvers.base import BestOnSegments
from riskmin.solvers.reference.dual_gradient import GradientAscent, GradientSteps
from riskmin.solvers.reference.transfer import RowConjugate
from riskmin.solvers.state_checks import check_state


@dataclass
class Multipliers:
    """Multipliers s of the constraints, and the rules by which they move."""

    BALANCED_RHO_RATIO = 0.2
    """The rho at which constraints and data have equal weight, relative to the mean of x' H x: measured."""
    MAX_RHO_RATIO = 1.0
    """Multiple of that mean above which Algorithm 2 no longer raises rho: single rows could not move."""

    s: NDArray
    rho: float
    """Penalty parameter of the augmented Lagrangian."""
    rate: NDArray
    """Step size of each multiplier, relative to rho times its violation."""
    violation: NDArray
    """Constraint violation after the last pass."""
    last_violation: float = math.inf
    """Algorithm 2: largest violation when s or rho last changed."""

    def algorithm_3(self, violation: NDArray, mean_curvature: float | None) -> None:
        """Move s by a part of rho times the violation after each pass.

        With adaptive steps (`mean_curvature` given), the part grows while a constraint stays violated on the
        same side, and rho moves to where constraints and data have equal weight.
        """
        if mean_curvature is not None:
            # A sign change shows that the last step overshot: halve the rate, else raise it by 30 %.
            same_side = np.sign(violation) == np.sign(self.violation)
            self.rate = np.where(
                same_side, np.minimum(1.3 * self.rate, 1.0), np.maximum(0.5 * self.rate, 0.1)
            )
            # rho moves towards its target by at most a factor of 2 per pass.
            self.rho *= (
                min(max(self.BALANCED_RHO_RATIO * mean_curvature / self.rho, 0.5), 2.0)
                if mean_curvature > 0
                else 1.0
            )
        self.s = self.s + self.rate * self.rho * violation
        self.violation = violation

    def algorithm_2(self, violation: NDArray, mean_curvature: float | None) -> None:
        """Move s by rho times the violation, or raise rho, once the rows have nearly converged."""
        # The rows have nearly converged for these s and rho if the violation changes by less than 10 %.
        converged = np.abs(violation - self.violation).max() <= 0.1 * np.abs(violation).max()
        self.violation = violation
        if not converged:
            return
        size = float(np.abs(violation).max())
        # Raise rho if the violation fell by less than half since the last change, else update s.
        if size > 0.5 * self.last_violation and (
            mean_curvature is None or self.rho < self.MAX_RHO_RATIO * mean_curvature
        ):
            self.rho *= 4
        else:
            self.s = self.s + self.rho * violation
        self.last_violation = size

    def state(self) -> dict[str, Any]:
        """Return the fields under their keys in a saved state."""
        return {
            "s": self.s,
            "rho": self.rho,
            "rate": self.rate,
            "gap": self.violation,
            "falls": self.last_violation,
        }


@dataclass(frozen=True, repr=False)
class AugmentedLagrangian(GradientSteps):
    r"""Algorithms 2 and 3 of Zhang (2002): dual ascent with an intercept, or unpenalized directions.

    An unpenalized intercept is the multiplier of the dual constraint :math:`\sum_i c_i u_i = 0`, and the
    unpenalized directions of an `Equality` add more of them. Passes over the rows as by `DualGaussSeidel`
    alternate with updates of the multipliers. The trace has the paper's `feasibility`, `modified_gap` and
    `bias`. With a `rate` or a `damping`, all steps are those of the paper, and mu and the rate of the bias
    stay constant; otherwise both are adapted.

    Parameters
    ----------
    rate, damping, shuffle, seed
        As in `DualGaussSeidel`.
    algorithm : {3, 2}
        The algorithm of the paper: 3 updates the multipliers after each pass, 2 once the rows have nearly
        converged.
    mu : float
        Penalty parameter, above 0.
    bias_rate : float
        Learning rate of the multipliers (equation 31), above 0.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import AugmentedLagrangian, Hinge, L2, Objective, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
    >>> J = Objective(linear_risk(X, y, Hinge(), fit_intercept=True), L2(), lam=0.01)
    >>> minimize(J, AugmentedLagrangian(), tol=1e-3).status
    'converged'
    """

    algorithm: int = 3
    mu: float = 1.0
    bias_rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm not in (2, 3):
            raise ValueError(f"algorithm is 2 or 3, that of the paper, not {self.algorithm}")
        for name in ("mu", "bias_rate"):
            if not 0 < (value := vars(self)[name]) < math.inf:
                raise ValueError(f"{name} must be a number above 0, not {value}")

    def _constraints_reason(self, constrained: bool) -> str | None:
        if constrained:
            return None
        return "AugmentedLagrangian is for an intercept or unpenalized directions: use DualGaussSeidel"

    def _iterates(self, run: GradientAscent, w0: Array, saved: dict[str, Array]) -> Iterator[Iterate]:
        return _run_constrained(run, _multipliers(run, w0, saved), BestOnSegments(run.obj, saved.get("w")))


def _run_constrained(run: GradientAscent, m: Multipliers, best: BestOnSegments) -> Iterator[Iterate]:
    """Yield one iterate per pass over the rows; update the multipliers after each."""
    n_directions, cut = len(run.C), Cut(np.zeros(run.C.shape[1]), 0.0)
    while True:
        before, s = run.u, m.s
        # A rate that is too large diverges to infinity, which ends the run.
        with np.errstate(all="ignore"):
            v, violation = run.sweep(m.s, m.rho)
            w = run.reg.conjugate_grad(v)
        if not (np.isfinite(run.u).all() and np.isfinite(w).all()):
            return
        mean_curvature = run.mean_curvature(v) if run.adaptive_steps else None
        (m.algorithm_2 if run.solver.algorithm == 2 else m.algorithm_3)(violation, mean_curvature)
        info = {
            "feasibility": run.obj.lam * float(np.abs(violation).max()),
            "modified_gap": _modified_gap(run, w, m.s),
            "bias": float(m.s[-1]) if run.P.shape[1] > n_directions else 0.0,
        }
        # The cut needs dual variables that satisfy the constraints; without any, the last cut remains.
        u = feasible(run.u, run.shard.c, run.P, run.conjugate)
        if u is not None:
            cut = run.cut(u, 1 + float(np.abs(run.P @ m.s).max()))
        # w = grad Omega*(v) plus the component in the unpenalized directions, whose coefficients are s.
        w = w + m.s[:n_directions] @ run.C
        w, value = best.towards(w) if run.adaptive_steps else (w, run.obj.value(w))
        yield Iterate(w, value, cut, info, run.snapshot(w=w, **m.state()))
        # A fixed point of the pass and of the multipliers: no further progress in this precision.
        if np.array_equal(run.u, before) and np.array_equal(m.s, s):
            return


def _multipliers(run: GradientAscent, w0: Array, saved: dict[str, Array]) -> Multipliers:
    """Return the multipliers of a saved state, or new ones."""
    k = run.P.shape[1]
    s, rho = np.zeros(k), run.obj.lam * len(run.u) / run.solver.mu
    if "s" in saved:
        names = "s", "rate", "gap"
        check_state(saved, dict.fromkeys(names, "k") | {"rho": "1", "falls": "1"}, k=k)
        rho, falls = float(saved["rho"][0]), float(saved["falls"][0])
        return Multipliers(np.array(saved["s"]), rho, saved["rate"], saved["gap"], falls)
    if run.adaptive_steps and k > len(run.C):
        s[-1] = run.initial_intercept(w0)
    return Multipliers(s, rho, np.full(k, float(run.solver.bias_rate)), np.zeros(k))


def _modified_gap(run: GradientAscent, w: NDArray, s: NDArray) -> float:
    """Return the duality gap with the bias fixed at s (section 6.3), a sum of Fenchel-Young gaps."""
    y, c = run.shard.y, run.shard.c
    z = run.scores(w) + run.P @ s
    value, _ = run.loss.value_grad(z, y, c)
    # sum_i c_i (l(z_i) + l*(u_i) - u_i z_i), each term nonnegative by the Fenchel-Young inequality.
    conjugate = np.where(c > 0, run.loss.conjugate(y).value(run.u), 0.0)
    return float(value) + float(c @ (conjugate - run.u * z))


def feasible(u: NDArray, c: NDArray, P: NDArray, conjugate: RowConjugate) -> NDArray | None:
    """Return dual variables near u with P'(c u) = 0 up to rounding; None if none are found.

    Variables inside their domains absorb the violation, each in proportion to its distance to the bounds:
    for them the dual is flat at the optimum. For a single constraint of ones, the larger side is then scaled
    down to remove the remainder, since 0 is in every domain.
    """
    W = c[:, None] * P
    tol = 1e-15 * (np.abs(W).T @ np.abs(u))
    for _ in check_each(range(30)):
        excess = u @ W
        if np.all(np.abs(excess) <= tol):
            return u
        # Distance to the nearer bound, at most 1, since domains may be unbounded.
        slack = np.minimum(np.minimum(u - conjugate.lower, conjugate.upper - u), 1.0)
        # Weighted least squares: the shift of u along P, weighted by the slack, that removes the excess.
        t = np.linalg.lstsq((W * slack[:, None]).T @ P, excess, rcond=1e-12)[0]
        # At most 90 % of the distance, so that u stays inside its domain.
        u = u - slack * np.clip(P @ t, -0.9, 0.9)
    if P.shape[1] > 1 or np.ptp(P) > 0:
        return None
    # one constraint, sum_i c_i u_i = 0 up to a factor
    return np.asarray(balanced(u, c))
