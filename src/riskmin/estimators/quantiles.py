"""Several quantiles together, which do not cross, and intervals calibrated by other rows."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Any

import numpy as np
import scipy.sparse

from riskmin.core import NDArray, Result
from riskmin.driver.loop import minimize
from riskmin.estimators._common.advice import ConvergenceHints
from riskmin.estimators._common.base import CertifiedEstimator, estimator
from riskmin.estimators._common.fit import (
    decision_scores,
    in_precision_of,
    normalize_weights,
    store_certificate,
    warn_unless_converged,
)
from riskmin.estimators._common.input import validate_rows
from riskmin.estimators._common.labels import Numbers
from riskmin.estimators._common.outputs import unpack_weights
from riskmin.estimators.persistence.records import check_length, read_finite
from riskmin.estimators.regressor import validate_regression_data
from riskmin.estimators.scikit_learn import RegressorMixin
from riskmin.problem.joint_quantiles import Guards, JointQuantileRisk, JointQuantiles
from riskmin.problem.objective import Objective
from riskmin.regularizers import L2, UnpenalizedTail
from riskmin.solvers.joint_quantiles import QuantileProgram


@estimator
class LinearQuantiles(RegressorMixin, CertifiedEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""Linear quantiles of several levels, fitted together so that they do not cross, with a certificate.

    .. math::
        \min_{W, b}\; \sum_k \tfrac\alpha2 |w_k|^2 + \sum_k \sum_i c_i\, \rho_k(y_i - x_i^\top w_k - b_k)
        \quad\text{with}\quad x^\top w_k + b_k \le x^\top w_{k+1} + b_{k+1},

    with the pinball loss :math:`\rho_k` of level k, for all x in the convex hull of the rows, or in a box.
    Where separate quantiles do not cross, the result is theirs.

    Parameters
    ----------
    levels : sequence of float
        The levels, between 0 and 1, in increasing order.
    box : (p, 2) array or None
        The least and the largest number of each column between which quantiles may not cross; None for the
        convex hull of the rows.

    Attributes
    ----------
    coef_ : (k, p) array
        W, one row per level.
    intercept_ : (k,) array
        b.
    margin_ : float
        What `conformalize` adds to both sides of intervals; only there after it.

    References
    ----------
    R. Koenker, G. Bassett, Regression quantiles, Econometrica 46, 1978. H. D. Bondell, B. J. Reich, H. Wang,
    Noncrossing quantile regression curve estimation, Biometrika 97, 2010. Y. Romano, E. Patterson,
    E. Candes, Conformalized quantile regression, NeurIPS 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin import LinearQuantiles
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = LinearQuantiles((0.1, 0.5, 0.9), alpha=1e-6).fit(X[:300], y[:300])
    >>> quantiles = model.predict(X[:300])
    >>> quantiles.shape, bool((np.diff(quantiles) >= 0).all())
    ((300, 3), True)
    >>> model.gap_ <= model.tol * model.objective_
    True
    >>> low, high = model.conformalize(X[300:400], y[300:400]).predict_interval(X[400:]).T
    >>> bool(((low <= y[400:]) & (y[400:] <= high)).mean() > 0.7)
    True
    """

    task = "quantiles"
    intercepts_in_w = True
    fit_intercept = True
    _label_kind = Numbers

    levels: Any = field(default=(0.1, 0.5, 0.9), kw_only=False)
    box: Any = None
    alpha: float = 1e-4

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearQuantiles:
        """Fit the model.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame
        y : (n,) array
            Real numbers.
        sample_weight : (n,) array, optional
            Weights >= 0; rows of weight zero have no effect on the fit.

        Returns
        -------
        LinearQuantiles
            The fitted estimator itself.
        """
        self._check_parameters()
        loss = self._fitted_loss()
        X, y = validate_regression_data(self, X, y, _one_target)
        self._labels = Numbers.learn(self, y, None)
        weight = normalize_weights(sample_weight, len(y))
        loss.check_labels(y)
        sparse: Any = scipy.sparse.issparse
        rows = np.asarray(X.toarray() if sparse(X) else X, dtype=np.float64)
        c = np.full(len(y), 1 / len(y)) if weight is None else weight
        used = c > 0
        risk = JointQuantileRisk(rows[used], y[used], c[used], loss.levels, self._guards(rows[used]))
        last, start = vars(self), None
        if self.warm_start and "coef_" in last and last["coef_"].shape == (risk.k, rows.shape[1]):
            start = risk.joined(last["coef_"].T, last["intercept_"])
        objective = Objective(risk, UnpenalizedTail(L2(), risk.k), float(self.alpha))
        result = minimize(
            objective,
            QuantileProgram(),
            start,
            tol=self.tol,
            atol=self.atol,
            max_iter=int(self.max_iter),
            max_seconds=math.inf if self.max_seconds is None else self.max_seconds,
            callback=self.callback,
        )
        if X.dtype == np.float32:
            result = _in_single_precision(result, objective, risk, self.tol)
        W, b = risk.split(np.asarray(result.w))
        self.coef_, self.intercept_ = in_precision_of(X, np.ascontiguousarray(W.T)), b
        # the cut has no slope in intercepts, so that it is one in b, too
        result = replace(result, w=np.append(W.ravel(), b))
        self._hints = ConvergenceHints()
        store_certificate(self, result, n_rows=len(y), weighted=weight is not None)
        self.__dict__.pop("margin_", None)
        warn_unless_converged(self)
        return self

    @property
    def loss(self) -> Any:
        """The sum of the pinball losses of the levels."""
        return self._fitted_loss()

    def _check_parameters(self) -> None:
        super()._check_parameters()
        self._fitted_loss()
        if self.solver not in (None, "auto"):
            raise ValueError(
                f"LinearQuantiles has a solver of its own, not {self.solver!r}: leave solver out"
            )

    def _fitted_loss(self) -> Any:
        levels = np.asarray(self.levels, dtype=np.float64) if np.ndim(self.levels) == 1 else np.empty(0)
        if not len(levels) or not ((levels > 0) & (levels < 1)).all() or (np.diff(levels) <= 0).any():
            raise ValueError(
                f"levels={self.levels!r}, but LinearQuantiles needs increasing numbers between 0 and 1, such "
                "as (0.1, 0.5, 0.9)"
            )
        return JointQuantiles(tuple(levels.tolist()))

    def _guards(self, rows: NDArray) -> Guards:
        if self.box is None:
            return Guards(rows)
        box = np.asarray(self.box, dtype=np.float64)
        if box.shape != (rows.shape[1], 2) or not np.isfinite(box).all() or (box[:, 0] > box[:, 1]).any():
            raise ValueError(
                f"box has shape {box.shape}: give the least and the largest number of each of the "
                f"{rows.shape[1]} columns, finite and in this order"
            )
        return Guards(rows, box)

    # ------------------------------------------------------------ predictions
    def predict(self, X: Any) -> NDArray:
        """Predict X @ W + b, one column per level."""
        return decision_scores(self, X).reshape(-1, len(self.intercept_))

    def conformalize(self, X: Any, y: Any) -> LinearQuantiles:
        """Calibrate the intervals between the lowest and the highest level by rows that `fit` has not seen.

        Then `predict_interval` contains the label of a new row with a probability of at least the difference
        of the two levels, for rows drawn from the same distribution, whatever it is (Romano et al. 2019).

        Parameters
        ----------
        X : (m, p) array, sparse matrix or data frame
        y : (m,) array

        Returns
        -------
        LinearQuantiles
            The estimator itself.
        """
        quantiles, y = self.predict(X), self._numbers(y)
        if y.shape != (len(quantiles),):
            raise ValueError(f"X has {len(quantiles)} rows, but y has shape {y.shape}: give a number per row")
        levels = self._fitted_loss().levels
        rank = math.ceil((len(y) + 1) * (levels[-1] - levels[0]) * (1 - 1e-12))
        if len(levels) < 2 or rank > len(y):
            raise ValueError(
                f"{len(y)} rows cannot calibrate intervals of coverage {levels[-1] - levels[0]:g}: give two "
                "levels or more, and more rows"
            )
        error = np.maximum(quantiles[:, 0] - y, y - quantiles[:, -1])
        self.margin_ = float(np.sort(error)[rank - 1])
        return self

    def predict_interval(self, X: Any) -> NDArray:
        """Predict intervals between the lowest and the highest level, widened by `margin_` if it is there.

        Parameters
        ----------
        X : (n, p) array, sparse matrix or data frame

        Returns
        -------
        (n, 2) array
            The lower and the upper ends. A negative margin makes no interval empty: both ends then are its
            middle.
        """
        quantiles, margin = self.predict(X), vars(self).get("margin_", 0.0)
        low, high = quantiles[:, 0] - margin, quantiles[:, -1] + margin
        middle = 0.5 * (low + high)
        return np.column_stack([np.minimum(low, middle), np.maximum(high, middle)])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return minus the mean pinball loss, summed over the levels."""
        quantiles, y = self.predict(X), self._numbers(y)
        weight = normalize_weights(sample_weight, len(y))
        c = np.full(len(y), 1 / len(y)) if weight is None else weight
        return -float(self._fitted_loss().value_grad(quantiles, y, c)[0])

    # ------------------------------------------------------------ the certificate and model files
    def _n_unpenalized(self) -> int:
        return len(self.intercept_)

    def _numbers(self, y: Any) -> NDArray:
        """Return labels as floats; raise if they are not finite numbers."""
        loss = self._fitted_loss()
        labels: NDArray = Numbers().encode(self, y, loss, None)[0]
        loss.check_labels(labels)
        return labels

    def _scores(self, X: Any) -> NDArray:
        return self.predict(X)

    def _at_rows(self, X: Any) -> tuple[CertifiedEstimator, str]:
        crossed = -np.diff(self.predict(X)) if self.box is None else np.zeros((1, 1))
        worst = float(crossed.max(initial=0.0))
        return self, f"its quantiles cross by {worst:.2g}" if worst > 0 else ""

    def _state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        arrays, fitted = super()._state()
        return arrays, fitted | ({"margin": self.margin_} if "margin_" in vars(self) else {})

    def _restore(self, w: NDArray, fitted: dict[str, Any], arrays: dict[str, NDArray]) -> None:
        self._labels, k = Numbers(), len(self._fitted_loss().levels)
        check_length(w, (self.n_features_in_ + 1) * k)
        self.coef_, self.intercept_ = unpack_weights(w, k, intercepts=True)
        if "margin" in fitted:
            self.margin_ = read_finite(fitted, "margin")


def _in_single_precision(result: Result, objective: Objective, risk: JointQuantileRisk, tol: float) -> Result:
    """Return the result with weights in single precision; unchanged if its gap is too large."""
    W, b = risk.split(np.asarray(result.w))
    W = W.astype(np.float32).astype(np.float64)
    w = risk.joined(W, risk.guards.repaired(W, b))
    value = objective.value(w)
    accepted = value - result.lower <= max(result.gap, tol * value)
    return replace(result, w=w, value=value) if accepted else result


def _one_target(model: Any, X: Any, y: Any, **more: Any) -> Any:
    """Validate rows, and labels of one target."""
    return validate_rows(model, X, y, y_numeric=True)
