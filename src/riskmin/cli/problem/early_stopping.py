"""`riskmin fit --validation`: end a fit when the mean loss on other rows no longer improves."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from riskmin.cli.problem.objective import FittedProblem, build_problem
from riskmin.cli.tasks.measures import mean_loss
from riskmin.core import Iterate
from riskmin.data.raw_tables.preparation import PreparedRows


class EarlyStopping:
    """Callback of a fit that evaluates each iterate on validation rows.

    It ends the fit once the mean loss has not improved for `patience` iterations, and `restore` makes the
    best iterate the fitted one. Its certificate holds: the lower bound of min J does not depend on the point.

    Parameters
    ----------
    model : estimator
    train, validation : PreparedRows
    patience : int
        Number of iterations without improvement after which the fit ends.
    """

    TASKS = ("classification", "regression", "ranking")

    def __init__(self, model: Any, train: PreparedRows, validation: PreparedRows, patience: int) -> None:
        from riskmin.executors import Serial

        if model.task not in self.TASKS:
            raise ValueError(
                f"--validation is for {', '.join(self.TASKS)}, not for {model.task}: leave it out"
            )
        self.model, self.train, self.validation, self.patience = model, train, validation, patience
        # a copy, since the problem sets the classes
        self.candidate = copy.copy(model)
        self.problem: FittedProblem = build_problem(self.candidate, train, Serial())
        self.candidate.n_features_in_ = train.X.shape[1]
        if model.task == "classification":
            unknown = set(np.unique(validation.y).tolist()) - set(self.problem.rows.known.values.tolist())
            if unknown:
                raise ValueError(f"--validation holds the class {unknown.pop()!r}, which DATA do not")
        self.best_loss, self.best_iteration, self.iteration = math.inf, 0, 0
        self.best_w: Any = None
        self.stopped = False

    def __call__(self, iterate: Iterate, row: dict[str, float]) -> bool:
        """Evaluate an iterate; True ends the fit."""
        self.iteration = int(row["iteration"])
        loss = self.loss(iterate.w)
        if loss < self.best_loss:
            self.best_loss, self.best_iteration, self.best_w = loss, self.iteration, np.array(iterate.w)
        self.stopped = self.iteration - self.best_iteration >= self.patience
        return self.stopped

    def loss(self, w: Any) -> float:
        """The mean loss of the validation rows at w and its best intercept on the training rows."""
        from riskmin.estimators._common.offset import at_row_offset

        risk = self.problem.objective.risk
        self.candidate._set_fitted(np.asarray(w), risk.best_intercept(w), self.train.X, self.problem.rows)
        X, y, qid = self.validation[:3]
        return mean_loss(at_row_offset(self.candidate, self.validation.offset), X, y, qid)

    def restore(self) -> None:
        """Make the best iterate the fitted point, if the fit was ended; a converged fit stays as it is."""
        from riskmin.estimators._common.fit import move_to_point

        if self.stopped and self.model.result_.status == "interrupted":
            move_to_point(self.model, self.problem.objective, self.best_w, self.train.X, self.problem.rows)

    def describe(self) -> str:
        """Describe the outcome."""
        best = f"mean loss {self.best_loss:.6g} at iteration {self.best_iteration:,}"
        if self.stopped:
            return f"{best}, the best; stopped after {self.iteration:,}"
        return f"{best}, the best of {self.iteration:,}; not stopped early"
