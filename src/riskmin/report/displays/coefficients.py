"""The largest weights of a linear model, by the names of the features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.plots import new_axes


class CoefficientDisplay:
    """The largest weights of a linear model, as bars with the names of the features.

    Parameters
    ----------
    coef : (p,) or (k, p) array
        The weights; one row per class or output.
    feature_names : sequence of str
        The names of the p features.
    output_names : sequence of str
        The names of the k rows; empty for a single row.
    std_err : (p,) array, optional
        Standard errors of a single row of weights, drawn as thin lines.
    proved : (p, 2) array, optional
        Intervals that hold the weights of the exact optimum, drawn as thick lines.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        Set by `plot`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin import CoefficientDisplay, LinearRegressor
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> model = LinearRegressor("huber", alpha=1e-4).fit(X, y)
    >>> display = CoefficientDisplay.from_estimator(model, plot=False)
    >>> display.largest(2)
    ['bmi', 's5']
    """

    def __init__(
        self,
        coef: Any,
        feature_names: Sequence[str],
        output_names: Sequence[str] = (),
        std_err: Any = None,
        proved: Any = None,
    ) -> None:
        self.coef: NDArray = np.atleast_2d(np.asarray(coef, dtype=float))
        self.feature_names = [str(name) for name in feature_names]
        self.output_names = [str(name) for name in output_names]
        self.std_err, self.proved = (None if a is None else np.asarray(a, float) for a in (std_err, proved))
        if self.coef.shape[1] != len(self.feature_names):
            raise ValueError(
                f"{self.coef.shape[1]} weights, but {len(self.feature_names)} feature names: "
                "give one per weight"
            )

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        X: Any = None,
        y: Any = None,
        n_features: int = 15,
        ax: Any = None,
        plot: bool = True,
    ) -> CoefficientDisplay:
        """Take the weights and names of a fitted linear estimator, or of a pipeline that ends in one.

        Parameters
        ----------
        estimator : fitted estimator or Pipeline
            With `coef_`. A pipeline names its features by `get_feature_names_out` of its other steps.
        X, y : arrays, optional
            The training data: with them, standard errors and proved intervals are drawn, as in the
            `summary` of a model of one row of weights without sample weights.
        n_features : int
            How many features to draw.
        ax : matplotlib axes, optional
        plot : bool
            Whether to draw at once.
        """
        model, names = estimator, None
        if hasattr(estimator, "steps"):  # a Pipeline of scikit-learn
            model, names = estimator[-1], estimator[:-1].get_feature_names_out()
        attributes = vars(model)
        if "coef_" not in attributes:
            raise ValueError(f"{type(model).__name__} has no coef_: fit a linear estimator first")
        coef = np.atleast_2d(attributes["coef_"])
        if names is None:
            names = attributes.get("feature_names_in_", [f"x{j}" for j in range(coef.shape[1])])
        classes = attributes.get("classes_", np.arange(len(coef)))
        more: list[Any] = []
        if X is not None and len(coef) == 1:
            X = estimator[:-1].transform(X) if model is not estimator else X
            found = model.summary(X, y)
            more = [found.std_err[-coef.shape[1] :], found.proved[-coef.shape[1] :]]
        display = cls(coef, names, [str(name) for name in classes] if len(coef) > 1 else (), *more)
        return display.plot(n_features=n_features, ax=ax) if plot else display

    def largest(self, n_features: int) -> list[str]:
        """Return the names of the features with the largest absolute weights, the largest first."""
        return [self.feature_names[j] for j in self._order(n_features)]

    def _order(self, n_features: int) -> NDArray:
        """The indices of the features with the largest absolute weights; zeros are left out."""
        size = np.abs(self.coef).max(axis=0)
        order: NDArray = np.argsort(-size, kind="stable")[:n_features]
        return np.compress(size[order] > 0, order)

    def plot(self, *, n_features: int = 15, ax: Any = None) -> CoefficientDisplay:
        """Draw a bar per feature and output.

        Parameters
        ----------
        n_features : int
            How many features to draw, those with the largest absolute weights.
        ax : matplotlib axes, optional
            By default those of a new figure.
        """
        (ax,) = new_axes() if ax is None else (ax,)
        order = self._order(n_features)
        place = np.arange(len(order))
        height = 0.8 / len(self.coef)
        for k, row in enumerate(self.coef):
            label = self.output_names[k] if self.output_names else None
            ax.barh(place + (k + 0.5) * height - 0.4, row[order], height, label=label)
        if self.std_err is not None and self.proved is not None:
            w, error = self.coef[0, order], self.std_err[order]
            ax.hlines(place, w - error, w + error, color="0.2", linewidth=1.2, label="standard error")
            ends = self.proved[order].T
            ax.hlines(place, *ends, color="C3", linewidth=4, label="proved interval of the optimum")
            ax.legend()
        ax.set_yticks(place, [self.feature_names[j] for j in order])
        ax.invert_yaxis()
        ax.axvline(0.0, color="0.5", linewidth=0.8)
        ax.set(xlabel="weight", title="Largest weights")
        if self.output_names:
            ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self
