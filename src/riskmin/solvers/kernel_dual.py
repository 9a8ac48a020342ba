r"""Dual Gauss-Seidel with Mercer kernels (Zhang 2002, equation 15), a block of rows at a time.

.. math:: \min_\gamma\; D(\gamma) = \tfrac1{2\lambda} \gamma^\top K \gamma + \sum_i c_i\, l^*(\gamma_i / c_i),
          \qquad f = -\tfrac1\lambda \sum_i \gamma_i\, k(x_i, \cdot),

under :math:`\sum_i \gamma_i = 0` if there is an intercept. The rows that gain most are taken together, their
part of K into cache, and solved there by exact steps; then the scores of all rows are brought up to date.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from riskmin.deadline import pieces
from riskmin.intercept import Profiled, without_intercept
from riskmin.losses.pieces import dual_of
from riskmin.mercer import Gram
from riskmin.objective import Objective
from riskmin.risk import Risk
from riskmin.rkhs import ROOT, Rkhs, coefficients, pair
from riskmin.scalar import ROUNDING
from riskmin.solvers.bundle import check_count
from riskmin.solvers.kernel_terms import Exact, Newton, Terms, has_conjugate
from riskmin.solvers.states import check_places, checked
from riskmin.types import Array, Cut, Iterate, NDArray, Unsuited

SHARE = 0.1
"""A block is solved until its largest violation has fallen to this share."""
STEP = 4
"""Elementary operations of a step, a row of the block."""
SMALL = 256
"""The size of the first block; small ones are cheap where few steps solve them."""


@cache
def _kernels() -> Any:
    from riskmin.kernels import mercer  # Numba is imported by the first block, not with the package

    return mercer


@dataclass
class Point:
    """A dual point: gamma, its scores z = -K gamma / lam, the last block, and how large the next may be."""

    gamma: NDArray
    z: NDArray
    rows: NDArray
    size: int


@dataclass(frozen=True)
class KernelDual:
    r"""Dual Gauss-Seidel for kernels: exact steps on blocks of rows, for every loss with a conjugate.

    For losses whose conjugate is quadratic on an interval the steps are exact; for the others, such as
    `Logistic`, they are guarded Newton steps. With an intercept, rows are changed in pairs, so that the
    constraint it brings always holds. Rows of K are computed when a block needs them, and kept in the
    cache that `kernel_risk` was given.

    Parameters
    ----------
    block : int
        The most rows that are solved together: fewer are, where few steps solve them.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002. R.-E. Fan, P.-H. Chen, C.-J. Lin, Working set selection using second order information for training
    support vector machines, JMLR 6, 2005.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import KernelDual, Objective, Rbf, kernel_risk, minimize
    >>> X, y = np.array([[-1.0], [0.0], [1.0]]), np.array([-1.0, 1.0, -1.0])
    >>> J = Objective(*kernel_risk(X, y, "hinge", Rbf(gamma=1.0), fit_intercept=True), lam=0.01)
    >>> minimize(J, KernelDual(), tol=1e-6).status
    'converged'
    """

    block: int = 1024

    def __post_init__(self) -> None:
        check_count(self, "block")

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the functions of the dual points."""
        run = _Run.of(self, obj)
        return run.steps(run.start(-obj.lam * coefficients(w0)))

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Go on from a saved state."""
        run = _Run.of(self, obj)
        n, below = run.gram.shape[0], {"rows": run.gram.shape[0], "size": 2**62}
        checked(state, {"gamma": "n", "rows": "m", "size": "1"}, below, n=n)
        check_places(state["rows"], n)
        steps = run.steps(run.point(state["gamma"], state["rows"].astype(np.intp), int(state["size"][0])))
        next(steps)  # the iterate that was saved
        return steps


@dataclass
class _Run:
    """A problem, as the dual sees it."""

    obj: Objective
    gram: Gram
    model: Exact | Newton
    paired: bool
    block: int

    @classmethod
    def of(cls, solver: KernelDual, obj: Objective) -> _Run:
        risk = without_intercept(obj.risk)
        if not isinstance(risk, Risk) or not isinstance(risk.scorer, Rkhs):
            raise Unsuited("KernelDual minimizes a kernel_risk: use Auto for other risks")
        (shard,) = risk.executor.shards  # type: ignore[attr-defined] # that of kernel_risk
        dual = dual_of(risk.loss, shard.y)
        if not has_conjugate(risk.loss):
            raise Unsuited(f"{type(risk.loss).__name__} gives no conjugate, as KernelDual needs: use Bundle")
        model = Newton(risk.loss, shard.y, shard.c) if dual is None else Exact(dual, shard.c)
        block = min(solver.block, shard.X.shape[0])
        return cls(obj, shard.X, model, isinstance(obj.risk, Profiled), block)

    # ------------------------------------------------------------ points
    def point(self, gamma: NDArray, rows: NDArray | None = None, size: int = SMALL) -> Point:
        z = self.gram.product(gamma) / -self.obj.lam
        return Point(gamma, z, np.empty(0, dtype=np.intp) if rows is None else rows, min(size, self.block))

    def start(self, gamma: NDArray) -> Point:
        """The point, if it is in the domain; else zero, or a gradient where zero is no place to start."""
        t = self.model.at(gamma)
        inside = bool(((gamma >= t.lower) & (gamma <= t.upper)).all() and np.isfinite(t.shift).all())
        balanced = not self.paired or abs(gamma.sum()) <= ROUNDING * abs(gamma).sum()
        if inside and balanced:
            return self.point(gamma)
        if isinstance(self.model, Exact):
            return self.point(np.zeros_like(gamma))
        # the gradient at zero, shrunk to where it proves most: whole, it may belong to enormous scores
        _, _, cut = self.obj(np.zeros(2 * len(gamma)))
        slope = self.obj.reg.scale(cut, self.obj.lam) * ROOT * cut.a
        none = np.empty(0, dtype=np.intp)
        return Point(slope[: len(gamma)], slope[len(gamma) :] / -self.obj.lam, none, min(SMALL, self.block))

    def iterate(self, p: Point, info: dict[str, float]) -> Iterate:
        """What the dual point proves, and the function it stands for."""
        lam, saved = self.obj.lam, {"gamma": p.gamma, "rows": p.rows, "size": np.array([p.size])}
        total, size = self.model.value(p.gamma)
        cut = Cut(pair(p.gamma, -lam * p.z), -total - ROUNDING * size)
        w = pair(p.z, p.gamma / -lam)
        risk, _ = self.obj.cursor(w).risk.along(0.0)
        return Iterate(w, risk + lam * self.obj.reg.value(w), cut, info, saved.copy)

    # ------------------------------------------------------------ steps
    def steps(self, p: Point) -> Iterator[Iterate]:
        """Blocks for ever; a look at both bounds costs as much as some blocks, so there are some between."""
        taken = blocks = 0
        while True:
            yield self.iterate(p, {"blocks": blocks, "steps": taken, "rows": self.gram.computed})
            for _ in range(max(1, self.gram.shape[0] // (8 * p.size))):
                done = self.solve(p)
                if not done:
                    yield self.iterate(p, {"blocks": blocks, "steps": taken, "rows": self.gram.computed})
                    return
                taken, blocks = taken + done, blocks + 1

    def solve(self, p: Point) -> int:
        """Choose a block and solve it; the number of steps, 0 where none is left."""
        t = self.model.at(p.gamma)
        rows = self.choose(p, t)
        if not len(rows):
            return 0
        lam = self.obj.lam
        H = self.gram.block(rows) / lam
        diagonal, room = H.diagonal().copy(), np.empty((3 if self.paired else 4, len(rows)))
        old, scores, done = p.gamma[rows], p.z[rows], 0
        gamma, g = old.copy(), t.shift[rows] - scores
        step = _kernels().pair_steps if self.paired else _kernels().single_steps
        for k in range(self.model.rounds):
            if k:
                t = self.model.at(_put(p.gamma, rows, gamma))
                g = t.shift[rows] - scores
            part, before, new = t.of(rows), g.copy(), gamma.copy()
            args = H, diagonal, g, new, part.lower, part.upper, part.kink, part.bend, SHARE
            taken = _taken(step, args, room, 50 * self.block)
            way, change = new - gamma, g - before
            share = self.model.along(rows, gamma, way, -float(scores @ way), float(way @ change))
            if not taken or not share:
                break
            done += taken
            gamma = new if share == 1.0 else gamma + share * way
            scores = scores - share * change
        if self.paired:
            gamma = self.balanced(p, rows, gamma, t)
        moved = np.flatnonzero(gamma != old)
        if not len(moved):
            return 0
        self.gram.add_rows(rows[moved], (gamma - old)[moved] / -lam, p.z)
        p.gamma, p.rows = _put(p.gamma, rows, gamma), rows
        p.size = min(max(8 * done, SMALL // 2), self.block)
        return done

    def balanced(self, p: Point, rows: NDArray, gamma: NDArray, t: Terms) -> NDArray:
        """The block's values with the sum of all rows at zero again: rounding errors of many steps add up."""
        excess = math.fsum(_put(p.gamma, rows, gamma))
        room = np.minimum(gamma - t.lower[rows], t.upper[rows] - gamma)
        room = np.where(
            t.kink[rows] > 0, np.minimum(room, abs(gamma)), room
        )  # nobody leaves its kink for that
        k = int(np.argmax(room))
        return _put(gamma, np.array([k]), gamma[k] - excess) if room[k] > abs(excess) else gamma

    def choose(self, p: Point, t: Terms) -> NDArray:
        """The rows whose steps gain most, and half of the last block as far as it is between its bounds."""
        slope = t.shift + t.bend * p.gamma - p.z
        up = slope + np.where(p.gamma >= 0, t.kink, -t.kink)
        down = slope + np.where(p.gamma > 0, t.kink, -t.kink)
        can_rise, can_fall = p.gamma < t.upper, p.gamma > t.lower
        middle = 0.0
        if self.paired:
            least = np.min(up, initial=np.inf, where=can_rise)
            most = np.max(down, initial=-np.inf, where=can_fall)
            if not most > least:
                return np.empty(0, dtype=np.intp)
            middle = 0.5 * (least + most)
        bend = self.gram.diagonal / self.obj.lam + t.bend + 1e-300
        rise = np.where(can_rise, np.maximum(middle - up, 0.0), 0.0) ** 2 / bend
        fall = np.where(can_fall, np.maximum(down - middle, 0.0), 0.0) ** 2 / bend
        kept = p.rows[(can_rise & can_fall)[p.rows]][: p.size // 2]
        room = p.size - len(kept)
        if self.paired:
            both = [_largest(rise, room // 2), _largest(fall, room - room // 2)]
            return np.unique(np.concatenate([*both, kept]))
        return np.unique(np.concatenate([_largest(np.maximum(rise, fall), room), kept]))


def _taken(step: Any, args: tuple[Any, ...], room: NDArray, most: int) -> int:
    """The steps of a kernel, at most so many, with looks at the clock in between; how many there were."""
    goals, done = np.zeros(1), 0
    for i, j in pieces(0, most, STEP * most * len(args[0])):
        done = step(*args, i, j, goals, *room)
        if done < j:
            break
    return int(done)


def _largest(gain: NDArray, count: int) -> NDArray:
    """The rows of the largest gains, if they are gains."""
    rows = np.flatnonzero(gain > 0)
    if len(rows) <= count:
        return rows
    found: NDArray = rows[np.argpartition(gain[rows], len(rows) - count)[len(rows) - count :]]
    return found


def _put(gamma: NDArray, rows: NDArray, values: NDArray) -> NDArray:
    """Gamma with other values in these rows."""
    new = gamma.copy()
    new[rows] = values
    return new
