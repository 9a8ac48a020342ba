"""
Ranking within queries
======================

210 travelers chose one of four ways to travel. A traveler is a query; the ranker puts the chosen way
first as often as it can.
"""

import matplotlib.pyplot as plt
import numpy as np
from statsmodels.datasets import modechoice

from riskmin import LinearRanker, NdcgDisplay

table = modechoice.load_pandas().data
X, grade, query = table[["ttme", "invc", "invt", "gc"]], table["choice"], table["individual"]
first = query <= 150
ranker = LinearRanker(alpha=1e-3, standardize=True).fit(X[first], grade[first], qid=query[first])

# %%
# The rank of the chosen way, for travelers that were not in the training data:
scores = ranker.predict(X[~first]).reshape(-1, 4)
chosen = grade[~first].to_numpy().reshape(-1, 4).argmax(axis=1)
rank = 1 + np.sum(scores > scores[np.arange(len(scores)), chosen][:, None], axis=1)
fig, ax = plt.subplots(figsize=(5.5, 3.5), layout="constrained")
ax.bar(*np.unique(rank, return_counts=True))
ax.set(xlabel="rank of the chosen way", ylabel="travelers", xticks=[1, 2, 3, 4])

# %%
# The NDCG of each traveler, from the worst to the best, and the ids of the worst:
display = NdcgDisplay.from_estimator(ranker, X[~first], grade[~first], qid=query[~first])
print(display.worst(3))
