r"""`summary()` of linear estimators: coefficients, standard errors, confidence intervals."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from riskmin.certificates.curvature import SingularHessian
from riskmin.core import NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.estimators._common.fit import resolve_regularizer
from riskmin.estimators._common.input import compute_if_dask
from riskmin.estimators._common.training_rows import offset_of_used, training_rows, used_rows
from riskmin.estimators.gpu_rows import dense_weights, on_host
from riskmin.estimators.region import region_of_rows
from riskmin.estimators.scikit_learn import check_is_fitted
from riskmin.estimators.summary.covariance import NoCovariance, Sandwich, coefficient_covariance
from riskmin.estimators.summary.multiclass import class_covariance
from riskmin.estimators.summary.statistics import FitStatistics, JointTest, fit_statistics

MAX_COEFFICIENTS = 10_000
"""The Hessian of more coefficients than this takes more than 0.8 GB."""
SANDWICHES = "sandwich", "HC0", "HC1", "HC2", "HC3"


@dataclass(frozen=True, repr=False)
class CoefficientSummary:
    """The coefficients of a linear model with standard errors, as `LinearClassifier.summary` returns them.

    Attributes
    ----------
    names : list of str
        "intercept", if there is one, then the names of the columns; with several classes, the same for each
        class but the first, as "label: name".
    coef : (q,) array
        The intercept and the weights; of several classes, less those of the first class.
    std_err : (q,) array
        Standard errors; NaN if there are none, and `note` states why.
    statistic : (q,) array
        ``coef / std_err``: z, or t for the squared loss.
    p_value : (q,) array
        Two-sided p-values of the hypothesis that the coefficient is zero.
    conf_int : (q, 2) array
        The ends of the confidence intervals.
    level : float
        The level of the confidence intervals.
    covariance : (q, q) array
        The covariance of the coefficients.
    method : str
        "hessian", "sandwich", or the form of the sandwich that was asked for; empty without standard errors.
    freedom : float
        Degrees of freedom of the t distribution; infinite for the normal distribution.
    proved : (q, 2) array
        The ends of intervals that certainly hold the coefficients of the minimum of J; NaN where they are not
        known. See `riskmin.optimum_region`.
    precision : float
        How far a coefficient is from that of the minimum of J, at most, in standard errors: by `proved`.
    heading : dict
        What was fitted: the loss, the penalty, the number of observations and the certificate.
    note : str
        What to know about the standard errors.
    statistics : FitStatistics or None
        R^2, the deviance, the log-likelihood, AIC and BIC, where the loss is half the deviance.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from riskmin import LinearRegressor
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> summary = LinearRegressor("squared", alpha=1e-9, tol=1e-9).fit(X, y).summary(X, y)
    >>> summary.names[:3], summary.method, summary.precision < 0.01
    (['intercept', 'age', 'sex'], 'hessian', True)
    >>> bool(summary.p_value[summary.names.index("bmi")] < 1e-9)
    True
    """

    names: list[str]
    coef: NDArray
    std_err: NDArray
    level: float
    covariance: NDArray
    method: str
    freedom: float
    proved: NDArray
    heading: dict[str, str] = field(default_factory=dict)
    note: str = ""
    statistics: FitStatistics | None = None

    def wald_test(self, names: Any = None) -> JointTest:
        r"""Test that coefficients are zero, by :math:`\hat\theta^\top V^{-1} \hat\theta` of them.

        Parameters
        ----------
        names : sequence of str, or None
            Some of `names`; None for all but intercepts.

        Returns
        -------
        JointTest
            Chi-squared; divided by the number of coefficients, with the F distribution, where `freedom` is
            finite.
        """
        chosen = [n for n in self.names if n.rpartition(": ")[2] != "intercept"] if names is None else names
        if unknown := [name for name in chosen if name not in self.names]:
            raise ValueError(f"{unknown[0]!r} is no coefficient: the names are {', '.join(self.names)}")
        if not self.method:
            raise ValueError(f"the table has no covariance. {self.note}")
        index, special = [self.names.index(name) for name in chosen], scipy_module("special")
        theta, q = self.coef[index], len(index)
        statistic = float(theta @ np.linalg.solve(self.covariance[np.ix_(index, index)], theta))
        if math.isinf(self.freedom):
            return JointTest(statistic, q, float(special.chdtrc(q, statistic)))
        return JointTest(statistic / q, q, float(special.fdtrc(q, self.freedom, statistic / q)))

    def likelihood_ratio_test(self) -> JointTest:
        """Test the model against the intercept alone, by twice the difference of the log-likelihoods."""
        found = self.statistics
        if found is None or math.isnan(found.log_likelihood):
            raise ValueError("the loss is no log-likelihood of a known distribution: use wald_test()")
        q = sum(name.rpartition(": ")[2] != "intercept" for name in self.names)
        statistic = found.null_deviance - found.deviance
        if not math.isinf(self.freedom):  # the variance is estimated, too
            statistic = found.n * math.log(found.null_deviance / found.deviance)
        return JointTest(statistic, q, float(scipy_module("special").chdtrc(q, statistic)))

    @property
    def precision(self) -> float:
        """The largest proved distance of a coefficient to that of the minimum, in standard errors."""
        lower, upper = self.proved.T
        return float(np.max(np.maximum(self.coef - lower, upper - self.coef) / self.std_err))

    @property
    def statistic(self) -> NDArray:
        """The coefficients divided by their standard errors."""
        return self.coef / self.std_err

    @property
    def p_value(self) -> NDArray:
        """Two-sided p-values."""
        special, size = scipy_module("special"), -np.abs(self.statistic)
        tail = special.ndtr(size) if math.isinf(self.freedom) else special.stdtr(self.freedom, size)
        return np.asarray(2 * tail)

    @property
    def conf_int(self) -> NDArray:
        """The ends of the confidence intervals."""
        special, q = scipy_module("special"), 0.5 + self.level / 2
        factor = special.ndtri(q) if math.isinf(self.freedom) else special.stdtrit(self.freedom, q)
        return np.stack([self.coef - factor * self.std_err, self.coef + factor * self.std_err], axis=1)

    def _columns(self) -> list[str]:
        symbol = "z" if math.isinf(self.freedom) else "t"
        tail = 50 * (1 - self.level)
        return ["coef", "std err", symbol, f"P>|{symbol}|", f"{tail:.3g}%", f"{100 - tail:.4g}%"]

    def _rows(self) -> list[list[str]]:
        if not self.method:  # no standard errors
            return [[f"{value:.6g}"] for value in self.coef]
        formats = ".6g", ".4g", ".3f", ".3g", ".6g", ".6g"
        numbers = zip(self.coef, self.std_err, self.statistic, self.p_value, *self.conf_int.T, strict=True)
        return [[format(x, f) for x, f in zip(row, formats, strict=True)] for row in numbers]

    def __repr__(self) -> str:
        rows = [["", *self._columns()[: len(self._rows()[0])]]]
        rows += [[name, *cells] for name, cells in zip(self.names, self._rows(), strict=True)]
        widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
        line = "-" * (sum(widths) + 2 * (len(widths) - 1))
        # names to the left, numbers to the right
        body = [
            "  ".join(
                cell.rjust(m) if j else cell.ljust(m)
                for j, (cell, m) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        width = max(map(len, self.heading), default=0)
        head = [f"{name.ljust(width)}  {text}" for name, text in self.heading.items()]
        return "\n".join([*head, line, body[0], line, *body[1:], line, self.note])

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for notebooks."""

        def cells(kind: str, texts: list[str]) -> str:
            return "".join(
                f'<{kind} style="text-align: right">{html.escape(text)}</{kind}>' for text in texts
            )

        head = "".join(
            f'<tr><th scope="row" style="text-align: left">{html.escape(name)}</th>'
            f'<td style="text-align: left">{html.escape(text)}</td></tr>'
            for name, text in self.heading.items()
        )
        columns = cells("th", self._columns()[: len(self._rows()[0])])
        body = "".join(
            f'<tr><th scope="row" style="text-align: left">{html.escape(name)}</th>{cells("td", row)}</tr>'
            for name, row in zip(self.names, self._rows(), strict=True)
        )
        return (
            f"<table>{head}</table><table><thead><tr><th></th>{columns}</tr></thead>"
            f"<tbody>{body}</tbody></table><p>{html.escape(self.note)}</p>"
        )


