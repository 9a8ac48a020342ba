"""
Raw columns: a warning, and a certificate
=========================================

scikit-learn's `LogisticRegression` stops early on raw columns and warns. riskmin minimizes the same
objective, and proves that nothing is left to gain.
"""

import warnings

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from riskmin import LinearClassifier

X, y = load_breast_cancer(return_X_y=True)
alpha = 1e-4
with warnings.catch_warnings(record=True, action="always") as caught:
    theirs = LogisticRegression(C=1 / (alpha * len(y))).fit(X, y)
print(str(caught[0].message).splitlines()[0])

# %%
# The objective of both, mean loss + alpha ‖w‖² / 2:


def objective(model):
    """J(w) on the training rows."""
    margin = (2 * y - 1) * model.decision_function(X)
    return np.logaddexp(0, -margin).mean() + alpha / 2 * np.sum(model.coef_**2)


ours = LinearClassifier("logistic", alpha=alpha).fit(X, y)
print(f"scikit-learn: J = {objective(theirs):.4f}")
print(f"riskmin:      J = {objective(ours):.4f}, and no model is below {ours.lower_bound_:.4f}")

# sphinx_gallery_thumbnail_path = 'img/certificate.svg'
bounds, _ = ours.result_.plot(tol=ours.tol)
bounds.axhline(objective(theirs), linestyle=":", color="C3", label="scikit-learn")
bounds.set_ylim(0, 0.3)
bounds.legend()
