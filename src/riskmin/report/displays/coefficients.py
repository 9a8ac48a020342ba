"""The largest weights of a linear model, by the names of the features, in standard deviations of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.plots import new_axes
from riskmin.problem.column_moments import column_scales


class CoefficientDisplay:
    r"""The largest weights of a linear model, as bars with the names of the features.

    Weights of features in different units cannot be compared. With the standard deviations :math:`s_j` of the
    features, the bars are :math:`s_j w_j`, the weights of standardized features.

    Parameters
    ----------
    coef : (p,) or (k, p) array
        The weights; one row per class or output.
    feature_names : sequence of str
        The names of the p features.
    output_names : sequence of str
        The names of the k rows; empty for a single row.
    scale : (p,) array or None
        The standard deviations of the features; None draws the weights as they are.
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
    >>> display = CoefficientDisplay.from_estimator(model, X, plot=False)
    >>> display.largest(2)
    ['bmi', 's5']
    """

    def __init__(
        self,
        coef: Any,
        feature_names: Sequence[str],
        output_names: Sequence[str] = (),
        scale: Any = None,
        std_err: Any = None,
        proved: Any = None,
    ) -> None:
        self.coef: NDArray = np.atleast_2d(np.asarray(coef, dtype=float))
        self.scale: NDArray | None = None if scale is None else np.asarray(scale, dtype=float)
        self.feature_names = [str(name) for name in feature_names]
        self.output_names = [str(name) for name in output_names]
        self.std_err, self.proved = (None if a is None else np.asarray(a, float) for a in (std_err, proved))
        if self.coef.shape[1] != len(self.feature_names):
            raise ValueError(
                f"{self.coef.shape[1]} weights, but {len(self.feature_names)} feature names: "
                "give one per weight"
            )
        if self.scale is not None and self.scale.shape != self.coef.shape[1:]:
            raise ValueError(f"scale has the shape {self.scale.shape}: give one number per feature name")

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any = None,
        y: Any = None,
        *,
        n_features: int = 15,
        ax: Any = None,
        plot: bool = True,
    ) -> CoefficientDisplay:
        """Take the weights and names of a fitted linear estimator, or of a pipeline that ends in one.

        Parameters
        ----------
        estimator : fitted estimator or Pipeline
            With `coef_`. A pipeline names its features by `get_feature_names_out` of its other steps.
        X : (n, p) array, sparse matrix or data frame, optional
            Rows, as for `predict`, from which the standard deviations of the features are computed. A model
            that was fitted with ``standardize=True`` has them.
        y : array, optional
            The labels, if X are the training rows: with them, standard errors and proved intervals are
            drawn, as in the `summary` of a model of one row of weights without sample weights.
        n_features : int
            How many features to draw.
        ax : matplotlib axes, optional
        plot : bool
            Whether to draw at once.
        """
        model, names = estimator, None
        if hasattr(estimator, "steps"):  # a Pipeline of scikit-learn
            model, names = estimator[-1], estimator[:-1].get_feature_names_out()
            X = None if X is None else estimator[:-1].transform(X)
        attributes = vars(model)
        if "coef_" not in attributes:
            raise ValueError(f"{type(model).__name__} has no coef_: fit a linear estimator first")
        coef = np.atleast_2d(attributes["coef_"])
        if names is None:
            names = attributes.get("feature_names_in_", [f"x{j}" for j in range(coef.shape[1])])
        classes = attributes.get("classes_", np.arange(len(coef)))
        scale = attributes.get("scale_")
        if scale is None and X is not None:
            scale = column_scales(X)
        std_err = proved = None
        if y is not None and len(coef) == 1:
            found = model.summary(X, y)
            std_err, proved = found.std_err[-coef.shape[1] :], found.proved[-coef.shape[1] :]
        outputs = [str(name) for name in classes] if len(coef) > 1 else ()
        display = cls(coef, names, outputs, scale, std_err, proved)
        return display.plot(n_features=n_features, ax=ax) if plot else display

    def largest(self, n_features: int) -> list[str]:
        """Return the names of the features with the largest absolute weights, the largest first."""
        return [self.feature_names[j] for j in self._order(n_features)]

    @property
    def heights(self) -> NDArray:
        """What the bars show: the weights, of standardized features if `scale` is known."""
        return self.coef if self.scale is None else self.coef * self.scale

    def _order(self, n_features: int) -> NDArray:
        """The indices of the features with the largest absolute heights; zeros are left out."""
        size = np.abs(self.heights).max(axis=0)
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
        for k, row in enumerate(self.heights):
            label = self.output_names[k] if self.output_names else None
            ax.barh(place + (k + 0.5) * height - 0.4, row[order], height, label=label)
        if self.std_err is not None and self.proved is not None:
            factor = np.ones(len(order)) if self.scale is None else self.scale[order]
            w, error = self.heights[0, order], factor * self.std_err[order]
            ax.hlines(place, w - error, w + error, color="0.2", linewidth=1.2, label="standard error")
            ends = factor * self.proved[order].T
            ax.hlines(place, *ends, color="C3", linewidth=4, label="proved interval of the optimum")
            ax.legend()
        ax.set_yticks(place, [self.feature_names[j] for j in order])
        ax.invert_yaxis()
        ax.axvline(0.0, color="0.5", linewidth=0.8)
        unit = "weight" if self.scale is None else "weight of the standardized column"
        ax.set(xlabel=unit, title="Largest weights")
        if self.output_names:
            ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self
