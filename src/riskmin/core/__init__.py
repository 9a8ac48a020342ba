r"""The records and protocols of riskmin. Read this first.

All types of this package serve one problem,

.. math:: \min_w J(w) = \lambda\,\Omega(w) + R(w), \qquad R(w) = \text{loss}(\text{scores}(X, w);\, y) \ge 0,

and the data flow in one direction: data -> shards -> executor -> risk -> objective -> solver -> result.
A loss sees only scores, a regularizer sees only w, an executor sees only top-level functions of a
shard, and a solver sees only an objective.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from riskmin.core.interfaces import LinearMap as LinearMap
    from riskmin.core.interfaces import Matrix as Matrix
    from riskmin.core.interfaces import Solver as Solver
    from riskmin.core.interfaces import as_solver as as_solver
    from riskmin.core.interfaces import has_method as has_method
    from riskmin.core.records import AnswersEnded as AnswersEnded
    from riskmin.core.records import Array as Array
    from riskmin.core.records import Criterion as Criterion
    from riskmin.core.records import Cut as Cut
    from riskmin.core.records import Evaluation as Evaluation
    from riskmin.core.records import Hessian as Hessian
    from riskmin.core.records import Iterate as Iterate
    from riskmin.core.records import NDArray as NDArray
    from riskmin.core.records import PairBlock as PairBlock
    from riskmin.core.records import Result as Result
    from riskmin.core.records import RunPaused as RunPaused
    from riskmin.core.records import Shard as Shard
    from riskmin.core.records import ShardCache as ShardCache
    from riskmin.core.records import ShardStateLost as ShardStateLost
    from riskmin.core.records import SolverFailed as SolverFailed
    from riskmin.core.records import Status as Status
    from riskmin.core.records import UnsupportedProblem as UnsupportedProblem

_NAMES_OF_MODULE = {
    "interfaces": "LinearMap Matrix Solver as_solver has_method",
    "records": "AnswersEnded Array Criterion Cut Evaluation Hessian Iterate NDArray PairBlock Result "
    "RunPaused Shard ShardCache ShardStateLost SolverFailed Status UnsupportedProblem",
}
"""Imported on first access, since they need NumPy, and other modules of this package do not."""
_LAZY = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a record or an interface on first access."""
    if name not in _LAZY:
        raise AttributeError(f"module 'riskmin.core' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"riskmin.core.{_LAZY[name]}"), name)
    return value
