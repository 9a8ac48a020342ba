"""
Optimize the ROC area itself
============================

The loss "roc_area" compares all pairs of a positive and a negative row. The cost is that of sorting, not
of all pairs.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.metrics import RocCurveDisplay
from sklearn.model_selection import train_test_split

from riskmin import LinearClassifier

X, digit = load_digits(return_X_y=True)
y = digit == 8
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
fig, ax = plt.subplots(figsize=(5, 4.5), layout="constrained")
for loss in ("hinge", "roc_area"):
    model = LinearClassifier(loss, alpha=1e-2).fit(X_train, y_train)
    RocCurveDisplay.from_estimator(model, X_test, y_test, name=loss, ax=ax)
    print(f"{loss}: gap / J = {model.gap_ / model.objective_:.1e}")
