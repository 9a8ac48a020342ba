"""The search of `riskmin cv` for ordinal models and rankings; folds keep the rows of a query together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from riskmin.cli.tasks.ordinal_ranking import ordered_grades
from riskmin.core import NDArray


class GradeErrorScorer:
    """Scorer: minus the mean absolute error in grades, so that higher is better."""

    name = "error in grades, negative"

    def __init__(self, grades: list[Any]) -> None:
        self.grades = grades

    def __call__(self, model: Any, X: Any, y: Any) -> float:
        """Score a fitted model on rows and labels; grades unseen in training are allowed."""
        from riskmin.estimators.ordinal import grade_indices

        return -float(
            np.mean(np.abs(grade_indices(model.predict(X), self.grades) - grade_indices(y, self.grades)))
        )


class GradedLamSearch:
    """Search of lam for an ordinal model or a ranking; has the fitted attributes of `LinearClassifierCV`."""

    def __init__(self, model: Any, *, alphas: Any, n_alphas: int, cv: int, scoring: Any) -> None:
        self.model, self.task, self.loss, self.tol = model, model.task, model.loss, model.tol
        self.order = getattr(model, "order", None)
        self.alphas, self.n_alphas, self.cv, self.scoring = alphas, n_alphas, cv, scoring

    def fit(self, X: Any, y: NDArray, qid: Any = None) -> None:
        """Choose lam by cross-validation and fit all rows with it."""
        from sklearn.base import clone

        from riskmin.estimators._common.cv_search import LabeledRows, search_alphas

        # grades of all rows, since those of a fold may be fewer
        scorer = (
            GradeErrorScorer(ordered_grades(self.model, y).tolist()) if self.scoring is None else self.scoring
        )
        alphas = self.n_alphas if self.alphas is None else np.array(self.alphas, dtype=np.float64)
        result = search_alphas(
            self.model, LabeledRows(X, y, None, qid), alphas, self._folds(X, y, qid), scorer
        )
        self.alphas_, self.scores_, self.n_not_converged_ = result[:3]
        self.alpha_, self.best_score_ = float(result.alphas[result.best_index]), result.mean
        self.best_estimator_ = clone(self.model).set_params(alpha=self.alpha_)
        self.best_estimator_.fit(X, y, **({} if qid is None else {"qid": qid}))

    def _folds(self, X: Any, y: NDArray, qid: Any) -> Iterator[tuple[Any, Any]]:
        from sklearn.model_selection import GroupKFold, StratifiedKFold

        n_groups = len(y) if qid is None else len(np.unique(qid))
        if n_groups < self.cv:
            noun = "rows" if qid is None else "queries"
            raise ValueError(
                f"--folds {self.cv} needs as many {noun}, but the data hold {n_groups}: lower it"
            )
        if qid is None:
            yield from StratifiedKFold(self.cv).split(X, np.unique(y, return_inverse=True)[1])
        else:
            yield from GroupKFold(self.cv).split(X, y, qid)
