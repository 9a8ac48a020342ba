"""A Spark session with real workers: processes of their own on this machine."""

import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}


@contextmanager
def started():
    """A session, stopped at the end of the block; skips the test without PySpark or Java."""
    sql = pytest.importorskip("pyspark.sql", reason="PySpark is not installed: pip install '.[spark]'")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("there is no Java, which Spark needs")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = sql.SparkSession.builder.master("local-cluster[2,1,1024]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    # workers unpickle functions of the test modules by their names
    paths = [str(HERE), str(HERE / "executors"), str(HERE / "spark"), os.environ.get("PYTHONPATH", "")]
    session = builder.config(
        "spark.executorEnv.PYTHONPATH", os.pathsep.join(filter(None, paths))
    ).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
