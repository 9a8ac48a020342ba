"""Starting points from samples of the rows; with many rows per column, they are close to the optimum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from riskmin.arrays.matrix import as_matrix
from riskmin.arrays.namespace import as_indices_like, namespace
from riskmin.arrays.partitioned import RowMetadata
from riskmin.core import Shard, ShardCache
from riskmin.executors.base import SerialExecutor
from riskmin.problem.design_operator import DesignOperator
from riskmin.problem.linear_risk import make_shards
from riskmin.problem.objective import CallCounter, Objective
from riskmin.solvers.base import beside_another_library
from riskmin.solvers.newton.devices.design import DeviceDesign

BESIDE_MIN_ENTRIES = 2**28
"""Entries of X beside another array library from which a sample pays: a GPU reads fewer in a millisecond."""
SAMPLE_SHARD_ENTRIES = 2**17
"""Stored entries per shard of a sample: fewer than in all rows, so that all threads take part."""


def sampled_objective(obj: Objective, one_in: int, rows_per_column: int) -> Objective | None:
    """The objective on one random row out of each `one_in`; None for too few rows per column."""
    risk: Any = obj.risk
    n, p = risk.row_metadata.shape
    size = n // one_in
    if size < rows_per_column * p or not risk.loss.separable:
        return None
    rng = np.random.default_rng(0)  # one row from each range of one_in rows: sorted rows are sampled evenly
    index = one_in * np.arange(size) + rng.integers(0, one_in, size)
    design = (DeviceDesign if beside_another_library(risk) else DesignOperator)(risk)
    chosen = as_indices_like(index, risk.row_metadata.c)
    y, c = risk.row_metadata.y[chosen], risk.row_metadata.c[chosen]
    total = float(c.sum())
    # rows without weight have no risk; remote rows may be too many to copy
    if not total > 0 or not design.can_sample(size):
        return None
    # weights of sum 1, so that the risk is a mean again and lam keeps its meaning
    shard = Shard(as_matrix(design.gather(index)), y, c / total, ShardCache())
    local = namespace(y) is np
    sampled = replace(
        risk,
        linear_map=design.linear_map,
        executor=_placed(risk.executor, shard) if local else risk.executor.with_shards([shard]),
        rows=shard if local else None,
        row_metadata=None if local else RowMetadata.from_rows(*shard[:3]),
    )
    # the kernels of a traced loss are those of the sample
    sampled.compiled_losses.update(risk.compiled_losses)
    return replace(obj, risk=sampled, count=CallCounter())


def _placed(executor: Any, rows: Shard) -> Any:
    """An executor that holds a sample: the threads of a local one share it, in shards of equal size."""
    n_shards = max(min(rows.X.nnz // SAMPLE_SHARD_ENTRIES, 64), 1)
    shards = make_shards(rows.X, rows.y, rows.c, n_shards, wide=False)
    return executor.with_shards(shards) if executor.is_local else SerialExecutor(shards)
