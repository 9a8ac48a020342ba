r"""Dual coordinate ascent where the rows are elsewhere: each shard sweeps its own, and the sum counts.

The method is CoCoA+ (Ma, Smith, Jaggi, Jordan, Richtarik and Takac, 2015). A round sends w and the dual
variables of its rows to each shard. Shard k, which knows nothing of the others' steps, raises

.. math:: \sum_{i \in k} -c_i\, l^*(u_i + d_i, y_i) + w^\top a_k - \frac{\sigma}{2 \lambda} \|a_k\|^2,
          \qquad a_k = \sum_{i \in k} c_i d_i x_i:

the sweeps of one machine around w, with :math:`\lambda / \sigma` in the place of lam. For any sigma up to the
number K of shards, going sigma / K of the way that all of them found together raises the bound by that part
of what they gained, since :math:`\|\sum_k a_k\|^2 \le K \sum_k \|a_k\|^2`. Here the way has a cut at its end,
and the next dual variables are the best mixture of that cut and a few others: so the bound never falls, and
sigma can be what the last round would have needed, :math:`\|\sum_k a_k\|^2 / \sum_k \|a_k\|^2`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from riskmin.executors.local import add
from riskmin.losses import Logistic
from riskmin.losses.pieces import dual_of
from riskmin.objective import Objective
from riskmin.regularizers import L2
from riskmin.risk import Risk
from riskmin.scalar import ROUNDING
from riskmin.solvers.dual_rows import SweptRows, generator, kernels, scale_of
from riskmin.solvers.passes import length
from riskmin.solvers.qp import simplex_qp
from riskmin.solvers.states import checked
from riskmin.types import Array, Cut, Iterate, NDArray, Shard, Unsuited

MOST_CUTS = 12
"""So many cuts are mixed, with their dual variables, one a row each."""
MOST_NUMBERS = 2**27
"""Fewer, where these would be more numbers than this: a gigabyte."""
PART = 0.5
"""J is looked at this part of the way from the best point to the w of the bound, which goes to and fro.

Chosen, not tuned: a smaller part or more cuts may save some rounds, and half as many cuts take more.
"""


def local_iterates(
    solver: Any, obj: Objective, w0: Array, u0: Array | None, state: dict[str, Array] | None
) -> Iterator[Iterate]:
    """A run on the shards of a risk; from a saved state, if there is one."""
    risk: Any = obj.risk
    if not isinstance(risk, Risk):
        raise Unsuited("where rows are elsewhere, DualGaussSeidel has no intercept: use Auto or Bundle")
    closed = isinstance(risk.loss, Logistic) or dual_of(risk.loss, risk.labels[0][:1]) is not None
    if solver.step == "gradient" or not closed or not isinstance(obj.reg, L2):
        raise Unsuited(
            "where rows are elsewhere, DualGaussSeidel takes exact steps, which need L2() and a loss that is "
            f"piecewise quadratic in its dual, or Logistic(), not {risk.loss!r} with {obj.reg!r}: use Auto "
            "or Bundle"
        )
    run = LocalAscent.on(solver, obj)
    if state is None:
        return run.started(w0, u0)
    # what was saved where the rows were here has dual variables too
    return run.restored(state) if "rounds" in state else run.started(w0, state["u"])


# ---------------------------------------------------------------- at a shard
class Task(NamedTuple):
    """What a round is to all shards."""

    loss: Any
    scale: NDArray
    lam: float
    """Lam / sigma."""
    epochs: int
    damping: float
    shrink: bool
    shuffle: bool


class Sums(NamedTuple):
    """What all shards found together, or a part of it."""

    risk: float
    """R(v)."""
    grad: NDArray
    """A gradient there."""
    terms: float
    """The size of what its cut is made of, by which rounding is bounded."""
    slope: NDArray
    offset: float
    """The cut of the dual variables."""
    size: float
    """Of its terms, by which rounding is bounded."""
    bend: float
    """The squares of what the slopes changed by, in the norm of the regularizer's conjugate."""
    visits: float


