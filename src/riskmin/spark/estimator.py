"""A meta-estimator for DataFrames of Spark: an estimator of riskmin, fitted and applied by the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.utils.validation import check_is_fitted

from riskmin.core import NDArray
from riskmin.executors.spark.executor import SparkExecutor
from riskmin.spark.frames import load_frame, quoted, row_reader


class SparkEstimator(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Fit an estimator to a Spark DataFrame, min_w lam Omega(w) + R(w), and add columns of predictions.

    The rows are read by the workers and stay there during the fit (`load_frame`); this process has labels
    and weights, 8 bytes per row each. The cores of the cluster are free again after the fit.

    Parameters
    ----------
    estimator : LinearClassifier, LinearRegressor, LinearRanker or another estimator that takes remote rows
    features : str or sequence of str
        One column of vectors or arrays, or columns of numbers.
    label, weight, qid : str, optional
        The columns of the labels, of row weights, and of query ids for a ranker.
    executor : SparkExecutor, optional
        Its settings; by default the session of the DataFrame, and all cores of its cluster.

    Attributes
    ----------
    estimator_ : estimator
        The fitted estimator, with its certificate: ``objective_``, ``lower_bound_``, ``gap_``.
    feature_names_ : list of str

    Examples
    --------
    >>> from riskmin import LinearClassifier
    >>> model = SparkEstimator(LinearClassifier("logistic"), features=["age", "income"], label="bought")
    >>> model.fit(frame).transform(frame).select("bought", "prediction")  # doctest: +SKIP
    >>> model.estimator_.gap_ <= model.estimator_.tol * model.estimator_.objective_  # doctest: +SKIP
    True
    """

    def __init__(
        self,
        estimator: Any,
        *,
        features: str | Sequence[str] = "features",
        label: str | None = "label",
        weight: str | None = None,
        qid: str | None = None,
        executor: SparkExecutor | None = None,
    ) -> None:
        self.estimator, self.features, self.label = estimator, features, label
        self.weight, self.qid, self.executor = weight, qid, executor

    def fit(self, frame: Any, y: Any = None) -> SparkEstimator:
        """Fit a clone of the estimator to the rows of a DataFrame.

        Parameters
        ----------
        frame : pyspark.sql.DataFrame
        y : None
            The labels are a column of the DataFrame.
        """
        columns = {"label": self.label, "weight": self.weight, "qid": self.qid}
        rows = load_frame(frame, features=self.features, executor=self.executor, **columns)
        given = {"y": rows.y, "sample_weight": rows.weight, "qid": rows.qid}
        try:
            model = clone(self.estimator)
            model.fit(rows.X, **{name: value for name, value in given.items() if value is not None})
        finally:
            rows.X.executor.close()
        self.estimator_, self.feature_names_ = model, rows.feature_names
        return self

    def transform(self, frame: Any, *, method: str = "predict", column: str = "prediction") -> Any:
        """Return the DataFrame with a column of predictions, which the workers compute.

        Parameters
        ----------
        frame : pyspark.sql.DataFrame
            With the columns of the features.
        method : {"predict", "predict_proba", "decision_function"}
            The method of the estimator; several outputs per row are an array.
        column : str
            The name of the new column.
        """
        import pyarrow as pa
        from pyspark.sql import functions

        check_is_fitted(self)
        reader = row_reader(frame, self.features, None, None, None)
        model, kind = self.estimator_, self._result_type(method)

        def predict(batches: Any) -> Any:
            for columns in batches:
                # Spark gives a single column without a tuple
                given = columns if isinstance(columns, tuple) else (columns,)
                batch = pa.RecordBatch.from_arrays(list(given), names=list(reader.features))
                values = getattr(model, method)(reader.block("the DataFrame", batch))
                yield pa.array(values.tolist() if values.ndim > 1 else values)

        # Spark chooses the kind of function by its types
        predict.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
        columns = [functions.col(quoted(name)) for name in reader.features]
        return frame.withColumn(column, functions.arrow_udf(predict, kind)(*columns))

    def _result_type(self, method: str) -> str:
        """Return the type of the predictions of one row, in Spark's words."""
        if not hasattr(self.estimator_, method):
            raise ValueError(f"{type(self.estimator_).__name__} has no method {method!r}: use another")
        p = len(self.feature_names_)
        example: NDArray = np.asarray(getattr(self.estimator_, method)(np.zeros((1, p))))
        kinds = {"U": "string", "O": "string", "b": "boolean", "i": "long", "u": "long"}
        kind = kinds.get(example.dtype.kind, "double")
        return f"array<{kind}>" if example.ndim > 1 else kind
