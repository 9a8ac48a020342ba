"""
A kernel machine
================

A support vector machine with a Gaussian kernel separates the penguins' species by two measurements, with
a certificate for the problem in feature space.
"""

import matplotlib.pyplot as plt
import numpy as np
from palmerpenguins import load_penguins
from sklearn.preprocessing import StandardScaler

from riskmin import KernelClassifier

table = load_penguins().dropna()
scaler = StandardScaler().fit(table[["bill_length_mm", "flipper_length_mm"]].to_numpy())
X = scaler.transform(table[["bill_length_mm", "flipper_length_mm"]].to_numpy())
y = (table["species"] == "Chinstrap").to_numpy()
model = KernelClassifier("hinge", gamma=1.0, alpha=1e-3).fit(X, y)
print(f"accuracy {model.score(X, y):.3f}, gap / J = {model.gap_ / model.objective_:.1e}")

x1, x2 = np.meshgrid(np.linspace(-2.5, 3, 100), np.linspace(-2.5, 2.5, 100))
z = model.decision_function(np.column_stack([x1.ravel(), x2.ravel()])).reshape(x1.shape)
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.contour(x1, x2, z, levels=[-1, 0, 1], colors="0.4", linestyles=["--", "-", "--"])
ax.plot(*X[y].T, ".", label="Chinstrap")
ax.plot(*X[~y].T, ".", label="others")
ax.set(xlabel="length of the bill, standardized", ylabel="length of the flipper, standardized")
ax.legend()
