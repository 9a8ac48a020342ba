"""
Quantiles: a range instead of a number
======================================

Engel's data of 1857: what households spend on food. The range widens with the income.
"""

import matplotlib.pyplot as plt
import numpy as np
from statsmodels.datasets import engel

from riskmin import LinearRegressor

table = engel.load_pandas().data.sort_values("income")
X, y = table[["income"]], table["foodexp"]
fig, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
ax.plot(X["income"], y, ".", color="0.6")
for level in (0.1, 0.5, 0.9):
    model = LinearRegressor(f"quantile:level={level}", alpha=1e-6, standardize=True).fit(X, y)
    below = np.mean(y <= model.predict(X))
    ax.plot(X["income"], model.predict(X), label=f"level {level}: {100 * below:.0f} % below")
ax.set(xlabel="income", ylabel="spent on food", xlim=(300, 3000), ylim=(200, 1800))
ax.legend()
