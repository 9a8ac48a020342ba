"""Minimize any regularized convex risk, and prove how close you came.

>>> import numpy as np
>>> import riskmin
>>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
>>> risk = riskmin.linear_risk(X, y, riskmin.Hinge())
>>> result = riskmin.minimize(riskmin.Objective(risk, riskmin.L2(), lam=0.01))
>>> result.status
'converged'
"""

import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from riskmin.arrays.matrix import as_matrix as as_matrix
    from riskmin.arrays.namespace import namespace as namespace
    from riskmin.arrays.partitioned import InMemoryPartition as InMemoryPartition
    from riskmin.arrays.partitioned import PartitionedMatrix as PartitionedMatrix
    from riskmin.core import Cut as Cut
    from riskmin.core import Evaluation as Evaluation
    from riskmin.core import Iterate as Iterate
    from riskmin.core import Result as Result
    from riskmin.core import Shard as Shard
    from riskmin.core.persist import FileError as FileError
    from riskmin.data import DataError as DataError
    from riskmin.data import load_data as load_data
    from riskmin.driver.checkpoint import Checkpoint as Checkpoint
    from riskmin.driver.loop import minimize as minimize
    from riskmin.driver.path import lam_grid as lam_grid
    from riskmin.driver.path import lam_max as lam_max
    from riskmin.driver.path import path as path
    from riskmin.estimators import CertificationResult as CertificationResult
    from riskmin.estimators import ChainTagger as ChainTagger
    from riskmin.estimators import HierarchicalClassifier as HierarchicalClassifier
    from riskmin.estimators import IncompleteCholesky as IncompleteCholesky
    from riskmin.estimators import KernelClassifier as KernelClassifier
    from riskmin.estimators import KernelRegressor as KernelRegressor
    from riskmin.estimators import LinearClassifier as LinearClassifier
    from riskmin.estimators import LinearClassifierCV as LinearClassifierCV
    from riskmin.estimators import LinearRanker as LinearRanker
    from riskmin.estimators import LinearRegressor as LinearRegressor
    from riskmin.estimators import LinearRegressorCV as LinearRegressorCV
    from riskmin.estimators import NoveltyDetector as NoveltyDetector
    from riskmin.estimators import OnlineClassifier as OnlineClassifier
    from riskmin.estimators import OrdinalClassifier as OrdinalClassifier
    from riskmin.estimators import TrivialModelWarning as TrivialModelWarning
    from riskmin.estimators import certify as certify
    from riskmin.estimators import get_scorer as get_scorer
    from riskmin.estimators import load_model as load_model
    from riskmin.estimators import save_model as save_model
    from riskmin.executors import Backend as Backend
    from riskmin.executors import Executor as Executor
    from riskmin.executors import Processes as Processes
    from riskmin.executors import Serial as Serial
    from riskmin.executors import Threads as Threads
    from riskmin.executors.dask.executor import DaskExecutor as DaskExecutor
    from riskmin.executors.mpi.executor import Spmd as Spmd
    from riskmin.linear_maps.linear import MultiOutput as MultiOutput
    from riskmin.linear_maps.linear import SingleOutput as SingleOutput
    from riskmin.linear_maps.tree import Tree as Tree
    from riskmin.losses import LOSSES as LOSSES
    from riskmin.losses import Absolute as Absolute
    from riskmin.losses import ChainCrf as ChainCrf
    from riskmin.losses import ChainMaxMargin as ChainMaxMargin
    from riskmin.losses import EpsilonInsensitive as EpsilonInsensitive
    from riskmin.losses import ExpectedRankUtility as ExpectedRankUtility
    from riskmin.losses import Exponential as Exponential
    from riskmin.losses import FBeta as FBeta
    from riskmin.losses import Hinge as Hinge
    from riskmin.losses import Huber as Huber
    from riskmin.losses import Logistic as Logistic
    from riskmin.losses import Mrr as Mrr
    from riskmin.losses import MulticlassHinge as MulticlassHinge
    from riskmin.losses import MulticlassSquaredHinge as MulticlassSquaredHinge
    from riskmin.losses import MultivariateSquared as MultivariateSquared
    from riskmin.losses import Ndcg as Ndcg
    from riskmin.losses import Novelty as Novelty
    from riskmin.losses import Nu as Nu
    from riskmin.losses import Ordinal as Ordinal
    from riskmin.losses import PairwiseHinge as PairwiseHinge
    from riskmin.losses import Poisson as Poisson
    from riskmin.losses import PowerHinge as PowerHinge
    from riskmin.losses import Prbep as Prbep
    from riskmin.losses import PrecisionAtK as PrecisionAtK
    from riskmin.losses import Quantile as Quantile
    from riskmin.losses import RecallAtK as RecallAtK
    from riskmin.losses import RocArea as RocArea
    from riskmin.losses import Smoothed as Smoothed
    from riskmin.losses import SmoothedHinge as SmoothedHinge
    from riskmin.losses import Softmax as Softmax
    from riskmin.losses import Squared as Squared
    from riskmin.losses import SquaredHinge as SquaredHinge
    from riskmin.losses import get_loss as get_loss
    from riskmin.losses import register_loss as register_loss
    from riskmin.losses.hierarchy import HierarchicalHinge as HierarchicalHinge
    from riskmin.losses.hierarchy import HierarchicalSoftmax as HierarchicalSoftmax
    from riskmin.problem.intercept.strategies import NoIntercept as NoIntercept
    from riskmin.problem.intercept.strategies import ProfiledIntercept as ProfiledIntercept
    from riskmin.problem.kernel.mercer import DotProduct as DotProduct
    from riskmin.problem.kernel.mercer import Polynomial as Polynomial
    from riskmin.problem.kernel.mercer import Rbf as Rbf
    from riskmin.problem.kernel.rkhs import kernel_risk as kernel_risk
    from riskmin.problem.linear_risk import linear_risk as linear_risk
    from riskmin.problem.objective import Objective as Objective
    from riskmin.problem.oracle import Oracle as Oracle
    from riskmin.problem.risk import Risk as Risk
    from riskmin.problem.structured import Structured as Structured
    from riskmin.regularizers import L1 as L1
    from riskmin.regularizers import L2 as L2
    from riskmin.regularizers import REGULARIZERS as REGULARIZERS
    from riskmin.regularizers import Box as Box
    from riskmin.regularizers import Elastic as Elastic
    from riskmin.regularizers import Entropy as Entropy
    from riskmin.regularizers import Equality as Equality
    from riskmin.regularizers import QNorm as QNorm
    from riskmin.regularizers import Quadratic as Quadratic
    from riskmin.regularizers import get_regularizer as get_regularizer
    from riskmin.regularizers import register_regularizer as register_regularizer
    from riskmin.report.progress import Progress as Progress
    from riskmin.solvers import SOLVERS as SOLVERS
    from riskmin.solvers import AcceleratedGradient as AcceleratedGradient
    from riskmin.solvers import AugmentedLagrangian as AugmentedLagrangian
    from riskmin.solvers import Auto as Auto
    from riskmin.solvers import Bmrm as Bmrm
    from riskmin.solvers import Bundle as Bundle
    from riskmin.solvers import ChainAscent as ChainAscent
    from riskmin.solvers import CoordinateDescent as CoordinateDescent
    from riskmin.solvers import DualAccelerated as DualAccelerated
    from riskmin.solvers import DualCoordinateAscent as DualCoordinateAscent
    from riskmin.solvers import DualGaussSeidel as DualGaussSeidel
    from riskmin.solvers import Fallback as Fallback
    from riskmin.solvers import KernelDual as KernelDual
    from riskmin.solvers import Lbfgs as Lbfgs
    from riskmin.solvers import LineSearchBmrm as LineSearchBmrm
    from riskmin.solvers import Newton as Newton
    from riskmin.solvers import OwlQn as OwlQn
    from riskmin.solvers import ProximalGradient as ProximalGradient
    from riskmin.solvers import Smoothing as Smoothing
    from riskmin.solvers import Switching as Switching
    from riskmin.solvers import WorkingSet as WorkingSet
    from riskmin.solvers import get_solver as get_solver
    from riskmin.solvers import register_solver as register_solver
    from riskmin.solvers.reference.online import online as online
    from riskmin.testing import check_executor as check_executor
    from riskmin.testing import check_loss as check_loss
    from riskmin.testing import check_regularizer as check_regularizer
    from riskmin.testing import check_solver as check_solver

