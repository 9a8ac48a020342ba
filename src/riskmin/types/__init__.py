r"""The records and protocols of riskmin. Read this first.

All types of this package serve one problem,

.. math:: \min_w J(w) = \lambda\,\Omega(w) + R(w), \qquad R(w) = \text{loss}(\text{scores}(X, w);\, y) \ge 0,

and flows one way: data -> shards -> executor -> risk -> objective -> solver -> result.
A loss sees only scores, a regularizer sees only w, an executor sees only top-level functions of a
shard, and a solver sees only an objective.
"""

from __future__ import annotations

from riskmin.types.protocols import ChecksLabels as ChecksLabels
from riskmin.types.protocols import Cursor as Cursor
from riskmin.types.protocols import Executor as Executor
from riskmin.types.protocols import HasConjugate as HasConjugate
from riskmin.types.protocols import HasConjugateHessian as HasConjugateHessian
from riskmin.types.protocols import HasCursor as HasCursor
from riskmin.types.protocols import HasCurvature as HasCurvature
from riskmin.types.protocols import HasHessian as HasHessian
from riskmin.types.protocols import HasIntercepts as HasIntercepts
from riskmin.types.protocols import HasIntervalConjugate as HasIntervalConjugate
from riskmin.types.protocols import HasInverseMetric as HasInverseMetric
from riskmin.types.protocols import HasMinorantOffset as HasMinorantOffset
from riskmin.types.protocols import HasOffsetTangent as HasOffsetTangent
from riskmin.types.protocols import HasRowValues as HasRowValues
from riskmin.types.protocols import InexactOracle as InexactOracle
from riskmin.types.protocols import LinearMap as LinearMap
from riskmin.types.protocols import Loss as Loss
from riskmin.types.protocols import Matrix as Matrix
from riskmin.types.protocols import Oracle as Oracle
from riskmin.types.protocols import Regularizer as Regularizer
from riskmin.types.protocols import Resumable as Resumable
from riskmin.types.protocols import Smooth as Smooth
from riskmin.types.protocols import Smoothable as Smoothable
from riskmin.types.protocols import Solver as Solver
from riskmin.types.protocols import WarmStartable as WarmStartable
from riskmin.types.records import Array as Array
from riskmin.types.records import Criterion as Criterion
from riskmin.types.records import Cut as Cut
from riskmin.types.records import Hessian as Hessian
from riskmin.types.records import IntervalConjugate as IntervalConjugate
from riskmin.types.records import Iterate as Iterate
from riskmin.types.records import NDArray as NDArray
from riskmin.types.records import PairBlock as PairBlock
from riskmin.types.records import Result as Result
from riskmin.types.records import Shard as Shard
from riskmin.types.records import ShardCache as ShardCache
from riskmin.types.records import ShardStateLost as ShardStateLost
from riskmin.types.records import Status as Status
from riskmin.types.records import UnsupportedProblem as UnsupportedProblem
