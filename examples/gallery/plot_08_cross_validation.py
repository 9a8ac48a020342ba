"""
Choose alpha by cross-validation
================================

`LinearClassifierCV` computes a path in each fold, and fits all rows with the alpha of the best mean
score.
"""

from sklearn.datasets import load_breast_cancer

from riskmin import AlphaSearchDisplay, LinearClassifierCV

X, y = load_breast_cancer(return_X_y=True)
search = LinearClassifierCV("logistic", standardize=True, scoring="roc_auc", cv=5).fit(X, y)
AlphaSearchDisplay.from_estimator(search)
print(f"alpha = {search.alpha_:.3g}, mean ROC area = {search.best_score_:.4f}")
