"""riskmin as a solver of benchopt (https://benchopt.github.io), version 1.5 or later.

Copy this file into the folder `solvers` of one of the benchmarks below, and run `benchopt run . -s riskmin`:

- benchmark_linear_svm_binary_classif_no_intercept,
- benchmark_logreg_l2 and benchmark_logreg_l1,
- benchmark_lasso, benchmark_elastic_net and benchmark_ridge,
- benchmark_quantile_regression (without an intercept),
- benchmark_huber_l2.

The problem follows from the name of the benchmark's folder; in a folder of another name, choose it by
`-s "riskmin[problem=lasso]"`.
"""

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from benchopt import BaseSolver
from benchopt.stopping_criterion import SufficientProgressCriterion

import riskmin


class Problem(NamedTuple):
    """An objective in riskmin's form, the mean loss plus lam times Omega."""

    loss: Any
    reg: Any
    lam: float


# By a substring of the benchmark's name, for n rows: benchopt has sums of losses, except where noted.
PROBLEMS = {
    "linear_svm": lambda n, C: Problem(riskmin.Hinge(), riskmin.L2(), 1 / (C * n)),
    "logreg_l2": lambda n, lmbd: Problem(riskmin.Logistic(), riskmin.L2(), lmbd / n),
    "logreg_l1": lambda n, lmbd: Problem(riskmin.Logistic(), riskmin.L1(), lmbd / n),
    "lasso": lambda n, lmbd: Problem(riskmin.Squared(), riskmin.L1(), lmbd / n),
    # a mean, with l1_ratio |w|_1 + (1 - l1_ratio) |w|^2 / 2
    "elastic_net": lambda n, lmbda, l1_ratio: Problem(
        riskmin.Squared(), riskmin.Elastic(eps=l1_ratio / (1 - l1_ratio)), lmbda * (1 - l1_ratio)
    ),
    "ridge": lambda n, lmbd: Problem(riskmin.Squared(), riskmin.L2(), lmbd / n),
    # a mean
    "quantile_regression": lambda n, lmbd, quantile: Problem(riskmin.Quantile(quantile), riskmin.L1(), lmbd),
    # twice the loss, and lmbd |w|^2
    "huber_l2": lambda n, lmbd, epsilon: Problem(riskmin.Huber(epsilon), riskmin.L2(), lmbd / n),
}
INTERCEPT_FIRST = ("huber_l2",)
"""Benchmarks whose result is one vector with the intercept before the weights; they always have one."""
NAMED_PARAMS = ("huber_l2", "quantile_regression")
"""Benchmarks whose result is called "params"."""


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

    def _name(self):
        folder = Path(__file__).resolve().parent.parent.name
        named = folder if self.problem == "by_folder" else self.problem
        return next((name for name in PROBLEMS if name in named), None)

    def skip(self, X, y, **problem):
        """Whether the objective is not supported, and why."""
        if self._name() is None:
            return True, f"riskmin needs problem to be one of {', '.join(PROBLEMS)}"
        if problem.get("quantile") is not None and problem.get("fit_intercept"):
            return True, "riskmin does not support the intercept of this benchmark"
        if not hasattr(X, "shape") or hasattr(X, "matvec"):
            return True, "riskmin needs the entries of X, not an operator"
        return False, None

    def set_objective(self, X, y, fit_intercept=False, **problem):
        """Store the data; the objective is built in `run`, where it is timed."""
        self.made = PROBLEMS[self._name()](X.shape[0], **problem)
        self.X, self.y = X, y
        self.fit_intercept = bool(fit_intercept) or self._name() in INTERCEPT_FIRST
        self.beta = np.zeros(X.shape[1] + self.fit_intercept)

    def warm_up(self):
        """Compile or load the kernels."""
        riskmin.minimize(self._riskmin_objective(), self.solver, max_iter=2)

    def _riskmin_objective(self):
        risk = riskmin.linear_risk(self.X, self.y, self.made.loss, fit_intercept=self.fit_intercept)
        return riskmin.Objective(risk, self.made.reg, self.made.lam)

    def run(self, callback):
        """Minimize from zero, with a call of the callback after each step."""
        self.beta = np.zeros(self.X.shape[1] + self.fit_intercept)
        if not callback():
            return
        objective = self._riskmin_objective()

        def record(it, row):
            self._store(it.w, objective)
            return not callback()

        result = riskmin.minimize(objective, self.solver, tol=1e-12, callback=record, max_iter=10**7)
        self._store(result.w, objective)

    def _store(self, w, objective):
        intercept = [objective.risk.best_intercept(w)] if self.fit_intercept else []
        parts = [intercept, w] if self._name() in INTERCEPT_FIRST else [w, intercept]
        self.beta = np.concatenate(parts)

    def get_result(self):
        return {"params" if self._name() in NAMED_PARAMS else "beta": self.beta}
