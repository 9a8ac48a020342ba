"""DataFrames of Spark: their rows as X on the workers, and estimators that fit and predict there."""

from __future__ import annotations

from riskmin.spark.estimator import SparkEstimator as SparkEstimator
from riskmin.spark.frames import FrameRows as FrameRows
from riskmin.spark.frames import load_frame as load_frame

__all__ = ["FrameRows", "SparkEstimator", "load_frame"]
