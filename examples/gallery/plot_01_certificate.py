"""
The certificate of a fit
========================

A fit ends when the objective is proved to be within `tol` of its minimum. `result.plot()` shows how the
objective and the lower bound meet.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer

from riskmin import LinearClassifier

X, y = load_breast_cancer(return_X_y=True)
model = LinearClassifier("hinge", alpha=1e-3, standardize=True, solver="bundle").fit(X, y)
_, axes = plt.subplots(2, 1, figsize=(5.2, 4.6), layout="constrained")
model.result_.plot(tol=model.tol, axes=axes)

# %%
# No model has an objective below `lower_bound_`:
print(f"{model.lower_bound_:.5f} <= min J <= {model.objective_:.5f}")
