r"""Regularization paths: one risk, many strengths, each certified by itself.

A cut bounds R alone, so the cuts of one run hold for every lam and every regularizer. A path takes them
along, with w and whatever else a solver can use, from one run to its neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from riskmin.arrays import namespace, to_numpy
from riskmin.driver import conditioned, minimize, run
from riskmin.linear import linear_risk
from riskmin.objective import Count, Objective
from riskmin.preconditioning import Conditioned
from riskmin.regularizers import L2, Separable
from riskmin.run import Callback
from riskmin.scorers import Multiclass
from riskmin.solvers import Auto, get_solver
from riskmin.solvers.auto import said
from riskmin.types import Array, Balances, Iterate, NDArray, Oracle, Regularizer, Result, Solver, Warm


# ---------------------------------------------------------------- which lam
def lam_max(risk: Oracle, reg: Regularizer) -> float:
    r"""The lam from which on the least Omega is optimal: w = 0 with `L1`.

    .. math:: \lambda_{\max} = \max_j |g_j| / l_j, \qquad g \in \partial R(0),

    for :math:`\Omega` with the kinks :math:`l_j |w_j|`. In general :math:`-g_j / \lambda` must lie between
    the slopes of :math:`\Omega` to the left and to the right. It is the least such lam where the risk is
    smooth at that point, and an upper bound of it elsewhere. Intercepts are at their best there.

    Parameters
    ----------
    risk : Oracle
    reg : L1, Elastic, or a Box around one of them
        Others have no kink, so that their weights reach zero for no lam: a ValueError says so.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, Hinge, Objective, lam_max, linear_risk, minimize
    >>> risk = linear_risk(np.array([[3.0, 1.0], [-1.0, 1.0]]), np.array([1.0, -1.0]), Hinge())
    >>> lam_max(risk, L1())
    2.0
    >>> [float(minimize(Objective(risk, L1(), lam)).w[0]) > 0 for lam in (2.01, 1.99)]
    [False, True]
    """
    if not isinstance(reg, Separable):
        raise ValueError(f"{reg!r} has no kinks, so there is no lam_max: choose the largest lam yourself")
    if isinstance(risk, Balances):
        w = reg.conjugate_grad(np.zeros(risk.dim - risk.n_intercepts))
        g = _slopes_at_zero(risk, w)
    else:
        w = reg.conjugate_grad(np.zeros(risk.dim))
        g = to_numpy(risk(w)[1])
    t = reg.terms(w)
    l1, lower, upper = (np.broadcast_to(np.asarray(v), w.shape) for v in (t[0], t[2], t[3]))
    slope = t.square * w
    # the slopes of Omega to the left and to the right: without end at a bound
    right = np.where(w >= upper, math.inf, slope + np.where(w >= 0, l1, -l1))
    left = np.where(w <= lower, -math.inf, slope - np.where(w <= 0, l1, -l1))
    room = np.where(g < 0, right, -left)
    if bool(np.any((room <= 0) & (g != 0))):
        raise ValueError(f"{reg!r} has no kinks, so there is no lam_max: choose the largest lam yourself")
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.max(np.where(g == 0, 0.0, np.abs(g) / room), initial=0.0))


def _slopes_at_zero(risk: Any, w: NDArray) -> NDArray:
    """The slopes in w = 0 of a cut that touches the risk at the best intercepts, and has none in these.

    There, all rows of a class have the same scores, so that a problem of a row a class knows them all.
    """
    k, inner = risk.n_intercepts, getattr(risk.scorer, "inner", None)
    if np.any(w) or not isinstance(inner, Multiclass):
        raise ValueError("its intercepts are not known there, so there is no lam_max: choose the largest lam")
    known, tiny = risk.constants, 1e-6  # features so small that weights move the scores by less than rounding
    rows = linear_risk(
        tiny * np.eye(k), np.arange(float(k)), risk.loss, sample_weight=known.weights, fit_intercept=True
    )
    a = minimize(Objective(rows, L2(), 1.0), tol=1e-12, max_iter=500).cut.a
    each = a[: k * k].reshape(k, k) / (tiny * np.where(known.weights > 0, known.weights, 1.0)[:, None])
    return np.ravel(to_numpy(known.sums) @ each)


def lam_grid(risk: Oracle, reg: Regularizer, n: int = 13) -> NDArray:
    """The strengths to try where none are given, the largest first, in equal ratios.

    From `lam_max` down to a thousandth of it where there is one, else from 1 to 1e-6.

    Parameters
    ----------
    risk : Oracle
    reg : Regularizer
    n : int
        How many.

    Returns
    -------
    (n,) array

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Hinge, linear_risk
    >>> lam_grid(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), 3).tolist()
    [1.0, 0.001, 1e-06]
    """
    if n < 1:
        raise ValueError(f"a grid needs at least one lam, not {n}")
    try:
        top = lam_max(risk, reg)
    except ValueError:
        return np.geomspace(1.0, 1e-6, n)
    return np.geomspace(top, 1e-3 * top, n) if top > 0 else np.geomspace(1.0, 1e-6, n)


# ---------------------------------------------------------------- the path
@dataclass(frozen=True)
class _Started:
    """A solver that starts where another run ended."""

    solver: Any
    state: dict[str, Array]
    before: Objective

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        steps: Iterator[Iterate] = self.solver.warm(obj, self.state, self.before)
        return steps


@dataclass(frozen=True)
class _End:
    """How a run ended: what the next one may start from."""

    problem: Conditioned
    solver: Any
    result: Result
    state: dict[str, Array] | None

    @property
    def risk(self) -> float:
        """R at the best point."""
        obj = self.problem.given
        return self.result.value - obj.lam * obj.reg.value(self.result.w)


def path(
    risk: Oracle,
    reg: Regularizer | Sequence[Regularizer],
    lams: Sequence[float] | NDArray,
    *,
    solver: Solver | str | None = None,
    tol: float = 1e-3,
    atol: float | None = None,
    max_iter: int = 10_000,
    max_seconds: float = math.inf,
    callback: Callback | None = None,
) -> list[Result]:
    r"""Minimize :math:`\lambda\,\Omega(w) + R(w)` for one lam after the other, each from what is known.

    The largest lam comes first, whatever their order here: it is the easiest, and every other run starts from
    its larger neighbour with w, the cuts (`Bundle`) or the curvature (`Lbfgs`), as far as the solver can
    use them. A start from elsewhere proves nothing: each result has a certificate of its own.

    Parameters
    ----------
    risk : Oracle
    reg : Regularizer, or a sequence of them
        One for all, or one for each lam.
    lams : sequence of floats
        In any order.
    solver : Solver or str, optional
        As in `minimize`; `Auto` chooses for each.
    tol, atol, max_iter, max_seconds : float, float, int, float
        As in `minimize`, for each.
    callback : callable, optional
        ``callback(iterate, row)`` after every iteration; ``row["lam"]`` says of which run. A true return
        value ends the path.

    Returns
    -------
    list of Result
        One for each lam, in the order given; each row of their traces has the ``lam``. Ctrl-C ends
        the path. What was not reached then has the status ``interrupted`` too, with the best point and the
        best bound that the runs so far give for it, and a trace of one row.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L1, Hinge, lam_max, linear_risk, path
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 10))
    >>> risk = linear_risk(X, np.sign(X[:, 0] + X[:, 1] + rng.normal(size=200)), Hinge())
    >>> top = lam_max(risk, L1())
    >>> results = path(risk, L1(), [top, top / 3, top / 100])
    >>> [int(np.count_nonzero(result.w)) for result in results]
    [0, 2, 10]
    >>> all(result.gap <= 1e-3 * result.value for result in results)
    True
    """
    strengths = [float(lam) for lam in np.ravel(np.asarray(lams, dtype=float))]
    regs = list(reg) if isinstance(reg, Sequence) else [reg] * len(strengths)
    if len(regs) != len(strengths):
        raise ValueError(f"there are {len(regs)} regularizers for {len(strengths)} lams: give one for each")
    objectives = [Objective(risk, r, lam) for r, lam in zip(regs, strengths, strict=True)]
    limits = {"tol": tol, "max_iter": max_iter, "max_seconds": max_seconds, "atol": atol}
    order = sorted(range(len(strengths)), key=lambda k: -strengths[k])
    # states are passed on from run to run, so that all have the same variables: those of the hardest one
    change = conditioned(objectives[order[-1]]).change if order else None
    results: dict[int, Result] = {}
    ends: list[_End] = []
    for k in order:
        try:
            problem = Conditioned.of(replace(objectives[k], count=Count()), change)
            ends.append(_run(problem, solver, ends[-1] if ends else None, callback, limits))
        except KeyboardInterrupt:
            if not ends:
                raise
            break
        results[k] = ends[-1].result
        if ends[-1].result.status == "interrupted":
            break
    return [results[k] if k in results else _unreached(objectives[k], ends) for k in range(len(strengths))]


def _run(
    problem: Conditioned,
    given: Solver | str | None,
    last: _End | None,
    callback: Callback | None,
    limits: dict[str, Any],
) -> _End:
    """One lam, from the end of the last one."""
    solver: Any = get_solver(given)
    obj, reason = problem.given, ""
    if isinstance(solver, Auto):
        solver, reason = solver.relay(problem.obj, limits["tol"])
    end: Iterate | None = None

    def note(iterate: Iterate, row: dict[str, float]) -> Any:
        nonlocal end
        end = iterate
        row["lam"] = obj.lam
        return callback is not None and callback(iterate, row)

    start, w0 = solver, None
    if last is not None:
        w0 = _inside(obj.reg, last.result.w)
        # the same solver with the same settings: another's state would mean nothing to it
        if isinstance(solver, Warm) and last.state is not None and solver == last.solver:
            start = _Started(solver, last.state, last.problem.obj)
    result = run(problem, start, w0, limits, note)
    state = end.state() if end is not None and end.state is not None else None
    return _End(problem, solver, replace(result, solver=said(solver, reason, result.trace)), state)


def _inside(reg: Regularizer, w: Array) -> Array:
    """W, or the nearest point of the regularizer's domain."""
    return w if math.isfinite(reg.value(w)) else reg.prox(w, 0.0)


def _unreached(obj: Objective, ends: list[_End]) -> Result:
    """What the runs so far say of another one: their risks and cuts hold for it too."""
    known = [(e.risk, e.result) for e in ends]
    values = [risk + obj.lam * obj.reg.value(result.w) for risk, result in known]
    if math.isfinite(min(values)):
        value = min(values)
        w = known[values.index(value)][1].w
    else:  # another regularizer, whose domain holds none of them
        w = _inside(obj.reg, known[-1][1].w)
        value = obj.value(w)
    cut = max((e.result.cut for e in ends), key=obj.lower)
    lower = min(max(obj.lower(cut), 0.0), value)
    row = {"iteration": 0, "seconds": 0.0, "calls": 0, "value": value, "lower": lower, "gap": value - lower}
    return Result(namespace(w).asarray(w), value, lower, cut, "interrupted", [row | {"lam": obj.lam}])
