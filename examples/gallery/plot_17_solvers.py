"""
Solvers compared by what they prove
===================================

Every solver has the same certificate, so their progress can be compared in one plot: the proved gap
against passes over the data.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from riskmin import L2, Bmrm, Bundle, Hinge, Newton, Objective, linear_risk, minimize

X, digit = load_digits(return_X_y=True)
risk = linear_risk(X / 16, np.where(digit < 5, -1.0, 1.0), Hinge())
fig, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
for solver in (Bmrm(), Bundle(), Newton()):
    result = minimize(Objective(risk, L2(), lam=1e-3), solver, tol=1e-4, max_iter=300)
    value = np.minimum.accumulate([row["value"] for row in result.trace])
    lower = np.maximum.accumulate([row["lower"] for row in result.trace])
    iteration = [row["iteration"] for row in result.trace]
    ax.loglog(iteration, (value - lower) / value, label=type(solver).__name__)
ax.set(xlabel="iterations", ylabel="proved gap / J(w)")
ax.legend()
