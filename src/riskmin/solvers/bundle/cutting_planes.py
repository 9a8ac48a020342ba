r"""The cutting-plane model: a set of cuts, and the master problem whose solution is their best mixture,

.. math:: \max_\alpha\; b^\top \alpha - \lambda\,\Omega^*(-A^\top \alpha / \lambda)
          \quad\text{over the simplex (Theorem 2 of Smola et al., NIPS 2007).}

For :math:`\tfrac12 w^\top K w` this is a quadratic program in the inner products of the cuts; for an L1-type
regularizer a linear program; for any other with a smooth conjugate, a short sequence of quadratic programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace, to_numpy, zeros_for
from riskmin.core import Array, Cut, NDArray
from riskmin.core.deadline import check, check_each
from riskmin.numerics.simplex_qp import simplex_qp
from riskmin.numerics.univariate import Tangent, best_tangent, refine_bracket
from riskmin.problem.objective import Objective
from riskmin.regularizers.base import Regularizer
from riskmin.solvers.base import MAX_CUT_ENTRY, clip_magnitude, loss_of
from riskmin.solvers.bundle.barrier_program import BarrierProgram
from riskmin.solvers.bundle.linear_program import LinearProgram


# ---------------------------------------------------------------- master problems
class MasterProblem(Protocol):
    """Computes the best mixture of the cuts; implementations may cache results for earlier cuts."""

    max_entry: float
    """Largest entry of a cut that it handles."""

    def add(self, A: Array, b: NDArray) -> None:
        """Append the last cut."""
        ...

    def keep(self, rows: NDArray) -> None:
        """Discard all other cuts."""
        ...

    def solve(self, A: Array, b: NDArray, alpha: NDArray) -> tuple[NDArray, Array | None]:
        """Return the multipliers, warm-started at alpha, and the minimizer of the model if it is known."""
        ...


@dataclass
class QuadraticProgram:
    """The dual for w' K w / 2; caches G, the inner products a_s' K^-1 a_t / lam of the cuts."""

    reg: Any
    lam: float
    G: NDArray
    max_entry: float = MAX_CUT_ENTRY

    def add(self, A: Array, b: NDArray) -> None:
        # G_st = a_s' K^-1 a_t / lam, so that the dual is b'x - x' G x / 2.
        row = np.asarray(to_numpy(self.reg.inverse_metric_product(A, A[-1])), dtype=float) / self.lam
        self.G = np.block([[self.G, row[:-1, None]], [row]])

    def keep(self, rows: NDArray) -> None:
        self.G = self.G[np.ix_(rows, rows)]

    def solve(self, A: Array, b: NDArray, alpha: NDArray) -> tuple[NDArray, Array | None]:
        return simplex_qp(self.G, b, alpha), None


@dataclass
class NewtonProgram:
    """The dual for other smooth conjugates: quadratic models, each solved exactly, with a line search.

    The first cut is the floor R >= 0, a finite starting point where the exponentials of the others overflow.
    For small lam the exponentials are nearly steps, on which Newton's method stalls: the solution is then
    approached through a decreasing sequence of larger values of lam.
    """

    reg: Any
    lam: float
    max_entry: float = 1e30

    def add(self, A: Array, b: NDArray) -> None: ...
    def keep(self, rows: NDArray) -> None: ...

    def solve(self, A: Array, b: NDArray, alpha: NDArray) -> tuple[NDArray, Array | None]:
        # Weights of the cuts need not sum to one: the floor R >= 0 has the remaining weight.
        x = np.append(max(0.0, 1 - alpha.sum()), alpha)
        x, solved = self._newton(A, b, x / x.sum(), self.lam)
        if not solved:
            # Start where |A / lam| <= 1, so that exponentials stay small.
            xp = namespace(A)
            lam = max(self.lam, float(xp.max(xp.abs(A))))
            x = np.append(1.0, np.zeros(len(b)))
            while lam > self.lam:
                x, _ = self._newton(A, b, x, lam)
                # Continuation in lam: each solution starts the next.
                lam *= 0.3
            x, _ = self._newton(A, b, x, self.lam)
        return x[1:], None

    def _newton(self, A: Array, b: NDArray, x: NDArray, lam: float) -> tuple[NDArray, bool]:
        """Return the best x on the simplex (entry 0 belongs to the floor), and whether it converged."""
        stalled = 0
        for _ in check_each(range(30)):
            value, gain, u = self._evaluate(A, b, x[1:], lam)
            if not value > -MAX_CUT_ENTRY:
                return np.append(1.0, np.zeros(len(b))), False
            # Optimality on the simplex: no entry of the gradient exceeds its mean under x.
            gain = np.append(0.0, gain)
            if (gain - gain @ x).max() <= 1e-13 * (abs(value) + np.abs(b) @ x[1:]):
                return x, True
            # Quadratic model of the dual: gradient gain, Hessian -G.
            G = np.zeros((len(x), len(x)))
            G[1:, 1:] = np.asarray(to_numpy(self.reg.conjugate_hessian_product(u, A)), dtype=float) / lam
            target = simplex_qp(G, gain + G @ x, x)
            # The dual is concave: gain @ (target - x) bounds its increase on the segment.
            stalled = stalled + 1 if gain @ (target - x) <= 1e-14 * abs(value) else 0
            if stalled > 3:
                return x, True
            t = 1.0 if stalled else self._line_search(A, b, x[1:], (target - x)[1:], lam)
            if t == 0:
                # No better point exists in this precision.
                return x, True
            x = np.maximum(x + t * (target - x), 0.0)
            x /= x.sum()
        return x, False

    def _evaluate(self, A: Array, b: NDArray, x: NDArray, lam: float) -> tuple[float, NDArray, Array]:
        """Return the dual value at x, its gradient, and the argument u of the conjugate."""
        check()
        # D(x) = b'x - lam Omega*(u) with u = -A'x / lam; its gradient is b + A grad Omega*(u).
        u = -1 / lam * (as_array_like(x, A) @ A)
        with np.errstate(over="ignore", invalid="ignore"):
            gain = b + np.asarray(to_numpy(A @ self.reg.conjugate_grad(u)), dtype=float)
            return float(b @ x) - lam * self.reg.conjugate(u), gain, u

    def _line_search(self, A: Array, b: NDArray, x: NDArray, e: NDArray, lam: float) -> float:
        """Return the best step along e, at most 1."""

        def evaluate(t: float) -> Tangent:
            # Negated: the dual is maximized, the search minimizes.
            value, gain, _ = self._evaluate(A, b, x + t * e, lam)
            return Tangent(t, -value, -float(gain @ e))

        lo, t_max = evaluate(0.0), 1.0
        hi = evaluate(t_max)
        while not (hi.value < MAX_CUT_ENTRY and abs(hi.slope) < MAX_CUT_ENTRY) and t_max > 1e-300:
            t_max *= 0.25
            hi = evaluate(t_max)
        if lo.slope >= 0 or hi.slope <= 0:
            return 0.0 if lo.slope >= 0 else t_max
        if t_max == 1 and -lo.slope <= 1e-6 * abs(lo.value) and hi.slope <= -0.5 * lo.slope:
            # Close to the maximum, values are lost in rounding; slopes are still exact.
            return 1.0
        bracket = refine_bracket(
            evaluate, lo, hi, lambda best, bound: best - bound <= 0.01 * max(lo.value - best, 0.0)
        )
        return best_tangent(*bracket).x


def master_problem_for(obj: Objective, dim: int) -> MasterProblem:
    """Return the master problem for the regularizer, which has one."""
    reg: Regularizer = obj.reg
    if reg.quadratic:
        return QuadraticProgram(reg, obj.lam, np.empty((0, 0)))
    if reg.separable and reg.polyhedral:
        return LinearProgram(reg, obj.lam, dim)
    return NewtonProgram(reg, obj.lam)


def master_problem_reason(name: str, obj: Objective) -> str | None:
    """Return why there is no master problem for the regularizer, and an alternative; None if there is."""
    loss, reg = loss_of(obj.risk), obj.reg.penalized_part
    if reg.has_master_problem or reg.conjugate_is_finite(obj.risk.dim - obj.reg.n_unpenalized):
        return None
    if loss is None or loss.smooth:
        alternative = "use ProximalGradient, or "
    else:
        alternative = "use Smoothing(ProximalGradient()), or " if loss.can_be_smoothed else ""
    return (
        f"{name} needs a regularizer with a finite conjugate, or an L1-type one, not {type(reg).__name__}: "
        f"{alternative}add a small multiple of L2 to it"
    )


# ---------------------------------------------------------------- the model
@dataclass
class CuttingPlaneModel:
    """A set of cuts with the multipliers of their best mixture: R(w) >= max_t (A_t @ w + b_t).

    The vectors live on the device of w, the small master problem on the host. Arrays are replaced and never
    written to once a snapshot may refer to them, except beyond `len(b)`.
    """

    master: MasterProblem
    A: Array
    b: NDArray
    alpha: NDArray
    inactive_for: NDArray
    """Number of consecutive mixtures in which each cut had multiplier zero."""
    w: Array | None = None
    """Minimizer of the model, if the master problem provides it."""
    barrier: BarrierProgram | None = None
    """The interior-point form of the master problem, where there is one."""
    by_barrier: bool = False
    """Whether that form is used, since the other one is lost in rounding."""
    points: list[Array | None] = field(default_factory=list)
    """Where each cut was taken; None for cuts that belong to every model, or come from another run."""

    @classmethod
    def empty(cls, obj: Objective, w: Array) -> CuttingPlaneModel:
        """Return a model without cuts, for the dimension and device of w."""
        empty = np.empty(0)
        storage = zeros_for((8, len(w)), w)
        master = master_problem_for(obj, len(w))
        return cls(master, storage, empty, empty, empty, barrier=BarrierProgram.from_objective(obj))

    def initial_point(self, w: Array) -> Array:
        """Return the point at which a run requested to start at w begins."""
        return w

    def add(self, cut: Cut, point: Array | None = None) -> None:
        """Append a cut, and the point at which it was taken."""
        cut, m = clip_magnitude(cut, self.master.max_entry), len(self.b)
        # The storage is doubled when it is full.
        if m == len(self.A):
            xp = namespace(self.A)
            self.A = xp.concat([self.A, xp.zeros_like(self.A)])
        self.A[m] = cut.a
        self.b = np.append(self.b, cut.b)
        # The multipliers have sum one: the first cut gets all the weight, the next ones none yet.
        self.alpha = np.append(self.alpha, 0.0 if m else 1.0)
        self.inactive_for = np.append(self.inactive_for, 0)
        self.points = [*self.points, point]
        self.master.add(self.A[: m + 1], self.b)

    def best_mixture(self, w: Array = None, value: float = math.inf) -> Cut:
        """Solve the master problem and return the mixture with the best bound.

        w is the best point so far, and `value` J there: a small share of the gap is accuracy enough.
        """
        A, b, inactive = self.A[: len(self.b)], self.b, 0.0
        if not self.by_barrier:
            self.alpha, self.w = self.master.solve(A, b, self.alpha)
            self.by_barrier = value < math.inf and self._is_inaccurate(value)
        if self.by_barrier and self.barrier is not None:
            self.alpha, self.w = self.barrier.solve(A, b, w, value)
            inactive = self.barrier.INACTIVE_SHARE * float(np.max(self.alpha))
        self.inactive_for = np.where(self.alpha > inactive, 0, self.inactive_for + 1)
        return self.mixture()

    def _is_inaccurate(self, value: float) -> bool:
        """Whether rounding leaves a gap of the master problem that matters to the gap of the run."""
        if self.barrier is None:
            return False
        w = (
            self.w
            if self.w is not None
            else self.barrier.reg.conjugate_grad(-1 / self.barrier.lam * self.mixture().a)
        )
        return self.barrier.is_inaccurate(self.A[: len(self.b)], self.b, self.alpha, w, value)

    def mixture(self) -> Cut:
        """Return the cuts mixed by their multipliers."""
        used = np.flatnonzero(self.alpha)
        A = self.A[: len(self.b)]
        # Products with the active cuts only, unless most are active.
        if len(used) * 2 <= len(self.b):
            return Cut(as_array_like(self.alpha[used], A) @ A[used], float(self.alpha @ self.b))
        return Cut(as_array_like(self.alpha, A) @ A, float(self.alpha @ self.b))

    def minimizer(self, obj: Objective, best: Cut) -> Array:
        """Return the minimizer of the model, given its best mixture."""
        return obj.argmin(best) if self.w is None else self.w

    def contains(self, cut: Cut, w: Array, best: Cut, value: float) -> bool:
        """Return whether a cut is no higher at the minimizer w than the model with its best mixture."""
        return float((cut.a - best.a) @ w) + cut.b - best.b <= 1e-15 * value

    def prune(self, max_inactive: int) -> None:
        """Drop cuts with multiplier zero for `max_inactive` mixtures, if they are more than 1/16 of all."""
        keep = np.flatnonzero(self.inactive_for < max_inactive)
        # Copying the remaining cuts pays only if enough are dropped.
        if len(self.b) - len(keep) > len(self.b) // 16:
            xp = namespace(self.A)
            storage = zeros_for((len(self.A) - len(keep), self.A.shape[1]), self.A)
            self.A = xp.concat([self.A[keep], storage])
            self.master.keep(keep)
            self.b, self.alpha, self.inactive_for = self.b[keep], self.alpha[keep], self.inactive_for[keep]
            self.points = [self.points[k] for k in keep]

    def state(self) -> dict[str, Array]:
        """Return the arrays of a saved state; `stacked` adds those of the points."""
        arrays = {"A": self.A[: len(self.b)], "b": self.b, "alpha": self.alpha, "idle": self.inactive_for}
        if isinstance(self.master, QuadraticProgram):
            arrays["G"] = self.master.G
        return arrays if self.w is None else arrays | {"model": self.w}

    def stacked(self, saved: dict[str, Array]) -> Callable[[], dict[str, Array]]:
        """Return a function that adds the points of the cuts to a state, if they are known."""
        points = self.points

        def state() -> dict[str, Array]:
            first = next((k for k, point in enumerate(points) if point is not None), len(points))
            known = [point for point in points[first:] if point is not None]
            if len(known) < max(1, len(points) - first):
                return saved
            return saved | {"points": namespace(known[0]).stack(known)}

        return state

    def restore(self, s: dict[str, Array], cut_at: Callable[[Array], Cut]) -> None:
        """Take the cuts at the points of a saved state; the model has those that belong to every model."""
        for point in s["points"]:
            self.add(cut_at(point), point)
        if len(s["alpha"]) != len(self.b):
            raise ValueError(f"its array alpha has {len(s['alpha'])} multipliers of {len(self.b)} cuts")
        # a mixture of cuts and of R >= 0 is a cut: its multipliers are nonnegative, with a sum of at most one
        alpha = np.maximum(s["alpha"], 0.0)
        total = float(alpha.sum())
        self.alpha = alpha / max(total, 1.0) if 0 < total < math.inf else np.full(len(alpha), 1 / len(alpha))
        self.inactive_for, self.w = s["idle"], s.get("model")
        self.by_barrier = isinstance(self.master, QuadraticProgram) and self.w is not None

    @classmethod
    def from_state(cls, obj: Objective, s: dict[str, Array]) -> CuttingPlaneModel:
        """Return the model with the cuts of a state of this process."""
        program = master_problem_for(obj, s["A"].shape[1])
        if isinstance(program, QuadraticProgram):
            program.G = s["G"]
        else:
            for m in range(len(s["b"])):
                program.add(s["A"][: m + 1], s["b"][: m + 1])
        model = cls(program, s["A"], s["b"], s["alpha"], s["idle"], s.get("model"))
        model.points = [None] * len(model.b)
        model.barrier = BarrierProgram.from_objective(obj)
        # Only the interior-point form of a quadratic program provides the minimizer.
        model.by_barrier = isinstance(program, QuadraticProgram) and model.w is not None
        return model

    @classmethod
    def from_previous_run(cls, obj: Objective, s: dict[str, Array], before: Objective) -> CuttingPlaneModel:
        """Return the cuts of a run on the same risk, for another lam or regularizer."""
        A, alpha = s["A"], s["alpha"]
        arrays: dict[str, Array] = {"A": A, "b": s["b"], "alpha": alpha, "idle": s["idle"]}
        if obj.reg.quadratic:
            # G is proportional to 1 / lam.
            if "G" in s and obj.reg is before.reg:
                arrays["G"] = s["G"] * (before.lam / obj.lam)
            else:
                arrays["G"] = (
                    np.stack([np.asarray(to_numpy(obj.reg.inverse_metric_product(A, a)), float) for a in A])
                    / obj.lam
                )
            # A linear program may put all weight on R >= 0; the quadratic one has no such cut.
            if not alpha.sum() > 0:
                arrays["alpha"] = np.full(len(alpha), 1 / len(alpha))
        return cls.from_state(obj, arrays)
