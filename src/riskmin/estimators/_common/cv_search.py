"""Search for the best regularization strength, with a certified path for each fold."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from inspect import signature
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from joblib import Parallel, delayed
from sklearn import config_context

from riskmin.core import NDArray, Result
from riskmin.driver.loop import minimize
from riskmin.driver.path import lam_grid, path
from riskmin.driver.run import Callback
from riskmin.estimators._common.base import RowEstimator
from riskmin.estimators._common.fit import build_objective, build_risk, resolve_loss, resolve_regularizer
from riskmin.estimators._common.fold_moments import FoldMoments
from riskmin.estimators._common.input import EncodedLabels
from riskmin.estimators._common.offset import at_row_offset
from riskmin.estimators._common.standardize import ColumnScaling, column_scaling
from riskmin.estimators._common.trivial import BALANCED_HINGE, loose_bound
from riskmin.estimators.removal import model_of_scores
from riskmin.estimators.scikit_learn import FitTasks
from riskmin.executors import Serial
from riskmin.losses import RocArea
from riskmin.problem.convexity import check
from riskmin.problem.objective import Objective
from riskmin.solvers import get_solver

FoldCallback: TypeAlias = Callable[[str], Callback]
"""Returns the callback of the path of a fold, by the name of the fold."""


RULES = ("best", "one standard error")
"""How alpha is chosen by its scores, see `best_index`."""


class LabeledRows(NamedTuple):
    """Rows with labels, weights and query ids, or lists of sequences, to fit or to score."""

    X: Any
    y: Any
    weight: NDArray | None = None
    qid: NDArray | None = None
    offset: NDArray | None = None

    def subset(self, rows: Any) -> LabeledRows:
        """Return some of the rows, without those of weight zero."""
        # a mask, a slice or an array of indices becomes an array of indices
        rows = np.arange(len(self.y))[rows]
        if self.weight is not None:
            rows = rows[self.weight[rows] > 0]
        beside = (None if values is None else values[rows] for values in self[2:])
        X, y = ([a[i] for i in rows] if isinstance(a, list) else a[rows] for a in (self.X, self.y))
        return LabeledRows(X, y, *beside)

    def by_problem(self, template: Any) -> list[LabeledRows]:
        """Return the data of each problem: one, or one per output if the template fits them separately."""
        # a joint loss fits all outputs in one problem
        if self.y.ndim == 1 or template._encode(self.y, self.weight).loss.multi_output:
            return [self]
        return [self._replace(y=y) for y in self.y.T]


class SearchResult(NamedTuple):
    """Scores of all values of alpha, and the best of them."""

    alphas: NDArray
    """The values of alpha tried."""
    scores: NDArray
    """Scores, one row per fold and one column per alpha."""
    n_not_converged: int
    """Number of fits that did not converge."""
    best_index: int
    """Index of the chosen alpha, see `best_index`."""
    mean: float
    """Mean score of the chosen alpha."""
    note: str = ""
    """Why no alpha learns anything, and what to do, if that is proved; then the largest is the only one."""


def search_alphas(
    template: Any,
    data: LabeledRows,
    alphas: NDArray | int,
    splits: Iterable[tuple[Any, Any]],
    scorer: Any,
    fold_callback: FoldCallback | None = None,
    tasks: FitTasks | None = None,
    rule: str = "best",
) -> SearchResult:
    """Fit and score all values of alpha in all folds.

    Parameters
    ----------
    template : estimator
        Template of all fits, whose alpha is ignored.
    data : LabeledRows
        All rows, of which the folds are subsets.
    alphas : array or int
        The values of alpha, or the size of the default grid.
    splits : pairs of arrays
        Training and test rows of each fold.
    scorer : callable
        ``scorer(model, X, y)``, called with ``sample_weight`` if it takes them, and ``qid`` if given.
    fold_callback : callable, optional
        ``fold_callback("fold 1 of 5")`` returns the callback of the path of a fold.
    tasks : FitTasks, optional
        The progress of the search: one part per fold, followed by one of a fit to all rows.
    rule : "best" or "one standard error"
        How the best alpha is chosen, see `best_index`.

    Returns
    -------
    SearchResult
    """
    template._check_parameters()
    get_solver(template.solver)
    # rows of weight zero must not influence the checks or the default grid
    used = data if data.weight is None or data.weight.all() else data.subset(slice(None))
    of_rows = isinstance(template, RowEstimator)
    parts = used.by_problem(template) if of_rows else []
    problems = [fold_problem(template, part).objective for part in parts]
    for problem in problems:
        # a user-defined loss is tested for convexity once, not in every fold
        check(problem.risk, problem.reg, np.zeros(problem.risk.dim))
    if problems and not resolve_loss(template).separable:
        risk = problems[0].risk
        risk(np.zeros(risk.dim))  # report invalid data of all rows before the first fold
    if isinstance(alphas, int) and not problems:
        alphas = np.geomspace(1.0, 1e-6, alphas)
    elif isinstance(alphas, int):
        grids = [
            lam_grid(problem.risk, problem.reg.penalized_part.without_sizes, alphas) for problem in problems
        ]
        # separate problems share the grid that starts at the largest alpha
        alphas = max(grids, key=lambda grid: float(grid[0]))
    note = _note_without_learning(template, problems[0], alphas) if problems else ""
    alphas = np.array([np.max(alphas)]) if note else alphas
    # a list, since messages name the number of folds
    folds = list(splits)
    tasks, finished = template._fit_tasks if tasks is None else tasks, count(1)

    moments = None if fold_callback or not of_rows else FoldMoments.of(template, data, folds, alphas, scorer)

    def score(k: int, fold: tuple[Any, Any]) -> tuple[list[float], int]:
        name, scores = f"fold {k} of {len(folds)}", None if moments is None else moments.scores(k - 1)
        if scores is None:
            result = _score_fold(template, data, fold, alphas, scorer, name, fold_callback)
        else:
            result = scores, 0
        tasks.advance(next(finished) / (len(folds) + 1))
        return result

    done = Parallel(n_jobs=template.n_jobs, prefer="threads")(
        delayed(score)(k, fold) for k, fold in enumerate(folds, 1)
    )
    scores = np.array([fold_scores for fold_scores, _ in done])
    best = best_index(scores, alphas, rule)
    n_failed = sum(failed for _, failed in done)
    return SearchResult(alphas, scores, n_failed, best, float(np.nanmean(scores[:, best])), note)


def _note_without_learning(template: Any, problem: Objective, alphas: NDArray) -> str:
    """Return a remedy if no alpha learns more than w = 0 within tol, which is proved on all rows; else "".

    J at w = 0 does not depend on alpha, and min J does not decrease with it: a lower bound at the smallest
    alpha is one for all. The run ends as soon as it is known whether that alpha learns.
    """
    loss = resolve_loss(template)
    if len(alphas) < 2 or loss.separable or not loss.has_cutoff or isinstance(loss, RocArea):
        return ""
    smallest = replace(problem, lam=float(np.min(alphas)))
    trivial = problem.risk(np.asarray(problem.reg.conjugate_grad(np.zeros(problem.risk.dim))))[0]

    def known(iterate: Any, row: dict[str, float]) -> bool:
        learns, trivially = (1 - 2 * template.tol) * trivial, (1 - template.tol) * trivial
        return bool(row["value"] < learns or row["lower"] >= trivially)

    result = minimize(smallest, get_solver(template.solver), tol=template.tol, callback=known)
    if not result.lower >= (1 - template.tol) * trivial > 0:
        return ""
    why = loose_bound(problem, loss.components[-1])
    return (
        f"J is least at w = 0 within tol={template.tol:g} for every alpha from {np.min(alphas):g} to "
        f"{np.max(alphas):g}: {why}; use loss='roc_area', or {BALANCED_HINGE}"
    )


def search_left_out(
    template: Any, data: LabeledRows, alphas: NDArray | int, scorer: Any, groups: Any, tasks: FitTasks
) -> SearchResult:
    """Score all values of alpha by predictions of each row, or group of rows, by the model without it.

    The scores of all rows are one fold, since a single row has no R^2. The arguments are those of
    `search_alphas`.
    """
    if isinstance(alphas, int):
        problems = [fold_problem(template, part).objective for part in data.by_problem(template)]
        alphas = lam_grid(problems[0].risk, problems[0].reg.penalized_part.without_sizes, alphas)
    if data.y.ndim > 1:
        raise ValueError("cv='loo' takes one target: fit one model per column of y")
    weighted = data.weight is not None and takes_weights(scorer)
    extra = {"sample_weight": data.weight} if weighted else {}
    scores, n_failed, params = [], 0, template.get_params(deep=False)
    for k, alpha in enumerate(alphas, 1):
        model = type(template)(**params | {"alpha": float(alpha)})
        with warnings.catch_warnings():  # the search counts the fits that do not converge
            warnings.simplefilter("ignore")
            model.fit(data.X, data.y, data.weight)
        n_failed += model.result_.status != "converged"
        found = model.leave_one_out(data.X, data.y, data.weight, groups=groups)
        given, rows = model_of_scores(model, found.scores)
        scores.append(float(scorer(given, rows, data.y, **extra)))
        tasks.advance(k / (len(alphas) + 1))
    best = best_index(np.array([scores]), alphas, "best")
    return SearchResult(alphas, np.array([scores]), n_failed, best, scores[best])


class _FoldProblem(NamedTuple):
    """The objective of some rows, and their encoded labels."""

    objective: Objective
    rows: EncodedLabels
    scaling: ColumnScaling | None

    def weights_and_intercept(self, result: Result) -> tuple[NDArray, Any]:
        """Return w and the profiled intercept; 0 if there is none, or w holds the intercepts."""
        # results of a path differ from the objective in lam only
        if self.scaling is not None:
            J = replace(self.objective, lam=result.trace[-1]["lam"])
            result = self.scaling.with_zeroed_constants(J, result)
        if result.intercept is None:
            return np.asarray(result.w), self.objective.risk.best_intercept(result.w)
        return np.asarray(result.w), result.intercept


def fold_problem(template: Any, rows: LabeledRows) -> _FoldProblem:
    """Return the problem of some rows; folds run in parallel, so the rows of each are processed serially."""
    # the classes of these rows: a fold may lack some
    encoded = template._encode(rows.y, rows.weight)._replace(offset=rows.offset)
    queries = rows.qid if encoded.loss.task == "ranking" else None  # losses for regression fit single rows
    risk = build_risk(template, rows.X, encoded, executor=Serial(), qid=queries)
    scaling = column_scaling(template, risk, encoded.weight, rows.weight)
    objective = build_objective(template, risk, resolve_regularizer(template, risk), scaling)
    return _FoldProblem(objective, encoded, scaling)


def _score_fold(
    template: Any,
    data: LabeledRows,
    fold: tuple[Any, Any],
    alphas: NDArray,
    scorer: Any,
    name: str,
    fold_callback: FoldCallback | None,
) -> tuple[list[float], int]:
    """Return the scores of the held-out rows, one per alpha, and the number of fits that did not converge."""
    train, test = data.subset(fold[0]), data.subset(fold[1])
    callback = None if fold_callback is None else fold_callback(name)
    try:
        if not isinstance(template, RowEstimator):
            return _score_fits(template, train, test, alphas, scorer, callback)
        return _score_alphas(template, train, test, alphas, scorer, callback)
    except ValueError as error:
        of_classes = isinstance(data.y, np.ndarray) and template.task != "regression"
        labels = [set(np.ravel(rows.y).tolist()) for rows in (data, train, test) if of_classes]
        lacks_class = of_classes and not labels[0] == labels[1] == labels[2]
        remedy = "; fewer folds may do" if lacks_class else ""
        raise ValueError(f"{error} (in {name}{remedy})") from error


def _score_alphas(
    template: Any,
    train: LabeledRows,
    test: LabeledRows,
    alphas: NDArray,
    scorer: Any,
    callback: Callback | None,
) -> tuple[list[float], int]:
    problems = [fold_problem(template, part) for part in train.by_problem(template)]
    paths = [_fit_path(template, problem.objective, alphas, callback) for problem in problems]
    # keyword arguments of the scorer
    extra = {} if test.qid is None else {"qid": test.qid}
    if test.weight is not None and takes_weights(scorer):
        extra["sample_weight"] = test.weight
    rows = template._encode(train.y, train.weight)
    scores, params = [], template.get_params(deep=False)
    for alpha, results in zip(alphas, zip(*paths, strict=True), strict=True):
        # set the fitted attributes of a new model as `fit` does, without another run
        model = type(template)(**params | {"alpha": float(alpha)})
        model.n_features_in_ = train.X.shape[1]
        fits = [
            problem.weights_and_intercept(result) for problem, result in zip(problems, results, strict=True)
        ]
        w, b = fits[0]
        if np.ndim(problems[0].rows.labels) < train.y.ndim:  # one fit per output
            w, b = np.stack([w for w, _ in fits], axis=1).ravel(), np.array([b for _, b in fits])
        model._set_fitted(w, b, train.X, rows)
        # the scorer sees a fitted estimator, as in scikit-learn; its rows are checked already
        with config_context(assume_finite=True):
            scores.append(float(scorer(at_row_offset(model, test.offset), test.X, test.y, **extra)))
    return scores, sum(result.status != "converged" for results in paths for result in results)


def _score_fits(
    template: Any,
    train: LabeledRows,
    test: LabeledRows,
    alphas: NDArray,
    scorer: Any,
    callback: Callback | None,
) -> tuple[list[float], int]:
    """Return the scores of a model of sequences, each of whose fits starts from the one before."""
    scores, n_failed = [], 0
    model = type(template)(**template.get_params(deep=False) | {"warm_start": True, "callback": callback})
    extra = {"sample_weight": test.weight} if test.weight is not None and takes_weights(scorer) else {}
    for alpha in alphas:
        model.alpha = float(alpha)
        with warnings.catch_warnings():  # the search counts the fits that do not converge
            warnings.simplefilter("ignore")
            model.fit(train.X, train.y, train.weight)
        if model.result_.status == "interrupted":
            raise KeyboardInterrupt
        n_failed += model.result_.status != "converged"
        scores.append(float(scorer(model, test.X, test.y, **extra)))
    return scores, n_failed


def _fit_path(
    template: Any, objective: Objective, alphas: NDArray, callback: Callback | None
) -> list[Result]:
    """Return one certified fit per alpha."""
    results = path(
        objective.risk,
        objective.reg.penalized_part,
        alphas,
        solver=template.solver,
        tol=template.tol,
        atol=template.atol,
        max_iter=int(template.max_iter),
        max_seconds=math.inf if template.max_seconds is None else template.max_seconds,
        callback=callback,
    )
    # an incomplete path has no scores: let Ctrl-C end the search
    if any(result.status == "interrupted" for result in results):
        raise KeyboardInterrupt
    return results


def takes_weights(scorer: Any) -> bool:
    """Whether a scorer takes weights; those of scikit-learn pass keywords on to their score function."""
    # `_score_func` is the metric inside a scorer that `make_scorer` returned
    return "sample_weight" in signature(getattr(scorer, "_score_func", scorer)).parameters


def best_index(scores: NDArray, alphas: NDArray, rule: str) -> int:
    r"""Return the index of the chosen alpha, given one row of scores per fold.

    "best" is the alpha of the best mean score, the largest one in case of ties. "one standard error" is the
    largest alpha whose mean is at most :math:`s / \sqrt K` below it, where s is the standard deviation of the
    best scores over K folds: a simpler model whose score cannot be told from the best.

    Examples
    --------
    >>> scores, alphas = np.array([[0.7, 0.9, 0.8], [0.5, 0.6, 0.65]]), np.array([1.0, 0.1, 0.01])
    >>> best_index(scores, alphas, "best"), best_index(scores, alphas, "one standard error")
    (1, 0)
    """
    if rule not in RULES:
        raise ValueError(f"rule={rule!r}: give {' or '.join(map(repr, RULES))}")
    if not np.isfinite(scores).any():
        raise ValueError("no alpha has a score in any fold: choose another scoring, or fewer folds")
    with warnings.catch_warnings():  # a scorer may return NaN in some folds, or in all of one alpha
        warnings.simplefilter("ignore")
        mean = np.nanmean(scores, axis=0)
    best = int(np.nanargmax(mean))
    margin = 0.0
    if rule != "best":
        of_best = scores[np.isfinite(scores[:, best]), best]
        if len(of_best) < 2:
            raise ValueError(f"rule={rule!r} needs scores of several folds: give more, or rule='best'")
        margin = float(of_best.std(ddof=1)) / math.sqrt(len(of_best))
    return max(np.flatnonzero(mean >= mean[best] - margin).tolist(), key=lambda k: float(alphas[k]))
