"""
Losses for classification
=========================

A loss says what a score costs, given the label. Margin losses are functions of label times score.
"""

import matplotlib.pyplot as plt
import numpy as np

from riskmin import get_loss

margin = np.linspace(-2, 3, 501)
fig, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
for name in ("hinge", "squared_hinge", "smoothed_hinge", "logistic", "exponential"):
    loss = get_loss(name)
    values = [loss.value_grad(np.array([z]), np.array([1.0]), np.array([1.0]))[0] for z in margin]
    ax.plot(margin, values, label=name)
ax.plot(margin, margin < 0, "k:", label="a mistake counts 1")
ax.set(xlabel="label times score", ylabel="loss", ylim=(0, 4))
ax.legend()
