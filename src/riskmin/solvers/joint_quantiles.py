r"""Quantiles that do not cross, by quadratic programs with the guards that matter.

Without guards the program is that of independent quantiles, a relaxation. Its bound is valid, and higher
planes are raised where they cross, so that each step has a feasible point and a proved gap. Points where the
planes of the relaxation cross become guards, until the gap is small: few points of the hull are ever needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from riskmin.core import Array, Cut, Iterate, NDArray, Solver
from riskmin.losses.conjugate import IntervalConjugate
from riskmin.problem.joint_quantiles import JointQuantileRisk
from riskmin.problem.objective import Objective
from riskmin.regularizers import L2
from riskmin.solvers.row_program import Constraints, RowProgram

sp: Any = scipy.sparse


@dataclass(frozen=True)
class QuantileProgram(Solver):
    """An interior-point method for `JointQuantileRisk` with `L2`."""

    CROSSING_SHARE = 0.5
    """Guards are added once crossings, and not the relaxation, have at least this share of the gap."""
    SMALL_GAP = 1e-4
    """And the relaxation is minimized to this relative gap."""

    def supports(self, obj: Objective) -> str | None:
        """None for quantiles together, with `L2`."""
        if not isinstance(obj.risk, JointQuantileRisk) or obj.reg.penalized_part != L2():
            return "QuantileProgram is for quantiles that do not cross, with L2(): use Auto"
        return None

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield points without crossings, with the best cut so far."""
        self.check_supports(obj)
        planes = _Planes(obj)
        W, b = planes.risk.split(np.asarray(w0, dtype=np.float64))
        best = planes.point(W, planes.risk.guards.repaired(W, b))
        cut, lower = Cut(np.zeros(obj.risk.dim), 0.0), 0.0
        yield Iterate(*best, cut)
        while True:
            program, t = planes.program(best[1]), 1.0
            while t:
                t = program.step()
                W, b = planes.weights(program.theta)
                relaxed = planes.point(W, b)[1]
                point = planes.point(W, planes.risk.guards.repaired(W, b))
                best = min(best, point, key=lambda known: known[1])
                found = program.cut(best[1])
                if program.bound(found) > lower:
                    cut, lower = planes.cut(found), program.bound(found)
                yield Iterate(*best, cut, {"mu": program.mu, "guards": float(planes.n_guards)})
                gap = best[1] - lower
                crossing = point[1] - relaxed > self.CROSSING_SHARE * gap
                if crossing and relaxed - lower <= self.SMALL_GAP * relaxed:
                    break
            if not planes.add_guards(W, b):
                return  # the rest of the gap is rounding


class _Planes:
    """The program in standardized columns, whose variables are weights and intercept of one plane each."""

    def __init__(self, obj: Objective) -> None:
        self.obj, risk = obj, obj.risk
        assert isinstance(risk, JointQuantileRisk)
        self.risk, self.k = risk, risk.k
        self.shift = risk.c @ risk.X
        scale = np.abs(risk.X - self.shift).max(axis=0, initial=0.0)
        constant = scale <= len(risk.X) * np.finfo(float).eps * np.abs(risk.X).max(axis=0, initial=0.0)
        self.scale, self.constant = np.where(constant, 1.0, scale), constant
        levels = np.repeat(risk.losses.levels, len(risk.y))
        labels = np.tile(risk.y, self.k)
        self.dual = IntervalConjugate(-levels, 1 - levels, labels)
        self.slopes = (labels <= 0) - levels
        self.Z = sp.kron(sp.eye_array(self.k), self._standardized(risk.X), format="csr")
        square = np.append(obj.lam / self.scale**2, 0.0)
        self.square = np.tile(square, self.k)
        self.guards: list[tuple[int, NDArray]] = []

    @property
    def n_guards(self) -> int:
        """The number of constraints."""
        return len(self.guards)

    def _standardized(self, X: NDArray) -> NDArray:
        columns = np.where(self.constant, 0.0, (X - self.shift) / self.scale)
        return np.column_stack([columns, np.ones(len(X))])

    def program(self, value: float) -> RowProgram:
        """Return the program with the guards found so far."""
        q = len(self.square) // self.k
        G = np.zeros((len(self.guards), self.k, q))
        for i, (k, x) in enumerate(self.guards):
            row = self._standardized(x[None])[0]
            G[i, k], G[i, k + 1] = -row, row
        constraints = Constraints(
            sp.csr_array(G.reshape(len(G), self.k * q)), np.zeros(len(G)), np.full(len(G), np.inf)
        )
        c = np.tile(self.risk.c, self.k)
        return RowProgram(self.Z, c, self.dual, self.square, constraints, self.slopes, value)

    def weights(self, theta: NDArray) -> tuple[NDArray, NDArray]:
        """Return weights (p, k) and intercepts in the units of X."""
        planes = theta.reshape(self.k, -1).T
        W = planes[:-1] / self.scale[:, None]
        return W, planes[-1] - self.shift @ W

    def cut(self, cut: Cut) -> Cut:
        """Return a cut in the units of X, in the order of w."""
        slopes = cut.a.reshape(self.k, -1).T[:-1] * self.scale[:, None]
        return Cut(np.append(slopes.ravel(), np.zeros(self.k)), cut.b)

    def point(self, W: NDArray, b: NDArray) -> tuple[NDArray, float]:
        """Return w and J there."""
        w = self.risk.joined(W, b)
        return w, self.obj.value(w)

    def add_guards(self, W: NDArray, b: NDArray) -> bool:
        """Add the points at which planes cross; return whether there are any new ones."""
        known = {(k, x.tobytes()) for k, x in self.guards}
        more = [
            (k, x)
            for k, (crossed, where) in enumerate(self.risk.guards.violations(W, b))
            for size, x in zip(crossed, where, strict=True)
            if size > 0 and (k, x.tobytes()) not in known
        ]
        self.guards += more
        return bool(more)
