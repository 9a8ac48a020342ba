"""Decisions of fitted models: the cutoffs of scores, which follow from the training rows after the fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from riskmin.core import NDArray
from riskmin.estimators._common.labels import Labels
from riskmin.estimators.persistence.records import read_numbers

if TYPE_CHECKING:
    from riskmin.estimators._common.base import CertifiedEstimator, RiskArguments


class Decision:
    """A decision without cutoffs: the class of the largest score, or the score itself."""

    attribute = ""
    """The fitted attribute that holds the cutoffs."""

    def n_cuts(self, labels: Labels) -> int:
        """Return how many cutoffs there are."""
        return 1 if self.attribute else 0

    def best_cuts(self, model: CertifiedEstimator, at: Callable[[], RiskArguments]) -> NDArray:
        """Return the best cutoffs; ``at()`` computes the scores of labeled rows of positive weight."""
        return np.zeros(0)

    def cuts(self, model: CertifiedEstimator) -> NDArray:
        """Return the cutoffs of a fitted model."""
        return np.atleast_1d(getattr(model, self.attribute)) if self.attribute else np.zeros(0)

    def read(self, labels: Labels, fitted: dict[str, Any]) -> NDArray:
        """Return the cutoffs in a model file; raise ValueError if they are not sound."""
        cuts = np.array(read_numbers(fitted, "cuts", self.n_cuts(labels)))
        if np.any(np.diff(cuts) < 0):
            raise ValueError("its cuts decrease")
        return cuts


class Threshold(Decision):
    """A threshold of two classes, at which the metric of the loss is best; 0 for most losses."""

    attribute = "threshold_"

    def best_cuts(self, model: CertifiedEstimator, at: Callable[[], RiskArguments]) -> NDArray:
        loss = model._fitted_loss()
        has_cutoff = model.fit_intercept and not loss.multi_output and loss.has_cutoff
        return np.array([loss.cutoff(*at()) if has_cutoff else 0.0])
