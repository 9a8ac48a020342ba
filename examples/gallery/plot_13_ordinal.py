"""
Ordered grades
==============

How happy is a marriage, from 1 to 5? Grades have an order, but no distances. `OrdinalClassifier` learns
one score and the thresholds between grades.
"""

import matplotlib.pyplot as plt
import numpy as np
from statsmodels.datasets import fair

from riskmin import OrdinalClassifier

table = fair.load_pandas().data
X, y = table.drop(columns=["rate_marriage"]), table["rate_marriage"].astype(int)
model = OrdinalClassifier(alpha=1e-3, standardize=True).fit(X, y)
scores = X.to_numpy() @ np.ravel(model.coef_)

fig, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
ax.boxplot([scores[y == grade] for grade in model.classes_], tick_labels=model.classes_, showfliers=False)
ax.set(xlabel="grade", ylabel="score", title="The score rises with the grade")
