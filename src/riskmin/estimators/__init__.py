"""Estimators that follow scikit-learn's conventions, and their model files.

Only this package and the command import scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from riskmin.estimators._common.base import CertifiedEstimator as CertifiedEstimator
    from riskmin.estimators._common.base import estimator as estimator
    from riskmin.estimators._common.scoring import get_scorer as get_scorer
    from riskmin.estimators._common.trivial import TrivialModelWarning as TrivialModelWarning
    from riskmin.estimators.certification import CertificationResult as CertificationResult
    from riskmin.estimators.certification import certify as certify
    from riskmin.estimators.classifier import LinearClassifier as LinearClassifier
    from riskmin.estimators.cv import ChainTaggerCV as ChainTaggerCV
    from riskmin.estimators.cv import LinearClassifierCV as LinearClassifierCV
    from riskmin.estimators.cv import LinearRankerCV as LinearRankerCV
    from riskmin.estimators.cv import LinearRegressorCV as LinearRegressorCV
    from riskmin.estimators.cv import OrdinalClassifierCV as OrdinalClassifierCV
    from riskmin.estimators.evidence import multipliers as multipliers
    from riskmin.estimators.hierarchy import HierarchicalClassifier as HierarchicalClassifier
    from riskmin.estimators.kernel.cholesky import IncompleteCholesky as IncompleteCholesky
    from riskmin.estimators.kernel.machines import KernelClassifier as KernelClassifier
    from riskmin.estimators.kernel.machines import KernelRegressor as KernelRegressor
    from riskmin.estimators.novelty import NoveltyDetector as NoveltyDetector
    from riskmin.estimators.online import OnlineClassifier as OnlineClassifier
    from riskmin.estimators.ordinal import OrdinalClassifier as OrdinalClassifier
    from riskmin.estimators.persistence.model_file import load_model as load_model
    from riskmin.estimators.persistence.model_file import save_model as save_model
    from riskmin.estimators.persistence.onnx_graph import to_onnx as to_onnx
    from riskmin.estimators.prices import ConstraintPrices as ConstraintPrices
    from riskmin.estimators.prices import constraint_prices as constraint_prices
    from riskmin.estimators.prices import fairness_constraints as fairness_constraints
    from riskmin.estimators.quantiles import LinearQuantiles as LinearQuantiles
    from riskmin.estimators.ranker import LinearRanker as LinearRanker
    from riskmin.estimators.region import OptimumRegion as OptimumRegion
    from riskmin.estimators.region import optimum_region as optimum_region
    from riskmin.estimators.regressor import LinearRegressor as LinearRegressor
    from riskmin.estimators.removal import LeaveOneOut as LeaveOneOut
    from riskmin.estimators.summary.table import CoefficientSummary as CoefficientSummary
    from riskmin.estimators.tagger.tagger import ChainTagger as ChainTagger

MODULE_OF = {
    "ChainTagger": "tagger.tagger",
    "ChainTaggerCV": "cv",
    "HierarchicalClassifier": "hierarchy",
    "IncompleteCholesky": "kernel.cholesky",
    "KernelClassifier": "kernel.machines",
    "KernelRegressor": "kernel.machines",
    "LinearClassifier": "classifier",
    "LinearClassifierCV": "cv",
    "LinearQuantiles": "quantiles",
    "LinearRanker": "ranker",
    "LinearRankerCV": "cv",
    "LinearRegressor": "regressor",
    "LinearRegressorCV": "cv",
    "NoveltyDetector": "novelty",
    "OnlineClassifier": "online",
    "OrdinalClassifier": "ordinal",
    "OrdinalClassifierCV": "cv",
    "TrivialModelWarning": "_common.trivial",
    "CertificationResult": "certification",
    "CoefficientSummary": "summary.table",
    "certify": "certification",
    "get_scorer": "_common.scoring",
    "ConstraintPrices": "prices",
    "constraint_prices": "prices",
    "fairness_constraints": "prices",
    "LeaveOneOut": "removal",
    "multipliers": "evidence",
    "OptimumRegion": "region",
    "optimum_region": "region",
    "load_model": "persistence.model_file",
    "save_model": "persistence.model_file",
    "to_onnx": "persistence.onnx_graph",
}
"""Module of each public name, imported on first access because some load much of scikit-learn."""

_FOR_EXTENSIONS = {"CertifiedEstimator": "_common.base", "estimator": "_common.base"}
"""Modules of the names that estimators of other packages need."""

ESTIMATOR_OF_TASK = {
    "classification": "LinearClassifier",
    "multiclass": "LinearClassifier",
    "regression": "LinearRegressor",
    "novelty": "NoveltyDetector",
    "ordinal": "OrdinalClassifier",
    "ranking": "LinearRanker",
    "tagging": "ChainTagger",
}
"""The estimator for losses of a task, which messages name and the command fits."""


stand_in = False
"""Whether estimators may derive from stand-ins of scikit-learn's classes, as in the command."""


def import_sklearn() -> None:
    """Import scikit-learn, so that estimators that are imported later derive from its classes."""
    import_module("sklearn.base")


def __getattr__(name: str) -> Any:
    module = MODULE_OF.get(name, _FOR_EXTENSIONS.get(name))
    if module is None:
        raise AttributeError(f"module 'riskmin.estimators' has no attribute {name!r}")
    return getattr(import_module(f"riskmin.estimators.{module}"), name)
