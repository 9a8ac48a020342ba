"""
Counts: Poisson regression
==========================

Doctor visits of 20 190 people (RAND health insurance experiment, from statsmodels). The mean is the
exponential of a linear function, so weights are relative changes.
"""

from statsmodels.datasets import randhie

from riskmin import CoefficientDisplay, LinearRegressor

table = randhie.load_pandas().data
X, y = table.drop(columns="mdvis"), table["mdvis"]
model = LinearRegressor("poisson", alpha=1e-4, standardize=True).fit(X, y)
print(f"gap / J = {model.gap_ / model.objective_:.1e}")
CoefficientDisplay.from_estimator(model)
