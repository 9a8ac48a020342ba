"""
Weights with known signs
========================

Effects that cannot be negative: `positive=True`, or `Box` with bounds for each weight. The certificate
accounts for the bounds.
"""

from sklearn.datasets import load_diabetes

from riskmin import CoefficientDisplay, LinearRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True)
free = LinearRegressor("huber:delta=50", alpha=1e-4).fit(X, y)
positive = LinearRegressor("huber:delta=50", alpha=1e-4, positive=True).fit(X, y)
print(f"R²: {free.score(X, y):.3f} with any signs, {positive.score(X, y):.3f} without negative weights")
CoefficientDisplay([free.coef_, positive.coef_], X.columns, ["any sign", "at least 0"]).plot()
