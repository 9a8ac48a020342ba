"""A metric of a binary classifier against the threshold of its scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.plots import new_axes

Metric = Callable[[NDArray, NDArray], float]
"""A metric of scikit-learn's form, of true and of predicted labels, both 0 or 1."""


class ThresholdDisplay:
    """A metric against the threshold: rows with a score above it are predicted as positive.

    Parameters
    ----------
    thresholds : (k,) array
    values : (k,) array
        The metric at each threshold.
    metric_name : str
        The name on the axis.
    threshold : float
        The threshold in use: 0 for `decision_function`.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        Set by `plot`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.metrics import f1_score
    >>> from riskmin import LinearClassifier, ThresholdDisplay
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LinearClassifier("hinge", alpha=1e-3, standardize=True).fit(X, y)
    >>> display = ThresholdDisplay.from_estimator(model, X, y, f1_score, n_thresholds=20, plot=False)
    >>> threshold, value = display.best
    >>> value >= f1_score(y, model.predict(X))
    True
    """

    def __init__(
        self, thresholds: Any, values: Any, metric_name: str = "metric", threshold: float = 0.0
    ) -> None:
        self.thresholds: NDArray = np.asarray(thresholds, dtype=float)
        self.values: NDArray = np.asarray(values, dtype=float)
        self.metric_name, self.threshold = metric_name, threshold

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        metric: Metric,
        *,
        n_thresholds: int = 200,
        ax: Any = None,
        plot: bool = True,
    ) -> ThresholdDisplay:
        """Compute a metric of a fitted binary classifier at many thresholds of its `decision_function`.

        Parameters
        ----------
        estimator : fitted classifier of two classes, or a pipeline that ends in one
        X : array of shape (n, p)
        y : array of n labels
        metric : callable
            ``metric(y_true, y_pred)`` of labels 0 and 1, such as `sklearn.metrics.f1_score`.
        n_thresholds : int
            The number of thresholds, in addition to 0.
        ax : matplotlib axes, optional
        plot : bool
            Whether to draw at once.
        """
        classes = estimator.classes_
        if len(classes) != 2:
            raise ValueError(f"a threshold needs two classes, but the estimator has {len(classes)}")
        positive = np.asarray(y) == classes[1]
        scores = estimator.decision_function(X)
        return cls.from_predictions(positive, scores, metric, n_thresholds=n_thresholds, ax=ax, plot=plot)

    @classmethod
    def from_predictions(
        cls,
        y: Any,
        scores: Any,
        metric: Metric,
        *,
        n_thresholds: int = 200,
        ax: Any = None,
        plot: bool = True,
    ) -> ThresholdDisplay:
        """Compute a metric of given scores at many thresholds.

        Parameters
        ----------
        y : array of n labels
            1 or True for positive rows, 0 or False for others.
        scores : array of n scores
        metric : callable
            ``metric(y_true, y_pred)`` of labels 0 and 1.
        n_thresholds : int
            The number of thresholds, in addition to 0.
        ax : matplotlib axes, optional
        plot : bool
            Whether to draw at once.
        """
        y, scores = np.asarray(y).astype(int), np.asarray(scores, dtype=float)
        # quantiles of the scores: as many rows between any two thresholds
        cuts = np.quantile(scores, np.linspace(0.0, 1.0, n_thresholds))
        thresholds = np.unique(np.append(cuts, 0.0))
        values = [float(metric(y, (scores > t).astype(int))) for t in thresholds]
        name = getattr(metric, "__name__", "metric")
        display = cls(thresholds, values, name)
        return display.plot(ax=ax) if plot else display

    @property
    def best(self) -> tuple[float, float]:
        """The threshold with the largest value of the metric, and this value."""
        k = int(np.argmax(self.values))
        return float(self.thresholds[k]), float(self.values[k])

    def plot(self, *, ax: Any = None) -> ThresholdDisplay:
        """Draw the metric, the threshold in use and the best one.

        Parameters
        ----------
        ax : matplotlib axes, optional
            By default those of a new figure.
        """
        (ax,) = new_axes() if ax is None else (ax,)
        threshold, value = self.best
        ax.plot(self.thresholds, self.values, drawstyle="steps-post")
        ax.axvline(self.threshold, linestyle="--", color="0.5", label=f"in use: {self.threshold:.3g}")
        ax.plot([threshold], [value], "o", label=f"best: {value:.3f} at {threshold:.3g}")
        ax.set(xlabel="threshold", ylabel=self.metric_name, title=f"{self.metric_name} by threshold")
        ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self
