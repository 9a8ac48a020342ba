r"""Dual ascent under linear constraints: Algorithms 2 and 3 of Zhang (2002), an augmented Lagrangian.

An unpenalized intercept makes the dual one of :math:`\sum_i c_i u_i = 0`, and free directions C make it one
of :math:`C v = 0`. With P the scores of the free directions (a column of ones for the intercept), both are
:math:`g = -\tfrac1\lambda P^\top (c \circ u) = 0`, and the rows are visited as without, but at the scores

.. math:: x_i^\top w + P_i^\top (s + \rho\, g), \qquad \rho = \lambda n / \mu,

after which s, the bias, moves by a multiple of :math:`\rho\, g`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.deadline import checking
from riskmin.losses.pieces import conjugate_of
from riskmin.objective import Objective
from riskmin.solvers.dual_gradient import Ascent, Best
from riskmin.solvers.states import checked
from riskmin.solvers.transfer import Conjugate
from riskmin.types import Array, Cut, Iterate, NDArray

ALIKE = 0.2
"""The rho at which constraints and data weigh alike, as a part of the mean of x' H x: measured."""
HASTE = 1.0
"""Beyond so many times that mean, Algorithm 2 raises rho no more: rows could not move one at a time."""


@dataclass
class Multipliers:
    """The multipliers s of the constraints, and how they move."""

    s: NDArray
    rho: float
    rate: NDArray
    gap: NDArray
    """That of the last pass."""
    falls: float = math.inf
    """Algorithm 2: the violation when s or mu was last changed."""

    def third(self, gap: NDArray, bend: float | None) -> None:
        """Algorithm 3: a part of the way after each pass.

        Where the pace is free, the part grows while a constraint stays violated to the same side, and rho
        moves to where the constraints weigh as much as the data.
        """
        if bend is not None:
            same = np.sign(gap) == np.sign(self.gap)
            self.rate = np.where(same, np.minimum(1.3 * self.rate, 1.0), np.maximum(0.5 * self.rate, 0.1))
            self.rho *= min(max(ALIKE * bend / self.rho, 0.5), 2.0) if bend > 0 else 1.0
        self.s = self.s + self.rate * self.rho * gap
        self.gap = gap

    def second(self, gap: NDArray, bend: float | None) -> None:
        """Algorithm 2: all the way, or a smaller mu, once the rows are nearly at rest."""
        still = np.abs(gap - self.gap).max() <= 0.1 * np.abs(gap).max()
        self.gap = gap
        if not still:
            return
        size = float(np.abs(gap).max())
        if size > 0.5 * self.falls and (bend is None or self.rho < HASTE * bend):
            self.rho *= 4
        else:
            self.s = self.s + self.rho * gap
        self.falls = size

    def state(self) -> dict[str, Any]:
        return {"s": self.s, "rho": self.rho, "rate": self.rate, "gap": self.gap, "falls": self.falls}


def lagrangian_iterates(
    solver: Any, obj: Objective, w0: Array, u0: Array | None, state: dict[str, Array] | None = None
) -> Iterator[Iterate]:
    """Yield an iterate a pass over the rows, under the constraints of an intercept or of `Equality`.

    Parameters
    ----------
    solver : DualGaussSeidel
        With ``lagrangian`` (2 or 3: the algorithm), ``mu`` and ``bias_rate`` (eta), and the settings of a
        pass. Where a rate or damping is given, mu and eta stay as they are, as in the paper.
    obj : Objective
    w0 : array
        Where slopes are taken to start from, where the pace is free.
    u0 : array, optional
        Dual variables to start from.
    state : dict, optional
        That of an iterate, to go on from.
    """
    if state is None and u0 is not None:
        state = {"u": u0}
    return tied_iterates(Ascent.begin(solver, obj, w0, state), w0, state)


def tied_iterates(run: Ascent, w0: Array, state: dict[str, Array] | None) -> Iterator[Iterate]:
    """The iterates of a run with constraints."""
    known = state or {}
    return _tied(run, _multipliers(run, w0, known), Best(run.obj, known.get("w")))