class SummaryMixin:
    """The method `summary` of linear estimators of rows."""

    def summary(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        level: float = 0.95,
        covariance: str | None = None,
        groups: Any = None,
    ) -> CoefficientSummary:
        r"""Return the coefficients with standard errors, z values and confidence intervals.

        With the Hessian :math:`H = \nabla^2 J(w, b)` at the solution, the sum S of the row weights and
        gradients :math:`\psi_i` of the terms of J, the covariance is

        .. math:: \frac{\phi}{S} H^{-1} \quad\text{or}\quad
                  \frac1S H^{-1} \Bigl(\sum_i \tfrac{s_i}{S} \psi_i \psi_i^\top\Bigr) H^{-1}.

        The first one ("hessian") is the default where the loss is a log-likelihood: "logistic", "softmax",
        "poisson", and "squared", whose variance :math:`\phi` is estimated from the residuals. The second one
        ("sandwich", White's) is the default for other smooth losses and with `class_weight`. With several
        classes, coefficients are differences to those of the first class, as in statsmodels' MNLogit.
        Standard errors describe the spread of the estimate, not the shift towards zero by the penalty: for
        intervals that cover the true coefficients, alpha must be small. Losses and penalties that are not
        smooth have no such errors; the table then has the coefficients only, and its note the reason.

        Parameters
        ----------
        X, y
            The training data, as given to `fit`, in this process.
        sample_weight : (n,) array, optional
            As given to `fit`. A weight counts: a row of weight 2 is two observations.
        offset : (n,) array, optional
            As given to `fit`.
        level : float
            The level of the confidence intervals, in (0, 1).
        covariance : None, "hessian", "sandwich", "HC0", "HC1", "HC2" or "HC3"
            Which of the two to compute; None for the default of the loss. "HC0" is the sandwich; "HC1" to
            "HC3" are its corrections for few observations, by MacKinnon and White.
        groups : (n,) array, optional
            The cluster of each row, such as a person or a school: the sandwich sums the gradients of each
            cluster, whose rows may depend on each other, with statsmodels' correction for few clusters.

        Returns
        -------
        CoefficientSummary
            Text and, in notebooks, HTML tables; the numbers are its attributes.

        Examples
        --------
        >>> import numpy as np
        >>> from riskmin import LinearClassifier
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(500, 2))
        >>> y = rng.random(500) < 1 / (1 + np.exp(-X @ [1.0, 0.0]))
        >>> LinearClassifier("logistic", alpha=1e-6, tol=1e-8).fit(X, y).summary(X, y)
        model         LinearClassifier, logistic, l2, alpha=1e-06
        observations  500
        certificate   converged: J = 0.618984, proved relative gap ...
        fit           R2 ..., deviance 618.9..., AIC 624.9..., BIC ...
        covariance    inverse Hessian of the objective (binomial likelihood)
        ------...
                         coef  std err       z     P>|z| ...
        ------...
        intercept  ...
        x0           0.8677...   0.1133   7.656  ...
        x1         ...
        ------...
        It is proved that coefficients are within ... standard errors of the minimum. Intervals ...
        """
        if not 0 < level < 1:
            raise ValueError(f"level={level!r}, but a confidence level is between 0 and 1, such as 0.95")
        if covariance not in (None, "hessian", *SANDWICHES):
            names = ", ".join(map(repr, SANDWICHES))
            raise ValueError(f"covariance={covariance!r}: give 'hessian', {names} or None")
        if groups is not None and covariance not in (None, "sandwich"):
            raise ValueError("groups have a sandwich of their own: leave covariance out")
        check_is_fitted(self)
        return summarize(self, X, y, sample_weight, offset, level, covariance, groups)


