"""
A regularization path
=====================

With L1, weights become nonzero one after the other as lam decreases. Each point of the path is a
certified fit.
"""

from sklearn.datasets import load_diabetes

from riskmin import L1, PathDisplay, Squared, lam_grid, linear_risk, path

X, y = load_diabetes(return_X_y=True, as_frame=True)
risk = linear_risk(X.to_numpy() / X.std().to_numpy(), y.to_numpy(), Squared(), fit_intercept=True)
lams = lam_grid(risk, L1(), 25)
results = path(risk, L1(), lams)
print({result.status for result in results})
PathDisplay.from_results(results, lams, X.columns)
