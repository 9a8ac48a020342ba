"""
Label sequences: a chain model of the weather
=============================================

A sequence of days in Seattle: the kind of weather is a label, temperature and wind are features. A
conditional random field learns which weather follows which.
"""

import matplotlib.pyplot as plt
import numpy as np
from vega_datasets import local_data

from riskmin import ChainTagger, ChunkConfusionDisplay

table = local_data.seattle_weather()
days = [
    {
        "warm": row.temp_max / 10,
        "cold": row.temp_min / 10,
        "rain": float(row.precipitation > 0),
        "wind": row.wind / 5,
    }
    for row in table.itertuples()
]
labels = list(table["weather"])
X = [days[k : k + 30] for k in range(0, len(days), 30)]
y = [labels[k : k + 30] for k in range(0, len(labels), 30)]
tagger = ChainTagger("crf", alpha=1e-2).fit(X[:36], y[:36])
predicted = np.concatenate(tagger.predict(X[36:]))
truth = np.concatenate(y[36:])
print(f"days labeled correctly: {np.mean(predicted == truth):.0%}")
print(f"gap / J = {tagger.gap_ / tagger.objective_:.1e}")

# %%
# Truth and prediction of the last months:
kinds = sorted(set(labels))
fig, ax = plt.subplots(figsize=(8, 2.6), layout="constrained")
ax.plot([kinds.index(k) for k in truth[:90]], "o", mfc="none", label="truth")
ax.plot([kinds.index(k) for k in predicted[:90]], ".", label="predicted")
ax.set(xlabel="day", yticks=range(len(kinds)), yticklabels=kinds)
ax.legend()

# %%
# Spells, successive days of the same weather, are chunks. A spell is right if its first day, its last day
# and its weather are; others are in the row and the column "none".
true_spells = [[f"I-{kind}" for kind in days] for days in y[36:]]
predicted_spells = [[f"I-{kind}" for kind in days] for days in tagger.predict(X[36:])]
ChunkConfusionDisplay.from_predictions(true_spells, predicted_spells)