def summarize(
    model: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    offset: Any,
    level: float,
    covariance: str | None,
    groups: Any,
) -> CoefficientSummary:
    """Return the summary of a fitted linear model; see `SummaryMixin.summary`."""
    rows, at, counts = training_rows(model, X, y, sample_weight, offset)
    used, shift = used_rows(sample_weight, X), offset_of_used(offset, sample_weight, X)
    names, coef = _coefficients(model)
    loss = model._fitted_loss()
    heading = _heading(model, counts)
    statistics = fit_statistics(loss, at, counts, shift, (len(coef), bool(model.fit_intercept)))
    if statistics is not None:
        heading["fit"] = str(statistics)
    unknown = np.full(len(coef), math.nan)
    try:
        if groups is not None:
            covariance = "cluster"
        sandwich = None
        if _uses_sandwich(model, loss, covariance, len(coef)):
            kind = "HC0" if covariance in (None, "sandwich") else covariance
            sandwich = Sandwich(kind, None if groups is None else _groups(groups, used))
        compute = class_covariance if loss.multi_output else coefficient_covariance
        found = compute(model, rows, at, counts, sandwich=sandwich)
    except (NoCovariance, SingularHessian) as reason:
        matrix = np.full((len(coef),) * 2, math.nan) if len(coef) <= MAX_COEFFICIENTS else np.empty((0, 0))
        none = np.full((len(coef), 2), math.nan)
        note = f"No standard errors: {reason}."
        empty = "", math.inf, none, heading, note, statistics
        return CoefficientSummary(names, coef, unknown, level, matrix, *empty)
    std_err = np.sqrt(np.diag(found.matrix))
    proved = _proved_intervals(model, rows, at, counts, shift, coef, found)
    exact = loss.likelihood == "normal" and sandwich is None
    heading["covariance"] = (
        f"sandwich{'' if covariance in (None, 'sandwich') else f' ({covariance})'}, which needs no likelihood"
        if sandwich is not None
        else f"inverse Hessian of the objective ({loss.likelihood} likelihood)"
    )
    if exact:
        heading["variance"] = f"{found.dispersion:.6g}"
    summary = CoefficientSummary(
        names,
        coef,
        std_err,
        level,
        found.matrix,
        "hessian" if sandwich is None else covariance or "sandwich",
        float(counts.sum()) - len(coef) if exact else math.inf,
        proved,
        heading,
        statistics=statistics,
    )
    return replace(summary, note=_note(model, summary.precision))


