"""What `cv` compares, and its search for models of grades, whose folds keep queries together."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.cli.graded import grades, places
from riskmin.cli.measures import Measure, measure_of, raw_scores
from riskmin.types import NDArray


class Scorer:
    """A measure of riskmin's as a scorer of scikit-learn's; its text is its name."""

    def __init__(self, measure: Measure) -> None:
        self.measure = measure

    def __str__(self) -> str:
        return self.measure.name

    def __call__(self, model: Any, X: Any, y: Any, qid: Any = None) -> float:
        """The measure of a fitted model on rows, labels and query ids."""
        truth = np.where(y == model.classes_[1], 1.0, -1.0) if model.task == "classification" else y
        return float(self.measure.of(truth, raw_scores(model, X), qid))


class GradeError:
    """By how many of the grades predictions are off, negative so that higher is better."""

    def __init__(self, grades: list[Any]) -> None:
        self.grades = grades

    def __str__(self) -> str:
        return "error in grades, negative"

    def __call__(self, model: Any, X: Any, y: Any) -> float:
        """Of a fitted model, on rows and labels; some of the grades may be new to it."""
        return -float(np.mean(np.abs(places(model.predict(X), self.grades) - places(y, self.grades))))


def scoring_of(name: str | None, loss: str, task: str) -> Any:
    """The scorer that a name stands for; without one, that of the loss, or None for the accuracy or R^2."""
    from sklearn.metrics import get_scorer

    from riskmin import get_loss
    from riskmin.losses import LOSSES

    given = loss if name is None else name
    measure = measure_of(get_loss(given)) if given.partition(":")[0].strip() in LOSSES else None
    if measure is not None and measure.task == task:
        return Scorer(measure)
    if name is None:
        return None
    if measure is not None or task == "ranking":
        raise ValueError(
            f"--scoring {name} is no measure for {task}, which {loss} is for: "
            f"choose {', '.join(_names(task)) or 'another'}"
        )
    get_scorer(name)
    return name


def _names(task: str) -> list[str]:
    """The losses whose names stand for measures of a task."""
    from riskmin.losses import LOSSES

    found = {name: measure_of(loss) for name, loss in LOSSES.items()}
    return [name for name, measure in found.items() if measure is not None and measure.task == task]


class GradedSearch:
    """The best strength for an ordinal model or a ranking: a chain of certified fits for each fold.

    It has the attributes of `LinearClassifierCV`.
    """

    def __init__(self, model: Any, *, alphas: Any, n_alphas: int, cv: int, scoring: Any) -> None:
        self.model, self.task, self.loss, self.tol = model, model.task, model.loss, model.tol
        self.order = getattr(model, "order", None)
        self.alphas, self.n_alphas, self.cv, self.scoring = alphas, n_alphas, cv, scoring

    def fit(self, X: Any, y: NDArray, qid: Any = None) -> None:
        """Choose the strength, and fit all rows."""
        from sklearn.base import clone
        from sklearn.metrics import get_scorer

        self.alphas_ = self._grid(X, y, qid)
        if self.scoring is None:
            self.scoring = GradeError(grades(self.model, y).tolist())
        scorer = get_scorer(self.scoring) if isinstance(self.scoring, str) else self.scoring
        self.n_not_converged_, table = 0, []
        for train, test in self._folds(X, y, qid):
            table.append(self._fold(X, y, qid, train, test, scorer))
        self.scores_ = np.array(table)
        mean = self.scores_.mean(axis=0)
        best = max(np.flatnonzero(mean == mean.max()).tolist(), key=lambda k: float(self.alphas_[k]))
        self.alpha_, self.best_score_ = float(self.alphas_[best]), float(mean[best])
        self.best_estimator_ = self._fitted(clone(self.model).set_params(alpha=self.alpha_), X, y, qid)

    def _fitted(self, model: Any, X: Any, y: Any, qid: Any) -> Any:
        model.fit(X, y, **({} if qid is None else {"qid": qid}))
        if model.result_.status == "interrupted":
            raise KeyboardInterrupt
        return model

    def _grid(self, X: Any, y: NDArray, qid: Any) -> NDArray:
        from riskmin.estimators.base import regularizer_of, risk_of
        from riskmin.estimators.ordinal import grades_of
        from riskmin.executors import Serial
        from riskmin.paths import lam_grid

        if self.alphas is not None:
            return np.array(self.alphas, dtype=np.float64)
        labels = grades_of(y, self.order)[1].astype(np.float64) if self.task == "ordinal" else y
        risk = risk_of(self.model, X, labels, None, fit_intercept=False, executor=Serial(), qid=qid)
        return lam_grid(risk, regularizer_of(self.model), self.n_alphas)

    def _folds(self, X: Any, y: NDArray, qid: Any) -> Any:
        from sklearn.model_selection import GroupKFold, StratifiedKFold

        many = len(y) if qid is None else len(np.unique(qid))
        if many < self.cv:
            what = "rows" if qid is None else "queries"
            raise ValueError(f"--folds {self.cv} needs as many {what}, but the data hold {many}: lower it")
        if qid is None:
            return StratifiedKFold(self.cv).split(X, np.unique(y, return_inverse=True)[1])
        return GroupKFold(self.cv).split(X, y, qid)

    def _fold(self, X: Any, y: NDArray, qid: Any, train: NDArray, test: NDArray, scorer: Any) -> list[float]:
        """The scores of the rows left out, each fit from the one of the next larger strength."""
        from sklearn.base import clone

        model, found = clone(self.model).set_params(warm_start=True), np.empty(len(self.alphas_))
        ids = (None, None) if qid is None else (qid[train], qid[test])
        for k in np.argsort(-self.alphas_, kind="stable").tolist():
            self._fitted(model.set_params(alpha=float(self.alphas_[k])), X[train], y[train], ids[0])
            self.n_not_converged_ += model.result_.status != "converged"
            extra = {} if ids[1] is None else {"qid": ids[1]}
            found[k] = scorer(model, X[test], y[test], **extra)
        return found.tolist()
