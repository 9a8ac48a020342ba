"""Do the models agree with named references, on the data sets of statsmodels? See docs/estimators.md.

    python -m benchmarks.conformance

Each row is a fit to raw columns of a data set that comes with statsmodels. "difference" is the largest
difference of a coefficient to the reference, in standard errors of the reference where it has some, else
relative to the largest coefficient of standardized columns; "gap" is the proved relative gap of ours.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import statsmodels.api as sm
from sklearn.linear_model import HuberRegressor

import riskmin as rm

TOL = 1e-11
LOG = sm.families.links.Log()


@dataclass
class Row:
    """A model, its data, and the coefficients and standard errors of the reference."""

    name: str
    data: str
    model: Any
    reference: str
    theirs: Any
    """``theirs(D, y, extra)``: the coefficients on standardized columns, and standard errors or None."""
    more: dict[str, Any] = field(default_factory=dict)


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Raw columns and labels of a data set of statsmodels."""
    table = getattr(sm.datasets, name).load_pandas()
    X, y = np.asarray(table.exog, dtype=float), np.asarray(table.endog, dtype=float)
    # survival times: minus them without an event
    return X.reshape(len(y), -1), y if name != "heart" else np.where(table.censors == 1, y, -y)


def glm(family: Any) -> Any:
    """A generalized linear model of statsmodels."""

    def fit(D: np.ndarray, y: np.ndarray, more: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        found = sm.GLM(y, D, family, **more).fit(tol=1e-14, maxiter=500)
        return found.params, found.bse

    return fit


def discrete(kind: Any) -> Any:
    """A discrete choice model of statsmodels."""

    def fit(D: np.ndarray, y: np.ndarray, more: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        found = kind(y, D).fit(disp=0, tol=1e-14, maxiter=500)
        return found.params, found.bse

    return fit


def expectile(level: float) -> Any:
    """Newey and Powell's fixed point of weighted least squares."""

    def fit(D: np.ndarray, y: np.ndarray, more: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        beta = np.zeros(D.shape[1])
        for _ in range(500):
            found = sm.WLS(y, D, np.where(D @ beta > y, 1 - level, level)).fit()
            beta = found.params
        return beta, found.bse

    return fit


def quantile(level: float) -> Any:
    """Quantile regression of statsmodels, by iterated weighted least squares."""

    def fit(D: np.ndarray, y: np.ndarray, more: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        found = sm.QuantReg(y, D).fit(q=level, p_tol=1e-12, max_iter=20_000)
        return found.params, found.bse

    return fit


def huber(D: np.ndarray, y: np.ndarray, more: dict[str, Any]) -> tuple[np.ndarray, None]:
    """scikit-learn's HuberRegressor, without a penalty."""
    found = HuberRegressor(alpha=0.0, max_iter=100_000, tol=1e-10).fit(D[:, 1:], y)
    return np.append(found.intercept_, found.coef_), None


def survival(D: np.ndarray, y: np.ndarray, more: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Cox's regression of statsmodels; there is no intercept."""
    found = sm.PHReg(np.abs(y), D[:, 1:], status=y > 0, ties="breslow").fit(disp=0)
    return np.append(0.0, found.params), np.append(1.0, found.bse)


def regressor(loss: Any, alpha: float = 0.0, tol: float = TOL) -> Any:
    return rm.LinearRegressor(loss, alpha=alpha, tol=tol)


def classifier(loss: Any, alpha: float = 0.0) -> Any:
    return rm.LinearClassifier(loss, alpha=alpha, tol=TOL)


def table() -> list[Row]:
    """The rows of the table; a tiny alpha stands for 0 where only a penalty gives a proof."""
    years, families = {"offset": np.log(data("fair")[0][:, 2])}, sm.families
    poisson, tweedie = glm(families.Poisson()), glm(families.Tweedie(LOG, var_power=1.5))
    gamma, binomial = glm(families.Gamma(LOG)), glm(families.NegativeBinomial(LOG, alpha=1.3))
    counts, amounts = regressor("negative_binomial:dispersion=1.3"), regressor("tweedie:power=1.5")
    top = regressor("expectile:level=0.9", 1e-13)
    return [
        Row("poisson", "randhie", regressor("poisson"), "GLM", poisson),
        Row("poisson, offset log(years)", "fair", regressor("poisson"), "GLM", poisson, years),
        Row("gamma", "scotland", regressor("gamma"), "GLM", gamma),
        Row("tweedie:power=1.5", "fair", amounts, "GLM", tweedie),
        Row("tweedie:power=1.5, offset log(years)", "fair", amounts, "GLM", tweedie, years),
        Row("negative_binomial:dispersion=1.3", "randhie", counts, "GLM", binomial),
        Row("cox", "heart", regressor("cox"), "PHReg", survival),
        Row("logistic", "spector", classifier("logistic"), "Logit", discrete(sm.Logit)),
        Row("probit", "spector", classifier("probit", 1e-13), "Probit", discrete(sm.Probit)),
        Row("quantile:level=0.9", "engel", regressor("quantile:level=0.9"), "QuantReg", quantile(0.9)),
        Row("absolute", "stackloss", regressor("absolute"), "QuantReg", quantile(0.5)),
        Row("expectile:level=0.9", "stackloss", top, "repeated WLS", expectile(0.9)),
        Row("huber_scale", "stackloss", regressor("huber_scale", 1e-11, 1e-10), "HuberRegressor", huber),
    ]


def measure(row: Row) -> list[str]:
    """Fit both, and return the cells of a row."""
    X, y = data(row.data)
    kept = X.std(0) > 0
    X = X[:, kept]
    mean, scale = X.mean(0), X.std(0)
    D = sm.add_constant((X - mean) / scale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = row.model.set_params(standardize=bool(row.model.alpha)).fit(X, y, **row.more)
        theirs, std_err = row.theirs(D, y, row.more)
    coef = np.ravel(model.coef_)
    # a loss that does not depend on the intercept has none
    shift = 0.0 if rm.get_loss(row.model.loss).shift_invariant else coef @ mean
    ours = np.append(np.ravel(model.intercept_)[0] + shift, coef * scale)
    unit = np.abs(theirs).max() if std_err is None else std_err
    difference = np.abs((ours - theirs) / unit).max()
    gap = model.gap_ / model.objective_
    n, p = X.shape
    return [
        f"`{row.name}`",
        f"{row.data}, {n:,} x {p}",
        row.reference,
        f"{difference:.0e}",
        f"{gap:.0e}",
        model.result_.status,
    ]


def main() -> None:
    """Print the table."""
    print("| loss | data, rows x columns | reference | difference | gap | status |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in table():
        print(f"| {' | '.join(measure(row))} |", flush=True)


if __name__ == "__main__":
    main()
