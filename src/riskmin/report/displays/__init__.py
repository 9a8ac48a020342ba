"""Displays in scikit-learn's manner: a class of numbers, `from_estimator`, `from_predictions` and `plot`.

They need Matplotlib (`pip install 'riskmin[plot]'`), which is imported on the first plot.
"""

from riskmin.report.displays.alphas import AlphaSearchDisplay as AlphaSearchDisplay
from riskmin.report.displays.chunks import ChunkConfusionDisplay as ChunkConfusionDisplay
from riskmin.report.displays.coefficients import CoefficientDisplay as CoefficientDisplay
from riskmin.report.displays.path import PathDisplay as PathDisplay
from riskmin.report.displays.queries import NdcgDisplay as NdcgDisplay
from riskmin.report.displays.thresholds import ThresholdDisplay as ThresholdDisplay