def local_epochs(
    shard: Shard, task: Task, w: NDArray, v: NDArray, own: tuple[NDArray, tuple[int, ...]]
) -> tuple[NDArray, NDArray, Sums]:
    """Sweep the rows around w, from their own dual variables and in an order of their own; look at v.

    The dual variables, the slopes of the loss at v, and sums. Nothing is kept but what is made of X alone.
    """
    (u, seeds), (y, c) = own, shard[1:3]
    swept = SweptRows.of(shard, task.loss, task.scale, task.lam, generator(*seeds))
    still = np.ones(len(u), dtype=bool)
    still[swept.rows] = False
    if still.any():  # rows without numbers have the score zero, and no visit finds their best slope
        u = np.where(still, _slopes(task.loss, 0.0 * u, y), u)
    swept.put(u)
    here = w.copy()
    for _ in range(task.epochs if swept.active else 0):
        swept.sweep(here, task)
    change = task.lam * (w - here)
    bend = float(change @ (change / task.scale if len(task.scale) else change))
    risk, offset, size, z, u, slope = swept.look(v)
    slopes, grad = _slopes(task.loss, z, y), np.zeros(len(v))
    swept.X.pullback(c * slopes, 0, len(c), grad)
    terms = float((c * abs(slopes)) @ abs(z))
    visits = float(swept.out[kernels().VISITS])
    return u, slopes, Sums(risk, grad, terms, slope, offset, size, bend, visits)


def _slopes(loss: Any, z: NDArray, y: NDArray) -> NDArray:
    found: NDArray = loss.value_grad(z, y, np.ones(len(z)))[1]
    return found


