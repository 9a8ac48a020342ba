r"""Dual ascent with gradient steps: Algorithm 1 of Zhang (2002) with any transfer function.

The step (11) is the same whatever the regularizer,

.. math:: u_i \leftarrow u_i - \eta_i \tfrac{\lambda}{c_i} \bigl(\nabla l^*(u_i, y_i) - x_i^\top w\bigr),
          \qquad w = \nabla\Omega^*(v), \quad v = -\tfrac1\lambda \sum_i c_i u_i x_i,

within the domain of :math:`l^*`. The rate :math:`\eta_i` is given, or that of Newton's method on a parabola
that bounds the regularizer's conjugate along :math:`x_i`, so that the dual improves at every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.deadline import pieces
from riskmin.intercept import Profiled
from riskmin.losses.pieces import conjugate_of
from riskmin.objective import Objective
from riskmin.regularizers import Equality
from riskmin.risk import rows_of
from riskmin.scalar import ROUNDING, Tangent, lowest, shrink
from riskmin.solvers.dual_plain import Plain
from riskmin.solvers.states import checked
from riskmin.solvers.transfer import (
    LINEAR,
    Conjugate,
    check_transfer,
    conjugate_for,
    row_arrays,
    transfer_for,
)
from riskmin.types import Array, Cut, Iterate, NDArray, Shard

VISIT, CURVED = 32, 128
"""Elementary operations of a visit to a row, for each of its numbers; where these take powers, and tries."""
SAMPLE = 256
"""So many rows tell how large rows are."""


def _kernels() -> Any:
    from riskmin.kernels import dual_gradient  # Numba is imported by the first pass, not with the package

    return dual_gradient


@dataclass
class Ascent:
    """A run: the dual variables u, and what a pass over the rows needs."""

    solver: Any
    obj: Objective
    shard: Shard
    loss: Any
    conjugate: Conjugate
    reg: Any
    X: tuple[NDArray, NDArray, NDArray, int]
    C: NDArray
    P: NDArray
    u: NDArray
    plain: Plain | None
    epoch: int = 0
    _pulled: tuple[NDArray, NDArray] | None = None
    """The last dual variables that were pulled back, and what came of it: passes over X are dear."""

    @classmethod
    def begin(cls, solver: Any, obj: Objective, w0: Array, state: dict[str, Array] | None) -> Ascent:
        """At the dual variables of a state, or at those that w0 suggests."""
        shard, loss, intercept = rows_of(obj.risk, solver)
        reg = obj.reg.reg if isinstance(obj.reg, Equality) else obj.reg
        check_transfer(type(solver).__name__, reg)
        conjugate = conjugate_for(solver, loss, shard.y)
        n, p = shard.X.shape
        C = obj.reg.C if isinstance(obj.reg, Equality) else np.zeros((0, p))
        P = np.ones((n, len(C) + intercept))  # the last column is the intercept's
        P[:, : len(C)] = np.transpose([_scores(shard, row) for row in C]) if len(C) else 0.0
        X = row_arrays(shard.X)
        known = conjugate.kernel is not None and transfer_for(reg, p) is not None
        plain = None if known else Plain(X, reg, loss, conjugate, shard.y, np.zeros(n))
        self = cls(solver, obj, shard, loss, conjugate, reg, X, C, P, conjugate.start, plain)
        if state is not None:
            shapes = {"u": "n", "w?": "d", "epoch?": "1"}
            checked(state, shapes, {"epoch": 2**62}, n=n, d=obj.risk.dim)
            self.u, self.epoch = np.array(state["u"], dtype=float), int(state.get("epoch", [0])[0])
        elif self.free_pace and not len(C):
            self.u = self._slopes(w0, self.first_bias(w0))
        return self

    @property
    def free_pace(self) -> bool:
        """Whether steps are chosen here; with a rate or damping given, they are those of the paper."""
        return self.solver.rate is None and self.solver.damping == 1

    def first_bias(self, w0: Array) -> float:
        """The best intercept of w0; 0 where there is none."""
        return float(self.obj.risk.intercept(w0)) if isinstance(self.obj.risk, Profiled) else 0.0

    def _slopes(self, w0: Array, b: float) -> NDArray:
        """The slopes at w0, shrunk as far as they bound best: 0 is in every domain."""
        y, c = self.shard.y, self.shard.c
        _, slopes = self.loss.value_grad(_scores(self.shard, w0) + b, y, np.ones(len(y)))
        u = np.clip(slopes, self.conjugate.lower, self.conjugate.upper)
        s = self.obj.reg.scale(self.cut(u), self.obj.lam)
        return np.where(c > 0, s * u, self.conjugate.start)

    def scores(self, w: Array) -> NDArray:
        """X @ w."""
        return _scores(self.shard, w)

    def v(self) -> NDArray:
        """The argument of the transfer function."""
        return np.asarray(-1 / self.obj.lam * self._pull(self.u))

    def _pull(self, u: NDArray) -> NDArray:
        """sum_i c_i u_i x_i."""
        if self._pulled is None or self._pulled[0] is not u:
            out = np.zeros(self.shard.X.shape[1])
            self.shard.X.pullback(self.shard.c * u, 0, len(u), out)
            self._pulled = u, out
        return self._pulled[1]

    def gap(self) -> NDArray:
        """By how much the linear constraints are violated."""
        return np.asarray(-1 / self.obj.lam * ((self.shard.c * self.u) @ self.P))

    def sweep(self, s: NDArray, rho: float) -> tuple[NDArray, NDArray]:
        """One pass over the rows; v and the gap of the constraints after it, computed anew."""
        solver, n = self.solver, len(self.u)
        # by the number of the pass: a run that was saved goes on in the same order
        rng = np.random.default_rng([solver.seed, self.epoch])
        order = rng.permutation(n) if solver.shuffle else np.arange(n)
        weights, pace = self.shard.c / self.obj.lam, (float(solver.rate or 0.0), float(solver.damping))
        u, v, tie = self.u.copy(), self.v(), (self.P, s, self.gap(), rho)
        if self.plain is not None:
            self.plain.ascend(order, weights, u, pace, v, tie)
        else:
            reg, state = self._kernel_state(v)
            what = self.X, self.conjugate.kernel, reg, state, tie
            each = VISIT if reg[0] == LINEAR else CURVED
            for i, j in pieces(0, n, each * (n + len(self.X[2]))):
                _kernels().ascend(order[i:j], weights, u, pace, *what, i == 0)
        self.u, self.epoch = u, self.epoch + 1
        return self.v(), self.gap()

    def _kernel_state(self, v: NDArray) -> tuple[Any, Any]:
        """The transfer function, and where the kernel keeps its state."""
        longest = int(np.diff(self.X[0].astype(np.int64)).max(initial=0))
        return transfer_for(self.reg, len(v)), (v, np.zeros(len(v)), np.zeros(4), np.zeros(longest))

    def bend(self, v: NDArray) -> float:
        """How fast the scores of some rows change with v along them, on average."""
        rows = np.flatnonzero(self.shard.c > 0)[:SAMPLE]
        if self.plain is not None:
            return float(np.mean(self.plain.kappa[rows] * self.obj.lam / self.shard.c[rows]))
        return float(_kernels().mean_bend(rows, self.X, *self._kernel_state(v)))

    def cut(self, u: NDArray, size: float = 0.0) -> Cut:
        """The minorant of the risk that dual variables are, for scores of that size beside."""
        c = self.shard.c
        conjugate = np.where(c > 0, conjugate_of(self.loss, u, self.shard.y), 0.0)
        rounding = ROUNDING * float(c @ (np.abs(conjugate) + size * np.abs(u)))
        return Cut(self._pull(u), -float(c @ conjugate) - rounding)

    def snapshot(self, **more: Any) -> Callable[[], dict[str, Array]]:
        """All that is needed to go on from here."""
        u, epoch = self.u, self.epoch
        return lambda: {"u": u, "epoch": np.array([epoch])} | {k: np.atleast_1d(a) for k, a in more.items()}


class Best:
    """The best point so far: the least of J on the way from it to each new one."""

    def __init__(self, obj: Objective, w: Array | None) -> None:
        self.obj = obj
        self.at = None if w is None else obj.cursor(w)

    def towards(self, w: NDArray) -> tuple[NDArray, float]:
        """The best point between the last one and w, and J there."""
        if self.at is None:
            self.at = self.obj.cursor(w)
            return w, self.at()[0]
        at = self.at
        self.obj.count.calls += 1
        at.aim(w - at.w)
        lo, hi = (Tangent(t, *at.along(t)) for t in (0.0, 1.0))
        if lo.slope < 0 < hi.slope:
            here = lo.value

            def enough(best: float, low: float) -> bool:
                return best - low <= 1e-3 * (here - best) + 1e-15 * abs(best)

            lo, hi = shrink(lambda t: Tangent(t, *at.along(t)), lo, hi, enough)
        found = lowest(lo, hi)
        if found.x > 0:
            at.move(found.x)
        return at.w, found.value


def _scores(shard: Shard, w: Array) -> NDArray:
    return np.asarray(shard.X.scores(np.asarray(w, dtype=float), 0, shard.X.shape[0]))


def gradient_iterates(
    solver: Any, obj: Objective, w0: Array, u0: Array | None, state: dict[str, Array] | None = None
) -> Iterator[Iterate]:
    """Yield an iterate a pass over the rows, each by the step (11).

    Parameters
    ----------
    solver : DualGaussSeidel
        With ``rate`` (None for the Newton bound), ``damping``, ``shuffle`` and ``seed``.
    obj : Objective
        With a loss that has a conjugate and a regularizer that has a transfer function.
    w0 : array
        Where slopes are taken to start from, where the rate is not given.
    u0 : array, optional
        Dual variables to start from.
    state : dict, optional
        That of an iterate, to go on from.
    """
    if state is None and u0 is not None:
        state = {"u": u0}
    run = Ascent.begin(solver, obj, w0, state)
    if run.P.shape[1]:
        from riskmin.solvers.lagrangian import tied_iterates

        return tied_iterates(run, w0, state)
    return _free_iterates(run, None if state is None else state.get("w"))


def _free_iterates(run: Ascent, w: Array | None) -> Iterator[Iterate]:
    """The iterates of a run without constraints, from the best point so far, if there is one."""
    none, best = np.zeros(0), Best(run.obj, w)
    while True:
        before = run.u
        with np.errstate(all="ignore"):  # a rate that is too large ends in infinities, and so the run
            v, _ = run.sweep(none, 0.0)
            w = run.reg.conjugate_grad(v)
        if not (np.isfinite(run.u).all() and np.isfinite(w).all()):
            return
        w, value = best.towards(w) if run.free_pace else (w, run.obj.value(w))
        change = float(np.abs(run.u - before).max(initial=0.0))
        yield Iterate(w, value, run.cut(run.u), {"change": change}, run.snapshot(w=w))
        if change == 0.0:
            return
