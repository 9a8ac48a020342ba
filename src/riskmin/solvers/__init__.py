"""Solvers: frozen settings with the method `iterates`, a generator. `riskmin.minimize` drives them."""

from __future__ import annotations

from typing import Any

from riskmin.core import Solver, as_solver
from riskmin.core.registry import Registry
from riskmin.solvers.auto import Auto as Auto
from riskmin.solvers.bundle.bundle import Bmrm as Bmrm
from riskmin.solvers.bundle.bundle import Bundle as Bundle
from riskmin.solvers.bundle.bundle import LineSearchBmrm as LineSearchBmrm
from riskmin.solvers.coordinate.coordinate_descent import CoordinateDescent as CoordinateDescent
from riskmin.solvers.dual.chain import ChainAscent as ChainAscent
from riskmin.solvers.dual.coordinate_ascent import DualCoordinateAscent as DualCoordinateAscent
from riskmin.solvers.dual.kernel import KernelDual as KernelDual
from riskmin.solvers.interior_point.contingency_tables import ContingencyTables as ContingencyTables
from riskmin.solvers.interior_point.interior_point import InteriorPoint as InteriorPoint
from riskmin.solvers.newton.newton import Newton as Newton
from riskmin.solvers.portfolio import Portfolio as Portfolio
from riskmin.solvers.proximal_gradient import ProximalGradient as ProximalGradient
from riskmin.solvers.quasi_newton.lbfgs import Lbfgs as Lbfgs
from riskmin.solvers.quasi_newton.owlqn import OwlQn as OwlQn
from riskmin.solvers.reference.accelerated_dual import DualAccelerated as DualAccelerated
from riskmin.solvers.reference.accelerated_gradient import AcceleratedGradient as AcceleratedGradient
from riskmin.solvers.reference.augmented_lagrangian import AugmentedLagrangian as AugmentedLagrangian
from riskmin.solvers.reference.conjugate_gradient import DualConjugateGradient as DualConjugateGradient
from riskmin.solvers.reference.dual_gradient import DualGaussSeidel as DualGaussSeidel
from riskmin.solvers.reference.excessive_gap import ExcessiveGap as ExcessiveGap
from riskmin.solvers.reference.pegasos import Pegasos as Pegasos
from riskmin.solvers.reference.scipy_minimizer import ScipyMinimizer as ScipyMinimizer
from riskmin.solvers.smoothing import Smoothing as Smoothing
from riskmin.solvers.transformed.separable_form import SeparableForm as SeparableForm
from riskmin.solvers.working_set import WorkingSet as WorkingSet

_OWN: dict[str, Any] = {
    "accelerated_gradient": AcceleratedGradient(),
    "augmented_lagrangian": AugmentedLagrangian(),
    "auto": Auto(),
    "bmrm": Bmrm(),
    "bundle": Bundle(),
    "chain_ascent": ChainAscent(),
    "contingency_tables": ContingencyTables(),
    "coordinate_descent": CoordinateDescent(),
    "dual": DualCoordinateAscent(),
    "dual_accelerated": DualAccelerated(),
    "dual_conjugate_gradient": DualConjugateGradient(),
    "dual_gauss_seidel": DualGaussSeidel(),
    "excessive_gap": ExcessiveGap(),
    "interior_point": InteriorPoint(),
    "lbfgs": Lbfgs(),
    "line_search_bmrm": LineSearchBmrm(),
    "newton": Newton(),
    "owlqn": OwlQn(),
    "pegasos": Pegasos(),
    "proximal_gradient": ProximalGradient(),
    "scipy": ScipyMinimizer(),
    "smoothing": Smoothing(),
}
_SYNONYMS = {
    "liblinear": "dual",
    "sdca": "dual",
    "newton_cg": "newton",
    "newton_cholesky": "newton",
    "l_bfgs": "lbfgs",
    "l_bfgs_b": "lbfgs",
    "owl_qn": "owlqn",
    "sgd": "pegasos",
    "fista": "proximal_gradient",
    "cd": "coordinate_descent",
}
"""Names of solvers in scikit-learn, LIBLINEAR, SciPy and others."""

SOLVERS = Registry(
    "solver",
    "iterates",
    "riskmin.solvers",
    "package.module:Solver,keep=5",
    _OWN,
    KernelDual,
    synonyms=_SYNONYMS,
)
"""The names that the command and the estimators accept, and the solver of each."""


def get_solver(solver: str | Solver | None) -> Any:
    """The solver of a name; a solver object is returned as it is, and None gives `Auto`.

    A user's own class with the method `iterates` is adapted to the interface `Solver`.

    Parameters
    ----------
    solver : str, Solver or None
        A name of `SOLVERS`, a class to import (``"package.module:Solver"``), or an object with the method
        `iterates`.

    Returns
    -------
    Solver
        The solver.

    Examples
    --------
    >>> get_solver("bundle")
    Bundle(keep=20)
    >>> get_solver(Lbfgs(memory=5)), get_solver(None)
    (Lbfgs(memory=5), Auto())
    """
    if solver is None:
        return Auto()
    return SOLVERS.resolve(solver, as_solver, "such as Bundle()")


def register_solver(name: str, solver: Any) -> None:
    """Add a solver to `SOLVERS`: `minimize`, the estimators and the command accept its name.

    Parameters
    ----------
    name : str
        A Python identifier; not the name of a solver of riskmin.
    solver : Solver
        An object with a method `iterates`, or its class.

    Examples
    --------
    >>> register_solver("short_memory", Lbfgs(memory=3))
    >>> get_solver("short_memory")
    Lbfgs(memory=3)
    >>> del SOLVERS["short_memory"]
    """
    SOLVERS.register(name, solver)
