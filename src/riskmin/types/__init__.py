r"""The records and protocols of riskmin. Read this first.

All types of this package serve one problem,

.. math:: \min_w J(w) = \lambda\,\Omega(w) + R(w), \qquad R(w) = \text{loss}(\text{scores}(X, w);\, y) \ge 0,

and flows one way: data -> shards -> executor -> risk -> objective -> solver -> result.
A loss sees only scores, a regularizer sees only w, an executor sees only top-level functions of a
shard, and a solver sees only an objective.
"""

from __future__ import annotations

from riskmin.types.protocols import Balances as Balances
from riskmin.types.protocols import Bends as Bends
from riskmin.types.protocols import ChecksLabels as ChecksLabels
from riskmin.types.protocols import Cursor as Cursor
from riskmin.types.protocols import Curved as Curved
from riskmin.types.protocols import CurvedConjugate as CurvedConjugate
from riskmin.types.protocols import Euclidean as Euclidean
from riskmin.types.protocols import Executor as Executor
from riskmin.types.protocols import HasConjugate as HasConjugate
from riskmin.types.protocols import HasDual as HasDual
from riskmin.types.protocols import HasValues as HasValues
from riskmin.types.protocols import KeepsScores as KeepsScores
from riskmin.types.protocols import Lifted as Lifted
from riskmin.types.protocols import Loss as Loss
from riskmin.types.protocols import Matrix as Matrix
from riskmin.types.protocols import Oracle as Oracle
from riskmin.types.protocols import Raises as Raises
from riskmin.types.protocols import Regularizer as Regularizer
from riskmin.types.protocols import Resumable as Resumable
from riskmin.types.protocols import Scorer as Scorer
from riskmin.types.protocols import Slips as Slips
from riskmin.types.protocols import Smooth as Smooth
from riskmin.types.protocols import Smoothable as Smoothable
from riskmin.types.protocols import Solver as Solver
from riskmin.types.protocols import Warm as Warm
from riskmin.types.records import Array as Array
from riskmin.types.records import Bend as Bend
from riskmin.types.records import Criterion as Criterion
from riskmin.types.records import Cut as Cut
from riskmin.types.records import Dual as Dual
from riskmin.types.records import Iterate as Iterate
from riskmin.types.records import Lost as Lost
from riskmin.types.records import Memo as Memo
from riskmin.types.records import NDArray as NDArray
from riskmin.types.records import Result as Result
from riskmin.types.records import Shard as Shard
from riskmin.types.records import Status as Status
from riskmin.types.records import Unsuited as Unsuited
from riskmin.types.records import Window as Window
