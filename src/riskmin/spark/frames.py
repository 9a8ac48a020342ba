"""The rows of a Spark DataFrame as a partitioned X: they stay in Spark's workers, and labels come here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.partitioned import PartitionedMatrix
from riskmin.core import NDArray
from riskmin.data.base import concatenated
from riskmin.executors.spark.executor import SparkExecutor, partitions_of
from riskmin.executors.spark.stage import NO_ROWS
from riskmin.spark.arrow import RowReader, TaskSummary


class FrameRows(NamedTuple):
    """The rows of a DataFrame; X is in Spark's workers.

    Attributes
    ----------
    X : PartitionedMatrix
        One part per task. ``X.executor`` is the executor that holds the rows; ``X.executor.close()`` frees
        them, and the cores of the cluster.
    y, weight, qid : array or None
        In the order of X.
    feature_names : list of str
    """

    X: PartitionedMatrix
    y: NDArray | None
    weight: NDArray | None
    qid: NDArray | None
    feature_names: list[str]


def load_frame(
    frame: Any,
    *,
    features: str | Sequence[str] = "features",
    label: str | None = "label",
    weight: str | None = None,
    qid: str | None = None,
    executor: SparkExecutor | None = None,
) -> FrameRows:
    """Have Spark's workers read a DataFrame into their memory, where a fit uses the rows.

    The rows are divided evenly among the tasks of one barrier stage, as arrays (sparse vectors as CSR).
    Within a task they are put into an order that depends on the rows alone.

    Parameters
    ----------
    frame : pyspark.sql.DataFrame
    features : str or sequence of str
        One column of vectors or arrays, or columns of numbers.
    label, weight, qid : str, optional
        The columns of the labels, of row weights and of query ids; the rows of a query are put together.
    executor : SparkExecutor, optional
        Its settings; by default the session of the DataFrame, and all cores of its cluster.

    Returns
    -------
    FrameRows

    Raises
    ------
    ValueError
        For a column that is missing, empty in some row, or no number.

    Examples
    --------
    >>> X, y, *_ = load_frame(frame, features=["age", "income"], label="bought")  # doctest: +SKIP
    >>> model = LinearClassifier("logistic", alpha=1e-4).fit(X, y)  # doctest: +SKIP
    """
    executor = SparkExecutor(frame.sparkSession) if executor is None else executor
    reader = row_reader(frame, features, label, weight, qid)
    n_tasks = executor.n_tasks
    selected = frame.select(*(quoted(name) for name in reader.columns))
    divided = selected.repartition(n_tasks, *([] if qid is None else [quoted(qid)]))
    stage = executor.start(divided, reader)
    summaries: list[TaskSummary] = [stage.summaries.pop(k) for k in range(stage.n_tasks)]
    parts = [part for part in partitions_of(stage, summaries) if part.shape[0]]
    if not parts:
        stage.close()
        raise ValueError(NO_ROWS)
    summaries = [summary for summary in summaries if summary.shape[0]]
    names = [part.name for part in parts]
    columns = zip(*(summary[-3:] for summary in summaries), strict=True)
    y, weights, ids = (concatenated(names, "label", list(column)) for column in columns)
    X = PartitionedMatrix(parts, executor.holding(stage))
    return FrameRows(X, y, weights, ids, feature_names(reader, X.shape[1]))


def feature_names(reader: RowReader, n_features: int) -> list[str]:
    """Return the names of the columns, or of the entries of the vectors, such as ``features[3]``."""
    if not reader.vector:
        return list(reader.features)
    return [f"{reader.features[0]}[{j}]" for j in range(n_features)]


def row_reader(
    frame: Any, features: str | Sequence[str], label: str | None, weight: str | None, qid: str | None
) -> RowReader:
    """Return the reader of these columns; raise a ValueError if one is missing, or no feature."""
    names = (features,) if isinstance(features, str) else tuple(features)
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    if not names:
        raise ValueError("features names no column: give one at least")
    for name in (*names, label, weight, qid):
        if name is not None and name not in kinds:
            known = ", ".join(list(kinds)[:8]) + (", ..." if len(kinds) > 8 else "")
            raise ValueError(f"the DataFrame has no column {name!r}, but {known}: name one of these")
    kind = kinds[names[0]]
    vector = len(names) == 1 and kind.typeName() in ("array", "udt", "vectorudt")
    numbers = [kind.elementType if kind.typeName() == "array" else kind] if vector else map(kinds.get, names)
    single = all(number.typeName() == "float" for number in numbers)  # type: ignore[union-attr]
    return RowReader(names, vector, label, weight, qid, np.dtype(np.float32 if single else np.float64))


def quoted(name: str) -> str:
    """Return the name of a column as Spark reads it where dots separate fields."""
    return "`" + name.replace("`", "``") + "`"