__version__ = "0.1.0"

_NAMES_OF_MODULE = {
    "riskmin.arrays.matrix": "as_matrix",
    "riskmin.arrays.namespace": "namespace",
    "riskmin.arrays.partitioned": "InMemoryPartition PartitionedMatrix",
    "riskmin.core": "Cut Evaluation Iterate Result Shard",
    "riskmin.core.persist": "FileError",
    "riskmin.data": "DataError load_data",
    "riskmin.driver.checkpoint": "Checkpoint",
    "riskmin.driver.loop": "minimize",
    "riskmin.driver.path": "lam_grid lam_max path",
    "riskmin.estimators": (
        "CertificationResult ChainTagger HierarchicalClassifier IncompleteCholesky KernelClassifier "
        "KernelRegressor LinearClassifier LinearClassifierCV LinearRanker LinearRegressor "
        "LinearRegressorCV NoveltyDetector OnlineClassifier OrdinalClassifier TrivialModelWarning "
        "certify get_scorer load_model save_model"
    ),
    "riskmin.executors": "Backend Executor Processes Serial Threads",
    "riskmin.executors.dask.executor": "DaskExecutor",
    "riskmin.executors.mpi.executor": "Spmd",
    "riskmin.linear_maps.linear": "MultiOutput SingleOutput",
    "riskmin.linear_maps.tree": "Tree",
    "riskmin.losses": (
        "Absolute ChainCrf ChainMaxMargin EpsilonInsensitive ExpectedRankUtility Exponential FBeta "
        "Hinge Huber LOSSES Logistic Mrr MulticlassHinge MulticlassSquaredHinge MultivariateSquared "
        "Ndcg Novelty Nu Ordinal PairwiseHinge Poisson PowerHinge Prbep PrecisionAtK Quantile RecallAtK "
        "RocArea Smoothed SmoothedHinge Softmax Squared SquaredHinge get_loss register_loss"
    ),
    "riskmin.losses.hierarchy": "HierarchicalHinge HierarchicalSoftmax",
    "riskmin.problem.intercept.strategies": "NoIntercept ProfiledIntercept",
    "riskmin.problem.kernel.mercer": "DotProduct Polynomial Rbf",
    "riskmin.problem.kernel.rkhs": "kernel_risk",
    "riskmin.problem.linear_risk": "linear_risk",
    "riskmin.problem.objective": "Objective",
    "riskmin.problem.oracle": "Oracle",
    "riskmin.problem.risk": "Risk",
    "riskmin.problem.structured": "Structured",
    "riskmin.regularizers": (
        "Box Elastic Entropy Equality L1 L2 QNorm Quadratic REGULARIZERS get_regularizer register_regularizer"
    ),
    "riskmin.report.progress": "Progress",
    "riskmin.solvers": (
        "AcceleratedGradient AugmentedLagrangian Auto Bmrm Bundle ChainAscent CoordinateDescent "
        "DualAccelerated DualCoordinateAscent DualGaussSeidel Fallback KernelDual Lbfgs LineSearchBmrm "
        "Newton OwlQn ProximalGradient SOLVERS Smoothing Switching WorkingSet get_solver "
        "register_solver"
    ),
    "riskmin.solvers.reference.online": "online",
    "riskmin.testing": "check_executor check_loss check_regularizer check_solver",
}
"""The public names by the modules that define them, which are imported on first access: all of them together
take half a second, and a command or a worker needs few."""

_LAZY = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names.split()}
"""The module of each public name."""
_ROOMS = frozenset(module.split(".")[1] for module in _NAMES_OF_MODULE)
"""The subpackages, which are attributes without an import of their own, too."""

__all__ = sorted(_LAZY)


def __getattr__(name: str) -> _typing.Any:
    """Import a public name, or a subpackage, on first access."""
    if name in _ROOMS:
        return _import_module(f"riskmin.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'riskmin' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *_LAZY, *_ROOMS]
