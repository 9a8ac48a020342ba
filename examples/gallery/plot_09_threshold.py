"""
A threshold for a rare class
============================

Digits that are an 8: one in ten. The threshold 0 minimizes the hinge loss, not a metric; the F1 score is
best elsewhere.
"""

from sklearn.datasets import load_digits
from sklearn.metrics import f1_score

from riskmin import LinearClassifier, ThresholdDisplay

X, digit = load_digits(return_X_y=True)
model = LinearClassifier("hinge", alpha=1e-2).fit(X, digit == 8)
ThresholdDisplay.from_estimator(model, X, digit == 8, f1_score)