def _tied(run: Ascent, m: Multipliers, best: Best) -> Iterator[Iterate]:
    free, cut = len(run.C), Cut(np.zeros(run.C.shape[1]), 0.0)
    while True:
        before, s = run.u, m.s
        with np.errstate(all="ignore"):  # a rate that is too large ends in infinities, and so the run
            v, gap = run.sweep(m.s, m.rho)
            w = run.reg.conjugate_grad(v)
        if not (np.isfinite(run.u).all() and np.isfinite(w).all()):
            return
        bend = run.bend(v) if run.free_pace else None
        (m.second if run.solver.lagrangian == 2 else m.third)(gap, bend)
        info = {
            "feasibility": run.obj.lam * float(np.abs(gap).max()),
            "modified_gap": _modified_gap(run, w, m.s),
            "bias": float(m.s[-1]) if run.P.shape[1] > free else 0.0,
        }
        u = feasible(run.u, run.shard.c, run.P, run.conjugate)
        if u is not None:
            cut = run.cut(u, 1 + float(np.abs(run.P @ m.s).max()))
        w = w + m.s[:free] @ run.C
        w, value = best.towards(w) if run.free_pace else (w, run.obj.value(w))
        yield Iterate(w, value, cut, info, run.snapshot(w=w, **m.state()))
        if np.array_equal(run.u, before) and np.array_equal(m.s, s):
            return


def _multipliers(run: Ascent, w0: Array, known: dict[str, Array]) -> Multipliers:
    k = run.P.shape[1]
    s, rho = np.zeros(k), run.obj.lam * len(run.u) / run.solver.mu
    if "s" in known:
        names = "s", "rate", "gap"
        checked(known, dict.fromkeys(names, "k") | {"rho": "1", "falls": "1"}, k=k)
        rho, falls = float(known["rho"][0]), float(known["falls"][0])
        return Multipliers(np.array(known["s"]), rho, known["rate"], known["gap"], falls)
    if run.free_pace and k > len(run.C):
        s[-1] = run.first_bias(w0)
    return Multipliers(s, rho, np.full(k, float(run.solver.bias_rate)), np.zeros(k))


def _modified_gap(run: Ascent, w: NDArray, s: NDArray) -> float:
    """The duality gap with the bias held at s, of the paper's section 6.3: that of Fenchel-Young, by rows."""
    y, c = run.shard.y, run.shard.c
    z = run.scores(w) + run.P @ s
    value, _ = run.loss.value_grad(z, y, c)
    conjugate = np.where(c > 0, conjugate_of(run.loss, run.u, y), 0.0)
    return float(value) + float(c @ (conjugate - run.u * z))


def feasible(u: NDArray, c: NDArray, P: NDArray, conjugate: Conjugate) -> NDArray | None:
    """Dual variables near u that meet the constraints P'(c u) = 0 up to rounding; None if none are found.

    Those inside their domains take up the violation, each as far as it has room: for them the dual is flat
    where it is best. For a single constraint of ones, the larger side is shrunk for what is left, since 0
    is in every domain.
    """
    W = c[:, None] * P
    exact = 1e-15 * (np.abs(W).T @ np.abs(u))
    for _ in checking(range(30)):
        excess = u @ W
        if np.all(np.abs(excess) <= exact):
            return u
        room = np.minimum(np.minimum(u - conjugate.lower, conjugate.upper - u), 1.0)
        t = np.linalg.lstsq((W * room[:, None]).T @ P, excess, rcond=1e-12)[0]
        u = u - room * np.clip(P @ t, -0.9, 0.9)
    if P.shape[1] > 1 or np.ptp(P) > 0:
        return None
    up, down = float(c @ np.maximum(u, 0.0)), float(c @ np.maximum(-u, 0.0))
    large = u > 0 if up > down else u < 0
    return np.where(large, min(up, down) / max(up, down, 1e-300) * u, u)
