"""DataFrames of Spark: certified fits of rows that stay in real worker processes, some of them killed."""

import os
import signal
import threading

import numpy as np
import pandas as pd
import pytest

import riskmin as rm
from helpers import pids
from riskmin.spark import SparkEstimator, load_frame

TOL = 1e-6


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table, also as a folder of Parquet files."""
    rng = np.random.default_rng(0)
    n, names = 900, ["a", "b", "c"]
    X = rng.standard_normal((n, 3))
    rows = pd.DataFrame(X, columns=names)
    rows["label"] = np.where(X[:, 0] + 0.5 * rng.standard_normal(n) > 0, "yes", "no")
    rows["target"] = X @ [1.0, -2.0, 0.5] + rng.standard_normal(n)
    rows["weight"] = rng.integers(1, 4, n) * 1.0
    rows["query"] = rng.integers(0, 40, n)
    rows["grade"] = np.digitize(rows["target"], [-1.0, 1.0]) * 1.0
    folder = tmp_path_factory.mktemp("rows")
    for k in range(3):
        rows.iloc[k::3].to_parquet(folder / f"{k}.parquet")
    return rows, str(folder)


FITS = {
    "logistic, weights": (rm.LinearClassifier("logistic", alpha=1e-2, tol=TOL), "label", "weight", None),
    "ROC area": (rm.LinearClassifier("roc_area", alpha=1e-2, tol=1e-4), "label", None, None),
    "quantile": (rm.LinearRegressor("quantile:level=0.9", alpha=1e-2, tol=1e-4), "target", None, None),
    "NDCG": (rm.LinearRanker(alpha=1e-1, tol=1e-3), "grade", None, "query"),
}


@pytest.mark.parametrize("name", FITS)
def test_fits_are_those_of_local_rows(spark, table, name):
    estimator, label, weight, qid = FITS[name]
    rows, folder = table
    model = SparkEstimator(estimator, features=["a", "b", "c"], label=label, weight=weight, qid=qid).fit(
        spark.read.parquet(folder)
    )
    fitted = model.estimator_
    given = {"sample_weight": weight, "qid": qid}
    X = rows[["a", "b", "c"]].to_numpy()
    local = type(estimator)(**estimator.get_params()).fit(
        X, rows[label].to_numpy(), **{k: rows[v].to_numpy() for k, v in given.items() if v}
    )
    assert fitted.gap_ <= estimator.tol * fitted.objective_
    # each bound is below the objective of the other
    assert fitted.lower_bound_ <= local.objective_ * (1 + 1e-9)
    assert local.lower_bound_ <= fitted.objective_ * (1 + 1e-9)
    assert model.feature_names_ == ["a", "b", "c"]
    # all cores are free again
    assert spark.range(4, numPartitions=2).count() == 4


def test_predictions_are_columns(spark, table):
    from pyspark.sql import functions

    frame = spark.read.parquet(table[1])
    model = SparkEstimator(rm.LinearClassifier("logistic"), features=["a", "b", "c"]).fit(frame)
    scored = model.transform(model.transform(frame), method="predict_proba", column="p")
    scored = scored.toArrow().to_pandas()
    X = scored[["a", "b", "c"]].to_numpy()
    assert (scored["prediction"] == model.estimator_.predict(X)).all()
    np.testing.assert_allclose(np.array(scored["p"].tolist()), model.estimator_.predict_proba(X), rtol=1e-12)
    in_one = frame.withColumn("features", functions.array("a", "b", "c"))
    column = SparkEstimator(rm.LinearRegressor(), label="target").fit(in_one)
    found = column.transform(in_one).toArrow().to_pandas()
    X = np.array(found["features"].tolist())
    np.testing.assert_allclose(found["prediction"], column.estimator_.predict(X), rtol=1e-12)
    with pytest.raises(ValueError, match="LinearClassifier has no method 'guess'"):
        model.transform(frame, method="guess")


@pytest.mark.parametrize("kind", ["array", "vector", "sparse"])
def test_a_column_of_features(spark, table, kind):
    from pyspark.ml.feature import VectorAssembler
    from pyspark.sql import functions

    rows, folder = table
    frame = spark.read.parquet(folder)
    names = ["a", "b", "c"]
    if kind == "array":
        frame = frame.withColumn("features", functions.array(*names))
    else:
        # an assembler stores mostly zeros as a sparse vector
        extra = [f"z{k}" for k in range(9)] if kind == "sparse" else []
        for name in extra:
            frame = frame.withColumn(name, functions.lit(0.0))
        frame = VectorAssembler(inputCols=names + extra, outputCol="features").transform(frame)
    loaded = load_frame(frame, label="target")
    try:
        assert loaded.X.sparse == (kind == "sparse")
        whole = loaded.X.whole()
        whole = whole.toarray() if kind == "sparse" else whole
        by_target = np.argsort(loaded.y)
        expected = rows.sort_values("target")
        np.testing.assert_array_equal(loaded.y[by_target], expected["target"])
        np.testing.assert_array_equal(whole[by_target, :3], expected[names])
        assert loaded.feature_names[1] == "features[1]"
        found = rm.linear_risk(loaded.X, loaded.y, rm.Huber())(np.ones(whole.shape[1]))
        assert found[0] == pytest.approx(
            rm.linear_risk(whole, loaded.y, rm.Huber())(np.ones(len(whole.T)))[0]
        )
    finally:
        loaded.X.executor.close()


def kill(pid):
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("what", ["task", "executor"])
def test_a_killed_worker_is_replaced_during_a_fit(spark, table, what):
    """The Python process of a task, or the whole worker of Spark; a later fit has the same bits.

    That of the fit itself depends on the step at which lost scores were computed again.
    """
    loaded = load_frame(spark.read.parquet(table[1]), features=["a", "b", "c"], label="label")
    y = np.where(loaded.y == "yes", 1.0, -1.0)
    try:
        J = rm.Objective(rm.linear_risk(loaded.X, y, rm.Hinge()), rm.L2(), 1e-2)
        undisturbed = rm.minimize(J, rm.Bundle(), tol=TOL)
        before = J.risk.executor.map(pids)
        victim = before[0] if what == "task" else parent(parent(before[0]))
        timer = threading.Timer(0.02, kill, (victim,))
        timer.start()
        result = rm.minimize(J, rm.Bundle(), tol=TOL)
        timer.join()
        while J.risk.executor.map(pids)[0] == before[0]:  # Spark notices, and ends the other task
            pass
        assert result.status == undisturbed.status == "converged"
        assert result.lower <= undisturbed.value
        assert undisturbed.lower <= result.value
        again = rm.minimize(J, rm.Bundle(), tol=TOL)
        assert again.w.tobytes() == undisturbed.w.tobytes()
        assert victim not in J.risk.executor.map(pids)
    finally:
        loaded.X.executor.close()


def parent(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
        return int(file.read().rpartition(")")[2].split()[1])


def test_rows_that_are_computed_otherwise_are_refused(spark, table):
    from pyspark.sql import functions

    frame = spark.read.parquet(table[1]).withColumn("a", functions.expr("random()"))
    seeded = frame.withColumn("a", functions.udf(unlike, "double")("b"))
    loaded = load_frame(seeded, features=["a", "b"], label="target")
    try:
        risk = rm.linear_risk(loaded.X, loaded.y, rm.Squared())
        risk(np.ones(2))
        kill(risk.executor.map(pids)[0])
        with pytest.raises(RuntimeError, match=r"Spark computed other rows than before .* checkpoint\(\)"):
            risk(np.ones(2))
        with pytest.raises(RuntimeError, match="were closed: make X and the risk anew"):
            risk(np.ones(2))
    finally:
        loaded.X.executor.close()


def unlike(_):
    """Another number each time."""
    import random

    return random.SystemRandom().random()


def test_unusable_frames_are_refused_in_one_sentence(spark, table):
    frame = spark.read.parquet(table[1])
    for arguments, words in (
        ({"features": "x"}, "the DataFrame has no column 'x', but a, b, c, label"),
        (
            {"features": ["a", "label"], "label": "target"},
            "part .: of the DataFrame|the column 'label' is text",
        ),
        ({"features": []}, "features names no column"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            load_frame(frame, **arguments)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="the DataFrame has no rows: check its filters"):
        load_frame(frame.where("a > 1000"), features=["a"])
