"""The search for the best strength of the regularizer: a certified path for each fold."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed

from riskmin.convexity import check
from riskmin.estimators.base import (
    check_parameters,
    loss_of,
    objective_of,
    plain_risk,
    regularizer_of,
    risk_of,
)
from riskmin.estimators.outputs import joint_loss
from riskmin.estimators.standardize import Standard, standard_of
from riskmin.executors import Serial
from riskmin.objective import Objective
from riskmin.paths import lam_grid, path
from riskmin.regularizers import opened, penalized
from riskmin.solvers import get_solver
from riskmin.types import NDArray, Result


class Rows(NamedTuple):
    """Data to fit or to score."""

    X: Any
    y: NDArray
    weight: NDArray | None = None
    qid: NDArray | None = None

    def take(self, rows: Any) -> Rows:
        """Some of the rows; those of weight zero might as well not be there, and are not."""
        rows = np.arange(len(self.y))[rows]
        if self.weight is not None:
            rows = rows[self.weight[rows] > 0]
        weight, qid = (None if some is None else some[rows] for some in self[2:])
        return Rows(self.X[rows], self.y[rows], weight, qid)

    def parts(self, probe: Any) -> list[Rows]:
        """The problems that these are: one, or one an output where the probe fits each by itself."""
        if self.y.ndim == 1 or joint_loss(probe, self.y) is not None:
            return [self]
        return [self._replace(y=y) for y in self.y.T]


class Found(NamedTuple):
    """What a search has found."""

    alphas: NDArray
    """The strengths that were tried."""
    scores: NDArray
    """A row a fold, a column a strength."""
    missed: int
    """How many of the fits did not converge."""
    best: int
    """Which strength has the best mean score; of those that are equal, the largest."""
    mean: float
    """Its mean score."""


def search(
    probe: Any, data: Rows, alphas: NDArray | int, splits: Iterable[tuple[Any, Any]], scorer: Any
) -> Found:
    """Fit and score all strengths in all folds.

    Parameters
    ----------
    probe : estimator
        Its parameters are those of all fits, but for alpha.
    data : Rows
    alphas : array or int
        The strengths, or how many of the default grid.
    splits : pairs of arrays
        The rows to fit and those to score, for each fold.
    scorer : callable
        ``scorer(model, X, y)``, with ``sample_weight`` where it takes them, and ``qid`` where there are some.

    Returns
    -------
    Found
    """
    check_parameters(probe)
    get_solver(probe.solver)
    whole = data if data.weight is None or data.weight.all() else data.take(slice(None))
    problems = [_problem(probe, part).objective for part in whole.parts(probe)]
    for one in problems:
        check(one.risk, one.reg, np.zeros(one.risk.dim))
    if not loss_of(probe).separable:
        risk = problems[0].risk
        risk(np.zeros(risk.dim))  # what is wrong with all rows is said before any fold
    if isinstance(alphas, int):
        grids = [lam_grid(one.risk, opened(penalized(one.reg)), alphas) for one in problems]
        alphas = max(grids, key=lambda grid: float(grid[0]))
    folds = list(splits)
    done = Parallel(n_jobs=probe.n_jobs, prefer="threads")(
        delayed(_fold)(probe, data, fold, alphas, scorer, f"fold {k} of {len(folds)}")
        for k, fold in enumerate(folds, 1)
    )
    scores = np.array([found for found, _ in done])
    mean = np.nanmean(scores, axis=0) if np.isfinite(scores).any() else scores[0]
    best = _best(mean, alphas)
    return Found(alphas, scores, sum(missed for _, missed in done), best, float(mean[best]))


class _Problem(NamedTuple):
    """J of some rows, their labels and weights as it takes them, and their classes."""

    objective: Objective
    labels: NDArray
    weight: NDArray | None
    classes: NDArray | None
    standard: Standard | None

    def found(self, result: Result) -> tuple[NDArray, Any]:
        """The weights, and what is minimized out of the risk; 0 where it has none, or has them in w."""
        risk: Any = self.objective.risk
        if self.standard is not None:
            J = replace(self.objective, lam=result.trace[-1]["lam"])
            result = self.standard.tidied(J, result)
        return np.asarray(result.w), risk.intercept(result.w) if hasattr(risk, "intercept") else 0.0


def _problem(probe: Any, rows: Rows) -> _Problem:
    labels, weight, classes = probe._rows(rows.y, rows.weight)
    many = len(classes) if probe.task == "classification" else None
    risk = risk_of(
        probe,
        rows.X,
        labels,
        weight,
        fit_intercept=probe.fit_intercept,
        executor=Serial(),
        qid=rows.qid,
        loss=joint_loss(probe, labels) if many is None else loss_of(probe, many),
        n_outputs=many,
    )
    standard = standard_of(probe, plain_risk(risk), weight, rows.weight)
    objective = objective_of(probe, risk, regularizer_of(probe, risk), standard)
    return _Problem(objective, labels, weight, classes, standard)


def _fold(
    probe: Any, data: Rows, fold: tuple[Any, Any], alphas: NDArray, scorer: Any, name: str
) -> tuple[list[float], int]:
    """The scores of the rows left out, a strength at a time, and how many fits did not converge."""
    try:
        return _scores(probe, data.take(fold[0]), data.take(fold[1]), alphas, scorer)
    except ValueError as error:  # such as a class that is not there
        raise ValueError(f"{error} (in {name}; fewer folds may do)") from error


def _scores(probe: Any, train: Rows, test: Rows, alphas: NDArray, scorer: Any) -> tuple[list[float], int]:
    problems = [_problem(probe, part) for part in train.parts(probe)]
    paths = [_path(probe, one.objective, alphas) for one in problems]
    extra = {} if test.qid is None else {"qid": test.qid}
    if test.weight is not None and _takes_weights(scorer):
        extra["sample_weight"] = test.weight
    _, labels, weight, classes, _ = problems[0]
    scores = []
    for alpha, results in zip(alphas, zip(*paths, strict=True), strict=True):
        model = type(probe)(**probe.get_params(deep=False)).set_params(alpha=float(alpha))
        model.n_features_in_ = train.X.shape[1]
        fits = [one.found(result) for one, result in zip(problems, results, strict=True)]
        if labels.ndim == train.y.ndim:
            model._keep(*fits[0], classes, train.X, labels, weight)
        else:  # a fit an output
            w, b = np.stack([w for w, _ in fits], axis=1).ravel(), np.array([b for _, b in fits])
            model._keep(w, b, None, train.X, train.y, weight)
        scores.append(float(scorer(model, test.X, test.y, **extra)))
    return scores, sum(result.status != "converged" for results in paths for result in results)


def _path(probe: Any, objective: Objective, alphas: NDArray) -> list[Result]:
    """A certified fit a strength."""
    results = path(
        objective.risk,
        penalized(objective.reg),
        alphas,
        solver=probe.solver,
        tol=probe.tol,
        atol=probe.atol,
        max_iter=int(probe.max_iter),
        max_seconds=math.inf if probe.max_seconds is None else probe.max_seconds,
    )
    if any(result.status == "interrupted" for result in results):
        raise KeyboardInterrupt
    return results


def _takes_weights(scorer: Any) -> bool:
    """Whether a scorer does: those of scikit-learn pass on whatever they are given."""
    return "sample_weight" in signature(getattr(scorer, "_score_func", scorer)).parameters


def _best(mean: NDArray, alphas: NDArray) -> int:
    """The best mean score; of those that are equal, that of the largest strength."""
    if not np.isfinite(mean).any():
        raise ValueError("no strength has a score in any fold: choose another scoring, or fewer folds")
    return max(np.flatnonzero(mean == np.nanmax(mean)).tolist(), key=lambda k: float(alphas[k]))
