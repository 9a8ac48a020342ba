r"""Dual block ascent: the loop that runs with one multiplier per row, or with one per class, share.

The multipliers :math:`u_i` of the rows define the cut :math:`a = \sum_i c_i x_i u_i^\top,\;
b = -\sum_i c_i\, l^*(u_i)` and the weights :math:`w = \nabla\Omega^*(-a / \lambda)`. In order:

1. `start` takes the slopes of the loss at w0, scaled to the best bound, or given multipliers;
2. `_sweep` visits the active rows in random order; an exact step maximizes the bound over the multipliers of
   one row, and w follows; rows that stay at a bound are skipped;
3. `_check`, when the visits since the last one suffice or the slopes have fallen, is one pass over X, as
   expensive as an oracle call: the scores give J(w), the multipliers the cut, and both together the rows to
   skip until the next check. It yields an iterate; the run ends once no visit moves a multiplier.

An unpenalized intercept b is found by the proximal point method: with :math:`\tfrac\rho2 (b - b_0)^2` around
a center :math:`b_0`, it is the weight of one more column, :math:`b = b_0 - \tfrac1\rho \sum_i c_i u_i`, and
the center follows b.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from riskmin._numba import lazy_module
from riskmin.core import Array, Iterate, NDArray, Shard
from riskmin.problem.objective import Objective
from riskmin.solvers.state_checks import SavedAttributes

sweep_kernels = lazy_module("dual.sweep")
"""Return the module of sweeps, which names the slots of their results."""


class BlockAscent(SavedAttributes, ABC):
    """A run: the loop, and when to check."""

    CHECK_AT_SLOPE_RATIO = 0.1
    """Check also once the range of slopes has fallen to this fraction of that at the last check."""
    MAX_PRODUCTS_BETWEEN_CHECKS = 3e8
    """Maximum number of products with entries of X between two checks: about one second."""
    CHECK_SPACING_SHARE: float
    """Visits between two checks, as a share of all visits before, at least one epoch."""

    solver: Any
    obj: Objective
    shard: Shard
    rows: NDArray
    """Rows that can move: not empty, and of positive weight."""
    active: int
    """Number of active rows."""
    sweep_stats: NDArray
    """Extreme slopes, visits and moves of the last sweep; the slots are named in `_numba.dual.sweep`."""
    visits: float = 0.0
    """Visits to rows so far."""

    @abstractmethod
    def _first(self, w0: Array, u0: Array | None) -> Iterate:
        """Set the multipliers, from u0 or w0; return w0 with its cut."""

    @abstractmethod
    def _sweep(self) -> None:
        """Visit the active rows once."""

    @abstractmethod
    def _check(self) -> Iterate:
        """Evaluate J and the cut; select the active rows."""

    @abstractmethod
    def _products(self) -> float:
        """Return the number of products of a sweep over all rows."""

    def sizes(self) -> dict[str, int]:
        """Return the dimensions of a state: n rows, k classes, and the length d of w."""
        k = self.obj.risk.linear_map.columns
        return {"n": self.shard.X.shape[0], "k": k, "d": self.obj.risk.dim}

    def start(self, w0: Array, u0: Array | None = None) -> Iterator[Iterate]:
        """Yield iterates from w0, and from given multipliers."""
        yield self._first(w0, u0)
        yield from self.iterates()

    def iterates(self) -> Iterator[Iterate]:
        """Yield an iterate per check until no visit moves a multiplier."""
        while True:
            self._sweeps()
            yield self._check()
            if not self.sweep_stats[sweep_kernels().N_MOVES]:
                return

    def _sweeps(self) -> None:
        """Make epochs over the active rows until a check is due."""
        k, stats, n = sweep_kernels(), self.sweep_stats, len(self.rows)
        # at most four epochs, or about a second of them where that is more
        most = max(4.0, self.MAX_PRODUCTS_BETWEEN_CHECKS / max(1.0, self._products())) * n
        budget = min(max(n, self.CHECK_SPACING_SHARE * self.visits), most)
        target = self.CHECK_AT_SLOPE_RATIO * (stats[k.MAX_SLOPE] - stats[k.MIN_SLOPE])
        stats[k.N_VISITS] = stats[k.N_MOVES] = 0
        while self.active:
            self._sweep()
            if stats[k.N_VISITS] >= budget or stats[k.MAX_SLOPE] - stats[k.MIN_SLOPE] <= target:
                break
        self.visits += stats[k.N_VISITS]

    def _iterate(self, w: NDArray, value: float, cut: Any) -> Iterate:
        """Return the point as an iterate, with the state to resume from."""
        info = {"epochs": self.visits / max(1, len(self.rows)), "active": float(self.active)}
        state = self.state()
        return Iterate(w, value, cut, info, lambda: state)