# ---------------------------------------------------------------- cuts
@dataclass
class Pool:
    """A few cuts with the dual variables that they are of, and weights: the best mixture."""

    reg: Any
    lam: float
    A: NDArray
    b: NDArray
    U: list[NDArray]
    x: NDArray

    @classmethod
    def of(cls, obj: Objective, n: int) -> Self:
        """The cut that says R >= 0."""
        return cls(obj.reg, obj.lam, np.zeros((1, obj.risk.dim)), np.zeros(1), [np.zeros(n)], np.ones(1))

    @property
    def cut(self) -> Cut:
        """The mixture."""
        return Cut(self.x @ self.A, float(self.x @ self.b))

    @property
    def u(self) -> NDArray:
        """Its dual variables: those that it stands for bound no less."""
        found: NDArray = sum(t * u for t, u in zip(self.x, self.U, strict=True))
        return found

    def take(self, *more: tuple[Cut, NDArray]) -> None:
        """Mix these in, where that bounds better; of those without weight, forget the older ones."""
        self.A = np.concatenate([self.A, [cut.a for cut, _ in more]])
        self.b = np.append(self.b, [cut.b for cut, _ in more])
        self.U += [u for _, u in more]
        G = np.array([self.reg.gram(self.A, a) for a in self.A]) / self.lam
        self.x = simplex_qp(G, self.b, np.append(self.x, np.zeros(len(more))))
        most = min(max(MOST_NUMBERS // max(1, len(self.U[0])), 3), MOST_CUTS)
        some = np.flatnonzero(self.x)
        if len(some) > most:  # those of least weight become one
            order = np.argsort(-self.x, kind="stable")
            self._merge(order[most - 1 : len(some)])
        # what has no weight now may be what the next ones lack
        rank = np.arange(len(self.x)) + len(self.x) * (self.x > 0)
        self._only(np.sort(np.argsort(rank)[-most:]))

    def _merge(self, some: NDArray) -> None:
        weight = float(self.x[some].sum())
        x = self.x[some] / weight
        a, b = x @ self.A[some], float(x @ self.b[some])
        u = sum(t * self.U[k] for t, k in zip(x, some, strict=True))
        self._only(np.setdiff1d(np.arange(len(self.x)), some))
        self.A, self.b = np.concatenate([self.A, [a]]), np.append(self.b, b)
        self.U, self.x = [*self.U, u], np.append(self.x, weight)

    def _only(self, keep: NDArray) -> None:
        self.A, self.b, self.x = self.A[keep], self.b[keep], self.x[keep]
        self.U = [self.U[k] for k in keep]


# ---------------------------------------------------------------- a run
@dataclass
class LocalAscent:
    """A run on shards."""

    solver: Any
    obj: Objective
    ends: list[int]
    """The first row of each shard, and the number of rows."""
    pool: Pool
    sigma: float
    best: NDArray
    """The best point so far."""
    value: float = np.inf
    round: int = 0
    visits: float = 0.0

    @classmethod
    def on(cls, solver: Any, obj: Objective) -> Self:
        """The run on the shards of a risk."""
        risk: Any = obj.risk
        ends = np.cumsum([0, *risk.executor.map(length)]).tolist()
        return cls(solver, obj, ends, Pool.of(obj, ends[-1]), float(len(ends) - 1), np.zeros(risk.dim))

    def started(self, w0: Array, u0: Array | None = None) -> Iterator[Iterate]:
        """From those dual variables, or none, and the slopes of the loss at w0."""
        w0 = np.array(w0, dtype=float)
        yield self._turn(w0, w0, self.pool.u if u0 is None else u0, 0)
        yield from self._go()

    def restored(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """From a saved state."""
        shapes = {"u": "n", "w": "d", "best": "d", "cuts": "m e", "duals": "m n", "weights": "m"}
        checked(
            state, shapes | {"rounds": "4"}, n=self.ends[-1], d=self.obj.risk.dim, e=self.obj.risk.dim + 1
        )
        obj, cuts = self.obj, state["cuts"]
        duals = [row.copy() for row in state["duals"]]
        self.pool = Pool(obj.reg, obj.lam, cuts[:, :-1].copy(), cuts[:, -1].copy(), duals, state["weights"])
        self.best = state["best"]
        self.sigma, self.value, rounds, self.visits = (float(v) for v in state["rounds"])
        self.round = int(rounds)
        return self._go()

    def _go(self) -> Iterator[Iterate]:
        while True:
            w = self.obj.argmin(self.pool.cut)
            part = PART if self.round > 1 else 1.0
            yield self._turn(w, self.best + part * (w - self.best), self.pool.u, self.solver.local_epochs)

    def _turn(self, w: NDArray, v: NDArray, u: NDArray, epochs: int) -> Iterate:
        """A round: shards sweep around w, and look at v; what they find is mixed in."""
        obj, before = self.obj, self.pool.cut.a
        us, slopes, found = self._ask(w, v, u, epochs)
        value, _, tangent = obj.at(v, found.risk, found.grad, ROUNDING * found.terms)
        # less what rounding may add: by the sizes of its terms
        self.pool.take((Cut(found.slope, found.offset - ROUNDING * found.size), us), (tangent, slopes))
        if value < self.value:
            self.best, self.value = v, value
        if found.bend > 0:
            change = 2 * obj.reg.conjugate(found.slope - before)
            self.sigma = min(max(change / found.bend, 1.0), float(len(self.ends) - 1))
        self.round += 1
        self.visits += found.visits
        info = {"epochs": self.visits / max(1, self.ends[-1]), "sigma": self.sigma}
        return Iterate(v, value, self.pool.cut, info, self._state(v))

    def _ask(self, w: NDArray, v: NDArray, u: NDArray, epochs: int) -> tuple[NDArray, NDArray, Sums]:
        risk: Any = self.obj.risk
        s, scale = self.solver, scale_of(self.obj.reg, risk.dim)
        task = Task(risk.loss, scale, self.obj.lam / self.sigma, epochs, s.damping, s.shrink, s.shuffle)
        own = [(u[i:j], (s.seed, self.round, k)) for k, (i, j) in enumerate(pairwise(self.ends))]
        self.obj.count.calls += 1
        us, slopes, sums = zip(*risk.executor.map(local_epochs, task, w, v, each=own), strict=True)
        return np.concatenate(us), np.concatenate(slopes), Sums(*add(sums))

    def _state(self, v: NDArray) -> Any:
        pool, best = self.pool, self.best
        A, b, U, x = pool.A, pool.b, list(pool.U), pool.x
        numbers = np.array([self.sigma, self.value, self.round, self.visits])

        def state() -> dict[str, Array]:
            cuts, duals = np.column_stack([A, b]), np.array(U)
            return {
                "u": x @ duals,
                "w": v,
                "best": best,
                "cuts": cuts,
                "duals": duals,
                "weights": x,
                "rounds": numbers,
            }

        return state
