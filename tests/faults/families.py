"""A small problem per family of solvers, and functions to save and resume its runs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

import riskmin as rm
from helpers import Problem
from riskmin.core.persist import load_arrays

TOL = 1e-5


@dataclass(frozen=True)
class Family:
    """A solver, and a problem for which it takes more than one step."""

    solver: object
    loss: object
    reg: object = rm.L2()
    lam: float = 1e-3
    kernel: bool = False
    intercept: bool = False

    def on(self, **settings):
        """The objective; the settings are those of `linear_risk`."""
        columns = np.logspace(0, -1.5, 5)
        problem = Problem(self.loss, self.reg, self.lam, n=60, p=5, intercept=self.intercept, units=columns)
        if self.kernel:
            return rm.Objective(*rm.kernel_risk(problem.X, problem.y, self.loss), self.lam)
        return problem.objective(**settings)

    @cached_property
    def objective(self):
        return self.on()

    def run(self, path=None, **settings):
        """Run to the end; with a path, write a checkpoint after every iteration."""
        save = None if path is None else rm.Checkpoint(path, every=0.0)
        return rm.minimize(self.objective, self.solver, tol=TOL, max_iter=500, checkpoint=save, **settings)

    @cached_property
    def undisturbed(self):
        return self.run()

    def check(self, result):
        """Check for the same certified optimum."""
        whole = self.undisturbed
        assert result.status == whole.status == "converged", result.status
        assert max(result.lower, whole.lower) <= min(result.value, whole.value) * (1 + 1e-12)
        assert abs(result.value - whole.value) <= TOL * whole.value


FAMILIES = {
    "Bundle": Family(rm.Bundle(), rm.Hinge()),
    "Bmrm": Family(rm.Bmrm(), rm.Hinge(), lam=1e-2),
    "Lbfgs": Family(rm.Lbfgs(), rm.Logistic()),
    "OwlQn": Family(rm.OwlQn(), rm.Logistic(), rm.L1()),
    "Newton": Family(rm.Newton(), rm.Logistic()),
    "Newton, smoothed": Family(rm.Newton(), rm.Hinge()),
    "CoordinateDescent": Family(rm.CoordinateDescent(), rm.Squared(), rm.L1()),
    "DualCoordinateAscent": Family(rm.DualCoordinateAscent(), rm.Hinge()),
    "DualAccelerated": Family(rm.DualAccelerated(), rm.Hinge(), lam=1e-2),
    "ChainAscent": Family(rm.ChainAscent(), rm.ChainMaxMargin(), lam=1e-1),
    "KernelDual": Family(rm.KernelDual(), rm.Hinge(), kernel=True),
    "Smoothing": Family(rm.Smoothing(), rm.Hinge(), lam=1e-2),
    "ProximalGradient": Family(rm.ProximalGradient(), rm.Logistic(), rm.L1(), lam=1e-2),
    "AcceleratedGradient": Family(rm.AcceleratedGradient(), rm.Logistic(), lam=1e-1),
    "Auto": Family(rm.Auto(), rm.Hinge()),
    "Bundle with an intercept": Family(rm.Bundle(), rm.Hinge(), intercept=True),
    "Newton with an intercept": Family(rm.Newton(), rm.Logistic(), intercept=True),
    "Newton of classes": Family(rm.Newton(), rm.Softmax(), intercept=True),
    "AugmentedLagrangian": Family(rm.AugmentedLagrangian(), rm.Hinge(), lam=1e-1, intercept=True),
    "DualGaussSeidel": Family(rm.DualGaussSeidel(), rm.Hinge(), lam=1e-1),
    "DualCoordinateAscent of classes": Family(rm.DualCoordinateAscent(), rm.MulticlassHinge(), lam=1e-2),
    "DualAccelerated with an intercept": Family(rm.DualAccelerated(), rm.Hinge(), lam=1e-1, intercept=True),
    "Switching": Family(rm.Switching(rm.DualCoordinateAscent(), rm.Bundle()), rm.Hinge()),
    "Auto of classes": Family(rm.Auto(), rm.Softmax(), intercept=True),
}


def rows_of(path):
    """Number of iterations in a checkpoint, which must be complete; 0 if there is none."""
    return len(load_arrays(path, "checkpoint")[0]["trace"]) if path.exists() else 0
