"""The choice of a solver, in one place and with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from riskmin.objective import Objective
from riskmin.rkhs import RkhsNorm
from riskmin.solvers.bundle import Bundle
from riskmin.solvers.kernel_dual import KernelDual
from riskmin.solvers.kernel_terms import has_conjugate
from riskmin.solvers.lbfgs import Lbfgs
from riskmin.solvers.proximal import loss_of
from riskmin.types import Array, Iterate, Smooth, Solver


@dataclass(frozen=True)
class Auto:
    """Picks a solver for the problem; the reason is in ``result.solver``.

    A smooth loss (one that says ``smooth = True``) with a smooth regularizer goes to `Lbfgs`, everything
    else to `Bundle`. With a kernel, losses that have a conjugate go to `KernelDual`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, Auto, Logistic, Objective, linear_risk
    >>> J = Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Logistic()), L2(), lam=0.1)
    >>> Auto().choose(J)
    (Lbfgs(memory=20), 'Logistic is smooth')
    """

    def choose(self, obj: Objective) -> tuple[Solver, str]:
        """The solver, and why."""
        loss = loss_of(obj.risk)
        name = type(obj.risk if loss is None else loss).__name__
        if isinstance(obj.reg, RkhsNorm):
            known = has_conjugate(loss)
            says = f"a kernel, and {name} has {'a' if known else 'no'} conjugate"
            return KernelDual() if known else Bundle(), says
        if getattr(loss, "smooth", False) and isinstance(obj.reg, Smooth):
            return Lbfgs(), f"{name} is smooth"
        return Bundle(), f"{name} {'is not smooth' if hasattr(loss, 'smooth') else 'names no smoothness'}"

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """The iterates of the solver it picks."""
        return self.choose(obj)[0].iterates(obj, w0)
