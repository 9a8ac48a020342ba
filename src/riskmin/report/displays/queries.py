"""The NDCG of each query of a ranking."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.plots import new_axes
from riskmin.metrics import ndcg_per_query


class NdcgDisplay:
    """The NDCG of each query, from the worst to the best: how many queries are ranked badly, and which.

    Parameters
    ----------
    query_ids : (q,) array
    ndcg : (q,) array
        The NDCG of each query; NaN for queries without a grade above 0, which are not drawn.
    n_rows : (q,) array
        The number of rows of each query.
    k : int or None
        The number of highest-ranked rows that count; None for all.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        Set by `plot`.

    Examples
    --------
    >>> from riskmin import NdcgDisplay
    >>> y, scores, qid = [2, 0, 1, 0, 1], [3.0, 2.0, 1.0, 1.0, 2.0], [7, 7, 7, 9, 9]
    >>> display = NdcgDisplay.from_predictions(y, scores, qid=qid, plot=False)
    >>> display.worst(1), round(display.mean, 3)
    ([7], 0.982)
    """

    def __init__(self, query_ids: Any, ndcg: Any, n_rows: Any, k: int | None = 10) -> None:
        self.query_ids: NDArray = np.asarray(query_ids)
        self.ndcg: NDArray = np.asarray(ndcg, dtype=float)
        self.n_rows: NDArray = np.asarray(n_rows, dtype=int)
        self.k = k
        if not len(self.query_ids) == len(self.ndcg) == len(self.n_rows):
            raise ValueError(
                f"{len(self.query_ids)} query ids, {len(self.ndcg)} values and {len(self.n_rows)} numbers of "
                "rows: give one of each per query"
            )
        if not np.isfinite(self.ndcg).any():
            raise ValueError("no query has a grade above 0, so that none has an NDCG: give rows with grades")

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        qid: Any,
        k: int | None = 10,
        ax: Any = None,
        plot: bool = True,
    ) -> NdcgDisplay:
        """Rank the rows of each query by a fitted estimator.

        Parameters
        ----------
        estimator : fitted `LinearRanker`, or a pipeline that ends in one; any estimator with `predict`
        X : (n, p) array
        y : (n,) array
            Grades >= 0.
        qid : (n,) array
            The query id of each row.
        k : int or None
            The number of highest-ranked rows per query that count; None for all.
        ax : matplotlib axes, optional
        plot : bool
            Whether to draw at once.
        """
        return cls.from_predictions(y, estimator.predict(X), qid=qid, k=k, ax=ax, plot=plot)

    @classmethod
    def from_predictions(
        cls, y_true: Any, y_score: Any, *, qid: Any, k: int | None = 10, ax: Any = None, plot: bool = True
    ) -> NdcgDisplay:
        """Rank the rows of each query by given scores.

        Parameters
        ----------
        y_true : (n,) array
            Grades >= 0.
        y_score : (n,) array
            Scores; the highest ranks first.
        qid : (n,) array
            The query id of each row.
        k : int or None
            The number of highest-ranked rows per query that count; None for all.
        ax : matplotlib axes, optional
        plot : bool
            Whether to draw at once.
        """
        ndcg = ndcg_per_query(y_true, y_score, qid, k=k)
        ids, n_rows = np.unique(np.asarray(qid), return_counts=True)
        display = cls(ids, ndcg, n_rows, k)
        return display.plot(ax=ax) if plot else display

    @property
    def mean(self) -> float:
        """The mean over the queries with a grade above 0."""
        return float(np.nanmean(self.ndcg))

    @property
    def name(self) -> str:
        """The name of the metric."""
        return "NDCG" if self.k is None else f"NDCG@{self.k}"

    def worst(self, n: int = 10) -> list[Any]:
        """Return the ids of the n queries with the lowest NDCG, the lowest first."""
        order = np.argsort(self.ndcg, kind="stable")  # NaN last
        return [self.query_ids[j].item() for j in order[:n] if np.isfinite(self.ndcg[j])]

    def plot(self, *, ax: Any = None) -> NdcgDisplay:
        """Draw the NDCG against the share of queries that are not ranked better, and the mean.

        Parameters
        ----------
        ax : matplotlib axes, optional
            By default those of a new figure.
        """
        (ax,) = new_axes() if ax is None else (ax,)
        values = np.sort(self.ndcg[np.isfinite(self.ndcg)])
        share = np.arange(1, len(values) + 1) / len(values)
        # the step of each query ends at its share; the first begins at 0
        share, values = np.append(0.0, share), np.append(values[0], values)
        ax.plot(share, values, drawstyle="steps-pre", label=f"{len(values) - 1} queries")
        ax.axhline(self.mean, linestyle="--", color="0.5", label=f"mean: {self.mean:.3f}")
        ax.set(
            xlabel="share of queries, the worst first", ylabel=self.name, title=f"{self.name} of each query"
        )
        ax.set_ylim(min(0.0, float(values[0])), 1.02)
        ax.legend(loc="lower right")
        self.ax_, self.figure_ = ax, ax.figure
        return self
