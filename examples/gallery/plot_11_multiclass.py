"""
Several classes as one problem
==============================

Ten digits: softmax has ten scores per row, which are fitted together and certified together. The weights
of a class, as a picture, show where its pixels are.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from riskmin import LinearClassifier

X, y = load_digits(return_X_y=True)
model = LinearClassifier("logistic", alpha=1e-2).fit(X, y)
print(f"accuracy {model.score(X, y):.3f}, gap / J = {model.gap_ / model.objective_:.1e}")

fig, axes = plt.subplots(2, 5, figsize=(8, 3.5), layout="constrained")
for digit, ax in enumerate(axes.ravel()):
    ax.imshow(model.coef_[digit].reshape(8, 8), cmap="RdBu", vmin=-0.5, vmax=0.5)
    ax.set(title=str(digit), xticks=[], yticks=[])
