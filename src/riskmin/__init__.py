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

from riskmin.estimators import MODULE_OF as _ESTIMATORS

if _typing.TYPE_CHECKING:
    from riskmin.arrays.matrix import as_matrix as as_matrix
    from riskmin.arrays.namespace import namespace as namespace
    from riskmin.arrays.partitioned import InMemoryPartition as InMemoryPartition
    from riskmin.arrays.partitioned import PartitionedMatrix as PartitionedMatrix
    from riskmin.certificates.multipliers import Multipliers as Multipliers
    from riskmin.certificates.proof import Proof as Proof
    from riskmin.core import Cut as Cut
    from riskmin.core import Evaluation as Evaluation
    from riskmin.core import Iterate as Iterate
    from riskmin.core import Result as Result
    from riskmin.core import Shard as Shard
    from riskmin.core.persist import FileError as FileError
    from riskmin.data import DataError as DataError
    from riskmin.data import load_data as load_data
    from riskmin.driver.checkpoint import Checkpoint as Checkpoint
    from riskmin.driver.constraints.forms import basis_pursuit as basis_pursuit
    from riskmin.driver.constraints.forms import hard_margin as hard_margin
    from riskmin.driver.constraints.forms import maximum_entropy as maximum_entropy
    from riskmin.driver.constraints.multipliers import ConstrainedResult as ConstrainedResult
    from riskmin.driver.constraints.multipliers import minimize_constrained as minimize_constrained
    from riskmin.driver.loop import minimize as minimize
    from riskmin.driver.path import lam_grid as lam_grid
    from riskmin.driver.path import lam_max as lam_max
    from riskmin.driver.path import path as path
    from riskmin.estimators import *  # noqa: F403
    from riskmin.executors import Backend as Backend
    from riskmin.executors import Executor as Executor
    from riskmin.executors import Processes as Processes
    from riskmin.executors import Serial as Serial
    from riskmin.executors import Threads as Threads
    from riskmin.executors.dask.executor import DaskExecutor as DaskExecutor
    from riskmin.executors.mpi.executor import Spmd as Spmd
    from riskmin.executors.spark.executor import SparkExecutor as SparkExecutor
    from riskmin.linear_maps.linear import MultiOutput as MultiOutput
    from riskmin.linear_maps.linear import SingleOutput as SingleOutput
    from riskmin.linear_maps.tree import Tree as Tree
    from riskmin.losses import *  # noqa: F403
    from riskmin.losses.hierarchy import HierarchicalHinge as HierarchicalHinge
    from riskmin.losses.hierarchy import HierarchicalSoftmax as HierarchicalSoftmax
    from riskmin.owners.executor import OwnersExecutor as OwnersExecutor
    from riskmin.problem.intercept import NoIntercept as NoIntercept
    from riskmin.problem.intercept import ProfiledIntercept as ProfiledIntercept
    from riskmin.problem.kernel.mercer import DotProduct as DotProduct
    from riskmin.problem.kernel.mercer import Polynomial as Polynomial
    from riskmin.problem.kernel.mercer import Rbf as Rbf
    from riskmin.problem.kernel.rkhs import kernel_risk as kernel_risk
    from riskmin.problem.linear_risk import linear_risk as linear_risk
    from riskmin.problem.objective import Objective as Objective
    from riskmin.problem.objective import Oracle as Oracle
    from riskmin.problem.risk import Risk as Risk
    from riskmin.problem.structured import Structured as Structured
    from riskmin.regularizers import *  # noqa: F403
    from riskmin.report.displays import AlphaSearchDisplay as AlphaSearchDisplay
    from riskmin.report.displays import ChunkConfusionDisplay as ChunkConfusionDisplay
    from riskmin.report.displays import CoefficientDisplay as CoefficientDisplay
    from riskmin.report.displays import NdcgDisplay as NdcgDisplay
    from riskmin.report.displays import PathDisplay as PathDisplay
    from riskmin.report.displays import ThresholdDisplay as ThresholdDisplay
    from riskmin.report.progress import Progress as Progress
    from riskmin.solvers import *  # noqa: F403
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
    "riskmin.certificates.multipliers": "Multipliers",
    "riskmin.certificates.proof": "Proof",
    "riskmin.core": "Cut Evaluation Iterate Result Shard",
    "riskmin.core.persist": "FileError",
    "riskmin.data": "DataError load_data",
    "riskmin.driver.checkpoint": "Checkpoint",
    "riskmin.driver.constraints.forms": "basis_pursuit hard_margin maximum_entropy",
    "riskmin.driver.constraints.multipliers": "ConstrainedResult minimize_constrained",
    "riskmin.driver.loop": "minimize",
    "riskmin.driver.path": "lam_grid lam_max path",
    "riskmin.estimators": " ".join(_ESTIMATORS),
    "riskmin.executors": "Backend Executor Processes Serial Threads",
    "riskmin.executors.dask.executor": "DaskExecutor",
    "riskmin.executors.mpi.executor": "Spmd",
    "riskmin.executors.spark.executor": "SparkExecutor",
    "riskmin.linear_maps.linear": "MultiOutput SingleOutput",
    "riskmin.linear_maps.tree": "Tree",
    "riskmin.losses": "LOSSES get_loss register_loss",
    "riskmin.losses.hierarchy": "HierarchicalHinge HierarchicalSoftmax",
    "riskmin.owners.executor": "OwnersExecutor",
    "riskmin.problem.intercept": "NoIntercept ProfiledIntercept",
    "riskmin.problem.kernel.mercer": "DotProduct Polynomial Rbf",
    "riskmin.problem.kernel.rkhs": "kernel_risk",
    "riskmin.problem.linear_risk": "linear_risk",
    "riskmin.problem.objective": "Objective Oracle",
    "riskmin.problem.risk": "Risk",
    "riskmin.problem.structured": "Structured",
    "riskmin.regularizers": "Equality Quadratic REGULARIZERS get_regularizer register_regularizer",
    "riskmin.report.displays": "AlphaSearchDisplay ChunkConfusionDisplay CoefficientDisplay NdcgDisplay "
    "PathDisplay ThresholdDisplay",
    "riskmin.report.progress": "Progress",
    "riskmin.solvers": "Portfolio SOLVERS SeparableForm WorkingSet get_solver register_solver",
    "riskmin.solvers.reference.online": "online",
    "riskmin.testing": "check_executor check_loss check_regularizer check_solver",
}
"""The public names by the modules that define them, which are imported on first access: all of them together
take half a second, and a command or a worker needs few."""

