"""riskmin as a solver of benchopt (https://benchopt.github.io), version 1.5 or later.

Copy this file into the folder `solvers` of one of the benchmarks below, and run `benchopt run . -s riskmin`:

- benchmark_linear_svm_binary_classif_no_intercept,
- benchmark_logreg_l2 and benchmark_logreg_l1,
- benchmark_lasso and benchmark_ridge,
- benchmark_quantile_regression (without an intercept).

The problem follows from the name of the benchmark's folder; in a folder of another name, choose it by
`-s "riskmin[problem=lasso]"`.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np
from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

import riskmin

PROBLEMS = {
    "linear_svm": (riskmin.Hinge(), riskmin.L2()),
    "logreg_l2": (riskmin.Logistic(), riskmin.L2()),
    "logreg_l1": (riskmin.Logistic(), riskmin.L1()),
    "lasso": (riskmin.Squared(), riskmin.L1()),
    "ridge": (riskmin.Squared(), riskmin.L2()),
    "quantile_regression": (riskmin.Quantile(), riskmin.L1()),
}
"""Loss and regularizer, by a substring of the benchmark's name."""


def strength(n, lmbd=None, C=None, quantile=None):
    """Convert to lam: riskmin has the mean of the losses, benchopt the sum, except for quantiles."""
    if C is not None:
        return 1 / (C * n)
    return lmbd if quantile is not None else lmbd / n


class Solver(BaseSolver):
    """The solver that `riskmin.Auto` chooses, or another one by name."""

    name = "riskmin"
    install_cmd = "conda"
    requirements: ClassVar = ["pip::riskmin"]
    references: ClassVar = [
        "C. H. Teo, S. V. N. Vishwanathan, A. Smola, Q. V. Le, Bundle methods for regularized risk "
        "minimization, JMLR 11, 2010"
    ]
    parameters: ClassVar = {"solver": ["auto"], "problem": ["by_folder"]}
    sampling_strategy = "callback"
    stopping_criterion = SufficientProgressCriterion(patience=7, strategy="callback")

    def _problem(self):
        folder = Path(__file__).resolve().parent.parent.name
        named = folder if self.problem == "by_folder" else self.problem
        return next((problem for name, problem in PROBLEMS.items() if name in named), None)

    def skip(self, X, y, **problem):
        """Whether the objective is not supported, and why."""
        if self._problem() is None:
            return True, f"riskmin needs problem to be one of {', '.join(PROBLEMS)}"
        if problem.get("quantile") is not None and problem.get("fit_intercept"):
            return True, "riskmin does not support the intercept of this benchmark"
        if not hasattr(X, "shape") or hasattr(X, "matvec"):
            return True, "riskmin needs the entries of X, not an operator"
        return False, None

    def set_objective(self, X, y, fit_intercept=False, **problem):
        """Store the data; the objective is built in `run`, where it is timed."""
        loss, self.reg = self._problem()
        if problem.get("quantile") is not None:
            loss = riskmin.Quantile(problem["quantile"])
        self.X, self.y, self.loss, self.fit_intercept = X, y, loss, bool(fit_intercept)
        self.lam = strength(X.shape[0], **problem)
        self.result = "params" if problem.get("quantile") is not None else "beta"
        self.beta = np.zeros(X.shape[1] + self.fit_intercept)

    def warm_up(self):
        """Compile or load the kernels."""
        riskmin.minimize(self._riskmin_objective(), self.solver, max_iter=2)

    def _riskmin_objective(self):
        risk = riskmin.linear_risk(self.X, self.y, self.loss, fit_intercept=self.fit_intercept)
        return riskmin.Objective(risk, self.reg, self.lam)

    def run(self, callback):
        """Minimize from zero, with a call of the callback after each step."""
        self.beta = np.zeros(self.X.shape[1] + self.fit_intercept)
        if not callback():
            return
        objective = self._riskmin_objective()

        def record(it, row):
            intercept = [objective.risk.best_intercept(it.w)] if self.fit_intercept else []
            self.beta = np.concatenate([it.w, intercept])
            return not callback()

        result = riskmin.minimize(objective, self.solver, tol=1e-12, callback=record, max_iter=10**7)
        intercept = [objective.risk.best_intercept(result.w)] if self.fit_intercept else []
        self.beta = np.concatenate([result.w, intercept])

    def get_result(self):
        return {self.result: self.beta}
