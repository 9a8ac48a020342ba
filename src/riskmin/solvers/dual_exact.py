r"""Dual coordinate ascent by exact steps, for L2.

A sweep visits rows; a check, every few sweeps, is a pass over X as an oracle call: the scores give J(w), the
dual variables the cut, and the two together which rows can be left out until the next check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from riskmin.objective import Objective
from riskmin.scalar import ROUNDING
from riskmin.solvers.dual_rows import SweptRows, checks, generator, kernels, numbers, scale_of
from riskmin.solvers.states import check_places, checked
from riskmin.types import Array, Cut, Iterate, NDArray, Shard

SPACING = 0.3
"""Between two checks, visits are this part of all before, and an epoch at least: a check costs about one."""
CALM = 0.1
"""A check is due, too, when the slopes have shrunk to this part of those at the last one."""
MOST_WORK = 3e8
"""But no more numbers of X than this are read between two checks: about a second."""
MEAN = 4
"""The w of a check is a mean, of so many or more in the second half of the sweeps before it.

The dual variables are at their best long before w is, which goes to and fro around its own.
"""


@dataclass
class ExactAscent(SweptRows):
    """A run by exact steps on all rows, and the w that belongs to their dual variables."""

    solver: Any
    obj: Objective
    w: NDArray
    visits: float = 0.0

    @classmethod
    def on(cls, solver: Any, obj: Objective, shard: Shard, loss: Any) -> Self:
        """The run on these rows."""
        scale = scale_of(obj.reg, shard.X.shape[1])
        swept = SweptRows.of(shard, loss, scale, obj.lam, generator(solver.seed))
        return cls(**vars(swept), solver=solver, obj=obj, w=np.zeros(shard.X.shape[1]))

    def started(self, w0: Array, u0: Array | None = None) -> Iterator[Iterate]:
        """From those dual variables; or the slopes of the loss at w0, as they are shrunk to bound best."""
        if u0 is not None:
            self.put(u0)
        value, _, u, cut = self._pass(np.array(w0, dtype=float), u0 is None)
        s = self.obj.reg.scale(cut, self.obj.lam) if u0 is None else 1.0
        if u0 is None:
            u[self.rows] *= s  # the best slopes of empty rows are those at zero
            self.put(u)
        self.w = self.obj.argmin(Cut(s * cut.a, 0.0))
        yield self._iterate(w0, value, u, cut)
        yield from self._go()

    def restored(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """From a saved state."""
        n, many = len(self.records), {"order": len(self.records), "rng": 2**64}
        shapes = {"u": "n", "w": "d", "order": "m", "rng": "1", "next": "d", "out": "2", "visits": "1"}
        shapes |= {} if self.dual is not None else {"shift": "n"}
        checked(state, shapes, many, n=n, d=len(self.w))
        check_places(state["order"], len(self.order))
        k = kernels()
        self.records[:, k.U] = state["u"]
        if self.dual is None:
            self.records[:, k.SHIFT] = state["shift"]
        self.active = len(state["order"])
        self.order[: self.active] = state["order"]
        self.rng, self.w = state["rng"].copy(), state["next"].copy()
        self.out[:2] = state["out"]
        self.visits = float(state["visits"][0])
        return self._go()

    def _go(self) -> Iterator[Iterate]:
        k, moved = kernels(), True
        while moved:
            self._sweeps()
            moved = self.out[k.MOVES] > 0
            w = self.w
            value, z, u, cut = self._pass(w)
            self.w = self.obj.argmin(cut)  # anew, so that rounding does not add up
            if self.dual is not None and self.solver.shrink:
                terms = self.dual.epsilon, self.dual.square
                self.active = checks().select(
                    self.records.ravel(), z, self.rows, self.order, *terms, self.out
                )
            yield self._iterate(w, value, u, cut)

    def _sweeps(self) -> None:
        """Epochs over the active rows, until a check is due."""
        k, n, size = kernels(), len(self.rows), numbers(self.X)
        most = max(4.0, MOST_WORK / max(1, size)) * n
        budget = min(max(n, SPACING * self.visits), most)
        calm = CALM * (self.out[k.HIGH] - self.out[k.LOW])
        self.out[k.VISITS] = self.out[k.MOVES] = 0
        half, since, mean, terms = 0.5 * budget, 0.0, np.zeros(len(self.w)), 0
        length = size / max(1, len(self.records))
        while self.active:
            before = self.active
            self.sweep(self.w, self.solver)
            since += before * length
            if self.out[k.VISITS] >= half and since >= 4 * len(mean):
                mean += self.w
                terms += 1
                since = 0.0
            if self.out[k.VISITS] >= budget or self.out[k.HIGH] - self.out[k.LOW] <= calm:
                break
        self.visits += self.out[k.VISITS]
        if terms >= MEAN:
            self.w = mean / terms

    def _pass(self, w: NDArray, fresh: bool = False) -> tuple[float, NDArray, NDArray, Cut]:
        """R(w), the scores, the dual variables and their cut."""
        self.obj.count.calls += 1
        risk, offset, size, z, u, a = self.look(w, fresh)
        # less what rounding may add: by the sizes of its terms
        return risk, z, u, Cut(a, offset - ROUNDING * size)

    def _iterate(self, w: NDArray, risk: float, u: NDArray, cut: Cut) -> Iterate:
        state = {
            "u": u,
            "w": w,
            "next": self.w.copy(),
            "order": self.order[: self.active].copy(),
            "rng": self.rng.copy(),
            "out": self.out[:2].copy(),
            "visits": np.array([self.visits]),
        }
        if self.dual is None:
            state["shift"] = self.records[:, kernels().SHIFT].copy()
        info = {"epochs": self.visits / max(1, len(self.rows)), "active": float(self.active)}
        return Iterate(w, risk + self.obj.lam * self.obj.reg.value(w), cut, info, lambda: state)
