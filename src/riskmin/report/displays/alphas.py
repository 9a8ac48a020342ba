"""Scores of a cross-validated search against alpha."""

from __future__ import annotations

from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.plots import new_axes


class AlphaSearchDisplay:
    """The mean score of a cross-validated search against alpha, with the range of the folds.

    Parameters
    ----------
    alphas : (k,) array
    scores : (folds, k) array
        The score of each alpha on the held-out rows of each fold.
    alpha : float
        The chosen one.
    score_name : str
        What the scores are, for the axis.
    bounds : (k, 3) array, optional
        Proved bounds of the mean score between two values of alpha: from, to, bound.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        Set by `plot`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from riskmin import AlphaSearchDisplay, LinearClassifierCV
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> search = LinearClassifierCV("logistic", alphas=[1e-4, 1e-2, 1.0], standardize=True, cv=3).fit(X, y)
    >>> display = AlphaSearchDisplay.from_estimator(search, plot=False)
    >>> display.scores.shape, display.alpha == search.alpha_
    ((3, 3), True)
    """

    def __init__(
        self, alphas: Any, scores: Any, alpha: float, score_name: str = "score", bounds: Any = None
    ) -> None:
        self.alphas: NDArray = np.asarray(alphas, dtype=float)
        self.scores: NDArray = np.atleast_2d(np.asarray(scores, dtype=float))
        self.alpha, self.score_name = float(alpha), score_name
        self.bounds: NDArray = np.empty((0, 3)) if bounds is None else np.asarray(bounds, dtype=float)

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, score_name: str | None = None, ax: Any = None, plot: bool = True
    ) -> AlphaSearchDisplay:
        """Take the scores of a fitted `LinearClassifierCV` or `LinearRegressorCV`.

        Parameters
        ----------
        estimator : LinearClassifierCV or LinearRegressorCV
        score_name : str, optional
            The name on the axis; by default the estimator's `scoring`, if that is a name.
        ax : matplotlib axes, optional
        plot : bool
            Whether to draw at once.
        """
        if "scores_" not in vars(estimator):
            raise ValueError(
                f"{type(estimator).__name__} has no scores_: fit a LinearClassifierCV "
                "or a LinearRegressorCV first"
            )
        if score_name is None:
            score_name = estimator.scoring if isinstance(estimator.scoring, str) else "score"
        bounds = vars(estimator).get("range_bounds_")
        display = cls(estimator.alphas_, estimator.scores_, estimator.alpha_, score_name, bounds)
        return display.plot(ax=ax) if plot else display

    def plot(self, *, ax: Any = None) -> AlphaSearchDisplay:
        """Draw the mean over the folds, their range, the chosen alpha, and what no other can exceed.

        Parameters
        ----------
        ax : matplotlib axes, optional
            By default those of a new figure.
        """
        (ax,) = new_axes() if ax is None else (ax,)
        order = np.argsort(self.alphas)
        x, scores = self.alphas[order], self.scores[:, order]
        ax.fill_between(x, scores.min(axis=0), scores.max(axis=0), alpha=0.15, label="range of the folds")
        ax.plot(x, scores.mean(axis=0), marker=".", label="mean of the folds")
        if len(self.bounds):
            edges = np.append(self.bounds[:, 0], self.bounds[-1, 1])
            ax.stairs(self.bounds[:, 2], edges, baseline=None, color="C3", label="proved bound of the mean")
        ax.axvline(self.alpha, linestyle="--", color="0.5", label=f"chosen: {self.alpha:.3g}")
        ax.set_xscale("log")
        ax.set(xlabel="alpha", ylabel=self.score_name, title="Cross-validation")
        ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self