_LAZY = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names.split()}
"""The module of each public name."""
_REGISTRIES = {
    "riskmin.losses": "LOSSES",
    "riskmin.regularizers": "REGULARIZERS",
    "riskmin.solvers": "SOLVERS",
}
"""The registries whose classes are public, too."""
_ROOMS = frozenset({"metrics", "spark", "verify", *(module.split(".")[1] for module in _NAMES_OF_MODULE)})
"""The subpackages, which are attributes without an import of their own, too."""


def _registered() -> _typing.Iterator[dict[str, type]]:
    """Import the rooms with a registry one by one, and yield the classes of each."""
    for module, registry in _REGISTRIES.items():
        yield getattr(_import_module(module), registry).own_classes


def __getattr__(name: str) -> _typing.Any:
    """Import a public name, or a subpackage, on first access."""
    if name in _ROOMS:
        return _import_module(f"riskmin.{name}")
    if name == "__all__":
        return sorted({*_LAZY, *(kind for classes in _registered() for kind in classes)})
    if name in _LAZY:
        value = getattr(_import_module(_LAZY[name]), name)
    else:
        found = () if name.startswith("_") else (own[name] for own in _registered() if name in own)
        value = next(iter(found), None)
        if value is None:
            raise AttributeError(f"module 'riskmin' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__"), *_ROOMS})
