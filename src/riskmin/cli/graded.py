"""What the commands do for grades: ordinal regression, and rankings of the rows of each query."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from riskmin.cli.common import as_label
from riskmin.cli.measures import mean_loss, raw_scores
from riskmin.types import NDArray


# ---------------------------------------------------------------- ordinal
def check_ordinal(model: Any, y: Any, qid: Any) -> None:
    """Two grades at least, whose order is known."""
    grades = [as_label(grade) for grade in np.unique(y).tolist()]
    if len(grades) < 2:
        raise ValueError(
            f"the labels hold one grade ({grades[0]}), but {model.loss} compares rows of different grades: "
            "choose another --target or other rows"
        )
    if y.dtype.kind in "US" and model.order is None:
        some = ",".join(grades[:3]) + (",..." if len(grades) > 3 else "")
        raise ValueError(
            f"the grades are words, whose order is not known: give all of them, the lowest first, by --order "
            f"{some}"
        )


def grades(model: Any, y: Any) -> NDArray:
    """The grades, from the lowest to the highest."""
    from riskmin.estimators.ordinal import grades_of

    return grades_of(y, model.order)[0]


def ordinal_truth(model: Any, y: Any, n_rows: int) -> tuple[NDArray, NDArray]:
    """The numbers of the grades, 0 for the lowest, and equal weights."""
    return places(y, model.classes_.tolist()), np.full(n_rows, 1 / n_rows)


def places(y: NDArray, known: list[Any]) -> NDArray:
    """The places of grades among those that are known, from the lowest to the highest."""
    place = {grade: k for k, grade in enumerate(known)}
    found, which = np.unique(y, return_inverse=True)
    if strange := [grade for grade in found.tolist() if grade not in place]:
        names = ", ".join(as_label(grade) for grade in place)
        raise ValueError(
            f"the grade {as_label(strange[0])} is none of the model's, {names}: check the data and --target"
        )
    numbers: NDArray = np.array([place[grade] for grade in found.tolist()], np.float64)[which]
    return numbers


def grade_names(model: Any, X: Any) -> list[str]:
    """The grade of every row, as it was written."""
    return [as_label(grade) for grade in model.predict(X).tolist()]


def ordinal_metrics(model: Any, X: Any, y: Any, qid: Any) -> dict[str, Any]:
    """How far off the predicted grades are, and how well the scores order the rows."""
    from scipy.stats import kendalltau

    if y.dtype.kind in "US" and model.classes_.dtype.kind in "biuf":
        raise ValueError(
            "the labels are words, but the model's grades are numbers: check the data and --target"
        )
    # grades that are new to the model have a place among the others too; only the loss has none for them
    known = model.classes_.tolist() if model.order is None else model.order
    if model.order is None and known == sorted(known):
        known = np.unique([*known, *y.tolist()]).tolist()
    truth, said = places(y, known), places(model.predict(X), known)
    found = {
        "mean absolute error, in grades": np.mean(np.abs(said - truth)),
        "accuracy": np.mean(said == truth),
        "at most one grade off": np.mean(np.abs(said - truth) <= 1),
    }
    z = raw_scores(model, X)
    if np.any(truth != truth[0]):
        tau = kendalltau(z, truth).statistic
        found["Kendall's tau"] = tau if np.isfinite(tau) else 0.0  # of scores that are all the same
        if set(np.unique(y).tolist()) <= set(model.classes_.tolist()):
            found["mean loss"] = mean_loss(model, z, ordinal_truth(model, y, len(y))[0])
    return {name: float(value) for name, value in found.items()}


# ---------------------------------------------------------------- rankings
def check_ranking(model: Any, y: Any, qid: Any) -> None:
    """Grades that are numbers, and queries."""
    if y.dtype.kind in "US":
        raise ValueError(
            f"the labels are words (such as {str(y[0])!r}), but {model.loss} takes grades that are numbers, "
            "a higher one better: choose another --target, or number the grades"
        )
    need_queries(model, qid)


def need_queries(model: Any, qid: Any) -> None:
    """Raise where a ranking has no queries."""
    if qid is None:
        raise ValueError(
            f"the data have no query ids, but {model.loss} ranks the rows of each query: write qid:ID after "
            "each label, or name the column of a table by --qid"
        )


def ranking_truth(model: Any, y: Any, n_rows: int) -> tuple[NDArray, NDArray]:
    """The grades as floats, and equal weights."""
    if y.dtype.kind not in "biuf":
        raise ValueError("the labels are not numbers, but the model ranks by grades: check --target")
    return y.astype(np.float64), np.full(n_rows, 1 / n_rows)


def ranking_metrics(model: Any, X: Any, y: Any, qid: Any) -> dict[str, Any]:
    """Measures of rankings, each a mean over the queries that have a choice."""
    from riskmin.estimators.base import loss_of
    from riskmin.estimators.scorers import measure_of
    from riskmin.losses import Mrr, Ndcg

    need_queries(model, qid)
    truth, _ = ranking_truth(model, y, len(y))
    z = raw_scores(model, X)
    _, sizes = np.unique(qid, return_counts=True)
    found: dict[str, Any] = {"queries": len(sizes)}
    for measure in (measure_of(loss_of(model)), measure_of(Ndcg(k=10)), measure_of(Mrr())):
        if measure is not None and truth.min() >= 0 and truth.max() > 0:
            found[measure.name] = float(measure.scorer(model, X, truth, qid=qid))
    with contextlib.suppress(ValueError):  # these data may have no query that the loss could judge
        found["mean loss"] = mean_loss(model, z, truth, qid)
    return found