def _groups(groups: Any, used: NDArray) -> NDArray:
    """Return the clusters of the rows of positive weight."""
    values = np.asarray(compute_if_dask(groups))
    if values.shape != used.shape:
        raise ValueError(
            f"groups has shape {values.shape}, but X has {len(used)} rows: give the cluster of each row"
        )
    return values[used]


def _proved_intervals(
    model: Any, rows: Any, at: Any, counts: NDArray, offset: NDArray | None, coef: NDArray, found: Any
) -> NDArray:
    """Return the ends of intervals that hold the coefficients of the minimum; NaN if none are known."""
    if model._fitted_loss().multi_output:
        return np.stack([coef - found.distance, coef + found.distance], axis=1)
    try:
        return region_of_rows(model, rows, at, counts, offset).intervals
    except ValueError:  # a loss without a conjugate, or a penalty that is no sum of squares
        return np.full((len(coef), 2), math.nan)


def _coefficients(model: Any) -> tuple[list[str], NDArray]:
    """Return names and values of the coefficients; of several classes, less those of the first class."""
    coef, names = dense_weights(model), _feature_names(model)
    if not model._fitted_loss().multi_output:
        b = [float(model._intercepts()[0])] if model.fit_intercept else []
        return ["intercept"] * len(b) + names, np.concatenate([b, np.ravel(coef)])
    b = on_host(model.intercept_)
    # coef_ of two classes is the difference already
    W, b = (coef, b) if len(coef) == 1 else (coef[1:] - coef[0], b[1:] - b[0])
    if model.fit_intercept:
        names, W = ["intercept", *names], np.column_stack([b, W])
    return [f"{label}: {name}" for label in model.classes_[1:] for name in names], np.ravel(W)


def _feature_names(model: Any) -> list[str]:
    names = vars(model).get("feature_names_in_")
    return [f"x{j}" for j in range(model.n_features_in_)] if names is None else [str(name) for name in names]


def _uses_sandwich(model: Any, loss: Any, covariance: str | None, n_coefficients: int) -> bool:
    """Whether the covariance is the sandwich; raise `NoCovariance` if there is none."""
    name = type(loss).__name__
    if not (loss.separable and loss.smooth):
        raise NoCovariance(
            f"{name} is not a smooth sum over rows, so that it has no Hessian; resample rows instead "
            "(the bootstrap), or use a smooth loss such as 'huber' or 'logistic'"
        )
    if not model._penalty().penalized_part.smooth:
        raise NoCovariance(
            f"{resolve_regularizer(model)!r} is not smooth: weights at zero, or at a bound, have no normal "
            "distribution; use regularizer='l2', or resample rows (the bootstrap)"
        )
    if n_coefficients > MAX_COEFFICIENTS:
        raise NoCovariance(
            f"the Hessian of {n_coefficients} coefficients is too large: choose columns for at most "
            f"{MAX_COEFFICIENTS}"
        )
    if covariance == "hessian" and not loss.likelihood:
        raise NoCovariance(f"{name} is no log-likelihood: use covariance='sandwich'")
    if covariance is not None:
        return covariance != "hessian"
    # class weights change the likelihood, but not the distribution of y
    return not loss.likelihood or model.class_weight is not None


def _heading(model: Any, counts: NDArray) -> dict[str, str]:
    result, total = model.result_, float(counts.sum())
    weighted = f" (sum of the weights of {len(counts)} rows)" if model.weighted_ else ""
    gap = model.gap_ / model.objective_ if model.objective_ else 0.0
    base = {"base class": str(model.classes_[0])} if model._fitted_loss().multi_output else {}
    return {
        "model": f"{type(model).__name__}, {model.loss}, {model.regularizer}, alpha={model.alpha:g}",
        **base,
        "observations": f"{total:g}{weighted}",
        "certificate": f"{result.status}: J = {model.objective_:.6g}, proved relative gap {gap:.2g}",
    }


def _note(model: Any, precision: float) -> str:
    """Return how precise the coefficients are, and what the standard errors leave out."""
    if math.isfinite(precision):
        text = f"It is proved that coefficients are within {precision:.2g} standard errors of the minimum."
    else:
        text = "How far coefficients are from the minimum is not proved"
        text += ": fit with a smaller tol." if math.isinf(precision) else " for this loss and penalty."
    if model.alpha:
        text += f" Intervals do not include the bias of the penalty (alpha={model.alpha:g})."
    return f"{text} Fit with a smaller tol for more digits." if 0.1 < precision < math.inf else text
