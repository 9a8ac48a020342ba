"""Weights against the regularization strength lam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from riskmin.arrays.namespace import to_numpy
from riskmin.core import NDArray, Result
from riskmin.core.plots import new_axes


class PathDisplay:
    """A regularization path: each weight as a curve against lam.

    Parameters
    ----------
    lams : (k,) array
        The regularization strengths.
    coefs : (k, p) array
        The weights for each of them.
    feature_names : sequence of str, optional
        The names of the p features.

    Attributes
    ----------
    ax_, figure_ : matplotlib objects
        Set by `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, L1, PathDisplay, lam_grid, linear_risk, path
    >>> X = np.random.default_rng(0).normal(size=(100, 3))
    >>> risk = linear_risk(X, np.sign(X[:, 1]), Hinge())
    >>> lams = lam_grid(risk, L1(), 5)
    >>> display = PathDisplay.from_results(path(risk, L1(), lams), lams, ["a", "b", "c"], plot=False)
    >>> display.coefs.shape, display.first(1)
    ((5, 3), ['b'])
    """

    def __init__(self, lams: Any, coefs: Any, feature_names: Sequence[str] | None = None) -> None:
        self.lams: NDArray = np.asarray(lams, dtype=float)
        self.coefs: NDArray = np.asarray(coefs, dtype=float)
        if self.coefs.ndim != 2 or len(self.coefs) != len(self.lams):
            raise ValueError(
                f"{len(self.lams)} values of lam, but weights of shape {self.coefs.shape}: give a row per lam"
            )
        names = feature_names if feature_names is not None else [f"x{j}" for j in range(self.coefs.shape[1])]
        self.feature_names = [str(name) for name in names]
        if len(self.feature_names) != self.coefs.shape[1]:
            raise ValueError(
                f"{self.coefs.shape[1]} weights, but {len(self.feature_names)} feature names: "
                "give one per weight"
            )

    @classmethod
    def from_results(
        cls,
        results: Sequence[Result],
        lams: Any,
        feature_names: Sequence[str] | None = None,
        *,
        ax: Any = None,
        plot: bool = True,
    ) -> PathDisplay:
        """Take the weights of the results of `riskmin.path`.

        Parameters
        ----------
        results : sequence of Result
        lams : sequence of float
            The values that `riskmin.path` was called with.
        feature_names : sequence of str, optional
        ax : matplotlib axes, optional
        plot : bool
            Whether to draw at once.
        """
        display = cls(lams, np.array([to_numpy(result.w) for result in results]), feature_names)
        return display.plot(ax=ax) if plot else display

    def first(self, n: int) -> list[str]:
        """Return the names of the features whose weights are nonzero for the most values of lam."""
        count = np.count_nonzero(self.coefs, axis=0)
        size = np.abs(self.coefs).max(axis=0, initial=0.0)
        return [self.feature_names[j] for j in np.lexsort((-size, -count))[:n]]

    def plot(self, *, n_named: int = 8, ax: Any = None) -> PathDisplay:
        """Draw all curves; those of `n_named` features are named in the legend.

        Parameters
        ----------
        n_named : int
            How many features to name: those of `first`.
        ax : matplotlib axes, optional
            By default those of a new figure.
        """
        (ax,) = new_axes() if ax is None else (ax,)
        order = np.argsort(self.lams)
        named = set(self.first(n_named))
        for name, curve in zip(self.feature_names, self.coefs.T, strict=True):
            style = {"label": name} if name in named else {"color": "0.8", "linewidth": 0.8, "zorder": 1}
            ax.plot(self.lams[order], curve[order], **style)
        ax.set_xscale("log")
        ax.invert_xaxis()  # from strong to weak regularization, as paths are computed
        ax.set(xlabel="lam (alpha in estimators)", ylabel="weight", title="Regularization path")
        # beside the axes: curves end at all heights
        ax.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
        self.ax_, self.figure_ = ax, ax.figure
        return self
