"""
Novelty detection
=================

Two measurements of penguins: `NoveltyDetector` with a kernel map of the columns encloses most of them.
"""

import matplotlib.pyplot as plt
import numpy as np
from palmerpenguins import load_penguins
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from riskmin import NoveltyDetector

X = load_penguins()[["bill_length_mm", "bill_depth_mm"]].dropna().to_numpy()
model = make_pipeline(
    StandardScaler(),
    Nystroem(gamma=1.0, n_components=100, random_state=0),
    NoveltyDetector(contamination=0.05),
).fit(X)

x, y = np.meshgrid(np.linspace(30, 62, 120), np.linspace(12, 23, 120))
inside = model.predict(np.column_stack([x.ravel(), y.ravel()])).reshape(x.shape)
fig, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.contourf(x, y, inside, levels=[0, 1], colors=["#cfe2ff"])
novel = model.predict(X) == -1
ax.plot(*X[~novel].T, ".", label="usual")
ax.plot(*X[novel].T, "x", label="novel")
ax.set(xlabel="length of the bill, mm", ylabel="depth of the bill, mm")
ax.legend()
