"""
An outlier, and losses for regression
=====================================

The squared loss follows outliers; the absolute and the Huber loss do not.
"""

import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from vega_datasets import local_data

from riskmin import LinearRegressor

cars = pd.DataFrame(json.loads(local_data.cars.raw()))
table = cars.dropna(subset=["Horsepower", "Weight_in_lbs"]).head(60).copy()
X, y = table[["Weight_in_lbs"]], table["Horsepower"].to_numpy(dtype=float, copy=True)
y[:6] = 600.0  # typing errors
order = np.argsort(X["Weight_in_lbs"].to_numpy())

fig, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
ax.plot(X["Weight_in_lbs"], y, ".", color="0.6")
for loss in ("squared", "huber:delta=10", "absolute"):
    model = LinearRegressor(loss, alpha=1e-6, standardize=True).fit(X, y)
    ax.plot(X["Weight_in_lbs"].iloc[order], model.predict(X)[order], label=loss)
ax.set(xlabel="weight of a car, pounds", ylabel="horsepower", title="Six typing errors")
ax.legend()
